"""Requests of web pages: pages of other origins are refused on every route, pages of listed origins can use the API."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.contract.test_prefixes import CALLS
from tests.server.event_streams import EVENT_STREAMS
from tests.server.raw import ask, get
from tests.server.running import Running, running
from tests.server.ws_peer import HANDSHAKE

LISTED = "https://app.example"
FOREIGN = "https://evil.example"
RECORDS: dict[str, Any] = {"records": [{"data": 1}]}
EXPOSED = "Retry-After, Topics-Next-Seq, Topics-Head-Seq, Topics-Id, Topics-Epoch, Topics-Gap"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    origins = f"http://localhost:3000,{LISTED}"
    with running(tmp_path_factory.mktemp("origins"), cors_origins=origins, max_body_bytes=100_000) as server:
        yield server


def page(site: str, origin: str | None = None, **headers: str) -> dict[str, str]:
    """The headers that a browser adds to a request of a page."""
    return {"sec-fetch-site": site} | ({} if origin is None else {"origin": origin}) | headers


def is_readable(headers: dict[str, str]) -> bool:
    """Whether the answer lets a page of the listed origin read it. No answer allows cookies."""
    allowed = {name: value for name, value in headers.items() if name.startswith("access-control-")}
    if not allowed:
        return False
    assert allowed["access-control-allow-origin"] == LISTED
    assert allowed["access-control-expose-headers"] == EXPOSED
    assert "access-control-allow-credentials" not in allowed
    assert "Origin" in headers["vary"]
    return True


# Pages of other origins.


@pytest.mark.parametrize("route", CALLS, ids=" ".join)
@pytest.mark.parametrize(
    "headers",
    [
        # An image, a link or a form with GET of a page elsewhere; the same of another port of this host.
        page("cross-site"),
        page("same-site"),
        # A form with POST, a fetch.
        page("cross-site", FOREIGN),
        {"origin": FOREIGN},
        {"origin": "null"},
    ],
    ids=["no origin", "same site", "both headers", "origin only", "null"],
)
def test_every_route_refuses_pages_of_other_origins(
    client: Client, topic: str, route: tuple[str, str], headers: dict[str, str]
) -> None:
    method, path = route
    for parameter in ("{topic}", "{router}", "{wid}", "{writer}", "{group}"):
        path = path.replace(parameter, topic)
    for content_type in ("application/json", "text/plain"):
        answer = client.request(method, path, b"{}", headers | {"content-type": content_type})
        assert answer.refusal == (403, "forbidden"), (route, content_type)
        assert not is_readable(answer.headers)


def test_a_page_of_another_origin_cannot_drain_a_queue(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, 1)
    work = f"/v0/topics/{topic}/work?node=page"
    assert client.request("GET", work, headers=page("cross-site")).refusal == (403, "forbidden")
    assert client.request("GET", work, headers=page("same-site")).refusal == (403, "forbidden")
    queue_state = client.state(topic)["queue"]
    assert (queue_state["ready"], queue_state["in_flight"], queue_state["dead_lettered"]) == (1, 0, 0)


def test_a_page_of_another_origin_cannot_seal(client: Client, topic: str) -> None:
    client.write(topic, 1)
    headers = page("cross-site", FOREIGN) | {"content-type": "text/plain"}
    assert client.request("POST", f"/v0/topics/{topic}/seal", b"", headers).refusal == (403, "forbidden")


def test_a_foreign_preflight_allows_nothing(client: Client, topic: str) -> None:
    asked = page("cross-site", FOREIGN) | {"access-control-request-method": "POST"}
    answer = client.request("OPTIONS", f"/v0/topics/{topic}", headers=asked)
    assert answer.refusal == (403, "forbidden")
    assert not is_readable(answer.headers)


# Pages that the owner allows, and everything that is no page.


@pytest.mark.parametrize(
    "headers",
    [
        {},
        page("none"),
        page("same-origin"),
        page("same-origin", "https://name.of.the.proxy"),
        page("cross-site", LISTED),
        {"origin": LISTED},
        {"origin": "http://localhost:3000"},
        {"referer": FOREIGN},
    ],
)
def test_other_requests_are_served(client: Client, topic: str, headers: dict[str, str]) -> None:
    assert client.request("POST", f"/v0/topics/{topic}", RECORDS, headers).status == 201
    assert client.request("GET", f"/v0/topics/{topic}", headers=headers).status == 200


def test_the_own_origin_is_the_host_and_port_of_the_request(client: Client, topic: str) -> None:
    own = {"origin": f"http://{client.authority}"}
    assert client.request("POST", f"/v0/topics/{topic}", RECORDS, own).status == 201
    other_port = {"origin": f"http://{client.authority}1"}
    assert client.request("GET", f"/v0/topics/{topic}", headers=other_port).refusal == (403, "forbidden")


def test_a_page_of_a_listed_origin_can_read_answers_and_errors(client: Client, topic: str) -> None:
    headers = page("cross-site", LISTED)
    written = client.request("POST", f"/v0/topics/{topic}", RECORDS, headers)
    assert (written.status, is_readable(written.headers)) == (201, True)
    for method, path, body, status in (
        ("GET", f"/v0/topics/{topic}/frames", None, 200),
        ("GET", f"/v0/topics/{topic}.none", None, 404),
        ("POST", f"/v0/topics/{topic}", b"{", 400),
        ("POST", f"/v0/topics/{topic}", b" " * 100_001, 413),
        ("GET", "/v0/nothing", None, 404),
        ("PATCH", "/v0/topics", None, 405),
    ):
        answer = client.request(method, path, body, headers)
        assert (answer.status, is_readable(answer.headers)) == (status, True)
    # Without an Origin no such header is sent.
    assert not is_readable(client.request("GET", f"/v0/topics/{topic}").headers)


def test_a_compressed_answer_varies_by_coding_and_origin(client: Client, topic: str) -> None:
    client.write(topic, "x" * 5000)
    headers = page("cross-site", LISTED) | {"accept-encoding": "gzip"}
    answer = client.request("POST", f"/v0/topics/{topic}/diff", {}, headers)
    assert answer.headers["content-encoding"] == "gzip"
    assert is_readable(answer.headers)


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/topics/a/work", "/v0/watch/wid_1", "/v0/nothing"])
def test_a_preflight_of_a_listed_origin_is_answered(client: Client, path: str) -> None:
    asked = page("cross-site", LISTED) | {
        "access-control-request-method": "PUT",
        "access-control-request-headers": "authorization,content-type,idempotency-key",
    }
    answer = client.request("OPTIONS", path, headers=asked)
    assert answer.status == 200
    assert is_readable(answer.headers)
    assert set(answer.headers["access-control-allow-methods"].split(", ")) >= {"GET", "POST", "PUT", "DELETE"}
    allowed = {name.lower() for name in answer.headers["access-control-allow-headers"].split(", ")}
    assert allowed >= {"authorization", "content-type", "idempotency-key", "last-event-id"}
    assert answer.headers["access-control-max-age"] == "7200"


def test_an_options_request_that_is_no_preflight_is_not_allowed(client: Client) -> None:
    assert client.request("OPTIONS", "/v0/topics").refusal == (405, "method_not_allowed")
    assert client.request("OPTIONS", "/v0/topics", headers=page("cross-site", LISTED)).refusal[0] == 405


def test_a_page_of_a_listed_origin_can_read_streams(client: Client, server: Running, protocol: str, topic: str) -> None:
    client.write(topic, 1)
    session = client.request("POST", "/v0/watch", {"topics": {topic: {}}}, page("cross-site", LISTED)).json
    headers = page("cross-site", LISTED, accept="text/event-stream")
    with EVENT_STREAMS[protocol]((server.host, server.port), session["stream_url"], headers) as stream:
        assert stream.status == 200
        assert is_readable(stream.headers)


@pytest.mark.parametrize(("origin", "status"), [(LISTED, 101), ("http://localhost:3000", 101), (FOREIGN, 403)])
def test_a_websocket_is_opened_for_listed_origins(server: Running, origin: str, status: int) -> None:
    assert ask(server, get(b"/v0/ws", *HANDSHAKE, b"Origin: " + origin.encode())).status == status


# With keys.


def test_with_keys_a_preflight_needs_none_and_every_origin_may_be_listed(
    tmp_path_factory: pytest.TempPathFactory, protocol: str
) -> None:
    with (
        running(tmp_path_factory.mktemp("keys"), keys="secret", cors_origins="*") as server,
        CLIENTS[protocol](server.host, server.port) as client,
    ):
        asked = page("cross-site", FOREIGN)
        preflight = client.request("OPTIONS", "/v0/topics", headers=asked | {"access-control-request-method": "GET"})
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, "*")
        without_key = client.request("GET", "/v0/topics", headers=asked)
        assert without_key.refusal == (401, "unauthorized")
        assert without_key.headers["access-control-allow-origin"] == "*"
        assert client.request("GET", "/v0/topics", headers=asked | {"authorization": "Bearer secret"}).status == 200
        # A request without an Origin can only be one whose answer the page may not read.
        blind = page("cross-site", authorization="Bearer secret")
        assert client.request("GET", "/v0/topics", headers=blind).refusal == (403, "forbidden")


# The web console.

NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-user": "?1"}


def test_a_link_of_any_page_opens_the_console_and_nothing_else(client: Client, topic: str) -> None:
    for site in ("cross-site", "same-site"):
        opened = client.request("GET", "/", headers=page(site) | NAVIGATION)
        assert (opened.status, opened.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "access-control-allow-origin" not in opened.headers
        for path in ("/v0/topics", f"/v0/topics/{topic}", "/v0/health", "/healthz", "/v0/nothing", "/nothing"):
            assert client.request("GET", path, headers=page(site) | NAVIGATION).refusal == (403, "forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        page("cross-site"),
        # A script, a fetch, a frame, a form of another page.
        page("cross-site") | {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        page("cross-site", FOREIGN) | {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        page("cross-site") | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        page("cross-site", FOREIGN) | NAVIGATION,
    ],
    ids=["no mode", "script", "fetch", "frame", "with an origin"],
)
def test_other_requests_of_pages_for_the_console_are_refused(client: Client, headers: dict[str, str]) -> None:
    for path in ("/", "/console/app.js"):
        assert client.request("GET", path, headers=headers).refusal == (403, "forbidden")
        assert client.request("POST", path, b"", headers=headers).refusal == (403, "forbidden")
