"""The body limit: `413` on the routes that read a body, and only there."""

import gzip
from collections.abc import Iterator

import pytest

from tests.server.clients import Client
from tests.server.running import Running, running

LIMIT = 100
BODIES = {
    "put": ("PUT", "", b"{}"),
    "write": ("POST", "", b'{"records":[{"data":1}]}'),
    "diff": ("POST", "/diff", b"{}"),
    "delete": ("POST", "/delete", b'{"before_seq":1}'),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("small"), max_body_bytes=LIMIT) as server:
        yield server


@pytest.mark.parametrize(("method", "action", "body"), BODIES.values(), ids=BODIES)
def test_a_body_over_the_limit_is_refused(client: Client, topic: str, method: str, action: str, body: bytes) -> None:
    client.put_topic(topic)
    path = f"/v0/topics/{topic}{action}"
    just_fits = body[:-1] + b" " * (100 - len(body)) + b"}"
    assert client.request(method, path, just_fits).status == 200
    answer = client.request(method, path, just_fits + b" ")
    assert answer.refusal == (413, "payload_too_large")
    assert "detail" not in answer.error
    assert client.request(method, path, just_fits + b" " * 1_000_000).refusal == (413, "payload_too_large")


def test_the_limit_counts_what_a_gzip_body_inflates_to(client: Client, topic: str) -> None:
    headers = {"content-encoding": "gzip"}
    body = b'{"records":[{"data":1}]' + b" " * 76 + b"}"
    assert len(body) == 100
    assert client.request("POST", f"/v0/topics/{topic}", gzip.compress(body), headers).status == 201
    answer = client.request("POST", f"/v0/topics/{topic}", gzip.compress(body + b" "), headers)
    assert answer.refusal == (413, "payload_too_large")
    bomb = gzip.compress(b" " * 10_000_000)[:100]
    assert client.request("POST", f"/v0/topics/{topic}", bomb, headers).refusal == (413, "payload_too_large")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v0/topics"), ("DELETE", "/v0/topics/x"), ("GET", "/v0/topics/x")]
)
@pytest.mark.parametrize("size", [101, 50_000])
def test_the_limit_is_for_bodies_that_are_read(client: Client, method: str, path: str, size: int) -> None:
    assert client.request(method, path, b"x" * size).status in (200, 404)


def test_size_is_told_before_type_and_type_before_damage(client: Client, topic: str) -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/plain"}
    path = f"/v0/topics/{topic}"
    too_large = gzip.compress(b" " * (LIMIT + 1))
    assert client.request("POST", path, too_large, headers).refusal == (413, "payload_too_large")
    assert client.request("POST", path, b"no gzip", headers).refusal == (415, "unsupported_media_type")
    assert client.request("POST", path, b"x" * (LIMIT + 1), headers).refusal == (413, "payload_too_large")
    assert client.request("POST", path, b"x" * (LIMIT + 1), {"content-encoding": "br"}).refusal[0] == 413
