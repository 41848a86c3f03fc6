"""Drives an engine on a fake disk, one step at a time, on the caller. Shared by the tests of this folder."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.runtime import InlineRuntime, Turn
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.topic.appended import Appended
from topics.engine.topic.reading import Page
from topics.engine.topic.topic import Topic
from topics.engine.writing.deletion import Deleted
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicsError
from topics.formats.records import RecordBatch
from topics.results import NewRecord
from topics.storage.background import Background
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import Fs
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk

T = TypeVar("T")

ROOT = "/data"
SMALL = EngineSettings(
    wal_shards=2, wal_file_bytes=64 * 1024, segment_events_max=7, segment_age_ms_max=0, tail_cache_bytes=0
)


class SteppedBackground:
    """Background work that runs when the test calls `step`, so that other calls can happen before it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._run_turn: Turn = _run

    def use_turns(self, run_turn: Turn) -> None:
        self._run_turn = run_turn

    def run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        def task() -> None:
            result: T | BaseException
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the owner decides what an error means
                result = error
            done(result)

        self._waiting.append(task)

    def defer(self, call: Callable[[], None]) -> None:
        call()

    def step(self) -> bool:
        """Runs the oldest waiting work. False when no work waits."""
        if not self._waiting:
            return False
        self._run_turn(self._waiting.popleft())
        return True

    def close(self) -> None:
        while self.step():
            pass


class SteppedRuntime(InlineRuntime):
    """Runs everything on the caller, and the steps of a checkpoint when the test asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = SteppedBackground()

    def use_turns(self, run_turn: Turn) -> None:
        super().use_turns(run_turn)
        self.checkpoints.use_turns(run_turn)

    def background(self, name: str) -> Background:
        return self.checkpoints if name == "checkpoint" else super().background(name)


class Driver:
    """One data directory that is opened many times. Each call flushes, waits for its answer and raises errors."""

    def __init__(
        self, settings: EngineSettings = SMALL, *, disk: FakeDisk | None = None, fs: Fs | None = None, root: str = ROOT
    ) -> None:
        self.settings = settings
        self.root = root
        self.disk = disk or FakeDisk()
        self.fs: Fs = fs or self.disk
        self.clock = ManualClock()
        self.opened: OpenEngine = self._open()

    def _open(self) -> OpenEngine:
        self.runtime = SteppedRuntime()
        return open_engine(
            self.fs,
            self.root,
            settings=self.settings,
            clock=self.clock,
            runtime=self.runtime,
            runner=InlineRunner(self.fs),
        )

    # Ends and starts.

    def reopen(self, settings: EngineSettings | None = None) -> None:
        """A clean stop and a start."""
        outcome: list[object] = []
        self.opened.close(outcome.append)
        self.finish_checkpoints()
        assert outcome == [None]
        self.opened.release()
        self.settings = settings or self.settings
        self.opened = self._open()

    def kill(self, settings: EngineSettings | None = None) -> None:
        """The process dies and another one starts."""
        self.disk.kill()
        self.settings = settings or self.settings
        self.opened = self._open()

    def lose_power(self, damage: Damage = Damage.DROP, seed: int = 0, settings: EngineSettings | None = None) -> None:
        self.disk.crash(damage, seed)
        self.settings = settings or self.settings
        self.opened = self._open()

    # Calls.

    def topic(self, name: str = "t") -> Topic:
        return self.opened.engine.topic(name)

    def start_append(
        self, batch: RecordBatch | list[Any], *, topic: str = "t", key: str | None = None, create: bool | None = None
    ) -> list[Any]:
        """Begins a write without flushing; the list gets its answer."""
        answers: list[Any] = []
        if not isinstance(batch, RecordBatch):
            batch = records(*batch)
        self.opened.engine.append(topic, batch, answers.append, key=key, create=create)
        return answers

    def append(self, *payloads: Any, topic: str = "t", key: str | None = None, create: bool | None = None) -> Appended:
        answered: Appended = self.answer(self.start_append(list(payloads), topic=topic, key=key, create=create))
        return answered

    def answer(self, answers: list[Any]) -> Any:
        self.opened.engine.flush()
        assert len(answers) == 1, "one answer, and not before the flush is done"
        if isinstance(answers[0], TopicsError):
            raise answers[0]
        return answers[0]

    def take_turns(self) -> int:
        """The turns that follow by themselves, until none is asked for. Returns how many there were."""
        turns = 0
        while self.runtime.take_turn():
            self.opened.engine.flush()
            turns += 1
        return turns

    def put(self, topic: str = "t", **members: Any) -> bool:
        answers: list[Any] = []
        self.opened.engine.put_topic(topic, TopicConfig(**members), answers.append)
        created: bool = self.answer(answers)
        return created

    def drop(self, topic: str = "t", *, if_empty: bool = False) -> bool:
        answers: list[Any] = []
        self.opened.engine.delete_topic(topic, if_empty=if_empty, done=answers.append)
        deleted: bool = self.answer(answers)
        return deleted

    def delete(self, topic: str = "t", **selector: Any) -> Deleted:
        answers: list[Any] = []
        self.opened.engine.delete_records(topic, answers.append, **selector)
        deleted: Deleted = self.answer(answers)
        return deleted

    def checkpoint(self) -> None:
        outcome: list[object] = []
        self.opened.checkpointer.start(outcome.append)
        self.finish_checkpoints()
        assert outcome == [None]

    def step_checkpoint(self) -> bool:
        """The next work of a checkpoint, or the next turn while it runs. False when nothing is left to do."""
        if self.runtime.checkpoints.step():
            return True
        if not self.opened.checkpointer.is_running or not self.runtime.take_turn():
            return False
        self.opened.engine.flush()
        return True

    def finish_checkpoints(self) -> None:
        while self.step_checkpoint():
            pass

    def read(self, from_seq: int = 0, *, topic: str = "t", **bounds: Any) -> Page:
        while not self.opened.engine.bring_up_to_date(topic) and self.runtime.take_turn():
            self.opened.engine.flush()
        return self.opened.engine.read(topic, from_seq, **bounds)

    def seqs(self, from_seq: int = 0, *, topic: str = "t", limit: int = 3) -> list[int]:
        """Seqs of every record above the cursor, read page by page."""
        found: list[int] = []
        while True:
            page = self.read(from_seq, topic=topic, limit=limit)
            found += [record.seq for record in page.records]
            assert page.next_from_seq > from_seq or page.caught_up, "a page that is not the last one moves the cursor"
            from_seq = page.next_from_seq
            if page.caught_up:
                return found

    def numbers(self, topic: str = "t") -> tuple[int, int, int, int]:
        """(head_seq, earliest_seq, count, size_bytes), up to date."""
        found = self.topic(topic)
        found.refresh(self.opened.engine.now_ms())
        return found.head_seq, found.earliest_seq, found.count, found.size_bytes


def _run(callback: Callable[[], None]) -> None:
    callback()


def records(*payloads: Any) -> RecordBatch:
    return batch_of_records(payload if isinstance(payload, NewRecord) else NewRecord(payload) for payload in payloads)


def untimed(appended: Appended) -> Appended:
    """The answer without measured times."""
    return msgspec.structs.replace(appended, write_ms=0.0, sync_ms=0.0)


def values(page: Page) -> list[Any]:
    return [msgspec.json.decode(record.data) for record in page.records]


def seqs_of(records: Iterable[Any]) -> list[int]:
    return [record.seq for record in records]
