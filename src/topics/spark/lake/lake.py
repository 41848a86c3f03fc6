"""The lake: Parquet files, and a chain of manifests that says which files count.

A manifest is `_topics/manifest-<20 digits>.json`, numbered from 1 without holes. Each names the files that it adds and
removes, and the segments whose records are in the lake from then on. The state at a number follows from all manifests
up to that number.

rule 1  A file counts from the manifest that adds it to the manifest that removes it. Other files do not count, whether
        they are complete or not.
rule 2  A commit puts the manifest with the next number, if absent. Nothing else decides between writers. No lock is
        needed.
rule 3  A writer that comes second reads the manifest of the first one, and commits only the changes that still fit. So
        nothing is in the lake twice.
rule 4  A file never changes. Its name has a digest of its bytes, so that a repeat writes the same bytes under the same
        name. Readers of an older manifest see the same rows, until a vacuum removes its files.
rule 5  Files of one topic, epoch and date have ranges of seqs that do not overlap. An epoch is an instance of a topic:
        a topic that was deleted and created again has other seqs.

Only `read` needs a Spark session and a JVM.
"""

from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import msgspec

from topics.errors import FutureVersion
from topics.spark.errors import Conflict
from topics.spark.lake.state import DATA, LakeChange, LakeDamaged, LakeManifest, LakeState
from topics.storage.fs import Fs, RealFs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.store import SharedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = 1
MANIFESTS: Final = "_topics/manifest-"
# How often a commit may come second before that is an error.
COMMITS_LOST_MAX: Final = 100


class Lake:
    """A lake in one process: `state` is that of the newest manifest that was read. Not thread-safe."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.address = store.address
        self.state = LakeState()
        self._writer = token_hex(8)

    def refresh(self) -> LakeState:
        """Reads the manifests that were added since."""
        for manifest in self._manifests(self.state.number + 1):
            self.state.apply(manifest)
        return self.state

    def at(self, number: int) -> LakeState:
        """The state at an older number. It may name files that a vacuum has removed."""
        state = LakeState()
        for manifest in self._manifests(1):
            if state.number == number:
                break
            state.apply(manifest)
        if state.number != number:
            raise LakeDamaged(f"{self.address} has no manifest {number}, the newest is {state.number}")
        return state

    def commit(self, job: str, changes: Sequence[LakeChange], *, now_ms: int) -> tuple[LakeChange, ...]:
        """Makes the changes true in one step, and returns them. A change that does not fit any more is left out.

        The files that they add must be durable. Raises `Conflict` when other writers come first again and again.
        """
        for _ in range(COMMITS_LOST_MAX):
            self.refresh()
            kept = tuple(change for change in changes if self.state.fits(change))
            if not kept:
                return ()
            manifest, state = self._next(job, kept, now_ms)
            data = msgspec.json.encode(manifest)
            name = manifest_name(state.number)
            # When the answer of the put is lost, the put is repeated, and finds the manifest of this process.
            if self.store.put_if_absent(name, data) or self._read(name) == data:
                self.state = state
                return kept
        raise Conflict(f"{self.address}: {COMMITS_LOST_MAX} commits of others came first; run fewer jobs at once")

    def _next(self, job: str, changes: Sequence[LakeChange], now_ms: int) -> tuple[LakeManifest, LakeState]:
        adds = tuple(file for change in changes for file in change.files)
        removes = tuple(name for change in changes for name in change.removes)
        manifest = LakeManifest(
            v=VERSION,
            job=job,
            writer=self._writer,
            parent=self.state.number,
            created_ms=now_ms,
            adds=adds,
            removes=removes,
            segments=tuple(segment for change in changes for segment in change.segments),
            totals=self.state.totals_after(adds, removes),
        )
        # Also checks the rules, before the manifest is put.
        return manifest, self.state.applied(manifest)

    def _manifests(self, number: int) -> Iterator[LakeManifest]:
        """The manifests from the number on. They are read one by one, because a listing of a bucket may be old."""
        while (data := self._read(manifest_name(number))) is not None:
            yield _decode(data, f"{self.address}/{manifest_name(number)}")
            number += 1
        later = [name for name in self.store.list(MANIFESTS) if name > manifest_name(number)]
        if later:
            raise LakeDamaged(f"{self.address} has no {manifest_name(number)}, but {later[0]}: the chain is broken")

    def _read(self, name: str) -> bytes | None:
        try:
            return self.store.read_range(name, 0, self.store.size(name))
        except FileNotFoundError:
            return None


def open_lake(address: str, fs: Fs | None = None) -> Lake:
    """The lake at a path, a `file:` address or `s3://bucket/prefix`, as it is now. The first commit makes it."""
    lake = Lake(open_shared_store(address, fs or RealFs()))
    lake.refresh()
    return lake


def manifest_name(number: int) -> str:
    return f"{MANIFESTS}{number:020d}.json"


def _decode(data: bytes, where: str) -> LakeManifest:
    try:
        version = msgspec.json.decode(data, type=_Version).v
        if version > VERSION:
            raise FutureVersion(f"{where}: version {version}, this one knows {VERSION}; use a newer topics")
        return msgspec.json.decode(data, type=LakeManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LakeDamaged(f"{where} is not readable: {error}") from error


class _Version(msgspec.Struct, frozen=True):
    v: int


def read(
    spark: "SparkSession", address: str, *, topics: Iterable[str] | None = None, at: int | None = None
) -> "DataFrame":
    """The records of the lake, or of some topics, at a manifest; by default the newest.

    Only files that count are read. A plain read of the folder would also read files of a job that was killed.
    """
    from topics.spark.lake.files import read_frame

    lake = open_lake(address)
    state = lake.state if at is None else lake.at(at)
    files = state.files_of(topics)
    if at is not None:
        there = set(lake.store.list(DATA))
        gone = [file.name for file in files if file.name not in there]
        if gone:
            raise LakeDamaged(
                f"{address}: {len(gone)} files of manifest {at} are gone, such as {gone[0]}: a vacuum removed them"
            )
    return read_frame(spark, lake.address, [file.name for file in files])
