"""`topics doctor` for a stream directory: what is wrong with it and with its disk, and what can be done.

A repair does what the next start would do: it makes indexes again, cuts off what a crash left unfinished, and finishes
removals. It also keeps a copy of what it cuts (`.broken`). What a start refuses, it refuses, too: it says what to do.
With `accept_loss` it begins partitions without messages in place of folders that are missing.
"""

from collections.abc import Callable, Iterator

from topics.clock import SystemClock
from topics.errors import DirectoryLocked
from topics.formats.message_cipher import Cipher
from topics.formats.stream_layout import LOCK_FILE, Flavour
from topics.limits import MIB
from topics.storage.fs import File, Fs, Host, write_all
from topics.storage.inspect.disk_check import check_disk
from topics.storage.inspect.findings import Finding, unreadable
from topics.storage.inspect.repair_plan import RepairPlan, RepairStep, free_broken_name
from topics.streams.directory.directories import DELETED, Directories
from topics.streams.inspect.verify import Progress, StreamsVerifier
from topics.streams.metadata.state_log import StateLog
from topics.streams.partitions.recovery import recover
from topics.streams.settings import StreamsSettings

_COPY_BYTES = 4 * MIB


class StreamsDoctor:
    """One visit to a stream directory: `diagnose()`, then `plan()`."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        *,
        settings: StreamsSettings | None = None,
        host: Host | None = None,
        progress: Progress | None = None,
        holds_lock: bool = False,
    ) -> None:
        self._fs = fs
        self._root = root
        self._settings = settings or StreamsSettings()
        self._cipher: Cipher | None = self._settings.system.encryption.cipher()
        self._directories = Directories(fs, root, self._settings)
        self._host = host
        self.verifier = StreamsVerifier(
            fs, root, settings=self._settings, cipher=self._cipher, progress=progress, holds_lock=holds_lock
        )
        # Why the directory could not be read to its end; None if it could.
        self.unreadable: str | None = None

    def diagnose(self) -> Iterator[Finding]:
        """Everything that `verify` finds, then the disk. A directory that cannot be read is a finding, too."""
        totals = self.verifier.totals
        try:
            yield from self.verifier.run()
        except OSError as error:
            self.unreadable = str(error)
            yield totals.count(unreadable(error))
        for finding in check_disk(self._fs, self._root, self._host):
            yield totals.count(finding)

    def plan(self, *, accept_loss: bool = False) -> RepairPlan:
        """What a repair would do now. `diagnose` must have run to its end."""
        plan = RepairPlan()
        found = self.verifier
        if self.unreadable is not None or found.flavour is None:
            plan.refusals += found.refusals
            return plan
        plan.refusals += found.refusals
        if found.refusals:
            return plan
        if found.torn_state is not None:
            plan.steps.append(self._cut_state(found.flavour, found.torn_state.offset))
        plan.steps += [self._finish_removal(key) for key in found.half_deleted]
        plan.steps += [self._recover(key) for key in found.repairable]
        for key in found.missing:
            if accept_loss:
                plan.lost_lines.append(f"all messages of {key} are lost: its folder is missing")
                plan.steps.append(self._begin(key))
            else:
                plan.refusals.append(f"{key} is missing; bring it back, or repair with --accept-loss")
        return plan

    # Steps.

    def _cut_state(self, flavour: Flavour, position: int) -> RepairStep:
        path = flavour.state_log_path(self._root)

        def act() -> None:
            file = self._fs.open(path, "read")
            try:
                self._keep_rest(file, position)
            finally:
                file.close()
            StateLog.open(self._fs, self._root, flavour, self._cipher, SystemClock(), enforce_fsync=True).close()

        name = path.removeprefix(self._root + "/")
        return RepairStep(f"cut {name} at {position}, where its last entry is unfinished; a copy is kept", act)

    def _finish_removal(self, key: str) -> RepairStep:
        parent, _, name = key.rpartition("/")
        assert name.endswith(DELETED)
        return RepairStep(f"finish the removal of {key}", lambda: self._directories.finish_removals(parent))

    def _recover(self, key: str) -> RepairStep:
        path = self._directories.path(key)

        def act() -> None:
            recover(self._fs, path, validate_checksum=False, before_cut=self._keep_rest)

        return RepairStep(
            f"make the indexes of {key} fit its logs, and cut off what is no message; a copy is kept", act
        )

    def _begin(self, key: str) -> RepairStep:
        def act() -> None:
            path = self._directories.path(key)
            self._fs.makedirs(path)
            while path != self._root:
                path = path.rpartition("/")[0]
                self._fs.sync_dir(path)

        return RepairStep(f"begin {key} without messages", act)

    def _keep_rest(self, file: File, position: int) -> None:
        """Copies what a repair is about to cut off, durably."""
        name = free_broken_name(self._fs, f"{file.path}.{position}")
        kept = self._fs.open(name, "create")
        try:
            at = 0
            while chunk := file.pread(_COPY_BYTES, position + at):
                at = write_all(kept, chunk, at)
            kept.fsync()
        finally:
            kept.close()
        self._fs.sync_dir(name.rpartition("/")[0])


def repair_streams(
    fs: Fs,
    root: str,
    *,
    settings: StreamsSettings | None = None,
    accept_loss: bool = False,
    say: Callable[[str], None] | None = None,
) -> RepairPlan:
    """Does what can be done, and says each step before it is taken. Raises `DirectoryLocked` while an engine runs."""
    lock = fs.lock(f"{root}/{LOCK_FILE}")
    if lock is None:
        raise DirectoryLocked(f"{root} is in use; stop the server first")
    try:
        doctor = StreamsDoctor(fs, root, settings=settings, holds_lock=True)
        for _ in doctor.verifier.run():
            pass
        plan = doctor.plan(accept_loss=accept_loss)
        for text in plan.lost_lines:
            if say is not None:
                say(text)
        for step in plan.steps:
            if say is not None:
                say(step.text)
            step.act()
        return plan
    finally:
        lock.release()
