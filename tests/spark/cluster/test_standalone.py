"""Our sources on a cluster: client, driver and executors are different processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import topics
from tests.spark.cluster.standalone import connect_server, standalone
from tests.spark.queries import NOT_STARTED
from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

# Spark brings its own; the rest is for developers, and large.
LEFT_OUT = {"pyspark", "__pycache__"} | {
    *("botocore", "cfnlint", "fontTools", "grpc", "hypothesis", "jsonschema_rs", "matplotlib", "moto", "mypy"),
    *("networkx", "PIL", "pillow.libs", "pip", "playwright", "schemathesis", "sympy"),
}
PROGRAM = Path(__file__).with_name("copy_topic.py")
# A master, a worker, a Connect server and an executor are started, each a JVM of its own.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", segment_max_events=50) as running:
        with Client(running.url) as client:
            for name in ("in", "out", "more"):
                client.create(name)
            client.append_encoded("in", json.dumps([{"data": number, "tag": "x"} for number in range(120)]).encode())
            client.seal("in")
            client.append_encoded("in", b'[{"data":120,"tag":"x"}]')
        yield running


def copy(address: str, server: ServerProcess, folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Runs the program, and looks at what it did."""
    is_started = False
    while not is_started:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), address, server.url, str(folder / "checkpoint")],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **(environ or {})},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        is_started = NOT_STARTED not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [121, sum(range(121)), 121, None]
    with Client(server.url) as client:
        out = client.read("out", 0, limit=1000).records
        assert [(bytes(record.data), record.tag) for record in out] == [(b"%d" % n, "x") for n in range(121)]
        assert [bytes(record.data) for record in client.read("more", 0, limit=1000).records] == [b"0", b"1", b"2"]


@pytest.mark.usefixtures("java")
def test_batch_stream_and_write_work_over_connect_on_a_standalone_cluster(
    tmp_path: Path, server: ServerProcess
) -> None:
    with standalone(tmp_path) as master, connect_server(tmp_path, master) as remote:
        copy(remote, server, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_packed_environment_is_all_that_executors_need(tmp_path: Path, server: ServerProcess) -> None:
    """Without pyspark in it, unpacked beside the driver too, because planning runs there."""
    archive = packed_environment(tmp_path)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "env", filter="fully_trusted")
    with standalone(tmp_path) as master:
        environ = {
            "PYSPARK_PYTHON": "./env/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--archives {archive}#env pyspark-shell",
        }
        copy(master, server, tmp_path, environ)


def packed_environment(folder: Path) -> Path:
    """What `venv-pack` makes of an environment: its `bin` and its packages, with ours among them and pyspark not."""
    archive = folder / "env.tar.gz"
    prefix = Path(sys.prefix)
    packages = next((prefix / "lib").glob("python3*")) / "site-packages"

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if LEFT_OUT & set(Path(member.name).parts) or "mypyc" in member.name else member

    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for name in ("python", "python3"):
            packed.add(prefix / "bin" / name, f"bin/{name}")
        packed.add(prefix / "pyvenv.cfg", "pyvenv.cfg")
        place = f"lib/{packages.parent.name}/site-packages"
        packed.add(packages, place, filter=kept)
        source = Path(topics.__file__).parent
        for name in ("topics", "pyspark_topics", "pyspark_topics_streams"):
            packed.add(source.parent / name, f"{place}/{name}", filter=kept)
    return archive
