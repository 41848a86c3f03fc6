"""One router: what it is asked to do, how far it is, and the keys that it looks for in its dest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from topics.errors import BadFrame, TopicsError
from topics.formats import control, envelope
from topics.limits import FORWARD_RETRY_MS_MAX, FORWARD_RETRY_MS_MIN
from topics.protocol.tag_match import TagMatch

if TYPE_CHECKING:
    from topics.engine.topic.topic import Topic

Guarantee = Literal["at_least_once", "exactly_once"]

PROVENANCE: Final = "_topics_router"
SEQ_DIGITS_MAX: Final = 20


class RouterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for. `create_dest` belongs to the call and is not stored with the router."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    create_dest: bool = True


class Router:
    """One router at work. Only this module assigns its fields. Owner only."""

    __slots__ = (
        "_is_fetched",
        "_steps",
        "cursor",
        "dest",
        "dest_base",
        "evidence",
        "failure_count",
        "forwarded_total",
        "id",
        "is_fetching",
        "is_frozen",
        "is_searching",
        "name",
        "retry_at_ms",
        "searched_seq",
        "source",
        "spec",
    )

    def __init__(
        self,
        router_id: int,
        name: str,
        spec: RouterSpec,
        source: Topic,
        dest: Topic,
        *,
        cursor: int,
        dest_base: int,
        forwarded_total: int = 0,
    ) -> None:
        self.id = router_id
        self.name = name
        self.spec = spec
        self.source = source
        self.dest = dest
        # Source seqs up to here are done: copied (published, or in flight in dest), or passed over.
        self.cursor = cursor
        self.dest_base = dest_base
        self.forwarded_total = forwarded_total
        # (cursor, forwarded_total) before each step whose frames are not committed yet, in order.
        self._steps: deque[tuple[int, int]] = deque()
        # A change or the removal of the router is being logged. Until that ends, the router copies nothing.
        self.is_frozen = False
        # The records that the router copies next are being brought into memory, or have just been brought there.
        self.is_fetching = False
        self._is_fetched = False
        # How often in a row the source could not be read, and when it is tried again, on the monotonic clock. 0: it
        # could be read.
        self.failure_count = 0
        self.retry_at_ms = 0
        # `exactly_once` only: source seq -> dest seqs of records that have the key of its copy and were written to
        # dest directly. These are hints: such a record may be dead by now, or may never have been committed.
        self.evidence: dict[int, list[int]] = {}
        # The search has looked through dest up to this seq: every key there for a source seq above the cursor is in
        # `evidence`.
        self.searched_seq = 0
        # Whether the search for keys goes on at the next tick.
        self.is_searching = False

    @property
    def lag(self) -> int:
        """How many seqs of the source the router has not looked at yet."""
        return max(self.source.head_seq - self.cursor, 0)

    # Steps.

    @property
    def has_steps(self) -> bool:
        """Whether frames of a step are queued and not committed yet."""
        return bool(self._steps)

    def begin_step(self) -> None:
        """Frames of the next step are about to be queued. Remembers the present cursor, for the case that they fail."""
        self._steps.append((self.cursor, self.forwarded_total))

    def drop_step(self) -> None:
        """The frames were not queued."""
        self._steps.pop()

    def move(self, cursor: int, forwarded_total: int) -> None:
        self.cursor = cursor
        self.forwarded_total = forwarded_total
        self.failure_count = self.retry_at_ms = 0

    def end_step(self, error: TopicsError | None) -> None:
        """The frames of the oldest step are committed, or they failed. When they failed, every later step fails too."""
        cursor, forwarded_total = self._steps.popleft()
        if error is not None:
            self.cursor = min(self.cursor, cursor)
            self.forwarded_total = min(self.forwarded_total, forwarded_total)

    def begin_note(self, before: tuple[int, int]) -> None:
        """A note about a step that is already made is queued."""
        self._steps.append(before)

    def end_note(self) -> None:
        self._steps.popleft()

    # Changes and fetches.

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def change(self, spec: RouterSpec) -> None:
        """Takes over a new definition."""
        if spec.guarantee == "exactly_once" and not self.is_exact:
            # From now on the router looks for keys, so the search of dest begins at its first record.
            self.evidence = {}
            self.searched_seq = 0
        self.spec = spec

    def begin_fetch(self) -> None:
        self.is_fetching = True

    def end_fetch(self, *, is_fetched: bool) -> None:
        self.is_fetching = False
        self._is_fetched = is_fetched

    def note_failure(self, now_ms: int) -> None:
        """The source could not be read. `now_ms` is of the monotonic clock."""
        delay_ms = FORWARD_RETRY_MS_MIN << min(self.failure_count, FORWARD_RETRY_MS_MAX.bit_length())
        self.failure_count += 1
        self.retry_at_ms = now_ms + min(delay_ms, FORWARD_RETRY_MS_MAX)

    def take_fetched(self) -> bool:
        """Whether the records to be read next were just brought into memory: then a read may wait for them."""
        is_fetched, self._is_fetched = self._is_fetched, False
        return is_fetched

    @property
    def is_fetched(self) -> bool:
        return self._is_fetched

    @property
    def is_exact(self) -> bool:
        return self.spec.guarantee == "exactly_once"

    @property
    def is_searched(self) -> bool:
        """Whether the search has looked through all of dest. Always True without `exactly_once`."""
        return self.searched_seq >= self.dest.head_seq or not self.is_exact

    @property
    def settled(self) -> tuple[int, int]:
        """(cursor, forwarded_total) of the published copies. A checkpoint stores these."""
        return self._steps[0] if self._steps else (self.cursor, self.forwarded_total)

    def logged_state(self, spec: RouterSpec) -> control.RouterState:
        """For a frame that follows the frames of every copy made so far."""
        return self.state(self.cursor, self.forwarded_total, self.dest.writes.next_seq - 1, spec)

    def published_state(self) -> control.RouterState:
        """For a snapshot, with dest as readers see it."""
        return self.state(*self.settled, self.dest.head_seq)

    def state(
        self, cursor: int, forwarded_total: int, dest_seq: int, spec: RouterSpec | None = None
    ) -> control.RouterState:
        """The state to store, with the present definition or a new one."""
        spec = spec or self.spec
        # A router looks for keys only while its guarantee is `exactly_once`.
        is_searched = self.is_exact and spec.guarantee == "exactly_once"
        self._forget_evidence(cursor)
        return control.RouterState(
            self.id,
            self.name,
            self.source.id,
            self.dest.id,
            _stored_spec(spec),
            cursor,
            dest_seq,
            self.dest_base,
            forwarded_total,
            min(self.searched_seq, dest_seq) if is_searched else 0,
            [(source_seq, seq) for source_seq, found in self.evidence.items() for seq in found] if is_searched else [],
        )

    # Exactly once.

    def note_keys(self, first_seq: int, envelopes: Iterable[bytes | None]) -> None:
        """Looks through the next records of dest. A record with the key of a copy that is not made yet counts as that
        copy."""
        prefix = self.key(0)[:-1]
        # A step that is not committed may be taken back, so the cursor of the published copies is compared.
        cursor = self.settled[0]
        seq = first_seq - 1
        for seq, payload in enumerate(envelopes, first_seq):
            key = key_in(payload) if payload is not None else None
            if key is None or not key.startswith(prefix):
                continue
            digits = key[len(prefix) :]
            if digits.isdecimal() and len(digits) <= SEQ_DIGITS_MAX and int(digits) > cursor:
                self.evidence.setdefault(int(digits), []).append(seq)
        self.searched_seq = max(self.searched_seq, seq)

    def note_direct_write(self, first_seq: int, envelopes: Iterable[bytes]) -> None:
        """Records are written to dest directly. A record with the key of a copy counts as that copy while it is
        live."""
        # If the search is not up to here yet, it will come to these records later.
        if self.is_exact and self.searched_seq >= first_seq - 1:
            self.note_keys(first_seq, envelopes)

    def note_copies(self, first_seq: int, last_seq: int) -> None:
        """A router copied these seqs into dest. Their keys do not matter: the keys of this router are for source seqs
        that its cursor has passed."""
        if self.searched_seq >= first_seq - 1:
            self.searched_seq = max(self.searched_seq, last_seq)

    def note_searched(self, seq: int) -> None:
        """Every record of dest up to this seq has been looked through."""
        self.searched_seq = seq

    def pause_search(self, *, goes_on: bool) -> None:
        self.is_searching = goes_on

    def restore_search(self, searched_seq: int, evidence: Iterable[tuple[int, int]]) -> None:
        """Takes over the state of the search from a snapshot or the log."""
        self.searched_seq = searched_seq
        for source_seq, seq in evidence:
            self.evidence.setdefault(source_seq, []).append(seq)

    def _forget_evidence(self, cursor: int) -> None:
        first_live = self.dest.live.first_live
        left = {
            source_seq: [seq for seq in found if seq >= first_live]
            for source_seq, found in self.evidence.items()
            if source_seq > cursor
        }
        self.evidence = {source_seq: found for source_seq, found in left.items() if found}

    def key(self, source_seq: int) -> str:
        return f"router:{self.name}:{self.source.id}:{self.source.epoch}:{source_seq}"


def _stored_spec(spec: RouterSpec) -> dict[str, Any]:
    """Members that differ from their defaults. Source and dest are not among them: they are stored as topic ids."""
    members = {
        name: getattr(spec, name)
        for name in ("preserve_node", "preserve_tag", "allow_cycle", "guarantee")
        if getattr(spec, name) != _DEFAULTS[name]
    }
    if spec.filter is not None:
        members["filter"] = [spec.filter.text, spec.filter.is_prefix]
    return members


def stored_spec(members: dict[str, Any], source: str, dest: str) -> RouterSpec:
    """A definition as it was read from disk. Raises `BadFrame`."""
    try:
        return msgspec.convert({**members, "source": source, "dest": dest}, RouterSpec)
    except msgspec.ValidationError as error:
        raise BadFrame(f"not a router: {error}") from error


_DEFAULTS: Final = {
    field.name: field.default for field in msgspec.structs.fields(RouterSpec) if field.default is not msgspec.NODEFAULT
}


class _Provenance(msgspec.Struct):
    idempotency_key: str


class _Meta(msgspec.Struct):
    _topics_router: _Provenance


_decode_meta: Final = msgspec.json.Decoder(_Meta).decode


def key_in(payload: bytes) -> str | None:
    """The router key in an envelope's meta, if it has one."""
    if PROVENANCE.encode() not in payload:
        return None
    _, meta = envelope.split(payload)
    if meta is None:
        return None
    try:
        return _decode_meta(meta)._topics_router.idempotency_key
    except msgspec.DecodeError:
        return None
