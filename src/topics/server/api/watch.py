"""Endpoints of watching: a session, and its stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import UNSET

from topics.engine.topic.topic import Topic
from topics.errors import Forbidden, InvalidRequest, NotAcceptable, NotFound, TopicNotFound
from topics.limits import READ_BYTES_DEFAULT, READ_LIMIT_DEFAULT
from topics.protocol.body_decoder import VALUES_MAX, WATCH_DECODER
from topics.protocol.request_body import WatchBody, WatchTopic
from topics.protocol.response_body import WatchCreated, WatchedTopic
from topics.protocol.sse import CONTENT_TYPE, decode_cursor
from topics.server.app import Application, has_bearer, token_of
from topics.server.auth import READ
from topics.server.http.exchange import Exchange, Stream
from topics.server.http.query import Query
from topics.server.http.routes import Access, Body, Endpoint
from topics.server.limits import STREAM_FRAME_BYTES_MAX
from topics.server.live.reading import ReadOptions
from topics.server.live.sse_feed import SseFeed
from topics.server.live.watch_sessions import SESSION_TTL_MS, Watched, WatchSession, WatchSessions
from topics.server.origins import Headers
from topics.server.settings_schema import ServerSettings

HEARTBEAT_MS_MIN: Final = 1000
HEARTBEAT_MS_MAX: Final = 60_000

# Proxies must neither store the stream nor buffer it.
STREAM_HEADERS: Final[Headers] = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))


class WatchApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        self._topics_max = self._limit_max = 0
        self._heartbeat_ms_min = min(HEARTBEAT_MS_MIN, app.settings.test_min_heartbeat_ms or HEARTBEAT_MS_MIN)
        self._sessions = WatchSessions(app.clock, app.counters, 0)
        app.follow_settings(self._use_settings)
        # Open streams whose session has patterns: topics that are created later may join them.
        self._growing: dict[SseFeed, WatchSession] = {}
        self._hears_of_new_topics = False
        add = app.routes.add
        add("POST", "/v0/watch", Endpoint("watch", self.create, READ, Body.REQUIRED))
        add("GET", "/v0/watch/{wid}", Endpoint("watch_stream", self.stream, access=Access.OWN))

    def _use_settings(self, settings: ServerSettings) -> None:
        self._topics_max = settings.max_watch_topics
        self._limit_max = settings.max_limit
        self._sessions.sessions_max = settings.max_watch_sessions

    # Sessions.

    def create(self, exchange: Exchange) -> None:
        body: WatchBody = WATCH_DECODER.decode(exchange.body, max(VALUES_MAX, 16 * self._topics_max))
        if not 1 <= len(body.topics) <= self._topics_max:
            raise InvalidRequest(f"a watch has 1 to {self._topics_max} topics")
        key = exchange.key
        assert key is not None
        # A pattern matches every name with its prefix, so the key must be for the prefix.
        for name in body.topics:
            if not key.may_name(name.removesuffix("*")):
                raise Forbidden(f'the key is not for the topic "{name}"', {"topic": name})
        session = WatchSession(
            key, self._options(body), self._heartbeat_ms(body), is_strong=body.consistency == "strong"
        )
        starts: dict[str, WatchedTopic] = {}
        is_lenient = Query(exchange.query).flag("lenient", default=False)
        wanted_by_name = self._expanded(body, session)
        for topic in self._topics(sorted(wanted_by_name), is_lenient=is_lenient):
            wanted = wanted_by_name[topic.name]
            cursor = topic.head_seq if wanted.tail else wanted.from_seq
            session.topics[topic.name] = Watched(topic.id, cursor)
            starts[topic.name] = WatchedTopic(from_seq=cursor, head_seq=topic.head_seq, earliest_seq=topic.earliest_seq)
        self._sessions.check_room()
        self._sessions.add(session, with_ticket=self._app.has_keys)
        exchange.answer(
            WatchCreated(
                wid=session.wid,
                stream_url=f"/v0/watch/{session.wid}",
                session_ttl_ms=SESSION_TTL_MS,
                topics=starts,
                performance=exchange.performance(),
                ticket=UNSET if session.ticket is None else session.ticket,
            )
        )

    def _expanded(self, body: WatchBody, session: WatchSession) -> dict[str, WatchTopic]:
        """Where to begin with each topic. A pattern (`orders.*`) gives way to an entry with the topic's full name."""
        engine = self._app.open_engine().engine
        named = {name: wanted for name, wanted in body.topics.items() if not name.endswith("*")}
        matched: dict[str, WatchTopic] = {}
        for pattern in sorted(body.topics.keys() - named.keys()):
            prefix = pattern.removesuffix("*")
            session.prefixes += (prefix,)
            for name in engine.names_after(prefix, None, self._topics_max + 1):
                matched[name] = body.topics[pattern]
        wanted_by_name = matched | named
        if len(wanted_by_name) > self._topics_max:
            raise InvalidRequest(f"a watch has 1 to {self._topics_max} topics, and the patterns match more")
        return wanted_by_name

    def _topics(self, names: list[str], *, is_lenient: bool) -> list[Topic]:
        engine = self._app.open_engine().engine
        topics: list[Topic] = []
        for name in names:
            topic = engine.topics.get(name)
            if topic is not None:
                topic.refresh(engine.now_ms())
                topics.append(topic)
            elif not is_lenient:
                raise TopicNotFound(name)
        return topics

    def _options(self, body: WatchBody) -> ReadOptions:
        nodes = [body.node] if isinstance(body.node, str) else body.node
        return ReadOptions(
            limit=min(body.limit or READ_LIMIT_DEFAULT, self._limit_max),
            bytes_max=min(body.max_batch_bytes or READ_BYTES_DEFAULT, STREAM_FRAME_BYTES_MAX),
            nodes=frozenset(node.encode() for node in nodes) if nodes else None,
            include_tags=body.include_tags,
            include_meta=body.include_meta,
            include_data=body.include_data,
        )

    def _heartbeat_ms(self, body: WatchBody) -> int:
        return min(max(body.heartbeat_ms, self._heartbeat_ms_min), HEARTBEAT_MS_MAX)

    # Streams.

    def stream(self, exchange: Exchange) -> None:
        check_accept(exchange)
        session = self._sessions.find(exchange.name)
        if session is None:
            raise NotFound("there is no such watch session, or it has ended: make a new one")
        has_ticket = self._check_key(exchange, session)
        self._app.open_streams.check(session.key)
        if not exchange.is_head:
            if has_ticket:
                session.ticket = None
            self._open(session, exchange.begin_stream(200, CONTENT_TYPE, STREAM_HEADERS), _last_event_id(exchange))
        else:
            exchange.begin_stream(200, CONTENT_TYPE, STREAM_HEADERS)

    def _check_key(self, exchange: Exchange, session: WatchSession) -> bool:
        """Refuses a caller without the key that made the session. Returns whether the caller sent the ticket."""
        if not self._app.has_keys:
            return False
        token = token_of(exchange, in_query=True)
        if token is not None and not has_bearer(exchange) and self._sessions.has_ticket(session, token):
            if session.key not in self._app.keys:
                raise self._app.unauthorized(exchange)
            return True
        if self._app.find_key(token) is not session.key:
            raise self._app.unauthorized(exchange)
        return False

    def _open(self, session: WatchSession, stream: Stream, last_event_id: dict[str, int] | None) -> None:
        if stream.is_over:
            return
        hub = self._app.hub
        assert hub is not None

        feed = SseFeed(hub, session, stream)
        leave = self._app.open_streams.add(session.key, feed.shut_down)
        feed.on_end = partial(self._stream_ended, session, feed, leave)
        self._sessions.open(session)
        if session.prefixes:
            self._add_new_topics(session)
            self._growing[feed] = session
        feed.start(last_event_id)

    def _stream_ended(self, session: WatchSession, feed: SseFeed, leave: Callable[[], None]) -> None:
        self._growing.pop(feed, None)
        self._sessions.close(session)
        leave()

    # Topics that are created later.

    def _add_new_topics(self, session: WatchSession) -> None:
        """Adds matching topics that were created since the last stream, from their first record on."""
        engine = self._app.open_engine().engine
        if not self._hears_of_new_topics:
            self._hears_of_new_topics = True
            engine.on_topic_created(self._offer)
        for prefix in session.prefixes:
            for name in engine.names_after(prefix, None, self._topics_max + 1):
                self._maybe_add(session, engine.topics[name])

    def _maybe_add(self, session: WatchSession, topic: Topic) -> bool:
        """Adds the topic unless the session is full. Returns whether the session has the topic."""
        if topic.name not in session.topics and len(session.topics) < self._topics_max:
            session.topics[topic.name] = Watched(topic.id, 0)
        return topic.name in session.topics

    def _offer(self, topic: Topic) -> None:
        for feed, session in list(self._growing.items()):
            if session.wants(topic.name) and self._maybe_add(session, topic):
                feed.add(topic.name)


def check_accept(exchange: Exchange) -> None:
    accept = exchange.headers.get(b"accept")
    if accept and b"text/event-stream" not in accept and b"*/*" not in accept:
        raise NotAcceptable("a stream is text/event-stream: name that type in Accept, or leave Accept out")


def _last_event_id(exchange: Exchange) -> dict[str, int] | None:
    given = exchange.headers.get(b"last-event-id")
    return None if given is None else decode_cursor(given)
