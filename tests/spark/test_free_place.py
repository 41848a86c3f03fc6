"""A job writes no files among those of a log."""

from pathlib import Path

import pytest

import topics
import topics.streams
from topics.spark.errors import BadOption
from topics.spark.free_place import require_free_place
from topics.spark.lake.lake import open_lake


def test_a_folder_that_holds_a_log_streams_or_a_backup_is_no_place_for_a_lake(tmp_path: Path) -> None:
    topics.open(tmp_path / "log").close()
    topics.streams.open(tmp_path / "streams").close()
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "BACKUP").touch()
    for name, file in (("log", "STORE"), ("streams", "state.messages"), ("backup", "BACKUP")):
        place = tmp_path / name
        before = sorted(place.rglob("*"))
        for address in (str(place), f"file://{place}"):
            with pytest.raises(BadOption) as refused:
                open_lake(address, must_exist=False)
            assert refused.value.message.startswith(f"{place} is no place for files of a job: ")
            assert file in refused.value.message or name == "streams"
        assert sorted(place.rglob("*")) == before


def test_other_folders_and_buckets_are_free(tmp_path: Path) -> None:
    for address in (str(tmp_path), str(tmp_path / "new"), "s3://bucket/prefix", "s3a://bucket/prefix"):
        require_free_place(address)
