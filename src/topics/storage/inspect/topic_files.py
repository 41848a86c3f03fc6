"""The files of topics, hot and cold: descriptions, marks, listed segments, and segments that no snapshot lists."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from topics.errors import FormatError, FutureVersion, StartRefused
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage import layout
from topics.storage.fs import read_file
from topics.storage.inspect.confirmation import may_vanish
from topics.storage.inspect.findings import Finding, Severity
from topics.storage.inspect.inspection import Inspection
from topics.storage.inspect.segment_survey import SegmentSurvey, SegmentTask, cold_files, hot_files
from topics.storage.inspect.wal_survey import TopicTrace
from topics.storage.segments.replacement import read_mark, version_in_place
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id

BACKUP_ADVICE: Final = (
    "if this is a copy, it was taken while a server was writing: take it again with the server stopped"
)


class TopicFiles:
    """Compares the files of topics with the snapshots and the log.

    `states` are the topics of the newest snapshot, by id. `kept` are segments that an older snapshot lists, by topic id
    and first seq: they stay while that snapshot does. `traces` is what the log says, by topic id. With `only`, segments
    of which no file is named there are not surveyed.
    """

    def __init__(
        self,
        place: Inspection,
        cold: SegmentStore | None,
        states: Mapping[int, TopicState],
        kept: Mapping[tuple[int, int], SegmentState],
        traces: Mapping[int, TopicTrace],
        *,
        store_id: str | None,
        leave_segment: Callable[[SegmentTask], None] | None,
        only: Collection[str] | None = None,
    ) -> None:
        self._place = place
        self._fs = place.fs
        self._root = place.root
        self._totals = place.totals
        self._cold = cold
        self._states = states
        self._kept = kept
        self._traces = traces
        self._store_id = store_id
        self._leave_segment = leave_segment
        self._only = None if only is None else {file.rpartition(".")[0] for file in only}
        # (topic id, segment) whose files are in no tier.
        self.missing: list[tuple[int, SegmentState]] = []
        # Hot segments whose index or tag sidecar should be built again.
        self.bad_indexes: list[tuple[int, SegmentState]] = []
        self.bad_tags: list[tuple[int, SegmentState]] = []

    def check(self) -> Iterator[Finding]:
        yield from self._check_topics()
        yield from self._check_cold()

    def _topic_name(self, topic_id: int) -> str:
        return topic_name(topic_id, self._states, self._traces)

    def _check_topics(self) -> Iterator[Finding]:
        topics = layout.topics_directory(self._root)
        seen: set[int] = set()
        for name in self._place.names_in(topics):
            path = f"{topics}/{name}"
            topic_id = layout.topic_of(name)
            if topic_id is None or not self._place.is_directory(path):
                if name.endswith(layout.DELETED):
                    text = "a removed topic's files; the next start finishes the removal"
                    yield Finding(severity="note", file=self._place.name(path), message=text)
                else:
                    yield self._place.stray(path)
                continue
            seen.add(topic_id)
            yield from self._check_topic(topic_id, path)
        for topic_id in sorted(self._states.keys() - seen):
            yield from self._check_topic(topic_id, layout.topic_directory(self._root, topic_id))

    def _check_topic(self, topic_id: int, directory: str) -> Iterator[Finding]:
        state = self._states.get(topic_id)
        trace = self._traces.get(topic_id) or TopicTrace()
        found: dict[int, set[str]] = {}
        has_description = False
        marked: set[int] = set()
        for name in self._place.names_in(directory):
            parsed = layout.segment_of(name)
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
            elif (first_seq := layout.replaced_mark_of(name)) is not None:
                marked.add(first_seq)
                with may_vanish(self._totals):
                    yield from self._check_mark(topic_id, first_seq)
            elif name == layout.TOPIC_JSON:
                has_description = True
                with may_vanish(self._totals):
                    yield from self._check_topic_json(topic_id, f"{directory}/{name}", state)
            else:
                yield self._place.stray(f"{directory}/{name}")
        if trace.removed:
            if found:
                text = "files of a topic that the log says was removed; the next start finishes the removal"
                yield Finding(severity="note", file=self._place.name(directory), message=text)
            return
        if state is not None and state.segments and not has_description:
            text, advice = "missing", "derived: the next checkpoint of the topic writes it"
            path = f"{self._place.name(directory)}/{layout.TOPIC_JSON}"
            yield Finding(severity="warning", file=path, message=text, topic=state.name, advice=advice)
        for segment in state.segments if state is not None else []:
            kinds = found.pop(segment.first_seq, set())
            assert state is not None
            with may_vanish(self._totals):
                if segment.first_seq in marked and "data" in kinds:
                    segment = self._as_replaced(topic_id, segment, state.first_live)
                yield from self._check_listed(state, trace, segment, kinds)
        for first_seq, kinds in sorted(found.items()):
            with may_vanish(self._totals):
                yield from self._check_unlisted(topic_id, state, first_seq, kinds)

    def _as_replaced(self, topic_id: int, noted: SegmentState, floor_seq: int) -> SegmentState:
        """The state of the files, if they were replaced after the snapshot noted the segment; else the noted state."""
        stem = f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(noted.first_seq)}"
        try:
            return version_in_place(self._fs, stem, noted, floor_seq) or noted
        except FormatError:
            return noted

    def _check_mark(self, topic_id: int, first_seq: int) -> Iterator[Finding]:
        self._totals.files += 1
        stem = f"{layout.topic_directory(self._root, topic_id)}/{layout.segment_stem(first_seq)}"
        try:
            read_mark(self._fs, stem)
        except FormatError as error:
            yield Finding(
                severity="damage",
                file=self._place.name(stem + layout.REPLACED),
                message=error.message,
                topic=self._topic_name(topic_id),
                advice="it tells what a segment was before it was written again; a start does without it where it can",
            )

    def _check_topic_json(self, topic_id: int, path: str, state: TopicState | None) -> Iterator[Finding]:
        self._totals.files += 1
        raw = read_file(self._fs, path)
        self._place.note_read(len(raw))
        advice = "derived: needed only when no snapshot can be read; the next change of the topic writes it again"
        try:
            content = msgspec.json.decode(raw, type=_TopicJson)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"not the description of a topic: {error}"
            yield Finding(severity="damage", file=self._place.name(path), offset=0, message=text, advice=advice)
            return
        expected = (topic_id, state.name if state is not None else content.name)
        if (content.id, content.name) != expected:
            yield Finding(
                severity="damage",
                file=self._place.name(path),
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
            if self._is_skipped(layout.segment_object(state.id, segment.first_seq, "data")):
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

    def _is_skipped(self, name: str) -> bool:
        """Whether the survey of the segment with this `.data` was not asked for."""
        return self._only is not None and name.removesuffix(".data") not in self._only

    def _survey(self, survey: SegmentSurvey, files: int) -> Iterator[Finding]:
        yield from survey.scan()
        self._totals.files += files
        self._totals.frames += survey.frames
        self._totals.records += survey.frames
        self._place.note_read(survey.bytes_read)

    def _check_missing(self, state: TopicState, segment: SegmentState) -> Iterator[Finding]:
        name = layout.segment_object(state.id, segment.first_seq, "data")
        if self._cold is not None and self._cold.exists(name):
            severity: Severity = "note"
            text = "only the cold tier has it, the newest snapshot says it is here"
            advice = "a start with that tier notes where it is"
        else:
            self.missing.append((state.id, segment))
            severity = "damage"
            text = f"missing: the newest snapshot lists it with {segment.live_count} live records"
            advice = f"a start is refused; {BACKUP_ADVICE}; `topics doctor --repair --accept-loss` gives these seqs up"
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
        if self._is_skipped(name):
            return
        kept = self._kept.get((topic_id, first_seq))
        is_newer = state is None or first_seq > state.checkpointed_seq
        if kept is None and is_newer and self._totals.in_use:
            text, advice = "no snapshot lists it", "a checkpoint makes it, or has made it since"
            yield Finding(severity="note", file=name, seq=first_seq, topic=topic, message=text, advice=advice)
            return
        files = hot_files(self._fs, self._root, topic_id, topic, first_seq)
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
        if is_newer:
            message, advice = "no snapshot lists it", "made by an unfinished checkpoint; a start takes it in"
        elif survey.live_count == 0:
            message = "no snapshot lists it, all its records are dead"
        else:
            message = "no snapshot lists it, and it does not continue the ones that are listed; left alone"
            severity = "warning"
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
            for state in self._states.values()
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
        self._totals.bytes_total += sum(
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
                if self._is_skipped(f"{files.name}.data"):
                    continue
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
        elif self._store_id is not None and found != self._store_id:
            text = "this tier belongs to another data directory"
            yield Finding(severity="damage", file=file, message=text, expected=self._store_id, found=found)


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


def topic_name(topic_id: int, states: Mapping[int, TopicState], traces: Mapping[int, TopicTrace]) -> str:
    state, trace = states.get(topic_id), traces.get(topic_id)
    if state is not None:
        return state.name
    return trace.name if trace is not None and trace.name is not None else f"id {topic_id}"
