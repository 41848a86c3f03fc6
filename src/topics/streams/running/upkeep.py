"""What an engine does now and then by itself: saving, retention, archiving, rebalancing, cleaning tokens."""

from collections.abc import Callable

from topics.clock import Clock
from topics.storage.fs import Fs
from topics.streams.metadata.commands import Commands
from topics.streams.retention.archive import Archiver, open_archive
from topics.streams.retention.cleaner import Cleaner
from topics.streams.running.running_topic import RunningPartition, RunningTopic
from topics.streams.settings import StreamsSettings
from topics.streams.times import now_us


class _Every:
    """Says when something is due again; the first time after one interval. 0: never."""

    def __init__(self, interval_us: int, now_ms: int) -> None:
        self._interval_ms = interval_us / 1000
        self._next_ms = now_ms + self._interval_ms

    def is_due(self, now_ms: int) -> bool:
        if not self._interval_ms or now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._interval_ms
        return True


class Upkeep:
    """`topics` gives those that are open, under the lock. One thread at a time calls `tick`."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        settings: StreamsSettings,
        clock: Clock,
        commands: Commands,
        topics: Callable[[], list[RunningTopic]],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._commands = commands
        self._topics = topics
        messages = settings.data_maintenance.messages
        self._archiver: Archiver | None = None
        if settings.data_maintenance.archiver.enabled and messages.archiver_enabled:
            self._archiver = Archiver(fs, root, open_archive(fs, root, settings))
        waits_for_archive = settings.system.segment.archive_expired and self._archiver is not None
        self._cleaner = Cleaner(
            keep_unconsumed=messages.keep_unconsumed,
            must_stay=self._archiver.must_stay if waits_for_archive and self._archiver is not None else None,
        )
        now_ms = clock.monotonic_ms()
        saver = settings.message_saver
        self._saving = _Every(saver.interval_us if saver.enabled else 0, now_ms)
        is_maintained = messages.cleaner_enabled or self._archiver is not None
        self._maintenance = _Every(messages.interval_us if is_maintained else 0, now_ms)
        self._rebalancing = _Every(settings.consumer_group.rebalancing_check_interval_us, now_ms)
        cleaner = settings.personal_access_token.cleaner
        self._token_cleaning = _Every(cleaner.interval_us if cleaner.enabled else 0, now_ms)

    def tick(self) -> None:
        """Does what is due."""
        now_ms = self._clock.monotonic_ms()
        if self._rebalancing.is_due(now_ms):
            self._rebalance()
        if self._token_cleaning.is_due(now_ms):
            with self._commands.lock:
                self._commands.metadata.drop_expired_tokens(now_us(self._clock))
        if self._saving.is_due(now_ms):
            self.save(fsync=self._settings.message_saver.enforce_fsync)
        if self._maintenance.is_due(now_ms):
            self.maintain()

    def _rebalance(self) -> None:
        with self._commands.lock:
            monotonic_us = self._clock.monotonic_ms() * 1000
            for topic in self._topics():
                for group in topic.groups.values():
                    group.tick(monotonic_us)

    def save(self, *, fsync: bool) -> None:
        """Flushes every partition that has something buffered."""
        with self._commands.lock:
            topics = self._topics()
        for topic in topics:
            topic.save(fsync=fsync)

    def maintain(self) -> None:
        """One round of archiving and of retention, as the settings want them."""
        with self._commands.lock:
            retained = [topic.retained() for topic in self._topics()]
        if self._archiver is not None:
            # A sealed segment that was never synced can be shorter after a power loss than its copy.
            self.save(fsync=True)
            self._archiver.run(partition for topic in retained for partition in topic.partitions)
        if self._settings.data_maintenance.messages.cleaner_enabled:
            self._cleaner.run(retained, now_us(self._clock))

    def delete_oldest(self, partition: RunningPartition, count: int) -> int:
        """Up to so many sealed segments, as far as retention would let them go; how many went."""
        return self._cleaner.delete_oldest(partition.retained(), count)
