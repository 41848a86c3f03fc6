"""The time of the partitioned engine: microseconds since the Unix epoch."""

from topics.clock import Clock


def now_us(clock: Clock) -> int:
    """The time of the clock in microseconds. It is a multiple of 1000, because the clock counts milliseconds."""
    return clock.now_ms() * 1000
