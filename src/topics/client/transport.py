"""Requests over kept connections, with retries.

rule 1  A request that is safe to send twice is repeated when the connection breaks, and after an error that is worth a
        retry. The pause before it is random, below a bound that doubles, and at least as long as `Retry-After`.
rule 2  A request that is not safe to send twice is repeated only if the server answered that it did nothing, or if the
        connection was refused.
rule 3  An answer is complete, or it is no answer: a body that ends too early counts as a broken connection.
rule 4  No message of this module contains the token.
"""

import http.client
import random
import re
import threading
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from topics.errors import InvalidRequest, Throttled, TopicsError
from topics.protocol.error_codes import ERROR_CODES
from topics.protocol.response_body import ErrorEnvelope

PAUSE_S_FIRST: Final = 0.1
PAUSE_S_MAX: Final = 10.0
_ERROR_BY_CODE: Final = {entry.code: entry.error for entry in ERROR_CODES}
_BROKEN: Final = (OSError, http.client.HTTPException)
# Checked here, because the HTTP library shows a bad header value in its error.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Unreachable(TopicsError):
    """The server does not answer: it does not run, it starts, or it has stopped."""

    code = "unreachable"
    status = 503
    retriable = True


class Answer(NamedTuple):
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """The connections to one server. Any thread may call `ask`; requests do not share a connection at the same time."""

    def __init__(
        self, endpoint: str, *, token: str | None, timeout_s: float, retries: int, throttle_wait_s: float
    ) -> None:
        self.endpoint, self._is_tls, self._host, self._port = _parse_endpoint(endpoint)
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidRequest("the token is empty or has characters that no token has, such as a line break")
        self._headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        self._timeout_s = timeout_s
        self._retries = retries
        self._throttle_wait_s = throttle_wait_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def ask(self, method: str, target: str, body: bytes | None = None, *, is_repeatable: bool = True) -> Answer:
        """Sends a request and returns its answer. Raises the error that the server answered, or `Unreachable`."""
        started = monotonic()
        failures = 0
        while True:
            pause_s = 0.0
            try:
                status, answer = self._exchange(method, target, body, is_repeatable=is_repeatable)
                if status < 300:
                    return answer
                error = _error_of(status, answer)
                pause_s = _retry_after_s(answer)
                may_repeat = _may_repeat(error, is_repeatable=is_repeatable)
            except _BROKEN as problem:
                error = Unreachable(f"{self.endpoint} does not answer: {str(problem) or type(problem).__name__}")
                error.__cause__ = problem
                # A refused connection has carried no request.
                may_repeat = is_repeatable or isinstance(problem, ConnectionRefusedError)
            if not may_repeat:
                raise error
            pause_s = max(pause_s, random.uniform(0, min(PAUSE_S_MAX, PAUSE_S_FIRST * 2**failures)))  # noqa: S311
            is_patient = isinstance(error, Throttled) and monotonic() - started + pause_s < self._throttle_wait_s
            if failures >= self._retries and not is_patient:
                raise error
            failures += 1
            sleep(pause_s)

    def _exchange(self, method: str, target: str, body: bytes | None, *, is_repeatable: bool) -> tuple[int, Answer]:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None and is_repeatable:
            # The server may have closed the idle connection: then the request is sent on a new one.
            try:
                return self._send(connection, method, target, body, headers)
            except TimeoutError:
                raise
            except _BROKEN:
                pass
        elif connection is not None:
            connection.close()
        return self._send(self._connect(), method, target, body, headers)

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, Answer]:
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return response.status, Answer({name.lower(): value for name, value in response.getheaders()}, content)


def _parse_endpoint(endpoint: str) -> tuple[str, bool, str, int | None]:
    """Raises `InvalidRequest`. The message does not show the endpoint, which may contain a password."""
    try:
        address = urlsplit(endpoint)
        host, port = address.hostname, address.port
    except ValueError as error:
        raise InvalidRequest("the endpoint must look like http://host:4000") from error
    if address.scheme not in {"http", "https"} or not host:
        raise InvalidRequest("the endpoint must look like http://host:4000")
    if address.username is not None or address.path.rstrip("/") or address.query or address.fragment:
        raise InvalidRequest("the endpoint is http:// or https://, a host and a port, and nothing else")
    return f"{address.scheme}://{address.netloc}", address.scheme == "https", host, port


def _may_repeat(error: TopicsError, *, is_repeatable: bool) -> bool:
    """Whether a repeat may succeed soon, and does no harm if the server has done the first request."""
    if "pins_max" in (error.detail or {}):
        return False  # Pins end after minutes, and readers can work without one.
    if isinstance(error, Unreachable):
        return is_repeatable  # A proxy answered, and the server may have done the request.
    return error.retriable


def _error_of(status: int, answer: Answer) -> TopicsError:
    """The error in the answer, as the class that the engine raises."""
    try:
        members = msgspec.json.decode(answer.body, type=ErrorEnvelope).error
    except msgspec.DecodeError:
        text = answer.body[:200].decode(errors="replace")
        # The answer comes from a proxy, or from another kind of server.
        return (
            Unreachable(f"answer {status}: {text}") if status in {502, 503, 504} else TopicsError(f"{status}: {text}")
        )
    # Without the constructor of the class, which would make the message from other arguments.
    found = _ERROR_BY_CODE.get(members.code, TopicsError)
    error = found.__new__(found)
    TopicsError.__init__(error, members.message, members.detail if members.detail is not msgspec.UNSET else None)
    return error


def _retry_after_s(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
