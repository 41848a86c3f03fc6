"""Writers driven as Spark drives them, with tasks and drivers that fail: an epoch is seen whole and once, or not.

No JVM here. A task is a call of `Sink.write`, the driver one of `Sink.commit` or `Sink.abort`.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import count
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructType

from tests.spark.proxy import Proxy
from tests.spark.writing.test_body import JSON_TEXT, OBJECT_TEXT, TEXT, rows_of
from topics.client.retrying import Unreachable
from topics.client.sync.client import Client
from topics.errors import InvalidRequest, StageIncomplete, Throttled, TopicNotFound, TopicsError
from topics.spark.writing import sink as sink_module
from topics.spark.writing.body import BadRow
from topics.spark.writing.sink import PartWritten, Sink, Task, batch_writer, stream_writer
from topics.testing.server_process import ServerProcess

QUERY = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
_numbers = count()


@pytest.fixture(scope="module")
def log() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def client(log: ServerProcess) -> Iterator[Client]:
    with Client(log.url) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    """A topic for this test alone."""
    return new_topic(client)


@pytest.fixture
def proxy(log: ServerProcess) -> Iterator[Proxy]:
    with Proxy(log.host, log.port) as proxy:
        yield proxy


def new_topic(client: Client, **config: object) -> str:
    name = f"t{next(_numbers)}"
    client.create(name, **config)
    return name


def schema_of(*names: str) -> StructType:
    schema = StructType()
    for name in names:
        schema.add(name, BinaryType() if name == "value" else StringType())
    return schema


def stream_sink(url: str, *, columns: Sequence[str] = ("data",), overwrite: bool = False, **options: Any) -> Sink:
    return stream_writer({"endpoint": url} | options, schema_of(*columns), overwrite).sink


def batch_sink(url: str, *, columns: Sequence[str] = ("data",), overwrite: bool = False, **options: Any) -> Sink:
    return batch_writer({"endpoint": url} | options, schema_of(*columns), overwrite).sink


def task(part: int = 0, epoch: int = 0, query_id: str = QUERY) -> Task:
    return Task(part, query_id, epoch)


def numbers(first: int, end: int) -> list[pa.RecordBatch]:
    """Rows in batches of a few."""
    return [rows_of(data=[str(n) for n in range(at, min(at + 7, end))]) for at in range(first, end, 7)]


def stored(client: Client, topic: str) -> list[tuple[str | None, ...]]:
    """(data, tag, node, meta) of every record, in order; payloads as text."""
    found = []
    cursor = 0
    while True:
        page = client.read(topic, cursor, limit=1000)
        for record in page.records:
            meta = None if record.meta is None else record.meta.decode()
            labels = [record.tag, record.node]
            found.append((bytes(record.data).decode(), *labels, meta))
        cursor = page.next_from_seq
        if page.caught_up:
            return found


def values(client: Client, topic: str) -> list[Any]:
    return [json.loads(data or "") for data, *_ in stored(client, topic)]


# What arrives.


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(JSON_TEXT, TEXT | st.none(), TEXT | st.none(), OBJECT_TEXT | st.none()), min_size=1, max_size=20
    ),
    st.sampled_from(["staged", "direct"]),
)
def test_the_server_stores_exactly_what_the_rows_say(
    log: ServerProcess, rows: list[tuple[str, str | None, str | None, str | None]], mode: str
) -> None:
    names = ("data", "tag", "node", "meta")
    batch = rows_of(**{name: [row[i] for row in rows] for i, name in enumerate(names)})
    with Client(log.url) as client:
        topic = new_topic(client)
        sink = stream_sink(
            log.url, columns=names, topic=topic, chunkRecords="7", writeMode=mode, acceptWindow="true", maxInFlight="3"
        )
        sink.commit([sink.write([batch], task())])
        assert stored(client, topic) == rows


def test_nothing_is_seen_before_the_commit_and_then_all_in_the_order_of_the_parts(
    log: ServerProcess, client: Client, topic: str
) -> None:
    sink = stream_sink(log.url, topic=topic, chunkRecords="3")
    messages = [sink.write(numbers(part * 50, part * 50 + 50), task(part)) for part in (2, 0, 1)]
    assert client.state(topic).count == 0
    sink.commit(messages)
    assert values(client, topic) == list(range(150))


def test_rows_of_several_topics_keep_their_order_in_each(log: ServerProcess, client: Client) -> None:
    names = [new_topic(client) for _ in range(5)]
    topics = [names[n * n % 5] for n in range(100)]
    sink = stream_sink(log.url, columns=("topic", "data"), chunkRecords="6", chunkBytes="80")
    batches = [
        rows_of(topic=topics[at : at + 30], data=[str(n) for n in range(at, min(at + 30, 100))])
        for at in range(0, 100, 30)
    ]
    sink.commit([sink.write(batches, task())])
    for name in names:
        assert values(client, name) == [n for n in range(100) if topics[n] == name]


def test_the_option_topic_wins_over_the_column(log: ServerProcess, client: Client, topic: str) -> None:
    sink = stream_sink(log.url, columns=("topic", "data"), topic=topic)
    sink.commit([sink.write([rows_of(topic=["elsewhere", None], data=["1", "2"])], task())])
    assert values(client, topic) == [1, 2]


def test_partitions_and_epochs_without_rows_add_nothing(log: ServerProcess, client: Client, topic: str) -> None:
    sink = stream_sink(log.url, topic=topic)
    sink.commit([sink.write([], task(0)), sink.write([rows_of(data=[])], task(1))])
    sink.commit([])
    sink.abort([])
    assert client.state(topic).count == 0
    sink.commit([sink.write([], task(0, 1)), sink.write(numbers(0, 3), task(1, 1))])
    assert values(client, topic) == [0, 1, 2]


# Tasks that fail.


class TaskDied(Exception):
    """What ends a task in the middle."""


def dying(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise TaskDied


def test_a_task_that_died_half_way_leaves_nothing_to_its_retry(log: ServerProcess, client: Client, topic: str) -> None:
    """The retry has other rows, as after a shuffle: chunks of the two must not be mixed."""
    sink = stream_sink(log.url, topic=topic, chunkRecords="5")
    with pytest.raises(TaskDied):
        sink.write(dying(numbers(1000, 1036)), task())
    sink.commit([sink.write(numbers(0, 60), task())])
    assert values(client, topic) == list(range(60))


def test_of_speculative_attempts_the_one_that_spark_names_counts(
    log: ServerProcess, client: Client, topic: str
) -> None:
    sink = stream_sink(log.url, topic=topic, chunkRecords="5")
    together = Barrier(2)
    messages: dict[int, PartWritten] = {}

    def attempt(first: int) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            for batch in numbers(first, first + 100):
                together.wait(timeout=120)
                yield batch

        messages[first] = sink.write(batches(), task())

    threads = [Thread(target=attempt, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.commit([messages[1000]])
    assert values(client, topic) == list(range(1000, 1100))


def test_a_zombie_of_a_committed_epoch_adds_nothing(log: ServerProcess, client: Client, topic: str) -> None:
    sink = stream_sink(log.url, topic=topic, chunkRecords="5")
    first = sink.write(numbers(0, 20), task())
    sink.commit([first])
    zombie = sink.write(numbers(0, 20), task())
    sink.commit([zombie])
    sink.abort([zombie])
    sink.commit([sink.write(numbers(20, 30), task(epoch=1))])
    assert values(client, topic) == list(range(30))


def test_a_row_that_is_not_json_fails_the_task_by_name_and_nothing_is_stored(
    log: ServerProcess, client: Client, topic: str
) -> None:
    sink = stream_sink(log.url, topic=topic, writeMode="direct", acceptWindow="true")
    rows = ["1", "2", '3},{"data":4']
    with pytest.raises(BadRow, match=r"^partition 5, row 2: `data` is not JSON: "):
        sink.write([rows_of(data=rows)], task(5))
    sink.abort([None])
    assert client.state(topic).head_seq == 0


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_row_that_only_the_server_minds_is_named_too(
    log: ServerProcess, client: Client, topic: str, mode: str
) -> None:
    sink = stream_sink(log.url, columns=("data", "tag"), topic=topic, writeMode=mode, acceptWindow="true")
    batches = [rows_of(data=["1"] * 30, tag=["x"] * 30), rows_of(data=["1", "2"], tag=["é" * 129, "y"])]
    with pytest.raises(BadRow, match=r"^partition 1, row 30: a tag has at most 256 bytes$"):
        sink.write(batches, task(1))
    assert client.state(topic).head_seq == 0


def test_null_topics_name_their_row(log: ServerProcess) -> None:
    sink = stream_sink(log.url, columns=("topic", "data"))
    with pytest.raises(BadRow, match=r"^partition 0, row 1: `topic` is null$"):
        sink.write([rows_of(topic=["a", None], data=["1", "2"])], task())


# Drivers that fail.


def test_a_commit_whose_answer_is_lost_stays_and_its_replay_adds_nothing(
    log: ServerProcess, client: Client, topic: str, proxy: Proxy
) -> None:
    sink = stream_sink(proxy.url, topic=topic, chunkRecords="5", retries="0")
    sink.commit([sink.write(numbers(0, 10), task(epoch=0))])
    messages = [sink.write(numbers(10, 40), task(0, 1)), sink.write(numbers(40, 50), task(1, 1))]
    proxy.loses = lambda request: "/commit " in request
    with pytest.raises(Unreachable):
        sink.commit(messages)
    assert proxy.lost_count > 0
    # Spark gives up: it tells the sink, and a new driver runs the batch again.
    proxy.loses = lambda _: False
    sink.abort(messages)
    assert values(client, topic) == list(range(50))
    assert not any("/abort " in request for request in proxy.requests)
    again = stream_sink(proxy.url, topic=topic)
    again.commit([again.write(numbers(10, 40), task(0, 1)), again.write(numbers(40, 50), task(1, 1))])
    again.commit([again.write(numbers(50, 60), task(0, 2))])
    assert values(client, topic) == list(range(60))


def test_a_commit_that_is_sent_again_by_the_client_counts_once(
    log: ServerProcess, client: Client, topic: str, proxy: Proxy
) -> None:
    sink = stream_sink(proxy.url, topic=topic)
    message = sink.write(numbers(0, 10), task())
    proxy.loses = lambda request: "/commit " in request and proxy.lost_count == 0
    sink.commit([message])
    assert proxy.lost_count == 1
    assert values(client, topic) == list(range(10))


@pytest.mark.parametrize(("mode", "member"), [("staged", b'"records":5,'), ("direct", b'"count":5,')])
def test_a_server_that_took_other_records_than_were_sent_fails_the_task(
    log: ServerProcess, topic: str, proxy: Proxy, mode: str, member: bytes
) -> None:
    sink = stream_sink(proxy.url, topic=topic, writeMode=mode, acceptWindow="true")
    # As long as before.
    proxy.edits = lambda answer: answer.replace(member, member.replace(b"5", b"4"))
    with pytest.raises(TopicsError) as caught:
        sink.write(numbers(0, 5), task())
    assert caught.value.message == f'{proxy.url}: topic "{topic}": the server took 4 of 5 records'


def test_lost_answers_to_chunks_add_nothing_twice(log: ServerProcess, client: Client, topic: str, proxy: Proxy) -> None:
    for mode in ("staged", "direct"):
        sink = batch_sink(proxy.url, topic=topic, chunkRecords="4", writeMode=mode, writerId=mode, acceptWindow="true")
        seen: set[str] = set()

        def loses(request: str, seen: set[str] = seen) -> bool:
            is_new = f"{len(proxy.requests) // 3} {request}" not in seen
            seen.add(f"{len(proxy.requests) // 3} {request}")
            return "POST" in request and is_new

        proxy.loses = loses
        sink.commit([sink.write(numbers(0, 30), Task(0))])
        proxy.loses = lambda _: False
    assert proxy.lost_count > 4
    assert values(client, topic) == [*range(30), *range(30)]


def test_an_abort_drops_what_was_staged_and_a_late_commit_says_so(
    log: ServerProcess, client: Client, topic: str
) -> None:
    sink = stream_sink(log.url, topic=topic)
    message = sink.write(numbers(0, 10), task())
    sink.abort([message, None])
    with pytest.raises(StageIncomplete):
        sink.commit([message])
    assert client.state(topic).count == 0
    sink.commit([sink.write(numbers(0, 10), task())])
    assert values(client, topic) == list(range(10))


def test_an_abort_that_finds_no_server_does_not_hide_why_spark_gave_up(
    log: ServerProcess, topic: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    sink = stream_sink(proxy.url, topic=topic, retries="0")
    message = sink.write(numbers(0, 10), task())
    proxy.loses = lambda _: True
    sink.abort([message])
    assert "stay for a day" in caplog.text


def test_a_commit_that_ended_between_two_topics_is_finished_by_the_next_run(
    log: ServerProcess, client: Client, proxy: Proxy
) -> None:
    one, other = sorted([new_topic(client), new_topic(client)])
    sink = stream_sink(proxy.url, columns=("topic", "data"), retries="0")

    def rows() -> list[pa.RecordBatch]:
        return [rows_of(topic=[other, one, other], data=["1", "2", "3"])]

    message = sink.write(rows(), task())
    commits = count()
    gone = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    proxy.answers = lambda request: gone if "/commit " in request and next(commits) else None
    with pytest.raises(Unreachable):
        sink.commit([message])
    proxy.answers = lambda _: None
    assert (values(client, one), values(client, other)) == ([2], [])
    sink.abort([message])
    sink.commit([sink.write(rows(), task())])
    assert (values(client, one), values(client, other)) == ([2], [1, 3])


def test_a_commit_without_all_messages_commits_nothing(log: ServerProcess, client: Client, topic: str) -> None:
    sink = stream_sink(log.url, topic=topic)
    with pytest.raises(TopicsError, match="nothing is committed"):
        sink.commit([sink.write(numbers(0, 10), task()), None])
    assert client.state(topic).count == 0


def test_a_stream_under_the_name_of_a_later_one_fails_instead_of_losing_rows(
    log: ServerProcess, client: Client, topic: str
) -> None:
    sink = stream_sink(log.url, topic=topic, writerId=f"w:{topic}")
    for epoch in range(3):
        sink.commit([sink.write(numbers(epoch, epoch + 1), task(epoch=epoch))])
    stranger = [sink.write(numbers(100, 101), task(epoch=1, query_id="another"))]
    with pytest.raises(
        InvalidRequest, match=r"^epoch 1 of writer .* comes after a later one .* give the query a `writerId`"
    ):
        sink.commit(stranger)
    assert values(client, topic) == [0, 1, 2]


def test_a_batch_that_is_run_again_adds_nothing_and_says_so_whichever_came_last(
    log: ServerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in ("0", "1", "0", "1"):
        sink = batch_sink(log.url, topic=topic, writerId=f"import:{topic}", epoch=epoch)
        first = int(epoch) * 10
        sink.commit([sink.write(numbers(first, first + 10), Task(0))])
    assert values(client, topic) == list(range(20))
    assert caplog.text.count("so nothing was added; new rows need a new `writerId` or a higher `epoch`") == 2


def test_a_repeat_with_other_rows_is_told(
    log: ServerProcess, client: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = stream_sink(log.url, topic=topic)
    sink.commit([sink.write(numbers(0, 10), task())])
    sink.commit([sink.write(numbers(0, 12), task())])
    assert "was committed with 10 records, the 12 of now are not added" in caplog.text
    assert values(client, topic) == list(range(10))


# Overwriting.


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_complete_result_takes_the_place_of_the_last_one(log: ServerProcess, client: Client, mode: str) -> None:
    topic = new_topic(client, idempotency_window_ms=3_600_000)
    sink = stream_sink(log.url, topic=topic, overwrite=True, allowTruncate="true", writeMode=mode, chunkRecords="4")
    for epoch in range(3):
        messages = [sink.write(numbers(epoch, epoch + 10), task(0, epoch)), sink.write([], task(1, epoch))]
        sink.commit(messages)
        # The answer was lost, or the driver died before the truncation.
        sink.commit(messages)
        assert values(client, topic) == list(range(epoch, epoch + 10))
    sink.commit([sink.write([], task(0, 3))])
    assert values(client, topic) == []


def test_overwriting_with_no_partition_at_all_empties_the_topic(log: ServerProcess, client: Client, topic: str) -> None:
    client.append_encoded(topic, b'[{"data":1}]')
    options = {"topic": topic, "writerId": f"w:{topic}", "allowTruncate": "true"}
    batch_sink(log.url, overwrite=True, **options).commit([])
    assert values(client, topic) == []


# Direct writes.


def test_a_direct_task_that_is_repeated_adds_nothing_and_other_rows_are_not_dropped(
    log: ServerProcess, client: Client
) -> None:
    topic = new_topic(client, idempotency_window_ms=3_600_000)
    sink = stream_sink(log.url, topic=topic, writeMode="direct", chunkRecords="10", maxInFlight="4")
    with pytest.raises(TaskDied):
        sink.write(dying(numbers(0, 63)), task())
    sink.commit([sink.write(numbers(0, 100), task())])
    assert values(client, topic) == list(range(100))
    sink.commit([sink.write(numbers(200, 205), task())])
    assert values(client, topic) == [*range(100), *range(200, 205)]


def test_a_direct_write_needs_a_topic_that_remembers_long_enough(
    log: ServerProcess, client: Client, topic: str
) -> None:
    with pytest.raises(InvalidRequest, match="knows repeats for 120000 ms, too short for a restart"):
        stream_sink(log.url, topic=topic, writeMode="direct").write(numbers(0, 1), task())
    accepting = stream_sink(log.url, topic=topic, writeMode="direct", acceptWindow="true")
    accepting.commit([accepting.write(numbers(0, 1), task())])
    assert values(client, topic) == [0]


def test_a_direct_batch_without_a_name_is_new_in_every_run(log: ServerProcess, client: Client) -> None:
    topic = new_topic(client, idempotency_window_ms=3_600_000)
    for _ in range(2):
        sink = batch_sink(log.url, topic=topic, writeMode="direct")
        messages = [sink.write(numbers(0, 5), Task(0)) for _ in range(2)]
        sink.commit(messages[1:])
    assert values(client, topic) == [*range(5), *range(5)]


def test_a_server_without_staging_gets_direct_writes_and_one_warning(
    log: ServerProcess, client: Client, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"made{next(_numbers)}"
    proxy.edits = lambda answer: answer.replace(b'"stage"', b'"other"')
    sink = stream_sink(proxy.url, topic=topic, createTopic="true")
    with caplog.at_level(logging.WARNING, sink_module.__name__):
        for epoch in range(2):
            sink.commit([sink.write(numbers(epoch * 5, epoch * 5 + 5), task(epoch=epoch))])
    assert values(client, topic) == list(range(10))
    assert caplog.text.count("has no staged writes") == 1


# Topics and limits.


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_topics_are_created_only_if_that_was_asked_for(log: ServerProcess, client: Client, mode: str) -> None:
    name = f"made{next(_numbers)}"
    with pytest.raises(
        InvalidRequest, match=f'^topic "{name}" does not exist: create it, or write with option `createTopic'
    ):
        stream_sink(log.url, topic=name, writeMode=mode).write(numbers(0, 1), task())
    with pytest.raises(TopicNotFound):
        client.state(name)
    options = {"topic": name, "createTopic": "true", "topicConfig": '{"cap_records": 1000}', "writeMode": mode}
    sink = stream_sink(log.url, **options)
    sink.commit([sink.write(numbers(0, 5), task())])
    assert client.state(name).config.cap_records == 1000
    assert values(client, name) == list(range(5))


def test_chunks_are_cut_to_what_the_server_is_set_to_take() -> None:
    with ServerProcess(max_batch_records=30, max_body_bytes=700) as server, Client(server.url) as client:
        for mode in ("staged", "direct"):
            client.create(mode)
            options = {"topic": mode, "writeMode": mode, "acceptWindow": "true", "writerId": "w"}
            sink = stream_sink(server.url, **options)
            sink.commit([sink.write([rows_of(data=[str(n) for n in range(500)])] * 2, task())])
            assert values(client, mode) == [*range(500), *range(500)]


def test_one_record_that_is_too_large_for_the_server_is_refused_by_name() -> None:
    with ServerProcess(max_record_bytes=50) as server, Client(server.url) as client:
        client.create("a")
        with pytest.raises(InvalidRequest, match="partition 0, rows 0 to 1: a record has at most 50 bytes"):
            stream_sink(server.url, topic="a").write([rows_of(data=["1", f'"{"x" * 50}"'])], task())


def test_a_server_that_says_not_now_is_waited_for_or_not(
    log: ServerProcess, client: Client, topic: str, proxy: Proxy
) -> None:
    body = b'{"error":{"code":"throttled","message":"later"}}'
    busy = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\nretry-after: 0\r\n\r\n%b" % (len(body), body)
    refused = count()
    proxy.answers = lambda request: busy if "/stage " in request and next(refused) < 3 else None
    sink = stream_sink(proxy.url, topic=topic, retries="0")
    sink.commit([sink.write(numbers(0, 5), task())])
    assert values(client, topic) == list(range(5))
    proxy.answers = lambda request: busy if "/stage " in request else None
    with pytest.raises(Throttled):
        stream_sink(proxy.url, topic=topic, retries="0", backpressure="fail").write(numbers(5, 6), task(epoch=1))


def test_keys_are_found_where_the_task_runs_and_are_in_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with ServerProcess(api_keys="sesame") as server, Client(server.url, token="sesame") as client:
        client.create("a")
        monkeypatch.setenv("SINK_KEY", "sesame")
        (tmp_path / "key").write_text("sesame\n")
        ways = ({"token": "sesame"}, {"tokenEnv": "SINK_KEY"}, {"tokenFile": str(tmp_path / "key")})
        for epoch, way in enumerate(ways):
            sink = stream_sink(server.url, topic="a", **way)
            sink.commit([sink.write(numbers(epoch, epoch + 1), task(epoch=epoch))])
        assert values(client, "a") == [0, 1, 2]
        with pytest.raises(TopicsError) as caught:
            stream_sink(server.url, topic="a", token="wr0ng").write(numbers(0, 1), task(epoch=3))
        assert "wr0ng" not in f"{caught.value!r} {caught.value} {caught.value.detail}"
        assert "wr0ng" not in repr(stream_sink(server.url, topic="a", token="wr0ng"))
