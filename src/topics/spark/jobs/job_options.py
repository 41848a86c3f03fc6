"""Every option of every job, once: name, type, default, bounds, meaning.

A job takes one of these values: `topics.spark.jobs.<job>.run(spark, <Job>Options(...))`. The command of the job in
`topics pipeline` is made from the same declaration: each member that has an `About` is a flag or an argument, and the
docstring is the help. To add an option, add a member.

`endpoint`, `token_env`, `token_file`, `state`, `dry_run`, `remote` and `conf` have the same meaning in every job. The
command line offers them with every command, so that they have no `About` here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

from topics.limits import MIB, SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from topics.spark.errors import BadOption
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.option_schema import (
    AGE,
    JSON_OBJECT,
    MAPPING,
    OPTIONS_BY_VIEW,
    PAIRS,
    SIZE,
    TEXTS,
    TIME,
    About,
)

# What a job does when its target already has something.
WriteMode = Literal["errorifexists", "append", "overwrite"]

# A file of a lake, before compression.
ARCHIVE_FILE_BYTES: Final = 64 * MIB
ARCHIVE_FILE_RECORDS: Final = 1_000_000
VACUUM_AGE_MS_MIN: Final = 3_600_000
# A segment of messages is cut only when it must be: positions reach further, and no engine makes a larger segment.
REENCODED_SEGMENT_BYTES_MAX: Final = 2**31

# Members that several jobs have.

_Topics = Annotated[tuple[str, ...], About("Only this one; may be repeated.", "TOPIC", flag="--topic", form=TEXTS)]
_DataDirectory = Annotated[str | None, About("A data directory without a server.", "PATH")]
_StreamDirectories = Annotated[tuple[str, ...], About("A directory of streams; may be repeated.", "DIR", form=TEXTS)]
_Lake = Annotated[str, About("A path, file:///path or s3://bucket/prefix.", "LAKE", is_argument=True)]
_FirstSeq = Annotated[int | None, About("The first seq.", "SEQ")]
_LastSeq = Annotated[int | None, About("The last seq.", "SEQ")]
_Id = Annotated[str | None, About("Begin another run with the same options.", "NAME")]
_Create = Annotated[bool, About("Create topics that are not there.", flag="--create")]
_Mode = Annotated[WriteMode, About("When the target is not empty.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions(Connection):
    """Say what works here: Java, Python and packages on driver and executor, the server and its files.

    Exit code 0 when jobs can run, 1 when they cannot. Notes cost speed only.

    \b
    Examples:
      topics pipeline doctor
      topics pipeline doctor --endpoint http://127.0.0.1:4000 --master spark://host:7077 --json
    """

    # By default the first topic that has files.
    topic: Annotated[str | None, About("Look for the files of this topic.", "TOPIC")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(Connection):
    """Check every segment, lake file and partition, bit by bit. Nothing is changed; exit code 2 for findings.

    \b
    Examples:
      topics pipeline verify --endpoint http://127.0.0.1:4000
      topics pipeline verify --path ./topics-data --copy s3://bucket/backup --lake ./lake --report ./report
    """

    topics: _Topics = ()
    path: _DataDirectory = None
    # A server says itself where its cold tier is.
    cold: Annotated[str | None, About("The cold tier of --path.", "ADDRESS")] = None
    # Other places that may have copies of the same segments, such as backups.
    copies: Annotated[
        tuple[str, ...], About("Compare with copies there; may be repeated.", "PATH", flag="--copy", form=TEXTS)
    ] = ()
    lakes: Annotated[tuple[str, ...], About("A lake; may be repeated.", "LAKE", flag="--lake", form=TEXTS)] = ()
    streams: _StreamDirectories = ()
    report: Annotated[str | None, About("Where verify.json and verify.parquet go.", "ADDRESS")] = None
    pin_ms: int = 3_600_000
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsOptions(Connection):
    """Count what topics hold: rates, sizes, tags, deleted shares, tiers, gaps; as JSON and a page with plots.

    \b
    Example:
      topics pipeline stats --topic orders --out ./report
    """

    topics: _Topics = ()
    path: _DataDirectory = None
    # Without an address no file is written.
    out: Annotated[str | None, About("Where the page and its JSON go.", "ADDRESS")] = None
    top: Annotated[int, About("How many tags and nodes.", "N", smallest=1)] = 15
    title: Annotated[str, About("Title of the page.", "TEXT")] = "Topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions(Connection):
    """Make records of the rows of files.

    The first run writes down the list of files (--state). The same command again goes on where it stopped, and adds
    nothing when the import is done.

    \b
    Examples:
      topics pipeline import orders.parquet --topic orders --tag customer --time ordered_at
      topics pipeline import 's3a://bucket/events/*.jsonl' --topic-expr "concat('events-', kind)" --create
      topics pipeline import log.csv --topic log --order-by time --order-by line --option sep=';'
      topics pipeline import orders.csv --topic orders --schema "id bigint, price decimal(10,2), at timestamp"
    """

    paths: Annotated[
        tuple[str, ...], About("Files or folders, as Spark takes them.", "PATH", form=TEXTS, is_argument=True)
    ]
    topic: Annotated[str | None, About("Where the records go.", "TOPIC")] = None
    topic_expression: Annotated[str | None, About("Where a record goes, by its row.", "SQL", flag="--topic-expr")] = (
        None
    )
    format: Annotated[str | None, About("A format of Spark; by default from the names of the files.", "NAME")] = None
    options_of_format: Annotated[
        Mapping[str, str],
        About("An option of the format; may be repeated.", "NAME=VALUE", flag="--option", form=MAPPING),
    ] = field(default_factory=dict)
    schema: Annotated[
        str | None, About("Types of the columns of CSV or JSON: DDL, or a file with a JSON Schema.", "DDL")
    ] = None
    infer: Annotated[bool, About("Types of CSV columns from their values; by default all are texts.")] = False
    # A CSV file has a header by default.
    header: Annotated[
        bool | None, About("Whether the first line of a CSV file names its columns.", flag="--header/--no-header")
    ] = None
    data: Annotated[str | None, About("The payload, JSON or a structure; by default the whole row.", "SQL")] = None
    data_text: Annotated[str | None, About("The payload, as a JSON string.", "SQL")] = None
    tag: Annotated[str | None, About("The tag.", "SQL")] = None
    node: Annotated[str | None, About("The node.", "SQL")] = None
    meta: Annotated[str | None, About("The meta, JSON or a structure.", "SQL")] = None
    time: Annotated[str | None, About("The original time; it goes into the meta.", "SQL")] = None
    order_by: Annotated[tuple[str, ...], About("Keep this order; may be repeated.", "SQL", form=TEXTS)] = ()
    chunk_bytes: Annotated[int, About("Input of one commit.", "SIZE", flag="--chunk", form=SIZE)] = 128 * MIB
    create_topic: _Create = False
    id: _Id = None
    state: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_expression is None):
            raise BadOption("give --topic or --topic-expr: it says where the records go")
        if self.data is not None and self.data_text is not None:
            raise BadOption("give --data or --data-text, not both")
        if self.schema is not None and self.infer:
            raise BadOption("give --schema or --infer, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Connection):
    """Copy a range of a topic into a topic, at the pace it had or faster, each record once.

    The first run writes down the range (--state). The same command again goes on where it stopped.

    \b
    Examples:
      topics pipeline replay orders --to orders-again --create
      topics pipeline replay orders --to load-test --speed 10x --from-seq 120000
      topics pipeline replay orders --to orders-then --as-of 2026-01-31T08:00:00Z
    """

    source: Annotated[str, About("The topic to replay.", "TOPIC", is_argument=True)]
    target: Annotated[str, About("The topic that gets the copies.", "TOPIC", flag="--to")]
    # Without bounds the range is what the source has when the replay is first run.
    from_seq: _FirstSeq = None
    to_seq: _LastSeq = None
    as_of_ms: Annotated[
        int | None, About("Only what was there then: ms, or ISO 8601.", "TIME", flag="--as-of", form=TIME)
    ] = None
    speed: Annotated[str, About("1x as it was, 10x faster, or max.", "N")] = "max"
    tick_ms: Annotated[int, About("Length of a tick, when not at max.", "MS", flag="--tick", smallest=1)] = 1000
    chunk_records: Annotated[int, About("Records of one commit.", "N", smallest=1)] = 100_000
    chunk_bytes: int = 64 * MIB
    skip_gaps: Annotated[bool, About("Go on after records that are gone; exit code 3.")] = False
    create_topic: _Create = False
    id: _Id = None
    state: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise BadOption(
                f'replay: topic "{self.source}" would get its own records a second time; give another topic with --to'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(Connection):
    """Write sealed segments that are not in the lake yet into it. The lake is a Delta table.

    Exit code 3 when seqs are missing; the lake's table of gaps names them. Deletes reach the lake with --apply-deletes.

    \b
    Examples:
      topics pipeline archive s3://bucket/lake
      topics pipeline archive ./lake --topic orders --seal
    """

    lake: _Lake
    topics: _Topics = ()
    pattern: Annotated[str | None, About("Topics whose whole name matches.", "REGEX")] = None
    path: _DataDirectory = None
    # Without it the newest records wait until their segment is full.
    seal: Annotated[bool, About("Ask the server to seal active segments first.")] = False
    apply_deletes: Annotated[bool, About("Remove records that were deleted after they were archived.")] = False
    # How much one task reads, and so how large a file can become.
    file_bytes: int = ARCHIVE_FILE_BYTES
    file_records: int = ARCHIVE_FILE_RECORDS
    pin_ms: int = 600_000
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.seal and self.path is not None:
            raise BadOption("archive: only a server can seal segments; leave out --seal, or --path")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeOptions:
    """Merge small files of a lake into large ones. The small files stay until a vacuum.

    \b
    Example:
      topics pipeline optimize s3://bucket/lake --topic orders
    """

    lake: _Lake
    topics: _Topics = ()
    # Larger files are left as they are.
    target_bytes: Annotated[int, About("About how large files become.", "SIZE", flag="--target", form=SIZE)] = 256 * MIB
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOptions:
    """Remove files that no version of the lake has named for some time, and files of killed jobs.

    \b
    Example:
      topics pipeline vacuum s3://bucket/lake --older-than 30d --dry-run
    """

    lake: _Lake
    older_than_ms: Annotated[int, About("Only files of that age: 7d, 12h.", "AGE", flag="--older-than", form=AGE)] = (
        7 * 86_400_000
    )
    alone: Annotated[bool, About("No other job uses this lake: any age is allowed.")] = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.older_than_ms < VACUUM_AGE_MS_MIN and not self.alone:
            raise BadOption(
                "vacuum: files younger than an hour may belong to a job that is running; "
                "stop all jobs on this lake and say so with --alone, or give a longer --older-than"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertLakeOptions:
    """Make a Delta table of a lake of the older form, which had a chain of manifests. No other job may run meanwhile.

    \b
    Example:
      topics pipeline convert-lake s3://bucket/lake
    """

    lake: _Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(Connection):
    """Make a topic from records of a lake, or of segments without a server.

    A topic gets new seqs and times; the old ones are in `_topics_origin` of the meta. A directory keeps them, for a
    server that is started with it. Exit code 3 when seqs of the range are missing.

    \b
    Examples:
      topics pipeline restore --lake s3://bucket/lake --topic orders --to orders-2025
      topics pipeline restore --path /backup/topics-data --topic orders --into-dir ./restored
    """

    # May be left out for a path with one topic.
    topic: Annotated[str | None, About("What to restore.", "TOPIC")] = None
    lake: Annotated[str | None, About("From a lake of `archive`.", "LAKE")] = None
    path: Annotated[str | None, About("From a data directory or an archive of segments.", "PATH")] = None
    target: Annotated[str | None, About("Into a new topic.", "TOPIC", flag="--to")] = None
    into_dir: Annotated[str | None, About("Into a new data directory, with the old seqs.", "DIR")] = None
    from_seq: _FirstSeq = None
    to_seq: _LastSeq = None
    epoch: Annotated[int | None, About("Which instance; the last by default.", "N")] = None
    topic_config: Annotated[dict[str, Any], About("Settings of the new topic.", "JSON", form=JSON_OBJECT)] = field(
        default_factory=dict
    )
    chunk_bytes: Annotated[int, About("Records of one commit.", "SIZE", flag="--chunk", form=SIZE)] = 64 * MIB
    id: _Id = None
    # Bounds of the segments in a new directory.
    segment_records: int = SEGMENT_EVENTS_MAX
    segment_bytes: int = SEGMENT_BYTES_MAX
    state: str | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if (self.target is None) == (self.into_dir is None):
            raise BadOption("give --to or --into-dir: it says where to restore to")
        if (self.lake is None) == (self.path is None):
            raise BadOption("give --lake or --path: it says what to restore from")
        if self.lake is not None and self.topic is None:
            raise BadOption("give --topic: it names the topic of the lake that is to be restored")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildIndexOptions(Connection):
    """Write index files again from the records. Exit code 3 when records themselves are damaged.

    \b
    Examples:
      topics pipeline rebuild-index --path ./topics-data
      topics pipeline rebuild-index --streams ./local_data
    """

    # Of a server; a path is rebuilt as a whole.
    topics: _Topics = ()
    path: Annotated[str | None, About("A data directory or archive without a server.", "PATH")] = None
    streams: _StreamDirectories = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(Connection):
    """Free what deleted records take (--purge), or copy the last record of each tag (--latest-by-tag).

    \b
    Examples:
      topics pipeline compact --purge --topic orders --min-deleted 0.5
      topics pipeline compact --latest-by-tag --topic prices --into topic:prices-now
    """

    topics: _Topics = ()
    purge: Annotated[bool, About("Write segments again without their deleted records.")] = False
    min_deleted: Annotated[
        float, About("With --purge: leave segments with less as they are.", "SHARE", smallest=0.0, largest=1.0)
    ] = 0.3
    latest_by_tag: Annotated[bool, About("Copy the last record of each tag.")] = False
    into: Annotated[str | None, About("topic:NAME, lake:ADDRESS or parquet:PATH.", "TARGET")] = None
    untagged: Annotated[Literal["keep", "drop"], About("Records without a tag.")] = "keep"
    epoch: Annotated[int, About("Number of this run, for a rerun later.", "N", smallest=0)] = 0
    mode: _Mode = "errorifexists"
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.purge == self.latest_by_tag:
            raise BadOption("give --purge or --latest-by-tag")
        if self.latest_by_tag and (len(self.topics) != 1 or self.into is None):
            raise BadOption("--latest-by-tag takes one --topic, and --into")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReencodeOptions:
    """Make a new directory of streams with another key, compression or flavour. The old one is not changed.

    Each machine looks up the keys; no plan has them.

    \b
    Examples:
      topics pipeline reencode ./local_data ./local_data.new --target-key-env NEW_KEY
      topics pipeline reencode ./local_data ./plain --source-key-file old.key --decrypt
    """

    source: Annotated[str, About("A directory of streams that no server uses.", "DIR", is_argument=True)]
    target: Annotated[str, About("Where the new one is made.", "NEW_DIR", is_argument=True)]
    # A source without a key uses the key of the engine's settings.
    source_key_env: Annotated[str | None, About("Variable with the key of DIR.", "NAME")] = None
    source_key_file: Annotated[str | None, About("File with the key of DIR.", "FILE")] = None
    target_key_env: Annotated[str | None, About("Variable with the new key.", "NAME")] = None
    target_key_file: Annotated[str | None, About("File with the new key.", "FILE")] = None
    decrypt: Annotated[bool, About("Make a plain directory.")] = False
    compression: Annotated[Literal["keep", "none", "gzip", "lz4", "zstd"], About("Compression of payloads.")] = "keep"
    flavour: Annotated[Literal["keep", "page", "iggy"], About("Flavour of the new directory.")] = "keep"
    force: Annotated[bool, About("Compress in flavour iggy, which no other server can read.")] = False
    segment_bytes_max: int = REENCODED_SEGMENT_BYTES_MAX
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.decrypt and (self.target_key_env is not None or self.target_key_file is not None):
            raise BadOption("--decrypt makes a plain directory, which has no key: leave out one of the two")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Run a project of Spark Declarative Pipelines, with topics as sources and sinks.

    Like `spark-pipelines run`, with a catalog that is kept for the next run. For a cluster give the address of a
    Connect server with --remote.

    \b
    Examples:
      topics pipeline run examples/pipeline --endpoint http://127.0.0.1:4000
      topics pipeline run spark-pipeline.yml --remote sc://host:15002
    """

    spec: Annotated[str, About("spark-pipeline.yml, or the folder that it is in.", "SPEC", is_argument=True)]
    full_refresh: Annotated[bool, About("Compute all tables again from the beginning.")] = False
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    # The catalog is kept there; by default below the folder of the spec.
    state: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlOptions(Connection):
    """Run one SELECT over topics, lakes and files; show the rows, or write them to a topic, a lake or files.

    \b
    Examples:
      topics pipeline sql "select tag, count(*) from orders group by tag" --input orders=topic:orders
      topics pipeline sql "select sum(data.amount) from topics.orders" --schema orders="id bigint, amount double"
      topics pipeline sql "select data, tag from orders where tag = 'vip'" --input orders=topic:orders \\
        --into topic:vips --create --trigger availableNow --checkpoint ./vips
    """

    query: Annotated[str, About("One query over the inputs.", "SELECT", is_argument=True)]
    inputs: Annotated[
        tuple[tuple[str, str], ...],
        About(
            "topic:NAME, lake:ADDRESS or parquet:PATH as a view; may be repeated.",
            "VIEW=SOURCE",
            flag="--input",
            form=PAIRS,
        ),
    ] = ()
    # By view.
    input_options: Annotated[
        Mapping[str, Mapping[str, str]],
        About("An option of a read; may be repeated.", "VIEW.NAME=VALUE", flag="--input-option", form=OPTIONS_BY_VIEW),
    ] = field(default_factory=dict)
    schemas: Annotated[
        Mapping[str, str],
        About(
            "Types of `data`: DDL, a JSON Schema file, variant or infer; may be repeated.",
            "VIEW=DDL",
            flag="--schema",
            form=MAPPING,
        ),
    ] = field(default_factory=dict)
    into: Annotated[str | None, About("Where rows go; by default they are shown.", "TARGET")] = None
    # Without a trigger the query runs once, and has no checkpoint.
    trigger: Annotated[str | None, About("As a stream: availableNow, or every 5s.", "WHEN")] = None
    checkpoint: Annotated[str | None, About("Where a stream keeps its progress.", "ADDRESS")] = None
    # A stream is known by its checkpoint, and numbers its batches by itself.
    writer_id: Annotated[str | None, About("Name of the writer; a rerun has the same.", "NAME")] = None
    epoch: Annotated[int, About("Number of this run.", "N", smallest=0)] = 0
    create_topic: Annotated[bool, About("Create a topic that is not there.", flag="--create")] = False
    mode: _Mode = "errorifexists"
    rows_shown: Annotated[int, About("How many rows are shown.", "N", flag="--rows", smallest=0)] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageOptions:
    """Make an archive of this package for `spark-submit --py-files`, with plain modules only.

    The packages that it needs are not in it: executors have them in their image, or in a packed environment.

    \b
    Example:
      topics pipeline package topics.zip && PYTHONPATH=topics.zip spark-submit --py-files topics.zip job.py
    """

    out: Annotated[str, About("The archive; its name ends with .zip.", "OUT.zip", is_argument=True)]


