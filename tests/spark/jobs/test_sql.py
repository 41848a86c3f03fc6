"""The job `sql`: batch and stream, into topics, lakes and files; each rerun and each kill adds nothing twice."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.spark.lakes import NOW_MS, archived
from topics.client.sync.client import Client
from topics.errors import TopicNotFound
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job_options import SqlOptions
from topics.spark.jobs.sql import lake_topics, run
from topics.spark.lake import lake
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine with other things to do takes a minute to start Spark.
pytestmark = pytest.mark.timeout(1800)
PATIENCE_S = 600

SELECT = """
SELECT to_json(named_struct('double', 2 * get_json_object(data, '$.n'), 'from', seq)) AS data, tag
FROM orders WHERE tag <> 't3'
"""


def fill(client: Client, topic: str, count: int) -> None:
    records = [{"data": {"n": n}, "tag": f"t{n % 5}"} for n in range(count)]
    for start in range(0, count, 1000):
        client.append_encoded(topic, json.dumps(records[start : start + 1000]).encode())


def payloads(client: Client, topic: str) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    cursor = 0
    while True:
        page = client.read(topic, cursor, limit=1000)
        found += [(msgspec.json.decode(record.data), record.tag) for record in page.records]
        if page.caught_up:
            return found
        cursor = page.next_from_seq


def expected(count: int) -> list[tuple[Any, Any]]:
    return [({"double": 2.0 * n, "from": n + 1}, f"t{n % 5}") for n in range(count) if n % 5 != 3]


# Wrong questions are told before Spark does anything.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "DROP TABLE orders"}, "must be one SELECT"),
        ({"inputs": (("a b", "topic:x"),)}, "no name for an input"),
        ({"inputs": (("a", "topic:x"), ("a", "topic:y"))}, "several inputs a"),
        ({"inputs": (("a", "orders"),)}, "no place for rows"),
        ({"input_options": {"b": {"tag": "x"}}}, "no input b"),
        ({"schemas": {"b": "id int"}}, "no input b to have a schema"),
        ({"inputs": (("a", "parquet:/x"),), "schemas": {"a": "id int"}}, "is for topics and lakes"),
        ({"checkpoint": "/tmp/c"}, "goes with --trigger"),
        ({"trigger": "5s"}, "needs --into"),
        ({"trigger": "5s", "into": "topic:t"}, "needs --checkpoint"),
        ({"trigger": "5 parsecs", "into": "topic:t", "checkpoint": "/tmp/c"}, "availableNow or an interval"),
        ({"trigger": "5s", "into": "lake:/l", "checkpoint": "/tmp/c"}, "--writer-id"),
        ({"inputs": (("a", "parquet:/x"),), "trigger": "5s", "into": "topic:t", "checkpoint": "/c"}, "topic:NAME"),
    ],
)
def test_a_question_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    config = replace(SqlOptions(query="SELECT 1", inputs=(("a", "topic:x"),)), **changes)
    with pytest.raises(BadOption, match=message):
        run(None, config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query", ["select 1", " -- why\nSELECT 1", "/* a\nb */ WITH x AS (SELECT 1) FROM x", "(SELECT 1)"]
)
def test_a_select_may_begin_in_several_ways(query: str) -> None:
    with pytest.raises(BadOption, match="several inputs"):
        run(None, SqlOptions(query=query, inputs=(("a", "topic:x"), ("a", "topic:x"))))  # type: ignore[arg-type]


# Batch.


def test_a_select_over_topic_lake_and_files_goes_where_it_should_and_once(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        client.create("orders")
        fill(client, "orders", 500)
        names = tmp_path / "names.json"
        names.write_text("".join(f'{{"tag": "t{n}", "name": "name {n}"}}\n' for n in range(4)))
        base = SqlOptions(endpoint=server.url, query=SELECT, inputs=(("orders", "topic:orders"),))

        into_topic = replace(base, into="topic:doubled", create_topic=True, writer_id="test-sql")
        assert run(spark, into_topic).records == 400
        again = run(spark, into_topic)
        assert (again.records, again.items_skipped) == (0, 1)
        assert payloads(client, "doubled") == expected(500)

        address = f"{tmp_path}/lake"
        some = replace(base, query="SELECT * FROM orders WHERE seq % 2 = 0", into=f"lake:{address}", writer_id="half")
        assert run(spark, some).records == 250
        assert run(spark, some).items_skipped == 1
        with pytest.raises(Conflict):
            run(spark, replace(some, writer_id="another"))
        assert sum(file.records for file in lake.open_lake(address).state.files.values()) == 250

        joined = run(
            spark,
            replace(
                base,
                query="SELECT name, count(*) AS n FROM hist JOIN names USING (tag) WHERE seq > 100 GROUP BY ALL",
                inputs=(("hist", f"lake:{address}"), ("names", f"json:{names}")),
            ),
        )
        counts = {row["name"]: row["n"] for row in map(json.loads, joined.detail["rows"])}
        assert counts == {f"name {n}": 40 for n in range(4)}

        sums = "SELECT sum(t.data.n) AS t, (SELECT sum(data.n) FROM hist) AS l, count(t._rescued) AS r FROM {} t"
        for table, schemas in (("orders", {"orders": "n int"}), ("topics.orders", {"orders": "infer"})):
            typed = replace(
                base,
                query=sums.format(table),
                inputs=(("hist", f"lake:{address}"), ("orders", "topic:orders")),
                schemas={**schemas, "hist": "infer"},
            )
            (row,) = map(json.loads, run(spark, typed).detail["rows"])
            assert row == {"t": sum(range(500)), "l": sum(range(1, 500, 2)), "r": 0}

        to_files = replace(base, query="SELECT seq, tag FROM orders", into=f"parquet:{tmp_path}/files")
        assert run(spark, to_files).records == 500
        assert spark.read.parquet(f"{tmp_path}/files").count() == 500


def test_files_never_go_where_a_server_keeps_its_data(spark: "SparkSession", server: ServerProcess) -> None:
    """Spark would remove all that is there."""
    for mode in ("overwrite", "append"):
        into = SqlOptions(query="SELECT 1", into=f"parquet:{server.data_dir}", mode=mode)
        with pytest.raises(BadOption, match=r"is no place for files of a job: it holds a log or a backup \(STORE\)"):
            run(spark, into)
    with Client(server.url) as client:
        fill(client, "orders", 10)
        server.kill()
        server.start()
    with Client(server.url) as client:
        assert client.state("orders").count == 10


# Streams.


class Job:
    """`topics pipeline sql` as a process, with all that it starts."""

    def __init__(self, server: ServerProcess, tmp_path: Path, *options: str) -> None:
        self._log = (tmp_path / "job.log").open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "topics.cli.entry",
                "pipeline",
                "sql",
                SELECT,
                "--input=orders=topic:orders",
                *options,
            ],
            env={**os.environ, "TOPICS_URL": server.url},
            cwd=tmp_path,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Kills it as soon as that is so; it must not have ended before."""
        deadline_s = monotonic() + PATIENCE_S
        while not is_time():
            assert monotonic() < deadline_s, "the job does not get on"
            self.wait(0.2)
            assert self._process.returncode is None, "the job ended before it could be killed"
        self.kill()

    def wait(self, timeout_s: float = PATIENCE_S) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def head(client: Client, topic: str) -> int:
    try:
        return client.state(topic).head_seq
    except TopicNotFound:
        return 0


