"""What a start may find on disk, and what it decides, reports and serves in each case.

In the first part the docstring of each test states one case: the finding, then the decision.
"""

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.small_log import (
    ROOT,
    SEGMENT_EVENTS,
    WAL_FILE_BYTES,
    SmallLog,
    segment_names,
    small_settings,
    snapshot_names,
    wal_names,
)
from topics.clock import SystemClock
from topics.engine.runtime import InlineRuntime
from topics.engine.starting.recovery import open_engine
from topics.engine.topic.router import RouterSpec
from topics.errors import CorruptRecord, Damaged, DirectoryLocked, FutureVersion, StartRefused, StorageFull
from topics.formats import control, wal_frame
from topics.formats.snapshot import WalPosition, decode, decode_topic, encode, encode_topic
from topics.formats.wal_frame import FrameType
from topics.limits import FRAME_BYTES_MAX, SYNC_MARK_DELAY_MS
from topics.storage import layout
from topics.storage.fs import RealFs
from topics.storage.inspect.verify import Verifier
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

WAL = f"{ROOT}/wal/wal-0000000000000001.log"
TOPIC = f"{ROOT}/topics/00000001"


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def killed(disk: FakeDisk, log: SmallLog | None = None) -> FakeDisk:
    """The process dies, and the kernel writes out all pages, as it would some seconds later."""
    disk.kill()
    for path in disk.files():
        file = disk.open(path, "write")
        file.fsync()
        file.close()
    return disk


def end_of_frames(disk: FakeDisk, path: str = WAL) -> int:
    content = disk.read(path)
    return max(frame.end for frame in wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX))


def frame_of(disk: FakeDisk, seq: int, path: str = WAL) -> wal_frame.Frame:
    content = disk.read(path)
    return next(
        frame
        for frame in wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX)
        if frame.seq == seq and frame.type == FrameType.APPEND
    )


def refused(disk: FakeDisk, **settings: Any) -> StartRefused:
    """The error of a start that must be refused, and must have changed nothing but the lock file."""
    before = disk.files()
    with pytest.raises(StartRefused) as caught:
        SmallLog(disk, **settings)
    after = disk.files()
    for files in (before, after):
        files.pop(f"{ROOT}/{layout.LOCK}")
    assert after == before, "a refused start changes nothing"
    return caught.value


def reopened_twice(disk: FakeDisk, **settings: Any) -> SmallLog:
    """Opens, kills, opens. The second start must have nothing left to repair."""
    SmallLog(disk, **settings)
    disk.kill()
    once = disk.files()
    log = SmallLog(disk, **settings)
    files = disk.files()
    assert files == once, "recovering twice gives the same bytes"
    return log


def synced_log(disk: FakeDisk, count: int = 4, **settings: Any) -> SmallLog:
    """A log of class fsync with `count` records, each acked on its own."""
    log = SmallLog(disk, **settings)
    log.create(durability="fsync")
    for _ in range(count):
        log.append()
    return log


# --- the cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"\xff", b"\x01" * 40, bytes(100) + b"x", b"\xa5" * 1000])
def test_bad_bytes_behind_the_frames_are_a_torn_tail(disk: FakeDisk, garbage: bytes) -> None:
    """Bad or zero bytes in the last file with frames of a shard, not covered by a later sync mark, are a torn tail of
    any size. The start truncates the file before them and keeps the cut bytes."""
    synced_log(disk)
    killed(disk)
    end = end_of_frames(disk)
    disk.replace(WAL, (disk.read(WAL)[:end] + garbage).ljust(WAL_FILE_BYTES, b"\0"))
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4]
    assert log.report.torn_bytes == len(garbage)
    assert disk.read(f"{WAL}.{end}.torn") == garbage
    assert log.append().first_seq == 5
    disk.kill()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4, 5]


def test_a_torn_frame_with_valid_frames_behind_it_drops_what_no_mark_covers(disk: FakeDisk) -> None:
    """The tail is torn even when valid frames follow: unsynced sectors reach a disk in any order."""
    log = SmallLog(disk)
    log.create(durability="memory")
    for _ in range(5):
        log.append()
    killed(disk)
    disk.poke(WAL, frame_of(disk, 3).offset + 10, b"\xff\xff")
    log = reopened_twice(disk)
    assert log.seqs() == [1, 2]
    assert log.append().first_seq == 3, "class memory: the head may be lower than before"


def test_an_unfinished_batch_at_the_end_is_dropped_whole(disk: FakeDisk) -> None:
    """An unfinished batch before the torn tail is dropped. The cut bytes are kept in a `.torn` file."""
    log = SmallLog(disk)
    log.create(durability="memory")
    log.append(count=2)
    log.append(count=5)
    killed(disk)
    last = frame_of(disk, 7)
    disk.poke(WAL, last.end - 3, b"\0\0\0")
    log = reopened_twice(disk)
    assert log.seqs() == [1, 2]
    assert any(path.endswith(".torn") for path in disk.files())
    assert log.append(count=2).first_seq == 3
    disk.kill()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4]


def test_a_bad_frame_that_a_later_sync_mark_covers_is_damage(disk: FakeDisk) -> None:
    """A bad frame that a later sync mark covers is damage, not a torn tail. The start is refused and names it."""
    synced_log(disk)
    killed(disk)
    frame = frame_of(disk, 2)
    disk.poke(WAL, frame.offset + 50, b"\xff")
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert (error.path, error.offset) == (WAL, frame.offset)
    assert "topics doctor" in error.message


def test_a_bad_frame_in_an_earlier_file_is_damage(disk: FakeDisk) -> None:
    """A bad frame in a file that is not the last one is damage."""
    log = SmallLog(disk)
    log.create(durability="memory")
    while len(wal_names(disk)) < 2:
        log.append(count=20)
    killed(disk)
    disk.poke(WAL, frame_of(disk, 2).offset + 50, b"\xff")
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert error.path == WAL


def test_a_file_missing_in_between_is_damage(disk: FakeDisk) -> None:
    """A missing file between two others is damage."""
    log = synced_log(disk)
    while len(wal_names(disk)) < 3:
        log.append(count=20)
    killed(disk)
    first, second, third = wal_names(disk)
    disk.unlink(f"{ROOT}/wal/{layout.wal_name(second)}")
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert f"frame {second}" in error.expected
    assert f"frame {third}" in error.found
    assert first == 1


def test_the_shard_count_may_change_between_runs(disk: FakeDisk) -> None:
    """The WAL has another shard count than configured. The start replays the old layout, takes a checkpoint, removes
    the old layout and the older snapshot, and only then makes the new layout."""
    names = [f"topic-{number}" for number in range(6)]
    expected = 0
    for shards in (1, 8, 3, 1, 2):
        log = SmallLog(disk, wal_shards=shards)
        assert len(log.engine.wal.shards) == shards
        for name in names:
            if expected:
                assert log.seqs(name) == list(range(1, expected + 1))
            log.append(name, 3)
        expected += 3
        for name in names:
            assert log.seqs(name) == list(range(1, expected + 1))
        found = [name for name in disk.listdir(f"{ROOT}/wal") if name.startswith(("shard-", "wal-"))]
        assert len([name for name in found if name.startswith("shard-")]) == (shards if shards > 1 else 0)
        assert bool([name for name in found if name.endswith(".log")]) == (shards == 1)
        disk.kill()
    log = SmallLog(disk, wal_shards=2)
    assert [log.seqs(name) for name in names] == [list(range(1, expected + 1))] * len(names)


