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

    def warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.warnings.append(text)

    def note(self, text: str) -> None:
        logger.info("%s", text)
        self.notes.append(text)
