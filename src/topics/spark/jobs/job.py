"""What all jobs share: waves of work, progress, the report and its exit code.

rule 1  The work list comes first. It is cut into waves; each wave ends in a durable commit that the job makes. A job
        that is killed repeats at most one wave, and one that is done does nothing when it is run again.
rule 2  Ctrl-C lets the running wave end and commit, then the job stops. A second one stops it at once, which is no
        worse than a kill.
rule 3  A job prints nothing. It tells its progress to whoever asked for it, and returns a `Report`.

The shape of a job: `run(spark, config, *, report=None) -> Report`, where `report` is handed on to `run_waves`. The
fields `state` (an address) and `dry_run` have the same meaning in every `Config` that has them.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import monotonic
from types import FrameType
from typing import Any, Final, NamedTuple, TypeVar

from topics.errors import TopicsError
from topics.spark.errors import Conflict

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_FINDINGS: Final = 2
EXIT_DATA_LOSS: Final = 3
EXIT_CONFLICT: Final = 4

# A wave keeps every core busy although its tasks are not equally long, and is little to repeat.
TASKS_PER_CORE: Final = 4

Item = TypeVar("Item")


class Interrupted(TopicsError):
    """Somebody pressed Ctrl-C. What was done stays done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did. `detail` is what only this job has to tell; every value in it can be JSON."""

    job: str
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    items_done: int = 0
    items_skipped: int = 0
    findings: tuple[dict[str, Any], ...] = ()
    exit_code: int = EXIT_DONE
    detail: dict[str, Any] = field(default_factory=dict)

    def members(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a job is after a wave. `done` and `total` count items; `eta_s` goes by their weights."""

    job: str
    wave: int
    waves: int
    done: int
    total: int
    records: int
    bytes: int
    per_s: float
    eta_s: float

    def members(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


ReportProgress = Callable[[Progress], None]


class WaveDone(NamedTuple):
    """What one wave moved."""

    records: int = 0
    bytes: int = 0


class WavesDone(NamedTuple):
    """What all of them moved."""

    items: int
    records: int
    bytes: int
    seconds: float


def run_waves(
    job: str,
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], WaveDone],
    *,
    cores: int,
    wave_items: int | None = None,
    weigh: Callable[[Item], int] | None = None,
    report: ReportProgress | None = None,
) -> WavesDone:
    """Calls `work` with each wave of items in turn. Raises `Interrupted` behind the wave in which Ctrl-C came.

    A wave has about four items a core, or `wave_items` where an item is more than a task. `weigh` says how much work an
    item is, where that differs: it makes the forecast better.
    """
    size = wave_items or max(1, cores) * TASKS_PER_CORE
    waves = [items[start : start + size] for start in range(0, len(items), size)]
    weights = [sum(weigh(item) for item in wave) if weigh else len(wave) for wave in waves]
    started_s = monotonic()
    done = records = moved_bytes = 0
    with interrupts_held_back() as is_interrupted:
        for number, wave in enumerate(waves, 1):
            moved = work(wave)
            done += len(wave)
            records += moved.records
            moved_bytes += moved.bytes
            seconds = monotonic() - started_s
            if report is not None:
                left = sum(weights[number:]) / max(1, sum(weights[:number]))
                report(
                    Progress(
                        job=job,
                        wave=number,
                        waves=len(waves),
                        done=done,
                        total=len(items),
                        records=records,
                        bytes=moved_bytes,
                        per_s=round(records / max(seconds, 1e-6), 1),
                        eta_s=round(seconds * left, 1),
                    )
                )
            if is_interrupted() and number < len(waves):
                raise Interrupted(
                    f"stopped after wave {number} of {len(waves)} ({done} of {len(items)} done); "
                    "run the same command again to go on"
                )
    return WavesDone(done, records, moved_bytes, monotonic() - started_s)


@contextmanager
def interrupts_held_back() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is noted, the second one raises `KeyboardInterrupt`.

    Only the main thread hears signals: in another one Ctrl-C stays whatever it is there.
    """
    count = 0

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: count > 0
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code_of(error: TopicsError) -> int:
    """The exit code for a job that ended with this error, also with one whose class only its name is left of."""
    from topics.spark.loss import TopicsDataLoss

    kind = (error.detail or {}).get("kind", f"{type(error).__module__}.{type(error).__qualname__}")
    if kind == f"{TopicsDataLoss.__module__}.{TopicsDataLoss.__qualname__}":
        return EXIT_DATA_LOSS
    return EXIT_CONFLICT if isinstance(error, Conflict) else EXIT_FAILED
