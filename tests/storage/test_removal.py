"""Taking files away: exactly the ones that were named, durably, and again after a crash."""

from pathlib import Path

import pytest

from tests.storage.segments.segment_bench import DIRECTORY, ROOT, TOPIC, stem, write
from tests.storage.wal.wal_bench import frame
from topics.errors import ColdUnavailable
from topics.formats.snapshot import SegmentState, WalPosition
from topics.storage import layout
from topics.storage.fs import RealFs
from topics.storage.removal import (
    remove_cold_copy,
    remove_deleted_directory,
    remove_hot_copy,
    remove_segment,
    remove_topic_directory,
    remove_tree,
    remove_wal_files,
)
from topics.storage.segments.writer import SegmentLimits
from topics.storage.tiers.folder_store import FolderStore
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(layout.wal_directory(ROOT))
    return disk


@pytest.fixture
def cold(disk: FakeDisk) -> FolderStore:
    disk.makedirs("/cold")
    return FolderStore(disk, "/cold")


def put_wal(disk: FakeDisk, *first_frames: int, directory: str = f"{ROOT}/wal") -> None:
    disk.makedirs(directory)
    for first_frame in first_frames:
        disk.replace(f"{directory}/{layout.wal_name(first_frame)}", frame(first_frame))


def numbers(disk: FakeDisk, directory: str = f"{ROOT}/wal") -> list[int]:
    return [found for name in disk.listdir(directory) if (found := layout.wal_first_frame(name)) is not None]


@pytest.mark.parametrize(
    ("frame_number", "left"),
    [(1, [1, 10, 20]), (9, [1, 10, 20]), (10, [10, 20]), (19, [10, 20]), (20, [20]), (500, [20])],
)
def test_wal_files_go_when_all_their_frames_come_before_the_position(
    disk: FakeDisk, frame_number: int, left: list[int]
) -> None:
    """The last file always stays: it takes the next frame."""
    put_wal(disk, 1, 10, 20)
    remove_wal_files(disk, ROOT, [WalPosition(frame_number, 10, 0)])
    assert numbers(disk) == left
    disk.crash(Damage.DROP)
    assert numbers(disk) == left


def test_each_shard_has_its_own_position(disk: FakeDisk) -> None:
    for shard in range(2):
        put_wal(disk, 1, 10, 20, directory=f"{ROOT}/wal/shard-{shard:02d}")
    remove_wal_files(disk, ROOT, [WalPosition(10, 10, 0), WalPosition(25, 20, 9)])
    assert numbers(disk, f"{ROOT}/wal/shard-00") == [10, 20]
    assert numbers(disk, f"{ROOT}/wal/shard-01") == [20]


def test_files_that_are_no_log_stay(disk: FakeDisk) -> None:
    put_wal(disk, 1, 10)
    for name in ("CURRENT", "wal-0000000000000001.log.99.torn", "readme"):
        disk.replace(f"{ROOT}/wal/{name}", b"?")
    remove_wal_files(disk, ROOT, [WalPosition(10, 10, 0)])
    assert sorted(disk.listdir(f"{ROOT}/wal")) == [
        "CURRENT",
        "readme",
        "wal-0000000000000001.log.99.torn",
        "wal-0000000000000010.log",
    ]


def segments(disk: FakeDisk) -> list[SegmentState]:
    return write(disk, [1, 2, 3, 4], limits=SegmentLimits(2, 1 << 20, 0), tags={1: "red"})


def test_a_segment_goes_with_all_its_files_and_its_neighbour_stays(disk: FakeDisk) -> None:
    first, second = segments(disk)
    for _ in range(2):
        remove_segment(disk, ROOT, TOPIC, first)
        assert sorted(disk.listdir(DIRECTORY)) == ["seg-0000000000000003.data", "seg-0000000000000003.idx"]
    disk.crash(Damage.DROP)
    assert not disk.exists(f"{stem(1)}.data")
    assert disk.exists(f"{stem(second.first_seq)}.data")


