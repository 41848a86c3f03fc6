"""Read options: text from Spark in, one typed value out, or an error that says which option and what to do.

Names are case-insensitive, as everywhere in Spark. An unknown option is an error that names the most similar option: a
misspelled limit must not be ignored. No text of this module has a secret. `apiKey` is refused, because Spark shows an
option of that name in plans and errors.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.limits import MIB
from topics.spark.errors import BadOption
from topics.spark.manifest import OFFSETS, SEQS, Numbering
from topics.spark.option_values import (
    ENDPOINT_VARIABLE,
    NO_ENDPOINT,
    any_text,
    count,
    duration_ms,
    flag,
    name_list,
    one_of,
    size_bytes,
    text_of,
)

Mode = Literal["batch", "stream"]
Format = Literal["topics", "topics_streams"]
# By topic or by partition: a seq, or EARLIEST or LATEST.
Offsets = Literal["earliest", "latest"] | dict[str, int]

EARLIEST: Final = -2
LATEST: Final = -1

COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "data", "meta")
COLUMNS_ON_DEMAND: Final = ("value", "epoch", "deleted", "segment", "checksum")
STREAM_COLUMNS: Final = (
    *("stream", "topic", "partition", "offset", "id"),
    *("timestamp", "origin_timestamp", "headers", "payload"),
)
GAP_COLUMNS: Final = ("kind", "gap_to", "gap_reason")
TABLES: Final = ("records", "segments", "topics", "gaps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All read options, with units. An option that was not given is None."""

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    token_env: str | None = None
    token_file: str | None = None
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    path: str | None = None
    access: Literal["auto", "files", "http"] = "auto"
    table: Literal["records", "segments", "topics", "gaps"] = "records"
    # In the order in which they were asked for, without the columns for gaps.
    columns: tuple[str, ...] = COLUMNS
    # Of `data`: DDL, a file, `infer` or `variant`. Without it `data` and `meta` are text.
    schema: str | None = None
    schema_location: str | None = None
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    # Records outside are left out. Unlike an offset, a bound below the first record is no gap.
    min_seq: int | None = None
    max_seq: int | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    # By topic. A topic without one begins at its first seq, and ends at its head.
    starting_ms_by_topic: Mapping[str, int] = field(default_factory=dict)
    ending_ms_by_topic: Mapping[str, int] = field(default_factory=dict)
    tag: str | None = None
    tag_prefix: str | None = None
    node: str | None = None
    exclude_node: tuple[str, ...] = ()
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_records_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    partition_bytes: int = 128 * MIB
    min_partitions: int | None = None
    max_records_per_partition: int = 1_000_000
    batch_records: int = 10_000
    gaps: Literal["fail", "rows"] = "fail"
    on_corrupt: Literal["fail", "rows"] = "fail"
    on_recreated: Literal["fail", "restart"] = "fail"
    verify: bool = True
    isolation: Literal["visible", "durable"] = "visible"
    include_deleted: bool = False
    tail: Literal["require", "skip"] = "require"
    pin_ms: int = 600_000
    request_timeout_ms: int = 30_000
    retries: int = 5
    # Of `topics_streams` only.
    stream: str | None = None
    topic: str | None = None
    partitions: tuple[int, ...] = ()
    consumer: str | None = None
    # Where each node finds the key of an encrypted directory. No option has the key itself.
    key_env: str | None = None
    key_file: str | None = None

    @property
    def numbering(self) -> Numbering:
        return SEQS if self.stream is None else OFFSETS

    def starting_ms_of(self, topic: str) -> int | None:
        return self.starting_ms_by_topic.get(topic, self.starting_timestamp_ms)

    def ending_ms_of(self, topic: str) -> int | None:
        return self.ending_ms_by_topic.get(topic, self.ending_timestamp_ms)

    @property
    def has_gap_rows(self) -> bool:
        """Whether the read can have rows for gaps. Then it has the columns that tell them from records."""
        return self.gaps == "rows" or self.on_corrupt == "rows"

    @property
    def columns_with_gaps(self) -> tuple[str, ...]:
        return self.columns + GAP_COLUMNS if self.has_gap_rows else self.columns


