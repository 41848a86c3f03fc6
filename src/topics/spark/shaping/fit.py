"""One JSON text as a value of a type, and whether the value has all that the text says. Pure.

What fits:

| Type | JSON |
|---|---|
| string | a string, with no half of a surrogate pair |
| boolean | true, false |
| tinyint, smallint, int, bigint | a number without fraction and exponent, in the range of the type |
| double, float | a number that is finite; an integer only when the type has exactly this integer |
| decimal(p, s) | a number that needs no rounding |
| timestamp | a string of RFC 3339 with a zone, up to microseconds |
| timestamp_ntz | the same without a zone |
| date | a string such as 2026-01-31 |
| array, map, struct | an array, an object, an object whose members are all named by the type, or null |

`null` fits everywhere but at the top. A member that is missing is null, so that a null in a member that the type does
not name says nothing. A value that does not fit is null where it is, and the rest of the record is kept beside it. A
member that comes twice has its last value, and does not fit.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from json import JSONDecoder
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa  # type: ignore[import-untyped]

# Beyond these a float has not every integer.
DOUBLE_INTEGER_MAX: Final = 2**53
FLOAT_INTEGER_MAX: Final = 2**24

_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?P<fraction>\.\d{1,6})?(?P<zone>[Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class Fitted(NamedTuple):
    value: Any
    is_whole: bool


_Fit = Callable[[Any], Fitted]
_MISFIT: Final = Fitted(None, False)
_NULL: Final = Fitted(None, True)


class Members(NamedTuple):
    """A JSON object, with members that come twice."""

    pairs: list[tuple[str, Any]]


class Real(str):
    """A number with a fraction or an exponent, as it was written."""

    __slots__ = ()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = JSONDecoder(object_pairs_hook=Members, parse_float=Real, parse_constant=_no_constant)


def parse(text: str) -> Any:
    """The JSON value, with `Members` for objects and `Real` for numbers that are no integers.

    Raises `ValueError` for a text that is no JSON, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def fitter(wanted: pa.DataType) -> Callable[[str], Fitted]:
    """A function from a JSON text to a value that Arrow takes as this type."""
    fit = _fit_of(wanted)

    def fit_text(text: str) -> Fitted:
        try:
            value = parse(text)
        except ValueError:
            return _MISFIT
        # A record without data is null, too, so that JSON null must be told apart from it.
        return _MISFIT if value is None else fit(value)

    return fit_text


def _fit_of(wanted: pa.DataType) -> _Fit:
    fit = _fit_known(wanted)
    return lambda value: _NULL if value is None else fit(value)


def _fit_known(wanted: pa.DataType) -> _Fit:
    types = pa.types
    if types.is_struct(wanted):
        return _fit_struct(wanted)
    if types.is_map(wanted):
        return _fit_map(wanted)
    if types.is_list(wanted):
        return _fit_array(wanted)
    if types.is_integer(wanted):
        return _fit_integer(wanted.bit_width)
    if types.is_floating(wanted):
        return _fit_double if wanted == pa.float64() else _fit_float
    if types.is_decimal(wanted):
        return _fit_decimal(wanted.precision, wanted.scale)
    if types.is_timestamp(wanted):
        return _fit_time if wanted.tz is not None else _fit_local_time
    scalars: dict[pa.DataType, _Fit] = {
        pa.string(): _fit_string,
        pa.bool_(): _fit_boolean,
        pa.date32(): _fit_date,
    }
    return scalars[wanted]


def is_supported(wanted: pa.DataType) -> bool:
    try:
        _fit_known(wanted)
    except KeyError:
        return False
    return True


# Scalars.


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, Real)


def _fit_string(value: Any) -> Fitted:
    if not _is_text(value):
        return _MISFIT
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return _MISFIT
    return Fitted(value, True)


def _fit_boolean(value: Any) -> Fitted:
    return Fitted(value, True) if isinstance(value, bool) else _MISFIT


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fit_integer(bits: int) -> _Fit:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def fit(value: Any) -> Fitted:
        return Fitted(value, True) if _is_integer(value) and least <= value <= most else _MISFIT

    return fit


