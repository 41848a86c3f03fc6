"""Polls of one partition: from segments on disk and from the journal, over as many segments as it takes."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topics.formats.message import HEADER_BYTES, Positions
from topics.formats.message_cipher import Cipher
from topics.formats.stream_layout import BodyOrder
from topics.limits import KIB, MIB
from topics.streams.partitions.contents import JournalSlice, Moment, PartitionContents, cannot_read
from topics.streams.partitions.journal import Window
from topics.streams.partitions.memory_pool import MemoryPool
from topics.streams.partitions.message_view import MessageChunk, PolledMessages
from topics.streams.partitions.must_wait import MustWait
from topics.streams.partitions.outgoing import to_wire, verify
from topics.streams.partitions.segment import SegmentSlice

# Neighbouring batches of the journal that are smaller than this become one chunk of a poll: a copy is cheaper than a
# chunk.
JOINED_BATCH_BYTES_MAX: Final = 64 * KIB

# A poll that must not wait reads at most this many bytes: a copy and the checksums of a MiB take 0.2 ms.
NOWAIT_BYTES_MAX: Final = MIB + 256 * KIB

# The length of an answer is a u32. One KiB of it is for the bytes around the messages.
ANSWER_BYTES_MAX: Final = 2**32 - 1 - KIB

# The size of a compressed message is known only after it is expanded. So the first message is read alone, and each
# later step reads this many times more messages.
COMPRESSED_COUNT_GROWTH: Final = 4


class PartitionReader:
    """Thread-safe. Any number of polls run at once, and none of them waits for a write or a sync."""

    def __init__(
        self,
        contents: PartitionContents,
        *,
        partition_id: int,
        order: BodyOrder,
        cipher: Cipher | None,
        pool: MemoryPool,
        max_poll_bytes: int,
    ) -> None:
        self._contents = contents
        self._partition_id = partition_id
        self._order = order
        self._cipher = cipher
        self._pool = pool
        self._bytes_max = min(max_poll_bytes, ANSWER_BYTES_MAX)

    def poll_offset(self, offset: int, count: int, bytes_max: int | None = None) -> PolledMessages:
        """Messages from an offset on. An offset below the oldest message begins at the oldest message.

        Without `bytes_max` the limit of the settings counts. One message is always returned, if there is one.
        """
        return self._collect(self._contents.now(), offset, count, bytes_max)

    def poll_offset_nowait(self, offset: int, count: int) -> PolledMessages:
        """The same for messages that are in memory: in the journal, or in parts of files that the system has cached.
        Raises `MustWait` if they are not, or if they have to be decrypted or expanded."""
        if self._cipher is not None:
            raise MustWait
        return self._collect(self._contents.now(may_wait=False), offset, count, None, may_wait=False)

    def poll_first(self, count: int, bytes_max: int | None = None) -> PolledMessages:
        return self._collect(self._contents.now(), 0, count, bytes_max)

    def poll_last(self, count: int, bytes_max: int | None = None) -> PolledMessages:
        moment = self._contents.now()
        return self._collect(moment, moment.end_offset - min(count, moment.end_offset), count, bytes_max)

    def poll_timestamp(self, timestamp: int, count: int, bytes_max: int | None = None) -> PolledMessages:
        """Messages from the first one on that is not older than the time, in microseconds."""
        moment = self._contents.now()
        offset = self._offset_at(timestamp) if count > 0 else None
        return self._collect(moment, moment.end_offset if offset is None else offset, count, bytes_max)

    def _offset_at(self, timestamp: int) -> int | None:
        found = self._contents.find_timestamp(timestamp)
        if not isinstance(found, SegmentSlice):
            return found
        try:
            return found.offset_at(timestamp)
        except OSError as error:
            raise cannot_read(error) from error
        finally:
            found.close()

    def _collect(
        self, moment: Moment, offset: int, count: int, bytes_max: int | None, *, may_wait: bool = True
    ) -> PolledMessages:
        """Up to `count` messages from the offset on."""
        chunks: list[MessageChunk] = []
        taken = 0
        size = 0
        bytes_left = self._bytes_max if bytes_max is None else min(bytes_max, self._bytes_max)
        compressed_count = 1
        while taken < count and offset < moment.end_offset and (bytes_left > 0 or not taken):
            found = self._contents.find_messages(moment, offset, count - taken, compressed_count, may_wait=may_wait)
            if found is None:
                break
            compressed_count *= COMPRESSED_COUNT_GROWTH
            nowait_bytes = None if may_wait else NOWAIT_BYTES_MAX - size
            chunk = self._read(found, bytes_left, nowait_bytes, at_least_one=not taken)
            chunk_count = len(chunk)
            if not chunk_count:
                break
            chunks.append(chunk)
            taken += chunk_count
            size += len(chunk.buffer)
            bytes_left -= len(chunk.buffer)
            offset = found.first_offset + chunk_count
        return PolledMessages(self._partition_id, moment.current_offset, taken, chunks)

    def _read(
        self, found: SegmentSlice | JournalSlice, bytes_max: int, nowait_bytes: int | None, *, at_least_one: bool
    ) -> MessageChunk:
        """With `nowait_bytes` it raises `MustWait` instead of reading more bytes, or bytes that are not in memory."""
        if isinstance(found, SegmentSlice):
            try:
                chunk = self._read_segment(found, bytes_max, nowait_bytes, at_least_one=at_least_one)
            except OSError as error:
                raise cannot_read(error) from error
            finally:
                found.close()
        else:
            if nowait_bytes is not None and sum(window.batch.size_bytes for window in found.windows) > nowait_bytes:
                raise MustWait
            chunk = self._read_journal(found, bytes_max)
        return _fitting(chunk, bytes_max, at_least_one=at_least_one)

    def _read_segment(
        self, found: SegmentSlice, bytes_max: int, nowait_bytes: int | None, *, at_least_one: bool
    ) -> MessageChunk:
        may_wait = nowait_bytes is None
        if nowait_bytes is not None and found.count * HEADER_BYTES > nowait_bytes:
            # Too many, whatever their sizes are.
            raise MustWait
        starts, ends = found.spans(bytes_max, at_least_one=at_least_one, may_wait=may_wait)
        if not len(starts):
            return MessageChunk(memoryview(b""), starts, ends)
        position = int(starts[0])
        if position:
            starts, ends = starts - position, ends - position
        size = int(ends[-1])
        if nowait_bytes is not None and size > nowait_bytes:
            raise MustWait
        # The views in the chunk keep the buffer out of the pool for as long as they live.
        with self._pool.acquire(size) as buffer:
            found.read_into(buffer.view, position, may_wait=may_wait)
            return to_wire(
                buffer.view,
                starts,
                ends,
                order=self._order,
                codec=found.codec,
                cipher=self._cipher,
                has_user_headers=verify(buffer.view, starts, ends, found.first_offset),
            )

    def _read_journal(self, found: JournalSlice, bytes_max: int) -> MessageChunk:
        """The first window and the windows after it as long as their batches are small."""
        windows = found.windows
        run = 0
        size = 0
        while run < len(windows) and size < bytes_max and windows[run].batch.size_bytes < JOINED_BATCH_BYTES_MAX:
            size += windows[run].batch.size_bytes
            run += 1
        if run < 2:
            batch, places = windows[0].batch, windows[0].places
            buffer, starts, ends = batch.buffer, batch.starts[places], batch.ends[places]
        else:
            buffer, starts, ends = _join(windows[:run])
        return to_wire(
            buffer,
            starts,
            ends,
            order=self._order,
            codec=found.codec,
            cipher=self._cipher,
            has_user_headers=any(window.batch.has_user_headers for window in windows[: max(run, 1)]),
        )


def _join(windows: Sequence[Window]) -> tuple[memoryview, Positions, Positions]:
    """The messages of the windows back to back, with where each begins and ends."""
    sizes = np.concatenate([(window.batch.ends - window.batch.starts)[window.places] for window in windows])
    ends = np.cumsum(sizes)
    return memoryview(b"".join([window.bytes for window in windows])), ends - sizes, ends


def _fitting(chunk: MessageChunk, bytes_max: int, *, at_least_one: bool) -> MessageChunk:
    """The first messages of a chunk, as many as fit into `bytes_max`."""
    if len(chunk.buffer) <= bytes_max:
        return chunk
    count = max(int(np.searchsorted(chunk.ends, bytes_max, side="right")), 1 if at_least_one else 0)
    end = int(chunk.ends[count - 1]) if count else 0
    return MessageChunk(chunk.buffer[:end], chunk.starts[:count], chunk.ends[:count])