# Values.


def _fail_on_data_loss(value: str) -> str:
    return "fail" if flag(value) else "rows"


def _numbers(value: str) -> tuple[int, ...]:
    return tuple(sorted({count(0)(name) for name in name_list(value)}))


def _pattern(value: str) -> str:
    try:
        re.compile(text_of(value))
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    return value


def _offsets(value: str) -> Offsets:
    word = value.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    try:
        offsets = msgspec.json.decode(value, type=dict[str, int])
    except msgspec.DecodeError as error:
        raise ValueError('must be earliest, latest, or JSON such as {"orders": 120}') from error
    if not offsets or min(offsets.values()) < EARLIEST:
        raise ValueError("must name seqs; -2 is the earliest one and -1 the latest")
    return offsets


def _time(value: str) -> int:
    if re.fullmatch(r"[0-9]{1,15}", value.strip()):
        return int(value)
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError as error:
        raise ValueError("must be milliseconds since 1970 or ISO 8601, such as 2026-01-31T08:00:00Z") from error
    if moment.tzinfo is None:
        raise ValueError(f"must have a time zone, such as {value.strip()}Z")
    return round(moment.timestamp() * 1000)


def _times(value: str) -> dict[str, int]:
    """As in Kafka, a time by partition is taken, too; a topic has only partition 0."""
    try:
        given = msgspec.json.decode(value, type=dict[str, int | dict[Literal["0"], int]])
    except msgspec.DecodeError as error:
        raise ValueError('must be JSON with milliseconds by topic, such as {"orders": 1769846400000}') from error
    times = {topic: next(iter(ms.values()), 0) if isinstance(ms, dict) else ms for topic, ms in given.items()}
    if not times or min(times.values()) < 0:
        raise ValueError("must name times of topics, in milliseconds since 1970")
    return times


# The table of options.


class _Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]
    modes: tuple[Mode, ...] = ("batch", "stream")
    formats: tuple[Format, ...] = ("topics", "topics_streams")

    def modes_of(self, source: Format) -> tuple[Mode, ...]:
        # A directory of streams is read from its files, never over a network.
        return _BOTH if self.field == "path" and source == "topics_streams" else self.modes


_BATCH: Final[tuple[Mode, ...]] = ("batch",)
_STREAM: Final[tuple[Mode, ...]] = ("stream",)
_BOTH: Final[tuple[Mode, ...]] = ("batch", "stream")
_TOPICS: Final[tuple[Format, ...]] = ("topics",)
_STREAMS: Final[tuple[Format, ...]] = ("topics_streams",)

