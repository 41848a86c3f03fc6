"""Workers of a live run: they claim jobs or get them pushed, and ack them, give them back, are late, or end without an
ack.

All answers are noted in order, for the judge. Times of leases are times of the server in milliseconds. The server runs
on this machine, so they can be compared: a lease that was granted before another one ended overlaps it.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tests.process.http_writer import Board
from tests.process.live_client import ENDS, LiveClient, Lost, now_ns, wall_ms
from tests.process.live_load import LEASE_MS
from tests.server.event_streams import Event, EventStream

EXTENDED_MS: Final = 600
# Most jobs that a worker keeps until their lease has ended.
LATE_MAX: Final = 5

Deed = Literal["ack", "nack", "extend"]


@dataclass(slots=True)
class Delivery:
    """A job that a worker got. `stream` numbers the stream it was pushed on, None for a claim."""

    queue: str
    seq: int
    payload: str
    lease_id: int
    deliveries: int
    granted_ms: int
    deadline_ms: int
    node: str
    generation: int
    stream: int | None
    ended_ns: int


class Settlement(NamedTuple):
    """A call of a worker about a lease. `acted` is None if there was no answer."""

    deed: Deed
    queue: str
    seq: int
    lease_id: int
    generation: int
    begun_ns: int
    ended_ns: int
    # Wall time of the answer.
    ended_ms: int
    acted: bool | None
    # Only for an extension that was granted.
    deadline_ms: int | None = None


@dataclass
class QueueLedger:
    """The answers to all workers. Workers add them one at a time; the judge reads when all have ended."""

    deliveries: list[Delivery] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    # By queue: number of jobs that may have been delivered in an answer that was lost.
    maybe_unseen: Counter[str] = field(default_factory=Counter)
    # Stream number -> when a worker ended the stream. Its leases end then.
    closed_ns: dict[int, int] = field(default_factory=dict)
    streams: int = 0
    # Processes that got a stop signal, and so could release the jobs that they had pushed.
    stopped: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # Set when every queue is empty.
    is_drained: threading.Event = field(default_factory=threading.Event)

    def note_delivery(self, delivery: Delivery) -> None:
        with self.lock:
            self.deliveries.append(delivery)

    def note_settlement(self, settlement: Settlement) -> None:
        with self.lock:
            self.settlements.append(settlement)

    def note_unseen(self, queue: str, count: int) -> None:
        with self.lock:
            self.maybe_unseen[queue] += count

    def open_stream(self) -> int:
        with self.lock:
            self.streams += 1
            return self.streams

    def note_closed(self, stream: int) -> None:
        with self.lock:
            self.closed_ns[stream] = now_ns()


def lease_number(lease_id: str) -> int:
    head, _, digits = lease_id.partition("_")
    assert head == "lease", lease_id
    return int(digits, 16)


class Worker(LiveClient):
    """Decides what to do with a job. `ask` is only for requests, not for the connection that jobs are pushed on."""

    def __init__(self, name: str, board: Board, seed: int, queue: str, ledger: QueueLedger) -> None:
        super().__init__(name, board, seed)
        self.queue = queue
        self.ledger = ledger
        self.late: deque[Delivery] = deque()

    def take(self, job: dict[str, Any], lease_ms: int, stream: int | None) -> Delivery:
        delivery = Delivery(
            queue=self.queue,
            seq=job["$seq"],
            payload=job["data"],
            lease_id=lease_number(job["lease_id"]),
            deliveries=job["deliveries"],
            granted_ms=job["deadline"] - lease_ms,
            deadline_ms=job["deadline"],
            node=self.name,
            generation=self.generation,
            stream=stream,
            ended_ns=now_ns(),
        )
        self.ledger.note_delivery(delivery)
        return delivery

    def handle(self, delivery: Delivery) -> None:
        chance = self.dice.random()
        if chance < 0.7:
            self.settle("ack", delivery)
        elif chance < 0.8:
            self.settle("nack", delivery, delay_ms=self.dice.choice((0, 50)))
        elif chance < 0.87:
            self.settle("extend", delivery, lease_ms=EXTENDED_MS)
            self.settle("ack", delivery)
        elif chance < 0.95:
            self.late.append(delivery)
            if len(self.late) > LATE_MAX:
                self.late.popleft()
        # Otherwise the worker ends, and there is no further call about this job.

    def settle_late(self) -> None:
        """Acks kept jobs whose lease has ended. Another worker may have them by now."""
        while self.late and self.late[0].deadline_ms < wall_ms():
            self.settle("ack", self.late.popleft())

    def settle(self, deed: Deed, delivery: Delivery, **members: Any) -> None:
        body = {"node": self.name, "seqs": [delivery.seq], "lease_ids": [f"lease_{delivery.lease_id:x}"]} | members
        begun_ns = now_ns()
        acted: bool | None = None
        deadline_ms: int | None = None
        try:
            status, answer = self.ask("POST", f"/v0/topics/{self.queue}/{deed}", body)
            assert status == 200, (status, answer)
            acted = answer["skipped"] == []
            deadline_ms = answer.get("deadlines", {}).get(str(delivery.seq))
        finally:
            self.ledger.note_settlement(
                Settlement(
                    deed=deed,
                    queue=self.queue,
                    seq=delivery.seq,
                    lease_id=delivery.lease_id,
                    generation=self.generation,
                    begun_ns=begun_ns,
                    ended_ns=now_ns(),
                    ended_ms=wall_ms(),
                    acted=acted,
                    deadline_ms=deadline_ms,
                )
            )
        if acted:
            self.board.note_ack()


class Claimer(Worker):
    def work(self) -> None:
        while not self.ledger.is_drained.is_set():
            try:
                self._turn()
            except Lost:
                # Other workers get its jobs later.
                continue

    def _turn(self) -> None:
        wanted = self.dice.choice((1, 1, 4))
        body = {"node": self.name, "max": wanted, "lease_ms": LEASE_MS}
        try:
            status, answer = self.ask("POST", f"/v0/topics/{self.queue}/claim", body)
        except Lost:
            self.ledger.note_unseen(self.queue, wanted)
            raise
        assert status == 200, (status, answer)
        claimed = [self.take(job, LEASE_MS, None) for job in answer["claimed"]]
        for delivery in claimed:
            self.handle(delivery)
        self.settle_late()
        if not claimed:
            self.ledger.is_drained.wait(0.02)


class Pusher(Worker):
    """Gets up to `width` jobs at a time, and closes its connection from time to time."""

    width: Final = 3

    def __init__(self, name: str, board: Board, seed: int, queue: str, ledger: QueueLedger) -> None:
        super().__init__(name, board, seed, queue, ledger)
        self._stream: EventStream | None = None

    def work(self) -> None:
        while not self.ledger.is_drained.is_set():
            try:
                self._follow()
            except Lost:
                continue

    def hang_up(self) -> None:
        """Called when all jobs are done: no further job comes."""
        stream = self._stream
        if stream is not None:
            try:
                stream.socket.shutdown(2)
            except OSError:
                # The connection has already ended.
                return

    def _follow(self) -> None:
        path = f"/v0/topics/{self.queue}/work?node={self.name}&max={self.width}&lease_ms={LEASE_MS}"
        with self.open_stream(path) as stream:
            if stream.status != 200:
                # The server is starting or stopping.
                assert stream.status == 503, stream.status
                self.pause()
                return
            self._stream = stream
            number = self.ledger.open_stream()
            left = self.dice.randint(3, 40)
            try:
                while left and not self.ledger.is_drained.is_set():
                    self._take_in(stream.maybe_next(), number)
                    left -= 1
                # Noted before the connection is closed: afterwards other workers may get its jobs.
                self.ledger.note_closed(number)
            except ENDS as error:
                self.lose(error)
            finally:
                self._stream = None
                self.ledger.note_unseen(self.queue, self.width + self._unread(stream))

    @staticmethod
    def _unread(stream: EventStream) -> int:
        """Ends the connection. Returns how many jobs came that were not taken in: `width`, and more if this process was
        kept from its work, because each lease that ends makes room for the next job."""
        count = 0
        try:
            stream.socket.shutdown(socket.SHUT_RDWR)
            while (event := stream.maybe_next()) is not None:
                count += event.name == "job"
        except (OSError, AssertionError, *ENDS):
            # The end of what has come, perhaps within an event.
            pass
        return count

    def _take_in(self, event: Event | None, number: int) -> None:
        assert event is not None
        if event.name == "job":
            self.handle(self.take(event.data, LEASE_MS, number))
            self.settle_late()
        elif event.name == "error":
            assert event.data["code"] == "server_shutting_down", event
