"""`make demo`: a pipeline in a minute or two, in a temporary folder.

Visits of web pages go into a topic over HTTP. Spark counts them by minute and page. It is killed in the middle, and
goes on where it was. A live watch shows the counts. The history is archived into a lake, a Delta table, and queried
with SQL. The demo fails unless every visit was counted exactly once.
"""

import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Empty, Queue
from textwrap import indent
from threading import Thread
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from topics.bench.processes import running_server
from topics.client.sync.client import Client

PAGES: Final = ("/", "/docs", "/prices", "/signup")
MINUTES: Final = 16
VISITS_PER_MINUTE: Final = 1000
FIRST_MINUTE: Final = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)

VISITS: Final = "visits"
COUNTS: Final = "visits-per-minute"
# Each half of the visits is several batches, so that the kill comes in the middle.
VISITS_PER_BATCH: Final = 3000
WAIT_S: Final = 300.0

QUERY: Final = (
    "SELECT get_json_object(data, '$.page') AS page, count(*) AS visits FROM visits GROUP BY page ORDER BY visits DESC"
)

# A count as in the topic, and all counts by minute and page.
Row = dict[str, Any]
Counts = Counter[tuple[str, str]]


class DemoFailed(Exception):
    """A check of the demo failed; the text says which."""


def main() -> int:
    from topics.spark.session import SparkUnavailable, require_java, require_packages

    try:
        require_packages()
        require_java()
    except SparkUnavailable as error:
        print(f"demo: {error.message}", file=sys.stderr)
        return 1
    began_s = monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as folder:
        try:
            with running_server(folder) as server:
                _Demo(folder, f"http://127.0.0.1:{server.port}").run()
        except DemoFailed as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    _say(f"all counts are right, each is there once: {monotonic() - began_s:.0f} s. The folder is gone again.")
    return 0


