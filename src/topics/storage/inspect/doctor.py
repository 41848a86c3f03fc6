"""`topics doctor`: what is wrong with a data directory and with its disk, and what can be done.

It changes nothing; it only times a few syncs of a temporary file. `repair` acts.
"""

from collections.abc import Iterator

from topics.errors import ColdUnavailable
from topics.storage.fs import Fs, Host
from topics.storage.inspect.disk_check import check_disk
from topics.storage.inspect.findings import Finding, unreadable
from topics.storage.inspect.inspection import Progress
from topics.storage.inspect.repair_plan import RepairPlan, plan_repair
from topics.storage.inspect.verify import Verifier
from topics.storage.tiers.store import SegmentStore


class Doctor:
    """One visit to a data directory: `diagnose()`, then `plan()`."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        *,
        cold: SegmentStore | None = None,
        host: Host | None = None,
        progress: Progress | None = None,
        holds_lock: bool = False,
    ) -> None:
        self._fs = fs
        self._root = root
        self._cold = cold
        self._host = host
        self.verifier = Verifier(fs, root, cold=cold, progress=progress, holds_lock=holds_lock)
        # Why the directory could not be read to its end; None if it could.
        self.unreadable: str | None = None

    def diagnose(self) -> Iterator[Finding]:
        """Everything that `verify` finds, then the disk. A directory that cannot be read is a finding too."""
        totals = self.verifier.totals
        try:
            yield from self.verifier.run()
        except (OSError, ColdUnavailable) as error:
            self.unreadable = str(error)
            yield totals.count(unreadable(error))
        for finding in check_disk(self._fs, self._root, self._host):
            yield totals.count(finding)

    def plan(self, *, accept_loss: bool = False) -> RepairPlan:
        """What a repair would do now. `diagnose` must have run to its end."""
        if self.unreadable is not None:
            return RepairPlan()
        return plan_repair(self._fs, self._root, self.verifier, self._cold, accept_loss=accept_loss)
