"""`StreamsVerifier`: a whole directory has no findings, and each bad byte of messages and indexes has one."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import sampled_range
from tests.storage.busy_fs import BusyFs
from tests.streams.system_world import World, fill
from topics.formats.message_cipher import Cipher
from topics.storage.inspect.findings import Finding
from topics.streams.inspect.verify import StreamsVerifier
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.settings import StreamsSettings, from_mapping
from topics.streams.system import System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

ROOT = "/data"
PARTITION = f"{ROOT}/streams/0/topics/0/partitions/0"
LOG = f"{PARTITION}/00000000000000000000.log"
INDEX = f"{PARTITION}/00000000000000000000.index"
KEY = base64.b64encode(bytes(32)).decode()
OTHER_KEY = base64.b64encode(bytes(range(32))).decode()


def make(disk: FakeDisk, *, messages: int = 7, **system: Any) -> None:
    settings = from_mapping({"system": system})
    engine = System.open(disk, ROOT, settings, clock=ManualClock())
    engine.create_stream("s")
    engine.create_topic("s", "t")
    for number in range(messages):
        headers = {"n": "v"} if number % 2 else None
        engine.send("s", "t", encode_send([NewMessage(b"payload %d" % number, user_headers=headers)]), PartitionId(0))
    engine.close()


def flip(disk: FakeDisk, path: str, offset: int) -> None:
    disk.poke(path, offset, bytes([disk.read(path)[offset] ^ 0x10]))


def check(disk: FakeDisk, *, key: str | None = None, settings: StreamsSettings | None = None) -> list[Finding]:
    verifier = StreamsVerifier(disk, ROOT, settings=settings, cipher=Cipher(key) if key else None)
    findings = list(verifier.run())
    assert verifier.totals.damage == sum(finding.severity == "damage" for finding in findings)
    return findings


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.mark.parametrize("flavour", ["page", "iggy"])
def test_a_sound_directory_has_no_findings_and_is_counted(disk: FakeDisk, flavour: str) -> None:
    make(disk, flavour=flavour)
    before = disk.files()
    verifier = StreamsVerifier(disk, ROOT)
    assert list(verifier.run()) == []
    assert (verifier.totals.records, verifier.totals.frames, verifier.totals.files) == (7, 3, 3)
    assert verifier.totals.bytes_read == verifier.totals.bytes_total == len(disk.read(LOG))
    assert disk.files() == before


def test_every_byte_of_a_log_that_changes_is_found_in_its_message(disk: FakeDisk) -> None:
    make(disk)
    log = disk.read(LOG)
    ends = [int.from_bytes(disk.read(INDEX)[at + 4 : at + 8], "little") for at in range(0, 7 * 16, 16)]
    for position in range(len(log)):
        disk.poke(LOG, position, bytes([log[position] ^ 0x10]))
        (finding,) = check(disk)
        place = next(place for place, end in enumerate(ends) if position < end)
        assert (finding.file, finding.seq, finding.severity) == (LOG.removeprefix(f"{ROOT}/"), place, "damage")
        disk.poke(LOG, position, log[position : position + 1])
    assert check(disk) == []


def test_every_byte_of_an_index_that_changes_is_found(disk: FakeDisk) -> None:
    make(disk)
    index = disk.read(INDEX)
    for position in range(len(index)):
        disk.poke(INDEX, position, bytes([index[position] ^ 0x80]))
        findings = check(disk)
        assert findings, position
        assert {finding.file for finding in findings} <= {INDEX.removeprefix(f"{ROOT}/"), LOG.removeprefix(f"{ROOT}/")}
        disk.poke(INDEX, position, index[position : position + 1])


def test_what_a_start_would_clear_away_is_left_alone(disk: FakeDisk) -> None:
    """A server that is creating a segment, or a crash, may have left the files."""
    make(disk)
    for name in ("00000000000000000099.index", "00000000000000000000.index.tmp"):
        disk.replace(f"{PARTITION}/{name}", bytes(16))
    before = disk.files()
    assert check(disk) == []
    assert disk.files() == before


def test_a_torn_state_log_and_a_missing_index_are_told(disk: FakeDisk) -> None:
    make(disk)
    state = disk.read(f"{ROOT}/state.messages")
    disk.replace(f"{ROOT}/state.messages", state[:-1])
    disk.unlink(INDEX)
    state_finding, index_finding = check(disk)
    assert (state_finding.file, state_finding.severity) == ("state.messages", "damage")
    assert (index_finding.file, index_finding.severity) == (INDEX.removeprefix(f"{ROOT}/"), "warning")


def test_messages_after_the_index_are_a_warning(disk: FakeDisk) -> None:
    make(disk)
    disk.replace(INDEX, disk.read(INDEX)[:-16])
    (finding,) = check(disk)
    assert finding.severity == "warning"
    assert "bytes are not in the index" in finding.message


@pytest.mark.parametrize("entries_kept", [None, 0, 1])
def test_messages_without_an_entry_are_checked_too(entries_kept: int | None) -> None:
    """The index of an earlier segment is missing, or ends before the damage."""
    world = busy_world()
    world.system.close()
    log, index = f"{PARTITION}/{3:020d}.log", f"{PARTITION}/{3:020d}.index"
    if entries_kept is None:
        world.disk.unlink(index)
    else:
        world.disk.replace(index, world.disk.read(index)[: 16 * entries_kept])
    size = len(world.disk.read(log)) // 3
    flip(world.disk, log, size + 70)
    warning, damage = check(world.disk)
    assert warning.severity == "warning"
    assert (damage.severity, damage.file, damage.offset, damage.seq) == (
        "damage",
        log.removeprefix(f"{ROOT}/"),
        size,
        4,
    )


def test_what_a_start_cuts_off_the_last_segment_is_no_damage() -> None:
    world = busy_world()
    world.system.close()
    world.disk.replace(f"{PARTITION}/{9:020d}.index", b"")
    flip(world.disk, f"{PARTITION}/{9:020d}.log", 66)
    (finding,) = check(world.disk)
    assert (finding.severity, finding.offset) == ("warning", 0)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_with_the_key_messages_are_read_and_with_another_none_can_be(disk: FakeDisk, codec: str) -> None:
    make(disk, encryption={"enabled": True, "key": KEY}, compression={"default_algorithm": codec})
    assert check(disk, key=KEY) == []
    state, *messages = check(disk, key=OTHER_KEY)
    assert state.file == "state.messages"
    assert [finding.seq for finding in messages] == list(range(7))
    without = check(disk)
    assert [finding.file for finding in without][:1] == ["state.messages"]


# While an engine runs.


SMALL_SEGMENTS = {"system": {"segment": {"size": "512 B"}, "partition": {"messages_required_to_save": 1}}}


def busy_world() -> World:
    world = World(SMALL_SEGMENTS)
    world.make_topic(partitions_count=2)
    fill(world, 3)
    world.send(b"first", b"second")
    world.send(b"third", partition_id=1)
    return world


def sends(world: World) -> None:
    fill(world, 1)


def purges(world: World) -> None:
    world.system.purge_topic("s", "t")


def drops_segments(world: World) -> None:
    world.system.delete_segments("s", "t", 0, 2)


def makes_the_topic_anew(world: World) -> None:
    world.system.delete_topic("s", "t")
    world.system.create_topic("s", "t")
    fill(world, 1)


def removes_the_stream(world: World) -> None:
    world.system.delete_stream("s")


@pytest.mark.parametrize("work", [sends, purges, drops_segments, makes_the_topic_anew, removes_the_stream])
def test_what_an_engine_does_between_two_calls_of_a_look_is_nothing_bad(work: Callable[[World], None]) -> None:
    def look(turn: int | None) -> int:
        world = busy_world()
        busy = BusyFs(world.disk, lambda: work(world) if turn else None, turn)
        found = [finding.line() for finding in StreamsVerifier(busy, ROOT).run()]
        world.system.close()
        assert len(found) == 1, (turn, found)
        assert found[0].startswith("note: .topics.lock: an engine has the directory open"), turn
        return busy.calls

    for turn in sampled_range(look(None), 3):
        look(turn + 1)


def test_damage_is_found_while_an_engine_writes() -> None:
    world = busy_world()
    log = f"{PARTITION}/{3:020d}.log"
    flip(world.disk, log, 100)
    world.disk.unlink(f"{PARTITION}/{6:020d}.index")
    found = list(StreamsVerifier(BusyFs(world.disk, lambda: world.send(b"more")), ROOT).run())
    world.system.close()
    assert [(finding.severity, finding.file.rpartition("/")[2], finding.seq) for finding in found[1:]] == [
        ("damage", f"{3:020d}.log", 3),
        ("warning", f"{6:020d}.index", None),
    ]


def test_a_directory_without_a_state_log_is_damage(disk: FakeDisk) -> None:
    disk.makedirs(ROOT)
    (finding,) = check(disk)
    assert finding.message == "no state log"