STREAM = (
    "--into=topic:doubled",
    "--create",
    "--trigger=availableNow",
    "--checkpoint=checkpoint",
    "--master=local[1]",
    "--conf=spark.sql.shuffle.partitions=1",
)


def run_with_kills(server: ServerProcess, tmp_path: Path, kills: list[int], options: tuple[str, ...]) -> None:
    """Kills the job each time that so many records more are there, then lets it end."""
    with Client(server.url) as client:
        for more in kills:
            wanted = head(client, "doubled") + more
            Job(server, tmp_path, *options).kill_when(lambda wanted=wanted: head(client, "doubled") >= wanted)
        last = Job(server, tmp_path, *options)
        status = last.wait()
        last.kill()
        assert status == 0, (tmp_path / "job.log").read_text()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("java")
def test_a_stream_from_topic_to_topic_that_is_killed_writes_what_a_batch_writes(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        client.create("orders")
        fill(client, "orders", 1000)
        run_with_kills(server, tmp_path, [1, 100], (*STREAM, "--input-option=orders.maxRecordsPerTrigger=100"))
        assert payloads(client, "doubled") == expected(1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_stream_that_is_killed_every_few_seconds_writes_what_a_batch_writes(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    chance = random.Random(5)
    kills = [chance.randrange(1, 900) for _ in range(12)]
    with Client(server.url) as client:
        client.create("orders")
        fill(client, "orders", 20_000)
        run_with_kills(server, tmp_path, kills, (*STREAM, "--input-option=orders.maxRecordsPerTrigger=250"))
        found = payloads(client, "doubled")
        run(
            spark,
            SqlOptions(
                endpoint=server.url,
                query=SELECT,
                inputs=(("orders", "topic:orders"),),
                into="topic:batch",
                create_topic=True,
                writer_id="batch",
            ),
        )
        assert found == payloads(client, "batch")


def test_a_view_of_a_lake_has_the_topic_of_its_name(tmp_path: Path) -> None:
    made = lake.open_lake(str(tmp_path), must_exist=False)
    made.commit("test", [archived(made, 1, 2, topic="orders"), archived(made, 1, 2, topic="other")], now_ms=NOW_MS)
    assert lake_topics("orders", str(tmp_path), None) == ["orders"]
    assert lake_topics("both", str(tmp_path), "orders,other") == ["orders", "other"]
    assert lake_topics("both", str(tmp_path), "*") is None
    with pytest.raises(BadOption, match="has topics orders, other: name the view like one of them"):
        lake_topics("ordres", str(tmp_path), None)
