"""What a task of `archive` does: it writes rows of segments into the lake, and takes rows that are gone out of it."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from topics.formats.columnar import constant
from topics.formats.frame_table import Mask, Positions
from topics.spark import schemas
from topics.spark.jobs.archive_plan import ArchiveItem
from topics.spark.lake.files import LAKE_SCHEMA, NewFile, file_batches, file_seqs, seq_mask, store_at
from topics.spark.lake.state import LakeChange, LakeFile, LakeGap, SegmentDone
from topics.spark.options import ReadOptions
from topics.spark.reading.locate import read_partition
from topics.storage.tiers.store import SharedStore


def archive_item(item: ArchiveItem, *, address: str, options: ReadOptions) -> LakeChange:
    """Puts the files of an item into the lake, and returns the change to commit; it may be empty."""
    rows = _Rows(item, options)
    store = store_at(address)
    if item.replaces:
        adds, removes = _without_gone_rows(item, rows, store)
    else:
        adds, removes = _new_file(item, rows.batches(), store), ()
    segments = rows.segments()
    if not adds and not removes and item.expects == {segment.digest for segment in segments}:
        return LakeChange()
    return LakeChange(adds=adds, gaps=tuple(rows.gaps), removes=removes, segments=segments, expects=item.expects)


def _new_file(item: ArchiveItem, batches: Iterator[pa.RecordBatch], store: SharedStore) -> tuple[LakeFile, ...]:
    file = NewFile(item.topic, item.epoch)
    for batch in batches:
        file.write(batch)
    return file.put(store)


class _Rows:
    """The rows of an item's segments. Counts and gaps are known once all rows were read."""

    def __init__(self, item: ArchiveItem, options: ReadOptions) -> None:
        self.gaps: list[LakeGap] = []
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
        item = self._item
        self.gaps += [LakeGap(item.topic, item.epoch, row["seq"], row["gap_to"], row["gap_reason"]) for row in rows]

    def segments(self) -> tuple[SegmentDone, ...]:
        bad = np.zeros_like(self._counts)
        for gap in self.gaps:
            if gap.reason == "corrupt":
                assert gap.last_seq is not None, "damage has an end"
                bad[np.searchsorted(self._last_seqs, gap.first_seq)] += gap.last_seq - gap.first_seq + 1
        counted = zip(self._item.segments, self._counts.tolist(), bad.tolist(), strict=True)
        return tuple(msgspec.structs.replace(segment, rows=rows, bad=bad) for segment, rows, bad in counted)


def _without_gone_rows(
    item: ArchiveItem, rows: _Rows, store: SharedStore
) -> tuple[tuple[LakeFile, ...], tuple[str, ...]]:
    """Files with the same rows but for those that are gone from the server, and the names of the files they replace.

    The record of a seq never changes, so that a row is kept as it is when the server still has its seq. A row of the
    lake also stays when the server cannot read its seq any more: the lake may have the only copy.
    """
    fresh = pa.Table.from_batches(rows.batches(), LAKE_SCHEMA)
    fresh_seqs: Positions = fresh.column("seq").to_numpy()
    unreadable = [(gap.first_seq, gap.last_seq) for gap in rows.gaps if gap.last_seq is not None]

    def goes(seqs: Positions) -> Mask:
        return seq_mask(seqs, item.dropped) & ~seq_mask(seqs, unreadable) & ~np.isin(seqs, fresh_seqs)

    adds: tuple[LakeFile, ...] = ()
    removes: tuple[str, ...] = ()
    is_known = np.zeros(len(fresh_seqs), dtype=np.bool_)
    for file in item.replaces:
        seqs = file_seqs(store, file)
        is_known |= np.isin(fresh_seqs, seqs)
        if goes(seqs).any():
            kept = (
                batch.filter(pa.array(~goes(batch.column("seq").to_numpy()))) for batch in file_batches(store, file)
            )
            adds += _new_file(item, kept, store)
            removes += (file.name,)
    # Rows that could not be read before.
    adds += _new_file(item, iter(fresh.filter(pa.array(~is_known)).to_batches()), store)
    return adds, removes
