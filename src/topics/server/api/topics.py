"""Endpoints of topics: create or reconfigure, state, list, delete."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import UNSET

from topics.engine.config import TopicConfig, checked_config
from topics.engine.engine import Engine
from topics.engine.names import check_topic_name
from topics.engine.queues.jobs import QueueDepth
from topics.engine.topic.router import Router
from topics.engine.topic.topic import Topic
from topics.errors import TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import CONFIG_DECODER, member_names
from topics.protocol.config_warnings import config_warnings
from topics.protocol.request_body import ConfigBody
from topics.server.api.list_cursor import after_of, cursor_after
from topics.server.api.routers import may_see
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import ADMIN, DELETE, READ, Key
from topics.server.hidden_names import check_topics
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import LISTED_NAMES_MAX, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX


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
        warnings = config_warnings(body, member_names(exchange.body)) if exchange.body else []
        check_topic_name(exchange.name)
        config = config_of(body)
        assert exchange.key is not None
        check_dead_letter(exchange.key, body)
        engine.put_topic(exchange.name, config, partial(self._put_done, exchange, config, warnings))

    def _put_done(self, exchange: Exchange, config: TopicConfig, warnings: list[str], result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        body = response_body.PutTopic(
            topic=exchange.name,
            created=result,
            config=shown_config(config),
            warnings=warnings or UNSET,
            performance=exchange.performance(),
        )
        exchange.answer(body, 201 if result else 200)

    def state(self, exchange: Exchange) -> None:
        when_up_to_date(self._app, exchange, exchange.name, partial(self._state, exchange))

    def _state(self, exchange: Exchange) -> None:
        engine = self._engine
        topic = engine.topic(exchange.name)
        topic.refresh(engine.now_ms())
        if Query(exchange.query).flag("touch", default=True):
            engine.touch(topic)
        assert exchange.key is not None
        exchange.answer(_state_body(engine, topic, exchange.key, exchange.performance()))

    def list_page(self, exchange: Exchange) -> None:
        engine = self._engine
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        touch = query.flag("touch", default=False)
        after = after_of(query.text("cursor"))
        names, last_name = self._listed(exchange, query, after, page_size)
        key = exchange.key
        assert key is not None
        entries: list[response_body.TopicEntry] = []
        now_ms = engine.now_ms()
        for name in names:
            topic = engine.topic(name)
            topic.refresh(now_ms)
            if touch:
                engine.touch(topic)
            entries.append(
                response_body.TopicEntry(
                    topic=name,
                    head_seq=topic.head_seq,
                    earliest_seq=topic.earliest_seq,
                    count=topic.count,
                    bytes=topic.size_bytes,
                    durable=topic.config.durable,
                    durability=topic.config.durability,
                    effective_priority=engine.effective_priority(topic),
                    type=topic.config.type,
                    queue=queue_counts(engine, topic, key) if topic.config.type == "queue" else UNSET,
                    groups=_groups_summary(topic) if topic.groups else UNSET,
                )
            )
        exchange.answer(
            response_body.TopicList(
                topics=entries,
                next_cursor=UNSET if last_name is None else cursor_after(last_name),
                performance=exchange.performance(),
            )
        )

    def _listed(
        self, exchange: Exchange, query: Query, after: str | None, page_size: int
    ) -> tuple[list[str], str | None]:
        """A page of names that the query asks for, and the name after which the next page begins."""
        prefix, has_groups = query.text("prefix") or "", query.flag("has_groups", default=False)
        topic_type = query.text("type")
        if topic_type not in ("log", "queue"):
            topic_type = None
        if topic_type is None and not has_groups:
            names, has_more = self._names(exchange, prefix, after, page_size)
            return names, names[-1] if has_more else None
        found: list[str] = []
        names, has_more = self._names(exchange, prefix, after, LISTED_NAMES_MAX)
        for name in names:
            topic = self._engine.topic(name)
            if topic_type in (topic.config.type, None) and (topic.groups or not has_groups):
                found.append(name)
                if len(found) == page_size:
                    return found, name
        return found, names[-1] if has_more else None

    def _names(self, exchange: Exchange, prefix: str, after: str | None, count: int) -> tuple[list[str], bool]:
        """A page of names that the caller may see, and whether there are more."""
        engine, key = self._engine, exchange.key
        assert key is not None
        if not key.prefixes:
            names = engine.names_after(prefix, after, count + 1)
            return names[:count], len(names) > count
        seen: list[str] = []
        for narrowed in sorted(_narrowed(prefix, key.prefixes)):
            seen += engine.names_after(narrowed, after, count + 1 - len(seen))
            if len(seen) > count:
                break
        return seen[:count], len(seen) > count

    def delete(self, exchange: Exchange) -> None:
        if_empty = Query(exchange.query).flag("if_empty", default=False)
        routers: list[Router] = []
        self._engine.delete_topic(
            exchange.name, if_empty=if_empty, done=partial(self._delete_done, exchange, routers), removed=routers
        )

    def _delete_done(self, exchange: Exchange, routers: list[Router], result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        if exchange.answered:
            # The client went away before the answer was made.
            return
        key = exchange.key
        assert key is not None
        visible = sorted(router.name for router in routers if may_see(key, router))
        exchange.answer(
            response_body.TopicDeleted(
                topic=exchange.name,
                deleted=result,
                routers_removed=visible,
                names_hidden=len(routers) - len(visible) or UNSET,
                performance=exchange.performance(),
            )
        )


def check_dead_letter(key: Key, body: ConfigBody) -> None:
    """Refuses a config whose jobs would go to a topic that the key is not for."""
    if body.dead_letter is not None:
        check_topics(key, (body.dead_letter,))


def config_of(body: ConfigBody) -> TopicConfig:
    """The config that a decoded body asks for, checked."""
    return checked_config(msgspec.structs.asdict(body))


# Cached, because many topics share few configs.
@lru_cache(maxsize=256)
def shown_config(config: TopicConfig) -> response_body.ResolvedConfig:
    """The config as answers show it."""
    return response_body.ResolvedConfig(**msgspec.structs.asdict(config), durable=config.durable)


def queue_counts(engine: Engine, queue: Topic, key: Key) -> response_body.QueueCounts:
    depth = engine.queues.depth(queue)
    return response_body.QueueCounts(
        ready=depth.ready,
        in_flight=depth.in_flight,
        dead_lettered=depth.dead_lettered,
        delayed=depth.delayed,
        oldest_ready_age_ms=oldest_age_ms(engine, depth),
        dead=dead_count(engine, queue, key),
    )


def dead_count(engine: Engine, queue: Topic, key: Key) -> int | None:
    """Live records of the dead-letter topic, which may not exist yet. None if the key may not know it."""
    name = queue.config.dead_letter
    if name is None or not key.may_name(name):
        return None
    topic = engine.topics.get(name)
    return 0 if topic is None else topic.count


def oldest_age_ms(engine: Engine, depth: QueueDepth) -> int | None:
    return None if depth.oldest_ready_ts is None else max(engine.now_ms() - depth.oldest_ready_ts, 0)


def _groups_summary(topic: Topic) -> response_body.GroupsSummary:
    last_seq = min(group.seq for group in topic.groups.values())
    return response_body.GroupsSummary(count=len(topic.groups), lag_max=topic.head_seq - last_seq)


def _state_body(
    engine: Engine, topic: Topic, key: Key, performance: response_body.Performance
) -> response_body.TopicState:
    queue: response_body.QueueCounts | msgspec.UnsetType = UNSET
    names_hidden: int | msgspec.UnsetType = UNSET
    if topic.config.type == "queue":
        queue = queue_counts(engine, topic, key)
    config = topic.config
    if config.dead_letter is not None and not key.may_name(config.dead_letter):
        config, names_hidden = msgspec.structs.replace(config, dead_letter=None), 1
    return response_body.TopicState(
        topic=topic.name,
        type=topic.config.type,
        head_seq=topic.head_seq,
        earliest_seq=topic.earliest_seq,
        next_seq=topic.head_seq + 1,
        count=topic.count,
        bytes=topic.size_bytes,
        epoch=topic.epoch,
        evict_floor=topic.live.evict_floor,
        lost_ranges=topic.live.lost.pairs(),
        config=shown_config(config),
        names_hidden=names_hidden,
        effective_priority=engine.effective_priority(topic),
        last_write_ts=topic.writes.last_write_ts,
        last_read_ts=topic.last_read_ts,
        queue=queue,
        performance=performance,
    )


def _narrowed(prefix: str, allowed: tuple[str, ...]) -> set[str]:
    """Prefixes of the names that match both `prefix` and one of `allowed`. None of them begins with another."""
    both = {max(prefix, other, key=len) for other in allowed if other.startswith(prefix) or prefix.startswith(other)}
    return {
        narrowed for narrowed in both if not any(narrowed != other and narrowed.startswith(other) for other in both)
    }
