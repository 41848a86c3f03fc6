"""What a pipeline command prints: one line for an error, JSON that is JSON, nothing of the JVM."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import topics
from tests.server.running import running
from topics.cli.pipeline import frame
from topics.cli.pipeline.reporting import leave_failure, leave_report
from topics.errors import TopicNotFound
from topics.server.settings_schema import KeyList
from topics.spark.jobs.job import Report
from topics.spark.jobs.job_options import SqlOptions
from topics.spark.jobs.spread import task_failure


def raising(error: BaseException) -> int:
    raise error


def test_an_error_is_one_line_and_with_debug_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.exit_code_of(lambda: raising(TopicNotFound("orders"))) == 1
    assert capsys.readouterr().err == 'topics: topic "orders" does not exist\n'
    with pytest.raises(TopicNotFound):
        frame.exit_code_of(lambda: raising(TopicNotFound("orders")), debug=True)


def test_after_an_interrupt_another_one_is_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        assert frame.exit_code_of(lambda: raising(KeyboardInterrupt())) == 1
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "topics: stopped at once; run the same command again to go on\n"


def test_an_interrupt_while_the_session_ends_ends_the_process_with_one_line() -> None:
    """The session is asked to end, and the second Ctrl-C of an impatient user comes in the middle of it."""
    script = (
        "import os, signal\n"
        "from topics.cli.pipeline.frame import _stop\n"
        "class Session:\n"
        "    def stop(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        signal.pause()\n"
        "_stop(Session())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{frame.STOPPED_AT_ONCE}\n")


def test_spark_does_not_log_an_error_that_it_raises() -> None:
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger("SQLQueryContextLogger"), logging.getLogger("py4j.clientserver")]
    changed = [loggers[0], logging.getLogger("py4j")]
    before = [logger.level for logger in changed]
    try:
        frame._silence_stacks()
        assert not any(logger.isEnabledFor(logging.CRITICAL) for logger in loggers)
    finally:
        for logger, level in zip(changed, before, strict=True):
            logger.setLevel(level)
        logging.getLogger().removeFilter(frame._is_no_interrupt)


@pytest.mark.parametrize("what", ["KeyboardInterrupt", "Exception"])
def test_the_stack_of_an_interrupt_is_not_logged(what: str) -> None:
    record = logging.LogRecord("root", logging.ERROR, "x", 1, f"{what} while sending command.", (), None)
    assert not frame._is_no_interrupt(record)
    record.msg = "something else"
    assert frame._is_no_interrupt(record)


def test_rows_of_a_query_are_objects_of_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(job="sql", records=1, detail={"columns": ["n"], "rows": ['{"n":1}']})
    frame.print_report(report, as_json=True)
    assert json.loads(capsys.readouterr().out)["detail"]["rows"] == [{"n": 1}]


@pytest.mark.parametrize("is_failing", [False, True])
def test_what_the_jvm_logs_is_shown_only_when_the_start_fails(is_failing: bool) -> None:
    script = (
        "import subprocess, sys\n"
        "from topics.cli.pipeline.frame import _jvm_silenced\n"
        "with _jvm_silenced():\n"
        "    subprocess.run([sys.executable, '-c', 'import sys; sys.stderr.write(\"noise\")'])\n"
        f"    assert not {is_failing}\n"
        "sys.stderr.write('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("noise" if is_failing else "after")


def test_an_error_of_java_is_its_cause_without_the_name_of_the_call() -> None:
    text = (
        "An error occurred while calling o35.load.\n"
        ": org.apache.spark.SparkException: Job aborted.\n"
        "\tat org.apache.spark.X.y(X.scala:1)\n"
        "Caused by: java.io.FileNotFoundException: /data/orders.csv is not there\n"
    )
    assert task_failure(RuntimeError(text)).message == "/data/orders.csv is not there"
    assert task_failure(RuntimeError("An error occurred while calling o35.load.")).message.endswith("o35.load.")
    assert task_failure(RuntimeError("[PATH_NOT_FOUND] Path does not exist")).message.startswith("[PATH_NOT_FOUND]")


def test_every_command_has_debug() -> None:
    from topics.cli.main import app

    assert "--debug" in CliRunner().invoke(app, ["pipeline", "sql", "--help"]).stdout


def test_a_job_leaves_its_report_or_its_error_in_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPORT_KEY", "top-secret")
    with running(tmp_path, api_keys=KeyList("top-secret")) as server:
        url = f"http://{server.host}:{server.port}"
        common = frame.CommonOptions(endpoint=url, token_env="REPORT_KEY", report_to="pipeline.reports")
        options = SqlOptions(query="SELECT 1", endpoint=url, token_env="REPORT_KEY")
        report = Report(job="sql", records=1, findings=({"problem": "x"},) * 30, detail={"rows": ["{}"], "columns": []})
        leave_report(common, options, report)
        leave_failure(common, options, "sql", TopicNotFound("orders"))
        with topics.Client(url, token="top-secret") as client:
            done, failed = client.read("pipeline.reports").records
    assert (done.tag, failed.tag) == ("sql", "sql")
    found = json.loads(done.data)
    assert (found["records"], found["findings_total"], len(found["findings"])) == (1, 30, 20)
    assert (found["detail"], found["options"]) == ({"columns": []}, {"query": "SELECT 1"})
    assert json.loads(failed.data)["error"] == 'topic "orders" does not exist'
    assert b"secret" not in done.data
    assert capsys.readouterr().err == ""


def test_a_report_that_cannot_be_left_is_told_and_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    common = frame.CommonOptions(report_to="pipeline.reports", token_file="/nowhere/key", endpoint="http://127.0.0.1:1")
    leave_report(common, SqlOptions(query="SELECT 1"), Report(job="sql"))
    assert capsys.readouterr().err.startswith("topics: the report is not in the topic pipeline.reports: ")
