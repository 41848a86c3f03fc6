"""Segment bytes to Arrow: records by columns, never one by one.

A `FrameTable` says where the frames are. From there on, for one batch after the other: what the headers rule out goes
(seqs, hidden ranges, deletes), the checksums of the rest are compared, labels and times are filtered, and only what
is left is copied. A text or binary column is one Arrow array over the bytes as they lie there, with the ends of
each part as its offsets, of which every second element is taken; Arrow checks that text is UTF-8.

Checksums come before labels and times are looked at, although that costs: a tag with a flipped bit would leave its
record out without a word. For the same reason a table that no index confirms is verified before anything else.

The envelope is cut by arithmetic (`formats.envelope` says when that is safe), the rest is split there. Either way
`data` and `meta` are bytes of the frame, untouched.

With frames of 140 bytes one process reads, at best on two shared cores, 2.4 million records a second with checksums,
4 million without, and 14 million when only `seq` and `ts` are asked for. Records with a meta: 0.3 million, because each
envelope is parsed.

Import this module where it is used: numpy and pyarrow are not among the things every installation has.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from topics.errors import BadFrame, CorruptRecord
from topics.formats import envelope, kernel, segment
from topics.formats.buffers import Buffer
from topics.formats.frame_table import BadRange, FrameTable, Mask, Positions, salvage, select_headers, windows
from topics.formats.record_layout import DELETED, FLAG_NODE, FLAG_TAG, FRAME_LEN_BYTES, SEGMENT_TRAILER_BYTES
from topics.limits import MIB

BATCH_RECORDS: Final = 10_000
BATCH_BYTES_MAX: Final = 16 * MIB
I64_MAX: Final = 2**63 - 1
# The largest time whose microseconds fit.
TS_MAX_MS: Final = I64_MAX // 1000

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = {
    field.name: field
    for field in (
        pa.field("topic", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", _TIMESTAMP, nullable=False),
        pa.field("node", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("data", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("deleted", pa.bool_()),
        pa.field("segment", pa.string()),
        pa.field("checksum", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("gap_to", pa.int64()),
        pa.field("gap_reason", pa.string()),
    )
}
COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "data", "meta")
COLUMNS_ON_DEMAND: Final = ("value", "epoch", "deleted", "segment", "checksum")
GAP_COLUMNS: Final = ("kind", "gap_to", "gap_reason")
assert tuple(_FIELDS) == COLUMNS + COLUMNS_ON_DEMAND + GAP_COLUMNS

_META: Final = re.compile(re.escape(envelope.META))

OnCorrupt = Literal["fail", "rows"]


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The Arrow schema of these columns of records, in this order."""
    return pa.schema([_FIELDS[column] for column in columns])


