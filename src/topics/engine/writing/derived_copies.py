"""Logging the derived copies of a dest: copies of a router that were published without frames.

A start makes derived copies again by running the router once more (see `routers.forwarding`). Before something happens
that this repeated run would not see at its place, the copies made so far are logged after all, with a note that says
how far their router is. Each copy is logged once at most.

Owner only. `Applied` callbacks run while a group completes: see `core`.
"""

from __future__ import annotations

from functools import partial

from topics.engine.core import Applied, Core
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.router import Router
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, CorruptRecord, TopicsError
from topics.formats import control, wal_frame
from topics.formats.record_layout import RecordForm
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.limits import READ_BYTES_MAX


class _FramesUnderWay:
    """Frames of derived copies of one dest that are not committed yet, and callbacks that wait for them."""

    __slots__ = ("count", "failure", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.failure: TopicsError | None = None
        self.waiting: list[Applied] = []


class _AllLogged:
    """Calls back once, with the first error or None, when every part is logged."""

    __slots__ = ("_applied", "_failure", "_missing")

    def __init__(self, count: int, applied: Applied) -> None:
        self._missing = count
        self._failure: TopicsError | None = None
        self._applied = applied

    def one_logged(self, error: TopicsError | None) -> None:
        self._missing -= 1
        self._failure = self._failure or error
        if self._missing == 0:
            self._applied(self._failure)


class DerivedCopies:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._under_way: dict[Topic, _FramesUnderWay] = {}

    def log(self, dest: Topic, *, durable: bool = False) -> None:
        """Queues frames for the derived copies of the dest that no frame holds. Raises when nothing was queued.

        Frames queued on the dest's shard afterwards come after them in the log.
        """
        if dest.links.copied_first_seq:
            self._queue_frames(dest, durable=durable)
            for router in dest.links.routers_out:
                # A copy that was copied on, and is dead in this dest by now, could not be copied again.
                self.log(router.dest, durable=durable)

    def log_and_tell(self, dest: Topic, applied: Applied, *, durable: bool = False) -> None:
        """`log`; then calls back once every queued frame of derived copies is committed, at once when there is none."""
        self.log(dest, durable=durable)
        under_way = self._under_way.get(dest)
        if under_way is None:
            applied(None)
        else:
            under_way.waiting.append(applied)

    def log_frame_after_copies(
        self, source: Topic, frame: bytes, applied: Applied, *, durable: bool, copies_durable: bool
    ) -> None:
        """Logs a frame of the source that takes records away, once their derived copies in every dest are logged:
        a start could not copy these records again. Raises when nothing was queued."""
        if not source.links.routers_out:
            self._core.log(source, frame, applied, durable=durable)
            return
        dests = {router.dest: None for router in source.links.routers_out}
        then = partial(self._copies_logged, source, frame, applied, durable)
        all_logged = _AllLogged(len(dests) + 1, then)
        for dest in dests:
            try:
                self.log_and_tell(dest, all_logged.one_logged, durable=copies_durable)
            except TopicsError as error:
                all_logged.one_logged(error)
        all_logged.one_logged(None)

    def _copies_logged(
        self,
        source: Topic,
        frame: bytes,
        applied: Applied,
        durable: bool,  # noqa: FBT001 - bound by `partial`.
        error: TopicsError | None,
    ) -> None:
        if error is None:
            try:
                self._core.log(source, frame, applied, durable=durable)
            except TopicsError as refusal:
                error = refusal
        if error is not None:
            applied(error)

    def _queue_frames(self, dest: Topic, *, durable: bool) -> None:
        links, live = dest.links, dest.live
        router = links.copied_by
        assert router is not None
        first_seq, last_seq = links.copied_first_seq, live.head_seq
        # Copies that both kept snapshots list need no frame, and copies that a cap took are holes.
        records = _records(dest, max(first_seq, dest.checkpoint.snapshot_seqs[0] + 1, live.first_live), last_seq)
        hops = links.hops.within(first_seq, last_seq) if links.hops is not None else []
        cursor, forwarded_total = router.settled
        note = control.Note(copies=control.Copies(router.id, cursor, last_seq, forwarded_total, hops))
        evict = control.Evict(live.cap_floor, live.ttl_floor) if live.cap_floor else None
        frames = _framed(dest, note, records, evict, self._core.now_ms())
        self._core.log(
            dest,
            frames,
            partial(self._frames_logged, dest, first_seq, last_seq, router),
            durable=durable or dest.config.durability == "fsync",
            frame_count=1 + sum(len(raws) for _, raws in records) + (evict is not None),
        )
        links.take_derived()
        self._under_way.setdefault(dest, _FramesUnderWay()).count += 1

    def _frames_logged(
        self, dest: Topic, first_seq: int, last_seq: int, router: Router, error: TopicsError | None
    ) -> None:
        if error is None:
            dest.live.note_logged(last_seq)
        else:
            dest.links.put_derived_back(first_seq, router)
        under_way = self._under_way[dest]
        under_way.count -= 1
        under_way.failure = under_way.failure or error
        if under_way.count == 0:
            del self._under_way[dest]
            for applied in under_way.waiting:
                applied(under_way.failure)


def _records(dest: Topic, first_seq: int, last_seq: int) -> list[tuple[RecordForm, list[bytes]]]:
    """Live records of a range, in pieces of one form: also records that a checkpoint has already put into segments."""
    pieces: list[tuple[RecordForm, list[bytes]]] = []
    while first_seq <= last_seq:
        found = dest.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=True)
        if isinstance(found, Fetch):
            # They went to the cold tier before a snapshot listed them, because a snapshot could not be written.
            raise ColdUnavailable(f'copies in topic "{dest.name}" cannot be logged before the next checkpoint')
        form, slots = found
        raws: list[bytes] = []
        for slot in slots:
            if isinstance(slot, bytes):
                raws.append(slot)
            elif slot is not None:
                raise CorruptRecord(dest.name, first_seq, slot.message)
            first_seq += 1
        if raws:
            pieces.append((form, raws))
    return pieces


def _framed(
    dest: Topic,
    note: control.Note,
    records: list[tuple[RecordForm, list[bytes]]],
    evict: control.Evict | None,
    ts: int,
) -> bytes:
    """One write: the note, the copies, the floor. The flags of each frame say whether it is first and whether more
    follow."""
    is_last_note = not records and evict is None
    flags = FLAG_FIRST if is_last_note else FLAG_FIRST | FLAG_MORE
    parts = [wal_frame.encode_control(FrameType.NOTE, dest.id, ts, control.encode(note), flags=flags)]
    for left, (form, raws) in enumerate(records, 1 - len(records)):
        parts.append(wal_frame.seal_copies(raws, form, dest.id, closes=left == 0 and evict is None))
    if evict is not None:
        parts.append(wal_frame.encode_control(FrameType.EVICT, dest.id, ts, control.encode(evict), flags=0))
    return b"".join(parts)


def cursor_note(dest: Topic, copies: control.Copies, ts: int) -> bytes:
    """A frame that says how far a router is."""
    return wal_frame.encode_control(FrameType.NOTE, dest.id, ts, control.encode(control.Note(copies=copies)))


def unlogged_cursor_note(router: Router, ts: int) -> bytes:
    """A frame with the progress of a router into an ephemeral dest. It names no seqs of dest: they end with the
    process."""
    return cursor_note(router.dest, control.Copies(router.id, router.cursor, 0, router.forwarded_total), ts)
