"""Reading after a cursor, without waiting."""

import gzip
import json
from typing import Any

import pytest

from tests.server.clients import Client

PAGE_MEMBERS = {
    "topic",
    "records",
    "next_from_seq",
    "head_seq",
    "earliest_seq",
    "caught_up",
    "tombstone",
    "lag",
    "performance",
}


def seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_a_page_has_exactly_its_members(client: Client, topic: str) -> None:
    client.write(topic, "a", "b", "c")
    page = client.diff(topic, from_seq=1, limit=1)
    (record,) = page["records"]
    assert page == {
        "topic": topic,
        "records": [{"$seq": 2, "$ts": record["$ts"], "data": "b"}],
        "next_from_seq": 2,
        "head_seq": 3,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 1,
        "performance": page["performance"],
    }


def test_an_empty_topic_is_read_to_its_end(client: Client, topic: str) -> None:
    client.put_topic(topic)
    page = client.diff(topic, from_seq=0)
    assert page.keys() == PAGE_MEMBERS
    assert (page["records"], page["next_from_seq"], page["head_seq"], page["earliest_seq"]) == ([], 0, 0, 1)
    assert (page["caught_up"], page["lag"], page["tombstone"]) == (True, 0, None)


@pytest.mark.parametrize(("from_seq", "found"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])], ids=str)
def test_a_cursor_is_exclusive(client: Client, topic: str, from_seq: int, found: list[int]) -> None:
    client.write(topic, 1, 2, 3)
    page = client.diff(topic, from_seq=from_seq)
    assert seqs(page) == found
    assert (page["next_from_seq"], page["caught_up"]) == (3, True)


def test_an_absent_topic_is_not_found_and_not_created(client: Client, topic: str) -> None:
    for body in ({}, {"wait_ms": 30_000}, {"from_seq": 5}):
        answer = client.request("POST", f"/v0/topics/{topic}/diff", body)
        assert answer.refusal == (404, "topic_not_found")
        assert answer.error["detail"] == {"topic": topic}
    assert client.request("GET", f"/v0/topics/{topic}").refusal == (404, "topic_not_found")


@pytest.fixture(scope="module")
def long_topic() -> str:
    return "long"


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (1, 1),
        (2, 2),
        (256, 256),
        (0, 256),
        (None, 256),
        (999, 999),
        (1000, 1000),
        (1001, 1000),
        (5000, 1000),
        (2**32 - 1, 1000),
    ],
)
def test_how_many_records_a_page_has(client: Client, long_topic: str, limit: int | None, count: int) -> None:
    if client.request("GET", f"/v0/topics/{long_topic}").status == 404:
        client.write(long_topic, *range(1200))
    page = client.diff(long_topic, **{} if limit is None else {"limit": limit})
    assert seqs(page) == list(range(1, count + 1))
    assert (page["next_from_seq"], page["lag"], page["caught_up"]) == (count, 1200 - count, False)


def test_pages_join_to_the_whole_topic(client: Client, topic: str) -> None:
    client.write(topic, *range(25))
    found: list[Any] = []
    from_seq = 0
    while True:
        page = client.diff(topic, from_seq=from_seq, limit=7)
        found += [record["data"] for record in page["records"]]
        from_seq = page["next_from_seq"]
        if page["caught_up"]:
            break
    assert found == list(range(25))


# The byte budget.


@pytest.mark.parametrize(
    ("bytes_max", "count"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (1000, 5), (2**64 - 1, 5)]
)
def test_a_page_stops_before_the_record_that_would_break_its_budget(
    client: Client, topic: str, bytes_max: int, count: int
) -> None:
    """Five records of ten bytes."""
    client.write(topic, *["12345678"] * 5)
    page = client.diff(topic, max_batch_bytes=bytes_max)
    assert seqs(page) == list(range(1, count + 1))
    assert page["next_from_seq"] == count
    assert page["performance"]["records_scanned"] == count


