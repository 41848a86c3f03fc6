"""Requests over kept connections, tried again when that can help.

rule 1  What is safe to send twice is sent again when the connection breaks, and when the server says that it may be:
        after a pause of random length below a bound that doubles, and never before `Retry-After` is over.
rule 2  What is not safe to send twice is sent again only if the server has answered that it did nothing, or was never
        reached.
rule 3  An answer is whole or it is none: a body that ends too early is a broken connection.
rule 4  No text that is made here has the token in it.
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

from topics.errors import Closed, InvalidRequest, Throttled, TopicsError
from topics.protocol.error_codes import ERROR_CODES
from topics.protocol.response_body import ErrorEnvelope

PAUSE_S_FIRST: Final = 0.1
PAUSE_S_MAX: Final = 10.0
_ERROR_BY_CODE: Final = {entry.code: entry.error for entry in ERROR_CODES}
_BROKEN: Final = (OSError, http.client.HTTPException)
# What a header can hold. Anything else would be an error that shows the value.
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Unreachable(TopicsError):
    """The server does not answer: not there, not yet, or not any more."""

    code = "unreachable"
    status = 503
    retriable = True


class Answer(NamedTuple):
    headers: Mapping[str, str]
    body: bytes


class Transport:
    """The connections to one server. Any thread may ask; each request has a connection for itself meanwhile."""

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
        """The answer to a request that succeeded; else raises the error that the server named, or `Unreachable`."""
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
                # A connection that was refused took nothing with it.
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
            # The server may have closed it while nobody looked: that is no failure yet.
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
    """Raises `InvalidRequest`. What is wrong with it is not shown: it may be a password."""
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
    """Whether the same request can do better a little later, and harms nothing if the first one was done."""
    if "pins_max" in (error.detail or {}):
        return False  # Pins end after minutes, and whoever wants one can do without.
    if isinstance(error, Unreachable):
        return is_repeatable  # Said by somebody in between, who does not know.
    # A server that stops is perhaps one that starts again.
    return error.retriable or (is_repeatable and isinstance(error, Closed))


def _error_of(status: int, answer: Answer) -> TopicsError:
    """The error that the answer names, as the class that the engine itself would raise."""
    try:
        members = msgspec.json.decode(answer.body, type=ErrorEnvelope).error
    except msgspec.DecodeError:
        text = answer.body[:200].decode(errors="replace")
        # A proxy, or a server that is none of ours.
        return (
            Unreachable(f"answer {status}: {text}") if status in {502, 503, 504} else TopicsError(f"{status}: {text}")
        )
    # Past the constructors: each takes what its error is made of, and here it is made already.
    found = _ERROR_BY_CODE.get(members.code, TopicsError)
    error = found.__new__(found)
    TopicsError.__init__(error, members.message, members.detail if members.detail is not msgspec.UNSET else None)
    return error


def _retry_after_s(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 0.0
