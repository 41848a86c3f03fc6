"""The job `stats` on a real server: its totals are the server's, and the page is whole."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from topics.client.sync.client import Client
from topics.errors import TopicsError
from topics.spark.jobs.job_options import StatsOptions
from topics.spark.jobs.stats import run
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine with other things to do takes a minute to start Spark.
pytestmark = pytest.mark.timeout(900)


def fill(client: Client, topic: str, count: int) -> None:
    records = [
        {
            "data": {"number": number, "text": "x" * (number % 300)},
            **({"tag": f"<t{number % 7}>"} if number % 10 else {}),
            **({"node": f"n{number % 3}"} if number % 2 else {}),
            **({"meta": {"m": number}} if number % 5 == 0 else {}),
        }
        for number in range(count)
    ]
    client.append_encoded(topic, json.dumps(records).encode())


def test_a_place_that_cannot_be_written_to_is_told_before_the_counting() -> None:
    with pytest.raises(TopicsError, match="/proc/x"):
        run(None, StatsOptions(endpoint="http://127.0.0.1:1", out="/proc/x"))  # type: ignore[arg-type]


def test_totals_are_the_servers_counters(spark: "SparkSession", server: ServerProcess, tmp_path: Path) -> None:
    with Client(server.url) as client:
        client.create("orders", durability="fsync")
        client.create("capped", cap_records=250)
        client.create("empty")
        fill(client, "orders", 700)
        fill(client, "capped", 400)
        client.delete("orders", before_seq=31)
    # A stop writes a checkpoint; what comes after it is in the log only.
    assert server.stop() == 0
    server.start()
    with Client(server.url) as client:
        fill(client, "orders", 40)
        found = run(spark, StatsOptions(endpoint=server.url, out=str(tmp_path / "out"), title="A <title>"))
        states = {name: client.state(name) for name in ("orders", "capped", "empty")}
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    counted = {topic["topic"]: (topic["records"], topic["bytes"], topic["head_seq"]) for topic in stats["topics"]}
    assert counted == {name: (state.count, state.bytes, state.head_seq) for name, state in states.items()}
    assert found.records == stats["totals"]["records"] == sum(state.count for state in states.values())
    assert stats["totals"]["tail_records"] == 40
    assert [(gap["topic"], gap["first_seq"], gap["last_seq"], gap["reason"]) for gap in stats["gaps"]] == [
        ("capped", 1, 150, "cap")
    ]
    assert sum(map(sum, stats["rate"]["topics"].values())) == found.records
    assert sum(entry["records"] for entry in stats["sizes"]) == found.records
    tags = stats["tags"]
    assert sum(entry["records"] for entry in tags["top"]) + tags["others"] + tags["without"] == found.records
    assert {entry["label"] for entry in tags["top"]} == {f"<t{number}>" for number in range(7)}
    page = (tmp_path / "out" / "stats.html").read_text()
    assert_whole(page)
    assert "&lt;t3&gt;" in page
    assert "<t3>" not in page
    assert "A &lt;title&gt;" in page


VOID = {"meta", "line", "rect", "circle"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID or tag == "circle":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_whole(page: str) -> None:
    """Every tag is closed, and nothing is asked of a network or of a script."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert tags.addresses == []
    assert "script" not in tags.seen
    assert {"svg", "table", "rect", "circle"} <= tags.seen
