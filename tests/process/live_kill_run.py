"""Kills a server under live load many times, and checks the answers that all clients got.

Writers with keys, deletes, a topic that is deleted and created again, watchers, subscribers, consumer groups, workers
and routers run at the same time. One process follows the other on one directory and one port. Each is killed by SIGKILL
at any moment, also during starts and stops.

By hand: `python -m tests.process.live_kill_run --kills 30 --seed 1`.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.process.http_writer import ANSWER_S_MAX, KEY_WINDOW_MS, Board
from tests.process.live_client import LiveClient
from tests.process.live_judge import LogJudge, QueueJudge
from tests.process.live_load import (
    COPIES,
    COPY_ALL,
    DEAD,
    HEAVY,
    LAST,
    LAST_TAGS,
    LEASE_MS,
    LOGS,
    QUEUES,
    RENEWED,
    ROUTERS,
    STEADY,
    SYNCED,
    WRITERS,
    Deleter,
    HeavyWriter,
    Ledger,
    LiveWriter,
    Loader,
    Renewer,
)
from tests.process.live_queue import Claimer, Pusher, QueueLedger
from tests.process.live_readers import Goal, GroupLedger, GroupReader, Notes, Reader, Subscriber, Watcher, survey
from topics.testing.server_process import ServerProcess

# (topic, group) -> number of readers that share the group.
GROUPS: Final = {(SYNCED, "billing"): 1, ("live.cached", "search"): 1, ("live.cached", "audit"): 2}
SMALL_BUFFER_BYTES: Final = 16_384
FAULTS_TOLD: Final = 20
# Below the ports that the system gives to clients. A client that connects to a free client port may connect to itself.
PORTS: Final = range(20_000, 30_000)


@dataclass
class Findings:
    """Counts of the run, and the faults that were found."""

    kills: int = 0
    kills_while_starting: int = 0
    kills_while_stopping: int = 0
    stops: int = 0
    readers: int = 0
    reconnects: int = 0
    events: int = 0
    records: int = 0
    tombstones: int = 0
    writes: int = 0
    retried: int = 0
    deduped: int = 0
    copied: int = 0
    commits: int = 0
    delivered: int = 0
    acked: int = 0
    stale_acks_refused: int = 0
    dead_lettered: int = 0
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        return (
            f"kills {self.kills} ({self.kills_while_starting} starting, {self.kills_while_stopping} stopping),"
            f" stops {self.stops}, writes {self.writes} (retried {self.retried}, deduped {self.deduped}),"
            f" readers {self.readers}, reconnects {self.reconnects}, events {self.events}, records {self.records},"
            f" tombstones {self.tombstones}, copies {self.copied}, commits {self.commits},"
            f" jobs delivered {self.delivered} / acked {self.acked} / refused {self.stale_acks_refused}"
            f" / dead-lettered {self.dead_lettered}, faults {len(self.faults)}"
        )


class _Conductor(Loader):
    """The client of the test itself: it sets up the topics, and reads during and after the load. Its thread is not
    started."""

    def work(self) -> None:
        raise AssertionError("it is called, and never started")

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, answer, _ = self.insist(method, path, body)
        return status, answer

    def set_up(self) -> None:
        window = {"idempotency_window_ms": KEY_WINDOW_MS}
        for topic, config in (LOGS | COPIES | {RENEWED: {}}).items():
            self._made("PUT", f"/v0/topics/{topic}", config | window)
        for queue, config in QUEUES.items():
            self._made("PUT", f"/v0/topics/{queue}", config | window | {"type": "queue", "lease_ms": LEASE_MS})
        self._made("PUT", f"/v0/topics/{DEAD}", {"durability": "disk"})
        self._made("PUT", f"/v0/topics/{HEAVY}", {"cap_records": 4})
        for router, definition in ROUTERS.items():
            self._made("PUT", f"/v0/routers/{router}", definition)
        for topic, group in GROUPS:
            self._made("PUT", f"/v0/topics/{topic}/groups/{group}", {"from": "start"})

    def _made(self, method: str, path: str, body: Any) -> None:
        status, answer = self.call(method, path, body)
        assert status == 201, (path, status, answer)

    def job_count(self) -> int:
        counts = [self.call("GET", f"/v0/topics/{queue}")[1]["count"] for queue in QUEUES]
        return sum(counts)

    def head_seq(self, topic: str) -> int:
        head_seq: int = self.call("GET", f"/v0/topics/{topic}")[1]["head_seq"]
        return head_seq

    def all_records(self, topic: str) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        cursor, is_done = 0, False
        while not is_done:
            _, page = self.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000})
            records += page["records"]
            cursor, is_done = page["next_from_seq"], page["caught_up"]
        return records


class LiveKillRun:
    """One data directory, one server process after the other, and clients that use all of them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        # So small that a checkpoint makes sealed segments.
        self._server = ServerProcess(directory, port=_free_port(), wal_shards=2, segment_max_events=100)
        self._start_s = 0.5
        self._board = Board()
        self._goal = Goal()
        self._ledger = Ledger()
        self._queue_ledger = QueueLedger()
        self._group_ledgers = {place: GroupLedger(*place) for place in GROUPS}
        self._conductor = _Conductor("conductor", self._board, self._seed(), self._ledger)
        # After each start: the records that a new reader found, and the last seqs that were answered before.
        self._surveys: list[tuple[str, Notes, int]] = []
        self._generation = 0
        self.findings = Findings()

    def _seed(self) -> int:
        return self._dice.randrange(2**32)

    def run(self, kills: int) -> Findings:
        writers, readers, group_readers, workers = (
            self._writers(),
            self._readers(),
            self._group_readers(),
            self._workers(),
        )
        with ExitStack() as ends:
            ends.callback(self._server.close)
            ends.callback(self._conductor.disconnect)
            self._spawn()
            self._server.wait_ready()
            self._conductor.set_up()
            for client in (*writers, *readers, *group_readers, *workers):
                client.start()
            try:
                while self.findings.kills < kills:
                    self._kill()
                    self._restart()
                    self._survey()
                self._board.end()
                _join(writers)
                self._end_logs()
                _join((*readers, *group_readers))
                self._drain(workers)
            except BaseException as error:
                self._board.end()
                error.add_note(self._server.output)
                raise
            self._judge(readers)
        return self.findings

    # The clients.

    def _writers(self) -> list[LiveClient]:
        return [
            *(LiveWriter(f"writer{n}", self._board, self._seed(), self._ledger) for n in range(WRITERS)),
            Deleter("deleter", self._board, self._seed(), self._ledger),
            Renewer("renewer", self._board, self._seed(), self._ledger),
            HeavyWriter("heavy", self._board, self._seed(), self._ledger),
        ]

    def _readers(self) -> list[Reader]:
        def watcher(name: str, **kind: Any) -> Watcher:
            return Watcher(name, self._board, self._seed(), self._goal, **kind)

        def subscriber(name: str, **kind: Any) -> Subscriber:
            return Subscriber(name, self._board, self._seed(), self._goal, **kind)

        return [
            watcher("growing", grows=True),
            watcher("growing-http2", grows=True, is_http2=True),
            watcher("slow", limit=2, receive_buffer_bytes=SMALL_BUFFER_BYTES),
            watcher("strong", is_strong=True),
            watcher("dying", patience=30),
            watcher("dying-http2", patience=60, limit=1000, is_http2=True),
            subscriber("subscriber", limit=1000),
            subscriber("slow-subscriber", limit=3),
            subscriber("dying-subscriber", patience=40),
        ]

    def _group_readers(self) -> list[LiveClient]:
        return [
            GroupReader(f"{group}{n}", self._board, self._seed(), self._goal, self._group_ledgers[topic, group])
            for (topic, group), count in GROUPS.items()
            for n in range(count)
        ]

    def _workers(self) -> list[LiveClient]:
        workers: list[LiveClient] = []
        for queue in QUEUES:
            name = queue.partition(".")[2]
            workers.append(Claimer(f"{name}-claimer", self._board, self._seed(), queue, self._queue_ledger))
            workers.append(Pusher(f"{name}-pusher", self._board, self._seed(), queue, self._queue_ledger))
        return workers

    # Kills and starts.

    def _spawn(self) -> None:
        # The output of the last process is kept before it is lost.
        self._look_at_output()
        self._server.spawn()
        self._server.wait_listening()
        self._generation += 1
        self._board.announce((self._server.host, self._server.port))

    def _kill(self) -> None:
        """Kills the server under load, or during a stop and its checkpoint."""
        self._board.wait_acks(self._dice.randrange(1, 300))
        if self._dice.random() < 0.2:
            self._queue_ledger.stopped.add(self._generation)
            self._server.send_signal(signal.SIGTERM)
            if not self._server.kill_after(self._dice.uniform(0, 1.0)):
                self.findings.stops += 1
                return
            self.findings.kills_while_stopping += 1
        else:
            self._server.kill()
        self.findings.kills += 1

    def _restart(self) -> None:
        """Starts the server. Some starts are killed."""
        while self._dice.random() < 0.2:
            self._server.spawn()
            assert self._server.kill_after(self._dice.uniform(0, self._start_s)), self._server.output
            self.findings.kills += 1
            self.findings.kills_while_starting += 1
        begun_s = monotonic()
        self._spawn()
        self._server.wait_ready()
        self._start_s = monotonic() - begun_s

    def _look_at_output(self) -> None:
        self._ledger.faults += [line for line in self._server.output.splitlines() if '"level":"error"' in line]

    def _survey(self) -> None:
        for topic in STEADY:
            answered_seq = self._ledger.answered_head(SYNCED if topic == COPY_ALL else topic)
            self._surveys.append((topic, survey(self._conductor.call, topic), answered_seq))

    # The end.

    def _end_logs(self) -> None:
        """Writes one last record to every log. Every reader must get to it."""
        for topic in LOGS:
            self._conductor.write(topic, 1, LAST_TAGS.get(topic), LAST)
        self._goal.set({topic: self._conductor.head_seq(topic) for topic in STEADY})

    def _drain(self, workers: Sequence[LiveClient]) -> None:
        """Waits until the workers have no job left."""
        deadline_s = monotonic() + 2 * ANSWER_S_MAX
        while self._conductor.job_count():
            assert monotonic() < deadline_s, "jobs are left, and no worker gets them"
            assert all(worker.is_alive() for worker in workers), [worker.failure for worker in workers]
            self._queue_ledger.is_drained.wait(0.05)
        self._queue_ledger.is_drained.set()
        for worker in workers:
            if isinstance(worker, Pusher):
                worker.hang_up()
        _join(workers)

    def _judge(self, readers: Sequence[Reader]) -> None:
        heads = {topic: self._conductor.head_seq(topic) for topic in STEADY}
        copies = {
            topic: [(record["$seq"], record["data"]) for record in self._conductor.all_records(topic)]
            for topic in COPIES
        }
        self._look_at_output()
        judge = LogJudge(self._ledger, copies)
        faults = [*self._ledger.faults, *judge.faults_of_copies()]
        for reader in readers:
            faults += reader.notes.faults
            faults += judge.faults_of(reader.name, reader.notes.seen, heads)
            faults += judge.faults_of_renewed(reader.name, reader.notes.seen)
        for topic, notes, answered_seq in self._surveys:
            faults += judge.faults_of("a new reader", notes.seen)
            faults += judge.faults_of_newest(notes.seen, topic, answered_seq)
        for group in self._group_ledgers.values():
            faults += group.faults
            expected = {seq: written.payload for seq, written in self._ledger.records[group.topic].items()}
            if group.done != expected:
                faults.append(f"group {group.group}: it has worked on {len(group.done)} of {len(expected)} records")
        dead = self._conductor.all_records(DEAD)
        queues = [QueueJudge(queue, self._ledger, self._queue_ledger, dead) for queue in QUEUES]
        faults += [fault for queue in queues for fault in queue.faults()]
        self._count(readers, queues, copies)
        self.findings.faults = faults

    def _count(
        self, readers: Sequence[Reader], queues: Sequence[QueueJudge], copies: dict[str, list[tuple[int, str]]]
    ) -> None:
        findings, ledger = self.findings, self._ledger
        findings.readers = len(readers)
        findings.reconnects = sum(reader.notes.connections - 1 for reader in readers)
        findings.events = sum(reader.notes.events for reader in readers)
        findings.records = sum(reader.notes.record_count for reader in readers)
        findings.tombstones = sum(reader.notes.gap_count for reader in readers)
        findings.writes, findings.retried, findings.deduped = ledger.writes, ledger.retried, ledger.deduped
        findings.copied = sum(len(records) for records in copies.values())
        findings.commits = sum(group.commits for group in self._group_ledgers.values())
        findings.delivered = sum(queue.delivered_count for queue in queues)
        findings.acked = sum(queue.acked_count for queue in queues)
        findings.stale_acks_refused = sum(queue.refused_count for queue in queues)
        findings.dead_lettered = sum(queue.dead_count for queue in queues)


def _join(clients: Sequence[LiveClient]) -> None:
    for client in clients:
        client.join(2 * ANSWER_S_MAX)
        assert not client.is_alive(), f"{client.name} does not come to its end"
    for client in clients:
        if client.failure is not None:
            raise AssertionError(f"{client.name} has failed, its server lost by {client.lost_by!r}") from client.failure


def _free_port() -> int:
    """A port for all processes of a run."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a server with SIGKILL under live load, start it again, compare.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--directory", type=Path, help="kept afterwards; default: a temporary one")
    arguments = parser.parse_args()
    # The library logs every connection that ends in the middle of a message.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        findings = LiveKillRun(arguments.directory or Path(folder) / "data", arguments.seed).run(arguments.kills)
    print(f"seed {arguments.seed}: {findings.summary()}")
    for fault in findings.faults[:FAULTS_TOLD]:
        print(fault)
    sys.exit(1 if findings.faults else 0)


if __name__ == "__main__":
    main()
