"""Routers after a start: which there are, how far they are, and the derived copies that no frame holds.

A router that is the only one to feed its dest made copies without frames (`forwarding`). They are made again here,
from where the last frame or snapshot left the router, over what is physically there: before the floors that have no
frame are raised, so that what a cap or the age took from the source since then is still copied.

Where copies are logged only the cursor moves, over what is not copied anyway: else a trim would take it for lost. An
`ephemeral` dest gets nothing: what its source has was copied, and went with the process.

The n-th copy behind that point has the n-th seq behind `dest_seq`, ranges that a power loss took not counted: copies
made again stand behind those. What an unfinished checkpoint had put into segments is passed over by its seq. Each copy
has the time of its source record, or that of the copy before it if that is later; when it was made first nothing tells.
So a start that is cut short, and another one, come to the same copies.

A router stops where a record of dest has, or had, the key of what it would copy next: whether that lives is decided,
and logged, by the first pass.

One thing is written: a router whose cursor is ahead of its source. What it had copied went with a power loss, or with
an `ephemeral` source, and its seqs are given out again. The next start must not take their new records for done.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from topics.engine.engine import Engine
from topics.engine.routers.forwarding import Copies, Room, can_derive, may_be_full, note_hops, note_slots, take_slots
from topics.engine.routers.router import Router, stored_spec
from topics.engine.starting.heads import FrameToLog
from topics.engine.starting.log_replay import ReplayedLog
from topics.engine.starting.replayed_router import ReplayedRouter
from topics.engine.starting.report import RecoveryReport
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.tail import Tail
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, Damaged, FormatError
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType
from topics.limits import FORWARD_SLOTS_MAX, READ_BYTES_MAX
from topics.storage import layout

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredRouters:
    # One ROUTER_CREATE frame for each router whose cursor was ahead of its source.
    frames: list[FrameToLog]


class _Rerun:
    """One router, while its derived copies are made again."""

    __slots__ = ("dest_seq", "floor", "held_seq", "is_placed", "room", "router", "start_seq", "trims")

    def __init__(self, router: Router, dest_seq: int, floor: int, trims: list[tuple[int, int]]) -> None:
        self.router = router
        dest = router.dest
        self.dest_seq = self.start_seq = dest_seq
        # Source records up to here may be missing: what is left of them is for the first pass to trim.
        self.floor = floor
        # Holes of the source that dest must be told of, by the same pass.
        self.trims = trims
        # Records of dest up to here are in frames or segments.
        assert dest.replayed is not None
        self.held_seq = dest.replayed.end_seq - 1
        # Copies that are logged are not for us to make, and those that went with the process are only counted.
        self.is_placed = can_derive(dest)
        is_counted = dest.config.durability == "ephemeral" and not may_be_full(dest)
        self.room = Room(None if self.is_placed or is_counted else 0, None)


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
        source_id = router.source.id
        reruns.append(_Rerun(router, item.dest_seq, evict_floors.get(source_id, 0), log.trims.get(source_id, [])))
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
            router.searched_seq = router.dest.head_seq
        if router.cursor > router.source.head_seq:
            router.cursor = router.source.head_seq
            frames.append(FrameToLog(router.dest.id, _state_frame(engine, rerun)))
        if router.cursor < router.source.head_seq:
            engine.forwarder.note_source(router.source)
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
    """An unfinished checkpoint may have put copies into segments that no frame tells of."""
    assert topic.replayed is not None
    topic.head_seq = max(topic.head_seq, topic.replayed.end_seq - 1)
    topic.tail = Tail(topic.head_seq + 1)
    if topic.segments.segments:
        topic.last_ts = max(topic.last_ts, topic.segments.segments[-1].last_ts)
        engine.newest_ts = max(engine.newest_ts, topic.last_ts)


def _state_frame(engine: Engine, rerun: _Rerun) -> bytes:
    router = rerun.router
    assert rerun.dest_seq == rerun.start_seq, "a router that is ahead of its source has nothing to copy"
    state = router.state(router.cursor, router.forwarded_total, rerun.dest_seq)
    return wal_frame.encode_control(FrameType.ROUTER_CREATE, router.dest.id, engine.now_ms(), control.encode(state))


def _search(router: Router, item: ReplayedRouter) -> None:
    """Keys in dest: those that were known, and those of what is not known to have been looked through.

    Behind `dest_seq` only the router itself has written, without frames: an unfinished checkpoint put that there.
    """
    dest = router.dest
    last_seq = min(item.dest_seq, dest.head_seq)
    router.searched_seq = item.searched_seq
    for source_seq, dest_seq in item.evidence:
        if source_seq > router.cursor:
            router.evidence.setdefault(source_seq, []).append(dest_seq)
    while router.searched_seq < last_seq:
        first_seq = max(router.searched_seq + 1, dest.first_live)
        if first_seq > last_seq:
            router.searched_seq = last_seq
            return
        try:
            found = dest.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=True)
        except ColdUnavailable as error:
            logger.warning('router "%s" looks for its keys later: %s', router.name, error.message)
            return
        assert not isinstance(found, Fetch)
        offset, slots = found
        note_slots(router, offset, first_seq, slots)


def _advance(rerun: _Rerun, before: _Rerun | None) -> bool:
    """Makes copies of the next source records; whether there were any. `before` makes those records, if a router does:
    how often they were copied is known only once it has come to them."""
    router = rerun.router
    source = router.source
    known_seq = source.head_seq
    if before is not None and before.dest_seq < before.held_seq:
        known_seq = before.dest_seq
    first_seq = router.cursor + 1
    last_seq = min(known_seq, router.cursor + FORWARD_SLOTS_MAX)
    for trim_first, trim_last in rerun.trims:
        if trim_last >= first_seq:
            last_seq = min(last_seq, trim_first - 1)
            break
    if first_seq > last_seq or first_seq <= rerun.floor:
        return False
    if router.is_exact and router.searched_seq < rerun.start_seq:
        return False
    try:
        found = source.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=True)
    except ColdUnavailable as error:
        logger.warning('router "%s" goes on later: %s', router.name, error.message)
        return False
    assert not isinstance(found, Fetch)
    offset, slots = found
    copies = Copies(router.cursor)
    live = [None if seq < source.delete_below else slot for seq, slot in enumerate(slots, first_seq)]
    take_slots(router, copies, offset, first_seq, live, rerun.room, stops_at_evidence=True)
    if copies.cursor == router.cursor:
        return False
    if rerun.is_placed:
        _place(rerun, copies)
    router.cursor = copies.cursor
    router.forwarded_total += len(copies.envelopes)
    return True


def _place(rerun: _Rerun, copies: Copies) -> None:
    """Copies behind the last record of dest; those that are there already are passed over."""
    count = len(copies.envelopes)
    if not count:
        return
    dest = rerun.router.dest
    if not dest.copied_first_seq:
        # Also for those that only a segment holds: how far the router is, no frame says.
        dest.copied_first_seq = rerun.start_seq + 1
        dest.copied_by = rerun.router
    place = 0
    for seqs in _seqs_behind(dest, rerun.dest_seq, count):
        skipped = min(max(rerun.held_seq + 1 - seqs.start, 0), len(seqs))
        note_hops(dest, seqs.start, copies.hops[place : place + len(seqs)])
        if skipped < len(seqs):
            assert seqs.start + skipped == dest.head_seq + 1, "a gap here would become a silent loss"
            _append(dest, copies, place + skipped, place + len(seqs))
        place += len(seqs)
        rerun.dest_seq = seqs.stop - 1
    dest.copied_last_seq = dest.head_seq


def _seqs_behind(dest: Topic, dest_seq: int, count: int) -> Iterable[range]:
    """The next seqs that copies get: those of lost ranges are nobody's."""
    seq = dest_seq + 1
    for first, last in dest.lost:
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
    """Those at places `start` to `end - 1`, behind the head."""
    times: list[int] = []
    for ts in copies.source_times[start:end]:
        times.append(max(dest.last_ts, ts))
        dest.last_ts = times[-1]
    place = start
    for ts, group in groupby(times):
        batch = copies.batch(place, place + len(list(group)))
        _, bodies = wal_frame.encode_appends(dest.id, dest.head_seq + 1, ts, batch, durable=False)
        dest.tail.extend(bodies, batch.sizes, ts)
        if batch.tags is not None:
            for seq, tag in enumerate(batch.tags, dest.head_seq + 1):
                if tag is not None:
                    dest.tags.add(tag, seq)
        dest.head_seq += len(bodies)
        place += len(bodies)
