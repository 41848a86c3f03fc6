"""What all jobs share: waves of work, progress, the report and its exit code.

rule 1  A job makes its list of work first, and cuts the list into waves. Each wave ends in a durable commit. A job that
        is killed repeats at most one wave. A job that is done does nothing when it is run again.
rule 2  After Ctrl-C the running wave ends and commits, then the job stops. A second Ctrl-C stops the job at once, which
        does no more harm than a kill.
rule 3  A job prints nothing. It calls `report` with its progress after each wave, and returns a `Report`.

Every job is a function `run(spark, options, *, report=None) -> Report`. Its options are declared in `job_options`.
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

# Enough that every core is busy although tasks take different times; few, because a killed wave is repeated.
TASKS_PER_CORE: Final = 4

Item = TypeVar("Item")


class Interrupted(TopicsError):
    """The job was stopped by Ctrl-C. Committed waves stay committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did. `detail` has what only this job reports; every value in it can be JSON."""

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
    """How far a job is after a wave. `done` and `total` count items; `eta_s` follows from their weights."""

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
    """Records and bytes of one wave."""

    records: int = 0
    bytes: int = 0


class WavesDone(NamedTuple):
    """Items, records and bytes of all waves."""

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
    """Calls `work` with each wave of items in turn. Raises `Interrupted` after the wave in which Ctrl-C was pressed.

    A wave has four items for each core, or `wave_items`. `weigh` says how much work an item is; the forecast needs it
    when items differ.
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

    Python gives signals to the main thread only. In another thread this does nothing.
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
    """The exit code for a job that ended with this error.

    Of an error that came through Spark only the name of its class is left, in `detail`.
    """
    from topics.spark.loss import TopicsDataLoss

    kind = (error.detail or {}).get("kind", f"{type(error).__module__}.{type(error).__qualname__}")
    if kind == f"{TopicsDataLoss.__module__}.{TopicsDataLoss.__qualname__}":
        return EXIT_DATA_LOSS
    return EXIT_CONFLICT if isinstance(error, Conflict) else EXIT_FAILED
