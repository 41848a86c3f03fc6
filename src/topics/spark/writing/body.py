"""Rows of a write as JSON text of records: built by columns, checked, and cut into chunks.

rule 1  A row must not change another part of its record. A payload is put into the text of the record, so that it must
        be exactly one JSON value. `1,"tag":"x"` would be valid there, and is refused.
rule 2  An error names the partition and the row, counted from 0 in the task. It does not show the value, because more
        people read logs than topics.

All values of a column are checked in one pass of the parser: joined to an array they must be as many values, each as
long as before. Then each value is exactly one JSON value.

The server checks what the parser accepts (depth, numbers that no reader can hold, sizes, bytes that are no UTF-8).
`refused_row` then finds the row by the same rules.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from topics.errors import InvalidRequest, TopicsError
from topics.protocol.write_body import WriteLimits, decode_write
from topics.spark.errors import BadOption

TYPE_BY_COLUMN: Final[dict[str, str]] = {
    "topic": "string",
    "data": "string",
    "value": "binary",
    "data_text": "string",
    "tag": "string",
    "node": "string",
    "meta": "string",
}
# The server gives them. Rows may have these columns when every value is null.
SERVER_COLUMNS: Final = ("seq", "ts")
PAYLOAD_COLUMNS: Final = ("data", "value", "data_text")

_BINARY: Final = pa.large_binary()
_decode_values: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_value: Final = msgspec.json.Decoder(msgspec.Raw).decode
_NOT_JSON: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
# Characters that need no escape inside a JSON string.
_PLAIN_BYTES: Final = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')


class BadRow(InvalidRequest):
    """A row that cannot be a record. No record of its chunk was stored."""

    def __init__(self, part: int, row: int, reason: str) -> None:
        super().__init__(f"partition {part}, row {row}: {reason}", {"partition": part, "row": row})


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Raises `BadOption` when rows with these columns, (name, simple type) each, cannot be records."""
    unknown = [f"`{name}`" for name, _ in columns if name not in TYPE_BY_COLUMN]
    if unknown:
        raise BadOption(
            f"there is no place in a record for {', '.join(unknown)}; select among {', '.join(TYPE_BY_COLUMN)}, "
            "and put everything else into `data`, for instance with to_json(struct(...))"
        )
    names = [name for name, _ in columns]
    for name, given_type in columns:
        wanted = TYPE_BY_COLUMN[name]
        if names.count(name) > 1:
            raise BadOption(f"there are several columns `{name}`")
        if not given_type.lower().startswith((wanted, "varchar", "char") if wanted == "string" else wanted):
            raise BadOption(f"column `{name}` must be {wanted}, not {given_type}; cast it, or use to_json()")
    payloads = [name for name in PAYLOAD_COLUMNS if name in names]
    if len(payloads) != 1:
        raise BadOption(
            "exactly one column must hold the payload: `data` (JSON text), `value` (the same as binary) "
            f"or `data_text` (plain text); there {'is' if not payloads else 'are'} {' and '.join(payloads) or 'none'}"
        )
    if topic is None and "topic" not in names:
        raise BadOption("nothing says where the rows go: give option `topic`, or have a column `topic`")


