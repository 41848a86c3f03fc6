"""Hostile requests, through all of the server: names, hosts, types, payloads.

After each of them the server must be as before: alive, with the same records, and quick for other clients.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.raw import HOST, RawConnection, append, ask, count_of, get, last_words, post
from tests.server.running import Running, running
from topics.limits import BATCH_RECORDS_MAX, JSON_DEPTH_MAX, MIB, RECORD_BYTES_MAX

GZIP = b"Content-Encoding: gzip"


def path_of(topic: str, action: str = "") -> bytes:
    return f"/v0/topics/{topic}{action}".encode()


def put(path: bytes, body: bytes, *headers: bytes) -> bytes:
    return b"PUT" + post(path, body, *headers)[4:]


@pytest.fixture
def existing(server: Running, topic: str) -> Iterator[str]:
    """A topic with one record, which it still has afterwards."""
    assert ask(server, append(topic, b'"kept"')).status == 201
    yield topic
    answer = ask(server, post(path_of(topic, "/diff"), b"{}"))
    assert [record["data"] for record in answer.json["records"]] == ["kept"]


# Paths.

HOSTILE_NAMES = [
    b"..",
    b".",
    b"%2e%2e",
    b"%2E%2E%2F%2E%2E%2Fetc",
    b"..%2f..%2fcanary",
    b"..%00",
    b"a%00b",
    b"%00",
    b"%c0%ae%c0%ae",
    b"%e0%80%ae",
    b"%f0%80%80%ae",
    b"%ff",
    b"%ed%a0%80",
    b"%5c..%5c",
    b"a%2fb",
    b"a%0d%0ab",
    b"%7e",
    b"-x",
    b"n" * 256,
    b"n" * 300,
    b"n" * 8000,
]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_names_that_are_paths_or_worse_touch_no_file(tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("here")
    with running(tmp_path / "data") as server, RawConnection(server) as connection:
        connection.send(append("good"))
        connection.answer()
        before = files_below(tmp_path)
        for name in HOSTILE_NAMES:
            path = b"/v0/topics/" + name
            body = b'{"records":[{"data":1}]}'
            for text in (put(path, b"{}"), post(path, body), post(path + b"?x=%00", body)):
                connection.send(text)
                assert connection.answer().refusal == (400, "invalid_request"), name
            delete = b"DELETE" + get(path)[3:]
            for text in (get(path), post(path + b"/diff", b"{}"), delete):
                connection.send(text)
                assert connection.answer().status in (200, 400, 404), name
        assert files_below(tmp_path) == before
        assert (tmp_path / "canary").read_text() == "here"
        connection.send(get(b"/v0/topics"))
        assert [entry["topic"] for entry in connection.answer().json["topics"]] == ["good"]


@pytest.mark.parametrize(
    "path",
    [
        b"/v0/topics/../health",
        b"/v0/../v0/health",
        b"/v0/./health",
        b"//v0/health",
        b"/v0//health",
        b"/v0/health/",
        b"/v0/health%00",
        b"/v0/%68ealth",
        b"/%2e%2e/%2e%2e/etc/passwd",
        b"/v0\\health",
        b"/V0/HEALTH",
        b"/v0/health;a=b",
        b"/v0/topics//",
        b"/v0/topics/a/diff/",
        b"/v0/topics/a/diff/diff",
        b"/.git/config",
        b"//",
        b"/index.html",
        b"/console/../console/app.js",
        b"/console/%61pp.js",
    ],
)
def test_a_path_is_compared_as_it_was_sent(server: Running, path: bytes) -> None:
    """Nothing is joined, resolved or decoded to find a route."""
    assert ask(server, get(path)).refusal == (404, "not_found")


# Hosts.


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:4000",
        b"localhost.evil.example",
        b"127.0.0.1.nip.io",
        b"localhost@evil.example",
        b"evil.example#localhost",
        b"127.1",
        b"2130706433",
        b"0.0.0.0",
        b"[::]",
        b"10.0.0.1",
        b"localhost, evil.example",
        b"",
        b"x" * 10_000,
    ],
)
def test_a_web_page_cannot_reach_a_server_without_keys_through_a_name_of_its_own(
    server: Running, topic: str, host: bytes
) -> None:
    """Reads and writes, small and large."""
    with RawConnection(server) as connection:
        for text in (get(), get(b"/v0/metrics"), get(b"/nothing"), append(topic), put(path_of(topic), b"{}")):
            connection.send(text.replace(HOST, b"Host: " + host + b"\r\n"))
            assert connection.answer().refusal == (403, "forbidden")
        large = post(path_of(topic), b"").replace(b"Content-Length: 0", b"Content-Length: 1000000")
        connection.send(large.replace(HOST, b"Host: " + host + b"\r\n"))
        assert connection.answer().refusal == (403, "forbidden")
        assert connection.is_ended()
    assert count_of(server, topic) == 0


@pytest.mark.parametrize(
    "host", [b"localhost", b"LocalHost:1", b"127.0.0.1", b"127.8.9.1:99", b"[::1]:4000", b" localhost\t "]
)
def test_this_machine_may_be_named_in_every_proper_way(server: Running, host: bytes) -> None:
    assert ask(server, get().replace(HOST, b"Host: " + host + b"\r\n")).status == 200


def test_a_chunked_body_brings_no_better_host_in_its_trailers(server: Running, topic: str) -> None:
    head = post(path_of(topic), b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    text = (
        head.replace(HOST, b"Host: evil.example\r\n")
        + b'18\r\n{"records":[{"data":1}]}\r\n0\r\nHost: localhost\r\n\r\n'
    )
    assert ask(server, text).refusal == (403, "forbidden")
    assert count_of(server, topic) == 0


def test_a_server_with_keys_goes_by_its_keys(tmp_path: Path) -> None:
    """With a proxy any name may be right."""
    with running(tmp_path, keys="secret") as server:
        foreign = get(b"/v0/topics", b"Authorization: Bearer secret").replace(HOST, b"Host: api.example\r\n")
        assert ask(server, foreign).status == 200


# Origins and types.


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"POST", b"PUT", b"DELETE"])
@pytest.mark.parametrize("path", [b"/v0/health", b"/v0/topics", b"/v0/topics/cors", b"/v0/metrics", b"/nothing"])
def test_no_web_page_of_another_origin_is_let_in(server: Running, method: bytes, path: bytes) -> None:
    """No answer allows a browser to show it to another origin, and none sets a cookie."""
    preflight = (b"Origin: http://evil.example", b"Access-Control-Request-Method: POST", b"Cookie: session=1")
    with RawConnection(server) as connection:
        connection.send(method + get(path, *preflight)[3:])
        answer = connection.answer(is_head=method == b"HEAD")
        assert not [name for name in answer.headers if name.startswith(("access-control", "set-cookie"))]
        assert answer.status == 403


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"Content-Type: text/plain",
        b"Content-Type: application/x-www-form-urlencoded",
        b"Content-Type: multipart/form-data; boundary=x",
        b"Content-Type: text/json",
        b"Content-Type: application/jso",
        b"Content-Type: Application/JSON",
        b"Content-Type: text/plain; application/json",
        b"Content-Type:",
    ],
)
def test_a_body_that_a_web_form_could_send_is_refused(server: Running, topic: str, kind: bytes) -> None:
    """A page cannot send JSON without a preflight request."""
    text = append(topic).replace(b"Content-Type: application/json\r\n", kind + b"\r\n" if kind else b"")
    assert ask(server, text).refusal == (415, "unsupported_media_type")
    assert count_of(server, topic) == 0


@pytest.mark.parametrize("charset", [b"utf-16", b"UTF-16LE", b"utf-32", b"latin-1", b"nonsense"])
def test_a_charset_is_ignored_so_that_other_codings_are_bad_json(server: Running, topic: str, charset: bytes) -> None:
    kind = b"application/json; charset=" + charset
    body = '{"records":[{"data":"ä"}]}'
    for coded in (body.encode("utf-16"), body.encode("utf-16-le"), body.encode("utf-32"), body.encode("latin-1")):
        text = post(path_of(topic), coded).replace(b"application/json", kind)
        assert ask(server, text).refusal == (400, "invalid_request")
    assert ask(server, post(path_of(topic), body.encode()).replace(b"application/json", kind)).status == 201


# Nesting.


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "data": lambda deep: b'{"records":[{"data":%b}]}' % deep,
    "data of the last": lambda deep: b'{"records":[' + b'{"data":1},' * 500 + b'{"data":%b}]}' % deep,
    "meta": lambda deep: b'{"records":[{"data":1,"meta":%b}]}' % deep,
    "unknown member": lambda deep: b'{"records":[{"data":1}],"x":%b}' % deep,
    "unknown member of a record": lambda deep: b'{"records":[{"data":1,"x":%b}]}' % deep,
    "config": lambda deep: b'{"records":[{"data":1}],"config":{"x":%b}}' % deep,
    "with line breaks": lambda deep: b'{"records":\n[{"data":%b}]}' % deep,
    "document": lambda deep: deep,
}


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 2, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")], ids=["lists", "objects", "no end"])
def test_nesting_without_end_is_bad_json(
    server: Running, existing: str, depth: int, shape: str, brackets: tuple[bytes, bytes]
) -> None:
    opening, closing = brackets
    deep = opening * depth + (b"1" if opening != b"[" else b"") + closing * depth
    answer = ask(server, post(path_of(existing), SHAPES[shape](deep)))
    assert answer.refusal == (400, "invalid_request")
    assert answer.malformed


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1_000, 1_000_000])
@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("/diff", b'{"x":%b}'),
        ("/diff", b'{"node":%b}'),
        ("/delete", b'{"before_seq":0,"x":%b}'),
        ("/delete", b'{"match":%b}'),
        ("/delete", b'{"match":["tag","Eq",%b]}'),
    ],
)
def test_nesting_without_end_is_bad_json_everywhere(
    server: Running, existing: str, depth: int, action: str, body: bytes
) -> None:
    refusal = (400, "invalid_request") if 2 * depth < MIB else (413, "payload_too_large")
    assert ask(server, post(path_of(existing, action), body % nested(depth))).refusal == refusal
    assert ask(server, put(path_of(existing), b'{"x":%b}' % nested(depth))).refusal == refusal


def test_nesting_inside_of_a_coding_or_a_cursor_is_found_too(server: Running, existing: str) -> None:
    bomb = gzip.compress(SHAPES["data"](nested(1_000_000)))
    assert ask(server, post(path_of(existing), bomb, GZIP)).malformed
    cursor = base64.b64encode(b'{"after":' + b"[" * 5_000)
    assert ask(server, get(b"/v0/topics?cursor=" + cursor.replace(b"=", b"%3D"))).refusal == (400, "invalid_request")


def test_nesting_up_to_the_bound_is_kept(server: Running, topic: str) -> None:
    """The payload is three levels deep in the body."""
    deepest = nested(JSON_DEPTH_MAX - 3)
    assert ask(server, append(topic, deepest)).status == 201
    assert deepest in ask(server, post(path_of(topic, "/diff"), b"{}")).body
    assert ask(server, append(topic, nested(JSON_DEPTH_MAX - 2))).malformed


# Texts and numbers.


@pytest.mark.parametrize(
    "data",
    [
        b'"\xff"',
        b'"\xc0\xae"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        rb'"\ud800"',
        rb'"\udc00\ud800"',
        rb'"\ud83dx"',
        b'"\n"',
        b'"\0"',
        rb'"\x41"',
        rb'"\u12"',
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"-1e999",
        b"1e" + b"9" * 1000,
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"0x1",
        b"'a'",
        b"True",
        b"undefined",
        b"[1,]",
        b"{1:2}",
        b"/* */1",
        b"",
    ],
)
@pytest.mark.parametrize("shape", ["data", "meta", "unknown member"])
def test_text_that_is_not_json_is_refused(server: Running, existing: str, data: bytes, shape: str) -> None:
    answer = ask(server, post(path_of(existing), SHAPES[shape](data)))
    assert answer.refusal == (400, "invalid_request")
    assert answer.malformed


@pytest.mark.parametrize("wrap", [b"\xef\xbb\xbf%b", b"%bx", b"%b{}", b"%b\0", b"\0%b", b"%b,", b"\xa0%b", b"%b\xff"])
def test_a_mark_in_front_and_bytes_behind_are_refused(server: Running, existing: str, wrap: bytes) -> None:
    assert ask(server, post(path_of(existing), wrap % b'{"records":[{"data":1}]}')).malformed


@pytest.mark.parametrize(
    "data",
    [
        b"9007199254740993",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"18446744073709551616",
        b"1" * 10_000,
        b"-" + b"9" * 10_000,
        b"0." + b"1" * 10_000,
        b"1.0",
        b"1e308",
        b"-0",
        b"0e999999",
        b'{"a":1,"a":2}',
        b'{"":{"":0,"":1},"":2}',
        b'{"__proto__":{"a":1},"constructor":null}',
        b'{"$seq":1,"$ts":2}',
        rb'"\u0000\u2028\u2029<\/script>"',
        rb'"\ud83d\ude00"',
    ],
)
def test_a_payload_comes_back_verbatim(server: Running, topic: str, data: bytes) -> None:
    assert ask(server, append(topic, data)).status == 201
    body = ask(server, post(path_of(topic, "/diff"), b"{}")).body
    assert b'"data":' + data + b"}" in body


@pytest.mark.parametrize("number", [b"-1", b"18446744073709551616", b"1" * 10_000, b"1e1", b"1.0", b"-0.0", b"1e400"])
@pytest.mark.parametrize(
    ("action", "body"), [("/diff", b'{"from_seq":%b}'), ("/diff", b'{"limit":%b}'), ("/delete", b'{"before_seq":%b}')]
)
def test_a_number_of_ours_is_checked_for_its_range(
    server: Running, existing: str, action: str, body: bytes, number: bytes
) -> None:
    assert ask(server, post(path_of(existing, action), body % number)).malformed


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}],"records":[{"data":2}]}',
        b'{"records":[{"data":1,"data":2}]}',
        rb'{"records":[{"data":1,"d\u0061ta":2}]}',
        b'{"records":[{"data":1}],"idempotency_key":"a","idempotency_key":"b"}',
        b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":2}}',
    ],
)
def test_a_member_of_ours_is_given_once(server: Running, existing: str, body: bytes) -> None:
    assert ask(server, post(path_of(existing), body)).malformed


# Batches.


def test_a_batch_is_written_whole_or_not_at_all(server: Running, existing: str) -> None:
    record = b'{"data":1}'
    too_large = b'{"data":"' + b"x" * (RECORD_BYTES_MAX - 1) + b'"}'
    for last, refusal in [
        (b'{"tag":"no data"}', (400, "invalid_request")),
        (b'{"data":1,"tag":"' + b"t" * 257 + b'"}', (400, "invalid_request")),
        (b'{"data":1,"node":5}', (400, "invalid_request")),
        (b"null", (400, "invalid_request")),
        (too_large, (400, "record_too_large")),
    ]:
        for records in ([record] * 999 + [last], [last] + [record] * 999):
            body = b'{"records":[' + b",".join(records) + b"]}"
            assert ask(server, post(path_of(existing), body)).refusal == refusal
    assert ask(server, post(path_of(existing), b'{"records":[]}')).refusal == (400, "invalid_request")
    body = b'{"records":[' + b",".join([record] * (BATCH_RECORDS_MAX + 1)) + b"]}"
    assert ask(server, post(path_of(existing), body)).refusal == (400, "batch_too_large")


def test_a_record_at_its_bound_is_taken(server: Running, topic: str) -> None:
    largest = b'"' + b"x" * (RECORD_BYTES_MAX - 2) + b'"'
    assert ask(server, append(topic, largest)).status == 201
    assert ask(server, append(topic, largest[:-1] + b'x"')).refusal == (400, "record_too_large")
    meta = b'{"records":[{"data":%b,"meta":{}}]}' % largest
    assert ask(server, post(path_of(topic), meta)).refusal == (400, "record_too_large")
    assert count_of(server, topic) == 1


# Keys and patterns that cost more than their size.


def colliding(count: int) -> bytes:
    """Names that fall into one bucket if a hash of their bytes has no secret."""
    return b",".join(b'"%020d":0' % (number << 32) for number in range(count))


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":{%b}}]}' % colliding(30_000),
        b'{"records":[{"data":1}],%b}' % colliding(100_000),
        b'{"records":[{"data":1,%b}]}' % colliding(100_000),
        b'{"records":[{"data":1,"meta":{"a":{%b}}}]}' % colliding(500),
    ],
    ids=["data", "body", "record", "meta"],
)
def test_many_names_are_many_names_and_no_more(server: Running, topic: str, body: bytes) -> None:
    """The hash has a secret of the process, or there is none."""
    assert ask(server, post(path_of(topic), body)).status == 201


def test_a_config_of_many_members_is_refused(server: Running, topic: str) -> None:
    body = b'{"records":[{"data":1}],"config":{%b}}' % colliding(100_000)
    assert ask(server, post(path_of(topic), body)).refusal == (413, "payload_too_large")


def test_a_meta_of_many_members_is_refused(server: Running, topic: str) -> None:
    body = b'{"records":[{"data":1,"meta":{%b}}]}' % colliding(65)
    assert ask(server, post(path_of(topic), body)).refusal == (400, "invalid_request")


@pytest.mark.parametrize(
    "pattern",
    ["*" * 65_536, "a*" * 32_768, "****a", "(a+)+$" * 10_000, "[" * 65_536, "\\" * 65_535 + "*", "?" * 65_536],
)
def test_a_pattern_has_one_star_at_its_end_and_costs_nothing(server: Running, topic: str, pattern: str) -> None:
    """Everything before the last star is compared as text."""
    tags = ["a" * 255, "*" * 256, "****a", "(a+)+$", "\\", "?"]
    records = [{"data": 1, "tag": tag} for tag in tags for _ in range(100)]
    assert ask(server, post(path_of(topic), json.dumps({"records": records}).encode())).status == 201
    forms = [pattern, ["tag", "Eq", pattern], ["tag", "Glob", pattern + "*"]]
    matching = sum(100 for tag in tags if (tag.startswith(pattern[:-1]) if pattern.endswith("*") else tag == pattern))
    answers = [ask(server, post(path_of(topic, "/delete"), json.dumps({"match": form}).encode())) for form in forms]
    assert [answer.json["deleted"] for answer in answers] == [matching, 0, 0]
    assert count_of(server, topic) == len(records) - matching


def test_a_long_prefix_of_a_list_finds_nothing(server: Running) -> None:
    assert ask(server, get(b"/v0/topics?prefix=" + b"*" * 8_000)).json["topics"] == []


# Bombs.


def bomb(size: int, level: int = 9) -> bytes:
    """A valid write as gzip, of about this many bytes."""
    return gzip.compress(b'{"records":[{"data":"' + b"x" * size + b'"}]}', level)


def test_a_body_that_inflates_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, max_body_bytes=MIB) as server:
        body = bomb(50 * MIB)
        assert len(body) < 50 * MIB // 1000
        assert ask(server, post(b"/v0/topics/a", body, GZIP)).refusal == (413, "payload_too_large")
        many = bomb(MIB // 2) * 3
        assert ask(server, post(b"/v0/topics/a", many, GZIP)).refusal == (413, "payload_too_large")
        empty = gzip.compress(b"") * 5_000
        assert ask(server, post(b"/v0/topics/a", empty, GZIP)).refusal == (400, "invalid_request")
        twice = gzip.compress(gzip.compress(b'{"records":[{"data":1}]}'))
        assert ask(server, post(b"/v0/topics/a", twice, GZIP)).malformed
        assert count_of(server, "a") == 0


def test_bombs_of_many_clients_keep_nobody_waiting(server: Running, topic: str) -> None:
    """The pool inflates them, and the loop answers other clients before the first is done."""
    body = bomb(80 * MIB, 1)
    text = post(path_of(topic), body, GZIP)
    clients = [RawConnection(server) for _ in range(8)]
    try:
        for client in clients:
            client.send(text)
        with RawConnection(server) as other:
            for _ in range(50):
                other.send(get())
                assert other.answer().status == 200
        assert [client.answer().refusal for client in clients] == [(413, "payload_too_large")] * len(clients)
    finally:
        for client in clients:
            client.socket.close()
    assert count_of(server, topic) == 0


def broken_gzip() -> Iterator[tuple[str, bytes]]:
    whole = bomb(1_000)
    yield "half of it", whole[: len(whole) // 2]
    yield "no checksum", whole[:-8]
    yield "no length", whole[:-4]
    yield "wrong checksum", whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    yield "wrong length", whole[:-1] + bytes([whole[-1] ^ 1])
    yield "bytes behind it", whole + b"x"
    yield "zeros behind it", whole + b"\0" * 100
    yield "half a member behind it", whole + whole[:15]
    yield "zlib", zlib.compress(b"{}")
    yield "raw", zlib.compress(b"{}", wbits=-15)
    yield "noise", os.urandom(100)
    yield "only a header", whole[:10]
    yield "plain", b'{"records":[{"data":1}]}'


@pytest.mark.parametrize(
    ("kind", "body"), list(broken_gzip()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_gzip_that_is_not_whole_and_sound_is_refused(server: Running, existing: str, kind: str, body: bytes) -> None:
    assert ask(server, post(path_of(existing), body, GZIP)).refusal == (400, "invalid_request")


# Names of others.


def test_a_key_learns_nothing_about_names_outside_of_its_prefixes(tmp_path: Path) -> None:
    """An existing topic and a missing one give the same bytes."""
    with running(tmp_path, keys="root,mine::mine.") as server, RawConnection(server) as connection:
        connection.send(append("other.secret", b"1", b"Authorization: Bearer root"))
        assert connection.answer().status == 201
        key = b"Authorization: Bearer mine"
        for action, body in [("", b'{"records":[{"data":1}]}'), ("/diff", b"{}"), ("/delete", b'{"before_seq":1}')]:
            seen: set[tuple[int, bytes]] = set()
            for name in ("other.secret", "other.absent", "mine", "m%C0"):
                connection.send(post(path_of(name, action), body, key))
                answer = connection.answer()
                assert answer.refusal == (403, "forbidden")
                seen.add((answer.status, answer.body))
            assert len(seen) == 1
        for path in (b"/v0/topics?prefix=other", b"/v0/topics", b"/v0/metrics", b"/v0/openapi.json"):
            connection.send(get(path, key))
            assert b"other.secret" not in connection.answer().body


def test_a_body_that_is_refused_for_its_size_is_refused_for_its_key_first(tmp_path: Path) -> None:
    """The order of the checks holds for bodies that are never read."""
    with running(tmp_path, keys="root,reader:read", max_body_bytes=1000) as server:
        large = post(b"/v0/topics/a", b"").replace(b"Content-Length: 0", b"Content-Length: 1000000")
        assert last_words(server, large).refusal == (401, "unauthorized")
        for key, refusal in [(b"reader", (403, "forbidden")), (b"root", (413, "payload_too_large"))]:
            text = large.replace(HOST, HOST + b"Authorization: Bearer " + key + b"\r\n")
            assert last_words(server, text).refusal == refusal
