"""Options: whatever is not meant is refused, with the way to put it right."""

import pickle
from typing import Any

import pytest

from topics.spark.errors import BadOption
from topics.spark.options import OPTIONS, Mode, ReadOptions, parse_options


def parse(mode: Mode = "batch", **given: str) -> ReadOptions:
    return parse_options({"endpoint": "http://h", "subscribe": "orders"} | given, mode=mode)


def refused(given: dict[str, str], *, mode: Mode = "batch", source: Any = "topics") -> str:
    with pytest.raises(BadOption) as caught:
        parse_options(given, mode=mode, source=source)
    return caught.value.message


def test_what_is_not_given_has_the_documented_default() -> None:
    assert parse() == ReadOptions(endpoint="http://h", subscribe=("orders",))


def test_every_option_becomes_a_typed_value() -> None:
    batch = parse(
        token="s3cret",
        access="files",
        columns="seq, ts,value",
        startingOffsets='{"orders": 12, "other": -2}',
        endingOffsets='{"orders": -1}',
        startingTimestamp="1700000000000",
        endingTimestamp="2026-01-31T08:00:00Z",
        tag="",
        tagPrefix="a",
        node="n",
        excludeNode="x, y,x",
        partitionBytes="128m",
        minPartitions="4",
        maxRecordsPerPartition="5",
        batchRecords="6",
        gaps="rows",
        onCorrupt="ROWS",
        verify="False",
        isolation="durable",
        includeDeleted="true",
        pinMs="0",
        requestTimeoutMs="7",
        retries="0",
    )
    assert batch == ReadOptions(
        endpoint="http://h",
        token="s3cret",
        subscribe=("orders",),
        access="files",
        columns=("seq", "ts", "value"),
        starting_offsets={"orders": 12, "other": -2},
        ending_offsets={"orders": -1},
        starting_timestamp_ms=1_700_000_000_000,
        ending_timestamp_ms=1_769_846_400_000,
        tag="",
        tag_prefix="a",
        node="n",
        exclude_node=("x", "y"),
        partition_bytes=128 * 2**20,
        min_partitions=4,
        max_records_per_partition=5,
        batch_records=6,
        gaps="rows",
        on_corrupt="rows",
        verify=False,
        isolation="durable",
        include_deleted=True,
        pin_ms=0,
        request_timeout_ms=7,
        retries=0,
    )
    stream = parse(
        "stream",
        startingOffsets="latest",
        maxRecordsPerTrigger="10",
        maxBytesPerTrigger="1g",
        minRecordsPerTrigger="10",
        maxTriggerDelay="90s",
        gaps="rows",
        onRecreated="restart",
    )
    assert stream.starting_offsets == "latest"
    assert (stream.max_records_per_trigger, stream.max_bytes_per_trigger) == (10, 2**30)
    assert (stream.min_records_per_trigger, stream.max_trigger_delay_ms) == (10, 90_000)
    assert (stream.gaps, stream.on_recreated) == ("rows", "restart")


def test_names_are_case_insensitive() -> None:
    given = {"ENDPOINT": "http://h", "subscribePATTERN": "a.*", "failondataloss": "FALSE"}
    options = parse_options(given, mode="batch")
    assert (options.subscribe_pattern, options.gaps) == ("a.*", "rows")


def test_names_of_kafka_are_aliases_and_not_second_options() -> None:
    assert parse("stream", maxOffsetsPerTrigger="3").max_records_per_trigger == 3
    assert parse(failOnDataLoss="true").gaps == "fail"
    both = {"endpoint": "h", "subscribe": "t", "gaps": "rows", "failOnDataLoss": "false"}
    assert refused(both) == "options `gaps` and `failOnDataLoss` are the same; give one of them"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("subscibe", "subscribe"), ("maxRecordPerTriger", "maxRecordsPerTrigger"), ("kafka.bootstrap.servers", None)],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name: str, nearest: str | None) -> None:
    message = refused({name: "x"})
    assert message.startswith(f"there is no option `{name}` for format `topics`; did you mean `")
    assert nearest is None or f"`{nearest}`?" in message


