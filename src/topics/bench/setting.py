"""Where a benchmark runs, and at which size."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from topics.bench.processes import Process, running_server


@dataclass(frozen=True, slots=True)
class Setting:
    """`directory` is for the files of the benchmark. `scale` multiplies its sizes, below 1 in tests.

    With `is_full`, long loads run as long as their targets say. `python_path` is the folder whose package `topics` is
    the measured server; None is the package of this process. `kafka_jars` is the folder of the peer on Spark.
    """

    directory: str
    scale: float = 1.0
    is_full: bool = False
    python_path: str | None = None
    kafka_jars: str | None = None

    @property
    def rounds(self) -> int:
        """How often figures that are compared take turns; the median counts."""
        return 3 if self.scale >= 1 else 1

    def seconds(self, seconds: float) -> float:
        return max(0.1, seconds * self.scale)

    def count(self, count: int) -> int:
        return max(1, round(count * self.scale))

    @contextmanager
    def server(self) -> Iterator[Process]:
        with running_server(self.directory, python_path=self.python_path) as server:
            yield server
