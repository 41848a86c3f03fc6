"""When a call is tried again, and after which pause. No clock, no sleep: the shells measure and wait.

rule 1  A call that is safe to send twice is repeated when the connection breaks, and after an error that is worth a
        retry. The pause is random, below a bound that doubles, and at least as long as `Retry-After`.
rule 2  A call that is not safe to send twice is repeated only if the server answered that it did nothing, or if no
        connection was made.
rule 3  No try begins after the deadline of the call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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


class ClientClosed(Closed):
    """The program has closed the client. (`Closed` is also what a server answers that is about to stop.)"""

    retriable = False


class Patience(NamedTuple):
    """How long a caller waits for one call.

    `timeout_s` is for one try: how long the connection may be silent. `deadline_s` is for the call with all its tries
    (None: without end). `retries` counts tries after the first. For `throttle_wait_s` a call that the server throttles
    is repeated without a limit of tries.
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


class Tries:
    """The tries of one call. `wait_s` is how long the server may hold the call back because the caller asked it to."""

    def __init__(
        self,
        patience: Patience,
        now_s: float,
        *,
        is_repeatable: bool,
        wait_s: float = 0.0,
        uniform: Uniform = random.uniform,
    ) -> None:
        self._patience = patience
        self._is_repeatable = is_repeatable
        self._wait_s = wait_s
        self._started_s = now_s
        self._uniform = uniform
        self._failures = 0

    def timeout_s(self, now_s: float) -> float:
        """How long the next try may be silent."""
        timeout_s = self._patience.timeout_s + self._wait_s
        if self._patience.deadline_s is None:
            return timeout_s
        left_s = self._started_s + self._patience.deadline_s + self._wait_s - now_s
        return max(0.001, min(timeout_s, left_s))

    def pause_s(self, error: TopicsError, now_s: float, *, retry_after_s: float = 0.0, was_sent: bool = True) -> float:
        """The pause before the next try. Raises the error when there is none.

        `was_sent`: whether the server may have done what the failed try asked for.
        """
        if not self._may_repeat(error, was_sent=was_sent):
            raise error
        pause_s = max(retry_after_s, backoff_s(self._failures, self._uniform))
        waited_s = now_s + pause_s - self._started_s
        is_patient = isinstance(error, Throttled) and waited_s < self._patience.throttle_wait_s
        if self._failures >= self._patience.retries and not is_patient:
            raise error
        deadline_s = self._patience.deadline_s
        if deadline_s is not None and waited_s > max(deadline_s, self._patience.throttle_wait_s) + self._wait_s:
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