def test_a_changed_shard_count_leaves_one_snapshot_of_the_new_layout(disk: FakeDisk) -> None:
    """No topic ever has frames in two layouts."""
    log = SmallLog(disk)
    for _ in range(3):
        log.append(count=3)
        log.checkpoint()
    disk.kill()
    SmallLog(disk, wal_shards=4)
    assert len(snapshot_names(disk)) == 1
    (number,) = snapshot_names(disk)
    snapshot = decode(disk.read(layout.snapshot_path(ROOT, number)))
    assert len(snapshot.wal) == 4
    assert len({position.frame for position in snapshot.wal}) == 1


def test_after_a_change_of_the_shard_count_one_checkpointer_removes_the_files_of_a_topic(disk: FakeDisk) -> None:
    """The checkpointer that made the change hears of no topic that is removed later."""
    log = SmallLog(disk)
    log.append(count=3)
    disk.kill()
    log = SmallLog(disk, wal_shards=3)
    listeners = [tell for tell in log.engine.topic_life.on_removed if "Checkpointer" in tell.__qualname__]
    assert len(listeners) == 1
    assert disk.exists(TOPIC)
    log.drop()
    assert not disk.exists(TOPIC)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_a_crash_at_any_call_of_a_layout_change_loses_nothing_and_leaves_one_layout(
    disk: FakeDisk, before: int, after: int
) -> None:
    """Also after several crashes. Records written after the change survive a bad newest snapshot."""
    log = SmallLog(disk, wal_shards=before)
    names = ["a", "b", "c"]
    for name in names:
        log.create(name, durability="fsync")
        log.append(name, 4)
    log.checkpoint()
    for name in names:
        log.append(name, 2)
    disk.kill()
    point = 0
    while True:
        machine = disk.clone()
        machine.on_operation = hook = CrashAt(point)
        try:
            SmallLog(machine, wal_shards=after)
        except CrashNow:
            pass
        machine.on_operation = None
        machine.crash(Damage.DROP if point % 2 else Damage.SUBSET, point)
        log = SmallLog(machine, wal_shards=after)
        found = machine.listdir(f"{ROOT}/wal")
        assert len([name for name in found if name.startswith("shard-")]) == (after if after > 1 else 0), point
        assert any(name.endswith(".log") for name in found) == (after == 1), point
        for name in names:
            assert log.seqs(name) == [1, 2, 3, 4, 5, 6], point
            log.append(name)
        machine.crash(Damage.DROP)
        log = SmallLog(machine, wal_shards=after)
        for name in names:
            assert log.seqs(name) == [1, 2, 3, 4, 5, 6, 7], point
        if hook.count <= point:
            break
        point += 1
    assert point > 30


@pytest.mark.parametrize("content", [None, b"", b"wal-000000000000", b"\xff\xfe", b"rubbish"])
def test_current_is_derived_from_the_files(disk: FakeDisk, content: bytes | None) -> None:
    """CURRENT is missing, empty or torn. The start derives it from the files and warns."""
    synced_log(disk)
    killed(disk)
    path = f"{ROOT}/wal/CURRENT"
    if content is None:
        disk.unlink(path)
    else:
        disk.replace(path, content)
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4]
    assert "CURRENT" in log.warnings
    assert disk.read(path) == b"wal-0000000000000001.log"


@pytest.mark.parametrize("how", ["file cut", "zeros at the end"])
@pytest.mark.parametrize("power", ["kill", "power loss"])
def test_a_position_beyond_the_end_goes_on_in_a_new_file(disk: FakeDisk, how: str, power: str) -> None:
    """The snapshot's position is beyond the end of a shard. All records up to it are in segments, so nothing is lost.
    The shard goes on in a new file at the noted frame number, and the start warns."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    noted = decode(disk.read(layout.snapshot_path(ROOT, 1))).wal[0]
    if power == "kill":
        killed(disk)
    else:
        disk.crash(Damage.KEEP)
    disk.replace(WAL, disk.read(WAL)[:200].ljust(0 if how == "file cut" else WAL_FILE_BYTES, b"\0"))
    log = SmallLog(disk)
    assert "going on in a new file" in log.warnings
    assert log.seqs() == [1, 2, 3, 4]
    assert disk.exists(f"{ROOT}/wal/{layout.wal_name(noted.frame)}")
    appended = log.append()
    # After a power loss the reserved seqs are not handed out again.
    assert (appended.first_seq == 5) == (power == "kill")
    assert (log.report.lost_seqs > 0) == (power == "power loss")
    disk.kill()
    records, tombstones = SmallLog(disk).read()
    assert [record.seq for record in records] == [1, 2, 3, 4, appended.first_seq]
    assert [stone.reason for stone in tombstones] == ([] if power == "kill" else ["power_loss"])


def test_a_bad_newest_snapshot_falls_back_to_the_one_before(disk: FakeDisk) -> None:
    """The newest snapshot is bad. The start uses the previous one and warns."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    log.append(count=4)
    log.delete(seqs=[2])
    log.checkpoint()
    log.append(count=4)
    killed(disk)
    disk.poke(layout.snapshot_path(ROOT, 2), 30, b"\xff\xff")
    log = SmallLog(disk)
    assert "snapshot.0002.bin is unreadable" in log.warnings
    assert log.report.snapshot_number == 1
    assert log.seqs() == [1, *range(3, 13)]
    log.append()
    log.checkpoint()
    log.append()
    log.checkpoint()
    disk.kill()
    log = SmallLog(disk)
    assert log.warnings == ""
    assert log.seqs() == [1, *range(3, 15)]


def test_a_trim_floor_of_an_older_version_is_read_as_a_cap_floor_once(disk: FakeDisk) -> None:
    """The snapshot has a `trim_floor`. It becomes a cap floor, and the next snapshot has only that."""
    log = SmallLog(disk)
    log.append(count=10)
    log.checkpoint()
    disk.kill()
    (number,) = snapshot_names(disk)
    path = layout.snapshot_path(ROOT, number)
    snapshot = decode(disk.read(path))
    state = decode_topic(snapshot.topics[0])
    state.trim_floor = 4
    disk.replace(path, encode(msgspec.structs.replace(snapshot, topics=[encode_topic(state)])))
    for _ in range(2):
        log = SmallLog(disk)
        assert log.seqs() == [5, 6, 7, 8, 9, 10]
        assert [(gap.gap_from, gap.gap_to, gap.reason) for gap in log.read()[1]] == [(1, 4, "cap")]
        log.append("b")
        log.checkpoint()
        disk.kill()
    newest = decode(disk.read(layout.snapshot_path(ROOT, snapshot_names(disk)[-1])))
    state = decode_topic(newest.topics[0])
    assert (state.trim_floor, state.cap_floor) == (0, 4)


def test_the_older_snapshot_is_good_for_as_long_as_it_is_kept(disk: FakeDisk) -> None:
    """At every moment of a busy log, a start without the newest snapshot gives the same records."""
    log = SmallLog(disk)
    log.create(cap_records=9)
    for turn in range(10):
        log.append(count=4)
        log.checkpoint()
        log.append()
        if len(snapshot_names(disk)) > 1:
            expected = log.seqs()
            machine = disk.clone()
            newest = max(snapshot_names(machine))
            machine.replace(layout.snapshot_path(ROOT, newest), b"rotten")
            again = SmallLog(machine)
            assert again.seqs() == expected, turn
            assert again.topic().head_seq == log.topic().head_seq


