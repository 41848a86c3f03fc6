"""The engine as a whole: streams, topics, partitions, codecs, users, and the errors of each call."""

import errno
from typing import Final

import pytest

from tests.streams.system_world import PARTITION, ROOT, World, batch, fill, numbered, refusal, start_offsets
from topics.formats.message_codec import Codec
from topics.formats.stream_command import UserStatus
from topics.formats.stream_layout import Flavour
from topics.formats.stream_permissions import Permissions, StreamPermissions, TopicPermissions
from topics.limits import U64_MAX
from topics.streams.consumers.polling import Consumer, PollingStrategy
from topics.streams.metadata.logins import Credentials
from topics.streams.metadata.permissions import Action
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import Balanced, MessagesKey, PartitionId
from topics.streams.running.consuming import StoredOffset
from topics.streams.system import Sent, System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk

FLAVOURS: Final = ("page", "iggy")
SMALL_SEGMENTS: Final = {"segment": {"size": 512}}
DAY_US: Final = 24 * 60 * 60 * 1_000_000
FIRST: Final = PollingStrategy.first()
NEXT: Final = PollingStrategy.next()


# Streams and topics.


def test_ids_begin_at_0_and_the_smallest_free_one_is_used_again() -> None:
    world = World()
    system = world.system
    assert [system.create_stream(name).id for name in ("a", "b", "c")] == [0, 1, 2]
    system.delete_stream("b")
    system.delete_stream("a")
    assert system.create_stream("d").id == 0
    assert [system.create_topic("d", name).id for name in ("t", "u", "v")] == [0, 1, 2]
    system.delete_topic("d", 1)
    system.delete_topic("d", "t")
    assert [system.create_topic("d", name).id for name in ("w", "x", "y")] == [0, 1, 3]
    assert [system.create_group("d", "w", name).id for name in ("g", "h")] == [0, 1]
    system.delete_group("d", "w", "g")
    assert system.create_group("d", "w", "i").id == 0
    world.reopen()
    assert world.system.create_stream("e").id == 1
    assert world.system.create_group("d", "w", "j").id == 2


def test_what_does_not_exist_or_exists_already_is_told_by_its_number() -> None:
    world = World()
    world.make_topic()
    system = world.system
    system.create_stream("other")
    system.create_topic("s", "u")
    system.create_group("s", "t", "g")
    consumer = Consumer(1)
    assert refusal(lambda: system.create_stream("s")) == 1012
    assert refusal(lambda: system.update_stream("other", "s")) == 1012
    assert refusal(lambda: system.delete_stream("none")) == 1009
    assert refusal(lambda: system.update_stream(9, "x")) == 1009
    assert refusal(lambda: system.purge_stream(9)) == 1009
    assert refusal(lambda: system.create_topic("none", "t")) == 1009
    assert refusal(lambda: system.create_topic("s", "t")) == 2013
    assert refusal(lambda: system.update_topic("s", "u", name="t")) == 2013
    assert refusal(lambda: system.delete_topic("s", "none")) == 2010
    assert refusal(lambda: system.purge_topic("s", "none")) == 2010
    assert refusal(lambda: system.topic_state("s", "none")) == 2010
    assert refusal(lambda: system.send("none", "t", batch(b"a"))) == 1009
    assert refusal(lambda: system.send("s", "none", batch(b"a"))) == 2010
    assert refusal(lambda: system.send("s", "t", batch(b"a"), PartitionId(1))) == 3007
    assert refusal(lambda: system.poll("s", "none", consumer, FIRST, 1)) == 2010
    assert refusal(lambda: system.poll("s", "t", consumer, FIRST, 1, partition_id=1)) == 3007
    assert refusal(lambda: system.flush("s", "t", 1, fsync=True)) == 3007
    assert refusal(lambda: system.get_offset("s", "t", consumer, partition_id=1)) == 3007
    assert refusal(lambda: system.store_offset("s", "t", consumer, 0, partition_id=1)) == 3007
    assert refusal(lambda: system.delete_segments("s", "t", 1, 1)) == 3007
    assert refusal(lambda: system.create_partitions("s", "none", 1)) == 2010
    assert refusal(lambda: system.create_group("s", "t", "g")) == 5004
    assert refusal(lambda: system.delete_group("s", "t", "none")) == 5000
    assert refusal(lambda: system.join_group("s", "t", "none", 1)) == 5000
    assert refusal(lambda: system.poll("s", "t", Consumer.group("none"), FIRST, 1)) == 5000
    assert refusal(lambda: system.poll("s", "t", Consumer.group("g"), FIRST, 1, client_id=7)) == 5006
    assert refusal(lambda: system.store_offset("s", "t", Consumer.group("g"), 0, client_id=7)) == 5006
    assert refusal(lambda: system.leave_group("s", "t", "g", 7)) == 5006
    assert world.disk.listdir(f"{ROOT}/streams") == ["0"], "what was refused left nothing behind"


