"""A whole engine on a fake disk, small enough that a few records rotate, seal and checkpoint."""

from typing import Any

from tests.storage.held_background import HeldBackground
from topics.engine.config import checked_config
from topics.engine.engine import Engine
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.topic.appended import Appended
from topics.engine.topic.reading import Page
from topics.engine.topic.topic import Topic
from topics.engine.writing.deletion import Deleted
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicsError
from topics.formats.records import Record
from topics.results import NewRecord, Tombstone
from topics.storage import layout
from topics.storage.background import Background
from topics.storage.checkpoints.runner import InlineRunner, JobRunner
from topics.storage.fs import Fs
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

ROOT = "/data"
WAL_FILE_BYTES = 8192
SEGMENT_EVENTS = 5


def small_settings(**settings: Any) -> EngineSettings:
    defaults: dict[str, Any] = {
        "wal_shards": 1,
        "wal_file_bytes": WAL_FILE_BYTES,
        "segment_events_max": SEGMENT_EVENTS,
        "tail_cache_bytes": 0,
    }
    return EngineSettings(**defaults | settings)


class HeldRuntime(InlineRuntime):
    """Runs everything at once, except checkpoints. The test starts those."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = HeldBackground()

    def background(self, name: str) -> Background:
        return self.checkpoints if name == "checkpoint" else super().background(name)


class SmallLog:
    """Opens the directory and drives the engine, one call at a time."""

    def __init__(
        self,
        fs: Fs,
        *,
        clock: ManualClock | None = None,
        runtime: InlineRuntime | None = None,
        runner: JobRunner | None = None,
        root: str = ROOT,
        **settings: Any,
    ) -> None:
        self.fs = fs
        self.clock = clock or ManualClock()
        self.opened: OpenEngine = open_engine(
            fs,
            root,
            settings=small_settings(**settings),
            clock=self.clock,
            runtime=runtime or InlineRuntime(),
            runner=runner or InlineRunner(fs),
        )
        self.engine = self.opened.engine
        # What the start asks of the cold tier comes now.
        self.engine.flush()
        self.checkpointer = self.opened.checkpointer
        self.report = self.opened.report

    @property
    def warnings(self) -> str:
        return "\n".join(self.report.warnings)

    def topic(self, name: str = "a") -> Topic:
        return self.engine.topic(name)

    def create(self, name: str = "a", **config: Any) -> bool:
        results: list[Any] = []
        self.engine.put_topic(name, checked_config(config), results.append)
        self.engine.flush()
        created: bool = raised(results)
        return created

    def start_append(self, name: str, count: int, results: list[Any], **labels: Any) -> None:
        """Queues a write of `count` records. Each payload has the topic and the expected seq."""
        key = labels.pop("key", None)
        first = self.engine.topics[name].writes.next_seq if name in self.engine.topics else 1
        records = [NewRecord({"topic": name, "n": first + place}, **labels) for place in range(count)]
        self.engine.append(name, batch_of_records(records), results.append, key=key)

    def append(self, name: str = "a", count: int = 1, **labels: Any) -> Appended:
        """Appends `count` records. Each payload has its topic and its seq. Labels: tag, node, meta, key."""
        results: list[Any] = []
        self.start_append(name, count, results, **labels)
        self.engine.flush()
        appended: Appended = raised(results)
        return appended

    def delete(self, name: str = "a", **what: Any) -> int:
        results: list[Any] = []
        self.engine.delete_records(name, results.append, **what)
        self.engine.flush()
        deleted: Deleted = raised(results)
        return deleted.deleted

    def drop(self, name: str = "a") -> bool:
        results: list[Any] = []
        self.engine.delete_topic(name, if_empty=False, done=results.append)
        self.engine.flush()
        dropped: bool = raised(results)
        return dropped

    def read(self, name: str = "a", from_seq: int = 0) -> tuple[list[Record], list[Tombstone]]:
        """All records above `from_seq`, and all tombstones."""
        records: list[Record] = []
        tombstones: list[Tombstone] = []
        while True:
            page = read_fetched(self.engine, name, from_seq)
            records += page.records
            if page.tombstone is not None:
                tombstones.append(page.tombstone)
            if page.caught_up:
                return records, tombstones
            assert page.next_from_seq > from_seq or page.tombstone is not None
            from_seq = page.next_from_seq

    def seqs(self, name: str = "a", from_seq: int = 0) -> list[int]:
        """Seqs of the live records. Checks that each record has the payload that was written with its seq."""
        records, _ = self.read(name, from_seq)
        for record in records:
            assert record.data == b'{"topic":"%b","n":%d}' % (name.encode(), record.seq), record
        assert len(records) == self.topic(name).count or from_seq
        return [record.seq for record in records]

    def checkpoint(self) -> None:
        results: list[Exception | None] = []
        self.checkpointer.start(results.append)
        (error,) = results
        if error is not None:
            raise error

    def tick(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.engine.wal.tick()
        self.checkpointer.tick()
        self.engine.flush()

    def close(self) -> None:
        """A clean stop."""
        results: list[Exception | None] = []
        self.opened.close(results.append)
        (error,) = results
        if error is not None:
            raise error
        self.opened.release()


def read_fetched(engine: Engine, name: str, from_seq: int = 0, limit: int = 256) -> Page:
    """A page, also of cold records: they are fetched first."""
    fetch = engine.fetch_needed(name, from_seq, limit)
    if fetch is not None and fetch.is_cold:
        fetch()
    return engine.read(name, from_seq, limit=limit)


def raised(results: list[Any]) -> Any:
    """The only answer of a call. An error is raised."""
    (result,) = results
    if isinstance(result, TopicsError):
        raise result
    return result


def segment_names(disk: FakeDisk, topic_id: int = 1, kind: str = "data") -> list[int]:
    """First seqs of the segment files in a topic's directory."""
    directory = f"{ROOT}/topics/{topic_id:08X}"
    return [
        int(name[4:20]) for name in disk.listdir(directory) if name.startswith("seg-") and name.endswith(f".{kind}")
    ]


def snapshot_names(disk: FakeDisk) -> list[int]:
    return [int(name.split(".")[1]) for name in disk.listdir(f"{ROOT}/meta") if name.endswith(".bin")]


def rot_snapshots(disk: FakeDisk) -> None:
    """The last byte of every snapshot becomes one that MessagePack does not use."""
    for path, raw in disk.files().items():
        directory, _, name = path.rpartition("/")
        if raw and directory == layout.meta_directory(ROOT) and layout.snapshot_number(name) is not None:
            disk.replace(path, raw[:-1] + b"\xc1")


def wal_names(disk: FakeDisk, directory: str = f"{ROOT}/wal") -> list[int]:
    return [int(name[4:20]) for name in disk.listdir(directory) if name.endswith(".log")]
