"""Readings: one without the records of some nodes, and the texts that are kept between readings."""

from __future__ import annotations

import json

import pytest

from tests.engine.small_log import SmallLog
from topics.protocol.record_text import Chunk, record_texts
from topics.server.live.reading import KEPT_BYTES_MAX, KEPT_RECORD_BYTES_MAX, Reading, ReadOptions, RenderedRecords
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


@pytest.fixture
def log() -> SmallLog:
    return SmallLog(FakeDisk(), tail_cache_bytes=1_000_000)


def chunks_of(log: SmallLog, from_seq: int = 0) -> list[Chunk]:
    return list(log.engine.read("a", from_seq).chunks)


@pytest.mark.parametrize("include_tags", [True, False])
@pytest.mark.parametrize("include_meta", [True, False])
@pytest.mark.parametrize("include_data", [True, False])
def test_a_kept_text_is_that_of_the_record(
    log: SmallLog, include_tags: bool, include_meta: bool, include_data: bool
) -> None:
    log.append("a", 2, node="n", tag="t")
    log.append("a", 2)
    log.append("a", meta={"m": 1}, node="o")
    members = {"include_tags": include_tags, "include_meta": include_meta, "include_data": include_data}
    rendered = RenderedRecords(**members)
    first = rendered.of(chunks_of(log))
    assert [record.text for record in first] == record_texts(chunks_of(log), **members)
    assert [record.node for record in first] == [b"n", b"n", None, None, b"o"]
    log.append("a", node="p")
    again = rendered.of(chunks_of(log, 1))
    assert [record.text for record in again] == record_texts(chunks_of(log, 1), **members)
    assert all(new is old for new, old in zip(again, first[1:], strict=False))


def test_long_records_are_rendered_each_time(log: SmallLog) -> None:
    log.append("a", node="n", meta="x" * KEPT_RECORD_BYTES_MAX)
    rendered = RenderedRecords(include_tags=False, include_meta=True, include_data=True)
    (first,), (again,) = rendered.of(chunks_of(log)), rendered.of(chunks_of(log))
    assert first == again
    assert first is not again


def test_what_is_kept_is_bounded(log: SmallLog) -> None:
    """Pages that were rendered long ago are rendered again. A page is complete, also when the bound is met in it."""
    rendered = RenderedRecords(include_tags=False, include_meta=True, include_data=True)
    log.append("a", node="n")
    (first,) = rendered.of(chunks_of(log))
    filler = "x" * (KEPT_RECORD_BYTES_MAX // 2)
    wanted = KEPT_BYTES_MAX // KEPT_RECORD_BYTES_MAX + 200
    while log.topic().head_seq < wanted:
        head_seq = log.topic().head_seq
        log.append("a", 100, node="n", meta=filler)
        assert len(rendered.of(chunks_of(log, head_seq))) == 100
    (again,) = rendered.of([(form, raws[:1]) for form, raws in chunks_of(log)][:1])
    assert again == first
    assert again is not first
