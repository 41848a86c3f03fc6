"""Topics and routers on a fake disk, and the expected records of them: for sweeps. The scenes are in `router_scenes`.

Each call is noted before the engine gets it, and its answer when it comes. After a crash `check` compares the engine
with these notes:

| Rule | Checked as |
|---|---|
| order | records that two topics of a chain both have are in the same order, with the tag, node and meta of the write |
| reads include copies | a record that was answered after its router was answered is in the dest when the dest is read |
| count | in a dest that only one router wrote to, the head is equal to the number of forwarded records |
| full dests | a full dest has no more records than its cap |
| accounted | each seq of a source that its router has come to was copied, or is one of the lost seqs in its dest |
| losses | a dest without a cap has no floor. Each record that it does not have is one of the seqs in its tombstones |
| caps | above its floor a topic has as many seqs as its cap keeps, not counting seqs in tombstones |
| once | a record that a reader got keeps its seq, and no record exists twice |
| cycles | a record in a cycle comes to each topic as often as its hops allow, and no more often |
| ephemeral | an `ephemeral` dest is empty |
| floors, routers | floors do not fall, and answered routers are there |

A power loss may take records of a topic that is not `fsync`. Then its dests must have the records that the topic still
has, and may have each of them once more. The state after that start must stay.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.crash.engine_world import EngineWorld
from tests.crash.harness import SETTINGS, Blow, expect, read_all
from topics.engine.config import TopicConfig
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.topic.appended import Appended
from topics.engine.topic.router import RouterSpec
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicsError
from topics.formats.records import Record, RecordBatch
from topics.protocol.tag_match import TagMatch
from topics.results import NewRecord
from topics.testing.fake_disk import CrashAt, CrashNow

HOPS_MAX = 8


@dataclass(frozen=True)
class Edge:
    source: str
    dest: str
    tag: str | None = None


@dataclass
class Known:
    # Router name -> its edge: of answered routers, and of all routers that were ever requested.
    routers: dict[str, Edge] = field(default_factory=dict)
    asked: dict[str, Edge] = field(default_factory=dict)
    # Router name -> its cursor when it was created.
    begun: dict[str, int] = field(default_factory=dict)
    # Payload -> the topic it was written to.
    origin: dict[int, str] = field(default_factory=dict)
    # Topic -> payloads that it must have: answered writes to it, or to a topic that routers copy from into it.
    due: dict[str, set[int]] = field(default_factory=dict)
    # Topic -> seq -> payload that a reader got.
    seen: dict[str, dict[int, int]] = field(default_factory=dict)
    # Topic -> payloads that a delete was requested for.
    deleted: dict[str, set[int]] = field(default_factory=dict)
    # Topic -> payload -> how often it may be there.
    often: dict[str, Counter[int]] = field(default_factory=dict)
    # Topic -> highest floor.
    floors: dict[str, int] = field(default_factory=dict)
    # Topics with direct writes, not only copies of a router.
    direct: set[str] = field(default_factory=set)
    # (dest, source seq) -> payload of a record that was written directly with the key of that copy.
    by_hand: dict[tuple[str, int], int] = field(default_factory=dict)
    # Since the last check.
    power_lost: bool = False
    crashed: bool = False
    # Whether a power loss may have taken a record at any time. Then two records may have had the same seq.
    has_lost: bool = False


class RouterWorld(EngineWorld):
    turns = 4

    def __init__(
        self,
        topics: dict[str, dict[str, Any]],
        durability: str = "fsync",
        settings: EngineSettings = SETTINGS,
        *,
        source_durability: str | None = None,
    ) -> None:
        super().__init__(settings)
        # Topic name -> its config members. A topic without a durability gets the one of the test case.
        self.topics = {name: {"durability": durability, **members} for name, members in topics.items()}
        self.topics["source"]["durability"] = source_durability or durability
        self.known = Known()
        # What the last check read.
        self.found: dict[str, dict[int, Record]] = {}
        # Topic -> how many seqs of it are lost, as its tombstones with the reason `source_trim` say.
        self.trimmed: dict[str, int] = {}
        # Topic -> how many seqs of it are lost, as all its tombstones but that of the floor say.
        self.lost: dict[str, int] = {}
        # Topic -> the smallest cap that it ever had.
        self.caps = {name: members["cap_records"] for name, members in topics.items() if "cap_records" in members}
        for name in topics:
            self.known.due[name], self.known.deleted[name] = set(), set()
            self.known.seen[name], self.known.often[name] = {}, Counter()

    def fork(self) -> RouterWorld:
        other = copy.copy(self)
        other.disk, other.clock, other.known = self.disk.clone(), copy.copy(self.clock), copy.deepcopy(self.known)
        other.topics = {name: dict(members) for name, members in self.topics.items()}
        other.found, other.trimmed, other.lost, other.caps = {}, {}, {}, dict(self.caps)
        return other

    def crash(self, blow: Blow, seed: int = 0) -> None:
        super().crash(blow, seed)
        self.known.crashed = True
        self.known.power_lost = self.known.power_lost or blow is not None

    def close(self) -> None:
        super().close()
        self.known.crashed = True

    def cut_short(self, call: Callable[[], object], operation_index: int) -> None:
        """Runs the calls until the power fails at that disk operation. A crash must follow."""
        self.disk.on_operation = CrashAt(operation_index)
        try:
            call()
        except CrashNow:
            pass
        finally:
            self.disk.on_operation = None

    # Calls.

    def put(self, *names: str, **members: Any) -> None:
        for name in names or self.topics:
            self.topics[name] |= members
            if cap := members.get("cap_records"):
                self.caps[name] = min(cap, self.caps.get(name, cap))
            answers: list[Any] = []
            self.engine.put_topic(name, TopicConfig(**self.topics[name]), answers.append)
            self._answer(answers)

    def route(self, name: str, source: str, dest: str, *, tag: str | None = None, **spec: Any) -> None:
        self.known.asked[name] = Edge(source, dest, tag)
        wanted = TagMatch(tag, is_prefix=False) if tag is not None else None
        answers: list[Any] = []
        self.engine.put_router(name, RouterSpec(source=source, dest=dest, filter=wanted, **spec), answers.append)
        self._answer(answers)
        self.known.routers[name] = Edge(source, dest, tag)
        self.known.begun.setdefault(name, self.engine.routers[name].cursor)

    def unroute(self, name: str) -> None:
        self.known.routers.pop(name)
        answers: list[Any] = []
        self.engine.delete_router(name, answers.append)
        assert self._answer(answers) is True

    def write(self, count: int, topic: str = "source") -> None:
        answers = self._begin_write(topic, count)
        self._answer(answers)
        if self.number % 2:
            # As in a program. Without these turns only reads make the copies.
            self._take_turns()

    def _take_turns(self) -> None:
        """The turns that follow a write by themselves."""
        runtime = self.engine.runtime
        assert isinstance(runtime, InlineRuntime)
        while runtime.take_turn():
            self.engine.flush()

    def burst(self, *topics: str) -> None:
        """Writes to several topics in one turn, with passes of the routers in between: one flush for all shards."""
        answers = []
        for topic in topics:
            answers.append(self._begin_write(topic, 1))
            self.engine.forwarder.tick()
        for answer in answers:
            self._answer(answer)

    def write_by_hand(self, dest: str, source: str, router: str) -> None:
        """A record with the key of the copy that is made of the next record of the source."""
        origin = self.engine.topics[source]
        source_seq = origin.writes.next_seq
        self.number += 1
        payload = self.number
        self.known.by_hand[dest, source_seq] = payload
        key = f"router:{router}:{origin.id}:{origin.epoch}:{source_seq}"
        meta = {"p": payload, "_topics_router": {"idempotency_key": key}}
        self._answer(self._begin_append(dest, [payload], batch_of_records([_record(payload, meta)])))

    def _begin_write(self, topic: str, count: int) -> list[Any]:
        payloads = list(range(self.number + 1, self.number + count + 1))
        self.number += count
        return self._begin_append(topic, payloads, batch_of_records(_record(payload) for payload in payloads))

    def _begin_append(self, topic: str, payloads: list[int], batch: RecordBatch) -> list[Any]:
        for payload in payloads:
            self.known.origin[payload] = topic
        self.known.direct.add(topic)
        answers: list[Any] = []

        def done(result: Appended | TopicsError) -> None:
            answers.append(result)
            if isinstance(result, Appended):
                for seq, payload in enumerate(payloads, result.first_seq):
                    self._written(topic, seq, payload)

        self.engine.append(topic, batch, done, create=False)
        return answers

    def _written(self, topic: str, seq: int, payload: int) -> None:
        """Every topic that answered routers lead to must get the record, unless a direct write has the key of the
        copy."""
        reached, ahead = {topic}, [topic]
        while ahead:
            here = ahead.pop()
            for edge in self.known.routers.values():
                passes = edge.tag is None or edge.tag == _tag(payload)
                stood_for = here == topic and (edge.dest, seq) in self.known.by_hand
                if edge.source == here and edge.dest not in reached and passes and not stood_for:
                    reached.add(edge.dest)
                    ahead.append(edge.dest)
        for name in reached:
            self.known.due[name].add(payload)

    def delete_first(self, topic: str, count: int) -> None:
        """Deletes the oldest records of the topic."""
        records = list(self.records(topic).values())[:count]
        self.known.deleted[topic].update(map(_payload, records))
        answers: list[Any] = []
        self.engine.delete_records(topic, answers.append, seqs=[record.seq for record in records])
        self._answer(answers)

    def drain(self, topic: str) -> None:
        """Deletes all records, until no more copies come."""
        while self.records(topic):
            self.look(topic)
            self.delete_first(topic, 1000)

    def checkpoint(self) -> None:
        outcome: list[Any] = []
        self.opened.checkpointer.start(outcome.append)
        expect(outcome, [None], "a checkpoint")

    # What is there.

    def records(self, name: str) -> dict[int, Record]:
        """Seq -> record, in order."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[dict[int, Record], list[tuple[int, int, str]]]:
        return read_all(self.engine, name, limit=1000) if name in self.engine.topics else ({}, [])

    def look(self, *names: str) -> None:
        """Reads some topics, or all. Records that were read must stay."""
        for name in names or self.topics:
            self._note_seen(name, self.records(name))

    def _note_seen(self, name: str, found: dict[int, Record]) -> None:
        self.known.seen[name].update((seq, _payload(record)) for seq, record in found.items())
        if name in self.engine.topics:
            self.known.floors[name] = self.engine.topics[name].live.evict_floor

    def check(self) -> None:
        known = self.known
        for name in self.topics:
            self.found[name], tombstones = self._read(name)
            widths = Counter[str]()
            for first, last, reason in tombstones:
                widths[reason] += last - first + 1
            self.trimmed[name] = widths["source_trim"]
            self.lost[name] = widths["source_trim"] + widths["power_loss"]
        if known.crashed:
            for name in self._ephemeral():
                self._check_ephemeral(name)
            self._forget_what_went()
        if known.power_lost:
            self._accept_losses()
        for name in self.topics:
            if name in self.engine.topics:
                self._check_topic(name, self.found[name])
        for name, edge in known.routers.items():
            assert name in self.engine.routers, f"router {name} was answered, and is gone (42)"
            self._check_order(edge)
            self._check_total(name, edge)
        self._check_keys()
        known.crashed = known.power_lost = False
        for name in self.topics:
            self._note_seen(name, self.found[name])

    def _payloads(self, name: str) -> list[int]:
        return [_payload(record) for record in self.found[name].values()]

    def _ephemeral(self) -> list[str]:
        return [name for name, members in self.topics.items() if members["durability"] == "ephemeral"]

    def _is_weak(self, name: str) -> bool:
        """Whether a power loss may take answered records of the topic."""
        return bool(self.topics[name]["durability"] != "fsync")

    def _check_ephemeral(self, name: str) -> None:
        if name not in self.engine.topics:
            return
        topic = self.engine.topics[name]
        expect(topic.config, TopicConfig(**self.topics[name]), f"the config of {name} after a start (41)")
        there = set(self._payloads(name))
        if topic.config.discard == "reject":
            # The topic may have had no room for some records. Records that were read were there.
            if not self.known.power_lost:
                expect(there & set(self.known.seen[name].values()), set(), f"what {name} has after a start (41)")
        else:
            expect(there, set(), f"what {name} has after a start (41)")

    def _forget_what_went(self) -> None:
        """Ephemeral topics are empty, and records that they had not passed on yet are lost."""
        for name in self.topics:
            if self._is_behind_ephemeral(name):
                self.known.due[name] &= set(self.known.seen[name].values())
        for name in self._ephemeral():
            self.known.due[name].clear()
            self.known.seen[name].clear()
            self.known.floors.pop(name, None)

    def _is_behind_ephemeral(self, name: str) -> bool:
        return not self._before(name).isdisjoint(self._ephemeral())

    def _accept_losses(self) -> None:
        """Topics that are not `fsync` must have the records that the power loss left. Each may have been copied once
        more."""
        known = self.known
        there = {name: set(self._payloads(name)) for name in self.topics}
        if not any(self._is_weak(name) for name in self.topics if name not in self._ephemeral()):
            return
        known.has_lost = True
        for name in self.topics:
            kept = {
                payload
                for payload in known.due[name]
                if not self._is_weak(known.origin[payload]) or payload in there[known.origin[payload]]
            }
            if self._is_weak(name):
                known.seen[name] = {}
                known.floors.pop(name, None)
            else:
                kept |= known.due[name] & set(known.seen[name].values())
            if self._is_weak(name) and (
                self._is_behind_ephemeral(name) or any(dest == name for dest, _ in known.by_hand)
            ):
                # No other topic has the record, or the key belongs to another record by now.
                kept &= there[name]
            known.due[name] = kept
            known.often[name] = Counter(self._payloads(name))

    def _check_topic(self, name: str, found: dict[int, Record]) -> None:
        known, topic = self.known, self.engine.topics[name]
        there = {seq: _payload(record) for seq, record in found.items()}
        for record in found.values():
            self._check_record(name, record)
        assert topic.live.evict_floor >= known.floors.get(name, 0), f"the floor of {name} fell (11)"
        for seq, payload in known.seen[name].items():
            if payload not in known.deleted[name] and seq >= topic.live.evict_floor:
                expect(there.get(seq), payload, f"what was read at {name} {seq} (36)")
        counts = Counter(there.values())
        for payload, count in counts.items():
            most = max(self._copies_max(name, payload), known.often[name][payload])
            assert count <= most, f"{payload} is {count} times in {name} (36, 38)"
        on_the_way = set[int]().union(*(known.deleted[before] for before in (*self._before(name), name)))
        missing = known.due[name] - on_the_way - counts.keys()
        for payload in missing:
            assert self._may_be_gone(name, payload, there), f"{payload} is not in {name} (31, 36)"
        if topic.live.evict_floor > 1 and topic.config.durability != "ephemeral":
            kept = topic.head_seq + 1 - topic.live.evict_floor - self.lost[name]
            assert kept >= self.caps.get(name, kept + 1), f"the cap of {name} kept {kept} seqs (20)"
        if name not in self.caps and not known.has_lost:
            expect(topic.live.evict_floor, 1, f"the floor of {name}, which has no cap")
            held_back = [payload for payload in missing if self._is_explained(name, payload)]
            trimmed = self.trimmed[name]
            assert len(missing) - len(held_back) <= trimmed, f"{missing} are not in {name}, and {trimmed} are lost (35)"
        is_whole = not known.has_lost and not self.caps.keys() & {name, *self._before(name)}
        if self._is_cyclic(name) and is_whole and known.asked.keys() == known.routers.keys():
            for payload in known.due[name] - on_the_way:
                expect(counts[payload], self._copies_max(name, payload), f"how often {payload} is in {name} (38)")
        cap = topic.config.cap_records
        assert not cap or len(there) <= cap, f"{name} has {len(there)} records (19, 34)"

    def _may_be_gone(self, name: str, payload: int, there: dict[int, int]) -> bool:
        """Whether a missing record is explained: by a floor, by a lost range, by a full topic, or by another record
        with its key."""
        topic = self.engine.topics[name]
        if self._is_explained(name, payload):
            return True
        seqs = [seq for seq, seen in self.known.seen[name].items() if seen == payload]
        if seqs:
            return bool(max(seqs) < topic.live.evict_floor)
        is_lost = topic.live.evict_floor > 1 or self.trimmed[name] > 0
        # In a cycle, copies of older records come after newer records.
        return is_lost and (not there or self._is_cyclic(name) or payload < max(there.values()))

    def _is_explained(self, name: str, payload: int) -> bool:
        """Whether a missing record is not lost: it comes when there is room, or another record has its key."""
        for before in self._before(name):
            if payload in self.known.due[before] and self._is_held_back(before, payload):
                return True
            seqs = [seq for seq, seen in self.known.seen[before].items() if seen == payload]
            seqs += [seq for seq, record in self.found[before].items() if _payload(record) == payload]
            if any((name, seq) in self.known.by_hand for seq in seqs):
                return True
        return self._is_held_back(name, payload)

    def _is_held_back(self, name: str, payload: int) -> bool:
        """Whether the topic is full and refuses more records. Then the record comes when there is room."""
        config = self.engine.topics[name].config
        there = self._payloads(name)
        return config.discard == "reject" and payload not in there and len(there) == config.cap_records

    def _check_keys(self) -> None:
        """Either the record with the key of the copy is there, or the copy, and not both."""
        for (dest, source_seq), by_hand in self.known.by_hand.items():
            found = [record for record in self.found[dest].values() if _key_seq(record) == source_seq]
            if not self.known.has_lost and any(_payload(record) == by_hand for record in found):
                expect(len(found), 1, f"records of {dest} with the key of source record {source_seq} (36)")

    def _check_record(self, name: str, record: Record) -> None:
        payload = _payload(record)
        assert record.tag in (_tag(payload), None), f"{name} {record.seq} (30)"
        assert record.node == _node(payload), f"{name} {record.seq} (30)"
        expect(msgspec.json.decode(record.meta or b"{}").get("p"), payload, f"the meta of {name} {record.seq} (30)")

    def _copies_max(self, name: str, payload: int) -> int:
        if self._is_cyclic(name):
            return HOPS_MAX // 2 + (self.known.origin[payload] == name)
        if any(map(self._is_cyclic, self._before(name))):
            return HOPS_MAX // 2
        routers = [edge for edge in self.known.asked.values() if edge.dest == name]
        passing = [edge for edge in routers if edge.tag is None or edge.tag == _tag(payload)]
        return max(1, len(passing))

    def _before(self, name: str) -> set[str]:
        """Topics from which routers lead here."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            here = ahead.pop()
            more = {edge.source for edge in self.known.asked.values() if edge.dest == here} - found
            found |= more
            ahead += more
        return found

    def _is_cyclic(self, name: str) -> bool:
        return name in self._before(name)

    def _check_order(self, edge: Edge) -> None:
        into = [other for other in self.known.asked.values() if other.dest == edge.dest]
        if len(into) > 1 or self._is_cyclic(edge.dest):
            return
        in_source, in_dest = self._payloads(edge.source), self._payloads(edge.dest)
        if len(set(in_source)) < len(in_source) or len(set(in_dest)) < len(in_dest):
            # A record was copied twice after a power loss.
            return
        expect(
            [payload for payload in in_dest if payload in set(in_source)],
            [payload for payload in in_source if payload in set(in_dest)],
            f"the order in {edge.dest} of what {edge.source} has too (30)",
        )

    def _check_total(self, name: str, edge: Edge) -> None:
        dest, router = self.engine.topics[edge.dest], self.engine.routers[name]
        alone = [other for other in self.known.asked.values() if other.dest == edge.dest] == [edge]
        keeps_all = not (self.known.has_lost and self._is_weak(edge.dest))
        if alone and edge.dest not in (*self.known.direct, *self._ephemeral()) and keeps_all:
            expect(router.forwarded_total, dest.head_seq - router.dest_base, f"what {name} has forwarded (33)")
        if edge.tag is None and not self.known.deleted[edge.source] and not self._is_cyclic(edge.source):
            came_to = router.cursor - self.known.begun[name]
            assert router.forwarded_total >= came_to, (
                f"{name} passed over {came_to - router.forwarded_total} seqs of {edge.source} (35)"
            )


def _tag(payload: int) -> str:
    return f"t{payload % 3}"


def _node(payload: int) -> str:
    return f"n{payload % 2}"


def _record(payload: int, meta: dict[str, Any] | None = None) -> NewRecord:
    return NewRecord(payload, tag=_tag(payload), node=_node(payload), meta=meta or {"p": payload})


def _key_seq(record: Record) -> int:
    """The source seq in the key of the record; 0 when the record has no key."""
    origin = msgspec.json.decode(record.meta or b"{}").get("_topics_router", {"idempotency_key": ":0"})
    return int(origin["idempotency_key"].rpartition(":")[2])


def _payload(record: Record) -> int:
    payload: int = msgspec.json.decode(record.data)
    return payload
