"""Write options: text from Spark in, one typed value out, by the same rules as those of reads (see `options`)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.limits import BATCH_RECORDS_MAX, MIB, WRITER_NAME_BYTES_MAX
from topics.spark.errors import BadOption
from topics.spark.option_values import (
    ENDPOINT_VARIABLE,
    NO_ENDPOINT,
    count,
    duration_ms,
    flag,
    one_of,
    size_bytes,
    text_of,
)
from topics.spark.options import Mode, known_name

# A server takes 64 MiB in one request by default. The difference is for the text around the records.
CHUNK_BYTES_MAX: Final = 63 * MIB
IN_FLIGHT_MAX: Final = 64

# Options of Spark, which Spark passes to every sink.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_WRITER_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
assert WRITER_NAME_BYTES_MAX == 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All write options, with units. An option that was not given is None."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    token_env: str | None = None
    token_file: str | None = None
    topic: str | None = None
    write_mode: Literal["staged", "direct"] = "staged"
    writer_id: str | None = None
    epoch: int = 0
    chunk_records: int = BATCH_RECORDS_MAX
    chunk_bytes: int = 8 * MIB
    max_in_flight: int = 2
    create_topic: bool = False
    topic_config: dict[str, Any] = field(default_factory=dict)
    allow_truncate: bool = False
    accept_window: bool = False
    backpressure: Literal["wait", "fail"] = "wait"
    write_timeout_ms: int = 600_000
    request_timeout_ms: int = 30_000
    retries: int = 5


def _writer_id(value: str) -> str:
    if _WRITER_ID.fullmatch(value) is None:
        raise ValueError("must be 1 to 128 letters, digits and . _ : -")
    return value


def _config(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError('must be JSON with settings of a topic, such as {"durability": "fsync"}') from error


class _Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]


WRITE_OPTIONS: Final[dict[str, _Option]] = {
    "endpoint": _Option("endpoint", text_of),
    "token": _Option("token", text_of),
    "tokenEnv": _Option("token_env", text_of),
    "tokenFile": _Option("token_file", text_of),
    "topic": _Option("topic", text_of),
    "writeMode": _Option("write_mode", one_of("staged", "direct")),
    "writerId": _Option("writer_id", _writer_id),
    "epoch": _Option("epoch", count(0)),
    "chunkRecords": _Option("chunk_records", count(1)),
    "chunkBytes": _Option("chunk_bytes", size_bytes),
    "maxInFlight": _Option("max_in_flight", count(1)),
    "createTopic": _Option("create_topic", flag),
    "topicConfig": _Option("topic_config", _config),
    "allowTruncate": _Option("allow_truncate", flag),
    "acceptWindow": _Option("accept_window", flag),
    "backpressure": _Option("backpressure", one_of("wait", "fail")),
    "writeTimeoutMs": _Option("write_timeout_ms", duration_ms),
    "requestTimeoutMs": _Option("request_timeout_ms", count(1)),
    "retries": _Option("retries", count(0)),
}


def parse_write_options(
    given: Mapping[str, str], *, mode: Mode, overwrite: bool = False, environment: Mapping[str, str] | None = None
) -> WriteOptions:
    """The options of one write. `environment` of the driver has the endpoint when no option gives it.

    Spark sets `overwrite` for `.mode("overwrite")` and for output mode `complete`.
    """
    values: dict[str, Any] = {}
    for raw_name, value in given.items():
        if raw_name.lower() in _OF_SPARK:
            continue
        if raw_name.lower() in {"path", "subscribe"}:
            raise BadOption(f"option `{raw_name}` is for reads: a write names its topic with `topic`")
        name = known_name(raw_name, WRITE_OPTIONS, "writes of format `topics`")
        try:
            values[WRITE_OPTIONS[name].field] = WRITE_OPTIONS[name].parse(value)
        except ValueError as error:
            raise BadOption(f"option `{name}` {error}") from error
    values.setdefault("endpoint", (environment or {}).get(ENDPOINT_VARIABLE))
    if values["endpoint"] is None:
        raise BadOption(NO_ENDPOINT)
    options = WriteOptions(**values)
    options = replace(
        options,
        chunk_records=min(options.chunk_records, BATCH_RECORDS_MAX),
        chunk_bytes=min(options.chunk_bytes, CHUNK_BYTES_MAX),
    )
    for problem in _problems(options, values, mode, overwrite=overwrite):
        raise BadOption(problem)
    return options


def _problems(options: WriteOptions, given: Mapping[str, Any], mode: Mode, *, overwrite: bool) -> list[str]:
    """Options that do not go together, or not with this kind of write, the most important problem first."""
    problems: list[str] = []
    if len(given.keys() & {"token", "token_env", "token_file"}) > 1:
        problems.append("give only one of `token`, `tokenEnv` and `tokenFile`")
    if overwrite and not options.allow_truncate:
        asked, instead = (
            ('.mode("overwrite")', '.mode("append")')
            if mode == "batch"
            else ('.outputMode("complete")', '.outputMode("append")')
        )
        problems.append(
            f"{asked} deletes everything in the topic from before the write: "
            f"say so with option `allowTruncate=true`, or write with {instead}"
        )
    if mode == "batch" and options.write_mode == "staged" and options.writer_id is None:
        problems.append(
            "a staged batch write needs `writerId`, the name by which a rerun is known and adds nothing twice; "
            "or choose `writeMode=direct`"
        )
    if mode == "stream" and "epoch" in given:
        problems.append("option `epoch` is for batch writes only: in a stream it is the number of the batch")
    if options.topic_config and not options.create_topic:
        problems.append("option `topicConfig` goes with `createTopic=true` only: it is for topics that are not there")
    if options.max_in_flight > IN_FLIGHT_MAX:
        problems.append(f"option `maxInFlight` must be at most {IN_FLIGHT_MAX}")
    return problems
