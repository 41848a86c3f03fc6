"""Read options: text from Spark in, one typed value out, or an error that says which option and what to do.

Names are case-insensitive, as everywhere in Spark. An option that is not known is an error that names the nearest
one: a limit that was misspelled must not be a limit that is not there. Secrets are in no text that this module makes;
`apiKey` is refused because Spark shows an option of that name in plans and errors.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.limits import KIB, MIB

Mode = Literal["batch", "stream"]
Format = Literal["topics", "topics_streams"]
# By topic, or by partition: a seq, or one of the two below.
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

ENDPOINT_VARIABLE: Final = "TOPICS_URL"


class BadOption(InvalidRequest):
    """An option that is unknown, cannot be meant, or does not go with another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All read options, with units. What is None was not given."""

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    token_env: str | None = None
    token_file: str | None = None
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    path: str | None = None
    access: Literal["auto", "files", "http"] = "auto"
    table: Literal["records", "segments", "topics", "gaps"] = "records"
    # In the order in which they were asked for, without those of gaps.
    columns: tuple[str, ...] = COLUMNS
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    tag: str | None = None
    tag_prefix: str | None = None
    node: str | None = None
    exclude_node: tuple[str, ...] = ()
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_records_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    partition_bytes: int = 64 * MIB
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

    @property
    def has_gap_rows(self) -> bool:
        """Whether rows that stand for gaps can appear, so that the columns that tell them apart are there."""
        return self.gaps == "rows" or self.on_corrupt == "rows"

    @property
    def columns_with_gaps(self) -> tuple[str, ...]:
        return self.columns + GAP_COLUMNS if self.has_gap_rows else self.columns


# Values.


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _any_text(value: str) -> str:
    return value


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value.lower()

    return parse


def _flag(value: str) -> bool:
    return _choice("true", "false")(value) == "true"


def _fail_on_data_loss(value: str) -> str:
    return "fail" if _flag(value) else "rows"


def _count(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < least:
            raise ValueError(f"must be a whole number, at least {least}")
        return int(value)

    return parse


def _with_unit(units: Mapping[str, int], example: str) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", value.strip().lower())
        if match is None or match[2] not in units or not int(match[1]):
            raise ValueError(f"must be a number above 0 with or without a unit, such as {example}")
        return int(match[1]) * units[match[2]]

    return parse


_bytes: Final = _with_unit({"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB, "g": 1024 * MIB}, "64m")
_duration: Final = _with_unit({"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}, "15m")


def _names(value: str) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise ValueError("must be a comma-separated list without empty entries")
    return tuple(dict.fromkeys(names))


def _numbers(value: str) -> tuple[int, ...]:
    return tuple(sorted({_count(0)(name) for name in _names(value)}))


def _pattern(value: str) -> str:
    try:
        re.compile(_text(value))
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


# The table of options.


class _Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]
    modes: tuple[Mode, ...] = ("batch", "stream")
    formats: tuple[Format, ...] = ("topics", "topics_streams")


_BATCH: Final[tuple[Mode, ...]] = ("batch",)
_STREAM: Final[tuple[Mode, ...]] = ("stream",)
_BOTH: Final[tuple[Mode, ...]] = ("batch", "stream")
_TOPICS: Final[tuple[Format, ...]] = ("topics",)
_STREAMS: Final[tuple[Format, ...]] = ("topics_streams",)

OPTIONS: Final[dict[str, _Option]] = {
    "endpoint": _Option("endpoint", _text),
    "token": _Option("token", _text),
    "tokenEnv": _Option("token_env", _text),
    "tokenFile": _Option("token_file", _text),
    "subscribe": _Option("subscribe", _names, _BOTH, _TOPICS),
    "subscribePattern": _Option("subscribe_pattern", _pattern, _BOTH, _TOPICS),
    "path": _Option("path", _text, _BATCH),
    "access": _Option("access", _choice("auto", "files", "http")),
    "table": _Option("table", _choice(*TABLES), _BATCH, _TOPICS),
    "columns": _Option("columns", _names),
    "startingOffsets": _Option("starting_offsets", _offsets),
    "endingOffsets": _Option("ending_offsets", _offsets, _BATCH),
    "startingTimestamp": _Option("starting_timestamp_ms", _time),
    "endingTimestamp": _Option("ending_timestamp_ms", _time, _BATCH),
    "tag": _Option("tag", _any_text, _BOTH, _TOPICS),
    "tagPrefix": _Option("tag_prefix", _any_text, _BOTH, _TOPICS),
    "node": _Option("node", _any_text, _BOTH, _TOPICS),
    "excludeNode": _Option("exclude_node", _names, _BOTH, _TOPICS),
    "maxRecordsPerTrigger": _Option("max_records_per_trigger", _count(1), _STREAM),
    "maxOffsetsPerTrigger": _Option("max_records_per_trigger", _count(1), _STREAM),
    "maxBytesPerTrigger": _Option("max_bytes_per_trigger", _bytes, _STREAM),
    "minRecordsPerTrigger": _Option("min_records_per_trigger", _count(1), _STREAM),
    "maxTriggerDelay": _Option("max_trigger_delay_ms", _duration, _STREAM),
    "partitionBytes": _Option("partition_bytes", _bytes),
    "minPartitions": _Option("min_partitions", _count(1)),
    "maxRecordsPerPartition": _Option("max_records_per_partition", _count(1)),
    "batchRecords": _Option("batch_records", _count(1)),
    "gaps": _Option("gaps", _choice("fail", "rows")),
    "failOnDataLoss": _Option("gaps", _fail_on_data_loss),
    "onCorrupt": _Option("on_corrupt", _choice("fail", "rows")),
    "onRecreated": _Option("on_recreated", _choice("fail", "restart"), _STREAM),
    "verify": _Option("verify", _flag),
    "isolation": _Option("isolation", _choice("visible", "durable"), _BOTH, _TOPICS),
    "includeDeleted": _Option("include_deleted", _flag, _BATCH, _TOPICS),
    "tail": _Option("tail", _choice("require", "skip"), _BATCH, _TOPICS),
    "pinMs": _Option("pin_ms", _count(0)),
    "requestTimeoutMs": _Option("request_timeout_ms", _count(1)),
    "retries": _Option("retries", _count(0)),
    "stream": _Option("stream", _text, _BOTH, _STREAMS),
    "topic": _Option("topic", _text, _BOTH, _STREAMS),
    "partitions": _Option("partitions", _numbers, _BOTH, _STREAMS),
    "consumer": _Option("consumer", _text, _STREAM, _STREAMS),
}
_NAME_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}


def parse_options(
    given: Mapping[str, str], *, mode: Mode, source: Format = "topics", environment: Mapping[str, str] | None = None
) -> ReadOptions:
    """The options of one read. `environment` is the driver's, asked for the endpoint when none is given."""
    values: dict[str, Any] = {}
    name_by_field: dict[str, str] = {}
    for raw_name, text in given.items():
        name = _known_name(raw_name, source)
        option = OPTIONS[name]
        if mode not in option.modes:
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
    if "endpoint" not in values and "path" not in values:
        values["endpoint"] = (environment or {}).get(ENDPOINT_VARIABLE)
    options = ReadOptions(**values)
    for problem in _problems(options, name_by_field, mode, source):
        raise BadOption(problem)
    return options


