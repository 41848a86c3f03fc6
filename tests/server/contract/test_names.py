"""Names in paths."""

import pytest

from tests.server.clients import Client

ILL_FORMED = {
    "dot first": ".x",
    "dash first": "-x",
    "underscore first": "_x",
    "colon first": ":x",
    "256 bytes": "a" * 256,
    "blank": "a%20b",
    "slash": "a%2Fb",
    "lower-case escape of a slash": "a%2fb",
    "arrow": "a-%3Eb",
    "broken escape": "a%zz",
    "half an escape": "a%4",
    "percent sign alone": "%",
    "escaped percent sign": "a%2561",
    "letter beyond ASCII": "%C3%A9",
    "nul": "a%00",
    "line break at the end": "a%0A",
    "plus": "a+b",
}

WELL_FORMED = {
    "one letter": "Z",
    "digit first": "0day",
    "every special letter": "a._:-",
    "255 bytes": "n" * 255,
}


@pytest.mark.parametrize("name", WELL_FORMED.values(), ids=WELL_FORMED)
def test_a_well_formed_name_can_be_created(client: Client, name: str) -> None:
    answer = client.request("PUT", f"/v0/topics/{name}")
    assert answer.json["topic"] == name
    assert client.state(name)["topic"] == name


@pytest.mark.parametrize("name", ILL_FORMED.values(), ids=ILL_FORMED)
def test_an_ill_formed_name_cannot_be_created(client: Client, name: str) -> None:
    put = client.request("PUT", f"/v0/topics/{name}")
    assert put.refusal == (400, "invalid_request")
    assert not put.malformed
    first_write = client.request("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
    assert first_write.refusal == (400, "invalid_request")


@pytest.mark.parametrize("name", ILL_FORMED.values(), ids=ILL_FORMED)
def test_an_ill_formed_name_simply_does_not_exist(client: Client, name: str) -> None:
    path = f"/v0/topics/{name}"
    assert client.request("GET", path).refusal == (404, "topic_not_found")
    assert client.request("POST", f"{path}/diff", {}).refusal == (404, "topic_not_found")
    assert client.request("POST", f"{path}/delete", {"before_seq": 1}).refusal == (404, "topic_not_found")
    assert client.request("DELETE", path).json["deleted"] is False
    unwilling = client.request("POST", path, {"records": [{"data": 1}], "create": False})
    assert unwilling.refusal == (404, "topic_not_found")


def test_escapes_are_resolved_before_a_name_is_used(client: Client, topic: str) -> None:
    client.put_topic(topic)
    escaped = "".join(f"%{ord(letter):02x}" for letter in topic)
    assert client.state(escaped)["topic"] == topic
    assert client.write(escaped, 1)["topic"] == topic
    assert client.diff(escaped)["topic"] == topic


def test_a_broken_escape_is_kept_as_it_was_sent(client: Client) -> None:
    assert client.request("GET", "/v0/topics/a%zz").error["detail"] == {"topic": "a%zz"}
    assert client.request("GET", "/v0/topics/%4").error["detail"] == {"topic": "%4"}
    assert client.request("DELETE", "/v0/topics/%zz%41").json["topic"] == "%zzA"


def test_an_encoded_slash_does_not_lead_to_another_route(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.request("POST", f"/v0/topics/{topic}%2Fdiff", {"records": [{"data": 1}], "create": False})
    assert answer.error["detail"] == {"topic": f"{topic}/diff"}


def test_a_plus_in_a_path_is_no_blank(client: Client) -> None:
    assert client.request("GET", "/v0/topics/a+b").error["detail"] == {"topic": "a+b"}


@pytest.mark.parametrize("segment", ["%ff", "a%C3", "%ED%A0%80"], ids=["no letter", "half a letter", "a surrogate"])
@pytest.mark.parametrize(
    ("method", "action", "body"),
    [("GET", "", None), ("PUT", "", {}), ("DELETE", "", None), ("POST", "/diff", {})],
    ids=["state", "put", "delete", "diff"],
)
def test_a_segment_that_is_not_utf8_is_refused(
    client: Client, segment: str, method: str, action: str, body: object
) -> None:
    assert client.request(method, f"/v0/topics/{segment}{action}", body).refusal == (400, "invalid_request")


def test_names_are_told_apart_by_case(client: Client, topic: str) -> None:
    client.put_topic(topic)
    assert client.request("GET", f"/v0/topics/{topic.upper()}").refusal == (404, "topic_not_found")


@pytest.mark.parametrize("name", [".x", "a b", "", "a" * 256, "é", "a->b"])
def test_a_dead_letter_topic_has_a_topic_name(client: Client, topic: str, name: str) -> None:
    answer = client.request("PUT", f"/v0/topics/{topic}", {"dead_letter": name})
    assert answer.refusal == (400, "invalid_request")
    assert answer.error["detail"] == {"dead_letter": name}
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")
