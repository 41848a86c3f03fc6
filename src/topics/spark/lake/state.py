"""The state of a lake after a chain of manifests: files that count, and segments whose records are in them.

The rules are in `lake`. This module is pure.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from topics.errors import TopicsError

GAPS: Final = "_topics/gaps/"
DATA: Final = "topic="


def data_name(topic: str, date: str, first_seq: int, last_seq: int, digest: str) -> str:
    return f"{DATA}{quote(topic, safe='')}/date={date}/{first_seq}-{last_seq}-{digest}.parquet"


def gap_name(topic: str, epoch: int, first_seq: int, last_seq: int | None, reason: str) -> str:
    end = "end" if last_seq is None else last_seq
    return f"{GAPS}{DATA}{quote(topic, safe='')}/{epoch}-{first_seq}-{end}-{reason}.parquet"


class LakeDamaged(TopicsError):
    """The chain of manifests is broken. Nothing was changed."""

    code = "lake_damaged"


class LakeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file with records of one topic, instance and day, sorted by seq; or with a gap, and no date.

    Seqs are inclusive. A gap may have no last seq.
    """

    name: str
    topic: str
    epoch: int
    date: str = ""
    first_seq: int
    last_seq: int | None
    records: int
    bytes: int

    @property
    def is_gap(self) -> bool:
        return self.name.startswith(GAPS)


class GapFile(NamedTuple):
    """A gap that the lake remembers: its file, and why the seqs are missing."""

    file: LakeFile
    reason: str


class SegmentDone(msgspec.Struct, frozen=True, kw_only=True):
    """A segment whose live records are in the lake: `rows` records. `bad` records could not be read.

    `follows` is the last seq of the previous segment, if it was known: no record has a seq between the two segments.
    `topic_id` is the id on the server, which is different for each instance of a topic.
    """

    topic: str
    store_id: str
    epoch: int
    first_seq: int
    last_seq: int
    digest: str
    rows: int
    bad: int = 0
    topic_id: int = 0
    follows: int | None = None

    @property
    def covers_from(self) -> int:
        """The first seq after the previous segment, or the first of this one."""
        return self.first_seq if self.follows is None else self.follows + 1


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Files that count after a manifest."""

    files: int
    records: int
    bytes: int


NOTHING: Final = Totals(files=0, records=0, bytes=0)


class LakeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One manifest of the chain. `removes` are names. `writer` is random, so that a process knows its own manifest."""

    v: int
    job: str
    writer: str
    parent: int
    created_ms: int
    adds: tuple[LakeFile, ...] = ()
    removes: tuple[str, ...] = ()
    segments: tuple[SegmentDone, ...] = ()
    totals: Totals


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeChange:
    """One piece of a commit: it becomes true as a whole, or is given up as a whole (rule 3).

    `expects` are the digests of the segments in the lake that `segments` stand for or replace, as they were when the
    change was planned. If the lake has other segments by now, the change does not fit any more.
    """

    # Files of records.
    adds: tuple[LakeFile, ...] = ()
    gaps: tuple[GapFile, ...] = ()
    removes: tuple[str, ...] = ()
    segments: tuple[SegmentDone, ...] = ()
    expects: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.removes or self.segments)

    @property
    def files(self) -> tuple[LakeFile, ...]:
        """All files that it adds."""
        return (*self.adds, *(gap.file for gap in self.gaps))

    @property
    def records(self) -> int:
        return sum(file.records for file in self.adds)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class _Span(NamedTuple):
    first_seq: int
    last_seq: int
    name: str


