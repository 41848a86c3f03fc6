"""The gaps of a lake: a small Delta table at `_topics/gaps`, with a row for each range of seqs that is gone.

It is a table of its own, so that a plain read of the lake has records only. A commit of gaps adds one file. The
application transaction `gaps` makes two writers take turns, so that no gap is there twice.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.transaction import AddAction
from xxhash import xxh3_64_hexdigest

from topics.spark.errors import Conflict
from topics.spark.lake.state import LakeGap
from topics.spark.lake.table import CommitRefused, Table
from topics.storage.tiers.store import SharedStore

GAPS: Final = "_topics/gaps"
GAP_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("gap_from", pa.int64(), nullable=False),
        # The last seq of an instance that is gone is not known.
        pa.field("gap_to", pa.int64()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
_COMMITS_LOST_MAX: Final = 100


class GapTable:
    """The gaps of a lake in one process. Not thread-safe."""

    def __init__(self, store: SharedStore) -> None:
        self.table = Table(store, GAP_SCHEMA, folder=GAPS)
        self._store = store
        self._version = -1
        self._known: set[LakeGap] = set()

    def refresh(self) -> set[LakeGap]:
        """All gaps that are known."""
        version = self.table.refresh()
        if version > self._version:
            self._known = {gap for row in self.table.add_actions() for gap in self._read(row["path"])}
            self._version = version
        return set(self._known)

    def _read(self, name: str) -> list[LakeGap]:
        name = f"{GAPS}/{name}"
        content = self._store.read_range(name, 0, self._store.size(name))
        rows = pq.read_table(pa.BufferReader(content), schema=GAP_SCHEMA).to_pylist()
        return [LakeGap(*row.values()) for row in rows]

    def add(self, gaps: Iterable[LakeGap], *, now_ms: int) -> None:
        """Adds gaps that are not known yet. They are durable on return."""
        found = set(gaps)
        if not found - self._known:
            return
        self.table.create()
        for _ in range(_COMMITS_LOST_MAX):
            fresh = sorted(found - self.refresh(), key=gap_order)
            if not fresh:
                return
            add = self._put(fresh, now_ms)
            try:
                self.table.commit([add], transactions={"gaps": self._version + 1}, metadata={})
            except CommitRefused:
                # The next turn reads what the other one added.
                continue
        raise Conflict(
            f"{self.table.address}: {_COMMITS_LOST_MAX} commits of others came first; run fewer jobs at once"
        )

    def _put(self, gaps: list[LakeGap], now_ms: int) -> AddAction:
        name, content = gap_file(gaps)
        self._store.put(f"{GAPS}/{name}", content)
        return gap_action(name, content, len(gaps), now_ms)


def gap_file(gaps: Iterable[LakeGap]) -> tuple[str, memoryview]:
    """A name and the bytes of a file with these rows. The same gaps make the same file."""
    rows = [(gap.topic, gap.epoch, gap.first_seq, gap.last_seq, gap.reason) for gap in gaps]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), GAP_SCHEMA, strict=True)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, GAP_SCHEMA), sink, compression="zstd")
    content = memoryview(sink.getvalue()).cast("B")
    return f"{xxh3_64_hexdigest(content)}.parquet", content


def gap_action(name: str, content: memoryview, count: int, now_ms: int) -> AddAction:
    return AddAction(name, content.nbytes, {}, now_ms, True, f'{{"numRecords":{count}}}')


def gap_order(gap: LakeGap) -> tuple[str, int, int]:
    return gap.topic, gap.epoch, gap.first_seq
