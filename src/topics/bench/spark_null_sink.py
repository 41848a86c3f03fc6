"""A sink on Spark that drops its rows. Workers import this module by name."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType


class NullDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topics_bench_null"

    def writer(self, schema: "StructType", overwrite: bool) -> "NullWriter":  # noqa: FBT001
        return NullWriter()


class NullWriter(DataSourceArrowWriter):
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass
