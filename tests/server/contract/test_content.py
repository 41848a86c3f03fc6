"""Content types and codings."""

import gzip
import json

import pytest

from tests.server.clients import Client

READS_A_BODY = {
    "put": ("PUT", "", b"{}"),
    "write": ("POST", "", b'{"records":[{"data":1}]}'),
    "diff": ("POST", "/diff", b"{}"),
    "delete": ("POST", "/delete", b'{"before_seq":1}'),
}
NEEDS_A_BODY = {name: READS_A_BODY[name] for name in ("write", "delete")}
TAKES_NO_BODY_FOR_DEFAULTS = {name: READS_A_BODY[name] for name in ("put", "diff")}

GOOD_TYPES = [
    "application/json",
    "application/json; charset=utf-8",
    "application/json;charset=latin-1",
    "application/jsonish",
    "application/json, text/plain",
]
BAD_TYPES = [
    None,
    "",
    "text/plain",
    "Application/JSON",
    "application/JSON",
    "application/x-www-form-urlencoded",
    "text/json",
    "application/vnd.api+json",
    '"application/json"',
    "application/ json",
]


@pytest.fixture
def existing(client: Client, topic: str) -> str:
    client.put_topic(topic)
    return topic


@pytest.mark.parametrize(("method", "action", "body"), READS_A_BODY.values(), ids=READS_A_BODY)
@pytest.mark.parametrize("content_type", GOOD_TYPES)
def test_json_is_taken_whatever_follows_its_name(
    client: Client, existing: str, method: str, action: str, body: bytes, content_type: str
) -> None:
    path = f"/v0/topics/{existing}{action}"
    assert client.request(method, path, body, {"content-type": content_type}).status == 200


@pytest.mark.parametrize(("method", "action", "body"), READS_A_BODY.values(), ids=READS_A_BODY)
@pytest.mark.parametrize("content_type", BAD_TYPES)
def test_another_type_is_refused(
    client: Client, existing: str, method: str, action: str, body: bytes, content_type: str | None
) -> None:
    answer = client.request(method, f"/v0/topics/{existing}{action}", body, {"content-type": content_type})
    assert answer.refusal == (415, "unsupported_media_type")
    assert "detail" not in answer.error


@pytest.mark.parametrize(("method", "action", "body"), NEEDS_A_BODY.values(), ids=NEEDS_A_BODY)
@pytest.mark.parametrize("sent", [None, b""], ids=["no body", "empty body"])
def test_an_empty_body_needs_its_type_first_and_is_refused_then(
    client: Client, existing: str, method: str, action: str, body: bytes, sent: bytes | None
) -> None:
    path = f"/v0/topics/{existing}{action}"
    assert client.request(method, path, sent, {"content-type": None}).refusal == (415, "unsupported_media_type")
    assert client.request(method, path, sent, {"content-type": "text/plain"}).refusal[0] == 415
    assert client.request(method, path, sent, {"content-type": "application/json"}).malformed


@pytest.mark.parametrize(
    ("method", "action", "body"), TAKES_NO_BODY_FOR_DEFAULTS.values(), ids=TAKES_NO_BODY_FOR_DEFAULTS
)
@pytest.mark.parametrize("sent", [None, b""], ids=["no body", "empty body"])
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/json"])
def test_an_empty_body_stands_for_an_empty_object(
    client: Client, existing: str, method: str, action: str, body: bytes, sent: bytes | None, content_type: str | None
) -> None:
    answer = client.request(method, f"/v0/topics/{existing}{action}", sent, {"content-type": content_type})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v0/topics", 200),
        ("GET", "/v0/topics/{}", 200),
        ("DELETE", "/v0/topics/{}", 200),
        ("GET", "/v0/health", 200),
        ("GET", "/v0/ready", 200),
        ("GET", "/v0/metrics", 200),
        ("GET", "/nowhere", 404),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-encoding": "br"}], ids=str)
def test_a_body_that_nobody_reads_is_ignored(
    client: Client, existing: str, method: str, path: str, status: int, headers: dict[str, str]
) -> None:
    assert client.request(method, path.format(existing), b"no json", headers).status == status
    # The connection is still good.
    assert client.request("GET", "/v0/health").status == 200


# Request codings.


@pytest.mark.parametrize(("method", "action", "body"), READS_A_BODY.values(), ids=READS_A_BODY)
@pytest.mark.parametrize("coding", ["gzip", "GZIP", " gzip "])
def test_a_gzip_body_is_inflated(
    client: Client, existing: str, method: str, action: str, body: bytes, coding: str
) -> None:
    headers = {"content-encoding": coding.strip() if len(coding) > 4 else coding}
    assert client.request(method, f"/v0/topics/{existing}{action}", gzip.compress(body), headers).status == 200


