"""Starts of the engine: what they refuse and repair, encryption, folders; and the stop."""

import base64
import errno
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from xxhash import xxh3_64_intdigest

from tests.streams.system_world import PARTITION, ROOT, World, batch, fill, numbered, refusal
from topics.clock import SystemClock
from topics.errors import SettingsError, StartRefused
from topics.formats.message_index import ENTRY_BYTES
from topics.storage.fs import RealFs
from topics.stream_errors import StreamsError
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.settings import from_mapping
from topics.streams.system import System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk

FLAVOURS: Final = ("page", "iggy")
KEY: Final = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY: Final = base64.b64encode(bytes(32)).decode()
SMALL_SEGMENTS: Final = {"segment": {"size": 512}}
FIRST: Final = PollingStrategy.first()


# Starting.


def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    system = System.open(RealFs(), root, clock=SystemClock())
    with pytest.raises(StartRefused, match="in use by another process"):
        System.open(RealFs(), root, clock=SystemClock())
    system.close()
    System.open(RealFs(), root, clock=SystemClock()).close()


def test_bad_settings_are_refused_before_anything_is_touched() -> None:
    disk = FakeDisk()
    with pytest.raises(SettingsError, match=r"system\.segment\.size"):
        System.open(disk, ROOT, from_mapping({"system": {"segment": {"size": 1000}}}), clock=ManualClock())
    assert disk.files() == {}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_runtime_folder_is_of_this_run_alone_and_holds_no_secrets(flavour: str) -> None:
    disk = FakeDisk()
    secrets = {
        "system": {**ENCRYPTED["system"], "flavour": flavour},
        "data_maintenance": {
            "archiver": {"s3": {"key_id": "key-id", "key_secret": "key-secret"}, "enabled": False},
        },
        "message_saver": {"interval": "7 s"},
    }
    System.open(disk, ROOT, from_mapping(secrets), clock=ManualClock()).close()
    disk.replace(f"{ROOT}/runtime/stale", b"")
    system = System.open(disk, ROOT, from_mapping(secrets), clock=ManualClock())
    assert disk.listdir(f"{ROOT}/runtime") == ["current_config.toml"]
    text = disk.read(f"{ROOT}/runtime/current_config.toml").decode()
    assert not [secret for secret in (KEY, "key-id", "key-secret") if secret in text]
    written = tomllib.loads(text)
    assert written["message_saver"]["interval"] == "7000000 us"
    del secrets["data_maintenance"]
    assert from_mapping(written).message_saver == system.settings.message_saver


def test_a_partition_without_its_folder_refuses_the_start_or_is_made_anew_by_a_setting() -> None:
    world = World()
    world.make_topic(2)
    world.send(b"a")
    world.system.close()
    world.disk.rename(f"{PARTITION[:-1]}1", f"{ROOT}/elsewhere")
    with pytest.raises(StartRefused, match=r"partitions/1 is missing.*recreate_missing_state"):
        world.open()
    world.open({"system": {"recovery": {"recreate_missing_state": True}}})
    assert (world.all(), world.all(partition_id=1)) == ([(0, b"a")], [])
    assert world.send(b"new", partition_id=1) == 0


def test_a_start_that_is_refused_releases_the_directory_and_its_files() -> None:
    world = World({"system": {"partition": {"validate_checksum": True}}})
    world.make_topic(2)
    world.send(b"a", b"b", partition_id=1)
    world.system.close()
    log = f"{PARTITION[:-1]}1/{0:020d}.log"
    good = world.disk.read(log)
    world.disk.poke(log, 64, b"?")
    for _ in range(2):
        with pytest.raises(StartRefused, match="offset 0 at 0 is damaged"):
            world.open()
    world.disk.poke(log, 0, good)
    world.open()
    assert world.all(partition_id=1) == [(0, b"a"), (1, b"b")]


def test_a_disk_that_fails_at_start_is_a_reason_and_not_a_traceback() -> None:
    world = World()
    world.make_topic()
    world.system.close()
    for operation in ("listdir", "open", "exists", "pread"):
        world.faults.heal()
        world.faults.fail(operation, lasts=True)  # type: ignore[arg-type]
        with pytest.raises(StartRefused, match="Input/output error"):
            System.open(world.faults, ROOT, from_mapping({}), clock=world.clock)
    world.open()


