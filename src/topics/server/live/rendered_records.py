"""Texts of records that were pushed lately, so that streams at different places do not render them again.

The text of a record depends on its stored bytes and on the members that a subscription wants. So the stored bytes are
the key, and nothing has to be removed when a record is deleted: a read does not find it any more. A lookup takes a
twentieth of the time that it takes to render a record with a node. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topics.limits import KIB, MIB
from topics.protocol.record_text import Chunk, record_nodes, record_texts

# When more bytes are kept, all of them go: the records that are pushed now are rendered once more.
KEPT_BYTES_MAX: Final = 4 * MIB
# Longer records are not kept: a lookup of their bytes would cost as much as the text.
KEPT_RECORD_BYTES_MAX: Final = 2 * KIB


class RenderedRecord(NamedTuple):
    text: bytes
    node: bytes | None


class RenderedRecords:
    """Rendered records with the same members."""

    __slots__ = ("_include_data", "_include_meta", "_include_tags", "_kept", "_kept_bytes")

    def __init__(self, *, include_tags: bool, include_meta: bool, include_data: bool) -> None:
        self._include_tags = include_tags
        self._include_meta = include_meta
        self._include_data = include_data
        self._kept: dict[bytes, RenderedRecord] = {}
        self._kept_bytes = 0

    def of(self, chunks: Sequence[Chunk]) -> list[RenderedRecord]:
        """The records of a page, in their order."""
        rendered: list[RenderedRecord] = []
        kept = self._kept
        for chunk in chunks:
            form, raws = chunk
            if max(map(len, raws)) > KEPT_RECORD_BYTES_MAX:
                rendered += self._rendered(chunk)
                continue
            new = [raw for raw in raws if raw not in kept]
            if new:
                if self._kept_bytes > KEPT_BYTES_MAX:
                    self._kept_bytes = 0
                    kept.clear()
                    new = list(raws)
                for raw, record in zip(new, self._rendered((form, new)), strict=True):
                    kept[raw] = record
                    self._kept_bytes += len(raw) + len(record.text)
            rendered += [kept[raw] for raw in raws]
        return rendered

    def _rendered(self, chunk: Chunk) -> list[RenderedRecord]:
        texts = record_texts(
            [chunk],
            include_tags=self._include_tags,
            include_meta=self._include_meta,
            include_data=self._include_data,
        )
        return list(map(RenderedRecord, texts, record_nodes(chunk)))
