"""A standalone cluster on this machine, from the Spark that pip installs: a master, a worker, a Connect server.

Pip's Spark has no `start-master.sh`. The classes that such scripts start are there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

import pyspark

SPARK_HOME: Final = Path(pyspark.__file__).parent
START_S_MAX: Final = 240
_LOOK_S: Final = 0.05


class Daemon:
    """A process whose output goes to a file."""

    def __init__(self, command: list[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", **(environ or {})},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Its children are its own: an executor ends with its worker.
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Until the output says so; what the pattern's group matched."""
        deadline_s = monotonic() + START_S_MAX
        while (found := re.search(pattern, self._log.read_text(errors="replace"))) is None:
            self.look_again(deadline_s, f"no {pattern!r}")
        return found[1]

    def look_again(self, deadline_s: float, what: str) -> None:
        try:
            status = self._process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            assert monotonic() < deadline_s, f"{what}\n{self._log.read_text(errors='replace')}"
        else:
            raise AssertionError(f"ended with {status}: {what}\n{self._log.read_text(errors='replace')}")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The address of a master with one worker of one core."""
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    package = "org.apache.spark.deploy"
    with ExitStack() as stack:
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = Daemon([spark_class, f"{package}.master.Master", *ports], folder / "master.log", _VERBOSE)
        stack.callback(master.close)
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")
        sizes = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work")]
        worker = Daemon(
            [spark_class, f"{package}.worker.Worker", *ports, *sizes, address], folder / "worker.log", _VERBOSE
        )
        stack.callback(worker.close)
        worker.wait_for(r"(Successfully registered with master)")
        yield address


@contextmanager
def connect_server(folder: Path, master: str) -> Iterator[str]:
    """The address of a Connect server whose tasks run on that cluster."""
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.defaultJavaOptions": os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.pyspark.python": sys.executable,
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    # For Spark it is a daemon, with the memory of one.
    environ = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "700m",
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_LOGS_INFO}",
    }
    server = Daemon(command, folder / "connect.log", environ)
    try:
        port = server.wait_for(r"Spark Connect server started at: \S*?:([1-9][0-9]*)\n")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.close()


# The lines that are waited for are not there at the level that Spark begins with.
_LOG4J: Final = Path(__file__).parent / "log4j2-info.properties"
_LOGS_INFO: Final = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
_VERBOSE: Final = {"SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} {_LOGS_INFO}"}
