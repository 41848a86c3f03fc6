"""A query from topic to topic whose processes are killed, again and again; then every record is there once, in order.

    python -m tests.spark.kill_run --kills 20

The driver runs in a process of its own and is started again from its checkpoint until everything is through. Killed at
random points, without notice: the driver with its JVM, Python workers and executors, and the server. Now and then the
server is stopped in order, too: then it seals segments and moves them to the cold tier, so that a batch that is run
again finds its records in other files.

With `--speculation` tasks run on two hosts, and the first attempt at some of them is held up until Spark has started a
second one beside it.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from tests.spark.two_hosts import TwoHosts
from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

RECORDS_PER_ROUND: Final = 3000
RECORDS_PER_BATCH: Final = 300
PARTS_PER_BATCH: Final = 3
# A server that is started again is waited for, so that not every kill of it ends the query, too.
RETRIES: Final = 9
# Longer than any pause, also on a machine with much else to do.
PATIENCE_S: Final = 900.0
_LOOK_S: Final = 0.2
_KILL_AFTER_S_MAX: Final = 1.0
_HOLD_UP_S: Final = 3.0


@dataclass
class Outcome:
    """What was done to the query, and what came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    second_attempts: int = 0
    records_in: int = 0
    records_out: int = 0
    missing: int = 0
    duplicates: int = 0
    is_in_order: bool = False

    def __str__(self) -> str:
        killed = ", ".join(f"{count} {victim}" for victim, count in sorted(self.kills.items()))
        return (
            f"killed: {killed or 'nothing'}; driver started {self.starts} times; "
            f"tasks tried twice {self.second_attempts}; records in {self.records_in}, out {self.records_out}; "
            f"missing {self.missing}, duplicates {self.duplicates}, order {'kept' if self.is_in_order else 'LOST'}"
        )


# The driver.