def _fit_double(value: Any) -> Fitted:
    if isinstance(value, Real):
        number = float(value)
        return Fitted(number, True) if isfinite(number) else _MISFIT
    if not _is_integer(value):
        return _MISFIT
    try:
        number = float(value)
    except OverflowError:
        return _MISFIT
    return Fitted(number, True) if number == value else _MISFIT


def _fit_float(value: Any) -> Fitted:
    fitted = _fit_double(value)
    if not fitted.is_whole:
        return _MISFIT
    nearest = pa.scalar(fitted.value).cast(pa.float32(), safe=False).as_py()
    fits = isfinite(nearest) and (isinstance(value, Real) or nearest == value)
    return Fitted(nearest, True) if fits else _MISFIT


def _fit_decimal(precision: int, scale: int) -> _Fit:
    def fit(value: Any) -> Fitted:
        if not isinstance(value, Real) and not _is_integer(value):
            return _MISFIT
        try:
            number = Decimal(value)
        except (InvalidOperation, ValueError):
            return _MISFIT
        # Zeros at the end are no digits that must be kept.
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "JSON has no NaN"
        while len(digits) > 1 and digits[-1] == 0:
            digits, exponent = digits[:-1], exponent + 1
        if digits == (0,):
            return Fitted(Decimal((sign, (0,), 0)), True)
        if -exponent > scale or len(digits) + exponent > precision - scale:
            return _MISFIT
        return Fitted(Decimal((sign, digits, exponent)), True)

    return fit


# Times.


def _moment(value: Any, *, has_zone: bool) -> datetime | None:
    match = _TIME.fullmatch(value) if _is_text(value) else None
    if match is None or (match["zone"] is not None) != has_zone:
        return None
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(value.upper())
        if moment.tzinfo is not None:
            # A zone can move a time out of the range that Python has.
            return moment.astimezone(UTC)
        return moment
    return None


def _fit_time(value: Any) -> Fitted:
    moment = _moment(value, has_zone=True)
    return _MISFIT if moment is None else Fitted(moment, True)


def _fit_local_time(value: Any) -> Fitted:
    moment = _moment(value, has_zone=False)
    return _MISFIT if moment is None else Fitted(moment, True)


def _fit_date(value: Any) -> Fitted:
    if _is_text(value) and _DATE.fullmatch(value):
        with suppress(ValueError):
            return Fitted(date.fromisoformat(value), True)
    return _MISFIT


# Values with parts.


def _fit_array(wanted: pa.ListType) -> _Fit:
    fit_element = _fit_of(wanted.value_type)

    def fit(value: Any) -> Fitted:
        if not isinstance(value, list):
            return _MISFIT
        parts = [fit_element(element) for element in value]
        return Fitted([part.value for part in parts], all(part.is_whole for part in parts))

    return fit


def _fit_map(wanted: pa.MapType) -> _Fit:
    fit_item = _fit_of(wanted.item_type)

    def fit(value: Any) -> Fitted:
        if not isinstance(value, Members):
            return _MISFIT
        found: dict[str, Any] = {}
        is_whole = True
        for name, item in value.pairs:
            part = fit_item(item)
            if not _fit_string(name).is_whole:
                is_whole = False
                continue
            is_whole = is_whole and part.is_whole and name not in found
            found[name] = part.value
        return Fitted(list(found.items()), is_whole)

    return fit


def _fit_struct(wanted: pa.StructType) -> _Fit:
    fit_by_name = {field.name: _fit_of(field.type) for field in wanted}

    def fit(value: Any) -> Fitted:
        if not isinstance(value, Members):
            return _MISFIT
        found: dict[str, Any] = {}
        is_whole = True
        for name, member in value.pairs:
            fit_member = fit_by_name.get(name)
            if fit_member is None:
                is_whole = is_whole and member is None
                continue
            part = fit_member(member)
            is_whole = is_whole and part.is_whole and name not in found
            found[name] = part.value
        return Fitted(found, is_whole)

    return fit
