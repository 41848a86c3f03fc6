"""Checks one file of a lake: its bytes against the digest in its name, its rows against the manifest."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from xxhash import xxh3_64_hexdigest

from topics.spark.jobs.segment_check import Checked
from topics.spark.lake.files import store_at
from topics.spark.lake.state import LakeFile
from topics.storage.inspect.findings import Finding


class LakeTask(NamedTuple):
    address: str
    file: LakeFile

    @property
    def uri(self) -> str:
        return f"{self.address}/{self.file.name}"


def check_lake_files(tasks: Sequence[LakeTask]) -> list[Checked]:
    """Runs on an executor."""
    return [check_lake_file(task) for task in tasks]


def check_lake_file(task: LakeTask) -> Checked:
    store = store_at(task.address)
    try:
        content = store.read_range(task.file.name, 0, store.size(task.file.name))
    except FileNotFoundError:
        return Checked(is_missing=True)
    return Checked(tuple(_findings(task, content)), task.file.records, len(content))


def _findings(task: LakeTask, content: bytes) -> Iterator[Finding]:
    file = task.file
    if len(content) != file.bytes:
        yield _finding(task, "another size than in the log", str(file.bytes), str(len(content)))
    # Files that another program wrote have no digest. Their pages are decoded all the same.
    if file.digest:
        found = xxh3_64_hexdigest(content)
        if found != file.digest:
            yield _finding(task, "the bytes do not have the digest of the file", file.digest, found)
            return
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            seqs = parquet.read(columns=["seq"]).column("seq").to_numpy()
            # All pages are decoded: a page that a reader cannot decode is a finding.
            for group in range(parquet.num_row_groups):
                parquet.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        yield _finding(task, f"not readable as Parquet: {error}")
        return
    if len(seqs) != file.records:
        yield _finding(task, "another number of rows than in the log", str(file.records), str(len(seqs)))
    if not len(seqs):
        return
    bounds, found_bounds = (file.first_seq, file.last_seq), (int(seqs.min()), int(seqs.max()))
    if found_bounds != bounds:
        yield _finding(task, "other seqs than in the log", f"{bounds}", f"{found_bounds}")
    values, counts = np.unique(seqs, return_counts=True)
    if len(values) != len(seqs):
        yield _finding(task, "the file has a seq twice", seq=int(values[counts > 1][0]))


def _finding(task: LakeTask, text: str, expected: str = "", found: str = "", *, seq: int | None = None) -> Finding:
    return Finding(
        severity="damage",
        file=task.uri,
        topic=task.file.topic,
        seq=task.file.first_seq if seq is None else seq,
        last_seq=task.file.last_seq if seq is None else None,
        message=text,
        expected=expected,
        found=found,
        advice="archive the range again, or restore the file from a copy",
    )
