"""Columns of JSON text become columns of a type: what fits is in the values, the text of every other record is kept.

`pyarrow.json` reads a whole batch at once, and refuses what does not fit: other types, members that come twice, numbers
out of range. So a batch that it reads is right as a whole, but for numbers that a double has not exactly, which are
looked for afterwards. A batch that is refused is cut into pieces. In a piece, members that the type does not name are
columns of their own, and a record that has a value in one of them is rescued. The records of a piece that is refused,
too, are read one by one (`fit`), which takes six times as long.

Records are joined by newlines, and the reader is not told where one begins. It finds as many objects as there are
records, and each text begins with `{` and ends with `}`. No newline can be inside a JSON string, and no `}` can be
followed by `{` but between two records. So every text is exactly one object, and rows are not shifted.
"""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]

from topics.limits import MIB
from topics.spark.shaping.fit import DOUBLE_INTEGER_MAX, Members, Real, fitter, parse

PIECE_RECORDS: Final = 256
# Of columns for members that the type does not name: every member of a record may be a column for all of a piece.
CELLS_MAX: Final = 8_000_000
# Of a text with such members. The type of a column with some ten thousand levels ends the process.
BRACKETS_MAX: Final = 4096
# The reader takes one block, whose size is a 32-bit number.
BLOCK_BYTES_MAX: Final = 64 * MIB

META_TYPE: Final = pa.map_(pa.string(), pa.string())
# Where a meta goes that is no object, or has a member twice. Routers use the same name.
ORIGINAL_META: Final = "_topics_original_meta"


class Decoded(NamedTuple):
    values: pa.Array
    # The text of each record that the values do not have as a whole, else null.
    rescued: pa.Array


