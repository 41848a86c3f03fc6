"""Times as users read and write them."""

from datetime import UTC, datetime

from topics.errors import InvalidRequest


def time_text(ms: int) -> str:
    """`2026-11-17T02:10:11.123Z`"""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of a time with a zone, such as `2026-11-17T02:10:11Z`, or of such a number. Raises
    `InvalidRequest`."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(f'"{text}" is no time: write 2026-11-17T02:10:11Z, or milliseconds since 1970') from error
    if found.tzinfo is None:
        raise InvalidRequest(f'"{text}" has no time zone: write {text}Z for UTC, or {text}+02:00')
    return round(found.timestamp() * 1000)
