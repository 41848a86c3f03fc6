"""The bit-flip sweep: one byte of any file is wrong. A reader never gets wrong data, and every missing record is
reported."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from tests.conftest import FULL, sampled_range
from tests.crash.harness import LOCK, ROOT, Broken, World
from tests.crash.sweep import RecordProperty, Tally
from topics.engine.settings import EngineSettings
from topics.errors import CorruptRecord, TopicsError
from topics.formats.records import Record

SETTINGS = EngineSettings(
    wal_shards=1, wal_file_bytes=4096, segment_events_max=6, tail_cache_bytes=0, segment_bytes_max=4096
)
SAMPLES_PER_FILE = 40


@cache
def _written() -> World:
    """Sealed and active segments with deletes, two snapshots, and WAL files with a synced or an unsynced end."""
    world = World(SETTINGS)
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk", cap_records=200)
    for place in range(3):
        world.append("a", 8, key=f"k{place}")
        world.append("b", 5)
        world.delete("a", tag="t1.1")
        world.checkpoint()
    world.append("a", 4)
    world.delete("a", tag="t2.0")
    world.append("b", 3, size=40)
    world.append("a", 2, key="last")
    world.append("b", 2)
    world.crash(None)
    return world


def _files() -> list[str]:
    return sorted(path for path, content in _written().disk.files().items() if content)


@dataclass
class Found:
    records: dict[int, Record]
    corrupt: set[int]
    tombstones: list[tuple[int, int]]


def _read(world: World, name: str) -> Found:
    """All records that can be read. The reader goes on after each damaged record."""
    found = Found({}, set(), [])
    cursor = 0
    while True:
        try:
            page = world.engine.read(name, cursor, limit=5)
        except CorruptRecord as error:
            cursor = _seq_of(error, cursor)
            found.corrupt.add(cursor)
            continue
        if page.tombstone is not None:
            found.tombstones.append((page.tombstone.gap_from, page.tombstone.gap_to))
        found.records.update({record.seq: record for record in page.records})
        if page.caught_up:
            return found
        cursor = page.next_from_seq


def _seq_of(error: CorruptRecord, cursor: int) -> int:
    seq = (error.detail or {}).get("seq")
    if not isinstance(seq, int) or seq <= cursor:
        raise Broken(f"a read at {cursor} names {seq}") from error
    return seq


def _unsynced_from(path: str) -> int:
    """The offset from which a torn tail may be cut. Only the last file has bytes that no sync mark covers."""
    logs = [name for name in _files() if name.endswith(".log")]
    return 0 if path == logs[-1] else 1 << 60


@pytest.mark.parametrize("place", range(len(_files())))
def test_a_wrong_byte_anywhere_is_harmless_or_named(place: int, record_property: RecordProperty) -> None:
    path = _files()[place]
    content = _written().disk.files()[path]
    used = len(content.rstrip(b"\0")) + 50 if path.endswith(".log") else len(content)
    end = min(used, len(content))
    tally = Tally("bit flips")
    for offset in sampled_range(end, max(1, end // SAMPLES_PER_FILE)):
        for flip in (0x01, 0x80, 0xFF) if FULL else ((0x01, 0x80, 0xFF)[offset % 3],):
            tally.points += 1
            tally.recoveries += 1
            _flip(path, content, offset, flip)
    tally.record(record_property)


def _flip(path: str, content: bytes, offset: int, flip: int) -> None:
    world = _written().fork()
    world.disk.poke(path, offset, bytes([content[offset] ^ flip]))
    where = f"{path} at {offset}, xor {flip:#x}"
    try:
        world.open()
    except TopicsError as refusal:
        if path.rpartition("/")[2] not in refusal.message:
            raise Broken(f"{where}: refused without naming the file: {refusal.message}") from refusal
        return
    for name, history in world.histories.items():
        state = history.latest()
        if name not in world.engine.topics:
            if "CURRENT" in path or not _reports(world, path):
                raise Broken(f"{where}: topic {name} is gone")
            continue
        found = _read(world, name)
        for seq, record in found.records.items():
            if state.records.get(seq) != record and not _undeletes(world, path, history.attempted(), record):
                raise Broken(f"{where}: {name} shows {record}, not {state.records.get(seq)}")
        covered = {seq for first, last in found.tombstones for seq in range(first, last + 1)}
        missing = set(state.records) - found.records.keys() - found.corrupt - covered
        if missing and not _reports(world, path):
            raise Broken(f"{where}: {name} misses {sorted(missing)} without a report")


def _undeletes(world: World, path: str, attempted: dict[int, list[Record]], record: Record) -> bool:
    """A damaged delete byte or a cut delete frame may bring back records that were really written, and no others."""
    was_written = record in attempted.get(record.seq, [])
    return was_written and (path.endswith(".data") or _reports(world, path))


def _reports(world: World, path: str) -> bool:
    """Whether the report of the start names the file: a cut tail, a skipped snapshot, rebuilt segments."""
    assert world.opened is not None
    report = world.opened.report
    if path.endswith(".log"):
        return report.torn_bytes > 0 and _unsynced_from(path) == 0
    return any(path in warning for warning in report.warnings)


def test_a_wrong_byte_in_the_lock_file_costs_a_tombstone_at_most() -> None:
    """After a start with an unreadable boot id, a power loss is possible."""
    world = _written().fork()
    world.disk.replace(LOCK, b"\xff\x00 not json")
    world.power_lost = True
    world.recover()
    assert world.disk.exists(f"{ROOT}/STORE")
