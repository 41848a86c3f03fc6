"""An engine with a writer that stages and commits, and the expected records across crashes.

Records of a commit are `[epoch, place]`, records of other writes are numbers. After a crash each epoch is there whole,
in order and once, or not at all, and the ledger lists exactly the epochs that are there. An answered commit is there,
as far as the class promises it. A chunk that was answered as staged need not be staged again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tests.crash.engine_world import EngineWorld
from tests.crash.harness import ROOT, SETTINGS, Blow
from tests.engine.staging_log import SteppedCommits
from topics.engine.config import TopicConfig
from topics.engine.settings import EngineSettings
from topics.engine.starting.recovery import open_engine
from topics.engine.writing.intake import batch_of_payloads
from topics.engine.writing.staging import StagedPart
from topics.errors import StageIncomplete
from topics.formats.snapshot import WriterState
from topics.storage.checkpoints.runner import InlineRunner

WRITER = "writer:1"
# Part 0 has two chunks, part 1 one, part 2 none.
CHUNKS = (((0, 0), 3), ((0, 1), 4), ((1, 0), 3))
PARTS = [StagedPart(0, 0, 2, 7), StagedPart(1, 0, 1, 3), StagedPart(2, 0, 0, 0)]
EPOCH_RECORDS = sum(count for _, count in CHUNKS)


class WritersWorld(EngineWorld):
    turns = 8

    def __init__(self, settings: EngineSettings = SETTINGS, durability: Any = "fsync") -> None:
        super().__init__(settings)
        self.config = TopicConfig(durability=durability)
        self.staged: set[tuple[int, int, int]] = set()
        self.asked: set[int] = set()
        self.committed: dict[int, tuple[int, int]] = {}
        self.written: set[int] = set()
        self.runtime: SteppedCommits

    def open(self) -> None:
        self.runtime = SteppedCommits()
        self.opened = open_engine(
            self.disk,
            ROOT,
            settings=self.settings,
            clock=self.clock,
            runtime=self.runtime,
            runner=InlineRunner(self.disk),
        )

    def crash(self, blow: Blow, seed: int = 0) -> None:
        super().crash(blow, seed)
        if blow is None:
            return
        if self.config.durability == "memory":
            # Any suffix may be lost, and lost epochs can be committed again.
            self.committed.clear()
        if self.config.durability != "fsync":
            self.written.clear()

    # Calls.

    def put(self) -> None:
        for name in ("t", "other"):
            answers: list[Any] = []
            self.engine.put_topic(name, self.config, answers.append)
            self._answer(answers)

    def add(self, count: int, name: str = "t") -> None:
        payloads = list(range(self.number + 1, self.number + count + 1))
        self.number += count
        answers: list[Any] = []
        self.engine.append(name, batch_of_payloads(payloads), answers.append, create=False)
        self._answer(answers)
        if name == "t":
            self.written.update(payloads)

    def stage(self, epoch: int, *, attempt: int = 0, chunks: tuple[Any, ...] = CHUNKS) -> None:
        place = 0
        for (part, chunk), count in CHUNKS:
            payloads = [[epoch, place + offset] for offset in range(count)]
            place += count
            if ((part, chunk), count) not in chunks:
                continue
            answers: list[Any] = []
            batch = batch_of_payloads(payloads)
            self.engine.staging.stage("t", WRITER, (epoch, part, attempt, chunk), batch, answers.append)
            self._answer(answers)
            if attempt == 0:
                self.staged.add((epoch, part, chunk))

    def commit(self, epoch: int) -> None:
        """Commits, with writes to this topic and to another topic between the turns."""
        self.asked.add(epoch)
        answers: list[Any] = []
        self.engine.commits.commit("t", WRITER, epoch, PARTS, answers.append)
        late: list[Any] = []
        if not answers:
            self.number += 1
            late_payload = self.number
            self.engine.append("t", batch_of_payloads([late_payload]), late.append, create=False)
            while self.runtime.turns.step():
                self.add(1, "other")
                self.engine.wal.tick()
        committed = self._answer(answers)
        if late:
            self._answer(late)
            self.written.add(late_payload)
        state = self.engine.topic("t").writers[WRITER]
        assert state.epoch >= epoch
        if committed.first_seq is not None:
            seqs = (committed.first_seq, committed.last_seq)
            assert self.committed.setdefault(epoch, seqs) == seqs, "a repeat tells the same seqs"
            assert committed.count == EPOCH_RECORDS

    def checkpoint(self) -> None:
        outcome: list[Any] = []
        self.opened.checkpointer.start(outcome.append)
        assert outcome == [None]

    # What is there.

    def found(self) -> tuple[dict[int, list[tuple[int, int]]], set[int]]:
        """Epoch -> (place, seq) of its records; and the records of other writes."""
        epochs: dict[int, list[tuple[int, int]]] = {}
        plain: list[int] = []
        if "t" not in self.engine.topics:
            return {}, set()
        from_seq, caught_up = 0, False
        while not caught_up:
            page = self.engine.read("t", from_seq, limit=1000)
            for record in page.records:
                payload = msgspec.json.decode(record.data)
                if isinstance(payload, list):
                    epochs.setdefault(payload[0], []).append((payload[1], record.seq))
                else:
                    plain.append(payload)
            from_seq, caught_up = page.next_from_seq, page.caught_up
        assert len(set(plain)) == len(plain)
        return epochs, set(plain)

    def check(self) -> None:
        epochs, plain = self.found()
        for epoch, rows in epochs.items():
            first_seq = rows[0][1]
            whole = [(place, first_seq + place) for place in range(EPOCH_RECORDS)]
            assert rows == whole, f"epoch {epoch} is there whole, in order and once: {rows}"
        assert set(epochs) <= self.asked
        assert set(self.committed) <= set(epochs), "what was answered is there"
        for epoch, (first_seq, last_seq) in self.committed.items():
            assert (epochs[epoch][0][1], epochs[epoch][-1][1]) == (first_seq, last_seq)
        assert self.written <= plain
        if "t" not in self.engine.topics:
            return
        known = self.engine.topic("t").writers.get(WRITER)
        newest = max(epochs, default=None)
        if newest is None:
            assert known is None, "the ledger is not ahead of the records"
        else:
            rows = epochs[newest]
            assert known == WriterState(WRITER, newest, rows[0][1], rows[-1][1]), "nor behind them"

    def finish(self) -> None:
        """The writer commits all its epochs again, in order. Each is there once."""
        for epoch in sorted(self.asked):
            try:
                self.commit(epoch)
            except StageIncomplete:
                # Only chunks that were never answered may be missing. A commit that is in the ledger needs no chunks.
                assert not {(epoch, part, chunk) for (part, chunk), _ in CHUNKS} <= self.staged
                self.stage(epoch)
                self.commit(epoch)
        self.check()
        assert set(self.found()[0]) == self.asked
