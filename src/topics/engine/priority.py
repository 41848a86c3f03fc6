"""How urgent a topic's pending work is: log-semantics §12, in numbers.

Only a hint of what to serve first; it changes neither seqs nor retention nor what a reader sees.
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
    """What was set, or else how recently somebody read; and how long the work has waited."""
    manual = min(max(topic_config.priority or 0, -PRIORITY_CLAMP), PRIORITY_CLAMP)
    age = AGE_PER_MS * min(waited_ms, AGE_MS_MAX)
    return _rounded(manual + _auto(topic_config, last_read_ts, now_ms) + age)


def _auto(config: TopicConfig, last_read_ts: int | None, now_ms: int) -> float:
    if config.priority is not None or not config.auto_priority or last_read_ts is None:
        return 0.0
    # A clock that was set back since makes nobody's read more recent than now.
    idle_ms = max(now_ms - last_read_ts, 0)
    if idle_ms >= AUTO_IDLE_MS_MAX:
        return 0.0
    decayed: float = AUTO_PRIORITY * 2.0 ** (-idle_ms / AUTO_HALF_LIFE_MS)
    return decayed


def _rounded(value: float) -> int:
    """Half away from zero; `round` would go to the even neighbour."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
