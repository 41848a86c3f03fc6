"""Times, spans of time and sizes as people write and read them."""

import pytest

from topics.cli.remote.shown import (
    parse_bytes,
    parse_span_ms,
    parse_time_ms,
    show_bytes,
    show_span,
    show_time,
)
from topics.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "span_ms"), [("250ms", 250), ("10s", 10_000), ("1.5h", 5_400_000), ("1h30m", 5_400_000), ("0s", 0)]
)
def test_spans(text: str, span_ms: int) -> None:
    assert parse_span_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "1s2", "1 s", "1y"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_span_ms(text)


@pytest.mark.parametrize(("text", "size"), [("500", 500), ("64k", 65_536), ("1.5M", 1_572_864), ("2 GB", 2**31)])
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1x"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_bytes(text)


def test_times_are_before_now_or_on_the_calendar() -> None:
    assert parse_time_ms("10m", 1_000_000) == 400_000
    assert parse_time_ms("1970-01-01T00:00:01Z", 0) == 1000
    assert parse_time_ms("1970-01-01T02:00:01+02:00", 0) == 1000


def test_what_people_read() -> None:
    assert [show_span(ms) for ms in (None, 5, 2500, 65_000, 3_900_000, 90_000_000)] == [
        "-",
        "5ms",
        "2.5s",
        "1m 5s",
        "1h 5m",
        "1d 1h",
    ]
    assert [show_bytes(size) for size in (0, 1023, 1536, 2**40)] == ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]
    assert [show_time(ts) for ts in (None, 1500)] == ["-", "1970-01-01T00:00:01.500Z"]
