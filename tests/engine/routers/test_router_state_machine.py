"""Routers against `router_model`, with deletes, evictions, kills, power losses and unfinished checkpoints in between.

| Topic | Fed by |
|---|---|
| `single` | one router with a filter: its copies have no frames |
| `pair` | two routers from the same source: copies are logged |
| `chain` | a router from `single` |
| `full` | a router into a topic that refuses what exceeds its cap |
| `back` | a router from `source`, and one from it back to `source`: a cycle |

After every step that reads, each topic must have exactly the seqs, payloads and tombstones of the model. In half of the
histories the turns after each write run. Then the copies must be there without a read.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.conftest import FULL
from tests.engine.router_driver import RouterDriver
from tests.engine.router_model import ModelRecord, ModelRouter, ModelTopic
from tests.engine.small_log import rot_snapshots
from topics.results import NewRecord
from topics.testing.fake_disk import Damage

TAGS = (None, "x", "x1", "y")
DESTS = ("single", "pair", "chain", "full", "back")
FULL_CAP = 6

tags = st.sampled_from(TAGS)


class RoutersAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = RouterDriver()
        self.topics: dict[str, ModelTopic] = {}
        # In the order in which they are served.
        self.routers: dict[str, ModelRouter] = {}
        self.next_payload = 0

    @initialize(
        durability=st.sampled_from(("memory", "disk", "fsync")),
        source_cap=st.sampled_from((0, 0, 5)),
        dest_cap=st.sampled_from((0, 0, 9)),
        cyclic=st.booleans(),
        takes_turns=st.booleans(),
    )
    def create(self, durability: str, source_cap: int, dest_cap: int, *, cyclic: bool, takes_turns: bool) -> None:
        self.durability = durability
        # Set at the end: the model does not know the turns while the routers are created.
        self.takes_turns = False
        caps = {"source": source_cap, "single": dest_cap}
        for name in ("source", *DESTS):
            config: dict[str, Any] = {"durability": durability, "cap_records": caps.get(name, 0)}
            if name == "full":
                config |= {"cap_records": FULL_CAP, "discard": "reject"}
            self.driver.put(name, **config)
            self.topics[name] = ModelTopic(caps.get(name, 0))
        # With a cap the result depends on the records that are evicted between two copies. The model does not know
        # them. The same is true of a cap of `single` in a cycle, unless a read decides which router is served first.
        cyclic = cyclic and not source_cap and not (takes_turns and dest_cap)
        self.dests = DESTS if cyclic else DESTS[:-1]
        self.route("source", "single", prefix="x")
        self.route("source", "pair", name="first")
        if not cyclic:
            # Which router copies first would depend on how often a record went round the cycle.
            self.route("source", "pair", name="second", prefix="y")
        self.route("single", "chain")
        self.route("source", "full", prefix="x")
        if cyclic:
            self.route("source", "back")
            self.route("back", "source", allow_cycle=True)
        self.takes_turns = takes_turns

    def route(self, source: str, dest: str, *, name: str | None = None, prefix: str | None = None, **spec: Any) -> None:
        name = name or f"{source}->{dest}"
        wanted = f"{prefix}*" if prefix is not None else None
        self.driver.route(source, dest, name=name, filter=wanted, **spec)
        known = self.routers.get(name)
        if known is not None:
            known.prefix = prefix
            return
        room = FULL_CAP if dest == "full" else None
        self.routers[name] = ModelRouter(self.topics[source], self.topics[dest], prefix, room)

    # What the model does when a topic is read.

    def settle(self) -> None:
        """Reads all topics and compares them with the model."""
        for name in (*self.dests, "source"):
            found = self.driver.content(name)
            self.model_forward(name)
            topic = self.topics[name]
            assert found == [(seq, record.payload) for seq, record in sorted(topic.records.items())], name
            assert self.driver.topic(name).head_seq == topic.head, name
            assert self.driver.topic(name).live.evict_floor == topic.floor + 1, name
            assert self.driver.gaps(name) == topic.told, name
        for name, router in self.routers.items():
            assert self.driver.router(name).forwarded_total == router.forwarded_total, name

    def model_forward(self, name: str) -> None:
        """Runs the routers that lead to the topic until no record is copied."""
        # Before a read, of two routers into one dest the younger one is served first.
        order = sorted(self.routers, key=lambda router: router != "second")
        self.run_model([self.routers[key] for key in order if self.leads_to(self.routers[key], self.topics[name])])

    def run_model(self, wanted: list[ModelRouter]) -> None:
        """Runs these routers until no record is copied."""
        moved = True
        while moved:
            before = [router.cursor for router in wanted]
            for router in wanted:
                router.forward()
            moved = before != [router.cursor for router in wanted]

    def take_turns(self) -> None:
        """The turns after a write: without a read all copies are there for which there is room."""
        self.driver.take_turns()
        engine = self.driver.opened.engine
        moved = True
        while engine.forwarder._held_back and moved:
            # Into a full topic, or held back since a start: such a router waits for ticks.
            before = [router.cursor for router in engine.routers.values()]
            engine.forwarder.tick()
            engine.flush()
            self.driver.take_turns()
            moved = before != [router.cursor for router in engine.routers.values()]
        self.run_model(list(self.routers.values()))
        for name in (*self.dests, "source"):
            topic = self.topics[name]
            found = self.driver.stored(name)
            assert found == [(seq, record.payload) for seq, record in sorted(topic.records.items())], name
            assert self.driver.topic(name).head_seq == topic.head, name

    def leads_to(self, router: ModelRouter, topic: ModelTopic) -> bool:
        seen: list[ModelTopic] = []
        ahead = [router.dest]
        while ahead:
            here = ahead.pop()
            if here is topic:
                return True
            if not any(here is other for other in seen):
                seen.append(here)
                ahead += [other.dest for other in self.routers.values() if other.source is here]
        return False

    # Steps.

    @rule(count=st.integers(1, 4), tag=tags)
    def write(self, count: int, tag: str | None) -> None:
        if "back" in self.dests:
            # Copies may come back between two writes, and that decides which seqs the records get.
            self.settle()
        self.append("source", count, tag)

    @rule(name=st.sampled_from(("single", "pair", "chain")), tag=tags)
    def write_directly(self, name: str, tag: str | None) -> None:
        self.settle()
        self.append(name, 1, tag)

    def append(self, name: str, count: int, tag: str | None) -> None:
        payloads = range(self.next_payload, self.next_payload + count)
        self.next_payload += count
        self.driver.append(*[NewRecord(payload, tag=tag) for payload in payloads], topic=name)
        for payload in payloads:
            self.topics[name].append(ModelRecord(payload, tag))
        self.topics[name].evict()
        if self.takes_turns:
            self.take_turns()

    @rule()
    def look(self) -> None:
        self.settle()

    @rule(
        name=st.sampled_from(("source", *DESTS[:-1])),
        before=st.none() | st.integers(1, 30),
        tag=st.none() | st.sampled_from(("x", "y")),
    )
    def delete(self, name: str, before: int | None, tag: str | None) -> None:
        if before is None and tag is None:
            return
        self.settle()
        self.driver.delete(name, before_seq=before, tag=tag)
        self.topics[name].delete(before_seq=before, tag=tag)

    @rule(before=st.integers(1, 30))
    def delete_before_it_is_copied(self, before: int) -> None:
        if "back" in self.dests:
            return
        self.driver.delete("source", before_seq=before)
        self.topics["source"].delete(before_seq=before)

    @rule(prefix=st.sampled_from((None, "x", "x1", "y")), guarantee=st.sampled_from(("at_least_once", "exactly_once")))
    def change_a_router(self, prefix: str | None, guarantee: str) -> None:
        self.settle()
        self.route("source", "single", prefix=prefix, guarantee=guarantee)

    @rule(name=st.sampled_from(("source->single", "single->chain", "second")))
    def replace_a_router(self, name: str) -> None:
        self.settle()
        if name == "second" and "back" in self.dests:
            return
        if name in self.routers:
            assert self.driver.unroute(name)
            del self.routers[name]
        else:
            source, dest = ("source", "pair") if name == "second" else tuple(name.split("->"))
            self.route(source, dest, name=name)

    @rule(cap=st.sampled_from((0, 4, 9)))
    def change_a_cap(self, cap: int) -> None:
        if "back" in self.dests and self.takes_turns:
            return
        self.settle()
        self.driver.put("single", durability=self.durability, cap_records=cap)
        self.topics["single"].cap_records = cap
        self.topics["single"].evict()

    @rule()
    def checkpoint(self) -> None:
        self.driver.checkpoint()

    @rule(steps=st.integers(0, 3))
    def checkpoint_in_part(self, steps: int) -> None:
        """The next steps, such as writes or a kill, happen while the checkpoint runs."""
        if self.driver.opened.checkpointer.is_running:
            return
        self.driver.opened.checkpointer.start()
        for _ in range(steps):
            self.driver.runtime.checkpoints.step()

    def keep_what_is_behind(self) -> None:
        """A start copies all records that the files have. All routers catch up first, because the model does not know
        the files."""
        if self.topics["source"].cap_records or self.topics["single"].cap_records:
            self.settle()

    @rule()
    def kill(self) -> None:
        self.keep_what_is_behind()
        self.driver.kill()
        self.settle()

    @rule()
    def kill_and_lose_the_snapshots(self) -> None:
        """No snapshot can be read. Copies in segments stay, and routers go on where they were."""
        self.keep_what_is_behind()
        rot_snapshots(self.driver.disk)
        self.driver.kill()
        self.take_guessed_floors()
        self.settle()

    def take_guessed_floors(self) -> None:
        """Files do not tell whether the records before the oldest one were deleted or are lost. A start calls them
        lost."""
        for name, topic in self.topics.items():
            floor = self.driver.topic(name).live.evict_floor - 1
            if floor > topic.floor:
                assert all(seq > floor for seq in topic.records), name
                topic.floor = floor

    @rule()
    def reopen(self) -> None:
        self.keep_what_is_behind()
        self.driver.finish_checkpoints()
        self.driver.reopen()
        self.settle()

    @precondition(lambda self: self.durability == "fsync")
    @rule(damage=st.sampled_from(tuple(Damage)), seed=st.integers(0, 9))
    def lose_power(self, damage: Damage, seed: int) -> None:
        self.keep_what_is_behind()
        self.driver.lose_power(damage, seed)
        self.settle()

    def teardown(self) -> None:
        if self.topics:
            self.settle()
            self.driver.kill()
            self.settle()


RoutersAgainstModel.TestCase.settings = settings(
    max_examples=1000 if FULL else 60, stateful_step_count=60 if FULL else 30, deadline=None
)
TestRouters = RoutersAgainstModel.TestCase
