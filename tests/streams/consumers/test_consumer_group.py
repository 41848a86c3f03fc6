"""Consumer groups: even shares, handovers that wait, members that lost a partition; and a model of all messages."""

import itertools
from collections import Counter
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_group import ConsumerGroup, MemberInfo

TIMEOUT_US: Final = 30_000_000
ANNA: Final = 100
BERT: Final = 200
CARL: Final = 300


def new_group(partitions_count: int, *clients: int, stored: dict[int, int] | None = None) -> ConsumerGroup:
    group = ConsumerGroup(partitions_count, rebalancing_timeout_us=TIMEOUT_US, stored=stored)
    for client_id in clients:
        group.join(client_id, now_us=0)
    return group


def partitions_of(group: ConsumerGroup) -> dict[int, list[int]]:
    return {member.client_id: sorted(member.partitions) for member in group.members}


def number_of(caught: pytest.ExceptionInfo[StreamsError]) -> StreamStatus:
    return caught.value.number


# --- shares -----------------------------------------------------------------------------------------------------


def test_the_first_member_gets_all_partitions() -> None:
    group = new_group(3, ANNA)
    assert group.members == [MemberInfo(0, ANNA, (0, 1, 2))]


def test_four_partitions_and_two_members_end_two_and_two() -> None:
    """In an Apache Iggy 0.8.0 server the shares end as three and one."""
    assert partitions_of(new_group(4, ANNA, BERT)) == {ANNA: [0, 1], BERT: [2, 3]}


@pytest.mark.parametrize("partitions_count", range(14))
def test_after_each_join_shares_differ_by_one_at_most_and_only_the_newcomer_gains(partitions_count: int) -> None:
    group = new_group(partitions_count)
    before: dict[int, list[int]] = {}
    for client_id in range(9):
        group.join(client_id, now_us=0)
        after = partitions_of(group)
        assert sorted(itertools.chain(*after.values())) == list(range(partitions_count))
        counts = [len(partitions) for partitions in after.values()]
        assert max(counts) - min(counts) <= 1
        for other, partitions in before.items():
            assert set(after[other]) <= set(partitions)
        before = after


def test_joining_twice_is_joining_once() -> None:
    group = new_group(4, ANNA, BERT)
    before = group.members
    group.join(ANNA, now_us=5)
    assert group.members == before


def test_a_member_id_is_one_more_than_the_largest_present_one() -> None:
    group = new_group(3, ANNA, BERT, CARL)
    assert [member.id for member in group.members] == [0, 1, 2]
    group.leave(BERT)
    group.join(BERT, now_us=0)
    assert {member.client_id: member.id for member in group.members} == {ANNA: 0, CARL: 2, BERT: 3}
    for client_id in (CARL, BERT):
        group.leave(client_id)
    group.join(CARL, now_us=0)
    assert {member.client_id: member.id for member in group.members} == {ANNA: 0, CARL: 1}


def test_a_leave_deals_everything_anew_in_the_order_of_joins() -> None:
    group = new_group(5, ANNA, BERT, CARL)
    group.leave(ANNA)
    assert partitions_of(group) == {BERT: [0, 2, 4], CARL: [1, 3]}
    group.leave(CARL)
    assert partitions_of(group) == {BERT: [0, 1, 2, 3, 4]}
    group.leave(BERT)
    assert group.members == []
    group.join(CARL, now_us=0)
    assert partitions_of(group) == {CARL: [0, 1, 2, 3, 4]}


def test_a_changed_number_of_partitions_deals_everything_anew() -> None:
    group = new_group(2, ANNA, BERT)
    group.set_partitions(5)
    assert partitions_of(group) == {ANNA: [0, 2, 4], BERT: [1, 3]}
    group.set_partitions(1)
    assert partitions_of(group) == {ANNA: [0], BERT: []}
    group.set_partitions(0)
    assert partitions_of(group) == {ANNA: [], BERT: []}
    assert group.poll_target(ANNA) is None


def test_partitions_of_a_topic_that_had_none_are_given_from_zero_on() -> None:
    group = new_group(0, ANNA)
    group.set_partitions(2)
    assert partitions_of(group) == {ANNA: [0, 1]}


def test_more_members_than_partitions_leave_some_with_none_and_an_empty_poll() -> None:
    group = new_group(1, ANNA, BERT)
    assert partitions_of(group) == {ANNA: [0], BERT: []}
    assert group.poll_target(BERT) is None
    assert group.poll_target(BERT, 0) is None
    group.leave(ANNA)
    assert group.poll_target(BERT) == 0


