"""Shared by all tests: hypothesis profiles, `FULL` and `SEED`, the golden files, the check that the tested package is
current."""

import importlib.util
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.retries"]

REPOSITORY: Final = Path(__file__).resolve().parents[1]

# Set by `make test-full`: sweeps then visit every point instead of a sample. For use at import time, as in
# `pytest.mark.parametrize`: `from tests.conftest import FULL`; inside a test take the fixture `full`.
FULL: Final = os.environ.get("TOPICS_TEST_FULL") == "1"

# Decides which points a sampled sweep visits, and what a random history does. `make SEED=… test` sets it, and so does
# CI, to a number that changes with the commit. Test processes inherit it.
SEED: Final = int(os.environ.setdefault("TOPICS_TEST_SEED", str(random.SystemRandom().getrandbits(32))))


def sampled_range(end: int, step: int) -> range:
    """All of `range(end)`; outside `make test-full` only every `step`-th, from a place that the seed decides."""
    return range(end) if FULL else range(SEED % step, end, step)


def load_hypothesis_profile() -> None:
    # Deadlines and "too slow" depend on the load of the machine, and pytest-timeout limits each test anyway.
    settings.register_profile(
        "default",
        deadline=None,
        max_examples=100,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("ci", settings.get_profile("default"), database=None, max_examples=50)
    settings.register_profile("full", settings.get_profile("default"), max_examples=1000)
    if FULL:
        settings.load_profile("full")
    elif os.environ.get("CI") == "true":
        settings.load_profile("ci")
    else:
        settings.load_profile("default")


load_hypothesis_profile()

# Tests start processes in other folders, where `PYTHONPATH=build/compiled` would lead nowhere.
if python_path := os.environ.get("PYTHONPATH"):
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in python_path.split(os.pathsep))

# A shell that starts pytest in the background makes it ignore Ctrl+C, and each process of a test would do the same.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_captured_logs_plain() -> None:
    """pytest adds its own handler to loggers that do not propagate, as PySpark's are after an error of SQL. PySpark's
    loggers give each of their handlers a JSON format, and `caplog.text` would be JSON in all later tests."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        if isinstance(logger := logging.root.manager.loggerDict.get(name), logging.Logger):
            logger.propagate = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        keep_captured_logs_plain()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        keep_captured_logs_plain()


def pytest_report_header() -> str:
    return f"seed {SEED}: `make SEED={SEED} test` repeats the order, the random examples and the sampled points"


def pytest_configure(config: pytest.Config) -> None:
    """Ends a run that would test an older state of the sources. Workers rely on the check of the process that started
    them."""
    if hasattr(config, "workerinput"):
        return
    spec = importlib.util.find_spec("topics")
    if spec is None or spec.origin is None:
        raise pytest.UsageError("the package topics is not installed: run the tests with `make test`")
    tested = Path(spec.origin).parent
    if difference := difference_between(REPOSITORY / "src" / "topics", tested):
        raise pytest.UsageError(
            f"the tests would run {tested}, which is older than the sources: {difference} differs. Run `make "
            "compiled`, or leave PYTHONPATH out to test the sources."
        )


def difference_between(sources: Path, tested: Path) -> str | None:
    """The first module whose source is not the same in both folders."""
    if tested == sources:
        return None
    names = {path.relative_to(folder) for folder in (sources, tested) for path in folder.rglob("*.py")}
    for name in sorted(names):
        texts = [(folder / name).read_bytes() if (folder / name).is_file() else b"" for folder in (sources, tested)]
        if texts[0] != texts[1]:
            return str(name)
    return None


@pytest.fixture(scope="session")
def full() -> bool:
    """True when sweeps are to visit every point (`make test-full`)."""
    return FULL


@pytest.fixture(scope="session")
def java() -> None:
    """For tests that start Spark, in this process or another. They are skipped where Spark cannot start."""
    from topics.spark.session import SparkUnavailable, require_java, require_packages

    try:
        require_packages()
        require_java()
    except SparkUnavailable as error:
        pytest.skip(f"nothing runs on Spark here: {error.message}")


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """Golden files that other programs wrote. Read only: a test that writes works on a copy."""
    path = REPOSITORY.parent / "shared" / "fixtures"
    if not path.is_dir():
        pytest.skip(
            "the golden files of other programs are missing: no folder ../shared/fixtures beside the repository"
        )
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the counts of the sweeps of `tests/crash`, which are properties of the test reports, also from workers."""
    points: Counter[str] = Counter()
    recoveries: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == "sweep" and report.when == "call":
                sweep, point_count, recovery_count = value
                points[sweep] += point_count
                recoveries[sweep] += recovery_count
    for sweep in points:
        terminalreporter.write_line(f"{sweep}: {points[sweep]} points, {recoveries[sweep]} recoveries, all held")
