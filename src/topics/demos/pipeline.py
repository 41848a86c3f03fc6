"""`topics demo --spark`: a pipeline in a minute, in a temporary folder.

Page visits are written to a topic over HTTP. Spark counts them by minute and page, and writes the counts to another
topic. It is killed in the middle of a batch and resumes from its checkpoint. The counts are printed as they arrive. The
visits are archived to a lake (a Delta table) and queried with SQL. The demo fails unless every visit was counted
exactly once.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, Queue
from textwrap import indent
from threading import Thread
from time import monotonic
from typing import Any, Final

from topics.bench.processes import ProcessFailed, running_server
from topics.client.sync.client import Client
from topics.demos.terminal import choose_port, tell_command, tell_detail, tell_step
from topics.errors import TopicsError
from topics.formats.records import Record
from topics.interpreter import module_command
from topics.results import Tombstone

PAGES: Final = ("/", "/docs", "/prices", "/signup")
MINUTES: Final = 16
VISITS_PER_MINUTE: Final = 1000
FIRST_MINUTE: Final = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)

VISITS: Final = "visits"
COUNTS: Final = "visits-per-minute"
# Each half of the visits is several batches, so the kill comes in the middle.
VISITS_PER_BATCH: Final = 3000
WAIT_S: Final = 300.0

QUERY: Final = (
    "SELECT get_json_object(data, '$.page') AS page, count(*) AS visits FROM visits GROUP BY page ORDER BY visits DESC"
)

# The JSON of a record with a count, and all counts by minute and page.
Row = dict[str, Any]
Counts = Counter[tuple[str, str]]


class DemoFailed(Exception):
    """A check of the demo failed; the text says which."""


def run(port: int | None = None) -> int:
    """Returns the exit code: 0, or 1 if Spark cannot run here or a visit was not counted exactly once."""
    from topics.spark.session import SparkUnavailable, require_java, require_packages

    began_s = monotonic()
    try:
        require_packages()
        require_java()
        with (
            tempfile.TemporaryDirectory(prefix="topics-demo-") as folder,
            running_server(folder, flags=["--port", str(choose_port(port))]) as server,
        ):
            _Demo(folder, f"http://127.0.0.1:{server.port}").run()
    except (DemoFailed, ProcessFailed, SparkUnavailable) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    tell_step(f"every visit was counted exactly once; the demo took {monotonic() - began_s:.0f} s and removed its data")
    return 0


class _Demo:
    def __init__(self, folder: str, url: str) -> None:
        self._folder = folder
        self._url = url
        self._client = Client(url)
        self._sent: Counts = Counter()
        self._seen: Counts = Counter()

    def run(self) -> None:
        tell_step(f"the console: {self._url}/")
        self._client.create(COUNTS)
        half = MINUTES // 2
        self._send(0, half)
        arriving = self._follow_counts()
        tell_step("Spark starts, counts the visits by minute and page, and writes the counts to a topic:")
        tell_command(f"topics tail {COUNTS}", self._url)
        with self._spark() as counting:
            self._show(arriving, until=lambda: len(self._complete_minutes()) >= 2, counting=counting)
            tell_step("kill -9 for Spark and all of its processes, in the middle of a batch")
        self._send(half, MINUTES)
        # Spark writes the counts of a minute when a visit that is two minutes later has arrived.
        tell_step("one more visit, two minutes later: now the last minutes are complete")
        self._append([_visit("/", FIRST_MINUTE + timedelta(minutes=MINUTES + 2))])
        tell_step("Spark starts again, and resumes from its checkpoint:")
        with self._spark() as counting:
            self._show(arriving, until=lambda: self._seen.total() >= self._sent.total(), counting=counting)
        self._check_counts()
        self._archive_and_query()
        self._client.close()

    # Visits in.

    def _send(self, first_minute: int, end_minute: int) -> None:
        for number in range(first_minute, end_minute):
            minute = FIRST_MINUTE + timedelta(minutes=number)
            visits = []
            for each in range(VISITS_PER_MINUTE):
                # Some pages are visited more often than others, and each minute is a little different.
                page = PAGES[(each * each + number * each) % 23 % len(PAGES)]
                visits.append(_visit(page, minute + timedelta(milliseconds=60 * each)))
                self._sent[_clock(minute), page] += 1
            self._append(visits)
        tell_step(f"{(end_minute - first_minute) * VISITS_PER_MINUTE:,} page visits over HTTP, such as:")
        body = json.dumps({"records": visits[-1:]}, separators=(",", ":"))
        tell_detail(f"curl {self._url}/v0/topics/{VISITS} -H 'Content-Type: application/json' -d '{body}'")

    def _append(self, visits: Sequence[dict[str, Any]]) -> None:
        self._client.append_encoded(VISITS, json.dumps(visits).encode())

    # Counts out.

    def _follow_counts(self) -> "Queue[Row]":
        arriving: Queue[Row] = Queue()

        def follow() -> None:
            # The client is closed at the end of the demo.
            with suppress(TopicsError):
                for row in map(_row, self._client.tail(COUNTS)):
                    arriving.put(row)

        Thread(target=follow, daemon=True).start()
        return arriving

    @contextmanager
    def _spark(self) -> "Iterator[subprocess.Popen[bytes]]":
        """The streaming query in another process, with a JVM. It is killed at the end."""
        with open(self._log_path, "ab") as log:
            process = subprocess.Popen(
                module_command("topics.demos.pipeline", self._url, self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def _log_path(self) -> str:
        return f"{self._folder}/spark.log"

    def _show(self, arriving: "Queue[Row]", *, until: Callable[[], bool], counting: "subprocess.Popen[bytes]") -> None:
        deadline_s = monotonic() + WAIT_S
        while not until():
            try:
                rows = [arriving.get(timeout=1)]
            except Empty:
                if counting.poll() is not None:
                    raise DemoFailed(f"Spark ended by itself:\n{self._log_end()}") from None
                if monotonic() > deadline_s:
                    raise DemoFailed(f"no counts for {WAIT_S:.0f} s; the log of Spark:\n{self._log_end()}") from None
                continue
            while not arriving.empty():
                rows.append(arriving.get())
            before = self._complete_minutes()
            self._seen.update(_counts(rows))
            for minute in sorted(self._complete_minutes() - before):
                tell_detail("   ".join([minute, *(f"{page} {self._seen[minute, page]}" for page in PAGES)]))

    def _complete_minutes(self) -> set[str]:
        """The minutes with a count of every page."""
        pages = Counter(minute for minute, _ in self._seen)
        return {minute for minute, count in pages.items() if count == len(PAGES)}

    def _log_end(self) -> str:
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-20:])

    def _check_counts(self) -> None:
        """Reads the topic again: what arrived live is not enough to know that no count is there twice."""
        rows = [_row(item) for item in self._client.read_all(COUNTS)]
        found = _counts(rows)
        if found != self._sent or len(rows) != len(self._sent):
            expected = f"{len(self._sent)} of {self._sent.total()}"
            raise DemoFailed(f"{COUNTS} has {len(rows)} counts of {found.total()} visits, not {expected}")
        tell_step(f"{len(rows)} counts of {found.total():,} visits: 0 missing, 0 duplicated")

    # History.

    def _archive_and_query(self) -> None:
        lake = f"{self._folder}/lake"
        tell_step("the visits go to a lake, a Delta table:")
        print(_indented(self._topics("pipeline", "archive", lake, "--topic", VISITS, "--seal")), flush=True)
        tell_step("the lake answers SQL:")
        found = self._topics("pipeline", "sql", QUERY, "--input", f"visits=lake:{lake}")
        print(_indented(found), flush=True)
        # The visit that completed the last minutes.
        expected = Counter({"/": 1})
        for (_, page), count in self._sent.items():
            expected[page] += count
        if {row["page"]: row["visits"] for row in map(json.loads, found.splitlines())} != expected:
            raise DemoFailed(f"the lake has other visits than {dict(expected)}")

    def _topics(self, *arguments: str) -> str:
        """Runs a command of `topics`, and returns its output."""
        tell_command(f"topics {' '.join(map(_quoted, arguments))}", self._url)
        done = subprocess.run(
            module_command("topics.cli.entry", *arguments),
            env={**os.environ, "TOPICS_URL": self._url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"exit code {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout


# The streaming query.


def count_visits(url: str, folder: str) -> None:
    """Runs until the process is killed."""
    from pyspark.sql import functions as F  # noqa: N812

    import topics.spark

    conf = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": f"{folder}/local"}
    spark = topics.spark.session("topics demo", master="local[2]", conf=conf)
    visits = topics.spark.read_stream(spark, endpoint=url, subscribe=VISITS, maxRecordsPerTrigger=VISITS_PER_BATCH)
    counts = (
        visits.select(F.from_json("data", "page STRING, at TIMESTAMP").alias("visit"))
        .select("visit.*")
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "page")
        .count()
    )
    rows = counts.select(F.to_json(F.struct(F.col("window.start").alias("minute"), "page", "count")).alias("data"))
    query = rows.writeStream.format("topics").options(
        endpoint=url, topic=COUNTS, checkpointLocation=f"{folder}/checkpoint"
    )
    query.start().awaitTermination()


# Values.


def _visit(page: str, at: datetime) -> dict[str, Any]:
    return {"data": {"page": page, "at": at.isoformat(timespec="milliseconds")}}


def _row(item: Record | Tombstone) -> Row:
    if isinstance(item, Tombstone):
        raise DemoFailed(f"records of {COUNTS} are lost: {item}")
    row: Row = json.loads(item.data)
    return row


def _counts(rows: Sequence[Row]) -> Counts:
    found: Counts = Counter()
    for row in rows:
        found[_clock(datetime.fromisoformat(row["minute"])), row["page"]] += row["count"]
    return found


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


def _quoted(argument: str) -> str:
    """The argument as a user would type it."""
    return f'"{argument}"' if "'" in argument else shlex.quote(argument)


def _indented(text: str) -> str:
    return indent(text.rstrip(), "    ")


if __name__ == "__main__":
    count_visits(*sys.argv[1:])
