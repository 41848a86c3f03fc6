"""What an archive run has to do: a topic's manifest and the lake's state in, items of work and gaps out. Pure.

A segment is done when the lake has its digest. A segment with a new digest and seqs that the lake has was written again
(a purge): the files of the lake with these seqs are written again, too, with the rows that the segment has now. With
`apply_deletes` the same happens to segments that lost rows. Rows that the server has evicted stay in the lake, because
the lake is there to keep them. Deleted rows leave it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from topics.spark.errors import Conflict
from topics.spark.jobs.job_options import ARCHIVE_FILE_BYTES, ARCHIVE_FILE_RECORDS
from topics.spark.lake.state import LakeFile, LakeGap, LakeState, SegmentDone
from topics.spark.loss import eviction_reason
from topics.spark.manifest import Manifest, Segment, SeqRange
from topics.spark.reading.plan import FILES_PER_PARTITION_MAX, Partition, cut_partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one task reads, in bytes before compression and in records. So large can a file be."""

    file_bytes: int = ARCHIVE_FILE_BYTES
    file_records: int = ARCHIVE_FILE_RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveItem:
    """What one task does: it reads `partitions`, and writes their rows into a file. Rows of the files `replaces` whose
    seqs are in `dropped`, and that were not read, leave the lake. Then `segments` are done; the task fills in how many
    rows each has. `epoch` is the number of the instance in the lake. `expects` is as in `LakeChange`.
    """

    topic: str
    epoch: int
    partitions: tuple[Partition, ...] = ()
    segments: tuple[SegmentDone, ...] = ()
    replaces: tuple[LakeFile, ...] = ()
    dropped: tuple[SeqRange, ...] = ()
    expects: frozenset[str] = frozenset()
    weight_bytes: int = 0


class TopicPlan(NamedTuple):
    items: list[ArchiveItem]
    gaps: list[LakeGap]


def plan_topic(manifest: Manifest, state: LakeState, bounds: Bounds, *, apply_deletes: bool) -> TopicPlan:
    """Raises `Conflict` when the lake has this topic from another store."""
    _require_same_store(manifest, state)
    epoch = _epoch(manifest, state)
    fresh: list[Segment] = []
    again: list[Segment] = []
    for segment in manifest.segments:
        if not segment.sealed or segment.last_seq < manifest.evict_floor:
            continue
        met = state.segments_between(manifest.topic, epoch, segment.first_seq, segment.last_seq)
        if not met:
            fresh.append(segment)
        elif _has_changed(manifest, segment, met, apply_deletes=apply_deletes):
            again.append(segment)
    floor = manifest.delete_below - 1 if apply_deletes else 0
    items = [_fresh_item(manifest, epoch, group) for group in _grouped(fresh, manifest, bounds)]
    items += _rewrites(manifest, epoch, state, again, floor)
    return TopicPlan(items, list(_gaps(manifest, epoch, state)))


def _epoch(manifest: Manifest, state: LakeState) -> int:
    """The number of this instance in the lake: the epoch of the server, unless another instance has this number.

    The epoch of a topic may begin at 1 again when it is deleted and created again. Only the topic's id is unique.
    """
    known = {epoch: done[-1].topic_id for (topic, epoch), done in state.segments.items() if topic == manifest.topic}
    for epoch, topic_id in known.items():
        if topic_id == manifest.topic_id:
            return epoch
    return max([manifest.epoch, *(epoch + 1 for epoch in known)])


def _require_same_store(manifest: Manifest, state: LakeState) -> None:
    for (topic, _), done in state.segments.items():
        if topic == manifest.topic and manifest.store_id and done[-1].store_id != manifest.store_id:
            raise Conflict(
                f'the lake has topic "{topic}" from store {done[-1].store_id}, this one is {manifest.store_id}; '
                "give each server a lake of its own"
            )


def _has_changed(manifest: Manifest, segment: Segment, met: Sequence[SegmentDone], *, apply_deletes: bool) -> bool:
    """Whether a segment may have other rows than the lake has for its seqs."""
    done = met[0]
    if [each.digest for each in met] != [segment.digest] or done.bad:
        return True
    if not apply_deletes or not done.rows:
        return False
    pending = any(first <= segment.last_seq and last >= segment.first_seq for first, last in manifest.pending_deletes)
    return pending or segment.live != done.rows


# New segments. Neighbours go together, up to the bounds of a file.


def _grouped(segments: Sequence[Segment], manifest: Manifest, bounds: Bounds) -> Iterator[list[Segment]]:
    places = {segment.first_seq: place for place, segment in enumerate(manifest.segments)}
    group: list[Segment] = []
    group_bytes = group_records = 0
    for segment in segments:
        is_full = (
            group_bytes + segment.data_len > bounds.file_bytes
            or group_records + segment.records > bounds.file_records
            or len(group) == FILES_PER_PARTITION_MAX
        )
        is_neighbour = bool(group) and places[segment.first_seq] == places[group[-1].first_seq] + 1
        if group and (is_full or not is_neighbour):
            yield group
            group, group_bytes, group_records = [], 0, 0
        group.append(segment)
        group_bytes += segment.data_len
        group_records += segment.records
    if group:
        yield group