def test_sizes_counts_and_names_outside_their_limits_are_refused() -> None:
    world = World({"system": {"segment": {"size": "1 MiB"}}})
    world.make_topic()
    system = world.system
    assert refusal(lambda: system.create_topic("s", "u", max_topic_size=1024 * 1024 - 1)) == 1019
    assert refusal(lambda: system.update_topic("s", "t", name="t", max_topic_size=1)) == 1019
    assert refusal(lambda: system.create_topic("s", "u", partitions_count=1001)) == 2015
    assert refusal(lambda: system.create_partitions("s", "t", 1001)) == 2015
    assert refusal(lambda: system.create_partitions("s", "t", 0)) == 2015
    assert refusal(lambda: system.delete_partitions("s", "t", 2)) == 2019
    assert refusal(lambda: system.create_stream("x" * 256)) == 1013
    assert refusal(lambda: system.create_topic("s", "x" * 256)) == 2014
    assert refusal(lambda: system.create_group("s", "t", "x" * 256)) == 5005
    assert refusal(lambda: system.send("s", "t", encode_send([]))) == 4009
    system.create_topic("s", "u", max_topic_size=1024 * 1024)
    assert [topic.name for topic in system.metadata.streams[0].topics.ascending()] == ["t", "u"]


def test_a_topic_reports_what_it_was_created_with_and_defaults_resolved() -> None:
    world = World({"system": {"topic": {"max_size": "2 GiB", "message_expiry": "1 day"}}})
    world.system.create_stream("s")
    made = world.system.create_topic("s", "t", partitions_count=3, compression=Codec.GZIP)
    assert (made.message_expiry, made.max_size, made.replication_factor) == (DAY_US, 2 * 1024**3, 1)
    assert (made.compression, len(made.partitions)) == (Codec.GZIP.code, 3)
    assert {partition.created_at for partition in made.partitions} == {made.created_at} == {1_700_000_000_000_000}
    other = world.system.create_topic("s", "u", message_expiry=5, max_topic_size=U64_MAX, replication_factor=3)
    assert (other.message_expiry, other.max_size, other.replication_factor) == (5, U64_MAX, 3)


def test_names_and_options_can_be_changed() -> None:
    world = World()
    world.make_topic()
    world.send(b"a")
    world.system.update_stream("s", "renamed")
    world.system.update_topic("renamed", "t", name="u", message_expiry=7, max_topic_size=2 * 1024**3)
    world.reopen()
    info = world.system.metadata.resolve_topic("renamed", "u")
    assert (info.message_expiry, info.max_size) == (7, 2 * 1024**3)
    polled = world.system.poll("renamed", "u", Consumer(1), FIRST, 10)
    assert [bytes(message.payload) for message in polled] == [b"a"]
    assert refusal(lambda: world.system.delete_stream("s")) == 1009


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_restart_keeps_everything(flavour: str) -> None:
    world = World(flavour=flavour)
    world.make_topic(2)
    world.send(*numbered(5))
    headers = {"key": "value"}
    message = NewMessage(b"with headers", 7, user_headers=headers, origin_timestamp=99)
    world.system.send("s", "t", encode_send([message]), PartitionId(1))
    world.system.store_offset("s", "t", Consumer("billing"), 3)
    world.system.create_group("s", "t", "g")
    world.system.accounts.create_user("somebody", "password", permissions=Permissions(read_streams=True))
    token = world.system.accounts.create_token("token")
    world.system.upkeep.save(fsync=False)
    before = world.system.topic_state("s", "t")
    world.reopen()
    assert world.system.flavour is Flavour(flavour)
    assert world.system.topic_state("s", "t") == before
    assert world.all() == list(enumerate(numbered(5)))
    (found,) = world.poll(FIRST, partition_id=1)
    assert (found.id, found.origin_timestamp, bytes(found.payload)) == (7, 99, b"with headers")
    assert len(found.user_headers) == 1
    assert world.system.get_offset("s", "t", Consumer("billing")) == StoredOffset(0, 4, 3)
    assert world.system.get_offset("s", "t", Consumer.group("g")) is None
    assert world.system.accounts.login("somebody", "password").permissions == Permissions(read_streams=True)
    assert world.system.accounts.login("iggy", "iggy").id == 0
    assert world.system.accounts.login_with_token(token).id == 0
    assert world.send(b"on") == 5


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_kill_loses_what_was_buffered_and_nothing_else(flavour: str) -> None:
    world = World(flavour=flavour)
    world.make_topic()
    world.send(b"a", b"b")
    world.system.flush("s", "t", 0, fsync=False)
    world.send(b"buffered")
    world.system.store_offset("s", "t", Consumer(1), 2)
    world.restart()
    assert world.all() == [(0, b"a"), (1, b"b")]
    # The stored offset was above the last message: it is lowered, and the consumer gets new messages.
    assert world.system.get_offset("s", "t", Consumer(1)) == StoredOffset(0, 1, 1)
    world.send(b"c")
    assert [bytes(message.payload) for message in world.poll(NEXT)] == [b"c"]


