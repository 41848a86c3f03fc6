"""The lake: records of topics as a Delta table, which every program that knows Delta can read.

The table has the columns of a record, and is partitioned by `topic` and `epoch`. An epoch is an instance of a topic: a
topic that was deleted and created again has other seqs. The statistics of each file have its smallest and largest `seq`
and `ts`. A second table, `_topics/gaps`, has the seqs that will never be in the lake.

rule 1  A file counts from the version that adds it to the version that removes it. Other files do not count, whether
        they are complete or not.
rule 2  Each commit has an application transaction for each instance of a topic that it changes. So of two writers that
        change the same instance at the same time, the format refuses the second one.
rule 3  A writer that is refused reads the commits since, and commits only the changes that still fit. So nothing is in
        the lake twice.
rule 4  A commit says in its metadata (`topics`) which segments are in the lake from then on, by digest, and which run
        of a writer. So files and what they stand for change in one step. A `restore` to an older version also brings
        back what was known at that version.
rule 5  Gaps are committed before the records around them. A crash in between leaves a gap that is true.
rule 6  A file never changes. Its name has a digest of its bytes, so that a repeat writes the same bytes under the same
        name. Readers of an older version see the same rows, until a vacuum removes its files.

Only `read` needs a Spark session and a JVM.
"""

from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.spark.errors import BadOption, Conflict
from topics.spark.free_place import require_free_place
from topics.spark.lake.files import LAKE_SCHEMA
from topics.spark.lake.gaps import GapTable, gap_order
from topics.spark.lake.state import (
    CommitNote,
    LakeChange,
    LakeDamaged,
    LakeFile,
    LakeNotFound,
    LakeState,
    Ledger,
    note_of,
)
from topics.spark.lake.table import CommitRefused, Table, add_action, files_of, remove_action
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.store import SharedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_BY: Final = ("topic", "epoch")
# Older log entries are kept: they say which segments are in the lake.
CONFIGURATION: Final = {"delta.enableExpiredLogCleanup": "false", "delta.dataSkippingStatsColumns": "seq,ts"}
# A lake of the form that topics wrote before it was a Delta table.
OLD_MANIFESTS: Final = "_topics/manifest-"
# How often a commit may come second before that is an error.
COMMITS_LOST_MAX: Final = 100