class Origin(NamedTuple):
    """What is the same for every row."""

    topic: str
    epoch: int = 0
    segment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Which records are wanted. Seqs are inclusive, `before_ts` is not; `hidden` are ranges of seqs to leave out.

    `deleted` are seqs of deleted records whose delete bytes may not be set yet. They count for the column `deleted`
    only; records that must not be shown are in `hidden`.
    """

    first_seq: int = 0
    last_seq: int = I64_MAX
    from_ts: int | None = None
    before_ts: int | None = None
    tag: str | None = None
    tag_prefix: str | None = None
    node: str | None = None
    exclude_nodes: tuple[str, ...] = ()
    include_deleted: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    deleted: tuple[tuple[int, int], ...] = ()


EVERYTHING: Final = RecordFilter()


class GapRow(NamedTuple):
    """Seqs from first to last, if that is known, that are not there, and why; `ts` places the row in time."""

    first_seq: int
    last_seq: int | None
    reason: str
    ts: int


def record_batches(
    table: FrameTable,
    origin: Origin,
    *,
    columns: Sequence[str] = COLUMNS,
    where: RecordFilter = EVERYTHING,
    verify: bool = True,
    on_corrupt: OnCorrupt = "fail",
    batch_records: int = BATCH_RECORDS,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The wanted records in the order of their seqs, in batches that are never empty.

    A damaged frame among them raises `CorruptRecord`, or is a gap row; then `columns` must have the gap columns.
    Raises `BadFrame` for a seq or a time that no column can hold.
    """
    assert on_corrupt == "fail" or set(GAP_COLUMNS) <= set(columns)
    wanted_schema = schema(columns)
    hidden, deleted = _Ranges(where.hidden), _Ranges(where.deleted)

    def refuse(bad: BadRange) -> CorruptRecord:
        where_is = f"{origin.segment or 'frames'}, offset {bad.offset}: {bad.reason}"
        return CorruptRecord(origin.topic, bad.first_seq, where_is)

    def replace(bad: BadRange) -> pa.RecordBatch:
        return gap_batch([GapRow(bad.first_seq, bad.last_seq, "corrupt", bad.ts)], wanted_schema, origin)

    if verify and not table.is_confirmed and not _is_whole(table, batch_records, batch_bytes_max):
        table = salvage(table)
    known_bad = _visible(table.bad, where, hidden)
    for rows in chunks(table.starts, table.ends, batch_records, batch_bytes_max):
        chunk = _BatchRows(table, rows, origin)
        chunk.filter_by_header(where, hidden)
        if verify and table.is_confirmed:
            chunk.drop_wrong_checksums()
        chunk.filter_by_content(where)
        batch = chunk.decode(wanted_schema, deleted)
        known_bad = sorted([*known_bad, *_visible(chunk.bad, where, hidden)])
        due = [gap for gap in known_bad if rows.stop == len(table) or gap.first_seq <= chunk.last_seq]
        known_bad = known_bad[len(due) :]
        yield from with_damage(batch, chunk.seqs, due, refuse=refuse, replace=replace, on_corrupt=on_corrupt)
    if not len(table):
        nothing, no_seqs = gap_batch([], wanted_schema, origin), np.empty(0, np.int64)
        yield from with_damage(nothing, no_seqs, known_bad, refuse=refuse, replace=replace, on_corrupt=on_corrupt)


def _is_whole(table: FrameTable, batch_records: int, batch_bytes_max: int) -> bool:
    """Whether all checksums agree."""
    for rows in chunks(table.starts, table.ends, batch_records, batch_bytes_max):
        chunk = _BatchRows(table, rows, Origin(""))
        chunk.drop_wrong_checksums()
        if chunk.bad:
            return False
    return True


def gap_batch(gaps: Sequence[GapRow], wanted_schema: pa.Schema, origin: Origin) -> pa.RecordBatch:
    """A row for every gap."""
    return rows_of(
        wanted_schema,
        len(gaps),
        {
            "topic": [origin.topic] * len(gaps),
            "seq": [gap.first_seq for gap in gaps],
            "ts": [min(gap.ts, TS_MAX_MS) * 1000 for gap in gaps],
            "epoch": [origin.epoch] * len(gaps),
            "kind": ["gap"] * len(gaps),
            "gap_to": [gap.last_seq for gap in gaps],
            "gap_reason": [gap.reason for gap in gaps],
        },
    )


def rows_of(wanted_schema: pa.Schema, count: int, known: Mapping[str, list[Any]]) -> pa.RecordBatch:
    """Rows with the known values, as far as they are asked for, and nulls."""
    arrays = [pa.array(known.get(field.name, [None] * count), type=field.type) for field in wanted_schema]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted_schema)


# Damage between rows.


def _visible(bad: Iterable[BadRange], where: RecordFilter, hidden: "_Ranges") -> list[BadRange]:
    """Bad ranges, cut to the wanted seqs. Hidden seqs are not delivered, so damage among them does not count."""
    cut = [
        each._replace(first_seq=max(each.first_seq, where.first_seq), last_seq=min(each.last_seq, where.last_seq))
        for each in bad
    ]
    return [each for each in cut if each.first_seq <= each.last_seq and not hidden.cover(each.first_seq, each.last_seq)]


def with_damage(
    batch: pa.RecordBatch,
    numbers: Positions,
    bad: Sequence[BadRange],
    *,
    refuse: Callable[[BadRange], Exception],
    replace: Callable[[BadRange], pa.RecordBatch],
    on_corrupt: OnCorrupt,
) -> Iterator[pa.RecordBatch]:
    """The batch, cut where damaged frames were, with the gap row of each between; or the error of the first.

    `numbers` are the seqs or offsets of the rows.
    """
    if bad and on_corrupt == "fail":
        raise refuse(bad[0])
    done = 0
    for each in bad:
        before = int(np.searchsorted(numbers, each.first_seq))
        if before > done:
            yield batch.slice(done, before - done)
            done = before
        yield replace(each)
    if batch.num_rows > done:
        yield batch.slice(done)


