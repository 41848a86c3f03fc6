"""Reading one topic: a page of records after a cursor, with the tombstone of what is missing there. Owner only.

A *slot* is the place of one seq: the raw record, None when the record is dead, or an error when its bytes are damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from topics.engine.topic.fetch import Fetch, unreadable
from topics.engine.topic.live_records import LiveRecords
from topics.engine.topic.replayed import Span
from topics.errors import ColdUnavailable, CorruptRecord, FormatError, NotFetched
from topics.formats.record_layout import SEGMENT_BODY, WAL_BODY, RecordForm, decode_raw, raw_node, raw_size
from topics.formats.records import Record
from topics.limits import (
    FETCH_SEGMENTS_MAX,
    READ_PIECE_BYTES_MIN,
    READ_PIECE_SLOTS_MIN,
    READ_PIECES_MAX,
    READ_SLOTS_MAX,
    READ_SLOTS_PER_RECORD_MAX,
)
from topics.results import Reason, Tombstone


@dataclass(slots=True)
class Page:
    """One read. The next read begins after `next_from_seq`. `caught_up` says that no record is left."""

    topic: str
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    records_scanned: int = 0
    # Number of records that came from the cold tier.
    cold_records: int = 0
    # (form, raw records of that form), in seq order.
    chunks: list[tuple[RecordForm, list[bytes]]] = field(default_factory=list)

    @property
    def caught_up(self) -> bool:
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        return self.head_seq - self.next_from_seq

    def add(self, form: RecordForm, raws: list[bytes], *, is_cold: bool) -> None:
        """Takes the next records in."""
        self.chunks.append((form, raws))
        if is_cold:
            self.cold_records += len(raws)

    def advance(self, seq: int) -> None:
        """Every slot up to this seq was looked at."""
        self.records_scanned += seq - self.next_from_seq
        self.next_from_seq = seq

    def __len__(self) -> int:
        return sum(len(raws) for _, raws in self.chunks)

    @property
    def records(self) -> list[Record]:
        """The records as objects. Every call decodes them again."""
        return [decode_raw(raw, form) for form, raws in self.chunks for raw in raws]


def read_page(
    name: str, live: LiveRecords, from_seq: int, limit: int, bytes_max: int, nodes: frozenset[bytes] | None
) -> Page:
    """Floors and tombstone first, then slots in seq order until a bound is met."""
    cursor, tombstone = _tombstone(live, from_seq)
    page = Page(name, cursor, live.head_seq, live.earliest_seq, tombstone)
    _fill(name, live, page, _stop_seq(live, cursor), limit, bytes_max, nodes)
    return page


def _stop_seq(live: LiveRecords, cursor: int) -> int:
    """The last seq that a page from this cursor may come to."""
    lost = live.lost.at_or_after(cursor + 1) if live.lost else None
    if lost is None:
        return live.head_seq
    # A range right after the cursor is for the next page: this page has a tombstone already.
    return min(live.head_seq, max(lost.first_seq - 1, cursor))


def fetch_needed(name: str, live: LiveRecords, from_seq: int, limit: int, bytes_max: int) -> Fetch | None:
    """What must be brought into memory before a read of this page; None when nothing must."""
    cursor, _ = _tombstone(live, from_seq)
    first_seq = cursor + 1
    last_seq = min(_stop_seq(live, cursor), cursor + limit, live.tail.first_seq - 1)
    if first_seq > last_seq:
        return None
    parts = live.segments.parts(first_seq, min(last_seq, live.checkpointed_seq), FETCH_SEGMENTS_MAX)
    spans: list[Span] = []
    replayed = live.replayed
    if replayed is not None:
        first, last = max(first_seq, replayed.first_seq), min(last_seq, replayed.end_seq - 1)
        if first <= last:
            spans = replayed.spans(first, replayed.last_within(first, last, max(bytes_max, READ_PIECE_BYTES_MIN)))
    fetch = Fetch(name, first_seq, live.segments, parts, replayed, spans, bytes_max)
    return None if fetch.is_at_hand() else fetch


def _tombstone(live: LiveRecords, from_seq: int) -> tuple[int, Tombstone | None]:
    head, evict_floor, earliest = live.head_seq, live.evict_floor, live.earliest_seq
    if from_seq > head:
        missed = max(head - 1, 0) + 1
        return earliest - 1, Tombstone(1, head, "recreated", missed, earliest, head)
    if from_seq + 1 < evict_floor:
        gap_from = from_seq + 1
        tombstone = Tombstone(
            gap_from, evict_floor - 1, _reason(live, gap_from), evict_floor - 1 - from_seq, evict_floor, head
        )
        return _skip_dead(live, evict_floor - 1), tombstone
    lost = live.lost.at_or_after(from_seq + 1) if live.lost else None
    if lost is not None and lost.first_seq <= from_seq + 1:
        _, last, reason = lost
        return last, Tombstone(from_seq + 1, last, reason, last - from_seq, last + 1, head)
    return _skip_dead(live, from_seq), None


def _skip_dead(live: LiveRecords, cursor: int) -> int:
    """The cursor after the dead slots that follow it. A lost range is not passed: readers are told of it."""
    skipped = max(cursor, min(live.earliest_seq - 1, live.head_seq))
    if live.lost and (lost := live.lost.at_or_after(cursor + 1)) is not None:
        return max(cursor, min(skipped, lost.first_seq - 1))
    return skipped


def _reason(live: LiveRecords, gap_from: int) -> Reason:
    if live.ttl_floor < gap_from:
        return "cap"
    return "mixed" if live.cap_floor >= gap_from else "ttl"


def _fill(
    name: str, live: LiveRecords, page: Page, stop_seq: int, limit: int, bytes_max: int, nodes: frozenset[bytes] | None
) -> None:
    """Slots from the cursor on, until `limit` records, the byte budget, or `stop_seq`.

    Piece by piece. Only the first piece may wait for a disk or a network, and the number of pieces is bounded: a page
    that has records ends before it delays the owner's other work.
    """
    taken = _PageBudget(limit, bytes_max, nodes)
    seq = page.next_from_seq + 1
    stop_seq = min(stop_seq, page.next_from_seq + READ_SLOTS_PER_RECORD_MAX * limit + READ_SLOTS_MAX)
    pieces = 0
    while seq <= stop_seq and taken.wanted > 0 and pieces < READ_PIECES_MAX:
        slots_max = max(taken.wanted, READ_PIECE_SLOTS_MIN) if pieces else taken.wanted
        last_seq = min(stop_seq, seq + slots_max - 1)
        budget = max(taken.budget, READ_PIECE_BYTES_MIN)
        try:
            if pieces and not _is_at_hand(live, seq, last_seq, budget):
                return
            form, last_seq, slots, is_cold = _slots(live, seq, last_seq, budget)
        except (ColdUnavailable, OSError) as error:
            if pieces:
                # The next page begins here, and raises the error.
                return
            raise unreadable(name, seq, error) from error
        raws: list[bytes] = []
        end = last_seq
        if not _take_resident(live, taken, seq, last_seq, slots, raws) and not _take_whole(
            live, taken, form, seq, slots, raws
        ):
            end = _take(name, live, taken, form, seq, slots, raws)
        if raws:
            page.add(form, raws, is_cold=is_cold)
        page.advance(end)
        if end < last_seq:
            return
        seq = end + 1
        pieces += 1


def _is_at_hand(live: LiveRecords, seq: int, last_seq: int, bytes_max: int) -> bool:
    """Whether `_slots` would not wait."""
    if seq >= live.tail.first_seq:
        return True
    last_seq = min(last_seq, live.tail.first_seq - 1)
    if seq <= live.checkpointed_seq:
        return live.segments.is_at_hand(seq, min(last_seq, live.checkpointed_seq), bytes_max)
    replayed = live.replayed
    if replayed is not None and replayed.first_seq <= seq < replayed.end_seq:
        last_seq = replayed.last_within(seq, min(last_seq, replayed.end_seq - 1), bytes_max)
        return all(map(replayed.is_cached, replayed.spans(seq, last_seq)))
    return True


def _slots(
    live: LiveRecords, seq: int, last_seq: int, bytes_max: int
) -> tuple[RecordForm, int, Sequence[bytes | FormatError | None], bool]:
    """(form, last seq covered, slots, whether they are cold) from one of the places that hold `seq`."""
    if seq >= live.tail.first_seq:
        return WAL_BODY, last_seq, live.tail.read(seq, last_seq), False
    last_seq = min(last_seq, live.tail.first_seq - 1)
    if seq <= live.checkpointed_seq:
        return SEGMENT_BODY, *live.segments.read_run(seq, min(last_seq, live.checkpointed_seq), bytes_max)
    replayed = live.replayed
    if replayed is not None and replayed.first_seq <= seq < replayed.end_seq:
        last_seq = replayed.last_within(seq, min(last_seq, replayed.end_seq - 1), bytes_max)
        return WAL_BODY, last_seq, replayed.read(seq, last_seq), False
    # These seqs are lost: they have no records.
    return WAL_BODY, last_seq, [None] * (last_seq - seq + 1), False


def job_slots(
    name: str, live: LiveRecords, seq: int, last_seq: int, bytes_max: int, *, may_wait: bool
) -> tuple[RecordForm, Sequence[bytes | FormatError | None]] | Fetch:
    """(form, slots) from `seq` on: the part of the range that is in one place, in memory or in one segment.

    A `Fetch` instead, when the bytes are not at hand and the caller may not wait for them. The bytes of a cold segment
    may also have left the memory since they were fetched.
    """
    if seq < live.tail.first_seq and not may_wait:
        fetch = fetch_needed(name, live, seq - 1, last_seq - seq + 1, bytes_max)
        if fetch is not None:
            return fetch
    try:
        form, _, slots, _ = _slots(live, seq, last_seq, bytes_max)
    except NotFetched as error:
        fetch = fetch_needed(name, live, seq - 1, last_seq - seq + 1, bytes_max)
        if fetch is None:
            raise unreadable(name, seq, error) from error
        return fetch
    except (ColdUnavailable, OSError) as error:
        raise unreadable(name, seq, error) from error
    return form, slots


def _take_resident(
    live: LiveRecords,
    taken: _PageBudget,
    seq: int,
    last_seq: int,
    slots: Sequence[bytes | FormatError | None],
    raws: list[bytes],
) -> bool:
    """The hot path: records in memory, none dead, none filtered, all within the budget."""
    tail = live.tail
    if taken.nodes is not None or seq < tail.first_seq or tail.dead_count or len(slots) > taken.wanted:
        return False
    size = sum(tail.sizes(seq, last_seq))
    if size > taken.budget:
        return False
    taken.budget -= size
    taken.wanted -= len(slots)
    taken.any = True
    raws += slots  # type: ignore[arg-type]
    return True


def _take_whole(
    live: LiveRecords,
    taken: _PageBudget,
    form: RecordForm,
    seq: int,
    slots: Sequence[bytes | FormatError | None],
    raws: list[bytes],
) -> bool:
    """Records from files: none dead, damaged or filtered, and all fit the budget even with their headers counted."""
    if taken.nodes is not None or seq < live.first_live or len(slots) > taken.wanted:
        return False
    if set(map(type, slots)) != {bytes}:
        return False
    raws += slots  # type: ignore[arg-type]
    if not taken.take_unmeasured(form, raws):
        raws.clear()
        return False
    return True


def _take(
    name: str,
    live: LiveRecords,
    taken: _PageBudget,
    form: RecordForm,
    seq: int,
    slots: Sequence[bytes | FormatError | None],
    raws: list[bytes],
) -> int:
    """Takes records one by one; the last seq examined. A record that would exceed the budget is taken only when it is
    the first one of the page."""
    taken.settle()
    first_live, nodes = live.first_live, taken.nodes
    for slot in slots:
        if slot is None or seq < first_live:
            seq += 1
            continue
        if isinstance(slot, FormatError):
            if taken.any:
                # The page ends before a damaged record; the next page raises its error.
                return seq - 1
            raise CorruptRecord(name, seq, slot.message)
        if nodes is None or (node := raw_node(slot, form)) is None or node not in nodes:
            size = raw_size(slot, form)
            if size > taken.budget and taken.any:
                return seq - 1
            taken.budget -= size
            taken.wanted -= 1
            taken.any = True
            raws.append(slot)
            if taken.wanted == 0:
                return seq
        seq += 1
    return seq - 1


class _PageBudget:
    """How many records and bytes a page may still take."""

    __slots__ = ("_unmeasured", "any", "budget", "nodes", "wanted")

    def __init__(self, wanted: int, budget: int, nodes: frozenset[bytes] | None) -> None:
        self.wanted = wanted
        self.budget = budget
        self.nodes = nodes
        self.any = False
        # (form, records, length) of records whose whole length was taken off the budget, headers included.
        self._unmeasured: list[tuple[RecordForm, list[bytes], int]] = []

    def take_unmeasured(self, form: RecordForm, raws: list[bytes]) -> bool:
        """Takes whole records. Measuring each one costs more than reading it, so `settle` does that when space gets
        tight."""
        size = sum(map(len, raws))
        if size > self.budget:
            return False
        self._unmeasured.append((form, raws, size))
        self.budget -= size
        self.wanted -= len(raws)
        self.any = True
        return True

    def settle(self) -> None:
        """Makes the budget exact: headers do not count."""
        for form, raws, size in self._unmeasured:
            self.budget += size - sum(raw_size(raw, form) for raw in raws)
        self._unmeasured.clear()
