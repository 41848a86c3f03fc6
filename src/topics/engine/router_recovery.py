"""Routers after a start: which there are, how far they are, and the derived copies that no frame holds.

A router that is the only one to feed its dest made copies without frames (`forwarding`). They are made again here,
from where the last frame or snapshot left the router, over what is physically there: before the floors that have no
frame are raised, so that what a cap or the age took from the source since then is still copied.

Where copies are logged only the cursor moves, over what is not copied anyway: else a trim would take it for lost.

The n-th copy behind that point has the n-th seq behind `dest_seq`. What an unfinished checkpoint had put into segments
is passed over by its seq. Nothing is written: a start that is cut short, and another one, come to the same copies.
"""

import logging
from collections.abc import Iterable

from topics.engine.engine import Engine
from topics.engine.forwarding import Copies, Room, can_derive, note_hops, take_slots
from topics.engine.replay import ReplayedRouter
from topics.engine.router import Router, stored_spec
from topics.engine.tail import Tail
from topics.engine.topic import Topic
from topics.errors import ColdUnavailable
from topics.formats import wal_frame
from topics.limits import FORWARD_SLOTS_MAX, READ_BYTES_MAX

logger = logging.getLogger(__name__)


class _Rerun:
    """One router, while its derived copies are made again."""

    __slots__ = ("dest_seq", "floor", "held_seq", "router", "room", "start_seq")

    def __init__(self, router: Router, dest_seq: int, floor: int) -> None:
        self.router = router
        self.dest_seq = self.start_seq = dest_seq
        # Source records up to here may be missing: what is left of them is for the first pass to trim.
        self.floor = floor
        # Records of dest up to here are in frames or segments.
        assert router.dest.replayed is not None
        self.held_seq = router.dest.replayed.end_seq - 1
        # Copies that are logged are not for us to make.
        self.room = Room(None if can_derive(router.dest) else 0, None)


def restore_routers(engine: Engine, replayed: Iterable[ReplayedRouter], floors: dict[int, int]) -> list[str]:
    """Puts the routers to work again; warnings. `floors` are those of the snapshot, by topic id."""
    topics = {topic.id: topic for topic in engine.topics.values()}
    warnings: list[str] = []
    anchors: dict[str, int] = {}
    for item in sorted(replayed, key=lambda item: item.id):
        source, dest = topics.get(item.source), topics.get(item.dest)
        if source is None or dest is None:
            # Removed with one of its topics.
            continue
        if item.name in engine.routers:
            warnings.append(f'there are two routers named "{item.name}": the older one is used')
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
        anchors[item.name] = item.dest_seq
    routers = engine.routers.values()
    for topic in {topic: None for router in routers for topic in (router.source, router.dest)}:
        assert topic.replayed is not None
        # An unfinished checkpoint may have put copies into segments that no frame tells of.
        topic.head_seq = max(topic.head_seq, topic.replayed.end_seq - 1)
        topic.tail = Tail(topic.head_seq + 1)
    reruns = [_Rerun(router, anchors[router.name], floors.get(router.source.id, 0)) for router in routers]
    feeds = {rerun.router.dest: rerun for rerun in reruns if can_derive(rerun.router.dest)}
    # To a fixed point: what one makes may be what another copies.
    while any(_advance(rerun, feeds.get(rerun.router.source)) for rerun in reruns):
        pass
    for router in routers:
        # A power loss may have taken source records that were copied: their seqs will be given out again.
        router.cursor = min(router.cursor, router.source.head_seq)
        if router.cursor < router.source.head_seq:
            engine.forwarder.note_source(router.source)
    return warnings


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
    if first_seq > last_seq or first_seq <= rerun.floor:
        return False
    try:
        found = source.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=True)
    except ColdUnavailable as error:
        logger.warning('router "%s" goes on later: %s', router.name, error.message)
        return False
    assert isinstance(found, tuple)
    offset, slots = found
    copies = Copies(router.cursor)
    live = [None if seq < source.delete_below else slot for seq, slot in enumerate(slots, first_seq)]
    take_slots(router, copies, offset, first_seq, live, rerun.room)
    if copies.cursor == router.cursor:
        return False
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
    skipped = min(max(rerun.held_seq - rerun.dest_seq, 0), count)
    rerun.dest_seq += count
    if not dest.copied_first_seq:
        # Also for those that only a segment holds: how far the router is, no frame says.
        dest.copied_first_seq = rerun.start_seq + 1
        dest.copied_by = rerun.router
    _note_skipped_hops(dest, rerun.dest_seq - count + 1, copies.hops[:skipped])
    if skipped < count:
        _append(dest, copies, skipped)
    dest.copied_last_seq = dest.head_seq


def _note_skipped_hops(dest: Topic, first_seq: int, hops: list[int]) -> None:
    if hops:
        note_hops(dest, first_seq, hops)


def _append(dest: Topic, copies: Copies, skipped: int) -> None:
    batch = copies.batch()
    first_seq = dest.head_seq + 1 - skipped
    # Their own time is not known any more. That of the source is near, and never later.
    ts = max(dest.last_ts, copies.last_ts)
    _, bodies = wal_frame.encode_appends(dest.id, first_seq, ts, batch, durable=False)
    dest.tail.extend(bodies[skipped:], batch.sizes[skipped:], ts)
    if batch.tags is not None:
        for seq, tag in enumerate(batch.tags[skipped:], dest.head_seq + 1):
            if tag is not None:
                dest.tags.add(tag, seq)
    note_hops(dest, dest.head_seq + 1, copies.hops[skipped:])
    dest.head_seq += len(bodies) - skipped
    dest.last_ts = ts
