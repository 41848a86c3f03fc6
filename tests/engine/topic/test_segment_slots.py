"""The numbers that a topic keeps of its segments, against a reading of all frames."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.small_log import SmallLog
from topics.engine.topic import slot_bits
from topics.storage.segments.reader import BLOCK_SLOTS
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

TAGS = 4
STEP_MS = 10

STEPS = st.one_of(
    # So many records, in blocks that begin and end anywhere.
    st.tuples(st.just("append"), st.integers(1, 400)),
    st.tuples(st.just("tag"), st.integers(0, TAGS - 1)),
    st.tuples(st.just("before"), st.integers(1, 1200)),
    st.tuples(st.just("seqs"), st.lists(st.integers(1, 1200), min_size=1, max_size=30)),
    st.tuples(st.just("cap_records"), st.integers(1, 1000)),
    st.tuples(st.just("cap_bytes"), st.integers(1, 3000)),
    st.tuples(st.just("ttl_ms"), st.integers(1, 8 * STEP_MS)),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
)


def read_numbers(log: SmallLog) -> tuple[list[tuple[int, int]], int | None]:
    """(count, bytes) of the live records of each segment, and the first live seq in them, from the frames."""
    live = log.topic().live
    segments = live.segments
    numbers: list[tuple[int, int]] = []
    first: int | None = None
    for state in segments.segments:
        columns = log.engine.core.cache.reader(log.topic().id, state).columns()
        for place in slot_bits.places(segments.pending_bits(state)):
            columns.live[place] = 0
        columns.clear(state.first_seq, live.first_live)
        numbers.append(columns.numbers(state.first_seq, state.last_seq + 1))
        if first is None and numbers[-1][0]:
            first = state.first_seq + columns.live.find(1)
    return numbers, first


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=4, max_size=16))
def test_the_numbers_in_memory_are_those_of_the_frames(steps: list[tuple[str, Any]]) -> None:
    clock = ManualClock()
    disk = FakeDisk()
    log = SmallLog(disk, clock=clock, segment_events_max=2 * BLOCK_SLOTS + 100, wal_file_bytes=2**20)
    log.create()
    for step, value in steps:
        clock.advance(STEP_MS)
        match step:
            case "append":
                for tag in range(TAGS):
                    log.append(count=value // TAGS + 1, tag=f"t{tag}")
            case "tag":
                log.delete(tag=f"t{value}")
            case "before":
                log.delete(before_seq=value)
            case "seqs":
                log.delete(seqs=value)
            case "checkpoint":
                log.checkpoint()
            case "reopen":
                disk.kill()
                log = SmallLog(disk, clock=clock, segment_events_max=2 * BLOCK_SLOTS + 100, wal_file_bytes=2**20)
            case _:
                log.create(**{step: value})
        topic = log.topic()
        topic.refresh(clock.now_ms())
        live = topic.live
        numbers, first = read_numbers(log)
        assert [(state.live_count, state.live_bytes) for state in live.segments.segments] == numbers
        assert live.segments.next_live(live.first_live) == first
        in_memory = live._memory_numbers(max(live.checkpointed_seq + 1, live.first_live), live.head_seq)
        assert live.count == sum(count for count, _ in numbers) + in_memory[0]
        assert live.size_bytes == sum(size for _, size in numbers) + in_memory[1]
