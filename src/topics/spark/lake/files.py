"""The Parquet files of a lake: writes records into one file for each day, and reads them.

A file is made in memory, because its name has the digest of its bytes, and is put as a whole. Rows are sorted by seq.
`data` and `meta` are the bytes of the record. With `epoch` a file has all that a restore needs.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from topics.formats.columnar import COLUMNS, schema
from topics.formats.frame_table import Mask, Positions
from topics.spark import schemas
from topics.spark.lake.state import GapFile, LakeFile, data_name, gap_name
from topics.spark.loss import Gap
from topics.spark.manifest import SeqRange
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store, path_of_address
from topics.storage.tiers.store import SharedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE_COLUMNS: Final = (*COLUMNS, "epoch")
LAKE_SCHEMA: Final = schema(LAKE_COLUMNS)
ROW_GROUP_ROWS: Final = 1_000_000
_DAY_US: Final = 86_400_000_000
_GAP_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("gap_from", pa.int64(), nullable=False),
        # The last seq of an instance that is gone is not known.
        pa.field("gap_to", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
# Dictionaries for columns whose values repeat. To try one for payloads would cost as much as writing them.
_WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_batch_size": 65_536,
    "use_dictionary": ["topic", "node", "tag", "epoch"],
    "column_encoding": {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
    "write_statistics": ["topic", "seq", "ts", "node", "tag", "epoch"],
}


class DayFiles:
    """Takes the rows of one topic and instance in the order of their seqs, and makes a file for each day."""

    def __init__(self, topic: str, epoch: int) -> None:
        self._topic = topic
        self._epoch = epoch
        self._days: dict[int, _DayFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """A batch under `LAKE_SCHEMA`."""
        if not batch.num_rows:
            return
        days = _days(batch)
        if days[0] == days[-1] and bool((days == days[0]).all()):
            self._day(int(days[0])).write(batch)
            return
        for day in np.unique(days).tolist():
            self._day(day).write(batch.filter(pa.array(days == day)))

    def _day(self, day: int) -> "_DayFile":
        if day not in self._days:
            self._days[day] = _DayFile()
        return self._days[day]

    def put(self, store: SharedStore) -> tuple[LakeFile, ...]:
        """Stores the files; they are durable on return."""
        return tuple(self._put(store, day, file) for day, file in sorted(self._days.items()))

    def _put(self, store: SharedStore, day: int, file: "_DayFile") -> LakeFile:
        date = str(np.datetime64(day, "D"))
        content = file.finish()
        name = data_name(self._topic, date, file.first_seq, file.last_seq, xxh3_64_hexdigest(content))
        store.put(name, content)
        return LakeFile(
            name=name,
            topic=self._topic,
            epoch=self._epoch,
            date=date,
            first_seq=file.first_seq,
            last_seq=file.last_seq,
            records=file.records,
            bytes=content.nbytes,
        )


class _DayFile:
    """A file that is being made. A full row group is written at once."""

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, LAKE_SCHEMA, **_WRITING)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.records = 0
        self.first_seq = 0
        self.last_seq = -1

    def write(self, batch: pa.RecordBatch) -> None:
        seqs = batch.column("seq")
        first_seq = seqs[0].as_py()
        assert first_seq > self.last_seq, "files are sorted by seq"
        if not self.records:
            self.first_seq = first_seq
        self.last_seq = seqs[-1].as_py()
        self.records += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, LAKE_SCHEMA)
            self._writer.write_table(table, row_group_size=self._waiting_rows)
            self._waiting.clear()
            self._waiting_rows = 0

    def finish(self) -> memoryview:
        self._flush()
        self._writer.close()
        return _bytes_of(self._sink)


def _bytes_of(sink: pa.BufferOutputStream) -> memoryview:
    # The view of Arrow has signed bytes, which not every store takes.
    return memoryview(sink.getvalue()).cast("B")


def put_gap(store: SharedStore, gap: Gap, epoch: int) -> GapFile:
    """A gap as a file of one row. A repeat writes the same file."""
    columns = [[gap.topic], [epoch], [gap.first_seq], [gap.last_seq], [gap.reason]]
    rows = pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, _GAP_SCHEMA, strict=True)], _GAP_SCHEMA
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    content = _bytes_of(sink)
    name = gap_name(gap.topic, epoch, gap.first_seq, gap.last_seq, gap.reason)
    store.put(name, content)
    file = LakeFile(
        name=name,
        topic=gap.topic,
        epoch=epoch,
        first_seq=gap.first_seq,
        last_seq=gap.last_seq,
        records=1,
        bytes=content.nbytes,
    )
    return GapFile(file, gap.reason)


# Reading.


@lru_cache(maxsize=8)
def store_at(address: str) -> SharedStore:
    """The store of a lake, opened once in each worker."""
    return open_shared_store(address, RealFs())


def file_batches(store: SharedStore, name: str, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """The rows of a file in their order, under `LAKE_SCHEMA`."""
    content = store.read_range(name, 0, store.size(name))
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        for batch in file.iter_batches(batch_size=batch_rows, columns=list(LAKE_COLUMNS)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=LAKE_SCHEMA)


def seq_mask(seqs: Positions, ranges: Iterable[SeqRange]) -> Mask:
    """Which of the seqs are in one of the ranges."""
    inside = np.zeros(len(seqs), dtype=np.bool_)
    for first_seq, last_seq in ranges:
        inside |= (seqs >= first_seq) & (seqs <= last_seq)
    return inside


def dates_of(rows: pa.Table | pa.RecordBatch) -> NDArray[np.str_]:
    """The day of every row, as in the names of files."""
    return np.datetime_as_string(_days(rows).astype("datetime64[D]"))


def _days(rows: pa.Table | pa.RecordBatch) -> Positions:
    days: Positions = rows.column("ts").cast(pa.int64()).to_numpy() // _DAY_US
    return days


def merged_by_seq(kept: Iterable[pa.RecordBatch], fresh: pa.Table) -> Iterator[pa.RecordBatch]:
    """The batches together with the rows of a table, in the order of their seqs. No seq is in both."""
    fresh_seqs = fresh.column("seq").to_numpy()
    done = 0
    for batch in kept:
        if not batch.num_rows:
            continue
        until = int(np.searchsorted(fresh_seqs, batch.column("seq")[-1].as_py()))
        if until == done:
            yield batch
            continue
        both = pa.concat_tables([pa.Table.from_batches([batch]), fresh.slice(done, until - done)])
        done = until
        yield from both.take(pc.sort_indices(both, [("seq", "ascending")])).to_batches()
    yield from fresh.slice(done).to_batches()


def read_frame(spark: "SparkSession", address: str, names: Sequence[str]) -> "DataFrame":
    """These files as one DataFrame. Python reads files of a bucket, so that Spark needs no jar."""
    ddl = schemas.ddl(pa.schema([field.with_nullable(True) for field in LAKE_SCHEMA]))
    if not names:
        return spark.createDataFrame([], ddl)
    path = path_of_address(address)
    if path is not None:
        return spark.read.schema(ddl).parquet(*(f"{path}/{name}" for name in names))
    return spark.range(0, len(names), 1, len(names)).mapInArrow(partial(named_rows, address, names), ddl)


def named_rows(address: str, names: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: the rows of the files whose numbers in the list are given."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from file_batches(store_at(address), names[index])
