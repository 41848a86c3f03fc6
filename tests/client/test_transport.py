"""What a client does when the network or the server fails for a while."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from tests.client.faulty_proxy import CUT, DROP, HANG_UP, LOSE, FaultyProxy, answer, faulty_proxy
from tests.server.running import Running, running
from topics.client import Client, Unreachable
from topics.errors import InvalidRequest, Throttled, TopicNotFound, TopicsError, Unauthorized

TOKEN = "sk-9f31c07d5be2"
RECORD = b'[{"data":1}]'
THROTTLED = answer("429 Too Many Requests", b'{"error":{"code":"throttled","message":"later"}}', "Retry-After: 1")
NO_PINS = answer(
    "429 Too Many Requests",
    b'{"error":{"code":"throttled","message":"later","detail":{"pins_max":1000}}}',
    "Retry-After: 1",
)
STOPPING = answer("503 Service Unavailable", b'{"error":{"code":"shutting_down","message":"bye"}}')
BAD_GATEWAY = answer("502 Bad Gateway", b"<html>no upstream</html>")


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
    with Client(server.url) as client:
        name = f"t{len(client.topic_names())}"
        client.put_topic(name)
    return name


@pytest.mark.parametrize("fault", [DROP, LOSE, CUT, BAD_GATEWAY, STOPPING])
def test_a_read_is_asked_again_when_its_answer_does_not_arrive(proxy: FaultyProxy, topic: str, fault: str) -> None:
    proxy.faults = [fault, fault]
    with Client(proxy.url, retries=2) as client:
        assert client.topic(topic).head_seq == 0
    assert len(proxy.asked) == 3


@pytest.mark.parametrize("fault", [DROP, LOSE, CUT, BAD_GATEWAY])
def test_after_its_retries_a_read_ends_with_an_error_that_names_the_server(
    proxy: FaultyProxy, topic: str, fault: str
) -> None:
    proxy.faults = [fault] * 3
    with Client(proxy.url, retries=2) as client, pytest.raises(Unreachable, match=r"does not answer|no upstream"):
        client.topic(topic)
    assert len(proxy.asked) == 3


def test_an_append_without_a_key_is_sent_again_when_the_server_said_that_it_stops(
    proxy: FaultyProxy, topic: str
) -> None:
    """The answer says that nothing was stored. The server may be started again."""
    proxy.faults = [STOPPING, STOPPING]
    with Client(proxy.url, retries=2) as client:
        client.append(topic, RECORD)
        assert client.topic(topic).head_seq == 1
    assert [asked.method for asked in proxy.asked] == ["POST", "POST", "POST", "GET"]


@pytest.mark.parametrize("fault", [LOSE, CUT, BAD_GATEWAY])
def test_an_append_without_a_key_is_never_sent_twice_when_it_may_have_arrived(
    server: Running, proxy: FaultyProxy, topic: str, fault: str
) -> None:
    proxy.faults = [fault]
    with Client(proxy.url, retries=3) as client:
        with pytest.raises(TopicsError):
            client.append(topic, RECORD)
        # Answers that the proxy makes up never reach the server.
        assert client.topic(topic).head_seq == (1 if fault in {LOSE, CUT} else 0)
    assert [asked.method for asked in proxy.asked] == ["POST", "GET"]


def test_an_append_with_a_key_is_sent_again_and_stored_once(proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [LOSE, CUT]
    with Client(proxy.url) as client:
        done = client.append(topic, RECORD, idempotency_key="k")
        assert (done.first_seq, done.deduped) == (1, True)
        assert client.topic(topic).head_seq == 1
    assert [asked.method for asked in proxy.asked] == ["POST", "POST", "POST", "GET"]


def test_an_append_that_was_refused_for_now_is_sent_again_not_before_retry_after(
    proxy: FaultyProxy, topic: str
) -> None:
    proxy.faults = [THROTTLED]
    with Client(proxy.url, retries=1) as client:
        started = monotonic()
        assert client.append(topic, RECORD).first_seq == 1
        assert monotonic() - started >= 1


def test_a_patient_writer_waits_beyond_its_retries_and_others_do_not(proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [THROTTLED]
    with Client(proxy.url, retries=0) as client, pytest.raises(Throttled):
        client.append(topic, RECORD)
    proxy.faults = [THROTTLED]
    with Client(proxy.url, retries=0, throttle_wait_s=60) as client:
        assert client.append(topic, RECORD).first_seq == 1


def test_who_gets_no_pin_hears_so_at_once(proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [NO_PINS]
    with Client(proxy.url) as client, pytest.raises(Throttled):
        client.manifest(topic, pin_ms=1000)
    assert len(proxy.asked) == 1


def test_a_kept_connection_that_the_server_closed_is_no_failure(proxy: FaultyProxy, topic: str) -> None:
    proxy.faults = [HANG_UP, HANG_UP, HANG_UP]
    with Client(proxy.url, retries=0) as client:
        assert client.topic(topic).head_seq == 0
        assert client.topic(topic).head_seq == 0
        # On a connection that breaks it is unknown whether such a request arrived.
        assert client.append(topic, RECORD).first_seq == 1
        assert client.topic(topic).head_seq == 1
    assert len(proxy.asked) == 4


def test_connections_are_kept_and_shared_by_threads(proxy: FaultyProxy, topic: str) -> None:
    with Client(proxy.url) as client, ThreadPoolExecutor(4) as pool:
        assert {state.topic for state in pool.map(client.topic, [topic] * 60)} == {topic}
    assert len(proxy.asked) == 60
    assert 1 <= proxy.connection_count <= 4


def test_a_server_that_is_not_there_is_named_and_an_append_is_tried_again(topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = f"^http://127.0.0.1:{port} does not answer: "
    with Client(f"http://127.0.0.1:{port}", retries=1) as client, pytest.raises(Unreachable, match=said):
        client.append(topic, RECORD)


def test_a_server_that_says_nothing_is_left_when_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, timeout_s=0.05, retries=1) as client, pytest.raises(Unreachable, match="timed out"):
            client.health()


def test_an_answer_of_something_else_is_not_taken_for_one_of_ours(proxy: FaultyProxy) -> None:
    proxy.faults = [answer("200 OK", b"<html>hello</html>")]
    with Client(proxy.url) as client, pytest.raises(Unreachable, match="is not a server of topics"):
        client.health()


def test_errors_come_as_their_classes_with_what_the_server_said(server: Running) -> None:
    with Client(server.url) as client, pytest.raises(TopicNotFound) as caught:
        client.topic("nowhere")
    assert "nowhere" in caught.value.message
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "endpoint",
    ["localhost:4000", "ftp://host", "http://", "http://user:pa55word@host", "http://host/path", "http://host:port"],
)
def test_an_endpoint_that_is_none_is_refused_without_showing_it(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="the endpoint") as caught:
        Client(endpoint)
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("token", ["", f"{TOKEN}\n", f"{TOKEN} {TOKEN}", f"{TOKEN}ä"])
def test_a_token_that_no_header_can_hold_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidRequest, match="token") as caught:
        Client("http://localhost:4000", token=token)
    assert TOKEN not in str(caught.value)


def test_no_text_has_the_token_in_it(tmp_path: Path) -> None:
    with running(tmp_path, keys=f"{TOKEN}x:read") as server, Client(server.url, token=TOKEN) as client:
        with pytest.raises(Unauthorized) as refused:
            client.topic("t")
        assert TOKEN not in f"{refused.value} {refused.value!r} {vars(refused.value)} {client!r}"
        url = server.url
    with Client(url, token=TOKEN, retries=0) as client, pytest.raises(Unreachable) as gone:
        client.topic("t")
    assert TOKEN not in f"{gone.value} {gone.value!r} {gone.value.__cause__!r}"


def test_a_token_is_sent_with_every_request(tmp_path: Path) -> None:
    with running(tmp_path, keys=f"{TOKEN}:read+write+admin") as server, Client(server.url, token=TOKEN) as client:
        client.put_topic("t")
        assert client.append("t", RECORD).first_seq == 1
        assert client.topic_names() == ["t"]
