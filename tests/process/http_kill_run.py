"""Kills a server under HTTP load many times, and compares the answers to clients with the records that can be read.

By hand: `python -m tests.process.http_kill_run --kills 30`.
"""

import argparse
import http.client
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.process.http_writer import CLASSES, KEY_WINDOW_MS, WRITERS, Board, Write, Writer, post
from topics.testing.server_process import ServerProcess

PATIENCE_S = 60.0


@dataclass
class Findings:
    """All answers so far, and the faults that were found. Writers add answers one at a time; `check` reads a copy."""

    acked: dict[str, dict[int, str]] = field(default_factory=lambda: {topic: {} for topic in CLASSES})
    seqs_by_key: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    kills: int = 0
    kills_while_starting: int = 0
    kills_while_stopping: int = 0
    stops: int = 0
    # Writes sent again without an answer; how many of these were already written; writes sent again after an answer.
    retried: int = 0
    retried_deduped: int = 0
    repeated: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.wrong]

    def note_answer(self, write: Write, answer: Any, unanswered: int) -> None:
        """Notes the answer to a write. Before that the write was sent `unanswered` times without an answer."""
        seqs, key = answer["seqs"], (write.topic, write.key)
        with self._lock:
            known = self.seqs_by_key.setdefault(key, seqs)
            is_first = known is seqs
            self.repeated += not is_first
            self.retried += is_first and unanswered > 0
            self.retried_deduped += is_first and answer["deduped"]
            if answer["deduped"] and not unanswered and is_first:
                self.wrong.append(f"{key}: deduped, and never sent before")
            if not is_first and not answer["deduped"]:
                self.doubled.append(f"{key}: answered with {known}, then appended again as {seqs}")
            elif known != seqs:
                self.wrong.append(f"{key}: answered with {known}, then deduped as {seqs}")
            if seqs != list(range(answer["first_seq"], answer["last_seq"] + 1)) or len(seqs) != len(write.payloads):
                self.wrong.append(f"{key}: {len(write.payloads)} records got {answer}")
                return
            for seq, payload in zip(seqs, write.payloads, strict=True):
                before = self.acked[write.topic].setdefault(seq, payload)
                if before != payload:
                    self.wrong.append(f"{write.topic} {seq}: answered for {before!r}, then for {payload!r}")

    def acked_now(self) -> dict[str, dict[int, str]]:
        with self._lock:
            return {topic: dict(records) for topic, records in self.acked.items()}

    def check(self, acked: dict[str, dict[int, str]], found: dict[str, list[tuple[int, str]]]) -> None:
        """Compares all readable records with the answers that came before the reading began."""
        for topic in CLASSES:
            records = dict(found[topic])
            for seq, payload in acked[topic].items():
                if seq not in records:
                    self.lost.append(f"{topic} {seq}: {payload!r} was answered and is gone")
                elif records[seq] != payload:
                    self.wrong.append(f"{topic} {seq}: {payload!r} was answered, {records[seq]!r} is there")
            if [seq for seq, _ in found[topic]] != list(range(1, len(found[topic]) + 1)):
                self.wrong.append(f"{topic}: its seqs are not 1, 2, 3 and so on")
            copies = Counter(payload.rpartition(" ")[0] for _, payload in found[topic])
            self.doubled += [f"{topic}: {name!r} is there {n} times" for name, n in copies.items() if n > 1]

    def check_end(self, found: dict[str, list[tuple[int, str]]]) -> None:
        """At the end every key is answered, so there are no other records."""
        self.check(self.acked, found)
        for topic in CLASSES:
            unasked = dict(found[topic]).keys() - self.acked[topic].keys()
            self.wrong += [f"{topic} {seq}: no answer named it" for seq in sorted(unasked)]

    def summary(self) -> str:
        moments = f"({self.kills_while_starting} while starting, {self.kills_while_stopping} while stopping)"
        rows = [f"kills              {self.kills} {moments}", f"stops              {self.stops}"]
        for topic, durability in CLASSES.items():
            keys = sum(of == topic for of, _ in self.seqs_by_key)
            rows.append(f"acked to {durability:<10}{len(self.acked[topic])} records of {keys} writes")
        rows.append(
            f"retried            {self.retried} (deduped {self.retried_deduped}, the others had not been written)"
        )
        rows.append(f"repeated           {self.repeated} (all deduped)")
        rows += [f"{name:<19}{len(getattr(self, name))}" for name in ("lost", "doubled", "wrong")]
        return "\n".join(rows + self.faults[:20])


