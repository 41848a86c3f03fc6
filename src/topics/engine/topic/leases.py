"""The lease table of one queue: which jobs were handed out, to whom and until when, and which came back.

It is what all lease events of the queue add up to. Pure: it knows no files, no log and no clock; times are passed in,
in milliseconds. The topic knows which jobs are live, and tells the table about every job that is gone (`forget`,
`forget_below`).

Rules of this file:

1. A live job is in the table once it was handed out, until it is gone. Live jobs with a seq of at least `cursor` that
   are not in the table were never delivered.
2. A job has at most one lease. A lease id is given out once.
3. A lease or a delay whose time is over ends in `refresh`, and nowhere else.
4. While an event about a job is being logged the job is *held*: it keeps its lease, its time does not run out, and no
   other call can act on it.

Only this module assigns the fields of `LeaseTable` and `Lease`. Every step costs at most the logarithm of the jobs in
the table. The three heaps keep entries that are out of date until such an entry comes first, or until
most entries are out of date; then the heap is built again.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from topics.formats.control import Lease as LeaseEvent
from topics.formats.snapshot import LeaseState

# A heap with fewer entries is not built again.
TIDY_ENTRIES_MIN: Final = 1024


class State(Enum):
    RETURNED = "returned"
    LEASED = "leased"
    # Leased, and an event that ends, prolongs or begins the lease is being logged.
    HELD = "held"
    DELAYED = "delayed"
    # On its way to another topic.
    MOVING = "moving"


_RETURNED: Final = State.RETURNED
_LEASED: Final = State.LEASED
_HELD: Final = State.HELD
_DELAYED: Final = State.DELAYED


class Lease:
    """A job that was handed out at least once."""

    __slots__ = ("deliveries", "lease_id", "node", "reason", "seq", "state", "until_ms")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.state = _RETURNED
        self.deliveries = 0
        # The newest lease id of this job, also when that lease has ended.
        self.lease_id = 0
        self.node = ""
        # Leased: the last millisecond of the lease. Delayed: the first one at which the job is ready.
        self.until_ms = 0
        # Why a holder gave the job back, the last time that one said so.
        self.reason = ""


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
        "next_id",
        "oldest",
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
        # Ids below `ceiling` may be given out: a synced frame says so, so that no later start gives one out again.
        self.next_id = 1
        self.ceiling = 1
        # (seq, time) of the oldest ready job, as it was found last.
        self.oldest = (0, 0)

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
        """The returned job with the lowest seq. The job stays in the heap."""
        returned = self._returned
        while returned:
            lease = self._leases.get(returned[0])
            if lease is not None and lease.state is _RETURNED:
                return lease
            heappop(returned)
        return None

    def take_first_returned(self) -> None:
        """Takes the job that `first_returned` gave out of the heap."""
        returned = self._returned
        seq = heappop(returned)
        # The heap may have the job twice: a replayed event leases a job without looking into the heap.
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
        """The lease could not be logged, so its holder was not told: this does not count as a delivery."""
        lease.deliveries -= 1
        self._return(lease)

    def put_off(self, seq: int, until_ms: int) -> None:
        """Delays a job that cannot be handed out now, so that it does not block other jobs."""
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
        """The unexpired lease with this id, of any node; call `refresh` first."""
        lease = self._leases.get(seq)
        return lease if lease is not None and lease.state is _LEASED and lease.lease_id == lease_id else None

    def has(self, lease: Lease) -> bool:
        """Whether the job of this lease is still in the table."""
        return self._leases.get(lease.seq) is lease

    def hold(self, lease: Lease) -> None:
        assert lease.state is _LEASED
        lease.state = _HELD

    def let_go(self, lease: Lease, deadline_ms: int | None = None) -> None:
        """The job is not held any more: it stays leased, until another time if one is given."""
        assert lease.state is _HELD
        lease.state = _LEASED
        if deadline_ms is not None:
            lease.until_ms = deadline_ms
        self._start_timer(lease)

    def release(self, lease: Lease, due_ms: int = 0, reason: str = "") -> None:
        """Ends the lease. The job is ready at once, or at `due_ms`."""
        if reason:
            lease.reason = reason
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

    # Moves to other topics.

    def is_ready(self, seq: int) -> bool:
        """Whether a live job has no lease, no delay, and is not on its way to another topic; call `refresh` first."""
        lease = self._leases.get(seq)
        return lease is None or lease.state is _RETURNED

    def begin_move(self, seq: int) -> Lease:
        """A ready job goes to another topic: it is not handed out meanwhile."""
        lease = self._leases.get(seq) or self._add(seq)
        assert lease.state is _RETURNED
        lease.state = State.MOVING
        return lease

    def give_up_move(self, lease: Lease) -> None:
        """The job stays here, if it is still there."""
        if self.has(lease):
            self._return(lease)

    # Jobs that are gone.

    def forget(self, seq: int) -> None:
        """The job is gone: acked, moved, deleted."""
        lease = self._leases.pop(seq, None)
        if lease is not None:
            self._uncount(lease)

    def forget_below(self, seq: int) -> None:
        """Everything below `seq` is gone."""
        seqs = self._seqs
        while seqs and seqs[0] < seq:
            self.forget(heappop(seqs))
        self.cursor = max(self.cursor, seq)

    def note_dead_lettered(self, count: int) -> None:
        self.dead_lettered += count

    def lease_of(self, seq: int) -> Lease | None:
        """The unexpired lease of this job; call `refresh` first."""
        lease = self._leases.get(seq)
        return lease if lease is not None and lease.state in (_LEASED, _HELD) else None

    # The cursor and the lease ids.

    def note_oldest(self, seq: int, ts: int) -> None:
        self.oldest = (seq, ts)

    def advance_cursor(self, seq: int) -> None:
        """Jobs below `seq` are in the table or gone."""
        self.cursor = seq

    def raise_ceiling(self, ceiling: int) -> None:
        """Ids below `ceiling` may be given out: a synced frame says so."""
        self.ceiling = max(self.ceiling, ceiling)

    def give_ceiling_back(self) -> bool:
        """No id is given out any more; whether there were reserved ones."""
        if self.ceiling <= self.next_id:
            return False
        self.ceiling = self.next_id
        return True

    # Starts.

    def restore_all(self, leases: Iterable[LeaseState], *, ceiling: int) -> None:
        """The table of a snapshot."""
        self.ceiling = ceiling
        for lease in leases:
            self.restore(lease)

    def replay(self, event: LeaseEvent) -> None:
        """A logged event, read again."""
        self.raise_ceiling(event.ceiling)
        pairs = zip(event.seqs, event.lease_ids, strict=False)
        if event.event == "claimed":
            for (seq, lease_id), deliveries in zip(pairs, event.deliveries, strict=False):
                self.replay_claimed(seq, lease_id, event.node, event.until_ms, deliveries)
        elif event.event == "extended":
            for seq, lease_id in pairs:
                self.replay_extended(seq, lease_id, event.until_ms)
        elif event.event == "released":
            for seq, lease_id in pairs:
                self.replay_released(seq, lease_id, event.until_ms, event.reason)

    def states(self) -> list[LeaseState]:
        """The entries of a snapshot, by seq."""
        return [
            LeaseState(lease.seq, lease.lease_id, lease.deliveries, lease.node, lease.until_ms, lease.reason)
            for lease in sorted(self._leases.values(), key=_seq_of)
        ]

    def restore(self, state: LeaseState) -> None:
        """An entry of a snapshot."""
        lease = self._add(state.seq)
        lease.lease_id, lease.deliveries, lease.reason = state.lease_id, state.deliveries, state.reason
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
        """A logged claim. A claim that is older than the known lease changes nothing."""
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

    def replay_released(self, seq: int, lease_id: int, due_ms: int, reason: str = "") -> None:
        lease = self._leases.get(seq)
        if lease is not None and lease.lease_id == lease_id and lease.state is _LEASED:
            self.release(lease, due_ms, reason)

    def resume(self) -> None:
        """A start: new ids are above every id that may have been given out."""
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