def test_a_full_disk_keeps_nobody_from_starting_and_reading() -> None:
    world = World({"system": {"partition": {"messages_required_to_save": 1}}})
    world.make_topic()
    world.send(b"a")
    world.system.close()
    world.disk.capacity_bytes = sum(map(len, world.disk.files().values())) - 2000
    world.open()
    assert world.all() == [(0, b"a")]
    assert refusal(lambda: world.send(b"x" * 5000)) == 10005
    world.disk.capacity_bytes = None
    assert world.send(b"b") == 1


def test_a_damaged_state_log_stops_the_start_and_a_torn_one_does_not() -> None:
    world = World()
    world.make_topic()
    world.system.close()
    path = f"{ROOT}/state.messages"
    good = world.disk.read(path)
    world.disk.replace(path, good[:50] + b"?" + good[51:])
    with pytest.raises(StartRefused, match=r"state\.messages: damaged at offset 0"):
        world.open()
    world.disk.replace(path, good + good[:30])
    world.open()
    assert world.disk.read(path) == good
    assert world.send(b"a") == 0


@pytest.mark.parametrize("torn", [".log", ".index"])
def test_a_torn_tail_of_a_segment_is_repaired_and_what_follows_can_be_read(torn: str) -> None:
    """No bytes are left before the next message, and polls after one append are not empty."""
    world = World()
    world.make_topic()
    world.send(*numbered(3))
    world.system.close()
    path = f"{PARTITION}/{0:020d}{torn}"
    world.disk.replace(path, world.disk.read(path) + b"\x07" * 11)
    world.open()
    assert world.send(b"next") == 3
    for _ in range(2):
        assert world.all() == [*enumerate(numbered(3)), (3, b"next")]
        assert world.system.topic_state("s", "t").partitions[0].current_offset == 3
        world.reopen()


def test_a_batch_of_which_a_power_loss_kept_the_end_alone_is_gone_as_a_whole_and_stops_no_reader() -> None:
    """The batch was not promised. Its second message without the first would have made every poll fail."""
    world = World({"system": {"partition": {"enforce_fsync": True, "messages_required_to_save": 1}}})
    world.make_topic()
    world.send(b"a")
    log = f"{PARTITION}/{0:020d}.log"
    first = world.disk.read(log)
    index = world.disk.read(f"{PARTITION}/{0:020d}.index")
    world.send(b"x" * 100, b"y" * 100)
    torn = bytearray(world.disk.read(log))
    torn[len(first) : len(first) + 164] = bytes(164)
    world.disk.kill()
    world.disk.replace(log, bytes(torn))
    world.disk.replace(f"{PARTITION}/{0:020d}.index", index)
    world.open()
    assert world.all() == [(0, b"a")]
    assert world.send(b"next") == 1
    world.reopen()
    assert world.all() == [(0, b"a"), (1, b"next")]


@pytest.mark.parametrize("cache_indexes", ["all", "open_segment", "none"])
@pytest.mark.parametrize("damage", ["missing", "longer", "shorter", "doubled", "zeros"])
def test_an_index_that_does_not_fit_is_made_again(damage: str, cache_indexes: str) -> None:
    """Polls return the same, and the entries are the same bytes."""
    world = World({"system": {"segment": {"size": 512, "cache_indexes": cache_indexes}}})
    world.make_topic()
    fill(world, 2)
    world.send(b"active", b"messages")
    world.system.close()
    before = {}
    for start in (0, 3, 6):
        path = f"{PARTITION}/{start:020d}.index"
        good = before[path] = world.disk.read(path)
        found = {
            "missing": None,
            "longer": good + good,
            "shorter": good[:16],
            "doubled": good[:16] + good,
            "zeros": bytes(48),
        }[damage]
        if found is None:
            world.disk.unlink(path)
        else:
            world.disk.replace(path, found)
    world.open()
    assert {path: world.disk.read(path) for path in before} == before
    world.send(b"next")
    assert [offset for offset, _ in world.all()] == list(range(9))
    assert len(world.poll(PollingStrategy.offset(5), 2)) == 2


