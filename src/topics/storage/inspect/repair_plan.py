"""The plan of a repair: which steps it takes, what it refuses to do, and what is lost.

A plan changes nothing. `repair` acts on its steps in order and may be interrupted after any of them.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from topics.errors import StartRefused
from topics.formats import control, wal_frame
from topics.formats import snapshot as snapshot_codec
from topics.formats.record_layout import WAL_FLAGS_AT
from topics.formats.snapshot import SegmentState, Snapshot, TopicState
from topics.formats.wal_frame import FLAG_DURABLE, FLAG_FIRST, FrameType
from topics.limits import MIB, WAL_FILE_BYTES
from topics.storage import layout
from topics.storage.fs import File, Fs, write_all, write_atomic
from topics.storage.inspect.segment_survey import counting_floor
from topics.storage.inspect.verify import Verifier
from topics.storage.inspect.wal_survey import Cut, ShardSurvey, TopicTrace
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.reader import SegmentReader, build_tags
from topics.storage.segments.sources import FileSource
from topics.storage.snapshots import write_snapshot
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id
from topics.storage.wal.wal import shard_index

_COPY_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One thing a repair does. `text` is a sentence about what will be done."""

    text: str
    act: Callable[[], None]


@dataclass(slots=True)
class RepairPlan:
    steps: list[RepairStep] = field(default_factory=list)
    # What stays as it is, and why.
    refusals: list[str] = field(default_factory=list)
    # What the repair report says is lost, one entry per cut or missing segment.
    losses: list[dict[str, Any]] = field(default_factory=list)
    # The same, a sentence per topic.
    lost_lines: list[str] = field(default_factory=list)


def plan_repair(fs: Fs, root: str, seen: Verifier, cold: SegmentStore | None, *, accept_loss: bool) -> RepairPlan:
    """What a repair would do. `seen` must have run to its end."""
    plan = RepairPlan()
    _Planner(fs, root, seen, cold, plan, accept_loss=accept_loss).run()
    return plan


