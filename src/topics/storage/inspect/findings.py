"""What `verify` and `doctor` find, as values: one line for people, one JSON object for programs."""

from typing import Literal

import msgspec

# damage: bytes that were durable are bad or missing. What that means for the records is in the advice.
# warning: something derived is missing or stale, or a number does not agree; a start repairs it.
# note: nothing is wrong; good to know.
Severity = Literal["damage", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    severity: Severity
    # Relative to the data directory; in the cold tier the object's address.
    file: str
    message: str
    offset: int | None = None
    # First and last seq concerned; the last only when there are several.
    seq: int | None = None
    last_seq: int | None = None
    topic: str | None = None
    expected: str = ""
    found: str = ""
    # What it means, and what to do.
    advice: str = ""

    def line(self) -> str:
        where = self.file
        if self.offset is not None:
            where += f" offset {self.offset}"
        if self.seq is not None:
            where += f" seq {self.seq}"
            if self.last_seq is not None and self.last_seq != self.seq:
                where += f" to {self.last_seq}"
        text = f"{self.severity}: {where}: {self.message}"
        if self.expected or self.found:
            text += f" (expected {self.expected or 'nothing'}, found {self.found or 'nothing'})"
        if self.topic is not None:
            text += f' [topic "{self.topic}"]'
        return text


class Totals(msgspec.Struct):
    """What was looked at, and how it ended."""

    files: int = 0
    frames: int = 0
    records: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    damage: int = 0
    warnings: int = 0
    notes: int = 0
    # A server has the directory open: its tail moves while it is looked at.
    in_use: bool = False

    def __add__(self, other: "Totals") -> "Totals":
        """Of two directories that are looked at together. Numbers are added; what is true of one is true of both."""
        both = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Totals(**{name: mine or its if isinstance(mine, bool) else mine + its for name, mine, its in both})

    def count(self, finding: Finding) -> Finding:
        if finding.severity == "damage":
            self.damage += 1
        elif finding.severity == "warning":
            self.warnings += 1
        else:
            self.notes += 1
        return finding


def unreadable(error: Exception) -> Finding:
    """For a directory that cannot be read to its end."""
    return Finding(
        severity="damage",
        file=".",
        message=f"cannot be looked at: {error}",
        advice="make it readable for this user, or mount its disk",
    )
