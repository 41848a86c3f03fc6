"""A claim that waits for a job."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.conftest import Connect
from tests.server.readers import wait_for_readers
from tests.server.running import Running, running
from topics.server import app

WAIT_MS = 30_000
DAY_MS = 86_400_000


@pytest.fixture
def worker(connect: Connect) -> Client:
    """A second connection."""
    return connect()


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    client.put_topic(topic, type="queue")
    return topic


def start_waiting(server: Running, worker: Client, queue: str, node: str = "w", count: int = 1, **members: Any) -> None:
    worker.start("POST", f"/v0/topics/{queue}/claim", {"node": node, "wait_ms": WAIT_MS} | members)
    wait_for_readers(server, count)


def call(client: Client, queue: str, verb: str, **members: Any) -> Any:
    return client.request("POST", f"/v0/topics/{queue}/{verb}", {"node": "w"} | members).json


def seqs(answer: Any) -> list[int]:
    return [job["$seq"] for job in answer["claimed"]]


def test_a_worker_gets_the_next_job(server: Running, client: Client, worker: Client, queue: str) -> None:
    start_waiting(server, worker, queue, max=5)
    client.write(queue, "a", "b")
    answer = worker.finish().json
    assert (seqs(answer), answer["count"], answer["ready"]) == ([1, 2], 2, 0)
    assert not server.server.app.waiting


def test_a_worker_does_not_wait_while_there_is_a_job(client: Client, queue: str) -> None:
    client.write(queue, "a")
    assert seqs(call(client, queue, "claim", max=5, wait_ms=WAIT_MS)) == [1]


def test_a_wait_that_ends_gives_no_job(client: Client, queue: str) -> None:
    answer = call(client, queue, "claim", wait_ms=1)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)


def test_workers_get_jobs_in_the_order_in_which_they_came(
    server: Running, connect: Connect, client: Client, queue: str
) -> None:
    workers = [connect() for _ in range(3)]
    for number, worker in enumerate(workers):
        start_waiting(server, worker, queue, f"w{number}", number + 1, max=2)
    client.write(queue, "a")
    assert seqs(workers[0].finish().json) == [1]
    client.write(queue, "b", "c", "d")
    assert [seqs(worker.finish().json) for worker in workers[1:]] == [[2, 4], [3]]


def test_a_worker_that_goes_away_takes_no_job(
    server: Running, connect: Connect, client: Client, worker: Client, queue: str
) -> None:
    start_waiting(server, worker, queue, "gone")
    other = connect()
    start_waiting(server, other, queue, count=2)
    worker.close()
    wait_for_readers(server, 1)
    client.write(queue, "a")
    answer = other.finish().json
    assert (seqs(answer), answer["claimed"][0]["deliveries"]) == ([1], 1)


@pytest.mark.parametrize("protocol", ["h2c"])
def test_a_job_whose_answer_was_not_sent_when_the_client_went_away_is_ready_at_once(
    client: Client, worker: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is large, and the client goes away while it is compressed. Over HTTP/1.1 the end of what a client
    sends does not say that it is gone."""
    begun, gate = threading.Event(), threading.Event()
    deflate = app.deflate

    def gated(body: bytes, rest: Sequence[bytes] = ()) -> bytes:
        begun.set()
        assert gate.wait(60)
        return deflate(body, rest)

    monkeypatch.setattr(app, "deflate", gated)
    client.write(queue, "x" * 900_000)
    worker.start("POST", f"/v0/topics/{queue}/claim", {"node": "gone", "lease_ms": DAY_MS}, {"accept-encoding": "gzip"})
    assert begun.wait(60)
    worker.close()
    claimed = call(client, queue, "claim", wait_ms=WAIT_MS)["claimed"]
    gate.set()
    assert [job["$seq"] for job in claimed] == [1]


def test_a_lease_or_a_delay_that_ends_wakes_a_worker(client: Client, worker: Client, queue: str) -> None:
    client.write(queue, "a")
    call(client, queue, "claim", node="v", lease_ms=100)
    claimed = call(worker, queue, "claim", wait_ms=WAIT_MS)["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 2)]
    call(client, queue, "nack", seqs=[1], delay_ms=100)
    claimed = call(worker, queue, "claim", wait_ms=WAIT_MS)["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in claimed] == [(1, 3)]


def test_a_queue_that_is_deleted_meanwhile_is_not_found(
    server: Running, client: Client, worker: Client, queue: str
) -> None:
    start_waiting(server, worker, queue)
    client.request("DELETE", f"/v0/topics/{queue}")
    assert worker.finish().refusal == (404, "topic_not_found")


@pytest.mark.parametrize("wait_ms", [-1, 1.5, "5", None, 2**32])
def test_a_wait_of_the_wrong_type_is_refused(client: Client, queue: str, wait_ms: Any) -> None:
    answer = client.request("POST", f"/v0/topics/{queue}/claim", {"node": "w", "wait_ms": wait_ms})
    assert answer.refusal == (400, "invalid_request")


def test_a_log_topic_refuses_a_claim_that_waits(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.request("POST", f"/v0/topics/{topic}/claim", {"node": "w", "wait_ms": WAIT_MS})
    assert answer.refusal == (409, "not_a_queue")


def test_workers_are_answered_when_the_server_stops(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("q", type="queue")
        # The first claim of a queue waits for a sync; later ones wait for jobs only.
        call(client, "q", "claim")
        worker = CLIENTS[protocol](server.host, server.port)
        start_waiting(server, worker, "q")
    with worker:
        answer = worker.finish()
    assert (answer.status, answer.json["claimed"]) == (200, [])