class Lake:
    """A lake in one process: `state` is that of the newest version that was read. Not thread-safe."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.address = store.address
        self.state = LakeState()
        self.table = Table(store, LAKE_SCHEMA, partition_by=PARTITION_BY, configuration=CONFIGURATION)
        self.gaps = GapTable(store)

    @property
    def is_there(self) -> bool:
        return self.state.version >= 0

    def refresh(self) -> LakeState:
        """Reads the commits that were made since."""
        self._advance()
        return self.state

    def _advance(self) -> list[CommitNote]:
        """Reads the commits that were made since; returns what ours say about themselves."""
        version = self.table.refresh()
        if version < 0:
            if self.store.list(OLD_MANIFESTS):
                raise LakeDamaged(
                    f"{self.address} is a lake of an older form; make it a Delta table: "
                    f"topics pipeline convert-lake {self.address}"
                )
            return []
        notes: list[CommitNote] = []
        if version > self.state.version:
            commits = self.table.commits(range(self.state.version + 1, version + 1))
            notes = [note for commit in commits if (note := note_of(commit, self.address)) is not None]
            if any(_restored(commit) is not None for commit in commits):
                self.state.ledger = self._ledger_at(version)
            else:
                for note in notes:
                    self.state.ledger.apply(note)
            self.state.files = self._files(self.table, self.state.ledger)
            self.state.version = version
        self.state.gaps = self.gaps.refresh()
        return notes

    def _ledger_at(self, version: int) -> Ledger:
        """From the whole log. After a restore, what counts is what was known at the version that was restored."""
        return _ledger_of(self.table.commits(range(version + 1)), version, self.address)

    def _files(self, table: Table, ledger: Ledger) -> dict[str, LakeFile]:
        return {file.name: file for file in files_of(table.add_actions(), ledger.digests)}

    def at(self, version: int) -> LakeState:
        """The state at an older version. It may name files that a vacuum has removed."""
        if not 0 <= version <= self.state.version:
            raise LakeDamaged(f"{self.address} has no version {version}, the newest is {self.state.version}")
        ledger = self._ledger_at(version)
        return LakeState(version, self._files(self.table.at(version), ledger), ledger, set(self.state.gaps))

    def commit(self, job: str, changes: Sequence[LakeChange], *, now_ms: int) -> tuple[LakeChange, ...]:
        """Makes the changes true in one step, and returns them. A change that does not fit any more is left out.

        The files that they add must be durable. Raises `Conflict` when other writers come first again and again.
        """
        self.table.create()
        refused = ""
        for _ in range(COMMITS_LOST_MAX):
            self.refresh()
            kept = tuple(change for change in changes if self.state.fits(change))
            if not kept:
                return ()
            self.gaps.add((gap for change in kept for gap in change.gaps), now_ms=now_ms)
            if not any(change.changes_table for change in kept):
                self.state.gaps = self.gaps.refresh()
                return kept
            note = self._note(job, kept)
            try:
                self._commit(kept, note, now_ms)
            except CommitRefused as error:
                refused = error.message
            # When the answer of a bucket is lost, the library tries again, and is refused because of its own commit.
            if note.commit in {each.commit for each in self._advance()}:
                return kept
        raise Conflict(f"{COMMITS_LOST_MAX} commits of others came first; run fewer jobs at once: {refused}")

    def _note(self, job: str, changes: Sequence[LakeChange]) -> CommitNote:
        return CommitNote(
            commit=token_hex(8),
            job=job,
            segments=tuple(segment for change in changes for segment in change.segments),
            writers=tuple(change.writer for change in changes if change.writer is not None),
        )

    def _commit(self, changes: Sequence[LakeChange], note: CommitNote, now_ms: int) -> None:
        adds = [file for change in changes for file in change.adds]
        removes = [self.state.files[name] for change in changes for name in change.removes]
        transactions = {f"writer/{each.writer}": each.epoch for each in note.writers}
        touched = [(file.topic, file.epoch, file.last_seq) for file in (*adds, *removes)]
        touched += [(segment.topic, segment.epoch, segment.last_seq) for segment in note.segments]
        for topic, epoch, last_seq in touched:
            name = f"lake/{topic}/{epoch}"
            transactions[name] = max(last_seq, self.state.last_covered(topic, epoch), transactions.get(name, 0))
        self.table.commit(
            [add_action(file, now_ms=now_ms) for file in adds],
            [remove_action(file, now_ms=now_ms) for file in removes],
            transactions=transactions,
            metadata={"topics": msgspec.to_builtins(note)},
        )

    def note_digests(self, digests: Mapping[str, str]) -> None:
        """Writes down the digests of files that the library made, in a commit without files."""
        note = CommitNote(commit=token_hex(8), job="optimize", digests=digests)
        self.table.commit(transactions={}, metadata={"topics": msgspec.to_builtins(note)})
        self.refresh()


def open_lake(address: str, *, must_exist: bool = True) -> Lake:
    """The lake at a path, a `file:` address or `s3://bucket/prefix`, as it is now.

    Raises `LakeNotFound` when there is none, unless the first commit is to make it: then it raises `BadOption` for a
    folder that is in use for something else.
    """
    lake = Lake(open_shared_store(address, RealFs()))
    if "%" in lake.address:
        raise BadOption(f"{lake.address}: the library for Delta tables cannot use a path with a %; choose another")
    lake.refresh()
    if not lake.is_there:
        if must_exist:
            raise LakeNotFound(f"there is no lake at {lake.address}; `topics pipeline archive` makes one")
        require_free_place(lake.address)
    return lake


def _ledger_of(commits: Sequence[Mapping[str, Any]], version: int, where: str) -> Ledger:
    """`commits` are all of the table, from version 0 on."""
    for number in range(version, -1, -1):
        target = _restored(commits[number])
        if target is not None:
            ledger = _ledger_of(commits, _version_of(commits, target, number), where)
            begin = number + 1
            break
    else:
        ledger, begin = Ledger(), 0
    for commit in commits[begin : version + 1]:
        note = note_of(commit, where)
        if note is not None:
            ledger.apply(note)
    return ledger


def _restored(commit: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Where a commit went back to: a version, or a time in ms."""
    if commit.get("operation") != "RESTORE":
        return None
    target: Mapping[str, Any] = commit.get("operationParameters", {})
    return target


