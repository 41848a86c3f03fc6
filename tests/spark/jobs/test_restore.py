"""Records of a lake, or of segments without a server, become a topic again."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.jobs.records import all_records, fill
from topics.client.sync.client import Client
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs import archive
from topics.spark.jobs.job import Progress
from topics.spark.jobs.job_options import ArchiveOptions, RestoreOptions
from topics.spark.jobs.restore import run
from topics.storage.fs import RealFs
from topics.storage.inspect.verify import Verifier
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def without_place(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in {"seq", "ts", "meta"}}


def check_copy(originals: list[dict[str, Any]], copies: list[dict[str, Any]]) -> None:
    """The same records in the same order; where they were is in the meta."""
    assert list(map(without_place, copies)) == list(map(without_place, originals))
    for original, copy in zip(originals, copies, strict=True):
        mark = {"topic": "orders", "seq": original["seq"], "ts": original["ts"]}
        assert copy["meta"] == {**(original["meta"] or {}), "_topics_origin": mark}


def filled(server: ServerProcess) -> list[dict[str, Any]]:
    """650 records of which some are deleted, all in segments; what a reader sees of them."""
    with Client(server.url) as client:
        fill(client, "orders", 650)
        fill(client, "parcels", 20)
        client.delete("orders", before_seq=21)
        originals = all_records(client, "orders")
    server.stop()
    return originals


def test_a_directory_of_segments_is_served_as_it_was(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    originals = filled(server)
    restored = tmp_path / "restored"
    config = RestoreOptions(
        path=str(server.data_dir),
        topic="orders",
        into_dir=str(restored),
        chunk_bytes=4000,
        segment_records=70,
        state=str(tmp_path / "state"),
    )

    def kill(progress: Progress) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(spark, config, report=kill)
    assert not restored.exists(), "nothing to start a server with by mistake"
    report = run(spark, config)
    assert report.items_skipped == 8, "the first wave of two cores"
    assert report.exit_code == 0
    assert run(spark, config).items_done == 0
    verifier = Verifier(RealFs(), str(restored))
    assert [finding.line() for finding in verifier.run() if finding.severity != "note"] == []
    with ServerProcess(restored) as again, Client(again.url) as client:
        assert all_records(client, "orders") == originals
        assert client.append_encoded("orders", b'[{"data":1}]').first_seq == 651
    with pytest.raises(Conflict, match="is not empty"):
        run(
            spark,
            RestoreOptions(path=str(server.data_dir), topic="parcels", into_dir=str(restored), state=config.state),
        )


def test_a_topic_gets_everything_that_an_archive_of_segments_has(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    originals = filled(server)
    shutil.copytree(server.data_dir / "topics", tmp_path / "archive" / "topics")
    server.start()
    config = RestoreOptions(
        endpoint=server.url,
        path=str(tmp_path / "archive"),
        topic="orders",
        from_seq=101,
        to_seq=600,
        target="back",
        chunk_bytes=16_000,
        state=str(tmp_path / "state"),
    )
    report = run(spark, config)
    assert (report.records, report.exit_code) == (500, 0)
    assert report.items_done > 1
    with Client(server.url) as client:
        check_copy([record for record in originals if 101 <= record["seq"] <= 600], all_records(client, "back"))
        assert run(spark, config).records == 0
        with pytest.raises(Conflict, match='topic "parcels" has records already'):
            run(
                spark,
                RestoreOptions(
                    endpoint=server.url, path=config.path, topic="orders", target="parcels", state=config.state
                ),
            )


def test_a_topic_gets_everything_that_a_lake_has_and_what_it_has_not_is_told(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    filled(server)
    lake = str(tmp_path / "lake")
    assert archive.run(spark, ArchiveOptions(lake=lake, path=str(server.data_dir))).exit_code == 0
    server.start()
    with Client(server.url) as client:
        archived = all_records(client, "orders")
        config = RestoreOptions(
            endpoint=server.url,
            lake=lake,
            topic="orders",
            target="back",
            chunk_bytes=8000,
            state=str(tmp_path / "state"),
        )
        report = run(spark, config)
        assert report.exit_code == 0
        last_seq = report.detail["seqs"][1]
        check_copy([record for record in archived if record["seq"] <= last_seq], all_records(client, "back"))
        assert last_seq >= 600, "all but the segment that was not full"
        beyond = run(
            spark,
            RestoreOptions(
                endpoint=server.url, lake=lake, topic="orders", target="more", to_seq=9999, state=config.state
            ),
        )
        assert beyond.exit_code == 3
        assert [(gap["problem"], gap["last_seq"]) for gap in beyond.findings] == [("not archived", 9999)]
        assert client.state("more").count == report.records


def test_what_is_not_there_is_named(tmp_path: Path, server: ServerProcess) -> None:
    filled(server)
    asked = {"path": str(server.data_dir), "into_dir": str(tmp_path / "x")}
    with pytest.raises(BadOption, match='has no topic "nothing"; it has orders, parcels'):
        run(None, RestoreOptions(**asked, topic="nothing"))  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="has several topics; name one of orders, parcels"):
        run(None, RestoreOptions(**asked))  # type: ignore[arg-type]
