"""Messages of the partitioned engine as Arrow batches, from `.log` and `.index`. `columnar` does the same for records.

An index entry says where its message ends, and repeats offset and timestamp: a message that agrees with its entry is in
the right place. If they disagree, the checksum of the message decides. After damage that leaves no usable length,
reading continues at the next whole message that the index names. The bytes are not searched for messages, because a
payload may contain a copy of one.

Times are microseconds. Import this module only where it is used: numpy and pyarrow are optional packages.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from topics.errors import BadFrame, CorruptRecord
from topics.formats import message, message_index
from topics.formats.buffers import Buffer
from topics.formats.columnar import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS,
    GAP_COLUMNS,
    I64_MAX,
    GapRow,
    OnCorrupt,
    binary_slices,
    chunks,
    constant,
    rows_of,
    with_damage,
)
from topics.formats.frame_table import BadRange, Mask, Positions
from topics.formats.message import Headers
from topics.formats.message_index import Entries
from topics.formats.stream_layout import BodyOrder

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_FIELDS: Final = {
    field.name: field
    for field in (
        pa.field("stream", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("timestamp", _TIMESTAMP, nullable=False),
        pa.field("origin_timestamp", _TIMESTAMP),
        pa.field("headers", pa.binary()),
        pa.field("payload", pa.binary()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("gap_to", pa.int64()),
        pa.field("gap_reason", pa.string()),
    )
}
COLUMNS: Final = (
    *("stream", "topic", "partition", "offset", "id"),
    *("timestamp", "origin_timestamp", "headers", "payload"),
)
assert tuple(_FIELDS) == COLUMNS + GAP_COLUMNS

_LENGTHS: Final = Struct("<II")


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The Arrow schema of these columns of messages, in this order."""
    return pa.schema([_FIELDS[column] for column in columns])


class PartitionOrigin(NamedTuple):
    """The columns that are the same for every row."""

    stream: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyDecoder:
    """How bodies are stored: the order of the parts, and functions that undo encryption and compression."""

    order: BodyOrder = BodyOrder.PAYLOAD_FIRST
    payload: Callable[[Buffer], Buffer] | None = None
    user_headers: Callable[[Buffer], Buffer] | None = None


PLAIN: Final = BodyDecoder()


@dataclass(frozen=True, slots=True, eq=False)
class MessageTable:
    """Messages of a `.log`, by offset. The seqs in `bad` are offsets, and its times are microseconds."""

    log: Buffer
    starts: Positions
    ends: Positions
    headers: Headers
    bad: tuple[BadRange, ...]
    index_problem: str | None
    # Whether an index, or the checksums, confirm the positions.
    is_confirmed: bool
    first_offset: int
    last_offset: int | None
    entries: Entries

    def __len__(self) -> int:
        return len(self.starts)


def locate_messages(
    log: Buffer, index: Buffer | None, first_offset: int, *, last_offset: int | None = None
) -> MessageTable:
    """The messages of a segment that starts with `first_offset`. `last_offset` is given if the caller knows it."""
    entries = message_index.decode_entries(b"" if index is None else index)
    problem = None if index is None else _index_problem(entries, len(index), len(log), first_offset, last_offset)
    if last_offset is None and len(entries):
        last_offset = first_offset + len(entries) - 1
    if index is not None and problem is None:
        table = _by_index(log, entries, first_offset, last_offset)
        if table is not None:
            return table
        problem = "a whole message is not where the index has it"
    return _by_walking(log, entries, first_offset, last_offset, problem)


def _index_problem(
    entries: Entries, index_bytes: int, log_bytes: int, first_offset: int, last_offset: int | None
) -> str | None:
    count = len(entries) if last_offset is None else last_offset - first_offset + 1
    if index_bytes != count * message_index.ENTRY_BYTES:
        return f"the index has {index_bytes} bytes, not {count} entries"
    in_order = message_index.count_in_order(entries)
    if in_order < len(entries):
        return f"index entry {in_order} does not follow the previous entry"
    ends = entries["position"].astype(np.int64)
    short = np.diff(ends, prepend=0) < message.HEADER_BYTES
    if bool(short.any()):
        return f"index entry {int(short.argmax())} has no room for a message"
    end = int(ends[-1]) if len(ends) else 0
    return None if end == log_bytes else f"the index ends at {end} of {log_bytes} bytes"


