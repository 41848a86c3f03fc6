"""Workers of queues on a driven engine. Each call flushes until it is answered, and raises errors."""

from typing import Any

import msgspec

from tests.engine.driver import SMALL, Driver
from topics.engine.queues.jobs import Claimed, Counters
from topics.engine.queues.queues import Queues
from topics.engine.settings import EngineSettings
from topics.errors import TopicsError
from topics.results import Extended, Job, Settled
from topics.storage.fs import Fs
from topics.testing.fake_disk import FakeDisk

# A claim reserves ids, logs its leases, and moves dead letters. Each of these takes one turn.
TURNS_MAX = 8


class QueueDriver(Driver):
    """A driver with a queue `q`. The queue is created if it does not exist."""

    def __init__(
        self, settings: EngineSettings = SMALL, *, disk: FakeDisk | None = None, fs: Fs | None = None, **config: Any
    ) -> None:
        super().__init__(settings, disk=disk, fs=fs)
        if "q" not in self.opened.engine.topics:
            self.put("q", type="queue", **config)

    @property
    def queues(self) -> Queues:
        return self.opened.engine.queues

    def settle(self, answers: list[Any]) -> Any:
        for _ in range(TURNS_MAX):
            self.opened.engine.flush()
        assert len(answers) == 1
        if isinstance(answers[0], TopicsError):
            raise answers[0]
        return answers[0]

    def add(self, *payloads: Any, topic: str = "q") -> None:
        self.append(*payloads, topic=topic)

    def start_claim(
        self, node: str = "w", max_jobs: int = 1, *, lease_ms: int | None = None, topic: str = "q"
    ) -> list[Any]:
        answers: list[Any] = []
        self.queues.claim(topic, node, max_jobs, lease_ms, answers.append)
        return answers

    def claim(self, node: str = "w", max_jobs: int = 1, *, lease_ms: int | None = None, topic: str = "q") -> list[Job]:
        claimed: Claimed = self.settle(self.start_claim(node, max_jobs, lease_ms=lease_ms, topic=topic))
        return claimed.jobs

    def claimed_seqs(self, node: str = "w", max_jobs: int = 1, **rest: Any) -> list[int]:
        return [job.seq for job in self.claim(node, max_jobs, **rest)]

    def ack(self, node: str, *seqs: int, lease_ids: Any = (), topic: str = "q") -> Settled:
        answers: list[Any] = []
        self.queues.ack(topic, node, seqs, lease_ids, answers.append)
        settled: Settled = self.settle(answers)
        return settled

    def nack(
        self,
        node: str,
        *seqs: int,
        lease_ids: Any = (),
        delay_ms: int = 0,
        reason: str = "",
        topic: str = "q",
    ) -> Settled:
        answers: list[Any] = []
        self.queues.nack(topic, node, seqs, lease_ids, delay_ms, answers.append, reason=reason)
        settled: Settled = self.settle(answers)
        return settled

    def extend(self, node: str, *seqs: int, lease_ms: int, lease_ids: Any = (), topic: str = "q") -> Extended:
        answers: list[Any] = []
        self.queues.extend(topic, node, seqs, lease_ids, lease_ms, answers.append)
        extended: Extended = self.settle(answers)
        return extended

    def counters(self, topic: str = "q") -> Counters:
        return self.queues.counters(topic)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.runtime.pass_time(ms)

    def letters(self, topic: str = "dead") -> list[tuple[Any, Any]]:
        """(data, seq it had in its queue) of dead letters."""
        if topic not in self.opened.engine.topics:
            return []
        return [
            (msgspec.json.decode(record.data), int(msgspec.json.decode(record.meta or b"")["$dead_letter_src_seq"]))
            for record in self.read(topic=topic).records
        ]
