"""Readers of a live run: each notes the events that it received, and goes on from there with the next process.

A watch session and a subscription end with the process. After a kill a client makes a new request, from the cursors of
the last event that it noted. An event that a reader gets when it ends itself is not noted.
"""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.process.http_writer import ANSWER_S_MAX, Board
from tests.process.live_client import ENDS, LiveClient, Lost, now_ns, wall_ms
from tests.process.live_load import RENEWED, STEADY
from tests.server.event_streams import Event, EventStream

PREFIX: Final = "live."
HEARTBEAT_MS: Final = 1000
# How long a subscriber waits for a message before it checks whether it is done.
LISTEN_S: Final = 0.5
# A subscriber that ends does not wait for messages that are on their way.
GOODBYE_S: Final = 0.05


class Seen(NamedTuple):
    """One event of one topic: records, or a gap."""

    topic: str
    from_seq: int
    to_seq: int
    # Seq and payload.
    records: tuple[tuple[int, str], ...]
    # Only for a gap.
    reason: str | None
    head_seq: int
    at_ms: int
    # When the stream was asked for.
    opened_ns: int


class Goal:
    """The last seqs of the logs, set when all writers have ended."""

    def __init__(self) -> None:
        self._heads: dict[str, int] | None = None
        self._lock = threading.Lock()

    def set(self, heads: dict[str, int]) -> None:
        with self._lock:
            self._heads = heads

    def is_reached(self, cursors: dict[str, int]) -> bool:
        with self._lock:
            return self._heads is not None and all(
                cursors.get(name, 0) >= head for name, head in self._heads.items() if name in cursors
            )


@dataclass
class Notes:
    """The events that one reader noted."""

    seen: list[Seen] = field(default_factory=list)
    events: int = 0
    connections: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        return sum(len(seen.records) for seen in self.seen)

    @property
    def gap_count(self) -> int:
        return sum(seen.reason is not None for seen in self.seen)

    def take_in(self, data: dict[str, Any], opened_ns: int) -> None:
        """Notes a `record` or a `tombstone`. SSE and WebSocket use the same members."""
        gap = "gap_to" in data
        self.seen.append(
            Seen(
                topic=data["topic"],
                from_seq=data["gap_from"] - 1 if gap else data["from_seq"],
                to_seq=data["gap_to"] if gap else data["to_seq"],
                records=() if gap else tuple((record["$seq"], record["data"]) for record in data["records"]),
                reason=data["reason"] if gap else None,
                head_seq=data["head_seq"],
                at_ms=wall_ms(),
                opened_ns=opened_ns,
            )
        )


class Reader(LiveClient):
    """The reader ends after at most `patience` events; 0 = never."""

    def __init__(self, name: str, board: Board, seed: int, goal: Goal, *, patience: int = 0, limit: int = 100) -> None:
        super().__init__(name, board, seed)
        self.goal = goal
        self.notes = Notes()
        # Topic -> last seq up to which all events are noted.
        self.cursors = dict.fromkeys(STEADY, 0)
        self.patience = patience
        self.limit = limit

    def work(self) -> None:
        while not self.goal.is_reached(self.cursors):
            try:
                self.notes.connections += 1
                self.follow()
            except Lost:
                # It goes on with the next process.
                continue

    @abstractmethod
    def follow(self) -> None:
        """Reads one connection until it ends or the reader ends. Raises `Lost`."""

    def events_left(self) -> int:
        """One event at least is taken in."""
        return self.dice.randint(2, self.patience) if self.patience else -1


