"""A world for sweeps: a fake disk, an engine on it that does everything inline, and a model of both.

`World` notes every operation in the model before the engine gets it. After a crash `recover` opens the directory again
and compares the records that it finds with the model: see `check`. A world can be forked at any point, so that one run
up to a crash point serves all damage modes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.model import History, ModelTopic, Op
from tests.engine.offers import purged
from topics.engine.checkpointing.replacement import ReplacedSegment
from topics.engine.config import TopicConfig
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.topic.appended import Appended
from topics.engine.topic.topic import Topic
from topics.engine.writing.deletion import Deleted
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicsError
from topics.formats.records import Record
from topics.results import NewRecord, Tombstone
from topics.storage.checkpoints.runner import InlineRunner
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/data"
LOCK: Final = f"{ROOT}/.topics.lock"
SETTINGS: Final = EngineSettings(
    wal_shards=1, wal_file_bytes=16 * 1024, segment_events_max=6, tail_cache_bytes=600, segment_bytes_max=4096
)

# None is a kill: the process dies, and the page cache stays.
Blow = Damage | None
BLOWS: Final[tuple[Blow, ...]] = (*Damage, None)


class Broken(AssertionError):
    """The log differs from the model."""


@dataclass
class World:
    settings: EngineSettings = SETTINGS
    disk: FakeDisk = field(default_factory=FakeDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    histories: dict[str, History] = field(default_factory=dict)
    counter: int = 0
    # Error codes of refused operations, in order.
    refusals: list[str] = field(default_factory=list)
    # Whether the power was lost since the last completed start.
    power_lost: bool = False
    opened: OpenEngine | None = None
    # Answers to offers that replace segments.
    replaced: list[ReplacedSegment | Exception] = field(default_factory=list)
    # Called with the file system of each new process, to arm faults.
    arm: Callable[[FaultFs], None] | None = None
    faults: FaultFs = field(init=False)
    monitor: MonitorFs = field(init=False)

    def __post_init__(self) -> None:
        self._watch()

    def _watch(self) -> None:
        self.faults = FaultFs(self.disk)
        self.monitor = MonitorFs(self.faults)

    def fork(self) -> World:
        clock = ManualClock(self.clock.now_ms(), self.clock.monotonic_ms())
        histories = {name: history.copy() for name, history in self.histories.items()}
        return World(self.settings, self.disk.clone(), clock, histories, self.counter, power_lost=self.power_lost)

    @property
    def engine(self) -> Any:
        assert self.opened is not None
        return self.opened.engine

    # Starts and ends.

    def open(self) -> OpenEngine:
        """A new process: it does not know which files the last process did not sync."""
        self._watch()
        if self.arm is not None:
            self.arm(self.faults)
        self.opened = open_engine(
            self.monitor,
            ROOT,
            settings=self.settings,
            clock=self.clock,
            runtime=InlineRuntime(),
            runner=InlineRunner(self.monitor),
        )
        if not self._boot_is_noted():
            self.power_lost = True
        # What the start asks of the cold tier comes now.
        self.opened.engine.flush()
        return self.opened

    def _boot_is_noted(self) -> bool:
        """On a full disk the boot id may not be written. Then the next start must expect a power loss."""
        return self.disk.boot_id().encode() in self.disk.read(LOCK)

    def crash(self, blow: Blow, seed: int = 0) -> None:
        self.opened = None
        self.disk.on_operation = None
        self.crash_with(blow, seed)

    def crash_with(self, blow: Blow, seed: int = 0) -> None:
        if blow is None:
            self.disk.kill()
        else:
            self.power_lost = True
            self.disk.crash(blow, seed)

    def recover(self) -> None:
        """Opens the directory and compares it with the model. The state that it finds must stay from then on."""
        self.open()
        self.settle()

    def kill(self) -> None:
        self.crash_with(None)

    def close(self) -> None:
        assert self.opened is not None
        outcome: list[Exception | None] = []
        self.opened.close(outcome.append)
        if outcome == [None]:
            self._all_synced()
        self.opened.release()
        self.opened = None

    def use_shards(self, count: int) -> None:
        """The new settings hold from the next start on."""
        self.settings = dataclasses.replace(self.settings, wal_shards=count)

    # Operations. Each is noted in the model, then the engine is called.

    def history(self, name: str) -> History:
        return self.histories.setdefault(name, History())

    def _note(self, name: str, op: Op) -> Op:
        self.history(name).ops.append(op)
        return op

    def _retract(self, name: str, op: Op) -> None:
        """The engine refused the operation at once, or because the disk is full: the model forgets it."""
        self.history(name).ops.remove(op)

    def _answer(self, name: str, op: Op) -> Callable[[Any], None]:
        def done(result: Any) -> None:
            if isinstance(result, TopicsError):
                self._refused(name, op, result)
                return
            if op.kind == "drop" and result is False:
                # This process knows no such topic.
                self._retract(name, op)
                return
            op.fate = "acked"
            if isinstance(result, Appended):
                op.first_seq = result.first_seq
            if isinstance(result, Deleted):
                op.deleted = result.deleted
            self._check_answer(name, op, result)

        return done

    def _refused(self, name: str, op: Op, error: TopicsError) -> None:
        self.refusals.append(error.code)
        if error.code == "wal_failed":
            op.fate = "failed"
        else:
            self._retract(name, op)

    def _check_answer(self, name: str, op: Op, result: Any) -> None:
        """Compares each answer with the model when it arrives."""
        if op.kind == "append":
            state = self.history(name).latest()
            assert isinstance(result, Appended)
            expect(result.last_seq, state.head_seq, f"last_seq answered by {name}")
            expect(result.ts, op.ts, f"ts answered by {name}")
        if op.promised and name in self.engine.topics:
            self.monitor.require_synced(f"{self.engine.topics[name].shard.directory}/wal-0")

    def _durability(self, name: str) -> str:
        return self.engine.topics[name].config.durability if name in self.engine.topics else "disk"

    def put(self, name: str, *, flush: bool = True, **members: Any) -> None:
        config = TopicConfig(**members)
        kind = "config" if name in self.engine.topics else "create"
        op = self._note(name, Op(kind, self.clock.now_ms(), promised=True, config=config))  # type: ignore[arg-type]
        self._call(name, op, lambda: self.engine.put_topic(name, config, self._answer(name, op)), flush=flush)

    def drop(self, name: str) -> None:
        op = self._note(name, Op("drop", self.clock.now_ms(), promised=True))
        self._call(name, op, lambda: self.engine.delete_topic(name, if_empty=False, done=self._answer(name, op)))

    def append(self, name: str, count: int = 1, *, key: str | None = None, size: int = 10, flush: bool = True) -> Op:
        records = [self._record(size) for _ in range(count)]
        op = Op("append", self.clock.now_ms(), promised=self._durability(name) == "fsync", records=records, key=key)
        batch = batch_of_records(NewRecord(data, tag, node, meta) for node, tag, data, meta in records)
        self._note(name, op)
        self._call(
            name,
            op,
            lambda: self.engine.append(name, batch, self._answer(name, op), key=key, create=False),
            flush=flush,
        )
        return op

    def _record(self, size: int) -> tuple[str | None, str | None, bytes, bytes | None]:
        self.counter += 1
        number = self.counter
        node = f"n{number % 3}" if number % 4 == 0 else None
        tag = f"t{number % 3}.{number % 2}" if number % 3 else None
        meta = b'{"m":%d}' % number if number % 5 == 0 else None
        return node, tag, b'{"i":%d,"x":"%s"}' % (number, b"x" * size), meta

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        tag: str | None = None,
        tag_prefix: str | None = None,
        flush: bool = True,
    ) -> None:
        if name not in self.engine.topics:
            return
        op = Op(
            "delete",
            self.clock.now_ms(),
            promised=self._durability(name) == "fsync",
            bound=self.engine.topics[name].head_seq + 1,
            before_seq=before_seq,
            tag=tag,
            tag_prefix=tag_prefix,
        )
        self._note(name, op)
        self._call(
            name,
            op,
            lambda: self.engine.delete_records(
                name, self._answer(name, op), before_seq=before_seq, tag=tag, tag_prefix=tag_prefix
            ),
            flush=flush,
        )

    def _call(self, name: str, op: Op, call: Callable[[], None], *, flush: bool = True) -> None:
        try:
            call()
        except TopicsError as error:
            self._refused(name, op, error)
            return
        if flush:
            self.engine.flush()

    def flush(self) -> None:
        self.engine.flush()

    def checkpoint(self) -> Exception | None:
        assert self.opened is not None
        outcome: list[Exception | None] = []
        self.opened.checkpointer.start(outcome.append)
        assert len(outcome) == 1, "an inline checkpoint is done when it returns"
        if outcome[0] is None:
            self._all_synced()
        return outcome[0]

    def relocate(self) -> None:
        """Moves all segments that are old enough to the cold tier."""
        assert self.opened is not None
        moved = -1
        while moved != self.opened.relocator.moved_total:
            moved = self.opened.relocator.moved_total
            self.opened.relocator.tick()

    def purge(self, name: str) -> None:
        """Offers every sealed segment of a topic without its deleted records."""
        assert self.opened is not None
        topic = self.engine.topics.get(name)
        if topic is None:
            return
        for state in list(topic.live.segments.segments):
            if state.sealed and state.tier == "hot" and state.digest:
                offer = purged(self.disk, ROOT, topic, state)
                self.opened.replacer.replace(offer, self.replaced.append)

    def tick(self, ms: int = 100) -> None:
        """Time passes, and the background sync runs. Writes that were answered before it are durable after it."""
        self.clock.advance(ms)
        self.engine.wal.tick()
        if self.engine.wal.failure() is None:
            self._all_synced()

    def _all_synced(self) -> None:
        for history in self.histories.values():
            for op in history.ops:
                if op.fate == "acked":
                    op.synced = True

    # Comparing the engine with the model.

    def settle(self) -> None:
        """After a start each topic must have one of its possible states. The model goes on from that state."""
        now_ms = self.clock.now_ms()
        for name in self.engine.topics:
            if name not in self.histories:
                raise Broken(f"topic {name} was never made")
        for name, history in self.histories.items():
            history.base = self._settled(name, history, now_ms)
            history.ops = []
        self.power_lost = not self._boot_is_noted()
        assert not self.monitor.violations, self.monitor.violations

    def _settled(self, name: str, history: History, now_ms: int) -> ModelTopic:
        topic = self.engine.topics.get(name)
        shown = None if topic is None else shown_by(self.engine, topic, paged=True)
        required = history.required(power_lost=self.power_lost)
        answered_seq = history.answered_seq()
        reserved = history.reserves()
        state = history.base.copy()
        misses: list[str] = []
        for place in range(len(history.ops) + 1):
            if place:
                state.apply(history.ops[place - 1])
            if place < required:
                continue
            candidate = state.copy()
            candidate.reserved |= reserved
            miss = self._miss(candidate, topic, shown, answered_seq, now_ms)
            if miss is None:
                candidate.answered_seq = answered_seq if candidate.exists and place >= 0 else 0
                return candidate
            misses.append(f"after {place} of {len(history.ops)} operations: {miss}")
        raise Broken(f"topic {name} is none of the states it may have:\n  " + "\n  ".join(misses))

    def _miss(
        self, state: ModelTopic, topic: Topic | None, shown: Shown | None, answered_seq: int, now_ms: int
    ) -> str | None:
        """The first difference between the topic of the engine and the state; None when they agree. Applies the restart
        to the state."""
        if topic is None or shown is None:
            return "it is gone" if state.exists else None
        if not state.exists:
            return "it is there"
        if topic.config.durability == "ephemeral" == state.config.durability:
            state.records, state.keys, state.head_seq = {}, {}, topic.head_seq
            state.lost = topic.live.lost.pairs()
            state.cap_floor = topic.live.cap_floor
        elif topic.head_seq != state.head_seq and not (
            topic.head_seq > state.head_seq and self.power_lost and state.reserved
        ):
            return f"head is {topic.head_seq}, not {state.head_seq}"
        if state.config.durability in ("disk", "fsync") and topic.head_seq < answered_seq:
            return f"head is {topic.head_seq}, and {answered_seq} was answered"
        state.restart(now_ms, topic.head_seq)
        return shown.differs(state)

    def check(self) -> None:
        """While the engine runs, every topic has exactly the state that was answered."""
        assert not self.monitor.violations, self.monitor.violations
        names = {name for name, history in self.histories.items() if history.latest().exists}
        expect(set(self.engine.topics), names, "topics")
        for name in names:
            state = self.histories[name].latest()
            state.restart(self.clock.now_ms(), state.head_seq)
            miss = shown_by(self.engine, self.engine.topics[name]).differs(state)
            if miss is not None:
                raise Broken(f"topic {name}: {miss}")

    def dump(self) -> dict[str, Any]:
        """Everything that a start produces, in a form that can be compared."""
        return {name: shown_by(self.engine, topic) for name, topic in sorted(self.engine.topics.items())}

    def check_second_recovery(self) -> None:
        """The process is killed right after a start. The second start finds the same and changes no byte."""
        before, files = self.dump(), _files(self.disk)
        self.crash(None)
        self.open()
        expect(self.dump(), before, "the state after a second recovery")
        after = _files(self.disk)
        changed = [path for path in before_and_after(files, after) if files.get(path) != after.get(path)]
        expect(changed, [], "files changed by a second recovery")

    def write_more(self) -> None:
        """Some operations of every kind. All are answered."""
        for name, topic in list(self.engine.topics.items()):
            self.append(name, 2)
            self.append(name, 1, key=f"k{self.counter}")
            if topic.config.durability != "ephemeral":
                self.delete(name, tag="t1.1")
        self.check()


def before_and_after(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return sorted(before.keys() | after.keys())


def _files(disk: FakeDisk) -> dict[str, bytes]:
    return {path: content for path, content in disk.files().items() if path != LOCK}


@dataclass
class Shown:
    """Everything that a user can see of a topic."""

    config: TopicConfig
    head_seq: int
    count: int
    size_bytes: int
    evict_floor: int
    earliest_seq: int
    records: dict[int, Record]
    tombstones: list[tuple[int, int, str]]
    keys: dict[str, tuple[int, int, int]]
    lost: list[tuple[int, int]]
    epoch: int

    def differs(self, state: ModelTopic) -> str | None:
        """The first difference from the state."""
        if state.expires and state.evict_floor < self.evict_floor <= state.earliest_seq:
            # Dead slots have times too.
            state.ttl_floor = self.evict_floor - 1
        expected: dict[str, Any] = {
            "config": state.config,
            "head_seq": state.head_seq,
            "records": state.records,
            "count": len(state.records),
            "size_bytes": state.size_bytes,
            "evict_floor": state.evict_floor,
            "earliest_seq": state.earliest_seq,
            "keys": state.keys,
            "lost": state.lost,
        }
        for name, value in expected.items():
            found = getattr(self, name)
            if found != value:
                return f"{name}: {describe(name, found, value)}"
        return self._tombstones_differ(state)

    def _tombstones_differ(self, state: ModelTopic) -> str | None:
        lost = [(first, last) for first, last, reason in self.tombstones if reason == "power_loss"]
        expected = [(max(first, state.evict_floor), last) for first, last in state.lost]
        if lost != expected:
            return f"power_loss tombstones {lost}, not {expected}"
        evicted = [(first, last) for first, last, reason in self.tombstones if reason != "power_loss"]
        if evicted != ([(1, state.evict_floor - 1)] if state.evict_floor > 1 else []):
            return f"tombstones {evicted} for an evict floor of {state.evict_floor}"
        return None


def describe(name: str, found: Any, expected: Any) -> str:
    if name == "records":
        missing = sorted(expected.keys() - found.keys())
        extra = sorted(found.keys() - expected.keys())
        wrong = [seq for seq in found.keys() & expected.keys() if found[seq] != expected[seq]]
        return f"missing {missing}, not expected {extra}, different {wrong}"
    return f"{found}, not {expected}"


PAGES: Final = ((3, 10_000), (1000, 100))


def shown_by(engine: Any, topic: Topic, *, paged: bool = False) -> Shown:
    """Reads all records in pages of several sizes. All sizes must give the same records."""
    records, tombstones = read_all(engine, topic.name, limit=1000)
    for limit, bytes_max in PAGES if paged else ():
        again, tombstones_again = read_all(engine, topic.name, limit=limit, bytes_max=bytes_max)
        expect(again, records, f"records of {topic.name} by pages of {limit} records and {bytes_max} bytes")
        expect(tombstones_again, tombstones, f"tombstones of {topic.name} by pages of {limit}")
    return Shown(
        topic.config,
        topic.head_seq,
        topic.count,
        topic.size_bytes,
        topic.live.evict_floor,
        topic.earliest_seq,
        records,
        tombstones,
        {state.key: (state.ts, state.first_seq, state.count) for state in topic.keys},
        topic.live.lost.pairs(),
        topic.epoch,
    )


def read_all(
    engine: Any, name: str, *, limit: int, bytes_max: int = 1_000_000
) -> tuple[dict[int, Record], list[tuple[int, int, str]]]:
    records: dict[int, Record] = {}
    tombstones: list[tuple[int, int, str]] = []
    cursor = 0
    while True:
        fetch = engine.fetch_needed(name, cursor, limit, bytes_max)
        if fetch is not None and fetch.is_cold:
            fetch()
        page = engine.read(name, cursor, limit=limit, bytes_max=bytes_max)
        if isinstance(page.tombstone, Tombstone):
            tombstone = page.tombstone
            expect(tombstone.gap_from, cursor + 1, "the first seq of a tombstone")
            tombstones.append((tombstone.gap_from, tombstone.gap_to, tombstone.reason))
        for record in page.records:
            if record.seq <= max(records, default=cursor):
                raise Broken(f"{name}: seq {record.seq} after {max(records, default=cursor)}")
            records[record.seq] = record
        if page.caught_up:
            return records, tombstones
        if page.next_from_seq <= cursor:
            raise Broken(f"{name}: a read at {cursor} goes nowhere")
        cursor = page.next_from_seq


def expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise Broken(f"{what}: {found}, not {expected}")
