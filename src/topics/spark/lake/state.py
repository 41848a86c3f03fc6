"""The state of a lake at a version: files that count, segments whose records are in them, gaps, epochs of writers.

The rules are in `lake`. This module is pure.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topics.errors import TopicsError

DATA: Final = "topic="
# A file without statistics, which another program wrote, may have any seqs.
SEQ_MAX: Final = 2**63 - 1
_OWN_NAME: Final = re.compile(r"/[0-9]+-[0-9]+-([0-9a-f]{16})\.parquet$")


def data_name(topic: str, epoch: int, first_seq: int, last_seq: int, digest: str) -> str:
    return f"{DATA}{quote(topic, safe='')}/epoch={epoch}/{first_seq}-{last_seq}-{digest}.parquet"


def digest_in(name: str) -> str:
    """The digest of a file in its name; empty when another program named the file."""
    found = _OWN_NAME.search(name)
    return found[1] if found else ""


class LakeDamaged(TopicsError):
    """The log of the table cannot be read, or is not complete. Nothing was changed."""

    code = "lake_damaged"


class LakeNotFound(TopicsError):
    """There is no lake at the address, or no such topic in it."""

    code = "lake_not_found"
    status = 404


class LakeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file with records of one topic and instance. Seqs and times are inclusive.

    `digest` is XXH3-64 of the bytes; empty when another program wrote the file.
    """

    name: str
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    first_ts_ms: int = 0
    last_ts_ms: int = 0
    records: int
    bytes: int
    digest: str = ""


class LakeGap(msgspec.Struct, frozen=True):
    """Seqs that will never be in the lake, and why. A gap may have no last seq."""

    topic: str
    epoch: int
    first_seq: int
    last_seq: int | None
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


class WriterEpoch(msgspec.Struct, frozen=True):
    """The newest run of a writer whose rows are in the lake."""

    writer: str
    epoch: int


class CommitNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit says about itself, as the member `topics` of its metadata.

    `commit` is random, so that a process knows its own commit. `digests` are those of files that `optimize` made.
    """

    commit: str
    job: str
    segments: tuple[SegmentDone, ...] = ()
    writers: tuple[WriterEpoch, ...] = ()
    digests: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeChange:
    """One piece of a commit: it becomes true as a whole, or is given up as a whole.

    `expects` are the digests of the segments in the lake that `segments` stand for or replace, as they were when the
    change was planned. If the lake has other segments by now, the change does not fit any more.
    """

    adds: tuple[LakeFile, ...] = ()
    gaps: tuple[LakeGap, ...] = ()
    removes: tuple[str, ...] = ()
    segments: tuple[SegmentDone, ...] = ()
    expects: frozenset[str] = frozenset()
    writer: WriterEpoch | None = None
    # Only for rows of a writer: files whose seqs may be the same, and were compared.
    compared: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.changes_table or self.gaps)

    @property
    def changes_table(self) -> bool:
        return bool(self.adds or self.removes or self.segments or self.writer)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.adds)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.adds)


@dataclass(slots=True)
class Ledger:
    """What the notes of all commits up to a version say together."""

    # By topic and epoch, in the order of their seqs. Ranges do not overlap.
    segments: dict[tuple[str, int], list[SegmentDone]] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def apply(self, note: CommitNote) -> None:
        for segment in note.segments:
            done = self.segments.setdefault((segment.topic, segment.epoch), [])
            start = bisect_left(done, segment.first_seq, key=lambda each: each.last_seq)
            end = bisect_left(done, segment.last_seq + 1, key=lambda each: each.first_seq)
            done[start:end] = [segment]
        self.writers.update((each.writer, each.epoch) for each in note.writers)
        self.digests.update(note.digests)


@dataclass(slots=True)
class LakeState:
    """The state at a version. Version -1 is a lake that does not exist yet."""

    version: int = -1
    files: dict[str, LakeFile] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    gaps: set[LakeGap] = field(default_factory=set)

    @property
    def segments(self) -> Mapping[tuple[str, int], list[SegmentDone]]:
        return self.ledger.segments

    @property
    def topics(self) -> list[str]:
        return sorted({file.topic for file in self.files.values()})

    def files_of(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Files that count, by topic, instance and first seq."""
        wanted = None if topics is None else set(topics)
        found = [file for file in self.files.values() if wanted is None or file.topic in wanted]
        return sorted(found, key=lambda file: (file.topic, file.epoch, file.first_seq, file.name))

    def files_between(self, topic: str, epoch: int, first_seq: int, last_seq: int) -> list[LakeFile]:
        """Files that may have records with these seqs, by first seq."""
        return [
            file
            for file in self.files_of([topic])
            if file.epoch == epoch and file.first_seq <= last_seq and file.last_seq >= first_seq
        ]

    def gaps_of(self, topic: str, epoch: int) -> list[LakeGap]:
        found = [gap for gap in self.gaps if (gap.topic, gap.epoch) == (topic, epoch)]
        return sorted(found, key=lambda gap: gap.first_seq)

    def segments_between(self, topic: str, epoch: int, first_seq: int, last_seq: int) -> list[SegmentDone]:
        """Segments in the lake that share seqs with the range."""
        done = self.segments.get((topic, epoch), [])
        start = bisect_left(done, first_seq, key=lambda segment: segment.last_seq)
        end = bisect_left(done, last_seq + 1, key=lambda segment: segment.first_seq)
        return done[start:end]

    def last_covered(self, topic: str, epoch: int) -> int:
        """The last seq that the lake has of an instance."""
        done = self.segments.get((topic, epoch), [])
        return done[-1].last_seq if done else 0

    def has_epoch(self, writer: WriterEpoch) -> bool:
        """Whether the lake has the rows of this run of the writer."""
        return self.ledger.writers.get(writer.writer, -1) >= writer.epoch

    def fits(self, change: LakeChange) -> bool:
        """Whether the change, planned on an earlier state, is still right."""
        if not all(name in self.files for name in change.removes):
            return False
        if change.writer is not None:
            return not self.has_epoch(change.writer) and self.overlapping(change.adds) <= change.compared
        met: set[str] = set()
        for segment in change.segments:
            others = self.segments.get((segment.topic, segment.epoch), [])
            if others and others[-1].topic_id != segment.topic_id:
                return False
            between = self.segments_between(segment.topic, segment.epoch, segment.first_seq, segment.last_seq)
            met.update(done.digest for done in between)
        return met == change.expects

    def overlapping(self, adds: Iterable[LakeFile]) -> set[str]:
        """Files that may have seqs of these."""
        return {
            file.name for add in adds for file in self.files_between(add.topic, add.epoch, add.first_seq, add.last_seq)
        }


def note_of(commit_info: Mapping[str, Any], where: str) -> CommitNote | None:
    """What a commit says about itself; None when another program made it."""
    if (members := commit_info.get("topics")) is None:
        return None
    try:
        return msgspec.convert(members, CommitNote)
    except msgspec.ValidationError as error:
        raise LakeDamaged(f"{where}: the member `topics` of its metadata is not readable: {error}") from error
