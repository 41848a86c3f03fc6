"""Which member of a consumer group reads which partition of the topic.

Rules:

1. While a group has members, each partition has exactly one owner. Only the owner may store the group's offset in the
   partition, so a member that lost a partition cannot move that offset any more.
2. A join takes no partition from a member that is still processing its messages. A surplus partition of a member is
   marked pending, with the member that gets it. It changes hands once all messages that were sent from it are
   processed, or if none were sent, or after a time limit.
3. A leave, and a change of the number of partitions, assigns all partitions again at once.
4. If pending partitions are counted for the members that get them, no two members differ by more than one partition.

Messages that were sent and not processed when a partition changes hands are sent again to the new owner: the group
continues after its stored offset. So nothing is lost, and rule 2 waits so that nothing is sent twice.

Not thread-safe: the caller holds the lock of `Commands`. Times are of a clock that never steps back.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.stream_errors import StreamsError, StreamStatus


class MemberInfo(NamedTuple):
    """A member, as clients see it. `partitions` include pending ones that it still owns."""

    id: int
    client_id: int
    partitions: tuple[int, ...]


class _Revocation(NamedTuple):
    """A partition that waits to change hands."""

    target_client_id: int
    since_us: int


@dataclass(slots=True)
class _Member:
    id: int
    client_id: int
    # In the order in which the member got them; a join takes from the end.
    partitions: list[int] = field(default_factory=list)
    # The partition of the last poll that named none. The next such poll reads the one with the next higher number.
    last_in_round: int = -1
    # The partition of the last poll. A store without a partition is about this one.
    polled_partition: int | None = None


class ConsumerGroup:
    """The members of one group. A member lasts as long as its connection, so a group starts without members.

    `stored` are the group's stored offsets by partition.
    """

    def __init__(
        self, partitions_count: int, *, rebalancing_timeout_us: int, stored: Mapping[int, int] | None = None
    ) -> None:
        self._partitions_count = partitions_count
        self._rebalancing_timeout_us = rebalancing_timeout_us
        # By client id, in the order of joins.
        self._members: dict[int, _Member] = {}
        self._owners: dict[int, _Member] = {}
        self._pending: dict[int, _Revocation] = {}
        # By partition: the last offset that its present owner was sent.
        self._sent: dict[int, int] = {}
        self._stored: dict[int, int] = dict(stored or {})

    # Members.

    @property
    def members(self) -> list[MemberInfo]:
        """In the order of joins."""
        return [MemberInfo(member.id, member.client_id, tuple(member.partitions)) for member in self._members.values()]

    @property
    def partitions_count(self) -> int:
        return self._partitions_count

    @property
    def pending(self) -> dict[int, int]:
        """The partitions that wait to change hands, each with the client that gets it."""
        return {partition: revocation.target_client_id for partition, revocation in self._pending.items()}

    def is_member(self, client_id: int) -> bool:
        return client_id in self._members

    def join(self, client_id: int, *, now_us: int, is_connected: Callable[[int], bool] | None = None) -> None:
        """Adds the client; a second join changes nothing. Members that `is_connected` denies leave first."""
        if is_connected is not None:
            self._drop([other for other in self._members if other != client_id and not is_connected(other)])
        if client_id in self._members:
            return
        member_id = max((member.id for member in self._members.values()), default=-1) + 1
        self._members[client_id] = _Member(member_id, client_id)
        self._assign_unowned()
        self._level(now_us)

    def leave(self, client_id: int) -> None:
        self._member(client_id)
        self._drop([client_id])

    def set_partitions(self, partitions_count: int) -> None:
        """Partitions were added, or the last ones deleted."""
        self._partitions_count = partitions_count
        self._stored = {partition: offset for partition, offset in self._stored.items() if partition < partitions_count}
        self._assign_all()

    # Polls and stores.

    def poll_target(self, client_id: int, partition: int | None = None) -> int | None:
        """The partition that this poll reads. None if the member has none to read now; that is not an error."""
        member = self._member(client_id)
        if partition is None:
            partition = self._next_partition(member)
        elif self._owners.get(partition) is not member:
            return None
        if partition is not None:
            member.polled_partition = partition
        return partition

    def store_target(self, client_id: int, partition: int | None = None) -> int:
        """The partition in which this member may store or delete the group's offset; by default the one that it polled
        last. Raises if the member does not own the partition."""
        member = self._member(client_id)
        if partition is None:
            partition = member.polled_partition
        if partition is None or self._owners.get(partition) is not member:
            what = "a partition, as it has polled none" if partition is None else f"partition {partition}"
            raise StreamsError(
                StreamStatus.NOT_RESOLVED_CONSUMER, f"member {member.id} of the group does not own {what}"
            )
        return partition

    def owns(self, client_id: int, partition: int) -> bool:
        """Whether the client owns the partition now. A poll asks after its read: the owner may have changed."""
        owner = self._owners.get(partition)
        return owner is not None and owner.client_id == client_id

    def note_sent(self, partition: int, offset: int) -> None:
        """The owner of the partition is sent messages up to this offset."""
        # During the read the last member may have left.
        if partition in self._owners:
            self._sent[partition] = offset

    def note_stored(self, partition: int, offset: int | None) -> None:
        """The group's stored offset in the partition has changed; None: it was deleted."""
        if partition >= self._partitions_count:
            return
        if offset is None:
            self._stored.pop(partition, None)
        else:
            self._stored[partition] = offset
        if partition in self._pending and self._is_processed(partition):
            self._complete(partition)

    def note_purged(self) -> None:
        """The topic was purged: no messages count as sent."""
        self._sent.clear()
        self._stored.clear()
        for partition in sorted(self._pending):
            self._complete(partition)

    def tick(self, now_us: int) -> list[int]:
        """Hands over pending partitions that waited too long. Returns them."""
        late = sorted(
            partition
            for partition, revocation in self._pending.items()
            if now_us - revocation.since_us >= self._rebalancing_timeout_us
        )
        for partition in late:
            self._complete(partition)
        return late

    # Assignment.

    def _member(self, client_id: int) -> _Member:
        member = self._members.get(client_id)
        if member is None:
            raise StreamsError(
                StreamStatus.CONSUMER_GROUP_MEMBER_NOT_FOUND, f"client {client_id} is no member of the group"
            )
        return member

    def _next_partition(self, member: _Member) -> int | None:
        """Goes by numbers and not by places in the list, so partitions that come and go do not move the others."""
        free = [partition for partition in member.partitions if partition not in self._pending]
        if not free:
            return None
        higher = [partition for partition in free if partition > member.last_in_round]
        member.last_in_round = min(higher or free)
        return member.last_in_round

    def _drop(self, client_ids: Iterable[int]) -> None:
        gone = [self._members.pop(client_id) for client_id in client_ids]
        if gone:
            self._assign_all()

    def _assign_all(self) -> None:
        """Assigns all partitions in ascending order, one to each member in turn."""
        members = list(self._members.values())
        before = self._owners
        self._pending.clear()
        self._owners = {}
        for member in members:
            member.partitions.clear()
        if members:
            for partition in range(self._partitions_count):
                self._give(partition, members[partition % len(members)])
        for partition in [*before, *self._owners]:
            if before.get(partition) is not self._owners.get(partition):
                self._sent.pop(partition, None)

    def _assign_unowned(self) -> None:
        idle = [member for member in self._members.values() if not member.partitions]
        unowned = [partition for partition in range(self._partitions_count) if partition not in self._owners]
        for place, partition in enumerate(unowned):
            self._give(partition, idle[place % len(idle)])

    def _give(self, partition: int, member: _Member) -> None:
        self._owners[partition] = member
        member.partitions.append(partition)

    def _level(self, now_us: int) -> None:
        """Marks surplus partitions as pending, until no two members differ by more than one.

        A pending partition counts for the member that gets it. Pending partitions are the first that get another
        target, because no further owner loses a partition then.
        """
        share, extra = divmod(self._partitions_count, len(self._members))
        holdings = self._holdings()
        surplus: list[int] = []
        for place, held in enumerate(holdings.values()):
            keep = share + (place < extra)
            surplus += held[keep:][::-1]
            del held[keep:]
        for partition in surplus:
            # The member with the fewest partitions; of several, the one that joined first.
            client_id = min(holdings, key=lambda client_id: len(holdings[client_id]))
            holdings[client_id].append(partition)
            self._give_later(partition, client_id, now_us)

    def _holdings(self) -> dict[int, list[int]]:
        """The partitions that each client has once nothing is pending: first those it keeps, then those it gets."""
        holdings: dict[int, list[int]] = {
            client_id: [partition for partition in member.partitions if partition not in self._pending]
            for client_id, member in self._members.items()
        }
        for partition, revocation in self._pending.items():
            holdings[revocation.target_client_id].append(partition)
        return holdings

    def _give_later(self, partition: int, client_id: int, now_us: int) -> None:
        earlier = self._pending.get(partition)
        assert self._owners[partition].client_id != client_id, "shares were even, so only the newcomer has too few"
        # A partition that gets another target keeps the time since which it waits.
        self._pending[partition] = _Revocation(client_id, earlier.since_us if earlier else now_us)
        if self._is_processed(partition):
            self._complete(partition)

    def _is_processed(self, partition: int) -> bool:
        sent = self._sent.get(partition)
        return sent is None or self._stored.get(partition, -1) >= sent

    def _complete(self, partition: int) -> None:
        target = self._members[self._pending.pop(partition).target_client_id]
        owner = self._owners[partition]
        owner.partitions.remove(partition)
        self._sent.pop(partition, None)
        self._give(partition, target)
