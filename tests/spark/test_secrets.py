"""A token, looked for wherever Spark writes: plans, errors, the event log, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.server.running import running
from tests.spark.queries import run_to_end, wait_for_listeners
from topics.client.sync.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "sk-51c07d5be29f3a"


def texts_below(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_token_is_in_no_plan_error_event_or_checkpoint(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "data", keys=TOKEN) as server:
        with Client(server.url, token=TOKEN) as client:
            client.create("t")
            client.append_encoded("t", b'[{"data":1},{"data":2}]')
        given = {"endpoint": server.url, "token": TOKEN}
        frame = spark.read.format("topics").options(**given, subscribe="t").load()
        assert frame.count() == 2
        frame.explain("extended")
        frame.explain("formatted")
        plans = capsys.readouterr().out
        assert "topics" in plans
        errors: list[str] = []
        for wrong in (
            {"subscribe": "nowhere"},
            {"subscribe": "t", "gapz": "x"},
            {"subscribe": "t", "token": TOKEN * 2},
        ):
            with pytest.raises(PySparkException) as caught:
                spark.read.format("topics").options(**{**given, **wrong}).load().count()
            errors.append(f"{caught.value}")
        assert "a valid key is needed" in errors[-1]
        stream = spark.readStream.format("topics").options(**given, subscribe="t").load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = run_to_end(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
        told = [query.lastProgress.json if query.lastProgress else ""]
    events_uri = spark.conf.get("spark.eventLog.dir")
    assert events_uri is not None
    wait_for_listeners(spark)
    events = texts_below(Path(events_uri.removeprefix("file://")))
    assert "SparkListenerSQLExecutionStart" in events
    checkpoint = texts_below(tmp_path / "checkpoint")
    assert '"seq": 2' in checkpoint or '"seq":2' in checkpoint
    for text in (plans, *errors, events, checkpoint, *told):
        assert TOKEN not in text
