"""Manifests without a server: from a snapshot, or from the names and indexes of segment files.

A snapshot has a topic as it was at a checkpoint, without later writes, deletes and evictions. Records that have expired
since are hidden.

Files alone have no floors. Seqs between two segments may have been deleted, or a file may be missing. The difference
cannot be seen, so that such seqs are reported as a gap.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from topics.errors import TopicsError
from topics.formats.frame_table import ENTRIES, from_frames
from topics.formats.segment_index import ENTRY_BYTES, IndexEntry, entry_at
from topics.formats.snapshot import SegmentState, TopicState
from topics.spark.manifest import Manifest, Segment
from topics.spark.reading.tables import TopicFacts
from topics.storage import layout
from topics.storage.tiers.addresses import file_address
from topics.storage.tiers.store import SegmentStore

logger = logging.getLogger(__name__)

# So many requests to a bucket run at a time.
_QUESTIONS_MAX: Final = 16
_TOPIC_JSON_BYTES_MAX: Final = 1 << 20


class DamagedFiles(TopicsError):
    """Files that are damaged or do not fit together. No record was read from them."""

    code = "damaged"

    def __init__(self, where: str, expected: str, found: str) -> None:
        super().__init__(
            f"{where}: expected {expected}, found {found}; run `topics verify` on a data directory, or "
            "`topics pipeline verify` on an archive, to see all that is wrong",
            {"file": where},
        )


class Files(NamedTuple):
    """Where the segments of one topic are: a store, and the prefix of their names."""

    store: SegmentStore
    folder: str

    def name(self, first_seq: int, kind: str) -> str:
        return f"{self.folder}{layout.segment_stem(first_seq)}.{kind}"

    def uri(self, first_seq: int) -> str:
        address = self.store.address.rstrip("/")
        name = self.name(first_seq, "data")
        return f"{address}/{name}" if "://" in address else file_address(f"{address}/{name}")

    def read_whole(self, first_seq: int, kind: str) -> bytes:
        name = self.name(first_seq, kind)
        return self.store.read_range(name, 0, self.store.size(name))


def topic_files(store: SegmentStore, topic_id: int) -> Files:
    """In a tier."""
    return Files(store, f"topics/{layout.topic_name(topic_id)}/")


class _Floors(NamedTuple):
    """The last seq that is gone, by reason."""

    cap: int
    ttl: int

    def evict_floor(self, head_seq: int) -> int:
        return min(max(self) + 1, head_seq + 1)


# From a snapshot.


def manifest_of_state(
    state: TopicState, store_id: str, files_of: Callable[[SegmentState], Files], *, now_ms: int
) -> Manifest:
    """The manifest of what is in segments. The head is the last seq of a segment, or of a range that is lost."""
    head_seq = max(state.checkpointed_seq, _lost_behind(state))
    floors = _floors(state, head_seq, files_of, now_ms)
    evict_floor = floors.evict_floor(head_seq)
    delete_below = min(state.delete_below, head_seq + 1)
    kept = [segment for segment in state.segments if segment.last_seq >= evict_floor]
    return Manifest(
        topic=state.name,
        store_id=store_id,
        topic_id=state.id,
        epoch=state.epoch,
        head_seq=head_seq,
        durable_seq=head_seq,
        earliest_seq=max(evict_floor, delete_below, min(state.first_live, head_seq + 1)),
        evict_floor=evict_floor,
        cap_floor=floors.cap,
        ttl_floor=floors.ttl,
        delete_below=delete_below,
        lost_ranges=tuple((first, last) for first, last in _lost(state) if evict_floor <= last <= head_seq),
        source_trims=tuple((first, last) for first, last in state.source_trims if evict_floor <= last <= head_seq),
        checkpointed_seq=head_seq,
        pending_deletes=tuple(state.pending_deletes),
        segments=tuple(_noted_segment(segment, files_of(segment)) for segment in kept),
    )


def _lost_behind(state: TopicState) -> int:
    """The last seq of lost ranges that follow the segments without a hole."""
    end_seq = state.checkpointed_seq
    for first, last in _lost(state):
        if first == end_seq + 1:
            end_seq = last
    return end_seq


def _lost(state: TopicState) -> list[tuple[int, int]]:
    return sorted([*state.lost, *state.source_trims])


def _floors(state: TopicState, head_seq: int, files_of: Callable[[SegmentState], Files], now_ms: int) -> _Floors:
    cap_floor = min(max(state.cap_floor, state.trim_floor), head_seq)
    ttl_floor = min(state.ttl_floor, head_seq)
    cap_records = state.config.get("cap_records", 0)
    if cap_records and state.config.get("discard", "old") == "old":
        cap_floor = max(cap_floor, _record_cap_floor(state, head_seq, cap_records))
    ttl_ms = state.config.get("ttl_ms", 0)
    if ttl_ms:
        first_seq = max(state.first_live, cap_floor + 1)
        expired_seq = _expired_last_seq(state.segments, first_seq, now_ms - ttl_ms, files_of)
        # Deleted records at the beginning are no loss: a live record must have expired.
        if expired_seq >= first_seq:
            ttl_floor = max(ttl_floor, expired_seq)
    return _Floors(cap_floor, ttl_floor)


def _record_cap_floor(state: TopicState, head_seq: int, cap_records: int) -> int:
    """The highest seq that a cap of so many records evicts. Seqs of lost ranges take no room under the cap."""
    floor = head_seq - cap_records
    for first, last in reversed(_lost(state)):
        if last < floor:
            break
        if last <= head_seq:
            floor -= last - first + 1
    return floor


def _expired_last_seq(
    segments: Iterable[SegmentState], first_seq: int, cutoff_ts: int, files_of: Callable[[SegmentState], Files]
) -> int:
    """The last seq of the records from `first_seq` on that are older than the cutoff; `first_seq - 1` without any."""
    expired_seq = first_seq - 1
    for segment in segments:
        if segment.last_seq < first_seq:
            continue
        if segment.last_ts < cutoff_ts:
            expired_seq = segment.last_seq
            continue
        if segment.first_ts < cutoff_ts:
            idx = files_of(segment).read_whole(segment.first_seq, "idx")[: segment.entry_count * ENTRY_BYTES]
            times = np.frombuffer(idx, dtype=ENTRIES, count=len(idx) // ENTRY_BYTES)["ts"]
            expired_seq = max(expired_seq, segment.first_seq + int(np.searchsorted(times, cutoff_ts)) - 1)
        break
    return expired_seq


def _noted_segment(segment: SegmentState, files: Files) -> Segment:
    return Segment(
        first_seq=segment.first_seq,
        last_seq=segment.last_seq,
        tier=segment.tier,
        uri=files.uri(segment.first_seq),
        data_len=segment.data_bytes,
        idx_len=segment.entry_count * ENTRY_BYTES,
        min_ts=segment.first_ts,
        max_ts=segment.last_ts,
        records=segment.entry_count,
        live=segment.live_count,
        sealed=segment.sealed,
        digest=segment.digest.hex(),
        proof=segment.proof.hex(),
    )


def facts_of_state(state: TopicState, manifest: Manifest) -> TopicFacts:
    """`config` has only settings that differ from the default, because a snapshot has no others."""
    first_seqs = {segment.first_seq for segment in manifest.segments}
    live_bytes = sum(segment.live_bytes for segment in state.segments if segment.first_seq in first_seqs)
    live = sum(segment.live for segment in manifest.segments)
    return TopicFacts(state.config.get("type", "log"), live, live_bytes, msgspec.json.encode(state.config).decode())


# From files.


class _Described(msgspec.Struct):
    """The members of a `topic.json` that matter here."""

    name: str
    id: int | None = None
    epoch: int = 1
    config: dict[str, Any] = {}
    cap_floor: int = 0
    ttl_floor: int = 0
    # Older versions only.
    trim_floor: int = 0
    delete_below: int = 0


def manifest_of_files(
    files: Files, names: Sequence[str], topic_id: int, store_id: str
) -> tuple[Manifest, TopicFacts] | None:
    """The topic whose segment files have these names. None without a segment.

    Raises `DamagedFiles` for a pair that does not fit together, and for a directory of another topic.
    """
    described = _describe(files, names, topic_id)
    if files.folder and described.id not in (None, 0, topic_id):
        where = f"{files.folder}{layout.TOPIC_JSON}"
        raise DamagedFiles(where, f"topic id {topic_id}, as the name of its directory says", f"id {described.id}")
    segments = found_segments(files, names)
    if not segments:
        return None
    for before, after in pairwise(segments):
        if before.last_seq + 1 < after.first_seq:
            logger.warning(
                '%s: topic "%s": no segment has seqs %d to %d; they were deleted, or their files are missing',
                files.store.address,
                described.name,
                before.last_seq + 1,
                after.first_seq - 1,
            )
    head_seq = segments[-1].last_seq
    cap_floor = max(described.cap_floor, described.trim_floor)
    floors = _Floors(min(cap_floor, head_seq), min(described.ttl_floor, head_seq))
    evict_floor = floors.evict_floor(head_seq)
    delete_below = min(described.delete_below, head_seq + 1)
    manifest = Manifest(
        topic=described.name,
        store_id=store_id,
        topic_id=topic_id,
        epoch=described.epoch,
        head_seq=head_seq,
        durable_seq=head_seq,
        earliest_seq=max(evict_floor, delete_below, segments[0].first_seq),
        evict_floor=evict_floor,
        cap_floor=floors.cap,
        ttl_floor=floors.ttl,
        delete_below=delete_below,
        checkpointed_seq=head_seq,
        segments=tuple(segment for segment in segments if segment.last_seq >= evict_floor),
    )
    config = msgspec.json.encode(described.config).decode()
    count, size = (sum(getattr(segment, name) for segment in manifest.segments) for name in ("live", "data_len"))
    return manifest, TopicFacts(str(described.config.get("type", "log")), count, size, config)


def _describe(files: Files, names: Sequence[str], topic_id: int) -> _Described:
    if layout.TOPIC_JSON not in names:
        return _Described(name=f"topic-{topic_id}")
    name = f"{files.folder}{layout.TOPIC_JSON}"
    raw = files.store.read_range(name, 0, _TOPIC_JSON_BYTES_MAX)
    try:
        return msgspec.json.decode(raw, type=_Described)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedFiles(f"{files.store.address}/{name}", "a description of the topic", str(error)) from error


def found_segments(files: Files, names: Iterable[str], after_seq: int = 0) -> list[Segment]:
    """Segments of a topic's folder that begin after `after_seq`, from their files."""
    kinds: dict[int, set[str]] = {}
    for name in names:
        parsed = layout.segment_of(name)
        if parsed is not None and parsed[0] > after_seq:
            kinds.setdefault(parsed[0], set()).add(parsed[1])
    for first_seq, found in sorted(kinds.items()):
        if "data" not in found:
            raise DamagedFiles(f"{files.store.address}/{files.name(first_seq, 'data')}", "a file", "none")
    with ThreadPoolExecutor(_QUESTIONS_MAX) as pool:
        segments = list(pool.map(lambda item: _found_segment(files, *item), sorted(kinds.items())))
    for before, after in pairwise(segments):
        if before.last_seq >= after.first_seq:
            where = f"{files.store.address}/{files.name(after.first_seq, 'data')}"
            raise DamagedFiles(where, f"seqs above {before.last_seq}", f"seq {after.first_seq}")
    return segments


