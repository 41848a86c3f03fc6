"""Records leave the memory in many turns.

A checkpoint may put half a million records into segments. Dropping them from the tail in one turn would take 20 to
45 ms.
"""

from functools import partial
from typing import Final

from topics.engine.runtime import Runtime
from topics.engine.topic.tail import Tail

# About half a millisecond.
DROPPED_PER_TURN: Final = 10_000


def trim_in_steps(runtime: Runtime, tail: Tail, seq: int) -> None:
    """Drops every slot below `seq`, now and in later turns. Owner only."""
    tail.forget_below(min(seq, tail.first_seq + DROPPED_PER_TURN))
    if tail.first_seq < min(seq, tail.end_seq):
        runtime.call_soon(partial(trim_in_steps, runtime, tail, seq))
