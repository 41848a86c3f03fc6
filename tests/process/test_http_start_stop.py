"""Start and stop of the real server process: its output, refused starts, and requests that it finishes before it
ends."""

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import Answer, Http1Client
from topics.cli.form import running_form
from topics.testing.server_process import ServerFailed, ServerProcess
from topics.version import VERSION

PATIENCE_S = 60
TRIES_MAX = 5


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


def client(server: ServerProcess) -> Http1Client:
    return Http1Client(server.host, server.port)


def refused(data_dir: Path | None = None, environ: dict[str, str] | None = None, **settings: object) -> str:
    """The output of a server that does not start. Its exit status is 1."""
    with closing(ServerProcess(data_dir, environ=environ, **settings)) as process:
        process.spawn()
        assert process.wait_exit() == 1, process.output
        return process.output


def last_line(output: str) -> str:
    return output.splitlines()[-1]


# Start.


def test_a_start_says_where_it_is_and_what_to_try(server: ServerProcess) -> None:
    lines = [line for line in server.output.splitlines() if not line.startswith("{")]
    url = f"http://127.0.0.1:{server.port}"
    records = """'{"records":[{"data":"hello, world"}]}'"""
    assert lines == [
        f"topics {VERSION} ({running_form()}) listens on {url}",
        f"console          {url}/",
        f"data directory   {server.data_dir}",
        "durability       disk by default: acknowledged writes survive kill -9; topics with fsync survive power loss",
        "access           open: no API keys are set",
        f"try              curl {url}/v0/topics/hello -H 'Content-Type: application/json' -d {records}",
    ]
    assert "every caller has full access" in server.output


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_command_it_says_to_try_works(server: ServerProcess) -> None:
    command = next(line for line in server.output.splitlines() if line.startswith("try")).removeprefix("try").strip()
    done = subprocess.run([*shlex.split(command), "-sSf"], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    with client(server) as reader:
        assert reader.datas("hello") == ["hello, world"]


def test_the_port_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A program that reads the old file while the server starts gets all of it. No other file is left."""
    port_file = tmp_path / "run" / "port"
    port_file.parent.mkdir()
    port_file.write_text("127.0.0.1:1 and more that a new start must not leave\n")
    command = [sys.executable, "-m", "topics.cli.entry", "serve", "--port", "0", "--port-file", str(port_file)]
    with (
        port_file.open() as old,
        subprocess.Popen(
            [*command, "--data-dir", str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        first_line = process.stdout.readline()
        try:
            assert port_file.read_text() == first_line.rpartition("//")[2]
            assert old.read() == "127.0.0.1:1 and more that a new start must not leave\n"
            assert [path.name for path in port_file.parent.iterdir()] == ["port"]
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_environment_is_respected_and_flags_win() -> None:
    environ = {
        "TOPICS_API_KEYS": "sesame:read",
        "TOPICS_MAX_BODY_BYTES": "100",
        "TOPICS_MAX_TOPICS": "1",
        "TOPICS_HOST": "localhost",
        "TOPICS_WAL_SHARD": "1",
    }
    with ServerProcess(environ=environ, max_body_bytes=50, api_keys="sesame") as server, client(server) as caller:
        key = {"authorization": "Bearer sesame"}
        assert caller.request("GET", "/v0/topics").refusal == (401, "unauthorized")
        assert caller.request("POST", "/v0/topics/a", b"x" * 51, key).refusal == (413, "payload_too_large")
        assert caller.request("PUT", "/v0/topics/a", None, key).status == 201
        assert caller.request("PUT", "/v0/topics/b", None, key).refusal == (429, "throttled")
        assert "access           (1 key)" in server.output
        assert "Authorization: Bearer KEY" in server.output
        assert "sesame" not in server.output
        assert "TOPICS_WAL_SHARD is no setting of this server; did you mean TOPICS_WAL_SHARDS?" in server.output


# Starts that are refused.


def test_a_variable_that_does_not_parse_refuses_the_start() -> None:
    said = last_line(refused(environ={"TOPICS_PORT": "47O9"}))
    assert said == 'topics: TOPICS_PORT is "47O9": it must be a whole number from 0 to 65535'


def test_a_second_server_on_the_same_directory_is_refused_and_the_first_goes_on(server: ServerProcess) -> None:
    said = last_line(refused(server.data_dir))
    assert said.startswith(f"topics: {server.data_dir} is in use by process {server.pid} on ")
    assert said.endswith("; stop it first, or choose another data directory")
    with client(server) as writer:
        assert writer.write("orders", 1)["first_seq"] == 1


def test_a_busy_port_is_named(server: ServerProcess) -> None:
    said = refused(port=server.port)
    why = f"cannot listen on 127.0.0.1 port {server.port}: Address already in use"
    assert last_line(said) == f"topics: {why}; stop the server that uses it, or choose another --host or --port"


def test_an_address_that_others_can_reach_needs_keys() -> None:
    for host in ("0.0.0.0", "::", "[::]:0"):
        assert "there are no API keys: set TOPICS_API_KEYS" in last_line(refused(environ={"TOPICS_HOST": host}))


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    said = last_line(refused(port="http", tls_cert=tmp_path / "none.pem"))
    assert '--port is "http"' in said
    assert "tls_cert and tls_key belong together" in said


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"cannot use the data directory {tmp_path}/file/data: " in last_line(refused(tmp_path / "file" / "data"))


def test_damage_refuses_the_start_and_doctor_mends_it(tmp_path: Path) -> None:
    """A record that was synced is damaged."""
    data_dir = tmp_path / "data"
    with ServerProcess(data_dir, wal_shards=1) as server, client(server) as writer:
        writer.put_topic("orders", durability="fsync")
        for number in range(1, 6):
            writer.write("orders", f"payload {number}")
        server.kill()
    log = next(path for path in data_dir.rglob("wal-*.log") if b"payload 2" in path.read_bytes())
    log.write_bytes(log.read_bytes().replace(b"payload 2", b"payload X"))

    said = last_line(refused(data_dir, wal_shards=1))
    assert said.startswith(f"topics: {log}: damaged at offset ")
    assert said.endswith("run `topics doctor` on the data directory to see what can be saved")

    doctor = [sys.executable, "-m", "topics.cli.entry", "doctor", str(data_dir), "--repair", "--yes"]
    mended = subprocess.run(doctor, capture_output=True, timeout=PATIENCE_S, check=False)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    with ServerProcess(data_dir, wal_shards=1) as server, client(server) as reader:
        assert reader.datas("orders")[:1] == ["payload 1"]
        assert "payload X" not in reader.datas("orders")


# Recovery.


def answers_while_recovering(server: ServerProcess) -> list[Answer]:
    """What a server answers that recovers until it is stopped. None if it gave up meanwhile: it waits for the lock for
    five seconds, and a busy machine may take longer to ask."""
    probes = [("GET", "/v0/health"), ("GET", "/v0/ready"), ("GET", "/v0/metrics")]
    others = [("GET", "/v0/topics"), ("PUT", "/v0/topics/a"), ("POST", "/v0/topics/orders/diff")]
    answers: list[Answer] = []
    server.spawn()
    try:
        server.wait_listening()
        with client(server) as caller:
            answers = [caller.request(method, path) for method, path in probes + others]
        assert not server.is_ready()
    except (ServerFailed, OSError, HTTPException):
        # It has ended.
        pass
    if server.stop() == 0:
        assert "stopped while recovering" in server.output
        return answers
    assert "is in use by process" in server.output
    return []


def test_while_recovering_only_probes_and_metrics_answer_and_a_stop_leaves_everything_as_it_was() -> None:
    """Recovery waits for the lock of the directory, as for a worker of a killed server that still ends."""
    with ExitStack() as stack, ServerProcess() as server:
        with client(server) as writer:
            writer.write("orders", "before")
        server.kill()
        lock = stack.enter_context((server.data_dir / ".topics.lock").open("r+"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(TRIES_MAX):
            if answers := answers_while_recovering(server):
                break
        health, ready, metrics, *others = answers
        assert health.json["status"] == "ok"
        assert ready.refusal == (503, "not_ready")
        assert 0 <= ready.error["detail"]["replay_progress"] < 1
        assert b"\ntopics_ready 0\n" in metrics.body
        assert [other.refusal for other in others] == [(503, "not_ready")] * 3
        fcntl.flock(lock, fcntl.LOCK_UN)
        server.start()
        with client(server) as reader:
            assert reader.datas("orders") == ["before"]


@pytest.mark.slow
def test_a_large_log_is_replayed_with_progress_and_all_of_it_is_there() -> None:
    batch = {"records": [{"data": "x" * 20}] * 10_000}
    with ServerProcess() as server:
        with client(server) as writer:
            for _ in range(30):
                writer.request("POST", "/v0/topics/orders?return_seqs=false", batch)
        server.kill()
        server.spawn()
        server.wait_listening()
        progress: list[float] = []
        with client(server) as caller:
            while (answer := caller.request("GET", "/v0/ready")).status != 200:
                assert answer.refusal == (503, "not_ready")
                progress.append(answer.error["detail"]["replay_progress"])
            assert caller.state("orders")["count"] == 300_000
    assert progress == sorted(progress)
    assert 0 <= progress[0] <= progress[-1] <= 1


# Stop.


def snapshots(server: ServerProcess) -> list[str]:
    return sorted(path.name for path in (server.data_dir / "meta").glob("snapshot.*.bin"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_with_status_0_and_a_checkpoint(server: ServerProcess, number: signal.Signals) -> None:
    with client(server) as writer:
        for durability in ("memory", "disk", "fsync"):
            writer.put_topic(durability, durability=durability)
            writer.write(durability, f"in {durability}")
    assert snapshots(server) == []
    server.send_signal(number)
    assert server.wait_exit() == 0
    assert snapshots(server) == ["snapshot.0001.bin"]
    assert len(list(server.data_dir.rglob("seg-*.data"))) == 3
    said = server.output.splitlines()
    assert ['"message":"stopping"' in said[-2], '"message":"stopped"' in said[-1]] == [True, True]
    server.start()
    with client(server) as reader:
        assert [reader.datas(durability) for durability in ("memory", "disk", "fsync")] == [
            ["in memory"],
            ["in disk"],
            ["in fsync"],
        ]


def test_ctrl_c_reaches_the_whole_group_and_the_checkpoint_is_written_all_the_same(server: ServerProcess) -> None:
    """A terminal sends the signal to the checkpoint worker too."""
    with client(server) as writer:
        writer.write("orders", 1)
    os.killpg(server.pid, signal.SIGINT)
    assert server.wait_exit() == 0
    assert snapshots(server) == ["snapshot.0001.bin"]


def settle(server: ServerProcess) -> None:
    """When this returns, the server has handled everything that was sent before: its loop has run once."""
    with client(server) as caller:
        for _ in range(3):
            caller.request("GET", "/v0/health")


def test_a_long_poll_under_way_is_answered_by_a_stop(server: ServerProcess) -> None:
    with client(server) as reader, client(server) as idle:
        reader.write("orders", 1)
        assert idle.request("GET", "/v0/health").status == 200
        reader.start("POST", "/v0/topics/orders/diff", {"from_seq": 1, "wait_ms": 30_000})
        settle(server)
        server.send_signal(signal.SIGTERM)
        answer = reader.finish()
        assert answer.headers["connection"] == "close"
        assert (answer.json["records"], answer.json["caught_up"], answer.json["next_from_seq"]) == ([], True, 1)
    assert server.wait_exit() == 0


def test_writes_that_arrive_before_a_stop_are_answered_and_there(server: ServerProcess) -> None:
    """The server is paused, gets its requests, then the signal, and then goes on."""
    with ExitStack() as stack:
        writers = [stack.enter_context(client(server)) for _ in range(20)]
        writers[0].put_topic("orders", durability="fsync")
        for writer in writers:
            writer.request("GET", "/v0/health")
        server.send_signal(signal.SIGSTOP)
        for number, writer in enumerate(writers):
            writer.start("POST", "/v0/topics/orders", {"records": [{"data": number}]})
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGCONT)
        seqs = {writer.finish().json["first_seq"]: number for number, writer in enumerate(writers)}
    assert server.wait_exit() == 0
    server.start()
    with client(server) as reader:
        assert {record["$seq"]: record["data"] for record in reader.diff("orders")["records"]} == seqs


def test_a_request_that_is_complete_only_after_the_stop_began_is_refused_and_not_applied(server: ServerProcess) -> None:
    body = b'{"records":[{"data":1}]}'
    head = b"POST /v0/topics/orders HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    address = (server.host, server.port)
    with client(server) as reader, socket.create_connection(address, timeout=PATIENCE_S) as slow:
        reader.put_topic("orders")
        reader.start("POST", "/v0/topics/orders/diff", {"wait_ms": 30_000})
        slow.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:5])
        settle(server)
        server.send_signal(signal.SIGTERM)
        # The poll is answered when the server has begun to stop.
        assert reader.finish().json["records"] == []
        slow.sendall(body[5:])
        with HTTPResponse(slow, method="POST") as answer:
            answer.begin()
            assert answer.status == 503
            assert answer.headers["connection"] == "close"
            assert json.load(answer)["error"]["code"] == "shutting_down"
    assert server.wait_exit() == 0
    server.start()
    with client(server) as reader:
        assert reader.datas("orders") == []


def test_a_stopped_server_takes_no_new_connections(server: ServerProcess) -> None:
    with client(server) as reader:
        reader.write("orders", 1)
    assert server.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        client(server)


def test_a_stop_under_load_loses_no_answer(server: ServerProcess) -> None:
    """Every answered write is there, and no refused write is there."""
    acked: dict[int, Any] = {}
    with ExitStack() as stack:
        writers = [stack.enter_context(client(server)) for _ in range(8)]
        writers[0].put_topic("orders", durability="fsync")
        rounds = 0
        open_writers = dict(enumerate(writers))
        while open_writers:
            sent = []
            for number, writer in list(open_writers.items()):
                payload = f"{rounds} {number}"
                writer.start("POST", "/v0/topics/orders", {"records": [{"data": payload}]})
                sent.append((number, writer, payload))
            if rounds == 20:
                server.send_signal(signal.SIGTERM)
            for number, writer, payload in sent:
                try:
                    answer = writer.finish()
                except (OSError, ValueError):
                    del open_writers[number]
                    continue
                if answer.status == 200:
                    acked[answer.json["first_seq"]] = payload
                else:
                    assert answer.refusal == (503, "shutting_down")
                if answer.headers.get("connection") == "close":
                    del open_writers[number]
            rounds += 1
    assert server.wait_exit() == 0
    server.start()
    with client(server) as reader:
        found = {record["$seq"]: record["data"] for record in reader.diff("orders", limit=1000)["records"]}
    assert acked.items() <= found.items()
    assert len(acked) >= 160