def read_all(server: ServerProcess, topic: str) -> list[tuple[int, str]]:
    """Every record, read by diff from the start to the head."""
    found: list[tuple[int, str]] = []
    from_seq = 0
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)) as connection:
        while True:
            status, page = post(connection, f"/v0/topics/{topic}/diff", {"from_seq": from_seq, "limit": 1000})
            assert status == 200, (status, page)
            assert page["tombstone"] is None, page["tombstone"]
            found += [(record["$seq"], record["data"]) for record in page["records"]]
            if page["caught_up"]:
                return found
            from_seq = page["next_from_seq"]


def create_topics(server: ServerProcess) -> None:
    """Creates the topics with a first record, so that every later write is answered with 200."""
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)) as connection:
        for topic, durability in CLASSES.items():
            config = {"durability": durability, "idempotency_window_ms": KEY_WINDOW_MS}
            first = {"records": [{"data": "first 0 "}], "idempotency_key": "first", "config": config}
            status, answer = post(connection, f"/v0/topics/{topic}", first)
            assert status == 201, (status, answer)


class KillRun:
    """One data directory, one server process after the other, and clients that use all of them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        # So small that a stop or a kill leaves sealed segments.
        self._server = ServerProcess(directory, wal_shards=2, segment_max_events=100)
        self._start_s = 0.5
        self.findings = Findings()

    def run(self, kills: int) -> Findings:
        board = Board()
        writers = [
            Writer(number, board, self._dice.randrange(2**32), self.findings.note_answer) for number in range(WRITERS)
        ]
        with closing(self._server):
            self._server.start()
            create_topics(self._server)
            self._note_first()
            board.announce((self._server.host, self._server.port))
            for writer in writers:
                writer.start()
            try:
                while self.findings.kills < kills and not self.findings.faults:
                    self._kill(board)
                    self._restart(board)
            finally:
                board.end()
                for writer in writers:
                    writer.join()
            for writer in writers:
                if writer.failure is not None:
                    raise writer.failure
            self.findings.check_end({topic: read_all(self._server, topic) for topic in CLASSES})
        return self.findings

    def _note_first(self) -> None:
        for topic in CLASSES:
            answer = {"seqs": [1], "first_seq": 1, "last_seq": 1, "deduped": False}
            self.findings.note_answer(Write(topic, "first", ("first 0 ",)), answer, 0)

    def _kill(self, board: Board) -> None:
        """Kills the server under load, or during a stop and its checkpoint."""
        board.wait_acks(self._dice.randrange(1, 400))
        if self._dice.random() < 0.25:
            self._server.send_signal(signal.SIGTERM)
            if not self._server.kill_after(self._dice.uniform(0, 1.0)):
                self.findings.stops += 1
                return
            self.findings.kills_while_stopping += 1
        else:
            self._server.kill()
        self.findings.kills += 1

    def _restart(self, board: Board) -> None:
        """Starts the server. Some starts are killed: at any moment, or when clients have connected."""
        while self._dice.random() < 0.3:
            self._server.spawn()
            if self._dice.random() < 0.5:
                self._server.wait_listening()
                board.announce((self._server.host, self._server.port))
                was_killed = self._server.kill_after(self._dice.uniform(0, 0.1))
            else:
                was_killed = self._server.kill_after(self._dice.uniform(0, self._start_s))
            assert was_killed, self._server.output
            self.findings.kills += 1
            self.findings.kills_while_starting += 1
        begun_s = monotonic()
        self._server.spawn()
        self._server.wait_listening()
        board.announce((self._server.host, self._server.port))
        self._server.wait_ready()
        self._start_s = monotonic() - begun_s
        self.findings.check(self.findings.acked_now(), {topic: read_all(self._server, topic) for topic in CLASSES})


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a server with SIGKILL under HTTP load, start it again, compare.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--directory", type=Path, help="kept afterwards; default: a temporary one")
    arguments = parser.parse_args()
    print(f"seed               {arguments.seed}")
    with tempfile.TemporaryDirectory() as folder:
        findings = KillRun(arguments.directory or Path(folder) / "data", arguments.seed).run(arguments.kills)
    print(findings.summary())
    sys.exit(1 if findings.faults else 0)


if __name__ == "__main__":
    main()
