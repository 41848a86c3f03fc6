"""A source, routers and their dests on a fake disk, and what is known of the copies: for sweeps.

| Topic | Fed by |
|---|---|
| `copy` | one router from `source`: copies without frames |
| `chain` | one router from `copy` |
| `pair` | two routers from `source`: copies that are logged |

What was asked for is noted before the engine sees it, what was answered when the answer comes. After a crash `check`
holds what is found against that: what a reader saw under a seq is there under it, nothing is there twice, and what
was written, and answered, behind an answered router arrives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.crash.engine_world import EngineWorld
from tests.crash.harness import SETTINGS
from topics.engine.config import TopicConfig
from topics.engine.intake import NewRecord, batch_of_records
from topics.engine.router import RouterSpec
from topics.engine.settings import EngineSettings

DESTS: Final = ("copy", "chain", "pair")
# Router -> how often a record comes to `pair` at most.
COPIES_MAX: Final = {"copy": 1, "chain": 1, "pair": 2}


@dataclass
class Known:
    # Dest -> payloads that must come to it: written and answered behind its routers.
    due: dict[str, set[int]] = field(default_factory=lambda: {dest: set() for dest in DESTS})
    # Dest -> seq -> payload, as a reader got it.
    seen: dict[str, dict[int, int]] = field(default_factory=lambda: {dest: {} for dest in DESTS})
    # Dest, and the source -> payloads that were to be deleted.
    deleted: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in (*DESTS, "source")})
    routers: set[str] = field(default_factory=set)


class RouterWorld(EngineWorld):
    turns = 4

    def __init__(self, settings: EngineSettings = SETTINGS, durability: Any = "fsync") -> None:
        super().__init__(settings)
        self.durability = durability
        self.known = Known()

    # Calls.

    def put(self) -> None:
        for name in ("source", *DESTS):
            answers: list[Any] = []
            self.engine.put_topic(name, TopicConfig(durability=self.durability), answers.append)
            self._answer(answers)

    def route(self, name: str, source: str, dest: str, **spec: Any) -> None:
        answers: list[Any] = []
        self.engine.put_router(name, RouterSpec(source=source, dest=dest, **spec), answers.append)
        self._answer(answers)
        self.known.routers.add(name)

    def unroute(self, name: str) -> None:
        self.known.routers.discard(name)
        answers: list[Any] = []
        self.engine.delete_router(name, answers.append)
        assert self._answer(answers) is True

    def write(self, count: int, topic: str = "source") -> None:
        payloads = list(range(self.number + 1, self.number + count + 1))
        self.number += count
        answers: list[Any] = []
        batch = batch_of_records(NewRecord(payload, tag=f"t{payload % 3}") for payload in payloads)
        self.engine.append(topic, batch, answers.append, create=False)
        self._answer(answers)
        due, routers = self.known.due, self.known.routers
        if topic == "copy" or (topic == "source" and "copy" in routers):
            due["copy"].update(payloads)
            if "chain" in routers:
                due["chain"].update(payloads)
        if topic == "source" and "pair" in routers:
            due["pair"].update(payloads)

    def delete(self, topic: str, payloads: list[int], seqs: list[int]) -> None:
        self.known.deleted[topic].update(payloads)
        answers: list[Any] = []
        self.engine.delete_records(topic, answers.append, seqs=seqs)
        self._answer(answers)

    def delete_first(self, topic: str, count: int) -> None:
        """The oldest records that are there."""
        records = self.records(topic)[:count]
        self.delete(topic, [payload for _, payload in records], [seq for seq, _ in records])

    def checkpoint(self) -> None:
        outcome: list[Any] = []
        self.opened.checkpointer.start(outcome.append)
        assert outcome == [None]

    # What is there.

    def records(self, name: str) -> list[tuple[int, int]]:
        """(seq, payload), in order."""
        if name not in self.engine.topics:
            return []
        page = self.engine.read(name, limit=1000)
        assert page.tombstone is None
        return [(record.seq, msgspec.json.decode(record.data)) for record in page.records]

    def look(self) -> None:
        """Somebody reads every dest. What was read stays."""
        for name in DESTS:
            self.known.seen[name].update(self.records(name))

    def check(self) -> None:
        known = self.known
        for name in DESTS:
            found = self.records(name)
            there = dict(found)
            gone = known.deleted[name]
            for seq, payload in known.seen[name].items():
                if payload not in gone:
                    assert there.get(seq) == payload, f"{name} {seq}: what was read is there, under its seq"
            counts = Counter(payload for _, payload in found)
            assert max(counts.values(), default=0) <= COPIES_MAX[name], f"{name}: no copy is made twice"
            # A record that was deleted on the way may or may not have been copied before.
            on_the_way = known.deleted["source"] | (known.deleted["copy"] if name == "chain" else set())
            missing = known.due[name] - gone - on_the_way - set(counts)
            assert not missing, f"{name}: what was written behind a router arrives: {missing}"
        assert known.routers <= set(self.engine.routers)
        self.look()
