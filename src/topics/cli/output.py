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


def has_colours() -> bool:
    """Whether stdout is a terminal whose user wants colours: see no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Lines on stdout. A closed pipe (`| head`) is no error: the rest is not printed."""

    def __init__(self) -> None:
        self.is_closed = False

    def line(self, text: str, *, is_bold: bool = False) -> None:
        """`is_bold` has an effect on a terminal with colours only."""
        text = _encodable(escaped(text), sys.stdout.encoding)
        self.text(f"\x1b[1m{text}\x1b[0m\n" if is_bold and has_colours() else f"{text}\n")

    def payload(self, text: str, end: str = "\n") -> None:
        """Text of a record: as it is for a program, without control characters for a terminal."""
        self.text(_encodable(escaped(text) if sys.stdout.isatty() else text, sys.stdout.encoding) + end)

    def payload_bytes(self, data: bytes) -> None:
        """Bytes that may be no text: as they are for a program, readable for a terminal."""
        if sys.stdout.isatty():
            self.payload(data.decode(errors="backslashreplace"))
            return
        self.flush()
        if self.is_closed:
            return
        try:
            sys.stdout.buffer.write(data + b"\n")
        except BrokenPipeError:
            self._close()

    def text(self, text: str) -> None:
        """The text as it is."""
        if self.is_closed:
            return
        try:
            sys.stdout.write(text)
        except BrokenPipeError:
            self._close()

    def line_block(self, text: str) -> None:
        # Not `splitlines`: it also cuts at characters that are inside of a string of JSON.
        for line in text.removesuffix("\n").split("\n"):
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
    except ModuleNotFoundError as error:
        # The import of a part that needs an extra names it in a note.
        notes: list[str] = getattr(error, "__notes__", [])
        if not notes:
            raise
        fail(f"the package {error.name} is not installed, and {notes[0]}")


def _encodable(text: str, encoding: str | None) -> str:
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