def drive(url: str, folder: str, cluster: str | None = None) -> None:
    """Copies what is there from one topic to the other, in small batches, and ends."""
    import topics.spark

    conf = {
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.task.maxFailures": "8",
    }
    if cluster is not None:
        conf |= {
            "spark.speculation": "true",
            "spark.speculation.interval": "20ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3",
            "spark.speculation.minTaskRuntime": "20ms",
            "spark.executor.memory": "512m",
        }
    spark = topics.spark.session("kill-run", master=cluster or "local[2,8]", conf=conf)
    rows = topics.spark.read_stream(
        spark,
        endpoint=url,
        subscribe="in",
        maxRecordsPerTrigger=RECORDS_PER_BATCH,
        minPartitions=PARTS_PER_BATCH,
        retries=RETRIES,
    ).select("data", "tag")
    if cluster is not None:
        rows = rows.mapInArrow(partial(_held_up, f"{folder}/attempts"), rows.schema)
    query = (
        rows.writeStream.format("topics")
        .option("endpoint", url)
        .option("topic", "out")
        .option("chunkRecords", 40)
        .option("retries", RETRIES)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def _held_up(attempts: str, batches: Iterator[Any]) -> Iterator[Any]:
    """The first attempt at the first part hands its rows on, and does not end before a second one has overtaken it."""
    from time import sleep

    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    Path(attempts, f"{batch_id}-{context.partitionId()}-{context.attemptNumber()}").touch()
    yield from batches
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        sleep(_HOLD_UP_S)


# Processes.


def descendants(pid: int) -> dict[int, str]:
    """Processes below this one and what they were started with, as far as they can still be seen."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parent = int(stat.rpartition(")")[2].split()[1])
                commands[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                children.setdefault(parent, []).append(int(entry))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child in commands and child not in found:
                found[child] = commands[child]
                waiting.append(child)
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class KillRun:
    """One server, one checkpoint, and drivers that come and go."""

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        speculates: bool = False,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._folder = folder
        self._kills_left = kills
        self._random = random.Random(seed)
        self._cluster = TwoHosts(folder / "cluster") if speculates else None
        self.outcome = Outcome()
        self._server = ServerProcess(
            folder / "data",
            port=_free_port(),
            segment_max_events=500,
            cold_dir=folder / "cold",
            hot_retain_segments=1,
        )
        self._attempts = folder / "attempts"
        self._attempts.mkdir(parents=True)

    def run(self) -> Outcome:
        with self._cluster or nullcontext(), self._server, Client(self._server.url, retries=20) as client:
            client.create("in")
            client.create("out")
            self._append(client)
            while True:
                status = self._run_driver(client)
                if status == 0 and self._kills_left == 0:
                    break
                if status == 0:
                    self._append(client)
            self._compare(client)
        return self.outcome

    def _append(self, client: Client) -> None:
        first = self.outcome.records_in
        records = [{"data": {"n": first + n}, "tag": f"t{n % 7}"} for n in range(RECORDS_PER_ROUND)]
        client.append_encoded("in", msgspec.json.encode(records), key=f"round {first}")
        self.outcome.records_in += RECORDS_PER_ROUND

    def _run_driver(self, client: Client) -> int:
        """Starts a driver and troubles it until it ends; its exit status."""
        self.outcome.starts += 1
        command = [sys.executable, "-m", "tests.spark.kill_run", "--drive", self._server.url, str(self._folder)]
        command += [self._cluster.url] if self._cluster is not None else []
        with self._log.open("wb") as output:
            # Its own group: what the terminal says is not for it.
            driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        started: dict[int, str] = {}
        try:
            while self._kills_left and self._wait_progress(client, driver):
                with suppress(subprocess.TimeoutExpired):
                    driver.wait(self._random.uniform(0, _KILL_AFTER_S_MAX))
                    break
                started |= self._started_by(driver)
                self._strike(driver, started)
            return driver.wait(PATIENCE_S)
        finally:
            started |= self._started_by(driver)
            driver.kill()
            driver.wait()
            _kill_but_workers(started)

    @property
    def _log(self) -> Path:
        """What the driver says, in order to be looked at when something is wrong."""
        return self._folder / f"driver-{self.outcome.starts}.log"

    def _started_by(self, driver: subprocess.Popen[bytes]) -> dict[int, str]:
        """Processes that work for the driver, by what they were started with."""
        roots = [driver.pid, *(self._cluster.pids if self._cluster is not None else [])]
        return {pid: command for root in roots for pid, command in descendants(root).items()}

    def _wait_progress(self, client: Client, driver: subprocess.Popen[bytes]) -> bool:
        """Until the query has written something more; False when the driver has ended."""
        deadline_s = monotonic() + PATIENCE_S
        head_seq = client.state("out").head_seq
        while client.state("out").head_seq == head_seq:
            assert monotonic() < deadline_s, f"the query does not get on:\n{self._log.read_text(errors='replace')}"
            try:
                driver.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            return False
        return driver.poll() is None

    def _strike(self, driver: subprocess.Popen[bytes], started: dict[int, str]) -> None:
        victims = {"driver": 2, "worker": 4, "server": 3, "stopped server": 1}
        # The first ones in turn, so that a short run has each of them.
        turn = ["worker", "server", "driver", "stopped server"]
        done = self.outcome.kills.total()
        victim = turn[done] if done < len(turn) else self._random.choices([*victims], [*victims.values()])[0]
        if victim == "worker":
            alive = [pid for pid, command in started.items() if _is_worker(command) and _command(pid) == command]
            if not alive:
                return
            kill(self._random.choice(alive))
        elif victim == "driver":
            driver.kill()
            _kill_but_workers(started)
        elif victim == "server":
            self._server.kill()
            self._server.start()
        else:
            self._server.stop()
            self._server.start()
        self.outcome.kills[victim] += 1
        self._kills_left -= 1
        self._tell(f"killed {victim}, {self._kills_left} more to go")

    def _compare(self, client: Client) -> None:
        wanted = list(range(self.outcome.records_in))
        found = list(_numbers(client, "out"))
        outcome = self.outcome
        outcome.records_out = len(found)
        outcome.missing = len(set(wanted) - set(found))
        outcome.duplicates = len(found) - len(set(found))
        outcome.is_in_order = found == sorted(found)
        outcome.second_attempts = sum(1 for _ in self._attempts.glob("*-*-[1-9]*"))


def _kill_but_workers(processes: dict[int, str]) -> None:
    """Workers are left to themselves: they may go on for a moment, as zombies, and the next driver may meet them."""
    for pid, command in processes.items():
        if not _is_worker(command) and _command(pid) == command:
            kill(pid)


def _free_port() -> int:
    """One that the system gives to no connection, so that the server gets it again after a kill."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _is_worker(command: str) -> bool:
    """A Python worker, the process that forks them, or an executor with a JVM of its own."""
    return "pyspark.daemon" in command or "pyspark/daemon" in command or "CoarseGrainedExecutorBackend" in command


def _numbers(client: Client, topic: str) -> Iterator[int]:
    cursor = 0
    while True:
        page = client.read(topic, cursor, limit=1000)
        assert page.tombstone is None
        for record in page.records:
            yield msgspec.json.decode(record.data)["n"]
        cursor = page.next_from_seq
        if page.caught_up:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--speculation", action="store_true")
    parser.add_argument("--drive", nargs="+", help="what a driver does: URL FOLDER [CLUSTER]")
    arguments = parser.parse_args()
    if arguments.drive:
        drive(*arguments.drive)
        return 0
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory(prefix="kill-run-") as folder:
        run = KillRun(
            Path(folder),
            kills=arguments.kills,
            seed=seed,
            speculates=arguments.speculation,
            tell=partial(print, file=sys.stderr, flush=True),
        )
        outcome = run.run()
    print(f"seed {seed}: {outcome}")
    return 0 if outcome.missing == outcome.duplicates == 0 and outcome.is_in_order else 1


if __name__ == "__main__":
    sys.exit(main())
