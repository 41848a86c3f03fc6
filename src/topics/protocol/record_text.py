"""Records as JSON text: `{"$seq":…,"$ts":…,"data":…}`, made from stored bytes.

The common core of a stored record (seq, ts, lengths, node, tag, payload envelope) begins at one of two offsets,
depending on the file. Payloads are never parsed: the members of the envelope are renamed by cutting the text.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import msgspec

from topics.formats import envelope
from topics.formats.wal_frame import BODY_CORE_OFFSET, FLAG_NODE, FLAG_TAG

_SEQ_TS: Final = Struct("<QQ")
_LENGTHS: Final = Struct("<HH")
_CORE_BYTES: Final = 24
_LABELLED: Final = FLAG_NODE | FLAG_TAG
_DATA_AT: Final = _CORE_BYTES + len(envelope.OPEN)

json_string: Final = msgspec.json.Encoder().encode


def record_texts(
    chunks: Iterable[tuple[int, Sequence[bytes]]], *, include_tags: bool, include_meta: bool, include_data: bool = True
) -> list[bytes]:
    """The records of a page as JSON objects. A plain record takes a third of a microsecond."""
    texts: list[bytes] = []
    seq_ts = _SEQ_TS.unpack_from
    for core, raws in chunks:
        flags_at = 1 if core == BODY_CORE_OFFSET else 0
        data_at = core + _DATA_AT
        # All records are searched at once, which is ten times faster than one by one.
        is_plain = envelope.META not in b"".join(raws) and not [raw for raw in raws if raw[flags_at] & _LABELLED]
        if is_plain and include_data:
            texts += [b'{"$seq":%d,"$ts":%d,"data":%b' % (*seq_ts(raw, core), raw[data_at:]) for raw in raws]
        else:
            texts += [
                _text(raw, core, include_tags=include_tags, include_meta=include_meta, include_data=include_data)
                for raw in raws
            ]
    return texts


def _text(raw: bytes, core: int, *, include_tags: bool, include_meta: bool, include_data: bool) -> bytes:
    flags = raw[1 if core == BODY_CORE_OFFSET else 0]
    seq, ts = _SEQ_TS.unpack_from(raw, core)
    node_len, tag_len = _LENGTHS.unpack_from(raw, core + 16)
    node_at = core + _CORE_BYTES
    tag_at = node_at + node_len
    data_at = tag_at + tag_len
    parts = [b'{"$seq":%d,"$ts":%d' % (seq, ts)]
    if flags & FLAG_NODE:
        parts.append(b',"$node":' + json_string(raw[node_at:tag_at].decode()))
    if include_tags and flags & FLAG_TAG:
        parts.append(b',"$tag":' + json_string(raw[tag_at:data_at].decode()))
    data, meta = envelope.split(raw[data_at:])
    if include_data:
        parts += (b',"data":', data)
    if meta is not None and include_meta:
        parts += (b',"meta":', meta)
    parts.append(b"}")
    return b"".join(parts)
