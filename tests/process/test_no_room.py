"""A real disk that is full, because of its size or because of a limit of the process."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import topics
from tests.process.every_route import Answer, Caller, call_every_route, prepare
from topics import EngineSettings
from topics.errors import StorageFull
from topics.testing.server_process import ServerProcess

SETTINGS = EngineSettings(
    wal_shards=1,
    wal_file_bytes=64 * 1024,
    segment_events_max=50,
    segment_bytes_max=32 * 1024,
    checkpoint_wal_bytes=48 * 1024,
    tail_cache_bytes=0,
)

LIMITED = """
import json
import sys
import topics
from topics.errors import StorageFull
from tests.process.test_no_room import SETTINGS, limit_file_size

limit_file_size(200_000)
log = topics.open(sys.argv[1], settings=SETTINGS)
log.create("a", durability="fsync")
told = {"acked": [], "refused": []}
for number in range(30):
    payload = {"n": number, "pad": "x" * (400_000 if number % 3 == 2 else 3000)}
    try:
        told["acked"].append([log.append("a", [payload]).first_seq, number])
    except StorageFull as error:
        told["refused"].append([number, error.code])
log.checkpoint()
told["readable"] = len(list(log.read_all("a")))
log.close()
print(json.dumps(told))
"""


# Deletes that must look into segment files.
DELETES: list[dict[str, object]] = [
    {"match": ["tag", "Eq", "t-1"]},
    {"match": ["tag", "Glob", "t-*"]},
    {"match": ["tag", "Eq", "t-1"], "before_seq": 40},
    {"before_seq": 31},
]


def limit_file_size(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_file_size_limit_is_no_room_and_no_end_of_the_process(tmp_path: Path) -> None:
    """Writes fail with EFBIG, and SIGXFSZ is ignored. Writes that fit are still taken."""
    directory = str(tmp_path / "data")
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, directory],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        check=True,
        timeout=240,
    )
    told = json.loads(child.stdout)
    assert told["refused"] == [[number, "storage_full"] for number in range(2, 30, 3)]
    assert told["acked"] == [[seq, number] for seq, number in enumerate((n for n in range(30) if n % 3 != 2), 1)]
    assert told["readable"] == 20
    with topics.open(directory, settings=SETTINGS) as log:
        records = list(log.read_all("a"))
        assert [[record.seq, json.loads(record.data)["n"]] for record in records] == told["acked"]
        assert log.append("a", ["x" * 400_000]).first_seq == 21


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root can mount a small tmpfs")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.decode().strip()}")
    yield path
    # Also when a test failed and left files open.
    subprocess.run([unmount, "--lazy", str(path)], check=True)


def test_a_full_disk_refuses_serves_restarts_and_goes_on(small_disk: Path) -> None:
    """Writes fail with a real ENOSPC."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3_500_000))
    directory = small_disk / "data"
    acked: list[int] = []

    def append(log: topics.Log) -> None:
        acked.append(log.append("a", [{"n": len(acked), "pad": "x" * 2000}]).first_seq)

    def fill(log: topics.Log) -> None:
        try:
            while True:
                append(log)
        except StorageFull:
            pass

    def check(log: topics.Log) -> None:
        assert [json.loads(record.data)["n"] for record in log.read_all("a")] == list(range(len(acked)))
        assert acked == list(range(1, len(acked) + 1))

    log = topics.open(directory, settings=SETTINGS)
    log.create("a", durability="fsync")
    fill(log)
    assert len(acked) > 20
    check(log)
    log.close()
    # A start on the full disk reads all records and deletes no file with records.
    log = topics.open(directory, settings=SETTINGS)
    check(log)
    fill(log)
    ballast.unlink()
    # The checkpoint would be tried again in a second. Until then writes that outrun it are refused.
    log.checkpoint()
    for _ in range(20):
        append(log)
    check(log)
    log.close()
    with topics.open(directory, settings=SETTINGS) as log:
        check(log)


def test_on_a_full_disk_every_route_of_the_server_answers_and_none_with_500(small_disk: Path) -> None:
    with ServerProcess(small_disk / "data", wal_shards=1) as server:
        _begin(server)
        ballast = small_disk / "ballast"
        _fill(ballast)
        with Caller(server) as caller:
            _write_until_refused(caller)
            for turn in (1, 2):
                answers = call_every_route(caller, turn)
                _check_no_internal_error(answers)
                assert answers["POST /v0/topics/a/seal"][:2] == (503, "storage_full")
                assert answers["POST /v0/topics/a/stage"][:2] == (503, "storage_full")
                deleted = caller.call("POST", "/v0/topics/a/delete", {"match": ["tag", "Eq", f"t-{turn}"]})
                assert deleted.status in (200, 503)
            ballast.unlink()
            _check_goes_on(server, caller)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of another process is set on Linux only")
def test_without_file_descriptors_every_route_of_the_server_answers_and_none_with_500(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", wal_shards=1) as server:
        _begin(server)
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        with Caller(server) as caller:
            # The server has accepted the connection when it answers.
            before = {name: _count(caller, name) for name in ("a", "held")}
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (0, hard))
            for turn in (1, 2):
                answers = call_every_route(caller, turn)
                _check_no_internal_error(answers)
                for route in ("a/seal", "a/stage", "a/diff", "held/ack"):
                    assert answers[f"POST /v0/topics/{route}"].status == 503, route
                assert answers["POST /v0/topics/a"].status == 200, "an open log needs no descriptor"
                for what in DELETES:
                    refused = caller.call("POST", "/v0/topics/a/delete", what)
                    assert refused[:2] == (503, "cold_unavailable"), what
            assert _count(caller, "a") == before["a"] + 20
            assert _count(caller, "held") == before["held"]
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
            assert caller.call("POST", "/v0/topics/a/delete", {"before_seq": 31}).body["deleted"] == 30
            assert caller.call("POST", "/v0/topics/a/delete", {"match": ["tag", "Eq", "t-1"]}).body["deleted"] == 30
            assert _count(caller, "a") == before["a"] - 40
            _check_goes_on(server, caller)
        server.start()
        with Caller(server) as caller:
            # The third turn has appended 10 records to `a` and acked a job.
            assert _count(caller, "a") == before["a"] - 30
            for _ in range(3):
                # The three jobs that were given back become dead letters. A claim may end at a file that is not open.
                assert caller.call("POST", "/v0/topics/held/claim", {"node": "m"}).body["count"] == 0
            assert _count(caller, "dead") == 3
            assert _count(caller, "held") == before["held"] - 4


def _count(caller: Caller, name: str) -> int:
    count: int = caller.call("GET", f"/v0/topics/{name}").body["count"]
    return count


def _begin(server: ServerProcess) -> None:
    """After a start the records are in files only."""
    with Caller(server) as caller:
        prepare(caller)
    assert server.stop() == 0
    server.start()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _write_until_refused(caller: Caller) -> None:
    while (answer := caller.call("POST", "/v0/topics/a", {"records": [{"data": "x" * 4000}]})).status == 200:
        pass
    assert answer[:2] == (503, "storage_full")


def _check_no_internal_error(answers: dict[str, Answer]) -> None:
    assert {route: answer for route, answer in answers.items() if answer.status >= 500 and answer.status != 503} == {}


def _check_goes_on(server: ServerProcess, caller: Caller) -> None:
    answers = call_every_route(caller, 3)
    assert [route for route, answer in answers.items() if answer.status >= 500] == []
    assert server.stop() == 0
