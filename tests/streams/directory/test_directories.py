"""Folders of streams, topics and partitions: their paths, and how they are removed completely."""

import pytest

from topics.streams.directory.directories import Directories
from topics.streams.settings import from_mapping
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

ROOT = "/data"


def made(disk: FakeDisk | None = None) -> tuple[FakeDisk, Directories]:
    disk = disk or FakeDisk()
    return disk, Directories(MonitorFs(disk), ROOT, from_mapping({}))


def fill(disk: FakeDisk, path: str) -> None:
    disk.makedirs(f"{path}/inner/most")
    for name in (f"{path}/file", f"{path}/inner/most/file"):
        disk.replace(name, b"content")


def test_keys_are_paths_below_the_directory_by_the_names_of_the_settings() -> None:
    settings = from_mapping({"system": {"stream": {"path": "S"}, "topic": {"path": "T"}, "partition": {"path": "P"}}})
    directories = Directories(FakeDisk(), ROOT, settings)
    assert directories.keys.streams == "S"
    assert directories.keys.partition(1, 2, 3) == "S/1/T/2/P/3"
    assert directories.path(directories.keys.partitions_of(1, 2)) == "/data/S/1/T/2/P"
    _, directories = made()
    assert directories.keys.partition(0, 0, 0) == "streams/0/topics/0/partitions/0"


def test_a_folder_goes_with_all_that_is_in_it() -> None:
    disk, directories = made()
    fill(disk, f"{ROOT}/streams/0")
    directories.remove("streams/0")
    assert directories.names("streams") == []
    directories.remove("streams/0")
    assert directories.names("nothing") == []


def test_a_removal_that_is_cut_short_anywhere_leaves_all_or_something_that_a_start_finishes() -> None:
    operation_index = 0
    while True:
        disk, directories = made()
        fill(disk, f"{ROOT}/streams/0")
        disk.on_operation = hook = CrashAt(operation_index)
        try:
            directories.remove("streams/0")
        except CrashNow:
            pass
        disk.on_operation = None
        for damage in Damage:
            left = disk.clone()
            left.crash(damage, operation_index)
            _, found = made(left)
            if found.names("streams") == ["0"]:
                for name in ("file", "inner/most/file"):
                    assert left.read(f"{ROOT}/streams/0/{name}") == b"content"
            else:
                found.finish_removals("streams")
                assert found.names("streams") == []
        if hook.count <= operation_index:
            break
        operation_index += 1
    assert operation_index > 5


def test_what_an_earlier_removal_could_not_delete_does_not_stop_the_next() -> None:
    disk, directories = made()
    fill(disk, f"{ROOT}/streams/0.deleted")
    fill(disk, f"{ROOT}/streams/0")
    directories.remove("streams/0")
    assert directories.names("streams") == []


def test_a_folder_in_the_way_is_set_aside_under_a_name_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    disk, directories = made()
    for _ in range(2):
        fill(disk, f"{ROOT}/streams/0")
        directories.make_room("streams/0")
    directories.make_room("streams/0")
    assert directories.names("streams") == ["0.set-aside-1", "0.set-aside-2"]
    assert caplog.text.count("is not in the state log and was in the way") == 2
    disk.crash(Damage.DROP)
    assert directories.names("streams") == ["0.set-aside-1", "0.set-aside-2"]
