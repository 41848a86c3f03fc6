"""The Parquet files of a lake: writes records into them, and reads them.

A file is made in memory, because its name has the digest of its bytes, and is put as a whole. `data` and `meta` are the
bytes of the record. The columns by which the table is partitioned, `topic` and `epoch`, are in the name of the file and
in the log of the table, not in the file.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from xxhash import xxh3_64_hexdigest

from topics.formats.columnar import COLUMNS, constant, schema
from topics.formats.frame_table import Mask, Positions
from topics.spark import schemas
from topics.spark.lake.state import LakeFile, data_name
from topics.spark.manifest import SeqRange
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store, path_of_address
from topics.storage.tiers.store import SharedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKE_COLUMNS: Final = (*COLUMNS, "epoch")
LAKE_SCHEMA: Final = schema(LAKE_COLUMNS)
FILE_SCHEMA: Final = pa.schema([field for field in LAKE_SCHEMA if field.name not in {"topic", "epoch"}])
ROW_GROUP_ROWS: Final = 1_000_000
# Dictionaries for columns whose values repeat. To try one for payloads would cost as much as writing them.
_WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "write_batch_size": 65_536,
    "use_dictionary": ["node", "tag"],
    "column_encoding": {"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
    "write_statistics": ["seq", "ts", "node", "tag"],
}


class NewFile:
    """A file with rows of one topic and instance that is being made. A full row group is written at once."""

    def __init__(self, topic: str, epoch: int) -> None:
        self._topic = topic
        self._epoch = epoch
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, FILE_SCHEMA, **_WRITING)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._records = 0
        # Each is the smallest and the largest of a batch.
        self._seqs: list[tuple[int, int]] = []
        self._times_us: list[tuple[int, int]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """A batch with all columns of `FILE_SCHEMA`; others are left out."""
        if not batch.num_rows:
            return
        self._seqs.append(_bounds(batch.column("seq")))
        self._times_us.append(_bounds(batch.column("ts").cast(pa.int64())))
        self._records += batch.num_rows
        columns = [batch.column(name) for name in FILE_SCHEMA.names]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA))
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, FILE_SCHEMA)
            self._writer.write_table(table, row_group_size=self._waiting_rows)
            self._waiting.clear()
            self._waiting_rows = 0

    def put(self, store: SharedStore) -> tuple[LakeFile, ...]:
        """Stores the file; it is durable on return. Without rows there is no file."""
        self._flush()
        self._writer.close()
        if not self._records:
            return ()
        # The view of Arrow has signed bytes, which not every store takes.
        content = memoryview(self._sink.getvalue()).cast("B")
        digest = xxh3_64_hexdigest(content)
        first_seq, last_seq = min(low for low, _ in self._seqs), max(high for _, high in self._seqs)
        name = data_name(self._topic, self._epoch, first_seq, last_seq, digest)
        store.put(name, content)
        file = LakeFile(
            name=name,
            topic=self._topic,
            epoch=self._epoch,
            first_seq=first_seq,
            last_seq=last_seq,
            first_ts_ms=min(low for low, _ in self._times_us) // 1000,
            last_ts_ms=-(-max(high for _, high in self._times_us) // 1000),
            records=self._records,
            bytes=content.nbytes,
        )
        return (file,)


def _bounds(values: pa.Array) -> tuple[int, int]:
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


# Reading.


@lru_cache(maxsize=8)
def store_at(address: str) -> SharedStore:
    """The store of a lake, opened once in each worker."""
    return open_shared_store(address, RealFs())


def file_batches(store: SharedStore, file: LakeFile, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """The rows of a file in their order, under `LAKE_SCHEMA`."""
    with _opened(store, file) as parquet:
        for batch in parquet.iter_batches(batch_size=batch_rows, columns=list(FILE_SCHEMA.names)):
            given = {name: batch.column(name) for name in FILE_SCHEMA.names}
            given["topic"] = constant(file.topic, pa.string(), batch.num_rows)
            given["epoch"] = constant(file.epoch, pa.int64(), batch.num_rows)
            yield pa.RecordBatch.from_arrays(
                [given[field.name].cast(field.type) for field in LAKE_SCHEMA], schema=LAKE_SCHEMA
            )


def file_seqs(store: SharedStore, file: LakeFile) -> Positions:
    """The seqs of a file in the order of its rows."""
    with _opened(store, file) as parquet:
        seqs: Positions = parquet.read(columns=["seq"]).column("seq").to_numpy()
    return seqs


def _opened(store: SharedStore, file: LakeFile) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(store.read_range(file.name, 0, store.size(file.name))))


def seq_mask(seqs: Positions, ranges: Iterable[SeqRange]) -> Mask:
    """Which of the seqs are in one of the ranges."""
    inside = np.zeros(len(seqs), dtype=np.bool_)
    for first_seq, last_seq in ranges:
        inside |= (seqs >= first_seq) & (seqs <= last_seq)
    return inside


def read_frame(spark: "SparkSession", address: str, files: Sequence[LakeFile]) -> "DataFrame":
    """These files as one DataFrame. Python reads files of a bucket, so that Spark needs no jar."""
    ddl = schemas.ddl(pa.schema([field.with_nullable(True) for field in LAKE_SCHEMA]))
    if not files:
        return spark.createDataFrame([], ddl)
    path = path_of_address(address)
    if path is not None:
        # Spark takes `topic` and `epoch` from the names of the folders below the base path.
        paths = [f"{path}/{file.name}" for file in files]
        return spark.read.schema(ddl).option("basePath", path).parquet(*paths).select(*LAKE_COLUMNS)
    return spark.range(0, len(files), 1, len(files)).mapInArrow(partial(rows_of, address, files), ddl)


def rows_of(address: str, files: Sequence[LakeFile], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: the rows of the files whose numbers in the list are given."""
    for batch in batches:
        for index in batch.column(0).to_pylist():
            yield from file_batches(store_at(address), files[index])