def test_a_cold_segment_goes_with_all_its_objects_and_its_neighbour_stays(disk: FakeDisk, cold: FolderStore) -> None:
    for first_seq in (1, 3):
        for kind in ("data", "idx", "tags"):
            cold.put(layout.segment_object(TOPIC, first_seq, kind), b"?")
    remove_cold_copy(cold, TOPIC, 1)
    assert cold.list("topics/") == [layout.segment_object(TOPIC, 3, kind) for kind in ("data", "idx", "tags")]


def test_a_topic_goes_whole_at_whatever_call_the_machine_stops(disk: FakeDisk) -> None:
    """A start finishes what was left; a topic is never there by half under its own name."""
    segments(disk)
    whole = set(disk.listdir(DIRECTORY))
    for damage in (Damage.DROP, Damage.KEEP, Damage.SUBSET):
        point = 0
        while True:
            machine = disk.clone()
            machine.on_operation = hook = CrashAt(point)
            try:
                remove_topic_directory(machine, ROOT, TOPIC)
            except CrashNow:
                pass
            machine.on_operation = None
            machine.crash(damage, point)
            if machine.exists(DIRECTORY):
                assert set(machine.listdir(DIRECTORY)) == whole
            remove_topic_directory(machine, ROOT, TOPIC)
            assert machine.listdir(layout.topics_directory(ROOT)) == []
            if hook.count <= point:
                break
            point += 1
        assert point > 5


def test_removing_a_topic_that_never_had_files_is_no_error(disk: FakeDisk) -> None:
    disk.makedirs(layout.topics_directory(ROOT))
    remove_topic_directory(disk, ROOT, 77)
    remove_deleted_directory(disk, f"{ROOT}/topics/0000004D.deleted")


def test_a_hot_copy_goes_only_while_the_cold_one_is_there(disk: FakeDisk, cold: FolderStore) -> None:
    segments(disk)
    with pytest.raises(ColdUnavailable):
        remove_hot_copy(disk, ROOT, cold, TOPIC, 1, is_stopped=lambda: False)
    assert disk.exists(f"{stem(1)}.data")
    cold.put(layout.segment_object(TOPIC, 1, "data"), disk.read(f"{stem(1)}.data"))
    remove_hot_copy(disk, ROOT, cold, TOPIC, 1, is_stopped=lambda: True)
    assert disk.exists(f"{stem(1)}.data")
    remove_hot_copy(disk, ROOT, cold, TOPIC, 1, is_stopped=lambda: False)
    assert sorted(disk.listdir(DIRECTORY)) == ["seg-0000000000000003.data", "seg-0000000000000003.idx"]


def test_the_order_of_calls_is_kept(disk: FakeDisk) -> None:
    first, _ = segments(disk)
    put_wal(disk, 1, 10)
    monitor = MonitorFs(disk)
    remove_segment(monitor, ROOT, TOPIC, first)
    remove_wal_files(monitor, ROOT, [WalPosition(10, 10, 0)])
    remove_topic_directory(monitor, ROOT, TOPIC)
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_a_strange_folder_inside_a_doomed_directory_is_not_an_end_of_everything(tmp_path: Path) -> None:
    """Unknown files are not deleted: they stay, with their folder, until a person removes them."""
    doomed = tmp_path / "topics" / "00000001.deleted"
    (doomed / "strange").mkdir(parents=True)
    with pytest.raises(OSError):  # noqa: PT011 - EISDIR or EPERM, by the system
        remove_deleted_directory(RealFs(), str(doomed))
    assert doomed.exists()


def test_a_tree_goes_with_all_that_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "doomed" / "inner" / "empty").mkdir(parents=True)
    (tmp_path / "doomed" / "inner" / "file").write_bytes(b"x")
    (tmp_path / "neighbour").write_bytes(b"y")
    remove_tree(RealFs(), str(tmp_path / "doomed"))
    assert [path.name for path in tmp_path.iterdir()] == ["neighbour"]
    remove_tree(RealFs(), str(tmp_path / "doomed"))