@pytest.mark.parametrize("name", ["apiKey", "apikey", "API_KEY", "api-key"])
def test_an_api_key_is_refused_and_not_repeated(name: str) -> None:
    message = refused({name: "s3cret", "subscribe": "t"})
    assert message == "option `apiKey` is refused, as Spark shows it in plans; use `tokenEnv` or `tokenFile`"


def test_a_token_is_in_no_text() -> None:
    options = parse(token="s3cret")
    assert "s3cret" not in repr(options)
    assert "s3cret" not in refused({"endpoint": "h", "subscribe": "t", "token": "s3cret", "tokenEnv": "T"})
    assert pickle.loads(pickle.dumps(options)) == options


REFUSED = {
    ("gaps", "hide"): "must be one of fail, rows",
    ("verify", "yes"): "must be one of true, false",
    ("batchRecords", "0"): "must be a whole number, at least 1",
    ("retries", "-1"): "must be a whole number, at least 0",
    ("partitionBytes", "64x"): "must be a number above 0 with or without a unit, such as 64m",
    ("subscribe", "a,,b"): "must be a comma-separated list without empty entries",
    ("startingTimestamp", "2026-01-31T08:00:00"): "must have a time zone, such as 2026-01-31T08:00:00Z",
    ("startingOffsetsByTimestamp", "5"): 'must be JSON with milliseconds by topic, such as {"orders": 1769846400000}',
    ("startingOffsetsByTimestamp", '{"orders": {"1": 5}}'): (
        'must be JSON with milliseconds by topic, such as {"orders": 1769846400000}'
    ),
    ("endingOffsetsByTimestamp", "{}"): "must name times of topics, in milliseconds since 1970",
    ("endingOffsetsByTimestamp", '{"visits": 5}'): "names visits, which `subscribe` does not",
    ("schemaLocation", "/x"): "goes with `schema=infer` only",
    ("startingTimestamp", "soon"): "must be milliseconds since 1970 or ISO 8601, such as 2026-01-31T08:00:00Z",
    ("startingOffsets", "first"): 'must be earliest, latest, or JSON such as {"orders": 120}',
    ("startingOffsets", '{"orders": -3}'): "must name seqs; -2 is the earliest one and -1 the latest",
    ("startingOffsets", "latest"): "can be latest in streaming reads only",
    ("startingOffsets", '{"orders": -1}'): "can be latest in streaming reads only",
    ("endingOffsets", '{"orders": -2}'): "must be latest or JSON with the last seq wanted",
    ("endingOffsets", "earliest"): "must be latest or JSON with the last seq wanted",
    ("columns", "seq,kind"): "has `kind`, which is none of topic, seq, ts, node, tag, data, meta, value, epoch, "
    "deleted, segment, checksum; those of gaps come by themselves with `gaps=rows`",
    ("maxRecordsPerTrigger", "5"): "is for stream reads only",
    ("tail", "skip"): "goes with `path` only",
}


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_cannot_be_meant_is_refused_with_its_option(name: str, value: str) -> None:
    message = refused({"endpoint": "http://h", "subscribe": "orders"} | {name: value})
    assert message == f"option `{name}` {REFUSED[name, value]}"


def test_options_that_contradict_each_other_are_refused() -> None:
    given = {"endpoint": "http://h", "subscribe": "orders"}
    assert refused(given | {"subscribePattern": "a"}) == (
        "give `subscribe` or `subscribePattern`, or `path` alone: it says what to read"
    )
    assert refused(given | {"startingTimestamp": "2", "endingTimestamp": "1"}) == (
        "option `endingTimestamp` is before `startingTimestamp`"
    )
    assert refused(given | {"startingTimestamp": "2", "startingOffsetsByTimestamp": '{"orders": 1}'}) == (
        "give only one of `startingTimestamp` and `startingOffsetsByTimestamp`"
    )
    assert refused(given | {"schema": "id int", "table": "topics"}) == "`schema` is for records"


