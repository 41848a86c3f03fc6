"""First phase of a recovery: topics as the newest snapshot and the segment files describe them.

Without a readable snapshot there are two cases:

- Some shard of the WAL has lost its first frame. Then all topics are rebuilt from their segments and `topic.json`.
- The WAL is whole. Then the replay makes all topics. Topics with records that the WAL has no frames of (`log_gaps`) get
  the segments that are in their directory.

In both cases the checkpoint marks in the WAL say how far the routers were.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from topics.engine.config import stored_config
from topics.engine.engine import Engine
from topics.engine.starting.adopted_records import AdoptedRecords
from topics.engine.starting.adoption import adopt_segments
from topics.engine.starting.log_gaps import is_before_first_checkpoint, topics_with_gaps
from topics.engine.starting.rebuilding import RebuiltTopic, rebuild_topics
from topics.engine.starting.report import RecoveryReport
from topics.engine.starting.shard_count import found_shard_count
from topics.engine.topic.segment_set import SegmentSet
from topics.engine.topic.topic import Topic
from topics.errors import Damaged, FormatError
from topics.formats.control import RouterState
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition, decode_topic, encode_topic
from topics.storage import layout
from topics.storage.fs import NO_SPACE
from topics.storage.snapshots import LoadedSnapshots
from topics.storage.wal.reader import list_wal_files


class MissingSegment(NamedTuple):
    """A segment that the snapshot lists and that has no file."""

    topic_id: int
    segment: SegmentState


class ReplacedSegmentKey(NamedTuple):
    """A segment whose files were replaced. A kept snapshot may describe its old files."""

    topic_id: int
    first_seq: int


@dataclass(frozen=True, slots=True)
class LoadedTopics:
    """What the phase found. The topics themselves are in `engine.topics`."""

    # The snapshot that the topics come from; a made-up one for rebuilt topics; None when the WAL has everything.
    snapshot: Snapshot | None
    missing: list[MissingSegment]
    replaced: list[ReplacedSegmentKey]
    # Topic id -> snapshot entry, of topics that were never written to.
    unused_entries: dict[int, bytes]
    # Topic id -> highest seq that was evicted when the snapshot was taken. Of a rebuilt topic: the seq before its first
    # record on disk.
    evict_floors: dict[int, int]
    # Without a snapshot: topics that were rebuilt from their files, by id.
    rebuilt: dict[int, RebuiltTopic] = field(default_factory=dict)
    # Topic id -> records that were taken in from segments, to be compared with the log.
    adopted: dict[int, AdoptedRecords] = field(default_factory=dict)

    def start_positions(self, shard_count: int) -> list[WalPosition | None]:
        """Where the replay of each shard begins. None: at its first frame."""
        return [None] * shard_count if self.snapshot is None else list(self.snapshot.wal)

    @property
    def known_below_id(self) -> int:
        """A topic with a lower id that was not loaded was removed before the snapshot was taken."""
        return 1 if self.snapshot is None else self.snapshot.next_topic_id

    @property
    def routers(self) -> list[RouterState]:
        return [] if self.snapshot is None else self.snapshot.routers


def load_topics(engine: Engine, report: RecoveryReport, snapshots: LoadedSnapshots) -> LoadedTopics:
    """Puts the topics into `engine.topics`. Raises `Damaged` when the newest snapshot makes no sense."""
    snapshot = snapshots.newest
    if snapshot is not None:
        return _load_snapshot(engine, report, snapshot)
    fs, root = engine.directory.fs, engine.directory.root
    is_fresh = not (snapshots.numbers or found_shard_count(fs, root) or _topics_with_directory(engine))
    if is_fresh:
        return LoadedTopics(None, [], [], {}, {})
    if _wal_is_complete(engine):
        return _load_gaps(engine, report, snapshots)
    return _rebuild(engine, report, max(snapshots.numbers, default=0))


def _load_snapshot(engine: Engine, report: RecoveryReport, snapshot: Snapshot) -> LoadedTopics:
    report.use_snapshot(snapshot.number)
    engine.core.note_topic_id(snapshot.next_topic_id - 1)
    engine.routing.note_router_id(snapshot.next_router_id - 1)
    loader = _TopicLoader(engine, report, frozenset(_topics_with_directory(engine)))
    unused: dict[int, bytes] = {}
    # Every entry is decoded before the files of any topic are changed: a refused start changes nothing.
    states = [_decode_entry(engine, entry, snapshot.number) for entry in snapshot.topics]
    for state, entry in zip(states, snapshot.topics, strict=True):
        loader.load(state)
        if not state.head_seq and state.ceiling <= 1 and not (state.groups or state.writers or state.bridges):
            unused[state.id] = bytes(entry)
    return loader.loaded(snapshot, unused)


def _load_gaps(engine: Engine, report: RecoveryReport, snapshots: LoadedSnapshots) -> LoadedTopics:
    """The replay makes all topics. The segments of some are needed, because they have records without frames."""
    fs, root = engine.directory.fs, engine.directory.root
    if not snapshots.numbers and not _topics_with_directory(engine):
        return LoadedTopics(None, [], [], {}, {})
    if not snapshots.numbers and is_before_first_checkpoint(fs, root):
        # The first checkpoint was not finished. That is no reason to warn.
        return LoadedTopics(None, [], [], {}, {})
    gaps = topics_with_gaps(fs, root)
    if gaps.frame_count == 0:
        # Topics came into being without a frame in this log: it has lost its frames.
        return _rebuild(engine, report, max(snapshots.numbers, default=0))
    report.warn("no snapshot is readable: the whole log is replayed, and records that it has no frames of are kept")
    found, _ = rebuild_topics(fs, root, report.warn, cold=engine.cold, only=gaps.topic_ids, gaps_are_lost=False)
    unknown_ids = set(_topics_with_directory(engine)) - gaps.known_ids
    if unknown_ids:
        unknown, next_topic_id = rebuild_topics(fs, root, report.warn, cold=engine.cold, only=unknown_ids)
        engine.core.note_topic_id(next_topic_id - 1)
        found += unknown
    for item in found:
        report.note(f'topic "{item.state.name}": records of {len(item.state.segments)} segments are kept')
    return _rebuilt(None, found)


def _rebuild(engine: Engine, report: RecoveryReport, number: int) -> LoadedTopics:
    fs, root = engine.directory.fs, engine.directory.root
    report.warn("no snapshot is readable: topics are rebuilt from their segments, and their floors are guesses")
    found, next_topic_id = rebuild_topics(fs, root, report.warn, cold=engine.cold)
    engine.core.note_topic_id(next_topic_id - 1)
    for item in found:
        report.warn(f'topic "{item.state.name}" was rebuilt from {len(item.state.segments)} segments')
    count = found_shard_count(fs, root) or engine.settings.wal_shards
    positions = []
    for shard in range(count):
        files = list_wal_files(fs, layout.shard_directory(root, shard, count))
        first = files[0].first_frame if files else 1
        positions.append(WalPosition(first, first, 0))
    return _rebuilt(Snapshot(number, 0, positions), found)


def _rebuilt(snapshot: Snapshot | None, found: list[RebuiltTopic]) -> LoadedTopics:
    floors = {}
    for item in found:
        state = item.state
        evicted = max(state.cap_floor, state.ttl_floor, state.trim_floor)
        # Floors may be newer than the cursors of routers, which may still have to pass over records on disk.
        floors[state.id] = state.segments[0].first_seq - 1 if state.segments else evicted
    replaced = [ReplacedSegmentKey(item.state.id, first_seq) for item in found for first_seq in item.replaced]
    return LoadedTopics(snapshot, [], replaced, {}, floors, {item.state.id: item for item in found})


def topic_of_state(engine: Engine, state: TopicState) -> Topic:
    core = engine.core
    topic = Topic.from_snapshot(state, SegmentSet(core.cache, state.id, state.segments), core.live_bytes)
    core.note_time(topic.writes.last_ts)
    return topic


def _wal_is_complete(engine: Engine) -> bool:
    """Whether every shard still has its first frame."""
    fs, root = engine.directory.fs, engine.directory.root
    count = found_shard_count(fs, root)
    shards = [list_wal_files(fs, layout.shard_directory(root, shard, count)) for shard in range(count)]
    firsts = [files[0].first_frame for files in shards if files]
    return bool(firsts) and all(first == 1 for first in firsts)


def _topics_with_directory(engine: Engine) -> list[int]:
    names = engine.directory.fs.listdir(layout.topics_directory(engine.directory.root))
    return [topic_id for name in names if (topic_id := layout.topic_of(name)) is not None]


def _decode_entry(engine: Engine, entry: bytes | msgspec.Raw, number: int) -> TopicState:
    """The checksum of the snapshot is good, so a senseless entry is not bit rot: the start is refused, and no older
    snapshot is used."""
    try:
        state = decode_topic(entry)
        stored_config(state.config)
    except FormatError as error:
        path = layout.snapshot_path(engine.directory.root, number)
        raise Damaged(path, 0, "a topic entry", error.message) from error
    return state


class _TopicLoader:
    """Loads one topic after the other, and notes what later phases ask for."""

    def __init__(self, engine: Engine, report: RecoveryReport, with_directory: frozenset[int]) -> None:
        self._engine = engine
        self._report = report
        # Ids of topics that have a directory: one without segments may have got some from an unfinished checkpoint.
        self._with_directory = with_directory
        self._missing: list[MissingSegment] = []
        self._replaced: list[ReplacedSegmentKey] = []
        self._evict_floors: dict[int, int] = {}
        self._adopted: dict[int, AdoptedRecords] = {}

    def loaded(self, snapshot: Snapshot, unused_entries: dict[int, bytes]) -> LoadedTopics:
        return LoadedTopics(
            snapshot, self._missing, self._replaced, unused_entries, self._evict_floors, adopted=self._adopted
        )

    def load(self, noted: TopicState) -> None:
        engine = self._engine
        state, dropped = self._adopt(noted)
        from_tier = self._set_missing_aside(state)
        topic = topic_of_state(engine, state)
        topic.live.segments.note_dropped(dropped)
        topic.live.segments.doubt_numbers(from_tier)
        self._evict_floors[state.id] = max(state.cap_floor, state.ttl_floor, state.trim_floor)
        engine.core.add_topic(topic)

    def _adopt(self, state: TopicState) -> tuple[TopicState, list[SegmentState]]:
        """The state in line with the files, and the segments whose files are left to be removed."""
        if not state.segments and state.id not in self._with_directory:
            return state, []
        noted = encode_topic(state)
        adopted = AdoptedRecords(state.checkpointed_seq + 1)
        try:
            dropped = adopt_segments(
                self._engine.directory.fs,
                self._engine.directory.root,
                state,
                adopted,
                self._report.warn,
                self._report.note,
                lambda first_seq: self._replaced.append(ReplacedSegmentKey(state.id, first_seq)),
            )
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # The WAL still has every record that the unfinished checkpoint put into segments.
            self._report.warn(
                f'topic "{state.name}": no room to take in the records that an unfinished checkpoint left'
            )
            return decode_topic(noted), []
        if adopted:
            self._adopted[state.id] = adopted
        return state, dropped

    def _set_missing_aside(self, state: TopicState) -> list[int]:
        """Takes segments without a file out of the state. The WAL may say that all their records are dead.

        Returns the first seqs of segments that the snapshot calls hot and that only the cold tier has.
        """
        engine = self._engine
        found: list[SegmentState] = []
        from_tier: list[int] = []
        for segment in state.segments:
            path = f"{engine.core.cache.stem(state.id, segment.first_seq)}.data"
            if segment.tier == "hot" and not engine.directory.fs.exists(path):
                key = layout.segment_object(state.id, segment.first_seq, "data")
                if engine.cold is None or not engine.cold.exists(key):
                    self._missing.append(MissingSegment(state.id, segment))
                    continue
                segment.tier = "cold"
                from_tier.append(segment.first_seq)
            found.append(segment)
        state.segments = found
        return from_tier