def test_a_version_file_that_is_longer_than_ours_is_replaced_as_a_whole() -> None:
    world = World(flavour="iggy")
    world.system.close()
    path = f"{ROOT}/state/info"
    good = world.disk.read(path)
    world.disk.replace(path, b"\x92\x92\xa50.7.9\xa11\x90" + bytes(100))
    world.open()
    assert len(world.disk.read(path)) <= len(good)
    assert b"0.8.0" in world.disk.read(path)


def test_both_state_logs_refuse_the_start() -> None:
    world = World()
    world.system.close()
    world.disk.makedirs(f"{ROOT}/state")
    world.disk.replace(f"{ROOT}/state/log", b"")
    with pytest.raises(StartRefused, match="both exist"):
        world.open()


# Encryption.

ENCRYPTED: Final = {"system": {"encryption": {"enabled": True, "key": KEY}}}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_with_encryption_nothing_is_on_disk_in_clear(flavour: str) -> None:
    disk = FakeDisk()
    settings = from_mapping({"system": {**ENCRYPTED["system"], "flavour": flavour}})
    system = System.open(disk, ROOT, settings, clock=ManualClock())
    system.create_stream("secret-stream")
    system.create_topic("secret-stream", "secret-topic")
    message = NewMessage(b"secret-payload", user_headers={"secret-key": "secret-value"})
    system.send("secret-stream", "secret-topic", encode_send([message]))
    system.close()
    assert not [path for path, data in disk.files().items() if b"secret" in data or KEY.encode() in data]
    system = System.open(disk, ROOT, settings, clock=ManualClock())
    (polled,) = system.poll("secret-stream", "secret-topic", Consumer(1), FIRST, 10)
    assert bytes(polled.payload) == b"secret-payload"
    assert [field.value for field in polled.user_headers.values()] == ["secret-value"]
    system.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("key", [OTHER_KEY, None])
def test_a_wrong_or_missing_key_refuses_the_start_and_changes_nothing(flavour: str, key: str | None) -> None:
    disk = FakeDisk()
    System.open(
        disk, ROOT, from_mapping({"system": {**ENCRYPTED["system"], "flavour": flavour}}), clock=ManualClock()
    ).close()
    before = {path: data for path, data in disk.files().items() if "/runtime/" not in path}
    wrong = {"system": {"encryption": {"enabled": True, "key": key}}} if key else {}
    with pytest.raises(StartRefused):
        System.open(disk, ROOT, from_mapping(wrong), clock=ManualClock())
    assert {path: data for path, data in disk.files().items() if "/runtime/" not in path} == before
    System.open(disk, ROOT, from_mapping(ENCRYPTED), clock=ManualClock()).close()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_encryption_that_is_turned_on_later_makes_old_messages_unreadable_and_says_so(flavour: str) -> None:
    """Entries of a `page` state log have a flag of encryption; those of an `iggy` one have none."""
    world = World(flavour=flavour)
    world.make_topic()
    world.send(b"in clear")
    world.system.close()
    if flavour == "iggy":
        with pytest.raises(StartRefused, match="check the encryption settings"):
            world.open(ENCRYPTED)
    else:
        world.open(ENCRYPTED)
        assert refusal(world.all) == 72
        world.system.close()
    world.open({})
    assert world.all() == [(0, b"in clear")]


def test_a_flipped_bit_of_an_encrypted_message_is_never_served() -> None:
    """Even if the checksum was made to fit."""
    disk = FakeDisk()
    settings = from_mapping({"system": {**ENCRYPTED["system"], "partition": {"messages_required_to_save": 1}}})
    system = System.open(disk, ROOT, settings, clock=ManualClock())
    system.create_stream("s")
    system.create_topic("s", "t")
    system.send("s", "t", batch(b"payload"))
    log = f"{PARTITION}/{0:020d}.log"
    disk.poke(log, 70, bytes([disk.read(log)[70] ^ 1]))
    assert refusal(lambda: system.poll("s", "t", Consumer(1), FIRST, 1)) == 4027
    disk.poke(log, 0, xxh3_64_intdigest(disk.read(log)[8:]).to_bytes(8, "little"))
    assert refusal(lambda: system.poll("s", "t", Consumer(1), FIRST, 1)) == 72


