"""Forwarding: routers copy what is new in their source to their dest (log-semantics.md §10).

A copy has no frame of its own where the source's frames alone give it again: in a dest that one router feeds, and
nothing else did since. Such copies are *derived*: published at once, and made again by a start, which re-runs the
router from where its last frame or the last checkpoint left it (`router_recovery`). Everywhere else copies are logged
like any write, behind a note that says how far the router is.

A re-run must come to the same copies. So before something happens that it would not see in its place, the derived
copies made so far are logged after all, with a note (`log_copies`):

| Before | Because a re-run |
|---|---|
| a direct write to dest, or a second router into it | would not know what came first |
| a delete in dest, a new config of dest | knows nothing of seqs that are not there yet |
| a source trim | would find what was lost for the router still there |
| a change or the removal of the router | would use the new definition for old records |
| a delete in the source, its removal | would not find the records any more |

Each copy is logged once at most. Evictions by caps and age need nothing: a start re-runs routers before it evicts.

Copies are always logged where it matters when, or whether, they were made:

| Which | Because |
|---|---|
| into a queue, a dest with a `ttl_ms`, one that may be full (`reject` with a cap) | time and room were others |
| into a dest with a cap that is a source itself | of copies that it evicts nothing would be left to copy on |
| from an `ephemeral` source | it has no frames |
| into an `fsync` dest from a source of another class | a power loss would take them with the source's frames |
| of `exactly_once`, where a record of dest has, or had, the key | whether it lives decides, and may change |

An `ephemeral` dest logs nothing, and is empty after a start: what its source had is not copied again. Only of one that
may be full the log says how far its router is, because that one may have to hold records back.

How often a record was copied (`hops`) travels beside the records, in `Topic.hops`, in the notes of logged copies and
in snapshots; never in a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from topics.engine.routers.router import Router, key_in, keyed_envelope, passes
from topics.engine.scheduler import B0, band_of
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.hops import HopRuns
from topics.engine.writing.staged import Appended
from topics.errors import CorruptRecord, FormatError, TopicsError
from topics.formats import control, envelope, wal_frame
from topics.formats.record_layout import RecordForm, split_raw
from topics.formats.records import RecordBatch
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.limits import FORWARD_SLOTS_MAX, READ_BYTES_MAX, ROUTER_HOPS_MAX, SEARCH_SLOTS_MAX
from topics.storage.background import Background

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.topic.topic import Topic

logger = logging.getLogger(__name__)

Then = Callable[[TopicsError | None], None]


class Copies:
    """What one step of a router copies, by column, and the source seq it comes to."""

    __slots__ = (
        "cursor",
        "envelopes",
        "hops",
        "is_stopped",
        "met_evidence",
        "nodes",
        "sizes",
        "source_times",
        "suppressed",
        "tags",
    )

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.envelopes: list[bytes] = []
        self.sizes: list[int] = []
        self.tags: list[bytes | None] = []
        self.nodes: list[bytes | None] = []
        self.hops: list[int] = []
        self.source_times: list[int] = []
        # Records that dest has already.
        self.suppressed = 0
        # Whether there was a hint that dest might have one of them.
        self.met_evidence = False
        # Whether the next record cannot be copied now.
        self.is_stopped = False

    def batch(self, start: int = 0, end: int | None = None) -> RecordBatch:
        """Those at places `start` to `end - 1`."""
        tags, nodes = self.tags[start:end], self.nodes[start:end]
        return RecordBatch(
            self.envelopes[start:end],
            self.sizes[start:end],
            tags if any(tag is not None for tag in tags) else None,
            nodes if any(node is not None for node in nodes) else None,
        )


class Room:
    """What a dest, and the server's quota, still take."""

    __slots__ = ("count", "size")

    def __init__(self, count: int | None, size: int | None) -> None:
        # None: without bound.
        self.count = count
        self.size = size

    def take(self, size: int) -> bool:
        if self.count is not None:
            if self.count < 1:
                return False
            self.count -= 1
        if self.size is not None:
            if self.size < size:
                return False
            self.size -= size
        return True


