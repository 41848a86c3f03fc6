"""`topics demo --spark` fails by itself when a visit is not counted exactly once."""

import re

import pytest
from typer.testing import CliRunner

from topics.cli.main import app
from topics.demos.pipeline import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_counts_every_visit_once_although_spark_is_killed(
    java: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(port=0) == 0
    shown = capsys.readouterr().out
    assert "64 counts of 16,000 visits: 0 missing, 0 duplicated" in shown
    assert re.search(r'\{"page":"/","visits":\d+\}', shown)
    assert "every visit was counted exactly once" in shown


def test_without_java_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert run() == 1
    assert capsys.readouterr().err.startswith("topics: /nowhere/bin/java cannot be started (No such file or directory)")


def test_options_of_the_shop_are_refused() -> None:
    done = CliRunner().invoke(app, ["demo", "--spark", "--seconds", "3"])
    assert done.exit_code == 1
    assert "--spark takes no option but --port: its server is temporary" in done.stderr