def test_a_gzip_body_is_taken_for_what_is_in_it(client: Client, topic: str) -> None:
    body = json.dumps({"records": [{"data": "x" * 100_000}, {"data": 2}]}).encode()
    answer = client.request("POST", f"/v0/topics/{topic}", gzip.compress(body), {"content-encoding": "gzip"})
    assert answer.json["count"] == 2
    assert client.datas(topic) == ["x" * 100_000, 2]


def test_a_gzip_body_of_several_members_is_one_body(client: Client, topic: str) -> None:
    body = gzip.compress(b'{"records":[{"da') + gzip.compress(b'ta":1}]}')
    assert client.request("POST", f"/v0/topics/{topic}", body, {"content-encoding": "gzip"}).status == 201


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}]}',
        gzip.compress(b'{"records":[{"data":1}]}')[:-1],
        gzip.compress(b'{"records":[{"data":1}]}') + b"x",
        b"\x1f\x8b",
    ],
    ids=["not gzip", "cut off", "more behind it", "header only"],
)
def test_corrupt_gzip_is_refused(client: Client, topic: str, body: bytes) -> None:
    answer = client.request("POST", f"/v0/topics/{topic}", body, {"content-encoding": "gzip"})
    assert answer.refusal == (400, "invalid_request")


@pytest.mark.parametrize(("method", "action", "body"), READS_A_BODY.values(), ids=READS_A_BODY)
@pytest.mark.parametrize("coding", ["br", "deflate", "x-gzip", "gzip, gzip", "zstd", "compress"])
def test_other_codings_are_refused(
    client: Client, existing: str, method: str, action: str, body: bytes, coding: str
) -> None:
    answer = client.request(method, f"/v0/topics/{existing}{action}", body, {"content-encoding": coding})
    assert answer.refusal == (415, "unsupported_media_type")


@pytest.mark.parametrize("coding", ["identity", "Identity"])
def test_identity_is_no_coding(client: Client, topic: str, coding: str) -> None:
    body = {"records": [{"data": 1}]}
    assert client.request("POST", f"/v0/topics/{topic}", body, {"content-encoding": coding}).status == 201


# Response codings.

WELCOME = ["gzip", "GZIP", "br, gzip", "gzip;q=0.001", "gzip; q=1", "deflate;q=0.5, gzip;q=0.1"]
UNWELCOME = [None, "", "br", "identity", "gzip;q=0", "gzip;q=0.000", "*", "x-gzip", "gzip;q=-1"]


@pytest.fixture
def large(client: Client, topic: str) -> str:
    """A topic whose diff is well over the size from which answers are compressed."""
    client.write(topic, *["a record that repeats itself"] * 100)
    return topic


@pytest.mark.parametrize("accepted", WELCOME)
def test_a_large_answer_is_compressed_for_who_wants_it(client: Client, large: str, accepted: str) -> None:
    plain = client.request("POST", f"/v0/topics/{large}/diff", {})
    answer = client.request("POST", f"/v0/topics/{large}/diff", {}, {"accept-encoding": accepted})
    assert answer.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in answer.headers["vary"].lower()
    assert int(answer.headers["content-length"]) == len(answer.body) < len(plain.body)
    assert json.loads(gzip.decompress(answer.body))["records"] == plain.json["records"]


@pytest.mark.parametrize("accepted", UNWELCOME)
def test_nobody_else_gets_a_compressed_answer(client: Client, large: str, accepted: str | None) -> None:
    answer = client.request("POST", f"/v0/topics/{large}/diff", {}, {"accept-encoding": accepted})
    assert "content-encoding" not in answer.headers
    assert len(answer.json["records"]) == 100


def test_a_small_answer_is_never_compressed(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.request("GET", f"/v0/topics/{topic}", headers={"accept-encoding": "gzip"})
    assert len(answer.body) < 1024
    assert "content-encoding" not in answer.headers
    assert answer.json["topic"] == topic


def test_an_answer_of_megabytes_is_compressed_whole(client: Client, topic: str) -> None:
    client.write(topic, *["y" * 1000] * 900)
    body = {"limit": 1000, "max_batch_bytes": 8_000_000}
    answer = client.request("POST", f"/v0/topics/{topic}/diff", body, {"accept-encoding": "gzip"})
    assert len(json.loads(gzip.decompress(answer.body))["records"]) == 900


def test_a_head_request_has_the_headers_of_its_get(client: Client) -> None:
    headers = {"accept-encoding": "gzip"}
    get = client.request("GET", "/v0/metrics", headers=headers)
    head = client.request("HEAD", "/v0/metrics", headers=headers)
    assert head.status == 200
    assert head.body == b""
    assert head.headers.keys() == get.headers.keys()
    assert head.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("accept", ["text/html", "text/event-stream", "image/png;q=0.5", "*/*", ""])
def test_accept_does_not_matter_to_json(client: Client, topic: str, accept: str) -> None:
    client.put_topic(topic)
    assert client.request("GET", f"/v0/topics/{topic}", headers={"accept": accept}).status == 200
    assert client.request("POST", f"/v0/topics/{topic}/diff", {}, {"accept": accept}).status == 200