def _fresh_item(manifest: Manifest, epoch: int, group: Sequence[Segment]) -> ArchiveItem:
    return ArchiveItem(
        topic=manifest.topic,
        epoch=epoch,
        partitions=_partitions(manifest, group),
        segments=tuple(_done(manifest, epoch, segment) for segment in group),
        weight_bytes=sum(segment.data_len for segment in group),
    )


def _partitions(manifest: Manifest, group: Sequence[Segment]) -> tuple[Partition, ...]:
    return tuple(cut_partitions(manifest, group[0].first_seq, [group[-1].last_seq]))


def _done(manifest: Manifest, epoch: int, segment: Segment) -> SegmentDone:
    place = manifest.segments.index(segment)
    return SegmentDone(
        topic=manifest.topic,
        store_id=manifest.store_id,
        epoch=epoch,
        first_seq=segment.first_seq,
        last_seq=segment.last_seq,
        digest=segment.digest,
        rows=0,
        topic_id=manifest.topic_id,
        follows=manifest.segments[place - 1].last_seq if place else None,
    )


# Segments whose files are written again.


class _Change(NamedTuple):
    """Seqs whose rows leave the lake, and the segment with the rows that replace them."""

    dropped: SeqRange
    segment: Segment | None


def _rewrites(
    manifest: Manifest, epoch: int, state: LakeState, again: Sequence[Segment], deleted_to_seq: int
) -> Iterator[ArchiveItem]:
    changes = [_Change((max(segment.first_seq, manifest.evict_floor), segment.last_seq), segment) for segment in again]
    if deleted_to_seq > 0:
        changes.append(_Change((0, deleted_to_seq), None))
    for names, together in _sharing_files(manifest.topic, epoch, state, changes):
        segments = [change.segment for change in together if change.segment is not None]
        if not names and not segments:
            continue
        met = [
            done.digest
            for segment in segments
            for done in state.segments_between(manifest.topic, epoch, segment.first_seq, segment.last_seq)
        ]
        yield ArchiveItem(
            topic=manifest.topic,
            epoch=epoch,
            partitions=tuple(part for segment in segments for part in _partitions(manifest, [segment])),
            segments=tuple(_done(manifest, epoch, segment) for segment in segments),
            replaces=tuple(state.files[name] for name in sorted(names)),
            dropped=tuple(change.dropped for change in together),
            expects=frozenset(met),
            weight_bytes=sum(segment.data_len for segment in segments),
        )


def _sharing_files(
    topic: str, epoch: int, state: LakeState, changes: Iterable[_Change]
) -> list[tuple[set[str], list[_Change]]]:
    """Changes of the same file go together, because a file can be replaced once. With the names of the files."""
    found: list[tuple[set[str], list[_Change]]] = []
    for change in changes:
        names = {file.name for file in state.files_between(topic, epoch, *change.dropped)}
        touching = [each for each in found if each[0] & names]
        merged = (names.union(*(each[0] for each in touching)), [c for each in touching for c in each[1]] + [change])
        found = [each for each in found if each not in touching] + [merged]
    return found


# Gaps.


def _gaps(manifest: Manifest, epoch: int, state: LakeState) -> Iterator[LakeGap]:
    """Seqs that will never be in the lake, unless the lake has a gap for them already."""
    topic = manifest.topic
    for other in [key[1] for key in state.segments if key[0] == topic and key[1] != epoch]:
        if not any(gap.last_seq is None for gap in state.gaps_of(topic, other)):
            yield LakeGap(topic, other, state.last_covered(topic, other) + 1, None, "recreated")
    known = [(gap.first_seq, gap.last_seq or gap.first_seq) for gap in state.gaps_of(topic, epoch)]
    covered = [(each.covers_from, each.last_seq) for each in state.segments.get((topic, epoch), [])]
    for first_seq, last_seq in _uncovered(1, manifest.evict_floor - 1, [*covered, *known]):
        yield LakeGap(topic, epoch, first_seq, last_seq, eviction_reason(manifest, first_seq))
    for lost in manifest.lost_ranges:
        # A range may have grown since the last run.
        for first_seq, last_seq in _uncovered(*lost, known):
            yield LakeGap(topic, epoch, first_seq, last_seq, manifest.lost_reason(lost))


def _uncovered(first_seq: int, last_seq: int, covered: Iterable[SeqRange]) -> Iterator[SeqRange]:
    for first_covered, last_covered in sorted(covered):
        if first_covered > last_seq:
            break
        if first_covered > first_seq:
            yield first_seq, first_covered - 1
        first_seq = max(first_seq, last_covered + 1)
    if first_seq <= last_seq:
        yield first_seq, last_seq


def by_topic(items: Sequence[ArchiveItem]) -> Iterator[tuple[str, SeqRange]]:
    """For each topic the first and the last seq that the items read."""
    ordered = sorted((item for item in items if item.partitions), key=lambda item: item.topic)
    for topic, group in groupby(ordered, key=lambda item: item.topic):
        partitions = [partition for item in group for partition in item.partitions]
        firsts, lasts = zip(*((partition.first_seq, partition.last_seq) for partition in partitions), strict=True)
        yield topic, (min(firsts), max(lasts))
