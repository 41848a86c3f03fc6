"""Forwarding: routers copy new records of their source to their dest.

A copy needs no frame where a start can make it again from the frames of the source: in a dest that one router feeds,
and that has had no other write since. Such copies are *derived*: they are published at once, and a start makes them
again by running the router once more from where its last frame or the last checkpoint left it
(`starting.router_recovery`). Everywhere else copies are logged like any write, after a note that says how far the
router is.

The repeated run must come to the same copies. So before something happens that it would not see at its place, the
derived copies made so far are logged after all (`writing.derived_copies`):

| Before | Because a repeated run |
|---|---|
| a direct write to dest, or a second router into it | would not know what came first |
| a delete in dest, a new config of dest | knows nothing of seqs that are not there yet |
| a lost range of the source | would still find the records that the router lost |
| a change or the removal of the router | would use the new definition for old records |
| a delete in the source, its removal | would not find the records any more |

Evictions by caps and age need nothing: a start runs routers again before it evicts.

Copies are always logged where it matters when, or whether, they were made:

| Which copies | Because | |---|---| | into a queue, a dest with a `ttl_ms`, or one that may be full (`reject` with a
cap) | a start has another time and other room | | into a dest with a cap that is a source itself | copies that the cap
evicted could not be copied on again | | from an `ephemeral` source | the source has no frames | | into an `fsync` dest
from a source of another class | a power loss would take them with the frames of the source | | of an `exactly_once`
router whose key a record of dest has or had | whether that record lives may change |

Records that the source lost before they were copied become a lost range of dest: records below the floor of the
source, and lost ranges of the source itself, whatever took them. A power loss leaves a range of seqs that may never
have had records; dest gets the whole range, like a reader of the source. The frame of the range has the cursor of the
router, so a start never passes over a lost range of a source by itself. In a cycle a lost range goes around as often as
a record.

An `ephemeral` dest logs nothing and is empty after a start: the records that its source had are not copied again. Only
if it may be full the log says how far its router is, because it may have to hold records back.

How often a record was copied (its *hops*) is not stored in the record, but in `RouterLinks.hops`, in the notes of
logged copies and in snapshots.

Owner only. `_copied` runs while a group completes: see `core`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from topics.engine.core import Core
from topics.engine.routers.catch_up import CatchUp
from topics.engine.routers.copying import Copies, EvidenceNotFetched, Room, note_slots, take_slots
from topics.engine.scheduler import ReadySet, effective_priority
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.hops import HopRuns
from topics.engine.topic.router import Router
from topics.engine.topic.topic import Topic
from topics.engine.writing.derived_copies import DerivedCopies, cursor_note, unlogged_cursor_note
from topics.engine.writing.write_path import WritePath
from topics.errors import ColdUnavailable, CorruptRecord, TopicsError
from topics.formats import control
from topics.limits import (
    FORWARD_BYTES_MAX,
    FORWARD_SLOTS_MAX,
    FORWARD_STEPS_PER_TURN_MAX,
    READ_BYTES_MAX,
    ROUTER_HOPS_MAX,
    SEARCH_SLOTS_MAX,
)
from topics.storage.background import Background

logger = logging.getLogger(__name__)


def _do_nothing() -> None:
    pass


def may_be_full(dest: Topic) -> bool:
    config = dest.config
    return config.discard == "reject" and bool(config.cap_records or config.cap_bytes)


def can_derive(dest: Topic) -> bool:
    """Whether copies in this dest may go without frames: see the tables above."""
    config = dest.config
    return (
        len(dest.links.routers_in) == 1
        and config.durability != "ephemeral"
        and config.type == "log"
        and not config.ttl_ms
        and not may_be_full(dest)
        and not (dest.links.routers_out and (config.cap_records or config.cap_bytes))
    )


class Forwarder:
    """Runs the routers of one engine."""

    def __init__(self, core: Core, write_path: WritePath, derived: DerivedCopies) -> None:
        self._core = core
        self._write_path = write_path
        self._derived = derived
        # Sources with records that a router can copy now.
        self._ready: ReadySet[Topic] = ReadySet(self._priority_of)
        # Source -> its routers that have not had their step in the present round over its routers.
        self._rounds: dict[Topic, deque[Router]] = {}
        # Routers with records that they cannot copy now. A tick tries them again.
        self._held_back: dict[Router, None] = {}
        self._turn_is_due = False
        # Callers that wait for copies, in the order in which they get the next ones.
        self._waiting: deque[CatchUp] = deque()
        # Source records that callers may still have copied before the next turn.
        self._slots_left = FORWARD_SLOTS_MAX
        self._background: Background | None = None
        write_path.tell_source_grew(self.note_source)

    # When.

    def note_source(self, source: Topic) -> None:
        """The source has new records. They are copied in a turn that comes after the answers of this turn."""
        self._ready.add(source, self._core.clock.monotonic_ms())
        self._take_turn()

    def _take_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._core.call_after_group(self._call_turn)

    def _call_turn(self) -> None:
        self._core.runtime.call_soon(self._turn)

    def hold_back(self, router: Router) -> None:
        """The router has records to copy, and cannot copy them now."""
        self._held_back[router] = None
        self._core.ticker.wake()

    @property
    def ready_depth(self) -> int:
        """Sources with records that a router can copy now."""
        return len(self._ready)

    @property
    def is_lowered(self) -> bool:
        return self._ready.is_lowered

    def lower(self, *, is_lowered: bool) -> None:
        """Puts every source one band lower, or back."""
        self._ready.lower(is_lowered=is_lowered)

    def tick(self) -> bool:
        """Runs the routers again that were held back. Returns whether it must be called again soon: not for routers
        that wait longer, because their source cannot be read."""
        now_ms = self._core.clock.monotonic_ms()
        for router in [router for router in self._held_back if router.retry_at_ms <= now_ms]:
            del self._held_back[router]
            self._ready.add(router.source, now_ms)
        self._serve()
        if len(self._ready) or self._slots_left <= 0:
            self._take_turn()
        return bool(self._waiting) or any(router.retry_at_ms <= now_ms for router in self._held_back)

    def _turn(self) -> None:
        self._serve()
        self._turn_is_due = False
        if len(self._ready) or self._slots_left <= 0:
            self._take_turn()

    def _serve(self) -> None:
        self._serve_ready()
        self._serve_waiting()

    def _serve_ready(self) -> None:
        """Makes a bounded number of steps, sources by their bands. Copies are new records of the next topic in a chain,
        whose turn may come in the same call."""
        now_ms = self._core.clock.monotonic_ms()
        steps, slots = FORWARD_STEPS_PER_TURN_MAX, FORWARD_SLOTS_MAX
        while steps > 0 and slots > 0 and (source := self._ready.pop(now_ms)) is not None:
            round_ = self._rounds.pop(source, None) or deque(source.links.routers_out)
            while round_ and steps > 0 and slots > 0:
                router = round_.popleft()
                if (
                    router.cursor < source.head_seq
                    and router in source.links.routers_out
                    and router not in self._held_back
                ):
                    examined = self._step(router)
                    if not examined and not router.is_fetching:
                        self.hold_back(router)
                    steps -= 1
                    slots -= examined
            if round_:
                self._rounds[source] = round_
            if round_ or any(self._can_go_on(router) for router in source.links.routers_out):
                self._ready.add(source, now_ms)

    def _can_go_on(self, router: Router) -> bool:
        return router.cursor < router.source.head_seq and not router.is_fetching and router not in self._held_back

    def _priority_of(self, source: Topic, waited_ms: int) -> int:
        return effective_priority(source.config, source.last_read_ts, self._core.now_ms(), waited_ms)

    # Callers that wait for copies.

    def bring_up_to_date(self, dest: Topic) -> bool:
        """Forwards what routers can copy into this topic now, through every topic upstream of it, or the first part of
        it: the owner has other things to do. Returns whether all copies are there.

        Copies that a full dest holds back do not count as missing.
        """
        return self._advance(CatchUp(dest, _do_nothing)) == "done"

    def when_up_to_date(self, dest: Topic, then: Callable[[], None]) -> bool:
        """`bring_up_to_date`. If copies are missing, calls `then` once: when the topic has the copies of all records
        that its sources have now, or when the engine stops."""
        catch_up = CatchUp(dest, then)
        if self._advance(catch_up) == "done":
            return True
        self._waiting.append(catch_up)
        self._core.ticker.wake()
        return False

    def copy_now(self, dest: Topic) -> None:
        """Forwards everything that routers can copy into this topic now. This may take long: a caller that can wait
        calls `when_up_to_date` before."""
        catch_up = CatchUp(dest, _do_nothing)
        while self._advance(catch_up) == "more":
            self._slots_left = FORWARD_SLOTS_MAX

    def end_waits(self) -> None:
        """The engine stops: calls that wait for copies go on, and are refused."""
        while self._waiting:
            self._core.call_after_group(self._waiting.popleft().then)

    def _serve_waiting(self) -> None:
        """Goes on with the copies that callers wait for. One turn copies a bounded number of records for all of them,
        and the next turn begins with the callers that got none."""
        self._slots_left = FORWARD_SLOTS_MAX
        for _ in range(len(self._waiting)):
            catch_up = self._waiting.popleft()
            if self._advance(catch_up) == "done":
                self._core.call_after_group(catch_up.then)
            else:
                self._waiting.append(catch_up)
            if self._slots_left <= 0:
                return

    def _wake_waiting(self) -> None:
        """It is worth trying again."""
        if self._waiting:
            self._take_turn()

    def _advance(self, catch_up: CatchUp) -> Literal["done", "more", "waits"]:
        """Makes copies for one caller. "more": the next turn can go on. "waits": something must end first that ends by
        itself."""
        while (router := catch_up.router) is not None:
            while router.cursor < catch_up.goal_seq and router in router.dest.links.routers_in:
                if self._slots_left <= 0:
                    self._take_turn()
                    return "more"
                if not self._step_of_caller(router):
                    break
            if router.has_steps:
                # Copies that need no sync are published when this returns.
                self._core.flush()
            if router.settled[0] < catch_up.goal_seq and (router.has_steps or self._is_held_up(router)):
                return "waits"
            catch_up.next_router()
        return "done"

    def _step_of_caller(self, router: Router) -> bool:
        """Whether the cursor moved."""
        slots = self._step(router)
        if self._slots_left == FORWARD_SLOTS_MAX:
            # The next turn may copy as much again.
            self._take_turn()
        self._slots_left -= slots
        return slots > 0

    def _is_held_up(self, router: Router) -> bool:
        """Whether the router has records to copy and waits for something that will end by itself."""
        return router.cursor < router.source.head_seq and (
            router.is_frozen
            or router.is_fetching
            or router.source.writes.is_changing
            or router.dest.writes.is_changing
            or router.is_searching
        )

    # One step of one router.

    def _step(self, router: Router) -> int:
        """How much it did, as a number of records: see `_copy`. A lost range counts as one. 0: the cursor did not
        move."""
        core, source, dest = self._core, router.source, router.dest
        if router.cursor >= source.head_seq or core.is_closed:
            return 0
        if router.is_frozen or router.is_fetching or source.writes.is_changing or dest.writes.is_changing:
            return 0
        if router.retry_at_ms and router.retry_at_ms > core.clock.monotonic_ms():
            return 0
        now_ms = core.now_ms()
        source.refresh(now_ms)
        dest.refresh(now_ms)
        try:
            lost_to = _lost_to(router)
            if lost_to > router.cursor:
                self._tell_lost(router, lost_to)
                return 1
            return self._copy(router) if router.is_searched or self._search(router) else 0
        except (ColdUnavailable, CorruptRecord) as error:
            # A file does not answer.
            self._note_failure(router, error)
            return 0
        except TopicsError as error:
            # Nothing was queued: the log takes nothing now. The next tick tries again.
            logger.debug('router "%s" waits: %s', router.name, error.message)
            return 0

    def _note_failure(self, router: Router, error: BaseException) -> None:
        """The router is held back, for longer after each failure. The first failure is in the log of the server."""
        router.note_failure(self._core.clock.monotonic_ms())
        level = logging.WARNING if router.failure_count == 1 else logging.DEBUG
        logger.log(level, 'router "%s" cannot read its source now, and tries again: %s', router.name, error)
        self.hold_back(router)

    def _search(self, router: Router) -> bool:
        """Looks through the records of dest for keys of copies to come; whether all of them were looked through.

        A bounded number of records: an `exactly_once` router into a large topic waits, and delays nothing else.
        """
        dest = router.dest
        router.pause_search(goes_on=False)
        last_seq = min(dest.head_seq, max(router.searched_seq, dest.live.first_live - 1) + SEARCH_SLOTS_MAX)
        while router.searched_seq < last_seq:
            first_seq = max(router.searched_seq + 1, dest.live.first_live)
            if first_seq > last_seq:
                router.note_searched(last_seq)
                break
            found = dest.job_slots(first_seq, last_seq, READ_BYTES_MAX, may_wait=router.take_fetched())
            if isinstance(found, Fetch):
                self._fetch(router, found)
                if router.is_fetched:
                    continue
                return False
            form, slots = found
            note_slots(router, form, first_seq, slots)
        if not router.is_searched:
            router.pause_search(goes_on=True)
            self.hold_back(router)
        return router.is_searched

    def _copy(self, router: Router) -> int:
        """How much it did: the number of records that it examined, and more for many bytes. 0: no record can be copied
        now."""
        copies = Copies(router.cursor)
        source = router.source
        last_seq = min(source.head_seq, router.cursor + FORWARD_SLOTS_MAX)
        if source.live.lost and (lost := source.live.lost.at_or_after(router.cursor + 1)) is not None:
            # A later step tells dest of these seqs.
            last_seq = min(last_seq, lost.first_seq - 1)
        room = self._room(router.dest)
        while copies.cursor < last_seq and not copies.is_stopped and copies.size_bytes < FORWARD_BYTES_MAX:
            first_seq = copies.cursor + 1
            found = source.job_slots(first_seq, last_seq, FORWARD_BYTES_MAX, may_wait=router.take_fetched())
            if isinstance(found, Fetch):
                self._fetch(router, found)
                if router.is_fetched:
                    continue
                break
            form, slots = found
            first_live = source.live.first_live
            live = [slot if seq >= first_live else None for seq, slot in enumerate(slots, first_seq)]
            try:
                take_slots(router, copies, form, first_seq, live, room)
            except EvidenceNotFetched as needed:
                self._fetch(router, needed.fetch)
                if not router.is_fetched:
                    break
        examined = copies.cursor - router.cursor
        if examined:
            self._put(router, copies)
        return examined + copies.size_bytes * FORWARD_SLOTS_MAX // FORWARD_BYTES_MAX

    def _room(self, dest: Topic) -> Room:
        config, live, writes = dest.config, dest.live, dest.writes
        count = size = None
        if config.discard == "reject":
            if config.cap_records:
                count = config.cap_records - live.count - writes.count_in_flight
            if config.cap_bytes:
                size = config.cap_bytes - live.size_bytes - writes.bytes_in_flight
        quota = self._core.settings.total_bytes_max
        if quota:
            left = quota - self._core.live_bytes.total
            size = left if size is None else min(size, left)
        return Room(count, size)

    def _put(self, router: Router, copies: Copies) -> None:
        """Publishes derived copies, or submits logged ones; then the cursor moves."""
        dest, count = router.dest, len(copies.envelopes)
        before = router.cursor, router.forwarded_total
        forwarded_total = router.forwarded_total + count + copies.suppressed
        if count:
            self._put_records(router, copies, forwarded_total)
        elif copies.suppressed and dest.config.durability != "ephemeral":
            self._note_passed_over(router, copies.cursor, forwarded_total)
        router.move(copies.cursor, forwarded_total)
        self._note_unlogged(router, before)

    def _put_records(self, router: Router, copies: Copies, forwarded_total: int) -> None:
        dest = router.dest
        # After a step that met evidence a start would not know what became of the evidence.
        is_derived = not copies.met_evidence and self._is_derived(router)
        if not is_derived:
            self._derived.log(dest)
        first_seq = dest.writes.next_seq
        last_seq = first_seq + len(copies.envelopes) - 1
        hops = _hop_runs(first_seq, copies.hops) if dest.links.routers_out else []
        note = control.Copies(router.id, copies.cursor, last_seq, forwarded_total, hops)
        router.begin_step()
        try:
            self._write_path.submit_copies(
                dest, copies.batch(), note, partial(self._copied, router, first_seq), is_derived=is_derived
            )
        except TopicsError:
            router.drop_step()
            raise
        _note_copies(dest, first_seq, last_seq)
        dest.links.note_hops(first_seq, copies.hops)
        if is_derived:
            dest.links.note_derived(router, first_seq, last_seq)

    def _note_passed_over(self, router: Router, cursor: int, forwarded_total: int) -> None:
        """Logs that the router has passed over records that a start might not pass over. Until that is committed
        nothing is derived."""
        dest = router.dest
        self._derived.log(dest)
        first_seq = dest.writes.next_seq
        copies = control.Copies(router.id, cursor, first_seq - 1, forwarded_total)
        router.begin_step()
        try:
            self._core.log(
                dest,
                cursor_note(dest, copies, self._core.now_ms()),
                partial(self._copied, router, first_seq),
                # The seqs of later derived copies depend on this note.
                durable=dest.config.durability == "fsync",
            )
        except TopicsError:
            router.drop_step()
            raise

    def _note_unlogged(self, router: Router, before: tuple[int, int]) -> None:
        """Logs how far the router is, where that is all that a start can know of an ephemeral dest."""
        dest = router.dest
        if dest.config.durability != "ephemeral" or not may_be_full(dest):
            return
        note = unlogged_cursor_note(router, self._core.now_ms())
        try:
            self._core.log(dest, note, partial(self._cursor_noted, router), durable=False)
        except TopicsError as error:
            logger.debug('router "%s": what it copied may be copied again after a start: %s', router.name, error)
            return
        router.begin_note(before)

    def _cursor_noted(self, router: Router, _error: TopicsError | None) -> None:
        """Readers of dest wait for the note: a record that was read must not be copied again."""
        router.end_note()
        self._wake_waiting()

    def _is_derived(self, router: Router) -> bool:
        source, dest = router.source, router.dest
        unlogged_last_seq = source.live.unlogged_last_seq
        return (
            can_derive(dest)
            and source.config.durability != "ephemeral"
            and (dest.config.durability != "fsync" or source.config.durability == "fsync")
            and not dest.writes.in_flight
            and not router.has_steps
            and not (source.links.must_log_copies or dest.links.must_log_copies)
            # Records that the source got while it was ephemeral have no frames until a checkpoint has put them away.
            and (router.cursor >= unlogged_last_seq or source.live.checkpointed_seq >= unlogged_last_seq)
        )

    def _copied(self, router: Router, first_seq: int, error: TopicsError | None) -> None:
        router.end_step(error)
        if error is not None:
            if router.dest.links.hops is not None:
                router.dest.links.hops.forget_from(first_seq)
            self.hold_back(router)
        self._wake_waiting()

    def _tell_lost(self, router: Router, lost_to: int) -> None:
        """A lost range in dest for the records up to `lost_to` that the source lost before they were copied, or for the
        first of them that have the same hops."""
        dest, hops_of = router.dest, router.source.links.hops
        before = router.cursor, router.forwarded_total
        hops = hops_of.of(router.cursor + 1) if hops_of is not None else 0
        cursor = hops_of.same_to(router.cursor + 1, lost_to) if hops_of is not None else lost_to
        forwarded_total = router.forwarded_total
        if hops < ROUTER_HOPS_MAX:
            forwarded_total += cursor - router.cursor
            self._put_holes(router, cursor, forwarded_total, hops + 1)
        elif dest.config.durability != "ephemeral":
            self._note_passed_over(router, cursor, forwarded_total)
        router.move(cursor, forwarded_total)
        self._note_unlogged(router, before)

    def _put_holes(self, router: Router, cursor: int, forwarded_total: int, hops: int) -> None:
        """The copies made before are logged first: a start could not make them again at their place."""
        dest = router.dest
        self._derived.log(dest)
        first_seq = dest.writes.next_seq
        last_seq = first_seq + cursor - router.cursor - 1
        noted_hops = hops if dest.links.routers_out else 0
        lost = control.Lost(first_seq, last_seq, router.id, router.cursor, cursor, forwarded_total, noted_hops)
        router.begin_step()
        try:
            self._write_path.submit_holes(dest, lost, partial(self._copied, router, first_seq))
        except TopicsError:
            router.drop_step()
            raise
        _note_copies(dest, first_seq, last_seq)
        dest.links.note_hops_of_holes(first_seq, last_seq, hops)

    def _fetch(self, router: Router, fetch: Fetch) -> None:
        """Brings the next records of the source into memory: the owner waits for no disk."""
        router.begin_fetch()
        if fetch.is_cold:
            self._core.cold_pool.run(router.source.id, fetch, partial(self._fetched, router))
            return
        if self._background is None:
            self._background = self._core.runtime.background("forward")
        self._background.run(fetch, partial(self._fetched, router))

    def _fetched(self, router: Router, result: object) -> None:
        router.end_fetch(is_fetched=not isinstance(result, BaseException))
        if isinstance(result, BaseException):
            self._note_failure(router, result)
        else:
            self.note_source(router.source)
        self._wake_waiting()

    # Topics and the end.

    def forget(self, topic: Topic) -> None:
        """The topic is gone, or has no routers any more."""
        self._ready.discard(topic)
        self._rounds.pop(topic, None)
        self._wake_waiting()

    def close(self) -> None:
        if self._background is not None:
            self._background.close()


def _lost_to(router: Router) -> int:
    """The last seq of the records that the source has lost and that come next for the router; its cursor if the next
    record is not lost. Lost are records below the source's evict floor, and records in its lost ranges."""
    live, cursor = router.source.live, router.cursor
    if cursor + 1 < live.evict_floor:
        return live.evict_floor - 1
    lost = live.lost.at_or_after(cursor + 1) if live.lost else None
    return lost.last_seq if lost is not None and lost.first_seq <= cursor + 1 else cursor


def _note_copies(dest: Topic, first_seq: int, last_seq: int) -> None:
    for router in dest.links.routers_in:
        router.note_copies(first_seq, last_seq)


def _hop_runs(first_seq: int, hops: list[int]) -> list[tuple[int, int, int]]:
    runs = HopRuns()
    for seq, count in enumerate(hops, first_seq):
        runs.note(seq, count)
    return runs.within(first_seq, first_seq + len(hops))
