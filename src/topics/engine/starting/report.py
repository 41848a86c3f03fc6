"""What a start found and did."""

import logging
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveryReport:
    """For logs, `topics doctor` and tests. Every phase of a recovery adds to the same report."""

    warnings: list[str] = field(default_factory=list)
    # Repairs that lost nothing.
    notes: list[str] = field(default_factory=list)
    snapshot_number: int | None = None
    frames_replayed: int = 0
    bytes_replayed: int = 0
    lost_seqs: int = 0
    torn_bytes: int = 0

    def use_snapshot(self, number: int) -> None:
        self.snapshot_number = number

    def add_replayed(self, frame_count: int, size_bytes: int) -> None:
        self.frames_replayed += frame_count
        self.bytes_replayed += size_bytes

    def add_lost(self, seq_count: int) -> None:
        self.lost_seqs += seq_count

    def add_torn(self, size_bytes: int) -> None:
        self.torn_bytes += size_bytes

    def warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    def note(self, text: str) -> None:
        logger.info("%s", text)
        self.notes.append(text)