def test_no_nonce_is_used_twice_over_restarts() -> None:
    disk = FakeDisk()
    settings = from_mapping({"system": {**ENCRYPTED["system"], "partition": {"messages_required_to_save": 1}}})
    for run in range(4):
        system = System.open(disk, ROOT, settings, clock=ManualClock())
        if not run:
            system.create_stream("s")
            system.create_topic("s", "t")
        system.send("s", "t", batch(*[b"same"] * 50))
        system.close()
    log, index = disk.read(f"{PARTITION}/{0:020d}.log"), disk.read(f"{PARTITION}/{0:020d}.index")
    size = len(log) // 200
    assert len(index) == 200 * ENTRY_BYTES
    assert len({log[at + 64 : at + 76] for at in range(0, len(log), size)}) == 200


# Folders and the state log.


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_a_state_log_that_fails_leaves_no_half_topic(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.make_topic()
    is_log = "state.messages".__eq__
    operation: Any = "pwrite" if fault == "write" else "fsync"
    world.faults.fail(operation, path=lambda path: is_log(path.rpartition("/")[2]))
    assert refusal(lambda: world.system.create_topic("s", "u", partitions_count=3)) == (
        10005 if fault == "write" else 10009
    )
    assert refusal(lambda: world.system.topic_state("s", "u")) == 2010
    if fault == "write":
        assert world.names(f"{ROOT}/streams/0/topics") == ["0"]
        world.faults.fail("pwrite", path=lambda path: is_log(path.rpartition("/")[2]))
        assert refusal(lambda: world.system.create_partitions("s", "t", 2)) == 10005
        assert world.names(f"{ROOT}/streams/0/topics/0/partitions") == ["0"]
        assert world.system.create_topic("s", "u").id == 1
    else:
        # What the log holds is unknown, so the folders stay for a start that finds the entry.
        assert world.names(f"{ROOT}/streams/0/topics") == ["0", "1"]
        assert refusal(lambda: world.system.create_topic("s", "u")) == 10005, "until a restart"
        assert world.send(b"a") == 0
        world.restart()
        assert "streams/0/topics/1 is not in the state log; left alone" in caplog.text
        assert world.system.create_topic("s", "u").id == 1
        assert world.names(f"{ROOT}/streams/0/topics") == ["0", "1", "1.set-aside-1"]


def test_a_delete_that_cannot_be_logged_deletes_nothing() -> None:
    world = World()
    world.make_topic(2)
    world.send(b"a")
    for delete in (
        lambda: world.system.delete_topic("s", "t"),
        lambda: world.system.delete_stream("s"),
        lambda: world.system.delete_partitions("s", "t", 1),
        lambda: world.system.purge_topic("s", "t"),
    ):
        world.faults.fail("pwrite", path=lambda path: path.endswith("state.messages"), error=errno.ENOSPC)
        assert refusal(delete) == 10005
        assert world.all() == [(0, b"a")]
    world.restart()
    assert len(world.system.topic_state("s", "t").partitions) == 2


def test_entries_that_waited_for_a_sync_that_failed_are_still_there_for_the_next_process_and_stay() -> None:
    """The kernel shows the entries to a restarted process although no sync would bring them to the disk."""
    world = World()
    world.system.create_stream("a")
    world.system.create_stream("b")
    world.faults.fail("fsync", path=lambda path: path.endswith("state.messages"))
    assert refusal(lambda: world.system.create_topic("a", "t")) == 10009
    world.restart()
    world.system.create_topic("b", "t")
    world.disk.crash(Damage.DROP)
    world.open()
    assert [stream.name for stream in world.system.metadata.streams.ascending()] == ["a", "b"]
    assert world.system.topic_state("b", "t").messages_count == 0


def test_a_folder_that_no_state_knows_of_is_set_aside_and_never_deleted(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.disk.makedirs(f"{ROOT}/streams/0/topics/0")
    world.disk.replace(f"{ROOT}/streams/0/keep", b"somebody's")
    world.make_topic()
    assert world.disk.read(f"{ROOT}/streams/0.set-aside-1/keep") == b"somebody's"
    assert "is not in the state log and was in the way" in caplog.text
    world.disk.makedirs(f"{ROOT}/streams/0/topics/0/partitions/1")
    world.system.create_partitions("s", "t", 1)
    assert world.names(f"{ROOT}/streams/0/topics/0/partitions") == ["0", "1", "1.set-aside-1"]
    world.reopen()
    assert world.disk.read(f"{ROOT}/streams/0.set-aside-1/keep") == b"somebody's"
    assert "streams/0.set-aside-1 is not in the state log; left alone" in caplog.text


def test_a_start_finishes_what_was_being_deleted() -> None:
    world = World()
    world.make_topic(2)
    world.system.create_topic("s", "u")
    world.system.create_stream("other")
    world.system.create_topic("other", "t")
    fault = world.faults.fail("unlink", "rmdir", lasts=True)
    world.system.delete_partitions("s", "t", 1)
    world.system.delete_topic("s", "u")
    world.system.delete_stream("other")
    assert fault.fired_count == 3
    assert world.names(f"{ROOT}/streams") == ["0", "1.deleted"]
    world.restart()
    assert world.names(f"{ROOT}/streams") == ["0"]
    assert world.names(f"{ROOT}/streams/0/topics") == ["0"]
    assert world.names(f"{ROOT}/streams/0/topics/0/partitions") == ["0"]
    assert world.monitor.check_settled() == []


# Stopping.


def test_a_closed_engine_says_so_and_closing_twice_is_closing_once() -> None:
    world = World()
    world.make_topic()
    world.system.close()
    world.system.close()
    assert refusal(lambda: world.system.create_stream("x")) == 8
    assert refusal(lambda: world.send(b"a")) == 8
    assert refusal(lambda: world.poll(FIRST)) == 8
    assert refusal(lambda: world.system.flush("s", "t", 0, fsync=True)) == 8


def test_a_stop_saves_every_partition_it_can_and_tells_the_first_problem() -> None:
    world = World()
    world.make_topic(3)
    for partition_id in range(3):
        world.send(b"%d" % partition_id, partition_id=partition_id)
    world.faults.fail("pwritev", path=lambda path: "partitions/1/" in path)
    with pytest.raises(StreamsError, match="partitions/1"):
        world.system.close()
    world.open()
    assert [world.all(partition_id=partition_id) for partition_id in range(3)] == [[(0, b"0")], [], [(0, b"2")]]


def test_a_stop_does_not_keep_quiet_about_what_a_failed_sync_may_have_lost() -> None:
    world = World()
    world.make_topic()
    world.send(b"a")
    world.faults.fail("fdatasync")
    assert refusal(lambda: world.system.flush("s", "t", 0, fsync=True)) == 10009
    with pytest.raises(StreamsError, match="streams/0/topics/0/partitions/0: not all is saved: a sync failed"):
        world.system.close()
    world.open()
    world.faults.fail("fsync")
    assert refusal(lambda: world.system.create_topic("s", "u")) == 10009
    with pytest.raises(StreamsError, match="the state log takes no entries after a failed sync"):
        world.system.close()
    assert world.open().metadata.streams[0].name == "s"


def test_counts_and_sizes_include_what_is_buffered() -> None:
    world = World({"system": SMALL_SEGMENTS})
    world.make_topic(2)
    fill(world, 1)
    world.send(b"12345", partition_id=1)
    state = world.system.topic_state("s", "t")
    assert (state.messages_count, state.size_bytes) == (4, 3 * 184 + 69)
    assert [(found.segments_count, found.current_offset) for found in state.partitions] == [(2, 2), (1, 0)]
    assert [found.has_messages for found in state.partitions] == [True, True]
