"""Streams that share their frames: each gets exactly its own records, over every protocol, from its own place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.server.clients import CLIENTS, H2C, HTTP1, Client
from tests.server.event_streams import EVENT_STREAMS, EventStream
from tests.server.running import Running
from tests.server.ws_peer import WsClient, ws_client

NODES = ("n0", "n1", "n2", "n3", None)


class Wanted(NamedTuple):
    """What a watcher asks for."""

    node: list[str]
    include_tags: bool
    start: int

    def of(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Its records, as the log has them with their tags."""
        return [
            {name: value for name, value in record.items() if name != "$tag" or self.include_tags}
            for record in records
            if record["$seq"] > self.start and record.get("$node") not in self.node
        ]


WANTED = [Wanted(*one) for one in product([[], ["n0"], ["n1"], ["n0", "n2"]], [False, True], [0, 7, 9])]


@pytest.fixture
def http(server: Running) -> Iterator[Client]:
    with CLIENTS[HTTP1](server.host, server.port) as client:
        yield client


def records_of_stream(stream: EventStream, topic: str, wanted: Wanted, head_seq: int) -> list[dict[str, Any]]:
    """Everything up to the head. Checks that ids and seqs go on, and that each batch is followed by its mark."""
    records: list[dict[str, Any]] = []
    cursor = wanted.start
    while True:
        event = stream.next()
        assert event.cursors[topic] <= head_seq
        if event.name == "caught-up":
            assert event.cursors[topic] == event.data["head_seq"]
            if event.data["head_seq"] == head_seq:
                return records
            continue
        assert event.name == "record"
        assert cursor <= event.data["from_seq"] < event.seqs[0]
        assert event.seqs[-1] <= event.data["to_seq"] == event.cursors[topic]
        cursor = event.data["to_seq"]
        records += event.data["records"]


def records_of_socket(socket: WsClient, head_seq: int) -> list[dict[str, Any]]:
    messages = socket.receive_until("caught_up", head_seq=head_seq)
    return [record for message in messages if message["op"] == "record" for record in message["records"]]


def test_each_stream_gets_its_own_records(server: Running, http: Client, topic: str) -> None:
    """72 streams of one topic, a stream that also watches another topic, and a stream that is not read for long."""
    address = (server.host, server.port)
    other = f"{topic}.other"
    http.write(other, 0)
    http.write(topic, records=[{"data": n, "node": f"n{n % 4}", "tag": f"t{n}"} for n in range(9)])
    with ExitStack() as streams:

        def open_stream(protocol: str, wanted: Wanted, *more: str, **kinds: Any) -> EventStream:
            members: dict[str, Any] = {"node": wanted.node, "include_tags": wanted.include_tags}
            topics = {topic: {"from_seq": wanted.start}} | {name: {} for name in more}
            session = http.request("POST", "/v0/watch", {"topics": topics} | members).json
            return streams.enter_context(EVENT_STREAMS[protocol](address, session["stream_url"], **kinds))

        def open_socket(wanted: Wanted) -> WsClient:
            socket = streams.enter_context(ws_client(server))
            socket.reply(
                "subscribe",
                topic=topic,
                from_seq=wanted.start,
                node=wanted.node,
                include_tags=wanted.include_tags,
            )
            return socket

        watchers = [(open_stream(protocol, wanted), wanted) for protocol in (HTTP1, H2C) for wanted in WANTED]
        sockets = [(open_socket(wanted), wanted) for wanted in WANTED]
        slow = open_stream(HTTP1, WANTED[3], receive_buffer_bytes=4096)
        both = open_stream(HTTP1, WANTED[0], other)
        for n in range(40):
            records = [{"data": [n, "x" * 200], "node": NODES[(n + place) % 5]} for place in range(1 + n % 7)]
            http.write(topic, records=records)
        # No watcher leaves this record out, so each of them comes to the head with a mark.
        head_seq = http.write(topic, "last")["head_seq"]
        http.write(other, 1)
        expected = http.diff(topic, from_seq=0, limit=1000, include_tags=True)["records"]
        assert expected[-1]["$seq"] == head_seq
        for stream, wanted in [*watchers, (slow, WANTED[3])]:
            assert records_of_stream(stream, topic, wanted, head_seq) == wanted.of(expected)
        for socket, wanted in sockets:
            assert records_of_socket(socket, head_seq) == wanted.of(expected)
        # The order of two topics in one stream is not promised: either may come to its head first.
        heads = {topic: head_seq, other: 2}
        events = [both.next()]
        while events[-1].name != "caught-up" or events[-1].cursors != heads:
            events.append(both.next())
        mine = [event for event in events if event.data["topic"] == topic and event.name == "record"]
        assert [record for event in mine for record in event.data["records"]] == WANTED[0].of(expected)