def test_meta_counts_towards_the_budget(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": 1, "meta": "12345678"}] * 3)
    assert len(client.diff(topic, max_batch_bytes=21)["records"]) == 1
    assert len(client.diff(topic, max_batch_bytes=22)["records"]) == 2


@pytest.mark.parametrize(
    ("members", "count"), [({}, 10), ({"max_batch_bytes": 0}, 10), ({"max_batch_bytes": 1 << 40}, 80)]
)
def test_the_default_budget_is_1_mib_and_the_largest_8(
    client: Client, topic: str, members: dict[str, int], count: int
) -> None:
    size = (1 << 20) // 10
    client.write(topic, *["x" * (size - 2)] * 45)
    client.write(topic, *["x" * (size - 2)] * 45)
    assert len(client.diff(topic, **members)["records"]) == count


def test_a_record_over_the_budget_is_still_returned_alone(client: Client, topic: str) -> None:
    client.write(topic, "x" * 1000, "y" * 1000)
    page = client.diff(topic, max_batch_bytes=5)
    assert seqs(page) == [1]
    assert seqs(client.diff(topic, from_seq=1, max_batch_bytes=5)) == [2]


# The node filter.

NODES = ["a", "b", None, "", "a"]
FILTERS: list[tuple[Any, list[int]]] = [
    (None, [1, 2, 3, 4, 5]),
    ([], [1, 2, 3, 4, 5]),
    ("a", [2, 3, 4]),
    ("b", [1, 3, 4, 5]),
    ("", [1, 2, 3, 5]),
    ("A", [1, 2, 3, 4, 5]),
    (["a"], [2, 3, 4]),
    (["a", "b"], [3, 4]),
    (["a", "a"], [2, 3, 4]),
    (["a", "b", ""], [3]),
    (["unknown"], [1, 2, 3, 4, 5]),
    ("n" * 1000, [1, 2, 3, 4, 5]),
]


@pytest.fixture
def with_nodes(client: Client, topic: str) -> str:
    client.write(topic, records=[{"data": 1} | ({} if node is None else {"node": node}) for node in NODES])
    return topic


@pytest.mark.parametrize(("node", "found"), FILTERS, ids=[json.dumps(node)[:20] for node, _ in FILTERS])
def test_a_reader_is_spared_its_own_records(client: Client, with_nodes: str, node: Any, found: list[int]) -> None:
    page = client.diff(with_nodes, node=node)
    assert seqs(page) == found
    # What is skipped was examined.
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (5, True, None)
    assert page["performance"]["records_scanned"] == 5


def test_skipped_records_move_the_cursor(client: Client, topic: str) -> None:
    client.write(topic, records=[{"data": seq, "node": "a" if seq < 9 else "b"} for seq in range(1, 11)])
    page = client.diff(topic, node="a", limit=1)
    assert seqs(page) == [9]
    assert (page["next_from_seq"], page["lag"]) == (9, 1)
    nothing = client.diff(topic, node=["a", "b"])
    assert (nothing["records"], nothing["caught_up"], nothing["next_from_seq"]) == ([], True, 10)


def test_a_topic_may_switch_the_filter_off(client: Client, topic: str) -> None:
    client.put_topic(topic, dedupe_node=False)
    client.write(topic, records=[{"data": 1, "node": "a"}])
    assert seqs(client.diff(topic, node="a")) == [1]


# Gaps.


def test_what_a_cap_took_is_told(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.write(topic, *range(10))
    page = client.diff(topic, from_seq=2)
    assert seqs(page) == [8, 9, 10]
    assert page["earliest_seq"] == 8
    assert page["tombstone"] == {
        "gap_from": 3,
        "gap_to": 7,
        "reason": "cap",
        "missed_estimate": 5,
        "earliest_seq": 8,
        "head_seq": 10,
    }
    assert client.diff(topic, from_seq=7)["tombstone"] is None
    assert client.diff(topic, from_seq=6)["tombstone"]["gap_from"] == 7


def test_a_tombstone_stands_exactly_where_a_cap_took_something_or_the_cursor_is_of_another_topic(
    client: Client, topic: str
) -> None:
    """Invariants 12 and 13: from every place, also where records are deleted on both sides of the floor."""
    client.put_topic(topic, cap_records=6)
    client.write(topic, records=[{"data": seq, "tag": "odd" if seq % 2 else "even"} for seq in range(1, 13)])
    head_seq, evict_floor = 12, 7
    for then_delete in ("odd", "even", None):
        earliest_seq = client.state(topic)["earliest_seq"]
        for from_seq in range(head_seq + 3):
            page = client.diff(topic, from_seq=from_seq)
            tombstone = page["tombstone"]
            if from_seq > head_seq:
                assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == ("recreated", 1, head_seq)
            elif from_seq + 1 < evict_floor:
                gap = (tombstone["gap_from"], tombstone["gap_to"], tombstone["missed_estimate"])
                assert gap == (from_seq + 1, evict_floor - 1, evict_floor - 1 - from_seq)
                assert tombstone["earliest_seq"] == evict_floor
            else:
                assert tombstone is None
            assert page["earliest_seq"] == earliest_seq
            assert all(seq >= earliest_seq for seq in seqs(page))
        if then_delete is not None:
            client.request("POST", f"/v0/topics/{topic}/delete", {"match": then_delete})
    assert earliest_seq == head_seq + 1


def test_a_byte_cap_is_a_cap(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=4)
    client.write(topic, 1, 2, 3, 4, 5, 6)
    page = client.diff(topic)
    assert seqs(page) == [3, 4, 5, 6]
    assert (page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == ("cap", 2)


def test_everything_gone_leaves_a_tombstone_only(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=1)
    client.write(topic, "too large")
    page = client.diff(topic)
    assert (page["records"], page["caught_up"], page["earliest_seq"]) == ([], True, 2)
    assert page["tombstone"]["gap_to"] == 1


def test_deleted_records_are_no_gap(client: Client, topic: str) -> None:
    client.write(topic, *range(6))
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 4})
    page = client.diff(topic)
    assert seqs(page) == [4, 5, 6]
    assert (page["tombstone"], page["earliest_seq"]) == (None, 4)


def test_a_tombstone_speaks_of_what_was_lost_not_of_what_was_deleted_behind_it(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=6)
    client.write(topic, *range(10))
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 8})
    page = client.diff(topic)
    assert seqs(page) == [8, 9, 10]
    assert page["earliest_seq"] == 8
    assert (page["tombstone"]["gap_to"], page["tombstone"]["earliest_seq"]) == (4, 5)


