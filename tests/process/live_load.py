"""The load of a live run: topics of every kind, clients that write to them, and the answers that these clients got.

Every write has a key and is sent until it is answered, so at the end the ledger has every record of each log by seq.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.process.http_writer import KEY_WINDOW_MS, Board, Write
from tests.process.live_client import LiveClient, now_ns, wall_ms

CAP_RECORDS: Final = 60
TTL_MS: Final = 1500
SYNCED, CACHED, CAPPED = "live.synced", "live.cached", "live.capped"
AGING, ERASED, RENEWED = "live.aging", "live.erased", "live.renewed"
COPY_ALL, COPY_RED, COPY_BLUE = "live.copy-all", "live.copy-red", "live.copy-blue"
COPY_ERASED, COPY_CAPPED = "live.copy-erased", "live.copy-capped"
FIRM, SWIFT, LOOSE, DEAD = "jobs.firm", "jobs.swift", "jobs.loose", "jobs.dead"
HEAVY: Final = "heavy"

LOGS: Final[dict[str, dict[str, Any]]] = {
    SYNCED: {"durability": "fsync"},
    CACHED: {"durability": "disk"},
    CAPPED: {"durability": "disk", "cap_records": CAP_RECORDS},
    AGING: {"durability": "disk", "ttl_ms": TTL_MS},
    ERASED: {"durability": "disk"},
}
COPIES: Final[dict[str, dict[str, Any]]] = {
    COPY_ALL: {"durability": "fsync"},
    COPY_RED: {"durability": "disk"},
    COPY_BLUE: {"durability": "disk"},
    COPY_ERASED: {"durability": "disk"},
    COPY_CAPPED: {"durability": "disk"},
}
# Longer than a worker needs for a job, and so short that many leases end by time.
LEASE_MS: Final = 300
QUEUES: Final[dict[str, dict[str, Any]]] = {
    FIRM: {"durability": "fsync", "leases_durable": True, "max_deliveries": 3, "dead_letter": DEAD},
    SWIFT: {"durability": "disk", "leases_durable": True, "max_deliveries": 2, "dead_letter": DEAD},
    LOOSE: {"durability": "disk"},
}
ROUTERS: Final[dict[str, dict[str, Any]]] = {
    "all": {"source": SYNCED, "dest": COPY_ALL},
    "red": {"source": CACHED, "dest": COPY_RED, "filter": "red", "guarantee": "exactly_once"},
    # Behind another one.
    "blue": {"source": COPY_ALL, "dest": COPY_BLUE, "filter": "blue"},
    "erased": {"source": ERASED, "dest": COPY_ERASED},
    "capped": {"source": CAPPED, "dest": COPY_CAPPED},
}
# Topics that watchers follow from the first record to the last.
STEADY: Final = (*LOGS, *COPIES)
WRITERS: Final = 5
TAGS: Final = (None, None, "red", "blue")
# The last record of every log. It passes every filter, and no client deletes it.
LAST: Final = "last"
LAST_TAGS: Final = {SYNCED: "blue", CACHED: "red"}
# Large enough that a checkpoint begins: see CHECKPOINT_WAL_BYTES.
HEAVY_BATCHES, HEAVY_RECORDS, HEAVY_BYTES = 17, 4, 1_000_000


class Written(NamedTuple):
    """One record that was answered."""

    payload: str
    tag: str | None
    # When the write was sent for the first time, and when it was answered.
    begun_ms: int
    begun_ns: int
    ended_ns: int


class Deleted(NamedTuple):
    """An answered delete of all red records."""

    begun_ns: int
    ended_ns: int


@dataclass
class Ledger:
    """The answers to writers. Writers add them one at a time; the judge reads when all writers have ended."""

    records: dict[str, dict[int, Written]] = field(default_factory=lambda: defaultdict(dict))
    # Payloads of the topic that is created again, by instance.
    renewed: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    deletes: list[Deleted] = field(default_factory=list)
    deleted_count: int = 0
    writes: int = 0
    # Keys that were sent again without an answer; how many of them were already written.
    retried: int = 0
    deduped: int = 0
    heavy_writes: int = 0
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, write: Write, tag: str | None, answer: Any, unanswered: int, begun: tuple[int, int]) -> None:
        ended_ns = now_ns()
        with self.lock:
            self.writes += 1
            self.retried += unanswered > 0
            self.deduped += answer["deduped"]
            if answer["deduped"] and not unanswered:
                self.faults.append(f"{write.topic} {write.key}: deduped, and never sent before")
            if len(answer["seqs"]) != len(write.payloads):
                self.faults.append(f"{write.topic} {write.key}: {len(write.payloads)} records got {answer['seqs']}")
            for seq, payload in zip(answer["seqs"], write.payloads, strict=False):
                before = self.records[write.topic].setdefault(seq, Written(payload, tag, *begun, ended_ns))
                if before.payload != payload:
                    self.faults.append(f"{write.topic} {seq}: answered for {before.payload!r}, then for {payload!r}")

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    def answered_head(self, topic: str) -> int:
        """The highest seq that was answered so far."""
        with self.lock:
            return max(self.records[topic], default=0)


class Loader(LiveClient):
    """A client that writes with unique keys."""

    def __init__(self, name: str, board: Board, seed: int, ledger: Ledger) -> None:
        super().__init__(name, board, seed)
        self.ledger = ledger
        self._keys = 0

    def write(self, topic: str, count: int, tag: str | None = None, text: str | None = None) -> int:
        """Writes `count` records. Returns the last seq."""
        self._keys += 1
        key = f"{self.name}-{self._keys}"
        filler = "x" * self.dice.randrange(90)
        payloads = tuple(f"{text or key} {place} {filler}" for place in range(count))
        write = Write(topic, key, payloads)
        body = {"idempotency_key": key, "records": [{"data": payload, "tag": tag} for payload in payloads]}
        begun = wall_ms(), now_ns()
        status, answer, unanswered = self.insist("POST", f"/v0/topics/{topic}", body)
        assert status == 200, (status, answer)
        self.ledger.note(write, tag, answer, unanswered, begun)
        self.board.note_ack()
        last_seq: int = answer["last_seq"]
        return last_seq


class LiveWriter(Loader):
    """Single records and batches to any log, and jobs to any queue."""

    def work(self) -> None:
        while not self.board.is_over.is_set():
            if self.dice.random() < 0.25:
                self.write(self.dice.choice(list(QUEUES)), self.dice.choice((1, 1, 3)))
                continue
            topic = self.dice.choice(list(LOGS))
            last_seq = self.write(topic, self.dice.choice((1, 1, 1, 2, 5, 20)), self.dice.choice(TAGS))
            if topic == SYNCED and self.dice.random() < 0.1:
                self._look_at_copy(last_seq)

    def _look_at_copy(self, last_seq: int) -> None:
        """Checks that the copy has a record that was answered before the read, with the same seq as in the source."""
        _, state, _ = self.insist("GET", f"/v0/topics/{COPY_ALL}")
        if state["head_seq"] < last_seq:
            self.ledger.fault(f"{COPY_ALL}: its head is {state['head_seq']} when its source was at {last_seq}")


class Deleter(Loader):
    """Deletes all red records from time to time."""

    def work(self) -> None:
        while not self.board.is_over.is_set():
            self.write(ERASED, 3, "red")
            self.write(ERASED, 1)
            while True:
                begun_ns = now_ns()
                status, answer, unanswered = self.insist("POST", f"/v0/topics/{ERASED}/delete", {"match": "red"})
                assert status == 200, (status, answer)
                with self.ledger.lock:
                    self.ledger.deleted_count += answer["deleted"]
                if not unanswered:
                    # Only for a request without retries is it known when the answered try began.
                    break
            with self.ledger.lock:
                self.ledger.deletes.append(Deleted(begun_ns, now_ns()))


class Renewer(Loader):
    """Deletes its topic and creates it again. No other client writes to it. A record names the instance of its
    topic."""

    def work(self) -> None:
        instance = 1
        while not self.board.is_over.is_set():
            for _ in range(self.dice.randint(1, 8)):
                self._write_to(instance, self.dice.choice((1, 1, 4)))
            _, answer, unanswered = self.insist("DELETE", f"/v0/topics/{RENEWED}")
            if not answer["deleted"] and not unanswered:
                self.ledger.fault(f"{RENEWED}: instance {instance} was gone before it was deleted")
            self.insist("PUT", f"/v0/topics/{RENEWED}", {"idempotency_window_ms": KEY_WINDOW_MS})
            instance += 1
        self._write_to(instance, 1)

    def _write_to(self, instance: int, count: int) -> None:
        self._keys += 1
        records = self.ledger.renewed[instance]
        payloads = [f"{instance} {len(records) + place}" for place in range(count)]
        body = {"idempotency_key": f"{self._keys}", "records": [{"data": payload} for payload in payloads]}
        status, answer, _ = self.insist("POST", f"/v0/topics/{RENEWED}", body)
        first_seq = len(records) + 1
        if status != 200 or answer["seqs"] != list(range(first_seq, first_seq + count)):
            self.ledger.fault(f"{RENEWED}: instance {instance} at {first_seq} was answered with {answer}")
        records += payloads


class HeavyWriter(LiveClient):
    """Makes some processes write a checkpoint under load."""

    def __init__(self, name: str, board: Board, seed: int, ledger: Ledger) -> None:
        super().__init__(name, board, seed)
        self._ledger = ledger

    def work(self) -> None:
        records = [{"data": "x" * HEAVY_BYTES}] * HEAVY_RECORDS
        while not self.board.is_over.is_set():
            for _ in range(HEAVY_BATCHES):
                if self.insist("POST", f"/v0/topics/{HEAVY}", {"records": records})[2]:
                    # Another process runs by now. It gets some time before the next checkpoint.
                    break
                self._ledger.heavy_writes += 1
            self.board.is_over.wait(self.dice.uniform(0, 4))
