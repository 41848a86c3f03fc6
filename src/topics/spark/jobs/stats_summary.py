"""Numbers about a partition of a topic: a task makes them in one pass, and the driver adds them up.

Tags and nodes are counted exactly up to `LABELS_MAX` of them in a task. Beyond that the rarest are counted together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from topics.formats.columnar import schema
from topics.spark.options import ReadOptions
from topics.spark.reading.locate import read_partition
from topics.spark.reading.plan import Partition

COLUMNS: Final = ("seq", "ts", "node", "tag", "data", "meta")
LABELS_MAX: Final = 100_000
JUMPS_KEPT: Final = 20
# Each width divides all larger ones, so that finer buckets add up to coarser ones.
BUCKETS_MS: Final = (
    *(100, 500, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 900_000, 1_800_000),
    *(3_600_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000, 604_800_000),
)
assert all(after % before == 0 for before, after in pairwise(BUCKETS_MS))
# Shorter pauses between records are normal.
PAUSE_MS_MIN: Final = 1000

_US_PER_MS: Final = 1000
Integers = NDArray[np.int64]


class Place(NamedTuple):
    seq: int
    ts: int


class Jump(NamedTuple):
    """The time from one record to the next, in milliseconds; negative when it went back."""

    size_ms: int
    seq: int
    ts: int


class GapSeen(NamedTuple):
    """Seqs that a task found no record for, and that were not deleted."""

    first_seq: int
    last_seq: int | None
    reason: str


@dataclass(slots=True)
class Labels:
    """How often each label occurs. `others` counts records whose labels are not counted one by one."""

    counts: Counter[str] = field(default_factory=Counter)
    others: int = 0
    without: int = 0

    def add(self, column: pa.Array) -> None:
        self.without += column.null_count
        for entry in pc.value_counts(column.drop_null()):
            self.counts[entry["values"].as_py()] += entry["counts"].as_py()

    def merge(self, other: "Labels") -> None:
        self.counts.update(other.counts)
        self.others += other.others
        self.without += other.without
        self.bound()

    def bound(self) -> None:
        if len(self.counts) > LABELS_MAX:
            kept = self.counts.most_common(LABELS_MAX // 2)
            self.others += self.counts.total() - sum(count for _, count in kept)
            self.counts = Counter(dict(kept))

    @property
    def is_exact(self) -> bool:
        return not self.others


@dataclass(slots=True)
class Summary:
    """Live records of a range of seqs of a topic. `bytes` are those of payload and meta, as the server counts them."""

    bucket_ms: int
    records: int = 0
    bytes: int = 0
    # Records among them that are in no file yet.
    tail_records: int = 0
    tail_bytes: int = 0
    records_by_bucket: Counter[int] = field(default_factory=Counter)
    # By n: sizes from 2^n up to below 2^(n + 1). An empty record counts as one byte.
    records_by_size: Counter[int] = field(default_factory=Counter)
    size_max: int = 0
    tags: Labels = field(default_factory=Labels)
    nodes: Labels = field(default_factory=Labels)
    jumps: list[Jump] = field(default_factory=list)
    backwards: int = 0
    gaps: list[GapSeen] = field(default_factory=list)
    first: Place | None = None
    last: Place | None = None

    def add(self, batch: pa.RecordBatch, tail_first_seq: int) -> None:
        """Adds records, in the order of their seqs."""
        seqs = batch.column("seq").to_numpy()
        times: Integers = batch.column("ts").cast(pa.int64()).to_numpy() // _US_PER_MS
        sizes = _sizes(batch)
        self._count(seqs, times, sizes, tail_first_seq)
        self.tags.add(batch.column("tag"))
        self.nodes.add(batch.column("node"))
        self.tags.bound()
        self.nodes.bound()
        self._find_jumps(seqs, times)
        if self.first is None:
            self.first = Place(int(seqs[0]), int(times[0]))
        self.last = Place(int(seqs[-1]), int(times[-1]))

    def _count(self, seqs: Integers, times: Integers, sizes: Integers, tail_first_seq: int) -> None:
        self.records += len(seqs)
        self.bytes += int(sizes.sum())
        in_tail = seqs >= tail_first_seq
        self.tail_records += int(in_tail.sum())
        self.tail_bytes += int(sizes[in_tail].sum())
        self.records_by_bucket.update(_counted(times // self.bucket_ms))
        self.records_by_size.update(_counted(np.frexp(np.maximum(sizes, 1))[1].astype(np.int64) - 1))
        self.size_max = max(self.size_max, int(sizes.max()))

    def _find_jumps(self, seqs: Integers, times: Integers) -> None:
        before = times[:1] if self.last is None else np.array([self.last.ts], dtype=np.int64)
        moved = np.diff(np.concatenate((before, times)))
        backwards = np.flatnonzero(moved < 0)
        self.backwards += len(backwards)
        large = np.flatnonzero(moved >= PAUSE_MS_MIN)
        if len(large) > JUMPS_KEPT:
            large = large[np.argpartition(moved[large], -JUMPS_KEPT)[-JUMPS_KEPT:]]
        rows = [*large.tolist(), *backwards[:JUMPS_KEPT].tolist()]
        self._keep(Jump(int(moved[row]), int(seqs[row]), int(times[row])) for row in rows)

    def _keep(self, jumps: Iterable[Jump]) -> None:
        self.jumps = nlargest(JUMPS_KEPT, [*self.jumps, *jumps], key=lambda jump: (abs(jump.size_ms), -jump.seq))

    def merge(self, later: "Summary") -> None:
        """Adds the summary of the seqs that follow."""
        assert later.bucket_ms == self.bucket_ms
        self.records += later.records
        self.bytes += later.bytes
        self.tail_records += later.tail_records
        self.tail_bytes += later.tail_bytes
        self.records_by_bucket.update(later.records_by_bucket)
        self.records_by_size.update(later.records_by_size)
        self.size_max = max(self.size_max, later.size_max)
        self.tags.merge(later.tags)
        self.nodes.merge(later.nodes)
        self.backwards += later.backwards
        self.gaps += later.gaps
        self._keep(later.jumps)
        if later.first is not None:
            if self.last is not None:
                moved = later.first.ts - self.last.ts
                self.backwards += moved < 0
                if moved >= PAUSE_MS_MIN or moved < 0:
                    self._keep([Jump(moved, *later.first)])
            self.first = self.first or later.first
            self.last = later.last


def _sizes(batch: pa.RecordBatch) -> Integers:
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy() for name in ("data", "meta")]
    sizes: Integers = lengths[0].astype(np.int64) + lengths[1]
    return sizes


def _counted(values: Integers) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def summarize(partition: Partition, options: ReadOptions, bucket_ms: int) -> Summary:
    """Runs on an executor."""
    summary = Summary(bucket_ms)
    for batch in read_partition(partition, options, schema(options.columns_with_gaps)):
        is_gap = pc.equal(batch.column("kind"), "gap")
        if pc.any(is_gap).as_py():
            summary.gaps += _gaps(batch.filter(is_gap).to_pylist())
            batch = batch.filter(pc.invert(is_gap))
        if batch.num_rows:
            summary.add(batch, partition.tail_first_seq)
    return summary


def _gaps(rows: list[dict[str, Any]]) -> Iterator[GapSeen]:
    for row in rows:
        yield GapSeen(row["seq"], row["gap_to"], row["gap_reason"])


def bucket_for(span_ms: int, count_max: int) -> int:
    """The finest width that cuts a span of time into at most so many buckets, if one does."""
    return next((width for width in BUCKETS_MS if span_ms // width < count_max), BUCKETS_MS[-1])
