"""What calls on a queue are answered with, and a claim while it waits for its answer."""

from typing import NamedTuple

from topics.engine.completions import Done
from topics.errors import TopicsError
from topics.formats.records import Record


class Job(NamedTuple):
    """A job and its lease. `data` and `meta` are JSON text; `deadline` is the last millisecond of the lease."""

    seq: int
    ts: int
    tag: str | None
    data: bytes
    meta: bytes | None
    lease_id: int
    deadline: int
    deliveries: int


class Claimed(NamedTuple):
    """Jobs by seq, and how many are ready after the claim."""

    jobs: list[Job]
    ready: int


class Settled(NamedTuple):
    """How many jobs were acked or nacked, and the seqs that were not, in the order of the call."""

    settled: int
    skipped: list[int]
    ready: int
    in_flight: int
    # How long the log's sync took; 0.0 unless there was one.
    sync_ms: float = 0.0


class Extended(NamedTuple):
    """New deadlines by seq, and the seqs that got none."""

    deadlines: dict[int, int]
    skipped: list[int]


class Counters(NamedTuple):
    ready: int
    in_flight: int
    dead_lettered: int


class Claim:
    """One call of `claim`, until it is answered. `cancel` it when its jobs are not wanted any more."""

    __slots__ = ("_missing", "done", "error", "is_cancelled", "jobs", "lease_ms", "max_jobs", "node", "records")

    def __init__(self, node: str, max_jobs: int, lease_ms: int, done: Done[Claimed]) -> None:
        self.node = node
        self.max_jobs = max_jobs
        self.lease_ms = lease_ms
        self.done = done
        # The records that the pass dealt out to this claim, then the same records with leases.
        self.records: list[Record] = []
        self.jobs: list[Job] = []
        self.error: TopicsError | None = None
        self.is_cancelled = False
        # How many things the answer still waits for.
        self._missing = 0

    def cancel(self) -> None:
        self.is_cancelled = True

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
