"""A reading without the records of some nodes: the same one minus those records."""

from __future__ import annotations

import json

import pytest

from tests.engine.small_log import SmallLog
from topics.server.live.reading import Reading, ReadOptions
from topics.server.live.rendered_records import RenderedRecords
from topics.testing.fake_disk import FakeDisk

NODES = ["n1", "n2", None, "n1", "n1", "n3"]


@pytest.fixture
def whole() -> Reading:
    log = SmallLog(FakeDisk(), tail_cache_bytes=1_000_000)
    for node in NODES:
        log.append("a", node=node)
    renderer = RenderedRecords(include_tags=False, include_meta=True, include_data=True)
    return Reading(log.engine.read("a", 0), ReadOptions(1000, 100_000), renderer, log.topic().id, 0)


@pytest.mark.parametrize("without", [{b"n1"}, {b"n2"}, {b"n3"}, {b"n1", b"n3"}, {b"n1", b"n2", b"n3"}, {b"n2", b"x"}])
def test_records_of_the_nodes_are_left_out(whole: Reading, without: set[bytes]) -> None:
    reading = whole.without(frozenset(without))
    left = [seq for seq, node in enumerate(NODES, 1) if node is None or node.encode() not in without]
    assert [json.loads(text)["$seq"] for text in reading.records] == left
    assert reading.record_count == len(left)
    assert (reading.page, reading.from_seq, reading.whole) == (whole.page, 0, whole)
    assert len(whole.records) == whole.record_count == len(NODES)


def test_readings_without_the_same_nodes_are_shared(whole: Reading) -> None:
    assert whole.without(frozenset({b"n1"})) is whole.without(frozenset({b"n1"}))
    assert whole.without(frozenset({b"nobody"})) is whole


def test_each_choice_of_members_has_its_own_form() -> None:
    choices = [
        ReadOptions(1, 1, None, include_tags=tags, include_meta=meta, include_data=data)
        for tags in (True, False)
        for meta in (True, False)
        for data in (True, False)
    ]
    assert len({options.form for options in choices}) == len(choices)
    assert ReadOptions(1, 1).form == ReadOptions(2, 2, frozenset({b"n"})).form
