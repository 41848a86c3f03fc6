"""A range of a topic, once more."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SEED
from tests.spark.jobs.records import all_records, fill
from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.job import Progress, exit_code_of
from topics.spark.jobs.job_options import ReplayOptions
from topics.spark.jobs.replay import ReplayChunk, pace, parse_speed, run
from topics.spark.jobs.spread import TaskFailed
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Pure parts.


@pytest.mark.parametrize(("text", "speed"), [("max", None), ("1x", 1.0), ("0.5x", 0.5), ("20x", 20.0)])
def test_a_speed_is_a_factor_or_max(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize("text", ["", "fast", "0x", "-1x", "1", "x"])
def test_other_speeds_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="must be max, or a number and x"):
        parse_speed(text)


def test_a_chunk_waits_until_it_is_as_far_behind_the_first_one_as_it_was_then() -> None:
    now_s, waits = 100.0, []

    def wait(seconds: float) -> None:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds

    before = pace(2.0, lambda: now_s, wait)
    before(ReplayChunk(1, 10, ts=50_000))
    assert waits == [], "the first one is at once"
    before(ReplayChunk(11, 20, ts=54_000))
    assert waits == [2.0], "four seconds at twice the speed"
    now_s += 60
    before(ReplayChunk(21, 30, ts=58_000))
    assert waits == [2.0], "who is late does not wait"


# With Spark.


def test_a_copy_has_everything_in_order_and_names_its_source_and_a_rerun_adds_nothing(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        fill(client, "orders", 700)
        client.delete("orders", before_seq=11)
        config = ReplayOptions(
            endpoint=server.url,
            source="orders",
            target="again",
            create_topic=True,
            to_seq=600,
            chunk_records=250,
            state=str(tmp_path / "state"),
        )

        def stop_after_the_first(progress: Progress) -> None:
            raise RuntimeError(f"killed after {progress.done}")

        with pytest.raises(RuntimeError, match="killed after 1"):
            run(spark, config, report=stop_after_the_first)
        assert 0 < client.state("again").count < 590
        report = run(spark, config)
        assert report.items_skipped == 1
        originals = [record for record in all_records(client, "orders") if record["seq"] <= 600]
        copies = all_records(client, "again")
        assert len(copies) == 590
        for original, copy in zip(originals, copies, strict=True):
            mark = {"topic": "orders", "seq": original["seq"], "ts": original["ts"]}
            assert copy["meta"] == {**(original["meta"] or {}), "_topics_replay": mark}
            assert [copy[name] for name in ("data", "tag", "node")] == [
                original[name] for name in ("data", "tag", "node")
            ]
        finished = run(spark, config)
        assert (finished.items_done, finished.items_skipped, finished.exit_code) == (0, report.detail["epochs"], 0)
        assert client.state("again").count == 590


def test_a_source_that_was_deleted_and_created_again_is_not_replayed_on(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        fill(client, "orders", 300)
        config = ReplayOptions(
            endpoint=server.url,
            source="orders",
            target="again",
            create_topic=True,
            chunk_records=250,
            state=str(tmp_path / "state"),
        )

        def stop_after_the_first(progress: Progress) -> None:
            raise RuntimeError(f"killed after {progress.done}")

        with pytest.raises(RuntimeError, match="killed after 1"):
            run(spark, config, report=stop_after_the_first)
        copied = client.state("again").head_seq
        client.drop("orders")
        fill(client, "orders", 300)
        with pytest.raises(BadOption, match="was deleted and created again since the replay began"):
            run(spark, config)
        assert client.state("again").head_seq == copied < 300, "nothing of the other topic is in the copy"


def test_records_that_are_gone_fail_the_replay_or_are_told(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        fill(client, "orders", 300, cap_records=100)
        asked = {"endpoint": server.url, "source": "orders", "create_topic": True, "state": str(tmp_path / "state")}
        with pytest.raises(TaskFailed, match='data loss: topic "orders": seqs 1-200 are evicted') as failed:
            run(spark, ReplayOptions(**asked, target="strict", from_seq=1))  # type: ignore[arg-type]
        assert exit_code_of(failed.value) == 3
        report = run(spark, ReplayOptions(**asked, target="rest", from_seq=1, skip_gaps=True))  # type: ignore[arg-type]
        assert report.exit_code == 3
        assert (report.findings[0]["first_seq"], report.findings[0]["last_seq"]) == (1, 200)
        assert [record["data"]["n"] for record in all_records(client, "rest")] == list(range(201, 301))


def test_at_a_speed_chunks_are_what_the_source_got_in_a_tick_and_as_of_leaves_out_the_rest(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url) as client:
        fill(client, "orders", 10)
        moment = all_records(client, "orders")[-1]["ts"]
        while all_records(client, "orders")[-1]["ts"] <= moment:
            client.append_encoded("orders", b'[{"data":{"n":0}}]')
        config = ReplayOptions(
            endpoint=server.url,
            source="orders",
            target="again",
            create_topic=True,
            as_of_ms=moment,
            speed="1000x",
            tick_ms=1,
            state=str(tmp_path / "state"),
        )
        assert run(spark, config).exit_code == 0
        expected = [record["data"] for record in all_records(client, "orders") if record["ts"] <= moment]
        assert [record["data"] for record in all_records(client, "again")] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_replay_that_is_killed_anywhere_copies_each_record_once(server: ServerProcess, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    with Client(server.url) as client:
        fill(client, "orders", 2000)
        command = [sys.executable, "-m", "topics.cli.entry", "pipeline", "replay", "orders", "--to", "again"]
        command += ["--create", "--chunk-records", "200", "--endpoint", server.url, "--state", str(tmp_path / "state")]
        command += ["--master", "local[2]"]
        kills = 0
        while True:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            waves_left = moments.randrange(1, 4)
            for line in process.stderr:
                waves_left -= line.startswith("{")
                if not waves_left:
                    break
            # Somewhere in the next wave.
            try:
                process.wait(moments.random())
            except subprocess.TimeoutExpired:
                kills += 1
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=600)
            if process.returncode == 0:
                break
        numbers = [record["data"]["n"] for record in all_records(client, "again")]
        assert numbers == list(range(1, 2001)), f"{kills} kills"
        assert kills
