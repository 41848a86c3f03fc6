"""The benchmarks run, at a toy size: so they cannot rot."""

import pytest

from topics.bench.main import BENCHMARKS, Row, run_benchmarks


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "spark"])
def test_a_benchmark_runs_and_prints_its_rows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_benchmarks([name], scale=0.001)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["benchmark", "measured", "unit", "target", "redis"]
    assert len(lines) > 2


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmarks(["speed"]) == 1
    assert (
        capsys.readouterr().err == "no benchmark is called 'speed': "
        "choose among append, read, fsync, open, serve, live, routers, stalls, idle, streams, spark\n"
    )


def test_a_row_knows_whether_its_target_is_met() -> None:
    assert Row("x", 5, "s", floor=4).is_met is True
    assert Row("x", 5, "s", ceiling=4).is_met is False
    assert Row("x", 5, "s").is_met is None
