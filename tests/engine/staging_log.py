"""A small log with a writer that stages and commits. The test decides when a commit takes a turn and when a sync
runs."""

from typing import Any

from tests.engine.driver import SteppedBackground
from tests.engine.small_log import SmallLog, raised
from topics.engine.runtime import InlineRuntime, Turn
from topics.engine.writing.commits import Committed
from topics.engine.writing.intake import batch_of_records
from topics.engine.writing.staging import StagedChunk, StagedPart
from topics.results import NewRecord
from topics.storage.background import Background
from topics.storage.fs import Fs
from topics.testing.fake_disk import FakeDisk

WRITER = "query-7"
TURN_BYTES = 600
# Three of these fill a turn.
LARGE_BYTES = TURN_BYTES // 3 - 40


class SteppedCommits(InlineRuntime):
    """Runs everything at once, except the turns of a commit. The test starts those."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = SteppedBackground()

    def use_turns(self, run_turn: Turn) -> None:
        super().use_turns(run_turn)
        self.turns.use_turns(run_turn)

    def background(self, name: str) -> Background:
        return self.turns if name == "commit" else super().background(name)


class StagingLog(SmallLog):
    """One topic, `a`, and one writer."""

    def stage(
        self, payloads: list[Any], epoch: int = 1, part: int = 0, attempt: int = 0, chunk: int = 0, name: str = "a"
    ) -> StagedChunk:
        results: list[Any] = []
        records = [payload if isinstance(payload, NewRecord) else NewRecord(payload) for payload in payloads]
        batch = batch_of_records(records)
        self.engine.staging.stage(name, WRITER, (epoch, part, attempt, chunk), batch, results.append)
        self.engine.flush()
        staged: StagedChunk = raised(results)
        return staged

    def start_commit(self, parts: list[StagedPart], epoch: int = 1, name: str = "a") -> list[Any]:
        results: list[Any] = []
        self.engine.commits.commit(name, WRITER, epoch, parts, results.append)
        return results

    def commit(self, parts: list[StagedPart], epoch: int = 1, name: str = "a") -> Committed:
        results = self.start_commit(parts, epoch, name)
        self.engine.flush()
        committed: Committed = raised(results)
        return committed

    def commit_large(self, epoch: int = 1) -> list[Any]:
        """Stages and begins a commit of three turns: seven records in two chunks."""
        self.stage([f"{epoch}-{place}".ljust(LARGE_BYTES, "x") for place in range(4)], epoch)
        self.stage([f"{epoch}-{place}".ljust(LARGE_BYTES, "x") for place in range(4, 7)], epoch, chunk=1)
        return self.start_commit([StagedPart(0, 0, 2, 7)], epoch)

    def payloads(self, name: str = "a") -> list[bytes]:
        return [record.data.strip(b'x"') for record in self.read(name)[0]]

    def ledger(self, name: str = "a") -> list[tuple[int, int, int]]:
        return [(state.epoch, state.first_seq, state.last_seq) for state in self.topic(name).writers.values()]


class SteppedWal(InlineRuntime):
    """Syncs of the log wait."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = SteppedBackground()

    def use_turns(self, run_turn: Turn) -> None:
        super().use_turns(run_turn)
        self.syncs.use_turns(run_turn)

    def background(self, name: str) -> Background:
        return self.syncs if name.startswith("wal") else super().background(name)


def staged_names(disk: FakeDisk) -> list[str]:
    return disk.listdir("/data/staging") if disk.exists("/data/staging") else []


def opened(fs: Fs | None = None, **config: Any) -> StagingLog:
    log = StagingLog(fs or FakeDisk(), commit_turn_bytes=TURN_BYTES)
    log.create("a", **config)
    return log


def stepped(fs: Fs | None = None, **config: Any) -> tuple[StagingLog, SteppedBackground]:
    runtime = SteppedCommits()
    log = StagingLog(fs or FakeDisk(), runtime=runtime, commit_turn_bytes=TURN_BYTES)
    log.create("a", **config)
    return log, runtime.turns
