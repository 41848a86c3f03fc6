"""Sizes and durations as people write them."""

from typing import Any

import pytest

from topics.streams.settings.units import (
    UNLIMITED,
    parse_duration_us,
    parse_expiry_us,
    parse_size,
    parse_topic_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("1 KB", 1000),
        ("1 KiB", 1024),
        ("1kib", 1024),
        ("  500   MB ", 500_000_000),
        ("1.5 MiB", 1_572_864),
        ("4 GiB", 4 * 2**30),
        ("7 B", 7),
        ("1 TiB", 2**40),
    ],
)
def test_sizes_are_numbers_with_a_unit(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1 XB", "-1", "1 KiB KiB", -1, True, None, 1.5, "\uff11 KB", "unlimited"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r'^a size, such as "1 GiB"'):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        (0, 0),
        ("0", 0),
        ("none", 0),
        ("Disabled", 0),
        ("unlimited", 0),
        ("1 m", 60_000_000),
        ("30s", 30_000_000),
        ("1m30s", 90_000_000),
        ("2 days 4 hours", 52 * 3600 * 1_000_000),
        ("250 ms", 250_000),
        ("7us", 7),
        ("1500 ns", 1),
        ("1 week", 7 * 86_400 * 1_000_000),
        ("1 M", 30.44 * 86_400 * 1_000_000),
        ("1 year", 365.25 * 86_400 * 1_000_000),
        ("0.5 s", 500_000),
    ],
)
def test_durations_are_numbers_with_units(text: int | str, us: float) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize("text", ["", "5", 5, "5 parsecs", "s", "1 m and 3 s", "-1 s", None, False, "1 m 5"])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r'^a duration, such as "30 s"'):
        parse_duration_us(text)


def test_defaults_of_topics_may_be_without_end() -> None:
    assert [parse_expiry_us(text) for text in ("none", "unlimited", "never_expire", "0", 0)] == [UNLIMITED] * 5
    assert parse_expiry_us("1 day") == 86_400_000_000
    assert parse_topic_size("unlimited") == UNLIMITED
    assert parse_topic_size("2 GiB") == 2 * 2**30
