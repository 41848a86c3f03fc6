"""The version file: written if it names another version, and otherwise not changed."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics.formats.stream_layout import Flavour
from topics.storage.fs import RealFs
from topics.streams.directory.info_file import next_hash, update_info
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs
from topics.version import VERSION

FIRST_HASH = "3476900567878811119"


def fresh_disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs("/data/state")
    return disk


def page_info(disk: FakeDisk) -> dict[str, Any]:
    decoded = json.loads(disk.read("/data/info.json"))
    assert isinstance(decoded, dict)
    return decoded


def test_the_first_hash_is_the_known_one_and_each_follows_from_the_last() -> None:
    assert next_hash("") == FIRST_HASH
    assert next_hash(FIRST_HASH) != FIRST_HASH
    assert next_hash(FIRST_HASH) == next_hash(FIRST_HASH)


def test_a_fresh_page_directory_gets_our_version() -> None:
    disk = fresh_disk()
    assert update_info(disk, "/data", Flavour.PAGE)
    assert page_info(disk) == {
        "version": {"version": VERSION, "hash": FIRST_HASH},
        "migrations": [],
        "flavour": "page",
    }


def test_a_fresh_iggy_directory_gets_the_bytes_of_a_real_server(shared_fixtures: Path) -> None:
    disk = fresh_disk()
    assert update_info(disk, "/data", Flavour.IGGY)
    assert disk.read("/data/state/info") == (shared_fixtures / "iggy-0.8.0" / "state" / "info").read_bytes()


@pytest.mark.parametrize("flavour", Flavour)
def test_a_file_with_our_version_is_left_alone(flavour: Flavour) -> None:
    disk = fresh_disk()
    assert update_info(disk, "/data", flavour)
    before = disk.files()
    disk.on_operation = CrashAt(0)
    assert not update_info(disk, "/data", flavour)
    assert disk.files() == before


def test_another_version_is_replaced_and_everything_else_is_kept() -> None:
    disk = fresh_disk()
    migrations = [{"id": 1, "name": "first"}]
    old = {
        "version": {"version": "0.0.0-old", "hash": FIRST_HASH, "built": "today"},
        "migrations": migrations,
        "flavour": "page",
        "motto": [1, 2],
    }
    disk.replace("/data/info.json", json.dumps(old).encode())
    assert update_info(disk, "/data", Flavour.PAGE)
    assert page_info(disk) == {
        **old,
        "version": {"version": VERSION, "hash": next_hash(FIRST_HASH), "built": "today"},
    }


def test_migrations_of_another_version_are_kept_in_the_iggy_flavour() -> None:
    disk = fresh_disk()
    migration = [1, "first", "hash", 1_700_000_000]
    disk.replace("/data/state/info", msgspec.msgpack.encode([["0.7.0", "12"], [migration]]))
    assert update_info(disk, "/data", Flavour.IGGY)
    assert msgspec.msgpack.decode(disk.read("/data/state/info")) == [["0.8.0", next_hash("12")], [migration]]


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[]", b"{}", b'{"version": 3}', b"\x92\x92\xa50.8.0"])
def test_a_file_that_cannot_be_read_is_replaced_with_a_warning(
    flavour: Flavour, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = fresh_disk()
    path = flavour.info_path("/data")
    disk.replace(path, content)
    with caplog.at_level(logging.WARNING):
        assert update_info(disk, "/data", flavour)
    assert f"{path}: replaced, because it cannot be read" in caplog.text
    assert not update_info(disk, "/data", flavour)


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("damage", Damage)
def test_a_crash_leaves_the_old_or_the_new_content(flavour: Flavour, damage: Damage) -> None:
    path = flavour.info_path("/data")
    old_bytes = b'{"version": {"version": "old"}}' if flavour is Flavour.PAGE else b"\x92\x92\xa3old\xa0\x90"
    step = 0
    while True:
        disk = fresh_disk()
        disk.replace(path, old_bytes)
        expected = disk.clone()
        update_info(expected, "/data", flavour)
        disk.on_operation = CrashAt(step)
        try:
            update_info(MonitorFs(disk), "/data", flavour)
        except CrashNow:
            pass
        else:
            break
        disk.on_operation = None
        disk.crash(damage, step)
        assert disk.read(path) in (old_bytes, expected.read(path))
        update_info(disk, "/data", flavour)
        assert disk.read(path) == expected.read(path)
        step += 1
    assert step >= 4


def test_real_files_are_written_as_well(tmp_path: Path) -> None:
    assert update_info(RealFs(), str(tmp_path), Flavour.PAGE)
    assert json.loads((tmp_path / "info.json").read_text("utf-8"))["flavour"] == "page"
    assert [path.name for path in tmp_path.iterdir()] == ["info.json"]
