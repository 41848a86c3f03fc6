"""Paths of this machine: they are taken out of errors before these go to a client.

A message names a file by its path below the data directory. The log has the whole path.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from topics.errors import TopicsError

# A path ends before one of these, or with the text.
_END: Final = r"""(?=[\s"'`:;,)\]]|$)"""

# Matches no text.
_NOTHING: Final = "(?!)"


class PathHider:
    """Does not change after it is made."""

    __slots__ = ("_below", "_whole")

    def __init__(self, *folders: str | None) -> None:
        """`folders` are the settings that name folders: a path, an address of another tier, or None."""
        spellings = sorted({each for folder in folders if folder for each in _spellings(folder)}, key=len, reverse=True)
        # A relative folder such as `data` must not match inside of a word.
        text = "|".join(rf"(?<![\w.-]){re.escape(each)}" for each in spellings) or _NOTHING
        self._below = re.compile(f"(?:{text})/+(?=[^\\s/])")
        self._whole = re.compile(f"(?:{text})/*{_END}")

    def hide(self, text: str) -> str:
        return self._whole.sub("(a folder of the server)", self._below.sub("", text))

    def error_told(self, error: TopicsError) -> TopicsError:
        """The error with the same class and detail, and without these folders in any text."""
        message = self.hide(error.message)
        detail = error.detail and {
            name: self.hide(value) if isinstance(value, str) else value for name, value in error.detail.items()
        }
        if message == error.message and detail == error.detail:
            return error
        told = type(error).__new__(type(error))
        TopicsError.__init__(told, message, detail)
        return told


def _spellings(folder: str) -> Iterator[str]:
    """How messages may write a folder: as it was given, as a whole path, without links. Never `.` alone, or `/`."""
    if "://" in folder:
        yield folder.rstrip("/")
        return
    for path in (folder, os.path.normpath(folder), os.path.abspath(folder), os.path.realpath(folder)):
        path = path.rstrip("/")
        if path not in ("", "."):
            yield path
