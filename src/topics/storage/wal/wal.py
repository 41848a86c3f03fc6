"""The WAL: all shards together."""

from collections.abc import Callable

from topics.errors import TopicsError, WalFailed
from topics.formats.snapshot import WalPosition
from topics.storage.wal.shard import WalShard
from topics.storage.wal.stats import WalStats


class Wal:
    """All shards. All frames of a topic are in one shard."""

    def __init__(self, shards: list[WalShard]) -> None:
        assert shards
        self.shards = shards

    def shard_for(self, topic_id: int) -> WalShard:
        shards = self.shards
        if len(shards) == 1:
            return shards[0]
        return shards[shard_index(topic_id, len(shards))]

    def flush(self) -> None:
        for shard in self.shards:
            shard.flush()

    def tick(self) -> bool:
        """Returns whether it must be called again soon."""
        has_more = False
        for shard in self.shards:
            has_more |= shard.tick()
        return has_more

    def tell_unsynced(self, tell: Callable[[], None]) -> None:
        """Tells when a shard has bytes to sync: `tick` must be called soon."""
        for shard in self.shards:
            shard.on_unsynced = tell

    def throttle(self, refusal: TopicsError | None) -> None:
        for shard in self.shards:
            shard.throttle(refusal)

    @property
    def positions(self) -> list[WalPosition]:
        return [shard.position for shard in self.shards]

    def failure(self) -> WalFailed | None:
        return next((shard.failed for shard in self.shards if shard.failed is not None), None)

    @property
    def is_read_only(self) -> bool:
        """Whether a shard has failed and takes no writes until a restart."""
        return self.failure() is not None

    @property
    def queue_depth(self) -> int:
        """Writes admitted and not yet committed, over all shards."""
        return sum(shard.queue_depth for shard in self.shards)

    def total_stats(self) -> WalStats:
        total = WalStats()
        for shard in self.shards:
            total.add(shard.stats)
        return total

    def hold(self, quiet: Callable[[], None]) -> None:
        """Calls `quiet` once all shards hold still, with everything written also synced (or failed)."""
        missing = len(self.shards)

        def one_quiet() -> None:
            nonlocal missing
            missing -= 1
            if missing == 0:
                quiet()

        for shard in self.shards:
            shard.hold(one_quiet)

    def release(self) -> None:
        for shard in self.shards:
            shard.release()

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def shard_index(topic_id: int, shard_count: int) -> int:
    """The shard of a topic. It is part of the on-disk layout and must never change. Fibonacci hashing spreads ids."""
    return ((topic_id * 0x9E3779B97F4A7C15) & (2**64 - 1)) * shard_count >> 64