class Watcher(Reader):
    """A reader by server-sent events. With `grows` it follows every topic with the prefix, also topics that are created
    again."""

    def __init__(
        self,
        name: str,
        board: Board,
        seed: int,
        goal: Goal,
        *,
        patience: int = 0,
        limit: int = 100,
        grows: bool = False,
        is_strong: bool = False,
        is_http2: bool = False,
        receive_buffer_bytes: int = 0,
    ) -> None:
        super().__init__(name, board, seed, goal, patience=patience, limit=limit)
        self._grows = grows
        self._is_strong = is_strong
        self._is_http2 = is_http2
        self._receive_buffer_bytes = receive_buffer_bytes
        # A session and its process.
        self._path = ""
        self._path_generation = 0
        self._last_id: str | None = None

    def follow(self) -> None:
        self.connect()
        if self._path_generation != self.generation:
            self._begin_session()
        headers = {} if self._last_id is None else {"last-event-id": self._last_id}
        opened_ns = now_ns()
        with self.open_stream(
            self._path, headers, is_http2=self._is_http2, receive_buffer_bytes=self._receive_buffer_bytes
        ) as stream:
            if stream.status == 200:
                self._take_in(stream, opened_ns)
            else:
                # The server is stopping.
                assert stream.status == 503, stream.status
                self.lose()

    def _begin_session(self) -> None:
        wanted = {name: {"from_seq": cursor} for name, cursor in self.cursors.items()}
        if self._grows:
            wanted[PREFIX + "*"] = {}
        body = {
            "topics": wanted,
            "limit": self.limit,
            "heartbeat_ms": HEARTBEAT_MS,
            "consistency": "strong" if self._is_strong else "eventual",
        }
        # The topic that is deleted and created again may be missing at the moment.
        status, answer = self.ask("POST", "/v0/watch?lenient=true", body)
        assert status == 200, (status, answer)
        missing = self.cursors.keys() - answer["topics"].keys() - {RENEWED}
        if missing:
            self.notes.faults.append(f"{self.name}: a session was made without {sorted(missing)}")
        self._path, self._path_generation, self._last_id = answer["stream_url"], self.generation, None

    def _take_in(self, stream: EventStream, opened_ns: int) -> None:
        left = self.events_left()
        while not self.goal.is_reached(self.cursors):
            try:
                event = stream.maybe_next()
            except ENDS as error:
                self.lose(error)
                return
            assert event is not None
            if event.id is None:
                # Comments, and advice under pressure: no cursor has changed.
                continue
            left -= 1
            if left == 0:
                # The reader ends with this event, does not note it, and will ask for it again.
                return
            self._note(event, opened_ns)

    def _note(self, event: Event, opened_ns: int) -> None:
        self.notes.events += 1
        self._last_id = event.id
        self.cursors |= event.cursors
        if event.name in ("record", "tombstone"):
            self.notes.take_in(event.data, opened_ns)
            told = self.cursors[event.data["topic"]]
            if event.name == "record" and told != event.data["to_seq"]:
                self.notes.faults.append(f"{self.name}: an id says {told}, its event {event.data['to_seq']}")
        elif event.name == "caught-up" and self.cursors[event.data["topic"]] != event.data["head_seq"]:
            self.notes.faults.append(f"{self.name}: caught up at {event.cursors} of {event.data}")


class Subscriber(Reader):
    """WebSocket."""

    def follow(self) -> None:
        self.connect()
        host, port = self.address
        try:
            with connect(
                f"ws://{host}:{port}/v0/ws",
                max_size=None,
                proxy=None,
                open_timeout=ANSWER_S_MAX,
                close_timeout=GOODBYE_S,
            ) as connection:
                opened_ns = now_ns()
                self._subscribe(connection)
                self._take_in(connection, opened_ns)
        except InvalidStatus as refusal:
            if refusal.response.status_code != 503:
                raise
            # The server is starting or stopping.
            self.pause()
        except (ConnectionClosed, InvalidHandshake, *ENDS) as error:
            self.lose(error)

    def _subscribe(self, connection: ClientConnection) -> None:
        topics = {name: {"from_seq": cursor} for name, cursor in self.cursors.items()}
        connection.send(json.dumps({"op": "subscribe", "topics": topics, "limit": self.limit, "request_id": 1}))
        reply = json.loads(connection.recv(ANSWER_S_MAX))
        if reply.get("code") == "server_shutting_down":
            self.lose()
            raise Lost
        assert reply["op"] == "subscribed", reply

    def _take_in(self, connection: ClientConnection, opened_ns: int) -> None:
        left = self.events_left()
        while not self.goal.is_reached(self.cursors):
            try:
                message = json.loads(connection.recv(LISTEN_S))
            except TimeoutError:
                continue
            left -= 1
            if left == 0:
                return
            self.notes.events += 1
            match message["op"]:
                case "record":
                    self.notes.take_in(message, opened_ns)
                    self.cursors[message["topic"]] = message["to_seq"]
                case "tombstone":
                    self.notes.take_in(message, opened_ns)
                    self.cursors[message["topic"]] = message["gap_to"]
                case "caught_up":
                    pass
                case "error":
                    # The server is stopping.
                    assert message["code"] == "server_shutting_down", message
                case other:
                    raise AssertionError(f"{other} was not to come: {message}")


