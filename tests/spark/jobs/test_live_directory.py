"""Every job at a running server with streams, and at the directories that the server has open."""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import topics
from tests.cli.every_command import ON_SPARK, commands, covered
from tests.server.streams.peer import Peer
from topics.cli.main import app
from topics.cli.pipeline import commands as pipeline_commands
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def live(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", streams_port=0) as server:
        with topics.Client(server.url) as client:
            client.append("kept", [{"n": n} for n in range(50)])
        host, _, port = server.streams_address.rpartition(":")
        with Peer((host, int(port))).login() as peer:
            peer.create("s", "t")
            peer.send("s", "t", [b"first", b"second"], 0)
        # What was in the log is in segments now.
        server.stop()
        yield server.start()


def test_every_job_has_a_case() -> None:
    known = covered(ON_SPARK)
    assert [words for words in commands() if words[0] == "pipeline" and words not in known] == []


@pytest.mark.slow
def test_every_job_does_what_it_says_and_leaves_the_files_of_the_server_alone(
    spark: "SparkSession", live: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared_session(*_: object) -> Iterator["SparkSession"]:
        yield spark

    # A session of its own for each job would cost ten seconds each.
    monkeypatch.setattr(pipeline_commands, "open_session", shared_session)
    for name in [name for name in os.environ if name.startswith("TOPICS_") and name != "TOPICS_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOPICS_URL", live.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jsonl").write_text('{"id":1}\n')
    wrong = []
    for case in ON_SPARK:
        command = case.command.format(dir=live.data_dir, lake=tmp_path / "lake", one=tmp_path / "one.jsonl")
        words = shlex.split(command)
        told = (case.told or "").replace("{dir}", re.escape(str(live.data_dir)))
        done = CliRunner().invoke(app, words)
        is_told = re.search(told, done.stdout + done.stderr) is not None
        if (done.exit_code, is_told) != (case.code, True) or not isinstance(done.exception, SystemExit | None):
            wrong.append(f"$ topics {command}\n{done.output[-1000:]}{done.exception!r}")
    assert not wrong, "\n\n".join(wrong)
    live.kill()
    live.start()
    with topics.Client(live.url) as client:
        assert client.state("kept").count == 50
    host, _, port = live.streams_address.rpartition(":")
    with Peer((host, int(port))).login() as peer:
        assert peer.poll("s", "t").payloads == [b"first", b"second"]
