"""What a restore puts into the new directory: which records of which files, and the state of each topic. Pure, but for
reads of the backup.

rule 1  Records that a later point of the backup knows as deleted stay deleted, also if an older point is restored.
rule 2  A cut (`until_ms`, `until_seqs`) lowers the head of a topic. What refers to higher seqs goes, too: keys, lost
        ranges; cursors of groups and routers are lowered.
rule 3  Leases are not restored. Jobs are ready at once, and keep their number of deliveries.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from topics.backup.format import Point, StoredFile, TopicEntry
from topics.backup.ranges import Range, Ranges, clip, normal, subtract
from topics.backup.store import BackupStore
from topics.backup.times import time_text
from topics.errors import InvalidRequest, StartRefused, TopicNotFound
from topics.formats.control import RouterState
from topics.formats.snapshot import LeaseState, TopicState, WriterState

# Lease ids that the backed-up log gave out after the point was taken must not fit a delivery of the restored log.
LEASE_IDS_SKIPPED: Final = 1 << 32


class RestoreOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    # Only records up to this time; None = all that the newest point has.
    until_ms: int | None = None
    # Topic -> last seq.
    until_seqs: dict[str, int] = {}
    # Only these topics; empty = all.
    topics: list[str] = []


@dataclass(frozen=True, slots=True)
class PlannedFile:
    file: StoredFile
    # The records that are restored. Not empty.
    live: Ranges


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    # Without segments.
    state: TopicState
    files: list[PlannedFile]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    # Name of the point.
    point: str
    ts: int
    topics: list[PlannedTopic]
    routers: list[RouterState]
    next_topic_id: int
    next_router_id: int
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(last - first + 1 for topic in self.topics for file in topic.files for first, last in file.live)


def plan_restore(store: BackupStore, order: RestoreOrder) -> RestorePlan:
    """Raises `StartRefused` when the backup has no such point, `TopicNotFound`, and `Damaged`."""
    names = store.point_names()
    if not names:
        store.require()
        raise StartRefused(f"{store.address} has no finished backup: run `topics backup` to its end")
    place = _choose(store, names, order)
    point = store.point(names[place])
    wanted = _wanted_topics(point, order)
    later = [store.point(name) for name in names[place + 1 :]]
    planned: dict[int, PlannedTopic] = {}
    entries: dict[int, TopicEntry] = {}
    for ref in point.topics:
        if ref.name in wanted:
            entry = entries[ref.id] = store.entry(ref.entry)
            gone = _deleted_later(store, ref.id, ref.entry, later)
            planned[ref.id] = _plan_topic(store, entry, gone, order)
    routers = [_cut_router(store, state, planned, entries) for state in point.routers if _has_ends(state, planned)]
    return RestorePlan(
        names[place],
        point.ts,
        list(planned.values()),
        routers,
        point.next_topic_id,
        point.next_router_id,
        _notes(point, planned, routers),
    )


def _choose(store: BackupStore, names: Sequence[str], order: RestoreOrder) -> int:
    """The place of the oldest point that has everything up to the wanted time."""
    if order.until_ms is None:
        return len(names) - 1
    for place, name in enumerate(names):
        if store.point(name).ts >= order.until_ms:
            return place
    newest = time_text(store.point(names[-1]).ts)
    raise StartRefused(
        f"{store.address} ends before that time: its newest point is of {newest}; restore without --until for all that "
        "it has"
    )


def _wanted_topics(point: Point, order: RestoreOrder) -> set[str]:
    names = {ref.name for ref in point.topics}
    for name in [*order.topics, *order.until_seqs]:
        if name not in names:
            raise TopicNotFound(name)
    if order.topics:
        unwanted = sorted(set(order.until_seqs) - set(order.topics))
        if unwanted:
            raise InvalidRequest(f'topic "{unwanted[0]}" has a last seq, but it is not among the chosen topics')
        return set(order.topics)
    return names


# Deletes that later points know.


def _deleted_later(store: BackupStore, topic_id: int, entry: str, later: Sequence[Point]) -> Ranges:
    """Seqs that were deleted after the point, as far as the backup knows."""
    gone: list[Range] = []
    seen = {entry}
    for point in later:
        for ref in point.topics:
            if ref.id == topic_id and ref.entry not in seen:
                seen.add(ref.entry)
                gone += deleted_seqs(store.entry(ref.entry))
    return normal(gone)


def deleted_seqs(entry: TopicEntry) -> Ranges:
    """Seqs that are not live, and that were neither evicted nor lost: their records were deleted.

    Seqs that never had a record are among them. They have no frames, so it does not matter.
    """
    state = entry.state
    head = min(state.head_seq, state.checkpointed_seq)
    first_kept = max(state.cap_floor, state.ttl_floor, state.trim_floor) + 1
    known = normal([*_range(1, state.delete_below - 1), *_range(first_kept, head)])
    live = normal(live for file in entry.files for live in clip(file.live, state.first_live, head))
    lost = normal([*state.lost, *state.source_trims])
    return subtract(subtract(known, live), lost)


def _range(first: int, last: int) -> Ranges:
    return [(first, last)] if first <= last else []


# Topics.


def _plan_topic(store: BackupStore, entry: TopicEntry, gone: Ranges, order: RestoreOrder) -> PlannedTopic:
    state = entry.state
    head = state.head_seq
    if order.until_ms is not None:
        head = min(head, last_seq_at(store, entry, order.until_ms))
    if state.name in order.until_seqs:
        head = min(head, order.until_seqs[state.name])
    first = max(state.first_live, state.delete_below)
    files = []
    for file in entry.files:
        live = subtract(clip(file.live, first, head), gone)
        if live:
            files.append(PlannedFile(file, live))
    return PlannedTopic(_cut_state(state, head, files, order.until_ms), files)


def last_seq_at(store: BackupStore, entry: TopicEntry, until_ms: int) -> int:
    """The last seq before the first record that is newer; the head when there is no newer record."""
    for file in entry.files:
        if file.last_ts > until_ms:
            _, frames = store.read(file)
            # Times never fall within a topic.
            place = bisect_right(frames.times, until_ms)
            if place < len(frames):
                return frames.seqs[place] - 1
    return entry.state.head_seq


def _cut_state(state: TopicState, head: int, files: Sequence[PlannedFile], until_ms: int | None) -> TopicState:
    is_cut = head < state.head_seq
    return msgspec.structs.replace(
        state,
        head_seq=head,
        # A time above the cut would be the time of the next record.
        last_ts=min(state.last_ts, until_ms) if is_cut and until_ms is not None else state.last_ts,
        cap_floor=min(state.cap_floor, head),
        ttl_floor=min(state.ttl_floor, head),
        trim_floor=min(state.trim_floor, head),
        delete_below=min(state.delete_below, head + 1),
        first_live=files[0].live[0][0] if files else head + 1,
        checkpointed_seq=min(state.checkpointed_seq, head),
        ceiling=0,
        lost=clip(state.lost, 1, head),
        source_trims=clip(state.source_trims, 1, head),
        keys=[key for key in state.keys if key.first_seq + key.count - 1 <= head],
        pending_deletes=[],
        leases=[LeaseState(old.seq, old.lease_id, old.deliveries, "", 0) for old in state.leases if old.seq <= head],
        lease_ceiling=state.lease_ceiling + LEASE_IDS_SKIPPED if state.config.get("type") == "queue" else 1,
        moved=[seq for seq in state.moved if seq <= head],
        hops=[(first, min(last, head), hops) for first, last, hops in state.hops if first <= head],
        groups=[msgspec.structs.replace(group, seq=min(group.seq, head)) for group in state.groups],
        writers=[kept for writer in state.writers if (kept := _cut_writer(writer, head)) is not None],
    )


def _cut_writer(writer: WriterState, head: int) -> WriterState | None:
    """A writer whose last epoch is cut off can commit that epoch again."""
    if writer.last_seq <= head:
        return writer
    return WriterState(writer.name, writer.epoch - 1, head + 1, head) if writer.epoch else None


# Routers.


def _has_ends(state: RouterState, planned: Mapping[int, PlannedTopic]) -> bool:
    return state.source in planned and state.dest in planned


def _cut_router(
    store: BackupStore,
    state: RouterState,
    planned: Mapping[int, PlannedTopic],
    entries: Mapping[int, TopicEntry],
) -> RouterState:
    source, dest = planned[state.source].state, planned[state.dest].state
    cursor = min(state.cursor, source.head_seq)
    last_copy = planned[state.dest].files[-1] if planned[state.dest].files else None
    if dest.head_seq < entries[state.dest].state.head_seq and last_copy is not None:
        # Copies are cut off. A copy is not older than its record: newer records have no copy in what is left.
        cursor = min(cursor, last_seq_at(store, entries[state.source], _time_of_last(store, last_copy)))
    return msgspec.structs.replace(
        state,
        cursor=cursor,
        dest_seq=min(state.dest_seq, dest.head_seq),
        dest_base=min(state.dest_base, dest.head_seq),
        searched_seq=min(state.searched_seq, dest.head_seq),
        evidence=[pair for pair in state.evidence if pair[1] <= dest.head_seq],
    )


def _time_of_last(store: BackupStore, planned: PlannedFile) -> int:
    _, frames = store.read(planned.file)
    return frames.times[bisect_right(frames.seqs, planned.live[-1][1]) - 1]


def _notes(point: Point, planned: Mapping[int, PlannedTopic], routers: Sequence[RouterState]) -> list[str]:
    kept = {router.id for router in routers}
    notes = [
        f'router "{state.name}" is left out: its source or its dest is not restored'
        for state in point.routers
        if state.id not in kept
    ]
    for topic in planned.values():
        ttl_ms = topic.state.config.get("ttl_ms")
        if ttl_ms and topic.files:
            notes.append(
                f'topic "{topic.state.name}" has a ttl_ms: records older than that expire when a server starts'
            )
    return notes
