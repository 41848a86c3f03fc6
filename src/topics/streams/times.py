"""The time of the partitioned engine: microseconds since the Unix epoch."""

from topics.clock import Clock


def now_us(clock: Clock) -> int:
    """What the clock says, in the unit of messages. It steps by a millisecond, as the clock does."""
    return clock.now_ms() * 1000
