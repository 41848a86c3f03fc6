"""An offline, read-only check of a data directory: every checksum, index, number and floor.

Nothing is written, not even a lock file. Findings come as a stream, in the order: directory, snapshots, WAL, topics,
cold tier. Memory is bounded by one segment's numbers and a window of bytes.

When a server has the directory open, all is checked as usual, and what is bad is looked at again (`confirmation`).
"""

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from topics.errors import ColdUnavailable, Damaged, FormatError, FutureVersion, StartRefused
from topics.formats import snapshot as snapshot_codec
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition
from topics.storage import layout
from topics.storage.directory import Holder
from topics.storage.fs import Fs, read_file
from topics.storage.inspect.confirmation import confirmed, undisturbed
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.inspection import Inspection, Progress
from topics.storage.inspect.segment_survey import SegmentTask
from topics.storage.inspect.snapshot_rules import wrong_states
from topics.storage.inspect.topic_files import BACKUP_ADVICE, TopicFiles, topic_name
from topics.storage.inspect.wal_survey import ShardSurvey, TopicTrace
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id
from topics.storage.wal.missing_files import read_current
from topics.storage.wal.reader import list_wal_files

_ROOT_NAMES: Final = frozenset(
    {layout.LOCK, layout.STORE, layout.RESTORE_NOTE, "meta", "wal", "topics", "staging", "streams"}
)


