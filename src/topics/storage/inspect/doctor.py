"""`topics doctor`: what is wrong with a data directory and with its disk, and what can be done.

It changes nothing; it only times a few syncs of a temporary file. `repair` acts.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import Final

from topics.errors import ColdUnavailable
from topics.limits import MIB, WAL_FILE_BYTES
from topics.storage import layout
from topics.storage.fs import Fs, Host, write_all
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.inspection import Progress
from topics.storage.inspect.repair_plan import RepairPlan, plan_repair
from topics.storage.inspect.verify import Verifier
from topics.storage.tiers.store import SegmentStore

# A sync that reaches the disk takes longer. The fastest disks, with a protected cache, take about this long.
FSYNC_PLAUSIBLE_MICROS: Final = 10
FSYNC_TRIES: Final = 9
FREE_BYTES_MIN: Final = 4 * WAL_FILE_BYTES
PERMISSIONS_NAMED_MAX: Final = 5
_PROBE: Final = "doctor" + layout.TEMPORARY


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
            yield totals.count(
                Finding(
                    severity="damage",
                    file=".",
                    message=f"cannot be looked at: {error}",
                    advice="make it readable for this user, or mount its disk",
                )
            )
        for finding in self._environment():
            yield totals.count(finding)

    def plan(self, *, accept_loss: bool = False) -> RepairPlan:
        """What a repair would do now. `diagnose` must have run to its end."""
        if self.unreadable is not None:
            return RepairPlan()
        return plan_repair(self._fs, self._root, self.verifier, self._cold, accept_loss=accept_loss)

    # The disk.

    def _environment(self) -> Iterator[Finding]:
        if self._host is not None:
            try:
                yield from self._check_host(self._host)
            except OSError as error:
                yield Finding(severity="warning", file=".", message=f"cannot be examined: {error}")
        yield from self._check_sync()

    def _check_host(self, host: Host) -> Iterator[Finding]:
        free = host.free_bytes(self._root)
        if free < FREE_BYTES_MIN:
            yield Finding(
                severity="warning",
                file=".",
                message=f"only {free // MIB} MiB are free on its disk",
                advice="writes are refused with storage_full when nothing is left; make room",
            )
        if not host.can_sync_dir(self._root):
            yield Finding(
                severity="warning",
                file=".",
                message="this file system cannot sync directories; a power cut may undo renames",
                advice="use a local file system such as ext4 or XFS",
            )
        named = 0
        for path, mode, wanted in self._open_to_others(host):
            named += 1
            if named <= PERMISSIONS_NAMED_MAX:
                yield Finding(
                    severity="warning",
                    file=path.removeprefix(self._root + "/") if path != self._root else ".",
                    message="others may read or change it",
                    expected=f"mode {wanted:04o}",
                    found=f"{mode:04o}",
                    advice=f"chmod {wanted:04o} on it",
                )
        if named > PERMISSIONS_NAMED_MAX:
            text = f"{named - PERMISSIONS_NAMED_MAX} more files are open to others"
            yield Finding(severity="warning", file=".", message=text, advice=f"chmod -R go-rwx {self._root}")

    def _open_to_others(self, host: Host) -> Iterator[tuple[str, int, int]]:
        pending = [self._root]
        while pending:
            path = pending.pop()
            try:
                names, wanted = self._fs.listdir(path), 0o700
            except NotADirectoryError:
                names, wanted = [], 0o600
            except FileNotFoundError:
                continue
            mode = host.mode(path)
            if mode & 0o077:
                yield path, mode, wanted
            pending += [f"{path}/{name}" for name in reversed(names)]

    def _check_sync(self) -> Iterator[Finding]:
        try:
            micros = fsync_micros(self._fs, self._root)
        except OSError as error:
            yield Finding(
                severity="warning",
                file=".",
                message=f"cannot be written to: {error.strerror or error}",
                advice="a server cannot start here",
            )
            return
        if micros < FSYNC_PLAUSIBLE_MICROS:
            yield Finding(
                severity="warning",
                file=".",
                message=f"a sync takes {micros:.1f} µs, which no disk can do: it may not reach the disk at all",
                advice="a power cut may then take acked records; fine on tmpfs or with syncs switched off on purpose",
            )


def fsync_micros(fs: Fs, directory: str) -> float:
    """The median time of a small write with its sync, on a temporary file there."""
    path = f"{directory}/{_PROBE}"
    if fs.exists(path):
        fs.unlink(path)
    file = fs.open(path, "create")
    try:
        times: list[float] = []
        for number in range(FSYNC_TRIES):
            write_all(file, bytes((number,)) * 4096, 0)
            started = perf_counter()
            file.fsync()
            times.append(perf_counter() - started)
    finally:
        file.close()
        fs.unlink(path)
    return sorted(times)[FSYNC_TRIES // 2] * 1e6
