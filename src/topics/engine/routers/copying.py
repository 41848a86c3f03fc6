"""Which records a router copies, and what the copies look like. Decided slot by slot, without touching dest.

Pure but for `Copies` and `Room`, which count along.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from topics.engine.topic.fetch import Fetch
from topics.engine.topic.router import PROVENANCE, Router, key_in
from topics.errors import FormatError
from topics.formats import envelope
from topics.formats.record_layout import RecordForm, split_raw
from topics.formats.records import RecordBatch
from topics.limits import (
    FORWARD_BYTES_MAX,
    META_BYTES_MAX,
    META_MEMBERS_MAX,
    READ_BYTES_MAX,
    RECORD_BYTES_MAX,
    ROUTER_HOPS_MAX,
)
from topics.protocol.tag_match import TagMatch

logger = logging.getLogger(__name__)

ORIGINAL_META: Final = "_topics_original_meta"

_encode: Final = msgspec.json.Encoder().encode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EvidenceNotFetched(Exception):
    """Whether a copy is already there is not known until `fetch` was called."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self.fetch = fetch


class Copies:
    """The records that one step of a router copies, by column, and the source seq that the step comes to."""

    __slots__ = (
        "cursor",
        "envelopes",
        "hops",
        "is_stopped",
        "met_evidence",
        "nodes",
        "size_bytes",
        "sizes",
        "source_times",
        "suppressed",
        "tags",
    )

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.envelopes: list[bytes] = []
        self.sizes: list[int] = []
        self.size_bytes = 0
        self.tags: list[bytes | None] = []
        self.nodes: list[bytes | None] = []
        self.hops: list[int] = []
        self.source_times: list[int] = []
        # How many records dest has already.
        self.suppressed = 0
        # Whether a hint said that dest may have one of the records.
        self.met_evidence = False
        # Whether the next record cannot be copied now.
        self.is_stopped = False

    def batch(self, start: int = 0, end: int | None = None) -> RecordBatch:
        """The records at places `start` to `end - 1`."""
        tags, nodes = self.tags[start:end], self.nodes[start:end]
        return RecordBatch(
            self.envelopes[start:end],
            self.sizes[start:end],
            tags if any(tag is not None for tag in tags) else None,
            nodes if any(node is not None for node in nodes) else None,
        )


class Room:
    """How many records and bytes dest and the server's quota still take."""

    __slots__ = ("count", "size")

    def __init__(self, count: int | None, size: int | None) -> None:
        # None: no bound.
        self.count = count
        self.size = size

    def take(self, size: int) -> bool:
        if self.count is not None:
            if self.count < 1:
                return False
            self.count -= 1
        if self.size is not None:
            if self.size < size:
                return False
            self.size -= size
        return True


def take_slots(
    router: Router,
    copies: Copies,
    form: RecordForm,
    first_seq: int,
    slots: Sequence[bytes | FormatError | None],
    room: Room,
    *,
    stops_at_evidence: bool = False,
) -> None:
    """Decides about the slots after the cursor, one by one: a dead slot (None), a damaged record, a record that was
    copied too often or that the filter does not pass is passed over; a record without room stops the step. Ends early
    when the copies are large enough for a step."""
    spec, hops_of = router.spec, router.source.links.hops
    for seq, slot in enumerate(slots, first_seq):
        if slot is None:
            copies.cursor = seq
            continue
        if isinstance(slot, FormatError):
            logger.warning(
                'router "%s" passes over record %d, because it is damaged: %s', router.name, seq, slot.message
            )
            copies.cursor = seq
            continue
        hops = hops_of.of(seq) if hops_of is not None else 0
        record = split_raw(slot, form)
        if hops >= ROUTER_HOPS_MAX or not passes(spec.filter, record.tag):
            copies.cursor = seq
            continue
        payload: bytes | None = record.envelope
        if router.is_exact:
            if seq in router.evidence:
                if stops_at_evidence:
                    copies.is_stopped = True
                    return
                copies.met_evidence = True
                if _is_there(router, seq):
                    copies.suppressed += 1
                    copies.cursor = seq
                    continue
            payload = keyed_envelope(router, seq, record.envelope)
        size = 0 if payload is None else envelope.accounted_bytes(payload)
        if payload is None or not room.take(size):
            copies.is_stopped = True
            return
        copies.envelopes.append(payload)
        copies.sizes.append(size)
        copies.size_bytes += size
        copies.tags.append(record.tag if spec.preserve_tag else None)
        copies.nodes.append(record.node if spec.preserve_node else None)
        copies.hops.append(hops + 1)
        copies.source_times.append(record.ts)
        copies.cursor = seq
        if copies.size_bytes >= FORWARD_BYTES_MAX:
            return


def _is_there(router: Router, source_seq: int) -> bool:
    """Whether a live record of dest has the key of this source record. Raises `EvidenceNotFetched` when the record is
    cold and not in memory."""
    dest = router.dest
    for dest_seq in router.evidence[source_seq]:
        if not dest.live.first_live <= dest_seq <= dest.live.head_seq:
            continue
        found = dest.job_slots(dest_seq, dest_seq, READ_BYTES_MAX, may_wait=True)
        if isinstance(found, Fetch):
            raise EvidenceNotFetched(found)
        form, slots = found
        slot = slots[0]
        if isinstance(slot, bytes) and key_in(split_raw(slot, form).envelope) == router.key(source_seq):
            return True
    return False


def note_slots(router: Router, form: RecordForm, first_seq: int, slots: Iterable[bytes | FormatError | None]) -> None:
    """Looks through records of dest for the router's keys."""
    router.note_keys(first_seq, (split_raw(slot, form).envelope if isinstance(slot, bytes) else None for slot in slots))


def passes(tag_filter: TagMatch | None, tag: bytes | None) -> bool:
    if tag_filter is None:
        return True
    if tag is None:
        return False
    wanted = tag_filter.text.encode()
    return tag.startswith(wanted) if tag_filter.is_prefix else tag == wanted


def keyed_envelope(router: Router, source_seq: int, payload: bytes) -> bytes | None:
    """The envelope with the copy's key in its meta; None when that breaks the limits of a record."""
    data, meta = envelope.split(payload)
    provenance = _encode(
        {
            "idempotency_key": router.key(source_seq),
            "router": router.name,
            "source_topic": router.source.name,
            "source_topic_id": router.source.id,
            "source_epoch": router.source.epoch,
            "source_seq": source_seq,
        }
    )
    meta = _with_provenance(meta, provenance)
    if len(meta) > META_BYTES_MAX or len(data) + len(meta) > RECORD_BYTES_MAX:
        return None
    return envelope.encode(data, meta)


def _with_provenance(meta: bytes | None, provenance: bytes) -> bytes:
    added = b'"%b":%b' % (PROVENANCE.encode(), provenance)
    if meta is None:
        return b"{%b}" % added
    text = meta.strip(b" \t")
    members = _decode_members(text) if text.startswith(b"{") else None
    if members is None or len(members) >= META_MEMBERS_MAX:
        return b'{"%b":%b,%b}' % (ORIGINAL_META.encode(), text, added)
    if not members:
        return b"{%b}" % added
    if PROVENANCE in members:
        # The copy of a copy: its direct source counts.
        kept = {name: value for name, value in members.items() if name != PROVENANCE}
        return b"%b,%b}" % (_encode(kept)[:-1], added) if kept else b"{%b}" % added
    return b"%b,%b}" % (text[:-1], added)
