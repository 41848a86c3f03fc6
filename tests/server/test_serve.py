"""A start: when clients can connect, and what a start that fails leaves behind."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from topics.embedded.async_log import open_for_loop
from topics.engine.starting.opened import OpenEngine
from topics.errors import SettingsError, StartRefused
from topics.server import serve
from topics.server.event_loop import new_event_loop
from topics.server.serve import Address, Server
from topics.server.settings_schema import ServerSettings


class Start:
    """A server whose recovery lasts until `recover` is set."""

    def __init__(self, data_dir: Path, error: Exception | None = None, port: int = 0) -> None:
        self.recover = threading.Event()
        self.accepting = asyncio.Event()
        self.is_ready = False
        self._error = error
        self.server = Server(ServerSettings(data_dir=str(data_dir), port=port), open_log=self._open)
        self._data_dir = str(data_dir)

    def _open(self, loop: asyncio.AbstractEventLoop, progress: Callable[[float], None]) -> OpenEngine:
        self.recover.wait()
        if self._error is not None:
            raise self._error
        return open_for_loop(self._data_dir, loop)

    async def begin(self) -> asyncio.Task[None]:
        self.server.listen()
        return asyncio.ensure_future(self.server.start(self._note_accepting, self._note_ready))

    def _note_accepting(self, http: Address, streams: Address | None) -> None:
        self.accepting.set()

    def _note_ready(self, http: Address, streams: Address | None) -> None:
        self.is_ready = True

    async def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, Any]:
        connection = HTTPConnection(*self.server.address, timeout=30)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


WRITE = ("POST", "/v0/topics/orders", '{"records":[{"data":1}]}')


def test_who_waited_for_health_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects before the log is recovered waits."""
    monkeypatch.setattr(serve, "ACCEPT_AFTER_S", 3600.0)

    async def work() -> None:
        start = Start(tmp_path)
        starting = await start.begin()
        early = asyncio.ensure_future(start.ask("GET", "/v0/health"))
        with socket.create_connection(start.server.address):
            start.recover.set()
        await starting
        assert start.is_ready
        assert (await early)[0] == 200
        assert (await start.ask(*WRITE))[0] == 201
        await start.server.stop()

    run(work())


def test_a_long_recovery_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "ACCEPT_AFTER_S", 0.0)

    async def work() -> None:
        start = Start(tmp_path)
        starting = await start.begin()
        await start.accepting.wait()
        assert (await start.ask("GET", "/v0/health"))[0] == 200
        status, refusal = await start.ask(*WRITE)
        assert (status, refusal["error"]["code"], start.is_ready) == (503, "not_ready", False)
        start.recover.set()
        await starting
        assert (await start.ask(*WRITE))[0] == 201
        await start.server.stop()

    run(work())


def test_a_start_that_fails_accepts_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        start = Start(tmp_path, StartRefused("the log is damaged"))
        start.recover.set()
        with pytest.raises(StartRefused):
            await (await start.begin())
        assert not start.accepting.is_set()
        assert not start.is_ready
        await start.server.stop()
        with pytest.raises(ConnectionRefusedError):
            await start.ask("GET", "/v0/health")

    run(work())


def test_a_taken_port_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            start = Start(tmp_path / "data", port=taken.getsockname()[1])
            with pytest.raises(
                SettingsError,
                match="Address already in use; stop the server that uses it, or choose",
            ):
                await start.begin()
        assert not (tmp_path / "data").exists()

    run(work())
