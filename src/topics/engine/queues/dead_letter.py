"""What the server writes into the meta of a job that it moves: of a dead letter, and of a job that is redriven."""

from collections.abc import Sequence
from typing import Final

import msgspec

from topics.formats import envelope
from topics.formats.records import Record, RecordBatch

FROM: Final = "$dead_letter_from"
DELIVERIES: Final = "$dead_letter_deliveries"
SOURCE_SEQ: Final = "$dead_letter_src_seq"
REASON: Final = "$dead_letter_reason"
# A redriven job: the topic that it was in last, its seq there, and how often it was redriven.
REDRIVE_FROM: Final = "$redrive_from"
REDRIVE_SOURCE_SEQ: Final = "$redrive_src_seq"
REDRIVE_COUNT: Final = "$redrive_count"

_OF_LETTERS: Final = frozenset((FROM, DELIVERIES, SOURCE_SEQ, REASON))

_NONE: Final = msgspec.Raw(b"null")
# More digits are no count of ours.
_COUNT_DIGITS_MAX: Final = 10
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def dead_letter_batch(record: Record, queue: str, deliveries: int, reason: str) -> RecordBatch:
    """The write that puts the job into the dead-letter topic. The reason is empty if no holder gave one."""
    members = {FROM: queue, DELIVERIES: str(deliveries), SOURCE_SEQ: str(record.seq)}
    if reason:
        members[REASON] = reason
    return _batch([record], [extended_meta(record.meta, members, without=_OF_LETTERS)])


def letter_origin(record: Record) -> str | None:
    """The queue that a dead letter comes from; None if the record is no dead letter."""
    # Most records of a log that is no dead-letter topic are told without a look into their JSON.
    if record.meta is None or FROM.encode() not in record.meta:
        return None
    origin = _members(record.meta).get(FROM)
    return None if origin is None else _text(origin)


def redriven_batch(records: Sequence[Record], source: str) -> RecordBatch:
    """The write that puts jobs from the source into their new queue."""
    return _batch(records, [_redriven_meta(record, source) for record in records])


def _redriven_meta(record: Record, source: str) -> bytes:
    count = _text(_members(record.meta).get(REDRIVE_COUNT, _NONE)) if record.meta is not None else ""
    times = int(count) if count.isascii() and count.isdigit() and len(count) < _COUNT_DIGITS_MAX else 0
    members = {REDRIVE_FROM: source, REDRIVE_SOURCE_SEQ: str(record.seq), REDRIVE_COUNT: str(times + 1)}
    return extended_meta(record.meta, members, without=_OF_LETTERS)


def _batch(records: Sequence[Record], metas: Sequence[bytes]) -> RecordBatch:
    tags = [None if record.tag is None else record.tag.encode() for record in records]
    nodes = [None if record.node is None else record.node.encode() for record in records]
    return RecordBatch(
        [envelope.encode(record.data, meta) for record, meta in zip(records, metas, strict=True)],
        [len(record.data) + len(meta) for record, meta in zip(records, metas, strict=True)],
        tags if any(tag is not None for tag in tags) else None,
        nodes if any(node is not None for node in nodes) else None,
    )


def extended_meta(meta: bytes | None, members: dict[str, str], without: frozenset[str] = frozenset()) -> bytes:
    """A JSON object with the members of `meta`, as they were sent, then `members`.

    A member of `meta` that has the name of a new member, or a name in `without`, is left out. A `meta` that is not an
    object is replaced.
    """
    added = _encode(members)
    given = {} if meta is None else _members(meta)
    if not given:
        return added
    left_out = given.keys() & (members.keys() | without)
    if left_out:
        return _encode({name: value for name, value in given.items() if name not in left_out} | _decode(added))
    assert meta is not None
    return b"%b,%b" % (meta.strip(b" \t")[:-1], added[1:])


def _members(meta: bytes) -> dict[str, msgspec.Raw]:
    """The members of a meta; none if it is not an object."""
    text = meta.strip(b" \t")
    return _decode_members(text) if text.startswith(b"{") else {}


def _text(value: msgspec.Raw) -> str:
    """The text of a JSON string; empty for any other value."""
    decoded = _decode(value)
    return decoded if isinstance(decoded, str) else ""