def test_members_whose_connections_are_gone_make_room_for_a_new_one() -> None:
    group = new_group(4, ANNA, BERT)
    group.join(CARL, now_us=0, is_connected=lambda client_id: client_id == BERT)
    assert partitions_of(group) == {BERT: [0, 1], CARL: [2, 3]}


def test_a_member_that_joins_again_is_not_taken_for_dead() -> None:
    group = new_group(4, ANNA, BERT)
    group.join(ANNA, now_us=0, is_connected=lambda client_id: client_id == BERT)
    assert partitions_of(group) == {ANNA: [0, 1], BERT: [2, 3]}


# --- polls ------------------------------------------------------------------------------------------------------


def test_polls_go_round_the_partitions_of_the_member() -> None:
    group = new_group(6, ANNA, BERT)
    assert [group.poll_target(ANNA) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [group.poll_target(BERT) for _ in range(4)] == [3, 4, 5, 3]


@pytest.mark.parametrize(
    ("polls_before", "order"), [(0, [0, 1, 0]), (1, [1, 0, 1]), (2, [0, 1, 0]), (4, [0, 1, 0]), (5, [1, 0, 1])]
)
def test_partitions_that_go_change_nothing_in_the_round_of_those_that_stay(polls_before: int, order: list[int]) -> None:
    group = new_group(4, ANNA)
    for _ in range(polls_before):
        group.poll_target(ANNA)
    group.join(BERT, now_us=0)
    assert partitions_of(group) == {ANNA: [0, 1], BERT: [2, 3]}
    assert [group.poll_target(ANNA) for _ in range(3)] == order


def test_a_partition_that_comes_has_its_turn_in_the_same_round() -> None:
    group = busy_group()
    group.note_stored(2, 9)
    assert [group.poll_target(BERT) for _ in range(2)] == [2, 2]
    group.note_stored(3, 9)
    assert [group.poll_target(BERT) for _ in range(3)] == [3, 2, 3]


def test_a_round_goes_on_while_another_member_comes_and_goes() -> None:
    """A consumer that crashes as often as it starts, for example."""
    group = new_group(3, ANNA)
    polled = []
    for _ in range(7):
        polled.append(group.poll_target(ANNA))
        group.join(BERT, now_us=0)
        group.leave(BERT)
    assert polled == [0, 1, 2, 0, 1, 2, 0]


def test_a_poll_that_names_its_partition_is_not_part_of_the_round() -> None:
    group = new_group(4, ANNA)
    assert [group.poll_target(ANNA, partition) for partition in (None, 3, 0, None, 0, None)] == [0, 3, 0, 1, 0, 2]


def test_a_poll_of_a_partition_that_another_owns_is_empty_and_no_error() -> None:
    group = new_group(4, ANNA, BERT)
    assert group.poll_target(ANNA, 1) == 1
    assert group.poll_target(ANNA, 2) is None
    assert group.poll_target(ANNA, 99) is None


@pytest.mark.parametrize("partition", [None, 0])
def test_who_is_no_member_can_neither_poll_nor_store_nor_leave(partition: int | None) -> None:
    group = new_group(4, ANNA)
    for call in (
        lambda: group.poll_target(BERT, partition),
        lambda: group.store_target(BERT, partition),
        lambda: group.leave(BERT),
    ):
        with pytest.raises(StreamsError) as caught:
            call()
        assert number_of(caught) == StreamStatus.CONSUMER_GROUP_MEMBER_NOT_FOUND


# --- handing over -----------------------------------------------------------------------------------------------


def busy_group() -> ConsumerGroup:
    """Anna was sent messages up to 9 of partitions 2 and 3; Bert has joined and will get both."""
    group = new_group(4, ANNA)
    group.note_sent(2, 9)
    group.note_sent(3, 9)
    group.join(BERT, now_us=1_000)
    return group


def test_what_a_member_has_not_processed_stays_its_own_until_it_has() -> None:
    group = busy_group()
    assert partitions_of(group) == {ANNA: [0, 1, 2, 3], BERT: []}
    assert group.pending == {2: BERT, 3: BERT}
    assert group.poll_target(BERT) is None
    group.note_stored(3, 8)
    assert group.pending == {2: BERT, 3: BERT}
    group.note_stored(3, 9)
    assert partitions_of(group) == {ANNA: [0, 1, 2], BERT: [3]}
    assert [group.poll_target(BERT) for _ in range(2)] == [3, 3]
    assert group.pending == {2: BERT}


def test_a_partition_that_is_about_to_go_is_skipped_by_polls_that_name_none() -> None:
    group = busy_group()
    assert [group.poll_target(ANNA) for _ in range(4)] == [0, 1, 0, 1]
    assert group.poll_target(ANNA, 3) == 3


def test_a_partition_that_was_sent_and_is_processed_changes_hands_at_once() -> None:
    group = new_group(2, ANNA)
    group.note_sent(1, 9)
    group.note_stored(1, 9)
    group.join(BERT, now_us=0)
    assert partitions_of(group) == {ANNA: [0], BERT: [1]}


def test_offsets_from_before_a_restart_count_as_processed() -> None:
    group = new_group(2, ANNA, stored={1: 100})
    group.note_sent(1, 50)
    group.join(BERT, now_us=0)
    assert partitions_of(group) == {ANNA: [0], BERT: [1]}


def test_waiting_ends_after_the_time_limit_and_not_before() -> None:
    group = busy_group()
    assert group.tick(1_000 + TIMEOUT_US - 1) == []
    assert partitions_of(group)[BERT] == []
    assert group.tick(1_000 + TIMEOUT_US) == [2, 3]
    assert partitions_of(group) == {ANNA: [0, 1], BERT: [2, 3]}
    assert group.tick(10**12) == []


def test_a_member_that_lost_a_partition_cannot_store_there_any_more() -> None:
    """The commit of the old owner is refused, even if it names no partition."""
    group = busy_group()
    assert group.poll_target(ANNA, 3) == 3
    assert group.store_target(ANNA) == 3
    assert group.owns(ANNA, 3)
    group.tick(10**12)
    assert not group.owns(ANNA, 3)
    for partition in (None, 3):
        with pytest.raises(StreamsError) as caught:
            group.store_target(ANNA, partition)
        assert number_of(caught) == StreamStatus.NOT_RESOLVED_CONSUMER
    assert group.store_target(BERT, 3) == 3
    assert group.store_target(ANNA, 0) == 0


def test_a_store_without_a_partition_before_any_poll_is_refused() -> None:
    with pytest.raises(StreamsError) as caught:
        new_group(2, ANNA).store_target(ANNA)
    assert number_of(caught) == StreamStatus.NOT_RESOLVED_CONSUMER


def test_a_member_that_waits_for_a_partition_cannot_store_there_yet() -> None:
    with pytest.raises(StreamsError) as caught:
        busy_group().store_target(BERT, 3)
    assert number_of(caught) == StreamStatus.NOT_RESOLVED_CONSUMER


def test_the_receiver_dies_before_it_has_received() -> None:
    """The partitions stay with their owner, and none is pending."""
    group = busy_group()
    group.leave(BERT)
    assert partitions_of(group) == {ANNA: [0, 1, 2, 3]}
    assert group.pending == {}
    assert group.tick(10**12) == []
    # Anna has not processed her messages yet, so a second new member waits as well.
    group.join(CARL, now_us=0)
    assert group.pending == {2: CARL, 3: CARL}


def test_the_giver_dies_before_it_has_given() -> None:
    """The receiver gets all partitions, and the messages that the member was sent do not matter any more."""
    group = busy_group()
    group.leave(ANNA)
    assert partitions_of(group) == {BERT: [0, 1, 2, 3]}
    assert group.pending == {}
    group.join(CARL, now_us=0)
    assert partitions_of(group) == {BERT: [0, 1], CARL: [2, 3]}


def test_a_third_member_gets_what_was_on_its_way_to_the_second() -> None:
    group = busy_group()
    group.join(CARL, now_us=2_000)
    assert sorted(Counter(group.pending.values()).items()) == [(BERT, 1), (CARL, 1)]
    # A partition with a new target waits no longer than before.
    group.tick(1_000 + TIMEOUT_US)
    assert {client: len(partitions) for client, partitions in partitions_of(group).items()} == {
        ANNA: 2,
        BERT: 1,
        CARL: 1,
    }


def test_a_new_owner_does_not_answer_for_what_the_old_one_was_sent() -> None:
    group = busy_group()
    group.tick(10**12)
    group.leave(ANNA)
    group.join(CARL, now_us=0)
    assert group.pending == {}


def test_a_deleted_offset_is_no_processed_message() -> None:
    group = new_group(2, ANNA)
    group.note_sent(1, 0)
    group.note_stored(1, 0)
    group.note_stored(1, None)
    group.join(BERT, now_us=0)
    assert group.pending == {1: BERT}


def test_a_purge_ends_all_waiting() -> None:
    group = busy_group()
    group.note_purged()
    assert group.pending == {}
    assert partitions_of(group) == {ANNA: [0, 1], BERT: [2, 3]}


def test_news_of_partitions_that_are_gone_is_ignored() -> None:
    group = new_group(2, ANNA)
    group.set_partitions(1)
    group.note_sent(1, 5)
    group.note_stored(1, 5)
    group.set_partitions(2)
    group.join(BERT, now_us=0)
    assert partitions_of(group) == {ANNA: [0], BERT: [1]}


def test_offsets_of_a_deleted_partition_say_nothing_of_a_new_one() -> None:
    group = new_group(2, ANNA, stored={1: 100})
    group.set_partitions(1)
    group.set_partitions(2)
    group.note_sent(1, 5)
    group.join(BERT, now_us=0)
    assert group.pending == {1: BERT}


def test_what_the_last_member_was_sent_as_it_left_keeps_nobody_waiting() -> None:
    group = new_group(2, ANNA)
    group.leave(ANNA)
    group.note_sent(1, 5)
    group.join(BERT, now_us=0)
    group.join(CARL, now_us=0)
    assert group.pending == {}


# --- against a model --------------------------------------------------------------------------------------------

CLIENTS = st.integers(1, 5)
PARTITIONS = st.integers(0, 6)
MESSAGES_PER_POLL: Final = 3


class GroupMachine(RuleBasedStateMachine):
    """Clients poll, store, disconnect and come back; partitions grow, appear and disappear; time passes.

    The model knows, for each partition, how many messages it has, which were delivered, and the group's stored offset.
    It checks each change of owner against the step that caused it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.group = new_group(3)
        self.heads = [0, 0, 0]
        self.delivered: list[set[int]] = [set(), set(), set()]
        self.stored: dict[int, int] = {}
        self.dead: set[int] = set()
        # The last offset that the present owner of each partition was sent.
        self.sent: dict[int, int] = {}
        # Since when each partition waits for another owner.
        self.waiting_since_us: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        # By partition that its owner may read: those that the owner has read since, in its rounds.
        self.overtaken_by: dict[int, set[int]] = {}

    # The model after a change.

    def take_in(self, *, is_forced: bool) -> None:
        """Checks the changes of owners since the last call. Unless forced, a partition is processed or has waited
        enough."""
        owners = {partition: member.client_id for member in self.group.members for partition in member.partitions}
        for partition, owner in list(self.owners.items()):
            if owners.get(partition) == owner:
                continue
            self.overtaken_by.pop(partition, None)
            is_processed = self.stored.get(partition, -1) >= self.sent.get(partition, -1)
            waited_us = self.now_us - self.waiting_since_us.get(partition, self.now_us)
            assert is_forced or is_processed or waited_us >= TIMEOUT_US
            self.sent.pop(partition, None)
        self.owners = owners
        pending = self.group.pending
        self.waiting_since_us = {partition: self.waiting_since_us.get(partition, self.now_us) for partition in pending}
        for partition in pending:
            self.overtaken_by.pop(partition, None)

    # Steps.

    @rule(client=CLIENTS)
    def join(self, client: int) -> None:
        if client in self.dead:
            return
        gone = [member.client_id for member in self.group.members if member.client_id in self.dead]
        self.group.join(client, now_us=self.now_us, is_connected=lambda other: other not in self.dead)
        self.dead.difference_update(gone)
        self.take_in(is_forced=bool(gone))

    @rule(client=CLIENTS)
    def leave(self, client: int) -> None:
        if self.group.is_member(client):
            self.group.leave(client)
            self.dead.discard(client)
            self.take_in(is_forced=True)

    @rule(client=CLIENTS)
    def die(self, client: int) -> None:
        if self.group.is_member(client):
            self.dead.add(client)

    @rule(partition=PARTITIONS, count=st.integers(1, 5))
    def produce(self, partition: int, count: int) -> None:
        if partition < len(self.heads):
            self.heads[partition] += count

    @rule(count=PARTITIONS)
    def set_partitions(self, count: int) -> None:
        self.group.set_partitions(count)
        for _ in range(len(self.heads), count):
            self.heads.append(0)
            self.delivered.append(set())
        del self.heads[count:], self.delivered[count:]
        self.stored = {partition: offset for partition, offset in self.stored.items() if partition < count}
        self.take_in(is_forced=True)

    def poll(self, client: int, partition: int | None) -> int | None:
        """The partition of the poll, or None. Messages after the stored offset are delivered."""
        target = self.group.poll_target(client, partition)
        if target is None:
            return None
        assert self.owners[target] == client
        first = self.stored.get(target, -1) + 1
        messages = range(first, min(first + MESSAGES_PER_POLL, self.heads[target]))
        if messages:
            self.delivered[target].update(messages)
            self.sent[target] = messages[-1]
            self.group.note_sent(target, messages[-1])
        return target

    @rule(client=CLIENTS)
    def poll_any(self, client: int) -> None:
        if self.group.is_member(client) and client not in self.dead:
            waiting = self.group.pending
            target = self.poll(client, None)
            free = [
                partition for partition, owner in self.owners.items() if owner == client and partition not in waiting
            ]
            assert target in free if free else target is None
            for partition in free:
                overtaken_by = self.overtaken_by.setdefault(partition, set())
                assert target not in overtaken_by, "no partition is read twice in a round"
                overtaken_by.add(target)
            if target is not None:
                self.overtaken_by[target] = set()

    @rule(client=CLIENTS, partition=PARTITIONS)
    def poll_one(self, client: int, partition: int) -> None:
        if self.group.is_member(client) and client not in self.dead:
            target = self.poll(client, partition)
            assert target == (partition if self.owners.get(partition) == client else None)

    @rule(client=CLIENTS, partition=PARTITIONS, back=st.sampled_from([0, 0, 0, 1, 2]))
    def store(self, client: int, partition: int, back: int) -> None:
        """The owner stores the last offset it was sent or a smaller one; other clients are refused."""
        if self.owners.get(partition) != client:
            with pytest.raises(StreamsError) as caught:
                self.group.store_target(client, partition)
            is_member = self.group.is_member(client)
            assert number_of(caught) == (
                StreamStatus.NOT_RESOLVED_CONSUMER if is_member else StreamStatus.CONSUMER_GROUP_MEMBER_NOT_FOUND
            )
        elif self.sent.get(partition, -1) - back >= 0:
            assert self.group.store_target(client, partition) == partition
            self.stored[partition] = self.sent[partition] - back
            self.group.note_stored(partition, self.stored[partition])
            self.take_in(is_forced=False)

    @rule(seconds=st.sampled_from([1, 10, 29, 30]))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000
        late = self.group.tick(self.now_us)
        assert late == sorted(
            partition for partition, since_us in self.waiting_since_us.items() if self.now_us - since_us >= TIMEOUT_US
        )
        self.take_in(is_forced=False)

    @precondition(lambda self: self.group.members and any(self.heads))
    @rule()
    def drain(self) -> None:
        """All connected clients poll and store until nothing is left: then every message was delivered."""
        for member in self.group.members:
            if member.client_id in self.dead:
                self.group.leave(member.client_id)
                self.dead.discard(member.client_id)
        self.take_in(is_forced=True)
        self.now_us += TIMEOUT_US
        self.group.tick(self.now_us)
        self.take_in(is_forced=False)
        assert self.group.pending == {}
        if not self.group.members:
            return
        counts = [len(member.partitions) for member in self.group.members]
        assert max(counts) - min(counts) <= 1
        for _ in range(sum(self.heads) + len(self.heads)):
            for member in self.group.members:
                for partition in member.partitions:
                    target = self.poll(member.client_id, partition)
                    assert target == partition
                    if partition in self.sent:
                        self.stored[partition] = self.sent[partition]
                        self.group.note_stored(partition, self.stored[partition])
        self.take_in(is_forced=False)
        for partition, head in enumerate(self.heads):
            assert self.delivered[partition] == set(range(head))
            assert self.stored.get(partition, -1) == head - 1

    # What always holds.

    @invariant()
    def each_partition_has_one_owner(self) -> None:
        members = self.group.members
        owned = [partition for member in members for partition in member.partitions]
        assert sorted(owned) == (list(range(len(self.heads))) if members else [])

    @invariant()
    def shares_are_even_once_nothing_is_on_its_way(self) -> None:
        pending = self.group.pending
        shares = Counter(pending.values())
        for member in self.group.members:
            shares[member.client_id] += sum(partition not in pending for partition in member.partitions)
        assert set(shares) == {member.client_id for member in self.group.members}
        assert max(shares.values(), default=0) - min(shares.values(), default=0) <= 1
        for partition, target in pending.items():
            assert target != self.owners[partition]

    @invariant()
    def nothing_is_stored_that_was_not_delivered(self) -> None:
        for partition, offset in self.stored.items():
            assert set(range(offset + 1)) <= self.delivered[partition]


TestGroupAgainstAModel = GroupMachine.TestCase
