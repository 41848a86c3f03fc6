"""`compact --purge`: the same records for readers, fewer bytes on disk, and no delete is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.in_process import InProcess
from tests.spark.world import SEGMENT_EVENTS, World, world
from topics.errors import ColdUnavailable
from topics.formats.frame_table import from_index
from topics.formats.segment_rewrite import deleted_frames
from topics.spark.jobs import purge, rewriting
from topics.spark.jobs.job import EXIT_CONFLICT, EXIT_DATA_LOSS, Report
from topics.spark.jobs.job_options import CompactOptions
from topics.spark.jobs.rewriting import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def run(there: World, **changes: Any) -> Report:
    return purge.purge(CompactOptions(purge=True, endpoint=there.url, **changes), InProcess())


def fill(there: World, topic: str = "a") -> None:
    """Three full segments and a bit; a third of the records has tag t1, another t2."""
    there.fill(topic, 3 * SEGMENT_EVENTS + 10)
    there.checkpoint()


def delete(there: World, topic: str, tag: str) -> None:
    there.client.delete(topic, tag=tag)
    # The first one sets the bytes, in the files that the second one speaks of.
    there.checkpoint()
    there.checkpoint()


def sizes(there: World, topic: str = "a") -> list[int]:
    return [segment.data_len for segment in there.manifest(topic).segments]


def test_readers_see_the_same_and_the_files_are_smaller(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    before, sizes_before = there.rows("a"), sizes(there)
    report = run(there)
    assert (report.exit_code, report.items_done, report.findings) == (0, 3, ())
    assert there.rows("a") == before
    sizes_after = sizes(there)
    assert report.bytes == sum(sizes_before) - sum(sizes_after) > 0
    assert report.records >= SEGMENT_EVENTS - 3
    for segment in there.manifest("a").segments[:3]:
        path = Path(segment.uri.removeprefix("file://"))
        table = from_index(path.read_bytes(), path.with_suffix(".idx").read_bytes(), segment.first_seq)
        assert (table.index_problem, table.bad) == (None, ())
        assert int(deleted_frames(table).sum()) <= 1
        assert segment.records == SEGMENT_EVENTS
    assert not list((there.root / "staging").glob("purge-*"))


def test_a_second_run_does_nothing(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    assert run(there).items_done == 3
    digests = [segment.digest for segment in there.manifest("a").segments]
    report = run(there)
    assert (report.items_done, report.exit_code, report.bytes) == (0, 0, 0)
    assert [segment.digest for segment in there.manifest("a").segments] == digests


def test_a_small_share_stays(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    assert run(there, min_deleted=0.5).items_done == 0
    assert run(there, min_deleted=0.3).items_done == 3


def test_only_the_named_topics_are_purged(there: World) -> None:
    for topic in ("a", "b"):
        fill(there, topic)
        delete(there, topic, "t1")
    before = sizes(there, "a")
    assert run(there, topics=("b",)).items_done == 3
    assert sizes(there, "a") == before


def test_a_dry_run_names_what_it_would_look_at(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    before = sizes(there)
    report = run(there, dry_run=True)
    assert len(report.detail["candidates"]) == 3
    assert (report.items_done, sizes(there)) == (0, before)


def test_deletes_during_the_job_survive(there: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(there)
    delete(there, "a", "t1")

    def exchange(*arguments: Any) -> Outcome:
        # Between the reading of a segment and its exchange. So few that no checkpoint writes a segment again.
        there.client.delete("a", tag="t2", before_seq=SEGMENT_EVENTS // 4)
        there.checkpoint()
        return rewriting.exchange(*arguments)

    monkeypatch.setattr(purge, "exchange", exchange)
    assert run(there).items_done == 3
    rows = there.rows("a")
    assert {row[2] for row in rows if row[0] < SEGMENT_EVENTS // 4} == {None}
    assert {row[2] for row in rows} == {None, "t2"}
    there.checkpoint()
    there.checkpoint()
    assert there.rows("a") == rows


def test_a_segment_that_changed_meanwhile_is_left_for_the_next_run(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(there)
    delete(there, "a", "t1")
    before = there.rows("a")

    def exchange(*arguments: Any) -> Outcome:
        there.purge("a")
        return rewriting.exchange(*arguments)

    monkeypatch.setattr(purge, "exchange", exchange)
    report = run(there)
    assert (report.exit_code, report.items_done) == (EXIT_CONFLICT, 0)
    assert {finding["problem"] for finding in report.findings} == {"changed"}
    assert there.rows("a") == before
    assert not list((there.root / "staging").glob("purge-*"))


def test_a_damaged_segment_is_reported_and_left_alone(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    path = there.files("a")[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = run(there)
    assert (report.exit_code, report.items_done) == (EXIT_DATA_LOSS, 2)
    (finding,) = report.findings
    assert (finding["problem"], finding["file"]) == ("damaged", str(path))
    assert path.read_bytes() == bytes(data)


def test_files_of_another_store_are_not_touched(there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    tasks = [
        task._replace(store_id="0" * 32)
        for task in rewriting.sealed_segments(CompactOptions(purge=True, endpoint=there.url), ())
    ]
    with pytest.raises(ColdUnavailable, match="is not the server's data directory"):
        purge.purge_unit(0.3, tuple(tasks))


def test_it_runs_on_spark(spark: SparkSession, there: World) -> None:
    fill(there)
    delete(there, "a", "t1")
    before = there.rows("a")
    report = purge.run(spark, CompactOptions(purge=True, endpoint=there.url))
    assert (report.exit_code, report.items_done) == (0, 3)
    assert there.rows("a") == before
