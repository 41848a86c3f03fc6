"""A real server for tests: a process `topics serve` on a free port, with a separate data directory.

    with ServerProcess() as server:
        print(server.url)  # http://127.0.0.1:41923
        server.kill()  # as hard as `kill -9`
        server.start()  # the same data again, on another port

Nothing of it is simulated: what a test sees is what users of the server see. It waits for the port file, then for
`GET /v0/ready`, both without a pause that a test would have to guess. For plain HTTP: readiness is not asked over TLS.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Final, Self

from topics.interpreter import module_command

START_S_MAX: Final = 60.0
# A server gives its running requests ten seconds.
STOP_S_MAX: Final = 60.0
_LOOK_S: Final = 0.005


class ServerFailed(Exception):
    """The process ended unexpectedly, or was too slow. The message has its output."""


class ServerProcess:
    """One data directory, and one process at a time that serves it. Not thread-safe.

    `settings` are settings of the server by name, such as `max_topics=10`; a wrong one ends the start. Settings from
    outside (the environment of the tests, a `topics.toml` where they run) do not reach it, so that tests are the same
    everywhere; `environ` is added to its environment as it is. Without `data_dir` there is a temporary one, removed at
    the end.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="topics-server-")
        folder = Path(self._folder.name)
        self.data_dir = folder / "data" if data_dir is None else Path(data_dir).absolute()
        self.port_file = folder / "port"
        self.streams_port_file = folder / "streams-port"
        self.host = ""
        self.port = 0
        # By the environment, which is weaker than flags, so that a test may set these, too.
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._environ |= {"TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(self.data_dir)}
        self._environ |= {"TOPICS_STREAMS_PORT_FILE": str(self.streams_port_file), **(environ or {})}
        self._flags = [_flag(name, value) for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        """`host:port`, as in the port file."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def streams_address(self) -> str:
        """`host:port` for clients of Apache Iggy, of a server that was started with `streams_port=0`."""
        return self.streams_port_file.read_text("utf-8").strip()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def output(self) -> str:
        """What the process of the last start has written so far, to stdout and stderr."""
        if self._output is None:
            return ""
        # By position: the process writes through the same descriptor, and its place must stay where it is.
        descriptor = self._output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    # Start.

    def start(self) -> Self:
        """Starts the process and waits until it is ready. Raises `ServerFailed` with its output if it ends instead."""
        self.spawn()
        self.wait_listening()
        self.wait_ready()
        return self

    def spawn(self) -> None:
        """Starts the process and waits for nothing."""
        assert self._process is None, "one process at a time holds a data directory"
        # The port file of an earlier process must not be taken for the one of this process.
        self.port_file.unlink(missing_ok=True)
        self.streams_port_file.unlink(missing_ok=True)
        self._close_output()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as a test may ask for the output.
        self._process = subprocess.Popen(
            module_command("topics.cli.entry", "serve", f"--port-file={self.port_file}", *self._flags),
            cwd=self._folder.name,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            # Ctrl+C in the terminal of the tests must not reach the server.
            start_new_session=True,
        )

    def wait_listening(self, timeout_s: float = START_S_MAX) -> None:
        """Until the port is open. Recovery may still be running: then requests are answered `503 not_ready`."""
        deadline_s = monotonic() + timeout_s
        while not self.port_file.exists():
            self._look_again(deadline_s, "it has not opened its port")
        host, _, port = self.port_file.read_text("utf-8").strip().rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)

    def wait_ready(self, timeout_s: float = START_S_MAX) -> None:
        """Until recovery is done."""
        deadline_s = monotonic() + timeout_s
        while not self.is_ready():
            self._look_again(deadline_s, "it is not ready")

    def is_ready(self) -> bool:
        """Whether requests are served now. A probe that needs a key (`probe_auth`) counts as ready once it answers."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=START_S_MAX)
        try:
            connection.request("GET", "/v0/ready")
            return connection.getresponse().status != 503
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _look_again(self, deadline_s: float, what: str) -> None:
        try:
            status = self._running().wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            if monotonic() < deadline_s:
                return
            raise ServerFailed(self._told(f"the server is too slow: {what}")) from None
        raise ServerFailed(self._told(f"the server ended with status {status}: {what}"))

    # Stop.

    def send_signal(self, number: int) -> None:
        self._running().send_signal(number)

    def wait_exit(self, timeout_s: float = STOP_S_MAX) -> int:
        """Waits until the process has ended; its exit status, negative for a signal."""
        try:
            status = self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(self._told("the server does not end")) from None
        self._process = None
        return status

    def stop(self) -> int:
        """SIGTERM: the server ends its requests and writes a checkpoint. Its exit status, 0 when all went well."""
        self.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def kill(self) -> None:
        """SIGKILL: the process is gone at once, with whatever it was doing."""
        process, self._process = self._running(), None
        process.kill()
        process.wait()

    def kill_after(self, seconds: float) -> bool:
        """Kills the process after that time, unless it has ended with status 0 before; whether it was killed."""
        try:
            status = self.wait_exit(seconds)
        except ServerFailed:
            self.kill()
            return True
        if status:
            raise ServerFailed(self._told(f"the server ended with status {status}"))
        return False

    def close(self) -> None:
        """Kills the process if it is still running, and removes the temporary folder."""
        if self._process is not None:
            self.kill()
        self._close_output()
        self._folder.cleanup()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def _close_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def _told(self, what: str) -> str:
        return f"{what}\n{self.output}"


def _flag(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"
