"""The processes of a measurement: the server that is measured, the bare server beside it, Redis, Kafka; and their CPU
time.

Everything runs on loopback, one after the other. Figures of one run can be compared with each other, not with figures
of another machine or another time.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, process_time, sleep
from typing import IO, Any, Final

from topics.interpreter import module_command

START_S_MAX: Final = 60
_LOOK_S: Final = 0.005
_DOUBT_S: Final = 1.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_MESSAGE_BYTES: Final = 400
# Any 16 bytes, as Kafka writes them.
_KAFKA_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"


class ProcessFailed(Exception):
    """A process of the measurement ended, or did not start in time. The message has the last line of its stderr."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds of a process: all its threads, without its children.

    `user_s` and `system_s` are in ticks of 10 ms. `total_s` is exact.
    """

    user_s: float
    system_s: float
    total_s: float

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.user_s - other.user_s, self.system_s - other.system_s, self.total_s - other.total_s)

    def each(self, count: float) -> "CpuEach":
        """The share of each of `count` pieces of work."""
        total_us = self.total_s / max(1, count) * 1e6
        ticks_s = self.user_s + self.system_s
        system_us = total_us * self.system_s / ticks_s if ticks_s else 0.0
        return CpuEach(total_us - system_us, system_us)


@dataclass(frozen=True, slots=True)
class CpuEach:
    """CPU microseconds of one piece of work: a request or a delivery."""

    user_us: float
    system_us: float

    @property
    def total_us(self) -> float:
        return self.user_us + self.system_us


def own_cpu_time() -> CpuTime:
    """Of this process, which is often the client."""
    times = os.times()
    return CpuTime(times.user, times.system, process_time())


class Process:
    """A running process with a port. Not thread-safe."""

    def __init__(self, port: int, popen: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.port = port
        self.pid = popen.pid
        self._popen = popen
        self._output = output

    def cpu_time(self) -> CpuTime:
        self.check_running()
        # Fields 14 and 15 of proc_pid_stat(5), in ticks. The second field is a name that may contain blanks.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        user_s, system_s = int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S
        # The time of each thread in ns. The time of threads that have ended is only in the ticks.
        exact_ns = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"))
        return CpuTime(user_s, system_s, max(exact_ns / 1e9, user_s + system_s))

    def check_running(self, *, is_in_doubt: bool = False) -> None:
        """Raises if the process has ended. In doubt, after a broken connection, it gets some time to end."""
        if is_in_doubt:
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(_DOUBT_S)
        if (status := self._popen.poll()) is not None:
            raise ProcessFailed(f"the server ended with status {status}{self._last_output()}")

    def stop(self) -> None:
        """SIGTERM: a server ends its requests and writes a checkpoint. Also for a process that has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As hard as `kill -9`."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        self._popen.send_signal(number)
        self._popen.wait()
        self._output.close()

    def _last_output(self) -> str:
        # By position: the process writes through the same descriptor.
        descriptor = self._output.fileno()
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, _MESSAGE_BYTES, max(0, size - _MESSAGE_BYTES)).decode(errors="replace").strip()
        return f": {text.splitlines()[-1]}" if text else ""

    def resident_mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def request(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.raw_answer(method, path, body).rpartition(b"\r\n\r\n")[2])
        return answer

    def raw_answer(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The whole answer, head and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            head = "".join(f"{name}: {value}\r\n" for name, value in answer.getheaders())
            return f"HTTP/1.1 {answer.status} {answer.reason}\r\n{head}\r\n".encode() + answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.check_running(is_in_doubt=True)
            raise ProcessFailed(f"a request failed: {error!r}") from error
        finally:
            connection.close()


def wake_ups(pid: int) -> int:
    """How often the threads of a process went to sleep and were woken since its start. Linux only."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)$", status.read_text(), re.MULTILINE)
        total += int(found[1]) if found is not None else 0
    return total


def environment(python_path: str | None) -> dict[str, str]:
    """For a process whose package `topics` is in `python_path`, or the package of this process. Without streams: their
    default port may be taken."""
    without_streams = {**os.environ, "TOPICS_STREAMS_PORT": "off"}
    return without_streams | ({} if python_path is None else {"PYTHONPATH": python_path})


@contextmanager
def running_server(directory: str, *, python_path: str | None = None, flags: Sequence[str] = ()) -> Iterator[Process]:
    """A server process on the directory, until the block ends. It is stopped in order, which writes a checkpoint."""
    server = start_server(directory, python_path=python_path, flags=flags)
    with _stopped_at_the_end(server):
        yield server


def start_server(directory: str, *, python_path: str | None = None, flags: Sequence[str] = ()) -> Process:
    """Returns when the server is ready. `kill` or `stop` ends it."""
    port_file = f"{directory}/port"
    command = module_command("topics.cli.entry", "serve", "--port", "0", "--port-file", port_file)
    server = _start(
        [*command, "--data-dir", f"{directory}/data", "--log-level", "error", *flags], port_file, python_path
    )
    _wait_until(lambda: _is_ready(server), server)
    return server


@contextmanager
def running_streams_server(directory: str, *, python_path: str | None = None) -> Iterator[tuple[Process, int]]:
    """A server with streams, and the port of its streams."""
    port_file = f"{directory}/streams-port"
    flags = ("--streams-port", "0", "--streams-port-file", port_file)
    with running_server(directory, python_path=python_path, flags=flags) as server:
        yield server, int(Path(port_file).read_text("utf-8").rpartition(":")[2])


@contextmanager
def running_bare_streams(directory: str) -> Iterator[Process]:
    """The bare receiver and sender of frames."""
    port_file = f"{directory}/bare-port"
    server = _start(module_command("topics.bench.bare_streams", port_file, f"{directory}/bare-file"), port_file, None)
    with _stopped_at_the_end(server):
        yield server


@contextmanager
def running_floor_server(directory: str, answer: bytes, event: bytes = b"") -> Iterator[Process]:
    """The bare server: it answers each request with these bytes, and sends the event to all its streams."""
    for name, content in (("answer", answer), ("event", event)):
        Path(directory, name).write_bytes(content)
    port_file = f"{directory}/floor-port"
    command = module_command("topics.bench.floor_server", port_file, f"{directory}/answer", f"{directory}/event")
    server = _start(command, port_file, None)
    with _stopped_at_the_end(server):
        yield server


def _start(command: list[str], port_file: str, python_path: str | None) -> Process:
    Path(port_file).unlink(missing_ok=True)
    output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process.
    popen = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=output,
        env=environment(python_path),
        # Ctrl+C of a terminal does not reach the server: this process stops it, after its last questions.
        process_group=0,
    )
    server = Process(0, popen, output)
    _wait_until(lambda: os.path.exists(port_file), server)
    server.port = int(Path(port_file).read_text("utf-8").rpartition(":")[2])
    return server


@contextmanager
def _stopped_at_the_end(server: Process) -> Iterator[None]:
    try:
        yield
    finally:
        server.stop()


def _is_ready(server: Process) -> bool:
    return "status" in server.request("GET", "/v0/ready")


def _wait_until(is_so: Callable[[], bool], process: Process) -> None:
    deadline = monotonic() + START_S_MAX
    while not is_so():
        process.check_running()
        if monotonic() > deadline:
            process.kill()
            raise ProcessFailed("a server did not start in time")
        sleep(_LOOK_S)


@contextmanager
def running_redis(directory: str, appendfsync: str) -> Iterator[Process]:
    os.mkdir(directory)
    (port,) = _free_ports(1)
    command = ["redis-server", "--port", str(port), "--dir", directory, "--save", "", "--appendonly", "yes"]
    with _running_peer([*command, "--appendfsync", appendfsync], port) as redis:
        yield redis


@contextmanager
def running_kafka(directory: str, jars: str, *, partitions: int) -> Iterator[Process]:
    """A broker that is its own controller. A write to a new topic creates it with so many partitions."""
    port, controller = _free_ports(2)
    settings = f"{directory}/kafka.properties"
    Path(settings).write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n"
        f"log.dirs={directory}/kafka\noffsets.topic.replication.factor=1\nnum.partitions={partitions}\n"
    )
    java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
    format_storage = [*java, "kafka.tools.StorageTool", "format", "-c", settings, "-t", _KAFKA_CLUSTER_ID]
    subprocess.run(format_storage, check=True, capture_output=True)
    with _running_peer([*java, "kafka.Kafka", settings], port) as kafka:
        yield kafka


@contextmanager
def _running_peer(command: Sequence[str], port: int) -> Iterator[Process]:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process.
    popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    peer = Process(port, popen, output)
    with _stopped_at_the_end(peer):
        _wait_until(lambda: _answers(port), peer)
        yield peer


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


class CpuMeter:
    """CPU time of a server and of the client since it was made."""

    def __init__(self, server: Process) -> None:
        self._server = server
        self._began_s = perf_counter()
        self._server_began = server.cpu_time()
        self._client_began = own_cpu_time()

    def server(self) -> CpuTime:
        return self._server.cpu_time() - self._server_began

    def client_share(self) -> float:
        """CPU seconds of this process per second. Near 1, the client was the limit."""
        return (own_cpu_time() - self._client_began).total_s / (perf_counter() - self._began_s)
