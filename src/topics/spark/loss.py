"""What is missing, and what a read does about it.

rule 1  A seq that a reader asked for and that cannot be delivered is a gap: the read fails, or delivers a row for the
        gap. No option hides a gap.
rule 2  Deleted seqs are no gap. Seqs below the start of a read are no gap.
rule 3  A cursor above the head always fails the read: the server may have given its seqs to other records meanwhile.
rule 4  Each instance of a topic (each epoch) has its own seqs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from topics.errors import CorruptRecord, TopicsError
from topics.spark.manifest import OFFSETS, SEQS, Manifest, Numbering

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Reason = Literal[
    "cap", "ttl", "mixed", "source_trim", "power_loss", "missing", "recreated", "regressed", "corrupt", "topic_deleted"
]

_WHAT_HAPPENED: Final[dict[str, str]] = {
    "cap": "evicted because the topic reached its cap",
    "ttl": "expired",
    "mixed": "evicted by a cap or expired",
    "source_trim": "gone from the source topic before a router copied them",
    "power_loss": "taken by a power loss",
    "missing": "in no file: a segment between others is gone",
    "recreated": "of an instance of the topic that is gone: the topic was deleted and created again",
    "regressed": "above the head: the topic was restored or its data lost, and seqs may have been given out again",
    "corrupt": "damaged",
    "topic_deleted": "gone with the topic, which was deleted",
}


class Gap(NamedTuple):
    """Seqs from first to last, both included, that cannot be delivered. The last seq may be unknown.

    `ts` in milliseconds is the time of a record near the gap, for the row that names the gap.
    """

    topic: str
    first_seq: int
    last_seq: int | None
    reason: Reason
    ts: int = 0
    numbering: Numbering = SEQS

    def __str__(self) -> str:
        subject, unit, _ = self.numbering
        seqs = f"{self.first_seq}" + ("-…" if self.last_seq is None else f"-{self.last_seq}")
        return f'{subject} "{self.topic}": {unit}s {seqs} are {_WHAT_HAPPENED[self.reason]}'


class TopicsDataLoss(TopicsError):
    """Records are missing. `gap` says which. No later records were delivered in their place."""

    code = "data_loss"

    def __init__(self, gap: Gap, manifest: Manifest | None = None) -> None:
        floors = ""
        if manifest is not None:
            unit = manifest.numbering.unit
            floors = (
                f" (evict_floor {manifest.evict_floor}, earliest_{unit} {manifest.earliest_seq}, "
                f"head_{unit} {manifest.head_seq})"
            )
        super().__init__(f"data loss: {gap}{floors}. {_ways_out(gap)}", {"topic": gap.topic, "reason": gap.reason})
        self.gap = gap

    def within(self, place: str) -> "TopicsDataLoss":
        """The same error, with the place at the beginning of the message."""
        return _rebuild(self.gap, f"{place}: {self.message}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Tasks send errors to the driver as pickles, which by default have only the message.
        return _rebuild, (self.gap, self.message)


def _rebuild(gap: Gap, message: str) -> TopicsDataLoss:
    error = TopicsDataLoss(gap)
    error.message = message
    error.args = (message,)
    return error


def _ways_out(gap: Gap) -> str:
    accept = {
        "corrupt": "accept it as a row with option onCorrupt=rows",
        "recreated": "accept it as a row and go on with the new instance with options gaps=rows, onRecreated=restart",
    }.get(gap.reason, "accept it as a row with option gaps=rows")
    ways = [
        accept,
        "move on with a new checkpoint and startingOffsets",
        "restore the segments from an archive"
        if gap.numbering == OFFSETS
        else "restore the records with `topics pipeline restore`",
    ]
    if gap.reason == "regressed":
        del ways[0]
    return "Ways out: " + "; ".join(ways)


def find_gaps(manifest: Manifest, cursor: int, last_seq: int) -> list[Gap]:
    """Gaps among the seqs after the cursor up to `last_seq`, in order: first below the floor, then lost ranges."""
    gaps: list[Gap] = []
    first_seq = cursor + 1
    evicted_seq = min(manifest.evict_floor - 1, last_seq)
    if first_seq <= evicted_seq:
        reason = eviction_reason(manifest, first_seq)
        ts = manifest.time_near(manifest.evict_floor)
        gaps.append(Gap(manifest.topic, first_seq, evicted_seq, reason, ts, manifest.numbering))
        first_seq = evicted_seq + 1
    for first_lost_seq, last_lost_seq in sorted(manifest.lost_ranges):
        first, last = max(first_seq, first_lost_seq), min(last_seq, last_lost_seq)
        if first <= last:
            ts = manifest.time_near(first)
            reason = manifest.lost_reason((first_lost_seq, last_lost_seq))
            gaps.append(Gap(manifest.topic, first, last, reason, ts, manifest.numbering))
    return gaps


def eviction_reason(manifest: Manifest, first_seq: int) -> Reason:
    """Why the seqs from `first_seq` to the floor are gone; `mixed` when the manifest does not tell."""
    if manifest.cap_floor is None or manifest.ttl_floor is None:
        return "mixed"
    by_cap, by_ttl = manifest.cap_floor >= first_seq, manifest.ttl_floor >= first_seq
    if by_cap and by_ttl:
        return "mixed"
    if by_cap:
        return "cap"
    return "ttl" if by_ttl else "source_trim"


def check_cursor(manifest: Manifest, cursor: int) -> None:
    """Raises `TopicsDataLoss` for a cursor above the head (rule 3)."""
    if cursor > manifest.head_seq:
        ts = manifest.time_near(cursor)
        gap = Gap(manifest.topic, manifest.head_seq + 1, cursor, "regressed", ts, manifest.numbering)
        raise TopicsDataLoss(gap, manifest)


def accept_gaps(gaps: Sequence[Gap], mode: Literal["fail", "rows"], manifest: Manifest | None = None) -> list[Gap]:
    """The gaps, in mode `rows`. In mode `fail` raises `TopicsDataLoss` for the first gap."""
    if gaps and mode == "fail":
        raise TopicsDataLoss(gaps[0], manifest)
    return list(gaps)


def corrupt_loss(error: CorruptRecord, topic: str) -> TopicsDataLoss:
    """The error of a task for a frame that it cannot read."""
    detail = error.detail or {}
    seq = detail.get("seq")
    assert isinstance(seq, int)
    loss = TopicsDataLoss(Gap(topic, seq, seq, "corrupt"))
    return _rebuild(loss.gap, f"data loss: {error.message}. {_ways_out(loss.gap)}")


def gap_rows(gaps: Sequence[Gap], wanted_schema: "pa.Schema", epoch: int) -> "pa.RecordBatch":
    """Rows for gaps of one topic."""
    from topics.formats.columnar import GapRow, Origin, gap_batch

    rows = [GapRow(gap.first_seq, gap.last_seq, gap.reason, gap.ts) for gap in gaps]
    return gap_batch(rows, wanted_schema, Origin(gaps[0].topic, epoch))
