"""The lease table of one queue: which jobs were handed out, to whom and until when, and which came back.

It is the fold of the queue's lease events (log-semantics.md §14). Pure: it knows no files, no log and no clock;
times are passed in, in milliseconds. Which jobs are live is the topic's business, which tells the table about every
one that goes (`forget`, `forget_below`).

Rules of this file:

1. A live job is in the table once it was handed out, until it is gone. The others are those at or behind `cursor` that
   are not in the table: they were never delivered.
2. A job has at most one lease. A lease id is given out once.
3. Whatever ends by itself (a lease, a delay) ends in `refresh`, and nowhere else.
4. While an event about a job is being logged the job is *held*: it keeps its lease, its time does not run out, and
   nobody else can act on it.

Every step costs at most the logarithm of the jobs in the table. Three heaps hold entries that mean nothing any more
until those come first, or are the larger part; then the heap is made anew.
"""

from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from topics.formats.snapshot import LeaseState

# Heaps smaller than this are not worth tidying up.
TIDY_ENTRIES_MIN: Final = 1024


class State(Enum):
    RETURNED = "returned"
    LEASED = "leased"
    # Leased, and an event that ends, prolongs or begins the lease is being logged.
    HELD = "held"
    DELAYED = "delayed"
    # On its way to the dead-letter topic.
    MOVING = "moving"


_RETURNED: Final = State.RETURNED
_LEASED: Final = State.LEASED
_HELD: Final = State.HELD
_DELAYED: Final = State.DELAYED


class Lease:
    """What is known of a job that was handed out at least once."""

    __slots__ = ("deliveries", "lease_id", "node", "seq", "state", "until_ms")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = _RETURNED
        self.deliveries = 0
        # The last one that was given out for this job, also when it has ended.
        self.lease_id = 0
        self.node = ""
        # Leased: the last millisecond of the lease. Delayed: the first one at which the job is ready.
        self.until_ms = 0


