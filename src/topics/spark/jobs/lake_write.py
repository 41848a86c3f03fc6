"""Writes the rows of a query into a lake: files first, then one commit that names the files and the epoch.

A lake holds records, so that each row must be a record, with a seq and a time. The lake is also a ledger: it knows the
newest epoch of each writer. A repeated run finds its epoch there and adds nothing; the files that it wrote do not
count. No seq gets into the lake twice: seqs of files that may be the same are compared before the commit.
"""

import pickle
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from topics.clock import SystemClock
from topics.spark.errors import BadOption, Conflict
from topics.spark.lake.files import file_seqs
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import LakeChange, LakeFile, WriterEpoch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

REQUIRED: Final = ("topic", "seq", "ts", "data")
OPTIONAL: Final = {"node": "string", "tag": "string", "meta": "string", "epoch": "bigint"}
_TYPES: Final = {"topic": "string", "seq": "bigint", "ts": "timestamp", "data": "string", **OPTIONAL}


def write_lake(rows: "DataFrame", address: str, *, writer: str, epoch: int) -> int | None:
    """How many rows were added; None when the lake already has this epoch of the writer.

    Raises `BadOption` for rows that are no records, and `Conflict` when another writer has put the same seqs there.
    """
    lake = open_lake(address, must_exist=False)
    run = WriterEpoch(writer, epoch)
    if lake.state.has_epoch(run):
        return None
    files = tuple(_put_files(_as_records(rows), lake.address))
    while True:
        compared = lake.state.overlapping(files)
        _compare_seqs(lake, files, compared)
        change = LakeChange(adds=files, writer=run, compared=frozenset(compared))
        if lake.commit("sql", [change], now_ms=SystemClock().now_ms()):
            return change.records
        if lake.state.has_epoch(run):
            return None


def _compare_seqs(lake: Lake, files: Iterable[LakeFile], names: Iterable[str]) -> None:
    others = [lake.state.files[name] for name in sorted(names)]
    for file in files if others else ():
        seqs = file_seqs(lake.store, file)
        for other in others:
            if (other.topic, other.epoch) == (file.topic, file.epoch):
                same = np.intersect1d(seqs, file_seqs(lake.store, other))
                if len(same):
                    raise Conflict(
                        f"{lake.address} already has {len(same)} seqs of these rows, such as {same[0]} of topic "
                        f'"{file.topic}", from another writer'
                    )


def _as_records(rows: "DataFrame") -> "DataFrame":
    """Exactly the columns of the lake. Each partition has its own range of seqs."""
    from pyspark.sql.functions import col, lit

    missing = [name for name in REQUIRED if name not in rows.columns]
    unknown = [name for name in rows.columns if name not in _TYPES]
    if missing or unknown:
        problem = f"no column {', '.join(missing)}" if missing else f"no place for {', '.join(unknown)}"
        raise BadOption(
            f"a lake holds records, and the rows have {problem}; select {', '.join(_TYPES)}, of which "
            f"{', '.join(OPTIONAL)} may be left out, or write plain files with parquet:PATH"
        )
    columns = [
        (col(name) if name in rows.columns else lit(0 if name == "epoch" else None)).cast(wanted).alias(name)
        for name, wanted in _TYPES.items()
    ]
    return (
        rows.select(*columns).repartitionByRange("topic", "epoch", "seq").sortWithinPartitions("topic", "epoch", "seq")
    )


def _put_files(records: "DataFrame", address: str) -> list[LakeFile]:
    def put(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        found = [pickle.dumps(file) for file in _files_of(batches, address)]
        yield pa.RecordBatch.from_pydict({"file": found}, schema=pa.schema([("file", pa.binary())]))

    made = records.mapInArrow(put, "file binary").collect()
    return [pickle.loads(row["file"]) for row in made]  # noqa: S301 - our own tasks wrote them.


def _files_of(batches: "Iterator[pa.RecordBatch]", address: str) -> list[LakeFile]:
    """On an executor: writes a file for each topic and instance. The files are durable on return."""
    import pyarrow as pa

    from topics.spark.lake.files import LAKE_SCHEMA, NewFile, store_at

    files: dict[tuple[str, int], NewFile] = {}
    last_key: tuple[str, int, int] | None = None
    for batch in batches:
        for name in ("topic", "seq", "ts"):
            if batch.column(name).null_count:
                raise BadOption(f"column `{name}` is null in a row that should go into a lake")
        table = pa.Table.from_batches([batch]).select(LAKE_SCHEMA.names).cast(LAKE_SCHEMA)
        keys = list(zip(*(table.column(name).to_pylist() for name in ("topic", "epoch", "seq")), strict=True))
        for key in keys:
            if last_key is not None and key <= last_key:
                raise BadOption(f'topic "{key[0]}" has seq {key[2]} twice among the rows')
            last_key = key
        start = 0
        for (topic, epoch), group in groupby(keys, key=lambda key: key[:2]):
            count = sum(1 for _ in group)
            own = files.setdefault((topic, epoch), NewFile(topic, epoch))
            for piece in table.slice(start, count).combine_chunks().to_batches():
                own.write(pa.RecordBatch.from_arrays(piece.columns, schema=LAKE_SCHEMA))
            start += count
    store = store_at(address)
    return [file for own in files.values() for file in own.put(store)]
