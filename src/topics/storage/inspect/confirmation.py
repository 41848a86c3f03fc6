"""What is bad in a directory while a server works in it.

A look reads one file after the other. Meanwhile the server writes to files, replaces and removes them, so that what was
read may never have been on the disk at the same time: an index of yesterday beside the frames of today. Bytes that are
bad on the disk are still bad at the next look. So in a directory in use a place is reported when several looks in a row
find it bad. Later looks read only the files in doubt, and are short.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from topics.storage.inspect.findings import Finding, Totals

LOOKS_MAX: Final = 5

# Looks at these files once more, with all that is needed to judge them.
LookAgain = Callable[[Collection[str]], Iterable[Finding]]


def confirmed(findings: Iterable[Finding], totals: Totals, look_again: LookAgain) -> Iterator[Finding]:
    """The findings of a look, counted as they are given. In a directory in use all but notes come at the end."""
    doubtful: list[Finding] = []
    for finding in findings:
        if totals.in_use and finding.severity != "note":
            doubtful.append(finding)
        else:
            yield totals.count(finding)
    for _ in range(LOOKS_MAX - 1):
        if not doubtful:
            return
        found = {_place(finding) for finding in look_again({finding.file for finding in doubtful})}
        doubtful = [finding for finding in doubtful if _place(finding) in found]
    for finding in doubtful:
        yield totals.count(finding)


@contextmanager
def may_vanish(totals: Totals) -> Iterator[None]:
    """A server removes files after they were listed. Whether they should be there is for the next look to tell."""
    try:
        yield
    except FileNotFoundError:
        if not totals.in_use:
            raise


def undisturbed(look: Callable[[], Iterable[Finding]], totals: Totals) -> Iterator[Finding]:
    """The findings in one part of a directory. In a directory in use the look begins anew if a file goes away during
    it, so that one removed file does not hide what is bad in the others."""
    if not totals.in_use:
        yield from look()
        return
    for looks_left in reversed(range(LOOKS_MAX)):
        try:
            findings = list(look())
        except FileNotFoundError:
            if not looks_left:
                raise
        else:
            yield from findings
            return


def _place(finding: Finding) -> tuple[str, str, int | None, int | None]:
    """Without the message, which may name how far the log goes."""
    return finding.severity, finding.file, finding.offset, finding.seq