def take_slots(
    router: Router,
    copies: Copies,
    form: RecordForm,
    first_seq: int,
    slots: list[bytes | FormatError | None],
    room: Room,
    *,
    stops_at_evidence: bool = False,
) -> None:
    """The table of §10, slot by slot. `slots` are those behind the cursor; dead ones are None."""
    spec, hops_of = router.spec, router.source.hops
    for seq, slot in enumerate(slots, first_seq):
        if slot is None:
            copies.cursor = seq
            continue
        if isinstance(slot, FormatError):
            logger.warning('router "%s" passes over record %d, which is damaged: %s', router.name, seq, slot.message)
            copies.cursor = seq
            continue
        hops = hops_of.of(seq) if hops_of is not None else 0
        record = split_raw(slot, form)
        if hops >= ROUTER_HOPS_MAX or not passes(spec.filter, record.tag):
            copies.cursor = seq
            continue
        payload: bytes | None = record.envelope
        if router.is_exact:
            if seq in router.evidence:
                if stops_at_evidence:
                    copies.is_stopped = True
                    return
                copies.met_evidence = True
                if _is_there(router, seq):
                    copies.suppressed += 1
                    copies.cursor = seq
                    continue
            payload = keyed_envelope(router, seq, record.envelope)
        size = 0 if payload is None else envelope.accounted_bytes(payload)
        if payload is None or not room.take(size):
            copies.is_stopped = True
            return
        copies.envelopes.append(payload)
        copies.sizes.append(size)
        copies.tags.append(record.tag if spec.preserve_tag else None)
        copies.nodes.append(record.node if spec.preserve_node else None)
        copies.hops.append(hops + 1)
        copies.source_times.append(record.ts)
        copies.cursor = seq


def _is_there(router: Router, source_seq: int) -> bool:
    """Whether a live record of dest has the key of this source record. Raises when that cannot be told now."""
    dest = router.dest
    for dest_seq in router.evidence[source_seq]:
        if not dest.first_live <= dest_seq <= dest.head_seq:
            continue
        found = dest.job_slots(dest_seq, dest_seq, READ_BYTES_MAX, may_wait=True)
        assert not isinstance(found, Fetch)
        form, slots = found
        slot = slots[0]
        if isinstance(slot, bytes) and key_in(split_raw(slot, form).envelope) == router.key(source_seq):
            return True
    return False


def note_slots(router: Router, form: RecordForm, first_seq: int, slots: Iterable[bytes | FormatError | None]) -> None:
    """Looks through records of dest for the router's keys."""
    router.note_keys(first_seq, (split_raw(slot, form).envelope if isinstance(slot, bytes) else None for slot in slots))


def may_be_full(dest: Topic) -> bool:
    config = dest.config
    return config.discard == "reject" and bool(config.cap_records or config.cap_bytes)


def can_derive(dest: Topic) -> bool:
    """Whether copies in this dest may go without frames: see the module's rules."""
    config = dest.config
    return (
        len(dest.routers_in) == 1
        and config.durability != "ephemeral"
        and config.type == "log"
        and not config.ttl_ms
        and not may_be_full(dest)
        and not (dest.routers_out and (config.cap_records or config.cap_bytes))
    )


def note_hops(dest: Topic, first_seq: int, hops: list[int]) -> None:
    """Remembers how often these copies were copied, if a router will ask."""
    if not dest.routers_out:
        dest.hops = None
        return
    if dest.hops is None:
        dest.hops = HopRuns()
    for seq, count in enumerate(hops, first_seq):
        dest.hops.note(seq, count)


class _Logging:
    """Derived copies of one dest whose frames are on their way, and who waits for them."""

    __slots__ = ("count", "failure", "thens")

    def __init__(self) -> None:
        self.count = 0
        self.failure: TopicsError | None = None
        self.thens: list[Then] = []


