"""What a router to or from a stream may be."""

from typing import Any

import pytest

from topics.errors import InvalidRequest
from topics.protocol.request_body import RouterBody
from topics.server.bridges.definition import (
    StreamPlace,
    StreamPosition,
    TopicPosition,
    decode_spec,
    decode_stream_position,
    decode_topic_position,
    encode,
    is_bridge,
    place_of,
    spec_of,
)


@pytest.mark.parametrize(
    ("end", "place"),
    [
        ("stream:orders/events", StreamPlace("orders", "events")),
        ("stream:0/12", StreamPlace(0, 12)),
        ("stream:4294967295/4294967296", StreamPlace(4294967295, "4294967296")),
        ("stream:a b/ü", StreamPlace("a b", "ü")),
    ],
)
def test_a_topic_of_a_stream_is_named_by_names_or_numbers(end: str, place: StreamPlace) -> None:
    assert place_of(end) == place


@pytest.mark.parametrize("end", ["stream:", "stream:orders", "stream:/events", "stream:orders/", "stream:a/b/c"])
def test_a_text_that_names_no_topic_of_a_stream_is_refused(end: str) -> None:
    with pytest.raises(InvalidRequest, match="write stream:STREAM/TOPIC"):
        place_of(end)


def body(**members: Any) -> RouterBody:
    return RouterBody(**{"source": "stream:s/t", "dest": "a"} | members)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"dest": "stream:s/u"}, "one end of a router must be a topic of the log"),
        ({"allow_cycle": True}, "cannot close a cycle"),
        ({"filter": "x*"}, "has no filter"),
        ({"source": "a", "dest": "stream:s/t", "guarantee": "exactly_once"}, "at least once"),
        ({"dest": "a/b"}, "topic name"),
        ({"source": "stream:s"}, "write stream:STREAM/TOPIC"),
    ],
)
def test_what_a_bridge_cannot_do_is_refused(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        spec_of(body(**members))


def test_a_router_between_topics_is_no_bridge() -> None:
    assert not is_bridge(RouterBody(source="a", dest="b"))
    assert is_bridge(body())
    assert is_bridge(RouterBody(source="a", dest="stream:s/t"))


def test_the_filter_is_a_tag_or_a_prefix() -> None:
    exact = spec_of(RouterBody(source="a", dest="stream:s/t", filter="x"))
    prefix = spec_of(RouterBody(source="a", dest="stream:s/t", filter="x*"))
    assert [exact.matches(tag) for tag in ("x", "xy", None)] == [True, False, False]
    assert [prefix.matches(tag) for tag in ("x", "xy", None)] == [True, True, False]
    assert spec_of(RouterBody(source="a", dest="stream:s/t")).matches(None)


def test_definitions_and_positions_are_read_as_they_were_written() -> None:
    spec = spec_of(RouterBody(source="a", dest="stream:s/t", filter="x*", preserve_tag=False))
    assert decode_spec(encode(spec)) == spec
    stream = StreamPosition(7, [1, 2], 3, 4)
    assert decode_stream_position(encode(stream)) == stream
    topic = TopicPosition(5, 6, 7)
    assert decode_topic_position(encode(topic)) == topic
