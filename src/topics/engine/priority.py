"""Effective priority: how urgent the pending work of a topic is.

It starts from the priority in the config, clamped to -1000 and 1000. A topic without one gets up to 500 when it was
read in the last five minutes. Up to 1000 are added for the time that the work has waited.

The priority only says which topic is served first. It changes no seq, no retention and no answer to a reader.
"""

import math
from typing import Final

from topics.engine.config import TopicConfig

PRIORITY_CLAMP: Final = 1000
AUTO_PRIORITY: Final = 500
AUTO_HALF_LIFE_MS: Final = 30_000
AUTO_IDLE_MS_MAX: Final = 300_000
AGE_PER_MS: Final = 0.1
AGE_MS_MAX: Final = 10_000


def effective_priority(topic_config: TopicConfig, last_read_ts: int | None, now_ms: int, waited_ms: int = 0) -> int:
    """Configured priority, or else a bonus for a recent read; plus a bonus for the time waited."""
    manual = min(max(topic_config.priority or 0, -PRIORITY_CLAMP), PRIORITY_CLAMP)
    age = AGE_PER_MS * min(waited_ms, AGE_MS_MAX)
    return _rounded(manual + _auto(topic_config, last_read_ts, now_ms) + age)


def _auto(config: TopicConfig, last_read_ts: int | None, now_ms: int) -> float:
    if config.priority is not None or not config.auto_priority or last_read_ts is None:
        return 0.0
    # After the clock was set back, the last read may lie in the future. It counts as a read of now.
    idle_ms = max(now_ms - last_read_ts, 0)
    if idle_ms >= AUTO_IDLE_MS_MAX:
        return 0.0
    decayed: float = AUTO_PRIORITY * 2.0 ** (-idle_ms / AUTO_HALF_LIFE_MS)
    return decayed


def _rounded(value: float) -> int:
    """Rounds half away from zero. `round` would round half to the even neighbour."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
