"""Records that are written, and records that are read.

A write is one `RecordBatch` of columns from the request to the disk: an object for each record would cost more than the
write itself. A record read back is a `Record`; its `data` and `meta` are the JSON bytes
that were written.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Record(NamedTuple):
    """One record. `data` and `meta` are JSON text as bytes, exactly as they were written."""

    seq: int
    ts: int
    node: str | None
    tag: str | None
    data: bytes
    meta: bytes | None


class RecordBatch:
    """The records of one write, by column; at least one.

    `envelopes` are payload envelopes (`formats.envelope`); `sizes` their accounted bytes. A column of
    tags or nodes is None when no record has one: the common case costs nothing.
    """

    __slots__ = ("envelopes", "nodes", "size_bytes", "sizes", "tags")

    def __init__(
        self,
        envelopes: Sequence[bytes],
        sizes: Sequence[int],
        tags: Sequence[bytes | None] | None = None,
        nodes: Sequence[bytes | None] | None = None,
    ) -> None:
        assert len(envelopes) == len(sizes) > 0
        assert tags is None or len(tags) == len(envelopes)
        assert nodes is None or len(nodes) == len(envelopes)
        self.envelopes = envelopes
        self.sizes = sizes
        self.size_bytes = sum(sizes)
        self.tags = tags
        self.nodes = nodes

    def __len__(self) -> int:
        return len(self.envelopes)

    def part(self, start: int, end: int) -> "RecordBatch":
        """The records from `start` up to `end`, which is exclusive."""
        return RecordBatch(
            self.envelopes[start:end],
            self.sizes[start:end],
            None if self.tags is None else self.tags[start:end],
            None if self.nodes is None else self.nodes[start:end],
        )
