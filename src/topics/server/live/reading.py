"""Readings: one read of a topic, rendered once for all subscriptions at the same place.

A subscription that leaves out records of some nodes uses the reading of all records, too: its own reading is the same
one without those records. Then only the list of texts and the frames around it differ.

Texts of records that were pushed lately are kept, so that streams at different places do not render them again. The
text depends on the stored bytes and on the members that a subscription wants. So the stored bytes are the key, and
nothing has to be removed when a record is deleted: a read does not find it any more. A lookup takes a twentieth of the
time that it takes to render a record with a node.

Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topics.engine.topic.reading import Page
from topics.limits import KIB, MIB
from topics.protocol.record_text import Chunk, record_nodes, record_texts
from topics.server.http.exchange import SharedPiece

# When more bytes are kept, all of them go: the records that are pushed now are rendered once more.
KEPT_BYTES_MAX: Final = 4 * MIB
# Longer records are not kept: a lookup of their bytes would cost as much as the text.
KEPT_RECORD_BYTES_MAX: Final = 2 * KIB


class ReadOptions(NamedTuple):
    """How a subscription wants its records."""

    limit: int
    bytes_max: int
    nodes: frozenset[bytes] | None = None
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True

    @property
    def form(self) -> int:
        """A number for the members that a record has."""
        return self.include_tags | self.include_meta << 1 | self.include_data << 2


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


class Reading:
    """The result of one read. The records are rendered when they are asked for the first time."""

    __slots__ = (
        "_left_out",
        "_options",
        "_positions_by_node",
        "_records",
        "_rendered",
        "_renderer",
        "_without",
        "form",
        "frames",
        "from_seq",
        "is_filtered",
        "page",
        "pieces",
        "record_count",
        "size_bytes",
        "topic_id",
        "whole",
    )

    def __init__(
        self,
        page: Page,
        options: ReadOptions,
        renderer: RenderedRecords,
        topic_id: int,
        from_seq: int,
        whole: Reading | None = None,
        left_out: Sequence[int] = (),
    ) -> None:
        self.page = page
        self._options = options
        self.form = options.form
        self._renderer = renderer
        self.topic_id = topic_id
        # The cursor before the first record: the place of the read, or the end of the gap that its tombstone reports.
        self.from_seq = from_seq
        # The reading of all records; positions of its records that this reading does not have, ascending.
        self.whole = self if whole is None else whole
        self._left_out = left_out
        # The engine has left out records of some nodes.
        self.is_filtered = options.nodes is not None
        self.record_count = len(page) - len(left_out)
        # At least as many bytes as count for the limit of a read.
        self.size_bytes: int = (
            sum([sum(map(len, raws)) for _, raws in page.chunks]) if whole is None else whole.size_bytes
        )
        self._rendered: list[RenderedRecord] | None = None
        self._records: list[bytes] | None = None
        self._positions_by_node: dict[bytes, list[int]] | None = None
        self._without: dict[frozenset[bytes], Reading] = {}
        # Frames by the name of the protocol: the records alone, and the records with the mark that no more follow.
        self.frames: dict[str, bytes] = {}
        self.pieces: dict[str, SharedPiece] = {}

    @property
    def records(self) -> list[bytes]:
        """The records as texts."""
        records = self._records
        if records is None:
            if self.whole is self:
                records = [record.text for record in self._render()]
            else:
                records = self.whole.records.copy()
                for position in reversed(self._left_out):
                    del records[position]
            self._records = records
        return records

    def without(self, nodes: frozenset[bytes]) -> Reading:
        """The reading without the records of these nodes. Subscriptions that leave out the same nodes share it."""
        positions_by_node = self._positions_by_node
        if positions_by_node is None:
            positions_by_node = self._positions_by_node = _positions_by_node(self._render())
        if nodes.isdisjoint(positions_by_node):
            return self
        reading = self._without.get(nodes)
        if reading is None:
            left_out = sorted([position for node in nodes for position in positions_by_node.get(node, ())])
            reading = self._without[nodes] = Reading(
                self.page, self._options, self._renderer, self.topic_id, self.from_seq, self, left_out
            )
        return reading

    def _render(self) -> list[RenderedRecord]:
        if self._rendered is None:
            self._rendered = self._renderer.of(self.page.chunks)
        return self._rendered


def _positions_by_node(records: list[RenderedRecord]) -> dict[bytes, list[int]]:
    """Which records each node wrote. Records without a node are not listed."""
    positions_by_node: dict[bytes, list[int]] = {}
    for position, (_, node) in enumerate(records):
        if node is not None:
            positions_by_node.setdefault(node, []).append(position)
    return positions_by_node
