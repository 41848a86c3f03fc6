"""Milliseconds in answers."""

import pytest

from topics.server.http.exchange import ms_text


@pytest.mark.parametrize("us", [0, 1, 999, 1000, 4094, 4095, 4096, 12_345_678])
def test_a_time_has_three_digits_after_the_point(us: int) -> None:
    assert ms_text(us / 1000) == f"{us / 1000:.3f}"


@pytest.mark.parametrize("ms", [0.0004, 4.0946, 4.0954, 4.0956])
def test_a_time_is_rounded(ms: float) -> None:
    assert float(ms_text(ms)) == round(ms, 3)
