"""Records as JSON text: `{"$seq":…,"$ts":…,"data":…}`, made from stored bytes.

A record takes a third of a microsecond in plain Python, a twentieth compiled.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from topics.formats.record_layout import RecordForm, raw_node

try:
    from topics.protocol.compiled_record_text import joined_texts as _joined
    from topics.protocol.compiled_record_text import record_texts as _texts
except ModuleNotFoundError:
    from topics.protocol.plain_record_text import joined_texts as _joined
    from topics.protocol.plain_record_text import record_texts as _texts

json_string: Final = msgspec.json.Encoder().encode


Chunk = tuple[RecordForm, Sequence[bytes]]
"""Raw records of one form."""


def record_texts(
    chunks: Iterable[Chunk],
    *,
    include_tags: bool,
    include_meta: bool,
    include_data: bool = True,
) -> list[bytes]:
    """The records of a page as JSON objects."""
    texts: list[bytes] = []
    for form, raws in chunks:
        texts += _texts(raws, form.flags_at, form.core_at, include_tags, include_meta, include_data)
    return texts


def record_nodes(chunk: Chunk) -> list[bytes | None]:
    """The node of each record; None for a record without one."""
    form, raws = chunk
    return [raw_node(raw, form) for raw in raws]


def joined_texts(chunks: Iterable[Chunk], *, include_tags: bool, include_meta: bool) -> bytes:
    """The same as one text, with commas between the objects."""
    texts = [
        _joined(raws, form.flags_at, form.core_at, include_tags, include_meta, True) for form, raws in chunks if raws
    ]
    # A single text is not copied.
    return b",".join(texts)


def pieces_of(chunks: Sequence[Chunk], piece_bytes: int) -> Iterator[list[Chunk]]:
    """The chunks of a page, cut into pieces of about this many bytes. A small page is one piece, as it is."""
    if sum([sum(map(len, raws)) for _, raws in chunks]) <= piece_bytes:
        yield list(chunks)
        return
    for form, raws in chunks:
        start = 0
        size = 0
        for end, raw in enumerate(raws, 1):
            size += len(raw)
            if size >= piece_bytes or end == len(raws):
                yield [(form, raws[start:end])]
                start, size = end, 0
