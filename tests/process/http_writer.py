"""Clients that write over HTTP with idempotency keys. A key is sent until it is answered."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

CLASSES: Final = {"synced": "fsync", "cached": "disk"}
WRITERS: Final = 6
# Longer than any run: a key must stay known however often the server was killed.
KEY_WINDOW_MS: Final = 3_600_000
ANSWER_S_MAX: Final = 60.0
PAUSE_S: Final = 0.01
RETRIED: Final = (429, 503)

Address = tuple[str, int]


def post(connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@dataclass(frozen=True, slots=True)
class Write:
    """The write that belongs to one key."""

    topic: str
    key: str
    payloads: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        return {"idempotency_key": self.key, "records": [{"data": payload} for payload in self.payloads]}


class Board:
    """The address of the present server, and the number of its answers. Shared by all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._address: Address = ("", 0)
        self._generation = 0
        self._acks = 0
        self.is_over = threading.Event()

    def announce(self, address: Address) -> None:
        with self._changed:
            self._address = address
            self._generation += 1
            self._changed.notify_all()

    def wait_server(self, after_generation: int) -> tuple[Address, int]:
        """Waits for a server of a later generation."""
        with self._changed:
            while self._generation <= after_generation:
                assert not self.is_over.is_set(), "the run is over, and no server is started again"
                assert self._changed.wait(ANSWER_S_MAX), "the server takes too long to start"
            return self._address, self._generation

    def end(self) -> None:
        """Writers finish what they have begun."""
        with self._changed:
            self.is_over.set()
            self._changed.notify_all()

    def note_ack(self) -> None:
        with self._changed:
            self._acks += 1
            self._changed.notify_all()

    def wait_acks(self, count: int) -> None:
        """Waits for this many more answers."""
        with self._changed:
            wanted = self._acks + count
            while self._acks < wanted:
                assert self._changed.wait(ANSWER_S_MAX), "no write is answered any more"


class Writer(threading.Thread):
    """One client, with one connection at a time. `note` gets each write, its answer, and the number of unanswered
    tries."""

    def __init__(self, number: int, board: Board, seed: int, note: Callable[[Write, Any, int], None]) -> None:
        super().__init__(name=f"writer-{number}")
        self._number = number
        self._board = board
        self._dice = random.Random(seed)
        self._note = note
        self._generation = 0
        self._connection: http.client.HTTPConnection | None = None
        self._last: Write | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            count = 0
            while not self._board.is_over.is_set():
                self._send(self._next_write(count))
                count += 1
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits for this one.
            self.failure = error
        finally:
            self._disconnect()

    def _next_write(self, count: int) -> Write:
        if self._last is not None and self._dice.random() < 0.1:
            # An answered write is sent again, like a client does that lost the answer.
            return self._last
        # The client alternates between both classes, so the rate of both is that of the class that waits for the disk.
        topic = list(CLASSES)[count % len(CLASSES)]
        key = f"{self._number}-{count}"
        size = self._dice.choice((1, 1, 1, 2, 5, 20))
        return Write(topic, key, tuple(f"{key} {place} {'x' * self._dice.randrange(90)}" for place in range(size)))

    def _send(self, write: Write) -> None:
        unanswered = 0
        while True:
            connection = self._connected()
            try:
                status, answer = post(connection, f"/v0/topics/{write.topic}", write.body())
            except (OSError, http.client.HTTPException):
                # The server was killed. Only the next process knows whether the write happened.
                self._disconnect()
                unanswered += 1
                continue
            if status in RETRIED:
                # The server is starting, or is stopping and will end the connection.
                self._board.is_over.wait(PAUSE_S)
                continue
            assert status == 200, (status, answer)
            self._note(write, answer, unanswered)
            self._last = write
            self._board.note_ack()
            return

    def _connected(self) -> http.client.HTTPConnection:
        while self._connection is None:
            (host, port), self._generation = self._board.wait_server(self._generation)
            connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S_MAX)
            # Without this the library connects again by itself, also after the server has announced its end.
            connection.auto_open = 0
            try:
                connection.connect()
            except OSError:
                continue
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
