"""An engine that is ready to serve, with the parts that run beside it."""

from collections.abc import Callable
from dataclasses import dataclass

from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.checkpointing.relocator import Relocator
from topics.engine.checkpointing.replacement import Replacer
from topics.engine.engine import Engine
from topics.engine.starting.report import RecoveryReport
from topics.limits import STOP_MS_MAX
from topics.storage.checkpoints.runner import JobRunner
from topics.storage.disk_space import DiskSpace, disk_space


@dataclass(slots=True)
class OpenEngine:
    engine: Engine
    checkpointer: Checkpointer
    runner: JobRunner
    relocator: Relocator
    replacer: Replacer
    report: RecoveryReport

    def start(self) -> None:
        """From here on the engine does work that is due by time by itself. Called on the owner."""
        self.engine.core.ticker.start(self.engine.runtime, self.tick)

    def tick(self) -> bool:
        """Starts all work that is due by time. Returns whether it must be called again soon: see `Ticker`."""
        engine = self.engine
        has_more = engine.wal.tick()
        self.checkpointer.tick()
        has_more |= self.relocator.tick()
        has_more |= engine.forwarder.tick()
        engine.staging.tick()
        engine.flush()
        return has_more

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the write-ahead log whose records are in no segment yet: the next start would read them."""
        return self.checkpointer.backlog_bytes

    def disk_space(self) -> DiskSpace:
        """Room on the disk of the data directory. Any thread; waits for the disk."""
        return disk_space(self.engine.directory.root)

    def close(self, done: Callable[[Exception | None], None]) -> None:
        """Writes the last checkpoint: all records in segments, reservations given back. `release` comes next.

        A checkpoint worker that hangs is given up: the WAL has every record, and the next start reads it.
        """
        self.engine.core.ticker.stop()
        self.engine.stop_writes()
        self.engine.core.cold_pool.close()
        self.engine.flush()
        self.engine.runtime.call_later(STOP_MS_MAX, self.runner.give_up)
        self.checkpointer.start(done, closing=True)

    def release(self) -> None:
        """Releases files, threads and the lock. Not on the owner's turn: a thread may need the owner to end."""
        self.relocator.close()
        self.engine.queues.close()
        self.engine.forwarder.close()
        self.engine.commits.close()
        self.engine.staging.close()
        self.checkpointer.close()
        self.runner.close()
        self.engine.wal.close()
        self.engine.core.close_wal_files()
        self.engine.core.cache.close()
        if self.engine.cold is not None:
            self.engine.cold.close()
        self.engine.directory.release()
