"""The frame of jobs that write files of segments again: which segments, their bytes, the exchange, the report.

A job puts a new pair of files into the folder `staging` of the data directory, synced, under a name that follows from
the segment. Then it asks the server to exchange the pair (`POST /v0/admin/segments/replace`). The server checks every
frame, and keeps deletes that came meanwhile. A pair that the server refuses is removed. A job that is killed leaves at
most unused files in `staging`, and the next run writes the same files again.

No segment is pinned, because the server does not exchange a pinned one.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from topics.client.sync.client import Client
from topics.errors import ColdUnavailable, CorruptRecord, NotFound, SegmentBusy, SegmentChanged, TopicNotFound
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import (
    EXIT_CONFLICT,
    EXIT_DATA_LOSS,
    EXIT_DONE,
    Report,
    ReportProgress,
    WaveDone,
    WavesDone,
)
from topics.spark.jobs.spread import Executors, spread_waves, units_of
from topics.spark.manifest import Segment
from topics.spark.reading.segment_files import tier_and_name
from topics.spark.reading.source import take_manifests
from topics.storage import layout
from topics.storage.fs import Fs, RealFs, read_file, write_atomic
from topics.storage.tiers.addresses import open_store, path_of_address
from topics.storage.tiers.store_id import read_store_id

Status = Literal["done", "same", "changed", "busy", "damaged"]


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Item = TypeVar("Item", bound=Sized)


class ServedSegment(NamedTuple):
    """A sealed segment in the data directory of a server."""

    topic: str
    topic_id: int
    epoch: int
    store_id: str
    segment: Segment
    connection: Connection

    @property
    def size_bytes(self) -> int:
        return self.segment.data_len

    @property
    def root(self) -> str:
        address, _ = tier_and_name(self.segment.uri)
        path = path_of_address(address)
        assert path is not None, "only segments of the data directory are written again"
        return path

    def path(self, kind: str) -> str:
        return f"{self.root}/{layout.segment_object(self.topic_id, self.segment.first_seq, kind)}"


class Outcome(NamedTuple):
    """What became of one file. `changed` and `busy`: another program works on it, and a later run looks again."""

    status: Status
    file: str
    records: int = 0
    bytes: int = 0
    message: str = ""

    def finding(self) -> dict[str, str]:
        return {"problem": self.status, "file": self.file, "message": self.message}


class Rewritten(NamedTuple):
    """What became of all files."""

    outcomes: list[Outcome]
    done: WavesDone

    @property
    def written(self) -> list[str]:
        return [outcome.file for outcome in self.outcomes if outcome.status == "done"]

    def report(self, job: str, *, items_done: int, items_skipped: int, detail: dict[str, Any] | None = None) -> Report:
        """Exit code 3 for damage, 4 when a file was changed or busy."""
        statuses = {outcome.status for outcome in self.outcomes}
        exit_code = EXIT_CONFLICT if statuses & {"changed", "busy"} else EXIT_DONE
        return Report(
            job=job,
            records=self.done.records,
            bytes=self.done.bytes,
            seconds=self.done.seconds,
            items_done=items_done,
            items_skipped=items_skipped,
            findings=tuple(outcome.finding() for outcome in self.outcomes if outcome.status not in {"done", "same"}),
            exit_code=EXIT_DATA_LOSS if "damaged" in statuses else exit_code,
            detail=detail or {},
        )


def sealed_segments(connection: Connection, topics: tuple[str, ...]) -> list[ServedSegment]:
    """The segments of these topics, or of all topics, that the server would exchange."""
    resolved = connection.resolved()
    return [
        ServedSegment(manifest.topic, manifest.topic_id, manifest.epoch, manifest.store_id, segment, resolved)
        for manifest in take_manifests(connection.read_options(topics, pin_ms=0))
        for segment in manifest.segments
        if segment.sealed and segment.tier == "hot" and segment.digest
    ]


def rewrite(
    job: str,
    items: Sequence[Item],
    work: Callable[[tuple[Item, ...]], list[Outcome]],
    *,
    executors: Executors,
    report: ReportProgress | None,
) -> Rewritten:
    """Does `work` for units of items on the executors."""
    outcomes: list[Outcome] = []

    def collect(_: Sequence[tuple[Item, ...]], found: Sequence[list[Outcome]]) -> WaveDone:
        of_wave = [outcome for each in found for outcome in each]
        outcomes.extend(of_wave)
        return WaveDone(sum(outcome.records for outcome in of_wave), sum(outcome.bytes for outcome in of_wave))

    done = spread_waves(
        job,
        units_of(items, lambda item: item.size_bytes),
        work,
        executors=executors,
        collect=collect,
        weigh=lambda unit: sum(item.size_bytes for item in unit),
        report=report,
    )
    return Rewritten(outcomes, done)


# On an executor.


def read_segment(fs: Fs, served: ServedSegment) -> bytes | None:
    """The `.data`; None when the file has changed. Raises `ColdUnavailable` when this machine has not the files."""
    if read_store_id(open_store(served.root, fs)) != served.store_id:
        raise ColdUnavailable(
            f"{served.root} is not the server's data directory as an executor sees it: run the job where it is, or "
            "mount it at the same path"
        )
    try:
        data = read_file(fs, served.path("data"))
    except FileNotFoundError:
        return None
    return data if len(data) == served.segment.data_len else None


def read_if_there(fs: Fs, path: str) -> bytes:
    try:
        return read_file(fs, path)
    except FileNotFoundError:
        return b""


def exchange(client: Client, served: ServedSegment, job: str, data: bytes, idx: bytes) -> Outcome:
    """Offers the pair to the server. A pair that the server refuses is removed."""
    fs = RealFs()
    staging = layout.staging_directory(served.root)
    stem = f"{job}-{layout.topic_name(served.topic_id)}-{served.segment.first_seq}-{served.segment.digest[:8]}"
    names = (f"{stem}.data", f"{stem}.idx")
    fs.makedirs(staging)
    for name, content in zip(names, (data, idx), strict=True):
        write_atomic(fs, f"{staging}/{name}", content)
    status: Status
    try:
        replaced = client.replace_segment(
            topic_id=served.topic_id,
            epoch=served.epoch,
            first_seq=served.segment.first_seq,
            expect_digest=served.segment.digest,
            data=names[0],
            idx=names[1],
        )
        return Outcome("done", served.path("data"), replaced.removed, served.segment.data_len - replaced.data_len)
    except (SegmentChanged, TopicNotFound, NotFound) as error:
        status, message = "changed", error.message
    except SegmentBusy as error:
        status, message = "busy", error.message
    except CorruptRecord as error:
        status, message = "damaged", error.message
    for name in names:
        try:
            fs.unlink(f"{staging}/{name}")
        except FileNotFoundError:
            continue
    return Outcome(status, served.path("data"), message=message)
