"""Copies the messages of a stream into a topic of the log, each exactly once.

The copies of one write and the position after them are one write of the log. So a crash takes both or none, and the
next start goes on where the copies end.

Messages are synced before they are copied. A stream may keep messages in memory only: a crash takes them, and their
offsets are given to other messages, which the position would skip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.engine import Engine
from topics.errors import RecordTooLarge, TopicFull
from topics.limits import BATCH_RECORDS_MAX
from topics.server.bridges.copies import Copies, copies_of
from topics.server.bridges.definition import BridgeSpec, StreamPosition, encode
from topics.server.bridges.pump import Pump

if TYPE_CHECKING:
    from topics.streams.running.running_topic import TopicState
    from topics.streams.system import System

POLL_COUNT: Final = 1000


class _Loaded(NamedTuple):
    """Messages of one partition as writes, and how many messages before them are gone."""

    copies: list[Copies]
    lost: int


class FromStream(Pump):
    def __init__(
        self,
        name: str,
        spec: BridgeSpec,
        position: StreamPosition,
        engine: Engine,
        system: System,
        loop: asyncio.AbstractEventLoop,
        files: Executor,
    ) -> None:
        super().__init__(name, spec, engine, loop, files)
        self._position = position
        self._system = system
        # Records of one write. A dest without room for all of them may have room for some.
        self._records_max = BATCH_RECORDS_MAX
        # How often the topic was purged; None until it is looked up.
        self._purges_count: int | None = None
        # The next offset of each partition when the topic was last looked at; None until then. A bridge looks after
        # every message, and before every try.
        self._end_offsets: list[int] | None = None
        # Numbers of the stream and the topic; None until they are looked up.
        self._ids: tuple[int, int] | None = None

    @property
    def lag(self) -> int | None:
        if self._end_offsets is None:
            return None
        pairs = zip(self._end_offsets, self._position.next_offsets, strict=False)
        return sum(max(end - offset, 0) for end, offset in pairs)

    def reads(self, stream_id: int, topic_id: int) -> bool:
        return self._ids in (None, (stream_id, topic_id))

    async def _copy(self) -> bool:
        has_copied = False
        for partition_id in range(await self._in_thread(self._fit_position)):
            loaded = await self._in_thread(partial(self._load, partition_id))
            lost = loaded.lost
            for copies in loaded.copies:
                position = self._position.after(
                    partition_id, copies.next_offset, copied=copies.message_count, lost=lost
                )
                await self._append(copies, position)
                lost = 0
                has_copied = True
                if self._is_stopping:
                    return True
        return has_copied

    async def _settle(self) -> None:
        """Every position is noted with its records."""

    async def _append(self, copies: Copies, position: StreamPosition) -> None:
        append = partial(self._engine.bridges.append, self.name, copies.batch, encode(position))
        try:
            await self._ask(append)
        except (RecordTooLarge, TopicFull):
            self._records_max = max(copies.message_count // 2, 1)
            raise
        self._position = position
        self._records_max = min(self._records_max * 2, BATCH_RECORDS_MAX)
        self.failure_count = 0

    def _fit_position(self) -> int:
        """Any thread. Fits the position to the topic as it is now: it may have more partitions, or be another one with
        the same name. Returns the number of partitions."""
        state = self._system.topic_state(*self.spec.place)
        self._ids = state.info.stream_id, state.info.id
        position = self._position
        count = len(state.partitions)
        was_purged = self._purges_count not in (None, state.purges_count)
        self._purges_count = state.purges_count
        if was_purged or position.created_at != state.info.created_at:
            position = StreamPosition(state.info.created_at, [0] * count, position.copied_total, position.lost_total)
        next_offsets = [
            # After a purge the offsets begin at 0 again. The server may have been killed right after the purge.
            offset if offset <= end else 0
            for offset, end in zip(
                position.next_offsets + [0] * (count - len(position.next_offsets)), _ends(state), strict=False
            )
        ]
        self._position = StreamPosition(position.created_at, next_offsets, position.copied_total, position.lost_total)
        self._end_offsets = list(_ends(state))
        return count

    def _load(self, partition_id: int) -> _Loaded:
        """Any thread."""
        from topics.streams.consumers.polling import Consumer, PollingStrategy

        next_offset = self._position.next_offsets[partition_id]
        polled = self._system.poll(
            *self.spec.place,
            Consumer(),
            PollingStrategy.offset(next_offset),
            POLL_COUNT,
            partition_id=partition_id,
        )
        messages = list(polled)
        lost = 0
        if messages:
            self._system.flush(*self.spec.place, partition_id, fsync=True)
            lost = messages[0].offset - next_offset
        return _Loaded(list(copies_of(messages, partition_id, self.spec, self._records_max)), lost)


def first_position(state: TopicState) -> StreamPosition:
    """A new router copies what comes after its creation."""
    return StreamPosition(state.info.created_at, list(_ends(state)))


def _ends(state: TopicState) -> Iterable[int]:
    """The next offset of each partition."""
    return [partition.current_offset + 1 if partition.has_messages else 0 for partition in state.partitions]
