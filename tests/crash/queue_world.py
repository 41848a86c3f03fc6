"""A queue and its dead-letter topic on a fake disk, and the expected state of their jobs: for sweeps.

Each call is noted before the engine gets it, and its answer when it comes. After a crash `check` compares the engine
with these notes: an acked job is gone, every other job is in exactly one place, answered leases are there, and no lease
id is given out twice.

A power loss may take calls of a queue that is not `fsync`, but only calls that no sync came after. Its cap is smaller
than a reservation of seqs and larger than the number of jobs: it evicts none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.crash.engine_world import EngineWorld
from tests.crash.harness import SETTINGS, Blow, read_all
from topics.engine.config import TopicConfig
from topics.engine.queues.jobs import Claimed
from topics.engine.queues.redrive import RedriveSpec
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.writing.intake import batch_of_payloads
from topics.results import Settled

MAX_DELIVERIES: Final = 2
WORKER: Final = "w"
CAP_RECORDS: Final = 40
# More than a redrive of a few jobs takes.
REDRIVE_TURNS: Final = 12


@dataclass
class Known:
    """What is known of each job. The key is its payload, which is unique."""

    written: set[int] = field(default_factory=set)
    acks_asked: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    deliveries: Counter[int] = field(default_factory=Counter)
    # (seq, lease id) of answered claims without a later call about the lease.
    leased: dict[int, tuple[int, int]] = field(default_factory=dict)
    highest_id: int = 0
    # Jobs and acks that a sync came after.
    synced: set[int] = field(default_factory=set)
    synced_acks: set[int] = field(default_factory=set)
    # Whether the power was lost since the last check.
    power_lost: bool = False


class QueueWorld(EngineWorld):
    # A claim reserves ids, logs its leases, and moves dead letters. Each of these takes one turn.
    turns = 6

    def __init__(
        self,
        settings: EngineSettings = SETTINGS,
        durability: Any = "fsync",
        *,
        durable: bool = True,
        dead_durability: Any = None,
    ) -> None:
        super().__init__(settings)
        self.dead_durability = dead_durability or durability
        self.known = Known()
        self.durable = durable
        self.config = TopicConfig(
            type="queue",
            durability=durability,
            leases_durable=durable,
            max_deliveries=MAX_DELIVERIES,
            dead_letter="dead",
            lease_ms=86_400_000,
            cap_records=CAP_RECORDS,
        )

    def close(self) -> None:
        super().close()
        self._note_synced()
        self.forget_leases()

    def crash(self, blow: Blow, seed: int = 0) -> None:
        super().crash(blow, seed)
        self.known.power_lost |= blow is not None

    def tick(self) -> None:
        """Time passes, and the background sync runs."""
        self.clock.advance(100)
        self.engine.wal.tick()
        self._note_synced()

    def _note_synced(self) -> None:
        self.known.synced, self.known.synced_acks = set(self.known.written), set(self.known.acked)

    def forget_leases(self) -> None:
        if not self.durable:
            self.known.leased.clear()

    # Calls.

    def put(self) -> None:
        answers: list[Any] = []
        self.engine.put_topic("q", self.config, answers.append)
        self._answer(answers)
        answers = []
        self.engine.put_topic("dead", TopicConfig(durability=self.dead_durability), answers.append)
        self._answer(answers)

    def add(self, count: int) -> None:
        payloads = list(range(self.number + 1, self.number + count + 1))
        self.number += count
        answers: list[Any] = []
        self.engine.append("q", batch_of_payloads(payloads), answers.append, create=False)
        self._answer(answers)
        self.known.written.update(payloads)

    def claim(self, max_jobs: int) -> list[int]:
        """Payloads of the claimed jobs."""
        answers: list[Any] = []
        self.engine.queues.claim("q", WORKER, max_jobs, None, answers.append)
        claimed: Claimed = self._answer(answers)
        got = []
        for job in claimed.jobs:
            payload = msgspec.json.decode(job.data)
            got.append(payload)
            self.known.deliveries[payload] += 1
            self.known.leased[payload] = (job.seq, job.lease_id)
            assert job.lease_id > self.known.highest_id, "lease ids go up and are never given out again"
            self.known.highest_id = job.lease_id
        return got

    def _leases(self, payloads: list[int]) -> tuple[list[int], list[int]]:
        leases = [self.known.leased.pop(payload) for payload in payloads]
        return [seq for seq, _ in leases], [lease_id for _, lease_id in leases]

    def ack(self, payloads: list[int]) -> None:
        self.known.acks_asked.update(payloads)
        answers: list[Any] = []
        self.engine.queues.ack("q", WORKER, *self._leases(payloads), answers.append)
        settled: Settled = self._answer(answers)
        assert settled.settled == len(payloads)
        self.known.acked.update(payloads)

    def nack(self, payloads: list[int]) -> None:
        answers: list[Any] = []
        self.engine.queues.nack("q", WORKER, *self._leases(payloads), 0, answers.append)
        assert self._answer(answers).settled == len(payloads)

    def redrive(self, limit: int) -> None:
        """Dead letters go back into the queue: their deliveries are counted anew."""
        for payload in self.found("dead"):
            self.known.deliveries.pop(payload, None)
        answers: list[Any] = []
        self.engine.queues.redrive("q", RedriveSpec(limit=limit), answers.append)
        runtime = self.engine.runtime
        assert isinstance(runtime, InlineRuntime)
        for _ in range(REDRIVE_TURNS):
            self.engine.flush()
            runtime.take_turn()
        self._answer(answers)

    def checkpoint(self) -> None:
        outcome: list[Any] = []
        self.opened.checkpointer.start(outcome.append)
        assert outcome == [None]
        self._note_synced()

    # What is there.

    def found(self, name: str) -> list[int]:
        """Payloads, in order."""
        if name not in self.engine.topics:
            return []
        return [msgspec.json.decode(record.data) for record in read_all(self.engine, name, limit=1000)[0].values()]

    def check(self) -> None:
        known = self.known
        queue, dead = self.found("q"), self.found("dead")
        assert len(set(queue)) == len(queue)
        assert len(set(dead)) == len(dead), "a dead letter is there once"
        assert not set(queue) & set(dead), "a job is in one place"
        there = set(queue) | set(dead)
        if known.power_lost and self.config.durability != "fsync":
            self._accept_losses(there)
        known.power_lost = False
        assert not known.acked & there, "an acked job is gone"
        assert known.written - known.acks_asked <= there, "a job without an ack is there"
        if "q" not in self.engine.topics:
            return
        ready, in_flight, _ = self.engine.queues.counters("q")
        assert ready + in_flight == len(queue)
        if self.durable:
            # There was no call about these leases since they were granted.
            leases = [lease for payload, lease in known.leased.items() if payload in queue]
            assert set(self.engine.queues.live_leases("q", leases)) == set(leases)
            assert max(known.deliveries.values(), default=0) <= MAX_DELIVERIES
        else:
            assert in_flight == 0 or known.leased

    def _accept_losses(self, there: set[int]) -> None:
        """Calls that were not synced may be lost. What the start found is durable from now on."""
        known = self.known
        assert known.synced - known.acks_asked <= there, "a job that was synced and has no ack is there"
        assert not known.synced_acks & there, "a job whose ack was synced is gone"
        known.written &= there | known.acks_asked
        known.acked -= there
        known.leased.clear()
        known.deliveries.clear()
        self._note_synced()

    def finish(self) -> None:
        """Claims and acks all jobs that are left, also jobs whose lease of another node has ended."""
        self.clock.advance(86_400_001)
        self.known.leased.clear()
        while got := self.claim(4):
            self.ack(got)
        assert self.found("q") == []
