"""Data directories for the tests of verify, repair and dump: made by the engine itself, then hurt on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from topics.embedded.log import make_batch
from topics.engine.config import checked_config
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.topic.router import RouterSpec
from topics.formats.records import Record
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import Fs
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.verify import Verifier
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

ROOT: Final = "/data"
SMALL: Final = EngineSettings(wal_shards=1, wal_file_bytes=16_384, segment_events_max=10, segment_age_ms_max=0)


class Store:
    """An engine on a file system of the test's choice, everything on the caller."""

    def __init__(self, fs: Fs, root: str = ROOT, settings: EngineSettings = SMALL) -> None:
        self.clock = ManualClock()
        self.opened: OpenEngine = open_engine(
            fs, root, settings=settings, clock=self.clock, runtime=InlineRuntime(), runner=InlineRunner(fs)
        )
        self.engine = self.opened.engine

    def _answer(self, call: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        call(answers.append)
        self.engine.flush()
        assert answers, "everything is inline"
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def create(self, topic: str, **config: Any) -> None:
        self._answer(lambda done: self.engine.put_topic(topic, checked_config(config), done))

    def append(self, topic: str, *payloads: Any, key: str | None = None) -> None:
        batch = make_batch(payloads)
        self._answer(lambda done: self.engine.append(topic, batch, done, key=key, create=True))

    def delete(self, topic: str, **what: Any) -> None:
        self._answer(lambda done: self.engine.delete_records(topic, done, **what))

    def drop(self, topic: str) -> None:
        self._answer(lambda done: self.engine.delete_topic(topic, if_empty=False, done=done))

    def route(self, source: str, dest: str) -> None:
        self._answer(
            lambda done: self.engine.put_router(f"{source}->{dest}", RouterSpec(source=source, dest=dest), done)
        )

    def checkpoint(self) -> None:
        outcome: list[Exception | None] = []
        self.opened.checkpointer.start(outcome.append)
        assert outcome == [None]

    def mark_synced(self) -> None:
        """Lets the shards write the sync marks that are due."""
        self.clock.advance(2000)
        self.engine.wal.tick()
        self.engine.flush()

    def records(self, topic: str) -> list[Record]:
        found: list[Record] = []
        cursor = 0
        while True:
            fetch = self.engine.fetch_needed(topic, cursor, limit=1000)
            if fetch is not None:
                fetch()
            page = self.engine.read(topic, cursor, limit=1000)
            found += page.records
            if page.caught_up:
                return found
            cursor = page.next_from_seq

    def close(self) -> None:
        self.opened.close(lambda error: None)
        self.opened.release()

    def kill(self) -> None:
        """Lets go of the lock without the last checkpoint."""
        self.opened.release()


@contextmanager
def store(fs: Fs, root: str = ROOT, settings: EngineSettings = SMALL) -> Iterator[Store]:
    opened = Store(fs, root, settings)
    try:
        yield opened
    finally:
        opened.close()


def filled_disk() -> FakeDisk:
    """40 records of `orders` in four sealed segments, some tagged, some deleted; three of `audit` in the WAL."""
    from topics.results import NewRecord

    disk = FakeDisk()
    opened = Store(disk)
    opened.create("orders", durability="fsync")
    for number in range(1, 41):
        opened.append("orders", NewRecord({"number": number}, tag="odd" if number % 2 else None))
    opened.checkpoint()
    opened.delete("orders", before_seq=4)
    opened.delete("orders", tag="none")
    opened.checkpoint()
    opened.create("audit", durability="fsync")
    for number in range(1, 4):
        opened.append("audit", {"entry": number})
    opened.mark_synced()
    opened.kill()
    return disk


def flip(disk: FakeDisk, path: str, offset: int) -> None:
    disk.poke(path, offset, bytes((disk.read(path)[offset] ^ 0x40,)))


def verified(fs: Fs, root: str = ROOT, **options: Any) -> list[Finding]:
    return list(Verifier(fs, root, **options).run())


def lines(findings: list[Finding], severity: str | None = None) -> list[str]:
    return [finding.line() for finding in findings if severity in (None, finding.severity)]
