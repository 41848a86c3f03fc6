"""Files of a lake: rows in, Parquet out, and back."""

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.lake import files as lake_files
from topics.spark.lake.files import LAKE_SCHEMA, DayFiles, file_batches, merged_by_seq, named_rows, put_gap, seq_mask
from topics.spark.loss import Gap
from topics.storage.fs import RealFs
from topics.storage.tiers.shared_folder import SharedFolder
from topics.testing.fake_disk import FakeDisk

DAY_US = 86_400_000_000


def rows(seqs: list[int], day: int = 20_000, step_us: int = 1000) -> pa.RecordBatch:
    count = len(seqs)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["a"] * count, pa.string()),
            pa.array(seqs, pa.int64()),
            pa.array([day * DAY_US + seq * step_us for seq in seqs], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([None if seq % 2 else "n" for seq in seqs], pa.string()),
            pa.array(["" if seq % 3 else None for seq in seqs], pa.string()),
            pa.array([f'{{"n":{seq}}}' for seq in seqs], pa.string()),
            pa.array([None if seq % 5 else "{}" for seq in seqs], pa.string()),
            pa.array([1] * count, pa.int64()),
        ],
        schema=LAKE_SCHEMA,
    )


def store() -> SharedFolder:
    return SharedFolder(FakeDisk(), "/mnt/lake")


def read_back(place: SharedFolder, name: str) -> pa.Table:
    return pa.Table.from_batches(file_batches(place, name), LAKE_SCHEMA)


def test_rows_come_back_as_they_were_one_file_for_each_day() -> None:
    place = store()
    files = DayFiles("a", 1)
    files.write(rows([1, 2, 3], day=20_000))
    files.write(rows([7, 9], day=20_001))
    first, second = files.put(place)
    assert (first.date, first.first_seq, first.last_seq, first.records) == ("2024-10-04", 1, 3, 3)
    assert (second.date, second.first_seq, second.last_seq, second.records) == ("2024-10-05", 7, 9, 2)
    assert first.name.startswith("topic=a/date=2024-10-04/1-3-")
    assert first.bytes == place.size(first.name)
    assert read_back(place, first.name).to_batches() == [rows([1, 2, 3], day=20_000)]
    assert read_back(place, second.name).to_batches() == [rows([7, 9], day=20_001)]


def test_a_batch_over_midnight_is_cut_and_a_clock_that_went_back_does_not_matter() -> None:
    place = store()
    files = DayFiles("a", 1)
    # A record every six hours: four a day.
    files.write(rows(list(range(10)), step_us=DAY_US // 4))
    files.write(rows([20, 21], day=20_000))
    found = files.put(place)
    assert [(file.date, file.first_seq, file.last_seq, file.records) for file in found] == [
        ("2024-10-04", 0, 21, 6),
        ("2024-10-05", 4, 7, 4),
        ("2024-10-06", 8, 9, 2),
    ]
    assert read_back(place, found[0].name).column("seq").to_pylist() == [0, 1, 2, 3, 20, 21]


def test_the_same_rows_have_the_same_name_and_other_rows_another() -> None:
    def put(seqs: list[int]) -> str:
        files = DayFiles("a", 1)
        files.write(rows(seqs))
        (file,) = files.put(store())
        return file.name

    assert put([1, 2, 3]) == put([1, 2, 3])
    assert put([1, 2, 3]) != put([1, 3])


def test_rows_out_of_order_are_our_own_bug() -> None:
    files = DayFiles("a", 1)
    files.write(rows([5]))
    with pytest.raises(AssertionError, match="sorted by seq"):
        files.write(rows([5]))


def test_a_row_group_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_ROWS", 100)
    files = DayFiles("a", 1)
    for start in range(0, 450, 50):
        files.write(rows(list(range(start, start + 50))))
    (file,) = files.put(SharedFolder(RealFs(), str(tmp_path)))
    metadata = pq.read_metadata(tmp_path / file.name)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [100, 100, 100, 100, 50]
    seqs = metadata.row_group(1).column(1)
    assert (seqs.path_in_schema, seqs.compression) == ("seq", "ZSTD")
    assert (seqs.statistics.min, seqs.statistics.max) == (100, 199)


def test_no_rows_are_no_files() -> None:
    files = DayFiles("a", 1)
    files.write(rows([]))
    assert files.put(store()) == ()


@given(st.sets(st.integers(1, 200)), st.sets(st.integers(1, 200)), st.integers(1, 30))
def test_merged_rows_are_all_there_in_the_order_of_their_seqs(kept: set[int], fresh: set[int], size: int) -> None:
    fresh -= kept
    ordered = sorted(kept)
    batches = [rows(ordered[start : start + size]) for start in range(0, len(ordered), size)] + [rows([])]
    table = pa.Table.from_batches([rows(sorted(fresh))])
    merged = pa.Table.from_batches(merged_by_seq(iter(batches), table), LAKE_SCHEMA)
    assert merged.equals(pa.Table.from_batches([rows(sorted(kept | fresh))]))


@given(st.lists(st.integers(0, 50)), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4))
def test_a_mask_is_true_for_seqs_in_any_of_the_ranges(seqs: list[int], ranges: list[tuple[int, int]]) -> None:
    found = seq_mask(pa.array(seqs, pa.int64()).to_numpy(), ranges).tolist()
    assert found == [any(first <= seq <= last for first, last in ranges) for seq in seqs]


def test_a_gap_is_a_file_of_one_row_under_a_name_that_says_it() -> None:
    place = store()
    file, reason = put_gap(place, Gap("a/b", 5, 9, "cap", 123), epoch=2)
    assert reason == "cap"
    assert file.name == "_topics/gaps/topic=a%2Fb/2-5-9-cap.parquet"
    assert (file.first_seq, file.last_seq, file.is_gap) == (5, 9, True)
    table = pq.read_table(pa.BufferReader(place.read_range(file.name, 0, file.bytes)))
    assert table.to_pylist() == [{"topic": "a/b", "epoch": 2, "gap_from": 5, "gap_to": 9, "reason": "cap"}]
    assert put_gap(place, Gap("a", 5, None, "recreated"), epoch=1).file.last_seq is None


def test_a_task_reads_the_files_at_its_places_in_the_list(tmp_path: Path) -> None:
    files = DayFiles("a", 1)
    for number, day in enumerate((20_000, 20_001, 20_002)):
        files.write(rows([number], day=day))
    names = [file.name for file in files.put(SharedFolder(RealFs(), str(tmp_path)))]
    places = pa.RecordBatch.from_pydict({"id": [2, 0]})
    found = [batch.column("seq").to_pylist() for batch in named_rows(str(tmp_path), names, iter([places]))]
    assert found == [[2], [0]]
