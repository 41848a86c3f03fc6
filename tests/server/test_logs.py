"""Log lines: one line per event; no forged lines, no secrets, no payloads."""

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.server.logs import JsonLines, RateLimited, RedactSecrets, TextLines, configure_logging
from topics.testing.clock import ManualClock

CREATED = 1_794_736_800.123


def record(
    message: str, *args: object, name: str = "topics.server.serve", error: BaseException | None = None, **fields: Any
) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord(name, logging.INFO, __file__, 1, message, args, exc_info)
    made.created = CREATED
    if fields:
        made.fields = fields
    return made


def text_line(message: str, *args: object, secrets: tuple[str, ...] = (), **rest: Any) -> str:
    return TextLines(RedactSecrets(secrets)).format(record(message, *args, **rest))


def json_line(message: str, *args: object, secrets: tuple[str, ...] = (), **rest: Any) -> dict[str, Any]:
    line = JsonLines(RedactSecrets(secrets)).format(record(message, *args, **rest))
    assert line.isascii()
    assert line.isprintable()
    return dict(json.loads(line))


def raised(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


# Text.


def test_a_text_line_has_time_level_subject_message_and_fields() -> None:
    line = text_line("listening", address="127.0.0.1:4000", topics=3, tls=False, note="two words", cold=None)
    assert line == (
        "2026-11-15T10:00:00.123Z INFO server: listening "
        'address=127.0.0.1:4000 topics=3 tls=false note="two words" cold=null'
    )


def test_another_package_keeps_its_name() -> None:
    assert " INFO asyncio.base: slow" in text_line("slow", name="asyncio.base")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        ('say "hi"', r'"say \"hi\""'),
        ("a=b", '"a=b"'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nbreak", r'"line\nbreak"'),
        ("\x1b[2J", r'"\x1b[2J"'),
        ("\u202eright", r'"\u202eright"'),
        ("größe", "größe"),
        ([1, "two"], r'"[1,\"two\"]"'),
    ],
)
def test_a_value_that_is_not_one_plain_word_is_quoted_and_escaped(value: object, shown: str) -> None:
    assert text_line("x", value=value).endswith(f" x value={shown}")


def test_a_traceback_follows_indented_in_text_and_is_a_field_in_json() -> None:
    lines = text_line("failed", error=raised("bad\n2026-11-15T10:00:00.123Z INFO server: forged")).splitlines()
    assert lines[0].endswith(" server: failed")
    assert lines[1] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in lines[1:])
    assert json_line("failed", error=raised("bad"))["traceback"].endswith("ValueError: bad")


# JSON.


def test_a_json_line_is_flat() -> None:
    assert json_line("listening", address="::1", count=3, names=["a", 1], more={"x": None}) == {
        "ts": "2026-11-15T10:00:00.123Z",
        "level": "info",
        "logger": "topics.server.serve",
        "message": "listening",
        "address": "::1",
        "count": 3,
        "names": ["a", 1],
        "more": {"x": None},
    }


def test_a_field_never_replaces_what_every_line_has() -> None:
    line = json_line("real", level="forged", ts=1)
    assert (line["level"], line["field_level"], line["field_ts"]) == ("info", "forged", 1)


def test_numbers_that_json_lacks_are_texts() -> None:
    assert json_line("x", ratio=float("inf"), half=0.5)["ratio"] == "inf"


# What must not get out.


@given(st.text(), st.text(), st.text())
def test_no_text_makes_a_second_line_or_moves_a_terminal(message: str, value: str, key: str) -> None:
    line = TextLines(RedactSecrets(())).format(record("%s", message, **{"a" + key: value}))
    assert line.isprintable()
    parsed = json_line("%s", message, value=value)
    assert (parsed["message"], parsed["value"]) == (message, value)


