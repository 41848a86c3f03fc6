"""A router between a stream and a topic, and a server that is killed again and again under load."""

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.streams.peer import Gone, Peer
from topics.testing.server_process import ServerProcess

KILLS = 3
BATCHES_PER_LIFE = 40


def ask(server: ServerProcess, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        assert answer.status < 300, document
        return document
    finally:
        connection.close()


def login(server: ServerProcess) -> Peer:
    host, _, port = server.streams_address.rpartition(":")
    peer = Peer((host, int(port)))
    peer.login()
    return peer


def all_of(page: Callable[[int], tuple[list[Any], int]]) -> list[Any]:
    found: list[Any] = []
    at = 0
    while True:
        items, at = page(at)
        if not items:
            return found
        found += items


def messages_of(server: ServerProcess) -> list[tuple[int, int]]:
    """Offset and payload of each message."""

    def page(offset: int) -> tuple[list[Any], int]:
        path = f"/v0/streams/s/topics/t/partitions/0/messages?offset={offset}&count=1000"
        answer = ask(server, "GET", path)
        return [(each["offset"], each["payload"]) for each in answer["messages"]], answer["next_offset"]

    return all_of(page)


def copies_in(server: ServerProcess) -> list[tuple[int, int]]:
    """Offset of the message and payload of each record."""

    def page(from_seq: int) -> tuple[list[Any], int]:
        answer = ask(server, "POST", "/v0/topics/copies/diff", {"from_seq": from_seq, "limit": 1000})
        rows = [(each["meta"]["stream"]["offset"], each["data"]) for each in answer["records"]]
        return rows, answer["next_from_seq"]

    return all_of(page)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_each_message_that_survives_a_kill_is_copied_once(durability: str) -> None:
    """The stream keeps messages in memory for a while: a kill takes some of them, and their offsets are used again."""
    with ServerProcess(streams_port=0) as server:
        ask(server, "PUT", "/v0/topics/copies", {"durability": durability})
        with login(server) as peer:
            peer.create("s", "t")
        ask(server, "PUT", "/v0/routers/in", {"source": "stream:s/t", "dest": "copies"})
        number = 0
        for _ in range(KILLS):
            try:
                with login(server) as peer:
                    for _ in range(BATCHES_PER_LIFE):
                        peer.send("s", "t", [b"%d" % (number + place) for place in range(7)])
                        number += 7
            except (OSError, Gone):
                pass
            server.kill()
            server.start()
        with login(server) as peer:
            peer.send("s", "t", [b"%d" % number])
        sent = messages_of(server)
        assert sent[-1][1] == number
        copied: list[tuple[int, int]] = []
        while not copied or copied[-1] != sent[-1]:
            seen = len(copied)
            ask(server, "POST", "/v0/topics/copies/diff", {"from_seq": len(copied), "wait_ms": 30_000, "limit": 1})
            copied = copies_in(server)
            assert len(copied) > seen or copied[-1:] == sent[-1:], "the router has stopped"
        assert copied == sent
