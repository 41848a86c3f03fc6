"""A pytest plugin: in CI, a failed test with real processes, a browser or a JVM runs a second time.

A machine that stalls for seconds can fail such a test. The summary shows every first failure. No other test is retried.
pytest-rerunfailures would do it too, but it asks another process about every test, which takes 40 ms each time.
"""

import os
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

RETRIED_FOLDERS: Final = frozenset({"bench", "browser", "cli", "demos", "docs", "process", "spark"})


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
    if os.environ.get("CI") != "true" or folder not in RETRIED_FOLDERS:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if failures := [report for report in reports if report.failed]:
        for report in failures:
            report.outcome = "retried"  # type: ignore[assignment]
            item.ihook.pytest_runtest_logreport(report=report)
        close_fixtures(item.session)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def close_fixtures(session: pytest.Session) -> None:
    """Closes all fixtures, those of the module and of the session too, so that the second run sets them up again: the
    Spark session or the server may be broken, and pytest keeps the error of a fixture that failed. An error while
    closing belongs to the first failure."""
    pytest.CallInfo.from_call(lambda: session._setupstate.teardown_exact(None), when="teardown")


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    return ("retried", "R", "RETRIED") if report.outcome == "retried" else None  # type: ignore[comparison-overlap]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("retried"):
        terminalreporter.section(f"first failure of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
