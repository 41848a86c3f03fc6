"""Log lines on stderr: one line per event, as text for a terminal or as JSON for a machine.

Rules:
1. A message is a constant; variable parts are fields: `logger.info("listening", extra={"fields": {…}})`.
2. A log line cannot look like another line, and cannot control a terminal: control characters are written as escapes.
   In text, a traceback follows on indented lines; in JSON it is a field.
3. Payloads are never logged. Bytes are written as their count, long texts are cut.
4. Known secrets are replaced by `***` in messages, fields and tracebacks.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

from topics.clock import Clock
from topics.server.settings_schema import LogFormat, LogLevel

TEXT_CHARS_MAX: Final = 2000
TRACEBACK_CHARS_MAX: Final = 20_000
RATE_LIMIT_MS: Final = 10_000

# Shorter secrets are replaced only as whole words: `***` for "ops" inside "stops" would reveal the secret.
_SECRET_CHARS_ANYWHERE: Final = 8
_PACKAGE_PREFIX: Final = "topics."

Redact = Callable[[str], str]
Fields = Mapping[str, Any]


def configure_logging(
    level: LogLevel, log_format: LogFormat, *, secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Sends the log lines of the whole process to stderr, or to `stream`. A second call replaces the first."""
    stream = stream or sys.stderr
    redact = RedactSecrets(secrets)
    if log_format == "auto":
        log_format = "text" if stream.isatty() else "json"
    handler = _Handler(stream)
    handler.setFormatter(TextLines(redact) if log_format == "text" else JsonLines(redact))
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """A class of its own, so that this handler can be told from handlers of other code."""


class RedactSecrets:
    """Replaces secrets in a text by `***`, without keeping the secrets.

    Only the length and Python's keyed hash of each secret are kept. Every part of a text with such a length is hashed
    and looked up. That takes about 0.2 µs per character and length, and log lines are rare.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        hashes_by_length: dict[int, set[int]] = {}
        for secret in secrets:
            if secret:
                hashes_by_length.setdefault(len(secret), set()).add(hash(secret))
        # The longest first: if two secrets begin alike, the rest of the longer one must not stay.
        self._hashes_by_length: Final = sorted(hashes_by_length.items(), reverse=True)

    def __call__(self, text: str) -> str:
        for length, hashes in self._hashes_by_length:
            if length <= len(text):
                text = "".join(self._parts(text, length, hashes))
        return text

    def _parts(self, text: str, length: int, hashes: set[int]) -> Iterator[str]:
        kept_from = start = 0
        while start + length <= len(text):
            end = start + length
            if hash(text[start:end]) in hashes and (
                length >= _SECRET_CHARS_ANYWHERE
                or not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())
            ):
                yield text[kept_from:start]
                yield "***"
                kept_from = start = end
            else:
                start += 1
        yield text[kept_from:]


class JsonLines(logging.Formatter):
    """`{"ts":…,"level":…,"logger":…,"message":…}`, the fields, and `traceback`. ASCII only."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(self._redact(record.getMessage())),
        }
        if traceback := _traceback(record, self._redact):
            line["traceback"] = traceback
        for name, value in _fields(record).items():
            line[f"field_{name}" if name in line else name] = _plain(value, self._redact)
        return json.dumps(line, separators=(",", ":"), allow_nan=False)


class TextLines(logging.Formatter):
    """`2026-11-15T10:00:00.123Z INFO server: listening address=127.0.0.1:4000`."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        message = _escaped(_cut(self._redact(record.getMessage())))
        parts = [f"{_timestamp(record)} {record.levelname} {_subject(record.name)}: {message}"]
        parts += [f"{_escaped(name)}={_word(_plain(value, self._redact))}" for name, value in _fields(record).items()]
        lines = [" ".join(parts)]
        lines += [f"    {_escaped(line)}" for line in _traceback(record, self._redact).splitlines()]
        return "\n".join(lines)


class RateLimited:
    """Logs each kind of message at most once per interval. The next line says how many were left out.

    For events that any client can cause, such as TLS on a plain port or unknown keys. A kind is a constant of this
    program, never text of a client, because each kind is remembered.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, *, interval_ms: int = RATE_LIMIT_MS) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_ms = interval_ms
        self._next_ms: dict[str, int] = {}
        self._suppressed_counts: dict[str, int] = {}

    def warning(self, kind: str, message: str, fields: Fields | None = None) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms.get(kind, now_ms):
            self._suppressed_counts[kind] = self._suppressed_counts.get(kind, 0) + 1
            return
        self._next_ms[kind] = now_ms + self._interval_ms
        shown = dict(fields or {})
        if suppressed_count := self._suppressed_counts.pop(kind, 0):
            shown["suppressed"] = suppressed_count
        self._logger.warning(message, extra={"fields": shown})


def _timestamp(record: logging.LogRecord) -> str:
    seconds, ms = divmod(int(record.created * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03d}Z"


def _subject(logger_name: str) -> str:
    """The module of topics that logs; the full name for other packages."""
    return (
        logger_name.removeprefix(_PACKAGE_PREFIX).partition(".")[0]
        if logger_name.startswith(_PACKAGE_PREFIX)
        else logger_name
    )


def _fields(record: logging.LogRecord) -> Fields:
    fields: Fields = getattr(record, "fields", None) or {}
    return fields


def _plain(value: Any, redact: Redact) -> Any:
    """The value in a form that JSON knows. Bytes may be a payload, so only their count is shown."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"({len(value)} bytes)"
    if isinstance(value, Mapping):
        return {redact(str(name)): _plain(each, redact) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, redact) for each in value]
    return _cut(redact(str(value)))


def _word(value: Any) -> str:
    """A value of a text line, in quotes if it is not one word."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if text and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(escaped)}"'


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}… ({len(text)} characters)"


def _traceback(record: logging.LogRecord, redact: Redact) -> str:
    """The last part of a long traceback, because the error is at its end."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return redact(logging.Formatter().formatException(record.exc_info))[-TRACEBACK_CHARS_MAX:]
