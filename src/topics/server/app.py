"""The application: one request at a time through the checks of the contract, in their order, to its endpoint.

Loop thread only. Whatever goes wrong ends here as one error envelope; what is nobody's mistake is logged with its
traceback and answered `500 internal`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from topics.clock import Clock
from topics.engine.starting.opened import OpenEngine
from topics.errors import (
    Closed,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    PayloadTooLarge,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)
from topics.server.auth import FULL_ACCESS, Key, KeyRing, bearer_token
from topics.server.http.coding import accepts_gzip, deflate, inflate
from topics.server.http.exchange import Exchange, Response, error_response
from topics.server.http.peers import FailureBackoff, HostGuard
from topics.server.http.query import Query
from topics.server.http.routes import Access, Body, Endpoint, Match, RouteTable, allowed_methods
from topics.server.limits import GZIP_BYTES_MIN, GZIP_ON_LOOP_BYTES_MAX, INFLATE_ON_LOOP_BYTES_MAX
from topics.server.live.delivery import Hub
from topics.server.live.open_streams import OpenStreams
from topics.server.metrics import Counters
from topics.server.pressure import Governor
from topics.server.settings_schema import ServerSettings

logger = logging.getLogger(__name__)

_GZIP_HEADERS: Final = ((b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding"))


class Application:
    """Checks, endpoints and answers. `opened` is None until recovery is done."""

    def __init__(
        self,
        settings: ServerSettings,
        keys: KeyRing,
        hosts: HostGuard | None,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.pool = pool
        self.routes = RouteTable()
        self.clock = clock
        self.counters = Counters(clock)
        self.open_streams = OpenStreams(settings, self.counters)
        self.body_bytes_max = settings.max_body_bytes
        self.opened: OpenEngine | None = None
        # Delivers to those who subscribed, once there is something to deliver.
        self.hub: Hub | None = None
        self.replay_progress = 0.0
        self.is_draining = False
        self.governor = Governor()
        self._keys = keys
        self._hosts = hosts
        self._failures = FailureBackoff()
        # Requests that wait for something, and how to answer them early when the server stops.
        self.waiting: dict[Exchange, Callable[[], None]] = {}

    # Checks.

    def handle(self, exchange: Exchange) -> None:
        """Leads to exactly one answer, now or later, unless the client goes away first."""
        try:
            endpoint = self._admit(exchange)
            if self.is_draining and not endpoint.before_ready:
                raise Closed
            if self.opened is None and not endpoint.before_ready:
                raise NotReady(self.replay_progress)
            if endpoint.body is not Body.IGNORED and not self._has_plain_body(exchange, endpoint):
                return
            endpoint.handler(exchange)
        except TopicsError as error:
            self.refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the outer edge of a request.
            self.fail_internally(exchange)

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        if exchange.delay_s:
            self.loop.call_later(exchange.delay_s, self._answer, exchange, error)
        else:
            self.finish(exchange, error_response(error))

    def refusal(self, exchange: Exchange) -> TopicsError | None:
        try:
            endpoint = self._admit(exchange)
            exchange.ignores_body = endpoint.body is Body.IGNORED
        except TopicsError as error:
            return error
        finally:
            self._release(exchange)
        return None

    def _admit(self, exchange: Exchange) -> Endpoint:
        """Steps 1 to 3 of the order of checks: who, what, where."""
        # No browser leaves it out, but old probes do.
        host = exchange.headers.get(b"host")
        if self._hosts is not None and host is not None and not self._hosts.allows(host):
            raise Forbidden("this Host is not served without keys: ask for localhost, or set TOPICS_API_KEYS")
        match = self.routes.match(exchange.path)
        endpoint = match.endpoints.get(exchange.method)
        if self._keys.enabled:
            self._authorize(exchange, endpoint, match)
        else:
            exchange.key = FULL_ACCESS
        if endpoint is None:
            if not match.endpoints:
                raise NotFound("there is nothing at this path")
            raise MethodNotAllowed(
                "this path has no such method, see the Allow header", allowed_methods(match.endpoints)
            )
        exchange.route = endpoint.name
        if match.has_name:
            if match.name is None:
                raise InvalidRequest("the name in the path is not UTF-8")
            exchange.name = match.name
        if match.has_inner_name:
            if match.inner_name is None:
                raise InvalidRequest("the name in the path is not UTF-8")
            exchange.inner_name = match.inner_name
        return endpoint

    def _authorize(self, exchange: Exchange, endpoint: Endpoint | None, match: Match) -> None:
        if endpoint is not None and (
            endpoint.access in (Access.OPEN, Access.OWN)
            or (endpoint.access is Access.PROBE and not self.settings.probe_auth)
        ):
            exchange.key = FULL_ACCESS
            return
        token = token_of(exchange, in_query=endpoint is not None and endpoint.takes_query_token)
        key = self.find_key(token)
        if key is None:
            raise self.unauthorized(exchange)
        if self.settings.max_inflight_per_key and key.in_flight >= self.settings.max_inflight_per_key:
            raise Throttled("this key has too many requests under way")
        key.in_flight += 1
        exchange.key = key
        if not key.allows(match.fallback_scopes if endpoint is None else endpoint.scopes):
            raise Forbidden("the key lacks the scope for this")
        if match.is_guarded and key.prefixes and (match.name is None or not key.may_name(match.name)):
            raise Forbidden("the key is not for this name")

    @property
    def has_keys(self) -> bool:
        """Whether callers must show a key."""
        return self._keys.enabled

    def find_key(self, token: bytes | None) -> Key | None:
        return None if token is None else self._keys.find(token)

    def unauthorized(self, exchange: Exchange) -> Unauthorized:
        """What to raise; it takes effect after a while if it is not the first from there."""
        self.counters.auth_failures += 1
        delay_ms = self._failures.note_failure(exchange.connection.peer_host, int(self.loop.time() * 1000))
        exchange.delay_s = delay_ms / 1000
        return Unauthorized("a valid key is needed: Authorization: Bearer <key>")

    def _has_plain_body(self, exchange: Exchange, endpoint: Endpoint) -> bool:
        """Steps 4 and 5: size, coding, type. False when the body is being inflated elsewhere."""
        headers, body = exchange.headers, exchange.body
        if not body and endpoint.body is not Body.REQUIRED:
            return True
        coding = headers.get(b"content-encoding")
        if coding is not None and coding.strip().lower() not in (b"identity", b""):
            if coding.strip().lower() != b"gzip":
                raise UnsupportedMediaType("a body is sent plain, or with Content-Encoding: gzip")
            if body:
                self._inflate(exchange, endpoint)
                return False
        _check_content_type(headers)
        return True

    def _inflate(self, exchange: Exchange, endpoint: Endpoint) -> None:
        if len(exchange.body) <= INFLATE_ON_LOOP_BYTES_MAX and self.body_bytes_max <= INFLATE_ON_LOOP_BYTES_MAX * 1024:
            self._handle_inflated(exchange, endpoint, _inflated(exchange.body, self.body_bytes_max))
            return
        future = self.loop.run_in_executor(self.pool, _inflated, exchange.body, self.body_bytes_max)
        future.add_done_callback(lambda done: self._handle_inflated(exchange, endpoint, done.result()))

    def _handle_inflated(self, exchange: Exchange, endpoint: Endpoint, result: bytes | TopicsError) -> None:
        def go_on() -> None:
            if isinstance(result, PayloadTooLarge):
                raise result
            _check_content_type(exchange.headers)
            if isinstance(result, TopicsError):
                raise result
            exchange.body = result
            endpoint.handler(exchange)

        self.guarded(exchange, go_on)

    def guarded(self, exchange: Exchange, work: Callable[[], None]) -> None:
        """Does more for a request, in a later turn. Whatever goes wrong becomes its answer."""
        if exchange.answered:
            return
        try:
            work()
        except TopicsError as error:
            self.finish(exchange, error_response(error))
        except Exception:  # noqa: BLE001 - the outer edge of a request.
            self.fail_internally(exchange)

    def run_in_pool(self, exchange: Exchange, work: Callable[[], None], then: Callable[[], None]) -> None:
        """`work` on a thread of the pool, because it may wait for a disk or a network; `then` on the loop."""

        def finished(done: asyncio.Future[None]) -> None:
            def check_and_go_on() -> None:
                done.result()
                then()

            self.guarded(exchange, check_and_go_on)

        self.loop.run_in_executor(self.pool, work).add_done_callback(finished)

    def hurry(self, exchange: Exchange) -> None:
        answer = self.waiting.get(exchange)
        if answer is not None:
            answer()

    def end_waiting(self) -> None:
        """The server stops: whoever waits gets what there is, and streams are told."""
        self.is_draining = True
        self.open_streams.close_all()
        for answer in list(self.waiting.values()):
            answer()

    # Answers.

    def fail_internally(self, exchange: Exchange) -> None:
        logger.exception("a request failed", extra={"fields": {"route": exchange.route}})  # noqa: LOG004 - called by handlers.
        if not exchange.answered:
            self.finish(exchange, error_response(TopicsError("something went wrong in the server; see its log")))

    def _answer(self, exchange: Exchange, error: TopicsError) -> None:
        if not exchange.answered:
            self.finish(exchange, error_response(error))

    def finish(self, exchange: Exchange, response: Response) -> None:
        body = response.body
        if len(body) >= GZIP_BYTES_MIN and response.status < 300:
            accepted = exchange.headers.get(b"accept-encoding")
            if accepted is not None and accepts_gzip(accepted):
                if len(body) > GZIP_ON_LOOP_BYTES_MAX:
                    future = self.loop.run_in_executor(self.pool, deflate, body)
                    future.add_done_callback(lambda done: self._send(exchange, _gzipped(response, done.result())))
                    return
                response = _gzipped(response, deflate(body))
        self._send(exchange, response)

    def _send(self, exchange: Exchange, response: Response) -> None:
        if exchange.answered:
            # The client went away while the answer was being made.
            return
        self.note_answer(exchange, response.status)
        exchange.connection.send(exchange, response)

    def note_answer(self, exchange: Exchange, status: int) -> None:
        exchange.answered = True
        self._release(exchange)
        self.counters.note_request(exchange.route, status, exchange.elapsed_ms() / 1000)

    def abandon(self, exchange: Exchange) -> None:
        """The client went away: nobody waits for this answer any more."""
        exchange.answered = True
        self._release(exchange)
        on_gone, exchange.on_gone = exchange.on_gone, None
        if on_gone is not None:
            on_gone()

    def _release(self, exchange: Exchange) -> None:
        key, exchange.key = exchange.key, None
        if key is not None and key is not FULL_ACCESS:
            key.in_flight -= 1

    def open_engine(self) -> OpenEngine:
        """For endpoints that answer only when ready."""
        assert self.opened is not None
        return self.opened


def has_bearer(exchange: Exchange) -> bool:
    return bearer_token(exchange.headers.get(b"authorization")) is not None


def token_of(exchange: Exchange, *, in_query: bool) -> bytes | None:
    """What the caller shows of itself. A query counts only where it may, and only without the header."""
    token = bearer_token(exchange.headers.get(b"authorization"))
    if token is None and in_query:
        given = Query(exchange.query).first("token")
        return None if given is None else given.strip().encode("utf-8", "surrogateescape")
    return token


def _inflated(body: bytes, bytes_max: int) -> bytes | TopicsError:
    try:
        return inflate(body, bytes_max)
    except TopicsError as error:
        return error


def _gzipped(response: Response, body: bytes) -> Response:
    return Response(response.status, body, response.content_type, response.headers + _GZIP_HEADERS)


def _check_content_type(headers: dict[bytes, bytes]) -> None:
    given = headers.get(b"content-type", b"")
    if given != b"application/json" and not given.lstrip(b" \t").startswith(b"application/json"):
        raise UnsupportedMediaType("a body is sent with Content-Type: application/json")
