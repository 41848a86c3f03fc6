"""Every command against a server as it starts by default and one with streams, and against the directories that they
have open: documented exit codes, sentences instead of tracebacks, and no harm to the files of a server."""

import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from typer.testing import CliRunner

import topics
from tests.cli.every_command import (
    AT_A_LIVE_DIRECTORY,
    AT_A_SERVER,
    AT_LIVE_STREAMS,
    NO_JAVA,
    ON_SPARK,
    Case,
    commands,
    commands_with_a_directory,
    covered,
)
from tests.server.streams.peer import Peer
from topics.cli.main import app
from topics.testing.server_process import ServerProcess

# These serve, or run other programs.
IN_A_PROCESS: Final = re.compile(r"serve|demo|work|queue work")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module", params=["default", "streams"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """With records, jobs, a lease, deletes, a group and a router, in segments and in the log."""
    with_streams: dict[str, object] = {"streams_port": 0} if request.param == "streams" else {}
    with ServerProcess(**with_streams) as running:
        with topics.Client(running.url) as client:
            client.create("kept", durability="fsync")
            client.append("kept", [topics.NewRecord({"n": n}, tag=f"t{n % 3}") for n in range(50)])
            client.delete("kept", tag="t1")
            client.create("kept-jobs", type="queue", dead_letter="kept-dead", leases_durable=True)
            client.append("kept-jobs", ["a", "b", "c"])
            client.claim("kept-jobs", "worker", max_jobs=1)
            client.create_router("kept-copies", "kept", "kept-copied", create_dest=True)
            client.create_group("kept", "readers", at=10)
        if with_streams:
            with peer(running) as one:
                one.create("s", "t", partitions=2)
                one.send("s", "t", [b"first", b"second"], 0)
        # What was in the log is in segments now.
        assert running.stop() == 0
        running.start()
        with topics.Client(running.url) as client:
            client.append("kept", [{"n": n} for n in range(50, 60)])
        yield running


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith(("TOPICS_", "IGGY_")) and name != "TOPICS_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jsonl").write_text('{"id":1}\n')
    (tmp_path / "three.jsonl").write_text('{"id":1}\n{"id":2}\n{"id":3}\n')
    (tmp_path / "state.messages").write_bytes(b"")
    return tmp_path


def peer(server: ServerProcess) -> Peer:
    host, _, port = server.streams_address.rpartition(":")
    return Peer((host, int(port))).login()


def has_streams(server: ServerProcess) -> bool:
    return server.streams_port_file.exists()


def ended(command: str) -> Ended:
    words = shlex.split(command)
    if IN_A_PROCESS.match(command):
        done = subprocess.run(
            [sys.executable, "-m", "topics.cli.entry", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)
    result = CliRunner().invoke(app, words)
    error = result.exception
    told = "" if error is None or isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    return Ended(result.exit_code, result.stdout, result.stderr + told)


def wrong(command: str, told: str, code: int) -> list[str]:
    """What is wrong with the output and the exit code. An error is one sentence, after whatever was logged before."""
    done = ended(command)
    shown = f"$ topics {command}\n{done.out[-1000:]}{done.err[-2000:]}exit code {done.code}"
    errors = [line for line in done.err.splitlines() if not line.startswith("{")]
    is_error_told = done.code != 1 or done.out or (len(errors) == 1 and errors[0].startswith("topics: "))
    is_right = done.code == code and re.search(told, done.out + done.err, re.MULTILINE) and is_error_told
    return [] if is_right and "Traceback" not in done.out + done.err else [f"{shown}; expected {code} and {told!r}"]


def filled(case: Case, server: ServerProcess, directory: Path) -> tuple[str, str]:
    """The command, and the pattern that it must print."""
    files = {
        "wal": "wal/shard-00/wal-*.log",
        "snapshot": "meta/snapshot.*.bin",
        "data": "topics/00000001/*.data",
        "index": "topics/00000001/*.idx",
        "log": "streams/0/topics/0/partitions/0/*.log",
        "message_index": "streams/0/topics/0/partitions/0/*.index",
    }
    names = {name: str(next(directory.glob(pattern), "")) for name, pattern in files.items()}
    return (
        case.command.format(dir=directory, url=server.url, lake="lake", **names),
        (case.told or "").replace("{dir}", re.escape(str(directory))),
    )


def answers(server: ServerProcess) -> dict[str, Any]:
    """All that the server was given before."""
    with topics.Client(server.url) as client:
        found: dict[str, Any] = {
            "records": [(record.seq, bytes(record.data)) for record in client.read("kept", 0, limit=1000).records],
            "copies": client.state("kept-copied").count,
            "jobs": client.state("kept-jobs").count,
            "group": client.group("kept", "readers"),
        }
    if has_streams(server):
        with peer(server) as one:
            found["messages"] = one.poll("s", "t").payloads
    return found


def test_each_command_has_a_case() -> None:
    complete = covered(case for case in AT_A_SERVER if case.told is not None)
    # A server is what the others are run against.
    assert [words for words in commands() if words not in complete] == [("serve",)]
    live = covered([*AT_A_LIVE_DIRECTORY, *ON_SPARK])
    assert [words for words in commands_with_a_directory() if words not in live] == []


def test_every_command_does_what_it_says_at_a_running_server(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", server.url)
    found: list[str] = []
    for case in AT_A_SERVER:
        if case.told is not None:
            is_other = has_streams(server) and case.told_with_streams is not None
            told, code = (str(case.told_with_streams), 0) if is_other else (case.told, case.code)
            found += wrong(case.command.format(url=server.url), told, code)
    assert not found, "\n\n".join(found)


def test_no_command_harms_a_directory_that_a_server_has_open(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", server.url)
    given, kept = answers(server), unchanging(server.data_dir)
    assert len(given["records"]) == 43
    found: list[str] = []
    for directory, cases in live_cases(server):
        for case in cases:
            command, told = filled(case, server, directory)
            found += wrong(command, told, case.code)
    for case in ON_SPARK:
        if "{dir}" in case.command:
            # Without Java a job ends before it looks at the directory, if it does not refuse it at once.
            command, told = filled(case, server, server.data_dir)
            found += wrong(command, f"{told}|{NO_JAVA}", 1)
    assert not found, "\n\n".join(found)
    assert unchanging(server.data_dir) == kept
    assert answers(server) == given
    server.kill()
    server.start()
    assert answers(server) == given


def live_cases(server: ServerProcess) -> Iterator[tuple[Path, Iterable[Case]]]:
    yield server.data_dir, AT_A_LIVE_DIRECTORY
    if has_streams(server):
        yield server.data_dir / "streams", AT_LIVE_STREAMS


def unchanging(directory: Path) -> dict[str, bytes]:
    """The files that a server does not write to while it only answers, and the names beside them."""
    found = {str(path): path.read_bytes() for path in directory.rglob("*.data")}
    for folder in (directory, directory / "streams"):
        for path in folder.glob("*"):
            found[str(path)] = path.read_bytes() if path.is_file() else b""
    return found
