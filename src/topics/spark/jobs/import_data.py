"""`import`: rows of Parquet, JSON lines, CSV or anything else that Spark reads become records of topics.

The first run writes down the list of files and the schema. Files added later are not part of this import. Each chunk
of the list is an epoch: it is staged, and becomes visible as a whole. With `order_by` a chunk is a range of the first
key over all files, so that the chunks one after the other are in order. Then all files are read once for each chunk.

Columns of CSV are texts, unless a schema gives them types or types are inferred from all values. Either way a value
that is not of its type fails the import.

The server gives every record its time. With `time` the original time goes into the meta.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from topics.spark.errors import BadOption
from topics.spark.jobs.epochs import require_staging, write_epochs
from topics.spark.jobs.frozen import default_id, freeze
from topics.spark.jobs.job import Report, ReportProgress
from topics.spark.jobs.job_options import ImportOptions
from topics.spark.jobs.marks import ORIGIN, marked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FORMAT_BY_SUFFIX: Final = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "orc": "orc",
    "avro": "avro",
    "txt": "text",
}
# A line that cannot be read must be an error, not a row of nulls. Columns are found by name, not by place.
_DEFAULT_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true", "enforceSchema": "false"},
}
# Options that choose files.
_LISTING_OPTIONS: Final = frozenset({"pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter"})


class ImportChunk(msgspec.Struct, frozen=True):
    """Files, and a range of the first key, with its low end and without its high end. None is no bound.

    Bounds are texts that Spark casts to the type of the key. The chunk without a low end has the rows without a key.
    """

    files: list[str]
    bytes: int
    low: str | None = None
    high: str | None = None


class ImportPlan(msgspec.Struct, frozen=True):
    # As JSON of Spark. Chunks that infer their schema one by one could differ.
    row_schema: str
    chunks: list[ImportChunk]


def run(spark: "SparkSession", options: ImportOptions, *, report: ReportProgress | None = None) -> Report:
    with options.client() as client:
        require_staging(client)
    source = _Source(spark, options)
    if options.dry_run:
        return _report_plan(source.plan())
    asked = _asked(options)
    writer, plan = freeze(options.state, "import", options.id or default_id(asked), asked, ImportPlan, source.plan)
    done = write_epochs(
        "import",
        plan.chunks,
        lambda chunk: source.records(plan, chunk),
        connection=options,
        writer=writer,
        topic=options.topic,
        options={"createTopic": "true"} if options.create_topic else {},
        weigh=lambda chunk: chunk.bytes,
        report=report,
    )
    done.detail.update(_report_plan(plan).detail)
    return done


def _asked(options: ImportOptions) -> dict[str, Any]:
    """The options that the plan depends on."""
    names = (
        *("paths", "topic", "topic_expression", "format", "options_of_format", "data", "data_text", "tag", "node"),
        *("meta", "time", "order_by", "chunk_bytes"),
    )
    # An import that does not use them has the id that it had before there were any.
    types = {name: value for name in ("schema", "infer", "header") if (value := getattr(options, name))}
    if options.header is not None:
        types["header"] = options.header
    return {"endpoint": options.address(), **{name: getattr(options, name) for name in names}, **types}


def _report_plan(plan: ImportPlan) -> Report:
    files = {file for chunk in plan.chunks for file in chunk.files}
    detail = {"files": len(files), "epochs": len(plan.chunks), "input_bytes": sum(chunk.bytes for chunk in plan.chunks)}
    return Report(job="import", items_skipped=len(plan.chunks), detail=detail)


def pack(files: Sequence[tuple[str, int]], chunk_bytes: int) -> Iterator[ImportChunk]:
    """Chunks of files in the order of their names, up to so many bytes; a larger file is alone."""
    names: list[str] = []
    size = 0
    for name, file_bytes in sorted(files):
        if names and size + file_bytes > chunk_bytes:
            yield ImportChunk(names, size)
            names, size = [], 0
        names.append(name)
        size += file_bytes
    if names:
        yield ImportChunk(names, size)


class SortKey(NamedTuple):
    expression: str
    is_descending: bool


def parse_key(text: str) -> SortKey:
    """`price`, `price asc` or `price desc`."""
    match = re.fullmatch(r"(.+?)(?:\s+(asc|desc))?", text.strip(), re.IGNORECASE | re.DOTALL)
    if match is None:
        raise BadOption("a key to order by must not be empty")
    return SortKey(match[1], (match[2] or "").lower() == "desc")


def format_of(paths: Sequence[str]) -> str:
    """The format by the names of the files, compressed or not."""
    found = {
        _FORMAT_BY_SUFFIX.get(re.sub(r"\.(gz|bz2|zst|snappy|lz4)$", "", path.lower()).rpartition(".")[2])
        for path in paths
    }
    if len(found) != 1 or None in found:
        raise BadOption("the names of the files do not tell their format; give it with --format")
    (name,) = found
    assert name is not None
    return name


def _typing_options(options: ImportOptions, format_name: str) -> dict[str, str]:
    """Options of the format that say which columns there are. Raises `BadOption` for a format that says it itself."""
    if options.schema is not None and format_name not in _DEFAULT_OPTIONS:
        raise BadOption(f"--schema is for CSV and JSON; files of format {format_name} have types of their own")
    if format_name != "csv" and (options.infer or options.header is not None):
        raise BadOption(f"{'--infer' if options.infer else '--header'} is for CSV, not for format {format_name}")
    found = {"inferSchema": "true"} if options.infer else {}
    return found if options.header is None else {**found, "header": str(options.header).lower()}


class _Source:
    """The input of one import."""

    def __init__(self, spark: "SparkSession", options: ImportOptions) -> None:
        self._spark = spark
        self._options = options
        self._format = options.format or format_of(options.paths)
        if self._format in {"jsonl", "ndjson"}:
            self._format = "json"
        self._format_options = {
            **_DEFAULT_OPTIONS.get(self._format, {}),
            **_typing_options(options, self._format),
            **options.options_of_format,
        }
        self._keys = [parse_key(text) for text in options.order_by]

    # The plan.

    def plan(self) -> ImportPlan:
        rows = self._load(list(self._options.paths), self._given_schema())
        files = self._files()
        if not files:
            # The input has no files, such as a table of a database: one chunk.
            chunks = [ImportChunk([], 0)]
        elif self._keys:
            chunks = list(self._ranges(rows, files))
        else:
            chunks = list(pack(files, self._options.chunk_bytes))
        return ImportPlan(rows.schema.json(), chunks)

    def _given_schema(self) -> str | None:
        """As JSON of Spark."""
        if self._options.schema is None:
            return None
        from pyspark.sql.types import StructType

        from topics.spark.shaping.schema_option import given_type
        from topics.spark.shaping.shape import spark_type

        known = given_type(self._options.schema)
        columns = None if known is None else spark_type(known)
        if not isinstance(columns, StructType):
            raise BadOption('--schema must name columns, such as "id bigint, price decimal(10,2)"')
        return columns.json()

    def _files(self) -> list[tuple[str, int]]:
        """Names and sizes. No file is read."""
        if not self._options.paths:
            return []
        listing = {name: value for name, value in self._format_options.items() if name.lower() in _LISTING_OPTIONS}
        rows = (
            self._spark.read.format("binaryFile")
            .options(**{"recursiveFileLookup": "true", **listing})
            .load(list(self._options.paths))
            .select("path", "length")
        )
        return [(row["path"], row["length"]) for row in rows.collect()]

    def _ranges(self, rows: "DataFrame", files: Sequence[tuple[str, int]]) -> Iterator[ImportChunk]:
        """Ranges of the first key with about equally many rows, one for each `chunk_bytes` of input."""
        from pyspark.sql import functions as f

        key = self._keys[0]
        names, size = [name for name, _ in sorted(files)], sum(file_bytes for _, file_bytes in files)
        count = -(-size // self._options.chunk_bytes)
        bounds: list[str] = []
        if count > 1:
            # Spark samples the keys to find the bounds.
            found = (
                rows.select(f.expr(key.expression).alias("key"))
                .where("key is not null")
                .repartitionByRange(count, "key")
                .groupBy(f.spark_partition_id())
                .agg(f.min("key").alias("low"))
                .orderBy("low")
                .select(f.col("low").cast("string"))
                .collect()
            )
            bounds = [row["low"] for row in found][1:]
        ranges = list(zip([None, *bounds], [*bounds, None], strict=True))
        for low, high in reversed(ranges) if key.is_descending else ranges:
            yield ImportChunk(names, size // len(ranges), low, high)

    # Rows of a chunk.

    def _load(self, paths: list[str], schema: str | None = None) -> "DataFrame":
        from pyspark.sql.types import StructType

        reader = self._spark.read.format(self._format).options(**self._format_options)
        if schema is not None:
            reader = reader.schema(StructType.fromJson(msgspec.json.decode(schema)))
            if len(self._options.paths) == 1 and not self._is_file(paths):
                # Names of folders may be columns: of all folders below this one.
                reader = reader.option("basePath", self._base_path())
        return reader.load(paths) if paths else reader.load()

    def _is_file(self, paths: list[str]) -> bool:
        """Whether the one path that was given is a file itself. Spark takes only a folder as base path."""
        given = self._options.paths[0].removeprefix("./")
        return len(paths) == 1 and unquote(paths[0]).endswith(given)

    def _base_path(self) -> str:
        path = self._options.paths[0]
        return path if "*" not in path else path.partition("*")[0].rpartition("/")[0]

    def records(self, plan: ImportPlan, chunk: ImportChunk) -> "DataFrame":
        """The rows of the chunk, with the columns that a write takes."""
        from pyspark.sql import functions as f

        paths = chunk.files or list(self._options.paths)
        rows = self._load(paths, plan.row_schema if chunk.files else None)
        if self._keys:
            key = f.expr(self._keys[0].expression)
            if chunk.high is not None:
                is_below = key < _bound(rows, key, chunk.high)
                rows = rows.where(is_below | key.isNull() if chunk.low is None else is_below)
            if chunk.low is not None:
                rows = rows.where(key >= _bound(rows, key, chunk.low))
            rows = rows.orderBy(
                *(f.expr(key.expression).desc() if key.is_descending else f.expr(key.expression) for key in self._keys)
            )
        return rows.select(*self._columns(rows))

    def _columns(self, rows: "DataFrame") -> "Iterator[Column]":
        from pyspark.sql import functions as f

        options = self._options
        if options.data_text is not None:
            yield f.expr(options.data_text).cast("string").alias("data_text")
        elif options.data is not None:
            yield _json_text(rows, f.expr(options.data)).alias("data")
        else:
            yield f.to_json(f.struct("*")).alias("data")
        for name, expression in (("topic", options.topic_expression), ("tag", options.tag), ("node", options.node)):
            if expression is not None:
                yield f.expr(expression).cast("string").alias(name)
        meta = f.lit(None).cast("string") if options.meta is None else _json_text(rows, f.expr(options.meta))
        if options.time is not None:
            time = _milliseconds(rows, f.expr(options.time))
            mark = f.concat(f.lit('{"ts":'), time.cast("string"), f.lit("}"))
            meta = f.when(time.isNull(), meta).otherwise(marked(meta, ORIGIN, mark))
        if options.meta is not None or options.time is not None:
            yield meta.alias("meta")


def _type_of(rows: "DataFrame", column: "Column") -> str:
    return rows.select(column.alias("value")).schema["value"].dataType.simpleString()


def _bound(rows: "DataFrame", key: "Column", text: str) -> "Column":
    from pyspark.sql.functions import lit

    return lit(text).cast(_type_of(rows, key))


def _json_text(rows: "DataFrame", column: "Column") -> "Column":
    """Structures become JSON. Other values are JSON already, as text or as a number."""
    from pyspark.sql.functions import to_json

    is_structure = _type_of(rows, column).startswith(("struct<", "map<", "array<", "variant"))
    return to_json(column) if is_structure else column.cast("string")


def _milliseconds(rows: "DataFrame", column: "Column") -> "Column":
    """Numbers are milliseconds. Spark reads texts and dates as times."""
    from pyspark.sql.functions import unix_millis

    if re.match(r"(tinyint|smallint|int|bigint|decimal)", _type_of(rows, column)):
        return column.cast("bigint")
    return unix_millis(column.cast("timestamp"))
