"""Copies the records of a topic of the log into a stream, each at least once.

Messages that a stream has acknowledged may be in its memory only. So the position is noted after the partitions are
synced: a crash repeats copies, and takes none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.engine import Engine
from topics.engine.topic.fetch import Fetch
from topics.engine.topic.reading import Page
from topics.errors import NotFetched
from topics.server.bridges.copies import ReadRecord, message_of
from topics.server.bridges.definition import BridgeSpec, TopicPosition, encode
from topics.server.bridges.pump import Pump

if TYPE_CHECKING:
    from topics.streams.system import System

PAGE_RECORDS: Final = 1000
# The position is noted after so many records, and whenever all records are copied.
NOTE_RECORDS: Final = 50_000


class _Run(NamedTuple):
    """Records that follow each other and have the same tag, so that one partition gets them in order."""

    tag: str | None
    records: list[ReadRecord]


class ToStream(Pump):
    def __init__(
        self,
        name: str,
        spec: BridgeSpec,
        position: TopicPosition,
        engine: Engine,
        system: System,
        loop: asyncio.AbstractEventLoop,
        files: Executor,
    ) -> None:
        super().__init__(name, spec, engine, loop, files)
        # How far the records are copied, and how far that is noted in the log.
        self._position = self._noted = position
        self._system = system
        # Partitions with copies that may not be synced.
        self._unsynced: set[int] = set()

    @property
    def position(self) -> TopicPosition:
        """How far the records are copied. The log may know an older position."""
        return self._position

    @property
    def lag(self) -> int | None:
        topic = self._engine.topics.get(self.spec.topic_name)
        return None if topic is None else max(topic.head_seq - self._position.seq, 0)

    async def _copy(self) -> bool:
        engine, topic_name = self._engine, self.spec.topic_name
        page = await self._read()
        if page.next_from_seq == self._position.seq:
            engine.wait_append(topic_name, self.wake)
            return False
        records: list[ReadRecord] = [record for record in page.records if self.spec.matches(record.tag)]
        topic = engine.topic(topic_name)
        await self._in_thread(partial(self._send, records, topic.id, topic.epoch))
        tombstone = page.tombstone
        lost = 0 if tombstone is None else tombstone.gap_to - tombstone.gap_from + 1
        self._position = TopicPosition(
            page.next_from_seq, self._position.copied_total + len(records), self._position.lost_total + lost
        )
        self.failure_count = 0
        if self._position.copied_total - self._noted.copied_total >= NOTE_RECORDS:
            await self._settle()
        return True

    async def _read(self) -> Page:
        """The next page. A page that is not in memory is fetched by a thread first."""
        engine, topic_name = self._engine, self.spec.topic_name
        while True:
            from_seq = self._position.seq
            fetch = engine.fetch_needed(topic_name, from_seq, PAGE_RECORDS)
            if fetch is not None and fetch.is_cold:
                await self._fetch_cold(fetch)
            elif fetch is not None:
                await self._in_thread(fetch)
            try:
                return engine.read(topic_name, from_seq, limit=PAGE_RECORDS)
            except NotFetched:
                continue

    async def _fetch_cold(self, fetch: Fetch) -> None:
        fetched: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._engine.run_cold(self.spec.topic_name, fetch, fetched.set_result)
        error = await fetched
        if error is not None:
            raise error

    async def stop(self) -> None:
        await super().stop()
        self._engine.cancel_wait(self.spec.topic_name, self.wake)

    def _send(self, records: list[ReadRecord], topic_id: int, epoch: int) -> None:
        """Any thread."""
        from topics.streams.partitions.batch import encode_send
        from topics.streams.partitions.partitioning import Balanced, MessagesKey

        place, spec = self.spec.place, self.spec
        for run in _runs(records):
            batch = encode_send([message_of(record, spec.source, topic_id, epoch, spec) for record in run.records])
            partitioning = Balanced() if run.tag is None else MessagesKey(run.tag.encode()[:255])
            self._unsynced.add(self._system.send(*place, batch, partitioning).partition_id)

    async def _settle(self) -> None:
        if self._position == self._noted:
            return
        await self._in_thread(self._sync)
        position = self._position
        await self._ask(partial(self._engine.bridges.advance, self.name, encode(position)))
        self._noted = position

    def _sync(self) -> None:
        """Any thread."""
        for partition_id in sorted(self._unsynced):
            self._system.flush(*self.spec.place, partition_id, fsync=True)
            self._unsynced.discard(partition_id)


def _runs(records: Iterable[ReadRecord]) -> Iterator[_Run]:
    for tag, run in groupby(records, key=lambda record: record.tag or None):
        yield _Run(tag, list(run))
