"""Access: every endpoint with every kind of key."""

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests.server.clients import Client
from tests.server.conftest import Connect
from tests.server.running import Running, running

RECORD: dict[str, Any] = {"records": [{"data": 1}]}

KEYS = {
    "all": "all",
    "read": "ro:read",
    "write": "wo:write",
    "delete": "del:delete",
    "admin": "adm:admin",
    "read and write": "rw:rw",
    "other names": "other::other.",
    "these names": "these::mine.|shared.",
    "names inside of names": "inside::mine.|mine.t|mine.|m",
}
SECRETS = {name: entry.partition(":")[0] for name, entry in KEYS.items()}


class Call(NamedTuple):
    """An endpoint, the scopes it needs, and its answer to a key with these scopes. `{}` is an existing topic."""

    method: str
    path: str
    scopes: frozenset[str]
    status: int
    body: Any = None
    # Whether the path names a topic.
    has_name: bool = True


READ, WRITE, DELETE, ADMIN = (frozenset({scope}) for scope in ("read", "write", "delete", "admin"))
ANY: frozenset[str] = frozenset()

CALLS = {
    "list": Call("GET", "/v0/topics", READ, 200, has_name=False),
    "state": Call("GET", "/v0/topics/{}", READ, 200),
    "state, head only": Call("HEAD", "/v0/topics/{}", READ, 200),
    "diff": Call("POST", "/v0/topics/{}/diff", READ, 200, {}),
    "metrics": Call("GET", "/v0/metrics", READ, 200, has_name=False),
    "rights of the key": Call("GET", "/v0/access", ANY, 200, has_name=False),
    "write": Call("POST", "/v0/topics/{}", WRITE, 200, RECORD),
    "write that creates": Call("POST", "/v0/topics/{}.new", WRITE, 201, RECORD),
    "write with a config to an existing topic": Call("POST", "/v0/topics/{}", WRITE, 200, RECORD | {"config": {}}),
    "write with a config that creates": Call("POST", "/v0/topics/{}.new", WRITE | ADMIN, 201, RECORD | {"config": {}}),
    "unknown method on a topic": Call("PATCH", "/v0/topics/{}", WRITE, 405),
    "unknown action of a topic": Call("POST", "/v0/topics/{}/nothing", WRITE, 404, {}),
    "other method on an action": Call("GET", "/v0/topics/{}/diff", WRITE, 405),
    "slash behind a topic": Call("GET", "/v0/topics/{}/", WRITE, 404),
    "delete a topic": Call("DELETE", "/v0/topics/{}", DELETE, 200),
    "delete an absent topic": Call("DELETE", "/v0/topics/{}.none", DELETE, 200),
    "delete records": Call("POST", "/v0/topics/{}/delete", DELETE, 200, {"before_seq": 1}),
    "configure": Call("PUT", "/v0/topics/{}", ADMIN, 200, {}),
    "create": Call("PUT", "/v0/topics/{}.new", ADMIN, 201, {}),
    "unknown path": Call("GET", "/v0/nothing", ANY, 404, has_name=False),
    "unknown path outside of /v0": Call("GET", "/nothing", ANY, 404, has_name=False),
    "other method on the list": Call("POST", "/v0/topics", ANY, 405, {}, has_name=False),
}

OPEN = {
    "health": "/v0/health",
    "healthz": "/healthz",
    "ready": "/v0/ready",
    "readyz": "/readyz",
}

_hosts = count(2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("keys"), keys=",".join(KEYS.values())) as server:
        yield server


@pytest.fixture
def client(connect: Connect) -> Client:
    """A client with its own address, because bad keys are answered more and more slowly."""
    number = next(_hosts)
    return connect(f"127.9.{number // 250}.{number % 250 + 1}")


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[name]}"}


@pytest.fixture
def mine(client: Client, topic: str) -> str:
    """An existing topic that the key for these names may use."""
    name = f"mine.{topic}"
    assert client.request("PUT", f"/v0/topics/{name}", {}, bearer("all")).status == 201
    return name


def scopes_of(name: str) -> frozenset[str]:
    match name:
        case "read and write":
            return READ | WRITE
        case "read" | "write" | "delete" | "admin":
            return frozenset({name})
        case _:
            return READ | WRITE | DELETE | ADMIN


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_may_do_what_its_scopes_and_names_say(client: Client, mine: str, call: Call, key: str) -> None:
    allowed = call.scopes <= scopes_of(key) and not (key == "other names" and call.has_name)
    answer = client.request(call.method, call.path.format(mine), call.body, bearer(key))
    if allowed:
        assert answer.status == call.status
    elif call.method == "HEAD":
        assert (answer.status, answer.body) == (403, b"")
    else:
        assert answer.refusal == (403, "forbidden")


