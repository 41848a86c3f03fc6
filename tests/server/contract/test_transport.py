"""Connections and their protocols."""

import json
import socket

import pytest

from tests.server.clients import Client, Http1Client, Http2Client
from tests.server.running import Running


def converse(server: Running, request: bytes) -> bytes:
    """The answer to a raw HTTP/1.1 request, up to the end of the connection."""
    with server.connect() as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65_536):
            received += part
    return received


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def test_both_protocols_share_a_port(server: Running, topic: str) -> None:
    with Http1Client(server.host, server.port) as one, Http2Client(server.host, server.port) as two:
        one.put_topic(topic)
        two.write(topic, "over two")
        one.write(topic, "over one")
        assert one.datas(topic) == two.datas(topic) == ["over two", "over one"]


def test_a_connection_takes_one_request_after_another(client: Client, topic: str) -> None:
    for seq in range(1, 20):
        assert client.write(topic, seq)["first_seq"] == seq
        assert client.request("GET", f"/v0/topics/{topic}.absent").refusal == (404, "topic_not_found")


def test_a_connection_outlives_refusals(client: Client, topic: str) -> None:
    client.put_topic(topic)
    assert client.request("POST", f"/v0/topics/{topic}", b"{").malformed
    assert client.request("PATCH", f"/v0/topics/{topic}").refusal == (405, "method_not_allowed")
    assert client.request("GET", "/nowhere").refusal == (404, "not_found")
    assert client.state(topic)["head_seq"] == 0


@pytest.mark.parametrize(
    "path", ["/v0/topics", "/v0/topics/{}", "/v0/health", "/v0/ready", "/v0/metrics", "/nowhere", "/v0/topics/absent"]
)
def test_head_is_get_without_the_body(client: Client, topic: str, path: str) -> None:
    client.put_topic(topic)
    path = path.format(topic)
    get, without = client.request("GET", path), client.request("HEAD", path)
    assert without.body == b""
    assert without.status == get.status
    assert without.headers.keys() == get.headers.keys()
    assert without.headers["content-type"] == get.headers["content-type"]
    assert int(without.headers["content-length"]) > 0


def test_head_of_what_has_no_get_is_not_allowed(client: Client, topic: str) -> None:
    answer = client.request("HEAD", f"/v0/topics/{topic}/diff")
    assert (answer.status, answer.headers["allow"], answer.body) == (405, "POST", b"")


def test_an_upgrade_to_http2_is_ignored(server: Running) -> None:
    request = head(
        "GET", "/v0/health", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"
    )
    answer = converse(server, request + head("GET", "/v0/ready", "Connection: close"))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert b'"status":"ok"' in answer
    assert b'"status":"ready"' in answer


def test_a_body_may_come_in_chunks(server: Running, topic: str) -> None:
    chunks = b'a\r\n{"records"\r\n9\r\n:[{"data"\r\n5;ext=1\r\n:1}]}\r\n0\r\nTrailer: x\r\n\r\n'
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    answer = converse(server, head("POST", f"/v0/topics/{topic}", *lines) + chunks)
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["count"] == 1


def test_a_client_may_ask_before_it_sends_a_body(server: Running, topic: str) -> None:
    body = b'{"records":[{"data":1}]}'
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Expect: 100-continue")
    with server.connect() as connection:
        connection.sendall(head("POST", f"/v0/topics/{topic}", *lines))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 201 Created\r\n")


def test_a_body_that_is_not_wanted_is_not_asked_for(server: Running) -> None:
    answer = converse(server, head("POST", "/v0/nowhere", "Content-Length: 10", "Expect: 100-continue"))
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_a_body_over_the_default_limit_is_refused_before_it_is_sent(server: Running) -> None:
    lines = ("Content-Type: application/json", "Content-Length: 67108865")
    answer = converse(server, head("POST", "/v0/topics/a", *lines))
    assert answer.startswith(b"HTTP/1.1 413 Content Too Large\r\n")
    assert b'"code":"payload_too_large"' in answer


def test_a_client_that_wants_the_connection_closed_gets_that(server: Running) -> None:
    answer = converse(server, head("GET", "/v0/health", "Connection: close"))
    assert b"\r\nconnection: close\r\n" in answer.lower()


def test_requests_may_follow_each_other_without_waiting(server: Running, topic: str) -> None:
    body = b'{"records":[{"data":1}]}'
    write = head("POST", f"/v0/topics/{topic}", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    answer = converse(server, write * 50)
    assert [f'"first_seq":{seq},'.encode() in answer for seq in range(1, 51)] == [True] * 50
    assert answer.index(b'"first_seq":1,') < answer.index(b'"first_seq":2,') < answer.index(b'"first_seq":50,')


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v0/health"), ("GET", "/nowhere"), ("POST", "/v0/topics"), ("GET", "/v0/topics/a")]
)
def test_every_answer_has_a_type_a_length_and_a_date(client: Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.headers["date"].endswith(" GMT")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""])
def test_a_page_that_gave_its_own_name_our_address_is_refused(server: Running, host: str) -> None:
    """Without keys, on loopback: the `Host` header shows the name of the page."""
    request = f"GET /v0/topics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    answer = converse(server, request)
    assert answer.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b'"code":"forbidden"' in answer


def test_an_old_client_without_a_host_is_served(server: Running) -> None:
    assert converse(server, b"GET /v0/health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
