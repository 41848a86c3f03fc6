"""Moves old sealed segments to the cold tier, one at a time, when no checkpoint runs.

The segment is copied and the copy verified. Then the engine reads the cold copy, and the next snapshots record it. The
hot files are removed once both kept snapshots say "cold", so a start finds a readable copy whichever snapshot it uses.
While a segment is copied, no delete byte is set in it: its deletes stay pending until a later checkpoint.

An outage of the cold tier stops only these moves. Owner only, except the copying itself.
"""

import logging
from typing import Final

import msgspec

from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.engine import Engine
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import SegmentState
from topics.storage.background import Background
from topics.storage.removal import remove_cold_copy
from topics.storage.segments.relocation import copy_to_cold
from topics.storage.tiers.store_id import ensure_store_id

logger = logging.getLogger(__name__)

RETRY_MS: Final = 60_000


class Relocator:
    def __init__(self, engine: Engine, checkpointer: Checkpointer, background: Background) -> None:
        self._engine = engine
        self._checkpointer = checkpointer
        self._background = background
        self._busy = False
        # `Checkpointer.count_total` when no segment was left to move. Only a checkpoint makes new segments.
        self._idle_since_count = -1
        self._retry_at_ms = 0
        self.moved_total = 0
        # Failed copies, and questions to the tier without an answer.
        self.failed_total = 0

    def tick(self) -> bool:
        """Begins the next move, if no move is under way. Returns whether one is: the next move follows it."""
        engine = self._engine
        if engine.cold is None or self._busy or self._checkpointer.is_running or engine.is_closed:
            return self._busy
        if self._idle_since_count == self._checkpointer.count_total or engine.clock.monotonic_ms() < self._retry_at_ms:
            return False
        if not engine.core.is_cold_claimed:
            self._claim()
            return True
        found = self._next()
        if found is None:
            self._idle_since_count = self._checkpointer.count_total
            return False
        self._move(*found)
        return True

    def _claim(self) -> None:
        """The tier did not answer when the engine started, so it is asked again."""
        cold, store_id = self._engine.cold, self._engine.directory.store_id
        assert cold is not None
        self._busy = True

        def claimed(result: object) -> None:
            self._busy = False
            if isinstance(result, BaseException):
                logger.warning("no segment is moved to the cold tier: %s", result)
                self._failed()
            else:
                self._engine.core.claim_cold()

        self._background.run(lambda: ensure_store_id(cold, store_id), claimed)

    def _next(self) -> tuple[Topic, SegmentState] | None:
        settings = self._engine.settings
        for topic in self._engine.topics.values():
            hot = [state for state in topic.live.segments.segments if state.sealed and state.tier == "hot"]
            kept_bytes = 0
            for place, state in enumerate(reversed(hot)):
                kept_bytes += state.data_bytes
                too_many = place >= settings.hot_retain_segments
                too_large = settings.hot_retain_bytes and kept_bytes > settings.hot_retain_bytes
                if too_many or too_large:
                    # The oldest segment moves first. While it is pinned or replaced, no segment of the topic moves.
                    key = (topic.id, hot[0].first_seq)
                    if self._engine.pins.holds(*key) or key in self._checkpointer.busy_segments:
                        break
                    return topic, hot[0]
        return None

    def _move(self, topic: Topic, state: SegmentState) -> None:
        engine = self._engine
        cold = engine.cold
        assert cold is not None
        fs, root = engine.directory.fs, engine.directory.root
        self._busy = True
        self._checkpointer.busy_segments.add((topic.id, state.first_seq))
        self._background.run(
            lambda: copy_to_cold(fs, root, cold, topic.id, state), lambda result: self._copied(topic, state, result)
        )

    def _copied(self, topic: Topic, state: SegmentState, result: object) -> None:
        self._busy = False
        self._checkpointer.busy_segments.discard((topic.id, state.first_seq))
        if isinstance(result, BaseException):
            logger.warning("segment %d of %s stays in the hot tier: %s", state.first_seq, topic.name, result)
            self._failed()
            return
        if not self._engine.core.is_current(topic) or not topic.live.segments.holds(state):
            self._discard(topic, state)
            return
        topic.live.segments.exchange(state, msgspec.structs.replace(state, tier="cold"))
        topic.checkpoint.mark_changed()
        self._checkpointer.segment_moved(topic.id, state)
        self.moved_total += 1

    def _failed(self) -> None:
        self.failed_total += 1
        self._retry_at_ms = self._engine.clock.monotonic_ms() + RETRY_MS

    def _discard(self, topic: Topic, state: SegmentState) -> None:
        """All records of the segment died while it was copied: the cold copy is removed."""
        cold = self._engine.cold
        assert cold is not None
        self._background.run(lambda: remove_cold_copy(cold, topic.id, state.first_seq), _log_failure)

    def close(self) -> None:
        """Does not wait for the tier: the next process copies the segment again."""
        if self._busy or self._checkpointer.is_upkeep_running:
            self._background.abandon()
        else:
            self._background.close()


def _log_failure(result: object) -> None:
    if isinstance(result, BaseException):
        logger.warning("the cold copy of a segment without live records was not removed: %s", result)
