"""`rebuild-index`: what comes out is what the writer made, byte for byte, wherever the files are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.in_process import InProcess
from tests.spark.streams_world import open_world, send
from tests.spark.world import SEGMENT_EVENTS, World, world
from topics.errors import BadFrame
from topics.formats.message import encode_message
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs import rebuild_index
from topics.spark.jobs.job import EXIT_DATA_LOSS, Report
from topics.spark.jobs.job_options import RebuildIndexOptions
from topics.spark.jobs.rebuild_index import index_of_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Files = dict[str, bytes]


def run(**config: Any) -> Report:
    return rebuild_index.rebuild(RebuildIndexOptions(**config), InProcess())


def fill(there: World) -> None:
    """Segments with tags, nodes, deleted records, and seqs that never came to a segment."""
    for _ in range(4):
        there.fill("a", SEGMENT_EVENTS - 20)
        there.client.delete("a", tag="t1")
        there.checkpoint()
    there.fill("b", 30)
    there.checkpoint()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        fill(made)
        yield made


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A data directory without a running server."""
    with world(tmp_path) as made:
        fill(made)
    return made.root


def derived(root: Path) -> Files:
    """Every index and every sidecar."""
    found = [path for ending in ("idx", "tags", "index") for path in root.rglob(f"*.{ending}")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def spoil(root: Path, names: Sequence[str]) -> None:
    """Each of them in another way: gone, cut, with a wrong entry, empty."""
    for number, name in enumerate(sorted(names)):
        path = root / name
        data = bytearray(path.read_bytes())
        if number % 4 == 0:
            path.unlink()
        elif number % 4 == 1:
            path.write_bytes(data[:-7])
        elif number % 4 == 2:
            data[len(data) // 2] ^= 0x10
            path.write_bytes(data)
        else:
            path.write_bytes(b"")


# Beside a server.


def sealed_indexes(there: World) -> list[str]:
    """Those of topic a, as names below the data directory."""
    picture = there.manifest("a")
    return [
        f"topics/{picture.topic_id:08X}/seg-{segment.first_seq:016d}.idx"
        for segment in picture.segments
        if segment.sealed
    ]


def test_a_server_exchanges_what_is_wrong(there: World) -> None:
    before = derived(there.root)
    sealed = sealed_indexes(there)
    assert len(sealed) >= 2
    rows = there.rows("a")
    spoil(there.root, sealed)
    report = run(endpoint=there.url)
    assert (report.items_done, report.exit_code, report.findings) == (len(sealed), 0, ())
    assert derived(there.root) == before
    assert there.rows("a") == rows
    assert not list((there.root / "staging").glob("index-*"))
    assert run(endpoint=there.url).items_done == 0


def test_a_dry_run_names_what_is_wrong_and_changes_nothing(there: World) -> None:
    name = sealed_indexes(there)[0]
    spoil(there.root, [name])
    spoiled = derived(there.root)
    report = run(endpoint=there.url, topics=("a",), dry_run=True)
    assert report.detail["wrong"] == [str(there.root / name)]
    assert report.items_done == 0
    assert derived(there.root) == spoiled


def test_a_directory_that_is_served_is_not_taken_from_its_server(there: World) -> None:
    with pytest.raises(Conflict, match="is served; give its endpoint"):
        run(path=str(there.root))


# Without a server.


def test_undamaged_segments_get_the_bytes_that_they_had(stopped: Path) -> None:
    before = derived(stopped)
    assert any(name.endswith(".tags") for name in before)
    assert run(path=str(stopped)).items_done == 0
    assert derived(stopped) == before
    spoil(stopped, list(before))
    report = run(path=str(stopped))
    assert derived(stopped) == before
    assert (report.exit_code, report.findings) == (0, ())
    assert report.items_done == len([name for name in before if name.endswith(".idx")])
    assert run(path=str(stopped)).items_done == 0


def test_an_archive_gets_its_indexes(stopped: Path, tmp_path: Path) -> None:
    before = derived(stopped)
    archive = tmp_path / "archive"
    shutil.copytree(stopped / "topics", archive / "topics")
    for name in before:
        (archive / name).unlink()
    assert run(path=f"file://{archive}").exit_code == 0
    found = derived(archive)
    # Files do not tell which segments were sealed, so that all of them get tags.
    assert {name: found[name] for name in before} == before
    assert not (archive / ".topics.lock").exists()


def test_a_damaged_segment_keeps_its_index_and_is_named(stopped: Path) -> None:
    before = derived(stopped)
    path = min((stopped / "topics").rglob("*.data"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    report = run(path=str(stopped))
    assert report.exit_code == EXIT_DATA_LOSS
    (finding,) = report.findings
    assert (finding["problem"], finding["file"]) == ("damaged", str(path))
    assert "seq 1 at offset 0" in finding["message"]
    assert derived(stopped) == before


def test_a_path_without_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there are no segments"):
        run(path=str(tmp_path))


# Streams.


def test_indexes_of_streams_are_made_from_their_logs(tmp_path: Path) -> None:
    streams = open_world(tmp_path / "streams", partitions=2)
    send(streams, 90)
    send(streams, 10, partition=1)
    with pytest.raises(Conflict, match="stop the server first"):
        run(streams=(str(tmp_path / "streams"),))
    streams.close()
    before = derived(tmp_path / "streams")
    assert len(before) >= 3
    assert run(streams=(str(tmp_path / "streams"),)).items_done == 0
    spoil(tmp_path / "streams", list(before))
    report = run(streams=(str(tmp_path / "streams"),))
    assert (report.items_done, report.records, report.exit_code) == (len(before), 100, 0)
    assert derived(tmp_path / "streams") == before


def test_a_missing_directory_of_streams_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there is no such directory"):
        run(streams=(str(tmp_path / "missing"),))


def log_of(count: int, first_offset: int = 5) -> list[bytes]:
    return [encode_message(b"x" * number, offset=first_offset + number, timestamp=number) for number in range(count)]


def test_a_torn_end_of_the_last_segment_gets_no_entry() -> None:
    messages = log_of(4)
    whole, _ = index_of_messages(b"".join(messages[:3]), 5, may_be_torn=True)
    assert index_of_messages(b"".join(messages)[:-2], 5, may_be_torn=True) == (whole, 3)
    with pytest.raises(BadFrame, match="offset 8 at"):
        index_of_messages(b"".join(messages)[:-2], 5, may_be_torn=False)
    assert index_of_messages(b"", 5, may_be_torn=False) == (b"", 0)


@pytest.mark.parametrize("may_be_torn", [True, False])
def test_damage_before_good_messages_is_named(may_be_torn: bool) -> None:
    messages = log_of(4)
    spoiled = bytearray(b"".join(messages))
    spoiled[len(messages[0]) + 10] ^= 1
    with pytest.raises(BadFrame, match="offset 6 at 64 is damaged"):
        index_of_messages(bytes(spoiled), 5, may_be_torn=may_be_torn)


def test_it_runs_on_spark(spark: SparkSession, stopped: Path) -> None:
    before = derived(stopped)
    spoil(stopped, list(before))
    report = rebuild_index.run(spark, RebuildIndexOptions(path=str(stopped)))
    assert report.exit_code == 0
    assert derived(stopped) == before
