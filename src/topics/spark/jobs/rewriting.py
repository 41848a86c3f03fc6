"""What the jobs share that write segments again: which ones, their bytes, and the exchange through the server.

A pair of files is laid into the folder `staging` of the data directory, synced, under a name that its content gives;
then the server is asked to exchange it (`POST /v0/admin/segments/replace`). It looks at every frame itself, and keeps
deletes that came meanwhile. So a job that is killed leaves at most files that nobody uses, and a second run lays the
same ones again. Files that were not taken are removed.

Nothing is pinned: a pinned segment is not exchanged.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from topics.client import Client
from topics.errors import ColdUnavailable, CorruptRecord, NotFound, SegmentBusy, SegmentChanged, TopicNotFound
from topics.limits import MIB
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import EXIT_CONFLICT, EXIT_DATA_LOSS, EXIT_DONE
from topics.spark.manifest import Segment
from topics.spark.read.segment_files import tier_and_name
from topics.spark.read.source import take_manifests
from topics.storage import layout
from topics.storage.fs import Fs, RealFs, read_file, write_atomic
from topics.storage.stores import open_store, path_of_address, read_store_id

# A task of Spark costs about 0.1 s, so small files go together.
UNIT_BYTES: Final = 64 * MIB
UNIT_FILES: Final = 200

Status = Literal["done", "same", "changed", "busy", "damaged"]

Task = TypeVar("Task")
Unit = tuple[Task, ...]
Spread = Callable[[Sequence[Unit[Task]], Callable[[Unit[Task]], "list[Outcome]"]], "list[list[Outcome]]"]


class SegmentTask(NamedTuple):
    """A sealed segment in the data directory of a server."""

    topic: str
    topic_id: int
    epoch: int
    store_id: str
    segment: Segment
    connection: Connection

    @property
    def root(self) -> str:
        address, _ = tier_and_name(self.segment.uri)
        path = path_of_address(address)
        assert path is not None, "only segments of the data directory are written again"
        return path

    def path(self, kind: str) -> str:
        return f"{self.root}/{layout.segment_object(self.topic_id, self.segment.first_seq, kind)}"


class Outcome(NamedTuple):
    """What became of one file. `changed` and `busy`: somebody else was faster, a later run has another look."""

    status: Status
    file: str
    records: int = 0
    bytes: int = 0
    message: str = ""

    def finding(self) -> dict[str, str]:
        return {"problem": self.status, "file": self.file, "message": self.message}


def exit_code_of(outcomes: Iterable[Outcome]) -> int:
    statuses = {outcome.status for outcome in outcomes}
    if "damaged" in statuses:
        return EXIT_DATA_LOSS
    return EXIT_CONFLICT if statuses & {"changed", "busy"} else EXIT_DONE


def sealed_segments(connection: Connection, topics: tuple[str, ...]) -> list[SegmentTask]:
    """Those that the server would exchange, of these topics, or of all."""
    resolved = connection.resolved()
    return [
        SegmentTask(manifest.topic, manifest.topic_id, manifest.epoch, manifest.store_id, segment, resolved)
        for manifest in take_manifests(connection.read_options(topics, pin_ms=0))
        for segment in manifest.segments
        if segment.sealed and segment.tier == "hot" and segment.digest
    ]


def units_of(tasks: Sequence[Task], weigh: Callable[[Task], int]) -> list[Unit[Task]]:
    """Neighbours together, up to about 64 MiB."""
    units: list[Unit[Task]] = []
    group: list[Task] = []
    size_bytes = 0
    for task in tasks:
        if group and (size_bytes + weigh(task) > UNIT_BYTES or len(group) == UNIT_FILES):
            units.append(tuple(group))
            group, size_bytes = [], 0
        group.append(task)
        size_bytes += weigh(task)
    return [*units, tuple(group)] if group else units


# On an executor.


def read_segment(fs: Fs, task: SegmentTask) -> bytes | None:
    """The `.data`; None when it is another one by now. Raises `ColdUnavailable` when the files are not here."""
    if read_store_id(open_store(task.root, fs)) != task.store_id:
        raise ColdUnavailable(
            f"{task.root} is not the server's data directory as an executor sees it: run the job where it is, or mount "
            "it at the same path"
        )
    try:
        data = read_file(fs, task.path("data"))
    except FileNotFoundError:
        return None
    return data if len(data) == task.segment.data_len else None


def read_if_there(fs: Fs, path: str) -> bytes:
    try:
        return read_file(fs, path)
    except FileNotFoundError:
        return b""


def exchange(client: Client, task: SegmentTask, job: str, data: bytes, idx: bytes) -> Outcome:
    """Offers the pair. What was not taken is removed again."""
    fs = RealFs()
    staging = layout.staging_directory(task.root)
    stem = f"{job}-{layout.topic_name(task.topic_id)}-{task.segment.first_seq}-{task.segment.digest[:8]}"
    names = (f"{stem}.data", f"{stem}.idx")
    fs.makedirs(staging)
    for name, content in zip(names, (data, idx), strict=True):
        write_atomic(fs, f"{staging}/{name}", content)
    status: Status
    try:
        replaced = client.replace_segment(
            topic_id=task.topic_id,
            epoch=task.epoch,
            first_seq=task.segment.first_seq,
            expect_digest=task.segment.digest,
            data=names[0],
            idx=names[1],
        )
        return Outcome("done", task.path("data"), replaced.removed, task.segment.data_len - replaced.data_len)
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
    return Outcome(status, task.path("data"), message=message)
