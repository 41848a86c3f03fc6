from topics.engine.checkpointing.tail_trim import DROPPED_PER_TURN, trim_in_steps
from topics.engine.runtime import InlineRuntime
from topics.engine.topic.tail import Tail


def test_many_records_are_dropped_in_turns_and_the_rest_stays() -> None:
    runtime = InlineRuntime()
    tail = Tail(1)
    count = 3 * DROPPED_PER_TURN
    tail.extend([b"body"] * count, [4] * count, ts=1)
    trim_in_steps(runtime, tail, count - 1)
    turns = [tail.first_seq]
    while runtime.take_turn():
        turns.append(tail.first_seq)
    assert turns == [DROPPED_PER_TURN + 1, 2 * DROPPED_PER_TURN + 1, count - 1]
    assert tail.read(count - 1, count) == [b"body"] * 2


def test_a_tail_that_has_less_by_then_is_left_as_it_is() -> None:
    runtime = InlineRuntime()
    tail = Tail(1)
    tail.extend([b"body"] * 3 * DROPPED_PER_TURN, [4] * 3 * DROPPED_PER_TURN, ts=1)
    trim_in_steps(runtime, tail, 2 * DROPPED_PER_TURN)
    tail.forget_below(3 * DROPPED_PER_TURN)
    while runtime.take_turn():
        pass
    assert (tail.first_seq, tail.end_seq) == (3 * DROPPED_PER_TURN, 3 * DROPPED_PER_TURN + 1)
