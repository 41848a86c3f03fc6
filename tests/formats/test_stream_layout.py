"""Names in a data directory of the partitioned engine."""

from topics.formats.message import BodyOrder
from topics.formats.stream_layout import CODEC, INDEX, LOG, Flavour, StreamKeys, segment_path, segment_starts


def test_keys_are_the_documented_paths() -> None:
    assert StreamKeys().partition(1, 2, 3) == "streams/1/topics/2/partitions/3"
    named = StreamKeys(streams="s", topics="t", partitions="p")
    assert (named.stream(1), named.topics_of(1), named.topic(1, 2)) == ("s/1", "s/1/t", "s/1/t/2")
    assert named.partitions_of(1, 2) == "s/1/t/2/p"


def test_segments_are_named_by_the_offset_they_start_with() -> None:
    names = [segment_path("x", offset, suffix)[2:] for offset in (120, 7) for suffix in (LOG, INDEX, CODEC)]
    assert names[0] == "00000000000000000120.log"
    others = [
        "offsets",
        "7.log",
        "00000000000000000009.log.tmp",
        "00000000000000000008.index",
        "x00000000000000000008.log",
    ]
    assert segment_starts([*others, *names]) == [7, 120]


def test_a_flavour_says_where_its_state_is_and_how_bodies_are_ordered() -> None:
    assert Flavour.PAGE.state_log_path("/d") == "/d/state.messages"
    assert Flavour.IGGY.state_log_path("/d") == "/d/state/log"
    assert Flavour.PAGE.info_path("/d") == "/d/info.json"
    assert Flavour.PAGE.body_order is BodyOrder.HEADERS_FIRST
    assert Flavour.IGGY.body_order is BodyOrder.PAYLOAD_FIRST