class _Planner:
    def __init__(
        self, fs: Fs, root: str, seen: Verifier, cold: SegmentStore | None, plan: RepairPlan, *, accept_loss: bool
    ) -> None:
        self._fs = fs
        self._root = root
        self._seen = seen
        self._cold = cold
        self._plan = plan
        self._accept_loss = accept_loss

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root + "/")

    def _add(self, text: str, act: Callable[[], None]) -> None:
        self._plan.steps.append(RepairStep(text, act))

    def run(self) -> None:
        self._repair_store()
        self._repair_wal()
        self._repair_segments()
        self._repair_derived()
        if self._plan.losses:
            name = self._report_name()
            content = msgspec.json.format(msgspec.json.encode({"format": 1, "lost": self._plan.losses}))
            act = _writer(self._fs, f"{self._root}/{name}", content)
            self._plan.steps.insert(0, RepairStep(f"write down what is lost in {name}", act))

    def _report_name(self) -> str:
        taken = set(self._fs.listdir(self._root))
        number = 1
        while layout.repair_report_name(number) in taken:
            number += 1
        return layout.repair_report_name(number)

    # STORE.

    def _repair_store(self) -> None:
        if not self._seen.store_is_bad:
            return
        store_id = self._cold_store_id()
        if store_id is None and not self._accept_loss:
            self._plan.refusals.append(
                f"{layout.STORE} is damaged: give --cold ADDRESS to take the store id from the cold tier, or "
                "--accept-loss for a new id, which no cold tier will know"
            )
            return
        origin = "the cold tier's id" if store_id is not None else "a new id"
        path = f"{self._root}/{layout.STORE}"
        self._add(
            f"write {layout.STORE} again with {origin}; the damaged one is kept as {layout.STORE}{layout.BROKEN}",
            lambda: self._write_store(path, store_id or secrets.token_hex(16)),
        )

    def _cold_store_id(self) -> str | None:
        if self._cold is None:
            return None
        try:
            return read_store_id(self._cold)
        except StartRefused:
            return None

    def _write_store(self, path: str, store_id: str) -> None:
        _set_aside(self._fs, path)
        ensure_store_id(FolderStore(self._fs, self._root), store_id)

    # The log.

    def _repair_wal(self) -> None:
        for shard, survey in enumerate(self._seen.shards):
            if survey.cut is not None:
                self._cut_shard(shard, survey, survey.cut)

    def _cut_shard(self, shard: int, survey: ShardSurvey, cut: Cut) -> None:
        frames, lost = self._frames_at(shard, survey, is_extent_known=cut.is_extent_known)
        directory = self._name(survey.directory)
        place = f"offset {cut.offset} of {self._name(cut.file.path)}" if cut.file is not None else f"a new {directory}"
        behind = f"{survey.frames_behind} valid frames follow" if survey.frames_behind else "no valid frame follows"
        self._plan.losses.append(
            {
                "what": "log",
                "file": self._name(cut.file.path) if cut.file is not None else directory,
                "offset": cut.offset,
                "first_lost_frame": cut.frame,
                "reason": cut.reason,
                "is_extent_known": cut.is_extent_known,
                "valid_frames_behind": survey.frames_behind,
                "set_aside": [self._name(file.path) for file in cut.later],
                "topics": lost,
                "decisions_written_again": len(survey.decisions),
            }
        )
        if not cut.is_extent_known:
            self._plan.lost_lines.append(
                f"lost: everything that was only in the log from frame {cut.frame} of {directory} on; how much that is "
                "cannot be known, so every topic of this shard gets a tombstone for one seq at least"
            )
        for entry in lost:
            self._plan.lost_lines.append(
                f'lost: seqs {entry["first_seq"]} to {entry["last_seq"]} of topic "{entry["topic"]}"; readers get a '
                f"tombstone ({entry['records_behind']} of them can be read from the copy)"
            )
        if cut.file is not None:
            path = cut.file.path
            self._add(
                f"copy {self._name(path)} to {self._name(free_broken_name(self._fs, path))}", lambda: self._keep(path)
            )
        again = f"{len(survey.decisions)} decisions found after it" if survey.decisions else "no decisions"
        self._add(
            f"cut the log in {directory} before frame {cut.frame}, at {place} ({cut.reason}; {behind}), "
            f"and write there again: {again}, {len(lost)} lost ranges",
            lambda: self._cut(survey.directory, cut, frames),
        )
        current = f"{survey.directory}/{layout.CURRENT}"
        name = self._cut_path(survey.directory, cut).rpartition("/")[2]
        self._add(f"let {self._name(current)} name {name}", _writer(self._fs, current, name.encode()))
        for later in reversed(cut.later):
            aside = self._name(free_broken_name(self._fs, later.path))
            self._add(
                f"set {self._name(later.path)} aside as {aside}",
                lambda later=later: _set_aside(self._fs, later.path),  # type: ignore[misc]
            )

    def _frames_at(
        self, shard: int, survey: ShardSurvey, *, is_extent_known: bool
    ) -> tuple[list[bytes], list[dict[str, Any]]]:
        """What is written at the cut, and the seqs that are lost there."""
        seen = self._seen
        frames = [
            wal_frame.seal_bodies([body])
            for body in survey.decisions
            if body[WAL_FLAGS_AT] & ~FLAG_DURABLE == FLAG_FIRST
        ]
        lost: list[dict[str, Any]] = []
        known_below = seen.snapshot.next_topic_id if seen.snapshot is not None else 1
        mine = {topic_id for topic_id in seen.states if shard_index(topic_id, len(seen.shards)) == shard}
        for topic_id in sorted(mine | survey.before.keys() | survey.behind.keys()):
            state = seen.states.get(topic_id)
            before, behind = survey.before.get(topic_id, TopicTrace()), survey.behind.get(topic_id, TopicTrace())
            if before.removed or behind.removed or (state is None and topic_id < known_below):
                continue
            checkpointed = state.checkpointed_seq if state is not None else 0
            first_seq = max(checkpointed, before.whole_last_seq) + 1
            ceiling = max(before.ceiling, behind.ceiling, state.ceiling if state is not None else 0)
            last_seq = max(behind.last_seq, ceiling - 1)
            if not is_extent_known and (state is None or state.config.get("durability") != "ephemeral"):
                last_seq = max(last_seq, first_seq)
            if last_seq < first_seq:
                continue
            frames.append(
                wal_frame.encode_control(
                    FrameType.HEAD, topic_id, 0, control.encode(control.Head(last_seq + 1, first_seq))
                )
            )
            name = state.name if state is not None else before.name or behind.name or f"recovered-{topic_id}"
            lost.append(
                {
                    "topic": name,
                    "id": topic_id,
                    "first_seq": first_seq,
                    "last_seq": last_seq,
                    "records_behind": behind.records,
                }
            )
        return frames, lost

    def _keep(self, path: str) -> None:
        """A durable copy beside the file."""
        copy = free_broken_name(self._fs, path)
        temporary = copy + layout.TEMPORARY
        if self._fs.exists(temporary):
            self._fs.unlink(temporary)
        source, target = self._fs.open(path, "read"), self._fs.open(temporary, "create")
        try:
            _copy(source, target, source.size())
            target.fsync()
        finally:
            source.close()
            target.close()
        self._fs.rename(temporary, copy)
        self._fs.sync_dir(copy.rpartition("/")[0])

    def _cut_path(self, directory: str, cut: Cut) -> str:
        return cut.file.path if cut.file is not None else f"{directory}/{layout.wal_name(cut.frame)}"

    def _cut(self, directory: str, cut: Cut, frames: list[bytes]) -> None:
        """Replaces the file by one that ends at the cut, with the new frames after it.

        In one step: a cut file without its lost ranges would be a silent loss. CURRENT names it before later files are
        set aside: while they exist a start is refused, so an interrupted repair is run again.
        """
        path = self._cut_path(directory, cut)
        temporary = path + layout.TEMPORARY
        self._fs.makedirs(directory)
        if self._fs.exists(temporary):
            self._fs.unlink(temporary)
        target = self._fs.open(temporary, "create")
        try:
            if cut.file is not None:
                source = self._fs.open(path, "read")
                try:
                    _copy(source, target, cut.offset)
                finally:
                    source.close()
            end = write_all(target, b"".join(frames), cut.offset)
            size = cut.file.size if cut.file is not None else 0
            target.preallocate(max(size or WAL_FILE_BYTES, end))
            target.fsync()
        finally:
            target.close()
        self._fs.rename(temporary, path)
        self._fs.sync_dir(directory)

    # Segments.

    def _repair_segments(self) -> None:
        seen = self._seen
        missing = seen.missing
        if missing and not self._accept_loss:
            for topic_id, segment in missing:
                name = layout.segment_object(topic_id, segment.first_seq, "data")
                self._plan.refusals.append(
                    f"{name} is missing (seqs {segment.first_seq} to {segment.last_seq} of topic "
                    f'"{seen.states[topic_id].name}"): put it back from a copy, or give --accept-loss to go on without'
                )
        if not missing or not self._accept_loss:
            return
        for topic_id, segment in missing:
            state = seen.states[topic_id]
            self._plan.losses.append(
                {
                    "what": "segment",
                    "file": layout.segment_object(topic_id, segment.first_seq, "data"),
                    "topics": [
                        {
                            "topic": state.name,
                            "id": topic_id,
                            "first_seq": segment.first_seq,
                            "last_seq": segment.last_seq,
                            "live_records": segment.live_count,
                        }
                    ],
                }
            )
            self._plan.lost_lines.append(
                f'lost: seqs {segment.first_seq} to {segment.last_seq} of topic "{state.name}" with '
                f"{segment.live_count} live records; readers get a tombstone"
            )
        number = max(seen.snapshot_numbers) + 1
        self._add(
            f"write {self._name(layout.snapshot_path(self._root, number))} without the {len(missing)} missing segments",
            lambda: self._write_snapshot(number, missing),
        )

    def _write_snapshot(self, number: int, missing: list[tuple[int, SegmentState]]) -> None:
        old = self._seen.snapshot
        assert old is not None, "segments are listed by a snapshot"
        states = [snapshot_codec.decode_topic(entry) for entry in old.topics]
        for state in states:
            gone = {segment.first_seq for topic_id, segment in missing if topic_id == state.id}
            if gone:
                give_up_segments(state, gone)
        entries = [snapshot_codec.encode_topic(state) for state in states]
        write_snapshot(self._fs, self._root, Snapshot(number, old.next_topic_id, old.wal, entries))

    # What can be derived again.

    def _repair_derived(self) -> None:
        for topic_id, segment in self._seen.bad_indexes:
            stem = self._stem(topic_id, segment)
            self._add(
                f"build {self._name(stem)}.idx again from the frames",
                lambda stem=stem, segment=segment: rebuild_index(self._fs, stem, segment),  # type: ignore[misc]
            )
        for topic_id, segment in self._seen.bad_tags:
            stem = self._stem(topic_id, segment)
            self._add(
                f"build {self._name(stem)}.tags again from the frames",
                lambda stem=stem, segment=segment: self._build_tags(stem, segment),  # type: ignore[misc]
            )
        cut = {survey.directory for survey in self._seen.shards if survey.cut is not None}
        for path, name in self._seen.wrong_currents:
            if path.rpartition("/")[0] not in cut:
                self._add(f"let {self._name(path)} name {name}", _writer(self._fs, path, name.encode()))

    def _stem(self, topic_id: int, segment: SegmentState) -> str:
        return f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(segment.first_seq)}"

    def _build_tags(self, stem: str, segment: SegmentState) -> None:
        reader = SegmentReader(FileSource(self._fs, stem), segment)
        try:
            tags = build_tags(reader)
        finally:
            reader.close()
        write_atomic(self._fs, f"{stem}.tags", tags)


