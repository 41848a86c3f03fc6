"""`topics doctor` on a stream directory: it says what a start would do, and does it when it is told to."""

from collections.abc import Callable

import pytest

from tests.streams.system_world import PARTITION, ROOT, World
from topics.errors import DirectoryLocked, StartRefused
from topics.storage.inspect.repair_plan import RepairPlan
from topics.streams.inspect.doctor import StreamsDoctor, repair_streams
from topics.testing.fake_disk import FakeDisk

LOG = f"{PARTITION}/{0:020d}.log"
INDEX = f"{PARTITION}/{0:020d}.index"
STATE = {"page": f"{ROOT}/state.messages", "iggy": f"{ROOT}/state/log"}


@pytest.fixture(params=["page", "iggy"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(flavour: str) -> World:
    world = World(flavour=flavour)
    world.make_topic()
    world.send(b"first", b"second")
    world.system.close()
    return world


def plan_of(disk: FakeDisk, *, accept_loss: bool = False) -> RepairPlan:
    before = disk.files()
    doctor = StreamsDoctor(disk, ROOT)
    for _ in doctor.diagnose():
        pass
    plan = doctor.plan(accept_loss=accept_loss)
    assert disk.files() == before, "a diagnosis changes nothing"
    return plan


def append(disk: FakeDisk, path: str, data: bytes) -> None:
    disk.replace(path, disk.read(path) + data)


def damages(world: World, flavour: str) -> dict[str, Callable[[], None]]:
    disk = world.disk
    return {
        "a torn state log": lambda: append(disk, STATE[flavour], b"torn"),
        "a missing index": lambda: disk.unlink(INDEX),
        "an index that is cut": lambda: disk.replace(INDEX, disk.read(INDEX)[:-3]),
        "an index ahead of its log": lambda: append(disk, INDEX, disk.read(INDEX)),
        "a torn message": lambda: append(disk, LOG, disk.read(LOG)[:50]),
        "a bad last message": lambda: disk.poke(LOG, len(disk.read(LOG)) - 1, b"?"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a torn state log",
        "a missing index",
        "an index that is cut",
        "an index ahead of its log",
        "a torn message",
        "a bad last message",
    ],
)
def test_a_repair_leaves_the_messages_that_a_start_would_leave(world: World, flavour: str, what: str) -> None:
    damages(world, flavour)[what]()
    plan = plan_of(world.disk)
    assert len(plan.steps) == 1
    assert not plan.refusals
    started = world.disk.clone()
    said: list[str] = []
    repair_streams(world.disk, ROOT, say=said.append)
    assert said == [step.text for step in plan.steps]
    assert not plan_of(world.disk).steps
    doctor = StreamsDoctor(world.disk, ROOT)
    assert not [finding for finding in doctor.verifier.run() if finding.severity != "note"]
    repaired = {
        path: data for path, data in world.disk.files().items() if path.endswith((".log", ".index", "messages"))
    }
    world.disk = started
    world.open().close()
    for path, data in repaired.items():
        assert started.read(path) == data


def test_what_a_repair_cuts_is_kept(world: World, flavour: str) -> None:
    log, state = world.disk.read(LOG), world.disk.read(STATE[flavour])
    append(world.disk, LOG, b"half a message")
    append(world.disk, STATE[flavour], b"half an entry")
    repair_streams(world.disk, ROOT)
    assert (world.disk.read(LOG), world.disk.read(STATE[flavour])) == (log, state)
    assert world.disk.read(f"{LOG}.{len(log)}.broken") == b"half a message"
    assert world.disk.read(f"{STATE[flavour]}.{len(state)}.broken") == b"half an entry"


def test_a_removal_is_finished(world: World) -> None:
    world.open()
    world.system.create_topic("s", "other")
    world.system.close()
    world.disk.rename(f"{ROOT}/streams/0/topics/1", f"{ROOT}/streams/0/topics/5.deleted")
    world.disk.makedirs(f"{ROOT}/streams/0/topics/1/partitions/0")
    assert [step.text for step in plan_of(world.disk).steps] == ["finish the removal of streams/0/topics/5.deleted"]
    repair_streams(world.disk, ROOT)
    assert world.disk.listdir(f"{ROOT}/streams/0/topics") == ["0", "1"]


def test_a_missing_partition_is_begun_again_only_with_accept_loss(world: World, flavour: str) -> None:
    world.disk.rename(PARTITION, "/elsewhere")
    assert plan_of(world.disk).refusals == [
        "streams/0/topics/0/partitions/0 is missing; bring it back, or repair with --accept-loss"
    ]
    plan = plan_of(world.disk, accept_loss=True)
    assert plan.lost_lines == ["all messages of streams/0/topics/0/partitions/0 are lost: its folder is missing"]
    repair_streams(world.disk, ROOT, accept_loss=True)
    world.open()
    assert world.all() == []


def test_what_a_start_refuses_is_refused(world: World, flavour: str) -> None:
    world.disk.poke(STATE[flavour], 40, b"\xff\xff")
    plan = plan_of(world.disk)
    assert not plan.steps
    assert "restore it from a copy" in plan.refusals[0]
    with pytest.raises(StartRefused):
        world.open()


def test_two_state_logs_are_refused(world: World) -> None:
    for path in STATE.values():
        if not world.disk.exists(path):
            world.disk.makedirs(path.rpartition("/")[0])
            world.disk.open(path, "create").close()
    assert "two state logs" in plan_of(world.disk).refusals[0]


def test_damage_in_the_middle_stays_and_is_told(world: World) -> None:
    world.disk.poke(LOG, 66, b"?")
    doctor = StreamsDoctor(world.disk, ROOT)
    (finding,) = [finding for finding in doctor.diagnose() if finding.severity == "damage"]
    assert (finding.seq, finding.message) == (0, "the message does not match its checksum")
    assert finding.advice == "polls that reach it fail; bring the segment back from an archive or a copy"
    assert not doctor.plan().steps


def test_a_directory_in_use_is_looked_at_and_not_repaired(world: World) -> None:
    append(world.disk, LOG, b"half a message")
    world.open()
    notes = [finding.message for finding in StreamsDoctor(world.disk, ROOT).verifier.run()]
    assert "an engine has the directory open" in notes[0]
    with pytest.raises(DirectoryLocked):
        repair_streams(world.disk, ROOT)