ANONYMOUS = {
    "no header": None,
    "unknown key": "Bearer unknown",
    "another scheme": "Basic all",
    "lower case": "bearer all",
    "upper case": "BEARER all",
    "no blank": "Bearerall",
    "nothing behind it": "Bearer ",
    "the key alone": "all",
    "a whole entry": "Bearer ro:read",
    "a key in quotes": 'Bearer "all"',
    "two keys": "Bearer all ro",
    "another case": "Bearer ALL",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("header", [None, "Bearer unknown"], ids=["no key", "unknown key"])
def test_nothing_is_answered_without_a_key(client: Client, topic: str, call: Call, header: str | None) -> None:
    answer = client.request(call.method, call.path.format(topic), call.body, {"authorization": header})
    if call.method == "HEAD":
        assert answer.status == 401
    else:
        assert answer.refusal == (401, "unauthorized")
        assert "detail" not in answer.error
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ANONYMOUS.values(), ids=ANONYMOUS)
def test_a_key_is_shown_in_one_way_only(client: Client, header: str | None) -> None:
    assert client.request("GET", "/v0/topics", headers={"authorization": header}).refusal == (401, "unauthorized")


@pytest.mark.parametrize("header", ["Bearer all", "Bearer  all", "Bearer all  ", "Bearer \t all"])
def test_blanks_around_a_token_are_trimmed(client: Client, header: str) -> None:
    assert client.request("GET", "/v0/topics", headers={"authorization": header}).status == 200


@pytest.mark.parametrize("path", ["/v0/topics?token=all", "/v0/metrics?token=all", "/v0/topics/x?token=all"])
def test_a_key_in_the_url_counts_for_nothing(client: Client, path: str) -> None:
    assert client.request("GET", path).refusal == (401, "unauthorized")


@pytest.mark.parametrize("path", OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("header", ANONYMOUS.values(), ids=ANONYMOUS)
def test_probes_are_open(client: Client, path: str, header: str | None) -> None:
    assert client.request("GET", path, headers={"authorization": header}).status == 200


@pytest.mark.parametrize("path", OPEN.values(), ids=OPEN)
def test_other_methods_on_probes_are_not_open(client: Client, path: str) -> None:
    assert client.request("POST", path).refusal == (401, "unauthorized")
    assert client.request("POST", path, headers=bearer("read")).refusal == (405, "method_not_allowed")


# Names.


@pytest.mark.parametrize("name", ["mine.a", "shared.b", "%6dine.c", "mine%2Ed"])
def test_names_inside_of_a_prefix_are_allowed_however_they_are_escaped(client: Client, name: str) -> None:
    assert client.request("PUT", f"/v0/topics/{name}", {}, bearer("these names")).status in (200, 201)


@pytest.mark.parametrize("name", ["mine", "Mine.a", "xmine.a", "mine%2fa", "%4dine.a", "s", "%ff", "%00mine."])
def test_names_outside_of_every_prefix_are_forbidden(client: Client, name: str) -> None:
    for method, action, body in (("PUT", "", {}), ("GET", "", None), ("DELETE", "", None), ("POST", "/diff", {})):
        answer = client.request(method, f"/v0/topics/{name}{action}", body, bearer("these names"))
        assert answer.refusal == (403, "forbidden")


def listed(client: Client, key: str, query: str = "") -> list[str]:
    answer = client.request("GET", f"/v0/topics?page_size=1000{query}", headers=bearer(key))
    return [entry["topic"] for entry in answer.json["topics"]]


def test_the_list_leaves_out_what_a_key_may_not_name(client: Client, mine: str, topic: str) -> None:
    for name in (f"shared.{topic}", f"other.{topic}", f"none.{topic}"):
        client.request("PUT", f"/v0/topics/{name}", {}, bearer("all"))
    everything = listed(client, "all")
    assert {mine, f"shared.{topic}", f"other.{topic}", f"none.{topic}"} <= set(everything)
    for key, prefixes in (("these names", ("mine.", "shared.")), ("other names", ("other.",))):
        assert listed(client, key) == [name for name in everything if name.startswith(prefixes)]
    assert listed(client, "these names", "&prefix=mine.") == [name for name in everything if name.startswith("mine.")]
    assert listed(client, "these names", "&prefix=shar") == [name for name in everything if name.startswith("shared.")]
    assert listed(client, "these names", "&prefix=other.") == []
    # A name that several prefixes match is listed once.
    for query, prefix in (("", "m"), ("&prefix=mine.t", "mine.t"), ("&prefix=mi", "mi")):
        wanted = [name for name in everything if name.startswith(prefix)]
        assert listed(client, "names inside of names", query) == wanted


def test_pages_of_a_key_with_prefixes_join_without_gaps(client: Client, topic: str) -> None:
    for number in range(3):
        for prefix in ("mine", "shared", "nobody"):
            client.request("PUT", f"/v0/topics/{prefix}.{topic}.{number}", {}, bearer("all"))
    wanted = listed(client, "these names")
    found: list[str] = []
    query = ""
    while True:
        page = client.request("GET", f"/v0/topics?page_size=2{query}", headers=bearer("these names")).json
        found += [entry["topic"] for entry in page["topics"]]
        if "next_cursor" not in page:
            break
        assert len(page["topics"]) == 2
        query = "&cursor=" + page["next_cursor"].replace("=", "%3D").replace("+", "%2B").replace("/", "%2F")
    assert found == wanted


def test_metrics_name_only_what_a_key_may_name(client: Client, mine: str) -> None:
    text = client.request("GET", "/v0/metrics", headers=bearer("other names")).body.decode()
    assert f'topic="{mine}"' not in text
    assert f'topic="{mine}"' in client.request("GET", "/v0/metrics", headers=bearer("these names")).body.decode()