def give_up_segments(state: TopicState, first_seqs: set[int]) -> None:
    """Removes segments from a topic. Their seqs that may have been live become lost ranges."""
    floor = counting_floor(state)
    gone = [segment for segment in state.segments if segment.first_seq in first_seqs and segment.last_seq >= floor]
    lost = [*state.lost, *((max(segment.first_seq, floor), segment.last_seq) for segment in gone)]
    state.segments = [segment for segment in state.segments if segment.first_seq not in first_seqs]
    state.lost = _merged(lost)
    state.pending_deletes = [
        (first, last)
        for first, last in state.pending_deletes
        if any(segment.first_seq <= first <= segment.last_seq for segment in state.segments)
    ]


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def free_broken_name(fs: Fs, path: str) -> str:
    """A name for what a repair sets aside."""
    name, number = path + layout.BROKEN, 1
    while fs.exists(name):
        number += 1
        name = f"{path}.{number}{layout.BROKEN}"
    return name


def _set_aside(fs: Fs, path: str) -> None:
    fs.rename(path, free_broken_name(fs, path))
    fs.sync_dir(path.rpartition("/")[0])


def _copy(source: File, target: File, size: int) -> None:
    """The first `size` bytes. Holes stay holes: a preallocated file is mostly zeros."""
    position = source.seek_data(0)
    while position is not None and position < size:
        chunk = source.pread(min(_COPY_BYTES, size - position), position)
        if not chunk:
            break
        position = source.seek_data(write_all(target, chunk, position))
    target.truncate(size)


def _writer(fs: Fs, path: str, content: bytes) -> Callable[[], None]:
    return lambda: write_atomic(fs, path, content)
