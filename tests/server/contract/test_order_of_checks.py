"""Which of two violations is reported: every pair of violations, in one request."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, count

import pytest

from tests.server.clients import Answer, Client
from tests.server.conftest import Connect
from tests.server.running import Running, running

BODY_BYTES_MAX = 4000
_hosts = count(2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = "all,ro:read,here::here.,both:read:here."
    with running(tmp_path_factory.mktemp("order"), keys=keys, max_body_bytes=BODY_BYTES_MAX) as server:
        yield server


@pytest.fixture
def client(connect: Connect) -> Client:
    number = next(_hosts)
    return connect(f"127.8.{number // 250}.{number % 250 + 1}")


@dataclass
class Write:
    """A write in parts, so that each part can be wrong."""

    method: str = "POST"
    name: str = "here.absent"
    action: str = ""
    key: str | None = "all"
    content_type: str | None = "application/json"
    members: dict[str, bytes] = field(default_factory=lambda: {"records": b'[{"data":1}]'})
    ending: bytes = b"}"

    def send(self, client: Client) -> Answer:
        body = b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in self.members.items())
        headers = {
            "content-type": self.content_type,
            "authorization": None if self.key is None else f"Bearer {self.key}",
        }
        return client.request(self.method, f"/v0/topics/{self.name}{self.action}", body + self.ending, headers)


def no_key(write: Write) -> None:
    write.key = None


def no_scope(write: Write) -> None:
    write.key = "ro"


def no_prefix(write: Write) -> None:
    write.key = "here"
    write.name = write.name.replace("here.", "there.")


def unknown_action(write: Write) -> None:
    write.action = "/nothing"


def other_method(write: Write) -> None:
    write.method = "PATCH"


def name_is_not_utf8(write: Write) -> None:
    write.name += "%ff"


def body_too_large(write: Write) -> None:
    write.ending += b" " * BODY_BYTES_MAX


def other_type(write: Write) -> None:
    write.content_type = "text/plain"


def no_json(write: Write) -> None:
    write.ending = b',,"' + write.ending


def wrong_type_of_a_member(write: Write) -> None:
    write.members["create"] = b'"yes"'


def rule_of_a_field(write: Write) -> None:
    write.members["records"] = b"[]"


def absent_topic(write: Write) -> None:
    write.members.setdefault("create", b"false")


Violation = Callable[[Write], None]

# In the order of the contract, with the answer to each violation alone.
VIOLATIONS: list[tuple[Violation, tuple[int, str]]] = [
    (no_key, (401, "unauthorized")),
    (no_scope, (403, "forbidden")),
    (no_prefix, (403, "forbidden")),
    (unknown_action, (404, "not_found")),
    (other_method, (405, "method_not_allowed")),
    (name_is_not_utf8, (400, "invalid_request")),
    (body_too_large, (413, "payload_too_large")),
    (other_type, (415, "unsupported_media_type")),
    (no_json, (400, "invalid_request")),
    (wrong_type_of_a_member, (400, "invalid_request")),
    (rule_of_a_field, (400, "invalid_request")),
    (absent_topic, (404, "topic_not_found")),
]
# Violations that exclude each other: one request has one key and one path. Syntax and types are one check.
EXCLUSIVE = [{no_key, no_scope, no_prefix}, {unknown_action, other_method}, {no_json, wrong_type_of_a_member}]


def pairs() -> Iterator[tuple[Violation, Violation]]:
    for (first, _), (second, _) in combinations(VIOLATIONS, 2):
        if not any({first, second} <= group for group in EXCLUSIVE):
            yield first, second


PAIRS = list(pairs())


def told(client: Client, *violations: Violation) -> tuple[tuple[int, str], str]:
    write = Write()
    # In reverse order: if two violations set the same part, the earlier one wins.
    for violate in reversed(violations):
        violate(write)
    answer = write.send(client)
    # The message of a malformed body contains an offset, which differs.
    return answer.refusal, "malformed" if answer.malformed else answer.error["message"]


@pytest.mark.parametrize(("violation", "expected"), VIOLATIONS, ids=[violation.__name__ for violation, _ in VIOLATIONS])
def test_each_violation_has_its_answer(client: Client, violation: Violation, expected: tuple[int, str]) -> None:
    assert told(client, violation)[0] == expected


@pytest.mark.parametrize(
    ("first", "second"), PAIRS, ids=[f"{first.__name__} before {second.__name__}" for first, second in PAIRS]
)
def test_of_two_violations_the_first_in_the_order_is_told(client: Client, first: Violation, second: Violation) -> None:
    assert told(client, first, second) == told(client, first)


def test_a_scope_is_checked_before_a_prefix(client: Client) -> None:
    """Both are `403`, so the test compares the messages."""
    lacks_both = client.request("PUT", "/v0/topics/there", {}, {"authorization": "Bearer both"})
    lacks_prefix = client.request("GET", "/v0/topics/there", headers={"authorization": "Bearer both"})
    lacks_scope = client.request("PUT", "/v0/topics/here.x", {}, {"authorization": "Bearer both"})
    assert lacks_both.error == lacks_scope.error != lacks_prefix.error


def test_a_body_is_looked_at_before_the_name_it_is_for(client: Client) -> None:
    headers = {"authorization": "Bearer all"}
    assert client.request("PUT", "/v0/topics/.x", b"{", headers).malformed
    assert client.request("PUT", "/v0/topics/.x", {"ttl_ms": -1}, headers).malformed
    assert client.request("POST", "/v0/topics/.x", b"{", headers).malformed
    assert client.request("POST", "/v0/topics/absent/diff", {"limit": -1}, headers).malformed
    assert client.request("POST", "/v0/topics/absent/delete", {"before_seq": -1}, headers).malformed
    assert client.request("POST", "/v0/topics/absent/delete", {}, headers).refusal == (400, "invalid_request")
    assert client.request("POST", "/v0/topics/absent/delete", {"match": ["x"]}, headers).refusal[0] == 400


def test_a_name_is_looked_at_before_the_rules_of_a_config(client: Client) -> None:
    answer = client.request("PUT", "/v0/topics/.x", {"dead_letter": ".y"}, {"authorization": "Bearer all"})
    assert answer.refusal == (400, "invalid_request")
    assert "detail" not in answer.error


def test_a_prefix_is_checked_on_paths_that_lead_nowhere(client: Client) -> None:
    headers = {"authorization": "Bearer here"}
    assert client.request("POST", "/v0/topics/there/nothing", {}, headers).refusal == (403, "forbidden")
    assert client.request("PATCH", "/v0/topics/there", {}, headers).refusal == (403, "forbidden")
    assert client.request("POST", "/v0/topics/here.x/nothing", {}, headers).refusal == (404, "not_found")
