"""Which request bodies are accepted, on every route with a body."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.server.clients import Client

U64_MAX = 2**64 - 1
U32_MAX = 2**32 - 1


class Route(NamedTuple):
    """A route with a body: the smallest valid body, and one member of each type."""

    method: str
    action: str
    # A body that works, without its closing brace.
    good: bytes
    integers: tuple[str, ...] = ()
    integers_32: tuple[str, ...] = ()
    booleans: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        return self.integers + self.integers_32 + self.booleans + self.choices + self.texts


UNSIGNED = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)
BOOLEANS = ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")

ROUTES = {
    "put": Route(
        "PUT",
        "",
        b'{"x":1',
        integers=UNSIGNED,
        booleans=BOOLEANS,
        choices=("type", "discard", "durability"),
        texts=("dead_letter",),
        nullable=("durability", "priority", "dead_letter"),
    ),
    "write": Route(
        "POST",
        "",
        b'{"records":[{"data":1}]',
        booleans=("create", "disable_backpressure"),
        texts=("node", "idempotency_key"),
        nullable=("node", "idempotency_key", "create", "config"),
    ),
    "diff": Route(
        "POST",
        "/diff",
        b'{"x":1',
        integers=("from_seq", "max_batch_bytes"),
        integers_32=("limit", "wait_ms"),
        booleans=("include_tags", "include_meta"),
        nullable=("node",),
    ),
    "delete": Route("POST", "/delete", b'{"match":"x"', integers=("before_seq",), nullable=("before_seq",)),
}

# The same rules hold for the config inside of a write.
IN_CONFIG = ROUTES["put"]

BAD_DOCUMENTS = {
    "null": b"null",
    "array": b"[]",
    "string": b'"s"',
    "number": b"1",
    "boolean": b"true",
    "two documents": b"{}{}",
    "no document": b" ",
    "no JSON": b"records=1",
    "open object": b"{",
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "single quotes": b"{'a':1}",
    "comment": b"{/*a*/}",
    "form feed as a blank": b"{\x0c}",
}

# Endings that replace the closing brace of a valid body.
BAD_ENDINGS = {
    "trailing comma": b",}",
    "trailing bytes": b"}x",
    "trailing nul": b"}\0",
    "trailing bracket": b"}]",
    "member without a value": b',"a"}',
    "no quotes around a name": b",a:1}",
    "NaN": b',"a":NaN}',
    "Infinity": b',"a":Infinity}',
    "minus Infinity": b',"a":-Infinity}',
    "number beyond a double": b',"a":1e400}',
    "negative number beyond a double": b',"a":-1E+400}',
    "long number beyond a double": b',"a":1' + b"0" * 310 + b".5}",
    "leading zero": b',"a":01}',
    "number without digits behind the point": b',"a":1.}',
    "plus sign": b',"a":+1}',
    "bytes that are not UTF-8": b',"a":"\xff"}',
    "a name that is not UTF-8": b',"\xff":1}',
    "UTF-8 of a surrogate": b',"a":"\xed\xa0\x80"}',
    "overlong UTF-8": b',"a":"\xc0\xaf"}',
    "raw control character": b',"a":"\x01"}',
    "raw line break in a string": b',"a":"\n"}',
    "raw tab in a name": b',"\t":1}',
    "lone high surrogate": b',"a":"\\ud800"}',
    "lone high surrogate before text": b',"a":"\\ud800 and more text than any escape has"}',
    "lone low surrogate": b',"a":"\\udc00"}',
    "two high surrogates": b',"a":"\\ud800\\ud800"}',
    "surrogates in the wrong order": b',"a":"\\udc00\\ud800"}',
    "lone surrogate in a name": b',"\\ud800":1}',
    "unknown escape": b',"a":"\\x41"}',
    "half an escape": b',"a":"\\u12"}',
    "trailing comma in an array": b',"a":[1,]}',
    "nested 128 levels deep": b',"a":' + b"[" * 127 + b"]" * 127 + b"}",
    "nested 128 objects deep": b',"a":' + b'{"b":' * 127 + b"1" + b"}" * 127 + b"}",
    "nested without end": b',"a":' + b"[" * 100_000 + b"}",
    "nested 100000 levels deep": b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}

GOOD_ENDINGS = {
    "nothing more": b"}",
    "unknown members": b',"a":1,"$seq":2,"":3}',
    "an unknown member twice": b',"a":1,"a":2}',
    "blanks": b' ,\r\n\t"a" : [ ] } \n',
    "escaped letters": b',"\\u0061\\"":"\\ud83d\\ude00\\/\\b"}',
    "delete character": b',"a":"\x7f"}',
    "large and small numbers": b',"a":[1e308,-1e308,1e-400,0e999,123456789012345678901234567890]}',
    "integer of 400 digits": b',"a":' + b"9" * 400 + b"}",
    "nested 127 levels deep": b',"a":' + b"[" * 126 + b"]" * 126 + b"}",
    "brackets in a string": b',"a":"' + b"[{" * 200 + b'"}',
}

NO_INTEGER = {
    "float": b"1.5",
    "whole float": b"1.0",
    "exponent": b"1e2",
    "string": b'"5"',
    "boolean": b"true",
    "array": b"[1]",
    "object": b"{}",
    "negative": b"-1",
    "beyond any range": b"1" + b"0" * 30,
}
NO_BOOLEAN = {"number": b"1", "zero": b"0", "string": b'"true"', "array": b"[]", "wrong case": b"True"}
NO_CHOICE = {"unknown": b'"other"', "upper case": b'"LOG"', "title case": b'"Disk"', "number": b"1", "empty": b'""'}
NO_TEXT = {"number": b"1", "boolean": b"false", "array": b'["a"]', "object": b"{}"}


def rows() -> Iterator[tuple[str, Route, str, str, bytes]]:
    """Every member of every route, with every value that its type does not accept."""
    for name, route in ROUTES.items():
        for kind, members, values in (
            ("integer", route.integers, NO_INTEGER | {"u64 and one": b"18446744073709551616"}),
            ("integer", route.integers_32, NO_INTEGER | {"u32 and one": b"4294967296"}),
            ("boolean", route.booleans, NO_BOOLEAN),
            ("choice", route.choices, NO_CHOICE),
            ("text", route.texts, NO_TEXT),
        ):
            for member in members:
                for case, value in values.items():
                    yield f"{name}-{member}-{kind} as {case}", route, member, case, value
        for member in route.members:
            if member not in route.nullable:
                yield f"{name}-{member}-null", route, member, "null", b"null"


TYPE_ROWS = list(rows())


@pytest.fixture
def existing(client: Client, topic: str) -> str:
    client.put_topic(topic)
    return topic


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("body", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_body_that_is_no_object_is_refused(client: Client, existing: str, route: Route, body: bytes) -> None:
    answer = client.request(route.method, f"/v0/topics/{existing}{route.action}", body)
    assert answer.malformed


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("ending", BAD_ENDINGS.values(), ids=BAD_ENDINGS)
def test_text_that_is_not_strict_json_is_refused_and_changes_nothing(
    client: Client, existing: str, route: Route, ending: bytes
) -> None:
    answer = client.request(route.method, f"/v0/topics/{existing}{route.action}", route.good + ending)
    assert answer.malformed
    assert client.state(existing)["head_seq"] == 0


@pytest.mark.parametrize("ending", BAD_ENDINGS.values(), ids=BAD_ENDINGS)
def test_the_rules_hold_inside_of_a_payload(client: Client, existing: str, ending: bytes) -> None:
    """The payload is the object that the ending closes."""
    body = b'{"records":[{"data":{"x":1' + ending + b"}]}"
    assert client.request("POST", f"/v0/topics/{existing}", body).malformed
    assert client.state(existing)["head_seq"] == 0


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("ending", GOOD_ENDINGS.values(), ids=GOOD_ENDINGS)
def test_what_is_unknown_or_unusual_is_ignored(client: Client, existing: str, route: Route, ending: bytes) -> None:
    answer = client.request(route.method, f"/v0/topics/{existing}{route.action}", route.good + ending)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("route", "member", "value"), [row[1:3] + row[4:] for row in TYPE_ROWS], ids=[row[0] for row in TYPE_ROWS]
)
def test_a_value_of_another_type_is_refused(
    client: Client, topic: str, route: Route, member: str, value: bytes
) -> None:
    body = route.good + b',"%b":%b}' % (member.encode(), value)
    answer = client.request(route.method, f"/v0/topics/{topic}{route.action}", body)
    assert answer.malformed
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


@pytest.mark.parametrize(
    ("member", "value"),
    [row[2:3] + row[4:] for row in TYPE_ROWS if row[1] is IN_CONFIG],
    ids=[row[0] for row in TYPE_ROWS if row[1] is IN_CONFIG],
)
@pytest.mark.parametrize("exists", [False, True], ids=["absent topic", "existing topic"])
def test_the_config_of_a_write_must_be_well_typed_even_when_it_is_not_used(
    client: Client, topic: str, member: str, value: bytes, exists: bool
) -> None:
    if exists:
        client.put_topic(topic)
    body = b'{"records":[{"data":1}],"config":{"%b":%b}}' % (member.encode(), value)
    assert client.request("POST", f"/v0/topics/{topic}", body).malformed
    if exists:
        assert client.state(topic)["head_seq"] == 0
    else:
        assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


@pytest.mark.parametrize(
    "value", [b"2147483648", b"-2147483649", b"3000000000", b"1.0", b"1.5", b'"1"', b"true", b"1e1"]
)
def test_a_priority_has_32_bits(client: Client, topic: str, value: bytes) -> None:
    assert client.request("PUT", f"/v0/topics/{topic}", b'{"priority":%b}' % value).malformed


NULLABLE = [(name, member) for name, route in ROUTES.items() for member in route.nullable]


@pytest.mark.parametrize(("route", "member"), NULLABLE, ids=[f"{name}-{member}" for name, member in NULLABLE])
def test_null_where_it_may_be_is_as_if_left_out(client: Client, existing: str, route: str, member: str) -> None:
    body = ROUTES[route].good + b',"%b":null}' % member.encode()
    assert client.request(ROUTES[route].method, f"/v0/topics/{existing}{ROUTES[route].action}", body).status == 200


REPEATED = [(name, member) for name, route in ROUTES.items() for member in (*route.members, *route.nullable)]
SAMPLES = {
    "type": b'"log"',
    "discard": b'"old"',
    "durability": b'"disk"',
    "dead_letter": b'"d"',
    "node": b'"n"',
    "idempotency_key": b'"k"',
    "config": b"{}",
}


def sample(route: Route, member: str) -> bytes:
    return SAMPLES.get(member) or (b"true" if member in route.booleans else b"1")


@pytest.mark.parametrize(
    ("name", "member"), sorted(set(REPEATED)), ids=[f"{name}-{member}" for name, member in sorted(set(REPEATED))]
)
def test_a_known_member_twice_is_refused(client: Client, existing: str, name: str, member: str) -> None:
    """Also if both values are equal, and if one name is written with escapes."""
    route = ROUTES[name]
    value = sample(route, member)
    path = f"/v0/topics/{existing}{route.action}"
    once = b',"%b":%b' % (member.encode(), value)
    escaped = b',"\\u%04x%b":%b' % (ord(member[0]), member[1:].encode(), value)
    assert client.request(route.method, path, route.good + once + b"}").status == 200
    assert client.request(route.method, path, route.good + escaped + b"}").status == 200
    assert client.request(route.method, path, route.good + once + once + b"}").malformed
    assert client.request(route.method, path, route.good + once + escaped + b"}").malformed


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"data":1}],"records":[{"data":1}]}',
        b'{"records":[{"data":1,"data":1}]}',
        b'{"records":[{"data":1,"tag":"a","tag":"a"}]}',
        b'{"records":[{"data":1,"node":"a","node":"a"}]}',
        b'{"records":[{"data":1,"meta":{},"meta":{}}]}',
        b'{"records":[{"data":1},{"data":2,"d\\u0061ta":2}]}',
        b'{"records":[{"data":1}],"config":{"ttl_ms":1,"ttl_ms":1}}',
        b'{"records":[{"data":1}],"config":{"type":"log","\\u0074ype":"log"}}',
        b' { "records" : [ { "data" : 1 , "data" : 1 } ] } ',
    ],
)
def test_a_known_member_twice_inside_of_a_write_is_refused(client: Client, existing: str, body: bytes) -> None:
    assert client.request("POST", f"/v0/topics/{existing}", body).malformed
    assert client.state(existing)["head_seq"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":null}',
        b'{"records":{}}',
        b'{"records":"x"}',
        b"{}",
        b'{"records":[null]}',
        b'{"records":[1]}',
        b'{"records":[[]]}',
        b'{"records":[{}]}',
        b'{"records":[{"tag":"x"}]}',
        b'{"records":[{"data":1,"tag":1}]}',
        b'{"records":[{"data":1,"tag":["x"]}]}',
        b'{"records":[{"data":1,"node":false}]}',
        b'{"records":[{"data":1},{}]}',
        b'{"records":[{"data":1}],"config":[]}',
        b'{"records":[{"data":1}],"config":"x"}',
        b'{"records":[{"data":1}],"config":false}',
    ],
)
def test_a_write_of_another_shape_is_refused(client: Client, existing: str, body: bytes) -> None:
    assert client.request("POST", f"/v0/topics/{existing}", body).malformed
    assert client.state(existing)["head_seq"] == 0


@pytest.mark.parametrize(
    "value", [b"1", b"true", b"{}", b"[1]", b"[null]", b'[["a"]]', b'["a",1]'], ids=lambda value: value.decode()
)
def test_the_node_of_a_diff_is_a_text_or_a_list_of_texts(client: Client, existing: str, value: bytes) -> None:
    assert client.request("POST", f"/v0/topics/{existing}/diff", b'{"node":%b}' % value).malformed


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [(name, member, U64_MAX) for name, route in ROUTES.items() for member in route.integers]
    + [(name, member, U32_MAX) for name, route in ROUTES.items() for member in route.integers_32 if member != "wait_ms"]
    + [("put", "priority", 2**31 - 1), ("put", "priority", -(2**31)), ("put", "ttl_ms", 2**63)],
)
def test_the_largest_value_of_a_type_is_taken(
    client: Client, existing: str, name: str, member: str, value: int
) -> None:
    route = ROUTES[name]
    body = route.good + b',"%b":%d}' % (member.encode(), value)
    assert client.request(route.method, f"/v0/topics/{existing}{route.action}", body).status == 200
