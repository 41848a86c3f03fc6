"""Small files of a lake become large ones; nothing that a reader sees changes."""

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tests.spark.lake.test_files import rows
from tests.spark.lakes import done, lake_file, lake_rows
from topics.spark.jobs.optimize import merge_files, small_neighbours
from topics.spark.lake.files import LAKE_SCHEMA, DayFiles, file_batches
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import LakeChange, LakeFile, LakeManifest, LakeState
from topics.storage.tiers.shared_folder import SharedFolder


def state(*files: LakeFile, covered: tuple[tuple[int, int], ...] = ((1, 1000),)) -> LakeState:
    made = LakeState()
    segments = tuple(done(first, last, epoch=epoch) for first, last in covered for epoch in (1, 2))
    totals = made.totals_after(files, ())
    made.apply(
        LakeManifest(v=1, job="t", writer="w", parent=0, created_ms=1, adds=files, segments=segments, totals=totals)
    )
    return made


def merged_seqs(found: LakeState, target_bytes: int, topics: tuple[str, ...] | None = None) -> list[list[int]]:
    return [[file.first_seq for file in group] for group in small_neighbours(found, topics, target_bytes)]


SIZE = lake_file(1, 10).bytes


def test_neighbours_are_merged_up_to_the_target() -> None:
    files = [lake_file(first, first + 9) for first in range(101, 191, 10)]
    target = files[0].bytes * 4
    assert merged_seqs(state(*files), target) == [[101, 111, 121, 131], [141, 151, 161, 171]]
    assert merged_seqs(state(*files), target * 100) == [[file.first_seq for file in files]]
    assert merged_seqs(state(files[0]), target) == [], "one file is merged with nothing"


def test_large_files_stay_as_they_are_and_part_the_others() -> None:
    files = [lake_file(first, first + 9) for first in (101, 111, 131, 141)]
    large = lake_file(121, 130, mark="x" * 40)
    assert merged_seqs(state(*files, large), large.bytes * 2 - 1) == [[101, 111], [131, 141]]


def test_files_of_different_days_topics_and_instances_are_not_mixed() -> None:
    files = [
        lake_file(101, 110),
        lake_file(111, 120, date="2026-01-02"),
        lake_file(111, 120, epoch=2),
        lake_file(121, 130, date="2026-01-02"),
    ]
    other = lake_file(1, 10, topic="b")
    assert merged_seqs(state(*files, other), 10_000) == [[111, 121]]
    assert merged_seqs(state(*files, other), 10_000, ("b",)) == []


def test_files_are_not_merged_over_seqs_that_may_still_come() -> None:
    """Else a segment between them could not get into the lake any more."""
    files = (lake_file(1, 10), lake_file(11, 20), lake_file(31, 40))
    assert merged_seqs(state(*files, covered=((1, 10), (11, 20), (31, 40))), 10_000) == [[1, 11]]
    assert merged_seqs(state(*files, covered=((1, 10), (11, 30), (31, 40))), 10_000) == [[1, 11, 31]]


def put_small(lake: Lake, *groups: list[int]) -> list[LakeFile]:
    """A file for each of the groups of seqs, all committed."""
    found: list[LakeFile] = []
    for seqs in groups:
        files = DayFiles("t", 1)
        files.write(rows(seqs))
        found += files.put(lake.store)
    lake.commit("archive", [LakeChange(adds=tuple(found))], now_ms=1)
    return found


def test_the_merged_file_has_the_rows_of_all_in_their_order(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    small = put_small(lake, [1, 2, 5], [7, 8], [20])
    before = lake_rows(lake.address)
    part = merge_files(small, address=lake.address)
    assert lake_rows(lake.address) == before, "nothing counts before its commit"
    assert lake.commit("optimize", [part], now_ms=2) == (part,)
    (file,) = lake.state.files.values()
    assert (file.first_seq, file.last_seq, file.records) == (1, 20, 6)
    merged = pa.Table.from_batches(file_batches(lake.store, file.name), LAKE_SCHEMA)
    assert merged.equals(pa.Table.from_batches([rows([1, 2, 5, 7, 8, 20])]))
    assert lake_rows(lake.address, at=1) == before, "and who reads the manifest before goes on"


def test_a_file_that_another_job_changed_meanwhile_is_left_out(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    small = put_small(lake, [1, 2, 5], [7, 8])
    part = merge_files(small, address=lake.address)
    lake.commit("archive", [LakeChange(removes=(small[0].name,))], now_ms=2)
    assert open_lake(lake.address).commit("optimize", [part], now_ms=3) == ()
    assert [row[0] for row in lake_rows(lake.address)] == [7, 8]


def test_a_small_file_that_is_gone_fails_the_task(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path / "lake"))
    small = put_small(lake, [1], [2])
    SharedFolder.delete(lake.store, small[0].name)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        merge_files(small, address=lake.address)
