"""What the command line prints: data on stdout, messages on stderr, and no control characters.

A hostile topic name, tag or payload may have control characters for the terminal. They are written as escapes. In JSON
control characters are only inside strings, so that the escaped text has the same meaning.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

# C0 except tab, DEL, C1, and characters that change the direction of text.
_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Output:
    """Lines on stdout. A closed pipe (`| head`) is no error: the rest is not printed."""

    def __init__(self) -> None:
        self.is_closed = False

    def line(self, text: str) -> None:
        if self.is_closed:
            return
        try:
            sys.stdout.write(_encodable(escaped(text), sys.stdout.encoding) + "\n")
        except BrokenPipeError:
            self._close()

    def line_block(self, text: str) -> None:
        for line in text.splitlines():
            self.line(line)

    def flush(self) -> None:
        if self.is_closed:
            return
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            self._close()

    def _close(self) -> None:
        """Python flushes stdout once more at its end, so that stdout becomes the null device."""
        self.is_closed = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def message(text: str) -> None:
    """One line on stderr."""
    try:
        sys.stderr.write(_encodable(escaped(text), sys.stderr.encoding) + "\n")
    except BrokenPipeError:
        pass


def fail(text: str) -> NoReturn:
    message(f"topics: {text}")
    raise SystemExit(1)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """An error of topics or of the system ends the command with one sentence and exit code 1."""
    from topics.errors import TopicsError

    try:
        yield
    except TopicsError as error:
        fail(error.message)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


def _encodable(text: str, encoding: str | None) -> str:
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
