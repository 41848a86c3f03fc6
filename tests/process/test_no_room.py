"""A real disk that is full, because of its size or because of a limit of the process."""

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
from topics import EngineSettings
from topics.errors import StorageFull

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
told["readable"] = len(list(log.records("a")))
log.close()
print(json.dumps(told))
"""


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
        timeout=60,
    )
    told = json.loads(child.stdout)
    assert told["refused"] == [[number, "storage_full"] for number in range(2, 30, 3)]
    assert told["acked"] == [[seq, number] for seq, number in enumerate((n for n in range(30) if n % 3 != 2), 1)]
    assert told["readable"] == 20
    with topics.open(directory, settings=SETTINGS) as log:
        records = list(log.records("a"))
        assert [[record.seq, json.loads(record.data)["n"]] for record in records] == told["acked"]
        assert log.append("a", ["x" * 400_000]).first_seq == 21


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("only root can mount a small tmpfs")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.decode().strip()}")
    yield path
    # Also when a test failed and left files open.
    subprocess.run([unmount, "--lazy", str(path)], check=True)


def test_a_full_disk_refuses_serves_restarts_and_goes_on(small_disk: Path) -> None:
    """Writes fail with a real ENOSPC."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_500_000))
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
        assert [json.loads(record.data)["n"] for record in log.records("a")] == list(range(len(acked)))
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