class _Demo:
    def __init__(self, folder: str, endpoint: str) -> None:
        self._folder = folder
        self._endpoint = endpoint
        self._client = Client(endpoint)
        self._sent: Counts = Counter()
        self._seen: Counts = Counter()

    def run(self) -> None:
        _say(f"a server, at {self._endpoint}")
        self._client.create(COUNTS)
        half = MINUTES // 2
        self._send(0, half)
        watched = self._watch()
        with self._spark() as counting:
            _say("Spark counts the visits by minute and page, exactly once; here they come, as server-sent events:")
            self._show(watched, until=lambda: len(self._whole_minutes()) >= 2, counting=counting)
            _say("kill -9 for Spark, with all of its processes, in the middle of its work")
        self._send(half, MINUTES)
        # Spark counts a minute when a much later visit arrives. This visit ends the last minutes.
        _say("one more visit, much later: with it Spark knows that the last minutes are over; it is counted by none")
        self._append([_visit("/", FIRST_MINUTE + timedelta(minutes=MINUTES + 2))])
        with self._spark() as counting:
            _say("Spark again, with the same checkpoint: it goes on where it was")
            self._show(watched, until=lambda: self._seen.total() >= self._sent.total(), counting=counting)
        self._check_counts()
        self._archive_and_query()
        self._client.close()

    # Events in.

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
        count = (end_minute - first_minute) * VISITS_PER_MINUTE
        _say(f"{count} visits over HTTP, as this one:")
        _command(
            f"curl {self._endpoint}/v0/topics/{VISITS} -H 'Content-Type: application/json' "
            f"""-d '{{"records":[{json.dumps(visits[0], separators=(",", ":"))}]}}'"""
        )

    def _append(self, visits: Sequence[dict[str, Any]]) -> None:
        self._client.append_encoded(VISITS, json.dumps(visits).encode())

    # Live.

    def _watch(self) -> "Queue[list[Row]]":
        """New records of the topic with the counts."""
        _say("a live watch shows the counts:")
        _command(f"curl -N {self._endpoint}$STREAM_URL")
        records: Queue[list[Row]] = Queue()
        Thread(target=_follow, args=(self._endpoint, COUNTS, records), daemon=True).start()
        return records

    @contextmanager
    def _spark(self) -> "Iterator[subprocess.Popen[bytes]]":
        """The streaming query in another process, with a JVM. It is killed at the end."""
        with open(self._log_path, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "topics.demos.pipeline", self._endpoint, self._folder],
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

    def _show(
        self, records: "Queue[list[Row]]", *, until: Callable[[], bool], counting: "subprocess.Popen[bytes]"
    ) -> None:
        deadline_s = monotonic() + WAIT_S
        while not until():
            try:
                rows = records.get(timeout=1)
            except Empty:
                if counting.poll() is not None:
                    raise DemoFailed(f"Spark ended by itself:\n{self._log_end()}") from None
                if monotonic() > deadline_s:
                    raise DemoFailed(f"no counts for {WAIT_S:.0f} s; Spark says:\n{self._log_end()}") from None
                continue
            before = self._whole_minutes()
            self._seen.update(_counts(rows))
            for minute in sorted(self._whole_minutes() - before):
                print("  ", minute, *(f"  {page} {self._seen[minute, page]}" for page in PAGES), flush=True)

    def _whole_minutes(self) -> set[str]:
        """The minutes with a count of every page."""
        pages = Counter(minute for minute, _ in self._seen)
        return {minute for minute, count in pages.items() if count == len(PAGES)}

    def _log_end(self) -> str:
        with open(self._log_path, encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-20:])

    def _check_counts(self) -> None:
        """Checks the records of the topic, not the live watch."""
        rows: list[Row] = []
        cursor, is_caught_up = 0, False
        while not is_caught_up:
            page = self._client.read(COUNTS, cursor, limit=1000)
            rows += [json.loads(bytes(record.data)) for record in page.records]
            cursor, is_caught_up = page.next_from_seq, page.caught_up
        found = _counts(rows)
        if found != self._sent or len(rows) != len(self._sent):
            expected = f"{len(self._sent)} of {self._sent.total()}"
            raise DemoFailed(f"there are {len(rows)} counts of {found.total()} visits, not {expected}")
        _say(f"{len(rows)} counts of {found.total()} visits are in the topic: none is missing, none is there twice")

    # History.

    def _archive_and_query(self) -> None:
        lake = f"{self._folder}/lake"
        _say(f"the history goes into a lake, a Delta table: {self._sent.total()} visits and the late one:")
        print(_indented(self._topics("pipeline", "archive", lake, "--topic", VISITS, "--seal")), flush=True)
        _say("and SQL asks it:")
        found = self._topics("pipeline", "sql", QUERY, "--input", f"visits=lake:{lake}")
        print(_indented(found), flush=True)
        expected = Counter({"/": 1})
        for (_, page), count in self._sent.items():
            expected[page] += count
        if {row["page"]: row["visits"] for row in map(json.loads, found.splitlines())} != expected:
            raise DemoFailed(f"the lake should have {dict(expected)}")

    def _topics(self, *arguments: str) -> str:
        """Runs a command of `topics`, and returns its output."""
        _command(f"topics {' '.join(map(_quoted, arguments))}")
        done = subprocess.run(
            [sys.executable, "-m", "topics.cli.entry", *arguments],
            env={**os.environ, "TOPICS_URL": self._endpoint},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"exit code {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout


# Other processes and threads of the demo.


def count_visits(endpoint: str, folder: str) -> int:
    """The streaming query. It runs until it is killed."""
    from pyspark.sql import functions as F  # noqa: N812

    import topics.spark

    conf = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": f"{folder}/local"}
    spark = topics.spark.session("topics demo", master="local[2]", conf=conf)
    visits = topics.spark.read_stream(spark, endpoint=endpoint, subscribe=VISITS, maxRecordsPerTrigger=VISITS_PER_BATCH)
    counts = (
        visits.select(F.from_json("data", "page STRING, at TIMESTAMP").alias("visit"))
        .select("visit.*")
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "page")
        .count()
    )
    rows = counts.select(F.to_json(F.struct(F.col("window.start").alias("minute"), "page", "count")).alias("data"))
    query = rows.writeStream.format("topics").options(
        endpoint=endpoint, topic=COUNTS, checkpointLocation=f"{folder}/checkpoint"
    )
    query.start().awaitTermination()
    return 0


def _follow(endpoint: str, topic: str, records: "Queue[list[Row]]") -> None:
    """Puts new records of a topic into the queue, until the server ends the stream."""
    wanted = json.dumps({"topics": {topic: {"from_seq": 0}}})
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=WAIT_S)
    connection.request("POST", "/v0/watch", wanted, {"Content-Type": "application/json"})
    stream_url = json.loads(connection.getresponse().read())["stream_url"]
    connection.request("GET", stream_url)
    event = ""
    for line in connection.getresponse():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event == "record":
            records.put([record["data"] for record in json.loads(value)["records"]])
    connection.close()


def _visit(page: str, at: datetime) -> dict[str, Any]:
    return {"data": {"page": page, "at": at.isoformat(timespec="milliseconds")}}


def _counts(rows: Sequence[Row]) -> Counts:
    found: Counts = Counter()
    for row in rows:
        found[_clock(datetime.fromisoformat(row["minute"])), row["page"]] += row["count"]
    return found


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


# Output.


def _say(text: str) -> None:
    print(f"\n* {_coloured(text, '1')}", flush=True)


def _command(text: str) -> None:
    print(f"  {_coloured('$ ' + text, '2')}", flush=True)


def _quoted(argument: str) -> str:
    """The command as a user would type it."""
    return f'"{argument}"' if "'" in argument else shlex.quote(argument)


def _indented(text: str) -> str:
    return indent(text.rstrip(), "   ")


def _coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() else text


if __name__ == "__main__":
    sys.exit(count_visits(*sys.argv[1:]) if len(sys.argv) > 1 else main())