class Verifier:
    """Iterate `run()`; `totals` counts meanwhile. Afterwards it knows what `repair` needs."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        *,
        cold: SegmentStore | None = None,
        progress: Progress | None = None,
        holds_lock: bool = False,
        leave_segment: Callable[[SegmentTask], None] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        """`leave_segment` gets each listed segment that exists. Then the caller surveys the segments.

        `only` are files as findings name them: other segments are not surveyed.
        """
        self._fs = fs
        self._root = root
        self._cold = cold
        self._leave_segment = leave_segment
        self._only = only
        # The caller has the directory's lock: no other process writes.
        self._holds_lock = holds_lock
        self._place = Inspection(fs, root, progress)
        self.totals = self._place.totals
        self.holder = Holder()
        self.store_id: str | None = None
        self.store_is_bad = False
        self.snapshot: Snapshot | None = None
        self.snapshot_numbers: list[int] = []
        self.states: dict[int, TopicState] = {}
        self.shards: list[ShardSurvey] = []
        self.wrong_currents: list[tuple[str, str]] = []
        # (topic id, segment) whose files are in no tier.
        self.missing: list[tuple[int, SegmentState]] = []
        # Hot segments whose index or tag sidecar should be rebuilt.
        self.bad_indexes: list[tuple[int, SegmentState]] = []
        self.bad_tags: list[tuple[int, SegmentState]] = []
        self._traces: dict[int, TopicTrace] = {}
        # By topic id and first seq, segments that an older snapshot lists: they stay while it does.
        self._kept: dict[tuple[int, int], SegmentState] = {}

    def run(self) -> Iterator[Finding]:
        """Raises `StartRefused` when there is no data directory, or a newer version wrote it; `OSError` as it comes."""
        return confirmed(self._run(), self.totals, self._look_again)

    def _look_again(self, files: Collection[str]) -> Iterator[Finding]:
        leave = None if self._leave_segment is None else _left_already
        again = Verifier(self._fs, self._root, cold=self._cold, holds_lock=True, leave_segment=leave, only=files)
        again.totals.in_use = True
        return again._run()

    def _run(self) -> Iterator[Finding]:
        if not self._fs.exists(self._root):
            raise StartRefused(f"{self._root}: there is no such directory")
        names = self._place.names_in(self._root)
        if not {"wal", "meta", "topics"} & set(names):
            raise StartRefused(f"{self._root} is no data directory: it has neither wal/ nor meta/ nor topics/")
        self.totals.bytes_total = self._place.size_of_tree(self._root)
        yield from self._check_lock()
        yield from self._check_root(names)
        yield from self._check_snapshots()
        yield from undisturbed(self._check_wal, self.totals)
        yield from self._check_topics()
        self._place.progress(self.totals.bytes_total, self.totals.bytes_total)

    def _check_topics(self) -> Iterator[Finding]:
        files = TopicFiles(
            self._place,
            self._cold,
            self.states,
            self._kept,
            self._traces,
            store_id=self.store_id,
            leave_segment=self._leave_segment,
            only=self._only,
        )
        self.missing, self.bad_indexes, self.bad_tags = files.missing, files.bad_indexes, files.bad_tags
        yield from files.check()

    # Lock, STORE, the root.

    def _check_lock(self) -> Iterator[Finding]:
        path = f"{self._root}/{layout.LOCK}"
        if self._holds_lock or not self._fs.exists(path):
            return
        try:
            self.holder = msgspec.json.decode(read_file(self._fs, path), type=Holder)
        except msgspec.DecodeError:
            yield Finding(severity="warning", file=layout.LOCK, message="unreadable; the next start writes it again")
        except OSError:
            pass
        try:
            lock = self._fs.lock(path)
        except OSError as error:
            text = f"cannot tell whether a server holds it: {error.strerror or error}"
            yield Finding(severity="note", file=layout.LOCK, message=text)
            return
        if lock is not None:
            lock.release()
            return
        self.totals.in_use = True
        yield Finding(
            severity="note",
            file=layout.LOCK,
            message=f"process {self.holder.pid} on {self.holder.host or 'this machine'} has the directory open: "
            "what is sealed is checked, the tail may be moving",
        )

    def _check_root(self, names: list[str]) -> Iterator[Finding]:
        self.totals.files += layout.STORE in names
        try:
            self.store_id = read_store_id(FolderStore(self._fs, self._root))
            if self.store_id is None:
                yield Finding(
                    severity="warning",
                    file=layout.STORE,
                    message="missing",
                    advice="the next start makes a new one, which a cold tier will not know",
                )
        except FutureVersion:
            raise
        except Damaged as error:
            yield self._bad_store(error.found)
        except (StartRefused, ColdUnavailable) as error:
            yield self._bad_store(error.message)
        for name in names:
            if name not in _ROOT_NAMES and not layout.is_repair_report(name):
                yield self._place.stray(f"{self._root}/{name}")

    def _bad_store(self, found: str) -> Finding:
        self.store_is_bad = True
        return Finding(
            severity="damage",
            file=layout.STORE,
            offset=0,
            message="not a store id",
            found=found,
            advice="a start is refused; `topics doctor --repair --cold ADDRESS` takes it from the cold tier",
        )

    # Snapshots.

    def _check_snapshots(self) -> Iterator[Finding]:
        directory = layout.meta_directory(self._root)
        by_number: dict[int, str] = {}
        for name in self._place.names_in(directory):
            number = layout.snapshot_number(name)
            if number is None:
                yield self._place.stray(f"{directory}/{name}")
            else:
                by_number[number] = f"{directory}/{name}"
        self.snapshot_numbers = sorted(by_number)
        for number in reversed(self.snapshot_numbers):
            yield from self._check_snapshot(number, by_number[number])
        if self.snapshot_numbers and self.snapshot is None:
            yield Finding(
                severity="warning",
                file=self._place.name(directory),
                message="no snapshot can be read",
                advice="a start replays the whole log, or rebuilds the topics from their segments and guesses floors",
            )

    def _check_snapshot(self, number: int, path: str) -> Iterator[Finding]:
        name = self._place.name(path)
        try:
            raw = read_file(self._fs, path)
        except FileNotFoundError:
            return
        self.totals.files += 1
        self._place.note_read(len(raw))
        try:
            snapshot = snapshot_codec.decode(raw)
            states = [snapshot_codec.decode_topic(entry) for entry in snapshot.topics]
        except FutureVersion as error:
            raise FutureVersion(f"{path}: {error.message}") from error
        except FormatError as error:
            is_newest = number == self.snapshot_numbers[-1]
            advice = "a start falls back to the one before it" if is_newest else "it would be needed as a fallback"
            yield Finding(severity="damage", file=name, offset=error.offset, message=error.message, advice=advice)
            return
        if snapshot.number != number:
            text = f"holds snapshot {snapshot.number}, its name says {number}"
            yield Finding(severity="warning", file=name, message=text)
        for message, state in wrong_states(snapshot, states):
            topic = state.name if state is not None else None
            advice = "it was written like this: please report it"
            yield Finding(severity="damage", file=name, message=message, topic=topic, advice=advice)
        if self.snapshot is None:
            self.snapshot = snapshot
            self.states = {state.id: state for state in states}
        else:
            self._kept |= {(state.id, segment.first_seq): segment for state in states for segment in state.segments}

    # WAL.

    def shard_directories(self) -> list[str]:
        """The directories of the shards: by the snapshot, else by the files."""
        if self.snapshot is not None:
            count = len(self.snapshot.wal)
        else:
            count = self._shard_count(list_wal_files) or self._shard_count(read_current)
        return [layout.shard_directory(self._root, shard, count) for shard in range(count)]

    def _shard_count(self, look: Callable[[Fs, str], object]) -> int:
        """How many shards the directories show in which `look` finds something."""
        wal = layout.wal_directory(self._root)
        if look(self._fs, wal):
            return 1
        shards = [
            shard
            for name in self._place.names_in(wal)
            if (shard := layout.shard_of(name)) is not None and look(self._fs, f"{wal}/{name}")
        ]
        # A single shard has no shard directory. So there were at least two, even if only one is left.
        return max(2, max(shards) + 1) if shards else 0

    def _check_wal(self) -> Iterator[Finding]:
        self.shards.clear()
        wal = layout.wal_directory(self._root)
        directories = self.shard_directories()
        firsts = [files[0].first_frame for directory in directories if (files := list_wal_files(self._fs, directory))]
        is_complete = all(first == 1 for first in firsts)
        if self.snapshot is None and not self.snapshot_numbers and not is_complete:
            text = "there is no snapshot, and the log does not reach back to its beginning"
            advice = f"a start rebuilds the topics from their segments and guesses floors; {BACKUP_ADVICE}"
            yield Finding(severity="damage", file="meta", message=text, advice=advice)
        for shard, directory in enumerate(directories):
            survey = ShardSurvey(
                self._fs,
                self._root,
                directory,
                self._start_of(shard, directory, is_complete=is_complete),
                in_use=self.totals.in_use,
                on_bytes=self._place.note_read,
                topic_names={state.id: state.name for state in self.states.values()},
            )
            self.shards.append(survey)
            yield from survey.scan()
            yield from self._check_shard(survey, directory)
        if self.snapshot is None and is_complete and any(survey.end.frame > 1 for survey in self.shards):
            for survey in self.shards:
                if not survey.files:
                    yield survey.lose_all()
        others = {wal, *(f"{wal}/{name}" for name in self._place.names_in(wal) if layout.shard_of(name) is not None)}
        for directory in sorted(others - set(directories)):
            for file in list_wal_files(self._fs, directory):
                text = "a file of another number of shards than the newest snapshot says"
                yield Finding(severity="note", file=self._place.name(file.path), message=text)
        for name in self._place.names_in(wal):
            if wal not in directories and layout.shard_of(name) is None and layout.wal_first_frame(name) is None:
                yield self._place.stray(f"{wal}/{name}")

    def _start_of(self, shard: int, directory: str, *, is_complete: bool) -> WalPosition | None:
        if self.snapshot is not None:
            return self.snapshot.wal[shard]
        if is_complete:
            return None
        # Without a readable snapshot a start begins with the first frame of the files.
        files = list_wal_files(self._fs, directory)
        first_frame = files[0].first_frame if files else 1
        return WalPosition(first_frame, first_frame, 0)

    def _check_shard(self, survey: ShardSurvey, directory: str) -> Iterator[Finding]:
        self.totals.files += len(survey.files)
        self.totals.frames += survey.frames
        self.totals.records += survey.records
        for topic_id, trace in survey.before.items():
            self._traces[topic_id] = trace
            if trace.open_seq is not None and survey.cut is None:
                yield Finding(
                    severity="note",
                    file=self._place.name(directory),
                    seq=trace.open_seq,
                    topic=topic_name(topic_id, self.states, self._traces),
                    message="the last write was not finished; a start drops it",
                )
        for topic_id, trace in survey.behind.items():
            merged = self._traces.setdefault(topic_id, trace)
            merged.removed |= trace.removed
        known = self.snapshot.next_topic_id if self.snapshot is not None else 1
        for topic_id, trace in sorted(survey.before.items()):
            if trace.name is None and topic_id not in self.states and topic_id >= known and not trace.removed:
                text = f"frames of topic id {topic_id} without its creation"
                advice = f"a start keeps them in topic recovered-{topic_id}"
                yield Finding(severity="warning", file=self._place.name(directory), message=text, advice=advice)
        yield from self._check_current(survey, directory)
        for name in self._place.names_in(directory):
            is_ours = name == layout.CURRENT or layout.wal_first_frame(name) is not None
            if not is_ours and layout.shard_of(name) is None:
                yield self._place.stray(f"{directory}/{name}")

    def _check_current(self, survey: ShardSurvey, directory: str) -> Iterator[Finding]:
        if not survey.files or survey.missing is not None:
            return
        path = f"{directory}/{layout.CURRENT}"
        expected = survey.files[-1].path.rpartition("/")[2]
        found = read_current(self._fs, directory) or ""
        if found == expected:
            return
        self.wrong_currents.append((path, expected))
        yield Finding(
            severity="warning",
            file=self._place.name(path),
            message="does not name the newest file",
            expected=expected,
            found=found,
            advice="a start derives it from the files",
        )


def _left_already(task: SegmentTask) -> None:
    """The caller has the segment since the first look."""
