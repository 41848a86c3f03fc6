"""Random histories over a cold tier that fails at any call: deletes are whole, nothing comes back, numbers are exact
once the tier has answered."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import FULL, SEED
from tests.engine.cold_log import ColdLog
from topics.errors import ColdUnavailable
from topics.limits import COLD_COLUMNS_RETRY_MS
from topics.testing.fake_disk import FakeDisk

HISTORIES = 300 if FULL else 40
STEPS = 60


@dataclass
class Model:
    """The live records: seq -> (size, tag, time). A cap or an age may have evicted records below `floor`."""

    cap_records: int = 0
    ttl_ms: int = 0
    head_seq: int = 0
    records: dict[int, tuple[int, str, int]] = field(default_factory=dict)

    def append(self, size: int, tag: str, now_ms: int) -> None:
        self.head_seq += 1
        self.records[self.head_seq] = (size, tag, now_ms)

    def evict(self, now_ms: int) -> None:
        floor = self.head_seq - self.cap_records if self.cap_records else 0
        for seq, (_, _, ts) in list(self.records.items()):
            if seq <= floor or (self.ttl_ms and now_ms - ts > self.ttl_ms):
                del self.records[seq]

    def delete(self, *, before_seq: int | None = None, tag: str | None = None, seqs: list[int] | None = None) -> int:
        doomed = [
            seq
            for seq, (_, found, _) in self.records.items()
            if (before_seq is None or seq < before_seq)
            and (tag is None or found == tag)
            and (seqs is None or seq in seqs)
        ]
        for seq in doomed:
            del self.records[seq]
        return len(doomed)


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = FakeDisk()
        self.log = ColdLog(self.disk)
        config = self.random.choice([{}, {"cap_records": 30}, {"ttl_ms": 3000}, {"cap_records": 25, "ttl_ms": 4000}])
        self.model = Model(**config)
        self.log.create(durability="fsync", **config)
        self.number = 0

    def step(self) -> None:
        step = self.random.choice(
            [self.append, self.append, self.append, self.delete, self.delete, self.move, self.break_tier, self.restart]
        )
        step()
        self.log.clock.advance(self.random.randrange(200))
        assert self.log.tier.calls_of_owner == []

    def append(self) -> None:
        for _ in range(self.random.randrange(1, 9)):
            self.number += 1
            self.log.write(self.number)
            self.model.append(self.log.size_of(self.number), f"t{self.number % 3}", self.log.engine.now_ms())

    def delete(self) -> None:
        seqs = [self.random.randrange(1, self.model.head_seq + 2) for _ in range(4)]
        what: dict[str, Any] = self.random.choice(
            [{"tag": "t1"}, {"tag": "t2", "before_seq": seqs[0]}, {"before_seq": seqs[0]}, {"seqs": seqs}]
        )
        answers: list[Any] = []
        self.log.engine.delete_records("a", answers.append, **what)
        self.log.engine.flush()
        (answer,) = answers
        if isinstance(answer, ColdUnavailable):
            return
        self.model.evict(self.log.engine.now_ms())
        self.model.delete(**what)

    def move(self) -> None:
        self.log.settle()

    def break_tier(self) -> None:
        self.log.tier.fail_after(self.random.randrange(12))

    def restart(self) -> None:
        is_down = self.log.tier.calls_left is not None
        self.disk.kill()
        self.log = ColdLog(self.disk, clock=self.log.clock, is_down=is_down)

    def check(self) -> None:
        """The tier answers again: everything is as the model says."""
        log = self.log
        log.tier.heal()
        log.clock.advance(COLD_COLUMNS_RETRY_MS)
        for _ in range(3):
            self.append()
            log.topic().refresh(log.engine.now_ms())
            log.engine.flush()
        self.model.evict(log.engine.now_ms())
        records, _ = log.read()
        assert {record.seq: len(record.data) for record in records} == {
            seq: size for seq, (size, _, _) in self.model.records.items()
        }
        assert log.topic().count == len(records)
        assert log.topic().size_bytes == sum(len(record.data) for record in records)


@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_a_history_over_a_failing_tier_ends_as_the_model_says(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        if history.random.random() < 0.1:
            history.check()
    history.check()