class Forwarder:
    """Runs the routers of one engine. Owner only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Sources with records that routers have not come to, the longest waiting first.
        self._ready: dict[Topic, None] = {}
        self._waiting: list[Callable[[], None]] = []
        self._logging: dict[Topic, _Logging] = {}
        self._background: Background | None = None
        # Under pressure every router runs one band lower.
        self.is_lowered = False

    # When.

    def note_source(self, source: Topic) -> None:
        """It has something new."""
        self._ready[source] = None

    def tick(self) -> None:
        """The background pass: a bounded step of every router with something to do, urgent sources first."""
        if self._ready:
            ready, self._ready = self._ready, {}
            for source in sorted(ready, key=self._band):
                for router in source.routers_out:
                    self._step(router)
                    if router.cursor < source.head_seq:
                        self._ready[source] = None
        self._wake_waiting()

    def _band(self, source: Topic) -> int:
        band = band_of(self._engine.effective_priority(source))
        return min(band + 1, B0) if self.is_lowered else band

    def bring_up_to_date(self, dest: Topic) -> bool:
        """Forwards everything that routers can copy into this topic now, through all topics before it.

        False when copies are on their way, and `wait_copies` tells when to ask again. What a full dest holds back does
        not count as on its way.
        """
        routers = _upstream(dest)
        moved = True
        while moved:
            moved = False
            for router in routers:
                while self._step(router):
                    moved = True
            if any(router.in_flight for router in routers):
                # Unless a sync is needed they are there when this returns.
                self._engine.flush()
        return not any(
            router.in_flight
            or (
                router.cursor < router.source.head_seq
                and (
                    router.is_frozen
                    or router.is_fetching
                    or router.source.changing
                    or router.dest.changing
                    or router.is_searching
                )
            )
            for router in routers
        )

    def wait_copies(self, callback: Callable[[], None]) -> None:
        """Calls back once, when it is worth asking again. The callback must not call the engine."""
        self._waiting.append(callback)

    def _wake_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()

    # One step of one router.

    def _step(self, router: Router) -> bool:
        """Whether the cursor moved."""
        engine, source, dest = self._engine, router.source, router.dest
        if router.cursor >= source.head_seq or engine.closed:
            return False
        if router.is_frozen or router.is_fetching or source.changing or dest.changing:
            return False
        now_ms = engine.now_ms()
        source.refresh(now_ms)
        dest.refresh(now_ms)
        try:
            if router.cursor + 1 < source.evict_floor:
                self._trim(router)
                return True
            return (router.is_searched or self._search(router)) and self._copy(router)
        except TopicsError as error:
            # Nothing was staged: the log takes nothing now, or a file does not answer. Tried again at the next tick.
            logger.debug('router "%s" waits: %s', router.name, error.message)
            return False

    def _search(self, router: Router) -> bool:
        """Looks through what is in dest for keys of copies to come; whether all of it was. A bounded number of records:
        who made an `exactly_once` router into a large topic waits for it, and nobody else."""
        dest = router.dest
        router.is_searching = False
        last_seq = min(dest.head_seq, max(router.searched_seq, dest.first_live - 1) + SEARCH_SLOTS_MAX)
        while router.searched_seq < last_seq:
            first_seq = max(router.searched_seq + 1, dest.first_live)
            if first_seq > last_seq:
                router.searched_seq = last_seq
                break
            found = dest.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=router.has_fetched)
            router.has_fetched = False
            if isinstance(found, Fetch):
                self._fetch(router, found)
                if router.has_fetched:
                    continue
                return False
            form, slots = found
            note_slots(router, form, first_seq, slots)
        if not router.is_searched:
            router.is_searching = True
            self._ready[router.source] = None
        return router.is_searched

    def _copy(self, router: Router) -> bool:
        copies = Copies(router.cursor)
        source = router.source
        last_seq = min(source.head_seq, router.cursor + FORWARD_SLOTS_MAX)
        room = self._room(router.dest)
        while copies.cursor < last_seq and not copies.is_stopped:
            first_seq = copies.cursor + 1
            found = source.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=router.has_fetched)
            router.has_fetched = False
            if isinstance(found, Fetch):
                self._fetch(router, found)
                if router.has_fetched:
                    continue
                break
            form, slots = found
            first_live = source.first_live
            live = [slot if seq >= first_live else None for seq, slot in enumerate(slots, first_seq)]
            take_slots(router, copies, form, first_seq, live, room)
        if copies.cursor == router.cursor:
            return False
        self._put(router, copies)
        return True

    def _room(self, dest: Topic) -> Room:
        config = dest.config
        count = size = None
        if config.discard == "reject":
            if config.cap_records:
                count = config.cap_records - dest.count - dest.staged_count
            if config.cap_bytes:
                size = config.cap_bytes - dest.size_bytes - dest.staged_bytes
        quota = self._engine.settings.total_bytes_max
        if quota:
            left = quota - self._engine.live_bytes.total
            size = left if size is None else min(size, left)
        return Room(count, size)

    def _put(self, router: Router, copies: Copies) -> None:
        """Publishes derived copies, or stages logged ones; then the cursor moves."""
        dest, count = router.dest, len(copies.envelopes)
        before = router.cursor, router.forwarded_total
        forwarded_total = router.forwarded_total + count + copies.suppressed
        if count:
            batch = copies.batch()
            # A start would not know what became of the evidence.
            is_derived = not copies.met_evidence and self._is_derived(router)
            if not is_derived:
                self.log_copies(dest)
            first_seq = dest.next_seq
            last_seq = first_seq + count - 1
            note = control.Copies(
                router.id,
                copies.cursor,
                last_seq,
                forwarded_total,
                _hop_runs(first_seq, copies.hops) if dest.routers_out else [],
            )
            router.in_flight.append(before)
            try:
                self._engine.stage_copies(
                    dest, batch, note, lambda result: self._copied(router, first_seq, result), is_derived=is_derived
                )
            except TopicsError:
                router.in_flight.pop()
                raise
            _note_searched(dest, first_seq, last_seq)
            note_hops(dest, first_seq, copies.hops)
            if is_derived:
                if not dest.copied_first_seq:
                    dest.copied_first_seq = first_seq
                    dest.copied_by = router
                dest.copied_last_seq = last_seq
        elif copies.suppressed and dest.config.durability != "ephemeral":
            self._note_suppressed(router, control.Copies(router.id, copies.cursor, dest.next_seq - 1, forwarded_total))
        router.cursor = copies.cursor
        router.forwarded_total = forwarded_total
        self._note_unlogged(router, before)

    def _note_suppressed(self, router: Router, copies: control.Copies) -> None:
        """Says that the router has passed records by their keys. Until that is committed nothing is derived."""
        dest = router.dest
        self.log_copies(dest)
        first_seq = dest.next_seq
        router.in_flight.append((router.cursor, router.forwarded_total))
        try:
            dest.shard.submit(
                _cursor_note(dest, copies, self._engine.now_ms()),
                1,
                # The seqs of derived copies behind it depend on it.
                durable=dest.config.durability == "fsync",
                done=lambda error: self._copied(router, first_seq, error),
            )
        except TopicsError:
            router.in_flight.pop()
            raise
        self._engine.flush_soon()

    def _note_unlogged(self, router: Router, before: tuple[int, int]) -> None:
        """Says how far the router is, where that is all that a start can know of an ephemeral dest."""
        dest = router.dest
        if dest.config.durability != "ephemeral" or not may_be_full(dest):
            return
        note = _cursor_note(dest, _unlogged_copies(router), self._engine.now_ms())

        def noted(_error: TopicsError | None) -> None:
            """Who reads dest waits for it: what was read must not be copied again."""
            router.in_flight.popleft()
            self._wake_waiting()

        try:
            dest.shard.submit(note, 1, durable=False, done=noted)
        except TopicsError as error:
            logger.debug('router "%s": what it copied may be copied again after a start: %s', router.name, error)
            return
        router.in_flight.append(before)
        self._engine.flush_soon()

    def _is_derived(self, router: Router) -> bool:
        source, dest = router.source, router.dest
        return (
            can_derive(dest)
            and source.config.durability != "ephemeral"
            and (dest.config.durability != "fsync" or source.config.durability == "fsync")
            and not dest.staged
            and not router.in_flight
            and not (source.hazards or dest.hazards)
            # What the source got while it was ephemeral is in no frame until a checkpoint has put it away.
            and (router.cursor >= source.unlogged_last_seq or source.checkpointed_seq >= source.unlogged_last_seq)
        )

    def _copied(self, router: Router, first_seq: int, result: Appended | TopicsError | None) -> None:
        before = router.in_flight.popleft()
        if isinstance(result, TopicsError):
            # Whatever was staged behind it fails too, and takes nothing further back.
            router.cursor = min(router.cursor, before[0])
            router.forwarded_total = min(router.forwarded_total, before[1])
            if router.dest.hops is not None:
                router.dest.hops.forget_from(first_seq)
            self._ready[router.source] = None
        self._wake_waiting()

    def _trim(self, router: Router) -> None:
        """Holes in dest for what the source lost before it was copied."""
        source, dest = router.source, router.dest
        cursor = source.evict_floor - 1
        lost = cursor - router.cursor
        forwarded_total = router.forwarded_total + lost
        self.log_copies(dest)
        first_seq = dest.next_seq
        last_seq = first_seq + lost - 1
        before = router.cursor, router.forwarded_total
        router.in_flight.append(before)
        copies = control.Copies(router.id, cursor, last_seq, forwarded_total)
        evict = control.Evict(trim_floor=last_seq, copies=copies, trim_first=first_seq)
        try:
            self._engine.stage_holes(dest, lost, evict, lambda result: self._copied(router, first_seq, result))
        except TopicsError:
            router.in_flight.pop()
            raise
        _note_searched(dest, first_seq, last_seq)
        router.cursor = cursor
        router.forwarded_total = forwarded_total
        self._note_unlogged(router, before)

    def _fetch(self, router: Router, fetch: Fetch) -> None:
        """Brings what comes next into memory: the owner waits for no disk."""
        if self._background is None:
            self._background = self._engine.runtime.background("forward")
        router.is_fetching = True

        def fetched(result: object) -> None:
            router.is_fetching = False
            router.has_fetched = not isinstance(result, BaseException)
            if isinstance(result, BaseException):
                logger.warning('router "%s" cannot read its source now: %s', router.name, result)
            self._ready[router.source] = None
            self._wake_waiting()

        self._background.run(fetch, fetched)

    # Logging what was derived.

    def log_copies(self, dest: Topic, then: Then | None = None, *, durable: bool = False) -> None:
        """Logs the derived copies that no frame holds, and how far their router is. Raises when nothing was queued.

        Frames queued on the dest's shard afterwards stand behind them. `then` is called once they, and those being
        logged already, are committed; at once when there are none.
        """
        if dest.copied_first_seq:
            self._log(dest, durable=durable)
            for router in dest.routers_out:
                # What was copied on, and is dead here by now, could not be copied again.
                self.log_copies(router.dest, durable=durable)
        if then is not None:
            logging_now = self._logging.get(dest)
            if logging_now is None:
                then(None)
            else:
                logging_now.thens.append(then)

    def _log(self, dest: Topic, *, durable: bool) -> None:
        first_seq, router = dest.copied_first_seq, dest.copied_by
        assert router is not None
        last_seq = dest.head_seq
        # What both kept snapshots list needs no frame, and what a cap took is a hole.
        bodies = _bodies(dest, max(first_seq, dest.snapshot_seqs[0] + 1, dest.first_live), last_seq)
        hops = dest.hops.within(first_seq, last_seq) if dest.hops is not None else []
        cursor, forwarded_total = router.settled
        note = control.Note(copies=control.Copies(router.id, cursor, last_seq, forwarded_total, hops))
        evict = control.Evict(dest.cap_floor, dest.ttl_floor) if dest.cap_floor else None
        buffer = _framed(dest, note, bodies, evict, self._engine.now_ms())

        def logged(error: TopicsError | None) -> None:
            if error is None:
                dest.logged_last_seq = max(dest.logged_last_seq, last_seq)
            else:
                dest.copied_first_seq, dest.copied_by = first_seq, router
            self._logged(dest, error)

        frames = 1 + len(bodies) + (evict is not None)
        is_durable = durable or dest.config.durability == "fsync"
        dest.shard.submit(buffer, frames, durable=is_durable, done=logged)
        self._logging.setdefault(dest, _Logging()).count += 1
        dest.copied_first_seq, dest.copied_by = 0, None
        self._engine.flush_soon()

    def _logged(self, dest: Topic, error: TopicsError | None) -> None:
        logging_now = self._logging[dest]
        logging_now.count -= 1
        logging_now.failure = logging_now.failure or error
        if logging_now.count == 0:
            del self._logging[dest]
            for then in logging_now.thens:
                then(logging_now.failure)

    def cursor_notes(self, dest: Topic) -> list[bytes]:
        """Frames that say how far the routers of an ephemeral dest are, and nothing of its seqs."""
        now_ms = self._engine.now_ms()
        return [_cursor_note(dest, _unlogged_copies(router), now_ms) for router in dest.routers_in]

    def log_copies_of(self, source: Topic, then: Then, *, durable: bool = False) -> None:
        """The same for every dest of a source. `then` is called once, with the first error or None."""
        dests = {router.dest: None for router in source.routers_out}
        missing = len(dests) + 1
        failure: TopicsError | None = None

        def one_logged(error: TopicsError | None) -> None:
            nonlocal missing, failure
            missing -= 1
            failure = failure or error
            if missing == 0:
                then(failure)

        for dest in dests:
            try:
                self.log_copies(dest, one_logged, durable=durable)
            except TopicsError as error:
                one_logged(error)
        one_logged(None)

    # Others who write to a dest.

    def note_direct_write(self, dest: Topic, batch: RecordBatch, first_seq: int) -> None:
        """A record with the key of a router's copy stands for that copy as long as it lives."""
        for router in dest.routers_in:
            # Else a search comes to it later.
            if router.is_exact and router.searched_seq >= first_seq - 1:
                router.note_keys(first_seq, batch.envelopes)

    def forget(self, topic: Topic) -> None:
        """The topic is gone, or has no routers any more."""
        self._ready.pop(topic, None)
        self._wake_waiting()

    def close(self) -> None:
        if self._background is not None:
            self._background.close()


