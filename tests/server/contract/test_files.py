"""`manifest` and `frames`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.clients import Client
from topics.formats import segment as codec


def records_of(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    for frame in codec.walk(data, 0, len(data)):
        record = codec.decode(data, frame)
        found.append((record.seq, record.data))
    return found


def test_a_manifest_of_a_fresh_topic_has_no_segments(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    answer = client.request("POST", f"/v0/topics/{topic}/manifest").json
    assert (answer["topic"], answer["head_seq"], answer["checkpointed_seq"]) == (topic, 3, 0)
    assert (answer["segments"], answer["pin"], answer["lost_ranges"]) == ([], None, [])
    assert len(answer["store_id"]) == 32
    assert answer["performance"].keys() == {"server_total_ms"}


def test_a_manifest_tells_what_took_the_records_below_its_floor(client: Client, topic: str) -> None:
    client.request("PUT", f"/v0/topics/{topic}", {"cap_records": 2})
    client.write(topic, 1, 2, 3, 4, 5)
    answer = client.request("POST", f"/v0/topics/{topic}/manifest").json
    assert [answer[name] for name in ("evict_floor", "cap_floor", "ttl_floor")] == [4, 3, 0]


def test_sealing_puts_all_of_an_idle_topic_into_files_that_do_not_change(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    sealed = client.request("POST", f"/v0/topics/{topic}/seal").json
    assert [sealed[name] for name in ("topic", "head_seq", "sealed_seq", "segments")] == [topic, 3, 3, 1]
    again = client.request("POST", f"/v0/topics/{topic}/seal").json
    assert (again["sealed_seq"], again["segments"]) == (3, 1), "nothing new, so nothing to seal"
    client.write(topic, 4)
    assert client.request("POST", f"/v0/topics/{topic}/seal").json["segments"] == 2
    picture = client.request("POST", f"/v0/topics/{topic}/manifest").json
    assert picture["checkpointed_seq"] == 4
    segments = picture["segments"]
    assert [(segment["first_seq"], segment["last_seq"], segment["sealed"]) for segment in segments] == [
        (1, 3, True),
        (4, 4, True),
    ]
    assert all(len(segment["digest"]) == 32 for segment in segments)


def test_sealing_a_topic_that_is_empty_or_not_there(client: Client, topic: str) -> None:
    client.request("PUT", f"/v0/topics/{topic}", {})
    sealed = client.request("POST", f"/v0/topics/{topic}/seal").json
    assert (sealed["sealed_seq"], sealed["segments"]) == (0, 0)
    answer = client.request("POST", f"/v0/topics/{topic}-none/seal")
    assert (answer.status, answer.error["code"]) == (404, "topic_not_found")


def test_frames_are_the_records_byte_for_byte(client: Client, topic: str) -> None:
    client.write(topic, {"a": [1, 2.50]}, "ü")
    answer = client.request("GET", f"/v0/topics/{topic}/frames")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/vnd.topics.frames"
    assert [answer.headers[name] for name in ("topics-next-seq", "topics-head-seq", "topics-epoch")] == ["3", "2", "1"]
    assert int(answer.headers["topics-id"]) >= 1
    assert "topics-gap" not in answer.headers
    texts = [data for _, data in records_of(answer.body)]
    assert len(texts) == 2
    assert texts[0].startswith(b'{"a":')


@pytest.mark.parametrize(
    ("query", "seqs", "next_seq"),
    [
        ("from_seq=3", [3, 4, 5], "6"),
        ("from_seq=2&to_seq=3", [2, 3], "4"),
        ("from_seq=x&to_seq=-1", [1, 2, 3, 4, 5], "6"),
    ],
)
def test_frames_of_a_range(client: Client, topic: str, query: str, seqs: list[int], next_seq: str) -> None:
    client.write(topic, *range(5))
    answer = client.request("GET", f"/v0/topics/{topic}/frames?{query}")
    assert [seq for seq, _ in records_of(answer.body)] == seqs
    assert answer.headers["topics-next-seq"] == next_seq


@pytest.mark.parametrize("query", ["from_seq=4&to_seq=3", "from_seq=18446744073709551615&to_seq=1"])
def test_a_range_of_frames_that_ends_before_it_begins_is_refused(client: Client, topic: str, query: str) -> None:
    client.write(topic, *range(5))
    for name in (topic, f"{topic}.none"):
        answer = client.request("GET", f"/v0/topics/{name}/frames?{query}")
        assert answer.refusal == (400, "invalid_request")


def test_a_manifest_of_a_range_that_ends_before_it_begins_has_no_segments(client: Client, topic: str) -> None:
    """A reader that has everything asks from the seq after the head to the head."""
    client.write(topic, *range(5))
    client.request("POST", f"/v0/topics/{topic}/seal")
    answer = client.request("POST", f"/v0/topics/{topic}/manifest", {"from_seq": 6, "to_seq": 5}).json
    assert (answer["segments"], answer["head_seq"]) == ([], 5)


def test_frames_go_on_at_the_next_seq_until_all_are_read(client: Client, topic: str) -> None:
    client.write(topic, *["x" * 1000 for _ in range(50)])
    found: list[int] = []
    at = 1
    while at <= 50:
        answer = client.request("GET", f"/v0/topics/{topic}/frames?from_seq={at}&max_bytes=5000")
        found += [seq for seq, _ in records_of(answer.body)]
        at = int(answer.headers["topics-next-seq"])
    assert found == list(range(1, 51))


def test_frames_of_many_steps_are_one_answer_of_exactly_the_range(client: Client, topic: str) -> None:
    """A quarter of a MiB is read and encoded at a time."""
    for _ in range(3):
        client.write(topic, *["x" * 1000 for _ in range(800)])
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 11})
    answer = client.request("GET", f"/v0/topics/{topic}/frames")
    assert [seq for seq, _ in records_of(answer.body)] == list(range(11, 2401))
    assert (answer.headers["topics-next-seq"], answer.headers["topics-head-seq"]) == ("2401", "2400")
    answer = client.request("GET", f"/v0/topics/{topic}/frames?from_seq=5&to_seq=1500")
    assert [seq for seq, _ in records_of(answer.body)] == list(range(11, 1501))
    assert answer.headers["topics-next-seq"] == "1501"
    answer = client.request("GET", f"/v0/topics/{topic}/frames?max_bytes=1000000")
    assert 500_000 < len(answer.body) <= 1_000_000


def test_frames_of_many_steps_end_before_a_lost_range(client: Client, topic: str) -> None:
    client.put_topic(f"{topic}.source", cap_records=500)
    client.request("PUT", f"/v0/routers/{topic}", {"source": f"{topic}.source", "dest": topic})
    client.write(f"{topic}.source", *["x" * 1000 for _ in range(500)])
    assert client.request("GET", f"/v0/topics/{topic}").json["head_seq"] == 500
    client.write(f"{topic}.source", *["x" * 1000 for _ in range(600)])
    answer = client.request("GET", f"/v0/topics/{topic}/frames")
    assert [seq for seq, _ in records_of(answer.body)] == list(range(1, 501))
    answer = client.request("GET", f"/v0/topics/{topic}/frames?from_seq=501")
    assert answer.headers["topics-gap"] == "501-600;source_trim"
    assert [seq for seq, _ in records_of(answer.body)] == list(range(601, 1101))


def test_frames_name_the_gap_in_front_of_them(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.write(topic, *range(5))
    answer = client.request("GET", f"/v0/topics/{topic}/frames")
    assert answer.headers["topics-gap"] == "1-3;cap"
    assert [seq for seq, _ in records_of(answer.body)] == [4, 5]


def test_deleted_records_have_no_frames(client: Client, topic: str) -> None:
    client.write(topic, *range(4))
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    answer = client.request("GET", f"/v0/topics/{topic}/frames")
    assert [seq for seq, _ in records_of(answer.body)] == [3, 4]
    assert "topics-gap" not in answer.headers


@pytest.mark.parametrize(("method", "action"), [("POST", "manifest"), ("GET", "frames")])
def test_a_topic_that_is_not_there_is_not_found(client: Client, topic: str, method: str, action: str) -> None:
    answer = client.request(method, f"/v0/topics/{topic}/{action}")
    assert (answer.status, answer.error["code"]) == (404, "topic_not_found")


@pytest.mark.parametrize("body", [{"from_seq": -1}, {"pin_ms": "1"}, {"to_seq": 1.0}, []])
def test_a_manifest_body_that_makes_no_sense_is_refused(client: Client, topic: str, body: Any) -> None:
    client.write(topic, 1)
    assert client.request("POST", f"/v0/topics/{topic}/manifest", body).status == 400


def test_the_features_are_announced(client: Client) -> None:
    assert {"manifest", "frames"} <= set(client.request("GET", "/v0/health").json["features"])