def _known_name(raw_name: str, source: Format) -> str:
    lower = raw_name.lower()
    if lower.replace("_", "").replace("-", "") == "apikey":
        raise BadOption("option `apiKey` is refused, as Spark shows it in plans; use `tokenEnv` or `tokenFile`")
    name = _NAME_BY_LOWER.get(lower)
    if name is not None and source in OPTIONS[name].formats:
        return name
    known = {lower_name: known for lower_name, known in _NAME_BY_LOWER.items() if source in OPTIONS[known].formats}
    nearest = get_close_matches(lower, known, n=1, cutoff=0.0)
    raise BadOption(f"there is no option `{raw_name}` for format `{source}`; did you mean `{known[nearest[0]]}`?")


def _problems(options: ReadOptions, given: Mapping[str, str], mode: Mode, source: Format) -> list[str]:
    """What options say about each other, the first thing to put right first."""
    problems: list[str] = []

    def require(rule: bool, problem: str) -> None:  # noqa: FBT001 -- a rule reads best in front of what it means
        if not rule:
            problems.append(problem)

    if source == "topics":
        subjects = [name for name in ("subscribe", "subscribe_pattern", "path") if name in given]
        require(
            len(subjects) == 1, "give exactly one of `subscribe`, `subscribePattern` and `path`: it says what to read"
        )
    else:
        require("stream" in given and "topic" in given, "give `stream` and `topic`: they say what to read")
    require(
        options.endpoint is not None or options.path is not None,
        f"no server: give `endpoint`, or set {ENDPOINT_VARIABLE} on the driver",
    )
    tokens = [given[name] for name in ("token", "token_env", "token_file") if name in given]
    require(len(tokens) <= 1, "give only one of `token`, `tokenEnv` and `tokenFile`")
    known = COLUMNS + COLUMNS_ON_DEMAND if source == "topics" else STREAM_COLUMNS
    for column in options.columns:
        require(
            column in known,
            f"option `columns` has `{column}`, which is none of {', '.join(known)}"
            + ("; those of gaps come by themselves with `gaps=rows`" if column in GAP_COLUMNS else ""),
        )
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
    require("tail" not in given or options.path is not None, "option `tail` goes with `path` only")
    least, most = options.min_records_per_trigger, options.max_records_per_trigger
    require(
        least is None or most is None or least <= most,
        "option `minRecordsPerTrigger` must not be above `maxRecordsPerTrigger`",
    )
    start, end = options.starting_timestamp_ms, options.ending_timestamp_ms
    require(start is None or end is None or start <= end, "option `endingTimestamp` is before `startingTimestamp`")
    return problems


def _has_latest(offsets: Offsets) -> bool:
    return offsets == "latest" or (isinstance(offsets, dict) and LATEST in offsets.values())


def _has_earliest(offsets: Offsets) -> bool:
    return offsets == "earliest" or (isinstance(offsets, dict) and EARLIEST in offsets.values())
