"""Small files of a lake become large ones; nothing that a reader sees changes."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.spark.lakes import NOW_MS, archived, lake_rows, lake_seqs
from topics.spark.errors import Conflict
from topics.spark.jobs.job_options import OptimizeOptions
from topics.spark.jobs.lake_check import LakeTask, check_lake_file
from topics.spark.jobs.optimize import run
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import LakeNotFound
from topics.spark.lake.table import CommitRefused, Table


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = open_lake(str(tmp_path / "lake"), must_exist=False)
    for first_seq in (1, 11, 21):
        made.commit("test", [archived(made, first_seq, first_seq + 9)], now_ms=NOW_MS)
    made.commit("test", [archived(made, 1, 10, topic="b")], now_ms=NOW_MS)
    return made


def test_small_files_of_a_topic_are_merged_and_an_older_version_reads_as_before(lake: Lake) -> None:
    before = lake_rows(lake.address, "a")
    report = run(None, OptimizeOptions(lake=lake.address))
    assert (report.detail["files_before"], report.detail["files_after"], report.records) == (3, 1, 30)
    assert lake_rows(lake.address, "a") == before == lake_rows(lake.address, "a", at=3)
    assert sorted(pl.read_delta(lake.address).filter(pl.col("topic") == "a")["seq"]) == list(range(1, 31))
    merged, single = lake.refresh().files_of()
    assert (merged.first_seq, merged.last_seq, merged.records, single.topic) == (1, 30, 30, "b")
    again = run(None, OptimizeOptions(lake=lake.address))
    assert (again.items_done, again.detail["version"]) == (0, report.detail["version"])


def test_one_topic_can_be_chosen_and_a_dry_run_only_counts(lake: Lake) -> None:
    assert run(None, OptimizeOptions(lake=lake.address, dry_run=True)).items_skipped == 3
    assert run(None, OptimizeOptions(lake=lake.address, topics=("b",))).items_done == 0
    with pytest.raises(LakeNotFound, match='no records of topic "c"; it has a, b'):
        run(None, OptimizeOptions(lake=lake.address, topics=("c",)))
    assert run(None, OptimizeOptions(lake=lake.address, topics=("a",))).items_done == 1


def test_a_flipped_bit_of_a_merged_file_is_found(lake: Lake) -> None:
    """The library writes no digest, so that the job does."""
    run(None, OptimizeOptions(lake=lake.address))
    (file,) = lake.refresh().files_of(["a"])
    assert not check_lake_file(LakeTask(lake.address, file)).findings
    path = Path(lake.address, file.name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (finding,) = check_lake_file(LakeTask(lake.address, file)).findings
    assert finding.message == "the bytes do not have the digest of the file"


def test_a_run_that_was_killed_before_the_digests_is_finished_by_the_next(lake: Lake) -> None:
    from deltalake import DeltaTable

    DeltaTable(lake.address).optimize.compact()
    assert [file.digest != "" for file in lake.refresh().files_of()] == [False, True]
    assert run(None, OptimizeOptions(lake=lake.address)).records == 30
    assert all(file.digest for file in lake.refresh().files_of())


def test_a_job_that_other_jobs_always_overtake_says_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise CommitRefused("files were removed")

    monkeypatch.setattr(Table, "compact", refuse)
    with pytest.raises(Conflict, match="other jobs changed the same files 3 times; run optimize again"):
        run(None, OptimizeOptions(lake=lake.address))
    assert lake_seqs(lake.address) == list(range(1, 31))
