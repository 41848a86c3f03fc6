"""What does not count any more goes, when it is old enough; all else stays."""

import os
from pathlib import Path
from time import time

import pytest

from tests.spark.lakes import archived, assert_whole, content_of, merged, put_files
from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import VacuumOptions
from topics.spark.jobs.vacuum import run
from topics.spark.lake.lake import Lake, open_lake, read
from topics.spark.lake.state import GapFile, LakeChange, LakeDamaged, LakeFile, gap_name
from topics.storage.tiers.shared_folder import SCRATCH

NOW_MS = int(time() * 1000)
LONG_AGO_MS = NOW_MS - 14 * 86_400_000
ONE, TWO, ORPHAN = archived(1, 10), archived(11, 20), archived(21, 30)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two files that were merged long ago, and one that was never committed."""
    made = open_lake(str(tmp_path / "lake"))
    put_files(made.store, ONE, TWO, ORPHAN)
    made.commit("archive", [ONE, TWO], now_ms=LONG_AGO_MS)
    both = merged(*made.state.files_of())
    put_files(made.store, both)
    made.commit("optimize", [both], now_ms=LONG_AGO_MS)
    return made


def make_old(lake: Lake, *names: str) -> None:
    for name in names or [entry.name for entry in lake.store.entries("topic=")]:
        os.utime(f"{lake.address}/{name}", (LONG_AGO_MS / 1000, LONG_AGO_MS / 1000))


def data_names(lake: Lake) -> list[str]:
    return lake.store.list("topic=")


def test_orphans_and_removed_files_go_and_what_counts_stays(lake: Lake) -> None:
    make_old(lake)
    report = run(None, VacuumOptions(lake=lake.address))
    assert report.items_done == 3
    assert report.bytes == sum(len(content_of(part.adds[0].name)) for part in (ONE, TWO, ORPHAN))
    assert data_names(lake) == [*lake.state.files]
    assert_whole(lake)
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 0


def test_young_files_stay_as_they_may_belong_to_a_job_that_is_running(lake: Lake) -> None:
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 0
    make_old(lake, ORPHAN.adds[0].name)
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 1


def test_a_file_that_was_removed_lately_stays_however_old_it_is(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    put_files(lake.store, ONE, TWO)
    lake.commit("archive", [ONE, TWO], now_ms=LONG_AGO_MS)
    lake.commit("archive", [LakeChange(removes=(ONE.adds[0].name,))], now_ms=NOW_MS)
    make_old(lake)
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 0
    assert len(data_names(lake)) == 2


def test_an_older_manifest_can_be_read_until_a_vacuum_which_a_reader_is_told(lake: Lake) -> None:
    make_old(lake)
    run(None, VacuumOptions(lake=lake.address))
    with pytest.raises(LakeDamaged, match=r"2 files of manifest 1 are gone, such as topic=a/.*: a vacuum removed them"):
        read(None, lake.address, at=1)  # type: ignore[arg-type]


def test_gaps_that_count_stay(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    names = [gap_name("a", 1, seq, seq, "ttl") for seq in (1, 2)]
    for name in names:
        lake.store.put(name, b"gap")
    gap = LakeFile(name=names[0], topic="a", epoch=1, first_seq=1, last_seq=1, records=1, bytes=3)
    lake.commit("archive", [LakeChange(gaps=(GapFile(gap, "ttl"),))], now_ms=LONG_AGO_MS)
    make_old(lake, *names)
    assert run(None, VacuumOptions(lake=lake.address)).items_done == 1
    assert lake.store.list("_topics/gaps/") == names[:1]


def test_what_broken_puts_left_goes(lake: Lake) -> None:
    left = Path(lake.address, SCRATCH, "0123.tmp")
    left.write_bytes(b"half")
    assert run(None, VacuumOptions(lake=lake.address)).detail["unfinished_removed"] == 0
    make_old(lake, f"{SCRATCH}/0123.tmp")
    assert run(None, VacuumOptions(lake=lake.address)).detail["unfinished_removed"] == 1
    assert not left.exists()


def test_a_dry_run_only_counts(lake: Lake) -> None:
    make_old(lake)
    before = data_names(lake)
    report = run(None, VacuumOptions(lake=lake.address, dry_run=True))
    assert (report.items_done, report.items_skipped) == (0, 3)
    assert data_names(lake) == before


def test_an_age_below_an_hour_needs_the_word_that_no_other_job_runs(lake: Lake) -> None:
    with pytest.raises(BadOption, match="may belong to a job that is running"):
        run(None, VacuumOptions(lake=lake.address, older_than_ms=1000))
    assert run(None, VacuumOptions(lake=lake.address, older_than_ms=-60_000, alone=True)).items_done == 3
    assert_whole(lake)
