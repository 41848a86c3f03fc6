"""One Spark session for all tests of a process: starting a JVM takes longer than most of them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import REPOSITORY
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# With the start of the JVM and the first query, on a machine that has other things to do. A test that is interrupted in
# the middle of a call leaves an answer in the connection to the JVM, and all later tests fail.
JVM_TEST_S_MAX: Final = 600


# For every JVM that a test starts, in whatever process. They live for seconds: code that the second compiler makes and
# threads of a parallel collector cost more than they bring.
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = JVM_OPTIONS


@pytest.hookimpl(trylast=True)  # After pytest-randomly has shuffled the tests.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with Spark come first. pytest-xdist then gives them to one worker, which needs one JVM for all of them.
    The longest tests are among them, so that no worker waits for one at the end."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(JVM_TEST_S_MAX))
    with_java = {item.path for item in items if "java" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in with_java)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Two cores of this machine. Formats are found the way users' sessions find them."""
    import topics.spark

    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    # Workers find the sources that tests define.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    session = topics.spark.session(
        "tests",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Looked through for secrets.
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            # Tests fail tasks on purpose, and look at the first error.
            "spark.task.maxFailures": "1",
            # Tests look at the progress of batches: a query that is held up for ten seconds would tell of none.
            "spark.sql.streaming.noDataProgressEventInterval": "1h",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose segments are small, so that a few hundred records fill several."""
    with ServerProcess(tmp_path / "data", segment_max_events=200) as running:
        yield running
