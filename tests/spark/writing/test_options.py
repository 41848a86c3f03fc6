"""Options of writes: whatever is not meant is refused, with the way to put it right."""

import pickle

import pytest

from topics.spark.errors import BadOption
from topics.spark.options import Mode
from topics.spark.writing.options import WRITE_OPTIONS, WriteOptions, parse_write_options

ENDPOINT = {"endpoint": "http://h"}


def parse(mode: Mode = "stream", **given: str) -> WriteOptions:
    return parse_write_options(ENDPOINT | given, mode=mode)


def refused(given: dict[str, str], *, mode: Mode = "stream", overwrite: bool = False) -> str:
    with pytest.raises(BadOption) as caught:
        parse_write_options(ENDPOINT | given, mode=mode, overwrite=overwrite)
    return caught.value.message


def test_what_is_not_given_has_the_documented_default() -> None:
    options = parse()
    assert options == WriteOptions(endpoint="http://h")
    assert (options.write_mode, options.chunk_records, options.chunk_bytes) == ("staged", 10_000, 8 * 2**20)
    assert (options.max_in_flight, options.backpressure, options.write_timeout_ms) == (2, "wait", 600_000)
    assert (options.create_topic, options.allow_truncate, options.accept_window) == (False, False, False)


def test_every_option_becomes_a_typed_value() -> None:
    given = {
        "token": "s3cret",
        "topic": "orders",
        "writeMode": "DIRECT",
        "writerId": "import:7",
        "epoch": "12",
        "chunkRecords": "500",
        "chunkBytes": "1m",
        "maxInFlight": "4",
        "createTopic": "true",
        "topicConfig": '{"durability": "fsync"}',
        "allowTruncate": "true",
        "acceptWindow": "true",
        "backpressure": "fail",
        "writeTimeoutMs": "5s",
        "requestTimeoutMs": "7",
        "retries": "0",
    }
    assert parse("batch", **given) == WriteOptions(
        endpoint="http://h",
        token="s3cret",
        topic="orders",
        write_mode="direct",
        writer_id="import:7",
        epoch=12,
        chunk_records=500,
        chunk_bytes=2**20,
        max_in_flight=4,
        create_topic=True,
        topic_config={"durability": "fsync"},
        allow_truncate=True,
        accept_window=True,
        backpressure="fail",
        write_timeout_ms=5000,
        request_timeout_ms=7,
        retries=0,
    )
    assert given.keys() | {"endpoint", "tokenEnv", "tokenFile"} == WRITE_OPTIONS.keys()


def test_names_are_known_in_any_case_and_spark_may_add_its_own() -> None:
    assert parse(TOPIC="a", checkpointLocation="/c", queryname="q") == WriteOptions(endpoint="http://h", topic="a")


def test_the_endpoint_is_that_of_the_driver_unless_it_is_given() -> None:
    def endpoint(given: dict[str, str]) -> str:
        return parse_write_options(given, mode="stream", environment={"TOPICS_URL": "http://driver"}).endpoint

    assert endpoint({}) == "http://driver"
    assert endpoint(ENDPOINT) == "http://h"
    with pytest.raises(BadOption, match="no server: give `endpoint`, or set TOPICS_URL on the driver"):
        parse_write_options({}, mode="stream", environment={})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"writeId": "a"}, "there is no option `writeId` for writes of format `topics`; did you mean `writerId`?"),
        ({"subscribe": "a"}, "option `subscribe` is for reads: a write names its topic with `topic`"),
        ({"apiKey": "s"}, "option `apiKey` is refused, as Spark shows it in plans; use `tokenEnv` or `tokenFile`"),
        ({"path": "a"}, "option `path` is for reads: a write names its topic with `topic`"),
        ({"writeMode": "fast"}, "option `writeMode` must be one of staged, direct"),
        ({"writerId": "a b"}, "option `writerId` must be 1 to 128 letters, digits and . _ : -"),
        ({"chunkRecords": "0"}, "option `chunkRecords` must be a whole number, at least 1"),
        ({"maxInFlight": "65"}, "option `maxInFlight` must be at most 64"),
        (
            {"createTopic": "true", "topicConfig": "[]"},
            'option `topicConfig` must be JSON with settings of a topic, such as {"durability": "fsync"}',
        ),
        (
            {"topicConfig": '{"ttl_ms": 1}'},
            "option `topicConfig` goes with `createTopic=true` only: it is for topics that are not there",
        ),
        ({"token": "s", "tokenEnv": "T"}, "give only one of `token`, `tokenEnv` and `tokenFile`"),
        ({"epoch": "1"}, "option `epoch` is for batch writes only: in a stream it is the number of the batch"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_way_out(given: dict[str, str], text: str) -> None:
    assert refused(given) == text


def test_chunks_are_never_larger_than_any_server_takes() -> None:
    options = parse(chunkRecords="1000000", chunkBytes="1g")
    assert (options.chunk_records, options.chunk_bytes) == (10_000, 63 * 2**20)


def test_a_staged_batch_must_say_who_writes_it() -> None:
    assert refused({}, mode="batch") == (
        "a staged batch write needs `writerId`, the name by which a rerun is known and adds nothing twice; "
        "or choose `writeMode=direct`"
    )
    assert parse("batch", writeMode="direct").writer_id is None


def test_modes_that_delete_must_be_allowed_to() -> None:
    assert refused({"writerId": "w"}, mode="batch", overwrite=True) == (
        '.mode("overwrite") deletes everything in the topic from before the write: '
        'say so with option `allowTruncate=true`, or write with .mode("append")'
    )
    assert refused({}, overwrite=True) == (
        '.outputMode("complete") deletes everything in the topic from before the write: '
        'say so with option `allowTruncate=true`, or write with .outputMode("append")'
    )
    assert parse_write_options(ENDPOINT | {"allowTruncate": "true"}, mode="stream", overwrite=True).allow_truncate


def test_the_token_is_in_no_text_and_travels_to_tasks() -> None:
    options = parse(token="s3cret")
    assert "s3cret" not in f"{options!r} {options!s}"
    assert pickle.loads(pickle.dumps(options)).token == "s3cret"
    assert "s3cret" not in refused({"token": "s3cret", "tokenFile": "f"})
