"""The application: leads each request through the checks of the contract, in their order, to its endpoint.

Loop thread only. Every failure ends here as one error envelope. A failure that is a bug is logged with its traceback
and answered with `500 internal`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

from topics.clock import Clock
from topics.engine.starting.opened import OpenEngine
from topics.engine.topic.fetch import FETCHES_MAX, Fetch
from topics.errors import (
    Closed,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFetched,
    NotFound,
    NotReady,
    PayloadTooLarge,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)
from topics.server.auth import FULL_ACCESS, Key, KeyRing, bearer_token
from topics.server.bridges.bridge_set import BridgeSet
from topics.server.disk_gauge import DiskGauge
from topics.server.hidden_names import error_told
from topics.server.hidden_paths import PathHider
from topics.server.http.coding import accepts_gzip, deflate, inflate
from topics.server.http.exchange import JSON, Exchange, Response, error_response
from topics.server.http.guesses import what_was_meant
from topics.server.http.peers import FailureBackoff, HostGuard
from topics.server.http.query import Query
from topics.server.http.routes import Access, Admitted, Body, Endpoint, Match, RouteTable, allowed_methods
from topics.server.limits import (
    GZIP_BYTES_MIN,
    GZIP_ON_LOOP_BYTES_MAX,
    INFLATE_ON_LOOP_BYTES_MAX,
    LARGE_PAGES_MAX,
    SMALL_BODY_BYTES_MAX,
)
from topics.server.live.delivery import Hub
from topics.server.live.open_streams import OpenStreams
from topics.server.logs import RateLimited
from topics.server.metrics import Counters
from topics.server.origins import PREFLIGHT_HEADERS, Headers, OriginGuard, is_navigation
from topics.server.pressure import Governor, PressureMeter
from topics.server.settings_schema import ServerSettings
from topics.server.steps import StepRunner, Steps, while_wanted
from topics.server.streams.host import StreamsHost
from topics.server.waiting_lines import WaitingLines

logger = logging.getLogger(__name__)

FetchNeeded = Callable[[], Fetch | None]
"""Tells what a read must wait for: see `Engine.fetch_needed`."""

T = TypeVar("T")

_GZIP_HEADERS: Final = ((b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding"))


def _answer_preflight(exchange: Exchange) -> None:
    """Tells a browser what a page of a listed origin may send. It asks before every request that is not simple."""
    exchange.reply(Response(200, b"{}", JSON, PREFLIGHT_HEADERS))


_PREFLIGHT: Final = Endpoint("preflight", _answer_preflight, before_ready=True)


class Application:
    """Checks, endpoints and answers. `opened` is None until recovery is done."""

    def __init__(
        self,
        settings: ServerSettings,
        keys: KeyRing,
        hosts: HostGuard | None,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        files: Executor,
        clock: Clock,
        streams: StreamsHost,
    ) -> None:
        self.settings = settings
        # Where each setting comes from, by name: see `LoadedSettings`. A setting that is absent has its default.
        self.origins_of_settings: Mapping[str, str] = {}
        # The partitioned engine: its `system` is None until recovery is done, and in a server without streams.
        self.streams = streams
        self.loop = loop
        # Threads for large bodies, and threads that may wait for a disk.
        self.pool = pool
        self.files = files
        self.routes = RouteTable()
        self.clock = clock
        self.counters = Counters(clock)
        self.open_streams = OpenStreams(self.counters)
        self.body_bytes_max = settings.max_body_bytes
        self.steps = StepRunner(loop)
        # Requests whose large pages are being made.
        self.large_pages: set[Exchange] = set()
        self.opened: OpenEngine | None = None
        # Routers to and from streams. None until recovery is done.
        self.bridges: BridgeSet | None = None
        # Delivers records to open streams. None until recovery is done.
        self.hub: Hub | None = None
        self.replay_progress = 0.0
        self.is_draining = False
        self.disk = DiskGauge(loop, files, clock)
        self.governor = Governor()
        # Measures the load for the governor. None until recovery is done.
        self.meter: PressureMeter | None = None
        # Writes that wait for room in a commit queue.
        self.waiting_lines = WaitingLines(loop)
        self._keys = keys
        self._hosts = hosts
        self._origins = OriginGuard(settings.cors_origins)
        self._failures = FailureBackoff()
        self._paths = PathHider(settings.data_dir, settings.cold_dir, streams.directory)
        # Any client can cause these errors again and again.
        self._troubles = RateLimited(logger, clock)
        # Waiting requests, and the call that answers each of them early when the server stops.
        self.waiting: dict[Exchange, Callable[[], None]] = {}
        # Told when the settings change.
        self._followers: list[Callable[[ServerSettings], None]] = []
        self.follow_settings(self.open_streams.limit)

    # Settings.

    def follow_settings(self, take: Callable[[ServerSettings], None]) -> None:
        """Calls `take` with the settings, now and whenever they change."""
        self._followers.append(take)
        take(self.settings)

    def use_settings(self, settings: ServerSettings, keys: KeyRing, hosts: HostGuard | None) -> int:
        """Goes on with other settings. A caller whose key is gone, or has other rights, gets no more: its streams end,
        and its waiting requests are answered with the records that were there before. Returns the number of
        ended streams.
        """
        gone = self._keys.all_keys() - keys.all_keys()
        self.settings, self._keys, self._hosts = settings, keys, hosts
        self._origins = OriginGuard(settings.cors_origins)
        self.body_bytes_max = settings.max_body_bytes
        for take in self._followers:
            take(settings)
        for exchange, answer in list(self.waiting.items()):
            if exchange.key in gone:
                answer()
        return self.open_streams.close_of(gone)

    def renewed_keys(self, text: str) -> KeyRing:
        """The keys of another text, for `use_settings`. Raises `SettingsError`."""
        return self._keys.renewed(text)

    @property
    def keys(self) -> set[Key]:
        """Every key that a caller may have. A server without keys has one: `FULL_ACCESS`."""
        return self._keys.all_keys()

    # Checks.

    def handle(self, exchange: Exchange) -> None:
        """Gives exactly one answer, now or later, unless the client goes away first."""
        self.note_activity()
        try:
            known_head = exchange.known_head
            admitted = None if known_head is None else known_head.admitted
            if admitted is not None and admitted.settings is self.settings and admitted.has_plain_json:
                # The same head passed the checks before, without a key.
                exchange.key = FULL_ACCESS
                exchange.route = admitted.route
                exchange.name = admitted.name
                exchange.inner_names = admitted.inner_names
                self._check_ready(before_ready=admitted.before_ready)
                admitted.handler(exchange)
                return
            endpoint = self._admit(exchange)
            if known_head is not None and not self._keys.enabled:
                known_head.admitted = self._admitted(exchange, endpoint)
            self._check_ready(before_ready=endpoint.before_ready)
            if endpoint.body is not Body.IGNORED and self._maybe_inflate(exchange, endpoint):
                return
            endpoint.handler(exchange)
        except TopicsError as error:
            self.refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the outer edge of a request.
            self.fail_internally(exchange)

    def _check_ready(self, *, before_ready: bool) -> None:
        if before_ready:
            return
        if self.is_draining:
            raise Closed
        if self.opened is None:
            raise NotReady(self.replay_progress)

    def _admitted(self, exchange: Exchange, endpoint: Endpoint) -> Admitted:
        headers = exchange.headers
        has_plain_json = endpoint.body is Body.IGNORED or (b"content-encoding" not in headers and _is_json(headers))
        return Admitted(self.settings, endpoint, exchange.name, exchange.inner_names, has_plain_json=has_plain_json)

    def note_activity(self) -> None:
        """A request or a message has come: the load is measured from now on."""
        meter = self.meter
        if meter is not None and not meter.has_requests:
            meter.note_request()

    def refuse(self, exchange: Exchange, error: TopicsError) -> None:
        if exchange.delay_s:
            self.loop.call_later(exchange.delay_s, self._answer, exchange, error)
        else:
            self._answer(exchange, error)

    def told(self, error: TopicsError, key: Key | None) -> TopicsError:
        """The error as the caller with this key may read it: without paths of this machine, and without other names."""
        if error.status >= 500 and not isinstance(error, (NotReady, Closed)):
            # Compiled code knows no `raise … from`: there the cause is the context.
            cause = error.__cause__ or error.__context__
            reason = error.message if cause is None else f"{error.message}: {cause}"
            fields = {"code": error.code, "reason": reason}
            self._troubles.warning(error.code, "a request failed because of the server", fields)
        return error_told(self._paths.error_told(error), key)

    def refusal(self, exchange: Exchange) -> TopicsError | None:
        try:
            endpoint = self._admit(exchange)
            exchange.ignores_body = endpoint.body is Body.IGNORED
            exchange.body_bytes_max = self._body_bytes_max(endpoint)
        except TopicsError as error:
            return error
        finally:
            self._release(exchange)
        return None

    def _body_bytes_max(self, endpoint: Endpoint) -> int:
        return self.body_bytes_max if endpoint.takes_large_body else min(self.body_bytes_max, SMALL_BODY_BYTES_MAX)

    def _admit(self, exchange: Exchange) -> Endpoint:
        """The first checks: host, key, scope, origin, route, name in the path."""
        # Old probes may leave the header out; browsers always send it.
        host = exchange.headers.get(b"host")
        if self._hosts is not None and host is not None and not self._hosts.allows(host):
            raise Forbidden("this Host is not served without keys: ask for localhost, or set TOPICS_API_KEYS")
        # Only browsers send these headers.
        is_of_page = b"origin" in exchange.headers or b"sec-fetch-site" in exchange.headers
        if is_of_page and exchange.method == b"OPTIONS" and self._origins.is_preflight(exchange.headers):
            # A browser sends no key with a preflight.
            exchange.route = _PREFLIGHT.name
            return _PREFLIGHT
        match = self.routes.match(exchange.path)
        endpoint = match.endpoints.get(exchange.method)
        if self._keys.enabled:
            self._authorize(exchange, endpoint, match)
        else:
            exchange.key = FULL_ACCESS
        if (
            is_of_page
            and not self._origins.allows(exchange.headers)
            and not (endpoint is not None and endpoint.is_page and is_navigation(exchange.headers))
        ):
            raise Forbidden("pages of this origin may not call the server: list the origin in TOPICS_CORS_ORIGINS")
        if endpoint is None:
            if not match.endpoints:
                raise NotFound(f"there is nothing at this path: {what_was_meant(exchange.method, exchange.path)}")
            allowed = allowed_methods(match.endpoints)
            raise MethodNotAllowed(
                f"this path takes {allowed}: {what_was_meant(exchange.method, exchange.path)}", allowed
            )
        exchange.route = endpoint.name
        if match.has_name:
            if match.name is None:
                raise InvalidRequest("the name in the path is not UTF-8")
            exchange.name = match.name
        if match.inner_names:
            names = tuple(name for name in match.inner_names if name is not None)
            if len(names) < len(match.inner_names):
                raise InvalidRequest("the name in the path is not UTF-8")
            exchange.inner_names = names
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
        """Whether callers must send a key."""
        return self._keys.enabled

    def find_key(self, token: bytes | None) -> Key | None:
        return None if token is None else self._keys.find(token)

    def unauthorized(self, exchange: Exchange) -> Unauthorized:
        """The error for a caller without a valid key. The answer is delayed if the address has failed before."""
        self.counters.auth_failures += 1
        delay_ms = self._failures.note_failure(exchange.connection.peer_host, int(self.loop.time() * 1000))
        exchange.delay_s = delay_ms / 1000
        return Unauthorized("a valid key is needed: Authorization: Bearer <key>")

    def _maybe_inflate(self, exchange: Exchange, endpoint: Endpoint) -> bool:
        """Checks coding and type of the body. Returns True if the body is inflated, and the endpoint is called then."""
        headers, body = exchange.headers, exchange.body
        if not body and endpoint.body is not Body.REQUIRED:
            return False
        coding = headers.get(b"content-encoding")
        if coding is not None and coding.strip().lower() not in (b"identity", b""):
            if coding.strip().lower() != b"gzip":
                raise UnsupportedMediaType("a body is sent plain, or with Content-Encoding: gzip")
            if body:
                self._inflate(exchange, endpoint)
                return True
        _check_content_type(headers)
        return False

    def _inflate(self, exchange: Exchange, endpoint: Endpoint) -> None:
        bytes_max = self._body_bytes_max(endpoint)
        if len(exchange.body) <= INFLATE_ON_LOOP_BYTES_MAX:
            # Small enough whatever it holds: the content is at most a thousand times as large.
            self._handle_inflated(exchange, endpoint, _inflated(exchange.body, bytes_max))
            return
        future = self.loop.run_in_executor(self.pool, _inflated, exchange.body, bytes_max)
        future.add_done_callback(lambda done: self._handle_inflated(exchange, endpoint, done.result()))

    def _handle_inflated(self, exchange: Exchange, endpoint: Endpoint, result: bytes | TopicsError) -> None:
        self.guarded(exchange, partial(self._call_with_inflated, exchange, endpoint, result))

    def _call_with_inflated(self, exchange: Exchange, endpoint: Endpoint, result: bytes | TopicsError) -> None:
        # A body that is too large is reported before its type, a damaged body after it.
        if isinstance(result, PayloadTooLarge):
            raise result
        _check_content_type(exchange.headers)
        if isinstance(result, TopicsError):
            raise result
        exchange.body = result
        endpoint.handler(exchange)

    def guarded(self, exchange: Exchange, work: Callable[[], None]) -> None:
        """Continues a request in a later turn of the loop. An error becomes its answer."""
        if exchange.answered:
            return
        try:
            work()
        except TopicsError as error:
            self.refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the outer edge of a request.
            self.fail_internally(exchange)

    def run_in_pool(self, exchange: Exchange, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Runs `work` on a thread for files, because it may wait for a disk, then `then` on the loop."""

        future = self.loop.run_in_executor(self.files, work)
        future.add_done_callback(partial(self._continue_after_pool, exchange, then))

    def read_fetched(self, exchange: Exchange, fetch_needed: FetchNeeded, read: Callable[[], None]) -> None:
        """Brings the bytes that `read` needs into memory, then calls it. What came from the cold tier may leave the
        memory again before `read` gets it: then it is fetched again, a few times."""
        self._fetch_and_read(exchange, fetch_needed, read, FETCHES_MAX)

    def _fetch_and_read(
        self, exchange: Exchange, fetch_needed: FetchNeeded, read: Callable[[], None], fetches_left: int
    ) -> None:
        fetch = fetch_needed() if fetches_left else None
        if fetch is None:
            read()
        elif not fetch.is_cold:
            self.run_in_pool(exchange, fetch, read)
        else:
            done = partial(self._fetched_cold, exchange, fetch_needed, read, fetches_left - 1)
            self.open_engine().engine.run_cold(exchange.name, fetch, done)

    def _fetched_cold(
        self,
        exchange: Exchange,
        fetch_needed: FetchNeeded,
        read: Callable[[], None],
        fetches_left: int,
        result: BaseException | None,
    ) -> None:
        def go_on() -> None:
            if isinstance(result, BaseException):
                raise result
            try:
                read()
            except NotFetched:
                if not fetches_left:
                    raise
                self._fetch_and_read(exchange, fetch_needed, read, fetches_left)

        self.guarded(exchange, go_on)

    def _continue_after_pool(self, exchange: Exchange, then: Callable[[], None], done: asyncio.Future[None]) -> None:
        def go_on() -> None:
            done.result()
            then()

        self.guarded(exchange, go_on)

    def may_make_large_page(self, exchange: Exchange) -> bool:
        """Whether a page that may be large can be made now. If so, it counts until its request is answered."""
        self.large_pages = {other for other in self.large_pages if not other.answered}
        if len(self.large_pages) >= LARGE_PAGES_MAX or exchange.connection.must_wait:
            return False
        self.large_pages.add(exchange)
        return True

    def run_in_steps(self, exchange: Exchange, steps: Steps[T], then: Callable[[T], None]) -> None:
        """Runs long work in later turns of the loop, then `then` with its result. An error becomes the answer.

        Meanwhile the connection starts no other request, so its requests keep their order.
        """
        connection = exchange.connection
        connection.park()

        def end(result: Callable[[], T]) -> None:
            self.guarded(exchange, lambda: then(result()))
            connection.unpark()

        self.steps.run(while_wanted(steps, lambda: not exchange.answered), end)

    def hurry(self, exchange: Exchange) -> None:
        answer = self.waiting.get(exchange)
        if answer is not None:
            answer()

    def end_waiting(self) -> None:
        """The server stops: answers waiting requests early, and ends streams."""
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
            self.finish(exchange, error_response(self.told(error, exchange.key)))

    def finish(self, exchange: Exchange, response: Response) -> None:
        body = response.body
        if (response.rest or len(body) >= GZIP_BYTES_MIN) and response.status < 300:
            accepted = exchange.headers.get(b"accept-encoding")
            if accepted is not None and accepts_gzip(accepted):
                if response.rest or len(body) > GZIP_ON_LOOP_BYTES_MAX:
                    future = self.loop.run_in_executor(self.pool, deflate, body, response.rest)
                    future.add_done_callback(lambda done: self._send(exchange, _gzipped(response, done.result())))
                    return
                response = _gzipped(response, deflate(body))
        self._send(exchange, response)

    def _send(self, exchange: Exchange, response: Response) -> None:
        if exchange.answered:
            # The client went away before the answer was made.
            return
        self.note_answer(exchange, response.status)
        if b"origin" in exchange.headers:
            headers = response.headers + self.origin_headers(exchange)
            response = Response(response.status, response.body, response.content_type, headers, response.rest)
        exchange.connection.send(exchange, response)

    def origin_headers(self, exchange: Exchange) -> Headers:
        """Headers of an answer that let the page that sent the request read it."""
        origin = exchange.headers.get(b"origin")
        return () if origin is None else self._origins.response_headers(origin)

    def note_answer(self, exchange: Exchange, status: int) -> None:
        exchange.answered = True
        self._release(exchange)
        self.counters.note_request(exchange.route, status, perf_counter() - exchange.started)

    def abandon(self, exchange: Exchange) -> None:
        """The client went away, and its answer is not wanted any more."""
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
        """The engine, for endpoints that answer only after recovery."""
        assert self.opened is not None
        return self.opened


def has_bearer(exchange: Exchange) -> bool:
    return bearer_token(exchange.headers.get(b"authorization")) is not None


def token_of(exchange: Exchange, *, in_query: bool) -> bytes | None:
    """The key that the caller sent. A query parameter counts only where `in_query` allows it, and only without the
    header.
    """
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


def _is_json(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").lstrip(b" \t").startswith(b"application/json")


def _check_content_type(headers: dict[bytes, bytes]) -> None:
    if not _is_json(headers):
        raise UnsupportedMediaType("a body is sent with Content-Type: application/json")