class Job(NamedTuple):
    """A command of `topics pipeline`: the module has `run(spark, options, ...)`. Some jobs need no session."""

    name: str
    module: str
    options: type[Any]
    needs_spark: bool = True


JOBS: Final = (
    Job("doctor", "topics.spark.jobs.doctor", DoctorOptions),
    Job("verify", "topics.spark.jobs.verify", VerifyOptions),
    Job("stats", "topics.spark.jobs.stats", StatsOptions),
    Job("import", "topics.spark.jobs.import_data", ImportOptions),
    Job("replay", "topics.spark.jobs.replay", ReplayOptions),
    Job("archive", "topics.spark.jobs.archive", ArchiveOptions),
    Job("optimize", "topics.spark.jobs.optimize", OptimizeOptions, needs_spark=False),
    Job("vacuum", "topics.spark.jobs.vacuum", VacuumOptions, needs_spark=False),
    Job("convert-lake", "topics.spark.jobs.convert_lake", ConvertLakeOptions, needs_spark=False),
    Job("restore", "topics.spark.jobs.restore", RestoreOptions),
    Job("rebuild-index", "topics.spark.jobs.rebuild_index", RebuildIndexOptions),
    Job("compact", "topics.spark.jobs.compact", CompactOptions),
    Job("reencode", "topics.spark.jobs.reencode", ReencodeOptions),
    Job("run", "topics.spark.jobs.run", RunOptions),
    Job("sql", "topics.spark.jobs.sql", SqlOptions),
    Job("package", "topics.spark.jobs.package", PackageOptions, needs_spark=False),
)
