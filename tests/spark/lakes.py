"""Files and parts of lakes for tests. A file's content follows from its name, so that a half one is told from it."""

from dataclasses import replace
from typing import Any

from tests.spark.in_process import InProcess
from tests.spark.world import Row
from topics.spark.jobs.archive import Archiver
from topics.spark.jobs.job import Report
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.lake.files import file_batches
from topics.spark.lake.lake import Lake, open_lake
from topics.spark.lake.state import LakeChange, LakeFile, LakeState, SegmentDone, data_name
from topics.storage.tiers.store import SharedStore

DATE = "2026-01-01"


def content_of(name: str) -> bytes:
    return name.encode() * 40


def lake_file(
    first_seq: int, last_seq: int, *, topic: str = "a", epoch: int = 1, date: str = DATE, mark: str = "0"
) -> LakeFile:
    name = data_name(topic, date, first_seq, last_seq, f"{epoch}{mark}")
    return LakeFile(
        name=name,
        topic=topic,
        epoch=epoch,
        date=date,
        first_seq=first_seq,
        last_seq=last_seq,
        records=last_seq - first_seq + 1,
        bytes=len(content_of(name)),
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


def archived(first_seq: int, last_seq: int) -> LakeChange:
    """What an archiver would commit for one segment."""
    return LakeChange(adds=(lake_file(first_seq, last_seq),), segments=(done(first_seq, last_seq),))


def merged(*files: LakeFile) -> LakeChange:
    """What an optimizer would commit for these files."""
    return LakeChange(
        adds=(lake_file(files[0].first_seq, files[-1].last_seq, mark="m"),),
        removes=tuple(file.name for file in files),
    )


def put_files(store: SharedStore, *parts: LakeChange) -> None:
    for part in parts:
        for file in part.adds:
            store.put(file.name, content_of(file.name))


def covered_seqs(state: LakeState) -> list[int]:
    """Every seq of every file that counts."""
    return sorted(seq for file in state.files.values() for seq in range(file.first_seq, (file.last_seq or 0) + 1))


def assert_whole(lake: Lake) -> None:
    """Every file that counts is there with all its bytes."""
    for file in lake.state.files.values():
        assert lake.store.read_range(file.name, 0, 1_000_000) == content_of(file.name)


# Lakes with real files.


def lake_rows(address: str, topic: str = "t", *, epoch: int | None = None, at: int | None = None) -> list[Row]:
    """Every record of a topic, as `World.rows` has them; a seq that is there twice is twice in it."""
    lake = open_lake(address)
    state = lake.state if at is None else lake.at(at)
    rows = [
        (row["seq"], row["node"], row["tag"], row["data"], row["meta"])
        for file in state.files_of([topic])
        if epoch is None or file.epoch == epoch
        for batch in file_batches(lake.store, file.name)
        for row in batch.to_pylist()
    ]
    return sorted(rows)


def archive_inline(config: ArchiveOptions, **given: Any) -> Report:
    """A run whose tasks are done here, one after the other: all of the job but Spark."""
    return Archiver(replace(config, **given), InProcess()).run()
