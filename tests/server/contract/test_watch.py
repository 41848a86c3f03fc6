"""Watch sessions and their streams, over both protocols."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, HTTP1, Answer, Client
from tests.server.event_streams import EVENT_STREAMS, Event, EventStream, wait_for_streams
from tests.server.running import Running, running
from topics.protocol.sse import encode_cursor
from topics.testing.clock import ManualClock

Open = Callable[..., EventStream]


@pytest.fixture
def open_stream(server: Running, protocol: str) -> Iterator[Open]:
    """Opens the stream of a path or of a new session's answer."""
    with ExitStack() as streams:

        def open_one(session: Any, headers: dict[str, str] | None = None, query: str = "", **kinds: Any) -> EventStream:
            path = session if isinstance(session, str) else session["stream_url"]
            address = (server.host, server.port)
            return streams.enter_context(EVENT_STREAMS[protocol](address, path + query, headers, **kinds))

        yield open_one


def watch(client: Client, topics: dict[str, Any], query: str = "", **members: Any) -> Any:
    return client.request("POST", f"/v0/watch{query}", {"topics": topics} | members).json


# Sessions.


def test_a_session_says_where_it_begins(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    client.put_topic(f"{topic}.empty")
    session = watch(client, {topic: {"tail": True, "from_seq": 1}, f"{topic}.empty": {"from_seq": 7}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", session["wid"])
    assert session["stream_url"] == f"/v0/watch/{session['wid']}"
    assert session["session_ttl_ms"] == 300_000
    assert session["topics"] == {
        topic: {"from_seq": 3, "head_seq": 3, "earliest_seq": 1},
        f"{topic}.empty": {"from_seq": 7, "head_seq": 0, "earliest_seq": 1},
    }
    assert session["performance"]["server_total_ms"] >= 0
    assert "ticket" not in session


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"topics":{}}',
        b'{"topics":[]}',
        b'{"topics":null}',
        b'{"topics":{"t":null}}',
        b'{"topics":{"t":5}}',
        b'{"topics":{"t":{"from_seq":-1}}}',
        b'{"topics":{"t":{"from_seq":18446744073709551616}}}',
        b'{"topics":{"t":{"from_seq":1.0}}}',
        b'{"topics":{"t":{"tail":1}}}',
        b'{"topics":{"t":{"tail":true,"tail":true}}}',
        b'{"topics":{"t":{},"t":{}}}',
        b'{"topics":{"t":{}},"topics":{"t":{}}}',
        b'{"topics":{"t":{}},"limit":"1"}',
        b'{"topics":{"t":{}},"consistency":"Strong"}',
        b'{"topics":{"t":{}},"heartbeat_ms":null}',
        b"",
    ],
)
def test_a_session_with_a_wrong_body_is_refused(client: Client, body: bytes) -> None:
    assert client.request("POST", "/v0/watch", body).refusal == (400, "invalid_request")


def test_a_session_has_at_most_256_topics(client: Client) -> None:
    many: dict[str, Any] = {f"no-such-{number}": {} for number in range(257)}
    assert client.request("POST", "/v0/watch", {"topics": many}).refusal == (400, "invalid_request")
    many.popitem()
    assert client.request("POST", "/v0/watch", {"topics": many}).refusal == (404, "topic_not_found")
    assert watch(client, many, "?lenient=true")["topics"] == {}


def test_a_topic_that_is_not_there_is_refused_or_left_out(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.request("POST", "/v0/watch", {"topics": {topic: {}, "nowhere": {}}})
    assert answer.refusal == (404, "topic_not_found")
    assert answer.error["detail"] == {"topic": "nowhere"}
    assert watch(client, {topic: {}, "nowhere": {}}, "?lenient=1")["topics"].keys() == {topic}


def test_sessions_need_json(client: Client) -> None:
    answer = client.request("POST", "/v0/watch", b"{}", {"content-type": "text/plain"})
    assert answer.refusal == (415, "unsupported_media_type")
    assert client.request("GET", "/v0/watch").refusal == (405, "method_not_allowed")


# Streams.


def test_a_stream_has_the_headers_of_the_contract(client: Client, open_stream: Open, protocol: str, topic: str) -> None:
    client.put_topic(topic)
    stream = open_stream(watch(client, {topic: {}}))
    assert stream.status == 200
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.headers
    assert stream.headers.get("transfer-encoding") == ("chunked" if protocol == "http/1.1" else None)
    first = stream.maybe_next()
    assert first is not None
    assert (first.name, first.data) == ("retry", 2000)


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "text/html, */*;q=0.1", ""])
def test_accept_may_name_the_stream(client: Client, open_stream: Open, topic: str, accept: str) -> None:
    client.put_topic(topic)
    assert open_stream(watch(client, {topic: {}}), {"accept": accept}).status == 200


