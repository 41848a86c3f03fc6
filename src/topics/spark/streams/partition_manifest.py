"""Manifests of partitions. Planning is the same as for topics: a partition takes the place of a topic, offsets of seqs.

The name of a partition is its number as text, also in the offsets of a query. Its epoch comes from the catalog: a topic
that is deleted and created again, or purged, gets another epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from topics.formats.message_index import ENTRY_BYTES
from topics.formats.stream_layout import LOG, segment_path
from topics.spark.manifest import OFFSETS, Manifest, Numbering, Segment, SeqRange
from topics.spark.options import ReadOptions
from topics.spark.streams.files import SegmentExtent, first_offset_at
from topics.storage.fs import Fs

_TIER: Final = "local"


class PartitionManifest(Manifest, frozen=True, kw_only=True):
    """A partition at one moment. All of its messages are in files."""

    @property
    def numbering(self) -> Numbering:
        return OFFSETS

    def lost_reason(self, lost: SeqRange) -> Literal["missing"]:
        return "missing"


def partition_manifest(
    partition: int, topic_id: int, epoch: int, directory: str, extents: Sequence[SegmentExtent]
) -> PartitionManifest:
    """Offsets between two segments are missing. Retention removed the offsets before the first segment."""
    segments: list[Segment] = []
    lost: list[SeqRange] = []
    for extent, following in zip(extents, [*extents[1:], None], strict=True):
        last = extent.start_offset + extent.message_count - 1
        if following is not None and not extent.is_whole:
            # The log is longer than its index. The read finds the messages.
            last = following.start_offset - 1
        if extent.start_offset <= last:
            segments.append(_segment(directory, extent, last, is_sealed=following is not None))
        if following is not None and last + 1 < following.start_offset:
            lost.append((last + 1, following.start_offset - 1))
    first = extents[0].start_offset if extents else 0
    head = extents[-1].start_offset + extents[-1].message_count - 1 if extents else -1
    return PartitionManifest(
        topic=str(partition),
        store_id="",
        topic_id=topic_id,
        epoch=epoch,
        head_seq=head,
        durable_seq=head,
        earliest_seq=first,
        evict_floor=first,
        delete_below=0,
        lost_ranges=tuple(lost),
        checkpointed_seq=head,
        segments=tuple(segments),
    )


def _segment(directory: str, extent: SegmentExtent, last_offset: int, *, is_sealed: bool) -> Segment:
    count = last_offset - extent.start_offset + 1
    return Segment(
        first_seq=extent.start_offset,
        last_seq=last_offset,
        tier=_TIER,
        uri=segment_path(directory, extent.start_offset, LOG),
        data_len=extent.log_bytes if is_sealed else extent.end,
        idx_len=extent.message_count * ENTRY_BYTES,
        min_ts=extent.first_timestamp // 1000,
        max_ts=extent.last_timestamp // 1000,
        records=count,
        live=count,
        sealed=is_sealed,
        digest="",
    )


def with_times_as_offsets(
    fs: Fs, manifests: Sequence[Manifest], options: ReadOptions
) -> tuple[list[Manifest], ReadOptions]:
    """The same read with offsets instead of times, from the indexes. Partitions without wanted messages are left out.

    Times never go back in a partition, so that a range of times is a range of offsets.
    """
    found = list(manifests)
    if options.starting_timestamp_ms is not None:
        starts = _offsets_at(fs, found, options.starting_timestamp_ms)
        options = replace(options, starting_timestamp_ms=None, starting_offsets=dict(starts))
    if options.ending_timestamp_ms is not None:
        ends = _offsets_at(fs, found, options.ending_timestamp_ms)
        found = [manifest for manifest in found if ends[manifest.topic] > manifest.numbering.first]
        wanted = {manifest.topic: ends[manifest.topic] - 1 for manifest in found}
        options = replace(options, ending_timestamp_ms=None, ending_offsets=wanted)
    return found, options


def _offsets_at(fs: Fs, manifests: Sequence[Manifest], ts: int) -> Mapping[str, int]:
    return {manifest.topic: first_offset_at(fs, manifest.segments, ts, manifest.head_seq + 1) for manifest in manifests}