@dataclass(slots=True)
class LakeState:
    """The state at a number. 0 is a lake that does not exist yet."""

    number: int = 0
    files: dict[str, LakeFile] = field(default_factory=dict)
    gaps: dict[str, LakeFile] = field(default_factory=dict)
    # When a manifest removed each file.
    removed_ms: dict[str, int] = field(default_factory=dict)
    # By topic and epoch, in the order of their seqs. Ranges do not overlap.
    segments: dict[tuple[str, int], list[SegmentDone]] = field(default_factory=dict)
    totals: Totals = NOTHING
    _spans: dict[tuple[str, int, str], list[_Span]] = field(default_factory=dict)

    def files_of(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Files that count. The files of one topic and day are in the order of their seqs."""
        wanted = None if topics is None else set(topics)
        found = [file for file in self.files.values() if wanted is None or file.topic in wanted]
        return sorted(found, key=lambda file: (file.topic, file.epoch, file.date, file.first_seq))

    def files_between(self, topic: str, epoch: int, first_seq: int, last_seq: int) -> list[LakeFile]:
        """Files that may have records with these seqs."""
        return [
            self.files[span.name]
            for (name, its_epoch, _), spans in self._spans.items()
            if (name, its_epoch) == (topic, epoch)
            for span in spans
            if span.first_seq <= last_seq and span.last_seq >= first_seq
        ]

    def segments_between(self, topic: str, epoch: int, first_seq: int, last_seq: int) -> list[SegmentDone]:
        """Segments in the lake that share seqs with the range."""
        done = self.segments.get((topic, epoch), [])
        start = bisect_left(done, first_seq, key=lambda segment: segment.last_seq)
        end = bisect_left(done, last_seq + 1, key=lambda segment: segment.first_seq)
        return done[start:end]

    def is_covered(self, topic: str, epoch: int, first_seq: int, last_seq: int) -> bool:
        """Whether each of these seqs is in a segment of the lake, or between two neighbouring segments."""
        for done in self.segments.get((topic, epoch), []):
            if done.last_seq >= first_seq:
                if done.covers_from > first_seq:
                    break
                first_seq = done.last_seq + 1
        return first_seq > last_seq

    def fits(self, change: LakeChange) -> bool:
        """Whether the change, planned on an earlier state, is still right."""
        if not all(name in self.files for name in change.removes):
            return False
        met: set[str] = set()
        for segment in change.segments:
            others = self.segments.get((segment.topic, segment.epoch), [])
            if others and others[-1].topic_id != segment.topic_id:
                return False
            between = self.segments_between(segment.topic, segment.epoch, segment.first_seq, segment.last_seq)
            met.update(done.digest for done in between)
        if met != change.expects:
            return False
        return not any(self._overlapping(file, except_names=change.removes) for file in change.adds)

    def _overlapping(self, file: LakeFile, except_names: Sequence[str] = ()) -> str | None:
        assert file.last_seq is not None, "a file of records has a last seq"
        spans = self._spans.get((file.topic, file.epoch, file.date), [])
        place = bisect_left(spans, file.first_seq, key=lambda span: span.last_seq)
        for span in spans[place:]:
            if span.first_seq > file.last_seq:
                break
            if span.name not in except_names:
                return span.name
        return None

    def applied(self, manifest: LakeManifest) -> "LakeState":
        """The state after one more manifest, as a copy."""
        state = LakeState(
            self.number,
            dict(self.files),
            dict(self.gaps),
            dict(self.removed_ms),
            {key: list(done) for key, done in self.segments.items()},
            self.totals,
            {key: list(spans) for key, spans in self._spans.items()},
        )
        state.apply(manifest)
        return state

    def apply(self, manifest: LakeManifest) -> None:
        """Applies one manifest. Raises `LakeDamaged` when it breaks a rule; then the state must not be used."""
        if manifest.parent != self.number:
            raise LakeDamaged(f"manifest {self.number + 1} follows {manifest.parent}, not {self.number}")
        self.number += 1
        totals = self.totals_after(manifest.adds, manifest.removes)
        if manifest.totals != totals:
            raise LakeDamaged(f"manifest {self.number} counts {manifest.totals}, its files are {totals}")
        self.totals = totals
        for name in manifest.removes:
            removed = self.files.pop(name)
            spans = self._spans[removed.topic, removed.epoch, removed.date]
            spans[:] = [span for span in spans if span.name != name]
            self.removed_ms[name] = manifest.created_ms
        for file in manifest.adds:
            self._add(file)
        for segment in manifest.segments:
            done = self.segments.setdefault((segment.topic, segment.epoch), [])
            start = bisect_left(done, segment.first_seq, key=lambda each: each.last_seq)
            end = bisect_left(done, segment.last_seq + 1, key=lambda each: each.first_seq)
            done[start:end] = [segment]

    def totals_after(self, adds: Iterable[LakeFile], removes: Iterable[str]) -> Totals:
        """The totals after these are added and removed. Raises `LakeDamaged` when a removed file is not in the lake."""
        added = [file for file in adds if not file.is_gap]
        try:
            removed = [self.files[name] for name in removes]
        except KeyError as error:
            raise LakeDamaged(f"manifest {self.number} removes {error.args[0]}, which is not in the lake") from None
        return Totals(
            files=self.totals.files + len(added) - len(removed),
            records=self.totals.records + sum(file.records for file in added) - sum(file.records for file in removed),
            bytes=self.totals.bytes + sum(file.bytes for file in added) - sum(file.bytes for file in removed),
        )

    def _add(self, file: LakeFile) -> None:
        if file.is_gap:
            # Two archivers may commit the same gap.
            self.gaps[file.name] = file
            return
        if (other := self._overlapping(file)) is not None:
            raise LakeDamaged(f"manifest {self.number} adds {file.name}, whose seqs are also in {other}")
        assert file.last_seq is not None
        self.files[file.name] = file
        self.removed_ms.pop(file.name, None)
        spans = self._spans.setdefault((file.topic, file.epoch, file.date), [])
        insort(spans, _Span(file.first_seq, file.last_seq, file.name))
