"""The `EventSource` of a browser on a watch stream: the events that it gets, and how it goes on after a failure.

`TOPICS_SCREENSHOT=/tmp/watch.png` saves a picture of the page with every kind of event.
"""

import os
import random
import re
import socket
from collections.abc import Callable, Iterator

import pytest

import topics
from tests.browser.conftest import skip_without_chromium
from tests.browser.relay import Relay
from tests.browser.watch_page import Row, WatchPage
from tests.server.clients import Http1Client
from topics.protocol.sse import decode_cursor
from topics.testing.server_process import ServerProcess

skip_without_chromium()

# Below the ports that the system gives to clients, so no client takes the port while the server is down.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for all tests that do not restart it. Each test uses other topics."""
    with ServerProcess(environ={"TOPICS_TEST_MIN_HEARTBEAT_MS": "1"}) as process:
        yield process


@pytest.fixture
def relay(server: ServerProcess) -> Iterator[Relay]:
    with Relay(server) as relay:
        yield relay


def client(server: ServerProcess) -> Http1Client:
    return Http1Client(server.host, server.port)


def wait_stream_count(observer: Http1Client, count: int) -> None:
    """Repeats the question until the answer is true. The time limit of the tests ends it."""
    accept_json = {"accept": "application/json"}
    while observer.request("GET", "/v0/metrics", headers=accept_json).json["sse_connections"] != count:
        pass


def record(topic: str, seq: int, data: str) -> Row:
    return Row(topic, str(seq), "record", data)


def caught_up(topic: str, head_seq: int) -> Row:
    return Row(topic, str(head_seq), "caught-up", "")


def numbered(last: int) -> list[tuple[int, str]]:
    """Expected records of a topic in which each payload is its seq."""
    return [(seq, str(seq)) for seq in range(1, last + 1)]


# Events that the browser gets.


def test_every_kind_of_event_arrives_under_its_name_and_in_order(server: ServerProcess, page: WatchPage) -> None:
    with client(server) as writer:
        writer.put_topic("capped", cap_records=2)
        writer.write("capped", "gone", "gone too", {"id": 3}, "ünï\ncode")
        writer.write("kinds", 1)
        page.follow(server.url, {"capped": {}, "kinds": {"tail": True}})
        page.wait_row("capped", "4", "caught-up")
        page.wait_row("kinds", "1", "caught-up")
        writer.write("kinds", 2, None)
        page.wait_row("kinds", "3", "caught-up")
        assert writer.request("DELETE", "/v0/topics/capped").status == 200
        page.wait_row("capped", "", "topic-deleted")
        writer.write("kinds", [4])
        page.wait_row("kinds", "4", "caught-up")
    # Each topic has its order. Between the two there is none.
    assert sorted(page.rows, key=lambda row: row.topic) == [
        Row("capped", "1–2", "tombstone", "from_seq_too_old"),
        record("capped", 3, '{"id":3}'),
        record("capped", 4, '"ünï\\ncode"'),
        caught_up("capped", 4),
        Row("capped", "", "topic-deleted", "deleted"),
        caught_up("kinds", 1),
        record("kinds", 2, "2"),
        record("kinds", 3, "null"),
        caught_up("kinds", 3),
        record("kinds", 4, "[4]"),
        caught_up("kinds", 4),
    ]
    if path := os.environ.get("TOPICS_SCREENSHOT"):
        page.screenshot(path)


def test_two_thousand_records_arrive_once_and_in_order_while_they_are_written(
    server: ServerProcess, page: WatchPage
) -> None:
    with client(server) as writer:
        writer.write("many", *range(1, 1001))
        page.follow(server.url, {"many": {}}, limit=100)
        for first in range(1001, 2001, 20):
            writer.write("many", *range(first, first + 20))
    page.wait_row("many", "2000", "caught-up")
    assert page.records("many") == numbered(2000)


def test_heartbeats_reach_the_browser_and_are_no_events(server: ServerProcess, relay: Relay, page: WatchPage) -> None:
    with client(server) as writer:
        writer.write("beats", 1)
        page.follow(relay.url, {"beats": {}}, heartbeat_ms=20)
        relay.wait_answered(b": hb ", count=5)
        writer.write("beats", 2)
    page.wait_row("beats", "2", "caught-up")
    assert page.rows == [
        record("beats", 1, "1"),
        caught_up("beats", 1),
        record("beats", 2, "2"),
        caught_up("beats", 2),
    ]
    assert len(page.stream_urls) == 1


