"""Endpoints of routers: create or change, show, list, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from heapq import merge
from typing import Any, Final, TypeVar

from msgspec import UNSET, UnsetType

from topics.engine.engine import Engine
from topics.engine.routers.definition import check_endpoints, check_router_name
from topics.engine.topic.router import Router, RouterSpec
from topics.errors import Forbidden, TopicsError
from topics.protocol import response_body
from topics.protocol.body_decoder import ROUTER_DECODER, member_names
from topics.protocol.config_warnings import router_warnings
from topics.protocol.request_body import RouterBody
from topics.protocol.tag_match import TagMatch
from topics.server.api.list_cursor import after_of, cursor_after
from topics.server.api.up_to_date import when_up_to_date
from topics.server.app import Application
from topics.server.auth import ADMIN, DELETE, READ, Key
from topics.server.bridges.bridge_set import BridgeSet, BridgeView
from topics.server.bridges.definition import BridgeSpec, is_bridge, spec_of
from topics.server.hidden_names import check_topics
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

# Names that a list takes from the engine at once: it may leave some of them out.
_NAMES_AT_ONCE: Final = 1000


T = TypeVar("T")


class RoutersApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        # Changes of bridges that are under way.
        self._changes: set[asyncio.Task[Any]] = set()
        add = app.routes.add
        add("PUT", "/v0/routers/{router}", Endpoint("put_router", self.put, ADMIN, Body.REQUIRED))
        add("GET", "/v0/routers/{router}", Endpoint("get_router", self.show, READ))
        add("DELETE", "/v0/routers/{router}", Endpoint("delete_router", self.delete, DELETE))
        add("GET", "/v0/routers", Endpoint("list_routers", self.list_page, READ))

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    @property
    def _bridges(self) -> BridgeSet:
        assert self._app.bridges is not None, "it is there once the engine is"
        return self._app.bridges

    def put(self, exchange: Exchange) -> None:
        body = ROUTER_DECODER.decode(exchange.body)
        check_router_name(exchange.name)
        assert exchange.key is not None
        warnings = router_warnings(member_names(exchange.body))
        if is_bridge(body):
            bridge = spec_of(body)
            check_topics(exchange.key, bridge.names)
            putting = self._bridges.put(exchange.name, bridge, create_dest=body.create_dest)
            self._answer_later(exchange, putting, partial(self._bridge_put, exchange, bridge, warnings))
            return
        spec = _spec(body)
        check_endpoints(spec)
        check_topics(exchange.key, (spec.source, spec.dest))
        self._bridges.check_name(exchange.name, spec.source, spec.dest)
        self._bridges.check_cycle(exchange.name, spec.source, spec.dest)
        self._engine.put_router(exchange.name, spec, partial(self._put_done, exchange, spec, warnings))

    def _put_done(self, exchange: Exchange, spec: RouterSpec, warnings: list[str], result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        body = response_body.PutRouter(
            **_members(exchange.name, spec),
            created=result,
            warnings=warnings or UNSET,
            performance=exchange.performance(),
        )
        exchange.answer(body, 201 if result else 200)

    def _answer_later(self, exchange: Exchange, work: Coroutine[Any, Any, T], then: Callable[[T], None]) -> None:
        """Waits for a change of a bridge in a task, because it may wait for files."""
        task = self._app.loop.create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        task.add_done_callback(lambda done: self._app.guarded(exchange, lambda: then(done.result())))

    def _bridge_put(self, exchange: Exchange, spec: BridgeSpec, warnings: list[str], created: bool) -> None:  # noqa: FBT001 - the answer.
        body = response_body.PutRouter(
            **_bridge_members(exchange.name, spec),
            created=created,
            warnings=warnings or UNSET,
            performance=exchange.performance(),
        )
        exchange.answer(body, 201 if created else 200)

    def show(self, exchange: Exchange) -> None:
        bridge = self._bridges.find(exchange.name)
        if bridge is not None:
            _check_visible(exchange, bridge)
            self._show_bridge(exchange, bridge)
            return
        router = self._engine.router(exchange.name)
        _check_visible(exchange, router)
        when_up_to_date(self._app, exchange, router.dest.name, partial(self._show, exchange))

    def _show(self, exchange: Exchange) -> None:
        router = self._engine.router(exchange.name)
        exchange.answer(
            response_body.Router(
                **_members(router.name, router.spec),
                forwarded_total=router.forwarded_total,
                lag=router.lag,
                retry=self._retry(router),
                performance=exchange.performance(),
            )
        )

    def _show_bridge(self, exchange: Exchange, bridge: BridgeView) -> None:
        retry: response_body.RouterRetry | UnsetType = UNSET
        if bridge.failure_count:
            retry = response_body.RouterRetry(failures=bridge.failure_count, retry_in_ms=bridge.retry_in_ms)
        exchange.answer(
            response_body.Router(
                **_bridge_members(bridge.name, bridge.spec),
                forwarded_total=bridge.copied_total,
                lag=bridge.lag,
                lost_total=bridge.lost_total,
                retry=retry,
                performance=exchange.performance(),
            )
        )

    def list_page(self, exchange: Exchange) -> None:
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        page: list[Router | BridgeView] = []
        has_more = False
        for router in self._visible(exchange, query):
            if len(page) == page_size:
                has_more = True
                break
            page.append(router)
        entries = [
            response_body.RouterEntry(
                router=router.name,
                source=router.spec.source,
                dest=router.spec.dest,
                guarantee=router.spec.guarantee,
                forwarded_total=router.copied_total if isinstance(router, BridgeView) else router.forwarded_total,
                lag=router.lag,
            )
            for router in page
        ]
        exchange.answer(
            response_body.RouterList(
                routers=entries,
                next_cursor=cursor_after(page[-1].name) if has_more else UNSET,
                performance=exchange.performance(),
            )
        )

    def _visible(self, exchange: Exchange, query: Query) -> Iterator[Router | BridgeView]:
        """The routers after the cursor that match the query and that the caller may see, names ascending."""
        key = exchange.key
        assert key is not None
        prefix, after = query.text("prefix") or "", after_of(query.text("cursor"))
        source, dest = query.text("source"), query.text("dest")
        for router in merge(self._routers(prefix, after), self._bridges_after(prefix, after), key=_name):
            spec = router.spec
            is_wanted = source in (None, spec.source) and dest in (None, spec.dest)
            if is_wanted and may_see(key, router):
                yield router

    def _routers(self, prefix: str, after: str | None) -> Iterator[Router | BridgeView]:
        engine = self._engine
        while names := engine.routing.names_after(prefix, after, _NAMES_AT_ONCE):
            for name in names:
                yield engine.routers[name]
            after = names[-1]

    def _bridges_after(self, prefix: str, after: str | None) -> Iterator[Router | BridgeView]:
        for name in self._bridges.names():
            if name.startswith(prefix) and (after is None or name > after):
                view = self._bridges.find(name)
                assert view is not None
                yield view

    def _retry(self, router: Router) -> response_body.RouterRetry | UnsetType:
        if not router.failure_count:
            return UNSET
        retry_in_ms = max(router.retry_at_ms - self._engine.core.clock.monotonic_ms(), 0)
        return response_body.RouterRetry(failures=router.failure_count, retry_in_ms=retry_in_ms)

    def delete(self, exchange: Exchange) -> None:
        bridge = self._bridges.find(exchange.name)
        if bridge is not None:
            _check_visible(exchange, bridge)
            deleting = self._bridges.delete(exchange.name)
            self._answer_later(exchange, deleting, partial(self._delete_done, exchange))
            return
        router = self._engine.routers.get(exchange.name)
        if router is not None:
            _check_visible(exchange, router)
        self._engine.delete_router(exchange.name, partial(self._delete_done, exchange))

    def _delete_done(self, exchange: Exchange, result: Any) -> None:
        if isinstance(result, TopicsError):
            exchange.fail(result)
            return
        exchange.answer(
            response_body.RouterDeleted(router=exchange.name, deleted=result, performance=exchange.performance())
        )


def _spec(body: RouterBody) -> RouterSpec:
    return RouterSpec(
        source=body.source,
        dest=body.dest,
        preserve_node=body.preserve_node,
        preserve_tag=body.preserve_tag,
        filter=None if body.filter is None else TagMatch.parse(body.filter),
        allow_cycle=body.allow_cycle,
        guarantee=body.guarantee,
        create_dest=body.create_dest,
    )


def may_see(key: Key, router: Router | BridgeView) -> bool:
    """Whether the key is for the router's name and for both of its topics."""
    spec = router.spec
    ends = spec.names if isinstance(spec, BridgeSpec) else (spec.source, spec.dest)
    return all(map(key.may_name, (router.name, *ends)))


