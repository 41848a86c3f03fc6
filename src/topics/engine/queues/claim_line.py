"""The claims of one queue that wait for jobs, in the order in which they came. Owner only."""

from topics.engine.queues.jobs import Claim
from topics.engine.topic.topic import Waiter


class ClaimLine:
    """Each claim in the line is idle or in a pass. An idle claim waits for jobs; a claim in a pass will become idle
    again, or be answered.

    Rule of this file: a claim is never idle while a pass could give it a job that its last pass could not see. So
    every wake is counted, and a claim that becomes idle compares the count with the count at the start of its pass.
    """

    __slots__ = ("_is_idle", "is_due", "wake", "wake_count")

    def __init__(self, wake: Waiter) -> None:
        # What the queue calls when jobs may have come.
        self.wake = wake
        self.wake_count = 0
        # Whether a call of `wake` is on its way.
        self.is_due = False
        # In the order in which the claims came.
        self._is_idle: dict[Claim, bool] = {}

    def __len__(self) -> int:
        return len(self._is_idle)

    def __contains__(self, claim: Claim) -> bool:
        return claim in self._is_idle

    def join(self, claim: Claim) -> None:
        """The claim is about to enter its first pass."""
        self._is_idle[claim] = False

    def leave(self, claim: Claim) -> None:
        self._is_idle.pop(claim, None)

    def is_idle(self, claim: Claim) -> bool:
        return self._is_idle.get(claim, False)

    def rest(self, claim: Claim) -> None:
        """The pass gave the claim no job."""
        self._is_idle[claim] = True

    def note_wake(self) -> None:
        self.wake_count += 1
        self.is_due = False

    def note_due(self) -> None:
        self.is_due = True

    def take(self, count: int) -> list[Claim]:
        """Up to `count` idle claims, the oldest first, for a pass."""
        taken: list[Claim] = []
        for claim, is_idle in self._is_idle.items():
            if len(taken) >= count:
                break
            if is_idle:
                taken.append(claim)
        for claim in taken:
            self._is_idle[claim] = False
        return taken