def test_an_accept_that_excludes_the_stream_is_the_first_thing_to_be_refused(open_stream: Open) -> None:
    assert open_stream("/v0/watch/wid_nobody", {"accept": "application/json"}).answer.refusal == (406, "not_acceptable")
    assert open_stream("/v0/watch/wid_nobody").answer.refusal == (404, "not_found")


def test_head_answers_like_get_and_streams_nothing(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, 1)
    session = watch(client, {topic: {}})
    head = open_stream(session, method="HEAD")
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert open_stream(session).next().seqs == [1]


# Events.


def test_records_then_caught_up_then_what_comes(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, 1, {"a": 2})
    stream = open_stream(watch(client, {topic: {}}))
    record, caught_up = stream.take(2)
    assert (record.name, record.datas, record.cursors) == ("record", [1, {"a": 2}], {topic: 2})
    assert {name: record.data[name] for name in ("topic", "from_seq", "to_seq", "head_seq")} == {
        "topic": topic,
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
    }
    assert (caught_up.name, caught_up.data, caught_up.cursors) == (
        "caught-up",
        {"topic": topic, "head_seq": 2},
        {topic: 2},
    )
    client.write(topic, 3)
    record, caught_up = stream.take(2)
    assert (record.datas, record.data["from_seq"], caught_up.data["head_seq"]) == ([3], 2, 3)


def test_h04_a_topic_without_anything_is_caught_up_at_once(client: Client, open_stream: Open, topic: str) -> None:
    client.put_topic(topic)
    event = open_stream(watch(client, {topic: {}})).next()
    assert (event.name, event.data, event.cursors) == ("caught-up", {"topic": topic, "head_seq": 0}, {topic: 0})


def test_topics_are_visited_in_the_order_of_their_names_each_drained_before_the_next(
    client: Client, open_stream: Open, topic: str
) -> None:
    names = [f"{topic}.{letter}" for letter in "cab"]
    for name in names:
        client.write(name, *range(25))
    stream = open_stream(watch(client, {name: {} for name in names}, limit=2))
    events = [event for name in sorted(names) for event in stream.until("caught-up", topic=name)]
    assert [event.data["topic"] for event in events] == sorted(name for name in names for _ in range(14))
    assert events[-1].cursors == dict.fromkeys(names, 25)


def test_frames_have_at_most_limit_records_and_max_batch_bytes(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, *["x" * 100] * 10)
    by_count = open_stream(watch(client, {topic: {}}, limit=4)).until("caught-up")
    assert [len(event.seqs) for event in by_count[:-1]] == [4, 4, 2]
    by_bytes = open_stream(watch(client, {topic: {}}, max_batch_bytes=1)).until("caught-up")
    assert [event.seqs for event in by_bytes[:-1]] == [[seq] for seq in range(1, 11)]
    zero = open_stream(watch(client, {topic: {}}, limit=0, max_batch_bytes=0)).until("caught-up")
    assert [len(event.seqs) for event in zero[:-1]] == [10]


def test_frames_have_256_records_and_256_kib_unless_told_otherwise_and_never_more_than_1000(
    client: Client, open_stream: Open, topic: str
) -> None:
    client.write(topic, *range(1100))
    by_default = open_stream(watch(client, {topic: {}})).until("caught-up")
    assert [len(event.seqs) for event in by_default[:-1]] == [256, 256, 256, 256, 76]
    at_most = open_stream(watch(client, {topic: {}}, limit=5000)).until("caught-up")
    assert [len(event.seqs) for event in at_most[:-1]] == [1000, 100]
    large = f"{topic}.large"
    client.write(large, *["x" * 100_000] * 5)
    by_default = open_stream(watch(client, {large: {}})).until("caught-up")
    assert [len(event.seqs) for event in by_default[:-1]] == [2, 2, 1]