def test_times_by_topic_are_written_as_in_kafka_or_without_a_partition() -> None:
    given = {"endpoint": "http://h", "subscribe": "a,b,c"}
    times = {"startingOffsetsByTimestamp": '{"a": 5, "b": {"0": 6}}', "endingOffsetsByTimestamp": '{"c": 7}'}
    options = parse_options(given | times, mode="batch")
    assert [options.starting_ms_of(topic) for topic in "abc"] == [5, 6, None]
    assert [options.ending_ms_of(topic) for topic in "abc"] == [None, None, 7]
    assert parse_options(given | {"startingTimestamp": "9"}, mode="stream").starting_ms_of("a") == 9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "option `endingOffsets` is for batch reads only"),
        ({"path": "/data"}, "option `path` is for batch reads only"),
        ({"onRecreated": "restart"}, "option `onRecreated=restart` gives gap rows and needs `gaps=rows`"),
        (
            {"minRecordsPerTrigger": "2", "maxRecordsPerTrigger": "1"},
            "option `minRecordsPerTrigger` must not be above `maxRecordsPerTrigger`",
        ),
        ({"subscribePattern": "("}, "option `subscribePattern` is not a regular expression"),
    ],
    ids=["ending", "path", "restart", "limits", "pattern"],
)
def test_what_cannot_be_meant_in_a_stream_is_refused(given: dict[str, str], message: str) -> None:
    assert refused({"endpoint": "http://h", "subscribe": "orders"} | given, mode="stream").startswith(message)


def test_the_server_may_come_from_the_environment_of_the_driver() -> None:
    given = {"subscribe": "t"}
    assert parse_options(given, mode="batch", environment={"TOPICS_URL": "http://h"}).endpoint == "http://h"
    assert (
        refused(given) == "no server: give `endpoint`, or set TOPICS_URL on the driver, such as http://localhost:4000"
    )
    assert parse_options({"path": "/data"}, mode="batch", environment={"TOPICS_URL": "http://h"}).endpoint is None


def test_streams_have_options_and_columns_of_their_own() -> None:
    given = {"path": "/d", "stream": "s", "topic": "t", "partitions": "2, 0,2", "startingOffsets": '{"0": 5}'}
    options = parse_options(given, mode="stream", source="topics_streams", environment={"TOPICS_URL": "http://h"})
    assert options.endpoint is None
    assert options.partitions == (0, 2)
    assert options.columns[:4] == ("stream", "topic", "partition", "offset")
    assert refused({"path": "/d", "stream": "s"}, source="topics_streams") == (
        "give `stream` and `topic`: they say what to read"
    )
    assert "no option `tag`" in refused(given | {"tag": "x"}, source="topics_streams")
    assert "no option `token`" in refused(given | {"token": "x"}, source="topics_streams")
    assert refused(given | {"startingOffsets": '{"t": 5}'}, source="topics_streams") == (
        'option `startingOffsets` must be JSON by partition, such as {"0": 120}'
    )


def test_streams_are_read_from_their_directory_alone() -> None:
    given = {"stream": "s", "topic": "t"}
    assert refused(given, source="topics_streams") == "give `path`: the data directory of the engine of streams"
    assert refused(given | {"endpoint": "http://h"}, source="topics_streams") == (
        "option `endpoint`: the engine of streams has no server yet; give `path`, its data directory"
    )
    problem = refused(given | {"path": "/d", "consumer": "c"}, mode="stream", source="topics_streams")
    assert problem == "option `consumer`: a stored offset is moved by the engine alone; progress is in the checkpoint"
    problem = refused(given | {"path": "/d", "keyEnv": "K", "keyFile": "/k"}, source="topics_streams")
    assert problem == "give only one of `keyEnv` and `keyFile`"


def test_columns_of_gaps_are_there_exactly_when_rows_can_be_gaps() -> None:
    gap_columns = ("kind", "gap_to", "gap_reason")
    assert parse(columns="seq").columns_with_gaps == ("seq",)
    assert parse(columns="seq", gaps="rows").columns_with_gaps == ("seq", *gap_columns)
    assert parse(columns="seq", onCorrupt="rows").columns_with_gaps == ("seq", *gap_columns)


def test_every_option_sets_a_field_that_is_there() -> None:
    assert {option.field for option in OPTIONS.values()} == set(ReadOptions.__dataclass_fields__)
