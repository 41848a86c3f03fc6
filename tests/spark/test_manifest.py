"""Manifests as a server sends them."""

import msgspec
import pytest

from tests.spark.manifests import make_manifest, make_segment
from topics.errors import BadFrame
from topics.spark.manifest import Pin, decode_manifest

BODY = b"""{"topic":"parcels","store_id":"0f7d","topic_id":7,"epoch":1,"head_seq":814,"durable_seq":813,
"earliest_seq":701,"evict_floor":700,"delete_below":3,"lost_ranges":[[5,6]],"checkpointed_seq":800,"pending_deletes":[[712,713]],
"segments":[{"first_seq":601,"last_seq":800,"tier":"hot","uri":"file:///d/seg.data","data_len":28800,"idx_len":4000,
"min_ts":1790000000000,"max_ts":1790000600000,"records":200,"live":98,"sealed":true,"digest":"5a1f"}],
"pin":{"id":3,"until":1790000660000},"performance":{"server_total_ms":0.1}}"""


def test_a_manifest_is_read_and_members_of_later_versions_are_passed_over() -> None:
    manifest = decode_manifest(BODY)
    assert (manifest.topic, manifest.head_seq, manifest.durable_seq) == ("parcels", 814, 813)
    assert (manifest.lost_ranges, manifest.pending_deletes) == (((5, 6),), ((712, 713),))
    assert manifest.segments[0].data_len == 28800
    assert manifest.pin == Pin(id=3, until=1790000660000)
    assert manifest.first_seq == 701
    assert manifest.cap_floor is None


def test_a_manifest_comes_back() -> None:
    manifest = make_manifest(lost_ranges=((1, 2),))
    assert decode_manifest(msgspec.json.encode(manifest)) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": (make_segment(1, 10), make_segment(10, 20))},
        {"segments": (make_segment(11, 20), make_segment(1, 10))},
        {"segments": (make_segment(1, 96),)},
        {"checkpointed_seq": 101},
    ],
    ids=["overlap", "order", "above the checkpoint", "above the head"],
)
def test_segments_that_do_not_lie_side_by_side_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadFrame, match='the manifest of "orders"'):
        decode_manifest(msgspec.json.encode(make_manifest(**changes)))


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", BODY.replace(b"814", b'"x"')])
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(BadFrame, match="the manifest is not readable"):
        decode_manifest(body)


def test_the_time_near_a_seq_is_that_of_its_segment_or_the_nearest() -> None:
    manifest = make_manifest(head_seq=30, segment_size=10, tail=5)
    assert [manifest.time_near(seq) for seq in (0, 10, 11, 25, 30)] == [1000, 1000, 11_000, 21_000, 25_000]
    assert make_manifest(head_seq=3, tail=3).time_near(2) == 0
