"""Paths and methods, and requests that are too long for any of them."""

from pathlib import Path

import pytest

from tests.server.clients import CLIENTS, H2C, Client
from tests.server.running import running
from topics.server.http.exchange import Exchange
from topics.server.http.routes import Endpoint
from topics.server.limits import Timeouts

UNKNOWN_PATHS = [
    "/v0",
    "/v0/",
    "/v1/topics",
    "/v0/topics/",
    "/v0/topics/x/",
    "/v0/topics/x/diff/",
    "/v0/topics/x/diff/more",
    "/v0/topics/x/nothing",
    "/v0/topics/x/DIFF",
    "/v0/topics//diff",
    "/v0/topics//",
    "//v0/topics",
    "/V0/topics",
    "/v0/Topics",
    "/v0/%74opics",
    "/v0/topics/x/%64iff",
    "/v0/../v0/topics",
    "/v0/./topics",
    "/v0/health/",
    "/healthz/",
    "/v0/nothing?touch=1",
    "/v0/topics%2Fx",
    "/favicon.ico",
]


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_an_unknown_path_is_not_found(client: Client, path: str, method: str) -> None:
    answer = client.request(method, path)
    assert answer.refusal == (404, "not_found")
    assert "detail" not in answer.error


KNOWN_PATHS = {
    "/v0/topics": {"GET", "HEAD"},
    "/v0/topics/x": {"PUT", "GET", "HEAD", "DELETE", "POST"},
    "/v0/topics/x/diff": {"POST"},
    "/v0/topics/x/delete": {"POST"},
    "/v0/health": {"GET", "HEAD"},
    "/healthz": {"GET", "HEAD"},
    "/v0/ready": {"GET", "HEAD"},
    "/readyz": {"GET", "HEAD"},
    "/v0/metrics": {"GET", "HEAD"},
}
METHODS = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"]
WRONG = [(method, path) for path, allowed in KNOWN_PATHS.items() for method in METHODS if method not in allowed]


@pytest.mark.parametrize(("method", "path"), WRONG)
def test_another_method_on_a_known_path_is_told_the_methods(client: Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.refusal == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == KNOWN_PATHS[path]
    assert "detail" not in answer.error


@pytest.mark.parametrize("path", KNOWN_PATHS)
def test_a_query_is_no_part_of_the_path(client: Client, path: str) -> None:
    assert client.request("PATCH", f"{path}?a=b&c=/v0/other").refusal == (405, "method_not_allowed")


# Too long.


def test_a_target_has_at_most_8_kib(client: Client) -> None:
    path = "/v0/topics?prefix=" + "x" * 9000
    assert client.request("GET", path[:8192]).status == 200
    answer = client.request("GET", path[:8193])
    assert answer.refusal == (414, "uri_too_long")
    assert "detail" not in answer.error
    assert client.request("GET", "/v0/topics/" + "x" * 8193).refusal == (414, "uri_too_long")


def test_a_request_has_at_most_100_headers(client: Client) -> None:
    many = {f"x-{number}": "1" for number in range(110)}
    answer = client.request("GET", "/v0/topics", headers=many)
    assert answer.refusal == (431, "headers_too_large")
    assert "detail" not in answer.error
    few = {f"x-{number}": "1" for number in range(90)}
    assert client.request("GET", "/v0/topics", headers=few).status == 200


def test_a_header_block_has_its_limit(client: Client, protocol: str) -> None:
    """128 KiB, and 64 KiB over HTTP/2."""
    size = 64_000 if protocol == H2C else 128_000
    assert client.request("GET", "/v0/topics", headers={"x-large": "x" * (size - 2000)}).status == 200
    answer = client.request("GET", "/v0/topics", headers={"x-large": "x" * (size + 8000)})
    assert answer.refusal == (431, "headers_too_large")


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    """HTTP/1.1: the answer is `408`, and the connection closes."""
    timeouts = Timeouts(head_s=0.05, body_s=0.05, body_bytes_per_s_min=1_000_000)
    with running(tmp_path, timeouts=timeouts) as server:
        for request in (
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
            b"GET /v0/topics HTTP/1.1\r\nHost: loc",
        ):
            with server.connect() as connection:
                connection.sendall(request)
                received = b""
                while part := connection.recv(65_536):
                    received += part
            assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b'"code":"request_timeout"' in received
            assert b"\r\nconnection: close\r\n" in received


# Bugs of the server.


def test_a_bug_is_told_as_such_and_logged(tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(exchange: Exchange) -> None:
        raise ZeroDivisionError("a bug")

    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        server.server.app.routes.add("GET", "/bug", Endpoint("bug", fail))
        answer = client.request("GET", "/bug")
        assert answer.refusal == (500, "internal")
        assert "detail" not in answer.error
        assert "a bug" not in answer.error["message"]
        # The server goes on, and so does the connection.
        assert client.request("GET", "/v0/health").status == 200
    assert "ZeroDivisionError: a bug" in caplog.text
