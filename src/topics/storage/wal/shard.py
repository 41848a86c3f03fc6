"""One WAL shard: preallocated files, group commit, rotation.

Owner only: every method here runs on the owner of the state. Work that blocks (sync, rotation) runs on the shard's
background, one piece at a time, and the owner gets its result as a call.

Rules of this file:

1. A group is everything that is queued when `flush` runs. It is one write. Entries that need no sync are done when the
   write returns. The other entries are done when a sync returns that was *called* after the write.
2. A sync covers the writes that returned before it was called. Their position is noted before the call.
3. A new file takes its first frame only after the old file is synced, the name of the new file is durable, and CURRENT
   names it. The file is made ahead of time under a temporary name, because its name is its first frame number.
4. A failed write or sync is final: the shard fails every waiting entry and takes no more writes. No room is not a
   failure
   of the disk: the group is refused, its bytes are cut back durably, and the next group may try.
5. The first group after each sync begins with a sync mark, so that a start can tell a torn tail from
   damage. If no group follows for a second the mark is written alone, by the next tick.
6. A long write goes over several groups. Until its last part is queued, other frames of its topic wait: for a reader,
   the first of them would end the long write.

A crash between the write and the sync of a group may leave any part of it on disk. That is why frames
carry "first" and "more" flags: a start drops a write whose last frame is missing.
"""

import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter, perf_counter_ns
from typing import Final

from topics.clock import Clock
from topics.errors import Overloaded, StartRefused, StorageFull, TopicsError, WalFailed
from topics.formats import wal_frame
from topics.formats.snapshot import WalPosition
from topics.limits import BACKGROUND_SYNC_MS, KIB, SYNC_MARK_DELAY_MS, WAL_FILE_BYTES, WAL_QUEUE_SUBMISSIONS_MAX
from topics.storage import layout
from topics.storage.background import Background
from topics.storage.fs import NO_SPACE, File, Fs, write_all, write_atomic
from topics.storage.wal.missing_files import read_current
from topics.storage.wal.settling import cut_log
from topics.storage.wal.stats import WalStats

logger = logging.getLogger(__name__)

Done = Callable[[TopicsError | None], None]

ZERO_AHEAD_BYTES: Final = 256 * KIB
_ZEROS: Final = bytes(4 * ZERO_AHEAD_BYTES)
_NEXT_FILE: Final = "wal-next" + layout.TEMPORARY

# The first file of a shard has room for this much. When half of it is used, the room grows by the factor, until it is
# that of a whole file. So a small log takes little of the disk. Later files have all their room from the start.
FIRST_ROOM_BYTES: Final = 32 * KIB
ROOM_FACTOR: Final = 4


class _Entry:
    """One submission: in the file as a whole, or not at all."""

    __slots__ = ("admitted", "buffer", "done", "durable", "end_frame", "frame_count", "write_ms", "written_at")

    def __init__(self, buffer: bytes, frame_count: int, admitted: int, done: Done, *, durable: bool) -> None:
        self.admitted = admitted
        self.buffer = buffer
        self.frame_count = frame_count
        self.durable = durable
        self.done = done
        # Number of its last frame, known once it is written.
        self.end_frame = 0
        # Set for entries that wait for a sync: how long the write of their group took, and when it returned.
        self.write_ms = 0.0
        self.written_at = 0.0


class _SyncFailed(Exception):
    """The sync that ends a file failed."""


class _TakeBackFailed(Exception):
    """A file that a failed rotation made cannot be removed."""


