"""Topics as their segments and their `topic.json` describe them: for a start without a readable snapshot.

The floors come from `topic.json`. A floor is at least the seq before the oldest record. The log has everything that
happened since the last checkpoint.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from topics.engine.config import stored_config
from topics.engine.starting.adoption import Tell, segment_files, sync_file
from topics.errors import ColdUnavailable, Damaged, FormatError, StartRefused
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage import layout
from topics.storage.fs import Fs, read_file
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.numbers import extend
from topics.storage.tiers.store import SegmentStore


@dataclass(frozen=True, slots=True)
class RebuiltTopic:
    state: TopicState
    # Without a good `topic.json` the name in the state is made up.
    is_named: bool
    # Whether its last file is damaged: records after the last one found are lost, unless the log has them.
    ends_damaged: bool
    # First seqs of segments that have a `.replaced` file.
    replaced: list[int]


class TopicDescription(msgspec.Struct):
    """What `topic.json` says."""

    name: str
    config: dict[str, Any]
    id: int = 0
    epoch: int = 1
    head_seq: int = 0
    cap_floor: int = 0
    ttl_floor: int = 0
    trim_floor: int = 0
    delete_below: int = 0
    lease_ceiling: int = 1
    lost: list[tuple[int, int]] = []
    source_trims: list[tuple[int, int]] = []


def rebuild_topics(
    fs: Fs,
    root: str,
    warn: Tell,
    *,
    cold: SegmentStore | None = None,
    only: Collection[int] | None = None,
    gaps_are_lost: bool = True,
) -> tuple[list[RebuiltTopic], int]:
    """All topics that have a directory, or only the ones with these ids; and a next topic id that no topic ever had.

    Seqs between two segments are lost or deleted. Only the whole log tells which. With `gaps_are_lost` they count as
    lost.

    Raises `StartRefused` when the cold tier does not answer, because no snapshot says which segments it has, and
    `Damaged` when a directory is another topic's.
    """
    found: list[RebuiltTopic] = []
    highest_id = 0
    topics = layout.topics_directory(root)
    for name in fs.listdir(topics):
        topic_id = layout.topic_of(name.removesuffix(layout.DELETED))
        if topic_id is None:
            continue
        highest_id = max(highest_id, topic_id)
        if not name.endswith(layout.DELETED) and (only is None or topic_id in only):
            found.append(_Rebuilding(fs, f"{topics}/{name}", topic_id, cold, warn, gaps_are_lost=gaps_are_lost).run())
    # A removed topic leaves no trace of its id, so many ids are skipped.
    return found, (highest_id | 0xFFFF) + 1


class _Rebuilding:
    """One topic while its files are read, in the order of their seqs."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        topic_id: int,
        cold: SegmentStore | None,
        warn: Tell,
        *,
        gaps_are_lost: bool,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._cold = cold
        self._warn = warn
        self._gaps_are_lost = gaps_are_lost
        described = _read_topic_json(fs, directory, warn)
        if described is not None and described.id not in (0, topic_id):
            path = f"{directory}/{layout.TOPIC_JSON}"
            raise Damaged(path, 0, f"topic id {topic_id}, as the name of its directory says", f"id {described.id}")
        self._is_named = described is not None
        described = described or TopicDescription(f"recovered-{topic_id}", {})
        self._head_seq = described.head_seq
        self._state = TopicState(
            described.name,
            topic_id,
            described.epoch,
            described.config,
            cap_floor=described.cap_floor,
            ttl_floor=described.ttl_floor,
            trim_floor=described.trim_floor,
            delete_below=described.delete_below,
            lease_ceiling=described.lease_ceiling,
            lost=described.lost,
            source_trims=described.source_trims,
        )
        # The bytes of the last segment that was taken in.
        self._data = b""
        # Whether records between the last segment that was taken in and the next one are lost.
        self._is_damaged = False

    def run(self) -> RebuiltTopic:
        state = self._state
        hot, replaced = segment_files(self._fs, self._directory)
        cold = self._cold_first_seqs() - {first_seq for first_seq, kinds in hot.items() if "data" in kinds}
        for first_seq in sorted(hot.keys() | cold):
            if first_seq in cold:
                self._take_cold(first_seq)
            else:
                self._take_hot(first_seq, hot[first_seq])
        if state.segments:
            oldest_seq = state.segments[0].first_seq
            if oldest_seq > _explained_to(state) + 1:
                # Records older than the oldest one found are gone. The floor tells readers.
                state.cap_floor = oldest_seq - 1
            state.segments[-1].sealed = True
            state.first_live = oldest_seq
        if self._head_seq > state.head_seq:
            if self._is_damaged:
                state.lost.append((state.head_seq + 1, self._head_seq))
                self._is_damaged = False
            state.head_seq = state.checkpointed_seq = self._head_seq
        return RebuiltTopic(state, self._is_named, self._is_damaged, replaced)

    def _cold_first_seqs(self) -> set[int]:
        if self._cold is None:
            return set()
        prefix = layout.segment_object(self._state.id, 0, "").rpartition("/")[0] + "/"
        try:
            names = self._cold.list(prefix)
        except ColdUnavailable as error:
            raise StartRefused(
                f"no snapshot is readable, and the cold tier does not say which segments it has: {error.message}; "
                "bring it back, then start again"
            ) from error
        parsed = [layout.segment_of(name.removeprefix(prefix)) for name in names]
        return {found[0] for found in parsed if found is not None and found[1] == "data"}

    def _take_hot(self, first_seq: int, kinds: set[str]) -> None:
        stem = f"{self._directory}/{layout.segment_stem(first_seq)}"
        if "data" not in kinds:
            self._is_damaged = True
            return
        segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0)
        if self._take(segment, f"{stem}.data", read_file(self._fs, f"{stem}.data")):
            sync_file(self._fs, f"{stem}.data")
            self._index(segment)

    def _take_cold(self, first_seq: int) -> None:
        assert self._cold is not None
        segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0, tier="cold")
        name = layout.segment_object(self._state.id, first_seq, "data")
        try:
            data = self._cold.read_range(name, 0, self._cold.size(name))
        except ColdUnavailable as error:
            raise StartRefused(
                f"no snapshot is readable, and {name} of the cold tier cannot be read: {error.message}; "
                "bring it back, then start again"
            ) from error
        self._take(segment, name, data)

    def _index(self, segment: SegmentState) -> None:
        if segment.tier == "hot":
            rebuild_index(self._fs, f"{self._directory}/{layout.segment_stem(segment.first_seq)}", segment)

    def _take(self, segment: SegmentState, path: str, data: bytes) -> bool:
        """Whether the file has records that no file before it has."""
        state = self._state
        extend(segment, data)
        if segment.entry_count and segment.last_seq <= state.checkpointed_seq:
            return False
        if segment.data_bytes < len(data):
            self._warn(f"{path} is damaged at offset {segment.data_bytes}: records after that offset are lost")
        if segment.entry_count:
            # An older file is damaged or missing. Readers get a tombstone for its records.
            gap_from = max(state.checkpointed_seq + 1, state.delete_below)
            is_lost = self._is_damaged or (self._gaps_are_lost and bool(state.segments))
            if is_lost and gap_from < segment.first_seq:
                state.lost.append((gap_from, segment.first_seq - 1))
            self._is_damaged = False
        # Every segment has at least one record, so an empty file has lost its records.
        self._is_damaged = self._is_damaged or segment.data_bytes < len(data) or not data
        if segment.entry_count == 0:
            return False
        if segment.first_seq <= state.checkpointed_seq:
            self._shorten_last(segment.first_seq)
        if state.segments:
            state.segments[-1].sealed = True
        self._data = data
        state.segments.append(segment)
        state.checkpointed_seq = state.head_seq = segment.last_seq
        state.last_ts = max(state.last_ts, segment.last_ts)
        return True

    def _shorten_last(self, end_seq: int) -> None:
        """Cuts the last segment at `end_seq`, where the next one begins. An unfinished checkpoint wrote the last one. A
        later checkpoint put the same records, and more, into the next one."""
        last = self._state.segments.pop()
        shorter = SegmentState(last.first_seq, 0, 0, 0, 0, 0, 0, tier=last.tier)
        extend(shorter, self._data, end_seq)
        if shorter.entry_count:
            self._state.segments.append(shorter)
            self._index(shorter)


def _explained_to(state: TopicState) -> int:
    """The last seq of the oldest seqs whose records are known to be gone: by a floor, or by a lost range."""
    last_seq = max(state.cap_floor, state.ttl_floor, state.trim_floor, state.delete_below - 1)
    for first, last in sorted([*state.lost, *state.source_trims]):
        if first <= last_seq + 1:
            last_seq = max(last_seq, last)
    return last_seq


def _read_topic_json(fs: Fs, directory: str, warn: Tell) -> TopicDescription | None:
    path = f"{directory}/{layout.TOPIC_JSON}"
    if not fs.exists(path):
        return None
    try:
        described = msgspec.json.decode(read_file(fs, path), type=TopicDescription)
        stored_config(described.config)
        return described
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, FormatError):
        warn(f"{path} is damaged")
        return None
