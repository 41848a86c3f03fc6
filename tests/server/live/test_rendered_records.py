"""Texts that are kept are the texts that rendering makes, and their number is bounded."""

from __future__ import annotations

import pytest

from tests.engine.small_log import SmallLog
from topics.protocol.record_text import Chunk, record_texts
from topics.server.live.rendered_records import KEPT_BYTES_MAX, KEPT_RECORD_BYTES_MAX, RenderedRecords
from topics.testing.fake_disk import FakeDisk


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
