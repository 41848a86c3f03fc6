"""The state log on a disk: appended entries are there after a restart, failed ones are not."""

import errno
import logging
from base64 import b64encode
from pathlib import Path
from typing import Final

import pytest

from tests.formats.strategies import flip
from topics.errors import StartRefused
from topics.formats.message_cipher import Cipher
from topics.formats.state_entry import StateEntry
from topics.formats.stream_command import (
    Command,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeleteTopic,
    UpdatePermissions,
    UpdateStream,
    UserStatus,
)
from topics.formats.stream_layout import Flavour
from topics.formats.stream_permissions import ALL_PERMISSIONS, Permissions, StreamPermissions
from topics.storage.fs import Fs, RealFs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.directory.flavour import open_flavour
from topics.streams.metadata.state_log import StateLog
from topics.streams.settings import StreamsSettings, from_mapping
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, OneByteFs
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/data"
CIPHER: Final = Cipher(b64encode(bytes(range(32))).decode())
OTHER_CIPHER: Final = Cipher(b64encode(bytes(32)).decode())

COMMANDS: Final[tuple[Command, ...]] = (
    CreateUser(0, "iggy", "$argon2id$…", UserStatus.ACTIVE, ALL_PERMISSIONS),
    CreateStream(0, "orders"),
    CreateTopic("orders", 0, 2, 1, 0, 0, 0, "events"),
    UpdateStream(0, "ä" * 100),
    UpdatePermissions("iggy", Permissions(streams={7: StreamPermissions(read_stream=True)})),
    DeleteTopic(0, "events"),
)
# One command is longer than a sector of the disk, so that a crash can tear it.
MORE_COMMANDS: Final[tuple[Command, ...]] = (
    *COMMANDS,
    UpdatePermissions("iggy", Permissions(streams=dict.fromkeys(range(50), StreamPermissions(read_stream=True)))),
    CreateStream(1, "last"),
)

every_flavour = pytest.mark.parametrize("flavour", Flavour)
with_and_without_key = pytest.mark.parametrize("cipher", [None, CIPHER], ids=["plain", "encrypted"])


def settings_for(flavour: Flavour) -> StreamsSettings:
    return from_mapping({"system": {"flavour": flavour.value}})


def open_log(
    fs: Fs, flavour: Flavour, cipher: Cipher | None = None, *, enforce_fsync: bool = True, root: str = ROOT
) -> StateLog:
    assert open_flavour(fs, root, settings_for(flavour)) is flavour
    return StateLog.open(fs, root, flavour, cipher, ManualClock(), enforce_fsync=enforce_fsync)


def commands_of(log: StateLog) -> list[Command]:
    return [entry.command for entry in log.entries]


def written_log(flavour: Flavour, cipher: Cipher | None = None) -> tuple[FakeDisk, list[int]]:
    """A closed log of all commands; 0 and the ends of its entries."""
    disk = FakeDisk()
    log = open_log(disk, flavour, cipher)
    ends = [0]
    for command in COMMANDS:
        log.append(0, command)
        ends.append(log.size_bytes)
    log.close()
    return disk, ends


@every_flavour
@with_and_without_key
def test_what_is_appended_is_there_after_a_restart(flavour: Flavour, cipher: Cipher | None) -> None:
    disk = FakeDisk()
    log = open_log(disk, flavour, cipher)
    assert log.entries == []
    appended = [log.append(index, command) for index, command in enumerate(COMMANDS)]
    log.close()
    again = open_log(disk, flavour, cipher)
    assert [(entry.index, entry.timestamp, entry.user_id, entry.command) for entry in again.entries] == [
        (entry.index, entry.timestamp, entry.user_id, entry.command) for entry in appended
    ]
    assert [entry.user_id for entry in appended] == list(range(len(COMMANDS)))
    # The log continues with the next index.
    assert again.append(0, COMMANDS[1]).index == len(COMMANDS)


def test_the_time_of_an_entry_is_that_of_the_clock_in_microseconds() -> None:
    entry = open_log(FakeDisk(), Flavour.PAGE).append(0, COMMANDS[1])
    assert entry == StateEntry(0, 1_700_000_000_000_000, 0, COMMANDS[1])


