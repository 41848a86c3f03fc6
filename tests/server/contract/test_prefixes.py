"""A key with prefixes, on every route: it reaches no topic outside of its prefixes, and is told no name of one.

Each route of the server has its calls in `CALLS`. A route without an entry fails the first test.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.server.clients import HTTP1, Answer, Client, Http1Client
from tests.server.running import Running, running
from tests.server.ws_peer import ws_client

# A part of every name that the key may not see.
HIDDEN = "zzhidden"
RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
FORBIDDEN = 403
CHUNK: dict[str, Any] = {"writer": "w", "epoch": 9, "part": 0, "attempt": 0, "chunk": 0, **RECORDS}


class Call(NamedTuple):
    """A call with the key for `mine.`, and its status. A call that names a hidden topic is refused with that name."""

    path: str
    status: int
    body: Any = None


def refused(path: str, body: Any = None) -> Call:
    return Call(path, FORBIDDEN, body)


QUEUE: dict[str, Any] = {"type": "queue", "max_deliveries": 1, "dead_letter": "zzhidden.dead"}
ROUTER: dict[str, Any] = {"source": "mine.log", "dest": "mine.new"}

CALLS: dict[tuple[str, str], list[Call]] = {
    ("GET", "/v0/topics"): [Call("/v0/topics", 200), Call(f"/v0/topics?prefix={HIDDEN}", 200)],
    ("PUT", "/v0/topics/{topic}"): [
        refused("/v0/topics/zzhidden.log", {}),
        refused("/v0/topics/mine.new", QUEUE),
        refused("/v0/topics/mine.q", QUEUE),
        # A log stores and shows the member, too.
        refused("/v0/topics/mine.new", {"dead_letter": "zzhidden.dead"}),
    ],
    ("GET", "/v0/topics/{topic}"): [refused("/v0/topics/zzhidden.log"), Call("/v0/topics/mine.q", 200)],
    ("POST", "/v0/topics/{topic}"): [
        refused("/v0/topics/zzhidden.log", RECORDS),
        refused("/v0/topics/mine.new", RECORDS | {"config": QUEUE}),
        # The topic exists, so the config has no effect. It is refused alike.
        refused("/v0/topics/mine.q", RECORDS | {"config": QUEUE}),
    ],
    ("DELETE", "/v0/topics/{topic}"): [refused("/v0/topics/zzhidden.log"), Call("/v0/topics/mine.gone", 200)],
    ("POST", "/v0/topics/{topic}/diff"): [refused("/v0/topics/zzhidden.log/diff", {})],
    ("GET", "/v0/topics/{topic}/records"): [refused("/v0/topics/zzhidden.log/records")],
    ("POST", "/v0/topics/{topic}/delete"): [refused("/v0/topics/zzhidden.log/delete", {"before_seq": 9})],
    ("POST", "/v0/topics/{topic}/manifest"): [refused("/v0/topics/zzhidden.log/manifest", {})],
    ("GET", "/v0/topics/{topic}/frames"): [refused("/v0/topics/zzhidden.log/frames")],
    ("POST", "/v0/topics/{topic}/claim"): [
        refused("/v0/topics/zzhidden.q/claim", {"node": "n"}),
        Call("/v0/topics/mine.q/claim", 200, {"node": "n"}),
    ],
    ("POST", "/v0/topics/{topic}/ack"): [refused("/v0/topics/zzhidden.q/ack", {"node": "n", "seqs": [1]})],
    ("POST", "/v0/topics/{topic}/nack"): [refused("/v0/topics/zzhidden.q/nack", {"node": "n", "seqs": [1]})],
    ("POST", "/v0/topics/{topic}/extend"): [
        refused("/v0/topics/zzhidden.q/extend", {"node": "n", "seqs": [1], "lease_ms": 1})
    ],
    ("GET", "/v0/topics/{topic}/queue"): [refused("/v0/topics/zzhidden.q/queue"), Call("/v0/topics/mine.q/queue", 200)],
    ("POST", "/v0/topics/{topic}/redrive"): [
        refused("/v0/topics/zzhidden.q/redrive", {}),
        refused("/v0/topics/mine.q/redrive", {"to": "zzhidden.q"}),
        # The dead-letter topic of the queue is hidden.
        Call("/v0/topics/mine.q/redrive", 403, {}),
    ],
    ("GET", "/v0/topics/{topic}/work"): [refused("/v0/topics/zzhidden.q/work?node=n")],
    ("GET", "/v0/topics/{topic}/groups"): [refused("/v0/topics/zzhidden.log/groups")],
    ("PUT", "/v0/topics/{topic}/groups/{group}"): [refused("/v0/topics/zzhidden.log/groups/g", {})],
    ("GET", "/v0/topics/{topic}/groups/{group}"): [refused("/v0/topics/zzhidden.log/groups/g")],
    ("DELETE", "/v0/topics/{topic}/groups/{group}"): [refused("/v0/topics/zzhidden.log/groups/g")],
    ("POST", "/v0/topics/{topic}/groups/{group}/commit"): [
        refused("/v0/topics/zzhidden.log/groups/g/commit", {"seq": 1})
    ],
    ("POST", "/v0/topics/{topic}/stage"): [refused("/v0/topics/zzhidden.log/stage", CHUNK)],
    ("POST", "/v0/topics/{topic}/seal"): [refused("/v0/topics/zzhidden.log/seal")],
    ("GET", "/v0/routers"): [
        Call("/v0/routers", 200),
        Call("/v0/routers?source=zzhidden.log", 200),
        Call("/v0/routers?dest=zzhidden.out", 200),
        Call("/v0/routers?prefix=mine", 200),
    ],
    ("PUT", "/v0/routers/{router}"): [
        refused("/v0/routers/zzhidden.new", ROUTER),
        refused("/v0/routers/mine.new", {"source": "zzhidden.log", "dest": "mine.new"}),
        refused("/v0/routers/mine.new", {"source": "mine.log", "dest": "zzhidden.new"}),
        # Another router closes the cycle through hidden topics, the same router has hidden topics, another source feeds
        # the dest.
        Call("/v0/routers/mine.new", 409, {"source": "mine.end", "dest": "mine.log"}),
        Call("/v0/routers/mine.in", 409, ROUTER),
        Call("/v0/routers/mine.new", 409, {"source": "mine.log", "dest": "mine.fed"}),
    ],
    ("GET", "/v0/routers/{router}"): [
        refused("/v0/routers/zzhidden.own"),
        refused("/v0/routers/mine.in"),
        refused("/v0/routers/mine.out"),
    ],
    ("DELETE", "/v0/routers/{router}"): [
        refused("/v0/routers/zzhidden.own"),
        refused("/v0/routers/mine.in"),
        refused("/v0/routers/mine.out"),
    ],
    ("POST", "/v0/watch"): [
        refused("/v0/watch", {"topics": {"zzhidden.log": {}}}),
        refused("/v0/watch", {"topics": {"mine.log": {}, "zzhidden.log": {}}}),
        refused("/v0/watch?lenient=true", {"topics": {"zzhidden.none": {}}}),
        refused("/v0/watch", {"topics": {"zzhidden*": {}}}),
        refused("/v0/watch", {"topics": {"*": {}}}),
        refused("/v0/watch", {"topics": {"min*": {}}}),
        Call("/v0/watch", 200, {"topics": {"mine.*": {}}}),
    ],
    # The session of another key: the hidden watch of the fixture.
    ("GET", "/v0/watch/{wid}"): [Call("/v0/watch/{wid}", 401)],
    # Its commands have a test of their own.
    ("GET", "/v0/ws"): [Call("/v0/ws", 400)],
    ("GET", "/v0/writers/{writer}"): [Call("/v0/writers/w", 200)],
    ("POST", "/v0/writers/{writer}/commit"): [
        refused("/v0/writers/w/commit", {"epoch": 2, "topic": "zzhidden.log", "parts": []})
    ],
    ("POST", "/v0/writers/{writer}/abort"): [Call("/v0/writers/w/abort", 200, {"epoch": 2})],
    ("POST", "/v0/admin/segments/replace"): [
        refused(
            "/v0/admin/segments/replace",
            {"topic_id": -1, "epoch": -1, "first_seq": 1, "expect_digest": "0" * 32, "data": "d", "idx": "i"},
        )
    ],
    # The server of this test has no streams. contract/test_streams.py has keys with prefixes, too.
    ("GET", "/v0/streams"): [Call("/v0/streams", 404)],
    ("GET", "/v0/streams/{stream}"): [Call("/v0/streams/zzhidden.s", 404)],
    ("GET", "/v0/streams/{stream}/topics/{topic}"): [Call("/v0/streams/zzhidden.s/topics/t", 404)],
    ("GET", "/v0/streams/{stream}/topics/{topic}/partitions/{partition}"): [
        Call("/v0/streams/zzhidden.s/topics/t/partitions/0", 404)
    ],
    ("GET", "/v0/streams/{stream}/topics/{topic}/partitions/{partition}/messages"): [
        Call("/v0/streams/zzhidden.s/topics/t/partitions/0/messages", 404)
    ],
    ("POST", "/v0/admin/capture"): [refused("/v0/admin/capture", {})],
    ("GET", "/v0/admin/config"): [refused("/v0/admin/config")],
    ("GET", "/v0/metrics"): [Call("/v0/metrics", 200)],
    ("GET", "/v0/access"): [Call("/v0/access", 200)],
    ("GET", "/v0/health"): [Call("/v0/health", 200)],
    ("GET", "/healthz"): [Call("/healthz", 200)],
    ("GET", "/v0/ready"): [Call("/v0/ready", 200)],
    ("GET", "/readyz"): [Call("/readyz", 200)],
    ("GET", "/v0/openapi.json"): [Call("/v0/openapi.json", 200)],
    ("GET", "/v0/asyncapi.json"): [Call("/v0/asyncapi.json", 200)],
}


class World(NamedTuple):
    server: Running
    # Of a watch session of another key.
    wid: str
    # Id and epoch of a hidden topic.
    topic_id: int
    epoch: int


def ask(client: Client, key: str, method: str, path: str, body: Any = None) -> Answer:
    return client.request(method, path, body, {"authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Topics and routers on both sides of the border, made with the key for everything."""
    with running(tmp_path_factory.mktemp("prefixes"), keys="all,mine::mine.") as server:
        with Http1Client(server.host, server.port) as client:

            def made(method: str, path: str, body: Any) -> Any:
                return ask(client, "all", method, path, body).json

            for name in ("zzhidden.log", "mine.log", "mine.gone"):
                made("POST", f"/v0/topics/{name}", RECORDS)
            for name in ("zzhidden.q", "mine.q"):
                made("PUT", f"/v0/topics/{name}", QUEUE)
            routers = {
                "mine.in": ("zzhidden.log", "mine.fed"),
                "mine.out": ("mine.log", "zzhidden.out"),
                "mine.on": ("zzhidden.out", "zzhidden.on"),
                "mine.back": ("zzhidden.on", "mine.end"),
                "zzhidden.own": ("mine.a", "mine.b"),
                "mine.gone-out": ("mine.gone", "zzhidden.gone"),
                "zzhidden.gone-own": ("mine.gone", "mine.other"),
                "mine.gone-mine": ("mine.gone", "mine.third"),
            }
            for router, (source, dest) in routers.items():
                made("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest})
            for epoch in (1, 2):
                made("POST", "/v0/topics/zzhidden.log/stage", CHUNK | {"epoch": epoch})
            part = {"part": 0, "attempt": 0, "chunks": 1, "records": 1}
            made("POST", "/v0/writers/w/commit", {"epoch": 1, "topic": "zzhidden.log", "parts": [part]})
            made("PUT", "/v0/topics/zzhidden.log/groups/g", {})
            wid = made("POST", "/v0/watch", {"topics": {"zzhidden.log": {}}})["wid"]
            manifest = made("POST", "/v0/topics/zzhidden.log/manifest", {})
        yield World(server, wid, manifest["topic_id"], manifest["epoch"])


@pytest.fixture
def server(world: World) -> Running:
    return world.server


def test_every_route_has_its_calls(server: Running) -> None:
    assert {(method, path) for method, path, _ in server.server.app.routes.endpoints()} == CALLS.keys()


@pytest.mark.parametrize(("route", "calls"), CALLS.items(), ids=[" ".join(route) for route in CALLS])
def test_a_key_reaches_and_learns_nothing_outside_of_its_prefixes(
    client: Client, protocol: str, world: World, route: tuple[str, str], calls: list[Call]
) -> None:
    for call in calls:
        if route == ("GET", "/v0/ws") and protocol != HTTP1:
            continue
        body = call.body
        if route[1].endswith("/replace"):
            body = body | {"topic_id": world.topic_id, "epoch": world.epoch}
        answer = ask(client, "mine", route[0], call.path.format(wid=world.wid), body)
        assert answer.status == call.status, (call, answer.body)
        if answer.status == FORBIDDEN and isinstance(call.body, dict) and HIDDEN not in call.path:
            detail = answer.error.get("detail", {})
            assert "topic" not in detail or detail["topic"] in names_in(call.body), call
            # The detail says which name it was, if the caller sent it.
            sends_no_name = route[1].endswith(("/replace", "/capture")) or call.body == {}
            assert "topic" in detail or sends_no_name, call
        elif call.status != FORBIDDEN:
            assert HIDDEN.encode() not in answer.body, call


def names_in(body: dict[str, Any]) -> set[str]:
    """Names of topics anywhere in a body."""
    found: set[str] = set()
    for name, value in body.items():
        if name == "topics":
            found |= value.keys()
        elif isinstance(value, dict):
            found |= names_in(value)
        elif isinstance(value, str):
            found.add(value)
    return found


def test_names_that_a_key_may_not_see_are_counted(client: Client) -> None:
    cycle = ask(client, "mine", "PUT", "/v0/routers/mine.new", {"source": "mine.end", "dest": "mine.log"})
    assert cycle.error["code"] == "router_cycle"
    assert cycle.error["detail"] == {"cycle": ["mine.end", "mine.log", "mine.end"], "names_hidden": 2}
    repoint = ask(client, "mine", "PUT", "/v0/routers/mine.in", {"source": "mine.log", "dest": "mine.new"})
    assert repoint.error["detail"] == {
        "router": "mine.in",
        "reason": "router_repoint_forbidden",
        "existing_dest": "mine.fed",
        "names_hidden": 1,
    }
    state = ask(client, "mine", "GET", "/v0/topics/mine.q").json
    assert (state["config"]["dead_letter"], state["names_hidden"]) == (None, 1)
    everything = ask(client, "all", "GET", "/v0/topics/mine.q").json
    assert everything["config"]["dead_letter"] == "zzhidden.dead"
    assert "names_hidden" not in everything


def test_a_deleted_topic_takes_routers_with_it_that_are_only_counted(client: Client, protocol: str) -> None:
    topic = f"mine.sink-{protocol.replace('/', '-')}"
    routers = [f"mine.{protocol[:3]}-{number}" for number in range(2)]
    ask(client, "all", "PUT", f"/v0/routers/{routers[0]}", {"source": topic, "dest": f"{topic}-to"})
    ask(client, "all", "PUT", f"/v0/routers/{routers[1]}", {"source": topic, "dest": f"zzhidden.{topic}"})
    answer = ask(client, "mine", "DELETE", f"/v0/topics/{topic}").json
    assert (answer["routers_removed"], answer["names_hidden"]) == ([routers[0]], 1)


def test_a_queue_of_the_key_may_have_dead_letters_inside_of_the_prefixes(client: Client, topic: str) -> None:
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": f"mine.{topic}.dead"}
    assert ask(client, "mine", "PUT", f"/v0/topics/mine.{topic}", config).status == 201
    answer = ask(client, "mine", "POST", f"/v0/topics/mine.{topic}.second", RECORDS | {"config": config})
    assert answer.status == 201


@pytest.mark.parametrize(
    ("op", "members"),
    [
        ("publish", {"topic": "zzhidden.log", **RECORDS}),
        ("publish", {"topic": "mine.ws", "config": QUEUE, **RECORDS}),
        ("publish", {"topic": "mine.q", "config": QUEUE, **RECORDS}),
        ("subscribe", {"topic": "zzhidden.log"}),
        ("subscribe", {"topics": {"mine.log": {}, "zzhidden.log": {}}}),
        ("subscribe", {"topic": "zzhidden.none", "lenient": True}),
        ("unsubscribe", {"topics": ["zzhidden.log"]}),
    ],
)
def test_a_command_that_names_a_hidden_topic_is_refused(server: Running, op: str, members: dict[str, Any]) -> None:
    with ws_client(server, "mine") as client:
        reply = client.ask(op, request_id=1, **members)
        assert (reply["op"], reply["request_id"], reply["code"]) == ("error", 1, "forbidden")
    with Http1Client(server.host, server.port) as full:
        assert ask(full, "all", "GET", "/v0/topics/mine.ws").status == 404


def test_a_pattern_shows_only_topics_of_the_key(client: Client) -> None:
    session = ask(client, "mine", "POST", "/v0/watch", {"topics": {"mine.log*": {}}}).json
    assert set(session["topics"]) == {"mine.log"}
