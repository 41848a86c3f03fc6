"""Manifests that are made from a snapshot entry, without the engine."""

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.snapshot import SegmentState, TopicState
from topics.spark.reading.file_manifest import Files, manifest_of_state


def no_files(_segment: SegmentState) -> Files:
    raise AssertionError("nothing has to be read")


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9)), max_size=4), st.integers(0, 20), st.integers(1, 60))
def test_lost_seqs_take_no_room_under_a_cap(steps: list[tuple[int, int]], above: int, cap_records: int) -> None:
    lost: list[tuple[int, int]] = []
    head_seq = 0
    for gap, width in steps:
        lost.append((head_seq + gap + 1, head_seq + gap + 1 + width))
        head_seq = lost[-1][1]
    head_seq += above
    state = TopicState("a", 1, 1, {"cap_records": cap_records}, head_seq, checkpointed_seq=head_seq, lost=lost)
    manifest = manifest_of_state(state, "store", no_files, now_ms=0)
    lost_seqs = {seq for first, last in lost for seq in range(first, last + 1)}
    evicted = [seq for seq in range(1, head_seq + 1) if seq not in lost_seqs][:-cap_records]
    assert manifest.evict_floor == max(evicted, default=0) + 1
