"""What calls on a queue are answered with, and a claim while it waits for its answer."""

from typing import NamedTuple

from topics.engine.core import Done
from topics.engine.topic.topic import Topic
from topics.errors import TopicsError
from topics.formats.records import Record
from topics.results import Job


class Claimed(NamedTuple):
    """Jobs by seq, and how many are ready after the claim."""

    jobs: list[Job]
    ready: int


class Counters(NamedTuple):
    ready: int
    in_flight: int
    dead_lettered: int


class QueueDepth(NamedTuple):
    """How many jobs of a queue are in which state, and since when the oldest ready one waits."""

    ready: int
    in_flight: int
    delayed: int
    # Jobs that were moved to the dead-letter topic since the start of the process.
    dead_lettered: int
    # When the oldest ready job was written; None if no job is ready.
    oldest_ready_ts: int | None


class LeaseEntry(NamedTuple):
    """A job that is leased, as the overview of a queue lists it."""

    seq: int
    node: str
    lease_id: int
    deadline: int
    deliveries: int


class Claim:
    """One call of `claim`, until it is answered. `Queues.cancel` it when its jobs are not wanted any more."""

    __slots__ = (
        "_cut_at",
        "_missing",
        "_wake_count",
        "done",
        "error",
        "is_cancelled",
        "jobs",
        "lease_ms",
        "max_jobs",
        "node",
        "records",
        "topic",
        "waits",
    )

    def __init__(
        self, topic: Topic, node: str, max_jobs: int, lease_ms: int, done: Done[Claimed], *, waits: bool
    ) -> None:
        self.topic = topic
        self.node = node
        self.max_jobs = max_jobs
        self.lease_ms = lease_ms
        self.done = done
        # Whether the claim waits for a job when a pass has none for it.
        self.waits = waits
        # The records that the pass dealt out to this claim, then the same records with leases.
        self.records: list[Record] = []
        self.jobs: list[Job] = []
        self.error: TopicsError | None = None
        self.is_cancelled = False
        # How many things the answer still waits for.
        self._missing = 0
        # The wakes of the line at the start of the newest pass.
        self._wake_count = 0
        # How much the queue had given out when a pass ended before it had seen every ready job.
        self._cut_at: tuple[int, int] | None = None

    def cancel(self) -> None:
        self.is_cancelled = True

    def stop_waiting(self) -> None:
        self.waits = False

    def begin_pass(self, wake_count: int, cut_at: tuple[int, int] | None) -> None:
        self._wake_count = wake_count
        self._cut_at = cut_at

    def may_have_missed_jobs(self, wake_count: int, given_out: tuple[int, int]) -> bool:
        """Whether another pass could find a job that the newest pass did not see: jobs came after it, or it ended
        early and gave out something. A pass that gave out nothing is not repeated at once."""
        return self._wake_count != wake_count or (self._cut_at is not None and self._cut_at != given_out)

    def wait_for_one_more(self) -> None:
        self._missing += 1

    def has_one_more(self) -> bool:
        """Whether that was the last thing the answer waited for."""
        self._missing -= 1
        return self._missing == 0

    def fail(self, error: TopicsError | None) -> None:
        self.error = error

    def take_jobs(self) -> list[Job]:
        """The jobs of a cancelled claim, which it does not get."""
        jobs, self.jobs = self.jobs, []
        return jobs
