"""The regular work of the engine: saving, retention, archiving."""

from typing import Final

import pytest

from tests.streams.system_world import PARTITION, ROOT, World, fill, refusal, start_offsets
from topics.streams.consumers.polling import Consumer
from topics.testing.fake_disk import Damage

FLAVOURS: Final = ("page", "iggy")
SMALL_SEGMENTS: Final = {"segment": {"size": 512}}


def test_the_saver_flushes_and_syncs_every_partition_at_its_interval() -> None:
    """`message_saver.enforce_fsync` syncs."""
    world = World()
    world.make_topic(2)
    world.send(b"a")
    world.send(b"b", partition_id=1)
    world.clock.advance(29_999)
    world.system.tick()
    assert world.disk.read(f"{PARTITION}/{0:020d}.log") == b""
    world.clock.advance(1)
    world.system.tick()
    world.monitor.require_synced(f"{ROOT}/streams")
    world.disk.crash(Damage.DROP)
    world.open()
    assert (world.all(), world.all(partition_id=1)) == ([(0, b"a")], [(0, b"b")])


def test_the_saver_without_fsync_only_flushes_and_one_that_is_off_does_nothing() -> None:
    world = World({"message_saver": {"enforce_fsync": False}})
    world.make_topic()
    world.send(b"a")
    world.clock.advance(30_000)
    world.system.tick()
    world.restart({"message_saver": {"enabled": False}})
    assert world.all() == [(0, b"a")]
    world.send(b"b")
    world.clock.advance(30_000)
    world.system.tick()
    world.restart()
    assert world.all() == [(0, b"a")]


def test_a_failed_sync_of_the_saver_is_told_and_stops_the_partition() -> None:
    """Errors of fsync are reported."""
    world = World()
    world.make_topic()
    world.send(b"a")
    world.faults.fail("fdatasync")
    world.clock.advance(30_000)
    world.system.tick()
    assert refusal(lambda: world.send(b"b")) == 10009
    assert world.all() == [(0, b"a")], "polls go on"
    assert world.system.create_stream("other").id == 1, "and so does everything else"


def test_a_sync_that_fails_fails_its_request() -> None:
    world = World({"system": {"partition": {"enforce_fsync": True, "messages_required_to_save": 1}}})
    world.make_topic()
    world.faults.fail("fdatasync")
    assert refusal(lambda: world.send(b"a")) == 10009
    assert world.all() == []


CLEANED: Final = {"system": SMALL_SEGMENTS, "data_maintenance": {"messages": {"cleaner_enabled": True}}}


def test_the_cleaner_deletes_what_has_expired_but_never_the_active_segment() -> None:
    world = World(CLEANED)
    world.make_topic(message_expiry=90_000_000)
    fill(world, 2)
    world.clock.advance(60_000)
    fill(world, 1)
    world.send(b"active")
    world.system.tick()
    assert start_offsets(world) == [0, 3, 6, 9]
    world.clock.advance(60_000)
    world.system.tick()
    assert start_offsets(world) == [6, 9]
    world.clock.advance(3_600_000)
    world.system.tick()
    assert world.all() == [(9, b"active")]
    world.restart()
    assert world.send(b"on") == 10, "offsets do not restart"


def test_the_cleaner_keeps_a_topic_below_its_size() -> None:
    world = World(CLEANED)
    world.make_topic(2, max_topic_size=3000)
    for partition_id in (0, 1, 0, 1, 0, 1):
        world.clock.advance(1)
        fill(world, 1, partition_id=partition_id)
    assert world.system.topic_state("s", "t").size_bytes == 6 * 3 * 184
    world.clock.advance(60_000)
    world.system.tick()
    # 90 % of 3000 is 2700: while there are 2700 bytes or more, the oldest segment of all partitions is deleted.
    assert (start_offsets(world), start_offsets(world, partition_id=1)) == ([3, 6, 9], [3, 6, 9])
    assert world.system.topic_state("s", "t").size_bytes == 4 * 3 * 184


def test_a_topic_with_the_default_size_has_it_after_a_restart_too() -> None:
    """0 is the default of the settings."""
    world = World(CLEANED)
    world.make_topic()
    fill(world, 3)
    world.reopen()
    world.clock.advance(60_000)
    world.system.tick()
    assert start_offsets(world) == [0, 3, 6, 9]
    world.reopen({**CLEANED, "system": {**SMALL_SEGMENTS, "topic": {"max_size": 1500}}})
    assert world.system.metadata.resolve_topic("s", "t").max_size == 1500


def test_unconsumed_segments_stay_when_that_is_asked_for() -> None:
    kept = {"cleaner_enabled": True, "keep_unconsumed": True}
    world = World({"system": SMALL_SEGMENTS, "data_maintenance": {"messages": kept}})
    world.make_topic(message_expiry=1)
    fill(world, 3)
    world.system.store_offset("s", "t", Consumer(1), 4)
    world.clock.advance(60_000)
    world.system.tick()
    assert start_offsets(world) == [3, 6, 9]
    assert world.system.delete_segments("s", "t", 0, 5) == 0
    world.system.store_offset("s", "t", Consumer(1), 5)
    assert world.system.delete_segments("s", "t", 0, 5) == 1
    assert start_offsets(world) == [6, 9]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_deleted_segments_are_in_the_state_log_and_stay_deleted(flavour: str) -> None:
    """The command is in the state log."""
    world = World({"system": SMALL_SEGMENTS}, flavour=flavour)
    world.make_topic()
    fill(world, 4)
    log = world.system.flavour.state_log_path(ROOT)
    size = len(world.disk.read(log))
    assert world.system.delete_segments("s", "t", 0, 2) == 2
    assert len(world.disk.read(log)) > size
    assert world.system.delete_segments("s", "t", 0, 9) == 2, "the active one stays"
    world.restart()
    assert (start_offsets(world), world.all()) == ([12], [])
    assert world.send(b"on") == 12


def test_sealed_segments_are_archived_before_they_expire() -> None:
    archived = {
        "messages": {"cleaner_enabled": True, "archiver_enabled": True},
        "archiver": {"enabled": True, "kind": "disk"},
    }
    world = World({"system": {"segment": {"size": 512, "archive_expired": True}}, "data_maintenance": archived})
    world.make_topic(message_expiry=1)
    fill(world, 2)
    logs = [world.disk.read(f"{PARTITION}/{start:020d}.log") for start in (0, 3)]
    backup = f"{ROOT}/backup/streams/0/topics/0/partitions/0"
    world.faults.fail("rename", path=lambda path: path.startswith(f"{ROOT}/backup"), lasts=True)
    world.clock.advance(60_000)
    world.system.tick()
    assert start_offsets(world) == [0, 3, 6], "nothing goes that is not archived"
    world.faults.heal()
    world.clock.advance(60_000)
    world.system.tick()
    assert start_offsets(world) == [6]
    assert [world.disk.read(f"{backup}/{start:020d}.log") for start in (0, 3)] == logs
    world.clock.advance(60_000)
    world.system.tick()
    assert len(world.names(backup)) == 4