def _check_visible(exchange: Exchange, router: Router | BridgeView) -> None:
    assert exchange.key is not None
    if not may_see(exchange.key, router):
        # The caller named the router only: the message leaves out the names of its topics.
        raise Forbidden("the key is not for both topics of this router")


def _name(router: Router | BridgeView) -> str:
    return router.name


def _bridge_members(name: str, spec: BridgeSpec) -> dict[str, Any]:
    """The members of `response_body.RouterMembers`."""
    tag_filter = None if spec.tag is None else TagMatch(spec.tag, spec.tag_is_prefix)
    return {
        "router": name,
        "source": spec.source,
        "dest": spec.dest,
        "preserve_node": spec.preserve_node,
        "preserve_tag": spec.preserve_tag,
        "filter": _filter_form(tag_filter),
        "allow_cycle": False,
        "guarantee": spec.guarantee,
    }


def _filter_form(tag_filter: TagMatch | None) -> list[str] | None:
    if tag_filter is None:
        return None
    return ["tag", "Glob", f"{tag_filter.text}*"] if tag_filter.is_prefix else ["tag", "Eq", tag_filter.text]


def _members(name: str, spec: RouterSpec) -> dict[str, Any]:
    """The members of `response_body.RouterMembers`."""
    return {
        "router": name,
        "source": spec.source,
        "dest": spec.dest,
        "preserve_node": spec.preserve_node,
        "preserve_tag": spec.preserve_tag,
        "filter": _filter_form(spec.filter),
        "allow_cycle": spec.allow_cycle,
        "guarantee": spec.guarantee,
    }