OPTIONS: Final[dict[str, _Option]] = {
    "endpoint": _Option("endpoint", text_of),
    "token": _Option("token", text_of, _BOTH, _TOPICS),
    "tokenEnv": _Option("token_env", text_of, _BOTH, _TOPICS),
    "tokenFile": _Option("token_file", text_of, _BOTH, _TOPICS),
    "subscribe": _Option("subscribe", name_list, _BOTH, _TOPICS),
    "subscribePattern": _Option("subscribe_pattern", _pattern, _BOTH, _TOPICS),
    "path": _Option("path", text_of, _BATCH),
    "access": _Option("access", one_of("auto", "files", "http"), _BOTH, _TOPICS),
    "table": _Option("table", one_of(*TABLES), _BATCH, _TOPICS),
    "columns": _Option("columns", name_list),
    "schema": _Option("schema", text_of, _BOTH, _TOPICS),
    "schemaLocation": _Option("schema_location", text_of, _BOTH, _TOPICS),
    "startingOffsets": _Option("starting_offsets", _offsets),
    "endingOffsets": _Option("ending_offsets", _offsets, _BATCH),
    "minSeq": _Option("min_seq", count(0), _BATCH, _TOPICS),
    "maxSeq": _Option("max_seq", count(0), _BATCH, _TOPICS),
    "startingTimestamp": _Option("starting_timestamp_ms", _time),
    "endingTimestamp": _Option("ending_timestamp_ms", _time, _BATCH),
    "startingOffsetsByTimestamp": _Option("starting_ms_by_topic", _times, _BOTH, _TOPICS),
    "endingOffsetsByTimestamp": _Option("ending_ms_by_topic", _times, _BATCH, _TOPICS),
    "tag": _Option("tag", any_text, _BOTH, _TOPICS),
    "tagPrefix": _Option("tag_prefix", any_text, _BOTH, _TOPICS),
    "node": _Option("node", any_text, _BOTH, _TOPICS),
    "excludeNode": _Option("exclude_node", name_list, _BOTH, _TOPICS),
    "maxRecordsPerTrigger": _Option("max_records_per_trigger", count(1), _STREAM),
    "maxOffsetsPerTrigger": _Option("max_records_per_trigger", count(1), _STREAM),
    "maxBytesPerTrigger": _Option("max_bytes_per_trigger", size_bytes, _STREAM),
    "minRecordsPerTrigger": _Option("min_records_per_trigger", count(1), _STREAM),
    "maxTriggerDelay": _Option("max_trigger_delay_ms", duration_ms, _STREAM),
    "partitionBytes": _Option("partition_bytes", size_bytes),
    "minPartitions": _Option("min_partitions", count(1)),
    "maxRecordsPerPartition": _Option("max_records_per_partition", count(1)),
    "batchRecords": _Option("batch_records", count(1)),
    "gaps": _Option("gaps", one_of("fail", "rows")),
    "failOnDataLoss": _Option("gaps", _fail_on_data_loss),
    "onCorrupt": _Option("on_corrupt", one_of("fail", "rows")),
    "onRecreated": _Option("on_recreated", one_of("fail", "restart"), _STREAM),
    "verify": _Option("verify", flag),
    "isolation": _Option("isolation", one_of("visible", "durable"), _BOTH, _TOPICS),
    "includeDeleted": _Option("include_deleted", flag, _BATCH, _TOPICS),
    "tail": _Option("tail", one_of("require", "skip"), _BATCH, _TOPICS),
    "pinMs": _Option("pin_ms", count(0), _BOTH, _TOPICS),
    "requestTimeoutMs": _Option("request_timeout_ms", count(1), _BOTH, _TOPICS),
    "retries": _Option("retries", count(0), _BOTH, _TOPICS),
    "stream": _Option("stream", text_of, _BOTH, _STREAMS),
    "topic": _Option("topic", text_of, _BOTH, _STREAMS),
    "partitions": _Option("partitions", _numbers, _BOTH, _STREAMS),
    "consumer": _Option("consumer", text_of, _STREAM, _STREAMS),
    "keyEnv": _Option("key_env", text_of, _BOTH, _STREAMS),
    "keyFile": _Option("key_file", text_of, _BOTH, _STREAMS),
}

_COLUMN_FIELDS: Final = frozenset({"table", "columns", "gaps", "on_corrupt", "schema", "schema_location"})
# Options that say where records are, and which of them.
_SOURCE_FIELDS: Final = frozenset(
    {
        *("endpoint", "token", "token_env", "token_file", "subscribe", "subscribe_pattern", "path", "access"),
        *("tag", "tag_prefix", "node", "exclude_node", "isolation", "tail", "request_timeout_ms", "retries"),
    }
)