def _by_index(log: Buffer, entries: Entries, first_offset: int, last_offset: int | None) -> MessageTable | None:
    """None if a whole message is not where the index has it."""
    ends = entries["position"].astype(np.int64)
    starts = message.starts_of(ends)
    headers = message.read_headers(log, starts)
    offsets = np.arange(len(ends), dtype=np.uint64) + np.uint64(first_offset)
    doubtful = _sizes(headers) != ends - starts
    doubtful |= headers["offset"] != offsets
    doubtful |= headers["timestamp"] != entries["timestamp"]
    doubtful |= headers["reserved"] != 0
    bad: list[BadRange] = []
    problem: str | None = None
    good = np.ones(len(ends), dtype=np.bool_)
    for row in np.flatnonzero(doubtful).tolist():
        start, end, offset = int(starts[row]), int(ends[row]), first_offset + row
        reason = _damage_in(log, start, end)
        if reason is not None:
            if _end_at(log, start, offset, offset)[1] is None:
                return None  # The message is whole and ends at another position.
            good[row] = False
            bad.append(BadRange(offset, offset, start, reason, int(entries["timestamp"][row])))
        elif int(headers["offset"][row]) != offset:
            return None
        else:
            problem = problem or f"index entry {row} disagrees with its message"
    return MessageTable(
        log, starts[good], ends[good], headers[good], tuple(bad), problem, True, first_offset, last_offset, entries
    )


def _sizes(headers: Headers) -> Positions:
    sizes: Positions = headers["user_headers_length"] + np.int64(message.HEADER_BYTES) + headers["payload_length"]
    return sizes


def _damage_in(log: Buffer, start: int, end: int) -> str | None:
    """Why the bytes are not one whole message; None if they are."""
    if end - start < message.HEADER_BYTES or end > len(log):
        return "the bytes end inside a message"
    header = message.decode_header(log, start)
    if header.size != end - start:
        return f"a message of {header.size} bytes in {end - start} bytes"
    span = np.array([start], dtype=np.int64), np.array([end], dtype=np.int64)
    computed = int(message.checksums(log, *span)[0])
    if computed != header.checksum:
        return f"checksum does not agree: stored {header.checksum:016x}, computed {computed:016x}"
    return "the reserved field is not 0" if header.reserved else None


def _by_walking(
    log: Buffer, entries: Entries, first_offset: int, last_offset: int | None, problem: str | None
) -> MessageTable:
    unpack = _LENGTHS.unpack_from
    position, last_start = 0, len(log) - message.HEADER_BYTES
    places: list[int] = []
    while position <= last_start:
        places.append(position)
        position += message.HEADER_BYTES + sum(unpack(log, position + message.USER_HEADERS_LENGTH_AT))
    starts = np.array(places, dtype=np.int64)
    if position == len(log):
        headers = message.read_headers(log, starts)
        offsets = np.arange(len(starts), dtype=np.uint64) + np.uint64(first_offset)
        count = len(starts) if last_offset is None else last_offset - first_offset + 1
        if count == len(starts) and bool((headers["offset"] == offsets).all()) and not bool(headers["reserved"].any()):
            ends = starts + _sizes(headers)
            return MessageTable(log, starts, ends, headers, (), problem, False, first_offset, last_offset, entries)
    return _by_salvaging(log, entries, first_offset, last_offset, problem)


def _by_salvaging(
    log: Buffer, entries: Entries, first_offset: int, last_offset: int | None, problem: str | None
) -> MessageTable:
    """Whole messages, one by one, and the damage between them."""
    spans: list[tuple[int, int]] = []
    bad: list[BadRange] = []
    position, offset, timestamp = 0, first_offset, 0
    known_places = [0, *entries["position"].tolist()]
    while position < len(log):
        end, reason = _end_at(log, position, offset, offset)
        if reason is not None:
            resume = _resume(log, position, end, offset, last_offset, known_places)
            last_bad = (last_offset or offset) if resume is None else message.decode_header(log, resume).offset - 1
            bad.append(BadRange(offset, max(offset, last_bad), position, reason, timestamp))
            if resume is None:
                offset = max(offset, last_bad) + 1
                break
            position, offset = resume, last_bad + 1
            continue
        spans.append((position, end))
        timestamp = message.decode_header(log, position).timestamp
        position, offset = end, offset + 1
    if last_offset is not None and offset <= last_offset:
        bad.append(BadRange(offset, last_offset, position, "the messages end before it", timestamp))
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    ends = np.array([end for _, end in spans], dtype=np.int64)
    headers = message.read_headers(log, starts)
    return MessageTable(log, starts, ends, headers, tuple(bad), problem, True, first_offset, last_offset, entries)


