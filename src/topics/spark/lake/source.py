"""A lake as a table of the format `topics`: the option `path` with the address of a lake.

It reads the newest version at the moment of its first action. Python reads the files, and Spark filters afterwards. A
query that needs few of the rows is faster with `lake.read`, where filters reach the files.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceReader, InputPartition

from topics.spark import schemas
from topics.spark.errors import BadOption
from topics.spark.lake.files import LAKE_COLUMNS, file_batches, store_at
from topics.spark.lake.lake import open_lake, require_topics
from topics.spark.lake.state import LakeFile
from topics.spark.lake.table import LOG
from topics.spark.options import ReadOptions, parse_options
from topics.spark.shaping.shape import Shape, shape_of
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Others choose records, or say how segments are read.
_OPTIONS: Final = frozenset({"path", "subscribe", "columns", "schema", "partitionbytes", "batchrecords"})


def is_lake(given: Mapping[str, str]) -> bool:
    """Whether the options name the path of a lake."""
    path = {name.lower(): value for name, value in given.items()}.get("path")
    return path is not None and bool(open_shared_store(path, RealFs()).list(f"{LOG}/"))


class LakeTask(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: Sequence[LakeFile]) -> None:
        super().__init__(None)
        self.files = tuple(files)


class LakeReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: pa.Schema, shape: Shape | None) -> None:
        self._options = options
        self._schema = schema
        self._shape = shape

    def partitions(self) -> Sequence[InputPartition]:
        assert self._options.path is not None
        lake = open_lake(self._options.path)
        require_topics(lake, lake.state, self._options.subscribe)
        tasks: list[list[LakeFile]] = []
        open_bytes = self._options.partition_bytes
        for file in lake.state.files_of(self._options.subscribe or None):
            if open_bytes + file.bytes > self._options.partition_bytes:
                tasks.append([])
                open_bytes = 0
            tasks[-1].append(file)
            open_bytes += file.bytes
        return [LakeTask(files) for files in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LakeTask):
            batches = self._batches(partition.files)
            yield from batches if self._shape is None else self._shape.apply(batches)

    def _batches(self, files: Sequence[LakeFile]) -> Iterator[pa.RecordBatch]:
        assert self._options.path is not None
        for file in files:
            for batch in file_batches(store_at(self._options.path), file, self._options.batch_records):
                yield schemas.with_schema(batch, self._schema)


def batch_reader(given: Mapping[str, str], schema: "StructType") -> LakeReader:
    options = parse_options(given, mode="batch")
    for name in given:
        if name.lower() not in _OPTIONS:
            raise BadOption(f"option `{name}` is not for a lake; choose its records with a filter of SQL")
    for column in options.columns:
        if column not in LAKE_COLUMNS:
            raise BadOption(f"a lake has no column `{column}`, only {', '.join(LAKE_COLUMNS)}")
    text_schema = schemas.read_schema(options, schema)
    return LakeReader(options, text_schema, None if options.schema is None else shape_of(schema, text_schema))
