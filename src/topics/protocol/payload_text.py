"""A payload as JSON text: a value that can be written as JSON, or JSON text as `bytes`, which is checked and kept.

Values are what `msgspec` can write (builtins, dataclasses, Structs, attrs, dates, …) and models with `model_dump`.
"""

import math
from typing import Any, Final

import msgspec

from topics.errors import InvalidRequest
from topics.protocol.json_text import check_depth, check_numbers, one_line


def _builtins_of_model(value: Any) -> Any:
    """Called for a value that msgspec does not know."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} is no type that JSON has")
    return dump(mode="json")


_encode: Final = msgspec.json.Encoder(enc_hook=_builtins_of_model).encode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def payload_text(value: Any) -> bytes:
    """The JSON text of a payload. Raises `InvalidRequest`."""
    if type(value) is not bytes:
        return _encoded(value)
    check_depth(value)
    try:
        if not value.isascii():
            value.decode()
        _decode_raw(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"a payload given as bytes is not JSON: {error}") from error
    check_numbers(value)
    return one_line(value)


def _encoded(value: Any) -> bytes:
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"a payload cannot be written as JSON: {error}") from error
    check_depth(text)
    if b"null" in text and _has_non_finite(msgspec.to_builtins(value, enc_hook=_builtins_of_model)):
        # The encoder writes NaN and infinity as null, so a reader would get another value than the caller gave.
        raise InvalidRequest("a payload has a float that is NaN or infinite; JSON has no such numbers")
    check_numbers(text)
    return text


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_non_finite, value))