def test_a_bad_newest_snapshot_is_no_loss_though_the_machine_was_killed_in_the_next_checkpoint(disk: FakeDisk) -> None:
    """The directory also has files of an unfinished checkpoint."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    log.append(count=4)
    log.checkpoint()
    log.append(count=7)
    disk.on_operation = stop_at("snapshot.0003.bin.tmp")
    with pytest.raises(CrashNow):
        log.checkpoint()
    disk.on_operation = None
    killed(disk)
    disk.replace(layout.snapshot_path(ROOT, 2), b"")
    log = SmallLog(disk)
    assert log.seqs() == list(range(1, 16))


def stop_at(name: str) -> Any:
    def hook(operation: str, path: str) -> None:
        if path.endswith(name):
            raise CrashNow(path)

    return hook


def test_all_snapshots_bad_and_the_wal_complete(disk: FakeDisk) -> None:
    """All snapshots are bad, and the WAL is complete from its first frame. The start replays everything."""
    log = SmallLog(disk)
    log.create("b", durability="fsync", ttl_ms=10**9)
    log.append("b", 6, tag="red")
    log.append("a", 6)
    log.checkpoint()
    log.delete("b", tag="red", before_seq=3)
    log.append("b", 2)
    killed(disk)
    disk.replace(layout.snapshot_path(ROOT, 1), b"?")
    assert wal_names(disk) == [1]
    log = SmallLog(disk)
    assert log.seqs("a") == [1, 2, 3, 4, 5, 6]
    assert log.seqs("b") == [3, 4, 5, 6, 7, 8]
    assert log.topic("b").config.ttl_ms == 10**9
    assert (log.topic("a").id, log.topic("b").id) == (2, 1)
    log.checkpoint()
    log.append("b")
    disk.kill()
    assert SmallLog(disk).seqs("b") == [3, 4, 5, 6, 7, 8, 9]


def test_all_snapshots_bad_and_the_wal_trimmed(disk: FakeDisk) -> None:
    """All snapshots are bad, and the WAL is trimmed. The start rebuilds topics from segments, `topic.json` and the WAL,
    with floors at the oldest record, and warns. It deletes no topic."""
    log = SmallLog(disk)
    log.create(durability="fsync", cap_records=100)
    log.create("b", durability="fsync")
    for _ in range(4):
        log.append(count=50)
        log.append("b", 3)
        log.checkpoint()
    log.append(count=2)
    log.append("b", 2)
    assert wal_names(disk)[0] > 1
    expected = log.seqs()
    killed(disk)
    for number in snapshot_names(disk):
        disk.replace(layout.snapshot_path(ROOT, number), b"?")
    log = SmallLog(disk)
    assert "no snapshot is readable" in log.warnings
    assert log.seqs() == expected
    assert log.seqs("b") == list(range(1, 15))
    assert log.topic().config.cap_records == 100
    assert log.topic().live.cap_floor == expected[0] - 1
    assert log.append().first_seq == expected[-1] + 1
    log.create("c")
    assert log.topic("c").id > 2
    log.checkpoint()
    disk.kill()
    again = SmallLog(disk)
    assert again.seqs() == [*expected[1:], expected[-1] + 1]
    assert again.seqs("b") == list(range(1, 15))


def test_all_snapshots_gone_is_as_all_snapshots_bad(disk: FakeDisk) -> None:
    """`meta/` is empty, but there are segments and a trimmed WAL: this is not a fresh directory."""
    log = SmallLog(disk)
    log.create(durability="fsync")
    for _ in range(4):
        log.append(count=50)
        log.checkpoint()
    log.append(count=2)
    assert wal_names(disk)[0] > 1
    killed(disk)
    for number in snapshot_names(disk):
        disk.unlink(layout.snapshot_path(ROOT, number))
    log = SmallLog(disk)
    assert log.seqs() == list(range(1, 203))
    assert log.warnings


def test_segments_alone_are_not_a_fresh_directory(disk: FakeDisk) -> None:
    """`meta/` and `wal/` are gone. A new topic must not get the id, and so the files, of an existing topic."""
    log = SmallLog(disk)
    log.append(count=12)
    log.close()
    for path in disk.files():
        if "/meta/" in path or "/wal/" in path:
            disk.unlink(path)
    log = SmallLog(disk)
    assert "no snapshot is readable" in log.warnings
    assert log.seqs() == list(range(1, 13))
    log.append("b", 3)
    assert log.topic("b").id > 1
    log.checkpoint()
    log.append(count=2)
    disk.kill()
    log = SmallLog(disk)
    assert log.seqs() == list(range(1, 15))
    assert log.seqs("b") == [1, 2, 3]


@pytest.mark.parametrize("how", ["missing", "short", "zeros", "doubled", "rotten"])
@pytest.mark.parametrize("which", [1, 6])
def test_an_index_is_rebuilt_from_its_data(disk: FakeDisk, how: str, which: int) -> None:
    """An `.idx` file is missing, short or inconsistent. It is rebuilt from `.data`."""
    log = SmallLog(disk)
    log.append(count=8, tag="red")
    log.delete(seqs=[2, 7])
    log.checkpoint()
    assert segment_names(disk) == [1, 6]
    disk.kill()
    path = f"{TOPIC}/{layout.segment_stem(which)}.idx"
    content = disk.read(path)
    changed = {
        "short": content[:-7],
        "zeros": bytes(len(content)),
        "doubled": content + content,
        "rotten": content[:4] + b"\xff\xff\xff\x7f" + content[8:],
    }
    if how == "missing":
        disk.unlink(path)
    else:
        disk.replace(path, changed[how])
    log = SmallLog(disk)
    assert log.seqs() == [1, 3, 4, 5, 6, 8]
    assert log.delete(tag="red", before_seq=7) == 5
    log.append(count=4)
    log.checkpoint()
    disk.kill()
    assert SmallLog(disk).seqs() == [8, 9, 10, 11, 12]


def test_an_active_segment_longer_than_noted_is_taken_in_up_to_its_last_whole_frame(disk: FakeDisk) -> None:
    """The active segment is longer than noted, perhaps torn after the noted length: a checkpoint was not finished.
    Whole valid frames are kept (the replay skips their seqs), and the rest is cut."""
    log = SmallLog(disk)
    log.create(durability="fsync")
    log.append(count=2)
    log.checkpoint()
    log.append(count=2, key="k")
    disk.on_operation = stop_at("snapshot.0002.bin.tmp")
    with pytest.raises(CrashNow):
        log.checkpoint()
    disk.on_operation = None
    killed(disk)
    path = f"{TOPIC}/{layout.segment_stem(1)}.data"
    whole = disk.read(path)
    for cut in (0, 1, 20, 63):
        machine = disk.clone()
        machine.replace(path, whole[: len(whole) - cut] + (b"" if cut % 2 else b"\x99" * 9))
        log = SmallLog(machine)
        assert "unfinished checkpoint" in "".join(log.report.notes)
        assert log.warnings == ""
        assert log.seqs() == [1, 2, 3, 4]
        assert log.topic().live.checkpointed_seq == (4 if cut == 0 else 3)
        assert log.append(count=2, key="k").first_seq == 3, "the key is known though segments hold its records"
        assert len(machine.read(path)) < len(whole) + 1
        log.checkpoint()
        machine.kill()
        assert SmallLog(machine).seqs() == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["short", "rotten"])
def test_an_active_segment_bad_before_the_noted_length_is_damaged_like_a_sealed_one(disk: FakeDisk, how: str) -> None:
    """The active segment is shorter than noted, or bad before the noted length. That is damage, as in a sealed segment:
    it is named, never cut, and the other records are served."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    log.append(count=2)
    killed(disk)
    path = f"{TOPIC}/{layout.segment_stem(1)}.data"
    content = disk.read(path)
    if how == "short":
        disk.replace(path, content[: content.index(b'"n":4') + 3])
    else:
        disk.poke(path, content.index(b'"n":4'), b'"n":7')
    log = SmallLog(disk)
    page = log.engine.read("a")
    assert [record.seq for record in page.records] == [1, 2, 3]
    with pytest.raises(CorruptRecord) as caught:
        log.engine.read("a", 3)
    assert caught.value.detail == {"topic": "a", "seq": 4}
    assert [record.seq for record in log.engine.read("a", 4).records] == [5, 6]
    before = disk.read(path)
    log.append(count=3)
    log.checkpoint()
    assert disk.read(path)[: len(before)] == before
    assert [record.seq for record in log.engine.read("a", 4).records] == [5, 6, 7, 8, 9]


