"""An offline, read-only check of a data directory: every checksum, index, number and floor.

Nothing is written, not even a lock file. Findings come as a stream, in the order: directory, snapshots, WAL, topics,
cold tier. Memory is bounded by one segment's numbers and a window of bytes.

When a server has the directory open, what is sealed is checked as ever; its tail moves meanwhile, so that what
looks torn or missing there is only noted.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from topics.errors import ColdUnavailable, Damaged, FormatError, FutureVersion, StartRefused
from topics.formats import snapshot as snapshot_codec
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, WalPosition
from topics.storage import layout
from topics.storage.directory import Holder
from topics.storage.fs import Fs, read_file
from topics.storage.inspect.findings import Finding, Severity, Totals
from topics.storage.inspect.segment_survey import SegmentSurvey, SegmentTask, cold_files, hot_files
from topics.storage.inspect.wal_survey import ShardSurvey, TopicTrace
from topics.storage.segments.replacement import read_mark, version_in_place
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id
from topics.storage.wal.reader import list_wal_files

Progress = Callable[[int, int], None]

# Set aside by a start or by `doctor`, or half-written: known, and never an error.
LEFT_OVERS: Final = (layout.TORN, layout.TEMPORARY, layout.BROKEN, layout.REWRITE)
_ROOT_NAMES: Final = frozenset({layout.LOCK, layout.STORE, "meta", "wal", "topics", "staging", "streams"})
_BACKUP: Final = "if this is a copy, it was taken while a server was writing: take it again with the server stopped"


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
    ) -> None:
        """`leave_segment` is given each listed segment that is there, for somebody else to survey."""
        self._fs = fs
        self._root = root
        self._cold = cold
        self._leave_segment = leave_segment
        # The caller has the directory's lock: nobody else writes.
        self._holds_lock = holds_lock
        self._progress = progress or _no_progress
        self.totals = Totals()
        self.holder = Holder()
        self.store_id: str | None = None
        self.store_is_bad = False
        self.snapshot: Snapshot | None = None
        self.snapshot_numbers: list[int] = []
        self.states: dict[int, TopicState] = {}
        self.shards: list[ShardSurvey] = []
        self.wrong_currents: list[tuple[str, str]] = []
        # (topic id, segment) whose files are nowhere.
        self.missing: list[tuple[int, SegmentState]] = []
        # Hot segments of which something derived should be built again.
        self.bad_indexes: list[tuple[int, SegmentState]] = []
        self.bad_tags: list[tuple[int, SegmentState]] = []
        self._traces: dict[int, TopicTrace] = {}
        # By topic id and first seq, segments that an older snapshot lists: they stay while it does.
        self._kept: dict[tuple[int, int], SegmentState] = {}

    def run(self) -> Iterator[Finding]:
        """Raises `StartRefused` when there is no data directory, or a newer version wrote it; `OSError` as it comes."""
        for finding in self._run():
            yield self.totals.count(finding)

    def _run(self) -> Iterator[Finding]:
        if not self._fs.exists(self._root):
            raise StartRefused(f"{self._root}: there is no such directory")
        names = self._list(self._root)
        if not {"wal", "meta", "topics"} & set(names):
            raise StartRefused(f"{self._root} is no data directory: it has neither wal/ nor meta/ nor topics/")
        self.totals.bytes_total = self._size_of_tree(self._root)
        yield from self._check_lock()
        yield from self._check_root(names)
        yield from self._check_snapshots()
        yield from self._check_wal()
        yield from self._check_topics()
        yield from self._check_cold()
        self._progress(self.totals.bytes_total, self.totals.bytes_total)

    # Small things.

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root + "/")

    def _list(self, directory: str) -> list[str]:
        return self._fs.listdir(directory) if self._fs.exists(directory) else []

    def _is_directory(self, path: str) -> bool:
        try:
            self._fs.listdir(path)
        except NotADirectoryError:
            return False
        return True

    def _size_of_tree(self, directory: str) -> int:
        total = 0
        for name in self._list(directory):
            path = f"{directory}/{name}"
            try:
                total += self._fs.size(path)
            except IsADirectoryError:
                if name not in ("staging", "streams"):
                    total += self._size_of_tree(path)
            except FileNotFoundError:
                continue
        return total

    def _read_bytes(self, count: int) -> None:
        self.totals.bytes_read += count
        self.totals.bytes_total = max(self.totals.bytes_total, self.totals.bytes_read)
        self._progress(self.totals.bytes_read, self.totals.bytes_total)

    def _unknown(self, path: str) -> Finding:
        name = self._name(path)
        if path.endswith(layout.TEMPORARY):
            return Finding(severity="note", file=name, message="left over; the next start deletes it")
        if path.endswith(layout.REWRITE):
            text = "a copy of the log's end that a start left; the next one writes it back"
            return Finding(severity="note", file=name, message=text)
        if path.endswith(LEFT_OVERS):
            text = "bytes that were set aside; delete it when nobody needs it any more"
            return Finding(severity="note", file=name, message=text)
        return Finding(severity="note", file=self._name(path), message="not one of ours; left alone")

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
                yield self._unknown(f"{self._root}/{name}")

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
        for name in self._list(directory):
            number = layout.snapshot_number(name)
            if number is None:
                yield self._unknown(f"{directory}/{name}")
            else:
                by_number[number] = f"{directory}/{name}"
        self.snapshot_numbers = sorted(by_number)
        for number in reversed(self.snapshot_numbers):
            yield from self._check_snapshot(number, by_number[number])
        if self.snapshot_numbers and self.snapshot is None:
            yield Finding(
                severity="warning",
                file=self._name(directory),
                message="no snapshot can be read",
                advice="a start replays the whole log, or rebuilds the topics from their segments and guesses floors",
            )

    def _check_snapshot(self, number: int, path: str) -> Iterator[Finding]:
        name = self._name(path)
        try:
            raw = read_file(self._fs, path)
        except FileNotFoundError:
            return
        self.totals.files += 1
        self._read_bytes(len(raw))
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
        for message, state in _wrong_states(snapshot, states):
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
        """Where the shards stand: as the snapshot says, else as the files do."""
        wal = layout.wal_directory(self._root)
        if self.snapshot is not None:
            count = len(self.snapshot.wal)
        elif list_wal_files(self._fs, wal):
            count = 1
        else:
            shards = [
                shard
                for name in self._list(wal)
                if (shard := layout.shard_of(name)) is not None and list_wal_files(self._fs, f"{wal}/{name}")
            ]
            # One shard has no directory of its own, so these are at least two, whatever is left of them.
            count = max(2, max(shards) + 1) if shards else 0
        return [layout.shard_directory(self._root, shard, count) for shard in range(count)]

    def _check_wal(self) -> Iterator[Finding]:
        wal = layout.wal_directory(self._root)
        directories = self.shard_directories()
        firsts = [files[0].first_frame for directory in directories if (files := list_wal_files(self._fs, directory))]
        is_complete = all(first == 1 for first in firsts)
        if self.snapshot is None and not self.snapshot_numbers and not is_complete:
            text = "there is no snapshot, and the log does not reach back to its beginning"
            advice = f"a start rebuilds the topics from their segments and guesses floors; {_BACKUP}"
            yield Finding(severity="damage", file="meta", message=text, advice=advice)
        for shard, directory in enumerate(directories):
            survey = ShardSurvey(
                self._fs,
                self._root,
                directory,
                self._start_of(shard, directory, is_complete=is_complete),
                in_use=self.totals.in_use,
                on_bytes=self._read_bytes,
                topic_names={state.id: state.name for state in self.states.values()},
            )
            self.shards.append(survey)
            yield from survey.scan()
            yield from self._check_shard(survey, directory)
        if self.snapshot is None and is_complete and any(survey.end.frame > 1 for survey in self.shards):
            for survey in self.shards:
                if not survey.files:
                    yield survey.lose_all()
        others = {wal, *(f"{wal}/{name}" for name in self._list(wal) if layout.shard_of(name) is not None)}
        for directory in sorted(others - set(directories)):
            for file in list_wal_files(self._fs, directory):
                text = "a file of another number of shards than the newest snapshot says"
                yield Finding(severity="note", file=self._name(file.path), message=text)
        for name in self._list(wal):
            if wal not in directories and layout.shard_of(name) is None and layout.wal_first_frame(name) is None:
                yield self._unknown(f"{wal}/{name}")

    def _start_of(self, shard: int, directory: str, *, is_complete: bool) -> WalPosition | None:
        if self.snapshot is not None:
            return self.snapshot.wal[shard]
        if is_complete:
            return None
        # Without a readable snapshot a start takes what is there.
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
                    file=self._name(directory),
                    seq=trace.open_seq,
                    topic=self._topic_name(topic_id),
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
                yield Finding(severity="warning", file=self._name(directory), message=text, advice=advice)
        yield from self._check_current(survey, directory)
        for name in self._list(directory):
            is_ours = name == layout.CURRENT or layout.wal_first_frame(name) is not None
            if not is_ours and layout.shard_of(name) is None:
                yield self._unknown(f"{directory}/{name}")

    def _check_current(self, survey: ShardSurvey, directory: str) -> Iterator[Finding]:
        if not survey.files:
            return
        path = f"{directory}/{layout.CURRENT}"
        expected = survey.files[-1].path.rpartition("/")[2]
        found = read_file(self._fs, path)[:256].decode("ascii", "replace") if self._fs.exists(path) else ""
        if found == expected:
            return
        self.wrong_currents.append((path, expected))
        yield Finding(
            severity="warning",
            file=self._name(path),
            message="does not name the newest file",
            expected=expected,
            found=found,
            advice="a start derives it from the files",
        )

    # Topics and their segments.

    def _topic_name(self, topic_id: int) -> str:
        state, trace = self.states.get(topic_id), self._traces.get(topic_id)
        if state is not None:
            return state.name
        return trace.name if trace is not None and trace.name is not None else f"id {topic_id}"

    def _check_topics(self) -> Iterator[Finding]:
        topics = layout.topics_directory(self._root)
        seen: set[int] = set()
        for name in self._list(topics):
            path = f"{topics}/{name}"
            topic_id = layout.topic_of(name)
            if topic_id is None or not self._is_directory(path):
                if name.endswith(layout.DELETED):
                    text = "a removed topic's files; the next start finishes the removal"
                    yield Finding(severity="note", file=self._name(path), message=text)
                else:
                    yield self._unknown(path)
                continue
            seen.add(topic_id)
            yield from self._check_topic(topic_id, path)
        for topic_id in sorted(self.states.keys() - seen):
            yield from self._check_topic(topic_id, layout.topic_directory(self._root, topic_id))

    def _check_topic(self, topic_id: int, directory: str) -> Iterator[Finding]:
        state = self.states.get(topic_id)
        trace = self._traces.get(topic_id) or TopicTrace()
        found: dict[int, set[str]] = {}
        has_description = False
        marked: set[int] = set()
        for name in self._list(directory):
            parsed = layout.segment_of(name)
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
            elif (first_seq := layout.replaced_mark_of(name)) is not None:
                marked.add(first_seq)
                yield from self._check_mark(topic_id, first_seq)
            elif name == layout.TOPIC_JSON:
                has_description = True
                yield from self._check_topic_json(topic_id, f"{directory}/{name}", state)
            else:
                yield self._unknown(f"{directory}/{name}")
        if trace.removed:
            if found:
                text = "files of a topic that the log says was removed; the next start finishes the removal"
                yield Finding(severity="note", file=self._name(directory), message=text)
            return
        if state is not None and state.segments and not has_description:
            text, advice = "missing", "derived: the next checkpoint of the topic writes it"
            path = f"{self._name(directory)}/{layout.TOPIC_JSON}"
            yield Finding(severity="warning", file=path, message=text, topic=state.name, advice=advice)
        for segment in state.segments if state is not None else []:
            kinds = found.pop(segment.first_seq, set())
            assert state is not None
            if segment.first_seq in marked and "data" in kinds:
                segment = self._as_replaced(topic_id, segment, state.first_live)
            yield from self._check_listed(state, trace, segment, kinds)
        for first_seq, kinds in sorted(found.items()):
            yield from self._check_unlisted(topic_id, state, first_seq, kinds)

    def _as_replaced(self, topic_id: int, noted: SegmentState, floor_seq: int) -> SegmentState:
        """The segment as its files are, where a snapshot notes it as it was before they were exchanged."""
        stem = f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(noted.first_seq)}"
        try:
            return version_in_place(self._fs, stem, noted, floor_seq) or noted
        except FormatError:
            return noted

    def _check_mark(self, topic_id: int, first_seq: int) -> Iterator[Finding]:
        self.totals.files += 1
        stem = f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(first_seq)}"
        try:
            read_mark(self._fs, stem)
        except FormatError as error:
            yield Finding(
                severity="damage",
                file=self._name(stem + layout.REPLACED),
                message=error.message,
                topic=self._topic_name(topic_id),
                advice="it tells what a segment was before it was written again; a start does without it where it can",
            )

    def _check_topic_json(self, topic_id: int, path: str, state: TopicState | None) -> Iterator[Finding]:
        self.totals.files += 1
        raw = read_file(self._fs, path)
        self._read_bytes(len(raw))
        advice = "derived: needed only when no snapshot can be read; the next change of the topic writes it again"
        try:
            content = msgspec.json.decode(raw, type=_TopicJson)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"not the description of a topic: {error}"
            yield Finding(severity="damage", file=self._name(path), offset=0, message=text, advice=advice)
            return
        expected = (topic_id, state.name if state is not None else content.name)
        if (content.id, content.name) != expected:
            yield Finding(
                severity="damage",
                file=self._name(path),
                message="describes another topic",
                expected=f'"{expected[1]}" with id {topic_id}',
                found=f'"{content.name}" with id {content.id}',
                advice=advice,
            )

    def _check_listed(
        self, state: TopicState, trace: TopicTrace, segment: SegmentState, kinds: set[str]
    ) -> Iterator[Finding]:
        if "data" in kinds:
            if segment.tier == "cold":
                name = layout.segment_object(state.id, segment.first_seq, "data")
                text = "both here and in the cold tier; the copy here is used"
                yield Finding(severity="note", file=name, topic=state.name, message=text)
            if self._leave_segment is not None:
                self._leave_segment(SegmentTask.of(self._root, state, segment, is_cold=False))
                return
            survey = SegmentSurvey(
                hot_files(self._fs, self._root, state.id, state.name, segment.first_seq),
                segment.first_seq,
                segment,
                state,
            )
            yield from self._survey(survey, len(kinds))
            if survey.bad_index:
                self.bad_indexes.append((state.id, segment))
            if survey.bad_tags:
                self.bad_tags.append((state.id, segment))
        elif segment.tier == "hot" and segment.last_seq >= _replayed_floor(state, trace):
            yield from self._check_missing(state, segment)

    def _survey(self, survey: SegmentSurvey, files: int) -> Iterator[Finding]:
        try:
            yield from survey.scan()
        except FileNotFoundError:
            # A server removed it meanwhile.
            if not self.totals.in_use:
                raise
        self.totals.files += files
        self.totals.frames += survey.frames
        self.totals.records += survey.frames
        self._read_bytes(survey.bytes_read)

    def _check_missing(self, state: TopicState, segment: SegmentState) -> Iterator[Finding]:
        name = layout.segment_object(state.id, segment.first_seq, "data")
        if self._cold is not None and self._cold.exists(name):
            severity: Severity = "note"
            text = "only the cold tier has it, the newest snapshot says it is here"
            advice = "a start with that tier notes where it is"
        else:
            self.missing.append((state.id, segment))
            severity = "note" if self.totals.in_use else "damage"
            text = f"missing: the newest snapshot lists it with {segment.live_count} live records"
            advice = (
                "the server may have dropped it since"
                if self.totals.in_use
                else f"a start is refused; {_BACKUP}; `topics doctor --repair --accept-loss` gives these seqs up"
            )
        yield Finding(
            severity=severity,
            file=name,
            seq=segment.first_seq,
            last_seq=segment.last_seq,
            topic=state.name,
            message=text,
            advice=advice,
        )

    def _check_unlisted(
        self, topic_id: int, state: TopicState | None, first_seq: int, kinds: set[str]
    ) -> Iterator[Finding]:
        topic = self._topic_name(topic_id)
        name = layout.segment_object(topic_id, first_seq, "data")
        if "data" not in kinds:
            text = f"{' and '.join(sorted(kinds))} without data; left alone"
            yield Finding(severity="note", file=name.removesuffix(".data"), topic=topic, message=text)
            return
        files = hot_files(self._fs, self._root, topic_id, topic, first_seq)
        kept = self._kept.get((topic_id, first_seq))
        if kept is not None:
            kept = self._as_replaced(topic_id, kept, 0)
        if kept is not None and state is not None and self._leave_segment is not None:
            self._leave_segment(SegmentTask.of(self._root, state, kept, is_cold=False, numbers="older"))
            return
        survey = SegmentSurvey(files, first_seq, kept, state, numbers="older")
        yield from self._survey(survey, len(kinds))
        if kept is not None:
            return
        severity: Severity = "note"
        advice = ""
        if state is None or first_seq > state.checkpointed_seq:
            message, advice = "no snapshot lists it", "made by an unfinished checkpoint; a start takes it in"
        elif survey.live_count == 0:
            message = "no snapshot lists it, all its records are dead"
        else:
            message = "no snapshot lists it, and it does not continue the ones that are listed; left alone"
            severity = "note" if self.totals.in_use else "warning"
        yield Finding(
            severity=severity,
            file=name,
            seq=first_seq,
            topic=topic,
            message=message,
            advice=advice,
        )

    # The cold tier.

    def _check_cold(self) -> Iterator[Finding]:
        listed = {
            (state.id, segment.first_seq): (state, segment)
            for state in self.states.values()
            for segment in state.segments
            if segment.tier == "cold" and not self._traces.get(state.id, TopicTrace()).removed
        }
        cold = self._cold
        if cold is None:
            if listed:
                text = f"{len(listed)} segments are in a cold tier and were not checked"
                yield Finding(severity="note", file="meta", message=text, advice="name the tier with --cold ADDRESS")
            return
        yield from self._check_cold_store(cold)
        names = set(cold.list("topics/"))
        self.totals.bytes_total += sum(
            cold.size(name) for key in listed if (name := layout.segment_object(*key, "data")) in names
        )
        for (topic_id, first_seq), (state, segment) in sorted(listed.items()):
            floor = _replayed_floor(state, self._traces.get(topic_id) or TopicTrace())
            kinds = {kind for kind in ("data", "idx", "tags") if _take(names, topic_id, first_seq, kind)}
            if "data" in kinds or cold.exists(layout.segment_object(topic_id, first_seq, "data")):
                if self._leave_segment is not None:
                    self._leave_segment(SegmentTask.of(cold.address, state, segment, is_cold=True))
                    continue
                files = cold_files(cold, topic_id, state.name, first_seq)
                yield from self._survey(SegmentSurvey(files, first_seq, segment, state), len(kinds))
            elif segment.last_seq >= floor and not self._fs.exists(
                f"{self._root}/{layout.segment_object(topic_id, first_seq, 'data')}"
            ):
                self.missing.append((topic_id, segment))
                yield Finding(
                    severity="damage",
                    file=f"{cold.address}/{layout.segment_object(topic_id, first_seq, 'data')}",
                    seq=first_seq,
                    last_seq=segment.last_seq,
                    topic=state.name,
                    message=f"missing: the newest snapshot lists it with {segment.live_count} live records",
                    advice="reads of these seqs fail; `topics doctor --repair --accept-loss` gives them up",
                )
        for name in sorted(names):
            text = "no snapshot lists it in the cold tier"
            yield Finding(severity="note", file=f"{cold.address}/{name}", message=text)

    def _check_cold_store(self, cold: SegmentStore) -> Iterator[Finding]:
        file = f"{cold.address}/{layout.STORE}"
        try:
            found = read_store_id(cold)
        except FutureVersion:
            raise
        except StartRefused as error:
            yield Finding(severity="damage", file=file, offset=0, message=error.message)
            return
        if found is None:
            yield Finding(severity="damage", file=file, message="missing: this is not the tier it was; is it mounted?")
        elif self.store_id is not None and found != self.store_id:
            text = "this tier belongs to another data directory"
            yield Finding(severity="damage", file=file, message=text, expected=self.store_id, found=found)


class _TopicJson(msgspec.Struct):
    id: int
    name: str
    epoch: int
    config: dict[str, object]


def _take(names: set[str], topic_id: int, first_seq: int, kind: str) -> bool:
    name = layout.segment_object(topic_id, first_seq, kind)
    is_there = name in names
    names.discard(name)
    return is_there


def _replayed_floor(state: TopicState, trace: TopicTrace) -> int:
    """Seqs below it are dead once the log is replayed."""
    floors = (state.cap_floor, state.ttl_floor, state.trim_floor, trace.cap_floor)
    return max(max(floors) + 1, state.delete_below, trace.delete_below)


def _wrong_states(snapshot: Snapshot, states: list[TopicState]) -> Iterator[tuple[str, TopicState | None]]:
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
        for message in _wrong_state(state):
            yield message, state


def _wrong_state(state: TopicState) -> Iterator[str]:
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
    for what, ranges in (("lost", state.lost), ("pending delete", state.pending_deletes)):
        for first, last in ranges:
            if not 0 < first <= last or last > head:
                yield f"the {what} range {first} to {last} is no range of seqs up to the head {head}"
    for first, last in state.pending_deletes:
        if not any(segment.first_seq <= first and last <= segment.last_seq for segment in state.segments):
            yield f"the pending deletes {first} to {last} are in no segment"


def _no_progress(done: int, total: int) -> None:
    pass
