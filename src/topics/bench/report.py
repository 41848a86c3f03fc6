"""The rows of a run: printed as a table or as Markdown, saved as JSON, compared with an earlier run."""

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from topics.bench.processes import CpuEach
from topics.version import VERSION


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `floor` or `ceiling` is the target, in the unit of `value`.

    `value` is None if the figure could not be measured; then `note` says why. `peer` is the value that Redis, or the
    bare server of streams, reached in the same run. `cpu` is what each request, record or delivery cost the server,
    `cpu_bare_us` what it cost the bare server of the same run, `cpu_ceiling_us` the target. `client_share` is the CPU
    of the client, 1 for a whole core.
    """

    what: str
    value: float | None
    unit: str
    floor: float | None = None
    ceiling: float | None = None
    note: str = ""
    peer: float | None = None
    cpu: CpuEach | None = None
    cpu_bare_us: float | None = None
    cpu_ceiling_us: float | None = None
    client_share: float | None = None
    is_failed: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether every target of the row is met; None without a target."""
        checks: list[bool] = []
        if self.value is not None and self.floor is not None:
            checks.append(self.value >= self.floor)
        if self.value is not None and self.ceiling is not None:
            checks.append(self.value <= self.ceiling)
        if self.cpu is not None and self.cpu_ceiling_us is not None:
            checks.append(self.cpu.total_us <= self.cpu_ceiling_us)
        return all(checks) if checks else None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return self.note
        mark = {True: "met", False: "MISSED", None: ""}[self.is_met]
        return "; ".join(part for part in (mark, self.note) if part)


def not_measured(what: str, why: str) -> Row:
    return Row(what, None, "", note=f"not measured: {why}")


def failed(what: str, why: str) -> Row:
    return Row(what, None, "", note=f"failed: {why}", is_failed=True)


def medians(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """One row for each figure that was measured in several rounds. A figure that failed once has failed."""
    return [_median(same) for same in zip(*rounds, strict=True)] if _are_alike(rounds) else _failed_round(rounds)


def _are_alike(rounds: Sequence[Sequence[Row]]) -> bool:
    return len({tuple(row.what for row in rows) for rows in rounds}) == 1


def _failed_round(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    return list(next(rows for rows in rounds if any(row.is_failed for row in rows)))


def _median(same: tuple[Row, ...]) -> Row:
    values = [row.value for row in same if row.value is not None]
    if len(values) < len(same):
        return next(row for row in same if row.value is None)
    return replace(
        same[0],
        value=median(values),
        peer=_median_of(row.peer for row in same),
        cpu=_median_cpu([row.cpu for row in same if row.cpu is not None]),
        cpu_bare_us=_median_of(row.cpu_bare_us for row in same),
        client_share=_median_of(row.client_share for row in same),
    )


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _median_cpu(costs: list[CpuEach]) -> CpuEach | None:
    return sorted(costs, key=lambda cpu: cpu.total_us)[len(costs) // 2] if costs else None


@dataclass(frozen=True, slots=True)
class Report:
    """`version` and `form` are of what was measured; `form` is empty if that is not known. `server` is the address of a
    running server. `machine` is where the load came from."""

    machine: str
    version: str
    rows: tuple[Row, ...]
    form: str = ""
    server: str = ""

    @property
    def heading(self) -> str:
        what = f"topics {self.version}" + (f" ({self.form})" if self.form else "")
        return f"{what}, {self.server} from {self.machine}" if self.server else f"{what}, {self.machine}"

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def this_machine() -> str:
    return f"{platform.machine()}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def make_report(rows: Iterable[Row], form: str = "") -> Report:
    return Report(this_machine(), VERSION, tuple(rows), form)


class UnreadableReport(Exception):
    """A file that is no saved report. The message names it."""


def load(path: str) -> Report:
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = tuple(_row(fields) for fields in saved["rows"])
        # Reports of older versions do not tell the form.
        return Report(saved["machine"], saved["version"], rows, saved.get("form", ""), saved.get("server", ""))
    except OSError as error:
        raise UnreadableReport(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableReport(f"{path} is not a report that `topics bench --save` has saved") from error


def _row(fields: dict[str, Any]) -> Row:
    cpu = fields.pop("cpu")
    return Row(**fields, cpu=None if cpu is None else CpuEach(**cpu))


# Printing.

_HEAD = (
    "benchmark",
    "measured",
    "unit",
    "target",
    "peer",
    "ratio",
    "cpu us",
    "user",
    "sys",
    "bare",
    "target",
    "client",
)
_WIDTHS = (58, 9, -13, 8, 8, 6, 7, 7, 7, 6, 6, 6)


def _cells(row: Row) -> tuple[str, ...]:
    cpu = row.cpu
    return (
        row.what,
        _number(row.value),
        row.unit,
        _target(row.floor, row.ceiling),
        _number(row.peer),
        _ratio(row.value, row.peer),
        _number(None if cpu is None else cpu.total_us),
        _number(None if cpu is None else cpu.user_us),
        _number(None if cpu is None else cpu.system_us),
        _number(row.cpu_bare_us),
        _target(None, row.cpu_ceiling_us),
        "" if row.client_share is None else f"{row.client_share:.0%}",
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(floor: float | None, ceiling: float | None) -> str:
    if floor is not None:
        return f">={_short(floor)}"
    return f"<={_short(ceiling)}" if ceiling is not None else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value == round(value) else f"{value:.3g}"


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else ""


def head_line() -> str:
    return _aligned((*_HEAD, ""), _WIDTHS)


def line(row: Row) -> str:
    return _aligned((*_cells(row), row.verdict), _WIDTHS)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The first column and columns with a negative width are left-aligned. The last cell has no width."""
    *columns, last = cells
    parts = [
        cell.ljust(abs(width)) if place == 0 or width < 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return f"{' '.join(parts)}  {last}".rstrip()


def markdown(report: Report) -> str:
    """The table of a report, for docs."""
    return _markdown_table((*_HEAD, ""), [(*_cells(row), row.verdict) for row in report.rows])


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 2) + ["---"], *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


# Two runs side by side.

_COMPARED_HEAD = ("benchmark", "unit", "before", "after", "ratio", "cpu before", "cpu after", "ratio")
_COMPARED_WIDTHS = (58, -13, 10, 10, 6, 10, 10)


def _compared_cells(before: Report, after: Report) -> list[tuple[str, ...]]:
    known = {row.what: row for row in before.rows}
    found: list[tuple[str, ...]] = []
    for row in after.rows:
        old = known.get(row.what)
        if old is None:
            continue
        cpu_before = old.cpu.total_us if old.cpu is not None else None
        cpu_after = row.cpu.total_us if row.cpu is not None else None
        found.append(
            (
                row.what,
                row.unit or old.unit,
                _number(old.value) or "failed",
                _number(row.value) or "failed",
                _ratio(row.value, old.value),
                _number(cpu_before),
                _number(cpu_after),
                _ratio(cpu_after, cpu_before),
            )
        )
    return found


def comparison(before: Report, after: Report) -> str:
    """One line for each figure that both reports have. A ratio is after divided by before."""
    rows = [_COMPARED_HEAD, *_compared_cells(before, after)]
    heading = f"# before: {before.heading}\n# after:  {after.heading}\n"
    return heading + "".join(_aligned(cells, _COMPARED_WIDTHS) + "\n" for cells in rows)


def comparison_markdown(before: Report, after: Report) -> str:
    return _markdown_table(_COMPARED_HEAD, _compared_cells(before, after))
