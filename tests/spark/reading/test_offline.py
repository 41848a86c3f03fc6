"""Reading without a server: the rows are those that a server would give, and nothing in the directory changes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.small_log import SEGMENT_EVENTS, SmallLog
from tests.storage.tiers.test_folder_store import (
    BUCKET,
    new_s3_address,
    request_plain,
    running_moto,
    set_aws_environment,
)
from topics.client.sync.client import Client
from topics.clock import SystemClock
from topics.errors import StartRefused
from topics.offline_view import view
from topics.offline_view.viewer import view_directory
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.options import ReadOptions
from topics.spark.reading import offline
from topics.spark.reading.file_manifest import DamagedFiles
from topics.spark.reading.locate import read_partition
from topics.spark.reading.offline import TailMissing, take_manifests
from topics.spark.reading.plan import plan_batch
from topics.spark.schemas import schema_of
from topics.storage import layout
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.store import SegmentStore
from topics.testing.clock import ManualClock
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where views leave what they need; empty again unless a test says otherwise."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.delenv("TOPICS_COLD_DIR", raising=False)
    return folder


@pytest.fixture(autouse=True)
def view_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same recovery without the half second that a process takes to start."""
    monkeypatch.setattr(offline, "take_view", lambda request: view_directory(RealFs(), request, SystemClock()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_log(root: Path, **settings: Any) -> SmallLog:
    # The recovery that a view makes goes by the machine's clock, so records must be of this time.
    clock = ManualClock(now_ms=_now_ms())
    return SmallLog(RealFs(), root=str(root), clock=clock, **settings)


def _now_ms() -> int:
    return SystemClock().now_ms()


def crash(log: SmallLog) -> None:
    log.engine.directory.release()


def content(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def options_of(path: Path | str, **changes: Any) -> ReadOptions:
    return ReadOptions(path=str(path), **changes)


def read(path: Path | str, **changes: Any) -> dict[str, list[Row]]:
    """Rows by topic, as tasks give them; nothing below the path is touched."""
    options = options_of(path, **changes)
    before = content(Path(path)) if Path(path).exists() else {}
    view = take_manifests(options)
    schema = schema_of(options)
    rows: dict[str, list[Row]] = {manifest.topic: [] for manifest in view.manifests}
    for partition in plan_batch(view.manifests, options):
        for batch in read_partition(partition, options, schema):
            for row in batch.to_pylist():
                rows[row["topic"]].append(row)
    if before:
        assert content(Path(path)) == before
    return rows


def seqs(rows: list[Row]) -> list[int]:
    return [row["seq"] for row in rows]


# A data directory without a running server.


def test_rows_are_those_of_the_log(root: Path, scratch: Path) -> None:
    log = open_log(root)
    log.append(count=2 * SEGMENT_EVENTS + 1, tag="x", node="n")
    log.append("b", count=3)
    log.checkpoint()
    log.append(count=4, tag="y")
    log.delete(seqs=[3, 2 * SEGMENT_EVENTS + 2])
    expected = {name: log.read(name)[0] for name in ("a", "b")}
    crash(log)
    rows = read(root)
    assert rows.keys() == {"a", "b"}
    for name, records in expected.items():
        told = [(row["seq"], row["tag"], row["node"], row["data"].encode()) for row in rows[name]]
        assert told == [(record.seq, record.tag, record.node, record.data) for record in records]
        assert [int(row["ts"].timestamp() * 1000) for row in rows[name]] == [record.ts for record in records]
    assert not list(scratch.iterdir())


def test_a_killed_server_is_read_to_its_last_acked_record(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all of it: a server process, and a view by a process of its own."""
    monkeypatch.setattr(offline, "take_view", view.take_view)
    topics = ("orders", "parcels")
    with ServerProcess(tmp_path / "data", segment_max_events=20, wal_shards=2) as server:
        with Client(server.url) as client:
            for number in range(30):
                records = [{"data": {"n": number * 5 + place}, "tag": f"t{place}"} for place in range(5)]
                for topic in topics:
                    client.append_encoded(topic, json.dumps(records).encode())
            client.delete("orders", before_seq=11)
            expected = {topic: diff(client, topic) for topic in topics}
        server.kill()
        assert told(read(server.data_dir)) == expected
        assert len(expected["orders"]) == 140
        server.start()
        assert server.stop() == 0
        assert told(read(server.data_dir)) == expected
    assert not list(scratch.iterdir())


def told(rows: dict[str, list[Row]]) -> dict[str, list[tuple[int, str, Any]]]:
    return {
        topic: [(row["seq"], row["tag"], json.loads(row["data"])) for row in found] for topic, found in rows.items()
    }


def diff(client: Client, topic: str) -> list[tuple[int, str, Any]]:
    answer = client.read(topic, 0, limit=1000)
    assert answer.caught_up
    return [(record.seq, str(record.tag), json.loads(bytes(record.data))) for record in answer.records]


def test_deleted_records_are_there_for_those_who_ask(root: Path) -> None:
    log = open_log(root)
    log.append(count=SEGMENT_EVENTS)
    log.delete(seqs=[2])
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.delete(seqs=[SEGMENT_EVENTS + 2])
    log.delete(before_seq=2)
    crash(log)
    everything = set(range(1, 2 * SEGMENT_EVENTS + 1))
    assert set(seqs(read(root)["a"])) == everything - {1, 2, SEGMENT_EVENTS + 2}
    shown = read(root, include_deleted=True, columns=("topic", "seq", "deleted"))["a"]
    # The second one was deleted before it came to a segment.
    assert set(seqs(shown)) == everything - {2}
    assert {row["seq"] for row in shown if row["deleted"]} == {1, SEGMENT_EVENTS + 2}


def test_seqs_below_a_floor_are_a_gap_with_its_reason(root: Path) -> None:
    log = open_log(root)
    log.create("a", cap_records=SEGMENT_EVENTS)
    log.append(count=3 * SEGMENT_EVENTS)
    crash(log)
    assert seqs(read(root)["a"]) == list(range(2 * SEGMENT_EVENTS + 1, 3 * SEGMENT_EVENTS + 1))
    with pytest.raises(TopicsDataLoss, match="reached its cap"):
        read(root, starting_offsets={"a": 1})


def test_what_expires_is_hidden_by_now(root: Path) -> None:
    log = open_log(root)
    log.create("a", ttl_ms=3_600_000)
    log.clock.set(_now_ms() - 7_200_000)
    log.append(count=SEGMENT_EVENTS + 1)
    log.clock.set(_now_ms())
    log.checkpoint()
    crash(log)
    (manifest,) = take_manifests(options_of(root)).manifests
    assert manifest.ttl_floor == SEGMENT_EVENTS + 1
    assert read(root) == {"a": []}


def test_a_small_tail_travels_inside_the_partitions(root: Path, scratch: Path) -> None:
    log = open_log(root)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.append(count=3)
    crash(log)
    (manifest,) = take_manifests(options_of(root)).manifests
    assert [bool(segment.frames) for segment in manifest.segments] == [False, True]
    assert manifest.segments[-1].uri == f"file://{root}/wal"
    assert not list(scratch.iterdir())


def test_a_large_tail_lies_in_a_folder_until_the_process_ends(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(root)
    log.append(count=SEGMENT_EVENTS)
    log.checkpoint()
    log.append(count=3)
    crash(log)
    monkeypatch.setattr(offline, "CARRIED_BYTES_MAX", 10)
    registered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(offline.atexit, "register", lambda *call: registered.append(call))
    assert seqs(read(root)["a"]) == list(range(1, SEGMENT_EVENTS + 4))
    (folder,) = scratch.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["STORE", "topics"]
    ((remove, *arguments),) = registered
    remove(*arguments)
    assert not list(scratch.iterdir())


def test_below_sparks_own_folder_nothing_has_to_be_removed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(root)
    log.append(count=3)
    crash(log)
    local = tmp_path / "spark-local"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},/elsewhere")
    monkeypatch.setattr(offline, "CARRIED_BYTES_MAX", 10)
    registered: list[Any] = []
    monkeypatch.setattr(offline.atexit, "register", lambda *call: registered.append(call))
    assert seqs(read(root)["a"]) == [1, 2, 3]
    assert len(list(local.iterdir())) == 1
    assert not registered


def test_one_topic_of_a_data_directory(root: Path) -> None:
    log = open_log(root)
    log.append("a", count=2)
    log.append("b", count=3)
    log.checkpoint()
    log.append("b")
    crash(log)
    assert {name: seqs(rows) for name, rows in read(root / "topics" / "00000002").items()} == {"b": [1, 2, 3, 4]}


def test_a_damaged_record_is_named(root: Path) -> None:
    log = open_log(root)
    log.append(count=SEGMENT_EVENTS)
    log.close()
    path = next((root / "topics").rglob("*.data"))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(TopicsDataLoss, match="onCorrupt=rows"):
        read(root)
    rows = read(root, on_corrupt="rows")["a"]
    assert [row["kind"] for row in rows].count("gap") == 1
    assert len(rows) == SEGMENT_EVENTS


def test_a_missing_segment_is_an_error(root: Path) -> None:
    log = open_log(root)
    log.append(count=2 * SEGMENT_EVENTS)
    log.close()
    min((root / "topics").rglob("*.data")).unlink()
    with pytest.raises(StartRefused, match=rf"seqs 1 to {SEGMENT_EVENTS} of topic a"):
        read(root)


# A data directory that is served.


def test_a_served_directory_is_read_up_to_its_last_checkpoint(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(root)
    log.append(count=SEGMENT_EVENTS + 2, tag="x")
    log.delete(seqs=[2])
    log.checkpoint()
    assert seqs(read(root)["a"]) == log.seqs()
    log.delete(seqs=[3])
    log.checkpoint()
    assert seqs(read(root)["a"]) == log.seqs()
    log.append(count=3)
    last_seq = SEGMENT_EVENTS + 5
    with pytest.raises(TailMissing, match=f'topic "a" seqs {SEGMENT_EVENTS + 3} to {last_seq}.*tail=skip'):
        read(root)
    with caplog.at_level(logging.WARNING):
        assert seqs(read(root, tail="skip")["a"]) == log.seqs()[:-3]
    assert f'topic "a" seqs {SEGMENT_EVENTS + 3} to {last_seq}' in caplog.text
    crash(log)


def test_a_topic_that_is_new_since_the_checkpoint_is_part_of_the_tail(root: Path) -> None:
    log = open_log(root)
    log.append("a")
    log.checkpoint()
    log.append("b", count=2)
    with pytest.raises(TailMissing, match="a new topic with id 2 seqs 1 to 2"):
        read(root)
    assert read(root, tail="skip").keys() == {"a"}
    assert read(root / "topics" / "00000001").keys() == {"a"}
    crash(log)


def test_a_topic_that_was_removed_since_the_checkpoint_is_not_read(root: Path) -> None:
    log = open_log(root)
    log.append("a")
    log.append("b")
    log.checkpoint()
    log.drop("a")
    assert read(root).keys() == {"b"}
    crash(log)


def test_an_ephemeral_topic_of_a_served_directory_needs_the_server(root: Path) -> None:
    log = open_log(root)
    log.create("a", durability="ephemeral")
    log.append("a")
    log.checkpoint()
    with pytest.raises(TailMissing, match="ephemeral"):
        read(root)
    assert read(root, tail="skip") == {"a": []}
    crash(log)


def test_expiry_of_a_served_directory_is_that_of_now(root: Path) -> None:
    hour_ms = 3_600_000
    log = open_log(root)
    log.clock.set(_now_ms() - 3 * hour_ms)
    log.create("a", ttl_ms=2 * hour_ms)
    log.append(count=SEGMENT_EVENTS + 1)
    log.clock.advance(hour_ms * 3 // 2)
    log.append(count=2)
    log.checkpoint()
    assert log.topic().live.ttl_floor == 0
    (manifest,) = take_manifests(options_of(root)).manifests
    assert (manifest.ttl_floor, manifest.evict_floor) == (SEGMENT_EVENTS + 1, SEGMENT_EVENTS + 2)
    assert seqs(read(root)["a"]) == [SEGMENT_EVENTS + 2, SEGMENT_EVENTS + 3]
    crash(log)


def test_a_directory_without_a_checkpoint_says_so(root: Path) -> None:
    log = open_log(root)
    log.append()
    with pytest.raises(TailMissing, match="had no checkpoint yet"):
        read(root)
    crash(log)


def test_a_bad_snapshot_of_a_served_directory_is_an_error(root: Path) -> None:
    log = open_log(root)
    log.append()
    log.checkpoint()
    path = max((root / "meta").glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedFiles, match="run `topics verify`"):
        read(root)
    crash(log)


# Archives.


@pytest.fixture
def archive(root: Path, tmp_path: Path) -> Path:
    """Two topics, closed, and only the segments of them."""
    log = open_log(root)
    log.append("a", count=3 * SEGMENT_EVENTS, tag="x")
    log.append("b", count=2)
    log.delete("a", seqs=[2, 7])
    log.close()
    folder = tmp_path / "archive"
    shutil.copytree(root / "topics", folder / "topics")
    for path in folder.rglob("topic.json"):
        path.unlink()
    return folder


def test_an_archive_without_a_snapshot_names_topics_by_their_ids(archive: Path) -> None:
    rows = read(archive)
    assert {name: seqs(found) for name, found in rows.items()} == {
        "topic-1": [seq for seq in range(1, 3 * SEGMENT_EVENTS + 1) if seq not in (2, 7)],
        "topic-2": [1, 2],
    }


def test_an_archive_with_topic_json_has_names_and_floors(root: Path, archive: Path) -> None:
    shutil.copy(root / "topics/00000001/topic.json", archive / "topics/00000001/topic.json")
    described = json.loads((archive / "topics/00000001/topic.json").read_bytes())
    described["cap_floor"] = 4
    (archive / "topics/00000001/topic.json").write_text(json.dumps(described))
    rows = read(archive)
    assert rows.keys() == {"a", "topic-2"}
    assert seqs(rows["a"])[0] == 5
    with pytest.raises(TopicsDataLoss, match="seqs 1-4"):
        read(archive, starting_offsets={"a": 1})


def test_an_archive_with_a_snapshot_has_all_that_it_says(root: Path, archive: Path) -> None:
    shutil.copytree(root / "meta", archive / "meta")
    rows = read(archive)
    assert {name: len(found) for name, found in rows.items()} == {"a": 3 * SEGMENT_EVENTS - 2, "b": 2}
    next((archive / "topics/00000001").glob("*.data")).unlink()
    with pytest.raises(DamagedFiles, match="no file"):
        read(archive)


def test_segments_that_are_newer_than_the_archived_snapshot_are_read(root: Path, archive: Path) -> None:
    shutil.copytree(root / "meta", archive / "meta")
    log = open_log(root)
    log.append("a", count=SEGMENT_EVENTS)
    log.close()
    shutil.copytree(root / "topics", archive / "topics", dirs_exist_ok=True)
    assert seqs(read(archive)["a"])[-1] == 4 * SEGMENT_EVENTS


def test_one_topic_of_an_archive_and_one_that_stands_alone(archive: Path, tmp_path: Path) -> None:
    assert read(archive / "topics" / "00000002").keys() == {"topic-2"}
    shutil.copytree(archive / "topics" / "00000001", tmp_path / "loose")
    assert {name: len(rows) for name, rows in read(tmp_path / "loose").items()} == {"topic-0": 3 * SEGMENT_EVENTS - 2}


def test_an_index_that_is_missing_is_made_from_the_frames(archive: Path) -> None:
    expected = read(archive)
    for path in archive.rglob("*.idx"):
        path.unlink()
    assert read(archive) == expected


@pytest.mark.parametrize("kind", ["data", "idx"])
def test_files_of_an_archive_that_do_not_fit_together_are_an_error(archive: Path, kind: str) -> None:
    path = min(archive.rglob(f"*.{kind}"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedFiles, match="run `topics verify`"):
        read(archive)


def test_seqs_that_no_segment_has_are_told(archive: Path, caplog: pytest.LogCaptureFixture) -> None:
    middle = archive / "topics/00000001" / f"seg-{SEGMENT_EVENTS + 1:016d}.data"
    for path in middle.parent.glob(f"{middle.stem}.*"):
        path.unlink()
    with caplog.at_level(logging.WARNING):
        read(archive)
    assert f"no segment has seqs {SEGMENT_EVENTS + 1} to {2 * SEGMENT_EVENTS}" in caplog.text


def test_a_cold_tier_is_an_archive(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = tmp_path / "cold"
    log = open_log(root, cold_dir=str(cold), hot_retain_segments=0)
    log.append(count=3 * SEGMENT_EVENTS)
    log.checkpoint()
    for _ in range(8):
        log.opened.tick()
        log.checkpoint()
    log.append()
    expected = log.seqs()
    assert seqs(read(cold)["topic-1"]) == list(range(1, 3 * SEGMENT_EVENTS + 1))
    monkeypatch.setenv("TOPICS_COLD_DIR", str(cold))
    before = content(cold)
    log.checkpoint()
    assert seqs(read(root)["a"]) == expected
    crash(log)
    assert seqs(read(root)["a"]) == expected
    assert content(cold) == before
    monkeypatch.delenv("TOPICS_COLD_DIR")
    with pytest.raises(StartRefused, match="set TOPICS_COLD_DIR"):
        read(root)


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        yield endpoint


@pytest.fixture
def bucket(archive: Path, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentStore]:
    """The same archive below a prefix of a bucket."""
    set_aws_environment(monkeypatch, moto_endpoint)
    store = open_store(new_s3_address(), RealFs())
    for path in archive.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(archive)), path.read_bytes())
    yield store
    store.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_archive_may_be_in_a_bucket(archive: Path, bucket: SegmentStore) -> None:
    assert read(bucket.address) == read(archive)
    assert read(f"{bucket.address}/topics/00000002").keys() == {"topic-2"}
    name = bucket.list("topics/00000001/")[0]
    assert name.endswith(".data")
    bucket.put(name, bucket.read_range(name, 0, bucket.size(name) - 5))
    with pytest.raises(DamagedFiles):
        read(bucket.address)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_bucket_without_segments_is_refused(bucket: SegmentStore) -> None:
    with pytest.raises(BadOption, match="there are no segments"):
        read(f"{bucket.address}/elsewhere")


# What is nothing of ours.


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there is no"):
        read(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadOption, match="no data directory, no archive"):
        read(tmp_path / "empty")
    (tmp_path / "empty" / "topics").mkdir()
    with pytest.raises(BadOption, match="there are no segments"):
        read(tmp_path / "empty")


# Files of another topic.


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def two_topics(root: Path, tag_of_b: str = "y") -> SmallLog:
    """Both have two sealed segments and an active one, with the same seqs."""
    log = open_log(root)
    for name in ("a", "b"):
        log.append(name, count=2 * SEGMENT_EVENTS + 3, tag="x" if name == "a" else tag_of_b)
    log.checkpoint()
    return log


FOREIGN = r"topics/0000000[12]/seg-0*{}\.data: expected .* of topic \"[ab]\", found a file of another topic"


@pytest.mark.parametrize("kinds", [("data",), ("data", "idx"), ("data", "no idx")], ids=" and ".join)
@pytest.mark.parametrize("first_seq", [1, 2 * SEGMENT_EVENTS + 1], ids=["sealed", "active"])
@pytest.mark.parametrize("state", ["stopped", "killed", "served", "archived"])
def test_a_file_of_another_topic_is_an_error_and_never_its_rows(
    root: Path, tmp_path: Path, state: str, first_seq: int, kinds: tuple[str, ...]
) -> None:
    log = two_topics(root)
    if state != "served":
        log.close() if state == "stopped" else crash(log)
    if state == "archived":
        for name in ("topics", "meta"):
            shutil.copytree(root / name, tmp_path / "archive" / name)
        root = tmp_path / "archive"
    stems = [root / "topics" / f"{topic_id:08X}" / layout.segment_stem(first_seq) for topic_id in (1, 2)]
    for kind in kinds:
        if kind == "no idx":
            for stem in stems:
                stem.with_suffix(".idx").unlink()
        else:
            swap(*(stem.with_suffix(f".{kind}") for stem in stems))
    for stem in stems:
        with pytest.raises(DamagedFiles, match=FOREIGN.format(first_seq)):
            read(stem.parent, tail="skip", on_corrupt="rows")
    # Other segments are still read.
    bounds = {"starting_offsets": {"a": SEGMENT_EVENTS + 1}, "ending_offsets": {"a": 2 * SEGMENT_EVENTS}}
    rows = read(stems[0].parent, tail="skip", **bounds)["a"]
    assert [row["tag"] for row in rows] == ["x"] * SEGMENT_EVENTS


@pytest.mark.parametrize("tag_of_b", ["y", "longer"])
def test_a_part_of_a_foreign_file_is_an_error_too(root: Path, tag_of_b: str) -> None:
    """Whichever part of the file a task reads."""
    two_topics(root, tag_of_b).close()
    swap(*sorted((root / "topics").rglob(f"{layout.segment_stem(1)}.data")))
    for seq in range(1, SEGMENT_EVENTS + 1):
        with pytest.raises(DamagedFiles, match=FOREIGN.format(1)):
            read(root / "topics/00000001", starting_offsets={"a": seq}, ending_offsets={"a": seq})


def test_an_archive_with_swapped_directories_is_an_error(root: Path, archive: Path) -> None:
    """It has no snapshot, but the `topic.json` of each topic has the id."""
    for path in (root / "topics").rglob("topic.json"):
        shutil.copy(path, archive / path.relative_to(root))
    one, other = sorted((archive / "topics").iterdir())
    one.rename(archive / "kept")
    other.rename(one)
    (archive / "kept").rename(other)
    with pytest.raises(DamagedFiles, match=r"topic\.json: expected topic id 1, .* found id 2"):
        read(archive)


def test_spark_reads_a_directory_and_its_tables(spark: SparkSession, root: Path) -> None:
    """The planner is a process of its own, with the environment that Spark gives it."""
    log = open_log(root)
    log.append("a", count=3 * SEGMENT_EVENTS)
    log.checkpoint()
    log.append("a", count=4)
    log.append("b", count=2)
    crash(log)
    before = content(root)
    reader = spark.read.format("topics").option("path", str(root))
    rows = reader.load().select("topic", "seq").collect()
    expected = [("a", seq) for seq in range(1, 3 * SEGMENT_EVENTS + 5)] + [("b", 1), ("b", 2)]
    assert sorted(map(tuple, rows)) == expected
    topics = reader.option("table", "topics").load().select("name", "count").collect()
    assert sorted(map(tuple, topics)) == [("a", 3 * SEGMENT_EVENTS + 4), ("b", 2)]
    assert content(root) == before
    one, other = (root / "topics/00000001" / f"{layout.segment_stem(1 + n * SEGMENT_EVENTS)}.data" for n in (0, 1))
    one.write_bytes(other.read_bytes())
    with pytest.raises(Exception, match=FOREIGN.format(1)):
        reader.option("table", "records").load().select("seq").collect()


def test_a_file_address_is_a_path(root: Path) -> None:
    log = open_log(root)
    log.append(count=2)
    crash(log)
    assert seqs(read(f"file://{root}")["a"]) == [1, 2]
