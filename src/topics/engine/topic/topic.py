"""One topic instance: its identity, its config, and the parts that own its state.

| Part | Module | Owns |
|---|---|---|
| `live` | `live_records` | where records are, floors, numbers, tags |
| `writes` | `write_state` | writes that are not published, reserved seqs, the change that writes wait for |
| `checkpoint` | `checkpoint_state` | what the snapshots know, and whether the topic changed since |
| `links` | `router_links` | routers into and from the topic, derived copies |
| `leases` | `leases` | jobs of a queue that were handed out |
| `keys` | `idempotency_keys` | idempotency keys within their window |

A field of a part is assigned only by the module of the part. The methods here are the rules that concern several parts
at once: what expires, what a cap evicts, how a write is published, what a delete removes, how a page is read.

Owner only. Nothing in here writes to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from topics.engine.config import TopicConfig, stored_config
from topics.engine.topic import reading
from topics.engine.topic.checkpoint_state import CheckpointState
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.idempotency_keys import IdempotencyKeys
from topics.engine.topic.leases import LeaseTable
from topics.engine.topic.live_records import LiveBytes, LiveRecords
from topics.engine.topic.reading import Page
from topics.engine.topic.router_links import RouterLinks
from topics.engine.topic.segment_set import NOTHING_HOT, HotRecords, SegmentSet
from topics.engine.topic.write_state import Write, WriteState
from topics.errors import FormatError
from topics.formats.record_layout import RecordForm
from topics.formats.snapshot import GroupState, SegmentState, TopicState, WriterState
from topics.storage.segments.reader import Measured, SegmentColumns
from topics.storage.wal.shard import WalShard

Waiter = Callable[[], None]
"""Told that there is something new. It may call the engine."""

NOTHING_COLD: Final[Mapping[int, Measured]] = MappingProxyType({})

# The waiters of a topic that has none. All such topics share this set, so nothing is ever added to it.
_NO_WAITERS: Final[frozenset[Waiter]] = frozenset()


class Topic:
    __slots__ = (
        "_waiters",
        "checkpoint",
        "config",
        "epoch",
        "groups",
        "id",
        "keys",
        "last_read_ts",
        "leases",
        "links",
        "live",
        "name",
        "shard",
        "writers",
        "writes",
    )

    def __init__(
        self,
        name: str,
        topic_id: int,
        epoch: int,
        config: TopicConfig,
        segments: SegmentSet,
        live_bytes: LiveBytes,
    ) -> None:
        self.name = name
        self.id = topic_id
        self.epoch = epoch
        self.config = config
        # Queues only.
        self.leases = LeaseTable() if config.type == "queue" else None
        self.live = LiveRecords(name, segments, live_bytes, self.leases)
        self.writes = WriteState(live_bytes)
        self.checkpoint = CheckpointState()
        self.links = RouterLinks()
        self.keys = IdempotencyKeys()
        # Consumer groups by name.
        self.groups: dict[str, GroupState] = {}
        # The newest epoch of each writer that ever committed staged records.
        self.writers: dict[str, WriterState] = {}
        self.last_read_ts: int | None = None
        self._waiters: set[Waiter] | frozenset[Waiter] = _NO_WAITERS
        # The WAL shard that has the topic's frames; set when the WAL is open.
        self.shard: WalShard

    @classmethod
    def from_snapshot(cls, state: TopicState, segments: SegmentSet, live_bytes: LiveBytes) -> Topic:
        """The topic as a snapshot entry describes it."""
        topic = cls(state.name, state.id, state.epoch, stored_config(state.config), segments, live_bytes)
        topic.live.restore(state)
        topic.writes.restore(last_ts=state.last_ts, ceiling=state.ceiling)
        topic.keys.restore(state.keys)
        topic.groups = {group.name: group for group in state.groups}
        topic.writers = {writer.name: writer for writer in state.writers}
        if topic.leases is not None:
            topic.leases.restore_all(state.leases, ceiling=state.lease_ceiling)
        topic.links.restore_hops(state.hops)
        topic.links.restore_bridges(state.bridges)
        return topic

    def use_shard(self, shard: WalShard) -> None:
        self.shard = shard

    def leave_total(self) -> None:
        """The topic instance has ended: nothing that still happens to it counts against the quota."""
        self.live.leave_total()
        self.writes.leave_total()

    # Numbers that readers see.

    @property
    def head_seq(self) -> int:
        return self.live.head_seq

    @property
    def earliest_seq(self) -> int:
        return self.live.earliest_seq

    @property
    def count(self) -> int:
        return self.live.count

    @property
    def size_bytes(self) -> int:
        return self.live.size_bytes

    # Readers that wait.

    def add_waiter(self, waiter: Waiter) -> None:
        if isinstance(self._waiters, set):
            self._waiters.add(waiter)
        else:
            self._waiters = {waiter}

    def remove_waiter(self, waiter: Waiter) -> None:
        if isinstance(self._waiters, set):
            self._waiters.discard(waiter)

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def take_waiters(self) -> Iterable[Waiter]:
        """Every waiter, once: a waiter that wants to wait on asks again."""
        waiters, self._waiters = self._waiters, _NO_WAITERS
        return waiters

    def note_read(self, now_ms: int) -> None:
        self.last_read_ts = now_ms

    # Retention.

    def refresh(self, now_ms: int) -> None:
        """Brings the TTL floor up to date. Called at the start of every read and around every write."""
        if self.live.segments.unread:
            self._count_unread()
        ttl_ms = self.config.ttl_ms
        # A record expires when now - ts > ttl, so now - ttl is the oldest time that is still good.
        if ttl_ms and self.live.count and self.live.expire(now_ms - ttl_ms):
            self.writes.recount_evictions(self.live)

    def _count_unread(self) -> None:
        """A segment file could not be read. Corrects the numbers that changed without it, if it can be read now."""
        self.live.count_unread()
        self.writes.recount_evictions(self.live)
        self.checkpoint.mark_changed()

    def floor_under(self, config: TopicConfig) -> int:
        """The cap floor once every write in flight is published, if this config holds then."""
        writes = self.writes
        floor = max(self.live.cap_floor, writes.cap_floor)
        if config.discard == "old":
            if config.cap_records:
                floor = max(floor, self.record_cap_floor(config, writes.next_seq - 1))
            if config.cap_bytes:
                floor = max(floor, self.byte_cap_floor(config, writes.next_seq, (), 0)[0])
        return floor

    def record_cap_floor(self, config: TopicConfig, last_seq: int) -> int:
        """The highest seq that `cap_records` evicts once every write up to `last_seq` is published. Lost seqs take no
        room, and neither do the seqs of holes in flight."""
        lost = self.live.lost
        holes = self.writes.holes_in_flight if self.links.routers_in else ()
        if holes:
            lost = lost.copy()
            for write in holes:
                lost.add(write.first_seq, write.last_seq, "source_trim")
        return lost.floor_by_count(last_seq, config.cap_records) if lost else last_seq - config.cap_records

    def byte_cap_floor(
        self, config: TopicConfig, first_seq: int, sizes: Sequence[int], size_bytes: int
    ) -> tuple[int, int]:
        """(floor, bytes evicted by it) once a write of these sizes is published after every write in flight.

        Segments that go as a whole are passed as a whole. Then it walks from the oldest record that stays. A cold
        segment without columns is evicted as a whole or not at all: its first records are evicted when the columns
        come.
        """
        live, writes = self.live, self.writes
        if live.segments.unread:
            self._count_unread()
        excess = live.size_bytes + writes.bytes_in_flight - writes.evict_bytes + size_bytes - config.cap_bytes
        if live.segments.inexact or live.segments.unread:
            # Bytes that may be dead already must not evict others.
            excess -= live.segments.inexact_bytes
        by_count = self.record_cap_floor(config, first_seq + len(sizes) - 1) if config.cap_records else 0
        floor = writes.cap_floor
        if excess <= 0 and by_count <= floor:
            return floor, 0
        floor, evicted = live.whole_segments(floor, excess, by_count)
        excess -= evicted
        for seq, size, is_record in writes.sizes_after(live, floor, first_seq, sizes):
            if seq > by_count and (excess <= 0 or (not is_record and excess < size)):
                break
            excess -= size
            evicted += size
            floor = seq
        return floor, evicted

    def overdue_cap_floor(self) -> int:
        """The cap floor, if a byte cap can raise it without a write: sizes came that it waited for. Else 0.

        A write in flight or a config that is being logged raises it anyway. Copies of routers into the topic must be
        logged before a floor, so there it waits for the next write."""
        config, writes = self.config, self.writes
        if not config.cap_bytes or config.discard != "old" or self.links.routers_in:
            return 0
        if writes.in_flight or writes.is_changing:
            return 0
        floor = self.floor_under(config)
        return floor if floor > self.live.cap_floor else 0

    def evict(self, cap_floor: int) -> None:
        """Raises the cap floor without a write. It is logged."""
        self.live.raise_floors(cap_floor=cap_floor)
        self.writes.settle_cap_floor(max(self.writes.cap_floor, self.live.cap_floor))
        self.writes.recount_evictions(self.live)
        self.checkpoint.mark_changed()

    @property
    def evicted_above_records(self) -> int:
        """`cap_records`, if the topic drops its oldest records to keep that many; 0 if it does not."""
        return self.config.cap_records if self.config.discard == "old" else 0

    # Publishing.

    def publish(self, write: Write) -> None:
        """Makes the oldest write in flight, which is committed, visible."""
        if write.is_holes:
            self.live.publish_holes(write)
            self.writes.published(write)
        else:
            cap_floor = self.live.cap_floor
            config = self.config
            evicted = self.live.publish(write, config.cap_records if config.discard == "old" else 0)
            self.writes.published(write)
            if self.live.cap_floor > cap_floor:
                self.writes.note_evicted(evicted)
        self.checkpoint.mark_changed()

    def apply_config(self, config: TopicConfig, cap_floor: int, unlogged_last_seq: int, ts: int) -> None:
        """A new config, which is logged with these numbers; no write is in flight."""
        assert not self.writes.in_flight, "writes wait for a config, and older ones are published"
        self.replay_config(config, ts)
        self.checkpoint.mark_changed()
        self.live.note_unlogged(unlogged_last_seq)
        self.live.raise_floors(cap_floor=cap_floor)
        self.writes.settle_cap_floor(self.live.cap_floor)

    def replay_config(self, config: TopicConfig, ts: int) -> None:
        """Takes the config over, without its floors."""
        # Keys whose window has ended are dropped under the old window and under the new one: a key that ended does not
        # come back with a longer window, and a start that reads the changes again comes to the same keys.
        self.keys.forget_ended(ts, self.config.idempotency_window_ms)
        self.config = config
        self.keys.forget_ended(ts, config.idempotency_window_ms)
        if config.durability != "disk":
            # Everything answered so far was synced with the config.
            self.writes.drop_ceiling()

    # Deleting.

    def delete_before(
        self, before_seq: int, cold: Mapping[int, Measured] = NOTHING_COLD, hot: HotRecords = NOTHING_HOT
    ) -> int:
        """Deletes every live record below `before_seq`; how many there were. `cold` and `hot`: see `LiveRecords`."""
        deleted = self.live.delete_before(before_seq, cold, hot)
        if deleted is None:
            return 0
        self._deleted()
        return deleted[0]

    def delete_seqs(
        self, seqs: Sequence[int], cold: Mapping[int, Measured] = NOTHING_COLD, hot: HotRecords = NOTHING_HOT
    ) -> int:
        """Deletes the live records with these seqs (ascending), and the live records of `cold`. Returns how many
        records it deleted. `hot`: see `LiveRecords`."""
        deleted = self.live.delete_seqs(seqs, cold, hot)
        self._deleted()
        return deleted[0]

    def use_cold_columns(self, state: SegmentState, columns: SegmentColumns, now_ms: int) -> None:
        """The columns of a cold segment came: retention goes on in it."""
        self.live.use_cold_columns(state, columns)
        self.refresh(now_ms)
        self.writes.recount_evictions(self.live)
        self.checkpoint.mark_changed()

    def _deleted(self) -> None:
        self.writes.recount_evictions(self.live)
        self.checkpoint.mark_changed()

    # Reading.

    def read(self, from_seq: int, limit: int, bytes_max: int, nodes: frozenset[bytes] | None) -> Page:
        """Floors and tombstone first, then records in seq order until a bound is met."""
        if nodes is not None and not self.config.dedupe_node:
            nodes = None
        return reading.read_page(self.name, self.live, from_seq, limit, bytes_max, nodes)

    def fetch_needed(self, from_seq: int, limit: int, bytes_max: int) -> Fetch | None:
        """What must be brought into memory before a read of this page; None when nothing must. See `Engine`."""
        return reading.fetch_needed(self.name, self.live, from_seq, limit, bytes_max)

    def job_slots(
        self, seq: int, last_seq: int, bytes_max: int, *, may_wait: bool
    ) -> tuple[RecordForm, Sequence[bytes | FormatError | None]] | Fetch:
        """(form, slots) from `seq` on, as many of the range as one place that holds records gives.

        A `Fetch` instead, when the bytes are not at hand and the caller may not wait for them.
        """
        return reading.job_slots(self.name, self.live, seq, last_seq, bytes_max, may_wait=may_wait)

    # Starting.

    def finish_replay(self, now_ms: int, *, recount: bool) -> None:
        """The log is read: numbers, floors and reservations from what is really there."""
        self.live.finish_replay(self.evicted_above_records, recount=recount)
        self.writes.resume(self.live.head_seq + 1, self.live.cap_floor)
        # Before the caps: what has expired takes no room.
        self.refresh(now_ms)
        cap_floor = self.floor_under(self.config)
        # A lower floor evicts nothing. It may count lost seqs, because the TTL has passed them.
        self.live.raise_floors(cap_floor=cap_floor if cap_floor >= self.live.evict_floor else 0)
        # Drops lost ranges that a floor has passed.
        self.live.raise_floors()
        self.writes.settle_cap_floor(self.live.cap_floor)

    def become_queue(self) -> None:
        """The frame that created the topic is lost, and a later config says that it is a queue."""
        self.leases = LeaseTable()
        self.live.use_leases(self.leases)
