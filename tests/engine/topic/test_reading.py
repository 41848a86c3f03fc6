import pytest

from tests.engine.driver import Driver, values
from topics.engine.topic.reading import Page
from topics.formats.record_layout import decode_raw, raw_node, raw_size, raw_tag
from topics.formats.records import Record
from topics.results import NewRecord


@pytest.fixture(params=["memory", "wal", "active segment", "sealed segment"])
def page(request: pytest.FixtureRequest) -> Page:
    """Three records, wherever they are read from."""
    driver = Driver()
    driver.append(NewRecord({"a": 1}, tag="é", node="n"), NewRecord(None, meta=[1]), NewRecord(b" 2 ", tag="", node=""))
    if request.param == "wal":
        driver.kill()
    elif request.param == "active segment":
        driver.checkpoint()
    elif request.param == "sealed segment":
        driver.append(*range(4))
        driver.checkpoint()
    return driver.read(0, limit=3)


def test_records_are_what_was_written_from_every_place_invariant_10(page: Page) -> None:
    ts = page.records[0].ts
    assert page.records == [
        Record(1, ts, "n", "é", b'{"a":1}', None),
        Record(2, ts, None, None, b"null", b"[1]"),
        Record(3, ts, "", "", b" 2 ", None),
    ]
    assert len(page) == 3
    assert page.records_scanned == 3


def test_nodes_and_sizes_are_read_without_decoding_the_rest(page: Page) -> None:
    raws = [(raw, form) for form, raws in page.chunks for raw in raws]
    assert [raw_node(raw, form) for raw, form in raws] == [b"n", None, b""]
    assert [raw_tag(raw, form) for raw, form in raws] == ["é".encode(), None, b""]
    assert [raw_size(raw, form) for raw, form in raws] == [7, 4 + 3, 3]
    assert [decode_raw(raw, form) for raw, form in raws] == page.records


def test_lag_is_what_is_left_invariant_7() -> None:
    driver = Driver()
    driver.append(*range(5))
    page = driver.read(0, limit=2)
    assert (page.next_from_seq, page.head_seq, page.lag, page.caught_up) == (2, 5, 3, False)
    page = driver.read(2)
    assert (values(page), page.lag, page.caught_up) == ([2, 3, 4], 0, True)