@dataclass
class GroupLedger:
    """The commits of the readers of one group. Readers add them one at a time."""

    topic: str
    group: str
    answered_seq: int = 0
    # Also commits without an answer.
    attempted: set[int] = field(default_factory=lambda: {0})
    commits: int = 0
    looks: int = 0
    faults: list[str] = field(default_factory=list)
    # Seq -> payload of records that a reader has processed.
    done: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check_cursor(self, least_seq: int, seq: int) -> None:
        """The cursor of the group is `seq`. A commit of `least_seq` was answered before the cursor was requested."""
        with self.lock:
            self.looks += 1
            if seq < least_seq:
                self.faults.append(f"group {self.group}: its cursor is {seq}, but {least_seq} was answered")
            if seq not in self.attempted:
                self.faults.append(f"group {self.group}: its cursor is {seq}, which no reader committed")

    def note_page(self, least_seq: int, records: list[tuple[int, str]]) -> None:
        self.check_cursor(least_seq, records[0][0] - 1)
        seqs = [seq for seq, _ in records]
        with self.lock:
            if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
                self.faults.append(f"group {self.group}: a page has the seqs {seqs}")
            for seq, payload in records:
                if self.done.setdefault(seq, payload) != payload:
                    self.faults.append(f"group {self.group}: {seq} is {payload!r}, was {self.done[seq]!r}")

    def note_attempt(self, seq: int) -> None:
        with self.lock:
            self.attempted.add(seq)

    def note_commit(self, seq: int, stands_at: int) -> None:
        with self.lock:
            self.commits += 1
            self.answered_seq = max(self.answered_seq, seq)
            if stands_at < seq:
                self.faults.append(f"group {self.group}: a commit of {seq} was answered with {stands_at}")

    def least_seq(self) -> int:
        with self.lock:
            return self.answered_seq


class GroupReader(LiveClient):
    """Reads from the cursor of the group, processes the records, commits. Several readers of a group may process a
    record twice."""

    def __init__(self, name: str, board: Board, seed: int, goal: Goal, ledger: GroupLedger) -> None:
        super().__init__(name, board, seed)
        self._goal = goal
        self._ledger = ledger
        self._path = f"/v0/topics/{ledger.topic}"

    def work(self) -> None:
        while not self._goal.is_reached({self._ledger.topic: self._ledger.least_seq()}):
            try:
                self._turn()
            except Lost:
                self._look()

    def _look(self) -> None:
        """Reads the cursor of the group after a kill."""
        least_seq = self._ledger.least_seq()
        status, answer, _ = self.insist("GET", f"{self._path}/groups/{self._ledger.group}")
        assert status == 200, (status, answer)
        self._ledger.check_cursor(least_seq, answer["seq"])

    def _turn(self) -> None:
        ledger = self._ledger
        least_seq = ledger.least_seq()
        body = {"group": ledger.group, "limit": self.dice.choice((1, 10, 50)), "wait_ms": 200}
        status, page = self.ask("POST", f"{self._path}/diff", body)
        assert status == 200, (status, page)
        if not page["records"]:
            return
        ledger.note_page(least_seq, [(record["$seq"], record["data"]) for record in page["records"]])
        if self.dice.random() < 0.1:
            # The reader ends before the commit, so the cursor of the group does not move.
            return
        seq = page["next_from_seq"]
        ledger.note_attempt(seq)
        status, answer = self.ask("POST", f"{self._path}/groups/{ledger.group}/commit", {"seq": seq})
        assert status == 200, (status, answer)
        ledger.note_commit(seq, answer["seq"])


def survey(ask: Callable[[str, str, Any], tuple[int, Any]], topic: str) -> Notes:
    """All records from the start, as a new reader gets them."""
    notes = Notes(connections=1)
    opened_ns, cursor = now_ns(), 0
    while True:
        status, page = ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
        assert status == 200, (status, page)
        notes.events += 1
        gap = page["tombstone"]
        if gap is not None:
            notes.take_in(gap | {"topic": topic}, opened_ns)
            cursor = gap["gap_to"]
        if page["records"]:
            notes.take_in(page | {"from_seq": cursor, "to_seq": page["next_from_seq"]}, opened_ns)
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return notes