def test_a_flush_with_fsync_survives_a_power_loss_though_nobody_synced_the_state_log() -> None:
    world = World()
    world.make_topic()
    world.send(b"a")
    world.system.flush("s", "t", 0, fsync=True)
    world.disk.crash(Damage.DROP)
    world.open()
    assert world.all() == [(0, b"a")]


def test_a_deletion_that_was_answered_survives_a_power_loss_and_the_directory_still_opens() -> None:
    """The folder must not be removed while the state log still has the topic."""
    world = World()
    world.make_topic(2)
    world.system.create_topic("s", "u")
    world.system.delete_partitions("s", "t", 1)
    world.disk.crash(Damage.DROP)
    world.open()
    assert len(world.system.topic_state("s", "t").partitions) == 1
    world.system.delete_topic("s", "t")
    world.disk.crash(Damage.DROP)
    world.open()
    world.system.delete_stream("s")
    world.disk.crash(Damage.DROP)
    assert world.open().metadata.streams == {}


def test_deleting_takes_the_folders_along() -> None:
    world = World()
    world.make_topic(3)
    world.system.create_topic("s", "u")
    world.system.delete_partitions("s", "t", 2)
    assert world.names(f"{ROOT}/streams/0/topics/0/partitions") == ["0"]
    world.system.delete_topic("s", "t")
    assert world.names(f"{ROOT}/streams/0/topics") == ["1"]
    world.system.delete_stream("s")
    assert world.names(f"{ROOT}/streams") == []
    assert world.monitor.check_settled() == []


def test_a_stream_is_purged_with_all_its_topics() -> None:
    world = World()
    world.make_topic()
    world.system.create_topic("s", "u")
    world.system.create_stream("other")
    world.system.create_topic("other", "t")
    for topic in ("t", "u"):
        world.send(b"a", topic=topic)
    world.system.send("other", "t", batch(b"kept"))
    world.system.purge_stream("s")
    assert world.all() == world.all("u") == []
    assert world.system.topic_state("other", "t").messages_count == 1
    assert world.send(b"b") == 0


def test_a_purge_drops_offsets_and_buffered_messages_and_begins_at_0() -> None:
    """After a restart there are no old messages and offsets."""
    world = World({"system": SMALL_SEGMENTS})
    world.make_topic(2)
    fill(world, 3)
    world.send(b"buffered", partition_id=1)
    world.system.store_offset("s", "t", Consumer("c"), 5)
    world.system.create_group("s", "t", "g")
    world.system.join_group("s", "t", "g", 1)
    for _ in range(2):
        world.poll(NEXT, consumer=Consumer.group("g"), client_id=1, auto_commit=True)
    world.system.purge_topic("s", "t")
    for system in (world.system, world.restart()):
        assert system.topic_state("s", "t").messages_count == 0
        assert system.get_offset("s", "t", Consumer("c")) is None
        assert system.get_offset("s", "t", Consumer.group("g")) is None
        assert world.all() == world.all(partition_id=1) == []
    assert world.send(b"new") == 0
    assert [bytes(message.payload) for message in world.poll(NEXT, consumer=Consumer("c"))] == [b"new"]


# Partitions.


def test_partitions_are_added_and_the_highest_are_taken_away() -> None:
    world = World()
    world.make_topic()
    world.system.create_partitions("s", "t", 2)
    assert [state.id for state in world.system.topic_state("s", "t").partitions] == [0, 1, 2]
    for partition_id in range(3):
        world.send(b"%d" % partition_id, partition_id=partition_id)
    world.system.delete_partitions("s", "t", 1)
    assert refusal(lambda: world.send(b"gone", partition_id=2)) == 3007
    world.reopen()
    world.system.create_partitions("s", "t", 1)
    assert world.all(partition_id=1) == [(0, b"1")]
    assert world.all(partition_id=2) == [], "a new one has nothing of the old one with its number"
    assert world.send(b"new", partition_id=2) == 0


