"""Where a reader of topics is, and what each event of its stream means. Pure: the shells connect and move the bytes.

rule 1  The reader owns the cursors. Each connection is a new watch session that begins at them, so a restart of the
        server, or of what is between, changes nothing.
rule 2  A record that was given to the caller is not given again, and none is left out.
rule 3  Lost records are a `Tombstone` with the real reason. The first event of a stream does not say the reason
        (`from_seq_too_old`): then one read of the topic tells it, before a new stream begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from topics.client import calls
from topics.client.answers import Page, error_from, from_json, record_of
from topics.client.calls import Call
from topics.errors import InvalidRequest, TopicNotFound, TopicsError, Unauthorized
from topics.formats.records import Record
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_MAX
from topics.protocol import sse_event
from topics.protocol.request_body import WatchBody, WatchTopic
from topics.protocol.response_body import WatchCreated
from topics.protocol.sse_reader import SseEvent, SseReader
from topics.results import Tombstone

HEARTBEAT_MS: Final = 10_000
# A stream that is silent for longer is dead: the server sends a heartbeat.
SILENCE_S_MAX: Final = 3 * HEARTBEAT_MS / 1000


class TopicGone(NamedTuple):
    """A watched topic was deleted."""

    reason: Literal["deleted"] = "deleted"


class Seen(NamedTuple):
    """What a watch saw, and in which topic."""

    topic: str
    item: Record | Tombstone | TopicGone


class Following:
    """One watch of topics and patterns, over all its connections. Not for several threads at once.

    `begin` says for each name the last seq that the caller has, or "head". A name that ends in `*` is a pattern.
    """

    def __init__(self, begin: Mapping[str, int | Literal["head"]], *, skip_nodes: Iterable[str] = ()) -> None:
        if not begin:
            raise InvalidRequest("name at least one topic to watch")
        self._nodes = calls.nodes_of(skip_nodes)
        self._patterns = {name: seq for name, seq in begin.items() if name.endswith("*")}
        self._cursors: dict[str, int | Literal["head"]] = {
            name: seq for name, seq in begin.items() if not name.endswith("*")
        }
        self._named = frozenset(self._cursors)
        self._behind: set[str] = set()
        self._sse = SseReader()
        self._is_first = True
        # Topics whose loss a read must tell.
        self._unexplained: list[str] = []
        self.must_reconnect = False

    def is_over(self) -> bool:
        """Whether every topic is gone, and no pattern can bring a new one."""
        return not self._cursors and not self._patterns

    @property
    def is_caught_up(self) -> bool:
        """Whether the caller has every record that the server knew of when it last said so."""
        return not self._behind and not self.must_reconnect

    # Connecting.

    def session(self) -> Call[WatchCreated]:
        """The request that begins a watch at the cursors."""
        topics = {name: _start(seq) for name, seq in (self._patterns | self._cursors).items()}
        wanted = WatchBody(
            topics=topics, node=self._nodes, limit=READ_LIMIT_MAX, heartbeat_ms=HEARTBEAT_MS, include_tags=True
        )
        return calls.watch(wanted, is_lenient=not self._is_first)

    def opened(self, created: WatchCreated) -> list[Seen]:
        """The server has the session. Gives the topics that were deleted since the last connection."""
        gone = [name for name in self._cursors if name not in created.topics]
        for name in gone:
            del self._cursors[name]
        self._cursors |= {name: topic.from_seq for name, topic in created.topics.items()}
        # Topics that a pattern brings from now on are new to the caller.
        self._patterns = dict.fromkeys(self._patterns, 0)
        self._behind = set(self._cursors)
        self._sse = SseReader()
        self._is_first = False
        self.must_reconnect = False
        return [Seen(name, TopicGone()) for name in gone]

    # Events.

    def feed(self, data: bytes) -> list[Seen]:
        """Takes bytes of the stream. Raises the error of the server when the stream cannot go on."""
        seen: list[Seen] = []
        for event in self._sse.feed(data):
            if self.must_reconnect:
                break
            seen += self._take(event)
        return seen

    def _take(self, event: SseEvent) -> list[Seen]:
        match event.name:
            case "record":
                return self._records(from_json(event.data, sse_event.RecordEvent))
            case "tombstone":
                return self._tombstone(from_json(event.data, sse_event.TombstoneEvent))
            case "caught-up":
                self._behind.discard(from_json(event.data, sse_event.CaughtUpEvent).topic)
            case "topic-deleted":
                return self._deleted(from_json(event.data, sse_event.TopicDeletedEvent).topic)
            case "error":
                self._end(event.data)
        return []

    def _records(self, event: sse_event.RecordEvent) -> list[Seen]:
        self._cursors[event.topic] = event.to_seq
        self._behind.add(event.topic)
        return [Seen(event.topic, record_of(record)) for record in event.records]

    def _tombstone(self, event: sse_event.TombstoneEvent) -> list[Seen]:
        if event.reason == "from_seq_too_old":
            self._unexplained.append(event.topic)
            self.must_reconnect = True
            return []
        self._cursors[event.topic] = event.earliest_seq - 1 if event.reason == "recreated" else event.gap_to
        self._behind.add(event.topic)
        missed = max(1, event.gap_to - event.gap_from + 1)
        lost = Tombstone(event.gap_from, event.gap_to, event.reason, missed, event.earliest_seq, event.head_seq)
        return [Seen(event.topic, lost)]

    def _deleted(self, topic: str) -> list[Seen]:
        self._cursors.pop(topic, None)
        self._behind.discard(topic)
        return [Seen(topic, TopicGone())]

    def _end(self, data: bytes) -> None:
        """The last event of a stream, or an advice that the server sends later (429)."""
        code = from_json(data, _ErrorEvent).code
        if code == 429:
            return
        if code == Unauthorized.code:
            raise error_from(Unauthorized.code, "the key was removed while the stream was open")
        self.must_reconnect = True

    # Losses that a stream does not explain.

    def next_read(self) -> Call[Page] | None:
        """A read that must be done before the next connection; None if there is none."""
        if not self._unexplained:
            return None
        topic = self._unexplained[0]
        cursor = self._cursors.get(topic, 0)
        assert cursor != "head", "a topic without records at its cursor has no loss"
        return calls.diff(
            topic,
            cursor,
            limit=READ_LIMIT_MAX,
            bytes_max=READ_BYTES_DEFAULT,
            skip_nodes=self._nodes or (),
            group=None,
            wait_ms=0,
        )

    def read(self, page: Page) -> list[Seen]:
        """The answer to `next_read`."""
        topic = self._unexplained.pop(0)
        self._cursors[topic] = page.next_from_seq
        items: list[Record | Tombstone] = [page.tombstone] if page.tombstone is not None else []
        return [Seen(topic, item) for item in [*items, *page.records]]

    def read_failed(self, error: TopicsError) -> list[Seen]:
        """`next_read` was answered with an error. Raises it, unless it says that the topic is gone."""
        if not isinstance(error, TopicNotFound):
            raise error
        return self._deleted(self._unexplained.pop(0))


class _ErrorEvent(msgspec.Struct):
    code: int | str


def _start(seq: int | Literal["head"]) -> WatchTopic:
    return WatchTopic(tail=True) if seq == "head" else WatchTopic(from_seq=seq)


def item_of(seen: Seen) -> Record | Tombstone:
    """What the tail of one topic yields. Raises `TopicNotFound` when the topic is gone."""
    if isinstance(seen.item, TopicGone):
        raise TopicNotFound(seen.topic)
    return seen.item
