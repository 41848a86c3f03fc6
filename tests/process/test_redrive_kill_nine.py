"""A real server is killed during redrives: no job is lost, and none is in two topics."""

from __future__ import annotations

import http.client
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FULL
from topics.testing.server_process import ServerProcess

KILLS = 20 if FULL else 2
JOBS = 3000
# Slow enough for a kill in the middle, with a batch every tenth of a second, also on a machine that stalls for a while.
RATE = 400


def ask(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    try:
        headers = {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        read = json.loads(answer.read())
        assert answer.status < 300, read
        return read
    finally:
        connection.close()


def redrive_until_the_server_dies(server: ServerProcess, source: str, dest: str) -> None:
    try:
        ask(server, "POST", f"/v0/topics/{source}/redrive", {"to": dest, "rate": RATE})
    except (OSError, http.client.HTTPException):
        pass


def jobs_in(server: ServerProcess, topic: str) -> list[int]:
    found: list[int] = []
    from_seq = 0
    while True:
        page = ask(server, "POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": 1000})
        found += [record["data"] for record in page["records"]]
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            return found


@pytest.mark.timeout(900 if FULL else 300)
def test_every_job_is_in_one_queue_after_any_kill(tmp_path: Path) -> None:
    choice = random.Random(16)
    with ServerProcess(tmp_path / "data", wal_shards=2) as server:
        for name, durability in (("a", "disk"), ("b", "fsync")):
            ask(server, "PUT", f"/v0/topics/{name}", {"type": "queue", "durability": durability})
        for first in range(0, JOBS, 1000):
            ask(server, "POST", "/v0/topics/a", {"records": [{"data": first + number} for number in range(1000)]})
        cut_short = 0
        for kill in range(KILLS):
            # Back and forth, so that every run has jobs to move.
            source, dest = ("a", "b") if kill % 2 == 0 else ("b", "a")
            moving = threading.Thread(target=redrive_until_the_server_dies, args=(server, source, dest))
            before = ask(server, "GET", f"/v0/topics/{dest}")["count"]
            moving.start()
            wanted = before + choice.randrange(1, JOBS // 3)
            while ask(server, "GET", f"/v0/topics/{dest}")["count"] < min(wanted, JOBS):
                pass
            server.kill()
            moving.join()
            server.start()
            left, moved = jobs_in(server, source), jobs_in(server, dest)
            assert sorted(left + moved) == list(range(JOBS)), (len(left), len(moved))
            cut_short += bool(left and moved)
        assert cut_short, "no kill came in the middle of a redrive"
        done = ask(server, "POST", "/v0/topics/a/redrive", {"to": "b"})
        assert done["stopped"] == "end"
        assert (jobs_in(server, "a"), sorted(jobs_in(server, "b"))) == ([], list(range(JOBS)))