def _version_of(commits: Sequence[Mapping[str, Any]], target: Mapping[str, Any], before: int) -> int:
    if target.get("version") is not None:
        return int(target["version"])
    time_ms = int(target["datetime"])
    return max(number for number in range(before) if commits[number]["timestamp"] <= time_ms)


# For users.


def read(
    spark: "SparkSession", address: str, *, topics: Iterable[str] | None = None, at: int | None = None
) -> "DataFrame":
    """The records of the lake, or of some topics, at a version; by default the newest.

    Raises `LakeNotFound` for a lake or a topic that is not there.
    """
    from topics.spark.lake.files import read_frame

    lake = open_lake(address)
    state = lake.state if at is None else lake.at(at)
    names = None if topics is None else list(topics)
    require_topics(lake, state, names or ())
    files = state.files_of(names)
    if at is not None:
        there = set(lake.store.list("topic="))
        gone = [file.name for file in files if file.name not in there]
        if gone:
            raise LakeDamaged(
                f"{address}: {len(gone)} files of version {at} are gone, such as {gone[0]}: a vacuum removed them"
            )
    return read_frame(spark, lake.address, files)


def require_topics(lake: Lake, state: LakeState, topics: Iterable[str]) -> None:
    """Raises `LakeNotFound` for a topic that the lake does not know."""
    known = {*state.topics, *(topic for topic, _ in state.segments), *(gap.topic for gap in state.gaps)}
    for topic in topics:
        if topic not in known:
            names = ", ".join(sorted(known)) or "none at all"
            raise LakeNotFound(f'{lake.address} has no records of topic "{topic}"; it has {names}')


def gaps(spark: "SparkSession", address: str) -> "DataFrame":
    """The seqs that will never be in the lake: `topic`, `epoch`, `gap_from`, `gap_to`, `reason`."""
    found = sorted(open_lake(address).state.gaps, key=gap_order)
    return spark.createDataFrame(
        [(gap.topic, gap.epoch, gap.first_seq, gap.last_seq, gap.reason) for gap in found],
        "topic string, epoch bigint, gap_from bigint, gap_to bigint, reason string",
    )


def history(address: str) -> list[dict[str, Any]]:
    """What each version did, newest first: its number, time, job and what it changed."""
    lake = open_lake(address)
    return [_told(commit, lake.address) for commit in lake.table.commits(range(lake.state.version, -1, -1))]


def _told(commit: Mapping[str, Any], where: str) -> dict[str, Any]:
    note = note_of(commit, where)
    return {
        "version": commit["version"],
        "time_ms": commit["timestamp"],
        "operation": commit["operation"],
        "job": None if note is None else note.job,
        "segments": 0 if note is None else len(note.segments),
    }


def restore(address: str, version: int) -> int:
    """Makes the lake what it was at a version, as a new version, whose number is returned.

    Raises `LakeDamaged` when a vacuum has removed files of that version. Segments that were archived since are archived
    again by the next run. Gaps stay.
    """
    lake = open_lake(address)
    lake.at(version)
    lake.table.restore(version)
    return lake.refresh().version
