"""A progress bar on stderr, only on a terminal."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """`bar(done, total)` in bytes or items; `note` follows them. Call `pause()` before other text is printed."""

    def __init__(self, title: str, *, unit: Literal["bytes", "items"] = "bytes") -> None:
        self._title = title
        self._unit = unit
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                MofNCompleteColumn,
                Progress,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            in_bytes = (DownloadColumn(binary_units=True), TransferSpeedColumn())

            self._progress = Progress(
                "{task.description}",
                BarColumn(),
                *(in_bytes if self._unit == "bytes" else (MofNCompleteColumn(),)),
                "{task.fields[note]}",
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task(self._title, total=None, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        if self._progress is not None and self._task is not None:
            self._progress.start()
            self._progress.update(self._task, completed=done, total=total, note=note)

    def pause(self) -> None:
        """Removes the bar. The next call draws it again."""
        if self._progress is not None:
            self._progress.stop()
