"""Makes a Delta table of a lake of the older form: Parquet files by topic and day, and a chain of manifests.

1. Each file that counts gets a second name, under the folders of the table. The bytes stay the same.
2. The gaps become the table of gaps.
3. One commit makes the table, with all files, segments and runs of writers. Until then the old lake counts, and from
   then on the table.
4. The old manifests and files of gaps go. A vacuum removes the old names of the records' files.

A run that was killed is simply run again. No job may write to the old lake meanwhile.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from topics.clock import SystemClock
from topics.errors import FutureVersion
from topics.spark.lake.files import LAKE_SCHEMA
from topics.spark.lake.gaps import GAPS, GapTable
from topics.spark.lake.lake import CONFIGURATION, OLD_MANIFESTS, PARTITION_BY
from topics.spark.lake.state import (
    CommitNote,
    LakeDamaged,
    LakeFile,
    LakeGap,
    LakeNotFound,
    SegmentDone,
    WriterEpoch,
    data_name,
)
from topics.spark.lake.table import Table, add_action
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.store import SharedStore

OLD_VERSION: Final = 1
# The runs of a writer were segments of a topic of this name.
_OLD_WRITER: Final = "writer "
_COPIES_AT_ONCE: Final = 8


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the old lake. A gap is a file in the folder of gaps."""

    name: str
    topic: str
    epoch: int
    first_seq: int
    last_seq: int | None
    records: int
    bytes: int

    def gap(self) -> LakeGap:
        reason = self.name.rpartition("-")[2].removesuffix(".parquet")
        return LakeGap(self.topic, self.epoch, self.first_seq, self.last_seq, reason)


class OldManifest(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    parent: int
    adds: tuple[OldFile, ...] = ()
    removes: tuple[str, ...] = ()
    segments: tuple[SegmentDone, ...] = ()


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    files: int
    records: int
    bytes: int
    gaps: int
    manifests: int


def convert(address: str) -> Converted:
    """Raises `LakeNotFound` when there is no lake of the older form."""
    store = open_shared_store(address, RealFs())
    manifests = list(_manifests(store))
    if not manifests:
        raise LakeNotFound(f"there is no lake of the older form at {store.address}")
    table = Table(store, LAKE_SCHEMA, partition_by=PARTITION_BY, configuration=CONFIGURATION)
    files, gaps = _counting(manifests)
    if table.refresh() < 0:
        _make_table(store, table, manifests, files, gaps)
    for name in [*store.list(OLD_MANIFESTS), *(name for name in store.list(f"{GAPS}/topic="))]:
        store.delete(name)
    return Converted(
        files=len(files),
        records=sum(file.records for file in files),
        bytes=sum(file.bytes for file in files),
        gaps=len(gaps),
        manifests=len(manifests),
    )


def _manifests(store: SharedStore) -> Iterator[OldManifest]:
    names = store.list(OLD_MANIFESTS)
    for number, name in enumerate(names, 1):
        where = f"{store.address}/{name}"
        try:
            manifest = msgspec.json.decode(store.read_range(name, 0, store.size(name)), type=OldManifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeDamaged(f"{where} is not readable: {error}") from error
        if manifest.v > OLD_VERSION:
            raise FutureVersion(f"{where}: version {manifest.v}, this one knows {OLD_VERSION}; use a newer topics")
        if name != f"{OLD_MANIFESTS}{number:020d}.json" or manifest.parent != number - 1:
            raise LakeDamaged(f"{where}: the chain is broken, manifest {number} is missing")
        yield manifest


def _counting(manifests: list[OldManifest]) -> tuple[list[OldFile], list[OldFile]]:
    """The files of records and of gaps that count after all manifests."""
    files: dict[str, OldFile] = {}
    for manifest in manifests:
        for name in manifest.removes:
            del files[name]
        files.update((file.name, file) for file in manifest.adds)
    gaps = [file for file in files.values() if file.name.startswith(GAPS)]
    return [file for file in files.values() if not file.name.startswith(GAPS)], gaps


def _make_table(
    store: SharedStore, table: Table, manifests: list[OldManifest], files: list[OldFile], gaps: list[OldFile]
) -> None:
    now_ms = SystemClock().now_ms()
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as threads:
        copies = list(threads.map(lambda file: _copy(store, file), files))
    GapTable(store).add([gap.gap() for gap in gaps], now_ms=now_ms)
    segments = [segment for manifest in manifests for segment in manifest.segments]
    note = CommitNote(
        commit=token_hex(8),
        job="convert-lake",
        segments=tuple(segment for segment in segments if not segment.topic.startswith(_OLD_WRITER)),
        writers=tuple(
            WriterEpoch(segment.topic.removeprefix(_OLD_WRITER), segment.first_seq - 1)
            for segment in segments
            if segment.topic.startswith(_OLD_WRITER)
        ),
    )
    adds = [add_action(file, now_ms=now_ms) for file in copies]
    table.create_with(adds, {"topics": msgspec.to_builtins(note)})


def _copy(store: SharedStore, old: OldFile) -> LakeFile:
    if old.last_seq is None:
        raise LakeDamaged(f"{store.address}/{old.name} has no last seq in its manifest")
    content = store.read_range(old.name, 0, old.bytes)
    if len(content) != old.bytes:
        raise LakeDamaged(f"{store.address}/{old.name} has {len(content)} bytes, its manifest says {old.bytes}")
    with pq.ParquetFile(pa.BufferReader(content)) as parquet:
        times = parquet.read(columns=["ts"]).column("ts").cast(pa.int64()).to_numpy() // 1000
    digest = old.name.rpartition("-")[2].removesuffix(".parquet")
    name = data_name(old.topic, old.epoch, old.first_seq, old.last_seq, digest)
    store.put(name, content)
    return LakeFile(
        name=name,
        topic=old.topic,
        epoch=old.epoch,
        first_seq=old.first_seq,
        last_seq=old.last_seq,
        first_ts_ms=int(times.min()),
        last_ts_ms=int(times.max()),
        records=old.records,
        bytes=old.bytes,
    )
