"""What a task of `archive` does: it writes the rows of segments, and of the files that it replaces, into the lake."""

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from topics.formats.columnar import constant
from topics.formats.frame_table import Mask
from topics.spark import schemas
from topics.spark.jobs.archive_plan import ArchiveItem
from topics.spark.lake.files import (
    LAKE_SCHEMA,
    DayFiles,
    dates_of,
    file_batches,
    merged_by_seq,
    put_gap,
    seq_mask,
    store_at,
)
from topics.spark.lake.state import LakeChange, LakeFile, SegmentDone
from topics.spark.loss import Gap
from topics.spark.manifest import SeqRange
from topics.spark.options import ReadOptions
from topics.spark.reading.locate import read_partition
from topics.storage.tiers.store import SharedStore


def archive_item(item: ArchiveItem, *, address: str, options: ReadOptions) -> LakeChange:
    """Puts the files of an item into the lake, and returns the change to commit; it may be empty."""
    rows = _Rows(item, options)
    store = store_at(address)
    files = DayFiles(item.topic, item.epoch)
    removes: tuple[str, ...] = ()
    if not item.replaces:
        for batch in rows.batches():
            files.write(batch)
        adds = files.put(store)
    elif _merge(item, rows, files, store):
        adds = files.put(store)
        names = {file.name for file in adds}
        removes = tuple(file.name for file in item.replaces if file.name not in names)
        adds = _without(adds, item.replaces)
    else:
        adds = ()
    segments = rows.segments()
    if not adds and not removes and item.expects == {segment.digest for segment in segments}:
        return LakeChange()
    gaps = tuple(put_gap(store, gap, item.epoch) for gap in rows.gaps)
    return LakeChange(adds=adds, gaps=gaps, removes=removes, segments=segments, expects=item.expects)


def _without(files: Iterable[LakeFile], others: Iterable[LakeFile]) -> tuple[LakeFile, ...]:
    names = {file.name for file in others}
    return tuple(file for file in files if file.name not in names)


class _Rows:
    """The rows of an item's segments. Counts and gaps are known once all rows were read."""

    def __init__(self, item: ArchiveItem, options: ReadOptions) -> None:
        self.gaps: list[Gap] = []
        self._item = item
        self._options = options
        self._last_seqs = np.array([segment.last_seq for segment in item.segments], dtype=np.int64)
        self._counts = np.zeros(len(item.segments), dtype=np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows under `LAKE_SCHEMA`. Gaps are kept in `gaps`."""
        with_gaps = schemas.schema_of(self._options)
        for partition in self._item.partitions:
            for batch in read_partition(partition, self._options, with_gaps):
                is_gap = pc.equal(batch.column("kind"), "gap")
                if is_gap.true_count:
                    self._note_gaps(batch.filter(is_gap))
                    batch = batch.filter(pc.invert(is_gap))
                if batch.num_rows:
                    places = np.searchsorted(self._last_seqs, batch.column("seq").to_numpy())
                    self._counts += np.bincount(places, minlength=len(self._counts))
                    yield self._of_the_lake(batch, partition.epoch)

    def _of_the_lake(self, batch: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
        rows = schemas.with_schema(batch, LAKE_SCHEMA)
        if epoch == self._item.epoch:
            return rows
        place = LAKE_SCHEMA.get_field_index("epoch")
        epochs = constant(self._item.epoch, pa.int64(), rows.num_rows)
        return rows.set_column(place, LAKE_SCHEMA.field(place), epochs)

    def _note_gaps(self, batch: pa.RecordBatch) -> None:
        rows = batch.select(["seq", "gap_to", "gap_reason"]).to_pylist()
        self.gaps += [Gap(self._item.topic, row["seq"], row["gap_to"], row["gap_reason"]) for row in rows]

    def segments(self) -> tuple[SegmentDone, ...]:
        bad = np.zeros_like(self._counts)
        for gap in self.gaps:
            if gap.reason == "corrupt":
                assert gap.last_seq is not None, "damage has an end"
                bad[np.searchsorted(self._last_seqs, gap.first_seq)] += gap.last_seq - gap.first_seq + 1
        counted = zip(self._item.segments, self._counts.tolist(), bad.tolist(), strict=True)
        return tuple(msgspec.structs.replace(segment, rows=rows, bad=bad) for segment, rows, bad in counted)


def _merge(item: ArchiveItem, rows: _Rows, files: DayFiles, store: SharedStore) -> bool:
    """Writes the rows that stay in the old files together with the new rows; False when no row has changed.

    A row of the lake stays when the server cannot read its seq any more: the lake may have the only copy.
    """
    fresh = pa.Table.from_batches(rows.batches(), LAKE_SCHEMA)
    kept_after_all = [(gap.first_seq, gap.last_seq) for gap in rows.gaps if gap.last_seq is not None]
    dropped_seqs: list[pa.Array] = []

    def kept(old: Iterable[LakeFile]) -> Iterator[pa.RecordBatch]:
        for file in old:
            for batch in file_batches(store, file.name):
                goes = _goes(batch, item.dropped, kept_after_all)
                dropped_seqs.append(batch.column("seq").filter(pa.array(goes)))
                yield batch.filter(pa.array(~goes))

    fresh_dates = dates_of(fresh)
    old_by_date = {
        date: list(group)
        for date, group in groupby(
            sorted(item.replaces, key=lambda file: (file.date, file.first_seq)), key=lambda file: file.date
        )
    }
    for date in sorted({*old_by_date, *fresh_dates}):
        of_date = fresh.filter(pa.array(fresh_dates == date)) if len(fresh_dates) else fresh
        for batch in merged_by_seq(kept(old_by_date.get(date, ())), of_date):
            files.write(batch)
    before = np.sort(np.concatenate([seqs.to_numpy() for seqs in dropped_seqs]))
    return not np.array_equal(before, fresh.column("seq").to_numpy())


def _goes(batch: pa.RecordBatch, dropped: Iterable[SeqRange], kept: Iterable[SeqRange]) -> Mask:
    seqs = batch.column("seq").to_numpy()
    return seq_mask(seqs, dropped) & ~seq_mask(seqs, kept)
