"""Checks a backup: every byte of every object that a point refers to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topics.backup.format import Point, StoredFile
from topics.backup.store import BackupStore
from topics.errors import Damaged

Progress = Callable[[int, int], None]
"""Gets the bytes that are checked, and the bytes in all."""


@dataclass(slots=True)
class CheckTotals:
    points: int = 0
    topics: int = 0
    files: int = 0
    size_bytes: int = 0
    damage: int = 0


class BackupCheck:
    """Iterate `run()`: each damaged object once. `totals` counts meanwhile."""

    def __init__(self, store: BackupStore, progress: Progress | None = None) -> None:
        self._store = store
        self._progress = progress
        self.totals = CheckTotals()

    def run(self) -> Iterator[Damaged]:
        """Raises `StartRefused` when there is no backup, or a newer version wrote it."""
        self._store.require()
        files: dict[str, StoredFile] = {}
        for damage in self._collect(files):
            self.totals.damage += 1
            yield damage
        total = sum(file.size_bytes for file in files.values())
        for file in files.values():
            try:
                self._store.check(file)
            except Damaged as damage:
                self.totals.damage += 1
                yield damage
            self.totals.files += 1
            self.totals.size_bytes += file.size_bytes
            if self._progress is not None:
                self._progress(self.totals.size_bytes, total)

    def _collect(self, files: dict[str, StoredFile]) -> Iterator[Damaged]:
        """Fills `files` from all points and entries."""
        entries: set[str] = set()
        for name in self._store.point_names():
            self.totals.points += 1
            try:
                point = self._store.point(name)
            except Damaged as damage:
                yield damage
                continue
            for entry in self._new_entries(point, entries):
                self.totals.topics += 1
                try:
                    files.update((file.name, file) for file in self._store.entry(entry).files)
                except Damaged as damage:
                    yield damage

    def _new_entries(self, point: Point, seen: set[str]) -> list[str]:
        found = [ref.entry for ref in point.topics if ref.entry not in seen]
        seen.update(found)
        return found