def test_a_topic_without_partitions_refuses_messages_and_nothing_else_happens() -> None:
    """A send with a key to such a topic gets an error."""
    world = World()
    world.make_topic(0)
    assert refusal(lambda: world.system.send("s", "t", batch(b"a"), MessagesKey(b"key"))) == 3008
    assert refusal(lambda: world.system.send("s", "t", batch(b"a"), Balanced())) == 2010
    assert refusal(lambda: world.system.send("s", "t", batch(b"a"), PartitionId(0))) == 3007
    assert world.system.create_stream("alive").id == 1
    world.system.create_partitions("s", "t", 1)
    assert world.system.send("s", "t", batch(b"a"), MessagesKey(b"key")) == Sent(0, 0, 1)


def test_partitions_added_to_a_topic_that_had_none_are_numbered_from_0_also_after_a_restart() -> None:
    world = World()
    world.make_topic(0)
    world.system.create_group("s", "t", "g")
    world.system.create_partitions("s", "t", 2)
    world.reopen()
    world.system.join_group("s", "t", "g", 1)
    assert [member.partitions for member in world.system.group("s", "t", "g").members] == [(0, 1)]
    world.send(b"a")
    polled = world.poll(NEXT, consumer=Consumer.group("g"), client_id=1)
    assert (polled.partition_id, len(polled)) == (0, 1)


def test_balanced_sends_take_the_partitions_in_turn_and_keys_stay_where_they_are() -> None:
    world = World()
    world.make_topic(3)
    assert [world.system.send("s", "t", batch(b"a")).partition_id for _ in range(4)] == [0, 1, 2, 0]
    # Their hash is 3017358048.
    assert {world.system.send("s", "t", batch(b"a"), MessagesKey(b"key")).partition_id for _ in range(3)} == {0}


def test_a_batch_is_taken_as_a_whole_or_not_at_all() -> None:
    world = World({"system": {"partition": {"messages_required_to_save": 1}}})
    world.make_topic()
    world.send(b"a")
    world.faults.fail("pwritev", error=errno.ENOSPC)
    assert refusal(lambda: world.send(b"b", b"c")) == 10005
    assert world.all() == [(0, b"a")]
    assert world.send(b"d") == 1
    world.restart()
    assert world.all() == [(0, b"a"), (1, b"d")]


# Codecs.


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_change_of_the_algorithm_rolls_the_segment_and_all_can_be_read(codec: Codec) -> None:
    world = World({"system": {"compression": {"allow_override": True}}})
    world.make_topic()
    world.send(b"plain" * 20)
    world.system.update_topic("s", "t", name="t", compression=codec)
    assert start_offsets(world) == [0], "with the next append"
    world.send(b"compressed" * 20, b"too")
    assert start_offsets(world) == [0, 1]
    assert world.disk.read(f"{PARTITION}/{1:020d}.codec") == codec.value.encode()
    world.reopen()
    assert world.system.metadata.resolve_topic("s", "t").compression == codec.code
    world.send(b"after")
    world.system.update_topic("s", "t", name="t")
    world.send(b"plain again")
    assert start_offsets(world) == [0, 1, 4]
    world.system.create_partitions("s", "t", 1)
    assert [payload for _, payload in world.all()] == [
        b"plain" * 20,
        b"compressed" * 20,
        b"too",
        b"after",
        b"plain again",
    ]


def test_without_override_the_default_algorithm_is_used_and_the_asked_one_reported() -> None:
    world = World({"system": {"compression": {"default_algorithm": "gzip"}}})
    world.make_topic(compression=Codec.ZSTD)
    world.send(b"x" * 1000)
    assert world.system.topic_state("s", "t").size_bytes < 200
    assert world.system.metadata.resolve_topic("s", "t").compression == Codec.ZSTD.code
    assert world.disk.read(f"{PARTITION}/{0:020d}.codec") == b"gzip"
    assert world.all() == [(0, b"x" * 1000)]


def test_the_iggy_flavour_does_not_compress_unless_it_is_forced() -> None:
    world = World({"system": {"compression": {"default_algorithm": "gzip"}}}, flavour="iggy")
    world.make_topic()
    world.send(b"x" * 1000)
    assert world.system.topic_state("s", "t").size_bytes == 1064
    world.reopen({"system": {"compression": {"default_algorithm": "gzip", "force": True}}})
    world.send(b"x" * 1000)
    assert start_offsets(world) == [0, 1]
    assert [payload for _, payload in world.all()] == [b"x" * 1000] * 2


# Users.


