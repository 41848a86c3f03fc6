"""Records, keys and priorities over time, on a clock that the test moves."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.clients import Client
from tests.server.running import Running, running
from topics.testing.clock import ManualClock

_clock = ManualClock()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("time"), clock=_clock) as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return _clock


def seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_a_record_has_the_time_of_its_write(client: Client, topic: str, clock: ManualClock) -> None:
    client.write(topic, 1)
    clock.advance(5)
    client.write(topic, 2, 3)
    now_ms = clock.now_ms()
    assert [record["$ts"] for record in client.diff(topic)["records"]] == [now_ms - 5, now_ms, now_ms]
    state = client.state(topic)
    assert (state["last_write_ts"], state["last_read_ts"]) == (now_ms, now_ms)


def test_a_record_expires_only_after_its_time(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=100)
    client.write(topic, 1, 2)
    clock.advance(60)
    client.write(topic, 3)
    clock.advance(40)
    assert seqs(client.diff(topic)) == [1, 2, 3]
    clock.advance(1)
    page = client.diff(topic)
    assert seqs(page) == [3]
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "ttl",
        "missed_estimate": 2,
        "earliest_seq": 3,
        "head_seq": 3,
    }
    state = client.state(topic)
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (1, 1, 3)


def test_a_gap_that_both_a_cap_and_time_made_is_mixed(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=100, cap_records=4)
    client.write(topic, *range(6))
    clock.advance(50)
    client.write(topic, 6)
    clock.advance(51)
    tombstone = client.diff(topic)["tombstone"]
    assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == ("mixed", 1, 6)
    assert client.diff(topic, from_seq=4)["tombstone"]["reason"] == "ttl"


def test_the_longest_time_to_live_is_as_good_as_none(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=2**64 - 1)
    client.write(topic, 1)
    clock.advance(10**12)
    assert seqs(client.diff(topic)) == [1]


def test_a_shorter_time_to_live_is_in_effect_with_the_answer(client: Client, topic: str, clock: ManualClock) -> None:
    client.write(topic, 1)
    clock.advance(1000)
    client.write(topic, 2)
    client.put_topic(topic, ttl_ms=999)
    assert client.state(topic)["count"] == 1
    assert seqs(client.diff(topic)) == [2]


def test_expired_records_make_room_in_a_topic_that_refuses(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=100, cap_records=2, discard="reject")
    client.write(topic, 1, 2)
    body = {"records": [{"data": 3}]}
    assert client.request("POST", f"/v0/topics/{topic}", body).refusal == (422, "topic_full")
    clock.advance(101)
    assert client.request("POST", f"/v0/topics/{topic}", body).json["first_seq"] == 3


def test_an_expired_topic_may_be_deleted_as_an_empty_one(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=100)
    client.write(topic, 1)
    clock.advance(101)
    assert client.request("DELETE", f"/v0/topics/{topic}?if_empty=true").json["deleted"] is True


def test_a_clock_that_steps_back_gives_no_earlier_times(client: Client, topic: str, clock: ManualClock) -> None:
    now_ms = clock.now_ms()
    client.write(topic, 1)
    clock.set(now_ms - 1000)
    client.write(topic, 2)
    clock.set(now_ms)
    assert [record["$ts"] for record in client.diff(topic)["records"]] == [now_ms, now_ms]


@pytest.mark.parametrize(
    ("idle_ms", "priority"),
    [(0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0), (300_000, 0)],
)
def test_the_priority_of_a_topic_decays_after_it_was_read(
    client: Client, topic: str, clock: ManualClock, idle_ms: int, priority: int
) -> None:
    client.put_topic(topic)
    client.diff(topic)
    clock.advance(idle_ms)
    state = client.request("GET", f"/v0/topics/{topic}?touch=false").json
    assert state["effective_priority"] == priority
    (entry,) = client.request("GET", f"/v0/topics?prefix={topic}").json["topics"]
    assert entry["effective_priority"] == priority


# Idempotency keys.


def send(client: Client, topic: str, data: Any = 1) -> Any:
    return client.write(topic, data, idempotency_key="key")


def test_a_key_is_known_for_its_window(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, idempotency_window_ms=1000)
    send(client, topic)
    clock.advance(999)
    assert send(client, topic)["deduped"] is True
    clock.advance(1)
    again = send(client, topic)
    assert (again["deduped"], again["first_seq"]) == (False, 2)


def test_the_window_counts_from_the_first_success(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, idempotency_window_ms=1000)
    send(client, topic)
    clock.advance(600)
    assert send(client, topic)["deduped"] is True
    clock.advance(600)
    assert send(client, topic)["deduped"] is False


def test_the_window_is_two_minutes_unless_told_otherwise(client: Client, topic: str, clock: ManualClock) -> None:
    send(client, topic)
    clock.advance(119_999)
    assert send(client, topic)["deduped"] is True
    clock.advance(1)
    assert send(client, topic)["deduped"] is False


def test_a_window_of_nothing_remembers_nothing(client: Client, topic: str) -> None:
    client.put_topic(topic, idempotency_window_ms=0)
    assert send(client, topic)["deduped"] is False
    assert send(client, topic)["deduped"] is False
    assert client.state(topic)["head_seq"] == 2


def test_a_key_outlives_the_records_it_stands_for(client: Client, topic: str, clock: ManualClock) -> None:
    client.put_topic(topic, ttl_ms=10)
    send(client, topic)
    clock.advance(50)
    assert client.state(topic)["count"] == 0
    assert send(client, topic)["deduped"] is True
