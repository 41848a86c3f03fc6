"""A watch without a network: which requests it makes, and what each event gives."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from topics import Record, Seen, Tombstone, TopicGone
from topics.client.answers import Page
from topics.client.following import Following, item_of
from topics.errors import InvalidRequest, TopicNotFound, Unauthorized
from topics.protocol.response_body import Performance, WatchCreated, WatchedTopic


def created(**from_seqs: int) -> WatchCreated:
    made = {name: WatchedTopic(from_seq=seq, head_seq=9, earliest_seq=1) for name, seq in from_seqs.items()}
    spent = Performance(server_total_ms=0.0)
    return WatchCreated(wid="w", stream_url="/v0/watch/w", session_ttl_ms=1, topics=made, performance=spent)


def event(name: str, **members: Any) -> bytes:
    return b"id: x\nevent: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(members))


def records(topic: str, *seqs: int) -> bytes:
    sent = [{"$seq": seq, "$ts": 5, "data": seq} for seq in seqs]
    return event("record", topic=topic, records=sent, from_seq=seqs[0] - 1, to_seq=seqs[-1], head_seq=9)


def asked(following: Following) -> dict[str, Any]:
    call = following.session()
    assert (call.method, call.is_repeatable) == ("POST", True)
    members: dict[str, Any] = msgspec.json.decode(call.body or b"")
    return members


def begun(begin: dict[str, int | Literal["head"]], **from_seqs: int) -> Following:
    following = Following(begin)
    following.opened(created(**from_seqs))
    return following


def test_a_session_begins_where_the_caller_is_and_goes_on_where_the_records_ended() -> None:
    following = Following({"a": 3, "b": "head"}, skip_nodes=["me"])
    assert asked(following)["topics"] == {"a": {"from_seq": 3}, "b": {"tail": True}}
    assert asked(following)["node"] == ["me"]
    assert "lenient" not in following.session().target
    following.opened(created(a=3, b=7))
    assert following.feed(b"retry: 2000\n\n: hb 1\n\n" + records("a", 4, 6)) == [
        Seen("a", Record(4, 5, None, None, b"4", None)),
        Seen("a", Record(6, 5, None, None, b"6", None)),
    ]
    assert asked(following)["topics"] == {"a": {"from_seq": 6}, "b": {"from_seq": 7}}
    assert "lenient=true" in following.session().target


def test_any_split_of_the_stream_gives_the_same_items() -> None:
    stream = records("a", 1, 2) + event("caught-up", topic="a", head_seq=2) + records("a", 3)
    whole = begun({"a": 0}, a=0).feed(stream)
    for cut in range(len(stream)):
        following = begun({"a": 0}, a=0)
        assert following.feed(stream[:cut]) + following.feed(stream[cut:]) == whole


def test_a_half_event_of_a_broken_stream_is_not_mixed_with_the_next_stream() -> None:
    following = begun({"a": 0}, a=0)
    assert following.feed(records("a", 1)[:-9]) == []
    following.opened(created(a=0))
    assert [seen.item.seq for seen in following.feed(records("a", 1))] == [1]  # type: ignore[union-attr]


def test_it_is_caught_up_when_every_topic_is() -> None:
    following = begun({"a": 0, "b": 0}, a=0, b=0)
    following.feed(event("caught-up", topic="a", head_seq=0))
    assert not following.is_caught_up
    following.feed(event("caught-up", topic="b", head_seq=0))
    assert following.is_caught_up
    following.feed(records("a", 1))
    assert not following.is_caught_up


def test_a_pattern_brings_later_topics_from_their_first_record_on() -> None:
    following = Following({"log.*": "head"})
    assert asked(following)["topics"] == {"log.*": {"tail": True}}
    following.opened(created(**{"log.a": 5}))
    following.feed(records("log.b", 1))
    assert asked(following)["topics"] == {"log.*": {}, "log.a": {"from_seq": 5}, "log.b": {"from_seq": 1}}


def test_lost_records_are_a_tombstone_and_the_watch_goes_on_after_them() -> None:
    following = begun({"a": 1}, a=1)
    lost = {"topic": "a", "gap_from": 2, "gap_to": 5, "earliest_seq": 6, "head_seq": 9}
    seen = following.feed(event("tombstone", reason="ttl", **lost))
    assert seen == [Seen("a", Tombstone(2, 5, "ttl", 4, 6, 9))]
    assert asked(following)["topics"] == {"a": {"from_seq": 5}}
    seen = following.feed(event("tombstone", **(lost | {"reason": "recreated", "gap_from": 1, "gap_to": 0})))
    assert seen == [Seen("a", Tombstone(1, 0, "recreated", 1, 6, 9))]
    assert asked(following)["topics"] == {"a": {"from_seq": 5}}


def test_a_loss_without_a_reason_is_told_by_a_read_before_the_next_stream() -> None:
    following = begun({"a": 1, "b": 0}, a=1, b=0)
    lost = {"topic": "a", "gap_from": 2, "gap_to": 5, "earliest_seq": 6, "head_seq": 9}
    assert following.feed(event("tombstone", reason="from_seq_too_old", **lost) + records("b", 1)) == []
    assert following.must_reconnect
    call = following.next_read()
    assert call is not None
    assert msgspec.json.decode(call.body or b"")["from_seq"] == 1
    real = Tombstone(2, 6, "cap", 5, 7, 9)
    record = Record(7, 5, None, None, b"7", None)
    assert following.read(Page("a", [record], 7, 9, 7, real)) == [Seen("a", real), Seen("a", record)]
    assert following.next_read() is None
    assert asked(following)["topics"] == {"a": {"from_seq": 7}, "b": {}}


def test_topics_that_go_are_told_and_a_watch_without_topics_is_over() -> None:
    following = begun({"a": 0, "b": 0}, a=0, b=0)
    assert following.feed(event("topic-deleted", topic="a", head_seq=0, reason="deleted")) == [Seen("a", TopicGone())]
    assert not following.is_over()
    assert following.opened(created()) == [Seen("b", TopicGone())]
    assert following.is_over()
    with pytest.raises(TopicNotFound):
        item_of(Seen("b", TopicGone()))


def test_the_end_of_a_stream_is_a_reason_to_connect_again_or_an_error() -> None:
    following = begun({"a": 0}, a=0)
    following.feed(event("error", code=429, error="throttled", retry_after_ms=5, topics=["a"]))
    assert not following.must_reconnect
    following.feed(event("error", code="server_shutting_down", message="bye"))
    assert following.must_reconnect
    with pytest.raises(Unauthorized):
        begun({"a": 0}, a=0).feed(event("error", code="unauthorized", message="no"))
    with pytest.raises(InvalidRequest):
        Following({})
