"""The language of manual pages, as far as ours need it: see man(7)."""

import re
from collections.abc import Iterable
from typing import Final

_ESCAPES: Final = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": "\\(ga", "^": r"\(ha", "~": r"\(ti"})
# Beyond ASCII: by its number, so that the page can be shown anywhere.
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


class Roff:
    """One page. Text is escaped here: callers give it as it is."""

    def __init__(self, name: str, section: int, version: str) -> None:
        # Without a date: the same version makes the same page.
        self._lines = [f'.TH "{_escaped(name.upper())}" {section} "" "topics {_escaped(version)}" "topics"', ".nh"]
        self._is_heading = True

    def heading(self, title: str, level: int = 1) -> None:
        self._add(f'.{"SH" if level == 1 else "SS"} "{_escaped(title)}"')
        self._is_heading = True

    def text(self, text: str) -> None:
        """A paragraph."""
        self._paragraph()
        self._add(_line(text))

    def usage(self, text: str) -> None:
        self._paragraph()
        self._add(f".B {_line(text)}" if text[:1] not in ".'" else _line(text))

    def item(self, term: str, meaning: str) -> None:
        """A term in bold, and its meaning below, indented."""
        self._is_heading = False
        self._lines += [".TP", f"\\fB{_escaped(term)}\\fR", _line(" ".join(meaning.split()))]

    def verbatim(self, lines: Iterable[str]) -> None:
        """Lines that stay lines."""
        self._is_heading = False
        self._lines += [".PP", ".RS 2", ".nf", *(_line(line.strip() or " ") for line in lines), ".fi", ".RE"]

    def render(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _add(self, line: str) -> None:
        self._lines.append(line)

    def _paragraph(self) -> None:
        """A heading begins a paragraph by itself."""
        if not self._is_heading:
            self._add(".PP")
        self._is_heading = False


def _escaped(text: str) -> str:
    made = text.translate(_ESCAPES).replace('"', r"\(dq")
    return _NOT_ASCII.sub(lambda found: f"\\[u{ord(found[0]):04X}]", made)


def _line(text: str) -> str:
    """A line of text that no program takes for a request."""
    made = _escaped(text)
    return rf"\&{made}" if made[:1] in (".", "") else made