class _Ranges:
    """Ranges of numbers, both ends included, in any order; they may overlap."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        ordered = sorted((first, min(last, I64_MAX)) for first, last in ranges if first <= min(last, I64_MAX))
        self._firsts = np.array([first for first, _ in ordered], dtype=np.int64)
        # The furthest end of any range that begins here or before: overlaps need no merging then.
        self._lasts = np.maximum.accumulate(np.array([last for _, last in ordered], dtype=np.int64))

    def __len__(self) -> int:
        return len(self._firsts)

    def contain(self, numbers: Positions) -> Mask:
        places = np.searchsorted(self._firsts, numbers, side="right") - 1
        inside: Mask = (places >= 0) & (numbers <= self._lasts[places])
        return inside

    def cover(self, first: int, last: int) -> bool:
        """Whether one of the ranges covers all of it."""
        place = int(np.searchsorted(self._firsts, first, side="right")) - 1
        return place >= 0 and last <= int(self._lasts[place])


# One batch.


class _NotRecords(Exception):
    """Rows that must go before the columns can be made, and why."""

    def __init__(self, reasons: dict[int, str]) -> None:
        self.reasons = reasons


class _BatchRows:
    """The frames of some rows of a table, on their way to one batch. Rows that are not wanted are dropped."""

    def __init__(self, table: FrameTable, rows: slice, origin: Origin) -> None:
        self._origin = origin
        self._base = int(table.starts[rows.start])
        self._file_offset = self._base + table.data_start
        self._starts = table.starts[rows] - self._base
        self._ends = table.ends[rows] - self._base
        self._headers = table.headers[rows]
        self._view = memoryview(table.data)[self._base : int(table.ends[rows.stop - 1])]
        self._copy: bytes | None = None
        self.last_seq = int(self._headers["seq"][-1])
        if self.last_seq > I64_MAX:
            raise BadFrame(f"seq {self.last_seq} is larger than a bigint", self._file_offset + int(self._starts[-1]))
        self.seqs: Positions = self._headers["seq"].astype(np.int64)
        self.bad: list[BadRange] = []

    def __len__(self) -> int:
        return len(self._starts)

    def _keep(self, wanted: Mask) -> None:
        if not bool(wanted.all()):
            self._starts, self._ends, self.seqs = self._starts[wanted], self._ends[wanted], self.seqs[wanted]
            self._headers = select_headers(self._headers, wanted)

    def _drop_bad(self, reasons: dict[int, str]) -> None:
        times = self._headers["ts"]
        for row, reason in reasons.items():
            seq, offset = int(self.seqs[row]), self._file_offset + int(self._starts[row])
            self.bad.append(BadRange(seq, seq, offset, reason, int(times[row])))
        wanted = np.ones(len(self), dtype=np.bool_)
        wanted[list(reasons)] = False
        self._keep(wanted)

    def decode(self, wanted_schema: pa.Schema, deleted: _Ranges) -> pa.RecordBatch:
        """The rows that are left and hold records. Rows that hold no record are added to `bad`."""
        while True:
            try:
                return self._batch(wanted_schema, deleted)
            except _NotRecords as error:
                self._drop_bad(error.reasons)

    def _bytes(self) -> bytes:
        """Cutting small pieces out of bytes is faster than out of a view, by more than this copy costs."""
        if self._copy is None:
            self._copy = bytes(self._view)
        return self._copy

    # Filters.

    def filter_by_header(self, where: RecordFilter, hidden: _Ranges) -> None:
        wanted: Mask = (self.seqs >= where.first_seq) & (self.seqs <= where.last_seq)
        if len(hidden):
            wanted &= ~hidden.contain(self.seqs)
        if not where.include_deleted:
            wanted &= ~self._deleted()
        self._keep(wanted)

    def filter_by_content(self, where: RecordFilter) -> None:
        """What only a verified frame may decide."""
        if where.from_ts is not None:
            self._keep(self._headers["ts"] >= where.from_ts)
        if where.before_ts is not None:
            self._keep(self._headers["ts"] < where.before_ts)
        while True:
            try:
                self._filter_by_labels(where)
                return
            except _NotRecords as error:
                self._drop_bad(error.reasons)

    def _filter_by_labels(self, where: RecordFilter) -> None:
        if where.tag is not None:
            self._keep(_mask(pc.equal(self._labels("tag"), where.tag)))
        if where.tag_prefix is not None:
            self._keep(_mask(pc.starts_with(self._labels("tag"), where.tag_prefix)))
        if where.node is not None:
            self._keep(_mask(pc.equal(self._labels("node"), where.node)))
        if where.exclude_nodes:
            excluded = pa.array(where.exclude_nodes, pa.string())
            self._keep(~_mask(pc.is_in(self._labels("node"), value_set=excluded)))

    def drop_wrong_checksums(self) -> None:
        stored = self._stored_checksums()
        computed = checksums(self._bytes(), self._starts, self._ends)
        wrong = np.flatnonzero(stored != computed)
        if len(wrong):
            rows = zip(wrong.tolist(), stored[wrong].tolist(), computed[wrong].tolist(), strict=True)
            text = "checksum does not agree: stored {:016x}, computed {:016x}"
            self._drop_bad({row: text.format(expected, found) for row, expected, found in rows})

    # Columns.

    def _batch(self, wanted_schema: pa.Schema, deleted: _Ranges) -> pa.RecordBatch:
        count = len(self)
        makers: dict[str, Callable[[], pa.Array]] = {
            "topic": lambda: constant(self._origin.topic, pa.string(), count),
            "seq": lambda: pa.array(self.seqs),
            "ts": self._times,
            "node": lambda: self._labels("node"),
            "tag": lambda: self._labels("tag"),
            "value": lambda: binary_slices(self._bytes(), *self._value_span()),
            "epoch": lambda: constant(self._origin.epoch, pa.int64(), count),
            "deleted": lambda: pa.array(self._deleted_by_now(deleted)),
            "segment": lambda: constant(self._origin.segment, pa.string(), count),
            "checksum": lambda: pa.array(self._stored_checksums().view("<i8")),
            "kind": lambda: constant("record", pa.string(), count),
            "gap_to": lambda: pa.nulls(count, pa.int64()),
            "gap_reason": lambda: pa.nulls(count, pa.string()),
        }
        names = wanted_schema.names
        if "data" in names or "meta" in names:
            parts = self._split()
            metas = parts.data_ends + len(envelope.META)
            makers["data"] = lambda: self._texts(parts.starts, parts.data_ends, "payload")
            makers["meta"] = lambda: self._texts(metas, parts.ends, "payload", parts.has_meta)
        return pa.RecordBatch.from_arrays([makers[name]() for name in names], schema=wanted_schema)

    def _times(self) -> pa.Array:
        times = self._headers["ts"]
        latest = int(times.max()) if len(times) else 0
        if latest > TS_MAX_MS:
            offset = self._file_offset + int(self._starts[times.argmax()])
            raise BadFrame(f"ts {latest} is larger than a timestamp", offset)
        return pa.array(times.astype(np.int64) * 1000).view(_TIMESTAMP)

    def _deleted(self) -> Mask:
        deleted: Mask = np.frombuffer(self._view, dtype=np.uint8)[self._ends - 1] == DELETED
        return deleted

    def _deleted_by_now(self, deleted: _Ranges) -> Mask:
        return self._deleted() | deleted.contain(self.seqs) if len(deleted) else self._deleted()

    def _stored_checksums(self) -> NDArray[np.uint64]:
        return windows(self._view, "V8")[self._ends - segment.TRAILER_BYTES].view("<u8")

    def _labels(self, label: Literal["node", "tag"]) -> pa.Array:
        has_label = self._headers["flags"] & (FLAG_TAG if label == "tag" else FLAG_NODE) != 0
        if not bool(has_label.any()):
            return pa.nulls(len(self), pa.string())
        starts = self._starts + segment.HEADER_BYTES
        if label == "tag":
            starts += self._headers["node_len"]
        return self._texts(starts, starts + self._headers[f"{label}_len"], "tag or node", has_label)

    def _texts(self, starts: Positions, ends: Positions, what: str, has_value: Mask | None = None) -> pa.Array:
        if has_value is not None and not bool(has_value.any()):
            return pa.nulls(len(self), pa.string())
        raw = binary_slices(self._bytes(), starts, ends, has_value)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            pass
        pieces = enumerate(raw.to_pylist())
        raise _NotRecords({row: f"{what} is not UTF-8" for row, piece in pieces if not _is_utf8(piece)})

    def _value_span(self) -> tuple[Positions, Positions]:
        ends = self._ends - segment.TRAILER_BYTES
        return ends - self._headers["data_len"], ends

    def _split(self) -> "_Parts":
        """Where data and meta of each row are."""
        starts, ends = self._value_span()
        is_envelope = self._have_envelope_ends(starts, ends)
        reasons = dict.fromkeys(np.flatnonzero(~is_envelope).tolist(), "the payload is not an envelope")
        data_ends = ends - len(envelope.CLOSE)
        has_meta = np.zeros(len(self), dtype=np.bool_)
        content = self._bytes()
        found = np.array([match.start() for match in self._metas()], dtype=np.int64)
        places = np.unique(np.searchsorted(starts, found, side="right") - 1)
        for row in places[places >= 0].tolist():
            start, end = int(starts[row]), int(ends[row])
            try:
                data, meta = envelope.split(content[start:end])
            except BadFrame as error:
                reasons[row] = error.message
                continue
            data_ends[row] = start + len(envelope.OPEN) + len(data)
            has_meta[row] = meta is not None
        if reasons:
            raise _NotRecords(reasons)
        return _Parts(starts + len(envelope.OPEN), data_ends, ends - len(envelope.CLOSE), has_meta)

    def _metas(self) -> Iterator[re.Match[bytes]]:
        """Where a meta may begin. Most batches have none, and one search says so."""
        content = self._bytes()
        return _META.finditer(content) if kernel.has_text(content, 0, len(content), envelope.META) else iter(())

    def _have_envelope_ends(self, starts: Positions, ends: Positions) -> Mask:
        found = np.empty(len(self), dtype=np.uint8)
        kernel.have_ends(self._view, starts, ends, envelope.OPEN, envelope.CLOSE, found)
        return found.view(np.bool_)


class _Parts(NamedTuple):
    """The data is from `starts` to `data_ends`. A meta is from after its `,"m":` to `ends`."""

    starts: Positions
    data_ends: Positions
    ends: Positions
    has_meta: Mask


# Arrays.


def chunks(starts: Positions, ends: Positions, count_max: int, bytes_max: int) -> Iterator[slice]:
    """Rows cut into runs of at most so many and so many bytes, but at least one row each."""
    begin = 0
    while begin < len(starts):
        by_bytes = int(np.searchsorted(ends, starts[begin] + bytes_max, side="right"))
        stop = max(begin + 1, min(begin + count_max, by_bytes))
        yield slice(begin, stop)
        begin = stop


def checksums(data: Buffer, starts: Positions, ends: Positions) -> NDArray[np.uint64]:
    """What the checksum of each frame should be."""
    found = np.empty(len(starts), dtype=np.uint64)
    kernel.checksums(data, starts, ends, found, FRAME_LEN_BYTES, SEGMENT_TRAILER_BYTES)
    return found


def binary_slices(data: bytes, starts: Positions, ends: Positions, has_value: Mask | None = None) -> pa.Array:
    """A copy of the pieces of `data`, which must ascend; null where there is no value."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(count + 1, dtype=np.int32)
    if has_value is None:
        pieces = kernel.gather(data, starts, ends, offsets)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(pieces)])
    pieces = kernel.gather(data, starts, np.where(has_value, ends, starts), offsets)
    validity = np.packbits(has_value, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(pieces)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def constant(value: object, wanted_type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, wanted_type), count)


def _mask(values: pa.Array) -> Mask:
    """Null is no."""
    mask: Mask = np.asarray(values.fill_null(False))
    return mask


def _is_utf8(piece: Buffer | None) -> bool:
    try:
        str(piece or b"", "utf-8")
    except UnicodeDecodeError:
        return False
    return True
