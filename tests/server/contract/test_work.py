"""Streams of jobs, over both protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.event_streams import EVENT_STREAMS, EventStream
from tests.server.running import Running, running

Work = Callable[..., EventStream]


@pytest.fixture
def work(server: Running, protocol: str) -> Iterator[Work]:
    with ExitStack() as streams:

        def open_one(topic: str, query: str, headers: dict[str, str] | None = None) -> EventStream:
            path = f"/v0/topics/{topic}/work{query}"
            return streams.enter_context(EVENT_STREAMS[protocol]((server.host, server.port), path, headers))

        yield open_one


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    client.put_topic(topic, type="queue")
    return topic


def call(client: Client, queue: str, action: str, **members: Any) -> Any:
    return client.request("POST", f"/v0/topics/{queue}/{action}", members).json


def test_jobs_are_pushed_as_they_come(client: Client, work: Work, queue: str) -> None:
    client.write(queue, records=[{"data": {"n": 1}, "tag": "acme:9", "meta": {"k": "v"}}])
    stream = work(queue, "?node=w-1&max=2")
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-store", "no")
    retry = stream.maybe_next()
    assert retry is not None
    assert (retry.name, retry.data) == ("retry", 2000)
    job = stream.next()
    assert (job.name, job.id) == ("job", "1")
    deadline, ts = job.data.pop("deadline"), job.data.pop("$ts")
    assert deadline - ts > 0
    assert job.data == {
        "topic": queue,
        "$seq": 1,
        "lease_id": "lease_1",
        "$tag": "acme:9",
        "deliveries": 1,
        "data": {"n": 1},
        "meta": {"k": "v"},
    }
    client.write(queue, {"n": 2})
    assert stream.next().data["$seq"] == 2


def test_there_are_never_more_than_max_and_an_ack_makes_room(client: Client, work: Work, queue: str) -> None:
    client.write(queue, *range(5))
    stream = work(queue, "?node=w-1&max=2")
    assert [event.data["$seq"] for event in stream.take(2)] == [1, 2]
    assert client.state(queue)["queue"]["in_flight"] == 2
    assert call(client, queue, "ack", node="w-1", seqs=[1])["acked"] == 1
    assert stream.next().data["$seq"] == 3
    assert call(client, queue, "nack", node="w-1", seqs=[2])["nacked"] == 1
    job = stream.next()
    assert (job.data["$seq"], job.data["deliveries"]) == (2, 2)
    assert client.state(queue)["queue"]["in_flight"] == 2


@pytest.mark.parametrize("query", ["?node=w", "?node=w&max=x", "?node=w&max=0"])
def test_max_is_one_unless_it_says_something_else(client: Client, work: Work, queue: str, query: str) -> None:
    client.write(queue, 1, 2)
    stream = work(queue, query)
    assert stream.next().data["$seq"] == 1
    queue_state = client.state(queue)["queue"]
    assert (queue_state["ready"], queue_state["in_flight"], queue_state["dead_lettered"]) == (1, 1, 0)


def test_a_lease_that_ends_is_pushed_again(client: Client, work: Work, queue: str) -> None:
    client.write(queue, 1)
    stream = work(queue, "?node=w&lease_ms=100")
    assert [event.data["deliveries"] for event in stream.take(2)] == [1, 2]


def test_the_end_of_a_connection_releases_its_jobs_and_no_others(client: Client, work: Work, queue: str) -> None:
    """Invariant 48."""
    client.write(queue, 1, 2, 3)
    assert [job["$seq"] for job in call(client, queue, "claim", node="w", max=1)["claimed"]] == [1]
    stream = work(queue, "?node=w&max=2")
    stream.take(2)
    other = work(queue, "?node=v&max=2")
    stream.close()
    assert [event.data["$seq"] for event in other.take(2)] == [2, 3]
    assert call(client, queue, "ack", node="w", seqs=[1])["acked"] == 1


def test_the_end_of_the_queue_ends_the_stream(client: Client, work: Work, queue: str) -> None:
    client.write(queue, 1)
    stream = work(queue, "?node=w")
    stream.next()
    client.request("DELETE", f"/v0/topics/{queue}")
    (event,) = stream.rest()
    assert (event.name, event.id, event.data["code"], event.data["topic"]) == ("error", None, 409, queue)
    assert event.data["error"]


def test_what_is_wrong_is_told_in_the_order_of_the_contract(client: Client, work: Work, queue: str, topic: str) -> None:
    json_only = {"accept": "application/json"}
    client.put_topic(f"{topic}.log")
    assert work("nowhere", "", json_only).answer.refusal == (406, "not_acceptable")
    assert work("nowhere", "?max=1").answer.refusal == (400, "invalid_request")
    assert work("nowhere", "?node=").answer.refusal == (400, "invalid_request")
    assert work("nowhere", f"?node={'n' * 129}").answer.refusal == (400, "invalid_request")
    assert work("nowhere", "?node=w").answer.refusal == (404, "topic_not_found")
    assert work(f"{topic}.log", "?node=w").answer.refusal == (409, "not_a_queue")


def test_the_server_says_goodbye_and_jobs_are_ready_again(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("q", type="queue", leases_durable=True)
        client.write("q", 1)
        stream = EVENT_STREAMS[protocol]((server.host, server.port), "/v0/topics/q/work?node=w")
        stream.next()
    with stream:
        (event,) = stream.rest()
        assert (event.name, event.id, event.data["code"]) == ("error", None, "server_shutting_down")
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        queue_state = client.state("q")["queue"]
        assert (queue_state["ready"], queue_state["in_flight"], queue_state["dead_lettered"]) == (1, 0, 0)


def test_keys_caps_and_a_key_in_the_query(tmp_path: Path, protocol: str) -> None:
    caps: dict[str, Any] = {"max_sse_connections_per_key": 1, "max_inflight_per_key": 1}
    with running(tmp_path, keys="all,rw:rw:q.,r:read,w:write", **caps) as server:
        address = (server.host, server.port)

        def status(query: str = "", secret: str = "") -> int:
            headers = {"authorization": f"Bearer {secret}"} if secret else {}
            path = f"/v0/topics/q.1/work?node=w{query}"
            with EVENT_STREAMS[protocol](address, path, headers, source_host="127.0.0.7") as stream:
                return stream.status

        with CLIENTS[protocol](*address) as client:
            client.request("PUT", "/v0/topics/q.1", {"type": "queue"}, {"authorization": "Bearer all"})
            assert status() == 401
            assert status("&token=nobody") == 401
            assert (status(secret="r"), status(secret="w")) == (403, 403)
            assert status("&token=rw", "nobody") == 401
            with EVENT_STREAMS[protocol](address, "/v0/topics/q.1/work?node=w&token=rw") as stream:
                assert stream.status == 200
                # A stream does not count as a request of the key, but as one of its streams.
                assert status("&token=rw") == 429
                write = {"records": [{"data": 1}]}
                assert client.request("POST", "/v0/topics/q.1", write, {"authorization": "Bearer rw"}).status == 200
                assert stream.next().data["$seq"] == 1