def test_users_are_made_changed_and_deleted() -> None:
    world = World()
    system = world.system
    user = system.accounts.create_user("somebody", "password")
    assert user.id == 1
    assert refusal(lambda: system.accounts.create_user("somebody", "password")) == 46
    assert refusal(lambda: system.accounts.create_user("ab", "password")) == 43
    assert refusal(lambda: system.accounts.create_user("other", "pw")) == 44
    assert refusal(lambda: system.accounts.login("somebody", "wrong password")) == 42
    assert refusal(lambda: system.accounts.change_password("somebody", "wrong", "password 2")) == 42
    assert refusal(lambda: system.accounts.delete_user("iggy")) == 48
    assert refusal(lambda: system.accounts.update_permissions(0, None)) == 49
    system.accounts.change_password("somebody", "password", "password 2")
    system.accounts.update_user("somebody", username="renamed", status=UserStatus.INACTIVE)
    assert refusal(lambda: system.accounts.login("renamed", "password 2")) == 47
    system.accounts.update_user(1, status=UserStatus.ACTIVE)
    system.accounts.update_permissions("renamed", Permissions(poll_messages=True))
    world.reopen()
    found = world.system.accounts.login("renamed", "password 2")
    assert (found.id, found.permissions) == (1, Permissions(poll_messages=True))
    world.system.accounts.delete_user("renamed")
    assert refusal(lambda: world.system.accounts.login("renamed", "password 2")) == 42


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("how", ["at once", "after a restart before", "after a restart"])
def test_permissions_of_what_was_deleted_do_not_pass_to_the_next_with_its_id(how: str, flavour: str) -> None:
    world = World(flavour=flavour)
    world.make_topic()
    world.system.create_topic("s", "kept")
    world.system.create_stream("deleted")
    on_topics = {0: TopicPermissions(poll_messages=True), 1: TopicPermissions(poll_messages=True)}
    streams = {0: StreamPermissions(topics=on_topics), 1: StreamPermissions(read_stream=True)}
    world.system.accounts.create_user("bob", "password", permissions=Permissions(read_users=True, streams=streams))
    if how == "after a restart before":
        world.restart()
    world.system.delete_topic("s", "t")
    world.system.delete_stream("deleted")
    assert world.system.create_topic("s", "secret").id == 0
    assert world.system.create_stream("secrets").id == 1
    if how == "after a restart":
        world.restart()
    bob = world.system.metadata.resolve_user("bob")
    left = StreamPermissions(topics={1: TopicPermissions(poll_messages=True)})
    assert bob.permissions == Permissions(read_users=True, streams={0: left})
    authorize = world.system.accounts.authorize
    authorize(bob, Action.POLL, 0, 1)
    assert refusal(lambda: authorize(bob, Action.POLL, 0, 0)) == 41
    assert refusal(lambda: authorize(bob, Action.GET_STREAM, 1)) == 41


def test_permissions_for_a_stream_that_is_yet_to_come_stay() -> None:
    world = World()
    world.make_topic()
    permissions = Permissions(streams={5: StreamPermissions(read_stream=True)})
    world.system.accounts.create_user("bob", "password", permissions=permissions)
    world.system.delete_topic("s", "t")
    world.system.delete_stream("s")
    assert world.system.metadata.resolve_user("bob").permissions == permissions


def test_tokens_log_in_until_they_expire_or_are_deleted() -> None:
    world = World()
    kept = world.system.accounts.create_token("kept")
    short = world.system.accounts.create_token("short", 60_000_000)
    assert refusal(lambda: world.system.accounts.create_token("kept")) == 51
    assert world.system.accounts.login_with_token(short).name == "iggy"
    world.clock.advance(60_000)
    assert refusal(lambda: world.system.accounts.login_with_token(short)) == 54
    world.system.tick()
    assert refusal(lambda: world.system.accounts.login_with_token(short)) == 20, "cleaned away"
    world.reopen()
    assert world.system.accounts.login_with_token(kept).id == 0
    world.system.accounts.delete_token("kept")
    assert refusal(lambda: world.system.accounts.login_with_token(kept)) == 20
    assert refusal(lambda: world.system.accounts.delete_token("kept")) == 20


def test_a_directory_without_a_root_user_gets_the_one_that_is_given_and_keeps_it() -> None:
    disk = FakeDisk()
    clock = ManualClock()
    System.open(disk, ROOT, clock=clock, root_user=Credentials("admin", "secret")).close()
    system = System.open(disk, ROOT, clock=clock, root_user=Credentials("other", "other"))
    assert system.accounts.login("admin", "secret").id == 0
    assert refusal(lambda: system.accounts.login("other", "other")) == 42
    assert "secret" not in repr(Credentials("admin", "secret"))