def parse_options(
    given: Mapping[str, str], *, mode: Mode, source: Format = "topics", environment: Mapping[str, str] | None = None
) -> ReadOptions:
    """The options of one read. `environment` of the driver has the endpoint when no option gives it."""
    values: dict[str, Any] = {}
    name_by_field: dict[str, str] = {}
    for raw_name, text in given.items():
        name = _known_name(raw_name, source)
        option = OPTIONS[name]
        if mode not in option.modes_of(source):
            raise BadOption(f"option `{name}` is for {option.modes[0]} reads only")
        if option.field in name_by_field:
            raise BadOption(f"options `{name_by_field[option.field]}` and `{name}` are the same; give one of them")
        name_by_field[option.field] = name
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            raise BadOption(f"option `{name}` {error}") from error
    if source == "topics_streams":
        values.setdefault("columns", STREAM_COLUMNS)
    if source == "topics" and "endpoint" not in values and "path" not in values:
        values["endpoint"] = (environment or {}).get(ENDPOINT_VARIABLE)
    options = ReadOptions(**values)
    for problem in _problems(options, name_by_field, mode, source):
        raise BadOption(problem)
    return options


def known_name(raw_name: str, known: Iterable[str], where: str) -> str:
    """The option with this name, in upper or lower case. Raises `BadOption` with the most similar name."""
    lower = raw_name.lower()
    if lower.replace("_", "").replace("-", "") == "apikey":
        raise BadOption("option `apiKey` is refused, as Spark shows it in plans; use `tokenEnv` or `tokenFile`")
    name_by_lower = {name.lower(): name for name in known}
    if lower not in name_by_lower:
        nearest = get_close_matches(lower, name_by_lower, n=1, cutoff=0.0)
        raise BadOption(f"there is no option `{raw_name}` for {where}; did you mean `{name_by_lower[nearest[0]]}`?")
    return name_by_lower[lower]


def parse_columns(given: Mapping[str, str], source: Format = "topics") -> ReadOptions:
    """Only the options that decide the columns. Spark asks for columns before it knows the kind of read."""
    values: dict[str, Any] = {"columns": COLUMNS if source == "topics" else STREAM_COLUMNS}
    for raw_name, text in given.items():
        name = _known_name(raw_name, source)
        option = OPTIONS[name]
        if option.field not in _COLUMN_FIELDS:
            continue
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            raise BadOption(f"option `{name}` {error}") from error
    options = ReadOptions(**values)
    for problem in _column_problems(options, source):
        raise BadOption(problem)
    return options


def parse_source(given: Mapping[str, str], *, environment: Mapping[str, str] | None = None) -> ReadOptions:
    """Only the options that say where records are, for a batch of its own."""
    own = {name: text for name, text in given.items() if OPTIONS[_known_name(name, "topics")].field in _SOURCE_FIELDS}
    return parse_options(own, mode="batch", environment=environment)


def _known_name(raw_name: str, source: Format) -> str:
    known = {name: option for name, option in OPTIONS.items() if source in option.formats}
    return known_name(raw_name, known, f"format `{source}`")


