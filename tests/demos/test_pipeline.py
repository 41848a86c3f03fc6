"""What `make demo` shows is true: it fails by itself when a count is not right."""

import re

import pytest

from topics.demos.pipeline import main


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_counts_every_visit_once_although_spark_is_killed(
    java: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 0
    shown = capsys.readouterr().out
    assert "64 counts of 16000 visits are in the topic" in shown
    assert re.search(r'\{"page":"/","visits":\d+\}', shown)
    assert "all counts are right" in shown


def test_without_java_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main() == 1
    assert capsys.readouterr().err.startswith("demo: /nowhere/bin/java cannot be started (No such file or directory)")