class WalShard:
    """See the rules of the module. Recovery makes it: at the end of the frames, or in a new directory."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        index: int,
        background: Background,
        clock: Clock,
        file: File,
        position: WalPosition,
        *,
        file_bytes: int = WAL_FILE_BYTES,
        complete_cut: Callable[[], WalPosition] | None = None,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.index = index
        self.stats = WalStats()
        # Valid while `done` of an entry runs: how long its write took, and how long it then waited for the sync (0.0
        # if it needed no sync).
        self.write_ms = 0.0
        self.sync_ms = 0.0
        self._background = background
        self._clock = clock
        self._file = file
        self._file_bytes = file_bytes
        # The file is full at this size. Up to `_room_bytes` room on the disk is reserved.
        self._capacity = max(file.size(), file_bytes)
        self._room_bytes = file.size()
        # More room is reserved when the frames reach this offset.
        self._grow_offset = self._room_bytes // 2
        self._growing = False
        self._file_frame = position.file_frame
        self._offset = position.offset
        self._next_frame = position.frame
        # Up to here the file holds blocks that were written before.
        self._zeroed_offset = position.offset
        # Everything a shard starts with was synced by recovery.
        self._synced_frame = position.frame - 1
        self._synced_offset = position.offset
        self._queue: list[_Entry] = []
        # Topic id -> entries that wait for the end of its long write.
        self._behind_long: dict[int, list[_Entry]] = {}
        # Writes admitted and not yet committed: a disk that hangs in a sync fills the queue too.
        self.queue_depth = 0
        self._queue_max = WAL_QUEUE_SUBMISSIONS_MAX
        self._held_back_by: TopicsError | None = None
        self._waiting: deque[_Entry] = deque()
        # Readers that want only synced records: (frame that must be synced, callback), in order.
        self._on_synced: deque[tuple[int, Callable[[], None]]] = deque()
        self._syncing = False
        # Whether the next sync waits for the groups of writers that were just answered, how many they are, and how many
        # writes had come when it was last looked at.
        self._sync_is_deferred = False
        self._writers_expected = 0
        self._writes_seen = 0
        self._rotating = False
        self._held = False
        self._on_quiet: Callable[[], None] | None = None
        self._failed: WalFailed | None = None
        self._mark_due = True
        # A mark written alone that no sync has covered. A position after it must not be noted before a sync covers it.
        self._mark_unsynced = False
        self._synced_at_ms = clock.monotonic_ms()
        self._sync_began_ms = 0
        self._unsynced_since_ms: int | None = None
        # Called when there are bytes to sync, and there were none before: `tick` must be called soon.
        self.on_unsynced: Callable[[], None] = _nothing
        self._next_file: File | None = None
        self._preparing = False
        self._rotation_bytes = file_bytes
        # Cuts a torn tail that could not be kept aside because there was no room, and returns where the log then ends.
        # No write is made before that.
        self._complete_cut = complete_cut

    # State.

    @property
    def position(self) -> WalPosition:
        return WalPosition(self._next_frame, self._file_frame, self._offset)

    @property
    def failed(self) -> WalFailed | None:
        return self._failed

    @property
    def unsynced_bytes(self) -> int:
        return self._offset - self._synced_offset

    @property
    def is_synced(self) -> bool:
        """Whether everything that is written is also synced."""
        return self._synced_frame >= self._next_frame - 1

    @property
    def unsynced_ms(self) -> int:
        """Age of the oldest unsynced byte, which a power loss would take."""
        if self._unsynced_since_ms is None:
            return 0
        return self._clock.monotonic_ms() - self._unsynced_since_ms

    # Writing.

    def admit(self) -> None:
        """Takes a place in the queue for one write that will be submitted before the turn ends."""
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        depth = self.queue_depth + 1
        if depth > self._queue_max:
            self.stats.submit_full += 1
            if self._held_back_by is not None:
                raise self._held_back_by.with_traceback(None)
            raise Overloaded(f"the commit queue of WAL shard {self.index} is full; try again")
        self.queue_depth = depth

    def throttle(self, refusal: TopicsError | None) -> None:
        """Answers every write with the refusal, until it is called with None. Used while checkpoints are too slow."""
        self._held_back_by = refusal
        self._queue_max = 0 if refusal is not None else WAL_QUEUE_SUBMISSIONS_MAX

    def dismiss(self, count: int) -> None:
        """Gives back places of writes that will not be submitted."""
        self.queue_depth -= count

    def submit(self, buffer: bytes, frame_count: int, *, durable: bool, done: Done, admitted: int = 0) -> None:
        """Queues frames. `done` is called once: with None when they are committed, else with the error.

        `admitted` says for how many writes places were taken before. Raises when nothing was queued: the
        shard has failed, or its queue is full.
        """
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        if admitted == 0:
            self.admit()
            admitted = 1
        entry = _Entry(buffer, frame_count, admitted, done, durable=durable)
        if self._behind_long:
            waiting = self._behind_long.get(wal_frame.topic_of(buffer))
            if waiting is not None:
                waiting.append(entry)
                return
        self._queue.append(entry)

    def submit_aside(self, buffer: bytes, *, done: Done) -> None:
        """Queues one frame that admitted writes wait for. It is synced, and a full queue does not refuse it."""
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        entry = _Entry(buffer, 1, 0, done, durable=True)
        behind = self._behind_long.get(wal_frame.topic_of(buffer))
        (self._queue if behind is None else behind).append(entry)

    def begin_long(self, topic_id: int) -> None:
        """Takes a place in the queue for a write that comes in parts. If this raises, nothing has begun."""
        assert topic_id not in self._behind_long
        self.admit()
        self._behind_long[topic_id] = []

    def submit_part(self, buffer: bytes, frame_count: int, *, durable: bool, done: Done) -> None:
        """The next frames of a long write. A long write that has begun is refused neither by a full queue nor by
        `throttle`."""
        assert wal_frame.topic_of(buffer) in self._behind_long
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        self._queue.append(_Entry(buffer, frame_count, 0, done, durable=durable))

    def end_long(self, topic_id: int) -> None:
        """The last part of the long write is queued, or no part follows. In the second case readers drop the write."""
        self._queue += self._behind_long.pop(topic_id)
        self.queue_depth -= 1

    def flush(self) -> None:
        """Writes all queued entries as one group. Called once per turn of the owner."""
        if not self._queue or self._rotating or self._held or self._failed is not None:
            return
        if self._complete_cut is not None and not self._finish_cut():
            return
        queue = self._queue
        buffers = [entry.buffer for entry in queue]
        if self._mark_due:
            buffers.insert(0, wal_frame.encode_sync_mark(self._synced_frame, self._clock.now_ms()))
        group = b"".join(buffers) if len(buffers) > 1 else buffers[0]
        if self._offset + len(group) > self._capacity:
            self._rotate(len(group))
            return
        self._queue = []
        if self._offset + len(group) > self._zeroed_offset:
            self._zero_ahead(len(group))
        began_at = perf_counter()
        try:
            write_all(self._file, group, self._offset)
        except OSError as error:
            self._write_failed(queue, error)
            return
        self._written(queue, len(group), began_at, marked=len(buffers) > len(queue))

    def _zero_ahead(self, size: int) -> None:
        """Writes zeros where the next groups will go.

        A sync of blocks that were written before moves data only. The first write to a preallocated block makes the
        file system log a change of its metadata, too. Measured: 120 µs against 200 µs per sync.
        """
        start = max(self._offset, self._zeroed_offset)
        end = max(min(self._offset + size + ZERO_AHEAD_BYTES, self._room_bytes), self._offset + size)
        try:
            self._file.pwrite(_ZEROS[: end - start], start)
        except OSError as error:
            # The write of the group reports what is wrong.
            logger.debug("WAL shard %d: cannot zero ahead: %s", self.index, error)
        self._zeroed_offset = end

    def _written(self, queue: list[_Entry], size: int, began_at: float, *, marked: bool) -> None:
        written_at = perf_counter()
        write_ms = (written_at - began_at) * 1000
        frame = self._next_frame - 1
        if marked:
            self._mark_due = False
            frame += 1
        waits = False
        stats = self.stats
        if self.queue_depth > stats.queue_depth_peak:
            stats.queue_depth_peak = self.queue_depth
        for entry in queue:
            frame += entry.frame_count
            entry.end_frame = frame
            if entry.durable:
                waits = True
            else:
                self.queue_depth -= entry.admitted
        stats.frames += frame + 1 - self._next_frame
        stats.batches += 1
        stats.bytes_written += size
        self._offset += size
        self._next_frame = frame + 1
        if self._unsynced_since_ms is None:
            self._unsynced_since_ms = self._clock.monotonic_ms()
            self.on_unsynced()
        if self._offset > self._grow_offset:
            self._make_room()
        self.write_ms, self.sync_ms = write_ms, 0.0
        if not waits:
            for entry in queue:
                entry.done(None)
            return
        for entry in queue:
            if entry.durable:
                entry.write_ms, entry.written_at = write_ms, written_at
                self._waiting.append(entry)
            else:
                entry.done(None)
        if not self._sync_is_deferred or self.queue_depth >= self._writers_expected:
            self._sync()

    def _write_failed(self, queue: list[_Entry], error: OSError) -> None:
        """The group was not written. Its bytes are cut, so that no later start reads them after the next group."""
        queue += self._queue
        self._queue = []
        try:
            cut_log(self._file, self._offset)
            self._file.fsync()
            self._zeroed_offset = self._offset
            if error.errno in NO_SPACE:
                self._try_preallocate()
        except OSError as cut_error:
            logger.error("WAL shard %d: cannot cut back a failed write: %s", self.index, cut_error)
            self._fail("write", error, queue)
            return
        if error.errno in NO_SPACE:
            self._refuse(queue)
        else:
            self._fail("write", error, queue)

    def _try_preallocate(self) -> None:
        try:
            self._file.preallocate(self._room_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _refuse(self, queue: list[_Entry]) -> None:
        refusal = StorageFull()
        for entry in queue:
            self.queue_depth -= entry.admitted
            entry.done(refusal)

    def _fail(self, what: str, error: BaseException, queue: list[_Entry]) -> None:
        """Turns the shard read-only. Every unanswered entry gets the failure."""
        logger.error("WAL shard %d: %s failed (%s); read-only until a restart", self.index, what, error)
        self._failed = failure = WalFailed(self.index, what)
        entries = [*self._waiting, *queue, *self._queue]
        for behind in self._behind_long.values():
            entries += behind
            behind.clear()
        self._waiting.clear()
        self._queue = []
        self.queue_depth -= sum(entry.admitted for entry in entries)
        for entry in entries:
            entry.done(failure)
        self._maybe_quiet()

    def _finish_cut(self) -> bool:
        assert self._complete_cut is not None
        try:
            position = self._complete_cut()
        except (OSError, StartRefused) as error:
            queue, self._queue = self._queue, []
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                self._refuse(queue)
            else:
                self._fail("repair of the torn tail", error, queue)
            return False
        self._complete_cut = None
        self._next_frame, self._offset = position.frame, position.offset
        self._synced_frame, self._synced_offset = position.frame - 1, position.offset
        return True

    # Syncing.

    def sync(self) -> None:
        """Starts a sync, unless everything written is synced or a sync already runs."""
        if self._failed is None and self._synced_frame < self._next_frame - 1:
            self._sync()

    def when_synced(self, done: Callable[[], None]) -> None:
        """Starts a sync if needed, and calls `done` once everything written until now is synced. Never calls it if
        the sync fails."""
        self._on_synced.append((self._next_frame - 1, done))
        self.sync()

    def _sync(self) -> None:
        if self._syncing or self._rotating:
            return
        self._syncing = True
        self._sync_is_deferred = False
        frame, offset = self._next_frame - 1, self._offset
        self._sync_began_ms = self._clock.monotonic_ms()
        started_ns = perf_counter_ns()
        self._background.run(self._file.fdatasync, lambda result: self._synced(frame, offset, started_ns, result))

    def _synced(self, frame: int, offset: int, started_ns: int, result: object) -> None:
        self._syncing = False
        if self._failed is not None:
            self._maybe_quiet()
            return
        if isinstance(result, BaseException):
            # Never tried again: the kernel may have dropped the pages, and the next sync would succeed without them.
            self._fail("sync", result, [])
            return
        self.stats.note_fsync((perf_counter_ns() - started_ns) // 1000)
        depth = self.queue_depth
        self._note_synced(frame, offset)
        if self._on_quiet is not None:
            self._maybe_quiet()
            return
        # Writers that were just answered write again at once. The next sync starts after their groups, so that all
        # writers share each sync instead of two halves in turn (16 writers over HTTP: 12 K to 18 K writes a second).
        # It waits no longer than until as many have come, and a lone writer waits for no other.
        self._writers_expected = depth
        if depth > 1 or self._waiting:
            self._sync_is_deferred = True
            self._writes_seen = self.queue_depth
            self._background.defer(self._sync_waiting)

    def _sync_waiting(self) -> None:
        if not self._sync_is_deferred:
            return
        if self._writes_seen < self.queue_depth < self._writers_expected and not self._syncing:
            # They are still coming.
            self._writes_seen = self.queue_depth
            self._background.defer(self._sync_waiting)
            return
        self._sync_is_deferred = False
        if self._waiting and self._failed is None:
            self._sync()

    def _note_synced(self, frame: int, offset: int) -> None:
        if frame > self._synced_frame:
            self._mark_due = True
        self._synced_frame = frame
        self._synced_offset = offset
        self._mark_unsynced = False
        self._synced_at_ms = self._clock.monotonic_ms()
        # Writes that the sync does not cover came after its call, perhaps right after it.
        self._unsynced_since_ms = self._sync_began_ms if frame < self._next_frame - 1 else None
        waiting = self._waiting
        ready: list[_Entry] = []
        while waiting and waiting[0].end_frame <= frame:
            entry = waiting.popleft()
            self.queue_depth -= entry.admitted
            ready.append(entry)
        if ready:
            now = perf_counter()
            for entry in ready:
                self.write_ms, self.sync_ms = entry.write_ms, (now - entry.written_at) * 1000
                entry.done(None)
        on_synced = self._on_synced
        while on_synced and on_synced[0][0] <= frame:
            on_synced.popleft()[1]()
        if on_synced:
            self._background.defer(self.sync)

    def tick(self) -> bool:
        """Bounds the loss window, and marks the last sync. Returns whether bytes are to be synced: until then it is
        called every `TICK_MS`."""
        if self._failed is not None:
            return False
        if self._rotating or self._syncing:
            return True
        now_ms = self._clock.monotonic_ms()
        since_ms = self._unsynced_since_ms
        if since_ms is not None and now_ms - since_ms >= BACKGROUND_SYNC_MS:
            self._sync()
        elif (
            self._mark_due
            and since_ms is None
            and not self._queue
            and not self._held
            and self._complete_cut is None
            and now_ms - self._synced_at_ms >= SYNC_MARK_DELAY_MS
            and self._synced_frame > 0
        ):
            self._write_mark()
        return self._unsynced_since_ms is not None

    def _write_mark(self) -> None:
        """Writes the mark without a group. It needs no sync: if it is lost, a later start only takes more for a torn
        tail."""
        mark = wal_frame.encode_sync_mark(self._synced_frame, self._clock.now_ms())
        if self._offset + len(mark) > self._capacity:
            return
        try:
            write_all(self._file, mark, self._offset)
        except OSError as error:
            self._write_failed([], error)
            return
        self._mark_due = False
        self.stats.frames += 1
        self._offset += len(mark)
        self._next_frame += 1
        self._synced_frame += 1
        self._synced_offset = self._offset
        self._mark_unsynced = True

    # Room ahead.

    def _make_room(self) -> None:
        """Half of the room is used: reserves more of it, or makes the next file."""
        if self._room_bytes < self._capacity:
            if not self._growing:
                self._growing = True
                file = self._file
                used_bytes = max(self._offset, self._room_bytes)
                size = min(max(used_bytes * ROOM_FACTOR, FIRST_ROOM_BYTES), self._capacity)
                self._background.run(lambda: file.preallocate(size), lambda result: self._grown(size, result))
        elif self._next_file is None and not self._preparing:
            self._prepare_next()

    def _grown(self, size: int, result: object) -> None:
        self._growing = False
        if isinstance(result, BaseException):
            # Writes that still find room are not concerned. The group that finds none reports it.
            logger.debug("WAL shard %d: cannot reserve room: %s", self.index, result)
            self._grow_offset = max(2 * self._offset, FIRST_ROOM_BYTES)
        else:
            self._use_room(size)

    def _use_room(self, size: int) -> None:
        self._room_bytes = size
        self._grow_offset = size // 2

    # Rotation.

    def _prepare_next(self) -> None:
        self._preparing = True
        self._background.run(lambda: self._make_file(self._file_bytes), self._prepared)

    def _make_file(self, size: int) -> File:
        path = f"{self.directory}/{_NEXT_FILE}"
        if self.fs.exists(path):
            self.fs.unlink(path)
        file = self.fs.open(path, "create")
        try:
            file.preallocate(size)
            file.fsync()
        except OSError:
            file.close()
            self.fs.unlink(path)
            raise
        return file

    def _prepared(self, result: File | BaseException) -> None:
        self._preparing = False
        if isinstance(result, BaseException):
            # The file is not needed yet. The rotation tries again, and reports the error then.
            logger.warning("WAL shard %d: cannot prepare the next file: %s", self.index, result)
        else:
            self._next_file = result
        if self._rotating:
            self._start_rotation()

    def _rotate(self, needed: int) -> None:
        """Moves to a new file with room for at least `needed` bytes, then flushes."""
        self._rotating = True
        self._rotation_bytes = max(needed, self._file_bytes)
        if not self._preparing:
            self._start_rotation()

    def _start_rotation(self) -> None:
        old, prepared, size = self._file, self._next_file, self._rotation_bytes
        self._next_file = None
        frame = self._next_frame

        def work() -> File:
            try:
                old.fdatasync()
            except OSError as error:
                # Also for "no space": the bytes that found no space were already written, and perhaps answered.
                raise _SyncFailed from error
            file = prepared
            if file is not None and file.size() < size:
                file.close()
                file = None
            if file is None:
                file = self._make_file(size)
            name = layout.wal_name(frame)
            try:
                self.fs.rename(f"{self.directory}/{_NEXT_FILE}", f"{self.directory}/{name}")
                self.fs.sync_dir(self.directory)
                write_atomic(self.fs, f"{self.directory}/{layout.CURRENT}", name.encode())
            except OSError:
                file.close()
                self._take_back(name)
                raise
            return file

        self._background.run(work, self._rotated)

    def _take_back(self, name: str) -> None:
        """Removes a new file that is not used: the old file may go on and take the frame number that the new file is
        named by."""
        path = f"{self.directory}/{name}"
        try:
            if self.fs.exists(path):
                if read_current(self.fs, self.directory) == name:
                    # A start is refused if CURRENT names a file that is missing.
                    old = layout.wal_name(self._file_frame)
                    write_atomic(self.fs, f"{self.directory}/{layout.CURRENT}", old.encode())
                # The directory is synced before a log file is unlinked.
                self.fs.sync_dir(self.directory)
                self.fs.unlink(path)
                self.fs.sync_dir(self.directory)
        except OSError as error:
            raise _TakeBackFailed from error

    def _rotated(self, result: File | BaseException) -> None:
        self._rotating = False
        if self._failed is not None:
            self._maybe_quiet()
            return
        if isinstance(result, OSError) and result.errno in NO_SPACE:
            self._rotation_refused()
            return
        if isinstance(result, BaseException):
            self._fail("rotation", result, [])
            return
        self._file.close()
        self.stats.rotations += 1
        self._file = result
        self._capacity = result.size()
        self._use_room(self._capacity)
        self._file_frame = self._next_frame
        self._offset = self._zeroed_offset = 0
        self._note_synced(self._next_frame - 1, 0)
        if self._held:
            self._maybe_quiet()
        else:
            self.flush()

    def _rotation_refused(self) -> None:
        """The old file goes on: it was synced before the new file was made."""
        queue, self._queue = self._queue, []
        self._refuse(queue)
        if self._waiting:
            self._sync()
        else:
            self._maybe_quiet()

    # Holding still for a checkpoint.

    def hold(self, quiet: Callable[[], None]) -> None:
        """Writes nothing until `release`. Calls `quiet` when everything written is synced."""
        assert not self._held
        self._held = True
        self._on_quiet = quiet
        self._maybe_quiet()

    def _maybe_quiet(self) -> None:
        quiet = self._on_quiet
        if quiet is None or self._syncing or self._rotating:
            return
        if self._failed is None and (self._mark_unsynced or self._synced_frame < self._next_frame - 1):
            self._sync()
            return
        self._on_quiet = None
        quiet()

    def release(self) -> None:
        self._held = False
        self.flush()

    def use_background(self, background: Background) -> None:
        """Replaces the background while nothing runs. Recovery runs on the caller; the engine may use a thread
        later."""
        assert not self._syncing
        assert not self._rotating
        self._background.close()
        self._background = background

    def close(self) -> None:
        """Call it after everything is flushed and synced."""
        self._background.close()
        if self._next_file is not None:
            self._next_file.close()
        self._file.close()


def _nothing() -> None:
    pass


def create_shard_files(fs: Fs, directory: str, first_frame: int, file_bytes: int) -> File:
    """The first file of a shard: durable, and named by CURRENT."""
    fs.makedirs(directory)
    name = layout.wal_name(first_frame)
    temporary = f"{directory}/{_NEXT_FILE}"
    if fs.exists(temporary):
        fs.unlink(temporary)
    file = fs.open(temporary, "create")
    file.preallocate(min(FIRST_ROOM_BYTES, file_bytes // ROOM_FACTOR))
    file.fsync()
    fs.rename(temporary, f"{directory}/{name}")
    fs.sync_dir(directory)
    write_atomic(fs, f"{directory}/{layout.CURRENT}", name.encode())
    return file