def test_a_stream_that_reads_counts_as_a_read(client: Client, open_stream: Open, topic: str) -> None:
    """A topic that a client watches is urgent."""
    client.write(topic, 1)
    assert client.request("GET", f"/v0/topics/{topic}?touch=false").json["effective_priority"] == 0
    open_stream(watch(client, {topic: {}})).until("caught-up")
    state = client.request("GET", f"/v0/topics/{topic}?touch=false").json
    assert state["effective_priority"] > 0
    assert state["last_read_ts"] is not None


def test_streams_of_one_session_share_its_cursors(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, 1, 2)
    session = watch(client, {topic: {}})
    first = open_stream(session)
    first.until("caught-up")
    second = open_stream(session)
    assert second.next().name == "caught-up", "it begins where the other one is"
    client.write(topic, 3)
    assert [first.next().seqs, second.next().seqs] == [[3], [3]]
    second.next()
    assert open_stream(session).next().name == "caught-up"


def test_records_show_what_was_asked_for(client: Client, open_stream: Open, topic: str) -> None:
    records = [{"data": 1, "tag": "a", "node": "n", "meta": {"k": 2}}]
    client.write(topic, records=records)
    shown = {"$seq", "$ts", "$node"}
    asked: list[tuple[dict[str, Any], set[str]]] = [
        ({}, shown | {"data", "meta"}),
        ({"include_tags": True}, shown | {"data", "meta", "$tag"}),
        ({"include_meta": False}, shown | {"data"}),
        ({"include_data": False}, shown | {"meta"}),
    ]
    for members, expected in asked:
        record = open_stream(watch(client, {topic: {}}, **members)).next().data["records"][0]
        assert record.keys() == expected


def test_records_of_a_node_are_left_out_and_the_cursor_moves_behind_them(
    client: Client, open_stream: Open, topic: str
) -> None:
    client.write(topic, records=[{"data": 1, "node": "me"}, {"data": 2, "node": "you"}])
    session = watch(client, {topic: {}}, node=["me"])
    stream = open_stream(session)
    assert stream.until("caught-up")[0].seqs == [2]
    client.write(topic, records=[{"data": 3, "node": "me"}])
    client.write(topic, records=[{"data": 4}])
    event = stream.next()
    assert (event.seqs, event.cursors) == ([4], {topic: 4})
    # Skipped records are not sent, and earlier records are not sent again.
    client.write(topic, records=[{"data": 5, "node": "me"}])
    stream.close()
    assert open_stream(session).next().name == "caught-up"


