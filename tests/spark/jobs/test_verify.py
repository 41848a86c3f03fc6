"""The job `verify` beside a running server, on a directory, a lake and streams: what is hurt is found and named."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from topics.client.sync.client import Client
from topics.spark.jobs.job_options import ArchiveOptions, VerifyOptions
from topics.spark.jobs.verify import run
from topics.spark.manifest import decode_manifest
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine with other things to do takes a minute to start Spark.
pytestmark = pytest.mark.timeout(900)
RECORDS = 650


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with three sealed segments of `orders` in files, and an active one; more is in the log."""
    with ServerProcess(tmp_path / "data", segment_max_events=200) as server:
        with Client(server.url) as client:
            client.create("orders", durability="fsync")
            fill(client, "orders", RECORDS)
        # A stop writes a checkpoint.
        assert server.stop() == 0
        server.start()
        with Client(server.url) as client:
            fill(client, "orders", 7)
        yield server


def fill(client: Client, topic: str, count: int) -> None:
    records = [{"data": {"number": number}, "tag": f"t{number % 5}"} for number in range(count)]
    client.append_encoded(topic, json.dumps(records).encode())


def segment_paths(server: ServerProcess) -> list[Path]:
    with Client(server.url) as client:
        manifest = decode_manifest(client.manifest("orders"))
    return [Path(segment.uri.removeprefix("file://")) for segment in manifest.segments]


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def found(findings: tuple[dict[str, Any], ...]) -> list[tuple[str, int | None]]:
    return [(Path(finding["uri"]).name, finding["offset"]) for finding in findings]


def test_beside_a_server_damage_in_any_tier_is_found_and_nothing_else(
    spark: "SparkSession", store: ServerProcess, tmp_path: Path
) -> None:
    config = VerifyOptions(endpoint=store.url, report=str(tmp_path / "report"))
    sound = run(spark, config)
    assert (sound.exit_code, sound.findings) == (0, ())
    assert (sound.records, sound.items_done) == (RECORDS, 4)
    assert json.loads((tmp_path / "report" / "verify.json").read_text())["records"] == RECORDS

    paths = segment_paths(store)
    backup = tmp_path / "backup"
    shutil.copytree(store.data_dir, backup)
    size = paths[1].stat().st_size // 200
    flip(paths[1], 3 * size + 40)
    flip(paths[2].with_suffix(".idx"), 45)
    flip(backup / paths[0].relative_to(store.data_dir), 33)
    hurt = run(spark, replace(config, copies=(str(backup),)))
    assert hurt.exit_code == 2
    by_name = {Path(finding["uri"]): finding for finding in hurt.findings}
    assert set(by_name) == {
        paths[1],
        paths[2].with_suffix(".idx"),
        backup / paths[0].relative_to(store.data_dir),
    }
    assert (by_name[paths[1]]["topic"], by_name[paths[1]]["seq"]) == ("orders", 204)
    assert by_name[paths[2].with_suffix(".idx")]["offset"] == 40
    rows = pq.read_table(tmp_path / "report" / "verify.parquet").to_pylist()
    assert rows == list(hurt.findings)


def test_a_directory_a_lake_and_streams_are_looked_at_without_a_server(
    spark: "SparkSession", store: ServerProcess, tmp_path: Path
) -> None:
    from topics.spark.jobs import archive

    lake = tmp_path / "lake"
    archive.run(spark, ArchiveOptions(lake=str(lake), topics=("orders",), endpoint=store.url))
    paths = segment_paths(store)
    assert store.stop() == 0
    streams = tmp_path / "streams"
    partition = make_streams(streams)
    config = VerifyOptions(path=str(store.data_dir), lakes=(str(lake),), streams=(str(streams),))
    sound = run(spark, config)
    assert sound.findings == ()
    assert sound.records == RECORDS + 7 + 600 + 9

    (file,) = lake.rglob("topic=*/**/*.parquet")
    flip(file, 2000)
    flip(paths[0], 20)
    log, index = min(partition.glob("*.log")), min(partition.glob("*.index"))
    flip(log, 70)
    flip(index, 20)
    shutil.move(paths[1], tmp_path / "away")
    hurt = run(spark, config)
    assert hurt.exit_code == 2
    names = [(finding["uri"], finding["offset"]) for finding in hurt.findings]
    assert (str(paths[0]), 0) in names
    assert (str(log), 0) in names
    assert (str(index), 16) in names
    assert any(uri == str(file) for uri, _ in names)
    missing = [finding for finding in hurt.findings if finding["problem"].startswith("missing")]
    assert [(finding["uri"], finding["seq"]) for finding in missing] == [(str(paths[1]), 201)]


def make_streams(root: Path) -> Path:
    from topics.storage.fs import RealFs
    from topics.streams.partitions.batch import NewMessage, encode_send
    from topics.streams.partitions.partitioning import PartitionId
    from topics.streams.settings import from_mapping
    from topics.streams.system import System
    from topics.testing.clock import ManualClock

    engine = System.open(RealFs(), str(root), from_mapping({}), clock=ManualClock())
    engine.create_stream("s")
    engine.create_topic("s", "t")
    for number in range(9):
        engine.send("s", "t", encode_send([NewMessage(b"payload %d" % number)]), PartitionId(0))
    engine.close()
    return root / "streams/0/topics/0/partitions/0"
