"""Any sequence of requests gets the same answers over every protocol, and never `500 internal`.

Two servers share only the clock. They get the same requests, each over another protocol.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.protocol.random_bodies import BodyMaker
from tests.server.clients import Answer, Client, Http1Client, Http2Client
from tests.server.running import running
from topics.testing.clock import ManualClock

METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"]
GOOD_NAMES = ["a", "b", "%61", "queue"]
BAD_NAMES = [".x", "a%2Fb", "%ff", "a%zz", "", "n" * 256]
ACTIONS = ["", "", "/diff", "/diff", "/delete"]
BAD_ACTIONS = ["/nothing", "/", "/diff/"]
OTHER_PATHS = ["/v0/topics", "/v0/topics", "/v0/ready", "/v0/nothing", "/", "/v0/topics?page_size=1", "/healthz/"]
QUERIES = ["?touch=false", "?return_seqs=0", "?if_empty=1", "?prefix=a&cursor=x", "?%zz=%ff&&=", "?" + "q" * 9000]
REQUESTS_PER_EXAMPLE = 15


class Request(NamedTuple):
    method: str
    path: str
    body: bytes | None
    headers: dict[str, str | None]


def random_request(random: Random) -> Request:
    """A request that is mostly valid, with at most a few mistakes."""
    action = random.choice(BAD_ACTIONS if random.random() < 0.05 else ACTIONS)
    method = "POST" if action else random.choice(["POST", "POST", "PUT", "GET", "DELETE"])
    if random.random() < 0.1:
        method = random.choice(METHODS)
    path = f"/v0/topics/{random.choice(BAD_NAMES if random.random() < 0.1 else GOOD_NAMES)}{action}"
    if random.random() < 0.1:
        method, path = random.choice(["GET", method]), random.choice(OTHER_PATHS)
    elif random.random() < 0.2:
        path += random.choice(QUERIES)
    headers: dict[str, str | None] = {}
    body = random_body(random, method, action)
    if random.random() < 0.1:
        headers["content-type"] = random.choice([None, "", "text/plain", "application/json; charset=x"])
    if random.random() < 0.1:
        headers["idempotency-key"] = random.choice(["k", "", "k" * 257])
    if random.random() < 0.2:
        headers["accept-encoding"] = random.choice(["gzip", "gzip;q=0", "*"])
    if random.random() < 0.1:
        headers["content-encoding"] = random.choice(["gzip", "identity", "br"])
        if body is not None and random.random() < 0.7:
            body = gzip.compress(body, mtime=0)
    return Request(method, path, body, headers)


def random_body(random: Random, method: str, action: str) -> bytes | None:
    if random.random() < 0.05:
        return random.choice([None, b"", b"{}", b"null", b"{"])
    match action:
        case "/diff":
            members: dict[str, Any] = {
                "from_seq": random.choice([0, 0, 1, 5, 2**64 - 1, -1]),
                "limit": random.choice([0, 1, 3, 1000, 2**32]),
                "node": random.choice([None, "a", "", ["a", ""], 1]),
                "include_tags": random.choice([True, False]),
                "max_batch_bytes": random.choice([0, 1, 100]),
            }
            chosen = random.sample(sorted(members), random.randrange(4))
            return json.dumps({name: members[name] for name in chosen}).encode()
        case "/delete":
            match = random.choice([None, "a", "a*", ["tag", "Eq", ""], ["tag", "Glob", "x"], 5])
            return json.dumps({"match": match, "before_seq": random.choice([None, 0, 2, 99])}).encode()
        case _:
            maker = BodyMaker(random)
            return maker.config() if method == "PUT" else maker.body().text


def comparable(answer: Answer) -> tuple[int, dict[str, str], Any]:
    """The answer without its differences: times, and headers of the connection."""
    headers = {
        name: value for name, value in answer.headers.items() if name not in ("date", "content-length", "connection")
    }
    body = answer.body
    if headers.get("content-encoding") == "gzip" and body:
        body = gzip.decompress(body)
    document = json.loads(body) if body and headers["content-type"] == "application/json" else body
    if isinstance(document, dict):
        document.pop("performance", None)
    return answer.status, headers, document


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    clock = ManualClock()
    with (
        running(tmp_path_factory.mktemp("one"), clock=clock) as first,
        running(tmp_path_factory.mktemp("two"), clock=clock) as second,
        Http1Client(first.host, first.port) as one,
        Http2Client(second.host, second.port) as two,
    ):
        for client in (one, two):
            client.put_topic("queue", type="queue")
        yield one, two


@given(st.randoms(use_true_random=True))
def test_protocols_answer_alike(pair: tuple[Client, Client], random: Random) -> None:
    one, two = pair
    for _ in range(REQUESTS_PER_EXAMPLE):
        request = random_request(random)
        first, second = one.request(*request), two.request(*request)
        if comparable(first) != comparable(second) or first.status >= 500:
            note(repr(request))
        assert comparable(first) == comparable(second)
        assert first.status < 500
