"""What a restore reads: a lake, or segments without a server. Both are cut into chunks of seqs, and read in pieces.

One task reads one piece, which carries all that the task needs. Pieces of a chunk are in the order of their seqs, and
so are the rows of a piece.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from topics.formats.columnar import COLUMNS, schema
from topics.limits import MIB
from topics.spark.errors import BadOption
from topics.spark.lake.files import LAKE_SCHEMA, file_batches, file_seqs, seq_mask, store_at
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeFile
from topics.spark.loss import find_gaps
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.locate import read_partition
from topics.spark.reading.offline import take_manifests
from topics.spark.reading.plan import Partition, choose_cuts, cut_partitions, range_bytes

SCHEMA: Final = schema(COLUMNS)
PIECE_BYTES: Final = 16 * MIB


class RestoreChunk(msgspec.Struct, frozen=True):
    """Seqs, both included, and about how many bytes they are."""

    first_seq: int
    last_seq: int
    bytes: int = 0


class Piece(Protocol):
    def batches(self) -> Iterator[pa.RecordBatch]:
        """On an executor: rows under `SCHEMA`, seqs ascending."""
        ...


class Source(Protocol):
    topic: str
    epoch: int
    # The seqs that are restored, both included.
    first_seq: int
    last_seq: int

    def chunks(self, chunk_bytes: int) -> list[RestoreChunk]: ...

    def pieces(self, chunk: RestoreChunk) -> Sequence[Piece]: ...

    def gaps(self) -> list[dict[str, object]]:
        """What is known to be missing in the range."""
        ...


def _chunked(spans: Sequence[RestoreChunk], chunk_bytes: int, last_seq: int) -> list[RestoreChunk]:
    """Neighbours go together up to so many bytes. Each chunk ends where the next one begins."""
    chunks: list[RestoreChunk] = []
    for span in spans:
        if chunks and chunks[-1].bytes + span.bytes <= chunk_bytes:
            chunks[-1] = RestoreChunk(chunks[-1].first_seq, span.last_seq, chunks[-1].bytes + span.bytes)
        else:
            chunks.append(span)
    ends = [chunk.first_seq - 1 for chunk in chunks[1:]] + [last_seq]
    return [RestoreChunk(chunk.first_seq, end, chunk.bytes) for chunk, end in zip(chunks, ends, strict=True)]


def _cut(first_seq: int, last_seq: int, size_bytes: int, chunk_bytes: int) -> Iterator[RestoreChunk]:
    """A large file in several spans, as if its records were all of one size: rows may have to be sorted in memory."""
    count = min(max(-(-size_bytes // chunk_bytes), 1), last_seq - first_seq + 1)
    cuts = [first_seq + (last_seq + 1 - first_seq) * number // count for number in range(count + 1)]
    for begin, end in pairwise(cuts):
        yield RestoreChunk(begin, end - 1, size_bytes // count)


# A lake.


@dataclass(frozen=True, slots=True)
class _LakePiece:
    address: str
    files: tuple[LakeFile, ...]
    first_seq: int
    last_seq: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in COLUMNS], schema=SCHEMA)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        store = store_at(self.address)
        if len(self.files) == 1 and bool((np.diff(file_seqs(store, self.files[0])) > 0).all()):
            yield from map(self._inside, file_batches(store, self.files[0]))
            return
        # Files whose ranges of seqs overlap, or that were merged in another order.
        batches = [self._inside(batch) for file in self.files for batch in file_batches(store, file)]
        yield from pa.Table.from_batches(batches, LAKE_SCHEMA).sort_by("seq").to_batches()

    def _inside(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        seqs = batch.column("seq").to_numpy()
        return batch.filter(pa.array(seq_mask(seqs, [(self.first_seq, self.last_seq)])))


class LakeSource:
    def __init__(
        self, address: str, topic: str, *, epoch: int | None, from_seq: int | None, to_seq: int | None
    ) -> None:
        lake = open_lake(address)
        # Executors may run in other folders than this process.
        self._address = lake.address
        self._state = lake.state
        epochs = [file.epoch for file in self._state.files_of([topic])]
        if not epochs:
            known = ", ".join(self._state.topics) or "none at all"
            raise BadOption(f'{address} has no records of topic "{topic}"; it has {known}')
        self.topic = topic
        # The newest instance, unless another is asked for.
        self.epoch = max(epochs) if epoch is None else epoch
        files = [file for file in self._state.files_of([topic]) if file.epoch == self.epoch]
        if not files:
            raise BadOption(f'{address} has no epoch {self.epoch} of topic "{topic}", only {sorted(set(epochs))}')
        self.first_seq = min(file.first_seq for file in files) if from_seq is None else from_seq
        self.last_seq = max(file.last_seq for file in files) if to_seq is None else to_seq

    def _groups(self, first_seq: int, last_seq: int) -> list[list[LakeFile]]:
        """Files in the order of their seqs. Files that overlap are in one group."""
        files = self._state.files_between(self.topic, self.epoch, first_seq, last_seq)
        groups: list[list[LakeFile]] = []
        end_seq = 0
        for file in files:
            if groups and file.first_seq <= end_seq:
                groups[-1].append(file)
            else:
                groups.append([file])
            end_seq = max(end_seq, file.last_seq)
        return groups

    def chunks(self, chunk_bytes: int) -> list[RestoreChunk]:
        spans = [
            span
            for group in self._groups(self.first_seq, self.last_seq)
            for span in _cut(
                max(group[0].first_seq, self.first_seq),
                min(max(file.last_seq for file in group), self.last_seq),
                sum(file.bytes for file in group),
                chunk_bytes,
            )
        ]
        return _chunked(spans, chunk_bytes, self.last_seq)

    def pieces(self, chunk: RestoreChunk) -> Sequence[Piece]:
        return [
            _LakePiece(self._address, tuple(group), chunk.first_seq, chunk.last_seq)
            for group in self._groups(chunk.first_seq, chunk.last_seq)
        ]

    def gaps(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = [
            {"problem": "gap", "topic": self.topic, "first_seq": gap.first_seq, "last_seq": gap.last_seq}
            for gap in self._state.gaps_of(self.topic, self.epoch)
            if gap.first_seq <= self.last_seq and (gap.last_seq is None or gap.last_seq >= self.first_seq)
        ]
        # Seqs that were asked for, and that no archiver has read.
        done = self._state.segments_between(self.topic, self.epoch, self.first_seq, self.last_seq)
        covered_first = min((segment.first_seq for segment in done), default=self.last_seq + 1)
        covered_last = max((segment.last_seq for segment in done), default=self.last_seq)
        for first_seq, last_seq in ((self.first_seq, covered_first - 1), (covered_last + 1, self.last_seq)):
            if first_seq <= last_seq:
                found.append(
                    {"problem": "not archived", "topic": self.topic, "first_seq": first_seq, "last_seq": last_seq}
                )
        return found


# Segments.


@dataclass(frozen=True, slots=True)
class _PathPiece:
    partition: Partition
    options: ReadOptions

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from read_partition(self.partition, self.options, SCHEMA)


class PathSource:
    """A data directory, an archive, or one topic's directory."""

    def __init__(self, path: str, topic: str | None, *, from_seq: int | None, to_seq: int | None) -> None:
        self._options = ReadOptions(path=path)
        manifest = _chosen(take_manifests(self._options).manifests, path, topic)
        self._manifest = manifest
        self.topic = manifest.topic
        self.epoch = manifest.epoch
        self.first_seq = manifest.first_seq if from_seq is None else from_seq
        self.last_seq = manifest.head_seq if to_seq is None else to_seq

    @property
    def _range(self) -> tuple[int, int]:
        return max(self.first_seq, self._manifest.first_seq), min(self.last_seq, self._manifest.head_seq)

    def chunks(self, chunk_bytes: int) -> list[RestoreChunk]:
        first_seq, last_seq = self._range
        cuts = self._cuts(first_seq, last_seq, chunk_bytes)
        starts = [first_seq, *(cut + 1 for cut in cuts)]
        return [
            RestoreChunk(start, cut, range_bytes(self._manifest, start, cut))
            for start, cut in zip(starts, cuts, strict=False)
        ]

    def _cuts(self, first_seq: int, last_seq: int, size_bytes: int) -> list[int]:
        return choose_cuts(self._manifest, first_seq, last_seq, replace(self._options, partition_bytes=size_bytes))

    def pieces(self, chunk: RestoreChunk) -> Sequence[Piece]:
        cuts = self._cuts(chunk.first_seq, chunk.last_seq, PIECE_BYTES)
        partitions = cut_partitions(self._manifest, chunk.first_seq, cuts)
        return [_PathPiece(partition, self._options) for partition in partitions]

    def gaps(self) -> list[dict[str, object]]:
        missing = find_gaps(self._manifest, self.first_seq - 1, min(self.last_seq, self._manifest.head_seq))
        found: list[dict[str, object]] = [{"problem": "gap", **gap._asdict()} for gap in missing]
        if self.last_seq > self._manifest.head_seq:
            first_seq = self._manifest.head_seq + 1
            found.append(
                {"problem": "not there", "topic": self.topic, "first_seq": first_seq, "last_seq": self.last_seq}
            )
        return found


def _chosen(manifests: Sequence[Manifest], path: str, topic: str | None) -> Manifest:
    found = [manifest for manifest in manifests if topic is None or manifest.topic == topic]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(manifest.topic for manifest in manifests))
    if not found:
        raise BadOption(f'{path} has no topic "{topic}"; it has {names or "none at all"}')
    raise BadOption(f"{path} has several topics; name one of {names}")


def reader_of(pieces: Sequence[Piece]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over a range with one partition for each piece."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from pieces[index].batches()

    return read
