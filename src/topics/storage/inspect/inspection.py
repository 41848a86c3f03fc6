"""A data directory under inspection: its files, what was read of them, and how findings name them."""

from collections.abc import Callable
from typing import Final

from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.inspect.findings import Finding, Totals

# (bytes read, bytes in all)
Progress = Callable[[int, int], None]

# Endings of files that a start or `doctor` set aside, or left half-written. They are never an error.
LEFT_OVERS: Final = (layout.TORN, layout.TEMPORARY, layout.BROKEN, layout.REWRITE)


class Inspection:
    def __init__(self, fs: Fs, root: str, progress: Progress | None = None) -> None:
        self.fs = fs
        self.root = root
        self.totals = Totals()
        self.progress = progress or _no_progress

    def name(self, path: str) -> str:
        return path.removeprefix(self.root + "/")

    def names_in(self, directory: str) -> list[str]:
        try:
            return self.fs.listdir(directory)
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        try:
            self.fs.listdir(path)
        except NotADirectoryError:
            return False
        except FileNotFoundError:
            # A server has removed it since it was listed: it was one, and nothing is in it.
            return True
        return True

    def size_of_tree(self, directory: str) -> int:
        total = 0
        for name in self.names_in(directory):
            path = f"{directory}/{name}"
            try:
                total += self.fs.size(path)
            except IsADirectoryError:
                if name not in ("staging", "streams"):
                    total += self.size_of_tree(path)
            except FileNotFoundError:
                continue
        return total

    def note_read(self, count: int) -> None:
        self.totals.bytes_read += count
        self.totals.bytes_total = max(self.totals.bytes_total, self.totals.bytes_read)
        self.progress(self.totals.bytes_read, self.totals.bytes_total)

    def stray(self, path: str) -> Finding:
        name = self.name(path)
        if path.endswith(layout.TEMPORARY):
            return Finding(severity="note", file=name, message="left over; the next start deletes it")
        if path.endswith(layout.REWRITE):
            text = "a copy of the log's end that a start left; the next one writes it back"
            return Finding(severity="note", file=name, message=text)
        if path.endswith(LEFT_OVERS):
            text = "bytes that were set aside; delete the file when you do not need it"
            return Finding(severity="note", file=name, message=text)
        return Finding(severity="note", file=self.name(path), message="not one of ours; left alone")


def _no_progress(done: int, total: int) -> None:
    pass
