"""The shipped server process: real, ready when it says so, and never silent about its end."""

import http.client
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from topics.testing.server_process import ServerFailed, ServerProcess


def call(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    with closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return json.loads(connection.getresponse().read())


def write(server: ServerProcess, data: Any) -> Any:
    return call(server, "POST", "/v0/topics/orders", {"records": [{"data": data}]})


def datas(server: ServerProcess) -> list[Any]:
    return [record["data"] for record in call(server, "POST", "/v0/topics/orders/diff", {})["records"]]


def test_it_serves_when_the_block_begins_and_is_gone_when_it_ends() -> None:
    with ServerProcess() as server:
        assert server.is_ready()
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert write(server, 1)["first_seq"] == 1
        pid, data_dir = server.pid, server.data_dir
        assert data_dir.is_dir()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not data_dir.parent.exists()


def test_the_data_outlives_a_stop_and_a_kill() -> None:
    with ServerProcess() as server:
        write(server, "before the stop")
        assert server.stop() == 0
        server.start()
        write(server, "before the kill")
        server.kill()
        server.start()
        assert datas(server) == ["before the stop", "before the kill"]


def test_a_data_directory_of_the_caller_stays(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        write(server, 1)
    with ServerProcess(tmp_path / "data") as server:
        assert datas(server) == [1]


def test_settings_reach_it_and_those_of_the_tests_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_BATCH_RECORDS", "1")
    with ServerProcess(max_record_bytes=10, environ={"TOPICS_MAX_TAG_BYTES": "3"}, probe_auth=False) as server:
        assert call(server, "POST", "/v0/topics/a", {"records": [{"data": 1}, {"data": 2}]})["count"] == 2
        assert write(server, "x" * 20)["error"]["code"] == "record_too_large"
        answer = call(server, "POST", "/v0/topics/a", {"records": [{"data": 1, "tag": "long"}]})
        assert answer["error"]["code"] == "invalid_request"


def test_a_start_that_fails_says_what_the_server_said() -> None:
    with pytest.raises(ServerFailed, match=r"(?s)ended with status 1: it has not opened its port\n.*--max-topics"):
        ServerProcess(max_topics="many").__enter__()


def test_a_process_that_ends_while_it_is_waited_for_is_told_with_its_output() -> None:
    with ServerProcess() as server:
        server.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert not server.is_ready()
        with pytest.raises(ServerFailed, match=r"(?s)ended with status -9: it is not ready\n.*listens on"):
            server.wait_ready()


def test_a_process_that_hangs_is_told_with_its_output() -> None:
    with ServerProcess() as server:
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(ServerFailed, match=r"(?s)does not end\n.*listens on"):
            server.wait_exit(timeout_s=0.01)
        server.kill()
