"""What does not count any more goes, when it is old enough; all else stays."""

import os
from pathlib import Path
from time import time

import polars as pl
import pytest

from tests.spark.lakes import archived, lake_seqs, put
from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import OptimizeOptions, VacuumOptions
from topics.spark.jobs.optimize import run as optimize
from topics.spark.jobs.vacuum import run
from topics.spark.lake.lake import Lake, open_lake, read, restore
from topics.spark.lake.state import LakeChange, LakeDamaged, LakeFile, LakeGap
from topics.storage.tiers.shared_folder import SCRATCH

NOW_MS = int(time() * 1000)
LONG_AGO_MS = NOW_MS - 14 * 86_400_000
ALONE = {"older_than_ms": 0, "alone": True}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two files that were merged, and a gap."""
    made = open_lake(str(tmp_path / "lake"), must_exist=False)
    changes = [archived(made, 1, 10), archived(made, 11, 20), LakeChange(gaps=(LakeGap("a", 1, 21, 30, "ttl"),))]
    made.commit("archive", changes, now_ms=NOW_MS)
    optimize(None, OptimizeOptions(lake=made.address))
    made.refresh()
    return made


@pytest.fixture
def orphan(lake: Lake) -> LakeFile:
    """A file of a job that was killed before its commit."""
    return put(lake, list(range(31, 41)))


def make_old(lake: Lake, *names: str) -> None:
    for name in names:
        os.utime(f"{lake.address}/{name}", (LONG_AGO_MS / 1000, LONG_AGO_MS / 1000))


def data_names(lake: Lake) -> list[str]:
    return lake.store.list("topic=")


def test_orphans_and_removed_files_go_and_what_counts_stays(lake: Lake, orphan: LakeFile) -> None:
    report = run(None, VacuumOptions(lake=lake.address, **ALONE))  # type: ignore[arg-type]
    assert (report.items_done, report.detail["files_kept"]) == (3, 1)
    assert report.bytes > orphan.bytes
    assert data_names(lake) == [*lake.state.files]
    assert lake_seqs(lake.address) == sorted(pl.read_delta(lake.address)["seq"]) == list(range(1, 21))
    assert pl.read_delta(f"{lake.address}/_topics/gaps").rows() == [("a", 1, 21, 30, "ttl")]
    assert run(None, VacuumOptions(lake=lake.address, **ALONE)).items_done == 0  # type: ignore[arg-type]


def test_young_files_stay_as_they_may_belong_to_a_job_that_is_running(lake: Lake, orphan: LakeFile) -> None:
    make_old(lake, *(name for name in data_names(lake) if name != orphan.name))
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 0, "files that were removed lately stay, too"
    make_old(lake, orphan.name)
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 1
    assert orphan.name not in data_names(lake)


def test_an_older_version_can_be_read_until_a_vacuum_which_a_reader_is_told(lake: Lake) -> None:
    run(None, VacuumOptions(lake=lake.address, **ALONE))  # type: ignore[arg-type]
    with pytest.raises(LakeDamaged, match=r"2 files of version 1 are gone, such as topic=a/.*: a vacuum removed them"):
        read(None, lake.address, at=1)  # type: ignore[arg-type]
    with pytest.raises(LakeDamaged, match="missing file"):
        restore(lake.address, 1)
    assert lake_seqs(lake.address) == list(range(1, 21))


def test_what_broken_puts_left_goes(lake: Lake) -> None:
    left = Path(lake.address, SCRATCH, "0123.tmp")
    left.write_bytes(b"half")
    assert run(None, VacuumOptions(lake=lake.address)).detail["unfinished_removed"] == 0
    make_old(lake, f"{SCRATCH}/0123.tmp")
    assert run(None, VacuumOptions(lake=lake.address)).detail["unfinished_removed"] == 1
    assert not left.exists()


def test_a_dry_run_only_counts(lake: Lake, orphan: LakeFile) -> None:
    before = data_names(lake)
    report = run(None, VacuumOptions(lake=lake.address, dry_run=True, **ALONE))  # type: ignore[arg-type]
    assert (report.items_done, report.items_skipped, report.bytes) == (0, 3, 0)
    assert data_names(lake) == before
    assert orphan.name in before


def test_an_age_below_an_hour_needs_the_word_that_no_other_job_runs(lake: Lake) -> None:
    with pytest.raises(BadOption, match="may belong to a job that is running"):
        run(None, VacuumOptions(lake=lake.address, older_than_ms=1000))
