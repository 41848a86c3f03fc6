"""What a WAL shard counts."""

from typing import ClassVar, Final

FSYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)


class WalStats:
    """Plain integers. `Wal.total_stats` sums them over the shards.

    `fsync_buckets[i]` counts syncs that took at most `fsync_bounds_us[i]` and more than the bound before. The last
    bucket counts all longer syncs.
    """

    fsync_bounds_us: ClassVar = FSYNC_BUCKETS_US
    __slots__ = (
        "batches",
        "bytes_written",
        "frames",
        "fsync_buckets",
        "fsync_us_total",
        "fsyncs",
        "queue_depth_peak",
        "rotations",
        "submit_full",
    )

    def __init__(self) -> None:
        self.frames = 0
        self.batches = 0
        self.bytes_written = 0
        self.fsyncs = 0
        self.fsync_us_total = 0
        self.fsync_buckets = [0] * (len(FSYNC_BUCKETS_US) + 1)
        self.rotations = 0
        self.queue_depth_peak = 0
        self.submit_full = 0

    def note_fsync(self, micros: int) -> None:
        self.fsyncs += 1
        self.fsync_us_total += micros
        for place, bound in enumerate(FSYNC_BUCKETS_US):
            if micros <= bound:
                self.fsync_buckets[place] += 1
                return
        self.fsync_buckets[-1] += 1

    def add(self, other: "WalStats") -> None:
        """Adds the numbers of another shard. Of two peaks the higher one counts."""
        self.frames += other.frames
        self.batches += other.batches
        self.bytes_written += other.bytes_written
        self.fsyncs += other.fsyncs
        self.fsync_us_total += other.fsync_us_total
        self.fsync_buckets = [
            ours + theirs for ours, theirs in zip(self.fsync_buckets, other.fsync_buckets, strict=True)
        ]
        self.rotations += other.rotations
        self.queue_depth_peak = max(self.queue_depth_peak, other.queue_depth_peak)
        self.submit_full += other.submit_full
