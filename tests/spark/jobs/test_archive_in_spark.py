"""A lake with Spark: archived, read, optimized and vacuumed. And in full: a driver that is killed again and again."""

import itertools
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.lakes import lake_rows
from tests.spark.world import SEGMENT_EVENTS, World, short, world
from topics.spark.jobs import archive, optimize, vacuum
from topics.spark.jobs.job_options import ArchiveOptions, OptimizeOptions, VacuumOptions
from topics.spark.lake import lake
from topics.spark.lake.files import LAKE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(place: World, topic: str, segments: int) -> None:
    for _ in range(segments):
        place.fill(topic, SEGMENT_EVENTS)
    place.checkpoint()


def test_records_are_archived_queried_merged_and_the_old_files_removed(spark: "SparkSession", tmp_path: Path) -> None:
    """In a folder with blanks in its name."""
    address = str(tmp_path / "a lake of ours")
    with world(tmp_path) as place:
        for topic in ("t", "o:1"):
            place.client.create(topic)
            fill(place, topic, 3)
        config = ArchiveOptions(lake=address, endpoint=place.url, file_records=SEGMENT_EVENTS)
        seen: list[tuple[int, int]] = []
        report = archive.run(spark, config, report=lambda progress: seen.append((progress.done, progress.total)))
        assert (report.records, report.items_done, report.exit_code) == (600, 6, 0)
        assert seen[-1] == (6, 6)
        expected = place.rows("t")

    found = lake.read(spark, address, topics=["t"])
    assert short([row.asDict() for row in found.orderBy("seq").collect()]) == expected
    assert optimize.run(spark, OptimizeOptions(lake=address)).detail["files_after"] == 2
    lake.read(spark, address).createOrReplaceTempView("merged")
    lake.read(spark, address, at=1).createOrReplaceTempView("before")
    query = "SELECT topic, count(*) AS n, max(seq) AS last FROM {} WHERE tag = 't1' AND seq > 150 GROUP BY topic"
    counts = spark.sql(f"{query.format('merged')} UNION ALL {query.format('before')} ORDER BY topic").collect()
    assert [row["topic"] for row in counts] == ["o:1", "o:1", "t", "t"]
    wanted = [seq for seq, _, tag, _, _ in expected if tag == "t1" and seq > 150]
    assert {(row["n"], row["last"]) for row in counts[2:]} == {(len(wanted), wanted[-1])}

    assert vacuum.run(spark, VacuumOptions(lake=address, older_than_ms=0, alone=True)).items_done == 6
    everything = lake.read(spark, address)
    assert everything.count() == 600
    assert everything.columns == list(LAKE_COLUMNS)
    assert lake.gaps(spark, address).columns == ["topic", "epoch", "gap_from", "gap_to", "reason"]


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_driver_that_is_killed_again_and_again_leaves_every_record_once(tmp_path: Path) -> None:
    """With its JVM and its workers, whenever it has told of a wave: the next one is under way by then."""
    address = str(tmp_path / "lake")
    with world(tmp_path) as place:
        place.client.create("t")
        fill(place, "t", 60)
        command = [sys.executable, "-m", "tests.spark.jobs.archiver", place.url, address, "--spark"]
        for waves in itertools.count(1):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
                assert process.stdout is not None
                places = [line.strip() for line in itertools.islice(process.stdout, waves)]
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            assert [row[0] for row in lake_rows(address)] == sorted({row[0] for row in lake_rows(address)})
            if "done" in places:
                break
        assert waves > 2
        assert lake_rows(address) == place.rows("t")
