"""Files of a lake: rows in, Parquet out, and back."""

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.lakes import NOW_MS, records
from topics.spark.lake import files as lake_files
from topics.spark.lake.files import LAKE_SCHEMA, NewFile, file_batches, file_seqs, rows_of, seq_mask
from topics.spark.lake.state import LakeFile, digest_in
from topics.storage.fs import RealFs
from topics.storage.tiers.shared_folder import SharedFolder
from topics.testing.fake_disk import FakeDisk


def store() -> SharedFolder:
    return SharedFolder(FakeDisk(), "/mnt/lake")


def put(place: SharedFolder, *batches: list[int], topic: str = "a") -> LakeFile:
    file = NewFile(topic, 1)
    for seqs in batches:
        file.write(records(seqs, topic))
    (found,) = file.put(place)
    return found


def test_rows_come_back_as_they_were_in_their_order() -> None:
    place = store()
    file = put(place, [7, 9], [1, 2], topic="a/b ü%=..")
    assert (file.first_seq, file.last_seq, file.records) == (1, 9, 4)
    assert (file.first_ts_ms, file.last_ts_ms) == (NOW_MS + 1, NOW_MS + 9)
    assert file.name.startswith("topic=a%2Fb%20%C3%BC%25%3D../epoch=1/1-9-")
    assert file.bytes == place.size(file.name)
    found = pa.Table.from_batches(file_batches(place, file), LAKE_SCHEMA)
    assert found.equals(pa.Table.from_batches([records([7, 9, 1, 2], file.topic)]))
    assert file_seqs(place, file).tolist() == [7, 9, 1, 2]


def test_the_same_rows_have_the_same_name_and_other_rows_another() -> None:
    assert put(store(), [1, 2, 3]).name == put(store(), [1, 2, 3]).name != put(store(), [1, 3]).name
    assert digest_in(put(store(), [1]).name)
    assert not digest_in("topic=a/epoch=1/part-00000-2cd49fa5-f082-4cd2-a7ad-7dc80cae6551-c000.zstd.parquet")


def test_a_row_group_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_ROWS", 100)
    place = SharedFolder(RealFs(), str(tmp_path))
    file = put(place, *(list(range(start, start + 50)) for start in range(0, 450, 50)))
    metadata = pq.read_metadata(tmp_path / file.name)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [100, 100, 100, 100, 50]
    seqs = metadata.row_group(1).column(0)
    assert (seqs.path_in_schema, seqs.compression) == ("seq", "ZSTD")
    assert (seqs.statistics.min, seqs.statistics.max) == (100, 199)


def test_no_rows_are_no_file() -> None:
    file = NewFile("a", 1)
    file.write(records([]))
    assert file.put(store()) == ()


@given(st.lists(st.integers(0, 50)), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4))
def test_a_mask_is_true_for_seqs_in_any_of_the_ranges(seqs: list[int], ranges: list[tuple[int, int]]) -> None:
    found = seq_mask(pa.array(seqs, pa.int64()).to_numpy(), ranges).tolist()
    assert found == [any(first <= seq <= last for first, last in ranges) for seq in seqs]


def test_a_task_reads_the_files_at_its_places_in_the_list(tmp_path: Path) -> None:
    place = SharedFolder(RealFs(), str(tmp_path))
    files = [put(place, [number]) for number in range(3)]
    places = pa.RecordBatch.from_pydict({"id": [2, 0]})
    found = [batch.column("seq").to_pylist() for batch in rows_of(str(tmp_path), files, iter([places]))]
    assert found == [[2], [0]]
