"""Writes the rows of a query into a lake: files first, then one commit that names the files and the epoch.

A lake holds records, so that each row must be a record, with a seq and a time. The chain of manifests is also a ledger:
an epoch of a writer can be committed once. A repeated run finds its epoch in the chain and adds nothing; the files that
it wrote do not count.
"""

import pickle
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from topics.clock import SystemClock
from topics.spark.errors import BadOption, Conflict
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeChange, LakeFile, LakeState, SegmentDone

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

REQUIRED: Final = ("topic", "seq", "ts", "data")
OPTIONAL: Final = {"node": "string", "tag": "string", "meta": "string", "epoch": "bigint"}
_TYPES: Final = {"topic": "string", "seq": "bigint", "ts": "timestamp", "data": "string", **OPTIONAL}
# No topic has such a name, because names of topics have no blanks.
_LEDGER: Final = "writer "


def write_lake(rows: "DataFrame", address: str, *, writer: str, epoch: int) -> int | None:
    """How many rows were added; None when the lake already has this epoch of the writer.

    Raises `BadOption` for rows that are no records, and `Conflict` when another writer has put the same seqs there.
    """
    lake = open_lake(address)
    if _has_epoch(lake.state, writer, epoch):
        return None
    files = _put_files(_as_records(rows), lake.address)
    count = sum(file.records for file in files)
    done = SegmentDone(
        topic=f"{_LEDGER}{writer}",
        store_id="",
        epoch=0,
        first_seq=epoch + 1,
        last_seq=epoch + 1,
        follows=epoch,
        digest=f"{writer}:{epoch}",
        rows=count,
    )
    kept = lake.commit("sql", [LakeChange(adds=tuple(files), segments=(done,))], now_ms=SystemClock().now_ms())
    if kept:
        return count
    if _has_epoch(lake.state, writer, epoch):
        return None
    raise Conflict(f"{lake.address}: the lake already has seqs of these rows, from another writer")


def _has_epoch(state: LakeState, writer: str, epoch: int) -> bool:
    return bool(state.segments_between(f"{_LEDGER}{writer}", 0, epoch + 1, epoch + 1))


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
    """On an executor: writes a file for each topic, instance and day. The files are durable on return."""
    import pyarrow as pa

    from topics.spark.lake.files import LAKE_SCHEMA, DayFiles, store_at

    files: dict[tuple[str, int], DayFiles] = {}
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
            own = files.setdefault((topic, epoch), DayFiles(topic, epoch))
            for piece in table.slice(start, count).combine_chunks().to_batches():
                own.write(pa.RecordBatch.from_arrays(piece.columns, schema=LAKE_SCHEMA))
            start += count
    store = store_at(address)
    return [file for own in files.values() for file in own.put(store)]
