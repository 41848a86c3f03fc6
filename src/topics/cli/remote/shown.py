"""Times, spans of time, sizes and tags as people write and read them."""

import re
from datetime import UTC, datetime
from typing import Final

from topics.errors import InvalidRequest

_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_UNITS_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)


def parse_span_ms(text: str) -> int:
    """`10m`, `1.5h`, `1h30m`, `250ms` in milliseconds."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidRequest(f'"{text}" is no span of time: write it like 250ms, 10s, 10m, 1h30m, 2d')
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))


def parse_bytes(text: str) -> int:
    """`500`, `64k`, `1.5G` in bytes; a k is 1024 bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS_BYTES:
        raise InvalidRequest(f'"{text}" is no size: write it like 500, 64k, 10M, 2G')
    return round(float(match[1]) * _UNITS_BYTES[match[2].lower()])


def parse_time_ms(text: str, now_ms: int) -> int:
    """A time, or a span of time before now, in milliseconds since the Unix epoch."""
    if _SPAN.match(text):
        return now_ms - parse_span_ms(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f'"{text}" is no time: write it like 10m (ago), 2026-01-31 or 2026-01-31T10:00:00Z'
        ) from None
    # Without a zone it is the time of this machine.
    return round(given.timestamp() * 1000)


def parse_tag(text: str | None) -> tuple[str | None, str | None]:
    """A tag, or a prefix of tags: `acme:*`. The other one is None; both are without a text."""
    if text is None or not text.endswith("*"):
        return text, None
    return None, text[:-1]


def show_time(ts_ms: int | None) -> str:
    """In UTC, or `-`."""
    if not ts_ms:
        return "-"
    shown = datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def show_span(span_ms: float | None) -> str:
    """The two largest units: `1h 5m`, `2.5s`, `250ms`, or `-`."""
    if span_ms is None:
        return "-"
    if span_ms < 1000:
        return f"{span_ms:.0f}ms"
    seconds = span_ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes}m {int(seconds % 60)}s"
    return f"{hours}h {minutes % 60}m" if days < 1 else f"{days}d {hours % 24}h"


def show_bytes(size: float) -> str:
    """`512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
