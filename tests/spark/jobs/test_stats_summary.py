"""Sums of parts are those of the whole, and those that one gets by counting."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.jobs import stats_summary
from topics.spark.jobs.stats_summary import BUCKETS_MS, Jump, Labels, Summary, bucket_for

Row = tuple[int, int, str | None, str | None, str, str | None]

steps = st.tuples(
    st.integers(1, 5),
    st.integers(-50, 5000),
    st.none() | st.sampled_from(["a", "b", ""]),
    st.none() | st.sampled_from(["n1", "n2"]),
    st.text(min_size=1, max_size=40),
    st.none() | st.text(max_size=10),
)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    columns[1] = pa.array([ts * 1000 for ts in columns[1]], pa.timestamp("us", tz="UTC"))
    columns[2:] = [pa.array(column, pa.string()) for column in columns[2:]]
    return pa.RecordBatch.from_arrays([pa.array(columns[0], pa.int64()), *columns[1:]], stats_summary.COLUMNS)


def rows_of(steps: list[Any]) -> list[Row]:
    seq, ts = 0, 1_700_000_000_000
    rows: list[Row] = []
    for forward, moved_ms, node, tag, data, meta in steps:
        seq, ts = seq + forward, ts + moved_ms
        rows.append((seq, ts, node, tag, data, meta))
    return rows


def summed(rows: list[Row], tail_first_seq: int) -> Summary:
    summary = Summary(1000)
    if rows:
        summary.add(batch_of(rows), tail_first_seq)
    return summary


@given(st.lists(steps, min_size=1, max_size=40), st.integers(0, 40), st.integers(0, 200))
def test_parts_add_up_to_the_whole(given_steps: list[Any], cut: int, tail_first_seq: int) -> None:
    rows = rows_of(given_steps)
    whole = summed(rows, tail_first_seq)
    parts = Summary(1000)
    parts.merge(summed(rows[:cut], tail_first_seq))
    parts.merge(summed(rows[cut:], tail_first_seq))
    assert parts == whole


@given(st.lists(steps, min_size=1, max_size=40), st.integers(0, 200))
def test_sums_are_those_of_counting(given_steps: list[Any], tail_first_seq: int) -> None:
    rows = rows_of(given_steps)
    summary = summed(rows, tail_first_seq)
    sizes = [len(data.encode()) + len((meta or "").encode()) for *_, data, meta in rows]
    assert (summary.records, summary.bytes, summary.size_max) == (len(rows), sum(sizes), max(sizes))
    assert summary.tail_records == sum(seq >= tail_first_seq for seq, *_ in rows)
    assert summary.records_by_bucket == Counter(ts // 1000 for _, ts, *_ in rows)
    assert summary.records_by_size == Counter(max(size, 1).bit_length() - 1 for size in sizes)
    assert summary.tags.counts == Counter(tag for _, _, _, tag, _, _ in rows if tag is not None)
    assert summary.nodes.without == sum(node is None for _, _, node, *_ in rows)
    moved = [(after[1] - before[1], after[0], after[1]) for before, after in pairwise(rows)]
    assert summary.backwards == sum(ms < 0 for ms, _, _ in moved)
    if len(moved) <= stats_summary.JUMPS_KEPT:
        assert sorted(summary.jumps) == sorted(Jump(*each) for each in moved if each[0] >= 1000 or each[0] < 0)


def test_too_many_labels_are_counted_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(stats_summary, "LABELS_MAX", 10)
    labels = Labels()
    labels.add(pa.array([f"t{n % 20}" for n in range(400)] + ["often"] * 50))
    labels.bound()
    assert labels.counts["often"] == 50
    assert len(labels.counts) == 5
    assert labels.counts.total() + labels.others == 450
    assert not labels.is_exact


def test_a_bucket_is_as_fine_as_the_count_allows() -> None:
    assert bucket_for(0, 100) == 100
    assert bucket_for(99_999, 100) == 1000
    assert bucket_for(100_000, 100) == 5000
    assert bucket_for(10**15, 100) == BUCKETS_MS[-1]
