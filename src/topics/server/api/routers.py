"""Endpoints of routers: create or change, show, list, delete."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

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
from topics.server.hidden_names import check_topics
from topics.server.http.exchange import Exchange
from topics.server.http.query import Query
from topics.server.http.routes import Body, Endpoint
from topics.server.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX

# Names that a list takes from the engine at once: it may leave some of them out.
_NAMES_AT_ONCE: Final = 1000


class RoutersApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        add = app.routes.add
        add("PUT", "/v0/routers/{router}", Endpoint("put_router", self.put, ADMIN, Body.REQUIRED))
        add("GET", "/v0/routers/{router}", Endpoint("get_router", self.show, READ))
        add("DELETE", "/v0/routers/{router}", Endpoint("delete_router", self.delete, DELETE))
        add("GET", "/v0/routers", Endpoint("list_routers", self.list_page, READ))

    @property
    def _engine(self) -> Engine:
        return self._app.open_engine().engine

    def put(self, exchange: Exchange) -> None:
        spec = _spec(ROUTER_DECODER.decode(exchange.body))
        check_router_name(exchange.name)
        check_endpoints(spec)
        assert exchange.key is not None
        check_topics(exchange.key, (spec.source, spec.dest))
        warnings = router_warnings(member_names(exchange.body))
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

    def show(self, exchange: Exchange) -> None:
        router = self._engine.router(exchange.name)
        _check_visible(exchange, router)
        when_up_to_date(self._app, exchange, router.dest.name, partial(self._show, exchange))

    def _show(self, exchange: Exchange) -> None:
        router = self._engine.router(exchange.name)
        exchange.answer(
            response_body.Router(
                **_members(router.name, router.spec),
                forwarded_total=router.forwarded_total,
                retry=self._retry(router),
                performance=exchange.performance(),
            )
        )

    def list_page(self, exchange: Exchange) -> None:
        query = Query(exchange.query)
        page_size = min(max(query.count("page_size", PAGE_SIZE_DEFAULT), 1), PAGE_SIZE_MAX)
        page: list[Router] = []
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
                forwarded_total=router.forwarded_total,
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

    def _visible(self, exchange: Exchange, query: Query) -> Iterator[Router]:
        """The routers after the cursor that match the query and that the caller may see, names ascending."""
        engine, key = self._engine, exchange.key
        assert key is not None
        prefix, after = query.text("prefix") or "", after_of(query.text("cursor"))
        source, dest = query.text("source"), query.text("dest")
        while names := engine.routing.names_after(prefix, after, _NAMES_AT_ONCE):
            for name in names:
                router = engine.routers[name]
                spec = router.spec
                is_wanted = source in (None, spec.source) and dest in (None, spec.dest)
                if is_wanted and may_see(key, router):
                    yield router
            after = names[-1]

    def _retry(self, router: Router) -> response_body.RouterRetry | UnsetType:
        if not router.failure_count:
            return UNSET
        retry_in_ms = max(router.retry_at_ms - self._engine.core.clock.monotonic_ms(), 0)
        return response_body.RouterRetry(failures=router.failure_count, retry_in_ms=retry_in_ms)

    def delete(self, exchange: Exchange) -> None:
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


def may_see(key: Key, router: Router) -> bool:
    """Whether the key is for the router's name and for both of its topics."""
    return all(map(key.may_name, (router.name, router.spec.source, router.spec.dest)))


def _check_visible(exchange: Exchange, router: Router) -> None:
    assert exchange.key is not None
    if not may_see(exchange.key, router):
        # The caller named the router only: the message leaves out the names of its topics.
        raise Forbidden("the key is not for both topics of this router")


def _members(name: str, spec: RouterSpec) -> dict[str, Any]:
    """The members of `response_body.RouterMembers`."""
    tag_filter = spec.filter
    form = None
    if tag_filter is not None:
        form = ["tag", "Glob", f"{tag_filter.text}*"] if tag_filter.is_prefix else ["tag", "Eq", tag_filter.text]
    return {
        "router": name,
        "source": spec.source,
        "dest": spec.dest,
        "preserve_node": spec.preserve_node,
        "preserve_tag": spec.preserve_tag,
        "filter": form,
        "allow_cycle": spec.allow_cycle,
        "guarantee": spec.guarantee,
    }
