"""Topics as tables of a database: `SELECT * FROM topics.orders`.

Each topic is a table `USING topics`, and each query reads what its topics have at that moment. Spark cannot ask Python
for a table that it does not know, so that topics which are created later are found by `refresh`, or by `sql`.
"""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from topics.spark.access import open_client
from topics.spark.errors import BadOption
from topics.spark.option_values import ENDPOINT_VARIABLE
from topics.spark.options import COLUMNS, parse_options
from topics.spark.sql_tables import NameInQuery, is_of_topic, replace_names, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Attached:
    """The tables of a database. `tables` has the topic of each table, by the name of the table."""

    def __init__(
        self,
        spark: "SparkSession",
        database: str,
        options: Mapping[str, Any],
        *,
        topics: Iterable[str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        if table_name(database) != database:
            raise BadOption(f"{database!r} is no name for a database: take letters, digits and _")
        given = {name: str(value) for name, value in options.items() if value is not None}
        if "endpoint" in given and "path" in given:
            raise BadOption("give `endpoint` or `path`, not both")
        if "path" not in given and "endpoint" not in given and ENDPOINT_VARIABLE in os.environ:
            given["endpoint"] = os.environ[ENDPOINT_VARIABLE]
        if given.get("schema", "").strip().lower() == "variant":
            raise BadOption("a table cannot have `schema` variant: read with topics.spark.read, and make a view of it")
        self.database = database
        self.tables: dict[str, str] = {}
        self._spark = spark
        self._options = given
        self._topics = None if topics is None else list(topics)
        self._names = names or {}

    def refresh(self) -> dict[str, str]:
        """Makes tables of new topics, and drops the tables of topics that are gone. Returns all, as `tables` does."""
        wanted = self._wanted()
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {self.database}")
        for table in self.tables.keys() - wanted.keys():
            self._drop(table)
            del self.tables[table]
        for table, topic in wanted.items():
            if self.tables.get(table) != topic:
                self._make(table, topic)
                self.tables[table] = topic
        return dict(self.tables)

    def sql(self, query: str, args: Any = None) -> "DataFrame":
        """A query of Spark. Topics that it names as `database.name` are attached first, when they are new.

        A topic may be named as it is, in backquotes: topics.`my-topic`.
        """
        if any(name.lower() not in self.tables for name in self._names_in(query)):
            self.refresh()
        table_by_topic = {topic: table for table, topic in self.tables.items()}

        def table_of(found: NameInQuery) -> str | None:
            table = table_by_topic.get(found.name)
            return None if table is None else f"{found.kind}.{table}"

        return self._spark.sql(replace_names(query, (self.database,), table_of), args)

    def _names_in(self, query: str) -> list[str]:
        found: list[str] = []
        replace_names(query, (self.database,), lambda name: found.append(name.name))
        return found

    def _make(self, table: str, topic: str) -> None:
        # The catalog may have the table from an earlier session, with other options.
        self._drop(table)
        options = {**self._options, "subscribe": topic}
        if self._is_lake() and "columns" not in options:
            # With the number of the instance: a topic that was created again has the same seqs again.
            options["columns"] = ",".join((*COLUMNS, "epoch"))
        place = options.pop("path", None)
        listed = ", ".join(f"{name} {_quoted(value)}" for name, value in options.items())
        location = "" if place is None else f" LOCATION {_quoted(place)}"
        self._spark.sql(f"CREATE TABLE {self.database}.{table} USING topics OPTIONS ({listed}){location}")

    def _drop(self, table: str) -> None:
        """Raises `BadOption` for a table that is none of a topic."""
        name = f"{self.database}.{table}"
        if not self._spark.catalog.tableExists(name):
            return
        if not is_of_topic(self._spark.table(name).schema):
            raise BadOption(f"{name} is a table already, and none of a topic; choose another `database`")
        self._spark.sql(f"DROP TABLE {name}")

    def _wanted(self) -> dict[str, str]:
        """Topics that are there and wanted, by the names of their tables."""
        found: dict[str, str] = {}
        for topic in self._there():
            table = self._names.get(topic) or table_name(topic).lower()
            if table in found:
                raise BadOption(
                    f"topics {found[table]!r} and {topic!r} would both be table {table}; give one another name: "
                    f"names={{{topic!r}: '…'}}"
                )
            found[table] = topic
        return found

    def _there(self) -> list[str]:
        everything = self._everything()
        if self._topics is None:
            return everything
        missing = set(self._topics) - set(everything)
        if missing:
            raise BadOption(f"there is no topic {min(missing)!r}; there are {', '.join(everything) or 'none at all'}")
        return self._topics

    def _everything(self) -> list[str]:
        from topics.spark.lake.lake import open_lake
        from topics.spark.reading.offline import take_manifests

        options = parse_options({**self._options, "subscribePattern": ".*"}, mode="batch")
        if options.path is None:
            with open_client(options) as client:
                return client.topics()
        if self._is_lake():
            if (options.schema or "").strip().lower() == "infer":
                raise BadOption("the schema of a lake cannot be inferred here: give it as DDL")
            return open_lake(options.path).state.topics
        return sorted(manifest.topic for manifest in take_manifests(options).manifests)

    def _is_lake(self) -> bool:
        from topics.spark.lake.source import is_lake

        return is_lake(self._options)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
