"""What both clients do when the network or the server fails for a while, is slow, or stops and starts again."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import topics
from tests.browser.relay import Relay
from tests.client.every_log import client_of, worker_of
from tests.client.faulty_proxy import CUT, DROP, HANG_UP, LOSE, Fault, FaultyProxy, answer, faulty_proxy
from tests.conftest import sampled_range
from tests.embedded.other_threads import wait_until
from tests.server.running import Running, running
from topics import Unreachable
from topics.errors import (
    Closed,
    Forbidden,
    InvalidRequest,
    NotFound,
    Throttled,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)
from topics.server.api.work import job_event_text
from topics.testing.server_process import ServerProcess

TOKEN = "sk-9f31c07d5be2"
LATER = b'{"error":{"code":"throttled","message":"later"}}'
THROTTLED = answer("429 Too Many Requests", LATER, "Retry-After: 1")
THROTTLED_LONG = answer("429 Too Many Requests", LATER, "Retry-After: 3600")
NO_PINS = answer(
    "429 Too Many Requests",
    b'{"error":{"code":"throttled","message":"later","detail":{"pins_max":1000}}}',
    "Retry-After: 1",
)
STOPPING = answer("503 Service Unavailable", b'{"error":{"code":"shutting_down","message":"bye"}}')
BAD_GATEWAY = answer("502 Bad Gateway", b"<html>no upstream</html>")
REPLACEMENT = {"topic_id": 999_999, "epoch": 1, "first_seq": 1, "expect_digest": "x", "data": "a", "idx": "b"}


@pytest.fixture(params=["client", "async client"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("data")) as running_server:
        yield running_server


@pytest.fixture
def proxy(server: Running) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.url) as made:
        yield made


@pytest.fixture
def topic(server: Running) -> str:
    """A new one for each test."""
    with topics.Client(server.url) as client:
        name = f"t{len(client.topics())}"
        client.create(name)
    return name


def methods(proxy: FaultyProxy) -> list[str]:
    return [asked.method for asked in proxy.asked]


# One call.


@pytest.mark.parametrize("fault", [DROP, LOSE, CUT, BAD_GATEWAY, STOPPING])
def test_a_read_is_asked_again_when_its_answer_does_not_arrive(
    kind: str, proxy: FaultyProxy, topic: str, fault: str
) -> None:
    proxy.faults = [fault, fault]
    with client_of(kind, proxy.url, retries=2) as client:
        assert client.state(topic).head_seq == 0
    assert len(proxy.asked) == 3


@pytest.mark.parametrize("fault", [LOSE, BAD_GATEWAY])
def test_after_its_retries_a_read_ends_with_an_error_that_names_the_server(
    kind: str, proxy: FaultyProxy, topic: str, fault: str
) -> None:
    proxy.faults = [fault] * 3
    said = r"does not answer|no upstream"
    with client_of(kind, proxy.url, retries=2) as client, pytest.raises(Unreachable, match=said):
        client.state(topic)
    assert len(proxy.asked) == 3


@pytest.mark.parametrize("fault", [LOSE, CUT, BAD_GATEWAY, STOPPING])
def test_an_append_is_sent_again_and_stored_once_without_a_key_of_the_caller(
    kind: str, proxy: FaultyProxy, topic: str, fault: str
) -> None:
    proxy.faults = [fault, fault]
    with client_of(kind, proxy.url) as client:
        assert client.append(topic, [1]).first_seq == 1
        assert client.state(topic).head_seq == 1
    assert methods(proxy) == ["POST", "POST", "POST", "GET"]
    first, second, third, _ = proxy.asked
    assert first.body == second.body == third.body


def test_a_call_that_is_not_safe_to_repeat_is_never_sent_twice_when_it_may_have_arrived(
    kind: str, proxy: FaultyProxy
) -> None:
    proxy.faults = [LOSE]
    with client_of(kind, proxy.url, retries=3) as client, pytest.raises(Unreachable):
        client.replace_segment(**REPLACEMENT)
    proxy.faults = [STOPPING]
    with client_of(kind, proxy.url, retries=3) as client, pytest.raises(InvalidRequest):
        # The server said that it did nothing.
        client.replace_segment(**REPLACEMENT)
    assert len(proxy.asked) == 3


def test_a_call_that_was_refused_for_now_is_sent_again_not_before_retry_after(
    kind: str, proxy: FaultyProxy, topic: str
) -> None:
    proxy.faults = [THROTTLED]
    with client_of(kind, proxy.url, retries=1) as client:
        started = monotonic()
        assert client.append(topic, [1]).first_seq == 1
        assert monotonic() - started >= 1


def test_a_patient_writer_waits_beyond_its_retries_and_others_do_not(kind: str, proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [THROTTLED]
    with client_of(kind, proxy.url, retries=0) as client, pytest.raises(Throttled):
        client.append(topic, [1])
    proxy.faults = [THROTTLED]
    with client_of(kind, proxy.url, retries=0, throttle_wait_s=60) as client:
        assert client.append(topic, [1]).first_seq == 1


def test_no_try_begins_after_the_deadline(kind: str, proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [THROTTLED_LONG]
    with client_of(kind, proxy.url, deadline_s=60) as client, pytest.raises(Throttled):
        client.append(topic, [1])
    proxy.faults = [THROTTLED_LONG]
    with topics.Client(proxy.url) as client, pytest.raises(Throttled):
        client.with_options(deadline_s=60).append(topic, [1])
    assert len(proxy.asked) == 2


def test_a_reader_that_gets_no_pin_hears_so_at_once(kind: str, proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [NO_PINS]
    with client_of(kind, proxy.url) as client, pytest.raises(Throttled):
        client.manifest(topic, pin_ms=1000)
    assert len(proxy.asked) == 1


def test_a_kept_connection_that_the_server_closed_is_no_failure(kind: str, proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [HANG_UP, HANG_UP, HANG_UP]
    with client_of(kind, proxy.url, retries=0) as client:
        assert client.state(topic).head_seq == 0
        assert client.state(topic).head_seq == 0
        assert client.append(topic, [1]).first_seq == 1
        with pytest.raises(InvalidRequest):
            client.replace_segment(**REPLACEMENT)
    assert len(proxy.asked) == 4


def test_connections_are_kept_and_shared(kind: str, proxy: FaultyProxy, topic: str) -> None:
    with client_of(kind, proxy.url) as client, ThreadPoolExecutor(4) as pool:
        assert {state.topic for state in pool.map(client.state, [topic] * 60)} == {topic}
    assert len(proxy.asked) == 60
    assert 1 <= proxy.connection_count <= 4


def test_a_server_that_is_not_there_is_named(kind: str) -> None:
    # A port that nobody else can take, and that does not listen.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = f"^{url} does not answer: "
        with client_of(kind, url, retries=1) as client:
            with pytest.raises(Unreachable, match=said):
                client.append("t", [1])
            with pytest.raises(Unreachable, match=said):
                next(client.tail("t"))


def test_a_server_that_says_nothing_is_left_when_the_time_is_over(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with client_of(kind, url, timeout_s=0.05, retries=1) as client, pytest.raises(Unreachable, match="timed out"):
            client.health()
        with client_of(kind, url, deadline_s=0.1, retries=99) as client, pytest.raises(Unreachable, match="timed out"):
            client.health()


@pytest.mark.parametrize(
    "fault",
    [answer("200 OK", b"<html>hello</html>"), b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nno length"],
)
def test_an_answer_of_something_else_is_not_taken_for_one_of_ours(kind: str, proxy: FaultyProxy, fault: bytes) -> None:
    proxy.faults = [fault]
    with client_of(kind, proxy.url, retries=0) as client, pytest.raises(Unreachable):
        client.health()


def test_errors_come_as_their_classes_with_what_the_server_said(kind: str, server: Running) -> None:
    with client_of(kind, server.url) as client:
        with pytest.raises(TopicNotFound) as caught:
            client.state("nowhere")
        assert "nowhere" in caught.value.message
        assert (caught.value.status, caught.value.detail) == (404, {"topic": "nowhere"})
        with pytest.raises(TopicNotFound):
            next(client.tail("nowhere"))
        with pytest.raises(TopicNotFound):
            client.work("nowhere", "w")


def test_a_closed_client_says_so(kind: str, server: Running) -> None:
    with client_of(kind, server.url) as client:
        client.health()
        client.close()
        with pytest.raises(Closed):
            client.health()


@pytest.mark.parametrize(
    "url",
    ["localhost:4000", "ftp://host", "http://", "http://user:pa55word@host", "http://host/path", "http://host:port"],
)
def test_an_address_that_is_none_is_refused_without_showing_it(url: str) -> None:
    for client in (topics.Client, topics.AsyncClient):
        with pytest.raises(InvalidRequest, match="the endpoint") as caught:
            client(url)
        assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("token", ["", f"{TOKEN}\n", f"{TOKEN} {TOKEN}", f"{TOKEN}ä"])
def test_a_token_that_no_header_can_hold_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidRequest, match="token") as caught:
        topics.Client("http://localhost:4000", token=token)
    assert TOKEN not in str(caught.value)


def test_a_token_is_sent_with_every_request_and_is_in_no_text(kind: str, tmp_path: Path) -> None:
    keys = f"{TOKEN}:read+write+admin,{TOKEN}x:read"
    with running(tmp_path, keys=keys) as server:
        with client_of(kind, server.url, token=TOKEN) as client:
            client.create("t", type="queue")
            assert client.append("t", [1]).first_seq == 1
            assert [record.seq for record in client.tail("t", wait_ms=0)] == [1]
            with pytest.raises(Forbidden):
                client.drop("t")
            assert TOKEN not in f"{client!r}"
        with client_of(kind, server.url, token=f"{TOKEN}y") as client, pytest.raises(Unauthorized) as refused:
            client.state("t")
        assert TOKEN not in f"{refused.value} {refused.value!r} {vars(refused.value)}"
        url = server.url
    with client_of(kind, url, token=TOKEN, retries=0) as client, pytest.raises(Unreachable) as gone:
        client.state("t")
    assert TOKEN not in f"{gone.value} {gone.value!r} {gone.value.__cause__!r}"


# Streams.

SESSION = answer(
    "200 OK",
    b'{"wid":"w","stream_url":"/v0/watch/w","session_ttl_ms":1,"performance":{"server_total_ms":0},'
    b'"topics":{"t":{"from_seq":0,"head_seq":1,"earliest_seq":1}}}',
)
RECORD = (
    b'event: record\ndata: {"topic":"t","records":[{"$seq":1,"$ts":1,"data":1}],'
    b'"from_seq":0,"to_seq":1,"head_seq":1}\n\n'
    b'event: caught-up\ndata: {"topic":"t","head_seq":1}\n\n'
)
JOB = job_event_text("q", topics.Job(1, 1, None, b"1", None, 1, 1, 1))
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_SESSION = answer("404 Not Found", b'{"error":{"code":"not_found","message":"no such watch session"}}')


def paths(proxy: FaultyProxy) -> list[str]:
    return [asked.target.partition("?")[0] for asked in proxy.asked]


def stream_of(events: bytes) -> Fault:
    """A stream of these events that stays open until the client ends it."""

    def send(connection: socket.socket) -> None:
        connection.sendall(EVENTS + b"%x\r\n%b\r\n" % (len(events), events))
        connection.recv(1)

    return send


def broken_stream(connection: socket.socket) -> None:
    connection.sendall(EVENTS + b"8\r\nretry: 1")


def reset_connection(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# What becomes of the request for the stream.
STREAM_FAULTS = {
    "no answer": DROP,
    "reset": reset_connection,
    "bad gateway": BAD_GATEWAY,
    "stopping": STOPPING,
    "session ended": NO_SESSION,
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
@pytest.mark.parametrize("wait_ms", [None, 0])
def test_the_first_stream_of_a_tail_is_asked_for_again(
    kind: str, proxy: FaultyProxy, fault: str, wait_ms: int | None
) -> None:
    failing = [SESSION, STREAM_FAULTS[fault]]
    proxy.faults = [*failing, *failing, SESSION, stream_of(RECORD)]
    with client_of(kind, proxy.url, retries=2) as client:
        tail = client.tail("t", wait_ms=wait_ms)
        assert next(tail).seq == 1
        tail.close()
    # Each stream has a session of its own, which begins where the caller is.
    assert paths(proxy) == ["/v0/watch", "/v0/watch/w"] * 3


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_the_first_stream_of_a_tail_is_an_error_after_the_retries(kind: str, proxy: FaultyProxy, fault: str) -> None:
    proxy.faults = [DROP, SESSION, STREAM_FAULTS[fault], SESSION, STREAM_FAULTS[fault]]
    with client_of(kind, proxy.url, retries=2) as client, pytest.raises(TopicsError) as caught:
        next(client.tail("t"))
    assert caught.value.retriable
    # Requests for sessions and for streams share the retries.
    assert paths(proxy) == ["/v0/watch", *["/v0/watch", "/v0/watch/w"] * 2]


@pytest.mark.parametrize("wait_ms", [None, 0])
def test_a_tail_whose_first_stream_breaks_before_its_first_event_goes_on(
    kind: str, proxy: FaultyProxy, wait_ms: int | None
) -> None:
    proxy.faults = [SESSION, broken_stream, SESSION, broken_stream, SESSION, stream_of(RECORD)]
    with client_of(kind, proxy.url, retries=2) as client:
        tail = client.tail("t", wait_ms=wait_ms)
        assert next(tail).seq == 1
        tail.close()


def test_a_tail_of_limited_time_ends_with_an_error_when_its_streams_break_again_and_again(
    kind: str, proxy: FaultyProxy
) -> None:
    proxy.faults = [SESSION, broken_stream] * 9
    with client_of(kind, proxy.url, retries=2) as client, pytest.raises(Unreachable, match="broke"):
        next(client.tail("t", wait_ms=0))
    assert len(proxy.asked) == 6


@pytest.mark.parametrize("fault", ["no answer", "reset", "bad gateway", "stopping"])
def test_a_stream_of_jobs_is_asked_for_again(kind: str, proxy: FaultyProxy, fault: str) -> None:
    proxy.faults = [STREAM_FAULTS[fault], STREAM_FAULTS[fault], stream_of(JOB)]
    with client_of(kind, proxy.url, retries=2) as client:
        jobs = client.work("q", "w")
        assert next(jobs).seq == 1
        jobs.close()
    proxy.faults = [STREAM_FAULTS[fault]] * 9
    with client_of(kind, proxy.url, retries=2) as client, pytest.raises(TopicsError) as caught:
        client.work("q", "w")
    assert caught.value.retriable
    assert len(proxy.asked) == 6


@pytest.fixture
def relay(server: Running) -> Iterator[Relay]:
    with Relay(server) as made:
        yield made


@pytest.mark.parametrize("count", sampled_range(1200, 149))
def test_a_tail_that_is_cut_anywhere_gives_every_record_once(
    kind: str, relay: Relay, server: Running, topic: str, count: int
) -> None:
    with topics.Client(server.url) as writer, client_of(kind, relay.url) as client:
        writer.append(topic, [{"n": number} for number in range(5)])
        tail = client.tail(topic)
        seen = [next(tail).seq]
        relay.cut_after(count)
        writer.append(topic, [{"n": number} for number in range(5)])
        seen += [next(tail).seq for _ in range(8)]
        relay.cut()
        writer.append(topic, [{"n": 11}])
        seen += [next(tail).seq for _ in range(2)]
        assert seen == list(range(1, 12))
        tail.close()


def test_a_tail_tells_what_was_lost_while_it_was_cut_off(kind: str, relay: Relay, server: Running, topic: str) -> None:
    with topics.Client(server.url) as writer, client_of(kind, relay.url) as client:
        writer.create(topic, cap_records=3)
        writer.append(topic, [1])
        tail = client.tail(topic)
        assert next(tail).seq == 1
        relay.lose_answers()
        writer.append(topic, list(range(9)))
        relay.wait_answered(b"event: record", 2)
        relay.cut()
        lost = next(tail)
        assert lost == topics.Tombstone(2, 7, "cap", 6, 8, 10)
        assert [next(tail).seq for _ in range(3)] == [8, 9, 10]
        tail.close()


def test_a_tail_tells_that_its_topic_was_made_again_or_is_gone(
    kind: str, relay: Relay, server: Running, topic: str
) -> None:
    with topics.Client(server.url) as writer, client_of(kind, relay.url) as client:
        writer.append(topic, [1, 2, 3])
        tail = client.tail(topic)
        assert [next(tail).seq for _ in range(3)] == [1, 2, 3]
        relay.lose_answers()
        writer.drop(topic)
        writer.append(topic, ["new"])
        relay.cut()
        assert next(tail).reason == "recreated"
        assert next(tail).data == b'"new"'
        writer.drop(topic)
        with pytest.raises(TopicNotFound):
            next(tail)


def test_a_tail_goes_on_after_kills_of_the_server(kind: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Relay(server) as relay, client_of(kind, relay.url) as client:
        client.append("t", [1])
        client.append("other", ["x"])
        tail = client.tail("t")
        watch = client.watch({"t": 0, "oth*": "head"})
        assert (next(tail).seq, next(watch).item.seq) == (1, 1)
        for number in range(2):
            server.kill() if number else server.stop()
            server.start()
            relay.cut()
            client.append("t", [number])
            client.append(f"other-{number}", [number])
            assert next(tail).seq == 2 + number
            seen = [next(watch) for _ in range(2)]
            assert sorted((topic, item.seq) for topic, item in seen) == [(f"other-{number}", 1), ("t", 2 + number)]
        tail.close()
        watch.close()


def test_a_watch_sees_new_topics_and_topics_that_go(kind: str, server: Running, relay: Relay, topic: str) -> None:
    with topics.Client(server.url) as writer, client_of(kind, relay.url) as client:
        writer.append(f"{topic}.a", [1])
        watch = client.watch([topic, f"{topic}.*"])
        assert next(watch)[:1] == (f"{topic}.a",)
        writer.append(f"{topic}.b", [topics.NewRecord(2, tag="t")])
        name, record = next(watch)
        assert (name, record.seq, record.tag, record.data) == (f"{topic}.b", 1, "t", b"2")
        writer.drop(f"{topic}.a")
        assert next(watch) == (f"{topic}.a", topics.TopicGone())
        relay.lose_answers()
        writer.drop(f"{topic}.b")
        relay.cut()
        assert next(watch) == (f"{topic}.b", topics.TopicGone())
        watch.close()
        only = client.watch([topic])
        writer.append(topic, [1])
        assert next(only).item.seq == 1
        writer.drop(topic)
        assert [item for _, item in only] == [topics.TopicGone()]


def test_a_tail_ends_when_its_client_is_closed(kind: str, server: Running, topic: str) -> None:
    with client_of(kind, server.url) as client:
        client.append(topic, [1])
        tail = client.tail(topic)
        assert next(tail).seq == 1
        ended: list[Any] = []
        reader = threading.Thread(target=lambda: ended.extend(tail))
        reader.start()
        client.close()
        reader.join(60)
        assert (reader.is_alive(), ended) == (False, [])


def test_a_tail_whose_key_was_taken_away_says_so(kind: str, proxy: FaultyProxy, topic: str) -> None:
    event = b'event: error\ndata: {"code":"unauthorized","message":"the key was removed"}\n\n'
    proxy.faults = [SESSION, stream_of(event)]
    with client_of(kind, proxy.url) as client, pytest.raises(Unauthorized):
        next(client.tail("t"))


def test_jobs_are_pushed_and_ready_again_when_the_stream_ends(kind: str, server: Running, topic: str) -> None:
    with client_of(kind, server.url) as client:
        client.create(f"{topic}-q", type="queue")
        client.append(f"{topic}-q", [1, 2])
        stream = client.work(f"{topic}-q", "w", max_jobs=2)
        jobs = [next(stream), next(stream)]
        client.ack(f"{topic}-q", "w", [jobs[0]])
        stream.close()
        assert [job.seq for job in jobs] == [1, 2]
        (again,) = client.claim(f"{topic}-q", "other", wait_ms=30_000)
        assert (again.seq, again.deliveries) == (2, 2)


NO_ROUTE = answer("404 Not Found", b'{"error":{"code":"not_found","message":"no such route"}}')


@pytest.mark.parametrize("refused", [NO_ROUTE, THROTTLED], ids=["no such route", "throttled"])
def test_a_worker_claims_at_once_where_jobs_cannot_be_pushed(
    kind: str, proxy: FaultyProxy, topic: str, refused: bytes
) -> None:
    proxy.route = lambda asked: refused if "/work" in asked.target else None
    done = threading.Event()
    with client_of(kind, proxy.url) as client:
        client.create(f"{topic}-q", type="queue")
        client.append(f"{topic}-q", [1])
        proxy.asked.clear()
        with worker_of(client, f"{topic}-q", lambda job: done.set()) as worker:
            assert done.wait(60)
        assert worker.done_count == 1
        assert [path.rpartition("/")[2] for path in paths(proxy)[:2]] == ["work", "claim"]


def test_a_worker_survives_stops_and_kills_of_the_server(kind: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Relay(server) as relay, client_of(kind, relay.url) as client:
        client.create("q", type="queue")
        client.append("q", list(range(60)))
        places = {15: threading.Event(), 35: threading.Event(), 60: threading.Event()}
        seen: set[int] = set()

        def handle(job: topics.Job) -> None:
            seen.add(int(job.data))
            for count, event in places.items():
                if len(seen) >= count:
                    event.set()

        with worker_of(client, "q", handle, concurrency=2):
            for place, end in ((15, server.stop), (35, server.kill)):
                assert places[place].wait(60)
                end()
                server.start()
                relay.cut()
            assert places[60].wait(60)
            # A job that was seen may come again: its ack may have been lost with the server.
            wait_until(lambda: client.state("q").count == 0)
        assert seen == set(range(60))


def test_every_error_of_the_tree_has_its_class(server: Running) -> None:
    from topics.client.answers import Answer, error_of
    from topics.protocol.error_codes import ERROR_CODES

    for entry in ERROR_CODES:
        body = b'{"error":{"code":"%b","message":"said","detail":{"a":1}}}' % entry.code.encode()
        error = error_of(Answer(entry.status, {}, body))
        assert (type(error), error.message, error.detail) == (entry.error, "said", {"a": 1})
    unknown = error_of(Answer(418, {}, b'{"error":{"code":"teapot","message":"no"}}'))
    assert (type(unknown), unknown.message) == (TopicsError, "no")
    assert not isinstance(unknown, NotFound)
