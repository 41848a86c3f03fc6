"""Endpoints of topics: create or reconfigure, state, list, delete (http-api.md §11)."""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Any, Final

import msgspec

from topics.engine.config import TopicConfig, checked_config
from topics.engine.engine import Engine
from topics.engine.names import check_topic_name
from topics.engine.topic.topic import Topic
from topics.errors import InvalidRequest, TopicsError
from topics.protocol.request_body import CONFIG_DECODER, ConfigBody
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import ADMIN, DELETE, READ
from topics.server.http.exchange import Exchange, Response
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class TopicsApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("PUT", "/v0/topics/{topic}", Endpoint("put_topic", self.put, ADMIN, Body.OPTIONAL))
        add("GET", "/v0/topics/{topic}", Endpoint("get_topic", self.state, READ))
        add("DELETE", "/v0/topics/{topic}", Endpoint("delete_topic", self.delete, DELETE))
        add("GET", "/v0/topics", Endpoint("list_topics", self.list_page, READ))

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def put(self, exchange: Exchange) -> None:
        engine = self._engine
        body = CONFIG_DECODER.decode(exchange.body) if exchange.body else ConfigBody()
        check_topic_name(exchange.name)
        config = config_of(body)
        engine.put_topic(exchange.name, config, partial(self._put_done, exchange, config))

    def _put_done(self, exchange: Exchange, config: TopicConfig, result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        members = {"topic": exchange.name, "created": result, "config": config_members(config)}
        reply(exchange, 201 if result else 200, members)

    def state(self, exchange: Exchange) -> None:
        when_up_to_date(self._app, exchange, exchange.name, partial(self._state, exchange))

    def _state(self, exchange: Exchange) -> None:
        engine = self._engine
        topic = engine.topic(exchange.name)
        topic.refresh(engine.now_ms())
        if Query(exchange.query).flag("touch", default=True):
            engine.touch(topic)
        reply(exchange, 200, _state_members(engine, topic))

    def list_page(self, exchange: Exchange) -> None:
        engine = self._engine
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        touch = query.flag("touch", default=False)
        after = list_cursor(query.text("cursor"))
        names, has_more = self._names(exchange, query.text("prefix") or "", after, page_size)
        entries: list[dict[str, Any]] = []
        now_ms = engine.now_ms()
        for name in names:
            topic = engine.topic(name)
            topic.refresh(now_ms)
            if touch:
                engine.touch(topic)
            entries.append(
                {
                    "topic": name,
                    "head_seq": topic.head_seq,
                    "earliest_seq": topic.earliest_seq,
                    "count": topic.count,
                    "bytes": topic.size_bytes,
                    "durable": topic.config.durable,
                    "effective_priority": engine.effective_priority(topic),
                }
            )
        members: dict[str, Any] = {"topics": entries}
        if has_more:
            members["next_cursor"] = base64.b64encode(_encode({"after": names[-1]})).decode()
        reply(exchange, 200, members)

    def _names(self, exchange: Exchange, prefix: str, after: str | None, count: int) -> tuple[list[str], bool]:
        """A page of names that the caller may see, and whether more follow."""
        engine, key = self._engine, exchange.key
        assert key is not None
        if not key.prefixes:
            names = engine.names_after(prefix, after, count + 1)
            return names[:count], len(names) > count
        seen: list[str] = []
        for part in sorted(_narrowed(prefix, key.prefixes)):
            seen += engine.names_after(part, after, count + 1 - len(seen))
            if len(seen) > count:
                break
        return seen[:count], len(seen) > count

    def delete(self, exchange: Exchange) -> None:
        if_empty = Query(exchange.query).flag("if_empty", default=False)
        routers: list[str] = []
        self._engine.delete_topic(
            exchange.name, if_empty=if_empty, done=partial(self._delete_done, exchange, routers), removed=routers
        )

    def _delete_done(self, exchange: Exchange, routers: list[str], result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        reply(exchange, 200, {"topic": exchange.name, "deleted": result, "routers_removed": routers})


def config_of(body: ConfigBody) -> TopicConfig:
    """The config that a well-typed body asks for."""
    return checked_config(msgspec.structs.asdict(body))


def config_members(config: TopicConfig) -> dict[str, Any]:
    """All members, as responses show them."""
    members = msgspec.structs.asdict(config)
    members["durable"] = config.durable
    return members


def _state_members(engine: Engine, topic: Topic) -> dict[str, Any]:
    members: dict[str, Any] = {
        "topic": topic.name,
        "type": topic.config.type,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "next_seq": topic.head_seq + 1,
        "count": topic.count,
        "bytes": topic.size_bytes,
        "config": config_members(topic.config),
        "effective_priority": engine.effective_priority(topic),
        "last_write_ts": topic.writes.last_write_ts,
        "last_read_ts": topic.last_read_ts,
    }
    if topic.config.type == "queue":
        members["queue"] = engine.queues.counters(topic.name)._asdict()
    return members


def reply(exchange: Exchange, status: int, members: dict[str, Any]) -> None:
    members["performance"] = {"server_total_ms": round(exchange.elapsed_ms(), 3)}
    exchange.reply(Response(status, _encode(members)))


def list_cursor(cursor: str | None) -> str | None:
    """The name a list cursor stands behind."""
    if not cursor:
        return None
    try:
        members = _decode(base64.b64decode(cursor, validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest("the cursor is not one of ours") from error
    after = members.get("after") if isinstance(members, dict) else None
    return after if isinstance(after, str) else None


def _narrowed(prefix: str, allowed: tuple[str, ...]) -> set[str]:
    """Prefixes of what both ask for, none of them inside another."""
    parts = {max(prefix, part, key=len) for part in allowed if part.startswith(prefix) or prefix.startswith(part)}
    return {part for part in parts if not any(part != other and part.startswith(other) for other in parts)}