def test_bytes_are_counted_and_long_texts_are_cut() -> None:
    line = json_line("x" * 5000, payload=b"private", part=[memoryview(b"private")], text="y" * 5000)
    assert (line["payload"], line["part"]) == ("(7 bytes)", ["(7 bytes)"])
    assert line["text"] == "y" * 2000 + "… (5000 characters)"
    assert len(line["message"]) < 2100


def test_secrets_are_replaced_in_message_fields_and_traceback() -> None:
    secrets = ("hush-hush-hush", "hush-hush", "päss wörd")
    error = raised("token hush-hush-hush!")
    for line in (
        text_line("got %s", "hush-hush-hush", secrets=secrets, error=error, a="x=hush-hush", b=["päss wörd"]),
        str(json_line("got %s", "hush-hush-hush", secrets=secrets, error=error, a={"hush-hush": 1}, b="päss wörd")),
    ):
        assert "hush" not in line
        assert "wörd" not in line
        assert line.count("***") == 4


def test_a_short_secret_is_replaced_where_it_stands_alone() -> None:
    redact = RedactSecrets(["ops", ""])
    assert redact("ops stops at ops:read, ops") == "*** stops at ***:read, ***"


@given(st.text(alphabet="ab", min_size=8, max_size=12), st.text(alphabet="ab"), st.text(alphabet="ab"))
def test_a_secret_of_some_length_never_survives(secret: str, before: str, after: str) -> None:
    redact = RedactSecrets([secret])
    text = redact(before + secret + after)
    assert secret not in text
    assert "***" in text
    assert redact("nothing of the kind") == "nothing of the kind"


def test_the_redaction_keeps_no_secret() -> None:
    redact = RedactSecrets(["hush-hush-hush"])
    assert "hush" not in repr(vars(redact))


# Configuration.


def test_auto_is_json_where_no_terminal_is_and_text_where_one_is(root: logging.Logger) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    configure_logging("info", "auto", stream=plain)
    logging.getLogger("topics.server.serve").info("one", extra={"fields": {"n": 1}})
    configure_logging("info", "auto", stream=terminal)
    logging.getLogger("topics.server.serve").info("two")
    assert json.loads(plain.getvalue())["n"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO server: two\n", terminal.getvalue())


def test_level_and_secrets_are_those_that_were_configured(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", secrets=["hush-hush-hush"], stream=stream)
    logging.getLogger("topics.engine").info("left out")
    logging.getLogger("topics.engine").warning("hush-hush-hush")
    assert json.loads(stream.getvalue())["message"] == "***"


def test_handlers_of_others_are_left_alone(root: logging.Logger) -> None:
    other = logging.NullHandler()
    root.addHandler(other)
    configure_logging("info", "json", stream=io.StringIO())
    configure_logging("info", "json", stream=io.StringIO())
    assert other in root.handlers
    assert sum(type(handler).__module__ == "topics.server.logs" for handler in root.handlers) == 1


# Rate limit.


def test_a_kind_is_logged_once_per_interval_with_the_number_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    limited = RateLimited(logging.getLogger("topics.server.test"), clock, interval_ms=1000)
    for _ in range(4):
        limited.warning("tls", "TLS on a plain port", {"peer": "10.0.0.1"})
    limited.warning("key", "unknown key")
    clock.advance(999)
    limited.warning("tls", "TLS on a plain port", {"peer": "10.0.0.1"})
    clock.advance(1)
    limited.warning("tls", "TLS on a plain port", {"peer": "10.0.0.2"})
    clock.advance(1000)
    limited.warning("tls", "TLS on a plain port")
    told = [each for each in caplog.records if each.name == "topics.server.test"]
    assert [(each.getMessage(), each.__dict__["fields"]) for each in told] == [
        ("TLS on a plain port", {"peer": "10.0.0.1"}),
        ("unknown key", {}),
        ("TLS on a plain port", {"peer": "10.0.0.2", "suppressed": 4}),
        ("TLS on a plain port", {}),
    ]