def test_missing_data_of_a_listed_segment_is_refused(disk: FakeDisk) -> None:
    """A listed segment has no `.data` file, no cold copy, and after the replay it is not wholly below the floors. The
    start is refused and names the file."""
    log = SmallLog(disk)
    log.append(count=12)
    log.checkpoint()
    killed(disk)
    path = f"{TOPIC}/{layout.segment_stem(6)}.data"
    disk.unlink(path)
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert error.path == path
    assert "seqs 6 to 10 of topic a" in error.expected


def test_missing_data_below_the_floors_is_nothing_to_worry_about(disk: FakeDisk) -> None:
    """A listed segment without `.data` that is wholly below the floors is not needed."""
    log = SmallLog(disk)
    log.append(count=12)
    log.checkpoint()
    log.delete(before_seq=7)
    killed(disk)
    for kind in ("data", "idx"):
        disk.unlink(f"{TOPIC}/{layout.segment_stem(1)}.{kind}")
    log = SmallLog(disk)
    assert log.seqs() == list(range(7, 13))


def test_missing_data_with_a_cold_copy_is_read_from_there(disk: FakeDisk) -> None:
    """A listed segment without `.data` is read from its cold copy."""
    log = SmallLog(disk, cold_dir="/cold")
    log.append(count=12)
    log.checkpoint()
    disk.kill()
    disk.makedirs("/cold/topics/00000001")
    for kind in ("data", "idx"):
        path = f"{TOPIC}/{layout.segment_stem(1)}.{kind}"
        disk.replace(f"/cold/{layout.segment_object(1, 1, kind)}", disk.read(path))
        disk.unlink(path)
    log = SmallLog(disk, cold_dir="/cold")
    assert log.seqs() == list(range(1, 13))


def test_segment_files_that_no_snapshot_lists_below_the_floors_go(disk: FakeDisk) -> None:
    """Segment files that no snapshot lists and that are below the floors are deleted."""
    log = SmallLog(disk)
    log.append(count=12)
    log.checkpoint()
    stray = {kind: disk.read(f"{TOPIC}/{layout.segment_stem(1)}.{kind}") for kind in ("data", "idx")}
    log.delete(before_seq=8)
    for _ in range(4):
        log.append()
        log.checkpoint()
    assert segment_names(disk)[0] == 6
    disk.kill()
    for kind, content in stray.items():
        disk.replace(f"{TOPIC}/{layout.segment_stem(1)}.{kind}", content)
    log = SmallLog(disk)
    assert log.seqs() == list(range(8, 17))
    for _ in range(3):
        log.append()
        log.checkpoint()
    assert segment_names(disk)[0] == 6


def test_segment_files_that_no_snapshot_lists_and_that_continue_are_adopted(disk: FakeDisk) -> None:
    """Segment files that no snapshot lists and that continue the noted segments are taken in."""
    log = SmallLog(disk)
    log.create(durability="fsync")
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.append(count=12, tag="red")
    disk.on_operation = stop_at("snapshot.0002.bin.tmp")
    with pytest.raises(CrashNow):
        log.checkpoint()
    disk.on_operation = None
    killed(disk)
    assert segment_names(disk) == [1, 6, 11, 16]
    log = SmallLog(disk)
    assert "unfinished checkpoint" in "".join(log.report.notes)
    assert log.warnings == ""
    assert log.seqs() == list(range(1, 18))
    assert log.topic().live.checkpointed_seq == 17
    assert log.delete(tag="red", before_seq=12) == 6
    log.append()
    log.checkpoint()
    disk.kill()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4, 5, *range(12, 19)]


def test_other_segment_files_are_left_alone_and_reported(disk: FakeDisk) -> None:
    """All other segment files that no snapshot lists are left alone and reported."""
    log = SmallLog(disk)
    log.append(count=12)
    log.checkpoint()
    disk.kill()
    strays = {
        f"{TOPIC}/{layout.segment_stem(3)}.data": disk.read(f"{TOPIC}/{layout.segment_stem(6)}.data"),
        f"{TOPIC}/{layout.segment_stem(4)}.idx": b"?",
        f"{TOPIC}/notes.txt": b"mine",
        f"{ROOT}/wal/readme": b"mine",
        f"{ROOT}/unknown.bin": b"mine",
    }
    for path, content in strays.items():
        disk.replace(path, content)
    log = SmallLog(disk)
    assert layout.segment_stem(3) in log.warnings
    assert layout.segment_stem(4) in log.warnings
    assert log.seqs() == list(range(1, 13))
    for _ in range(3):
        log.append()
        log.checkpoint()
    log.close()
    assert {path: disk.read(path) for path in strays} == strays


def test_a_segment_in_both_tiers_is_read_from_the_hot_one(disk: FakeDisk) -> None:
    """A segment is hot and cold. The hot copy is used, and is moved again later."""
    log = SmallLog(disk, cold_dir="/cold")
    log.append(count=12)
    log.checkpoint()
    disk.kill()
    disk.makedirs("/cold/topics/00000001")
    for kind in ("data", "idx"):
        disk.replace(f"/cold/{layout.segment_object(1, 1, kind)}", b"a copy that was cut short")
    path = layout.snapshot_path(ROOT, 1)
    snapshot = decode(disk.read(path))
    state = decode_topic(snapshot.topics[0])
    state.segments[0].tier = "cold"
    snapshot.topics = [encode_topic(state)]
    disk.replace(path, encode(snapshot))
    log = SmallLog(disk, cold_dir="/cold")
    assert log.seqs() == list(range(1, 13))
    assert log.topic().live.segments.segments[0].tier == "hot"


def test_temporary_files_are_deleted(disk: FakeDisk) -> None:
    """`*.tmp` files are deleted and never loaded."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    disk.kill()
    snapshot = decode(disk.read(layout.snapshot_path(ROOT, 1)))
    snapshot.number = 9
    snapshot.topics = []
    doomed = {
        f"{ROOT}/meta/snapshot.0009.bin.tmp": encode(snapshot),
        f"{ROOT}/wal/wal-next.tmp": b"\xff" * 100,
        f"{TOPIC}/{layout.segment_stem(1)}.idx.tmp": b"?",
        f"{TOPIC}/topic.json.tmp": b"?",
    }
    for path, content in doomed.items():
        disk.replace(path, content)
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4]
    assert [path for path in doomed if disk.exists(path)] == []


def test_a_frame_from_the_future_is_refused(disk: FakeDisk) -> None:
    """A frame has a version from the future. The start is refused, names the version, and applies nothing."""
    synced_log(disk)
    killed(disk)
    body = bytearray(wal_frame.encode_control(FrameType.NOTE, 1, 1, b"\x80")[4:-8])
    body[0] = 99
    disk.poke(WAL, end_of_frames(disk), wal_frame.seal_bodies([bytes(body)]))
    error = refused(disk)
    assert isinstance(error, FutureVersion)
    assert "frame type 99" in error.message
    assert "newer version" in error.message


def test_a_snapshot_from_the_future_is_refused(disk: FakeDisk) -> None:
    """A snapshot has a version from the future. The start is refused and names the version."""
    log = SmallLog(disk)
    for _ in range(2):
        log.append()
        log.checkpoint()
    killed(disk)
    disk.poke(layout.snapshot_path(ROOT, 2), 4, struct.pack("<I", 7))
    error = refused(disk)
    assert isinstance(error, FutureVersion)
    assert "version 7" in error.message


HOLD = """
import sys
import topics