def test_a_gap_is_too_old_on_the_first_read_and_has_its_reason_later(
    client: Client, open_stream: Open, topic: str
) -> None:
    client.put_topic(topic, cap_records=2)
    client.write(topic, *range(5))
    stream = open_stream(watch(client, {topic: {}}))
    tombstone, record, _ = stream.take(3)
    assert tombstone.data == {
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert (tombstone.cursors, record.seqs, record.data["from_seq"]) == ({topic: 3}, [4, 5], 3)
    client.write(topic, *range(5))
    tombstone, record, _ = stream.take(3)
    assert (tombstone.name, tombstone.data["reason"], record.seqs) == ("tombstone", "cap", [9, 10])


def test_a_source_trim_in_the_middle_of_a_topic_is_told_at_its_place(
    client: Client, open_stream: Open, topic: str
) -> None:
    """First the older records of the dest, then the tombstone of the lost range, then the copies."""
    source = f"{topic}.source"
    client.put_topic(source, cap_records=2)
    client.write(topic, "old")
    assert client.request("PUT", f"/v0/routers/{topic}", {"source": source, "dest": topic}).status == 201
    client.write(source, *range(5))
    old, tombstone, copies, caught_up = open_stream(watch(client, {topic: {}})).take(4)
    assert (old.seqs, copies.seqs, caught_up.name) == ([1], [5, 6], "caught-up")
    assert tombstone.data == {
        "topic": topic,
        "reason": "source_trim",
        "gap_from": 2,
        "gap_to": 4,
        "earliest_seq": 5,
        "head_seq": 6,
    }


def test_h07_a_cursor_above_the_head_rewinds(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, 1, 2)
    tombstone, record, caught_up = open_stream(watch(client, {topic: {"from_seq": 99}})).take(3)
    assert (tombstone.data["reason"], tombstone.data["gap_from"], tombstone.data["gap_to"]) == (
        "from_seq_too_old",
        1,
        2,
    )
    assert (tombstone.cursors, record.seqs, caught_up.name) == ({topic: 0}, [1, 2], "caught-up")


def test_deletes_leave_no_gap(client: Client, open_stream: Open, topic: str) -> None:
    client.write(topic, 1, 2, 3)
    client.request("POST", f"/v0/topics/{topic}/delete", {"before_seq": 3})
    assert open_stream(watch(client, {topic: {}})).next().seqs == [3]


def test_a_topic_that_is_deleted_is_told_at_once_and_the_last_one_ends_the_stream(
    client: Client, open_stream: Open, topic: str
) -> None:
    other = f"{topic}.other"
    client.write(topic, 1)
    client.write(other, 1)
    session = watch(client, {topic: {}, other: {}})
    stream = open_stream(session)
    stream.until("caught-up", topic=other)
    client.request("DELETE", f"/v0/topics/{topic}")
    event = stream.next()
    assert (event.name, event.data) == ("topic-deleted", {"topic": topic, "head_seq": 0, "reason": "deleted"})
    assert event.cursors == {topic: 1, other: 1}
    client.request("DELETE", f"/v0/topics/{other}")
    assert [event.name for event in stream.rest()] == ["topic-deleted"]
    # A client that connects again gets the event again.
    assert [event.data["topic"] for event in open_stream(session).rest()] == [topic, other]


def test_a_topic_made_anew_is_another_one_and_nothing_of_it_is_skipped(
    client: Client, open_stream: Open, topic: str
) -> None:
    keeper = f"{topic}.keeper"
    client.put_topic(keeper)
    client.write(topic, *"abc")
    session = watch(client, {topic: {}, keeper: {}})
    stream = open_stream(session)
    stream.until("caught-up", topic=keeper)
    client.request("DELETE", f"/v0/topics/{topic}")
    assert stream.next().name == "topic-deleted"
    client.write(topic, *"ABCDE")
    client.write(keeper, 1)
    # The stream has no further events of the topic.
    assert [event.data["topic"] for event in stream.take(2)] == [keeper, keeper]
    stream.close()
    again = open_stream(session)
    tombstone, record = again.take(2)
    assert (tombstone.data["reason"], tombstone.data["gap_to"]) == ("from_seq_too_old", 5)
    assert record.datas == list("ABCDE")


def test_a_session_without_topics_ends_its_stream(client: Client, open_stream: Open) -> None:
    stream = open_stream(watch(client, {"nowhere": {}}, "?lenient=true"))
    assert (stream.status, stream.rest()) == (200, [])


def test_h10_payloads_cannot_break_a_frame(client: Client, open_stream: Open, topic: str) -> None:
    text = "\n\nid: 7\r\nevent: evil\r\x00\u2028"
    body = b'{"records":[{"data":\n{"a":\r\n[1,\n2]},"tag":"t\\n\\nid: 1","node":"n\\r\\n","meta":{"k":\n"v"}}]}'
    assert client.request("POST", f"/v0/topics/{topic}", body).status == 201
    client.write(topic, text, {text: text})
    events = open_stream(watch(client, {topic: {}}, include_tags=True)).until("caught-up")
    record = events[0].data["records"][0]
    assert (record["data"], record["meta"], record["$tag"]) == ({"a": [1, 2]}, {"k": "v"}, "t\n\nid: 1")
    assert events[0].datas[1:] == [text, {text: text}]


# Patterns.


def test_a_pattern_follows_topics_that_are_there_and_those_that_come(
    server: Running, client: Client, open_stream: Open, topic: str
) -> None:
    client.write(f"{topic}.a", 1)
    client.write(f"{topic}.b", 1)
    session = watch(client, {f"{topic}.*": {"tail": True}, f"{topic}.b": {}})
    assert {name: start["from_seq"] for name, start in session["topics"].items()} == {f"{topic}.a": 1, f"{topic}.b": 0}
    stream = open_stream(session)
    stream.until("caught-up", topic=f"{topic}.b")
    client.write(f"other.{topic}", 1)
    client.write(f"{topic}.new", "first")
    record, caught_up = stream.until("caught-up")[-2:]
    assert (record.data["topic"], record.datas) == (f"{topic}.new", ["first"])
    assert caught_up.cursors == {f"{topic}.a": 1, f"{topic}.b": 1, f"{topic}.new": 1}
    stream.close()
    wait_for_streams(server, 0)
    # A topic that was created without an open stream comes from its first record on.
    client.write(f"{topic}.later", "unheard")
    stream = open_stream(session)
    events = stream.until("record")
    assert (events[-1].data["topic"], events[-1].datas) == (f"{topic}.later", ["unheard"])


def test_a_stream_of_a_pattern_outlives_its_topics_and_takes_up_new_ones(
    client: Client, open_stream: Open, topic: str
) -> None:
    client.write(f"{topic}.a", "old")
    stream = open_stream(watch(client, {f"{topic}.*": {}}))
    stream.until("caught-up")
    client.request("DELETE", f"/v0/topics/{topic}.a")
    assert stream.next().name == "topic-deleted"
    client.write(f"{topic}.a", "new")
    events = stream.until("caught-up")
    assert [data for event in events if event.name == "record" for data in event.datas] == ["new"]


def test_a_pattern_that_matches_nothing_waits(client: Client, open_stream: Open, topic: str) -> None:
    session = watch(client, {f"{topic}*": {}})
    assert session["topics"] == {}
    stream = open_stream(session)
    client.write(topic, 1)
    assert stream.until("record")[-1].datas == [1]


# Resuming.


def test_a_plain_reconnect_goes_on_behind_the_last_frame(
    server: Running, client: Client, open_stream: Open, topic: str
) -> None:
    client.write(topic, 1, 2)
    session = watch(client, {topic: {}})
    stream = open_stream(session)
    stream.until("caught-up")
    stream.close()
    wait_for_streams(server, 0)
    client.write(topic, 3)
    assert open_stream(session).next().seqs == [3]


def test_an_id_is_where_all_topics_stand_and_resumes_right_behind_its_event(
    client: Client, open_stream: Open, topic: str
) -> None:
    """Invariant 54."""
    other = f"{topic}.other"
    client.put_topic(topic, cap_records=3)
    client.write(topic, 0, 1, 2, 3)
    client.write(other, 1)
    session = watch(client, {topic: {}, other: {}}, limit=1)
    events = open_stream(session).until("caught-up", topic=other)
    assert [(event.name, event.cursors[topic], event.cursors[other]) for event in events] == [
        ("tombstone", 1, 0),
        ("record", 2, 0),
        ("record", 3, 0),
        ("record", 4, 0),
        ("caught-up", 4, 0),
        ("record", 4, 1),
        ("caught-up", 4, 1),
    ]
    stream = open_stream(session, {"last-event-id": events[2].id or ""})
    events = stream.until("caught-up", topic=other)
    assert [(event.data["topic"], event.seqs) for event in events if event.name == "record"] == [
        (topic, [4]),
        (other, [1]),
    ]


def test_an_id_never_skips_ahead(client: Client, open_stream: Open, topic: str) -> None:
    """Invariant 55."""
    client.write(topic, 1, 2, 3)
    session = watch(client, {topic: {"from_seq": 1}})
    ahead = encode_cursor({topic: 3, "unknown": 5}).decode()
    assert open_stream(session, {"last-event-id": ahead}).next().seqs == [2, 3]


@pytest.mark.parametrize("given", ["", "!!", "e30", "x" * 40_000])
def test_h08_an_id_that_is_none_is_passed_over(client: Client, open_stream: Open, topic: str, given: str) -> None:
    client.write(topic, 1)
    assert open_stream(watch(client, {topic: {}}), {"last-event-id": given}).next().seqs == [1]


# Life of sessions, limits, keys, and the end. These tests start their own servers.


def test_a_session_ends_five_minutes_after_its_last_stream(tmp_path: Path, protocol: str) -> None:
    clock = ManualClock()
    with running(tmp_path, clock=clock) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.write("t", 1)
        address = (server.host, server.port)
        session, unused = watch(client, {"t": {}}), watch(client, {"t": {}})
        with EVENT_STREAMS[protocol](address, session["stream_url"]) as stream:
            stream.until("caught-up")
            clock.advance(300_000)
            # The session with a stream stays, the other one is removed.
            with EVENT_STREAMS[protocol](address, unused["stream_url"]) as gone:
                assert gone.answer.refusal == (404, "not_found")
        assert client.request("GET", "/v0/metrics", headers={"accept": "application/json"}).json["watch_sessions"] == 1


def test_caps_of_sessions_and_streams(tmp_path: Path, protocol: str) -> None:
    caps: dict[str, Any] = {"max_watch_sessions": 2, "max_sse_connections": 1}
    with running(tmp_path, **caps) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.write("t", 1)
        first, second = watch(client, {"t": {}}), watch(client, {"t": {}})
        answer = client.request("POST", "/v0/watch", {"topics": {"t": {}}})
        assert answer.refusal == (429, "throttled")
        assert answer.error["detail"] == {"limit": "max_watch_sessions", "max": 2}
        address = (server.host, server.port)
        with EVENT_STREAMS[protocol](address, first["stream_url"]) as stream:
            stream.until("caught-up")
            with EVENT_STREAMS[protocol](address, second["stream_url"]) as refused:
                assert refused.answer.refusal == (429, "throttled")
            client.request("DELETE", "/v0/topics/t")
            assert [event.name for event in stream.rest()] == ["topic-deleted"]
        # The slot is free when the stream has ended.
        with EVENT_STREAMS[protocol](address, second["stream_url"]) as stream:
            assert stream.status == 200


def test_the_server_says_goodbye_to_every_stream(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.write("t", 1)
        address = (server.host, server.port)
        stream = EVENT_STREAMS[protocol](address, watch(client, {"t": {}})["stream_url"])
        stream.until("caught-up")
    with stream:
        (last,) = stream.rest()
        assert (last.name, last.data["code"], last.cursors) == ("error", "server_shutting_down", {"t": 1})
        assert last.data["message"]


def test_what_is_wrong_with_a_session_is_told_in_the_order_of_the_contract(tmp_path: Path, protocol: str) -> None:
    """JSON, number of topics, access to their names, their existence, number of sessions."""
    caps: dict[str, Any] = {"max_watch_sessions": 1, "max_watch_topics": 2}
    with (
        running(tmp_path, keys="all,a-only:read:a.", **caps) as server,
        CLIENTS[protocol](server.host, server.port) as client,
    ):

        def ask(body: Any) -> Answer:
            return client.request("POST", "/v0/watch", body, {"authorization": "Bearer a-only"})

        def refusal(body: Any) -> tuple[int, str]:
            return ask(body).refusal

        client.request("PUT", "/v0/topics/a.there", {}, {"authorization": "Bearer all"})
        assert ask({"topics": {"a.there": {}}}).status == 200
        nowhere: dict[str, Any] = {"a.nowhere": {}}
        assert refusal(b'{"topics":{"b":{},"a.nowhere":{},"c":{}},}') == (400, "invalid_request")
        assert refusal({"topics": {"b": {}, "c": {}} | nowhere}) == (400, "invalid_request")
        assert refusal({"topics": {"b": {}} | nowhere}) == (403, "forbidden")
        assert refusal({"topics": {"a.there": {}} | nowhere}) == (404, "topic_not_found")
        assert refusal({"topics": {"a.there": {}}}) == (429, "throttled")


def test_heartbeats_come_once_a_second_at_most(tmp_path: Path) -> None:
    with running(tmp_path) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic("t")
        session = watch(client, {"t": {}}, heartbeat_ms=0)
        with EVENT_STREAMS[HTTP1]((server.host, server.port), session["stream_url"]) as stream:
            stream.next()
            beats = [beat for _ in range(3) if (beat := stream.maybe_next()) is not None]
    times_ms = [int(beat.data.removeprefix("hb ")) for beat in beats]
    assert len(times_ms) == 3
    # One of them may have come late, and the next one in time.
    assert max(after - before for before, after in pairwise(times_ms)) >= 950


def test_a_silent_stream_gets_heartbeats(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path, test_min_heartbeat_ms=1) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("t")
        session = watch(client, {"t": {}}, heartbeat_ms=0)
        with EVENT_STREAMS[protocol]((server.host, server.port), session["stream_url"]) as stream:
            blocks: list[Event] = []
            while [block.name for block in blocks].count(":") < 4 or blocks[-1].name != ":":
                block = stream.maybe_next()
                assert block is not None
                blocks.append(block)
    assert [block.name for block in blocks if block.name != ":"] == ["retry", "caught-up"]
    heartbeats = [block for block in blocks if block.name == ":"]
    assert all(re.fullmatch(r"hb [0-9]+", heartbeat.data) for heartbeat in heartbeats)
    assert all(heartbeat.id is None for heartbeat in heartbeats)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = "maker:read:acme.,other:read:acme.,writer:write,all"
    with running(tmp_path_factory.mktemp("locked"), keys=keys, max_sse_connections_per_key=1) as server:
        yield server


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def acme(locked: Running, protocol: str, topic: str) -> Iterator[tuple[Client, str]]:
    """A client with no key yet, and a topic that the maker may see."""
    with CLIENTS[protocol](locked.host, locked.port) as client:
        name = f"acme.{topic}"
        client.request("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]}, bearer("all"))
        yield client, name


def test_sessions_need_the_scope_and_the_prefix(acme: tuple[Client, str]) -> None:
    client, name = acme
    body: dict[str, Any] = {"topics": {name: {}}}
    assert client.request("POST", "/v0/watch", body).refusal == (401, "unauthorized")
    assert client.request("POST", "/v0/watch", body, bearer("writer")).refusal == (403, "forbidden")
    answer = client.request("POST", "/v0/watch", {"topics": {name: {}, "beta.t": {}}}, bearer("maker"))
    assert (answer.refusal, answer.error["detail"]) == ((403, "forbidden"), {"topic": "beta.t"})
    for pattern in ("*", "ac*", "beta.*"):
        answer = client.request("POST", "/v0/watch", {"topics": {pattern: {}}}, bearer("maker"))
        assert answer.refusal == (403, "forbidden")
    assert client.request("POST", "/v0/watch", {"topics": {f"{name}*": {}}}, bearer("maker")).status == 200


def test_l05_only_the_key_that_made_a_session_opens_it(
    acme: tuple[Client, str], locked: Running, protocol: str
) -> None:
    client, name = acme
    session = client.request("POST", "/v0/watch", {"topics": {name: {}}}, bearer("maker")).json
    address, path = (locked.host, locked.port), session["stream_url"]

    def status(query: str = "", headers: dict[str, str] | None = None) -> int:
        with EVENT_STREAMS[protocol](address, path + query, headers, source_host="127.0.0.9") as stream:
            return stream.status

    assert status() == 401
    assert status(headers=bearer("wrong")) == 401
    assert status(headers=bearer("other")) == 401
    assert status(headers=bearer("all")) == 401
    assert status("?token=other") == 401
    # The header wins over the query.
    assert status("?token=maker", bearer("other")) == 401
    # The first of two tokens counts.
    assert status("?token=other&token=maker") == 401
    # An unknown session is 404 for every caller.
    with EVENT_STREAMS[protocol](address, "/v0/watch/wid_nobody", source_host="127.0.0.9") as stream:
        assert stream.answer.refusal == (404, "not_found")
    with EVENT_STREAMS[protocol](address, path, bearer("maker")) as stream:
        assert stream.next().seqs == [1]
        # The limit is one stream for each key. A wrong key is reported first.
        assert status(headers=bearer("maker")) == 429
        assert status(headers=bearer("other")) == 401
        client.request("DELETE", f"/v0/topics/{name}", headers=bearer("all"))
        stream.rest()
    assert status("?token=maker&token=other") == 200


def test_l04_a_ticket_opens_its_stream_once(acme: tuple[Client, str], locked: Running, protocol: str) -> None:
    client, name = acme
    sessions = [client.request("POST", "/v0/watch", {"topics": {name: {}}}, bearer("all")).json for _ in range(2)]
    address = (locked.host, locked.port)

    def status(session: Any, ticket: str) -> int:
        path = f"{session['stream_url']}?token={ticket}"
        with EVENT_STREAMS[protocol](address, path, source_host="127.0.0.8") as stream:
            return stream.status

    first, second = sessions
    assert status(first, second["ticket"]) == 401
    client.request("DELETE", f"/v0/topics/{name}", headers=bearer("all"))
    assert status(first, first["ticket"]) == 200
    assert status(first, first["ticket"]) == 401
    # A ticket is no key.
    assert client.request("GET", "/v0/topics", headers=bearer(second["ticket"])).status == 401


def test_a_ticket_is_good_for_thirty_seconds(tmp_path: Path, protocol: str) -> None:
    clock = ManualClock()
    with running(tmp_path, keys="k", clock=clock) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.request("PUT", "/v0/topics/t", {}, bearer("k"))
        session = client.request("POST", "/v0/watch", {"topics": {"t": {}}}, bearer("k")).json
        clock.advance(30_000)
        path = f"{session['stream_url']}?token={session['ticket']}"
        with EVENT_STREAMS[protocol]((server.host, server.port), path) as stream:
            assert stream.status == 401
