"""Routers: every endpoint, over each protocol."""

import base64
import json
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.server.clients import CLIENTS, Answer, Client
from tests.server.conftest import Connect
from tests.server.event_streams import EVENT_STREAMS
from tests.server.running import Running, running
from tests.server.ws_peer import ws_client

_numbers = count(1)


@pytest.fixture
def pair() -> tuple[str, str]:
    """Names of a new source and a new dest."""
    number = next(_numbers)
    return f"from{number}", f"to{number}"


def path(name: str) -> str:
    return f"/v0/routers/{quote(name, safe='')}"


def put(client: Client, name: str, **body: Any) -> Answer:
    return client.request("PUT", path(name), body)


def route(client: Client, source: str, dest: str, **body: Any) -> str:
    name = f"{source}->{dest}"
    assert put(client, name, source=source, dest=dest, **body).status in (200, 201)
    return name


def shown(client: Client, name: str) -> Any:
    return client.request("GET", path(name)).json


def without_performance(document: Any) -> Any:
    assert document.pop("performance").keys() == {"server_total_ms"}
    return document


# PUT.


def test_a_new_router_is_echoed_with_its_defaults_and_creates_its_topics(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    answer = put(client, f"{source}->{dest}", source=source, dest=dest)
    assert answer.status == 201
    assert without_performance(answer.json) == {
        "router": f"{source}->{dest}",
        "created": True,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert client.state(source)["head_seq"] == client.state(dest)["head_seq"] == 0


def test_a_router_that_is_put_again_is_changed_and_keeps_its_count(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    name = route(client, source, dest)
    client.write(source, 1, 2)
    answer = put(client, name, source=source, dest=dest, filter="x*", preserve_tag=False)
    assert answer.status == 200
    assert (answer.json["created"], answer.json["filter"], answer.json["preserve_tag"]) == (
        False,
        ["tag", "Glob", "x*"],
        False,
    )
    assert shown(client, name)["forwarded_total"] == 2


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("acme", ["tag", "Eq", "acme"]),
        ("acme:*", ["tag", "Glob", "acme:*"]),
        (["tag", "Eq", "a*"], ["tag", "Eq", "a*"]),
        (["tag", "Glob", "*"], ["tag", "Glob", "*"]),
    ],
)
def test_a_filter_is_echoed_as_a_tuple(client: Client, pair: tuple[str, str], given: Any, echoed: Any) -> None:
    source, dest = pair
    assert put(client, source, source=source, dest=dest, filter=given).json["filter"] == echoed


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"dest": "b"},
        {"source": "a", "dest": "a"},
        {"source": ".a", "dest": "b"},
        {"source": "a", "dest": "a>b"},
        {"source": "a", "dest": None},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]},
        {"source": "a", "dest": "b", "filter": 7},
        {"source": "a", "dest": "b", "guarantee": "EXACTLY_ONCE"},
        {"source": "a", "dest": "b", "preserve_node": None},
        {"source": "a", "dest": "b", "allow_cycle": 1},
        None,
        [],
    ],
)
def test_a_bad_body_is_refused(client: Client, body: Any) -> None:
    answer = client.request(
        "PUT", "/v0/routers/bad-body", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    assert answer.refusal == (400, "invalid_request")


@pytest.mark.parametrize("name", [">a", ".a", "a b", "a/b", "a" * 256, "ä"])
def test_a_bad_name_is_refused_and_creates_nothing(client: Client, pair: tuple[str, str], name: str) -> None:
    """Invariant 37."""
    source, dest = pair
    assert put(client, name, source=source, dest=dest).refusal == (400, "invalid_request")
    assert client.request("GET", f"/v0/topics/{source}").status == 404


def test_a_body_needs_a_type(client: Client) -> None:
    body = b'{"source":"a","dest":"b"}'
    assert client.request("PUT", "/v0/routers/r", body, {"content-type": None}).status == 415
    assert client.request("PUT", "/v0/routers/r").status == 415


def test_a_missing_dest_is_not_created_when_that_is_not_wanted(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 37."""
    source, dest = pair
    answer = put(client, source, source=source, dest=dest, create_dest=False)
    assert answer.refusal == (404, "topic_not_found")
    assert answer.error["detail"] == {"topic": dest}
    assert client.request("GET", f"/v0/topics/{source}").status == 404
    client.put_topic(dest)
    assert put(client, source, source=source, dest=dest, create_dest=False).status == 201


def test_a_dest_has_one_source(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    route(client, source, dest)
    assert put(client, f"{source}.second", source=source, dest=dest).status == 201
    answer = put(client, f"{source}.other", source=f"{source}.other", dest=dest)
    assert answer.refusal == (409, "topic_exists_incompatible")
    assert answer.error["detail"] == {"topic": dest, "reason": "router_dest_fan_in"}
    assert client.request("GET", f"/v0/topics/{source}.other").status == 404


def test_the_endpoints_of_a_router_stay(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    name = route(client, source, dest)
    answer = put(client, name, source=source, dest=f"{dest}.new")
    assert answer.refusal == (409, "topic_exists_incompatible")
    assert answer.error["detail"] == {
        "router": name,
        "reason": "router_repoint_forbidden",
        "existing_source": source,
        "existing_dest": dest,
    }


def test_a_cycle_is_refused_unless_it_is_allowed(client: Client, pair: tuple[str, str]) -> None:
    first, second = pair
    third = f"{second}.on"
    route(client, first, second)
    route(client, second, third)
    answer = put(client, f"{third}->{first}", source=third, dest=first)
    assert answer.refusal == (409, "router_cycle")
    assert answer.error["detail"] == {"cycle": [third, first, second, third]}
    route(client, third, first, allow_cycle=True)
    # Every PUT checks for cycles again, without the router itself.
    again = put(client, f"{first}->{second}", source=first, dest=second)
    assert again.refusal == (409, "router_cycle")
    assert again.error["detail"] == {"cycle": [first, second, third, first]}


def test_a_record_goes_round_a_cycle_until_it_has_hopped_eight_times(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 38."""
    first, second = pair
    route(client, first, second)
    route(client, second, first, allow_cycle=True)
    client.write(first, "once")
    assert client.datas(second) == ["once"] * 4
    assert client.datas(first) == ["once"] * 5


# Copies.


def test_a_read_of_the_dest_shows_what_was_just_written_to_the_source(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 31."""
    source, dest = pair
    client.write(source, "before the router")
    name = route(client, source, dest)
    client.write(source, 1, 2)
    assert client.datas(dest) == [1, 2]
    client.write(source, 3)
    state = client.state(dest)
    assert (state["head_seq"], state["count"]) == (3, 3)
    client.write(source, 4)
    assert shown(client, name)["forwarded_total"] == 4


@pytest.mark.parametrize("ttl_ms", [0, 600_000])
def test_live_readers_at_the_end_of_a_chain_get_copies_without_a_tick_and_without_a_read(
    tmp_path: Path, protocol: str, ttl_ms: int
) -> None:
    """No tick runs, so only the write itself can make the copies: derived ones, and (with a `ttl_ms`) logged ones."""

    async def stop_ticks() -> None:
        server.server.app.open_engine().engine.core.ticker.stop()

    with (
        running(tmp_path) as server,
        CLIENTS[protocol](server.host, server.port) as client,
        ws_client(server) as socket,
    ):
        for source, dest in pairwise("abcde"):
            client.put_topic(dest, ttl_ms=ttl_ms)
            route(client, source, dest)
        stream_path = client.request("POST", "/v0/watch", {"topics": {"e": {}}}).json["stream_url"]
        with EVENT_STREAMS[protocol]((server.host, server.port), stream_path) as stream:
            stream.until("caught-up", topic="e")
            assert socket.ask("subscribe", topics={"e": {}})["op"] == "subscribed"
            assert socket.receive()["op"] == "caught_up"
            server.call(stop_ticks())
            for number in (1, 2, 3):
                client.write("a", number)
                assert stream.until("caught-up", topic="e")[0].datas == [number]
                assert socket.receive_until("caught_up")[0]["records"][0]["data"] == number


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_two_routers_into_one_dest_are_up_to_date_in_every_class(
    client: Client, pair: tuple[str, str], durability: str
) -> None:
    source, dest = pair
    client.put_topic(dest, durability=durability)
    route(client, source, dest)
    assert put(client, f"{source}.tagged", source=source, dest=dest, filter="x").status == 201
    for number in range(5):
        client.request("POST", f"/v0/topics/{source}", {"records": [{"data": number, "tag": "x"}]})
        assert client.state(dest)["count"] == 2 * number + 2


def test_labels_are_carried_or_dropped(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 30."""
    source, dest = pair
    bare = f"{dest}.bare"
    route(client, source, dest)
    assert put(client, bare, source=source, dest=bare, preserve_node=False, preserve_tag=False).status == 201
    record = {"data": {"id": 7}, "tag": "t", "node": "n", "meta": {"m": 1}}
    client.request("POST", f"/v0/topics/{source}", {"records": [record]})
    (copy,) = client.diff(dest, include_tags=True)["records"]
    assert {name: copy[name] for name in ("$tag", "$node", "data", "meta")} == {
        "$tag": "t",
        "$node": "n",
        "data": {"id": 7},
        "meta": {"m": 1},
    }
    (copy,) = client.diff(bare, include_tags=True)["records"]
    assert copy.keys() == {"$seq", "$ts", "data", "meta"}


def test_only_tags_that_pass_the_filter_are_copied_and_counted(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 33."""
    source, dest = pair
    name = route(client, source, dest, filter="x*")
    records = [{"data": 1, "tag": "x"}, {"data": 2, "tag": "y"}, {"data": 3}, {"data": 4, "tag": "x1"}]
    client.request("POST", f"/v0/topics/{source}", {"records": records})
    assert client.datas(dest) == [1, 4]
    assert shown(client, name)["forwarded_total"] == 2


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("text", {"_topics_original_meta": "text"}),
        ({f"m{n}": n for n in range(64)}, {"_topics_original_meta": {f"m{n}": n for n in range(64)}}),
    ],
)
def test_exactly_once_puts_the_origin_into_the_meta(
    client: Client, pair: tuple[str, str], meta: Any, kept: dict[str, Any]
) -> None:
    source, dest = pair
    name = route(client, source, dest, guarantee="exactly_once")
    record = {"data": 1} if meta is None else {"data": 1, "meta": meta}
    client.request("POST", f"/v0/topics/{source}", {"records": [record]})
    (copy,) = client.diff(dest)["records"]
    origin = copy["meta"].pop("_topics_router")
    assert copy["meta"] == kept
    topic_id, epoch = origin["source_topic_id"], origin["source_epoch"]
    assert origin == {
        "idempotency_key": f"router:{name}:{topic_id}:{epoch}:1",
        "router": name,
        "source_topic": source,
        "source_topic_id": topic_id,
        "source_epoch": epoch,
        "source_seq": 1,
    }


def test_exactly_once_copies_nothing_whose_key_a_live_record_has(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    name = route(client, source, dest, guarantee="exactly_once")
    client.write(source, 1)
    (copy,) = client.diff(dest)["records"]
    origin = copy["meta"]["_topics_router"]
    origin["idempotency_key"] = origin["idempotency_key"][:-1] + "2"
    record = {"data": "by hand", "meta": {"_topics_router": origin}}
    client.request("POST", f"/v0/topics/{dest}", {"records": [record]})
    client.write(source, 2)
    client.write(source, 3)
    assert client.datas(dest) == [1, "by hand", 3]
    assert shown(client, name)["forwarded_total"] == 3


def test_a_full_dest_holds_the_router_back_and_loses_nothing(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 34."""
    source, dest = pair
    client.put_topic(dest, cap_records=2, discard="reject")
    name = route(client, source, dest)
    client.write(source, 1, 2, 3, 4, 5)
    assert client.datas(dest) == [1, 2]
    assert shown(client, name)["forwarded_total"] == 2
    client.request("POST", f"/v0/topics/{dest}/delete", {"before_seq": 3})
    assert client.datas(dest) == [3, 4]


def test_what_the_source_lost_is_a_tombstone_in_the_dest(client: Client, pair: tuple[str, str]) -> None:
    """Invariant 35."""
    source, dest = pair
    client.put_topic(source, cap_records=3)
    name = route(client, source, dest)
    client.write(source, *range(10))
    page = client.diff(dest)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 7,
        "reason": "source_trim",
        "missed_estimate": 7,
        "earliest_seq": 8,
        "head_seq": 10,
    }
    assert [record["data"] for record in page["records"]] == [7, 8, 9]
    assert shown(client, name)["forwarded_total"] == 10


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_source_trim_is_a_range_that_the_state_of_the_dest_shows(
    client: Client, pair: tuple[str, str], kind: str
) -> None:
    """Older records of the dest stay, a page ends before the range, and the next page begins with its tombstone."""
    source, dest = pair
    client.put_topic(source, cap_records=3)
    client.put_topic(dest, type=kind)
    client.write(dest, "old", "older")
    route(client, source, dest)
    client.write(source, *range(10))
    state = client.state(dest)
    assert (state["head_seq"], state["count"], state["earliest_seq"]) == (12, 5, 1)
    assert (state["evict_floor"], state["lost_ranges"]) == (1, [[3, 9]])
    first = client.diff(dest)
    assert ([record["data"] for record in first["records"]], first["next_from_seq"]) == (["old", "older"], 2)
    assert first["tombstone"] is None
    second = client.diff(dest, from_seq=2)
    assert [second["tombstone"][name] for name in ("gap_from", "gap_to", "reason")] == [3, 9, "source_trim"]
    assert [record["data"] for record in second["records"]] == [7, 8, 9]


# Other calls.


def test_a_router_that_is_not_there(client: Client) -> None:
    answer = client.request("GET", "/v0/routers/nothing")
    assert answer.refusal == (404, "router_not_found")
    assert answer.error["detail"] == {"router": "nothing"}
    assert without_performance(client.request("DELETE", "/v0/routers/%20").json) == {"router": " ", "deleted": False}


def test_a_router_is_shown_as_it_was_put(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    name = route(client, source, dest, filter="x", guarantee="exactly_once")
    assert without_performance(shown(client, name)) == {
        "router": name,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Eq", "x"],
        "allow_cycle": False,
        "guarantee": "exactly_once",
        "forwarded_total": 0,
        "lag": 0,
    }


def test_the_lag_of_a_router_counts_what_a_full_dest_holds_back(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    client.put_topic(dest, cap_records=1, discard="reject")
    name = route(client, source, dest)
    client.write(source, 1)
    client.write(source, 2)
    client.write(source, 3)
    assert client.datas(dest) == [1]
    assert shown(client, name)["lag"] == 2
    listed = client.request("GET", f"/v0/routers?source={source}").json["routers"]
    assert [(entry["router"], entry["lag"]) for entry in listed] == [(name, 2)]


def test_deleting_a_router_stops_it_and_keeps_its_copies(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    name = route(client, source, dest)
    client.write(source, 1)
    assert client.datas(dest) == [1]
    assert without_performance(client.request("DELETE", path(name)).json) == {"router": name, "deleted": True}
    client.write(source, 2)
    assert client.datas(dest) == [1]
    assert client.request("GET", path(name)).refusal == (404, "router_not_found")


def test_deleting_a_topic_deletes_its_routers(client: Client, pair: tuple[str, str]) -> None:
    source, dest = pair
    on = f"{dest}.on"
    names = sorted([route(client, source, dest), route(client, dest, on)])
    client.write(source, 1)
    assert client.datas(on) == [1]
    gone = client.request("DELETE", f"/v0/topics/{dest}").json
    assert (gone["deleted"], gone["routers_removed"]) == (True, names)
    assert [client.request("GET", path(name)).status for name in names] == [404, 404]
    assert client.datas(on) == [1]


def test_routers_are_listed_by_page(client: Client, pair: tuple[str, str]) -> None:
    source, _ = pair
    names = [f"{source}>{letter}" for letter in "abc"]
    for name in reversed(names):
        assert put(client, name, source=source, dest=f"{source}.{name[-1]}").status == 201
    page = client.request("GET", f"/v0/routers?prefix={quote(source)}%3E&page_size=2").json
    assert page["routers"] == [
        {
            "router": name,
            "source": source,
            "dest": f"{source}.{name[-1]}",
            "guarantee": "at_least_once",
            "forwarded_total": 0,
            "lag": 0,
        }
        for name in names[:2]
    ]
    assert json.loads(base64.b64decode(page["next_cursor"])) == {"after": names[1]}
    page = client.request(
        "GET", f"/v0/routers?prefix={quote(source)}%3E&page_size=2&cursor={quote(page['next_cursor'], safe='')}"
    ).json
    assert [entry["router"] for entry in page["routers"]] == names[2:]
    assert "next_cursor" not in page
    by_dest = client.request("GET", f"/v0/routers?source={source}&dest={source}.b").json
    assert [entry["router"] for entry in by_dest["routers"]] == [names[1]]
    assert client.request("GET", "/v0/routers?cursor=!").refusal == (400, "invalid_request")


def test_other_methods_and_paths(client: Client) -> None:
    answer = client.request("PATCH", "/v0/routers/x")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, PUT")
    assert client.request("POST", "/v0/routers").status == 405
    assert client.request("GET", "/v0/routers/").refusal == (404, "not_found")
    assert client.request("GET", "/v0/routers/x/y").refusal == (404, "not_found")
    assert client.request("GET", "/v0/routers/%ff").refusal == (400, "invalid_request")


def test_metrics_count_routers(client: Client, pair: tuple[str, str]) -> None:
    def routers() -> int:
        found: int = client.request("GET", "/v0/metrics", None, {"accept": "application/json"}).json["routers"]
        return found

    before = routers()
    route(client, *pair)
    assert routers() == before + 1


# Keys and caps.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = "all,ro:read,wo:write,del:delete,adm:admin,mine::mine."
    with running(tmp_path_factory.mktemp("router-keys"), keys=keys, max_routers=3, max_topics=8) as server:
        yield server


class TestWithKeys:
    @pytest.fixture
    def server(self, guarded: Running) -> Running:
        return guarded

    @pytest.fixture
    def call(self, connect: Connect) -> Any:
        client = connect("127.0.0.77")

        def call(key: str, method: str, name: str, body: Any = None) -> Answer:
            return client.request(
                method, path(name) if name else "/v0/routers", body, {"authorization": f"Bearer {key}"}
            )

        return call

    def test_scopes(self, call: Any) -> None:
        body = {"source": "mine.a", "dest": "mine.b"}
        for key in ("ro", "wo", "del"):
            assert call(key, "PUT", "mine.r", body).refusal == (403, "forbidden")
        assert call("adm", "PUT", "mine.r", body).status in (200, 201)
        for key in ("wo", "del", "adm"):
            assert call(key, "GET", "mine.r").refusal == (403, "forbidden")
            assert call(key, "GET", "").refusal == (403, "forbidden")
        assert call("ro", "GET", "mine.r").status == call("ro", "GET", "").status == 200
        for key in ("ro", "wo", "adm"):
            assert call(key, "DELETE", "mine.r").refusal == (403, "forbidden")
        assert call("wo", "PATCH", "mine.r").refusal == (403, "forbidden")
        assert call("adm", "PATCH", "mine.r").status == 405
        assert call("del", "DELETE", "mine.r").json["deleted"]

    def test_prefixes(self, call: Any) -> None:
        assert call("mine", "PUT", "r", {"source": "mine.a", "dest": "mine.b"}).refusal == (403, "forbidden")
        for source, dest in (("a", "mine.b"), ("mine.a", "b")):
            answer = call("mine", "PUT", "mine.x", {"source": source, "dest": dest})
            assert answer.refusal == (403, "forbidden")
            assert answer.error["detail"] == {"topic": source if source == "a" else dest}
        assert call("all", "PUT", "mine.x", {"source": "mine.a", "dest": "b"}).status in (200, 201)
        assert call("all", "PUT", "mine.y", {"source": "mine.a", "dest": "mine.c"}).status in (200, 201)
        assert call("mine", "GET", "mine.x").refusal == (403, "forbidden")
        assert call("mine", "DELETE", "mine.x").refusal == (403, "forbidden")
        assert [entry["router"] for entry in call("mine", "GET", "").json["routers"]] == ["mine.y"]
        for name in ("mine.x", "mine.y"):
            assert call("all", "DELETE", name).json["deleted"]

    def test_caps(self, call: Any) -> None:
        for number in range(3):
            assert call("all", "PUT", f"cap{number}", {"source": "mine.a", "dest": f"mine.{number % 2}"}).status == 201
        answer = call("all", "PUT", "cap3", {"source": "mine.a", "dest": "mine.1"})
        assert answer.refusal == (429, "throttled")
        assert answer.error["detail"] == {"limit": "max_routers", "max": 3}
        assert call("all", "PUT", "cap0", {"source": "mine.a", "dest": "mine.0"}).status == 200
        for number in range(3):
            assert call("all", "DELETE", f"cap{number}").json["deleted"]
