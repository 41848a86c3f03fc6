"""Parts of lakes for tests, and what is in a lake."""

from dataclasses import replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from tests.spark.in_process import InProcess
from tests.spark.world import Row
from topics.spark.jobs.archive import Archiver
from topics.spark.jobs.job import Report
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.lake.files import LAKE_SCHEMA, NewFile, file_batches
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import LakeChange, LakeFile, LakeGap, LakeState, SegmentDone, data_name

NOW_MS = 1_700_000_000_000


def records(seqs: list[int], topic: str = "a", epoch: int = 1) -> pa.RecordBatch:
    """Rows of a lake with these seqs."""
    count = len(seqs)
    columns = {
        "topic": [topic] * count,
        "seq": seqs,
        "ts": [(NOW_MS + seq) * 1000 for seq in seqs],
        "node": [None if seq % 2 else "n" for seq in seqs],
        "tag": ["" if seq % 3 else None for seq in seqs],
        "data": [f'{{"n":{seq}}}' for seq in seqs],
        "meta": [None if seq % 5 else "{}" for seq in seqs],
        "epoch": [epoch] * count,
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in LAKE_SCHEMA], schema=LAKE_SCHEMA
    )


def lake_file(first_seq: int, last_seq: int, *, topic: str = "a", epoch: int = 1, mark: str = "0") -> LakeFile:
    """A file that is nowhere."""
    return LakeFile(
        name=data_name(topic, epoch, first_seq, last_seq, mark),
        topic=topic,
        epoch=epoch,
        first_seq=first_seq,
        last_seq=last_seq,
        records=last_seq - first_seq + 1,
        bytes=1000,
    )


def done(first_seq: int, last_seq: int, digest: str | None = None, *, topic: str = "a", epoch: int = 1) -> SegmentDone:
    return SegmentDone(
        topic=topic,
        store_id="s",
        epoch=epoch,
        first_seq=first_seq,
        last_seq=last_seq,
        digest=digest or f"{first_seq}-{last_seq}",
        rows=last_seq - first_seq + 1,
        topic_id=7,
    )


def state_of(*files: LakeFile, segments: tuple[SegmentDone, ...] = (), gaps: tuple[LakeGap, ...] = ()) -> LakeState:
    """A state that is made up."""
    state = LakeState(0, {file.name: file for file in files}, gaps=set(gaps))
    for segment in segments:
        state.ledger.segments.setdefault((segment.topic, segment.epoch), []).append(segment)
    return state


# Lakes with real files.


def put(lake: Lake, seqs: list[int], *, topic: str = "a", epoch: int = 1) -> LakeFile:
    """A file of the lake that does not count yet."""
    file = NewFile(topic, epoch)
    file.write(records(seqs, topic, epoch))
    (found,) = file.put(lake.store)
    return found


def archived(lake: Lake, first_seq: int, last_seq: int, *, topic: str = "a") -> LakeChange:
    """What an archiver would commit for one segment, with its file."""
    file = put(lake, list(range(first_seq, last_seq + 1)), topic=topic)
    return LakeChange(adds=(file,), segments=(done(first_seq, last_seq, topic=topic),))


def lake_rows(address: str, topic: str = "t", *, epoch: int | None = None, at: int | None = None) -> list[Row]:
    """Every record of a topic, as `World.rows` has them; a seq that is there twice is twice in it."""
    lake = open_lake(address, must_exist=False)
    state = lake.state if at is None else lake.at(at)
    rows = [
        (row["seq"], row["node"], row["tag"], row["data"], row["meta"])
        for file in state.files_of([topic])
        if epoch is None or file.epoch == epoch
        for batch in file_batches(lake.store, file)
        for row in batch.to_pylist()
    ]
    return sorted(rows)


def lake_seqs(address: str, topic: str = "a", *, at: int | None = None) -> list[int]:
    return [row[0] for row in lake_rows(address, topic, at=at)]


def archive_inline(config: ArchiveOptions, **given: Any) -> Report:
    """A run whose tasks are done here, one after the other: all of the job but Spark."""
    return Archiver(replace(config, **given), InProcess()).run()
