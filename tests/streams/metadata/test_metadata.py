"""Metadata: the checks and effects of each command, and a replay that leads to the same state."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import StartRefused
from topics.formats.state_entry import StateEntry, scan_iggy
from topics.formats.stream_command import (
    ChangePassword,
    Command,
    CreateConsumerGroup,
    CreatePartitions,
    CreatePersonalAccessToken,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeleteConsumerGroup,
    DeletePartitions,
    DeletePersonalAccessToken,
    DeleteSegments,
    DeleteStream,
    DeleteTopic,
    DeleteUser,
    PurgeStream,
    PurgeTopic,
    UpdatePermissions,
    UpdateStream,
    UpdateTopic,
    UpdateUser,
    UserStatus,
)
from topics.formats.stream_permissions import ALL_PERMISSIONS, Permissions
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import Metadata
from topics.streams.metadata.streams_metadata import TopicInfo
from topics.streams.settings import UNLIMITED, StreamsSettings, from_mapping

NOW: Final = 1_700_000_000_000_000
SECOND: Final = 1_000_000
ROOT: Final = CreateUser(0, "iggy", "hash", UserStatus.ACTIVE, ALL_PERMISSIONS)
SMALL: Final = from_mapping(
    {
        "system": {"segment": {"size": "1 MiB"}, "topic": {"max_size": "5 MiB", "message_expiry": "1 h"}},
        "personal_access_token": {"max_tokens_per_user": 2},
    }
)


def topic(stream_id: int | str, topic_id: int, name: str, partitions_count: int = 1, **options: int) -> CreateTopic:
    values = {"compression_algorithm": 1, "message_expiry": 0, "max_topic_size": 0, "replication_factor": 0}
    return CreateTopic(
        stream_id=stream_id, topic_id=topic_id, name=name, partitions_count=partitions_count, **(values | options)
    )


def updated(topic_id: int | str, name: str, **options: int) -> UpdateTopic:
    values = {"compression_algorithm": 1, "message_expiry": 0, "max_topic_size": 0, "replication_factor": 0}
    return UpdateTopic(stream_id="orders", topic_id=topic_id, name=name, **(values | options))


class World:
    """Metadata with commands as in an engine: checked, logged, applied."""

    def __init__(self, settings: StreamsSettings = SMALL) -> None:
        self.settings = settings
        self.metadata = Metadata(settings)
        self.entries: list[StateEntry] = []
        self.do(ROOT)

    def do(self, command: Command, user_id: int = 0, timestamp: int | None = None) -> None:
        self.metadata.check(user_id, command)
        entry = StateEntry(len(self.entries), timestamp or NOW + len(self.entries), user_id, command)
        self.entries.append(entry)
        self.metadata.apply(entry.timestamp, user_id, command)

    def refused(self, command: Command, user_id: int = 0) -> StreamStatus:
        before = shown(self.metadata)
        with pytest.raises(StreamsError) as caught:
            self.metadata.check(user_id, command)
        assert shown(self.metadata) == before
        return caught.value.number

    def replayed(self, settings: StreamsSettings | None = None, now_us: int = NOW) -> Metadata:
        again = Metadata(settings or self.settings)
        again.replay(self.entries, now_us)
        return again


def shown(metadata: Metadata) -> Any:
    """A copy of all metadata."""
    return deepcopy((metadata.streams, metadata.users))


def orders_world() -> World:
    world = World()
    world.do(CreateStream(0, "orders"))
    world.do(topic("orders", 0, "events", 3))
    world.do(CreateConsumerGroup("orders", "events", 0, "readers"))
    return world


def test_things_are_found_by_id_and_by_name() -> None:
    metadata = orders_world().metadata
    for stream in (0, "orders"):
        assert metadata.resolve_stream(stream).name == "orders"
        for topic_id in (0, "events"):
            assert metadata.resolve_topic(stream, topic_id).stream_id == 0
            assert metadata.resolve_partition(stream, topic_id, 2).id == 2
            for group in (0, "readers"):
                assert metadata.resolve_group(stream, topic_id, group).name == "readers"
    assert metadata.resolve_user(0) is metadata.resolve_user("iggy")
    assert metadata.has_root
    assert not Metadata(SMALL).has_root


@pytest.mark.parametrize(
    ("lookup", "status"),
    [
        (lambda metadata: metadata.resolve_stream(1), StreamStatus.STREAM_ID_NOT_FOUND),
        (lambda metadata: metadata.resolve_stream("Orders"), StreamStatus.STREAM_ID_NOT_FOUND),
        # A name may consist of digits.
        (lambda metadata: metadata.resolve_stream("0"), StreamStatus.STREAM_ID_NOT_FOUND),
        (lambda metadata: metadata.resolve_topic("nobody", "events"), StreamStatus.STREAM_ID_NOT_FOUND),
        (lambda metadata: metadata.resolve_topic("orders", "other"), StreamStatus.TOPIC_ID_NOT_FOUND),
        (lambda metadata: metadata.resolve_partition("orders", "events", 3), StreamStatus.PARTITION_NOT_FOUND),
        (lambda metadata: metadata.resolve_partition("orders", "events", -1), StreamStatus.PARTITION_NOT_FOUND),
        (lambda metadata: metadata.resolve_group(0, 0, "other"), StreamStatus.CONSUMER_GROUP_ID_NOT_FOUND),
        (lambda metadata: metadata.resolve_user("other"), StreamStatus.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_not_there_has_its_status(lookup: Callable[[Metadata], object], status: StreamStatus) -> None:
    with pytest.raises(StreamsError) as caught:
        lookup(orders_world().metadata)
    assert caught.value.number is status


def test_ids_are_the_smallest_free_ones() -> None:
    world = World()
    for expected in range(4):
        assert world.metadata.next_stream_id() == expected
        world.do(CreateStream(expected, f"s{expected}"))
    world.do(DeleteStream(2))
    world.do(DeleteStream("s0"))
    assert world.metadata.next_stream_id() == 0
    world.do(CreateStream(0, "again"))
    assert world.metadata.next_stream_id() == 2
    world.do(CreateStream(2, "too"))
    assert world.metadata.next_stream_id() == 4
    assert [stream.id for stream in world.metadata.streams.ascending()] == [0, 1, 2, 3]
    assert world.metadata.next_user_id() == 1
    assert world.metadata.next_topic_id(0) == 0
    world.do(topic(0, 0, "t"))
    assert world.metadata.next_topic_id("again") == 1
    assert world.metadata.next_group_id(0, "t") == 0


def test_an_id_of_the_log_need_not_be_the_smallest() -> None:
    """An Apache Iggy server gives out the id that was freed last."""
    metadata = Metadata(SMALL)
    metadata.apply(NOW, 0, CreateStream(7, "seven"))
    assert metadata.resolve_stream(7).name == "seven"
    assert metadata.next_stream_id() == 0


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (CreateStream(1, "orders"), StreamStatus.STREAM_NAME_ALREADY_EXISTS),
        (CreateStream(1, ""), StreamStatus.INVALID_FORMAT),
        (CreateStream(1, "x" * 256), StreamStatus.INVALID_STREAM_NAME),
        (CreateStream(1, "ä" * 128), StreamStatus.INVALID_STREAM_NAME),
        (CreateStream(1, "\ud800"), StreamStatus.INVALID_FORMAT),
        (DeleteStream("other"), StreamStatus.STREAM_ID_NOT_FOUND),
        (UpdateStream("other", "name"), StreamStatus.STREAM_ID_NOT_FOUND),
        (UpdateStream("orders", ""), StreamStatus.INVALID_FORMAT),
        (PurgeStream(5), StreamStatus.STREAM_ID_NOT_FOUND),
        (topic("other", 1, "t"), StreamStatus.STREAM_ID_NOT_FOUND),
        (topic("orders", 1, "events"), StreamStatus.TOPIC_NAME_ALREADY_EXISTS),
        (topic("orders", 1, "x" * 256), StreamStatus.INVALID_TOPIC_NAME),
        (topic("orders", 1, "t", 1001), StreamStatus.TOO_MANY_PARTITIONS),
        (topic("orders", 1, "t", max_topic_size=2**20 - 1), StreamStatus.INVALID_TOPIC_SIZE),
        (topic("orders", 1, "t", max_topic_size=2**64), StreamStatus.INVALID_COMMAND),
        (topic("orders", 1, "t", message_expiry=-1), StreamStatus.INVALID_COMMAND),
        (topic("orders", 1, "t", compression_algorithm=0), StreamStatus.INVALID_COMMAND),
        (topic("orders", 1, "t", compression_algorithm=5), StreamStatus.INVALID_COMMAND),
        (topic("orders", 1, "t", replication_factor=256), StreamStatus.INVALID_COMMAND),
        (DeleteTopic("orders", 9), StreamStatus.TOPIC_ID_NOT_FOUND),
        (PurgeTopic("other", 9), StreamStatus.STREAM_ID_NOT_FOUND),
        (updated("other", "name"), StreamStatus.TOPIC_ID_NOT_FOUND),
        (updated("events", "name", max_topic_size=1), StreamStatus.INVALID_TOPIC_SIZE),
        (updated("events", "name", compression_algorithm=9), StreamStatus.INVALID_COMMAND),
        (updated("events", ""), StreamStatus.INVALID_FORMAT),
        (CreatePartitions(0, 0, 0), StreamStatus.TOO_MANY_PARTITIONS),
        (CreatePartitions(0, 0, 1001), StreamStatus.TOO_MANY_PARTITIONS),
        (CreatePartitions(0, 1, 1), StreamStatus.TOPIC_ID_NOT_FOUND),
        (DeletePartitions(0, 0, 0), StreamStatus.TOO_MANY_PARTITIONS),
        (DeletePartitions(0, 0, 4), StreamStatus.INVALID_PARTITIONS_COUNT),
        (DeleteSegments(0, 0, 3, 1), StreamStatus.PARTITION_NOT_FOUND),
        (DeleteSegments(0, 0, 0, -1), StreamStatus.INVALID_COMMAND),
        (CreateConsumerGroup(0, 0, 1, "readers"), StreamStatus.CONSUMER_GROUP_NAME_ALREADY_EXISTS),
        (CreateConsumerGroup(0, 0, 1, "x" * 256), StreamStatus.INVALID_CONSUMER_GROUP_NAME),
        (CreateConsumerGroup(0, 0, 1, ""), StreamStatus.INVALID_FORMAT),
        (DeleteConsumerGroup(0, 0, 1), StreamStatus.CONSUMER_GROUP_ID_NOT_FOUND),
        (CreateUser(1, "iggy", "hash", UserStatus.ACTIVE, None), StreamStatus.USER_ALREADY_EXISTS),
        (CreateUser(1, "ab", "hash", UserStatus.ACTIVE, None), StreamStatus.INVALID_USERNAME),
        (CreateUser(1, "x" * 51, "hash", UserStatus.ACTIVE, None), StreamStatus.INVALID_USERNAME),
        (DeleteUser(0), StreamStatus.CANNOT_DELETE_USER),
        (DeleteUser("iggy"), StreamStatus.CANNOT_DELETE_USER),
        (DeleteUser("other"), StreamStatus.RESOURCE_NOT_FOUND),
        (UpdateUser("other", None, None), StreamStatus.RESOURCE_NOT_FOUND),
        (UpdateUser("iggy", "ab", None), StreamStatus.INVALID_USERNAME),
        (UpdatePermissions("iggy", None), StreamStatus.CANNOT_CHANGE_PERMISSIONS),
        (UpdatePermissions(3, None), StreamStatus.RESOURCE_NOT_FOUND),
        (ChangePassword(3, "hash"), StreamStatus.RESOURCE_NOT_FOUND),
        (CreatePersonalAccessToken("ab", "h", 0), StreamStatus.INVALID_PERSONAL_ACCESS_TOKEN_NAME),
        (CreatePersonalAccessToken("x" * 31, "h", 0), StreamStatus.INVALID_PERSONAL_ACCESS_TOKEN_NAME),
        (DeletePersonalAccessToken("none"), StreamStatus.RESOURCE_NOT_FOUND),
    ],
)
def test_a_command_that_cannot_be_done_is_refused_with_its_status(command: Command, status: StreamStatus) -> None:
    assert orders_world().refused(command) is status


@pytest.mark.parametrize(
    "command",
    [
        CreateStream(0, "free"),
        topic("orders", 0, "free"),
        CreateConsumerGroup(0, 0, 0, "free"),
        CreateUser(0, "free", "hash", UserStatus.ACTIVE, None),
        CreateStream(2**32, "free"),
    ],
)
def test_an_id_that_is_not_free_is_refused_before_it_is_logged(command: Command) -> None:
    orders_world().refused(command)


def test_limits_themselves_are_fine() -> None:
    world = orders_world()
    for command in (
        CreateStream(1, "x" * 255),
        topic("orders", 1, "none", 0),
        topic("orders", 2, "many", 1000, max_topic_size=2**20, replication_factor=255, compression_algorithm=4),
        topic("orders", 3, "endless", 1, max_topic_size=UNLIMITED, message_expiry=UNLIMITED),
        CreatePartitions("orders", "none", 1000),
        DeletePartitions("orders", "none", 1000),
        CreateUser(1, "abc", "hash", UserStatus.INACTIVE, None),
        CreateUser(2, "x" * 50, "hash", UserStatus.ACTIVE, None),
        CreatePersonalAccessToken("abc", "h1", 0),
        CreatePersonalAccessToken("x" * 30, "h2", 5),
    ):
        world.do(command)


def test_names_are_unique_in_their_parent_only_and_free_again_after_a_delete() -> None:
    world = orders_world()
    world.do(CreateStream(1, "other"))
    world.do(topic("other", 0, "events"))
    world.do(CreateConsumerGroup("other", "events", 0, "readers"))
    world.do(DeleteTopic("orders", "events"))
    world.do(topic("orders", 0, "events"))
    assert world.metadata.resolve_topic("orders", "events").groups == {}


def test_renaming_to_its_own_name_is_fine_and_to_a_taken_one_is_not() -> None:
    world = orders_world()
    world.do(CreateStream(1, "other"))
    world.do(topic("orders", 1, "audit"))
    world.do(CreateUser(1, "bob", "hash", UserStatus.ACTIVE, None))
    for same in (UpdateStream(0, "orders"), updated(0, "events"), UpdateUser("bob", "bob", None)):
        world.do(same)
    assert world.refused(UpdateStream(0, "other")) is StreamStatus.STREAM_NAME_ALREADY_EXISTS
    assert world.refused(updated(0, "audit")) is StreamStatus.TOPIC_NAME_ALREADY_EXISTS
    assert world.refused(UpdateUser(1, "iggy", None)) is StreamStatus.USER_ALREADY_EXISTS


def test_a_new_name_is_known_and_the_old_one_is_free() -> None:
    world = orders_world()
    world.do(UpdateStream("orders", "sales"))
    assert world.metadata.resolve_stream("sales").id == 0
    assert world.refused(DeleteStream("orders")) is StreamStatus.STREAM_ID_NOT_FOUND
    world.do(CreateStream(1, "orders"))


def test_defaults_of_a_topic_are_resolved_when_it_is_created_updated_and_replayed() -> None:
    world = orders_world()
    found = world.metadata.resolve_topic(0, 0)
    assert (found.message_expiry, found.max_size, found.replication_factor) == (3600 * SECOND, 5 * 2**20, 1)
    world.do(
        updated(0, "events", message_expiry=7, max_topic_size=2**21, compression_algorithm=2, replication_factor=3)
    )
    assert (found.message_expiry, found.max_size, found.compression, found.replication_factor) == (7, 2**21, 2, 3)
    world.do(updated(0, "events"))
    assert (found.message_expiry, found.max_size, found.compression, found.replication_factor) == (
        3600 * SECOND,
        5 * 2**20,
        1,
        1,
    )
    # Another start may have other defaults.
    again = world.replayed(StreamsSettings()).resolve_topic(0, 0)
    assert (again.message_expiry, again.max_size) == (UNLIMITED, UNLIMITED)


def test_a_topic_below_the_size_of_a_segment_is_still_replayed() -> None:
    """Segments were smaller when the topic was created."""
    world = World()
    world.do(CreateStream(0, "orders"))
    world.do(topic("orders", 0, "small", max_topic_size=2**20))
    assert world.replayed(StreamsSettings()).resolve_topic(0, 0).max_size == 2**20


def test_partitions_are_dense_and_the_highest_go_first() -> None:
    world = World()
    world.do(CreateStream(0, "orders"))
    world.do(topic("orders", 0, "events", 0))
    found = world.metadata.resolve_topic(0, 0)
    world.do(CreatePartitions(0, 0, 2), timestamp=NOW + 50)
    world.do(CreatePartitions(0, 0, 2), timestamp=NOW + 60)
    assert [(partition.id, partition.created_at - NOW) for partition in found.partitions] == [
        (0, 50),
        (1, 50),
        (2, 60),
        (3, 60),
    ]
    world.do(DeletePartitions(0, 0, 3))
    assert [partition.id for partition in found.partitions] == [0]
    world.do(DeletePartitions(0, 0, 1))
    world.do(CreatePartitions(0, 0, 1))
    assert [partition.id for partition in world.replayed().resolve_topic(0, 0).partitions] == [0]


def test_created_at_is_the_time_of_the_entry() -> None:
    world = World()
    world.do(CreateStream(0, "orders"), timestamp=NOW + 1)
    world.do(topic("orders", 0, "events"), timestamp=NOW + 2)
    for metadata in (world.metadata, world.replayed()):
        assert metadata.resolve_stream(0).created_at == NOW + 1
        assert metadata.resolve_topic(0, 0).created_at == NOW + 2
        assert metadata.resolve_partition(0, 0, 0).created_at == NOW + 2
        assert metadata.resolve_user(0).created_at == NOW


def test_purges_and_deleted_segments_change_no_metadata() -> None:
    world = orders_world()
    before = shown(world.metadata)
    for command in (PurgeStream("orders"), PurgeTopic(0, 0), DeleteSegments(0, 0, 0, 1)):
        world.do(command)
    assert shown(world.metadata) == before
    # They have no effect in a replay either, even if the name was changed since.
    assert shown(world.replayed()) == before


def test_users_change_as_they_are_told() -> None:
    world = World()
    world.do(CreateUser(1, "bob", "old", UserStatus.ACTIVE, None))
    world.do(UpdateUser("bob", "robert", UserStatus.INACTIVE))
    world.do(ChangePassword("robert", "new"))
    world.do(UpdatePermissions(1, Permissions(read_users=True)))
    user = world.metadata.resolve_user("robert")
    assert (user.id, user.name, user.password_hash, user.status) == (1, "robert", "new", UserStatus.INACTIVE)
    assert user.permissions == Permissions(read_users=True)
    world.do(UpdateUser(1, None, UserStatus.ACTIVE))
    assert (user.name, user.status) == ("robert", UserStatus.ACTIVE)
    world.do(ChangePassword(0, "root's"))
    assert "root's" not in repr(world.metadata.resolve_user(0))


# Tokens.


def test_tokens_belong_to_who_asked() -> None:
    world = World()
    world.do(CreateUser(1, "bob", "hash", UserStatus.ACTIVE, None))
    world.do(CreatePersonalAccessToken("deploy", "h0", 0), user_id=0)
    world.do(CreatePersonalAccessToken("deploy", "h1", 0), user_id=1)
    for metadata in (world.metadata, world.replayed()):
        owner = metadata.token_owner("h1")
        assert owner is not None
        assert (owner[0].name, owner[1].name) == ("bob", "deploy")
        assert metadata.token_owner("other") is None
    assert world.refused(CreatePersonalAccessToken("deploy", "h2", 0), user_id=1) is (
        StreamStatus.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS
    )
    world.do(CreatePersonalAccessToken("second", "h3", 0), user_id=1)
    assert world.refused(CreatePersonalAccessToken("third", "h4", 0), user_id=1) is (
        StreamStatus.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED
    )
    world.do(DeletePersonalAccessToken("deploy"), user_id=1)
    assert world.metadata.token_owner("h1") is None
    assert world.metadata.token_owner("h0") is not None


def test_a_user_that_is_deleted_takes_its_tokens_along() -> None:
    world = World()
    world.do(CreateUser(1, "bob", "hash", UserStatus.ACTIVE, None))
    world.do(CreatePersonalAccessToken("deploy", "h1", 0), user_id=1)
    world.do(DeleteUser("bob"))
    assert world.metadata.token_owner("h1") is None
    # The new user with the same id has no tokens.
    world.do(CreateUser(1, "eve", "hash", UserStatus.ACTIVE, None))
    assert world.metadata.resolve_user("eve").tokens == {}


def test_a_token_expires_a_duration_after_its_entry_and_some_never_do() -> None:
    world = World()
    world.do(CreatePersonalAccessToken("short", "h1", 10), timestamp=NOW)
    world.do(CreatePersonalAccessToken("long", "h2", UNLIMITED), timestamp=NOW)
    tokens = world.metadata.resolve_user(0).tokens
    assert {name: token.expiry_at for name, token in tokens.items()} == {"short": NOW + 10, "long": 0}
    assert not tokens["short"].is_expired(NOW + 9)
    assert tokens["short"].is_expired(NOW + 10)
    assert not tokens["long"].is_expired(2**64)
    assert list(world.replayed(now_us=NOW + 9).resolve_user(0).tokens) == ["short", "long"]
    again = world.replayed(now_us=NOW + 10)
    assert list(again.resolve_user(0).tokens) == ["long"]
    assert again.token_owner("h1") is None


def test_an_expiry_beyond_all_time_fits_64_bits() -> None:
    world = World()
    world.do(CreatePersonalAccessToken("old", "h1", UNLIMITED - 1))
    assert world.metadata.resolve_user(0).tokens["old"].expiry_at == UNLIMITED


def test_a_token_that_was_cleaned_away_can_be_made_again_and_replayed() -> None:
    world = World()
    world.do(CreatePersonalAccessToken("deploy", "h1", 10), timestamp=NOW)
    assert world.metadata.drop_expired_tokens(NOW + 5) == 0
    assert world.metadata.drop_expired_tokens(NOW + 10) == 1
    world.do(CreatePersonalAccessToken("deploy", "h2", 0), timestamp=NOW + 20)
    again = world.replayed(now_us=NOW + 30)
    assert list(again.resolve_user(0).tokens) == ["deploy"]
    assert again.token_owner("h1") is None
    assert again.token_owner("h2") is not None


# Replay.


def test_a_log_that_does_not_fit_itself_refuses_the_start() -> None:
    entries = [
        StateEntry(0, NOW, 0, ROOT),
        StateEntry(1, NOW, 0, CreateStream(0, "orders")),
        StateEntry(2, NOW, 0, topic("others", 0, "events")),
    ]
    with pytest.raises(StartRefused) as caught:
        Metadata(SMALL).replay(entries, NOW)
    assert caught.value.message == (
        "entry 2 of the state log (CreateTopic) does not fit the entries before it: stream 'others' does not exist"
    )
    with pytest.raises(StartRefused, match="entry 1 of the state log"):
        Metadata(SMALL).replay(
            [StateEntry(0, NOW, 0, CreateStream(0, "a")), StateEntry(1, NOW, 0, CreateStream(0, "b"))], 0
        )


def test_the_log_of_a_real_server_is_replayed(shared_fixtures: Path) -> None:
    data = (shared_fixtures / "iggy-0.8.0" / "state" / "log").read_bytes()
    metadata = Metadata(StreamsSettings())
    metadata.replay([scanned.entry for scanned in scan_iggy(data)], NOW)
    events = metadata.resolve_topic("orders", "events")
    assert (events.id, len(events.partitions), events.max_size, events.message_expiry) == (0, 2, UNLIMITED, UNLIMITED)
    assert metadata.resolve_topic(0, "audit").id == 1
    assert metadata.resolve_user("iggy").permissions == ALL_PERMISSIONS
    assert metadata.next_stream_id() == 1


few: Final = st.integers(0, 2)
few_names: Final = st.sampled_from(("aaa", "bbb", "ccc"))
anything: Final = few | few_names


Maker = Callable[[Metadata], Command]


def or_zero(next_id: Callable[[], int]) -> int:
    """An id for an entity whose parent does not exist."""
    try:
        return next_id()
    except StreamsError:
        return 0


# Few names and ids, so that they collide; ids of new entities are those that an engine gives.


def new_stream(name: str) -> Maker:
    return lambda metadata: CreateStream(metadata.next_stream_id(), name)


def new_topic(stream_id: int | str, name: str, partitions_count: int) -> Maker:
    return lambda metadata: topic(stream_id, or_zero(lambda: metadata.next_topic_id(stream_id)), name, partitions_count)


def new_group(stream_id: int | str, topic_id: int | str, name: str) -> Maker:
    return lambda metadata: CreateConsumerGroup(
        stream_id, topic_id, or_zero(lambda: metadata.next_group_id(stream_id, topic_id)), name
    )


def new_user(name: str, status: UserStatus) -> Maker:
    return lambda metadata: CreateUser(metadata.next_user_id(), name, "hash", status, None)


def ready(command: Command) -> Maker:
    return lambda _metadata: command


statuses: Final = st.sampled_from(UserStatus)
makers: Final[st.SearchStrategy[Maker]] = st.one_of(
    st.builds(new_stream, few_names),
    st.builds(new_topic, anything, few_names, few),
    st.builds(new_group, anything, anything, few_names),
    st.builds(new_user, few_names, statuses),
    st.one_of(
        st.builds(DeleteStream, anything),
        st.builds(UpdateStream, anything, few_names),
        st.builds(DeleteTopic, anything, anything),
        st.builds(UpdateTopic, anything, anything, few.map(lambda n: n + 1), few, st.just(0), few, few_names),
        st.builds(CreatePartitions, anything, anything, few),
        st.builds(DeletePartitions, anything, anything, few),
        st.builds(DeleteConsumerGroup, anything, anything, anything),
        st.builds(DeleteUser, anything),
        st.builds(UpdateUser, anything, st.none() | few_names, st.none() | statuses),
        st.builds(ChangePassword, anything, few_names),
        st.builds(CreatePersonalAccessToken, few_names, st.uuids().map(str), few),
        st.builds(DeletePersonalAccessToken, few_names),
        st.builds(PurgeTopic, anything, anything),
    ).map(ready),
)


@given(st.lists(st.tuples(few, makers), max_size=40))
def test_a_replay_leads_to_the_same_state(steps: list[tuple[int, Maker]]) -> None:
    """A command that passes its check can be applied; ids stay unique, names are found, and partitions have no gaps."""
    world = World()
    for user_id, make in steps:
        command = make(world.metadata)
        try:
            world.metadata.check(user_id, command)
        except StreamsError:
            continue
        world.do(command, user_id)
    metadata = world.metadata
    for stream in metadata.streams.values():
        assert metadata.resolve_stream(stream.name) is stream
        for found in stream.topics.values():
            check_topic(metadata, found)
    for registry in (metadata.streams, metadata.users):
        assert registry.next_id() == min(set(range(100)) - set(registry))
    again = world.replayed(now_us=0)
    assert shown(again) == shown(metadata)


def check_topic(metadata: Metadata, found: TopicInfo) -> None:
    assert metadata.resolve_topic(found.stream_id, found.name) is found
    assert [partition.id for partition in found.partitions] == list(range(len(found.partitions)))
    for group in found.groups.values():
        assert metadata.resolve_group(found.stream_id, found.id, group.name) is group
