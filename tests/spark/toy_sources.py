"""Sources that show what Spark does with one, and nothing else. Each notes its calls in the file of option `notes`.

Importable where Spark runs Python: classes travel by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    GreaterThan,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

ROWS = 100


class ToyTable(DataSource):
    """Ten numbers from option `base` on, or from the comment of the column on, where a table keeps the option."""

    @classmethod
    def name(cls) -> str:
        return "toy_table"

    def schema(self) -> str:
        return f"n bigint COMMENT '{self.options['base']}'"

    def reader(self, schema: StructType) -> DataSourceReader:
        return CountingReader(int(self.options.get("base", schema.fields[0].metadata.get("comment"))))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return CommentWriter(schema.fields[0].metadata.get("comment"), self.options.get("notes"))


class CountingReader(DataSourceReader):
    def __init__(self, base: int) -> None:
        self.base = base

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(self.base, self.base + 10):
            yield (number,)


class CommentWriter(DataSourceWriter):
    """Writes nothing. Notes the comment that came with the rows."""

    def __init__(self, comment: str | None, notes: str | None) -> None:
        self.comment = comment
        self.notes = notes

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Written(sum(1 for _ in iterator))

    def commit(self, messages: list[Any]) -> None:
        assert self.notes is not None
        Path(self.notes).write_text(str(self.comment))


class Noting:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def note(self, text: object) -> None:
        with Path(self.options["notes"]).open("a") as file:
            file.write(f"{text}\n")


class Toy(DataSource):
    """Numbers below 100, with the readers and writers below."""

    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> str:
        return "n bigint not null"

    def reader(self, schema: StructType) -> DataSourceReader:
        return (PushingReader if "pushes" in self.options else PlanningReader)(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ToyStream(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FailingWriter(dict(self.options))


class PlanningReader(Noting, DataSourceReader):
    least = -1

    def partitions(self) -> list[InputPartition]:
        self.note("partitions")
        return [InputPartition(self.least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = [number for number in range(ROWS) if number > partition.value]
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
        yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=schema)


class PushingReader(PlanningReader):
    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for each in filters:
            if isinstance(each, GreaterThan):
                self.least = each.value
            else:
                yield each


class ToyStream(Noting, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Ten numbers a batch; with option `restless` the same offset in another order each time."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._asked = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        self.note("initialOffset")
        return {"at": 0, "end": 30}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(10)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.note("prepare")

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        self._asked += 1
        if "restless" in self.options:
            return {"at": 0, "end": 30} if self._asked % 2 == 0 else {"end": 30, "at": 0}
        assert not isinstance(limit, ReadAllAvailable)
        return {"at": min(start["at"] + 10, 30), "end": 30}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(*partition.value):
            yield (number,)

    def commit(self, end: dict[str, int]) -> None:
        self.note(f"commit {end['at']}")


class Written(WriterCommitMessage):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class FailingWriter(Noting, DataSourceArrowWriter):
    """Its commit is done, and fails afterwards."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return Written(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[Any]) -> None:
        self.note(f"commit {sum(message.rows for message in messages)}")
        raise OSError("the answer is lost")

    def abort(self, messages: list[Any]) -> None:
        self.note(f"abort {sum(message.rows for message in messages)}")
