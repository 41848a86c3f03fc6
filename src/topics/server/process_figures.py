"""Numbers of the process, for metrics. A number that the system does not tell is None, and its metric is left out."""

import os
import resource
from typing import Final

from topics.server.metrics import ProcessFigures

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def process_figures() -> ProcessFigures:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessFigures(
        resident_bytes=resident_bytes(),
        cpu_seconds=used.ru_utime + used.ru_stime,
        open_files=_open_files(),
        open_files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def resident_bytes() -> int | None:
    """The memory of the process now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None


def _open_files() -> int | None:
    try:
        # One of them is the directory itself while it is read.
        return len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        return None
