"""Files that the engine does not use any more. A file is removed once neither of the two kept snapshots needs it.

Local files are removed by the checkpoint itself, objects of the cold tier by `ColdUpkeep`. Owner only, except the
methods named `run`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import SegmentState, WalPosition
from topics.limits import SNAPSHOTS_KEPT
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.removal import remove_cold_copy, remove_hot_copy, remove_marks, remove_segment, remove_wal_files
from topics.storage.snapshots import drop_old_snapshots
from topics.storage.tiers.cached_store import CachedStore

logger = logging.getLogger(__name__)

SegmentKey = tuple[int, int]
"""(topic id, first seq)."""


class OldSegment(NamedTuple):
    """Files of a segment, and the number of the last snapshot that may need them."""

    last_snapshot: int
    topic_id: int
    segment: SegmentState


@dataclass(frozen=True, slots=True)
class FileRemoval:
    """The removal that follows one checkpoint."""

    fs: Fs
    root: str
    newest_snapshot: int
    # Up to where the older kept snapshot does not need the WAL.
    oldest_positions: list[WalPosition]
    # `run` takes each entry out of the list when its files are gone. Entries whose objects are left go into the other.
    dropped: list[OldSegment]
    cold_left: list[OldSegment]
    replaced_marks: list[SegmentKey]
    # Ids of topics whose directory must be synced before any old snapshot goes.
    unsynced_topics: list[int]

    def run(self) -> None:
        """On the background."""
        fs, root = self.fs, self.root
        for topic_id in self.unsynced_topics:
            fs.sync_dir(layout.topic_directory(root, topic_id))
        drop_old_snapshots(fs, root, self.newest_snapshot)
        remove_wal_files(fs, root, self.oldest_positions)
        while self.dropped:
            old = self.dropped[-1]
            remove_segment(fs, root, old.topic_id, old.segment)
            self.dropped.pop()
            if old.segment.tier == "cold":
                self.cold_left.append(old)
        remove_marks(fs, root, self.replaced_marks)


@dataclass(frozen=True, slots=True)
class ColdRemoval:
    """Objects of the cold tier that no snapshot needs, and hot files of segments whose objects are known to be there.
    `run` takes each entry out of its list when its files are gone."""

    fs: Fs
    root: str
    cold: CachedStore
    dropped: list[OldSegment]
    hot_copies: list[OldSegment]
    is_stopped: Callable[[], bool]

    def run(self) -> None:
        """On the background of the tier."""
        while self.dropped:
            old = self.dropped[-1]
            remove_cold_copy(self.cold, old.topic_id, old.segment.first_seq)
            self.dropped.pop()
        while self.hot_copies:
            old = self.hot_copies[-1]
            remove_hot_copy(
                self.fs, self.root, self.cold, old.topic_id, old.segment.first_seq, is_stopped=self.is_stopped
            )
            self.hot_copies.pop()


class OldFiles:
    def __init__(self) -> None:
        # Segments without live records.
        self._dropped: list[OldSegment] = []
        # Segments whose local files are gone, or never were, and whose objects are to be removed.
        self._cold_dropped: list[OldSegment] = []
        # Segments that are cold now, and whose hot files a snapshot may still need.
        self._hot_copies: list[OldSegment] = []
        # Segments that are cold now, and whose hot files no snapshot needs.
        self._needless_hot_copies: list[OldSegment] = []
        # Replaced segments -> number of the last snapshot that may describe their files before the replacement. The
        # mark file of such a segment tells a start to go by the files.
        self._replaced: dict[SegmentKey, int] = {}
        # Ids of topics whose directory could not be synced after a segment was replaced.
        self._unsynced_topics: set[int] = set()

    def __bool__(self) -> bool:
        """Whether files wait for their removal."""
        return bool(self._dropped or self._hot_copies or self._replaced)

    def wait_for_snapshot(self, newest_snapshot: int) -> bool:
        """Whether files are needed by a kept snapshot, so that only a further snapshot frees them."""
        upto = newest_snapshot - SNAPSHOTS_KEPT
        return (
            any(old.last_snapshot > upto for old in self._dropped)
            or any(old.last_snapshot > upto for old in self._hot_copies)
            or any(number > upto for number in self._replaced.values())
        )

    def take_dropped(self, topic: Topic, *, last_snapshot: int) -> None:
        """Segments that the topic dropped: they have no live records."""
        dropped = topic.live.segments.take_dropped()
        self._dropped += [OldSegment(last_snapshot, topic.id, segment) for segment in dropped]

    def add_hot_copy(self, last_snapshot: int, topic_id: int, segment: SegmentState) -> None:
        self._hot_copies.append(OldSegment(last_snapshot, topic_id, segment))

    def add_cold(self, topic_id: int, segments: list[SegmentState]) -> None:
        """The topic is gone, and with it every snapshot's need for its objects."""
        self._cold_dropped += [OldSegment(0, topic_id, segment) for segment in segments if segment.tier == "cold"]

    def add_replaced(self, last_snapshot: int, key: SegmentKey) -> None:
        self._replaced[key] = last_snapshot

    def add_unsynced(self, key: SegmentKey) -> None:
        """The files of a segment were replaced, or half replaced, and a sync failed.

        The mark file stays until the next start, which goes by the files. Old snapshots stay until the directory is
        synced.
        """
        self._replaced.pop(key, None)
        self._unsynced_topics.add(key[0])

    def forget_topic(self, topic_id: int) -> None:
        """The topic's directory is removed as a whole."""
        self._dropped = [old for old in self._dropped if old.topic_id != topic_id]
        self._hot_copies = [old for old in self._hot_copies if old.topic_id != topic_id]
        self._unsynced_topics.discard(topic_id)
        self._replaced = {key: number for key, number in self._replaced.items() if key[0] != topic_id}

    def begin_removal(
        self,
        engine: Engine,
        newest_snapshot: int,
        oldest_positions: list[WalPosition],
        busy_segments: set[SegmentKey],
    ) -> FileRemoval:
        """Takes out the files that no kept snapshot needs."""
        upto = newest_snapshot - SNAPSHOTS_KEPT
        dropped, self._dropped = _split(self._dropped, upto)
        pins = engine.pins
        # Pinned segments are about to be read: the next checkpoint looks at them again.
        self._dropped += [old for old in dropped if pins.holds(old.topic_id, old.segment.first_seq)]
        dropped = [old for old in dropped if not pins.holds(old.topic_id, old.segment.first_seq)]
        needless, self._hot_copies = _split(self._hot_copies, upto)
        self._needless_hot_copies += needless
        # A segment that is being replaced a second time needs a mark file when the replacement ends.
        marks = [key for key, number in self._replaced.items() if number <= upto and key not in busy_segments]
        return FileRemoval(
            engine.directory.fs,
            engine.directory.root,
            newest_snapshot,
            oldest_positions,
            dropped,
            [],
            marks,
            sorted(self._unsynced_topics),
        )

    def end_removal(self, removal: FileRemoval, result: object) -> None:
        """The next checkpoint tries again to remove the files that are left."""
        if isinstance(result, BaseException):
            logger.warning("old files are not removed yet: %s", result)
        else:
            self._unsynced_topics -= set(removal.unsynced_topics)
            for key in removal.replaced_marks:
                self._replaced.pop(key, None)
        self._dropped += removal.dropped
        self._cold_dropped += removal.cold_left

    def begin_cold_removal(self, engine: Engine, cold: CachedStore) -> ColdRemoval | None:
        """Takes out the files that are left to the thread of the cold tier; None when there are none."""
        fs, root = engine.directory.fs, engine.directory.root
        dropped, self._cold_dropped = self._cold_dropped, []
        hot_copies, self._needless_hot_copies = self._needless_hot_copies, []
        if not dropped and not hot_copies:
            return None
        return ColdRemoval(fs, root, cold, dropped, hot_copies, lambda: engine.is_closed)

    def end_cold_removal(self, removal: ColdRemoval, result: object) -> None:
        """The next checkpoint tries again to remove the files that are left."""
        if isinstance(result, BaseException):
            logger.warning("old files are not removed yet: %s", result)
        self._cold_dropped += removal.dropped
        self._needless_hot_copies += removal.hot_copies


def _split(entries: list[OldSegment], upto: int) -> tuple[list[OldSegment], list[OldSegment]]:
    """Entries whose last snapshot has a number of at most `upto`, and the others."""
    return (
        [entry for entry in entries if entry.last_snapshot <= upto],
        [entry for entry in entries if entry.last_snapshot > upto],
    )
