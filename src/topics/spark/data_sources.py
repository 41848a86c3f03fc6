"""The formats as Spark finds them: their names, and the functions that make readers and writers.

Spark imports this module in every session of an installation, whatever formats the session uses. So the modules that do
the work are imported when a format is read or written.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class TopicsDataSource(DataSource):
    """Records of topics. Spark passes arguments by name, so that the parameters keep the names of Spark."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        from topics.spark import sql_tables
        from topics.spark.reading import columns

        if not sql_tables.is_table(self.options):
            return columns.schema_text(self.options)
        options = sql_tables.options_of_new(self.options)
        return sql_tables.with_comment(columns.schema_text(options), options)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from topics.spark import sql_tables
        from topics.spark.lake import source as lake_source
        from topics.spark.reading import source

        options = sql_tables.read_options(self.options, schema)
        if lake_source.is_lake(options):
            return lake_source.batch_reader(options, schema)
        return source.batch_reader(options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from topics.spark import sql_tables
        from topics.spark.reading import source

        return source.stream_reader(sql_tables.read_options(self.options, schema), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":  # noqa: FBT001
        from topics.spark import sql_tables
        from topics.spark.writing import sink

        sql_tables.require_write_options(self.options)
        return sink.batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: FBT001, N802
        from topics.spark.writing import sink

        return sink.stream_writer(dict(self.options), schema, overwrite)


class StreamsDataSource(DataSource):
    """Messages of the partitioned engine. They can only be read."""

    @classmethod
    def name(cls) -> str:
        return "topics_streams"

    def schema(self) -> str:
        from topics.spark.streams import source as streams_source

        return streams_source.schema_text(self.options)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from topics.spark.streams import source as streams_source

        return streams_source.batch_reader(self.options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from topics.spark.streams import source as streams_source

        return streams_source.stream_reader(self.options, schema)