log = topics.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_is_held_by_a_live_process_names_it_at_once(tmp_path: Path) -> None:
    """A live process holds the lock. The start fails at once and names its pid."""
    root = str(tmp_path / "data")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryLocked, match=f"process {holder.pid} "):
            open_real(root)
    finally:
        holder.kill()
        holder.communicate()
    opened = open_real(root)
    opened.release()


def open_real(root: str) -> Any:
    return open_engine(
        RealFs(), root, settings=small_settings(), clock=SystemClock(), runtime=InlineRuntime(), runner=None
    )


def test_a_full_disk_starts_serves_reads_and_takes_writes_when_there_is_room(disk: FakeDisk) -> None:
    """The disk is full. The engine starts and serves reads. It refuses writes as `storage_full` until there is room."""
    log = synced_log(disk)
    log.checkpoint()
    log.append(count=2)
    killed(disk)
    before = disk.files()
    disk.capacity_bytes = sum(map(len, before.values()))
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4, 5, 6]
    while True:
        try:
            log.append(count=10)
        except StorageFull:
            break
    count = log.topic().head_seq
    assert log.seqs() == list(range(1, count + 1))
    assert set(before) <= set(disk.files()), "nothing was deleted"
    disk.capacity_bytes = None
    assert log.append().first_seq == count + 1
    disk.kill()
    assert SmallLog(disk).seqs() == list(range(1, count + 2))


def test_a_full_disk_and_another_shard_count_lose_nothing(disk: FakeDisk) -> None:
    """The change of the shard count needs room. Until there is room the old count stays, and nothing is lost."""
    log = synced_log(disk)
    log.checkpoint()
    log.append(count=3)
    killed(disk)
    disk.capacity_bytes = sum(map(len, disk.files().values())) + 40
    log = SmallLog(disk, wal_shards=3)
    assert "no room to change the log from 1 to 3 shards" in log.warnings
    assert len(log.engine.wal.shards) == 1
    assert log.seqs() == [1, 2, 3, 4, 5, 6, 7]
    disk.capacity_bytes = None
    assert log.append().first_seq == 8
    disk.kill()
    log = SmallLog(disk, wal_shards=3)
    assert log.seqs() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(log.engine.wal.shards) == 3


def test_nothing_is_cut_on_a_full_disk_while_the_torn_bytes_cannot_be_kept(disk: FakeDisk) -> None:
    """Nothing is cut while the `.torn` file cannot be written."""
    synced_log(disk)
    killed(disk)
    end = end_of_frames(disk)
    disk.poke(WAL, end, b"torn bytes")
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    log = SmallLog(disk)
    assert "no room" in log.warnings
    assert log.seqs() == [1, 2, 3, 4]
    with pytest.raises(StorageFull):
        log.append()
    assert disk.read(WAL)[end : end + 10] == b"torn bytes"
    disk.capacity_bytes = None
    assert log.append().first_seq == 5
    assert disk.read(f"{WAL}.{end}.torn") == b"torn bytes"
    disk.kill()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4, 5]


def test_a_power_loss_found_on_a_full_disk_is_not_forgotten_when_there_is_room_again(disk: FakeDisk) -> None:
    """The lost range is logged after the cut tail, and no later frame overwrites it."""
    log = SmallLog(disk)
    log.append(count=4)
    log.engine.wal.shards[0].sync()
    disk.crash(Damage.KEEP)
    end = end_of_frames(disk)
    disk.poke(WAL, end, b"torn bytes")
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    log = SmallLog(disk)
    assert log.report.lost_seqs > 0
    with pytest.raises(StorageFull):
        log.append()
    disk.capacity_bytes = None
    first_seq = log.append().first_seq
    assert first_seq > 200
    disk.kill()
    records, tombstones = SmallLog(disk).read()
    assert [record.seq for record in records] == [1, 2, 3, 4, first_seq]
    assert [(stone.reason, stone.gap_from, stone.gap_to) for stone in tombstones] == [("power_loss", 5, first_seq - 1)]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.EROFS])
def test_a_directory_that_cannot_be_read_or_written_is_refused_with_the_reason_of_the_system(
    disk: FakeDisk, error: int
) -> None:
    """The directory is read-only or unreadable. The start is refused with the reason of the system."""
    log = synced_log(disk)
    log.checkpoint()
    killed(disk)
    before = disk.files()
    for operations in (("open",), ("listdir",), ("lock",), ("create", "pwrite", "makedirs", "lock", "truncate")):
        fs = FaultFs(disk)
        fs.fail(*operations, error=error, lasts=True)  # type: ignore[arg-type]
        with pytest.raises(StartRefused, match=os.strerror(error)):
            SmallLog(fs)
    assert disk.files().keys() == before.keys()
    assert SmallLog(disk).seqs() == [1, 2, 3, 4]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", ["gone", "empty"])
@pytest.mark.parametrize("checkpoints", [0, 1, 4])
def test_a_missing_or_empty_file_that_current_names_is_damage(
    disk: FakeDisk, how: str, shards: int, checkpoints: int
) -> None:
    """CURRENT proves that the file existed. The start is refused and names the file."""
    log = SmallLog(disk, wal_shards=shards)
    log.create(durability="fsync")
    for _ in range(checkpoints):
        log.append(count=40)
        log.checkpoint()
    log.append(count=3)
    killed(disk)
    for name in [path for path in disk.files() if path.endswith(layout.TEMPORARY)]:
        disk.unlink(name)
    directory = layout.shard_directory(ROOT, log.topic().id % shards, shards)
    path = f"{directory}/{disk.read(f'{directory}/CURRENT').decode()}"
    if how == "gone":
        disk.unlink(path)
    else:
        disk.replace(path, b"")
    error = refused(disk, wal_shards=shards)
    assert isinstance(error, Damaged)
    assert error.path == path