def test_a_page_of_another_origin_sees_nothing(server: ServerProcess, relay: Relay, page: WatchPage) -> None:
    """The same server under another port is another origin."""
    with client(server) as writer:
        writer.write("private", 1)
        stream_url = writer.request("POST", "/v0/watch", {"topics": {"private": {}}}).json["stream_url"]
    page.page.goto(f"{relay.url}/v0/health")
    outcome = page.page.evaluate(
        """url => new Promise((resolve) => {
            const source = new EventSource(url);
            source.addEventListener("record", () => resolve("a record"));
            source.onerror = () => resolve(source.readyState === EventSource.CLOSED ? "refused" : "tries again");
        })""",
        server.url + stream_url,
    )
    assert outcome == "refused"


# How the browser goes on after a failure.


def test_what_a_broken_connection_lost_is_sent_again_to_the_browser_that_names_its_last_id(
    server: ServerProcess, relay: Relay, page: WatchPage
) -> None:
    """The server has sent all events. Only the last event id of the browser shows that some are missing."""
    with client(server) as writer:
        writer.write("lost", 1, 2)
        page.follow(relay.url, {"lost": {}})
        page.wait_row("lost", "2", "caught-up")
        relay.lose_answers()
        writer.write("lost", 3)
        relay.wait_answered(b'"$seq":3,')
        relay.cut()
        writer.write("lost", 4)
        page.wait_row("lost", "4", "caught-up")
    assert page.records("lost") == numbered(4)
    assert page.session_count == 1
    sent_ids = re.findall(rb"(?i)\r\nlast-event-id: *([^\r]*)\r\n", relay.sent)
    assert [decode_cursor(sent_id) for sent_id in sent_ids] == [{"lost": 2}]


@pytest.mark.parametrize(
    ("end", "errors"),
    [
        pytest.param(ServerProcess.kill, [], id="kill"),
        pytest.param(ServerProcess.stop, ["server_shutting_down"], id="stop", marks=pytest.mark.slow),
    ],
)
def test_a_page_goes_on_after_a_restart_without_loss_or_repeat(
    page: WatchPage, end: Callable[[ServerProcess], object], errors: list[str]
) -> None:
    """A restart ends all sessions. The browser tries until the server is back and learns that its session is gone. The
    page starts a new session from the last event."""
    with ServerProcess(port=free_port()) as server:
        with client(server) as writer:
            writer.put_topic("orders")
            writer.write("stock", 1, 2, 3)
            page.follow(server.url, {"orders": {"tail": True}, "stock": {}})
            page.wait_row("stock", "3", "caught-up")
            for number in range(1, 201):
                writer.write("orders", number)
        # The number of events that have come by now does not matter.
        end(server)
        with topics.open(server.data_dir) as log:
            log.append("orders", list(range(201, 251)))
        page.wait_refused()
        server.start()
        with client(server) as writer:
            for number in range(251, 301):
                writer.write("orders", number)
            page.wait_row("orders", "300", "caught-up")
            writer.write("stock", 4)
            page.wait_row("stock", "4", "caught-up")
    assert page.records("orders") == numbered(300)
    assert page.records("stock") == numbered(4)
    assert page.session_count == 2
    assert [row.data for row in page.rows if row.kind == "error"] == errors


def test_with_keys_each_stream_is_opened_with_a_ticket_and_no_key_stands_in_a_url(page: WatchPage) -> None:
    """A ticket is valid once: the second try of the browser is refused, and the page makes a new session."""
    keys = {"TOPICS_API_KEYS": "dashboard-secret:read:orders,writer-secret"}
    with ServerProcess(environ=keys) as server, Relay(server) as relay, client(server) as writer:

        def write(*datas: int) -> None:
            body = {"records": [{"data": data} for data in datas]}
            headers = {"authorization": "Bearer writer-secret"}
            assert writer.request("POST", "/v0/topics/orders", body, headers).json["count"] == len(datas)

        write(1, 2)
        page.follow(relay.url, {"orders": {}}, key="dashboard-secret")
        page.wait_row("orders", "2", "caught-up")
        relay.cut()
        write(3)
        page.wait_row("orders", "3", "caught-up")
        assert page.records("orders") == numbered(3)
        assert page.session_count == 2
        # The first try, the second try, and the try of the second session.
        assert len(page.stream_urls) == 3
        assert all("?token=ticket_" in url for url in page.stream_urls)


# How a stream ends.


def test_closing_a_page_ends_its_stream_on_the_server(server: ServerProcess, page: WatchPage) -> None:
    with client(server) as writer:
        writer.put_topic("closed")
        page.follow(server.url, {"closed": {}})
        page.wait_row("closed", "0", "caught-up")
        wait_stream_count(writer, 1)
        page.page.close()
        wait_stream_count(writer, 0)
