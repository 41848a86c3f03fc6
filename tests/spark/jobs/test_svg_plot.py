"""Plots as text: round ticks, and marks where they belong."""

import re

from topics.spark.jobs.svg_plot import Series, Tick, bars, nice_ticks, share_bar, stacked_columns


def test_ticks_are_round_and_reach_over_the_highest_value() -> None:
    assert nice_ticks(0) == [0, 1]
    assert nice_ticks(100) == [0, 25, 50, 75, 100]
    assert nice_ticks(7) == [0, 2, 4, 6, 8]
    assert nice_ticks(0.9)[-1] >= 0.9


def test_columns_of_several_series_stand_on_each_other() -> None:
    plot = stacked_columns(
        [Series("a", 0, [10, 0]), Series("b", 1, [30, 5])],
        [Tick(0, "first")],
        column_text=lambda column: f"column <{column}>",
        y_label=str,
    )
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([0-9.]+)"', plot)]
    assert len(heights) == 3
    assert abs(heights[1] / heights[0] - 3) < 0.05
    tops = [float(y) for y in re.findall(r'<rect [^>]*? y="([0-9.]+)"', plot)]
    assert abs(tops[1] + heights[1] - tops[0]) < 0.2
    assert "column &lt;0&gt;" in plot


def test_bars_are_as_long_as_their_values_and_names_are_escaped() -> None:
    plot = bars([("<a>", 10, "ten"), ("b" * 40, 5, "five")])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', plot)]
    assert abs(widths[0] - 2 * widths[1]) < 0.2
    assert "&lt;a&gt;" in plot
    assert f"{'b' * 19}…" in plot


def test_nothing_is_drawn_for_a_part_of_nothing() -> None:
    assert share_bar([("none", 0, 0), ("all", 3, 1)]).count("<rect") == 1