@every_flavour
def test_a_log_grows_however_few_bytes_a_write_takes(flavour: Flavour) -> None:
    disk = FakeDisk()
    log = open_log(OneByteFs(disk), flavour)
    for command in COMMANDS:
        log.append(0, command)
    assert commands_of(open_log(disk, flavour)) == list(COMMANDS)


@every_flavour
def test_real_files_hold_it_as_well(flavour: Flavour, tmp_path: Path) -> None:
    log = open_log(RealFs(), flavour, CIPHER, root=str(tmp_path))
    for command in COMMANDS:
        log.append(0, command)
    log.close()
    assert commands_of(open_log(RealFs(), flavour, CIPHER, root=str(tmp_path))) == list(COMMANDS)
    assert b"orders" not in Path(flavour.state_log_path(str(tmp_path))).read_bytes()


def test_the_log_of_a_real_server_is_read_and_continued(shared_fixtures: Path) -> None:
    original = (shared_fixtures / "iggy-0.8.0" / "state" / "log").read_bytes()
    disk = FakeDisk()
    disk.makedirs("/data/state")
    disk.replace("/data/state/log", original)
    log = open_log(disk, Flavour.IGGY)
    assert [entry.code for entry in log.entries] == [33, 202, 302, 302]
    assert disk.read("/data/state/log") == original
    assert log.append(0, CreateStream(1, "more")).index == 4
    log.close()
    assert disk.read("/data/state/log").startswith(original)
    assert commands_of(open_log(disk, Flavour.IGGY))[-1] == CreateStream(1, "more")


