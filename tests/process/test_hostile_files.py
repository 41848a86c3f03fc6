"""A FIFO, a device or a symbolic link where the log keeps a file: it is refused by its name. Nothing waits for it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import topics
from tests.process.every_route import Caller, prepare, staged
from topics import EngineSettings
from topics.errors import StartRefused
from topics.testing.server_process import ServerProcess

SETTINGS = EngineSettings(wal_shards=1, segment_events_max=10)

Hostile = Callable[[Path], None]


def _link_to_a_copy(path: Path) -> None:
    """A link to a good file: it may be changed from outside the directory."""
    copy = path.parent.parent / "copy"
    if path.exists():
        shutil.copy(path, copy)
    else:
        copy.touch()
    path.unlink(missing_ok=True)
    path.symlink_to(copy)


def _link_to_a_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.fixture(scope="module")
def good_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "data"
    with topics.open(path, settings=SETTINGS) as log:
        log.append("a", [{"n": n} for n in range(15)])
    return path


@pytest.mark.parametrize("hostile", [_link_to_a_copy, _link_to_a_device, _fifo])
@pytest.mark.parametrize(
    "pattern", ["STORE", ".topics.lock", "meta/snapshot.*.bin", "wal/wal-*.log", "wal/CURRENT", "topics/*/seg-*.data"]
)
def test_a_start_refuses_what_is_not_a_file_and_names_it(
    tmp_path: Path, good_directory: Path, pattern: str, hostile: Hostile
) -> None:
    root = tmp_path / "data"
    shutil.copytree(good_directory, root)
    path = max(root.glob(pattern))
    hostile(path)
    with pytest.raises(StartRefused, match=path.name):
        topics.open(root, settings=SETTINGS)


@pytest.mark.parametrize(
    ("hostile", "kind"),
    [(_link_to_a_copy, "a symbolic link"), (_link_to_a_device, "a symbolic link"), (_fifo, "a FIFO")],
)
def test_an_offered_file_that_is_none_is_refused_and_the_server_stops_at_once(hostile: Hostile, kind: str) -> None:
    with ServerProcess(wal_shards=1) as server, Caller(server) as caller:
        prepare(caller)
        staging = server.data_dir / "staging"
        hostile(staging / "offer.data")
        manifest = caller.call("POST", "/v0/topics/a/manifest", {}).body
        segment = manifest["segments"][0]
        offer = {
            "topic_id": manifest["topic_id"],
            "epoch": manifest["epoch"],
            "first_seq": segment["first_seq"],
            "expect_digest": segment["digest"],
            "data": "offer.data",
            "idx": "offer.idx",
        }
        answer = caller.call("POST", "/v0/admin/segments/replace", offer)
        assert answer[:3] == (400, "invalid_request", f'"offer.data" is {kind}, not a file')
        # The same for staged records whose file was exchanged.
        (chunk,) = staging.glob("*.staged")
        hostile(chunk)
        commit = {"epoch": 1, "topic": "a", "parts": [{"part": 0, "attempt": 0, "chunks": 1, "records": 20}]}
        answer = caller.call("POST", "/v0/writers/w/commit", commit)
        assert answer[:2] == (409, "stage_incomplete")
        assert str(server.data_dir) not in answer.message
        assert caller.call("POST", "/v0/topics/a/stage", staged(1)).status == 200
        assert caller.call("POST", "/v0/writers/w/commit", commit).status == 200
        assert server.stop() == 0


def test_a_start_counts_staged_records_that_are_no_file_as_not_staged() -> None:
    with ServerProcess(wal_shards=1) as server:
        with Caller(server) as caller:
            prepare(caller)
        assert server.stop() == 0
        (chunk,) = (server.data_dir / "staging").glob("*.staged")
        _fifo(chunk)
        server.start()
        assert f"{chunk.name}: is a FIFO, not a file" in server.output
        assert server.stop() == 0
