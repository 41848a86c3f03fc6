"""How request bodies are decoded: what makes a body acceptable beyond its struct.

Unknown members are ignored. A member that is given twice is refused, but only if the struct has a member of that
name: payloads belong to the writer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, inspect

from topics.errors import InvalidRequest
from topics.limits import U64_MAX
from topics.protocol.json_text import check_depth, check_numbers, check_unicode, without_strings
from topics.protocol.request_body import (
    AbortBody,
    AckBody,
    CaptureBody,
    ClaimBody,
    CommitBody,
    ConfigBody,
    DeleteBody,
    DiffBody,
    EpochBody,
    ExtendBody,
    GroupBody,
    ManifestBody,
    NackBody,
    PartBody,
    RedriveBody,
    ReplaceBody,
    RouterBody,
    WatchBody,
    WatchTopic,
)

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class MalformedBody(InvalidRequest):
    """A body that is not JSON, or whose members have the wrong types or ranges."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"malformed JSON body: {reason}")


def decoded(decode: Callable[[bytes], T], text: bytes) -> T:
    """What the text holds, or `InvalidRequest`: syntax, types, and ranges of the type."""
    try:
        return decode(text)
    except msgspec.DecodeError as error:
        raise MalformedBody(error) from error
    except UnicodeDecodeError as error:
        raise MalformedBody(f"not UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise MalformedBody("nested too deeply") from None


# A body of the contract has a few thousand values: 1000 seqs with their leases, or 256 topics with their cursors.
VALUES_MAX: Final = 16_384


# A commit names its parts, with five values each.
PART_VALUES_MAX: Final = 50_000


class TooManyValues(MalformedBody):
    """A body with more values than any body of the contract needs."""


def check_values(text: bytes, values_max: int = VALUES_MAX) -> None:
    """Refuses a body with more values than any body of the contract needs, before it is parsed.

    Commas and opening brackets are counted, which takes a millisecond for 1 MiB; parsing takes a hundred. Those in
    strings do not count.
    """
    if len(text) <= values_max or _value_count(text) <= values_max:
        return
    string_count = (text.count(b'"') - text.count(b'\\"')) // 2
    if string_count > 2 * values_max or _value_count(without_strings(text)) > values_max:
        raise TooManyValues(f"more than {values_max} values")


def _value_count(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class BodyDecoder:
    """Decodes request bodies of one struct, strictly."""

    def __init__(self, shape: type[Struct]) -> None:
        self._decode = msgspec.json.Decoder(shape).decode
        self._names = frozenset(shape.__struct_encode_fields__)
        members = inspect.type_info(shape)
        assert isinstance(members, inspect.StructType)
        self._unsigned = tuple(member.name for member in members.fields if _is_unsigned(member.type))
        self._unsigned_lists = tuple(member.name for member in members.fields if _is_unsigned_list(member.type))

    def decode(self, text: bytes, values_max: int = VALUES_MAX) -> Any:
        check_values(text, values_max)
        body = decoded(self._decode, text)
        check_text(text)
        # A text with two quotes for each distinct member has no quotes in values, and no member twice.
        if text.count(b'"') != 2 * len(_decode_members(text)):
            check_repeats(pairs_of(text), self._names)
        self.check_ranges(body)
        return body

    def check_ranges(self, body: Struct) -> None:
        """Refuses numbers above 64 bits: the parser checks bounds only up to 63 bits."""
        for name in self._unsigned:
            value = getattr(body, name)
            if value is not None and value > U64_MAX:
                raise MalformedBody(f"{name} is larger than {U64_MAX}")
        for name in self._unsigned_lists:
            if max(getattr(body, name), default=0) > U64_MAX:
                raise MalformedBody(f"one of {name} is larger than {U64_MAX}")


# How many bodies are remembered. When the number is reached, all are forgotten.
REMEMBERED_BODIES_MAX: Final = 1024
REMEMBERED_BODY_BYTES_MAX: Final = 512


class RememberingDecoder(BodyDecoder):
    """Remembers small bodies by their text: clients repeat them, and equal text has an equal meaning. That takes a
    twentieth of the time. Callers do not change what they get."""

    def __init__(self, shape: type[Struct]) -> None:
        super().__init__(shape)
        self._remembered: dict[bytes, Any] = {}

    def decode(self, text: bytes, values_max: int = VALUES_MAX) -> Any:
        body = self._remembered.get(text)
        if body is None:
            body = super().decode(text, values_max)
            if len(text) <= REMEMBERED_BODY_BYTES_MAX:
                if len(self._remembered) >= REMEMBERED_BODIES_MAX:
                    self._remembered.clear()
                self._remembered[text] = body
        return body


def _is_unsigned(kind: inspect.Type) -> bool:
    """Whether the member is a `U64`, perhaps with null."""
    if isinstance(kind, inspect.Metadata):
        return (kind.extra_json_schema or {}).get("format") == "uint64" or _is_unsigned(kind.type)
    return isinstance(kind, inspect.UnionType) and any(map(_is_unsigned, kind.types))


def _is_unsigned_list(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _is_unsigned_list(kind.type)
    return isinstance(kind, inspect.ListType) and _is_unsigned(kind.item_type)


class WatchDecoder(BodyDecoder):
    """Checks the members of each watched topic too."""

    def __init__(self) -> None:
        super().__init__(WatchBody)

    def decode(self, text: bytes, values_max: int = VALUES_MAX) -> Any:
        body = super().decode(text, values_max)
        for name, pairs in pairs_of(text):
            if name == "topics":
                # A topic that is named twice would have two places to begin.
                check_repeats(pairs, frozenset(body.topics))
                for _, members in pairs:
                    check_repeats(members, frozenset(WatchTopic.__struct_fields__))
        return body

    def check_ranges(self, body: Struct) -> None:
        super().check_ranges(body)
        assert isinstance(body, WatchBody)
        if any(watched.from_seq > U64_MAX for watched in body.topics.values()):
            raise MalformedBody(f"a from_seq is larger than {U64_MAX}")


class EpochDecoder(BodyDecoder):
    """Checks the members of each part too."""

    def __init__(self) -> None:
        super().__init__(EpochBody)
        self._part = BodyDecoder(PartBody)

    def decode(self, text: bytes, values_max: int = PART_VALUES_MAX) -> Any:
        body = super().decode(text, values_max)
        for name, parts in pairs_of(text):
            if name == "parts":
                for members in parts:
                    check_repeats(members, frozenset(PartBody.__struct_fields__))
        return body

    def check_ranges(self, body: Struct) -> None:
        super().check_ranges(body)
        assert isinstance(body, EpochBody)
        for part in body.parts:
            self._part.check_ranges(part)


def member_names(text: bytes) -> list[str]:
    """The names of all members of a decoded body, known or not."""
    return list(_decode_members(text))


def check_text(text: bytes) -> None:
    """Refuses valid JSON that no body may have: bytes that are not UTF-8, deep nesting, numbers out of range."""
    try:
        check_unicode(text)
        check_depth(text)
        check_numbers(text)
    except InvalidRequest as error:
        raise MalformedBody(error.message) from None


def pairs_of(text: bytes) -> Any:
    """The document with every object as a tuple of (name, value), repeated members included.

    The text is valid JSON of legal depth. Numbers stay text. A class for objects instead of tuples takes three times
    as long.
    """
    return json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)


def check_repeats(pairs: Iterable[tuple[str, Any]], names: frozenset[str]) -> None:
    """Refuses a member that is given twice, if its name is one of `names`."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen and name in names:
            raise MalformedBody(f'member "{name}" is given twice')
        seen.add(name)


CONFIG_DECODER: Final = BodyDecoder(ConfigBody)
DIFF_DECODER: Final = RememberingDecoder(DiffBody)
MANIFEST_DECODER: Final = BodyDecoder(ManifestBody)
CAPTURE_DECODER: Final = BodyDecoder(CaptureBody)
REPLACE_DECODER: Final = BodyDecoder(ReplaceBody)
DELETE_DECODER: Final = BodyDecoder(DeleteBody)
ROUTER_DECODER: Final = BodyDecoder(RouterBody)
CLAIM_DECODER: Final = BodyDecoder(ClaimBody)
ACK_DECODER: Final = BodyDecoder(AckBody)
NACK_DECODER: Final = BodyDecoder(NackBody)
EXTEND_DECODER: Final = BodyDecoder(ExtendBody)
REDRIVE_DECODER: Final = BodyDecoder(RedriveBody)
GROUP_DECODER: Final = BodyDecoder(GroupBody)
COMMIT_DECODER: Final = BodyDecoder(CommitBody)
EPOCH_DECODER: Final = EpochDecoder()
ABORT_DECODER: Final = BodyDecoder(AbortBody)
WATCH_DECODER: Final = WatchDecoder()
