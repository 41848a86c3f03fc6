"""Options that follow from a filter. A filter that is not understood has none."""

from __future__ import annotations

import itertools
import random
import sqlite3
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import topics.spark
from topics.client.sync.client import Client
from topics.spark.narrowing import options_of
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON_MS = 1_770_724_800_000
NOON = "2026-02-10T12:00:00Z"


@pytest.mark.parametrize(
    ("condition", "options"),
    [
        ("seq > 100", {"minSeq": "101"}),
        ("100 >= SEQ and seq<200", {"maxSeq": "100"}),
        ("seq = 7", {"minSeq": "7", "maxSeq": "7"}),
        ("seq BETWEEN 5 AND 9 AND tag = 'a' AND node == 'n'", {"minSeq": "5", "maxSeq": "9", "tag": "a", "node": "n"}),
        ("(seq >= 5 AND (seq < 9)) AND tag LIKE 'eu-%'", {"minSeq": "5", "maxSeq": "8", "tagPrefix": "eu-"}),
        (
            f"ts >= '{NOON}' AND ts < TIMESTAMP '{NOON}'",
            {"startingTimestamp": str(NOON_MS)} | {"endingTimestamp": str(NOON_MS)},
        ),
        ("ts > '2026-02-10 13:00:00.0005+01:00'", {"startingTimestamp": str(NOON_MS)}),
        ("ts <= '2026-02-10T12:00:00.0015Z'", {"endingTimestamp": str(NOON_MS + 2)}),
        ("ts < '2026-02-10T12:00:00.0015Z'", {"endingTimestamp": str(NOON_MS + 2)}),
        ("seq > 5 AND seq > 3 AND length(data) > 10 AND kind = 'x'", {"minSeq": "6"}),
        ("seq < 0", {"maxSeq": "0"}),
    ],
)
def test_bounds_become_options(condition: str, options: dict[str, str]) -> None:
    assert options_of(condition) == options


@pytest.mark.parametrize(
    "condition",
    [
        "seq > 5 OR tag = 'a'",
        "NOT seq > 5",
        "seq NOT BETWEEN 5 AND 9",
        "ts > '2026-02-10T12:00:00'",
        "ts > 'noon'",
        "seq > 5 + 5",
        "seq > 5.5",
        "seq > -5",
        "seq > other",
        "a.seq > 5",
        "abs(seq) > 5",
        "seq <> 5",
        "seq <=> 5",
        "tag LIKE 'a%b%'",
        "tag LIKE '%'",
        "tag = 'it''s'",
        "tag = r'a'",
        "tag = 'a' = false",
        "data = 'x AND seq > 5'",
        'data = "x AND seq > 5"',
        "length(data) > 3 -- AND seq > 5",
        "CASE WHEN true THEN seq > 5 END",
        "(seq > 5",
        "",
    ],
)
def test_what_is_not_understood_leaves_out_nothing(condition: str) -> None:
    assert options_of(condition) == {}


def test_no_record_that_fulfils_a_filter_is_left_out() -> None:
    """Filters made up at random, compared with those of a database."""
    rows = [(seq, tag) for seq in range(1, 13) for tag in (None, "a", "ab", "b")]
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA case_sensitive_like = true")
    database.execute("CREATE TABLE t (seq INT, tag TEXT)")
    database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    chosen = random.Random(7)
    parts = [
        *(f"seq {sign} {number}" for sign, number in itertools.product(("<", ">", "<=", ">=", "="), (0, 3, 7, 12))),
        *(f"{number} {sign} seq" for sign, number in itertools.product(("<", ">="), (4, 9))),
        *("seq BETWEEN 3 AND 6", "tag = 'a'", "tag LIKE 'a%'", "NOT seq > 4", "tag IS NULL", "seq = 3 OR tag = 'b'"),
    ]
    narrowed = 0
    for _ in range(400):
        text = chosen.choice(parts)
        for _ in range(chosen.randrange(4)):
            other = chosen.choice(parts)
            text = chosen.choice((f"{text} AND {other}", f"({text}) AND ({other})", f"{text} OR {other}", f"({text})"))
        options = options_of(text)
        narrowed += bool(options)
        for seq, tag in database.execute(f"SELECT seq, tag FROM t WHERE {text}"):
            assert int(options.get("minSeq", 0)) <= seq <= int(options.get("maxSeq", 99)), text
            assert options.get("tag", tag) == tag, text
            assert "tagPrefix" not in options or (tag or "").startswith(options["tagPrefix"]), text
    assert narrowed > 100


def test_a_narrowed_read_has_the_rows_of_the_filter_and_reads_no_others(
    spark: SparkSession, server: ServerProcess
) -> None:
    with Client(server.url) as client:
        client.create("t", cap_records=300)
        for start in range(0, 500, 100):
            client.append("t", [{"data": n, "tag": f"t{n % 4}"} for n in range(start, start + 100)])
        floor = client.state("t").earliest_seq
    assert floor > 1
    now = datetime.now(UTC).isoformat()
    everything = topics.spark.read(spark, endpoint=server.url, subscribe="t")
    for where in (f"seq > 1 AND ts < '{now}' AND tag = 't1'", "seq > 9999", "seq < 300 OR seq > 400"):
        narrow = topics.spark.read(spark, endpoint=server.url, subscribe="t", where=where)
        assert narrow.select("seq").collect() == everything.where(where).select("seq").collect(), where
    # Used twice, with another filter: it is a DataFrame of its own.
    assert narrow.where("seq > 400").union(narrow.where("seq > 490")).count() == 110
    assert topics.spark.read(spark, endpoint=server.url, subscribe="t", minSeq=480, maxSeq=490).count() == 11