def _end_at(log: Buffer, position: int, offset_min: int, offset_max: int) -> tuple[int, str | None]:
    """Where the message at the position ends, and why it is damaged or in the wrong place; None if it is neither."""
    if position + message.HEADER_BYTES > len(log):
        return position, "the bytes end inside a message"
    header = message.decode_header(log, position)
    end = position + header.size
    reason = _damage_in(log, position, end)
    if reason is None and not offset_min <= header.offset <= offset_max:
        reason = f"offset {header.offset} where {offset_min} should be"
    return end, reason


def _resume(
    log: Buffer, position: int, named_end: int, offset: int, last_offset: int | None, known_places: list[int]
) -> int | None:
    """The next position with a whole message of a higher offset."""
    highest = offset + (len(log) - position) // message.HEADER_BYTES if last_offset is None else last_offset
    for place in sorted({named_end, *known_places}):
        if place > position and _end_at(log, place, offset + 1, highest)[1] is None:
            return place
    return None


def salvage_messages(table: MessageTable) -> MessageTable:
    """The same table with every checksum verified and all damage listed."""
    return _by_salvaging(table.log, table.entries, table.first_offset, table.last_offset, table.index_problem)


def message_batches(
    table: MessageTable,
    origin: PartitionOrigin,
    *,
    columns: Sequence[str] = COLUMNS,
    first_offset: int = 0,
    last_offset: int = I64_MAX,
    body: BodyDecoder = PLAIN,
    verify: bool = True,
    on_corrupt: OnCorrupt = "fail",
    batch_records: int = BATCH_RECORDS,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The messages from `first_offset` to `last_offset`, both included, in batches that are never empty.

    A damaged message raises `CorruptRecord` or becomes a gap row; for gap rows `columns` must include `GAP_COLUMNS`.
    """
    assert on_corrupt == "fail" or set(GAP_COLUMNS) <= set(columns)
    wanted_schema = schema(columns)

    def refuse(bad: BadRange) -> CorruptRecord:
        name = f"{origin.stream}/{origin.topic}/{origin.partition}"
        return CorruptRecord(name, bad.first_seq, f"position {bad.offset}: {bad.reason}")

    def replace(bad: BadRange) -> pa.RecordBatch:
        return message_gap_batch([GapRow(bad.first_seq, bad.last_seq, "corrupt", bad.ts)], wanted_schema, origin)

    if verify and not table.is_confirmed and len(_wrong_checksums(table, slice(0, len(table)))):
        table = salvage_messages(table)
    verify = verify and table.is_confirmed
    if len(table) and (last := int(table.headers["offset"][-1])) > I64_MAX:
        raise BadFrame(f"offset {last} is larger than a bigint", int(table.starts[-1]))
    known_bad = [
        bad._replace(first_seq=max(bad.first_seq, first_offset), last_seq=min(bad.last_seq, last_offset))
        for bad in table.bad
        if bad.last_seq >= first_offset and bad.first_seq <= last_offset
    ]
    low, high = np.searchsorted(table.headers["offset"].astype(np.int64), [first_offset, min(last_offset + 1, I64_MAX)])
    for part in chunks(table.starts[low:high], table.ends[low:high], batch_records, batch_bytes_max):
        rows = slice(int(low) + part.start, int(low) + part.stop)
        good = np.ones(part.stop - part.start, dtype=np.bool_)
        if verify:
            for row in _wrong_checksums(table, rows).tolist():
                good[row] = False
                known_bad.append(_unverified(table, rows.start + row))
            known_bad.sort()
        batch, offsets = _batch(table, rows, good, origin, wanted_schema, body)
        last = int(table.headers["offset"][rows.stop - 1])
        due = [bad for bad in known_bad if rows.stop == high or bad.first_seq <= last]
        known_bad = known_bad[len(due) :]
        yield from with_damage(batch, offsets, due, refuse=refuse, replace=replace, on_corrupt=on_corrupt)
    if low == high:
        nothing, no_offsets = message_gap_batch([], wanted_schema, origin), np.empty(0, np.int64)
        yield from with_damage(nothing, no_offsets, known_bad, refuse=refuse, replace=replace, on_corrupt=on_corrupt)


def message_gap_batch(gaps: Sequence[GapRow], wanted_schema: pa.Schema, origin: PartitionOrigin) -> pa.RecordBatch:
    """One row for each gap. The times of the gaps are microseconds."""
    return rows_of(
        wanted_schema,
        len(gaps),
        {
            "stream": [origin.stream] * len(gaps),
            "topic": [origin.topic] * len(gaps),
            "partition": [origin.partition] * len(gaps),
            "offset": [gap.first_seq for gap in gaps],
            "timestamp": [min(gap.ts, I64_MAX) for gap in gaps],
            "kind": ["gap"] * len(gaps),
            "gap_to": [gap.last_seq for gap in gaps],
            "gap_reason": [gap.reason for gap in gaps],
        },
    )


def _wrong_checksums(table: MessageTable, rows: slice) -> Positions:
    computed = message.checksums(table.log, table.starts[rows], table.ends[rows])
    return np.flatnonzero(computed != table.headers["checksum"][rows])


def _unverified(table: MessageTable, row: int) -> BadRange:
    start, end = int(table.starts[row]), int(table.ends[row])
    header = message.decode_header(table.log, start)
    return BadRange(header.offset, header.offset, start, _damage_in(table.log, start, end) or "", header.timestamp)


def _batch(
    table: MessageTable,
    rows: slice,
    good: Mask,
    origin: PartitionOrigin,
    wanted_schema: pa.Schema,
    body: BodyDecoder,
) -> tuple[pa.RecordBatch, Positions]:
    # Viewed as plain bytes, because numpy copies those much faster.
    headers = table.headers[rows].view(f"V{message.HEADER_BYTES}")[good].view(message.HEADERS)
    base = int(table.starts[rows.start])
    content = bytes(memoryview(table.log)[base : int(table.ends[rows.stop - 1])])
    starts = table.starts[rows][good] - base
    order = body.order
    names = set(wanted_schema.names)
    if (body.payload or body.user_headers) and names & {"headers", "payload"}:
        target = BodyOrder.PAYLOAD_FIRST
        rewritten, starts, _ = message.rewrite_bodies(
            content,
            starts,
            headers,
            source=order,
            target=target,
            payload=body.payload or bytes,
            user_headers=body.user_headers or bytes,
        )
        content, order = bytes(rewritten), target
    count = len(headers)
    offsets = headers["offset"].astype(np.int64)
    bodies = starts + message.HEADER_BYTES
    header_lengths = headers["user_headers_length"].astype(np.int64)
    payload_lengths = headers["payload_length"].astype(np.int64)
    payloads = bodies if order is BodyOrder.PAYLOAD_FIRST else bodies + header_lengths
    user_headers = bodies + payload_lengths if order is BodyOrder.PAYLOAD_FIRST else bodies
    has_headers = header_lengths > 0
    makers: dict[str, Callable[[], pa.Array]] = {
        "stream": lambda: constant(origin.stream, pa.string(), count),
        "topic": lambda: constant(origin.topic, pa.string(), count),
        "partition": lambda: constant(origin.partition, pa.int32(), count),
        "offset": lambda: pa.array(offsets),
        "id": lambda: _ids(headers),
        "timestamp": lambda: _times(headers["timestamp"]),
        "origin_timestamp": lambda: _times(headers["origin_timestamp"], headers["origin_timestamp"] != 0),
        "headers": lambda: binary_slices(content, user_headers, user_headers + header_lengths, has_headers),
        "payload": lambda: binary_slices(content, payloads, payloads + payload_lengths),
        "kind": lambda: constant("record", pa.string(), count),
        "gap_to": lambda: pa.nulls(count, pa.int64()),
        "gap_reason": lambda: pa.nulls(count, pa.string()),
    }
    arrays = [makers[name]() for name in wanted_schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted_schema), offsets


def _ids(headers: Headers) -> pa.Array:
    """The stored bytes in hex. For a UUID that is its usual spelling without the dashes."""
    digits = pa.py_buffer(np.ascontiguousarray(headers["id"]).tobytes().hex().encode())
    offsets = pa.py_buffer(np.arange(0, 32 * len(headers) + 1, 32, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(headers), [None, offsets, digits])


def _times(microseconds: message.Column, has_value: Mask | None = None) -> pa.Array:
    """A client may send any number as its time: one that is too large becomes the largest timestamp."""
    fitting = np.minimum(microseconds, np.uint64(I64_MAX)).astype(np.int64)
    return pa.array(fitting, mask=None if has_value is None else ~has_value).view(_TIMESTAMP)