def without_server_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises `InvalidRequest` for a row that has a seq or a time of its own."""
    for name in SERVER_COLUMNS:
        if name in batch.schema.names:
            if batch.column(name).null_count != len(batch):
                raise InvalidRequest(f"rows have a `{name}`, which the server gives: leave the column out")
            batch = batch.drop_columns([name])
    return batch


# Texts.


def first_null(column: pa.Array) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])


def record_texts(batch: pa.RecordBatch, part: int, first_row: int) -> pa.Array:
    """One JSON object per row, as a record of a write is. `first_row` is the number of the first one."""
    names = batch.schema.names
    payload = next(name for name in PAYLOAD_COLUMNS if name in names)
    column = batch.column(payload)
    if column.null_count:
        raise BadRow(part, first_row + first_null(column), f"`{payload}` is null")
    column = column.cast(_BINARY)
    pieces = [_scalar(b'{"data":')]
    pieces.append(_quoted(column) if payload == "data_text" else _checked(column, payload, part, first_row))
    for name in ("tag", "node", "meta"):
        if name in names and batch.column(name).null_count < len(batch):
            column = batch.column(name).cast(_BINARY)
            values = _checked(column, name, part, first_row) if name == "meta" else _quoted(column)
            # Null without a value; then the text has no member for it.
            pieces.append(
                pc.binary_join_element_wise(
                    _scalar(f',"{name}":'.encode()), values, _scalar(b""), null_handling="emit_null"
                )
            )
    pieces.append(_scalar(b"}"))
    return pc.binary_join_element_wise(*pieces, _scalar(b""), null_handling="replace", null_replacement="")


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, _BINARY)


def _joined(values: pa.Array) -> bytes:
    """The values with commas in between."""
    offsets = pa.array([0, len(values)], pa.int64())
    joined: bytes = pc.binary_join(pa.LargeListArray.from_arrays(offsets, values), _scalar(b","))[0].as_py()
    return joined


def _checked(column: pa.Array, name: str, part: int, first_row: int) -> pa.Array:
    """The column, when every value is one JSON value. Blanks around values are removed."""
    values = column.drop_null()
    try:
        found = _decode_values(b"[%b]" % _joined(values))
    except _NOT_JSON:
        found = []
    if len(found) == len(values):
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        if np.array_equal(sizes, pc.binary_length(values).to_numpy()):
            return column
    return pa.array(
        [
            None if value is None else _checked_value(value, name, part, first_row + row)
            for row, value in enumerate(column.to_pylist())
        ],
        _BINARY,
    )


def _checked_value(value: bytes, name: str, part: int, row: int) -> bytes:
    try:
        return bytes(_decode_value(value))
    except _NOT_JSON as error:
        raise BadRow(part, row, f"`{name}` is not JSON: {error}") from None


def _quoted(column: pa.Array) -> pa.Array:
    """Text as JSON strings. Each character that needs an escape and occurs costs one pass over the column."""
    special = set(_joined(column.drop_null()).translate(None, _PLAIN_BYTES))
    # The backslash first, because the other replacements add backslashes.
    for byte in sorted(special, key=lambda byte: byte != ord("\\")):
        character = chr(byte)
        escaped = msgspec.json.encode(character).decode()[1:-1]
        column = pc.replace_substring(column, pattern=character, replacement=escaped)
    return pc.binary_join_element_wise(_scalar(b'"'), column, _scalar(b'"'), _scalar(b""), null_handling="emit_null")


# Chunks.


class RowChunk(NamedTuple):
    """Records of one request, and the numbers of their rows."""

    texts: pa.Array
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def records(self) -> bytes:
        """A JSON array."""
        return b"[%b]" % _joined(self.texts)

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.texts)

    def halves(self) -> tuple["RowChunk", "RowChunk"]:
        """The first half is not smaller: a server that takes it takes the second one, too."""
        middle = (len(self) + 1) // 2
        return RowChunk(self.texts[:middle], self.rows[:middle]), RowChunk(self.texts[middle:], self.rows[middle:])


@dataclass(slots=True)
class ChunkLimits:
    """How large chunks may be. The limits may be lowered during a write."""

    records_max: int
    bytes_max: int


class ChunkCutter:
    """Collects records in order and cuts chunks that are within the limits, or a single record."""

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self.size_bytes = 0
        self._count = 0
        self._texts: list[pa.Array] = []
        self._rows: list[np.ndarray] = []

    def add(self, texts: pa.Array, rows: np.ndarray) -> None:
        self._texts.append(texts)
        self._rows.append(rows)
        self._count += len(texts)
        self.size_bytes += _size_bytes(texts)

    def full(self) -> Iterator[RowChunk]:
        """The chunks that are full."""
        if self._count >= self._limits.records_max or self.size_bytes > self._limits.bytes_max:
            yield from self._cut(keeps_rest=True)

    def all(self) -> Iterator[RowChunk]:
        yield from self._cut(keeps_rest=False)

    def _cut(self, *, keeps_rest: bool) -> Iterator[RowChunk]:
        if not self._texts:
            return
        texts, rows = pa.concat_arrays(self._texts), np.concatenate(self._rows)
        self._texts, self._rows = [], []
        ends = np.cumsum(pc.binary_length(texts).to_numpy() + 1)
        start = 0
        while start < len(texts):
            before = ends[start - 1] if start else 0
            by_bytes = int(np.searchsorted(ends, before + self._limits.bytes_max, side="right"))
            end = min(max(by_bytes, start + 1), start + self._limits.records_max)
            if end >= len(texts) and keeps_rest and len(texts) - start < self._limits.records_max:
                break
            end = min(end, len(texts))
            yield RowChunk(texts[start:end], rows[start:end])
            start = end
        self.size_bytes = self._count = 0
        if start < len(texts):
            self.add(texts[start:], rows[start:])


def _size_bytes(texts: pa.Array) -> int:
    """The size of all texts, each with a comma."""
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0) + len(texts)


def refused_row(chunk: RowChunk, part: int, error: TopicsError) -> TopicsError:
    """The error for a chunk that the server refused. It names the row, if the row can be found here."""
    limits = WriteLimits()
    for row, text in zip(chunk.rows.tolist(), chunk.texts.to_pylist(), strict=True):
        try:
            decode_write(b'{"records":[%b]}' % text).batch(limits)
        except TopicsError as found:
            return BadRow(part, row, found.message)
    # The server has lower limits, or the reason is in no row.
    first_row, last_row = int(chunk.rows.min()), int(chunk.rows.max())
    return InvalidRequest(f"partition {part}, rows {first_row} to {last_row}: {error.message}")
