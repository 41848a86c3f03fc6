"""Rows and saved reports."""

import json
from pathlib import Path

import pytest

from topics.bench import report
from topics.bench.processes import CpuEach
from topics.bench.report import Row, UnreadableReport, failed
from topics.version import VERSION


def test_a_row_knows_whether_its_targets_are_met() -> None:
    assert Row("x", 5, "s", floor=4).is_met is True
    assert Row("x", 5, "s", ceiling=4).is_met is False
    assert Row("x", 5, "s").is_met is None
    assert Row("x", 5, "s", ceiling=9, cpu=CpuEach(20, 10), cpu_ceiling_us=30).is_met is True
    assert Row("x", 5, "s", ceiling=9, cpu=CpuEach(21, 10), cpu_ceiling_us=30).is_met is False


def test_a_saved_report_is_read_again(tmp_path: Path) -> None:
    rows = [
        Row("x", 5.5, "ms", ceiling=6, peer=3, cpu=CpuEach(20, 10), cpu_bare_us=7, client_share=0.5),
        failed("y", "the server ended with status -9"),
    ]
    saved = report.make_report(rows)
    saved.save(str(tmp_path / "report"))
    assert report.load(str(tmp_path / "report")) == saved


def test_a_report_of_an_older_version_has_no_form(tmp_path: Path) -> None:
    report.make_report([Row("x", 1, "ms")], "compiled").save(str(tmp_path / "report"))
    assert report.load(str(tmp_path / "report")).heading.startswith(f"topics {VERSION} (compiled), ")
    saved = json.loads((tmp_path / "report").read_text())
    del saved["form"], saved["server"]
    (tmp_path / "report").write_text(json.dumps(saved))
    assert report.load(str(tmp_path / "report")) == report.make_report([Row("x", 1, "ms")])


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableReport, match=r"cannot read .*/report: No such file or directory"):
        report.load(str(tmp_path / "report"))


def test_two_reports_are_compared_by_the_names_of_their_rows() -> None:
    before = report.make_report([Row("x", 4, "ms", cpu=CpuEach(30, 10)), Row("only before", 1, "s")])
    after = report.make_report([Row("only after", 1, "s"), Row("x", 5, "ms", cpu=CpuEach(8, 2))])
    (first, second, _, line) = report.comparison(before, after).splitlines()
    assert (first, second) == (f"# before: {before.heading}", f"# after:  {after.heading}")
    assert line.split() == ["x", "ms", "4.00", "5.00", "1.25", "40.0", "10.0", "0.25"]
    assert report.comparison_markdown(before, after).splitlines()[2:] == [
        "| x | ms | 4.00 | 5.00 | 1.25 | 40.0 | 10.0 | 0.25 |"
    ]


def test_a_row_that_failed_in_one_of_two_runs_is_shown() -> None:
    before = report.make_report([Row("x", 4, "ms")])
    after = report.make_report([failed("x", "why")])
    assert report.comparison(before, after).splitlines()[3].split() == ["x", "ms", "4.00", "failed"]


def test_medians_of_rounds_and_a_failed_round() -> None:
    rounds = [[Row("x", value, "ms", cpu=CpuEach(value, 0))] for value in (3, 9, 4)]
    assert report.medians(rounds) == [Row("x", 4, "ms", cpu=CpuEach(4, 0))]
    gone = [failed("name of the benchmark", "why")]
    assert report.medians([*rounds, gone]) == gone


def test_the_table_as_markdown() -> None:
    text = report.markdown(report.make_report([Row("x", 5, "ms", ceiling=4, cpu=CpuEach(20, 10))]))
    head, rule, row = text.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row == "| x | 5.00 | ms | <=4 |  |  | 30.0 | 20.0 | 10.0 |  |  |  | MISSED |"
