"""One topic instance: its records, floors and numbers. The rules of reading, retention and deletion.

Records live in three places, in seq order: segments (files), the replayed part of the WAL (after a start,
until the next checkpoint), and the resident tail. The tail may overlap the other two: what is in memory is
read from memory.

Numbers that hold after every call of a public method:

1. `head_seq` is the last published seq; `tail.end_seq == head_seq + 1`.
2. `count` and `size_bytes` are those of live records at or above `first_live`.
3. `first_live` is the first live seq, or `head_seq + 1`.
4. Floors only rise, and `evict_floor <= earliest_seq`.
5. Everything up to `checkpointed_seq` that is live is in segments; above it, in `replayed` or `tail`.

Owner only. Nothing in here writes to disk.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from topics.engine.config import TopicConfig
from topics.engine.queues.leases import LeaseTable
from topics.engine.routers.router import Router
from topics.engine.topic.fetch import Fetch, unreadable
from topics.engine.topic.hops import HopRuns
from topics.engine.topic.page import Page, Reason, Tombstone
from topics.engine.topic.replayed import Replayed, Span
from topics.engine.topic.segment_set import SegmentSet
from topics.engine.topic.tag_index import TagIndex
from topics.engine.topic.tail import Tail
from topics.engine.writing.staged import AppendDone, Staged
from topics.errors import ColdUnavailable, CorruptRecord, FormatError
from topics.formats.record_layout import SEGMENT_BODY, WAL_BODY, RecordForm, raw_node, raw_size
from topics.formats.records import RecordBatch
from topics.formats.snapshot import GroupState, KeyState, SegmentState, WriterState
from topics.limits import (
    FETCH_SEGMENTS_MAX,
    READ_PIECE_BYTES_MIN,
    READ_PIECE_SLOTS_MIN,
    READ_PIECES_MAX,
    READ_SLOTS_MAX,
    READ_SLOTS_PER_RECORD_MAX,
)
from topics.storage.wal import WalShard

logger = logging.getLogger(__name__)

Waiter = Callable[[], None]
"""Told that there is something new. It schedules a read, and must not call the engine itself."""

# The waiters of a topic that nobody waits for. Shared by all of them, so nothing is ever added to it.
NOBODY: Final[set[Waiter]] = set()


class LiveBytes:
    """Live and staged bytes over all topics of an engine: what a quota is held against."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Topic:
    __slots__ = (
        "_live_bytes",
        "_size_bytes",
        "_staged_bytes",
        "cap_floor",
        "ceiling",
        "ceiling_asked",
        "checkpointed_seq",
        "changing",
        "config",
        "copied_by",
        "copied_first_seq",
        "copied_last_seq",
        "count",
        "created",
        "delete_below",
        "encoded",
        "epoch",
        "first_live",
        "groups",
        "hazards",
        "head_seq",
        "hops",
        "id",
        "keys",
        "killed_meanwhile",
        "last_read_ts",
        "last_ts",
        "last_write_ts",
        "leases",
        "logged_last_seq",
        "lost",
        "name",
        "next_seq",
        "on_changed",
        "pending",
        "replayed",
        "reserve",
        "routers_in",
        "routers_out",
        "segments",
        "shard",
        "snapshot_seqs",
        "staged",
        "staged_count",
        "staged_evict_bytes",
        "staged_floor",
        "tags",
        "tags_missing_to",
        "tail",
        "takes_groups",
        "topic_json",
        "trim_floor",
        "ttl_floor",
        "unlogged_last_seq",
        "waiters",
        "writers",
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
        self.segments = segments
        self.replayed: Replayed | None = None
        self.tail = Tail(1)
        self.head_seq = 0
        self.count = 0
        self._live_bytes = live_bytes
        self._size_bytes = 0
        self.last_ts = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        # Called, and forgotten, when records are published or the instance ends.
        self.waiters: set[Waiter] = NOBODY
        # Floors: log-semantics §4. 0 = none.
        self.cap_floor = 0
        self.ttl_floor = 0
        self.trim_floor = 0
        self.delete_below = 0
        self.first_live = 1
        # [first, last] seq ranges that went with a power loss, ascending.
        self.lost: list[tuple[int, int]] = []
        self.checkpointed_seq = 0
        # Last seq written while the topic was ephemeral: those records are in no WAL frame.
        self.unlogged_last_seq = 0
        # Last seq of a stored class: what a checkpoint of an ephemeral topic still has to put away.
        self.logged_last_seq = 0
        self.tags = TagIndex()
        # The active segment's tags up to this seq are read from its file when somebody asks for the first time.
        self.tags_missing_to = 0
        self.keys: dict[str, KeyState] = {}
        # Consumer groups by name.
        self.groups: dict[str, GroupState] = {}
        # The newest epoch of each writer that ever committed staged records.
        self.writers: dict[str, WriterState] = {}
        # Queues only: jobs that were handed out.
        self.leases = LeaseTable() if config.type == "queue" else None
        # Routers that it is the dest, or the source, of.
        self.routers_in: tuple[Router, ...] = ()
        self.routers_out: tuple[Router, ...] = ()
        # Derived copies (see `forwarding`) that no frame holds: the first one, and who made them. 0 = none.
        self.copied_first_seq = 0
        self.copied_by: Router | None = None
        # The last one that was ever made: a checkpoint hands them over, the log may not have them.
        self.copied_last_seq = 0
        # Up to where its records are in segments by the last but one snapshot that was written, and by the last.
        self.snapshot_seqs = (0, 0)
        # Changes under way that a re-run of routers would not see in their place: copies are logged meanwhile.
        self.hazards = 0
        self.hops: HopRuns | None = None
        # Where its frames go; set when the WAL is open.
        self.shard: WalShard
        # Writes of this turn that are not staged yet, and whether the topic's writes may be taken that way.
        self.pending: list[tuple[RecordBatch, AppendDone]] = []
        self.takes_groups = False
        # Writes between their reservation and their publication, in order. A list: a deque costs an idle topic more.
        self.staged: list[Staged] = []
        self.next_seq = 1
        self.staged_count = 0
        self._staged_bytes = 0
        # Byte-cap floor once everything staged is published, and the bytes, live or staged, that it will take.
        self.staged_floor = 0
        self.staged_evict_bytes = 0
        # Disk-class reservation: seqs below `ceiling` may be answered; `ceiling_asked` is on its way.
        self.ceiling = 0
        self.ceiling_asked = 0
        self.reserve = 0
        self.created = False
        # A new config, or the removal, is on its way: writes that come meanwhile wait in `on_changed`.
        self.changing = False
        self.on_changed: list[Callable[[], None]] = []
        # Seqs deleted while a checkpoint was putting them into segments.
        self.killed_meanwhile: list[int] | None = None
        # Snapshot entry as of the last checkpoint, while nothing changed since.
        self.encoded: bytes | None = None
        # What its topic.json says; None when only an earlier process knows.
        self.topic_json: bytes | None = None

    # Bytes.

    @property
    def size_bytes(self) -> int:
        """Accounted bytes of live records."""
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, value: int) -> None:
        self._live_bytes.total += value - self._size_bytes
        self._size_bytes = value

    @property
    def staged_bytes(self) -> int:
        """Accounted bytes of writes that are not published yet."""
        return self._staged_bytes

    @staged_bytes.setter
    def staged_bytes(self, value: int) -> None:
        self._live_bytes.total += value - self._staged_bytes
        self._staged_bytes = value

    def leave_total(self) -> None:
        """The instance has ended: whatever still happens to it counts nowhere."""
        self._live_bytes.total -= self._size_bytes + self._staged_bytes
        self._live_bytes = LiveBytes()

    # Floors.

    @property
    def evict_floor(self) -> int:
        floor = max(self.cap_floor, self.ttl_floor, self.trim_floor) + 1
        return min(floor, self.head_seq + 1)

    @property
    def earliest_seq(self) -> int:
        return max(self.evict_floor, min(self.delete_below, self.head_seq + 1), self.first_live)

    def raise_floors(self, *, cap_floor: int = 0, ttl_floor: int = 0, trim_floor: int = 0) -> None:
        self.cap_floor = max(self.cap_floor, cap_floor)
        self.ttl_floor = max(self.ttl_floor, ttl_floor)
        self.trim_floor = max(self.trim_floor, trim_floor)
        self._settle_first_live()

    def _settle_first_live(self) -> None:
        """Lets go of what the floors passed, then of dead slots in front."""
        floor = max(self.evict_floor, min(self.delete_below, self.head_seq + 1))
        if floor > self.first_live:
            self._forget_below(floor)
        if self.count == 0:
            self.first_live = self.head_seq + 1
        elif not self._is_live(self.first_live):
            live = self.next_live(self.first_live)
            if live is None:
                self._recount()
                live = self.head_seq + 1
            self.first_live = live
        if self.leases is not None:
            self.leases.forget_below(self.first_live)
        while self.lost and self.lost[0][1] < self.evict_floor:
            # The tombstone of the floor covers it.
            self.lost.pop(0)

    def _recount(self) -> None:
        """The files say that nothing is left, and the numbers do not. The files are right: a delete byte is set
        before the snapshot that counts it, and a disk that lies about a sync may keep the one without the other."""
        logger.warning('topic "%s": %d records are deleted in their files, not live as noted', self.name, self.count)
        for state in self.segments.segments:
            self.segments.recount(state, self.first_live)
        self.count = self.size_bytes = 0

    def _is_live(self, seq: int) -> bool:
        return seq >= self.tail.first_seq and self.tail.next_live(seq) == seq

    def _forget_below(self, seq: int) -> None:
        # The tail may overlap what is in files: each record is counted by one of them.
        counted_by_tail = max(self.checkpointed_seq, self._replayed_end - 1) + 1
        count, size = self.segments.forget_below(seq, self.first_live)
        if self.replayed is not None:
            more = self.replayed.forget_below(seq)
            count, size = count + more[0], size + more[1]
        if seq > counted_by_tail:
            more = self.tail.live_numbers(counted_by_tail, seq - 1)
            count, size = count + more[0], size + more[1]
        self.tail.forget_below(seq)
        self.count -= count
        self.size_bytes -= size
        self.first_live = seq
        assert self.count >= 0

    @property
    def _replayed_end(self) -> int:
        return self.replayed.end_seq if self.replayed is not None else 0

    def next_live(self, seq: int) -> int | None:
        """First live seq at or behind `seq`."""
        if seq <= self.checkpointed_seq:
            live = self.segments.next_live(seq)
            if live is not None:
                return live
            seq = self.checkpointed_seq + 1
        if self.replayed is not None and seq < self.replayed.end_seq:
            live = self.replayed.next_live(max(seq, self.replayed.first_seq))
            if live is not None:
                return live
            seq = self.replayed.end_seq
        return self.tail.next_live(seq)

    def live_sizes(self, seq: int) -> Iterator[tuple[int, int]]:
        """(seq, size) of live records from `seq` on, in order."""
        if seq <= self.checkpointed_seq:
            yield from self.segments.live_sizes(seq)
            seq = self.checkpointed_seq + 1
        if self.replayed is not None and seq < self.replayed.end_seq:
            yield from self.replayed.live_sizes(max(seq, self.replayed.first_seq))
            seq = self.replayed.end_seq
        yield from self.tail.live_sizes(seq)

    def refresh(self, now_ms: int) -> None:
        """Brings the TTL floor up to date. Called at the start of every read and around every write."""
        ttl_ms = self.config.ttl_ms
        if ttl_ms and self.count:
            # Expired iff now - ts > ttl, so the first time that is still good is now - ttl.
            expired = self._expired_last_seq(now_ms - ttl_ms)
            # Dead slots in front are nobody's loss: something live must have expired.
            if expired >= self.first_live:
                self.raise_floors(ttl_floor=expired)
                self.recount_staged_evictions()

    def _expired_last_seq(self, cutoff_ts: int) -> int:
        if cutoff_ts <= 0:
            return 0
        seq = self.first_live
        if seq <= self.checkpointed_seq:
            expired = self.segments.expired_last_seq(seq, cutoff_ts)
            if expired < self.segments.end_seq - 1:
                return expired
        if self.replayed is not None:
            expired = self.replayed.expired_last_seq(cutoff_ts)
            if expired < self.replayed.end_seq - 1:
                return expired
        if self.tail.end_seq == self.tail.first_seq:
            return self.head_seq
        return max(self.tail.expired_last_seq(cutoff_ts), self.first_live - 1)

    def floor_under(self, config: TopicConfig) -> int:
        """`cap_floor` once everything staged is published, if this config holds then."""
        floor = max(self.cap_floor, self.staged_floor)
        if config.discard == "old":
            if config.cap_records:
                floor = max(floor, self.next_seq - 1 - config.cap_records)
            if config.cap_bytes:
                floor = max(floor, self.byte_cap_floor(config, self.next_seq, (), 0)[0])
        return floor

    def byte_cap_floor(
        self, config: TopicConfig, first_seq: int, sizes: Sequence[int], size_bytes: int
    ) -> tuple[int, int]:
        """(floor, bytes evicted by it) once a write of these sizes is published behind all staged ones.

        Walks from the oldest record that stays: the cost is that of the records evicted.
        """
        excess = self.size_bytes + self.staged_bytes - self.staged_evict_bytes + size_bytes - config.cap_bytes
        by_count = first_seq + len(sizes) - 1 - config.cap_records if config.cap_records else 0
        floor = self.staged_floor
        evicted = 0
        for seq, size in self._sizes_after(floor, first_seq, sizes):
            if seq > by_count and excess <= 0:
                break
            excess -= size
            evicted += size
            floor = seq
        return floor, evicted

    def recount_staged_evictions(self) -> None:
        """Something died that is not the work of a staged write: what is left for those to evict?"""
        if self.staged_evict_bytes == 0:
            return
        self.staged_evict_bytes = 0
        for seq, size in self._sizes_after(0, self.next_seq, ()):
            if seq > self.staged_floor:
                break
            self.staged_evict_bytes += size

    def _sizes_after(self, floor: int, first_seq: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """(seq, size) of everything live, staged, or about to be, behind `floor`."""
        for seq, size in self.live_sizes(max(self.first_live, floor + 1)):
            yield seq, size
        for staged in self.staged:
            for seq, size in enumerate(staged.sizes, staged.first_seq):
                if seq > floor:
                    yield seq, size
        yield from enumerate(sizes, first_seq)

    # Publishing.

    def publish(self, staged: Staged) -> None:
        """Makes a committed write visible. In reservation order."""
        assert staged.first_seq == self.head_seq + 1, "a gap here would become a silent loss"
        tail = self.tail
        if tail.end_seq != staged.first_seq:
            assert tail.end_seq == tail.first_seq
            self.tail = tail = Tail(staged.first_seq)
        if self.count == 0:
            self.first_live = staged.first_seq
        tail.extend(staged.bodies, staged.sizes, staged.ts)
        count = len(staged.bodies)
        self.head_seq += count
        self.count += count
        self.size_bytes += staged.size_bytes
        self.last_ts = staged.ts
        self.last_write_ts = staged.ts
        if not staged.is_unlogged:
            self.logged_last_seq = self.head_seq
        self.encoded = None
        if staged.tags is not None:
            add = self.tags.add
            for seq, tag in enumerate(staged.tags, staged.first_seq):
                if tag is not None:
                    add(tag, seq)
        config = self.config
        floor = staged.cap_floor
        if config.cap_records and config.discard == "old":
            floor = max(floor, self.head_seq - config.cap_records)
        if floor > self.cap_floor:
            before = self.size_bytes
            self.raise_floors(cap_floor=floor)
            evicted = before - self.size_bytes
            self.staged_evict_bytes = max(self.staged_evict_bytes - evicted, 0) if self.staged else 0

    def publish_holes(self, staged: Staged) -> None:
        """Seqs that stand for what a router's source lost. The floor takes everything before them too."""
        assert staged.first_seq == self.head_seq + 1, "a gap here would become a silent loss"
        self.raise_floors(trim_floor=self.head_seq)
        self.head_seq = staged.last_seq
        self.trim_floor = self.head_seq
        self.tail = Tail(self.head_seq + 1)
        self.first_live = self.head_seq + 1
        self.last_ts = staged.ts
        self.encoded = None
        self.raise_floors()
        self.recount_staged_evictions()
        assert self.count == 0

    def apply_caps(self) -> None:
        """Evicts what the config does not allow; no write is under way."""
        self.raise_floors(cap_floor=self.floor_under(self.config))

    def apply_config(self, config: TopicConfig, cap_floor: int, unlogged_last_seq: int) -> None:
        """A new config, which is logged with these numbers; no write is under way."""
        assert not self.staged, "writes wait for a config, and those before it are published"
        self.config = config
        self.encoded = None
        if unlogged_last_seq:
            self.unlogged_last_seq = unlogged_last_seq
        if config.durability != "disk":
            # Everything answered so far was synced with the config: there is nothing left to reserve for.
            self.ceiling = self.ceiling_asked = self.reserve = 0
        self.raise_floors(cap_floor=cap_floor)
        self.staged_floor = self.cap_floor

    def forget_keys(self, now_ms: int) -> None:
        """Lets go of keys whose window has ended: around every change of the window, so that a key which ended
        does not come back with a longer one, and a start that reads the changes again comes to the same keys."""
        window_ms = self.config.idempotency_window_ms
        self.keys = {name: key for name, key in self.keys.items() if now_ms - key.ts < window_ms}

    # Reading.

    def read(self, from_seq: int, limit: int, bytes_max: int, nodes: frozenset[bytes] | None) -> Page:
        """Log-semantics §5 and §9: floors and tombstone first, then slots in order until a bound is met."""
        cursor, tombstone = self._tombstone(from_seq)
        page = Page(self.name, cursor, self.head_seq, self.earliest_seq, tombstone)
        if nodes is not None and not self.config.dedupe_node:
            nodes = None
        self._fill(page, self._stop_seq(cursor), limit, bytes_max, nodes)
        return page

    def _stop_seq(self, cursor: int) -> int:
        """The last seq that a page from this cursor may come to."""
        for first, last in self.lost:
            if first > cursor:
                return min(self.head_seq, first - 1)
            if last > cursor:
                # A lost range met behind another tombstone: the next read begins with it.
                return cursor
        return self.head_seq

    def fetch_needed(self, from_seq: int, limit: int, bytes_max: int) -> Fetch | None:
        """See `Engine.fetch_needed`."""
        cursor, _ = self._tombstone(from_seq)
        first_seq = cursor + 1
        last_seq = min(self._stop_seq(cursor), cursor + limit, self.tail.first_seq - 1)
        if first_seq > last_seq:
            return None
        parts = self.segments.parts(first_seq, min(last_seq, self.checkpointed_seq), FETCH_SEGMENTS_MAX)
        spans: list[Span] = []
        replayed = self.replayed
        if replayed is not None:
            first, last = max(first_seq, replayed.first_seq), min(last_seq, replayed.end_seq - 1)
            if first <= last:
                spans = replayed.spans(first, replayed.last_within(first, last, max(bytes_max, READ_PIECE_BYTES_MIN)))
        fetch = Fetch(self.name, first_seq, self.segments, parts, replayed, spans, bytes_max)
        return None if fetch.is_at_hand() else fetch

    def _tombstone(self, from_seq: int) -> tuple[int, Tombstone | None]:
        head, evict_floor, earliest = self.head_seq, self.evict_floor, self.earliest_seq
        if from_seq > head:
            missed = max(head - 1, 0) + 1
            return earliest - 1, Tombstone(1, head, "recreated", missed, earliest, head)
        if from_seq + 1 < evict_floor:
            gap_from = from_seq + 1
            tombstone = Tombstone(
                gap_from, evict_floor - 1, self._reason(gap_from), evict_floor - 1 - from_seq, evict_floor, head
            )
            return max(earliest - 1, from_seq) if not self.lost else max(evict_floor - 1, from_seq), tombstone
        for first, last in self.lost:
            if first <= from_seq + 1 <= last:
                gap_from = from_seq + 1
                return last, Tombstone(gap_from, last, "power_loss", last - from_seq, last + 1, head)
        if not self.lost:
            return max(from_seq, min(earliest - 1, head)), None
        return from_seq, None

    def _reason(self, gap_from: int) -> Reason:
        cap = self.cap_floor >= gap_from
        ttl = self.ttl_floor >= gap_from
        if cap and ttl:
            return "mixed"
        if cap:
            return "cap"
        return "ttl" if ttl else "source_trim"

    def _fill(self, page: Page, stop_seq: int, limit: int, bytes_max: int, nodes: frozenset[bytes] | None) -> None:
        """Slots from the cursor on, until `limit` records, the byte budget, or `stop_seq`.

        Piece by piece. Only the first piece may wait for a disk or a network, and there are not many: a page that
        has come somewhere ends before it would keep its owner from others.
        """
        taken = _Taken(limit, bytes_max, nodes)
        seq = page.next_from_seq + 1
        stop_seq = min(stop_seq, page.next_from_seq + READ_SLOTS_PER_RECORD_MAX * limit + READ_SLOTS_MAX)
        pieces = 0
        while seq <= stop_seq and taken.wanted > 0 and pieces < READ_PIECES_MAX:
            slots_max = max(taken.wanted, READ_PIECE_SLOTS_MIN) if pieces else taken.wanted
            last_seq = min(stop_seq, seq + slots_max - 1)
            budget = max(taken.budget, READ_PIECE_BYTES_MIN)
            try:
                if pieces and not self._is_at_hand(seq, last_seq, budget):
                    return
                form, last_seq, slots, is_cold = self._slots(seq, last_seq, budget)
            except (ColdUnavailable, OSError) as error:
                if pieces:
                    # The next page begins with it, and says so.
                    return
                raise unreadable(self.name, seq, error) from error
            raws: list[bytes] = []
            end = last_seq
            if not self._take_resident(taken, seq, last_seq, slots, raws) and not self._take_whole(
                taken, form, seq, slots, raws
            ):
                end = self._take(taken, form, seq, slots, raws)
            if raws:
                page.chunks.append((form, raws))
                if is_cold:
                    page.cold_records += len(raws)
            page.records_scanned += end - seq + 1
            page.next_from_seq = end
            if end < last_seq:
                return
            seq = end + 1
            pieces += 1

    def _is_at_hand(self, seq: int, last_seq: int, bytes_max: int) -> bool:
        """Whether `_slots` would not wait."""
        if seq >= self.tail.first_seq:
            return True
        last_seq = min(last_seq, self.tail.first_seq - 1)
        if seq <= self.checkpointed_seq:
            return self.segments.is_at_hand(seq, min(last_seq, self.checkpointed_seq), bytes_max)
        replayed = self.replayed
        if replayed is not None and replayed.first_seq <= seq < replayed.end_seq:
            last_seq = replayed.last_within(seq, min(last_seq, replayed.end_seq - 1), bytes_max)
            return all(map(replayed.is_cached, replayed.spans(seq, last_seq)))
        return True

    def _slots(
        self, seq: int, last_seq: int, bytes_max: int
    ) -> tuple[RecordForm, int, Sequence[bytes | FormatError | None], bool]:
        """(form, last seq covered, slots, whether they are cold) from one of the places that hold `seq`."""
        if seq >= self.tail.first_seq:
            return WAL_BODY, last_seq, self.tail.read(seq, last_seq), False
        last_seq = min(last_seq, self.tail.first_seq - 1)
        if seq <= self.checkpointed_seq:
            chunk = self.segments.read_chunk(seq, min(last_seq, self.checkpointed_seq), bytes_max)
            return SEGMENT_BODY, *chunk
        replayed = self.replayed
        if replayed is not None and replayed.first_seq <= seq < replayed.end_seq:
            last_seq = replayed.last_within(seq, min(last_seq, replayed.end_seq - 1), bytes_max)
            return WAL_BODY, last_seq, replayed.read(seq, last_seq), False
        # Never got a record: what a power loss took.
        return WAL_BODY, last_seq, [None] * (last_seq - seq + 1), False

    def job_slots(
        self, seq: int, last_seq: int, bytes_max: int, *, may_wait: bool
    ) -> tuple[RecordForm, Sequence[bytes | FormatError | None]] | Fetch:
        """(form, slots) from `seq` on, as many of the range as one of the places that hold records gives.

        What has to be fetched before, unless they are at hand or the caller may wait for them.
        """
        if seq < self.tail.first_seq and not may_wait:
            fetch = self.fetch_needed(seq - 1, last_seq - seq + 1, bytes_max)
            if fetch is not None:
                return fetch
        try:
            form, _, slots, _ = self._slots(seq, last_seq, bytes_max)
        except (ColdUnavailable, OSError) as error:
            raise unreadable(self.name, seq, error) from error
        return form, slots

    def _take_resident(
        self,
        taken: "_Taken",
        seq: int,
        last_seq: int,
        slots: Sequence[bytes | FormatError | None],
        raws: list[bytes],
    ) -> bool:
        """The hot path: records in memory, none dead, none filtered, all within the budget."""
        tail = self.tail
        if taken.nodes is not None or seq < tail.first_seq or tail.dead_count or len(slots) > taken.wanted:
            return False
        size = sum(tail.sizes(seq, last_seq))
        if size > taken.budget:
            return False
        taken.budget -= size
        taken.wanted -= len(slots)
        taken.any = True
        raws += slots  # type: ignore[arg-type]
        return True

    def _take_whole(
        self,
        taken: "_Taken",
        form: RecordForm,
        seq: int,
        slots: Sequence[bytes | FormatError | None],
        raws: list[bytes],
    ) -> bool:
        """Records from files, none dead, bad or filtered, that fit even when their headers are counted too."""
        if taken.nodes is not None or seq < self.first_live or len(slots) > taken.wanted:
            return False
        if set(map(type, slots)) != {bytes}:
            return False
        raws += slots  # type: ignore[arg-type]
        if not taken.take_unmeasured(form, raws):
            raws.clear()
            return False
        return True

    def _take(
        self,
        taken: "_Taken",
        form: RecordForm,
        seq: int,
        slots: Sequence[bytes | FormatError | None],
        raws: list[bytes],
    ) -> int:
        """Last seq examined: that of the last record wanted. One that would break the budget is not, unless it is
        the first."""
        taken.settle()
        first_live, nodes = self.first_live, taken.nodes
        for slot in slots:
            if slot is None or seq < first_live:
                seq += 1
                continue
            if isinstance(slot, FormatError):
                if taken.any:
                    # A page ends before a damaged record; the next one names it.
                    return seq - 1
                raise CorruptRecord(self.name, seq, slot.message)
            if nodes is None or (node := raw_node(slot, form)) is None or node not in nodes:
                size = raw_size(slot, form)
                if size > taken.budget and taken.any:
                    return seq - 1
                taken.budget -= size
                taken.wanted -= 1
                taken.any = True
                raws.append(slot)
                if taken.wanted == 0:
                    return seq
            seq += 1
        return seq - 1

    # Deleting.

    def delete_before(self, before_seq: int) -> tuple[int, int]:
        """Every live record below `before_seq`; (count, bytes) of what that was."""
        before_seq = min(before_seq, self.head_seq + 1)
        if before_seq <= self.delete_below:
            return 0, 0
        self.delete_below = before_seq
        before = self.count, self.size_bytes
        if before_seq > self.first_live:
            # Delete bytes follow at the next checkpoint, so that the files alone tell the truth too.
            count, size = self.segments.kill_below(before_seq, self.first_live)
            self.count -= count
            self.size_bytes -= size
            self._note_killed(range(self.checkpointed_seq + 1, before_seq))
        self._settle_first_live()
        self.recount_staged_evictions()
        self.encoded = None
        return before[0] - self.count, before[1] - self.size_bytes

    def delete_seqs(self, seqs: Iterable[int]) -> tuple[int, int]:
        """The live ones among these seqs (ascending); (count, bytes) of what that was."""
        count, size = 0, 0
        filed: list[int] = []
        killed: list[int] = []
        for seq in seqs:
            if not self.first_live <= seq <= self.head_seq:
                continue
            freed = self._kill_in_memory(seq)
            if seq <= self.checkpointed_seq:
                filed.append(seq)
            elif freed is not None:
                killed.append(seq)
                count += 1
                size += freed
            if self.leases is not None:
                self.leases.forget(seq)
        if filed:
            more = self.segments.kill_many(filed)
            count, size = count + more[0], size + more[1]
        self._note_killed(killed)
        self.count -= count
        self.size_bytes -= size
        self._settle_first_live()
        self.recount_staged_evictions()
        self.encoded = None
        return count, size

    def _kill_in_memory(self, seq: int) -> int | None:
        """Releases what memory holds of the record; its size when it was live there."""
        freed = None
        if self.replayed is not None and self.replayed.first_seq <= seq < self.replayed.end_seq:
            freed = self.replayed.kill(seq)
        if seq >= self.tail.first_seq:
            freed = self.tail.kill(seq) or freed
        return freed

    def _note_killed(self, seqs: Iterable[int]) -> None:
        if self.killed_meanwhile is not None:
            self.killed_meanwhile += seqs

    def tagged_seqs(self, tag: bytes, *, is_prefix: bool, end_seq: int) -> list[int]:
        """Seqs below `end_seq` whose tag matches, from the indexes alone; dead ones may be among them."""
        found: list[int] = []
        for state in self.segments.segments:
            if state.sealed and state.tagged_count and state.last_seq >= self.first_live:
                sidecar = self.segments.tags(state)
                found += sidecar.seqs_by_prefix(tag) if is_prefix else sidecar.seqs(tag)
        self._load_missing_tags()
        found += self.tags.seqs_by_prefix(tag) if is_prefix else self.tags.seqs(tag)
        return [seq for seq in found if self.first_live <= seq < end_seq]

    def _load_missing_tags(self) -> None:
        """Tags of the active segment, which a start does not read. They come before those of the tail."""
        upto_seq, self.tags_missing_to = self.tags_missing_to, 0
        if not upto_seq:
            return
        loaded = TagIndex()
        for state in self.segments.segments:
            if not state.sealed:
                for tag, seqs in self.segments.built_tags(state):
                    for seq in seqs:
                        # A checkpoint may have added to it since; those tags are in the index.
                        if seq <= upto_seq:
                            loaded.add(tag, seq)
        loaded.merge(self.tags)
        self.tags = loaded

    # Checkpoints.

    def active_segment(self) -> SegmentState | None:
        segments = self.segments.segments
        return segments[-1] if segments and not segments[-1].sealed else None

    def dead_ranges(self, first_seq: int, last_seq: int) -> list[tuple[int, int]]:
        """[first, last] ranges of slots that are dead, among those that are in no segment yet."""
        dead: list[tuple[int, int]] = []
        if self.replayed is not None:
            dead += self.replayed.dead_ranges(first_seq, min(last_seq, self.replayed.end_seq - 1))
            first_seq = max(first_seq, self.replayed.end_seq)
        return dead + self.tail.dead_ranges(max(first_seq, self.tail.first_seq), last_seq)


class _Taken:
    """What a page may still take."""

    __slots__ = ("_unmeasured", "any", "budget", "nodes", "wanted")

    def __init__(self, wanted: int, budget: int, nodes: frozenset[bytes] | None) -> None:
        self.wanted = wanted
        self.budget = budget
        self.nodes = nodes
        self.any = False
        # Records whose whole length was taken off the budget: (form, records, that length).
        self._unmeasured: list[tuple[RecordForm, list[bytes], int]] = []

    def take_unmeasured(self, form: RecordForm, raws: list[bytes]) -> bool:
        """Measuring each record costs more than reading it. It is put off until the budget gets tight."""
        size = sum(map(len, raws))
        if size > self.budget:
            return False
        self._unmeasured.append((form, raws, size))
        self.budget -= size
        self.wanted -= len(raws)
        self.any = True
        return True

    def settle(self) -> None:
        """Makes the budget exact."""
        for form, raws, size in self._unmeasured:
            self.budget += size - sum(raw_size(raw, form) for raw in raws)
        self._unmeasured.clear()