class Decoder:
    """Decodes texts as one type. Not changed by its use."""

    def __init__(self, wanted: pa.DataType) -> None:
        self._wanted = wanted
        self._fit = fitter(wanted)
        self._is_readable = pa.types.is_struct(wanted) and wanted.num_fields > 0 and _is_readable(wanted)

    def decode(self, texts: pa.Array) -> Decoded:
        """`texts` is an array of strings; null is a row without data, and fits."""
        whole = self._read(texts)
        if whole is not None:
            return whole
        pieces = [
            self._read(piece, others="infer" if has_few_members(piece) else "error") or self._decode_one_by_one(piece)
            for piece in _pieces(texts)
        ]
        if not pieces:
            return Decoded(pa.array([], self._wanted), pa.array([], pa.string()))
        return Decoded(
            pa.concat_arrays([piece.values for piece in pieces]), pa.concat_arrays([piece.rescued for piece in pieces])
        )

    def _decode_one_by_one(self, texts: pa.Array) -> Decoded:
        values = []
        rescued = []
        for text in texts.to_pylist():
            value, is_whole = (None, True) if text is None else self._fit(text)
            values.append(value)
            rescued.append(None if is_whole else text)
        return Decoded(pa.array(values, self._wanted), pa.array(rescued, pa.string()))

    def _read(self, texts: pa.Array, *, others: Literal["error", "infer"] = "error") -> Decoded | None:
        """All texts at once; None when one does not fit. Members that the type does not name may be in some of them."""
        if not self._is_readable or len(texts) == 0 or texts.nbytes > BLOCK_BYTES_MAX:
            return None
        objects = pc.fill_null(texts, "{}")
        if not pc.all(pc.and_(pc.starts_with(objects, "{"), pc.ends_with(objects, "}"))).as_py():
            return None
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], objects), "\n")[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(joined),
                pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
                pj.ParseOptions(explicit_schema=pa.schema(list(self._wanted)), unexpected_field_behavior=others),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != len(texts):
            return None
        found = table.to_struct_array().combine_chunks()
        named = _named(found, self._wanted)
        if named is None or not _is_exact(named.values):
            return None
        values = pa.StructArray.from_arrays(
            [named.values.field(place) for place in range(self._wanted.num_fields)],
            fields=list(self._wanted),
            mask=pc.is_null(texts),
        )
        return Decoded(values, pc.if_else(named.has_others, texts, pa.scalar(None, pa.string())))


class _Named(NamedTuple):
    """The members that a type names, and which rows have values in other members."""

    values: pa.Array
    has_others: pa.Array


def _named(found: pa.Array, wanted: pa.DataType) -> _Named | None:
    """None when elements of an array have other members."""
    if found.type == wanted:
        return _Named(found, pa.repeat(pa.scalar(False), len(found)))
    if not pa.types.is_struct(wanted):
        return None
    has_others = pa.repeat(pa.scalar(False), len(found))
    parts: dict[str, pa.Array] = {}
    for field, part in zip(found.type, found.flatten(), strict=True):
        if field.name not in {member.name for member in wanted}:
            has_others = pc.or_(has_others, pc.is_valid(part))
            continue
        named = _named(part, wanted.field(field.name).type)
        if named is None:
            return None
        parts[field.name] = named.values
        has_others = pc.or_(has_others, named.has_others)
    values = pa.StructArray.from_arrays(
        [parts[member.name] for member in wanted], fields=list(wanted), mask=pc.is_null(found)
    )
    return _Named(values, has_others)


def decode_metas(texts: pa.Array) -> pa.Array:
    """Metas as maps: values that are no strings are their JSON text."""
    return pa.array([None if text is None else _meta(text) for text in texts.to_pylist()], META_TYPE)


def _meta(text: str) -> list[tuple[str, str | None]]:
    try:
        value = parse(text)
    except ValueError:
        value = None
    if not isinstance(value, Members) or len({name for name, _ in value.pairs}) < len(value.pairs):
        return [(ORIGINAL_META, text)]
    try:
        found = [(name, None if item is None else _text_of(item)) for name, item in value.pairs]
        "".join(part or "" for pair in found for part in pair).encode()
    except UnicodeEncodeError:
        return [(ORIGINAL_META, text)]
    return found


def _text_of(value: object) -> str:
    """A string as it is, everything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def json_text(value: object) -> str:
    """What `parse` gave, as compact JSON again, with numbers as they were written."""
    import json

    if isinstance(value, Members):
        return "{" + ",".join(f"{json_text(name)}:{json_text(member)}" for name, member in value.pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, Real):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def has_few_members(texts: pa.Array) -> bool:
    """Whether columns for all members of a piece, were they all different, would be of a moderate size and depth."""
    members = pc.sum(pc.count_substring(texts, ":")).as_py() or 0
    brackets = pc.max(pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))).as_py() or 0
    return len(texts) * members <= CELLS_MAX and brackets <= BRACKETS_MAX


def _pieces(texts: pa.Array) -> Iterator[pa.Array]:
    for start in range(0, len(texts), PIECE_RECORDS):
        yield texts.slice(start, PIECE_RECORDS)


_READABLE: Final = frozenset({pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64()})


def _is_readable(wanted: pa.DataType) -> bool:
    """Whether the reader of whole batches takes exactly what fits."""
    if pa.types.is_struct(wanted):
        names = [field.name for field in wanted]
        return len(set(names)) == len(names) > 0 and all(_is_readable(field.type) for field in wanted)
    if pa.types.is_list(wanted):
        return _is_readable(wanted.value_type)
    return wanted in _READABLE


def _is_exact(column: pa.Array) -> bool:
    """Whether every double of the column is finite, and is the number that was written if that was an integer."""
    if pa.types.is_struct(column.type):
        return all(map(_is_exact, column.flatten()))
    if pa.types.is_list(column.type):
        return _is_exact(column.flatten())
    if column.type != pa.float64():
        return True
    # NaN is not below, either.
    return bool(pc.all(pc.less(pc.abs(column), float(DOUBLE_INTEGER_MAX)), min_count=0).as_py())
