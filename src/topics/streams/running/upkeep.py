"""The regular work of an engine: saving, retention, archiving, rebalancing of groups, removal of expired tokens."""

from topics.clock import Clock
from topics.streams.metadata.commands import Commands
from topics.streams.retention.archive import Archiver
from topics.streams.retention.cleaner import Cleaner
from topics.streams.running.running_topic import RunningPartition
from topics.streams.running.running_topics import RunningTopics
from topics.streams.settings import StreamsSettings
from topics.streams.times import now_us


class _Interval:
    """Tells when regular work is due: first after one interval. An interval of 0 is never due."""

    def __init__(self, interval_us: int, now_ms: int) -> None:
        self._interval_ms = interval_us / 1000
        self._next_ms = now_ms + self._interval_ms

    def is_due(self, now_ms: int) -> bool:
        if not self._interval_ms or now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + self._interval_ms
        return True


class Upkeep:
    """One thread at a time calls `tick`. `archiver` is None if nothing is archived."""

    def __init__(
        self,
        settings: StreamsSettings,
        clock: Clock,
        commands: Commands,
        topics: RunningTopics,
        archiver: Archiver | None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._commands = commands
        self._topics = topics
        self._archiver = archiver
        messages = settings.data_maintenance.messages
        waits_for_archive = archiver is not None and settings.system.segment.archive_expired
        self._cleaner = Cleaner(
            keep_unconsumed=messages.keep_unconsumed,
            must_stay=archiver.must_stay if archiver is not None and waits_for_archive else None,
        )
        now_ms = clock.monotonic_ms()
        saver = settings.message_saver
        self._saving = _Interval(saver.interval_us if saver.enabled else 0, now_ms)
        is_maintained = messages.cleaner_enabled or archiver is not None
        self._maintenance = _Interval(messages.interval_us if is_maintained else 0, now_ms)
        self._rebalancing = _Interval(settings.consumer_group.rebalancing_check_interval_us, now_ms)
        cleaner = settings.personal_access_token.cleaner
        self._token_cleaning = _Interval(cleaner.interval_us if cleaner.enabled else 0, now_ms)

    def tick(self) -> None:
        """Does the work that is due."""
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
            for topic in self._topics.all():
                for group in topic.groups.values():
                    group.tick(monotonic_us)

    def save(self, *, fsync: bool) -> None:
        """Flushes every partition that has buffered messages."""
        with self._commands.lock:
            topics = self._topics.all()
        for topic in topics:
            topic.save(fsync=fsync)

    def maintain(self) -> None:
        """One round of archiving and of retention, as far as the settings enable them."""
        with self._commands.lock:
            retained = [topic.retained() for topic in self._topics.all()]
        if self._archiver is not None:
            # After a power loss a sealed segment that was never synced could be shorter than its copy.
            self.save(fsync=True)
            self._archiver.run(partition for topic in retained for partition in topic.partitions)
        if self._settings.data_maintenance.messages.cleaner_enabled:
            self._cleaner.run(retained, now_us(self._clock))

    def delete_oldest(self, partition: RunningPartition, count: int) -> int:
        """Deletes up to `count` of the oldest sealed segments, except what retention must keep. Returns how many."""
        return self._cleaner.delete_oldest(partition.retained(), count)
