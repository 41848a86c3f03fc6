"""A Spark cluster of two hosts on this machine: a master, and workers at two loopback addresses.

Spark starts a speculative attempt on another host only, so executors at one address never get one.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Final, Self

import pyspark

START_S_MAX: Final = 120.0
_LOOK_S: Final = 0.2
_HOSTS: Final = ("127.0.0.2", "127.0.0.3")


class TwoHosts:
    """`url` is for the master of a session. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            ports = ("--port", "0", "--webui-port", "0")
            master = "org.apache.spark.deploy.master.Master"
            said = self._start("master", "Starting Spark master at ", master, "--host", "127.0.0.1", *ports)
            self.url = said.split()[0]
            for host in _HOSTS:
                size = ("--cores", "2", "--memory", "1g", "--work-dir", str(self._folder / host))
                worker = ("org.apache.spark.deploy.worker.Worker", "--host", host, *ports, *size, self.url)
                self._start(host, "Successfully registered with master ", *worker)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self, name: str, sign: str, *command: str) -> str:
        """Starts a process and waits for its first line; returns the rest of that line."""
        log = self._folder / f"{name}.log"
        environ = os.environ | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(Path(pyspark.__file__).parent / "bin/spark-class"), *command],
                stdout=output,
                stderr=output,
                env=environ,
                cwd=self._folder,
                # With its executors, which are to go with it.
                start_new_session=True,
            )
        self._processes.append(process)
        deadline_s = monotonic() + START_S_MAX
        while sign not in (text := log.read_text(errors="replace")) or "\n" not in text.partition(sign)[2]:
            assert process.poll() is None, text
            assert monotonic() < deadline_s, text
            try:
                process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
        return text.partition(sign)[2].partition("\n")[0]

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