def _found_segment(files: Files, first_seq: int, kinds: set[str]) -> Segment:
    """Reads only both ends of the index, because an archive has many. Without an index it reads all frames."""
    data_len = files.store.size(files.name(first_seq, "data"))
    if "idx" in kinds:
        idx_name = files.name(first_seq, "idx")
        idx_len = files.store.size(idx_name)
        first, last = _ends_of_index(files, idx_name, idx_len, data_len)
        entry_count, live, min_ts, max_ts = idx_len // ENTRY_BYTES, idx_len // ENTRY_BYTES, first.ts, last.ts
    else:
        table = from_frames(files.read_whole(first_seq, "data"), first_seq=first_seq)
        if table.bad or not len(table):
            found = f"{table.bad[0].reason} at offset {table.bad[0].offset}" if table.bad else "nothing"
            raise DamagedFiles(f"{files.store.address}/{files.name(first_seq, 'data')}", "whole frames", found)
        entry_count = int(table.headers["seq"][-1]) - first_seq + 1
        live, min_ts, max_ts = len(table), int(table.headers["ts"][0]), int(table.headers["ts"][-1])
    return Segment(
        first_seq=first_seq,
        last_seq=first_seq + entry_count - 1,
        tier="archive",
        uri=files.uri(first_seq),
        data_len=data_len,
        idx_len=entry_count * ENTRY_BYTES,
        min_ts=min_ts,
        max_ts=max_ts,
        records=entry_count,
        live=live,
        sealed=True,
        digest="",
    )


def _ends_of_index(files: Files, name: str, idx_len: int, data_len: int) -> tuple[IndexEntry, IndexEntry]:
    """The first and the last entry. They show whether the index belongs to the data: the last entry is never a hole."""
    where = f"{files.store.address}/{name}"
    if idx_len == 0 or idx_len % ENTRY_BYTES:
        raise DamagedFiles(where, f"entries of {ENTRY_BYTES} bytes", f"{idx_len} bytes")
    first = entry_at(files.store.read_range(name, 0, ENTRY_BYTES), 0)
    last = entry_at(files.store.read_range(name, idx_len - ENTRY_BYTES, ENTRY_BYTES), 0)
    if not last.length or last.offset + last.length != data_len:
        raise DamagedFiles(where, f"an index that ends with its data at {data_len}", f"{last.offset + last.length}")
    return first, last
