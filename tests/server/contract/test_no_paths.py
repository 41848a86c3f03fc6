"""Answers of a server whose file system fails name no path of its machine, on any route that reads or writes files."""

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import Answer, Http1Client
from tests.server.contract.test_storage_errors import Disk
from tests.server.ws_peer import ws_client
from topics.storage.fs import RealFs
from topics.testing.fault_fs import FaultFs, Operation

RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
CHUNK: dict[str, Any] = {"writer": "w", "epoch": 2, "part": 0, "attempt": 0, "chunk": 0, **RECORDS}
PARTS = [{"part": 0, "attempt": 0, "chunks": 1, "records": 1}]

READS: tuple[Operation, ...] = ("open", "pread", "map", "exists", "size", "listdir")
WRITES: tuple[Operation, ...] = ("create", "pwrite", "pwritev", "truncate", "preallocate", "fdatasync", "fsync")
NAMES: tuple[Operation, ...] = ("makedirs", "rename", "unlink", "rmdir", "sync_dir")

# Reads come first: after a failed write the log refuses changes.
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v0/topics/a/diff", {"from_seq": 3}),
    ("POST", "/v0/topics/a/diff", {"from_seq": 17}),
    ("GET", "/v0/topics/a/frames?from_seq=2", None),
    ("GET", "/v0/topics/a", None),
    ("GET", "/v0/metrics", None),
    ("POST", "/v0/topics/q/claim", {"node": "n"}),
    ("POST", "/v0/topics/a/stage", CHUNK),
    ("POST", "/v0/writers/w/commit", {"epoch": 1, "topic": "a", "parts": PARTS}),
    ("POST", "/v0/admin/segments/replace", None),
    ("POST", "/v0/topics/a/delete", {"match": "nothing*"}),
    ("POST", "/v0/topics/a", RECORDS),
    ("POST", "/v0/topics/a/seal", None),
    ("POST", "/v0/topics/a", RECORDS),
    ("PUT", "/v0/topics/new", {}),
    ("PUT", "/v0/routers/r", {"source": "a", "dest": "b"}),
    ("POST", "/v0/topics/b/diff", {}),
    ("POST", "/v0/topics/a/groups/g/commit", {"seq": 1}),
    ("DELETE", "/v0/topics/a", None),
    ("GET", "/v0/ready", None),
]


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("operations", [READS, WRITES, NAMES], ids=["reads", "writes", "names"])
def test_no_answer_names_a_path(tmp_path: Path, operations: tuple[Operation, ...], error: int) -> None:
    disk = Disk(tmp_path)
    disk.fill(20)
    faults = FaultFs(RealFs())
    answers: list[Answer] = []
    with disk.served(faults) as server, Http1Client(server.host, server.port) as client:
        client.put_topic("q", type="queue")
        client.write("q", 1)
        client.request("POST", "/v0/topics/a/stage", CHUNK | {"epoch": 1})
        client.request("PUT", "/v0/topics/a/groups/g", {"from": "start"})
        manifest = client.request("POST", "/v0/topics/a/manifest").json
        (sealed,) = [entry for entry in manifest["segments"] if entry["sealed"] and entry["tier"] == "hot"][-1:]
        replace = {"topic_id": manifest["topic_id"], "epoch": manifest["epoch"], "first_seq": sealed["first_seq"]}
        replace |= {"expect_digest": sealed["digest"], "data": "a.data", "idx": "a.idx"}
        faults.fail(*operations, error=error, lasts=True)
        for method, path, body in CALLS:
            answers.append(client.request(method, path, replace if path.endswith("/replace") else body))
        with ws_client(server) as socket:
            told = socket.ask("publish", request_id=1, topic="a", **RECORDS)
        faults.heal()
    failed = [answer for answer in answers if answer.status >= 400]
    assert failed, "the fault struck"
    for answer in failed:
        assert str(tmp_path).encode() not in answer.body
    assert str(tmp_path) not in str(told)


@pytest.mark.parametrize("damaged", ["*.data", "*.idx"])
def test_no_answer_names_a_path_of_a_damaged_or_missing_file(tmp_path: Path, damaged: str) -> None:
    for content in (None, b"", b"\0" * 4096):
        disk = Disk(tmp_path / f"{content is None}-{len(content or b'')}")
        disk.fill(20)
        with disk.served(RealFs()) as server, Http1Client(server.host, server.port) as client:
            for folder in (disk.data / "topics", disk.cold):
                for path in folder.rglob(damaged):
                    if content is None:
                        path.unlink()
                    else:
                        path.write_bytes(content)
            for method, path, body in CALLS[:5]:
                answer = client.request(method, path, body)
                assert answer.status < 300 or str(tmp_path).encode() not in answer.body


def test_the_operator_finds_the_path_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path)
    disk.fill(20)
    faults = FaultFs(RealFs())
    with disk.served(faults) as server, Http1Client(server.host, server.port) as client:
        faults.fail("open", "pread", "map", lasts=True, path=lambda path: path.startswith(str(disk.cold)))
        answer = client.request("POST", "/v0/topics/a/diff", {"from_seq": 3})
        assert answer.refusal == (503, "cold_unavailable")
        assert answer.error["message"] == (
            'records of topic "a" from seq 4 on cannot be read now: the cold tier does not answer'
        )
        faults.heal()
    (logged,) = [record for record in caplog.records if record.message == "a request failed because of the server"]
    assert str(disk.cold) in str(vars(logged)["fields"])
