"""Who of a consumer group reads which partition of its topic.

Rules:

1. While a group has members, each partition has exactly one owner. Only the owner may store offsets for the group in
   it, so a member that lost a partition cannot move the group back or forth there.
2. A join takes nothing away from anybody who is in the middle of something. What a member has too much is marked
   pending, towards the member that has too few, and changes hands once the group has processed all that was sent
   to it, or never was sent anything, or after a time limit.
3. A leave, and a change of the number of partitions, deals everything anew at once.
4. Counting what is pending where it goes, no two members ever differ by more than one partition.

What was sent and not processed when a partition changes hands comes again, to its new owner: the group goes on
behind the offset that is stored. So nothing is lost, and what rule 2 waits for is that nothing comes twice.

Not thread-safe: the caller holds the lock of its topic's groups. Times are of a clock that never steps.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from topics.stream_errors import StreamsError, StreamStatus


class MemberInfo(NamedTuple):
    """What clients are told of a member; partitions that it is about to lose are still its own."""

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
    # In the order in which they came; a join takes from the end.
    partitions: list[int] = field(default_factory=list)
    # Where its next poll without a partition begins, as a place in `partitions`.
    next_place: int = 0
    # Where its last poll was, which is what a store without a partition is about.
    polled_partition: int | None = None


class ConsumerGroup:
    """The members of one group. They live no longer than their connections, so a start begins without any.

    `stored` are the group's offsets by partition, as far as there are some.
    """

    def __init__(
        self, partitions_count: int, *, rebalancing_timeout_us: int, stored: Mapping[int, int] | None = None
    ) -> None:
        self._partitions_count = partitions_count
        self._rebalancing_timeout_us = rebalancing_timeout_us
        # By client, in the order of their joins.
        self._members: dict[int, _Member] = {}
        self._owners: dict[int, _Member] = {}
        self._pending: dict[int, _Revocation] = {}
        # The last offset that the present owner was sent.
        self._sent: dict[int, int] = {}
        self._stored: dict[int, int] = dict(stored or {})

    # Who is in it.

    @property
    def members(self) -> list[MemberInfo]:
        """In the order of their joins."""
        return [MemberInfo(member.id, member.client_id, tuple(member.partitions)) for member in self._members.values()]

    @property
    def partitions_count(self) -> int:
        return self._partitions_count

    @property
    def pending(self) -> dict[int, int]:
        """Partitions that wait to change hands, and the clients that they go to."""
        return {partition: revocation.target_client_id for partition, revocation in self._pending.items()}

    def is_member(self, client_id: int) -> bool:
        return client_id in self._members

    def join(self, client_id: int, *, now_us: int, is_connected: Callable[[int], bool] | None = None) -> None:
        """Joining twice is joining once. Members whose connections are gone make room first."""
        if is_connected is not None:
            self._drop([other for other in self._members if other != client_id and not is_connected(other)])
        if client_id in self._members:
            return
        member_id = max((member.id for member in self._members.values()), default=-1) + 1
        self._members[client_id] = _Member(member_id, client_id)
        self._deal_unowned()
        self._level(now_us)

    def leave(self, client_id: int) -> None:
        self._member(client_id)
        self._drop([client_id])

    def set_partitions(self, partitions_count: int) -> None:
        """Partitions were added, or the last ones deleted."""
        self._partitions_count = partitions_count
        self._stored = {partition: offset for partition, offset in self._stored.items() if partition < partitions_count}
        self._deal_all()

    # Polls and stores.

    def poll_target(self, client_id: int, partition: int | None = None) -> int | None:
        """The partition that this poll reads. None when there is none for it: an empty answer, and no error."""
        member = self._member(client_id)
        if partition is None:
            partition = self._next_partition(member)
        elif self._owners.get(partition) is not member:
            return None
        if partition is not None:
            member.polled_partition = partition
        return partition

    def store_target(self, client_id: int, partition: int | None = None) -> int:
        """The partition that this member may store (or delete) the group's offset in; without a partition the one
        that it polled last. A member that does not own it any more is refused."""
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
        """Asked after a read, before its auto-commit: the partition may have changed hands meanwhile."""
        owner = self._owners.get(partition)
        return owner is not None and owner.client_id == client_id

    def note_sent(self, partition: int, offset: int) -> None:
        """The owner of the partition gets messages, this the last of them."""
        # The last member may have left while it was read.
        if partition in self._owners:
            self._sent[partition] = offset

    def note_stored(self, partition: int, offset: int | None) -> None:
        """The group's offset there is now this; None when it was deleted."""
        if partition >= self._partitions_count:
            return
        if offset is None:
            self._stored.pop(partition, None)
        else:
            self._stored[partition] = offset
        if partition in self._pending and self._is_processed(partition):
            self._complete(partition)

    def note_purged(self) -> None:
        """The topic begins anew: nobody has been sent anything."""
        self._sent.clear()
        self._stored.clear()
        for partition in sorted(self._pending):
            self._complete(partition)

    def tick(self, now_us: int) -> list[int]:
        """Ends the waiting that took too long; returns the partitions that changed hands."""
        late = sorted(
            partition
            for partition, revocation in self._pending.items()
            if now_us - revocation.since_us >= self._rebalancing_timeout_us
        )
        for partition in late:
            self._complete(partition)
        return late

    # Dealing.

    def _member(self, client_id: int) -> _Member:
        member = self._members.get(client_id)
        if member is None:
            raise StreamsError(
                StreamStatus.CONSUMER_GROUP_MEMBER_NOT_FOUND, f"client {client_id} is no member of the group"
            )
        return member

    def _next_partition(self, member: _Member) -> int | None:
        count = len(member.partitions)
        for step in range(count):
            place = (member.next_place + step) % count
            partition = member.partitions[place]
            if partition not in self._pending:
                member.next_place = place + 1
                return partition
        return None

    def _drop(self, client_ids: Iterable[int]) -> None:
        gone = [self._members.pop(client_id) for client_id in client_ids]
        if gone:
            self._deal_all()

    def _deal_all(self) -> None:
        """Partitions in ascending order, one to each member in turn."""
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

    def _deal_unowned(self) -> None:
        idle = [member for member in self._members.values() if not member.partitions]
        unowned = [partition for partition in range(self._partitions_count) if partition not in self._owners]
        for place, partition in enumerate(unowned):
            self._give(partition, idle[place % len(idle)])

    def _give(self, partition: int, member: _Member) -> None:
        self._owners[partition] = member
        member.partitions.append(partition)

    def _level(self, now_us: int) -> None:
        """Marks as pending what members have too much, until no two differ by more than one.

        Counted is where partitions go, not where they are. One that is already on its way is the first to be sent
        elsewhere, as that costs nobody anything.
        """
        share, extra = divmod(self._partitions_count, len(self._members))
        holdings = self._holdings()
        surplus: list[int] = []
        for place, held in enumerate(holdings.values()):
            keep = share + (place < extra)
            surplus += held[keep:][::-1]
            del held[keep:]
        for partition in surplus:
            # The first of those that have least, in the order of their joins.
            client_id = min(holdings, key=lambda client_id: len(holdings[client_id]))
            holdings[client_id].append(partition)
            self._send(partition, client_id, now_us)

    def _holdings(self) -> dict[int, list[int]]:
        """What each client will have once nothing is pending: first what it has, then what comes to it."""
        holdings: dict[int, list[int]] = {
            client_id: [partition for partition in member.partitions if partition not in self._pending]
            for client_id, member in self._members.items()
        }
        for partition, revocation in self._pending.items():
            holdings[revocation.target_client_id].append(partition)
        return holdings

    def _send(self, partition: int, client_id: int, now_us: int) -> None:
        earlier = self._pending.get(partition)
        assert self._owners[partition].client_id != client_id, "shares were even, so only the newcomer has too few"
        # Sent elsewhere it waits no longer than it would have waited.
        self._pending[partition] = _Revocation(client_id, earlier.since_us if earlier else now_us)
        if self._is_processed(partition):
            self._complete(partition)

    def _is_processed(self, partition: int) -> bool:
        sent = self._sent.get(partition)
        return sent is None or self._stored.get(partition, -1) >= sent

    def _complete(self, partition: int) -> None:
        target = self._members[self._pending.pop(partition).target_client_id]
        owner = self._owners[partition]
        place = owner.partitions.index(partition)
        del owner.partitions[place]
        if place < owner.next_place:
            # The next poll goes on with the one that it would have gone on with.
            owner.next_place -= 1
        self._sent.pop(partition, None)
        self._give(partition, target)
