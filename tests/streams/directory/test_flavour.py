"""The flavour of a directory."""

import pytest

from topics.errors import StartRefused
from topics.formats.stream_layout import BodyOrder, Flavour
from topics.streams.directory.flavour import open_flavour
from topics.streams.settings import StreamsSettings, from_mapping
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

ROOT = "/data"
PAGE = StreamsSettings()
IGGY = from_mapping({"system": {"flavour": "iggy"}})


def test_a_fresh_directory_gets_the_flavour_of_the_settings() -> None:
    disk = FakeDisk()
    assert open_flavour(disk, ROOT, PAGE) is Flavour.PAGE
    assert disk.durable_files() == {"/data/state.messages": b""}
    other = FakeDisk()
    assert open_flavour(other, ROOT, IGGY) is Flavour.IGGY
    assert other.durable_files() == {"/data/state/log": b""}


def test_a_directory_keeps_its_flavour_whatever_the_settings_say() -> None:
    for first, second in ((PAGE, IGGY), (IGGY, PAGE)):
        disk = FakeDisk()
        flavour = open_flavour(disk, ROOT, first)
        before = disk.files()
        assert open_flavour(disk, ROOT, second) is flavour
        assert disk.files() == before


def test_a_directory_with_both_state_logs_is_refused() -> None:
    disk = FakeDisk()
    disk.makedirs("/data/state")
    disk.replace("/data/state.messages", b"")
    disk.replace("/data/state/log", b"")
    with pytest.raises(StartRefused, match=r"/data/state\.messages and /data/state/log both exist"):
        open_flavour(disk, ROOT, PAGE)


def test_bodies_are_ordered_by_flavour() -> None:
    assert Flavour.PAGE.body_order is BodyOrder.HEADERS_FIRST
    assert Flavour.IGGY.body_order is BodyOrder.PAYLOAD_FIRST


def test_files_are_named_by_flavour() -> None:
    assert Flavour.PAGE.info_path(ROOT) == "/data/info.json"
    assert Flavour.IGGY.info_path(ROOT) == "/data/state/info"


@pytest.mark.parametrize("settings", [PAGE, IGGY], ids=["page", "iggy"])
@pytest.mark.parametrize("damage", Damage)
def test_a_crash_at_any_step_leaves_a_directory_that_opens(settings: StreamsSettings, damage: Damage) -> None:
    step = 0
    while True:
        disk = FakeDisk()
        disk.on_operation = CrashAt(step)
        try:
            open_flavour(MonitorFs(disk), ROOT, settings)
        except CrashNow:
            pass
        else:
            break
        disk.on_operation = None
        disk.crash(damage, step)
        assert open_flavour(disk, ROOT, settings).value == settings.system.flavour
        assert list(disk.files().values()) == [b""]
        step += 1
    assert step >= 3


def test_a_made_directory_waits_for_no_sync() -> None:
    monitor = MonitorFs(FakeDisk())
    open_flavour(monitor, ROOT, PAGE)
    assert monitor.check_settled() == []
