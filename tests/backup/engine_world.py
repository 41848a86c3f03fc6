"""A log on a fake disk, its backup in another folder of that disk, and logs that are restored from it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from tests.engine.driver import SMALL
from tests.engine.queue_driver import QueueDriver
from tests.engine.router_driver import RouterDriver
from topics.backup.plan import RestoreOrder
from topics.backup.restoring import RestoreReport, restore_backup
from topics.backup.source import NEWS, Gap, Picture, SegmentCopy, TailPart, picture_of
from topics.backup.store import BackupStore
from topics.backup.taking import BackupReport, take_backup
from topics.engine.checkpointing.log_capture import capture_log
from topics.engine.engine import Engine
from topics.engine.manifest import FRAMES_RECORDS_MAX, encode_frames
from topics.engine.runtime import InlineRuntime
from topics.engine.starting.recovery import open_engine
from topics.formats.snapshot import SegmentState, TopicState
from topics.limits import MIB, READ_BYTES_MAX, READ_LIMIT_MAX
from topics.results import NewRecord
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import Fs, read_file
from topics.storage.inspect.verify import Verifier
from topics.storage.tiers.shared_folder import SharedFolder
from topics.testing.clock import ManualClock

BACKUP = "/backup"
RESTORED = "/restored"
STORE_ID = "5" * 32


class LogDriver(RouterDriver, QueueDriver):
    """Drives an engine with routers and queues. It makes no queue by itself."""

    def __init__(self, **rest: Any) -> None:
        RouterDriver.__init__(self, SMALL, **rest)

    def put_group(self, topic: str, group: str, seq: int) -> None:
        answers: list[Any] = []
        self.opened.engine.groups.put(topic, group, seq, answers.append)
        self.answer(answers)


class EngineSource:
    """Reads a driven engine in the way that `ServerSource` reads a server."""

    def __init__(self, driver: LogDriver) -> None:
        self._driver = driver
        # How many segments were read.
        self.segments_read = 0

    @property
    def _engine(self) -> Engine:
        return self._driver.opened.engine

    def picture(self) -> Picture:
        captured = capture_log(self._engine, 1000)
        return picture_of(captured.store_id, captured.ts, captured.snapshot)

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        self.segments_read += 1
        path = f"{self._engine.core.cache.stem(topic.id, segment.first_seq)}.data"
        return SegmentCopy(path, read_file(self._driver.fs, path)[: segment.data_bytes], is_whole=True)

    def tail(self, topic: TopicState, first_seq: int) -> Iterator[TailPart]:
        held = self._engine.topic(topic.name)
        cursor = first_seq - 1
        while cursor < topic.checkpointed_seq:
            page = held.read(cursor, FRAMES_RECORDS_MAX, MIB, None)
            data, cursor = encode_frames(page, topic.checkpointed_seq)
            gap = page.tombstone
            is_news = gap is not None and gap.reason in NEWS
            yield TailPart(data, Gap(gap.gap_from, gap.gap_to, gap.reason) if gap is not None and is_news else None)

    def close(self) -> None:
        pass


class FramesSource(EngineSource):
    """Gives segments as live frames, like a server whose files are on another machine."""

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        part_of = msgspec.structs.replace(topic, checkpointed_seq=segment.last_seq)
        parts = list(self.tail(part_of, segment.first_seq))
        gaps = [part.gap for part in parts if part.gap is not None]
        data = b"".join(part.data for part in parts)
        return SegmentCopy("frames", data, is_whole=False, evicted=gaps[-1] if gaps else None)


def numbered(first: int, count: int, **labels: Any) -> list[NewRecord]:
    return [NewRecord({"n": n}, **labels) for n in range(first, first + count)]


def fill(driver: LogDriver) -> None:
    """Logs with sealed segments, an active one and a tail; deletes in all of them; a cap; a queue; routers; groups."""
    driver.put("t", durability="fsync")
    driver.append(*numbered(0, 10, tag="x", node="n", meta={"m": 1}), key="k1")
    driver.append(*numbered(10, 10, tag="y"))
    driver.checkpoint()
    driver.append(*numbered(20, 5, tag="x"), key="k2")
    driver.delete(tag="y")
    driver.put_group("t", "g", 12)
    driver.put("capped", cap_records=4)
    driver.append(*numbered(0, 11), topic="capped")
    driver.put("q", type="queue", leases_durable=True, dead_letter="dead", max_deliveries=3)
    driver.add(*range(9))
    driver.claim("w", 4)
    driver.ack("w", 1, 3)
    driver.put("copied")
    driver.route("t", "copied", filter="x")
    driver.append(*numbered(30, 5, tag="x"))
    driver.clock.advance(50)
    driver.append("empty", topic="gone")
    driver.delete("gone", before_seq=2)
    driver.put("passing", durability="ephemeral")
    driver.append("only in memory", topic="passing")


def store_on(fs: Fs, folder: str = BACKUP) -> BackupStore:
    return BackupStore(SharedFolder(fs, folder))


def back_up(driver: LogDriver, folder: str = BACKUP, **options: Any) -> BackupReport:
    return take_backup(EngineSource(driver), store_on(driver.fs, folder), driver.clock.now_ms(), **options)


def restore(
    fs: Fs, directory: str = RESTORED, order: RestoreOrder | None = None, folder: str = BACKUP
) -> RestoreReport:
    return restore_backup(store_on(fs, folder), fs, directory, order or RestoreOrder(), new_store_id=lambda: STORE_ID)


def findings(fs: Fs, directory: str = RESTORED) -> list[str]:
    """What `topics verify` says about a directory, but for notes."""
    return [finding.line() for finding in Verifier(fs, directory).run() if finding.severity != "note"]


def content_of(engine: Engine) -> dict[str, Any]:
    """All that readers can learn: of each topic its numbers, pages, groups and keys; and all routers."""
    return {
        "topics": {name: topic_content(engine, name) for name in sorted(engine.topics)},
        "routers": {
            name: (router.spec, router.source.name, router.dest.name, *router.settled, router.dest_base)
            for name, router in sorted(engine.routing.routers.items())
        },
    }


def topic_content(engine: Engine, name: str) -> dict[str, Any]:
    topic = engine.topic(name)
    topic.refresh(engine.now_ms())
    pages: list[Any] = []
    cursor = 0
    while True:
        page = topic.read(cursor, READ_LIMIT_MAX, READ_BYTES_MAX, None)
        if page.tombstone is not None:
            pages.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
        pages += page.records
        cursor = page.next_from_seq
        if page.caught_up:
            break
    return {
        "id": (topic.id, topic.epoch),
        "config": msgspec.to_builtins(topic.config),
        "numbers": (topic.head_seq, topic.earliest_seq, topic.count, topic.size_bytes, topic.live.evict_floor),
        "pages": pages,
        "lost": topic.live.lost.pairs(),
        "groups": sorted(topic.groups.values(), key=lambda group: group.name),
        "writers": sorted(topic.writers.values(), key=lambda writer: writer.name),
        "keys": sorted(topic.keys, key=lambda key: key.key),
    }


def restored_content(fs: Fs, clock: ManualClock, directory: str = RESTORED) -> dict[str, Any]:
    """What a start on the restored directory serves."""
    opened = open_engine(fs, directory, settings=SMALL, clock=clock, runtime=InlineRuntime(), runner=InlineRunner(fs))
    try:
        opened.engine.flush()
        assert opened.report.warnings == []
        return content_of(opened.engine)
    finally:
        opened.release()
