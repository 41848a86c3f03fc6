"""Work on the cold tier that follows a checkpoint: delete bytes are set in cold segments, and files are removed.

It runs on the thread that also copies segments to the tier, never on the thread of the checkpoints: a tier that hangs
delays no checkpoint. Deletes that the tier does not take now stay pending, and every snapshot lists them. What fails is
tried again after the next checkpoint. Owner only, except the work handed to the background.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from topics.engine.checkpointing.old_files import OldFiles
from topics.engine.engine import Engine
from topics.engine.topic import slot_bits
from topics.engine.topic.topic import Topic
from topics.formats.snapshot import SegmentState
from topics.storage.background import Background
from topics.storage.segments.relocation import flag_deleted_cold, flag_hot_copy
from topics.storage.tiers.cached_store import CachedStore

logger = logging.getLogger(__name__)


class ColdUpkeep:
    def __init__(self, engine: Engine, background: Background, old_files: OldFiles) -> None:
        self._engine = engine
        self._background = background
        self._old_files = old_files
        # Steps that are left of the present round. Each one hands one piece of work to the background.
        self._steps: deque[Callable[[CachedStore], None]] = deque()
        self._is_running = False

    @property
    def is_running(self) -> bool:
        return self._is_running

    def start(self) -> None:
        """A checkpoint has ended."""
        if self._is_running:
            return
        for topic in self._engine.topics.values():
            segments = topic.live.segments
            for state in segments.segments:
                if state.tier == "cold" and segments.has_pending(state):
                    self._steps.append(partial(self._flag, topic, state))
        self.remove_files()

    def remove_files(self) -> None:
        """There are files to remove: at once, or at the end of the round that is under way."""
        self._steps.append(self._remove_files)
        if not self._is_running:
            self._is_running = True
            self._next()

    def _next(self) -> None:
        cold = self._engine.cold
        if not self._steps or cold is None or not self._engine.core.is_cold_claimed or self._engine.is_closed:
            self._steps.clear()
            self._is_running = False
            return
        self._steps.popleft()(cold)

    def _flag(self, topic: Topic, state: SegmentState, cold: CachedStore) -> None:
        segments = topic.live.segments
        bits = segments.pending_bits(state)
        if not any(bits) or not self._engine.core.is_current(topic) or not segments.holds(state):
            self._next()
            return
        fs, root = self._engine.directory.fs, self._engine.directory.root

        def work() -> None:
            seqs = [state.first_seq + place for place in slot_bits.places(bits)]
            # A start uses the hot copy as long as there is one.
            flag_hot_copy(fs, root, topic.id, state, seqs)
            flag_deleted_cold(cold, topic.id, state, seqs)

        self._background.run(work, partial(self._flagged, topic, state, bits))

    def _flagged(self, topic: Topic, state: SegmentState, bits: bytes, result: object) -> None:
        if isinstance(result, BaseException):
            logger.warning("delete bytes of %s stay pending: %s", topic.name, result)
            # The tier does not answer: the rest waits, too.
            self._steps.clear()
        elif self._engine.core.is_current(topic) and topic.live.segments.holds(state):
            topic.live.segments.clear_pending(state.first_seq, bits)
            topic.checkpoint.mark_changed()
        self._next()

    def _remove_files(self, cold: CachedStore) -> None:
        removal = self._old_files.begin_cold_removal(self._engine, cold)
        if removal is None:
            self._next()
            return

        def removed(result: object) -> None:
            self._old_files.end_cold_removal(removal, result)
            self._next()

        self._background.run(removal.run, removed)
