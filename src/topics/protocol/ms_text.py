"""Milliseconds as answers show them: with three digits after the point.

Every answer has at least one such number. A text from the table takes a third of the time of a format.
"""

from typing import Final

_TEXTS: Final = [f"{us / 1000:.3f}" for us in range(4096)]
_TABLE_MS_END: Final = 4.095


def ms_text(ms: float) -> str:
    """The number as JSON. It is not negative."""
    if ms < _TABLE_MS_END:
        return _TEXTS[int(ms * 1000 + 0.5)]
    return f"{ms:.3f}"
