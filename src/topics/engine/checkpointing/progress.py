"""How far checkpoints have come: what outlives one checkpoint. Writers that outrun the checkpoints are refused."""

from typing import NamedTuple

from topics.engine.engine import Engine
from topics.errors import Overloaded, StorageFull, Throttled, TopicsError
from topics.formats.snapshot import WalPosition
from topics.limits import CHECKPOINTS_BEHIND_MAX
from topics.storage.fs import NO_SPACE


class CheckpointBase(NamedTuple):
    """The state that the first checkpoint of a process goes on from."""

    # Number of the last snapshot; 0 when there is none.
    number: int
    # Up to where the records of each shard are in segments.
    positions: list[WalPosition]


class CheckpointProgress:
    def __init__(self, engine: Engine, base: CheckpointBase, replayed_bytes: int) -> None:
        self._engine = engine
        # Number of the last snapshot that was written.
        self.number = base.number
        # Where the next job begins to read.
        self.positions = base.positions
        # Up to where each of the kept snapshots does not need the WAL, the oldest first.
        self._kept_positions = [base.positions]
        self.count_total = 0
        # Why the last checkpoint failed, if it did.
        self.last_error: Exception | None = None
        # Whether the last snapshot could not be written. It may be on disk all the same.
        self.snapshot_failed = False
        # WAL bytes since the start of the process whose records are in segments.
        self._filed_bytes = self._wal_bytes()
        # WAL bytes since the start of the process that were written before the last capture. Replayed bytes count as
        # written after it. Else a server that often dies early would never take a checkpoint, and every start would
        # have more to read.
        self._captured_bytes = self._filed_bytes - replayed_bytes
        # WAL bytes that were written while the last checkpoint ran.
        self._meanwhile_bytes = 0

    def _wal_bytes(self) -> int:
        return sum(shard.stats.bytes_written for shard in self._engine.wal.shards)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the WAL whose records are in no segment yet."""
        # What was replayed at the start counts as captured later, and as filed with the first checkpoint.
        return self._wal_bytes() - min(self._filed_bytes, self._captured_bytes)

    @property
    def is_due(self) -> bool:
        """Whether enough was written since the last capture.

        A start reads what no snapshot covers. With a checkpoint that begins after `checkpoint_wal_bytes` this would be
        more by what is written while the checkpoint runs. So the next checkpoint begins earlier by as much, but not
        before half of these bytes are written.
        """
        bytes_max = self._engine.settings.checkpoint_wal_bytes
        return self._wal_bytes() - self._captured_bytes >= bytes_max - min(self._meanwhile_bytes, bytes_max // 2)

    @property
    def oldest_positions(self) -> list[WalPosition]:
        """Up to where no kept snapshot needs the WAL."""
        return self._kept_positions[0]

    def captured(self) -> None:
        """Called in the turn of the capture."""
        self._captured_bytes = self._wal_bytes()

    def nothing_to_file(self) -> None:
        """No record was written between the last two captures."""
        self._filed_bytes = self._captured_bytes

    def filed(self, positions: list[WalPosition]) -> None:
        """The records up to these positions are in segments."""
        self.positions = positions
        self._filed_bytes = self._captured_bytes
        self.throttle_writes()

    def note_failed_snapshot(self) -> None:
        self.snapshot_failed = True

    def snapshot_written(self, number: int) -> None:
        self.number = number
        self.snapshot_failed = False
        self.count_total += 1
        self._meanwhile_bytes = self._wal_bytes() - self._captured_bytes

    def keep_positions(self, positions: list[WalPosition]) -> None:
        """A snapshot with these positions is kept, beside the one before it."""
        self._kept_positions = [*self._kept_positions[-1:], positions]

    def ended(self, error: Exception | None) -> None:
        """A checkpoint has ended, with the error that ended it."""
        self.last_error = error

    def throttle_writes(self) -> None:
        """Records that are in no segment are in memory. The memory must stay bounded, also when checkpoints fail."""
        behind_bytes = self._wal_bytes() - self._filed_bytes
        is_behind = behind_bytes > CHECKPOINTS_BEHIND_MAX * self._engine.settings.checkpoint_wal_bytes
        self._engine.wal.throttle(self._refusal() if is_behind else None)

    def _refusal(self) -> TopicsError:
        """A writer is told to wait. When the last checkpoint failed it is told why: waiting may not help then."""
        error = self.last_error
        if error is None:
            return Overloaded("writes outrun the checkpoints; try again")
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return StorageFull(
                "no space or no file descriptors left to move written records into segments; nothing was written"
            )
        # The message goes to clients, so it names no path. The log has the error.
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        return Throttled("checkpoints fail, so no more writes are taken", {"checkpoint": reason})
