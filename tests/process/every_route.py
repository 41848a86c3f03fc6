"""One request of every kind that touches a file, on one connection: for tests of servers whose files are in trouble."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple, Self

from topics.testing.server_process import ServerProcess


class Answer(NamedTuple):
    status: int
    code: str
    message: str
    body: dict[str, Any]


class Caller:
    """One connection that stays open: a server without descriptors cannot accept another one."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        self._connection.connect()

    def call(self, method: str, path: str, body: object = None) -> Answer:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        raw = response.read()
        found = json.loads(raw) if raw.startswith(b"{") else {}
        error = found.get("error", {})
        return Answer(response.status, error.get("code", ""), error.get("message", ""), found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def prepare(caller: Caller) -> None:
    """Sealed segments with tags and deletes, a queue, a group, a router, staged records."""
    records = [{"data": {"n": n, "pad": "x" * 100}, "tag": f"t-{n % 3}"} for n in range(60)]
    assert caller.call("PUT", "/v0/topics/a", {"durability": "fsync"}).status < 300
    assert caller.call("PUT", "/v0/topics/jobs", {"type": "queue"}).status < 300
    # Its leases survive a restart, and a start need not open the file of a segment with one record: so jobs are acked
    # whose files are not open.
    held = {"type": "queue", "leases_durable": True, "lease_ms": 3_600_000, "max_deliveries": 1, "dead_letter": "dead"}
    assert caller.call("PUT", "/v0/topics/held", held).status < 300
    for record in records[:6]:
        assert caller.call("POST", "/v0/topics/held", {"records": [record]}).status < 300
        assert caller.call("POST", "/v0/topics/held/seal").status < 300
    assert caller.call("POST", "/v0/topics/held/claim", {"node": "n", "max": 6}).body["count"] == 6
    assert caller.call("POST", "/v0/topics/a", {"records": records}).status < 300
    assert caller.call("POST", "/v0/topics/jobs", {"records": records}).status < 300
    assert caller.call("POST", "/v0/topics/a/seal").status < 300
    assert caller.call("POST", "/v0/topics/a", {"records": records}).status < 300
    assert caller.call("PUT", "/v0/routers/r", {"source": "a", "dest": "copies"}).status < 300
    assert caller.call("PUT", "/v0/topics/a/groups/g", {"seq": 1}).status < 300
    assert caller.call("POST", "/v0/topics/a/stage", staged(1)).status < 300


def staged(epoch: int) -> dict[str, Any]:
    records = [{"data": "x" * 1000} for _ in range(20)]
    return {"writer": "w", "epoch": epoch, "part": 0, "attempt": 0, "chunk": 0, "records": records}


def call_every_route(caller: Caller, turn: int) -> dict[str, Answer]:
    """What each route answers. `turn` makes names that were not used before."""
    manifest = caller.call("POST", "/v0/topics/a/manifest", {}).body
    segment = manifest["segments"][0]
    offer = {
        "topic_id": manifest["topic_id"],
        "epoch": manifest["epoch"],
        "first_seq": segment["first_seq"],
        "expect_digest": segment["digest"],
        "data": "none.data",
        "idx": "none.idx",
    }
    parts = [{"part": 0, "attempt": 0, "chunks": 1, "records": 20}]
    records = [{"data": "x" * 100} for _ in range(10)]
    calls: list[tuple[str, str, object]] = [
        ("PUT", f"/v0/topics/new-{turn}", {"durability": "fsync"}),
        ("POST", "/v0/topics/a", {"records": records}),
        ("POST", "/v0/topics/a/diff", {"from_seq": 0}),
        ("GET", "/v0/topics/a/frames?from_seq=1", None),
        ("POST", "/v0/topics/a/seal", None),
        ("POST", "/v0/topics/a/stage", staged(turn + 1)),
        ("POST", "/v0/writers/w/commit", {"epoch": turn, "topic": "a", "parts": parts}),
        ("POST", "/v0/writers/w/abort", {"epoch": turn + 50}),
        ("PUT", f"/v0/topics/a/groups/g-{turn}", {"seq": 1}),
        ("POST", "/v0/topics/a/groups/g/commit", {"seq": turn + 1}),
        ("GET", "/v0/topics/a/groups/g", None),
        ("POST", "/v0/topics/jobs/claim", {"node": "n", "max": 2}),
        ("POST", "/v0/topics/held/ack", {"node": "n", "seqs": [turn]}),
        ("POST", "/v0/topics/held/nack", {"node": "n", "seqs": [turn + 3]}),
        # The job that was given back is a dead letter now.
        ("POST", "/v0/topics/held/claim", {"node": "m", "max": 1}),
        ("PUT", f"/v0/routers/r-{turn}", {"source": "a", "dest": "copies"}),
        ("POST", "/v0/admin/segments/replace", offer),
        ("GET", "/v0/topics/copies", None),
        ("GET", "/v0/topics/a", None),
        ("GET", "/v0/topics/held", None),
        ("DELETE", f"/v0/topics/new-{turn}", None),
        ("GET", "/v0/metrics", None),
        ("GET", "/v0/health", None),
    ]
    return {f"{method} {path}": caller.call(method, path, body) for method, path, body in calls}
