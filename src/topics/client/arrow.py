"""Records as an Arrow table. Needs `pyarrow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from topics.errors import SettingsError
from topics.formats.records import Record
from topics.results import Tombstone

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def table_of(items: Iterable[Record | Tombstone]) -> pa.Table:
    """Columns seq, ts, node, tag, data and meta. The metadata `topics.lost_records` counts lost records."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SettingsError("read_arrow needs the package pyarrow: pip install 'topics-log[arrow]'") from error
    records: list[Record] = []
    lost_count = 0
    for item in items:
        if isinstance(item, Tombstone):
            lost_count += item.missed_estimate
        else:
            records.append(item)
    schema = pa.schema(
        [
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("node", pa.string()),
            pa.field("tag", pa.string()),
            pa.field("data", pa.string(), nullable=False),
            pa.field("meta", pa.string()),
        ],
        metadata={"topics.lost_records": str(lost_count)},
    )
    columns = zip(*records, strict=True) if records else ([] for _ in schema)
    return pa.Table.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
