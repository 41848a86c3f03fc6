"""A dead letter: the record of a job, with the queue that it comes from in its meta."""

from typing import Final

import msgspec

from topics.formats import envelope
from topics.formats.records import Record, RecordBatch

FROM: Final = "$dead_letter_from"
DELIVERIES: Final = "$dead_letter_deliveries"
SOURCE_SEQ: Final = "$dead_letter_src_seq"

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def dead_letter_batch(record: Record, queue: str, deliveries: int) -> RecordBatch:
    """The write that puts the job into the dead-letter topic."""
    meta = extended_meta(record.meta, {FROM: queue, DELIVERIES: str(deliveries), SOURCE_SEQ: str(record.seq)})
    return RecordBatch(
        [envelope.encode(record.data, meta)],
        [len(record.data) + len(meta)],
        None if record.tag is None else [record.tag.encode()],
        None if record.node is None else [record.node.encode()],
    )


def extended_meta(meta: bytes | None, members: dict[str, str]) -> bytes:
    """A JSON object with the members of `meta`, as they were sent, then `members`.

    A member of `meta` that has the name of a new member is left out. A `meta` that is not an object is replaced.
    """
    added = _encode(members)
    text = b"" if meta is None else meta.strip(b" \t")
    if not text.startswith(b"{"):
        return added
    given = _decode_members(text)
    if not given:
        return added
    if given.keys() & members.keys():
        return _encode({name: value for name, value in given.items() if name not in members} | _decode(added))
    return b"%b,%b" % (text[:-1], added[1:])
