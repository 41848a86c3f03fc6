"""A clock that only moves when a test moves it."""


class ManualClock:
    """A `topics.clock.Clock`. Wall time and monotonic time are separate, as on a real machine."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Lets time pass: both clocks move."""
        assert ms >= 0, "time does not pass backwards; use set() for a stepped wall clock"
        self._now_ms += ms
        self._monotonic_ms += ms

    def set(self, now_ms: int) -> None:
        """Steps the wall clock, forward or back, while no time passes."""
        self._now_ms = now_ms