class LeaseTable:
    """Owner only."""

    __slots__ = (
        "_leases",
        "_returned",
        "_seqs",
        "_timers",
        "ceiling",
        "cursor",
        "dead_lettered",
        "delayed",
        "in_flight",
        "moved",
        "next_id",
        "stuck",
    )

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        # Heaps: seqs of returned jobs; (when it is over, seq, lease id); seqs of all jobs in the table.
        self._returned: list[int] = []
        self._timers: list[tuple[int, int, int]] = []
        self._seqs: list[int] = []
        self.cursor = 1
        self.in_flight = 0
        self.delayed = 0
        self.dead_lettered = 0
        # Seqs of jobs that the dead-letter topic has, and whose deletion here is not applied yet.
        self.moved: set[int] = set()
        # Those of them whose deletion failed: to be tried again.
        self.stuck: set[int] = set()
        # Ids below `ceiling` may be given out: that they may is on disk, so that no later start repeats one.
        self.next_id = 1
        self.ceiling = 1

    def __contains__(self, seq: int) -> bool:
        return seq in self._leases

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    # Time.

    def refresh(self, now_ms: int) -> bool:
        """Returns jobs whose lease or delay is over; whether there were any."""
        timers = self._timers
        found = False
        while timers and timers[0][0] <= now_ms:
            _, seq, lease_id = heappop(timers)
            lease = self._leases.get(seq)
            if lease is None or lease.lease_id != lease_id or not _is_over(lease, now_ms):
                continue
            self._return(lease)
            found = True
        return found

    @property
    def next_change_ms(self) -> int | None:
        """When `refresh` may find something next."""
        return self._timers[0][0] if self._timers else None

    def _start_timer(self, lease: Lease) -> None:
        timers = self._timers
        if len(timers) > TIDY_ENTRIES_MIN and len(timers) > 2 * (self.in_flight + self.delayed):
            timers[:] = [
                (_over_ms(other), other.seq, other.lease_id)
                for other in self._leases.values()
                if other.state in (_LEASED, _DELAYED) and other is not lease
            ]
            heapify(timers)
        heappush(timers, (_over_ms(lease), lease.seq, lease.lease_id))

    # Handing out.

    def first_returned(self) -> Lease | None:
        """The returned job with the lowest seq. It stays where it is."""
        returned = self._returned
        while returned:
            lease = self._leases.get(returned[0])
            if lease is not None and lease.state is _RETURNED:
                return lease
            heappop(returned)
        return None

    def take_first_returned(self) -> None:
        """The caller has the job that `first_returned` gave, and does something with it before anybody else looks."""
        returned = self._returned
        seq = heappop(returned)
        # It may have come back before and been leased by a replayed event, which looks into no heap.
        while returned and returned[0] == seq:
            heappop(returned)

    def hand_out(self, seq: int, node: str, deadline_ms: int, *, held: bool) -> Lease:
        """A new lease for a job that was taken, or was never delivered."""
        assert self.next_id < self.ceiling, "an id that is not reserved could be given out again"
        lease = self._leases.get(seq) or self._add(seq)
        assert lease.state is _RETURNED, "a job has at most one lease"
        lease.deliveries += 1
        lease.lease_id = self.next_id
        self.next_id += 1
        lease.node = node
        lease.until_ms = deadline_ms
        self.in_flight += 1
        if held:
            lease.state = _HELD
        else:
            lease.state = _LEASED
            self._start_timer(lease)
        return lease

    def _add(self, seq: int) -> Lease:
        seqs = self._seqs
        if len(seqs) > TIDY_ENTRIES_MIN and len(seqs) > 2 * len(self._leases):
            seqs[:] = self._leases
            heapify(seqs)
        heappush(seqs, seq)
        lease = self._leases[seq] = Lease(seq)
        return lease

    def take_back(self, lease: Lease) -> None:
        """It was handed out, and nobody was told: that was no delivery."""
        lease.deliveries -= 1
        self._return(lease)

    def put_off(self, seq: int, until_ms: int) -> None:
        """A job that cannot be handed out now waits, so that it does not stand in the way of others."""
        lease = self._leases.get(seq) or self._add(seq)
        assert lease.state is _RETURNED
        self._delay(lease, until_ms)

    # What a holder does.

    def held_by(self, seq: int, node: str, lease_id: int | None) -> Lease | None:
        """The unexpired lease that the node has on this job, if its token fits; call `refresh` first."""
        lease = self._leases.get(seq)
        if lease is None or lease.state is not _LEASED or lease.node != node:
            return None
        return lease if lease_id is None or lease_id == lease.lease_id else None

    def current(self, seq: int, lease_id: int) -> Lease | None:
        """The unexpired lease with this id, whoever has it; call `refresh` first."""
        lease = self._leases.get(seq)
        return lease if lease is not None and lease.state is _LEASED and lease.lease_id == lease_id else None

    def has(self, lease: Lease) -> bool:
        """Whether its job is still here, after something was waited for."""
        return self._leases.get(lease.seq) is lease

    def hold(self, lease: Lease) -> None:
        assert lease.state is _LEASED
        lease.state = _HELD

    def let_go(self, lease: Lease, deadline_ms: int | None = None) -> None:
        """Held no more: leased on, until another time if one is given."""
        assert lease.state is _HELD
        lease.state = _LEASED
        if deadline_ms is not None:
            lease.until_ms = deadline_ms
        self._start_timer(lease)

    def release(self, lease: Lease, due_ms: int = 0) -> None:
        """Ends the lease. The job is ready at once, or at `due_ms`."""
        if due_ms:
            self.in_flight -= 1
            self._delay(lease, due_ms)
        else:
            self._return(lease)

    def _delay(self, lease: Lease, due_ms: int) -> None:
        lease.state = _DELAYED
        lease.node = ""
        lease.until_ms = due_ms
        self.delayed += 1
        self._start_timer(lease)

    def _return(self, lease: Lease) -> None:
        self._uncount(lease)
        lease.state = _RETURNED
        lease.node = ""
        lease.until_ms = 0
        heappush(self._returned, lease.seq)

    def _uncount(self, lease: Lease) -> None:
        if lease.state is _LEASED or lease.state is _HELD:
            self.in_flight -= 1
        elif lease.state is _DELAYED:
            self.delayed -= 1

    # Dead letters.

    def begin_move(self, lease: Lease) -> None:
        """A job that was taken goes to the dead-letter topic."""
        assert lease.state is _RETURNED
        lease.state = State.MOVING

    def give_up_move(self, lease: Lease) -> None:
        self._return(lease)

    # Jobs that go.

    def forget(self, seq: int) -> None:
        """The job is gone: acked, moved, deleted."""
        lease = self._leases.pop(seq, None)
        if lease is not None:
            self._uncount(lease)
            self.moved.discard(seq)
            self.stuck.discard(seq)

    def forget_below(self, seq: int) -> None:
        """Everything below `seq` is gone."""
        seqs = self._seqs
        while seqs and seqs[0] < seq:
            self.forget(heappop(seqs))
        self.cursor = max(self.cursor, seq)

    # Starts.

    def states(self) -> list[LeaseState]:
        """Everything a later start has to know, by seq."""
        return [
            LeaseState(lease.seq, lease.lease_id, lease.deliveries, lease.node, lease.until_ms)
            for lease in sorted(self._leases.values(), key=_seq_of)
        ]

    def restore(self, state: LeaseState) -> None:
        """An entry of a snapshot."""
        lease = self._add(state.seq)
        lease.lease_id, lease.deliveries = state.lease_id, state.deliveries
        if state.node:
            self._lease_again(lease, state.node, state.until_ms)
        elif state.until_ms:
            self._delay(lease, state.until_ms)
        else:
            heappush(self._returned, lease.seq)

    def _lease_again(self, lease: Lease, node: str, deadline_ms: int) -> None:
        lease.state = _LEASED
        lease.node = node
        lease.until_ms = deadline_ms
        self.in_flight += 1
        self._start_timer(lease)

    def replay_claimed(self, seq: int, lease_id: int, node: str, deadline_ms: int, deliveries: int) -> None:
        """A logged event, or one that a snapshot has already. An older one than what is known changes nothing."""
        lease = self._leases.get(seq) or self._add(seq)
        if lease_id > lease.lease_id:
            self._uncount(lease)
            lease.lease_id, lease.deliveries = lease_id, deliveries
            self._lease_again(lease, node, deadline_ms)

    def replay_extended(self, seq: int, lease_id: int, deadline_ms: int) -> None:
        lease = self._leases.get(seq)
        if lease is not None and lease.lease_id == lease_id and lease.state is _LEASED:
            lease.until_ms = deadline_ms
            self._start_timer(lease)

    def replay_released(self, seq: int, lease_id: int, due_ms: int) -> None:
        lease = self._leases.get(seq)
        if lease is not None and lease.lease_id == lease_id and lease.state is _LEASED:
            self.release(lease, due_ms)

    def resume(self) -> None:
        """A start: ids go on above every one that may have been given out."""
        self.next_id = self.ceiling = max(self.next_id, self.ceiling)

    def forget_all(self) -> None:
        """Every job is as if it was never delivered."""
        self._leases.clear()
        self._returned.clear()
        self._timers.clear()
        self._seqs.clear()
        self.in_flight = self.delayed = 0
        self.cursor = 1


def _is_over(lease: Lease, now_ms: int) -> bool:
    return (lease.state is _LEASED or lease.state is _DELAYED) and _over_ms(lease) <= now_ms


def _over_ms(lease: Lease) -> int:
    """The first millisecond at which the lease or the delay is over."""
    return lease.until_ms if lease.state is _DELAYED else lease.until_ms + 1


def _seq_of(lease: Lease) -> int:
    return lease.seq
