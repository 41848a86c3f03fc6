"""The engine against `TopicModel`, step by step, with kills, power losses and restarts among the steps.

After every step the numbers of each topic, and all its records read page by page, must be equal to the model.
"""

import copy
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.conftest import FULL
from tests.engine.driver import SMALL, Driver, untimed
from tests.engine.model import KeyModel, NewModelRecord, PageModel, TopicModel
from topics.engine.checkpointing import checkpoint
from topics.engine.config import DURABILITIES, TopicConfig
from topics.engine.topic.appended import Appended
from topics.engine.topic.topic import Topic
from topics.engine.writing.intake import batch_of_records
from topics.errors import TopicNotEmpty, TopicsError
from topics.formats.records import RecordBatch
from topics.results import NewRecord
from topics.testing.fake_disk import Damage

NAMES = ("a", "b")
TAGS = ("", "x", "x1", "x12", "y")
NODES = ("", "n1", "n2")
TTL_MS = 1000
WINDOW_MS = 500
SHORT_WINDOW_MS = 60

names = st.sampled_from(NAMES)
sizes = st.sampled_from((1, 4, 20))
new_records = st.lists(
    st.builds(
        NewModelRecord,
        data=st.builds(lambda size, digit: digit * size, sizes, st.sampled_from((b"1", b"2", b"3"))),
        meta=st.none() | st.just(b'{"m":1}'),
        tag=st.none() | st.sampled_from(TAGS),
        node=st.none() | st.sampled_from(NODES),
    ),
    min_size=1,
    max_size=6,
)
keys = st.none() | st.sampled_from(("k1", "k2"))
configs = st.builds(
    TopicConfig,
    durability=st.sampled_from(DURABILITIES),
    ttl_ms=st.sampled_from((0, 0, TTL_MS)),
    cap_records=st.sampled_from((0, 0, 3, 8)),
    cap_bytes=st.sampled_from((0, 0, 40, 90)),
    discard=st.sampled_from(("old", "old", "reject")),
    dedupe_node=st.booleans(),
    idempotency_window_ms=st.sampled_from((WINDOW_MS, WINDOW_MS, SHORT_WINDOW_MS)),
)
cursors = st.integers(0, 40) | st.integers(200, 600)
shard_counts = st.sampled_from((1, 2, 3))


def batch_of(new: list[NewModelRecord]) -> RecordBatch:
    return batch_of_records(NewRecord(record.data, record.tag, record.node, record.meta) for record in new)


class Observed:
    """The floors of one topic instance. They never fall."""

    def __init__(self, topic: Topic) -> None:
        self.topic_id = topic.id
        self.evict_floor = topic.live.evict_floor
        self.earliest_seq = topic.earliest_seq


class EngineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Each topic goes on with its new segments in a turn of its own.
        self.turns = patch.object(checkpoint, "TOPICS_PER_TURN", 1)
        self.turns.start()
        self.models: dict[str, TopicModel] = {}
        # States that a power loss may restore: all states since the last one that is known to be durable.
        self.history: dict[str, list[TopicModel]] = {}
        # All records that were logged in an instance and not deleted since. A reader may get no other record.
        self.written: dict[str, dict[int, Any]] = {}
        self.observed: dict[str, Observed] = {}
        # Last seq that is on disk: of a record of a stored class, or the head at the last checkpoint.
        self.stored_heads: dict[str, int] = {}
        self.newest_ms = 0
        # What a running checkpoint will store: id, head and unlogged seqs by topic name.
        self.captured: dict[str, tuple[int, int, set[int]]] = {}
        self.ceilings_before: dict[str, int] = {}

    @initialize(
        shards=shard_counts,
        tail_cache_bytes=st.sampled_from((0, 300, 1 << 20)),
        segment_events_max=st.sampled_from((1, 3, 7)),
        segment_age_ms_max=st.sampled_from((0, 800)),
    )
    def open(self, shards: int, tail_cache_bytes: int, segment_events_max: int, segment_age_ms_max: int) -> None:
        self.driver = Driver(
            replace(
                SMALL,
                # Larger batches take several turns.
                long_write_bytes=40,
                long_write_turn_bytes=120,
                wal_shards=shards,
                wal_file_bytes=8 * 1024,
                tail_cache_bytes=tail_cache_bytes,
                segment_events_max=segment_events_max,
                segment_age_ms_max=segment_age_ms_max,
            )
        )

    @property
    def now_ms(self) -> int:
        return self.driver.opened.engine.now_ms()

    def begin(self, name: str) -> TopicModel:
        """The model after the expiry that the engine does at the start of a call."""
        model = self.models[name]
        model.refresh(self.now_ms)
        self.driver.topic(name).refresh(self.now_ms)
        model.settle_ttl_floor(self.driver.topic(name).live.ttl_floor)
        return model

    def changed(self, name: str, *, is_durable: bool = False) -> None:
        """Notes a state that a power loss may restore. A durable state replaces all earlier states."""
        model = self.models[name]
        durability = model.config.durability
        model.settle_ttl_floor(self.driver.topic(name).live.ttl_floor)
        for seq, record in model.records.items():
            if seq not in model.unlogged:
                self.written[name][seq] = record
        if durability != "ephemeral":
            self.stored_heads[name] = model.head_seq
        if is_durable or durability == "fsync":
            self.history[name] = []
        self.history[name].append(model.copy())

    def all_durable(self) -> None:
        for name, model in self.models.items():
            self.history[name] = [model.copy()]

    # Topics.

    @rule(name=names, config=configs)
    def put(self, name: str, config: TopicConfig) -> None:
        """A relaxed config brings no record back, and a config change is durable when it is answered."""
        answers: list[Any] = []
        self.driver.opened.engine.put_topic(name, config, answers.append)
        assert self.driver.answer(answers) == (name not in self.models)
        if name not in self.models:
            self.new_instance(name, config)
        else:
            # The old TTL counts up to the moment of the change.
            model = self.models[name]
            model.refresh(self.now_ms)
            model.config = config
            model.apply_caps()
            model.refresh(self.now_ms)
        self.changed(name, is_durable=True)

    def new_instance(self, name: str, config: TopicConfig) -> None:
        self.models[name] = TopicModel(config)
        self.history[name] = []
        self.written[name] = {}
        self.observed.pop(name, None)
        self.stored_heads.pop(name, None)

    @precondition(lambda self: self.models)
    @rule(name=names, if_empty=st.booleans())
    def drop(self, name: str, if_empty: bool) -> None:
        """The next instance begins with seq 1."""
        if name not in self.models:
            assert self.driver.drop(name, if_empty=if_empty) is False
            return
        if if_empty and self.begin(name).count:
            with pytest.raises(TopicNotEmpty):
                self.driver.drop(name, if_empty=True)
            return
        assert self.driver.drop(name, if_empty=if_empty) is True
        for table in (self.models, self.history, self.written):
            del table[name]
        self.observed.pop(name, None)
        self.stored_heads.pop(name, None)

    # Records.

    @rule(name=names, new=new_records, key=keys, config=configs)
    def append(self, name: str, new: list[NewModelRecord], key: str | None, config: TopicConfig) -> None:
        self.append_all(name, [(new, key)], config)

    @rule(name=names, writes=st.lists(st.tuples(new_records, keys), min_size=2, max_size=4), config=configs)
    def append_in_one_turn(
        self, name: str, writes: list[tuple[list[NewModelRecord], str | None]], config: TopicConfig
    ) -> None:
        """Several writes are in flight at the same time."""
        self.append_all(name, writes, config)

    def append_all(self, name: str, writes: list[tuple[list[NewModelRecord], str | None]], config: TopicConfig) -> None:
        """`config` is the config that the topic gets if the first write creates it."""
        if name not in self.models:
            if TopicModel(config).refusal(writes[0][0]) is not None:
                # A topic is not created for a first write that does not fit into it.
                config = TopicConfig(idempotency_window_ms=WINDOW_MS)
            self.new_instance(name, config)
            # The creation is synced before a long write begins, and a power loss may leave an empty topic.
            self.history[name].append(self.models[name].copy())
            is_new = True
        else:
            self.begin(name)
            is_new = False
        model = self.models[name]
        now_ms = self.now_ms
        answers = []
        writes = [(new, self.settled_key(name, key)) for new, key in writes]
        for new, key in writes:
            answer: list[Any] = []
            try:
                self.driver.opened.engine.append(name, batch_of(new), answer.append, key=key, config=config)
            except TopicsError as error:
                answer.append(error)
            answers.append(answer)
        self.driver.opened.engine.flush()
        for answer in answers:
            # A write that waited for a long write before it is submitted by the next flush.
            if not answer:
                self.driver.opened.engine.flush()
        for (new, key), answer in zip(writes, answers, strict=True):
            assert len(answer) == 1
            self.check_answer(name, model, new, key, now_ms, answer[0], is_new=is_new)
            is_new = False

    def settled_key(self, name: str, key: str | None) -> str | None:
        """None when the window of the key ended before the clock was set back: then the key may be known or not."""
        topic = self.driver.opened.engine.topics.get(name)
        state = topic.keys.get(key or "") if topic is not None else None
        is_open = (
            topic is not None and state is not None and self.now_ms - state.ts < topic.config.idempotency_window_ms
        )
        return None if is_open and key not in self.models[name].keys else key

    def check_answer(
        self,
        name: str,
        model: TopicModel,
        new: list[NewModelRecord],
        key: str | None,
        now_ms: int,
        answer: Appended | TopicsError,
        *,
        is_new: bool,
    ) -> None:
        known = model.known_key(key, now_ms)
        if known is not None:
            last_seq = known.first_seq + known.count - 1
            assert answer == Appended(name, known.first_seq, last_seq, last_seq, known.count, known.ts, False, True)
            return
        refusal = model.refusal(new)
        if refusal is not None:
            assert isinstance(answer, TopicsError)
            assert answer.code == refusal
            return
        first_seq = model.head_seq + 1
        model.append(new, key, now_ms)
        assert isinstance(answer, Appended)
        assert untimed(answer) == Appended(
            name, first_seq, model.head_seq, model.head_seq, len(new), model.last_ts, is_new, False
        )
        self.changed(name)

    @precondition(lambda self: self.models)
    @rule(
        name=names,
        before_seq=st.none() | st.integers(0, 40) | st.just(2**64 - 1),
        tag=st.none() | st.sampled_from(TAGS),
        is_prefix=st.booleans(),
        checkpoint_steps=st.none() | st.integers(0, 3),
    )
    def delete(
        self, name: str, before_seq: int | None, tag: str | None, is_prefix: bool, checkpoint_steps: int | None
    ) -> None:
        """A checkpoint may be running, and a crash may follow."""
        if name not in self.models or (before_seq is None and tag is None):
            return
        if checkpoint_steps is not None and not self.captured:
            self.begin_checkpoint()
            for _ in range(checkpoint_steps):
                self.driver.step_checkpoint()
        model = self.begin(name)
        selector = {"before_seq": before_seq, "tag_prefix" if is_prefix else "tag": tag}
        deleted = self.driver.delete(name, **selector)
        before = set(model.records)
        count = model.delete(before_seq, None if is_prefix else tag, tag if is_prefix else None)
        for seq in before - set(model.records):
            self.written[name].pop(seq, None)
        assert (deleted.deleted, deleted.head_seq, deleted.earliest_seq, deleted.count, deleted.size_bytes) == (
            count,
            model.head_seq,
            model.earliest_seq,
            model.count,
            model.size_bytes,
        )
        assert self.driver.delete(name, **selector).deleted == 0
        self.changed(name)

    @precondition(lambda self: self.models)
    @rule(
        name=names,
        from_seq=cursors,
        limit=st.integers(1, 8),
        bytes_max=st.sampled_from((1, 25, 60, 1 << 20)),
        nodes=st.frozensets(st.sampled_from(NODES)),
    )
    def read(self, name: str, from_seq: int, limit: int, bytes_max: int, nodes: frozenset[str]) -> None:
        if name not in self.models:
            return
        model = self.begin(name)
        page = self.driver.read(
            from_seq,
            topic=name,
            limit=limit,
            bytes_max=bytes_max,
            nodes=frozenset(node.encode() for node in nodes) or None,
        )
        assert PageModel.of(page) == model.read(from_seq, limit, bytes_max, nodes)
        assert page.caught_up == (page.next_from_seq == page.head_seq)
        assert page.lag == page.head_seq - page.next_from_seq

    # Time.

    @rule(ms=st.sampled_from((1, 60, WINDOW_MS, TTL_MS, TTL_MS + 1)))
    def let_time_pass(self, ms: int) -> None:
        self.driver.clock.advance(ms)

    @rule(ms=st.integers(1, 2 * TTL_MS))
    def step_the_clock_back(self, ms: int) -> None:
        """The clock is set back. Times of records do not decrease, and floors do not fall."""
        self.newest_ms = max(self.newest_ms, self.now_ms)
        self.driver.clock.set(self.driver.clock.now_ms() - ms)

    @rule()
    def tick(self) -> None:
        engine = self.driver.opened.engine
        engine.wal.tick()
        engine.flush()

    # Checkpoints, restarts, crashes.

    def capture(self) -> None:
        """A checkpoint begins: every record is synced, and is in a segment when the checkpoint ends."""
        for name, model in self.models.items():
            self.begin(name)
            is_stored = model.config.durability != "ephemeral"
            topic_id = self.driver.topic(name).id
            self.ceilings_before[name] = self.driver.topic(name).writes.ceiling
            self.captured[name] = (topic_id, model.head_seq, set(model.unlogged) if is_stored else set())
            # A start takes in the segments of the checkpoint, finished or not. Of an ephemeral topic they hold the
            # records below the last record of a stored class.
            upto_seq = model.head_seq if is_stored else self.stored_heads.get(name, 0)
            self.written[name].update({seq: record for seq, record in model.records.items() if seq <= upto_seq})
        self.all_durable()

    def checkpointed(self) -> None:
        for name, (topic_id, head_seq, unlogged) in self.captured.items():
            if name in self.models and self.driver.topic(name).id == topic_id:
                self.stored_heads[name] = max(self.stored_heads.get(name, 0), head_seq)
                self.models[name].unlogged -= unlogged
                for state in self.history[name]:
                    state.unlogged -= unlogged
        self.captured, self.ceilings_before = {}, {}

    def finish_checkpoint(self) -> None:
        self.driver.finish_checkpoints()
        self.checkpointed()

    @rule()
    def checkpoint(self) -> None:
        """The segments have the same records as the memory had."""
        self.finish_checkpoint()
        self.capture()
        self.driver.checkpoint()
        self.checkpointed()

    def begin_checkpoint(self) -> None:
        self.capture()
        self.driver.opened.checkpointer.start()

    @precondition(lambda self: self.models and not self.captured)
    @rule()
    def leave_a_checkpoint_under_way(self) -> None:
        """The next steps happen while the checkpoint runs."""
        self.begin_checkpoint()

    @precondition(lambda self: self.captured)
    @rule()
    def step_checkpoint(self) -> None:
        if not self.driver.step_checkpoint():
            self.checkpointed()

    def before_start(self) -> None:
        # The model does not cover a clock that is earlier than the times for which TTL has already evicted records.
        self.driver.clock.set(max(self.newest_ms, self.now_ms, self.driver.clock.now_ms()))

    @rule(shards=shard_counts)
    def stop_and_start(self, shards: int) -> None:
        """A clean stop, and a start with any shard count."""
        self.before_start()
        self.finish_checkpoint()
        self.capture()
        self.checkpointed()
        self.driver.reopen(replace(self.driver.settings, wal_shards=shards))
        self.restarted({name: [model] for name, model in self.models.items()}, {})

    @rule(shards=shard_counts, times=st.integers(1, 2))
    def kill(self, shards: int, times: int) -> None:
        """The process dies. Every answered record stays, and the head is exact."""
        self.before_start()
        for _ in range(times):
            self.driver.kill(replace(self.driver.settings, wal_shards=shards))
        self.restarted({name: [model] for name, model in self.models.items()}, {})

    @rule(damage=st.sampled_from(Damage), seed=st.integers(0, 1000), shards=shard_counts)
    def lose_power(self, damage: Damage, seed: int, shards: int) -> None:
        """The power is lost. Each topic keeps the records that its class promises."""
        self.before_start()
        ceilings = {name: {self.driver.topic(name).writes.ceiling} for name in self.models}
        for name, ceiling in self.ceilings_before.items():
            # A finished checkpoint gives the reservation of an idle topic back.
            if name in ceilings and self.captured[name][0] == self.driver.topic(name).id:
                ceilings[name].add(ceiling)
        self.driver.lose_power(damage, seed, replace(self.driver.settings, wal_shards=shards))
        self.restarted(dict(self.history), ceilings)

    def restarted(self, candidates: dict[str, list[TopicModel]], ceilings: dict[str, set[int]]) -> None:
        """Takes over the state that survived. It must be one of the possible states."""
        engine = self.driver.opened.engine
        assert set(engine.topics) == set(self.models)
        for name, states in candidates.items():
            topic = engine.topics[name]
            before = self.models[name]
            assert topic.config == before.config
            if before.config.durability == "ephemeral" or before.unlogged:
                self.models[name] = self.without_memory(name, topic, before, states)
            else:
                if before.config.durability == "disk":
                    assert topic.head_seq >= before.head_seq, "an answered seq may be assigned again"
                self.models[name] = self.matching(name, topic, states, ceilings.get(name, {0}))
            self.stored_heads[name] = topic.head_seq
            if ceilings:
                self.observed.pop(name, None)
        self.captured, self.ceilings_before = {}, {}
        self.all_durable()

    def matching(self, name: str, topic: Topic, states: list[TopicModel], ceilings: set[int]) -> TopicModel:
        model = states[-1]
        for state, ceiling in product(reversed(states), sorted(ceilings)):
            model = state.recovered(ceiling=ceiling, now_ms=self.now_ms)
            if topic.live.ttl_floor < model.ttl_floor <= model.cap_floor:
                # A floor by count has no frame that could say what had expired below it: only the reason of a
                # tombstone shows it, and the reason is only informative.
                model.ttl_floor = model.ttl_floor_max = topic.live.ttl_floor
            if topic.live.cap_floor < model.cap_floor <= model.ttl_floor:
                # The same is true of a floor by count below what has expired.
                model.cap_floor = topic.live.cap_floor
            if model.ttl_floor <= topic.live.ttl_floor <= max(model.ttl_floor, model.ttl_floor_max):
                model.settle_ttl_floor(topic.live.ttl_floor)
                if self.difference(name, topic, model) is None:
                    return model
        raise AssertionError(f"none of {len(states)} states: {self.difference(name, topic, model)}")

    def without_memory(self, name: str, topic: Topic, before: TopicModel, states: list[TopicModel]) -> TopicModel:
        """A topic that is or was ephemeral: records that were only in memory are gone, all others are there.

        A delete is as durable as a write: a power loss may take one that was not synced, and its records are back.
        """
        found = {record.seq: record for record in self.driver_read_all(name)}
        written = self.written[name]
        for state in states:
            written.update({seq: record for seq, record in state.records.items() if seq in found})
        assert all(written.get(seq) == record for seq, record in found.items())
        if before.config.durability == "ephemeral":
            heads = {self.stored_heads.get(name, 0)}
            captured = self.captured.get(name)
            if captured is not None and captured[0] == topic.id:
                heads.add(max(captured[1], *heads))
            assert topic.head_seq in heads
            assert written or not found
        else:
            assert topic.head_seq >= before.head_seq or before.config.durability == "memory"
            if before.config.durability == "fsync":
                assert found.keys() >= before.records.keys() - before.unlogged
        model = TopicModel(
            before.config,
            topic.head_seq,
            found,
            topic.live.cap_floor,
            topic.live.ttl_floor,
            topic.live.ttl_floor,
            topic.live.delete_below,
            topic.writes.last_ts,
            topic.live.lost.pairs(),
        )
        model.keys = {state.key: KeyModel(state.ts, state.first_seq, state.count) for state in topic.keys}
        for key in before.keys:
            known = before.known_key(key, self.now_ms)
            seqs = range(known.first_seq, known.first_seq + known.count) if known is not None else range(0)
            if seqs and all(seq in found and found[seq] == before.records.get(seq) for seq in seqs):
                assert model.keys.get(key) == known, f"{name}: the records of key {key} are there, and the key is not"
        self.observed.pop(name, None)
        return model

    def driver_read_all(self, name: str) -> list[Any]:
        found, cursor = [], 0
        while True:
            page = self.driver.read(cursor, topic=name, limit=2)
            found += page.records
            cursor = page.next_from_seq
            if page.caught_up:
                return found

    # What must hold after each step.

    def difference(self, name: str, topic: Topic, model: TopicModel) -> str | None:
        """The first difference between the topic of the engine and the model; None when they agree."""
        numbers = (topic.head_seq, topic.earliest_seq, topic.live.evict_floor, topic.count, topic.size_bytes)
        wanted = (model.head_seq, model.earliest_seq, model.evict_floor, model.count, model.size_bytes)
        if numbers != wanted:
            return f"{name}: head, earliest, evict floor, count, bytes {numbers}, not {wanted}"
        cursor = 0
        while True:
            page = PageModel.of(self.driver.read(cursor, topic=name, limit=3, bytes_max=60))
            expected = model.read(cursor, 3, 60, frozenset())
            if page != expected:
                return f"{name}: read from {cursor}: {page}, not {expected}"
            cursor = page.next_from_seq
            if cursor == page.head_seq:
                break
        now_ms = self.now_ms
        known = {state.key: (state.ts, state.first_seq, state.count) for state in topic.keys}
        for key in ("k1", "k2"):
            wanted_key = model.known_key(key, now_ms)
            if wanted_key is not None and known.get(key) != wanted_key:
                return f"{name}: key {key} is {known.get(key)}, not {wanted_key}"
        return None

    @invariant()
    def engine_and_model_agree(self) -> None:
        """Numbers and records of every topic are equal to the model."""
        if not hasattr(self, "driver"):
            return
        assert set(self.driver.opened.engine.topics) == set(self.models)
        for name in self.models:
            model = self.begin(name)
            topic = self.driver.topic(name)
            assert self.difference(name, topic, model) is None
            self.check_bounds(topic)
        engine = self.driver.opened.engine
        assert engine.core.live_bytes.total == sum(
            topic.size_bytes + topic.writes.bytes_in_flight for topic in engine.topics.values()
        )

    def check_bounds(self, topic: Topic) -> None:
        """Heads and floors never fall."""
        assert 1 <= topic.live.evict_floor <= topic.earliest_seq <= topic.head_seq + 1
        assert (topic.count == 0) == (topic.earliest_seq == topic.head_seq + 1)
        before = self.observed.get(topic.name)
        if before is not None and before.topic_id == topic.id:
            assert topic.live.evict_floor >= before.evict_floor
            assert topic.earliest_seq >= before.earliest_seq
        self.observed[topic.name] = Observed(topic)

    def teardown(self) -> None:
        """A second recovery gives the same result as the first."""
        self.turns.stop()
        if not hasattr(self, "driver"):
            return
        self.before_start()
        self.driver.kill()
        once = copy.deepcopy(self.durable_files())
        self.driver.kill()
        assert self.durable_files() == once

    def durable_files(self) -> dict[str, bytes]:
        return self.driver.disk.files()


EngineAgainstModel.TestCase.settings = settings(
    max_examples=1000 if FULL else 100, stateful_step_count=80 if FULL else 30
)
TestEngineAgainstModel = EngineAgainstModel.TestCase