@every_flavour
@with_and_without_key
def test_a_log_cut_anywhere_opens_with_its_whole_entries(
    flavour: Flavour, cipher: Cipher | None, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk, ends = written_log(flavour, cipher)
    path = flavour.state_log_path(ROOT)
    data = disk.read(path)
    for size in range(0, len(data), 1 if full else 5):
        disk.replace(path, data[:size])
        caplog.clear()
        log = open_log(disk, flavour, cipher)
        whole = max(end for end in ends if end <= size)
        assert commands_of(log) == list(COMMANDS[: ends.index(whole)])
        assert disk.durable_files()[path] == data[:whole]
        assert (f"{path}: cut from {size} to {whole} bytes" in caplog.text) == (size != whole)
        log.close()


@every_flavour
def test_damage_before_the_last_entry_refuses_the_start_and_changes_nothing(flavour: Flavour, full: bool) -> None:
    disk, ends = written_log(flavour)
    path = flavour.state_log_path(ROOT)
    data = disk.read(path)
    for position in range(0, ends[-2], 1 if full else 5):
        damaged = flip(data, position, 0x10)
        disk.replace(path, damaged)
        with pytest.raises(StartRefused) as caught:
            open_log(disk, flavour)
        start = max(end for end in ends if end <= position)
        assert caught.value.message.startswith(
            f"{path}: damaged at offset {start}, after {ends.index(start)} good entries: "
        )
        assert caught.value.detail == {"file": path, "offset": start}
        assert disk.files()[path] == damaged


@every_flavour
def test_a_damaged_last_entry_is_cut(flavour: Flavour) -> None:
    disk, ends = written_log(flavour)
    path = flavour.state_log_path(ROOT)
    data = disk.read(path)
    for position in range(ends[-2], ends[-1]):
        disk.replace(path, flip(data, position, 0x10))
        assert commands_of(open_log(disk, flavour)) == list(COMMANDS[:-1])
        assert disk.read(path) == data[: ends[-2]]


@every_flavour
@pytest.mark.parametrize("cipher", [None, OTHER_CIPHER], ids=["none", "another"])
@pytest.mark.parametrize("count", [1, len(COMMANDS)])
def test_the_wrong_key_refuses_the_start_and_changes_nothing(
    flavour: Flavour, cipher: Cipher | None, count: int
) -> None:
    disk, ends = written_log(flavour, CIPHER)
    path = flavour.state_log_path(ROOT)
    data = disk.read(path)[: ends[count]]
    disk.replace(path, data)
    with pytest.raises(StartRefused, match="check the encryption settings"):
        open_log(disk, flavour, cipher)
    assert disk.read(path) == data


def test_a_plain_page_log_goes_on_encrypted() -> None:
    """Entries of this flavour have a flag of encryption."""
    disk, _ends = written_log(Flavour.PAGE)
    log = open_log(disk, Flavour.PAGE, CIPHER)
    log.append(0, CreateStream(9, "secret-name"))
    log.close()
    assert commands_of(open_log(disk, Flavour.PAGE, CIPHER)) == [*COMMANDS, CreateStream(9, "secret-name")]
    assert b"secret-name" not in disk.read(Flavour.PAGE.state_log_path(ROOT))


def test_two_entries_never_share_a_nonce() -> None:
    disk = FakeDisk()
    log = open_log(disk, Flavour.IGGY, CIPHER)
    for _ in range(3):
        for _ in range(50):
            log.append(0, COMMANDS[1])
        log.close()
        log = open_log(disk, Flavour.IGGY, CIPHER)
    data = disk.read(Flavour.IGGY.state_log_path(ROOT))
    size = len(data) // 150
    assert len({data[at + 64 : at + 76] for at in range(0, len(data), size)}) == 150


# Failing disks.


@every_flavour
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_is_refused_and_leaves_no_trace(flavour: Flavour, error: int) -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    log = open_log(faults, flavour)
    log.append(0, COMMANDS[0])
    before = disk.read(flavour.state_log_path(ROOT))
    faults.torn_write(error=error)
    with pytest.raises(StreamsError) as caught:
        log.append(0, COMMANDS[1])
    assert caught.value.number is StreamStatus.CANNOT_APPEND_TO_FILE
    assert disk.read(flavour.state_log_path(ROOT)) == before
    faults.heal()
    # The log goes on with the same index.
    assert log.append(0, COMMANDS[2]).index == 1
    assert commands_of(open_log(disk, flavour)) == [COMMANDS[0], COMMANDS[2]]


def test_a_failed_write_that_cannot_be_cut_stops_the_log() -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    log = open_log(faults, Flavour.PAGE)
    log.append(0, COMMANDS[0])
    faults.torn_write()
    faults.fail("truncate")
    with pytest.raises(StreamsError):
        log.append(0, COMMANDS[1])
    faults.heal()
    for _ in range(2):
        with pytest.raises(
            StreamsError, match="a failed write whose bytes could not be cut off; check the disk, then restart"
        ):
            log.append(0, COMMANDS[2])
    log.close()
    # Half of an entry is a torn tail for the next start.
    assert commands_of(open_log(disk, Flavour.PAGE)) == [COMMANDS[0]]


@every_flavour
def test_a_failed_sync_stops_the_log_and_its_entry_never_was(flavour: Flavour) -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    log = open_log(faults, flavour)
    log.append(0, COMMANDS[0])
    fault = faults.fail("fsync")
    with pytest.raises(StreamsError) as caught:
        log.append(0, COMMANDS[1])
    assert caught.value.number is StreamStatus.CANNOT_SYNC_FILE
    assert fault.fired_count == 1
    assert log.stopped == "a failed sync"
    # The disk works again, and appends are still refused.
    with pytest.raises(StreamsError) as caught:
        log.append(0, COMMANDS[2])
    assert caught.value.number is StreamStatus.CANNOT_APPEND_TO_FILE
    log.close()
    assert commands_of(open_log(disk, flavour)) == [COMMANDS[0]]


def test_a_sync_that_fails_at_the_end_is_told() -> None:
    faults = FaultFs(FakeDisk())
    log = open_log(faults, Flavour.PAGE, enforce_fsync=False)
    log.append(0, COMMANDS[0])
    faults.fail("fsync")
    with pytest.raises(StreamsError) as caught:
        log.close()
    assert caught.value.number is StreamStatus.CANNOT_SYNC_FILE


@pytest.mark.parametrize(
    "command",
    [
        CreateStream(-1, "orders"),
        CreateStream(2**32, "orders"),
        CreateStream(0, "\ud800"),
        CreateTopic("orders", 0, 2, 9, 0, 0, 0, "events"),
        CreateTopic("orders", 0, 2, 1, 2**64, 0, 0, "events"),
        CreateUser(0, "iggy", "hash", 3, None),  # type: ignore[arg-type]
        UpdatePermissions(1, Permissions(streams={-1: StreamPermissions()})),
        CreateStream(0, None),  # type: ignore[arg-type]
    ],
)
@every_flavour
def test_what_could_not_be_read_back_is_not_written(flavour: Flavour, command: Command) -> None:
    disk = FakeDisk()
    log = open_log(disk, flavour)
    with pytest.raises(StreamsError) as caught:
        log.append(0, command)
    assert caught.value.number is StreamStatus.INVALID_COMMAND
    assert disk.read(flavour.state_log_path(ROOT)) == b""


# Crashes.


def run(fs: Fs, flavour: Flavour, cipher: Cipher | None, acked: list[Command], *, enforce_fsync: bool) -> None:
    """Appends all commands; `acked` counts the answered ones."""
    log = open_log(fs, flavour, cipher, enforce_fsync=enforce_fsync)
    for command in MORE_COMMANDS:
        log.append(0, command)
        acked.append(command)


@every_flavour
@with_and_without_key
@pytest.mark.parametrize("damage", Damage)
def test_no_crash_loses_a_synced_entry(flavour: Flavour, cipher: Cipher | None, damage: Damage) -> None:
    step = 0
    while True:
        disk = FakeDisk()
        disk.on_operation = CrashAt(step)
        acked: list[Command] = []
        try:
            run(MonitorFs(disk), flavour, cipher, acked, enforce_fsync=True)
        except CrashNow:
            pass
        else:
            break
        disk.on_operation = None
        disk.crash(damage, step)
        log = open_log(disk, flavour, cipher)
        # The entry that was being written may be there.
        assert commands_of(log) in (list(MORE_COMMANDS[: len(acked)]), list(MORE_COMMANDS[: len(acked) + 1]))
        log.append(0, CreateStream(5, "after"))
        log.close()
        assert commands_of(open_log(disk, flavour, cipher))[-1] == CreateStream(5, "after")
        step += 1
    assert step >= 2 * len(MORE_COMMANDS)


@every_flavour
@pytest.mark.parametrize("damage", Damage)
def test_unsynced_entries_are_lost_from_the_end_or_the_start_is_refused(flavour: Flavour, damage: Damage) -> None:
    """A disk that keeps a later entry and loses an earlier one has damaged the log."""
    keeps_order = damage in (Damage.DROP, Damage.KEEP, Damage.PREFIX, Damage.TORN)
    for seed in range(20):
        disk = FakeDisk()
        run(disk, flavour, None, [], enforce_fsync=False)
        disk.crash(damage, seed)
        try:
            found = commands_of(open_log(disk, flavour))
        except StartRefused:
            assert not keeps_order
        else:
            assert found == list(MORE_COMMANDS[: len(found)])


@every_flavour
def test_a_killed_process_loses_nothing(flavour: Flavour) -> None:
    disk = FakeDisk()
    run(disk, flavour, None, [], enforce_fsync=False)
    disk.kill()
    log = open_log(disk, flavour)
    assert commands_of(log) == list(MORE_COMMANDS)
    # Opening syncs the entries that the killed process left in the page cache.
    disk.crash(Damage.DROP)
    assert commands_of(open_log(disk, flavour)) == list(MORE_COMMANDS)


def test_nothing_is_acked_before_it_is_synced() -> None:
    monitor = MonitorFs(FakeDisk())
    log = open_log(monitor, Flavour.PAGE)
    for command in MORE_COMMANDS:
        log.append(0, command)
        monitor.require_synced(ROOT)
    assert monitor.check_settled() == []


def test_the_warning_of_a_torn_tail_says_why(caplog: pytest.LogCaptureFixture) -> None:
    disk, ends = written_log(Flavour.PAGE)
    path = Flavour.PAGE.state_log_path(ROOT)
    disk.replace(path, disk.read(path)[:-1])
    with caplog.at_level(logging.WARNING):
        open_log(disk, Flavour.PAGE)
    size = ends[-1] - ends[-2]
    where = f"{path}: cut from {ends[-1] - 1} to {ends[-2]} bytes, a torn last entry: "
    assert caplog.messages == [where + f"an entry of {size} bytes is cut off after {size - 1}"]