def _upstream(dest: Topic) -> list[Router]:
    """Routers that can lead a record to this topic, those far away first."""
    found: dict[Router, None] = {}
    seen = {dest}
    layer = [dest]
    while layer:
        routers = [router for topic in layer for router in topic.routers_in]
        found.update(dict.fromkeys(routers))
        layer = []
        for router in routers:
            if router.source not in seen:
                seen.add(router.source)
                layer.append(router.source)
    return list(reversed(found))


def _note_searched(dest: Topic, first_seq: int, last_seq: int) -> None:
    """Copies of a router have no keys that matter: its own are behind its cursor."""
    for router in dest.routers_in:
        if router.searched_seq >= first_seq - 1:
            router.searched_seq = max(router.searched_seq, last_seq)


def _unlogged_copies(router: Router) -> control.Copies:
    """How far it is. The records end with the process, and so do their seqs."""
    return control.Copies(router.id, router.cursor, 0, router.forwarded_total)


def _cursor_note(dest: Topic, copies: control.Copies, ts: int) -> bytes:
    return wal_frame.encode_control(FrameType.NOTE, dest.id, ts, control.encode(control.Note(copies=copies)))


def _hop_runs(first_seq: int, hops: list[int]) -> list[tuple[int, int, int]]:
    runs = HopRuns()
    for seq, count in enumerate(hops, first_seq):
        runs.note(seq, count)
    return runs.within(first_seq, first_seq + len(hops))


