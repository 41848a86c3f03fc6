"""When a call is tried again, and after which pause. No clock, no sleep: the shells measure and wait.

rule 1  A call that is safe to send twice is repeated when the connection breaks, and after an error that is worth a
        retry. The pause is random, below a bound that doubles, and at least as long as `Retry-After`.
rule 2  A call that is not safe to send twice is repeated only if the server answered that it did nothing, or if no
        connection was made.
rule 3  The deadline of a call is a point in time, fixed when the call begins. No try begins after it, and no wait for
        the connection goes beyond it: each wait is given the time that is left (`Limit`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from topics.errors import Closed, Throttled, TopicsError

PAUSE_S_FIRST: Final = 0.1
PAUSE_S_MAX: Final = 10.0

Uniform = Callable[[float, float], float]


class Unreachable(TopicsError):
    """The server does not answer: it does not run, it starts, or it has stopped."""

    code = "unreachable"
    status = 503
    retriable = True


class AnswerTooLong(TopicsError):
    """The answer has more bytes than a client takes. The rest of it was not read."""


class ClientClosed(Closed):
    """The program has closed the client. (`Closed` is also what a server answers that is about to stop.)"""

    retriable = False


class Limit(NamedTuple):
    """How long one try may take: the connection may be silent for `silence_s`, and the try ends at `ends_s`."""

    silence_s: float
    ends_s: float

    def next_s(self, now_s: float) -> float:
        """How long the next wait for the connection may be. Raises `TimeoutError` at the end of the try."""
        left_s = self.ends_s - now_s
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(self.silence_s, left_s)


class Patience(NamedTuple):
    """How long a caller waits for one call.

    `timeout_s` is for one try: how long the connection may be silent. `deadline_s` is for the call with all its tries
    (None: without end). `retries` counts tries after the first. For `throttle_wait_s`, but not beyond its deadline, a
    call that the server throttles is repeated without a limit of tries.
    """

    timeout_s: float = 30.0
    deadline_s: float | None = 60.0
    retries: int = 7
    throttle_wait_s: float = 0.0

    def changed(self, timeout_s: float | None, deadline_s: float | None, retries: int | None) -> Patience:
        """The same patience with the members that are given."""
        return Patience(
            self.timeout_s if timeout_s is None else timeout_s,
            self.deadline_s if deadline_s is None else deadline_s,
            self.retries if retries is None else retries,
            self.throttle_wait_s,
        )

    def ends_s(self, now_s: float, wait_ms: int | None = 0) -> float:
        """When a call ends that begins now. `wait_ms` is how long the server may hold it back because the caller asked
        it to (None: without end)."""
        if self.deadline_s is None or wait_ms is None:
            return inf
        return now_s + self.deadline_s + wait_ms / 1000


class Tries:
    """The tries of one call. `ends_s` is the end of a call of which this one is a part; `wait_ms` as in `Patience`."""

    def __init__(
        self,
        patience: Patience,
        now_s: float,
        *,
        is_repeatable: bool,
        wait_ms: int = 0,
        ends_s: float = inf,
        uniform: Uniform = random.uniform,
    ) -> None:
        self.limit: Limit = Limit(patience.timeout_s + wait_ms / 1000, min(ends_s, patience.ends_s(now_s, wait_ms)))
        self._patience = patience
        self._is_repeatable = is_repeatable
        self._started_s = now_s
        self._uniform = uniform
        self._failures = 0

    def pause_s(self, error: TopicsError, now_s: float, *, retry_after_s: float = 0.0, was_sent: bool = True) -> float:
        """The pause before the next try. Raises the error when there is none.

        `was_sent`: whether the server may have done what the failed try asked for.
        """
        if not self._may_repeat(error, was_sent=was_sent):
            raise error
        pause_s = max(retry_after_s, backoff_s(self._failures, self._uniform))
        next_s = now_s + pause_s
        is_patient = isinstance(error, Throttled) and next_s - self._started_s < self._patience.throttle_wait_s
        if self._failures >= self._patience.retries and not is_patient:
            raise error
        if next_s > self.limit.ends_s:
            raise error
        self._failures += 1
        return pause_s

    def _may_repeat(self, error: TopicsError, *, was_sent: bool) -> bool:
        if "pins_max" in (error.detail or {}):
            return False  # Pins end after minutes, and readers can work without one.
        if isinstance(error, Unreachable):
            return self._is_repeatable or not was_sent
        return error.retriable


def backoff_s(failures: int, uniform: Uniform = random.uniform) -> float:
    """A random pause. Its bound doubles with each failure."""
    return uniform(0, min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(failures, 16)))


class LongWait:
    """A wait that is longer than one request may take: it is asked for in pieces. None is a wait without end."""

    def __init__(self, wait_ms: int | None, now_s: float, piece_ms_max: int) -> None:
        self._end_s = None if wait_ms is None else now_s + wait_ms / 1000
        self._piece_ms_max = piece_ms_max

    def next_ms(self, now_s: float) -> int:
        """How long the next request may wait; 0 when the wait is over."""
        if self._end_s is None:
            return self._piece_ms_max
        return max(0, min(self._piece_ms_max, round((self._end_s - now_s) * 1000)))
