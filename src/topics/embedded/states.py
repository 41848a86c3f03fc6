"""What the embedded log tells of topics and routers."""

import msgspec

from topics.engine.config import TopicConfig
from topics.engine.engine import Engine
from topics.engine.queues.jobs import Counters
from topics.engine.topic.router import Guarantee


class TopicState(msgspec.Struct, frozen=True):
    """The numbers of a topic at one moment. `queue` is None unless the topic is a queue."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    size_bytes: int
    config: TopicConfig
    last_write_ts: int | None
    last_read_ts: int | None
    queue: Counters | None

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


def topic_state(engine: Engine, name: str) -> TopicState:
    found = engine.topic(name)
    engine.copy_now(name)
    found.refresh(engine.now_ms())
    return TopicState(
        found.name,
        found.head_seq,
        found.earliest_seq,
        found.count,
        found.size_bytes,
        found.config,
        found.writes.last_write_ts,
        found.last_read_ts,
        engine.queues.counters(name) if found.config.type == "queue" else None,
    )


class RouterState(msgspec.Struct, frozen=True):
    """What a router copies, and how many copies it has made. At most one of `tag` and `tag_prefix` is set."""

    router: str
    source: str
    dest: str
    tag: str | None
    tag_prefix: str | None
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: int


def router_state(engine: Engine, name: str) -> RouterState:
    found = engine.router(name)
    spec, tag_filter = found.spec, found.spec.filter
    return RouterState(
        name,
        spec.source,
        spec.dest,
        tag_filter.text if tag_filter is not None and not tag_filter.is_prefix else None,
        tag_filter.text if tag_filter is not None and tag_filter.is_prefix else None,
        spec.preserve_node,
        spec.preserve_tag,
        spec.allow_cycle,
        spec.guarantee,
        found.forwarded_total,
    )