def _bodies(dest: Topic, first_seq: int, last_seq: int) -> list[bytes]:
    """Live records of a range as WAL bodies, also those that a checkpoint has put into segments meanwhile."""
    bodies: list[bytes] = []
    while first_seq <= last_seq:
        found = dest.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=True)
        assert not isinstance(found, Fetch)
        form, slots = found
        for slot in slots:
            if isinstance(slot, bytes):
                bodies.append(wal_frame.append_body(slot, form, dest.id))
            elif slot is not None:
                raise CorruptRecord(dest.name, first_seq, slot.message)
            first_seq += 1
    return bodies


def _framed(dest: Topic, note: control.Note, bodies: list[bytes], evict: control.Evict | None, ts: int) -> bytes:
    """One write: the note, the copies as they rest in memory, the floor. Flags say where in it each frame stands."""
    is_last_note = not bodies and evict is None
    flags = FLAG_FIRST if is_last_note else FLAG_FIRST | FLAG_MORE
    parts = [wal_frame.encode_control(FrameType.NOTE, dest.id, ts, control.encode(note), flags=flags)]
    if bodies:
        last = bodies[-1]
        flagged = [wal_frame.with_flags(body, FLAG_MORE) for body in bodies]
        if evict is None:
            flagged[-1] = last
        parts.append(wal_frame.seal_bodies(flagged))
    if evict is not None:
        parts.append(wal_frame.encode_control(FrameType.EVICT, dest.id, ts, control.encode(evict), flags=0))
    return b"".join(parts)
