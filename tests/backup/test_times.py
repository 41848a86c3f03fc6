"""Times as users write them."""

import pytest

from topics.backup.times import parse_time, time_text
from topics.errors import InvalidRequest


def test_a_time_is_read_as_it_is_written() -> None:
    assert time_text(1794881938972) == "2026-11-17T02:18:58.972Z"
    for text in ("2026-11-17T02:18:58.972Z", "2026-11-17T04:18:58.972+02:00", "1794881938972"):
        assert parse_time(text) == 1794881938972


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", '"yesterday" is no time: write 2026-11-17T02:10:11Z, or milliseconds since 1970'),
        (
            "2026-11-17T02:18:58",
            '"2026-11-17T02:18:58" has no time zone: write 2026-11-17T02:18:58Z for UTC, or 2026-11-17T02:18:58+02:00',
        ),
    ],
)
def test_another_text_is_refused_with_the_right_form(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_time(text)
    assert caught.value.message == message
