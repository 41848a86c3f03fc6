"""A queue compared with a small model, with restarts and crashes between the steps.

Checked: a job has one lease at most, an acked job is gone, deliveries are counted, old tokens do nothing. Claims that
wait get jobs in the order in which they came, and none waits while a job is ready.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.conftest import FULL
from tests.engine.driver import SMALL
from tests.engine.queue_driver import QueueDriver
from topics.engine.queues.jobs import Claim
from topics.engine.queues.redrive import RedriveSpec
from topics.errors import Closed
from topics.results import Job
from topics.testing.fake_disk import Damage

NODES = st.sampled_from(["a", "b"])
NO_LEASE = 2**60
TIMES_MS = st.sampled_from([1, 99, 100, 101, 500, 2000])
LEASES_MS = st.sampled_from([100, 500, 2000])


@dataclass
class ModelJob:
    deliveries: int = 0
    node: str | None = None
    lease_id: int = 0
    # Leased: the last millisecond of the lease. Delayed: the first millisecond at which the job is ready.
    until_ms: int = 0
    was_out: bool = False

    def state(self, now_ms: int) -> str:
        if self.node is not None:
            return "in flight" if now_ms <= self.until_ms else "ready"
        return "delayed" if now_ms < self.until_ms else "ready"


@dataclass
class ModelWait:
    """A claim that waits."""

    node: str
    max_jobs: int
    lease_ms: int
    claim: Claim
    answers: list[Any]


class QueueMachine(RuleBasedStateMachine):
    """All topics are class `fsync`, so every answered change must be there after any crash."""

    @initialize(leases_durable=st.booleans(), max_deliveries=st.sampled_from([0, 1, 2]), shards=st.sampled_from([1, 2]))
    def open(self, leases_durable: bool, max_deliveries: int, shards: int) -> None:
        self.leases_durable = leases_durable
        self.max_deliveries = max_deliveries
        self.driver = QueueDriver(
            replace(SMALL, wal_shards=shards),
            durability="fsync",
            leases_durable=leases_durable,
            max_deliveries=max_deliveries,
            dead_letter="dead",
            lease_ms=500,
        )
        self.driver.put("dead", durability="fsync")
        self.jobs: dict[int, ModelJob] = {}
        self.letters: list[int] = []
        # Payloads of redriven jobs: the seqs that they had first.
        self.payloads: dict[int, int] = {}
        self.head_seq = 0
        self.lease_ids: set[int] = set()
        self.stale_ids: dict[int, int] = {}
        self.line: list[ModelWait] = []

    @property
    def now_ms(self) -> int:
        return self.driver.clock.now_ms()

    def in_state(self, state: str) -> list[int]:
        return [seq for seq, job in self.jobs.items() if job.state(self.now_ms) == state]

    def held_by(self, node: str) -> list[int]:
        return [seq for seq in self.in_state("in flight") if self.jobs[seq].node == node]

    @rule(count=st.integers(1, 5))
    def add(self, count: int) -> None:
        self.driver.add(*range(self.head_seq + 1, self.head_seq + count + 1))
        for _ in range(count):
            self.head_seq += 1
            self.jobs[self.head_seq] = ModelJob()
        self.serve_line()

    def take(self, wanted: int) -> list[int]:
        """What a pass takes, in order; jobs that were delivered too often become dead letters on the way."""
        taken: list[int] = []
        for seq in sorted(self.in_state("ready"), key=lambda seq: (not self.jobs[seq].was_out, seq)):
            if len(taken) == wanted:
                break
            if 0 < self.max_deliveries <= self.jobs[seq].deliveries:
                self.letters.append(seq)
                del self.jobs[seq]
            else:
                taken.append(seq)
        return taken

    @rule(node=NODES, max_jobs=st.integers(1, 4), lease_ms=LEASES_MS)
    def claim(self, node: str, max_jobs: int, lease_ms: int) -> None:
        expected = self.take(max_jobs)
        self.note_claimed(self.driver.claim(node, max_jobs, lease_ms=lease_ms), expected, node, lease_ms)

    def note_claimed(self, claimed: list[Job], expected: list[int], node: str, lease_ms: int) -> None:
        assert [job.seq for job in claimed] == sorted(expected)
        for job in claimed:
            model = self.jobs[job.seq]
            assert job.lease_id not in self.lease_ids, "a lease id is given out once"
            self.lease_ids.add(job.lease_id)
            self.stale_ids[job.seq] = model.lease_id
            assert job.deliveries == model.deliveries + 1
            assert job.deadline == self.now_ms + lease_ms
            assert job.data == b"%d" % self.payloads.get(job.seq, job.seq)
            self.jobs[job.seq] = ModelJob(job.deliveries, node, job.lease_id, job.deadline, was_out=True)

    @rule(
        node=NODES,
        max_jobs=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        lease_ms=LEASES_MS,
        event=st.sampled_from(["add", "disconnect", "time", "nothing"]),
    )
    def wait(self, node: str, max_jobs: list[int], lease_ms: int, event: str) -> None:
        """Claims wait, and then jobs come or come back; or the claims wait on. One rule, because a run has only some of
        the rules."""
        if not self.jobs:
            self.add(3)
        while self.in_state("ready"):
            self.claim(node, 2, lease_ms)
        for count in max_jobs:
            answers: list[Any] = []
            claim = self.driver.queues.claim("q", node, count, lease_ms, answers.append, waits=True)
            self.line.append(ModelWait(node, count, lease_ms, claim, answers))
            self.serve_line()
        if event == "add":
            self.add(len(max_jobs) + 1)
        elif event == "disconnect":
            self.disconnect(node)
        elif event == "time":
            self.pass_time(lease_ms + 1)

    def serve_line(self) -> None:
        """Jobs may have become ready: the oldest claims of the line get them, one job a turn."""
        for _ in range(16):
            self.driver.opened.engine.flush()
        while self.line and (ready := self.in_state("ready")):
            claims = self.line[: len(ready)]
            hands: dict[int, list[int]] = {place: [] for place in range(len(claims))}
            hungry = list(hands)
            for seq in self.take(sum(claim.max_jobs for claim in claims)):
                place = hungry.pop(0)
                hands[place].append(seq)
                if len(hands[place]) < claims[place].max_jobs:
                    hungry.append(place)
            for place, seqs in hands.items():
                if seqs:
                    waited = claims[place]
                    self.line.remove(waited)
                    self.note_claimed(waited.answers[0].jobs, seqs, waited.node, waited.lease_ms)
        assert all(waited.answers == [] for waited in self.line)

    @rule(data=st.data(), cancel=st.booleans())
    def stop_waiting(self, data: st.DataObject, cancel: bool) -> None:
        if self.line:
            waited = self.line.pop(data.draw(st.integers(0, len(self.line) - 1)))
            (self.driver.queues.cancel if cancel else self.driver.queues.end_wait)(waited.claim)
            self.driver.opened.engine.flush()
            assert [answer.jobs for answer in waited.answers] == ([] if cancel else [[]])

    @rule(
        data=st.data(),
        node=NODES,
        verb=st.sampled_from(["ack", "nack", "delay", "extend"]),
        token=st.sampled_from(["none", "current", "stale"]),
    )
    def act(self, data: st.DataObject, node: str, verb: str, token: str) -> None:
        seqs = data.draw(st.lists(st.integers(1, self.head_seq + 1), max_size=4))
        lease_ids: list[int | None] = []
        for seq in seqs:
            if token == "current":
                lease_ids.append(self.jobs[seq].lease_id if seq in self.jobs else NO_LEASE)
            elif token == "stale":
                lease_ids.append(self.stale_ids.get(seq, NO_LEASE))
        acted_on: list[int] = []
        for seq in seqs:
            if seq in self.held_by(node) and seq not in acted_on and token != "stale":
                acted_on.append(seq)
        skipped = list(seqs)
        for seq in acted_on:
            skipped.remove(seq)
        until_ms = self.now_ms + 500
        if verb == "extend":
            extended = self.driver.extend(node, *seqs, lease_ids=lease_ids, lease_ms=500)
            assert extended == (dict.fromkeys(acted_on, until_ms), skipped)
        else:
            delays = {"delay_ms": 500} if verb == "delay" else {}
            call: Any = self.driver.ack if verb == "ack" else self.driver.nack
            settled = call(node, *seqs, lease_ids=lease_ids, **delays)
            assert (settled.settled, settled.skipped) == (len(acted_on), skipped)
        for seq in acted_on:
            if verb == "ack":
                del self.jobs[seq]
            elif verb == "extend":
                self.jobs[seq].until_ms = until_ms
            else:
                self.jobs[seq].node = None
                self.jobs[seq].until_ms = until_ms if verb == "delay" else 0
        self.serve_line()

    @rule(node=NODES)
    def disconnect(self, node: str) -> None:
        seqs = self.held_by(node)
        self.driver.queues.release("q", [(seq, self.jobs[seq].lease_id) for seq in seqs])
        self.driver.opened.engine.flush()
        for seq in seqs:
            self.jobs[seq].node, self.jobs[seq].until_ms = None, 0
        self.serve_line()

    @rule(limit=st.integers(0, 3))
    def redrive(self, limit: int) -> None:
        """Dead letters come back as new jobs. Their number in the model is their seq, so the payload is the old one."""
        answers: list[Any] = []
        self.driver.queues.redrive("q", RedriveSpec(limit=limit), answers.append)
        for _ in range(8):
            self.driver.opened.engine.flush()
            self.driver.runtime.take_turn()
        moved = self.letters[: limit or None]
        assert self.driver.settle(answers).moved == len(moved)
        del self.letters[: len(moved)]
        for seq in moved:
            self.head_seq += 1
            self.jobs[self.head_seq] = ModelJob()
            self.payloads[self.head_seq] = self.payloads.get(seq, seq)
        self.serve_line()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.integers(1, self.head_seq + 1), max_size=3))
        self.driver.delete("q", seqs=seqs)
        for seq in seqs:
            self.jobs.pop(seq, None)

    @rule(ms=TIMES_MS)
    def pass_time(self, ms: int) -> None:
        self.driver.pass_time(ms)
        self.serve_line()

    @rule()
    def checkpoint(self) -> None:
        self.driver.checkpoint()

    @rule(end=st.sampled_from(["reopen", "kill", "lose_power", "tear"]))
    def restart(self, end: str) -> None:
        if end == "tear":
            self.driver.lose_power(Damage.TORN)
        else:
            getattr(self.driver, end)()
        self.restarted()

    @rule(node=NODES)
    def die_before_anything_is_written(self, node: str) -> None:
        answers: list[Any] = []
        self.driver.queues.ack("q", node, self.held_by(node), [], answers.append)
        claims = self.driver.start_claim(node, 2)
        assert not self.held_by(node) or answers == []
        for claimed in claims:
            # A lease that is not durable needs no log, and its id was given out.
            self.lease_ids |= {job.lease_id for job in claimed.jobs}
        self.driver.kill()
        self.restarted()

    def restarted(self) -> None:
        for waited in self.line:
            assert waited.answers == [] or isinstance(waited.answers[0], Closed)
        self.line.clear()
        if not self.leases_durable:
            self.jobs = {seq: ModelJob() for seq in self.jobs}

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if not hasattr(self, "driver"):
            return
        queues: Any = self.driver.queues
        assert sum(len(line) for line in queues._claiming._lines.values()) == len(self.line)
        ready, in_flight, delayed = (len(self.in_state(state)) for state in ("ready", "in flight", "delayed"))
        assert self.driver.counters()[:2] == (ready, in_flight)
        assert ready + in_flight + delayed == self.driver.topic("q").count
        assert self.driver.seqs(topic="q", limit=100) == sorted(self.jobs)
        assert sorted(seq for _, seq in self.driver.letters()) == sorted(self.letters)


QueueMachine.TestCase.settings = settings(max_examples=400 if FULL else 60, stateful_step_count=50 if FULL else 30)
TestQueueMachine = QueueMachine.TestCase