@pytest.mark.parametrize("current", ["CURRENT kept", "CURRENT gone"])
@pytest.mark.parametrize("how", ["gone", "empty", "zeros"])
def test_a_missing_or_empty_file_that_the_snapshot_goes_on_from_is_damage(
    disk: FakeDisk, how: str, current: str
) -> None:
    """The position in the snapshot proves that the file had frames. The start is refused and names the file."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    log.append()
    killed(disk)
    if how == "gone":
        disk.unlink(WAL)
    else:
        disk.replace(WAL, b"" if how == "empty" else bytes(WAL_FILE_BYTES))
    if current == "CURRENT gone":
        disk.unlink(f"{ROOT}/wal/CURRENT")
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert error.path == WAL


def test_a_log_of_zeros_beside_topics_is_not_a_fresh_directory(disk: FakeDisk) -> None:
    """No snapshot is there, and the log has no frame. A new topic must not get the id, and so the files, of a topic."""
    log = SmallLog(disk)
    log.append(count=12)
    log.close()
    for number in snapshot_names(disk):
        disk.unlink(layout.snapshot_path(ROOT, number))
    disk.replace(WAL, bytes(WAL_FILE_BYTES))
    log = SmallLog(disk)
    assert "no snapshot is readable" in log.warnings
    assert log.seqs() == list(range(1, 13))
    log.append("b")
    assert log.topic("b").id > 1


def two_topics(disk: FakeDisk, *, close: bool) -> None:
    """Topics `a` and `b` with equal seqs, and records of equal size at equal times."""
    log = SmallLog(disk, segment_events_max=5)
    for name in ("a", "b"):
        log.create(name, durability="fsync")
    for _ in range(13):
        for name in ("a", "b"):
            log.append(name)
    log.checkpoint()
    if close:
        log.close()
    killed(disk)


def swap(disk: FakeDisk, one: str, other: str) -> None:
    first, second = disk.read(one), disk.read(other)
    disk.replace(one, second)
    disk.replace(other, first)


def readable(log: SmallLog, name: str) -> list[int]:
    """Seqs that can be read one by one. Every record has the payload that was written to this topic."""
    found: list[int] = []
    for seq in range(1, log.topic(name).head_seq + 1):
        try:
            page = log.engine.read(name, seq - 1, limit=1)
        except CorruptRecord:
            continue
        for record in page.records:
            assert record.data == b'{"topic":"%b","n":%d}' % (name.encode(), record.seq)
            found.append(record.seq)
    return found


@pytest.mark.parametrize("kinds", [("data",), ("data", "idx")], ids=["data", "data and index"])
@pytest.mark.parametrize("first_seq", [1, 6, 11])
@pytest.mark.parametrize("close", [True, False], ids=["clean stop", "killed"])
def test_a_segment_file_of_another_topic_is_never_served(
    disk: FakeDisk, kinds: tuple[str, ...], first_seq: int, close: bool
) -> None:
    """Segment files were swapped. Their records are damaged, all other records are served, and nothing is written to
    the files."""
    two_topics(disk, close=close)
    stems = [f"{ROOT}/topics/{topic:08X}/{layout.segment_stem(first_seq)}" for topic in (1, 2)]
    for kind in kinds:
        swap(disk, *(f"{stem}.{kind}" for stem in stems))
    verifier = list(Verifier(disk, ROOT).run())
    assert sum("they are not the ones" in finding.message for finding in verifier) == 2
    log = SmallLog(disk, segment_events_max=5)
    expected = [seq for seq in range(1, 14) if not first_seq <= seq < first_seq + 5]
    for name in ("a", "b"):
        assert readable(log, name) == expected
        assert log.topic(name).head_seq == 13
        with pytest.raises(CorruptRecord, match=rf"{layout.segment_stem(first_seq)}\.data is a file of another topic"):
            log.engine.read(name, first_seq - 1)
    before = {f"{stem}.data": disk.read(f"{stem}.data") for stem in stems}
    log.delete("a", seqs=[first_seq + 1])
    log.append("a", 2)
    log.checkpoint()
    log.append("a")
    log.checkpoint()
    assert {path: disk.read(path) for path in before} == before
    disk.kill()
    log = SmallLog(disk, segment_events_max=5)
    assert readable(log, "a") == [*expected, 14, 15, 16]
    assert readable(log, "b") == expected


@pytest.mark.parametrize("snapshots", ["snapshots", "no snapshots"])
def test_swapped_topic_directories_are_never_served_as_each_other(disk: FakeDisk, snapshots: str) -> None:
    """With a snapshot the records are damaged. Without any the start is refused, because the id in `topic.json` is not
    that of the directory."""
    two_topics(disk, close=True)
    for path in [path for path in disk.files() if path.startswith(f"{TOPIC}/")]:
        swap(disk, path, path.replace("/00000001/", "/00000002/"))
    if snapshots == "snapshots":
        log = SmallLog(disk)
        assert (readable(log, "a"), readable(log, "b")) == ([], [])
        return
    for path in [path for path in disk.files() if "/meta/" in path or "/wal/" in path]:
        disk.unlink(path)
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert error.path == f"{TOPIC}/topic.json"


def test_a_longer_active_segment_of_another_topic_is_not_taken_in(disk: FakeDisk) -> None:
    """Frames after the noted length would look like those of an unfinished checkpoint."""
    log = SmallLog(disk, segment_events_max=50)
    for name, count in (("a", 3), ("b", 6)):
        log.create(name, durability="fsync")
        log.append(name, count)
    log.checkpoint()
    killed(disk)
    swap(disk, *(f"{ROOT}/topics/{topic:08X}/{layout.segment_stem(1)}.data" for topic in (1, 2)))
    log = SmallLog(disk, segment_events_max=50)
    assert "is a file of another topic" in log.warnings
    assert (readable(log, "a"), readable(log, "b")) == ([], [])
    assert log.append("a").first_seq == 4


@pytest.mark.parametrize("own_count", [0, 2, 5, 8])
def test_a_foreign_segment_that_no_snapshot_lists_is_not_taken_in(disk: FakeDisk, own_count: int) -> None:
    """It begins where the segments of the topic end, like a segment of an unfinished checkpoint. `own_count` records
    with these seqs are in the log."""
    log = SmallLog(disk, segment_events_max=5)
    for name, count in (("a", 5), ("b", 10)):
        log.create(name, durability="fsync")
        for _ in range(count):
            log.append(name)
    log.checkpoint()
    for _ in range(own_count):
        log.append("a")
    killed(disk)
    stems = [f"{ROOT}/topics/{topic:08X}/{layout.segment_stem(6)}" for topic in (1, 2)]
    for kind in ("data", "idx"):
        disk.replace(f"{stems[0]}.{kind}", disk.read(f"{stems[1]}.{kind}"))
    error = refused(disk, segment_events_max=5)
    assert isinstance(error, Damaged)
    assert error.path == f"{stems[0]}.data"
    assert "a file of another topic" in error.found
    for kind in ("data", "idx"):
        disk.unlink(f"{stems[0]}.{kind}")
    log = SmallLog(disk, segment_events_max=5)
    assert readable(log, "a") == list(range(1, 6 + own_count))


@pytest.mark.parametrize("becomes_stored", [False, True])
def test_a_foreign_segment_in_the_folder_of_an_ephemeral_topic_is_not_taken_in(
    disk: FakeDisk, becomes_stored: bool
) -> None:
    """Checkpoints put no ephemeral records into files. When the topic becomes stored, the log says up to which seq
    records have no frames."""
    log = SmallLog(disk, segment_events_max=5)
    for name, durability, count in (("a", "ephemeral", 3), ("b", "fsync", 5)):
        log.create(name, durability=durability)
        for _ in range(count):
            log.append(name)
    log.checkpoint()
    if becomes_stored:
        log.create("a", durability="fsync")
    killed(disk)
    stems = [f"{ROOT}/topics/{topic:08X}/{layout.segment_stem(1)}" for topic in (1, 2)]
    disk.makedirs(f"{ROOT}/topics/{1:08X}")
    for kind in ("data", "idx"):
        disk.replace(f"{stems[0]}.{kind}", disk.read(f"{stems[1]}.{kind}"))
    findings = [(finding.file, finding.message) for finding in Verifier(disk, ROOT).run()]
    assert [message for path, message in findings if path.startswith("topics/00000001/")] == ["no snapshot lists it"]
    error = refused(disk, segment_events_max=5)
    assert isinstance(error, Damaged)
    assert error.path == f"{stems[0]}.data"
    assert "a file of another topic" in error.found
    for kind in ("data", "idx"):
        disk.unlink(f"{stems[0]}.{kind}")
    log = SmallLog(disk, segment_events_max=5)
    assert readable(log, "a") == []
    assert log.append("a").first_seq == 4


def test_a_foreign_segment_in_the_place_of_derived_copies_is_not_taken_in(disk: FakeDisk) -> None:
    """No frame has the copies, but the router makes them again."""
    log = SmallLog(disk, segment_events_max=5)
    for name in ("a", "b", "c"):
        log.create(name, durability="fsync")
    answers: list[Any] = []
    log.engine.put_router("r", RouterSpec(source="a", dest="c"), answers.append)
    log.engine.flush()
    assert answers == [True]
    for _ in range(5):
        log.append("a")
    for _ in range(10):
        log.append("b")
    assert len(log.read("c")[0]) == 5
    log.checkpoint()
    for _ in range(5):
        log.append("a")
    assert len(log.read("c")[0]) == 10
    killed(disk)
    stems = [f"{ROOT}/topics/{topic:08X}/{layout.segment_stem(6)}" for topic in (3, 2)]
    for kind in ("data", "idx"):
        disk.replace(f"{stems[0]}.{kind}", disk.read(f"{stems[1]}.{kind}"))
    error = refused(disk, segment_events_max=5)
    assert isinstance(error, Damaged)
    assert stems[0].endswith(error.path.removesuffix(".data"))
    assert "a file of another topic" in error.found


def test_a_segment_of_an_unfinished_checkpoint_agrees_with_the_log(disk: FakeDisk) -> None:
    log = SmallLog(disk, segment_events_max=5)
    log.create("a", durability="fsync")
    for _ in range(7):
        log.append("a")
    log.checkpoint()
    numbers = snapshot_names(disk)
    for _ in range(8):
        log.append("a")
    log.delete("a", seqs=[9])
    log.checkpoint()
    killed(disk)
    for number in set(snapshot_names(disk)) - set(numbers):
        disk.unlink(layout.snapshot_path(ROOT, number))
    log = SmallLog(disk, segment_events_max=5)
    assert "records of an unfinished checkpoint" in "".join(log.report.notes)
    assert log.seqs("a") == [seq for seq in range(1, 16) if seq != 9]


def test_a_snapshot_without_proofs_opens_as_before(disk: FakeDisk) -> None:
    """An older version wrote it."""
    two_topics(disk, close=True)
    path = layout.snapshot_path(ROOT, max(snapshot_names(disk)))
    snapshot = decode(disk.read(path))
    states = [decode_topic(entry) for entry in snapshot.topics]
    for state in states:
        for segment in state.segments:
            assert segment.proof
            segment.proof = b""
    snapshot.topics = [encode_topic(state) for state in states]
    disk.replace(path, encode(snapshot))
    log = SmallLog(disk)
    assert log.warnings == ""
    assert log.seqs("a") == list(range(1, 14))


# --- more about starts --------------------------------------------------------------------------------------


def test_a_wal_without_snapshot_and_current_is_replayed_and_never_taken_for_a_fresh_directory(disk: FakeDisk) -> None:
    for shards in (1, 3):
        machine = FakeDisk()
        log = SmallLog(machine, wal_shards=shards)
        for name in ("a", "b", "c"):
            log.append(name, 5)
        machine.kill()
        for path in machine.files():
            if "/meta/" in path or path.endswith(("CURRENT", "STORE", ".lock")):
                machine.unlink(path)
        log = SmallLog(machine, wal_shards=1)
        for name in ("a", "b", "c"):
            assert [record.seq for record in log.read(name)[0]] == [1, 2, 3, 4, 5]


def test_a_shard_directory_that_is_missing_is_not_taken_for_an_empty_one(disk: FakeDisk) -> None:
    """There is no snapshot, and some shard directories are gone."""
    log = SmallLog(disk, wal_shards=2)
    for name in ("a", "b", "c", "d"):
        log.append(name, 5)
    killed(disk)
    for name in disk.listdir(f"{ROOT}/wal/shard-01"):
        disk.unlink(f"{ROOT}/wal/shard-01/{name}")
    disk.rmdir(f"{ROOT}/wal/shard-01")
    error = refused(disk, wal_shards=2)
    assert isinstance(error, Damaged)
    assert error.path == f"{ROOT}/wal/shard-01"


def test_an_append_without_its_topic_is_kept_in_a_recovered_topic(disk: FakeDisk) -> None:
    """The start warns and drops nothing."""
    log = SmallLog(disk)
    log.append(count=3)
    killed(disk)
    content = disk.read(WAL)
    frames = list(wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX))
    kept = [content[frame.offset : frame.end] for frame in frames if frame.type != FrameType.TOPIC_CREATE]
    disk.replace(WAL, b"".join(kept).ljust(len(content), b"\0"))
    log = SmallLog(disk)
    assert "recovered-1" in log.warnings
    records, _ = log.read("recovered-1")
    assert [record.data for record in records] == [b'{"topic":"a","n":%d}' % seq for seq in (1, 2, 3)]
    log.create("b")
    assert log.topic("b").id == 2


def test_frames_that_stand_there_twice_are_applied_once(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.create(durability="memory")
    log.append(count=3, key="k")
    killed(disk)
    content = disk.read(WAL)
    end = end_of_frames(disk)
    frames = [
        content[frame.offset : frame.end]
        for frame in wal_frame.walk(content, 0, end, FRAME_BYTES_MAX)
        if frame.type in (FrameType.APPEND, FrameType.NOTE, FrameType.TOPIC_CREATE)
    ]
    disk.poke(WAL, end, b"".join(frames))
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3]
    assert log.append(count=3, key="k").deduped


def test_a_crash_around_the_rename_of_a_snapshot_leaves_the_old_or_the_new(disk: FakeDisk) -> None:
    """There is always one of them, after a crash at any call and any damage to unsynced data."""
    log = SmallLog(disk)
    log.create(durability="fsync")
    log.append(count=7)
    log.checkpoint()
    log.append(count=7)
    state = disk.clone()
    for damage in (Damage.DROP, Damage.SUBSET, Damage.TORN):
        point = 0
        while True:
            disk.restore(state)
            log = SmallLog(disk)
            disk.on_operation = hook = CrashAt(point)
            try:
                log.checkpoint()
            except CrashNow:
                pass
            disk.on_operation = None
            disk.crash(damage, point)
            log = SmallLog(disk)
            assert log.report.snapshot_number in (1, 2)
            assert log.seqs() == list(range(1, 15)), (damage, point)
            if hook.count <= point:
                break
            point += 1


def test_a_topic_deleted_and_made_again_across_a_crash_is_another_instance(disk: FakeDisk) -> None:
    """An old cursor gets a `recreated` tombstone."""
    log = SmallLog(disk)
    log.append(count=9)
    log.checkpoint()
    log.append(count=3)
    first = log.topic()
    log.drop()
    log.create(durability="fsync")
    log.append(count=2)
    disk.crash(Damage.DROP)
    log = SmallLog(disk)
    assert log.topic().id != first.id
    assert log.seqs() == [1, 2]
    page = log.engine.read("a", 9)
    assert page.tombstone is not None
    assert page.tombstone.reason == "recreated"
    assert [record.seq for record in page.records] == [1, 2]
    assert not disk.exists(TOPIC)


def test_a_file_system_that_cannot_sync_directories_is_tolerated_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from topics.storage import fs as fs_module

    sync = fs_module._fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(fd)

    monkeypatch.setattr(fs_module, "_fsync", fsync)
    fs = RealFs()
    opened = open_engine(
        fs, str(tmp_path / "data"), settings=small_settings(), clock=SystemClock(), runtime=InlineRuntime()
    )
    opened.release()
    assert len([record for record in caplog.records if "cannot sync directories" in record.message]) == 1


def test_recovering_twice_gives_the_same_bytes_as_recovering_once(disk: FakeDisk) -> None:
    """After every kind of damage to unsynced data. Invariant 43."""
    log = SmallLog(disk)
    log.create("b", durability="fsync", cap_bytes=400)
    for turn in range(6):
        log.append("a", 3, tag="red" if turn % 2 else None)
        log.append("b", 2, key=f"key-{turn}")
        if turn == 3:
            log.checkpoint()
        if turn == 4:
            log.delete("a", tag="red")
    for damage in Damage:
        for seed in range(3):
            machine = disk.clone()
            machine.crash(damage, seed)
            reopened_twice(machine)


def test_a_start_from_a_snapshot_equals_a_start_from_the_whole_log(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.create("b", durability="fsync", cap_records=7)
    for turn in range(5):
        log.append("a", 4, tag="red" if turn % 2 else None)
        log.append("b", 3, key=f"key-{turn}")
        if turn == 2:
            log.delete("a", tag="red", before_seq=7)
            log.checkpoint()
    killed(disk)
    machine = disk.clone()
    for number in snapshot_names(machine):
        machine.unlink(layout.snapshot_path(ROOT, number))
    assert wal_names(machine)[0] == 1
    with_snapshot, without = SmallLog(disk), SmallLog(machine)
    for name in ("a", "b"):
        one, other = with_snapshot.topic(name), without.topic(name)
        assert with_snapshot.seqs(name) == without.seqs(name)
        for number in ("head_seq", "count", "size_bytes", "earliest_seq", "id", "config"):
            assert getattr(one, number) == getattr(other, number), (name, number)
        assert (one.live.evict_floor, one.writes.last_ts) == (other.live.evict_floor, other.writes.last_ts)
        assert list(one.keys) == list(other.keys)


def test_a_kill_in_the_middle_of_recovery_again_and_again_converges(disk: FakeDisk) -> None:
    """Seqs that were lost before the first recovery also stay known."""
    log = SmallLog(disk)
    log.append(count=4)
    log.checkpoint()
    log.append(count=4)
    log.engine.wal.shards[0].sync()
    disk.crash(Damage.KEEP)
    disk.poke(WAL, end_of_frames(disk), b"torn")
    for point in range(0, 40, 3):
        disk.on_operation = CrashAt(point)
        try:
            SmallLog(disk)
        except CrashNow:
            disk.on_operation = None
            disk.kill()
            continue
        break
    disk.on_operation = None
    disk.kill()
    log = SmallLog(disk)
    records, tombstones = log.read()
    assert [record.seq for record in records] == list(range(1, 9))
    assert [stone.reason for stone in tombstones] == ["power_loss"]


def test_the_order_of_calls_is_kept_by_a_start_with_much_to_repair(disk: FakeDisk) -> None:
    log = SmallLog(disk, wal_shards=2)
    for name in ("a", "b", "c"):
        log.append(name, 12)
    log.checkpoint()
    for name in ("a", "b", "c"):
        log.append(name, 12)
    disk.crash(Damage.KEEP)
    path = next(path for path in disk.files() if path.endswith(".log"))
    disk.poke(path, end_of_frames(disk, path), b"torn")
    disk.unlink(f"{TOPIC}/{layout.segment_stem(1)}.idx")
    monitor = MonitorFs(disk)
    log = SmallLog(monitor, wal_shards=3)
    assert monitor.violations == []
    assert len(log.read("a")[0]) == 24


def test_a_lone_mark_before_a_checkpoint_makes_no_start_worry(disk: FakeDisk) -> None:
    """One shard is idle. Its noted position follows a sync mark that was written without records."""
    log = SmallLog(disk, wal_shards=2)
    names = ["a", "b", "c", "d"]
    for name in names:
        log.create(name, durability="fsync")
        log.append(name)
    log.tick(SYNC_MARK_DELAY_MS)
    busy = log.engine.wal.shard_for(log.topic("a").id)
    log.append("a")
    log.checkpoint()
    assert busy in log.engine.wal.shards
    disk.crash(Damage.DROP)
    log = SmallLog(disk, wal_shards=2)
    assert log.warnings == ""
    assert log.seqs("a") == [1, 2]


def test_a_removal_that_was_cut_short_is_finished(disk: FakeDisk) -> None:
    log = SmallLog(disk)
    log.append(count=9)
    log.checkpoint()
    disk.on_operation = stop_at(".deleted")
    with pytest.raises(CrashNow):
        log.drop()
    disk.on_operation = None
    disk.crash(Damage.DROP)
    log = SmallLog(disk)
    assert log.engine.topics == {}
    log.append("b")
    log.checkpoint()
    log.append("b")
    log.checkpoint()
    disk.kill()
    SmallLog(disk)
    assert disk.listdir(f"{ROOT}/topics") == ["00000002"]


def test_a_deleted_directory_that_is_left_over_is_removed(disk: FakeDisk) -> None:
    SmallLog(disk)
    disk.kill()
    disk.makedirs(f"{ROOT}/topics/00000007.deleted")
    disk.replace(f"{ROOT}/topics/00000007.deleted/{layout.segment_stem(1)}.data", b"?")
    SmallLog(disk)
    assert disk.listdir(f"{ROOT}/topics") == []


def test_a_control_frame_that_makes_no_sense_is_damage_with_its_place(disk: FakeDisk) -> None:
    """The checksum is good, so the frame was written like that. The start does not guess what it means."""
    synced_log(disk)
    killed(disk)
    end = end_of_frames(disk)
    disk.poke(WAL, end, wal_frame.encode_control(FrameType.DELETE, 1, 1, control.encode({"bound": "x"})))
    error = refused(disk)
    assert isinstance(error, Damaged)
    assert (error.path, error.offset) == (WAL, end)


def test_progress_is_told(disk: FakeDisk) -> None:
    log = SmallLog(disk, wal_shards=2)
    log.append(count=20)
    disk.kill()
    told: list[float] = []
    open_engine(
        disk,
        ROOT,
        settings=small_settings(wal_shards=2),
        clock=log.clock,
        runtime=InlineRuntime(),
        progress=told.append,
    )
    assert told
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1.0)


def test_a_topic_entry_is_what_its_snapshot_says(disk: FakeDisk) -> None:
    """The test decodes the snapshot itself and compares the numbers that a start relies on."""
    log = SmallLog(disk)
    log.create(cap_records=8)
    log.append(count=12)
    log.delete(seqs=[7])
    log.checkpoint()
    snapshot = decode(disk.read(layout.snapshot_path(ROOT, 1)))
    state = decode_topic(snapshot.topics[0])
    assert (state.name, state.head_seq, state.cap_floor, state.checkpointed_seq) == ("a", 12, 4, 12)
    assert (state.first_live, snapshot.next_topic_id) == (5, 2)
    assert sum(segment.live_count for segment in state.segments) == 7
    assert isinstance(snapshot.wal[0], WalPosition)
    assert msgspec.json.decode(disk.read(f"{TOPIC}/topic.json"))["cap_floor"] == 4


@pytest.mark.parametrize("derived", ["wal/CURRENT", "topics/00000001/seg-0000000000000001.idx"])
def test_what_is_only_derived_is_not_needed_on_a_full_disk(disk: FakeDisk, derived: str) -> None:
    """The start serves even when there is no room to write a derived file again."""
    log = synced_log(disk)
    log.checkpoint()
    log.append(count=2)
    killed(disk)
    disk.unlink(f"{ROOT}/{derived}")
    disk.capacity_bytes = sum(map(len, disk.files().values()))
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4, 5, 6]
    disk.kill()
    disk.capacity_bytes = None
    log = SmallLog(disk)
    assert log.seqs() == [1, 2, 3, 4, 5, 6]
    assert disk.exists(f"{ROOT}/{derived}")
