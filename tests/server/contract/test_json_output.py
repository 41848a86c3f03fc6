"""The JSON of records: exactly the written bytes, and no members that were not set."""

import json
import re

import pytest

from tests.server.clients import Client

PAYLOADS = {
    "null": b"null",
    "empty string": b'""',
    "blanks inside": b'{ "a" :  [ 1 ,\t2 ] }',
    "members in no order": b'{"b":1,"a":2,"":3}',
    "a member twice": b'{"a":1,"a":2,"b":{"c":1,"c":1}}',
    "big integer": b"123456789012345678901234567890123456789012345678901234567890",
    "integer of 400 digits": b"9" * 400,
    "digits that a double loses": b"0.1000000000000000055511151231257827021181583404541015625",
    "exponents": b"[1e5,1E5,1e+05,-0,-0.0,1e-400]",
    "escapes": b'"\\u0041\\/\\ud83d\\ude00\\u0000\\n"',
    "letters beyond ASCII": '"é€😀\u2028"'.encode(),
    "delete character": b'"\x7f"',
    "looks like an envelope": b'{"d":1,"m":2}',
    "holds what separates a meta": b'["x",{"n":0,"m":1}]',
    "holds a meta mark in a string": b'"a,\\"m\\":b"',
    "nested 124 levels deep": b"[" * 124 + b"]" * 124,
    "names of ours": b'{"$seq":7,"$ts":1,"data":2,"error":3,"performance":4}',
}

BROKEN_LINES = {
    "line feeds": (b'{\n "a": 1,\n "b": [ 1, 2 ]\n}', b'{"a":1,"b":[1,2]}'),
    "carriage returns": (b"[\r1,\r2]", b"[1,2]"),
    "both": (b'{\r\n"a" : "x  y"\r\n}', b'{"a":"x  y"}'),
    "numbers of any length": (b"[\n12345678901234567890123456789.50]", b"[12345678901234567890123456789.50]"),
    "a member twice": (b'{"a":1,\n"a":2}', b'{"a":1,"a":2}'),
    "escapes": (b'[\n"\\u0041\\n"]', b'["\\u0041\\n"]'),
}


def first_record(body: bytes) -> bytes:
    match = re.search(rb'"records":\[(.*)\],"next_from_seq"', body)
    assert match is not None
    return match[1]


def read_text(client: Client, topic: str, body: bytes = b"{}") -> bytes:
    return first_record(client.request("POST", f"/v0/topics/{topic}/diff", body).body)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_comes_back_as_the_bytes_it_was(client: Client, topic: str, payload: bytes) -> None:
    body = b'{"records":[{"data":%b},{"data":%b,"meta":%b}]}' % (payload, payload, payload)
    if b"[[[" in payload or len(payload) > 300:
        body = body.replace(b',"meta":' + payload, b',"meta":{}')
    answer = client.request("POST", f"/v0/topics/{topic}", body)
    assert answer.status == 201
    plain, with_meta = read_text(client, topic).split(b',{"$seq":2', 1)
    assert plain.endswith(b',"data":%b}' % payload)
    assert b',"data":%b' % payload in with_meta
    if payload != b"null" and b'"meta":{}' not in body:
        assert with_meta.endswith(b',"meta":%b}' % payload)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_blanks_around_a_payload_are_no_part_of_it(client: Client, topic: str, payload: bytes) -> None:
    body = b' { "records" : [ { "data" : %b , "tag" : "t" } ] } ' % payload
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201
    assert read_text(client, topic).endswith(b',"data":%b}' % payload)


@pytest.mark.parametrize(("sent", "stored"), BROKEN_LINES.values(), ids=BROKEN_LINES)
def test_a_payload_with_line_breaks_is_stored_compact(client: Client, topic: str, sent: bytes, stored: bytes) -> None:
    body = b'{"records":[{"data":%b,"meta":%b}]}' % (sent, sent)
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201
    assert read_text(client, topic).endswith(b',"data":%b,"meta":%b}' % (stored, stored))
    assert client.state(topic)["bytes"] == 2 * len(stored)


def test_a_line_break_elsewhere_leaves_other_payloads_as_they_are(client: Client, topic: str) -> None:
    body = b'{\n"records":[\n{"data":[ 1 ]},\n{"data":[\n2 ]}]}'
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201
    text = read_text(client, topic)
    assert b'"data":[ 1 ]}' in text
    assert b'"data":[2]}' in text


def test_accounted_bytes_are_those_of_data_and_meta_as_stored(client: Client, topic: str) -> None:
    client.request(
        "POST", f"/v0/topics/{topic}", b'{"records":[{"data":[ 1 ],"meta":{"a": 2},"tag":"tag","node":"n"}]}'
    )
    assert client.state(topic)["bytes"] == len(b"[ 1 ]") + len(b'{"a": 2}')


def test_absent_means_absent(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": None}, {"data": 1, "tag": None, "node": None, "meta": None}])
    records = client.diff(topic, include_tags=True)["records"]
    assert [record.keys() for record in records] == [{"$seq", "$ts", "data"}] * 2
    assert [record["data"] for record in records] == [None, 1]


def test_an_empty_tag_and_an_empty_node_are_set(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": 1, "tag": "", "node": "", "meta": ""}])
    (record,) = client.diff(topic, include_tags=True)["records"]
    assert record == {"$seq": 1, "$ts": record["$ts"], "$tag": "", "$node": "", "data": 1, "meta": ""}


FLAGS = [(tags, meta) for tags in (False, True) for meta in (False, True)]


@pytest.mark.parametrize(("include_tags", "include_meta"), FLAGS)
def test_a_reader_says_whether_it_wants_tags_and_meta(
    client: Client, topic: str, include_tags: bool, include_meta: bool
) -> None:
    client.write(topic, records=[{"data": 1, "tag": "t", "node": "n", "meta": {"k": "v"}}])
    (record,) = client.diff(topic, include_tags=include_tags, include_meta=include_meta)["records"]
    expected = {"$seq": 1, "$ts": record["$ts"], "$node": "n", "data": 1}
    expected |= {"$tag": "t"} if include_tags else {}
    expected |= {"meta": {"k": "v"}} if include_meta else {}
    assert record == expected


def test_tags_are_left_out_and_meta_is_shown_unless_asked_otherwise(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": 1, "tag": "t", "meta": 5}])
    (record,) = client.diff(topic)["records"]
    assert record.keys() == {"$seq", "$ts", "data", "meta"}


@pytest.mark.parametrize("text", ['q"uo\\te', "tab\tnul\0", "é€😀", "\u2028", "\x7f", "</script>"])
def test_tags_and_nodes_of_any_text_come_back(client: Client, topic: str, text: str) -> None:
    client.write(topic, records=[{"data": 1, "tag": text, "node": text}])
    (record,) = client.diff(topic, include_tags=True)["records"]
    assert (record["$tag"], record["$node"]) == (text, text)


def test_members_of_the_read_side_are_ignored_in_a_write(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": 1, "$seq": 99, "$ts": 5, "$node": "x", "$tag": "y", "other": {}}])
    (record,) = client.diff(topic, include_tags=True)["records"]
    assert record.keys() == {"$seq", "$ts", "data"}
    assert record["$seq"] == 1


@pytest.mark.parametrize("meta", ["text", 5, [1, 2], False, {"a": {"b": None}}, {}], ids=json.dumps)
def test_a_meta_may_be_any_json(client: Client, topic: str, meta: object) -> None:
    client.write(topic, records=[{"data": 1, "meta": meta}])
    (record,) = client.diff(topic)["records"]
    assert record["meta"] == meta