def _problems(options: ReadOptions, given: Mapping[str, str], mode: Mode, source: Format) -> list[str]:
    """Options that do not go together, the most important problem first."""
    problems: list[str] = []

    def require(rule: bool, problem: str) -> None:  # noqa: FBT001 -- a rule reads best in front of what it means
        if not rule:
            problems.append(problem)

    if source == "topics":
        subjects = [name for name in ("subscribe", "subscribe_pattern") if name in given]
        require(
            len(subjects) == 1 or (not subjects and options.path is not None),
            "give `subscribe` or `subscribePattern`, or `path` alone: it says what to read",
        )
        require(
            options.endpoint is not None or options.path is not None,
            NO_ENDPOINT,
        )
    else:
        problems += _stream_problems(options)
    tokens = [given[name] for name in ("token", "token_env", "token_file") if name in given]
    require(len(tokens) <= 1, "give only one of `token`, `tokenEnv` and `tokenFile`")
    problems += _column_problems(options, source)
    if mode == "batch":
        require(
            not _has_latest(options.starting_offsets), "option `startingOffsets` can be latest in streaming reads only"
        )
    require(
        options.ending_offsets == "latest" or not _has_earliest(options.ending_offsets),
        "option `endingOffsets` must be latest or JSON with the last seq wanted",
    )
    require(
        options.on_recreated == "fail" or options.gaps == "rows",
        "option `onRecreated=restart` gives gap rows and needs `gaps=rows`",
    )
    require("table" not in given or options.table == "records" or "columns" not in given, "`columns` is for records")
    require(options.table == "records" or options.schema is None, "`schema` is for records")
    is_inferred = options.schema is not None and options.schema.strip().lower() == "infer"
    require(is_inferred or options.schema_location is None, "option `schemaLocation` goes with `schema=infer` only")
    require(
        mode == "batch" or not is_inferred or options.schema_location is not None,
        "option `schema=infer` of a stream needs `schemaLocation`, a folder or bucket where the schema is kept: the "
        "stream infers it once, and has it again after a restart",
    )
    require("tail" not in given or options.path is not None, "option `tail` goes with `path` only")
    least, most = options.min_records_per_trigger, options.max_records_per_trigger
    require(
        least is None or most is None or least <= most,
        "option `minRecordsPerTrigger` must not be above `maxRecordsPerTrigger`",
    )
    for edge, times in (("starting", options.starting_ms_by_topic), ("ending", options.ending_ms_by_topic)):
        require(
            not times or f"{edge}_timestamp_ms" not in given,
            f"give only one of `{edge}Timestamp` and `{edge}OffsetsByTimestamp`",
        )
        unknown = [] if not options.subscribe else [topic for topic in times if topic not in options.subscribe]
        require(
            not unknown, f"option `{edge}OffsetsByTimestamp` names {', '.join(unknown)}, which `subscribe` does not"
        )
    start, end = options.starting_timestamp_ms, options.ending_timestamp_ms
    require(start is None or end is None or start <= end, "option `endingTimestamp` is before `startingTimestamp`")
    return problems


def _stream_problems(options: ReadOptions) -> list[str]:
    rules = (
        (
            options.endpoint is None,
            "option `endpoint`: the engine of streams has no server yet; give `path`, its data directory",
        ),
        (options.path is not None, "give `path`: the data directory of the engine of streams"),
        (
            options.stream is not None and options.topic is not None,
            "give `stream` and `topic`: they say what to read",
        ),
        (
            options.consumer is None,
            "option `consumer`: a stored offset is moved by the engine alone; progress is in the checkpoint",
        ),
        (options.key_env is None or options.key_file is None, "give only one of `keyEnv` and `keyFile`"),
        (
            not isinstance(options.starting_offsets, dict) or all(map(str.isdecimal, options.starting_offsets)),
            'option `startingOffsets` must be JSON by partition, such as {"0": 120}',
        ),
        (
            not isinstance(options.ending_offsets, dict) or all(map(str.isdecimal, options.ending_offsets)),
            'option `endingOffsets` must be JSON by partition, such as {"0": 120}',
        ),
    )
    return [problem for rule, problem in rules if not rule]


def _column_problems(options: ReadOptions, source: Format) -> list[str]:
    known = COLUMNS + COLUMNS_ON_DEMAND if source == "topics" else STREAM_COLUMNS
    return [
        f"option `columns` has `{column}`, which is none of {', '.join(known)}"
        + ("; those of gaps come by themselves with `gaps=rows`" if column in GAP_COLUMNS else "")
        for column in options.columns
        if column not in known
    ]


def _has_latest(offsets: Offsets) -> bool:
    return offsets == "latest" or (isinstance(offsets, dict) and LATEST in offsets.values())


def _has_earliest(offsets: Offsets) -> bool:
    return offsets == "earliest" or (isinstance(offsets, dict) and EARLIEST in offsets.values())
