"""`docs/spark-tutorial.md` and other pages with Spark: what they say is done, and shows what they show."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from docs_build.recording import free_port
from tests.conftest import REPOSITORY
from tests.docs.page_runner import PageRunner
from tests.spark.queries import run_to_end
from topics.client.sync.client import Client
from topics.spark.jobs.job_options import JOBS
from topics.spark.options import OPTIONS
from topics.spark.writing.options import WRITE_OPTIONS
from topics.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REFERENCE: Final = (REPOSITORY / "docs" / "spark.md").read_text("utf-8")
PAGE: Final = (REPOSITORY / "docs" / "spark-tutorial.md").read_text("utf-8")
ANALYTICS: Final = (REPOSITORY / "docs" / "tutorials" / "analytics.md").read_text("utf-8")
ADDRESS: Final = "http://localhost:4000"
# The fixtures do it here.
DONE_ELSEWHERE: Final = ("pip install", "topics serve")
PATIENCE_S: Final = 240


class Step(NamedTuple):
    command: str
    shown: str


def steps(page: str) -> Iterator[Step]:
    """The commands in their order. A command goes on after a backslash, or while a quote is open."""
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = text.splitlines()
            count = 1
            while lines[count - 1].endswith("\\") or "\n".join(lines[:count]).count("'") % 2:
                count += 1
            yield Step("\n".join(lines[:count]), "\n".join(lines[count:]).strip())


class Shell:
    """The reader's terminal: variables stay, jobs in the background go on."""

    def __init__(self, folder: Path, jobs: ExitStack) -> None:
        self._folder = folder
        self._jobs = jobs
        self._background: list[subprocess.Popen[str]] = []
        self._variables: list[str] = []
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def do(self, step: Step) -> None:
        if re.match(r"(export )?[A-Z_]+=", step.command):
            self._variables.append(step.command)
        elif step.command == "kill %2":
            self._jobs.close()
        elif step.command.endswith("&"):
            self._background.append(self._jobs.enter_context(self._started(step.command.removesuffix("&"))))
        elif "curl -sN" in step.command:
            self._watch(step)
        else:
            self._expect(step)

    @contextmanager
    def _started(self, command: str) -> "Iterator[subprocess.Popen[str]]":
        with subprocess.Popen(
            ["bash", "-c", "\n".join([*self._variables, command])],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _expect(self, step: Step) -> None:
        with self._started(step.command) as process:
            output, errors = process.communicate(timeout=PATIENCE_S)
        pattern = ".*?".join(map(re.escape, step.shown.split("…")))
        assert re.fullmatch(pattern, output.strip(), re.DOTALL), f"$ {step.command}\n{output}\n{errors}"

    def _watch(self, step: Step) -> None:
        """Until all counts of the page have come, in whatever order and however many at a time."""
        expected = counts(step.shown)
        assert expected
        found: list[Any] = []
        with self._started(step.command) as process:
            assert process.stdout is not None
            is_seen = Event()
            Thread(target=self._end_without_hope, args=(process, is_seen), daemon=True).start()
            for line in process.stdout:
                found += counts(line)
                if len(found) >= len(expected):
                    break
            is_seen.set()
        assert sorted(found, key=repr) == sorted(expected, key=repr), self._spark_log()

    def _end_without_hope(self, watching: "subprocess.Popen[str]", is_seen: Event) -> None:
        """Ends the watch when the process that writes the records has ended, or after a timeout."""
        deadline_s = monotonic() + PATIENCE_S
        while not is_seen.wait(1):
            if monotonic() > deadline_s or any(job.poll() is not None for job in self._background):
                watching.kill()
                return

    def _spark_log(self) -> str:
        log = self._folder / "spark.log"
        return log.read_text("utf-8")[-4000:] if log.exists() else "Spark was not started"


def counts(text: str) -> list[Any]:
    """The data of records in an event stream."""
    lines = re.findall(r'^data: (\{"topic".*"records":.*\})$', text, re.MULTILINE)
    return [record["data"] for line in lines for record in json.loads(line)["records"]]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.timeout(4 * PATIENCE_S)
def test_the_tutorial_shows_what_happens(java: None, tmp_path: Path) -> None:
    program = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(program) == 1
    tmp_path.joinpath("visits_per_minute.py").write_text(program[0], "utf-8")
    taken = 0
    with ServerProcess(tmp_path / "data") as server, ExitStack() as jobs:
        shell = Shell(tmp_path, jobs)
        for step in steps(PAGE.replace(ADDRESS, server.url)):
            if not step.command.startswith(DONE_ELSEWHERE):
                shell.do(step)
                taken += 1
    assert taken == PAGE.count("\n$ ") - len(DONE_ELSEWHERE)


def test_the_programs_about_analytics_run(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", ANALYTICS, re.MULTILINE | re.DOTALL)
    programs = [block for block in blocks if "topics.spark" in block]
    names: dict[str, Any] = {}
    with ServerProcess() as server, Client(server.url) as client:
        client.append_encoded("orders", b'[{"data":1,"tag":"eu"},{"data":2,"tag":"eu"},{"data":3}]')

        def run() -> "StreamingQuery":
            for program in programs:
                # A relative path would be relative to where the JVM was started.
                text = program.replace(ADDRESS, server.url).replace("./checkpoint", f"{tmp_path}/checkpoint")
                exec(compile(text, "analytics.md", "exec"), names)
            query: StreamingQuery = names["query"]
            query.processAllAvailable()
            query.stop()
            return query

        run_to_end(run)
        assert [bytes(record.data) for record in client.read("copies", 0, limit=1000).records] == [b"1", b"2", b"3"]
    assert len(programs) == 2
    assert re.search(r"\|\s*eu\s*\|\s*2\s*\|", capsys.readouterr().out)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", pytest.param("docs/tutorials/change-feed.md", marks=pytest.mark.slow)]
)
def test_the_page_with_examples_on_spark_prints_what_it_says(
    page: str, java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path / "data", port=free_port()) as server, ExitStack() as jobs:
        runner = PageRunner(tmp_path, server, jobs, with_spark=True)
        for name, value in runner.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        runner.run((REPOSITORY / page).read_text("utf-8"))
    assert runner.wrong == []


def test_the_reference_names_every_option_and_every_job() -> None:
    options = {*OPTIONS, *WRITE_OPTIONS}
    jobs = {job.name for job in JOBS}
    assert len(jobs) > 10
    assert [name for name in sorted(options) if f"`{name}`" not in REFERENCE] == []
    assert [name for name in sorted(jobs) if re.search(rf"^\| .*`{name}[ `]", REFERENCE, re.MULTILINE) is None] == []
