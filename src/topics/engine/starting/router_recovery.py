"""Routers after a start: which routers exist, their cursors, and the derived copies that have no frame.

A router that is the only one to feed its dest makes copies without frames (`forwarding`). A start makes these copies
again, from the cursor of the last frame or snapshot on. It does so before the floors that have no frame are raised:
source records that a cap or their age has evicted since then are still in the files, and are copied.

When the copies of a router are logged, only its cursor moves, over records that the router does not copy. Else a trim
of the source would count these records as lost. A router with an `ephemeral` dest makes no copies: its copies were only
in memory.

The n-th copy made again gets the n-th seq above `dest_seq`. Seqs of ranges that a power loss took are skipped. A copy
that an unfinished checkpoint put into a segment is compared, and not made a second time. Each copy has the time of its
source record, or the time of the copy before it, if that is later. So every start makes the same copies, also after a
start that was interrupted.

An exact router stops at a source record whose key a record of dest has, or had. The first pass after the start decides
whether that record of dest is live, and logs the decision.

A start writes a frame for a router whose cursor is ahead of the head of its source. A power loss took the source
records that it had copied, or they were in an `ephemeral` source. New records will get their seqs, and the next start
must not count the new records as copied.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from topics.engine.engine import Engine
from topics.engine.routers.copying import Copies, Room, note_slots, take_slots
from topics.engine.routers.forwarding import can_derive, may_be_full
from topics.engine.starting.heads import FrameToLog
from topics.engine.starting.log_replay import ReplayedLog
from topics.engine.starting.replayed_router import ReplayedRouter
from topics.engine.starting.report import RecoveryReport
from topics.engine.starting.slots import read_slots
from topics.engine.topic.router import Router, stored_spec
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, Damaged, FormatError
from topics.formats import control, wal_frame
from topics.formats.record_layout import split_raw
from topics.formats.wal_frame import FrameType
from topics.limits import FORWARD_SLOTS_MAX, READ_BYTES_MAX, READ_PIECE_BYTES_MIN
from topics.storage import layout

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredRouters:
    # One ROUTER_CREATE frame for each router whose cursor was ahead of its source.
    frames: list[FrameToLog]


class _Rerun:
    """One router while its derived copies are made again."""

    __slots__ = ("dest_seq", "floor", "held_seq", "is_counted", "is_placed", "room", "router", "start_seq")

    def __init__(self, router: Router, dest_seq: int, floor: int) -> None:
        self.router = router
        dest = router.dest
        self.dest_seq = self.start_seq = dest_seq
        # Source records up to this seq may be missing. The first pass trims the rest of them.
        self.floor = floor
        # Records of dest up to this seq are in frames or segments.
        assert dest.live.replayed is not None
        self.held_seq = dest.live.replayed.end_seq - 1
        # Logged copies are not made again. Copies to an ephemeral dest are only counted.
        self.is_placed = can_derive(dest)
        self.is_counted = dest.config.durability == "ephemeral" and not may_be_full(dest)
        self.room = Room(None if self.is_placed or self.is_counted else 0, None)


def restore_routers(
    engine: Engine, report: RecoveryReport, log: ReplayedLog, evict_floors: dict[int, int]
) -> RestoredRouters:
    """Puts the routers to work again. `evict_floors`: topic id -> highest seq evicted when the snapshot was taken."""
    try:
        found = _attach_routers(engine, report, log.routers)
    except FormatError as error:
        raise Damaged(layout.meta_directory(engine.directory.root), 0, "a router", error.message) from error
    for topic in {topic: None for router, _ in found for topic in (router.source, router.dest)}:
        _take_in_adopted(engine, topic)
    reruns: list[_Rerun] = []
    for router, item in found:
        reruns.append(_Rerun(router, item.dest_seq, evict_floors.get(router.source.id, 0)))
        if router.is_exact:
            _search(router, item)
    feeds = {rerun.router.dest: rerun for rerun in reruns if rerun.is_placed}
    # Until no router makes a copy any more: a copy of one router may be the source record of another.
    while any(_advance(rerun, feeds.get(rerun.router.source)) for rerun in reruns):
        pass
    frames: list[FrameToLog] = []
    for rerun in reruns:
        router = rerun.router
        if router.is_exact and router.searched_seq >= rerun.start_seq:
            # Records with higher seqs are all copies that this router made.
            router.note_searched(router.dest.head_seq)
        if router.cursor > router.source.head_seq:
            router.move(router.source.head_seq, router.forwarded_total)
            frames.append(FrameToLog(router.dest.id, _state_frame(engine, rerun)))
        if router.cursor < router.source.head_seq:
            engine.forwarder.hold_back(router)
    return RestoredRouters(frames)


def _attach_routers(
    engine: Engine, report: RecoveryReport, replayed: Iterable[ReplayedRouter]
) -> list[tuple[Router, ReplayedRouter]]:
    """Routers whose source and dest both exist, ascending by id."""
    topics = {topic.id: topic for topic in engine.topics.values()}
    found: list[tuple[Router, ReplayedRouter]] = []
    for item in sorted(replayed, key=lambda item: item.id):
        source, dest = topics.get(item.source), topics.get(item.dest)
        if source is None or dest is None:
            # The router was removed together with one of its topics.
            continue
        if item.name in engine.routers:
            report.warn(f'there are two routers named "{item.name}": the older one is used')
            continue
        router = Router(
            item.id,
            item.name,
            stored_spec(item.spec, source.name, dest.name),
            source,
            dest,
            cursor=item.cursor,
            dest_base=item.dest_base,
            forwarded_total=item.forwarded_total,
        )
        engine.routing.attach(router)
        found.append((router, item))
    return found


def _take_in_adopted(engine: Engine, topic: Topic) -> None:
    """An unfinished checkpoint may have put copies that have no frame into segments."""
    assert topic.live.replayed is not None
    topic.live.raise_head(topic.live.replayed.end_seq - 1)
    topic.live.begin_copies()
    if topic.live.segments.segments:
        topic.writes.note_time(topic.live.segments.segments[-1].last_ts)
        engine.core.note_time(topic.writes.last_ts)


def _state_frame(engine: Engine, rerun: _Rerun) -> bytes:
    router = rerun.router
    assert rerun.dest_seq == rerun.start_seq, "a router that is ahead of its source has nothing to copy"
    state = router.state(router.cursor, router.forwarded_total, rerun.dest_seq)
    return wal_frame.encode_control(FrameType.ROUTER_CREATE, router.dest.id, engine.now_ms(), control.encode(state))


def _search(router: Router, item: ReplayedRouter) -> None:
    """Notes the keys in dest: the known keys, and the keys of records that were not searched yet.

    Records above `dest_seq` are not searched: they are copies of this router that an unfinished checkpoint left.
    """
    dest = router.dest
    last_seq = min(item.dest_seq, dest.head_seq)
    router.restore_search(item.searched_seq, [pair for pair in item.evidence if pair[0] > router.cursor])
    while router.searched_seq < last_seq:
        first_seq = max(router.searched_seq + 1, dest.live.first_live)
        if first_seq > last_seq:
            router.note_searched(last_seq)
            return
        try:
            form, slots = read_slots(dest, first_seq, last_seq, READ_BYTES_MAX)
        except ColdUnavailable as error:
            logger.warning('router "%s" searches its dest for keys later: %s', router.name, error.message)
            return
        note_slots(router, form, first_seq, slots)


def _advance(rerun: _Rerun, feed: _Rerun | None) -> bool:
    """Makes copies of the next source records. Returns whether it came further.

    `feed` is the rerun of the router that makes the source records, if there is one. The number of hops of a source
    record is known only when `feed` has reached that record.
    """
    router = rerun.router
    source = router.source
    known_seq = source.head_seq
    if feed is not None and feed.dest_seq < feed.held_seq:
        known_seq = feed.dest_seq
    first_seq = router.cursor + 1
    last_seq = min(known_seq, router.cursor + FORWARD_SLOTS_MAX)
    lost = source.live.lost.at_or_after(first_seq) if source.live.lost else None
    if rerun.is_counted and first_seq <= known_seq:
        # An ephemeral dest has lost everything itself, and is told of nothing older than the start.
        passed_to = lost.last_seq if lost is not None and lost.first_seq <= first_seq else rerun.floor
        if passed_to >= first_seq:
            router.move(passed_to, router.forwarded_total + passed_to - router.cursor)
            return True
    if lost is not None:
        # The first pass after the start tells dest of it.
        last_seq = min(last_seq, lost.first_seq - 1)
    if first_seq > last_seq or first_seq <= rerun.floor:
        return False
    if router.is_exact and router.searched_seq < rerun.start_seq:
        return False
    try:
        form, slots = read_slots(source, first_seq, last_seq, READ_BYTES_MAX)
    except ColdUnavailable as error:
        logger.warning('router "%s" makes its copies later: %s', router.name, error.message)
        return False
    copies = Copies(router.cursor)
    live = [None if seq < source.live.delete_below else slot for seq, slot in enumerate(slots, first_seq)]
    take_slots(router, copies, form, first_seq, live, rerun.room, stops_at_evidence=True)
    if copies.cursor == router.cursor:
        return False
    if rerun.is_placed:
        _place(rerun, copies)
    router.move(copies.cursor, router.forwarded_total + len(copies.envelopes))
    return True


def _place(rerun: _Rerun, copies: Copies) -> None:
    """Appends the copies to dest. Copies that dest already has are skipped."""
    count = len(copies.envelopes)
    if not count:
        return
    dest = rerun.router.dest
    place = 0
    for seqs in _seqs_above(dest, rerun.dest_seq, count):
        skipped = min(max(rerun.held_seq + 1 - seqs.start, 0), len(seqs))
        dest.links.note_hops(seqs.start, copies.hops[place : place + len(seqs)])
        if skipped:
            _compare_held(rerun, copies, place, seqs[:skipped])
        if skipped < len(seqs):
            assert seqs.start + skipped == dest.head_seq + 1, "a gap here would become a silent loss"
            _append(dest, copies, place + skipped, place + len(seqs))
        place += len(seqs)
        rerun.dest_seq = seqs.stop - 1
    # Also when a segment already holds the copies: no frame has the cursor of the router.
    dest.links.note_derived(rerun.router, rerun.start_seq + 1, dest.head_seq)


def _compare_held(rerun: _Rerun, copies: Copies, place: int, seqs: range) -> None:
    """Compares the first and the last copy that dest already has with the copies that the router makes again.

    Raises `Damaged` when neither is the same: the segment that an unfinished checkpoint seemed to leave is of another
    topic.
    """
    dest = rerun.router.dest
    agreed = {
        seqs[number]: agrees
        for number in (0, len(seqs) - 1)
        if (agrees := _agrees(dest, seqs[number], copies, place + number)) is not None
    }
    if agreed and not any(agreed.values()):
        seq = min(agreed)
        segment = dest.live.segments.segment_of(seq)
        assert segment is not None, "a record that was read from a segment"
        found = f"another record than router {rerun.router.name} makes: a file of another topic or another instance"
        path = layout.segment_object(dest.id, segment.first_seq, "data")
        raise Damaged(path, 0, f'seq {seq} of topic "{dest.name}"', found)


def _agrees(dest: Topic, seq: int, copies: Copies, place: int) -> bool | None:
    """Whether the record in a segment of dest is this copy; None when it is dead or cannot be read."""
    if not dest.live.first_live <= seq <= dest.live.checkpointed_seq:
        return None
    form, slots = read_slots(dest, seq, seq, READ_PIECE_BYTES_MIN)
    if not isinstance(slots[0], bytes):
        return None
    record = split_raw(slots[0], form)
    return (record.envelope, record.tag, record.node) == (
        copies.envelopes[place],
        copies.tags[place],
        copies.nodes[place],
    )


def _seqs_above(dest: Topic, dest_seq: int, count: int) -> Iterable[range]:
    """The next `count` seqs above `dest_seq` that copies get. Seqs of lost ranges are skipped."""
    seq = dest_seq + 1
    for first, last, _ in dest.live.lost:
        if last < seq:
            continue
        before = range(seq, min(max(first, seq), seq + count))
        if before:
            yield before
        count -= len(before)
        if not count:
            return
        seq = last + 1
    yield range(seq, seq + count)


def _append(dest: Topic, copies: Copies, start: int, end: int) -> None:
    """Appends the copies at places `start` to `end - 1`."""
    times: list[int] = []
    for ts in copies.source_times[start:end]:
        dest.writes.note_time(ts)
        times.append(dest.writes.last_ts)
    place = start
    for ts, group in groupby(times):
        batch = copies.batch(place, place + len(list(group)))
        bodies = wal_frame.append_bodies(dest.id, dest.head_seq + 1, ts, batch, durable=False)
        dest.live.add_copies(bodies, batch.sizes, ts, batch.tags)
        place += len(bodies)
