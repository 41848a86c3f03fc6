"""Relations inside a snapshot that every checkpoint keeps."""

from collections.abc import Iterator

from topics.formats.snapshot import Snapshot, TopicState


def wrong_states(snapshot: Snapshot, states: list[TopicState]) -> Iterator[tuple[str, TopicState | None]]:
    if not snapshot.wal:
        yield "the snapshot notes no WAL position", None
    for column in ("id", "name"):
        values = [getattr(state, column) for state in states]
        for value in (
            sorted({value for value in values if values.count(value) > 1}) if len(set(values)) < len(values) else []
        ):
            yield f"two topics have the {column} {value}", None
    for state in states:
        if not 0 < state.id < snapshot.next_topic_id:
            yield f"the topic's id {state.id} is not below the next one, {snapshot.next_topic_id}", state
        for message in wrong_state(state):
            yield message, state


def wrong_state(state: TopicState) -> Iterator[str]:
    """Relations between head, floors and segments that every checkpoint keeps."""
    head = state.head_seq
    evict_floor = min(max(state.cap_floor, state.ttl_floor, state.trim_floor), head) + 1
    if state.checkpointed_seq > head:
        yield f"seq {state.checkpointed_seq} is in segments, but the head is {head}"
    if state.first_live > head + 1:
        yield f"the first live seq {state.first_live} is beyond the head {head}"
    if state.first_live < max(evict_floor, min(state.delete_below, head + 1)):
        yield (
            f"the first live seq {state.first_live} is below the floors "
            f"(evicted below {evict_floor}, deleted below {state.delete_below})"
        )
    before = 0
    for place, segment in enumerate(state.segments):
        if segment.entry_count == 0 or segment.first_seq <= before:
            yield f"segment {segment.first_seq} is empty, or overlaps the one before it, which ends with seq {before}"
        if not segment.sealed and place + 1 < len(state.segments):
            yield f"segment {segment.first_seq} is not sealed, but others follow"
        if segment.live_count > segment.entry_count or segment.first_ts > segment.last_ts:
            yield f"the numbers of segment {segment.first_seq} contradict each other"
        before = segment.last_seq
    if before > state.checkpointed_seq:
        yield f"segments reach to seq {before}, but only {state.checkpointed_seq} is noted as being in segments"
    for what, ranges in (
        ("lost", state.lost),
        ("source trim", state.source_trims),
        ("pending delete", state.pending_deletes),
    ):
        for first, last in ranges:
            if not 0 < first <= last or last > head:
                yield f"the {what} range {first} to {last} is no range of seqs up to the head {head}"
    for first, last in state.pending_deletes:
        if not any(segment.first_seq <= first and last <= segment.last_seq for segment in state.segments):
            yield f"the pending deletes {first} to {last} are in no segment"
