"""Commands that are called before the server is up."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from docs_build.recording import free_port
from tests.server.running import running
from topics.cli.remote.starting import _may_be_starting
from topics.client.retrying import Unreachable
from topics.errors import NotReady, TopicsError, Unauthorized

TOPICS = [sys.executable, "-m", "topics.cli.entry"]


class Terminal:
    """A command whose messages go to a terminal."""

    def __init__(self, *arguments: str, url: str) -> None:
        self._screen, theirs = pty.openpty()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._process = subprocess.Popen(
            [*TOPICS, *arguments], env={**environ, "TOPICS_URL": url}, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._screen, 1)
        return line.decode().strip()

    def end(self) -> int:
        os.close(self._screen)
        return self._process.wait(60)


def test_a_command_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = Terminal("topic", "create", "orders", url=url)
    assert command.read_line() == f"topics: waiting up to 10 s for {url} to start (--no-wait: do not)"
    with running(tmp_path, port=port):
        assert command.read_line() == 'topic "orders" is created'
        assert command.end() == 0


def test_a_command_waits_for_a_recovery(tmp_path: Path) -> None:
    with running(tmp_path, recovers=False) as server:
        command = Terminal("topic", "create", "orders", url=server.url)
        assert command.read_line().startswith("topics: waiting up to 10 s")
        server.call(server.server.recover())
        assert command.read_line() == 'topic "orders" is created'
        assert command.end() == 0


@pytest.mark.parametrize("command", [["topic", "ls", "--no-wait"], ["check"]])
def test_a_command_that_does_not_wait_fails_at_once(command: list[str]) -> None:
    terminal = Terminal(*command, url=f"http://127.0.0.1:{free_port()}")
    assert "no server listens on" in terminal.read_line()
    assert terminal.end() != 0


@pytest.mark.parametrize(
    ("url", "error", "is_awaited"),
    [
        ("http://127.0.0.1:4000", ConnectionRefusedError(), True),
        ("http://localhost:4000", ConnectionRefusedError(), True),
        ("http://[::1]:4000", ConnectionRefusedError(), True),
        ("http://10.0.0.1:4000", ConnectionRefusedError(), False),
        ("http://topics.example:4000", ConnectionRefusedError(), False),
        ("http://127.0.0.1:4000", TimeoutError(), False),
    ],
)
def test_only_a_server_of_this_machine_that_refuses_connections_may_be_starting(
    url: str, error: Exception, is_awaited: bool
) -> None:
    unreachable = Unreachable("no answer")
    unreachable.__cause__ = error
    assert _may_be_starting(unreachable, url) == is_awaited


@pytest.mark.parametrize(("error", "is_awaited"), [(NotReady(0.5), True), (Unauthorized("no key"), False)])
def test_a_recovery_is_awaited_on_every_machine(error: TopicsError, is_awaited: bool) -> None:
    assert _may_be_starting(error, "http://topics.example:4000") == is_awaited
