"""A small engine whose old segments are in a cold tier that fails when the test says so.

All calls of the tier come from another thread than the test's: the tier notes calls of the owner, and there must be
none.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tests.engine.small_log import ROOT, SmallLog, small_settings
from tests.storage.tiers.slow_store import SlowStore
from topics.engine.runtime import InlineRuntime
from topics.engine.starting.recovery import open_engine
from topics.engine.writing.intake import batch_of_records
from topics.formats.records import Record
from topics.formats.snapshot import SegmentState
from topics.results import NewRecord, Tombstone
from topics.storage.background import Background, InlineBackground
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.cold_pool import ColdPool
from topics.storage.fs import Fs
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.store import SegmentStore
from topics.testing.clock import ManualClock

T = TypeVar("T")


def elsewhere(work: Callable[[], T]) -> T:
    """Runs work on another thread and waits for it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class _Elsewhere(InlineBackground):
    """Work runs inside the call that hands it over, on another thread."""

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        super().run(lambda: elsewhere(work), done)


class ColdRuntime(InlineRuntime):
    """Background work runs on other threads. While it `holds`, results of the cold pool wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = False
        self._held: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._ended: list[tuple[Any, Callable[[Any], None]]] = []
        self._inline = _Elsewhere()

    def background(self, name: str) -> Background:
        return _Elsewhere()

    def cold_pool(self, call_ms_max: int) -> ColdPool:
        return self

    def run(self, line: int, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        if self.holds:
            self._held.append((work, done))
        else:
            self._inline.run(work, done)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def begin_held(self) -> None:
        """The held work runs. Its results wait on."""
        held, self._held = self._held, []
        for work, done in held:
            result: Any
            try:
                result = elsewhere(work)
            except Exception as error:  # noqa: BLE001 - the owner decides what an error means
                result = error
            self._ended.append((result, done))

    def end_held(self) -> None:
        """The owner gets the results."""
        ended, self._ended = self._ended, []
        for result, done in ended:
            done(result)

    def close(self) -> None:
        self._held.clear()


class ColdLog(SmallLog):
    """Segments of 5 records. `settle` moves all but the newest sealed one to the cold tier."""

    def __init__(self, fs: Fs, *, clock: ManualClock | None = None, is_down: bool = False, **settings: Any) -> None:
        self.fs = fs
        self.clock = clock or ManualClock()
        self.runtime = ColdRuntime()
        self.first_ms = self.clock.now_ms()
        self.tier: SlowStore
        self._is_down = is_down
        self.opened = open_engine(
            fs,
            ROOT,
            settings=small_settings(cold_dir="/cold", hot_retain_segments=1, **settings),
            clock=self.clock,
            runtime=self.runtime,
            runner=InlineRunner(fs),
            open_tier=self._open_tier,
        )
        self.engine = self.opened.engine
        self.checkpointer = self.opened.checkpointer
        self.report = self.opened.report
        self.tier.owner = threading.get_ident()
        self.engine.flush()

    def _open_tier(self, address: str, fs: Fs) -> SegmentStore:
        self.tier = SlowStore(open_store(address, fs))
        if self._is_down:
            self.tier.fail_after(0)
        return self.tier

    def make(self, count: int, **config: Any) -> None:
        """Records of growing size, 100 ms apart, with the tags t0, t1 and t2 in turn."""
        self.create(durability="fsync", **config)
        for number in range(1, count + 1):
            self.write(number)
            self.clock.advance(100)
        self.settle()
        assert len(self.cold_states()) == count // 5 - 1

    def cold_states(self) -> list[SegmentState]:
        return [state for state in self.topic().live.segments.segments if state.tier == "cold"]

    def read(self, name: str = "a", from_seq: int = 0) -> tuple[list[Record], list[Tombstone]]:
        """The test itself waits for the tier here."""
        self.tier.owner = None
        try:
            return super().read(name, from_seq)
        finally:
            self.tier.owner = threading.get_ident()

    def size_of(self, number: int) -> int:
        return 4 + number

    def write(self, number: int, name: str = "a") -> None:
        """A record of `size_of(number)` bytes."""
        answers: list[Any] = []
        data = b'"%b"' % (b"x" * (self.size_of(number) - 2))
        self.engine.append(name, batch_of_records([NewRecord(data, tag=f"t{number % 3}")]), answers.append)
        self.engine.flush()
        assert len(answers) == 1

    def settle(self) -> None:
        """Takes checkpoints. Between two of them all segments that are old enough are moved."""
        for _ in range(3):
            self.checkpoint()
            self.opened.relocator.tick()
            before = -1
            while before != self.opened.relocator.moved_total:
                before = self.opened.relocator.moved_total
                self.opened.relocator.tick()
            for topic in self.engine.topics.values():
                topic.checkpoint.mark_changed()
        assert self.tier.calls_of_owner == []
