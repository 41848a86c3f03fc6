"""A lake of the older form becomes a Delta table, in one step."""

import json
import re
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

import polars as pl
import pytest

from tests.spark.lake.test_lake import Crashed, crash_at
from tests.spark.lakes import lake_rows
from topics.spark.lake.convert import convert
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeDamaged, LakeGap, LakeNotFound, WriterEpoch

GOLDEN = Path(__file__).parents[2] / "golden" / "lake-v1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Archived, with deletes applied, a gap, and a run of a writer."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "lake"))


def assert_is_converted(place: Path) -> None:
    expected = json.loads((GOLDEN / "expected.json").read_bytes())
    lake = open_lake(str(place))
    for topic, rows in expected.items():
        assert lake_rows(str(place), topic) == [tuple(row) for row in rows]
    counts = pl.read_delta(str(place)).group_by("topic").len().sort("topic").rows()
    assert counts == [("o:1", 20), ("t", 65)]
    assert lake.state.gaps == {LakeGap("t", 1, 61, 95, "cap")}
    assert lake.state.has_epoch(WriterEpoch("w", 3))
    assert not lake.state.has_epoch(WriterEpoch("w", 4))
    assert [each.first_seq for each in lake.state.segments["t", 1]] == [1, 21, 41, 81, 101]
    assert not list(place.glob("_topics/manifest-*"))


def test_records_gaps_segments_and_runs_of_writers_are_the_same(old: Path) -> None:
    with pytest.raises(LakeDamaged, match=r"is a lake of an older form; .*: topics pipeline convert-lake /"):
        open_lake(str(old))
    done = convert(str(old))
    assert (done.files, done.records, done.gaps, done.manifests) == (6, 85, 1, 5)
    assert_is_converted(old)
    with pytest.raises(LakeNotFound, match="no lake of the older form"):
        convert(str(old))


def test_a_run_that_is_killed_anywhere_leaves_the_old_lake_or_the_table(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in count():
        place = Path(shutil.copytree(old, tmp_path / str(step)))
        with crash_at(step, monkeypatch) as steps, suppress(Crashed):
            convert(str(place))
        if (place / "_delta_log").exists():
            assert_reads(place)
        else:
            assert len(list(place.glob("_topics/manifest-*"))) == 5
        is_whole = not list(place.glob("_topics/manifest-*"))
        if not is_whole:
            convert(str(place))
        assert_is_converted(place)
        if is_whole:
            break
    assert steps.count("put") == 7


def assert_reads(place: Path) -> None:
    assert len(pl.read_delta(str(place))) == 85


def test_a_chain_with_a_hole_or_a_file_that_is_not_whole_is_refused(old: Path) -> None:
    (file,) = old.glob("topic=o%3A1/*/*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(LakeDamaged, match="bytes, its manifest says"):
        convert(str(old))
    file.write_bytes(content)
    first = old / "_topics" / f"manifest-{1:020d}.json"
    manifest = first.read_bytes()
    first.write_bytes(re.sub(rb'"last_seq":\d+', b'"last_seq":null', manifest, count=1))
    with pytest.raises(LakeDamaged, match=r"\.parquet has no last seq in its manifest$"):
        convert(str(old))
    first.write_bytes(manifest)
    (old / "_topics" / f"manifest-{2:020d}.json").unlink()
    with pytest.raises(LakeDamaged, match="the chain is broken, manifest 2 is missing"):
        convert(str(old))
    assert not (old / "_delta_log").exists()
