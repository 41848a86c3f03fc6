"""Which snapshot counts, and which files stay."""

import struct

import msgspec
import pytest

from topics.errors import FutureVersion
from topics.formats.snapshot import Snapshot, TopicState, WalPosition, decode_topic, encode, encode_topic
from topics.storage import layout
from topics.storage.snapshots import drop_old_snapshots, load_snapshots, write_snapshot
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

ROOT = "/data"


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(layout.meta_directory(ROOT))
    return disk


def snapshot(number: int) -> Snapshot:
    topic = TopicState(f"topic-{number}", 1, 1, {}, head_seq=number)
    return Snapshot(number, 2, [WalPosition(number, 1, number * 10)], [encode_topic(topic)])


def put(disk: FakeDisk, *numbers: int) -> None:
    for number in numbers:
        write_snapshot(disk, ROOT, snapshot(number))


def newest(disk: FakeDisk) -> int | None:
    loaded = load_snapshots(disk, ROOT)
    return loaded.newest.number if loaded.newest is not None else None


def test_a_snapshot_comes_back_as_it_was_written(disk: FakeDisk) -> None:
    put(disk, 7)
    loaded = load_snapshots(disk, ROOT)
    assert loaded.newest is not None
    assert loaded.newest.wal == [WalPosition(7, 1, 70)]
    assert decode_topic(loaded.newest.topics[0]).name == "topic-7"
    assert (loaded.numbers, loaded.bad) == ([7], [])


def test_the_newest_counts_by_number_not_by_name(disk: FakeDisk) -> None:
    put(disk, 9999, 10_000)
    assert newest(disk) == 10_000


def test_no_snapshot_is_no_error(disk: FakeDisk) -> None:
    loaded = load_snapshots(disk, ROOT)
    assert (loaded.newest, loaded.numbers, loaded.bad) == (None, [], [])


def test_any_flipped_byte_of_the_newest_falls_back_to_the_one_before(disk: FakeDisk) -> None:
    """The checksum is looked at before anything is parsed."""
    put(disk, 1, 2)
    path = layout.snapshot_path(ROOT, 2)
    good = disk.read(path)
    for offset in range(len(good)):
        if offset in range(4, 8):
            continue  # The version: see below.
        disk.replace(path, good)
        disk.poke(path, offset, bytes([good[offset] ^ 0x40]))
        loaded = load_snapshots(disk, ROOT)
        assert loaded.newest is not None
        assert (loaded.newest.number, loaded.bad) == (1, [path]), offset


@pytest.mark.parametrize("cut", [0, 3, 23, 24, 40])
def test_a_snapshot_cut_anywhere_falls_back(disk: FakeDisk, cut: int) -> None:
    put(disk, 1, 2)
    path = layout.snapshot_path(ROOT, 2)
    disk.replace(path, disk.read(path)[:cut])
    assert newest(disk) == 1


def test_all_bad_leaves_none_and_names_them(disk: FakeDisk) -> None:
    put(disk, 1, 2)
    for number in (1, 2):
        disk.replace(layout.snapshot_path(ROOT, number), b"?")
    loaded = load_snapshots(disk, ROOT)
    assert loaded.newest is None
    assert loaded.bad == [layout.snapshot_path(ROOT, number) for number in (2, 1)]
    assert loaded.numbers == [1, 2]


def test_a_snapshot_from_the_future_is_refused_not_skipped(disk: FakeDisk) -> None:
    """It is not bad, we are old."""
    put(disk, 1, 2)
    disk.poke(layout.snapshot_path(ROOT, 2), 4, struct.pack("<I", 2))
    with pytest.raises(FutureVersion, match="version 2"):
        load_snapshots(disk, ROOT)


def test_two_are_kept(disk: FakeDisk) -> None:
    put(disk, 1, 2, 3, 4)
    drop_old_snapshots(disk, ROOT, 4)
    assert load_snapshots(disk, ROOT).numbers == [3, 4]
    drop_old_snapshots(disk, ROOT, 4, kept=1)
    assert load_snapshots(disk, ROOT).numbers == [4]


def test_one_above_the_newest_was_found_bad_and_goes(disk: FakeDisk) -> None:
    put(disk, 1, 2, 9)
    drop_old_snapshots(disk, ROOT, 2)
    assert load_snapshots(disk, ROOT).numbers == [1, 2]


def test_other_files_are_left_alone(disk: FakeDisk) -> None:
    put(disk, 1, 2, 3)
    for name in ("notes.txt", "snapshot.1.bin", "snapshot.0001.bin.bak"):
        disk.replace(f"{layout.meta_directory(ROOT)}/{name}", b"?")
    drop_old_snapshots(disk, ROOT, 3)
    assert {"notes.txt", "snapshot.1.bin", "snapshot.0001.bin.bak"} < set(disk.listdir(layout.meta_directory(ROOT)))


def test_a_crash_at_any_call_leaves_the_old_one_or_the_new_one(disk: FakeDisk) -> None:
    """Never none."""
    put(disk, 1)
    for damage in Damage:
        point = 0
        while True:
            machine = disk.clone()
            machine.on_operation = hook = CrashAt(point)
            try:
                write_snapshot(machine, ROOT, snapshot(2))
                drop_old_snapshots(machine, ROOT, 2, kept=1)
            except CrashNow:
                pass
            machine.on_operation = None
            machine.crash(damage, point)
            finished = hook.count <= point
            assert newest(machine) in ((2,) if finished else (1, 2))
            if finished:
                break
            point += 1
        assert point >= 5


def test_the_order_of_calls_is_kept(disk: FakeDisk) -> None:
    monitor = MonitorFs(disk)
    for number in (1, 2, 3):
        write_snapshot(monitor, ROOT, snapshot(number))
        drop_old_snapshots(monitor, ROOT, number)
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_a_body_that_is_no_snapshot_is_bad_though_its_checksum_agrees(disk: FakeDisk) -> None:
    put(disk, 1)
    other = encode(msgspec.structs.replace(snapshot(2), wal="?"))  # type: ignore[arg-type]
    disk.replace(layout.snapshot_path(ROOT, 2), other)
    assert newest(disk) == 1
