"""Topics as tables of SQL, in a real Spark session: joins, unions and second uses, compared with plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import PySparkException

import topics.spark
from tests.conftest import FULL
from tests.spark.queries import run_to_end
from topics.client.sync.client import Client
from topics.spark.attached import Attached
from topics.spark.errors import BadOption
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]

COUNTS = {"orders": 250, "my-visits": 120, "stock": 60}
# Values of `n` by topic. Each topic has others, so that rows of the wrong topic are wrong values.
ORDERS, VISITS, STOCK = (
    [(seq, f"t{seq % 4}", 1000 * place + seq) for seq in range(1, count + 1)]
    for place, count in enumerate(COUNTS.values())
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("tables") / "data", segment_max_events=100) as running:
        with Client(running.url) as client:
            for (name, _), rows in zip(COUNTS.items(), (ORDERS, VISITS, STOCK), strict=True):
                add(client, name, rows)
        yield running


@pytest.fixture(scope="module")
def attached(spark: SparkSession, served: ServerProcess) -> Iterator[Attached]:
    yield topics.spark.attach(spark, endpoint=served.url, topics=COUNTS)
    spark.sql("DROP DATABASE topics CASCADE")


def add(client: Client, topic: str, rows: Rows) -> None:
    client.append_encoded(topic, msgspec.json.encode([{"tag": tag, "data": {"n": n}} for _, tag, n in rows]))


def joined(*tables: Rows) -> Rows:
    """By seq: the values of `n` side by side."""
    by_seq = [{seq: n for seq, _, n in rows} for rows in tables]
    return [(seq, *(found[seq] for found in by_seq)) for seq in by_seq[0] if all(seq in found for found in by_seq)]


QUERIES: list[tuple[str, Callable[[], Rows]]] = [
    (
        """
        SELECT seq, s.n, o.n, v.n FROM {stock} s JOIN {orders} o USING (seq) JOIN {my_visits} v USING (seq)
        """,
        lambda: joined(STOCK, ORDERS, VISITS),
    ),
    (
        """
        SELECT seq, n FROM {orders} WHERE seq > 245 UNION ALL SELECT seq, n FROM {my_visits} WHERE seq < 4
        UNION ALL SELECT seq, n FROM {orders} WHERE seq < 3
        """,
        lambda: [(seq, n) for seq, _, n in [*ORDERS[245:], *VISITS[:3], *ORDERS[:2]]],
    ),
    # The same table three times, with a filter each.
    (
        """
        SELECT a.seq, a.n, b.n FROM {orders} a JOIN {orders} b ON b.seq = a.seq + 1 AND b.tag = 't2'
        JOIN {orders} c ON c.seq = a.seq WHERE a.seq > 50
        """,
        lambda: [(seq, n, n + 1) for seq, _, n in ORDERS if seq > 50 and seq % 4 == 1 and seq < len(ORDERS)],
    ),
    # Aggregates and subqueries that Spark may compute once for several places.
    (
        """
        WITH sums AS (SELECT tag, sum(n) AS n FROM {orders} GROUP BY tag),
            visits AS (SELECT tag, sum(n) AS n FROM {my_visits} GROUP BY tag)
        SELECT a.tag, a.n, b.n, c.n, (SELECT max(seq) FROM {stock}), (SELECT max(seq) FROM {orders})
        FROM sums a JOIN sums b USING (tag) JOIN visits c USING (tag)
        """,
        lambda: [
            (tag, total(ORDERS, tag), total(ORDERS, tag), total(VISITS, tag), len(STOCK), len(ORDERS))
            for tag in ("t0", "t1", "t2", "t3")
        ],
    ),
]
NUMBERS = "(SELECT seq, tag, CAST(get_json_object(data, '$.n') AS INT) AS n FROM topics.{})"


def query_of(text: str) -> str:
    return text.format(**{table: NUMBERS.format(table) for table in ("orders", "my_visits", "stock")})


def total(rows: Rows, wanted: str) -> int:
    return sum(n for _, tag, n in rows if tag == wanted)


def rows_of(frame: Any) -> Rows:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(("adaptive", "broadcast_bytes"), [("true", "-1"), ("false", "10m"), ("false", "-1")])
def test_joins_unions_and_second_uses_have_the_rows_of_plain_python(
    spark: SparkSession, attached: Attached, adaptive: str, broadcast_bytes: str
) -> None:
    """Adaptive or not; with broadcasts, and with shuffles and sorts, which Spark reuses where plans are the same."""
    assert attached.tables == {"orders": "orders", "my_visits": "my-visits", "stock": "stock"}
    settings = {"spark.sql.adaptive.enabled": adaptive, "spark.sql.autoBroadcastJoinThreshold": broadcast_bytes}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        for text, expected in QUERIES if FULL or adaptive == "true" else QUERIES[:2]:
            assert rows_of(spark.sql(query_of(text))) == sorted(expected()), text
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_a_dataframe_of_a_table_that_is_filtered_cached_and_joined_with_itself_has_all_its_rows(
    spark: SparkSession, attached: Attached
) -> None:
    orders, visits = spark.table("topics.orders"), spark.table("topics.my_visits")
    late = orders.where("seq > 240")
    assert late.count() == 10
    assert orders.count() == 250
    assert late.union(orders.where("seq <= 5")).count() == 15
    assert late.join(visits, "tag").count() == 10 * 30
    visits.cache()
    try:
        assert visits.count() == 120
        # Both have the same columns and format; only the topic is another.
        assert orders.count() == 250
        assert rows_of(orders.join(visits, "seq").select("seq")) == [(seq,) for seq in range(1, 121)]
    finally:
        visits.unpersist()
    spark.sql("CACHE TABLE topics.orders")
    try:
        text, expected = QUERIES[0]
        assert rows_of(spark.sql(query_of(text))) == expected()
    finally:
        spark.sql("UNCACHE TABLE topics.orders")


def test_each_query_reads_what_topics_have_then_and_new_topics_are_found(
    spark: SparkSession, served: ServerProcess
) -> None:
    with Client(served.url) as client:
        add(client, "grows", [(1, "a", 1)])
        attached = topics.spark.attach(spark, endpoint=served.url, database="live")
        count = "SELECT count(*) FROM live.grows"
        assert rows_of(spark.sql(count)) == [(1,)]
        add(client, "grows", [(2, "a", 2)])
        assert rows_of(spark.sql(count)) == [(2,)]
        add(client, "late-one", [(1, "a", 1)])
        with pytest.raises(PySparkException):
            spark.sql("SELECT count(*) FROM live.late_one")
        assert rows_of(attached.sql("SELECT count(*) FROM live.`late-one`")) == [(1,)]
        assert rows_of(spark.sql("SELECT count(*) FROM live.late_one")) == [(1,)]
        client.drop("late-one")
        assert "late_one" not in attached.refresh()
        assert not spark.catalog.tableExists("live.late_one")
        add(client, "late_one", [(1, "a", 1)])
        add(client, "late-one", [(1, "a", 1)])
        with pytest.raises(BadOption, match="would both be table late_one"):
            attached.refresh()
        named = topics.spark.attach(spark, endpoint=served.url, database="live", names={"late-one": "other"})
        assert (named.tables["other"], named.tables["late_one"]) == ("late-one", "late_one")
        for name in ("late-one", "late_one", "grows"):
            client.drop(name)
    spark.sql("DROP DATABASE live CASCADE")


def test_a_table_of_another_kind_is_not_replaced(spark: SparkSession, served: ServerProcess) -> None:
    spark.sql("CREATE DATABASE mine")
    spark.sql("CREATE TABLE mine.orders (a INT) USING parquet")
    try:
        with pytest.raises(BadOption, match=r"mine\.orders is a table already"):
            topics.spark.attach(spark, endpoint=served.url, database="mine", topics=["orders"])
        with pytest.raises(BadOption, match="there is no topic 'nosuch'"):
            topics.spark.attach(spark, endpoint=served.url, database="mine", topics=["nosuch"])
        with pytest.raises(BadOption, match="no name for a database"):
            topics.spark.attach(spark, endpoint=served.url, database="my db")
        with pytest.raises(BadOption, match="not both"):
            topics.spark.attach(spark, endpoint=served.url, path="/data")
    finally:
        spark.sql("DROP DATABASE mine CASCADE")


def test_an_insert_names_its_topic_and_leaves_out_what_the_server_gives(
    spark: SparkSession, served: ServerProcess, attached: Attached
) -> None:
    """Without a name it is refused, also when the rows come from another topic, whose columns say where from."""
    with Client(served.url) as client:
        client.create("copy")
        into = f"INSERT INTO topics.stock WITH (topic 'copy', endpoint '{served.url}', writerId '{{}}')"
        spark.sql(f"{into.format('a')} (data, tag) VALUES ('1', 'x')")
        spark.sql(f"{into.format('b')} BY NAME SELECT data, tag FROM topics.orders WHERE seq <= 2")
        spark.sql(f"{into.format('b')} BY NAME SELECT data, tag FROM topics.orders WHERE seq <= 2")
        for refused, message in (
            ("INSERT INTO topics.stock BY NAME SELECT data FROM topics.orders", "say where the rows go"),
            (f"{into.format('c')} SELECT * FROM topics.orders", "which the server gives"),
            (
                f"CREATE TABLE topics.made USING topics OPTIONS (endpoint '{served.url}') AS SELECT '1' AS data",
                "say where",
            ),
        ):
            with pytest.raises(PySparkException, match=message):
                spark.sql(refused)
        found = [(record.data, record.tag) for record in client.read("copy", 0, limit=10).records]
        assert found == [(b"1", "x"), (b'{"n":1}', "t1"), (b'{"n":2}', "t2")]
        for name, count in COUNTS.items():
            assert client.state(name).head_seq == count
        client.drop("copy")


def test_a_table_keeps_its_options_also_types_and_is_a_stream_too(
    spark: SparkSession, served: ServerProcess, attached: Attached
) -> None:
    spark.sql(
        "CREATE TABLE topics.some USING topics "
        f"OPTIONS (endpoint '{served.url}', subscribe 'orders', columns 'seq,tag', tag 't1')"
    )
    rows = [(seq, tag) for seq, tag, _ in ORDERS if tag == "t1"]
    assert rows_of(spark.sql("SELECT * FROM topics.some")) == rows
    stream = spark.readStream.table("topics.some").writeStream.format("memory").queryName("some_rows")
    run_to_end(stream.trigger(availableNow=True).start)
    assert rows_of(spark.sql("SELECT * FROM some_rows")) == rows
    topics.spark.attach(spark, endpoint=served.url, database="typed", topics=["orders", "stock"], schema="n INT")
    sums = "SELECT sum(o.data.n), sum(s.data.n), count(o._rescued) FROM typed.orders o JOIN typed.stock s USING (seq)"
    both = joined(ORDERS, STOCK)
    assert rows_of(spark.sql(sums)) == [(sum(n for _, n, _ in both), sum(n for _, _, n in both), 0)]
    spark.sql("DROP DATABASE typed CASCADE")
    for wrong, message in (
        ("SELECT * FROM topics.orders WITH (tag 'x')", "cannot be given"),
        (f"CREATE TABLE topics.x USING topics OPTIONS (endpoint '{served.url}', token 'y', subscribe 'a')", "token"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.sql(wrong).collect()
