"""Small plots as SVG text: stacked columns, bars, points. Colours come from the page's style sheet, by class.

Every mark has a `<title>`, which a browser shows when the pointer rests on it. A plot is drawn in fixed units; the
browser scales it as a whole.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Final, NamedTuple

WIDTH: Final = 1000
_LEFT: Final = 62
_RIGHT: Final = 14
_TOP: Final = 12
_BOTTOM: Final = 34
# A smaller mark could not be seen.
_LEAST: Final = 1.2

Label = Callable[[float], str]


class Series(NamedTuple):
    """Values of one colour, one for each column."""

    name: str
    color: int
    values: Sequence[float]


class Point(NamedTuple):
    x: float
    y: float
    radius: float
    color: int
    text: str


class Tick(NamedTuple):
    at: float
    label: str


def nice_ticks(top: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least `top`, about so many steps."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / count
    power: float = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [step * n for n in range(ceil(top / step - 1e-9) + 1)]


def stacked_columns(
    series: Sequence[Series],
    x_ticks: Sequence[Tick],
    *,
    column_text: Callable[[int], str],
    y_label: Label,
    width: int = WIDTH,
    height: int = 260,
) -> str:
    """Columns side by side. A tick is the number of a column; 0 is the left edge of the first."""
    count = max((len(each.values) for each in series), default=0)
    totals = [sum(each.values[column] for each in series) for column in range(count)]
    ticks = nice_ticks(max(totals, default=0))
    plot = _Plot(width, height, count or 1, ticks[-1])
    marks = [plot.grid(ticks, y_label), plot.x_axis(x_ticks)]
    step = (plot.right - plot.left) / max(1, count)
    gap = min(2.0, step * 0.18)
    for column, total in enumerate(totals):
        if not total:
            continue
        base = 0.0
        pieces = []
        for each in series:
            value = each.values[column]
            if value:
                y, bottom = plot.y(base + value), plot.y(base)
                size = max(_LEAST, bottom - y)
                pieces.append(_rect(plot.x(column) + gap / 2, bottom - size, step - gap, size, each.color, 1))
                base += value
        marks.append(f"<g>{''.join(pieces)}<title>{escape(column_text(column))}</title></g>")
    return plot.svg(marks)


def bars(rows: Sequence[tuple[str, float, str]], *, color: int = 0, width: int = WIDTH // 2) -> str:
    """Lines of a name, a bar and a text. The longest bar has the full width."""
    row_height, name_width, text_width = 26, 150, 92
    top = max((value for _, value, _ in rows), default=0) or 1
    room = width - name_width - text_width - 12
    marks = []
    for number, (name, value, text) in enumerate(rows):
        y = number * row_height
        length = max(_LEAST, room * value / top)
        shown = name if len(name) <= 21 else f"{name[:19]}…"
        marks.append(
            f'<g><text x="{name_width}" y="{y + 17}" class="name end">{escape(shown)}</text>'
            f"{_rect(name_width + 10, y + 5, length, row_height - 10, color)}"
            f'<text x="{name_width + 16 + length:.1f}" y="{y + 17}" class="value">{escape(text)}</text>'
            f"<title>{escape(f'{name}: {text}')}</title></g>"
        )
    return _svg(width, max(1, len(rows)) * row_height, marks)


def share_bar(parts: Sequence[tuple[str, float, int]], *, width: int = WIDTH, height: int = 34) -> str:
    """One bar, cut into shares of (text, value, colour)."""
    whole = sum(value for _, value, _ in parts) or 1
    marks = []
    x = 0.0
    for text, value, color in parts:
        length = width * value / whole
        if value:
            marks.append(f"<g>{_rect(x, 0, max(_LEAST, length - 2), height, color)}<title>{escape(text)}</title></g>")
        x += length
    return _svg(width, height, marks)


def points(
    marks: Sequence[Point],
    x_ticks: Sequence[Tick],
    *,
    x_max: float,
    y_max: float,
    y_ticks: Sequence[float],
    y_label: Label,
    width: int = WIDTH // 2,
    height: int = 280,
) -> str:
    plot = _Plot(width, height, x_max, y_max)
    drawn = [plot.grid(y_ticks, y_label), plot.x_axis(x_ticks)]
    drawn += [
        f'<circle cx="{plot.x(point.x):.1f}" cy="{plot.y(point.y):.1f}" r="{point.radius:.1f}" '
        f'class="c{point.color} dot"><title>{escape(point.text)}</title></circle>'
        for point in marks
    ]
    return plot.svg(drawn)


class _Plot:
    """The frame of a plot: turns values into positions."""

    def __init__(self, width: int, height: int, x_max: float, y_max: float) -> None:
        self.left, self.right = _LEFT, width - _RIGHT
        self.top, self.bottom = _TOP, height - _BOTTOM
        self._width, self._height = width, height
        self._x_max, self._y_max = x_max or 1, y_max or 1

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self._x_max

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self._y_max

    def grid(self, ticks: Sequence[float], label: Label) -> str:
        lines = []
        for tick in ticks:
            y = self.y(tick)
            kind = "axis" if tick == 0 else "grid"
            lines.append(
                f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" class="{kind}"/>'
                f'<text x="{self.left - 8}" y="{y + 4:.1f}" class="tick end">{escape(label(tick))}</text>'
            )
        return "".join(lines)

    def x_axis(self, ticks: Sequence[Tick]) -> str:
        texts = []
        for tick in ticks:
            x = self.x(tick.at)
            texts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 5}" class="axis"/>'
                f'<text x="{x:.1f}" y="{self.bottom + 20}" class="tick middle">{escape(tick.label)}</text>'
            )
        return "".join(texts)

    def svg(self, marks: Sequence[str]) -> str:
        return _svg(self._width, self._height, marks)


def _rect(x: float, y: float, width: float, height: float, color: int, round_by: float = 2.5) -> str:
    round_by = min(round_by, width / 3)
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} rx="{round_by:.1f}" class="c{color}"/>'


def _svg(width: int, height: int, marks: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(marks)}</svg>'