@pytest.mark.parametrize("from_seq", [3, 100, 2**64 - 1])
def test_a_cursor_beyond_the_head_is_from_another_topic(client: Client, topic: str, from_seq: int) -> None:
    client.write(topic, "a", "b")
    page = client.diff(topic, from_seq=from_seq, wait_ms=30_000)
    assert seqs(page) == [1, 2]
    assert page["caught_up"] is True
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 2,
        "reason": "recreated",
        "missed_estimate": 2,
        "earliest_seq": 1,
        "head_seq": 2,
    }


def test_a_cursor_beyond_an_empty_topic(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    client.request("DELETE", f"/v0/topics/{topic}")
    client.put_topic(topic)
    page = client.diff(topic, from_seq=3)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 0,
        "reason": "recreated",
        "missed_estimate": 1,
        "earliest_seq": 1,
        "head_seq": 0,
    }
    assert (page["next_from_seq"], page["caught_up"], page["records"]) == (0, True, [])


def test_queues_are_read_without_a_lease(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.write(topic, 1, 2)
    assert client.datas(topic) == [1, 2]
    assert client.datas(topic) == [1, 2]


def test_a_large_page_is_whole_plain_and_with_gzip(client: Client, topic: str) -> None:
    """The server renders and sends it in pieces."""
    data = [f"{number}" * 90_000 for number in range(9)]
    for text in data:
        client.write(topic, text, 1)
    ask = {"limit": 18, "max_batch_bytes": 8_388_608}
    plain = client.request("POST", f"/v0/topics/{topic}/diff", ask)
    zipped = client.request("POST", f"/v0/topics/{topic}/diff", ask, {"accept-encoding": "gzip"})
    assert int(plain.headers["content-length"]) == len(plain.body)
    assert zipped.headers["content-encoding"] == "gzip"
    for page in (plain.json, json.loads(gzip.decompress(zipped.body))):
        assert [record["$seq"] for record in page["records"]] == list(range(1, 19))
        assert [record["data"] for record in page["records"][::2]] == data
        assert (page["next_from_seq"], page["caught_up"]) == (18, True)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", {}),
        ("?from_seq=1&limit=2", {"from_seq": 1, "limit": 2}),
        ("?limit=0", {}),
        ("?limit=5000", {"limit": 5000}),
        ("?from_seq=2&from_seq=1", {"from_seq": 1}),
        ("?from_seq=-1&limit=x", {}),
        ("?from_seq=18446744073709551616", {}),
        ("?from_seq=18446744073709551615", {"from_seq": 2**64 - 1}),
        ("?node=a", {"node": "a"}),
        ("?include_tags=true", {"include_tags": True}),
    ],
)
def test_a_url_reads_the_same_records(client: Client, topic: str, query: str, body: dict[str, Any]) -> None:
    client.write(topic, records=[{"data": number, "node": "ab"[number % 2], "tag": "t"} for number in range(4)])
    answer = client.request("GET", f"/v0/topics/{topic}/records{query}")
    assert answer.status == 200
    assert without_times(answer.json) == without_times(client.diff(topic, **body))


def test_a_url_waits_for_the_next_append(client: Client, topic: str) -> None:
    client.write(topic, 1)
    assert client.request("GET", f"/v0/topics/{topic}/records?from_seq=1&wait_ms=1").json["records"] == []


def without_times(page: Any) -> Any:
    return {name: value for name, value in page.items() if name != "performance"}


def test_a_wrong_first_guess_names_the_endpoint(client: Client, topic: str) -> None:
    client.write(topic, 1)
    guess = client.request("POST", f"/v0/topics/{topic}/records", {"records": [{"data": 1}]})
    assert (guess.status, guess.headers["allow"]) == (405, "GET, HEAD")
    assert guess.error["message"] == f"this path takes GET, HEAD: POST /v0/topics/{topic} writes records"
    guess = client.request("GET", f"/v0/topics/{topic}/diff")
    assert (guess.status, guess.headers["allow"]) == (405, "POST")
    assert f"GET /v0/topics/{topic}/records?from_seq=0 reads records" in guess.error["message"]
    guess = client.request("POST", f"/v0/topics/{topic}/publish", {"data": 1})
    assert guess.status == 404
    assert guess.error["message"].endswith(f": POST /v0/topics/{topic} writes records")
