"""The state log of a directory: every change of metadata, in order, appended before the change is answered.

Rules:
1. An entry is on disk completely or not at all: a failed write is cut off, and the log takes further entries.
2. A failed sync stops the log, and so does a failed cut: what the file holds is unknown then. Every later append raises
   until a restart. The refused entry is cut off if that still works. Earlier entries that waited for the sync are
   written once more: the kernel takes them for written and may show them to the next start, although no later sync
   would bring them to the disk.
3. A torn last entry, which a crash leaves, is cut off at the next start, with a warning. Other damage refuses the
   start.
4. An entry that could not be read back is not written: it would refuse every later start.
5. Nothing is compacted: the log keeps every entry for ever.

`open_flavour` makes the empty log of a fresh directory first. Not thread-safe: the caller holds the lock of `Commands`.
"""

import logging
from typing import Protocol

from topics.clock import Clock
from topics.errors import BadFrame, StartRefused, Torn
from topics.formats.state_entry import (
    StateEntry,
    encode_iggy_entry,
    encode_page_entry,
    scan_iggy,
    scan_page,
)
from topics.formats.stream_command import Command, decode_page, encode_page
from topics.formats.stream_layout import Flavour
from topics.storage.fs import File, Fs, write_all
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.times import now_us

logger = logging.getLogger(__name__)


class CommandCipher(Protocol):
    def encrypt(self, data: bytes, /) -> bytes: ...

    def decrypt(self, data: bytes, /) -> bytes: ...


class StateLog:
    def __init__(
        self,
        file: File,
        flavour: Flavour,
        cipher: CommandCipher | None,
        clock: Clock,
        entries: list[StateEntry],
        end: int,
        *,
        enforce_fsync: bool,
    ) -> None:
        # The entries that the file had when it was opened, for the replay.
        self.entries = entries
        self.enforce_fsync = enforce_fsync
        self._file = file
        self._encode = encode_page_entry if flavour is Flavour.PAGE else encode_iggy_entry
        self._encrypt = None if cipher is None else cipher.encrypt
        self._clock = clock
        self._next_index = len(entries)
        # The end of the last good entry, which is the end of the file.
        self._end = end
        self._synced_end = end
        # Why appends are refused; None while they are not.
        self.stopped: str | None = None

    @classmethod
    def open(
        cls,
        fs: Fs,
        root: str,
        flavour: Flavour,
        cipher: CommandCipher | None,
        clock: Clock,
        *,
        enforce_fsync: bool,
    ) -> "StateLog":
        file = fs.open(flavour.state_log_path(root), "write")
        try:
            entries, end = _recover(file, flavour, cipher)
            # Entries of a killed process may be in the page cache only.
            file.fsync()
        except BaseException:
            file.close()
            raise
        return cls(file, flavour, cipher, clock, entries, end, enforce_fsync=enforce_fsync)

    @property
    def size_bytes(self) -> int:
        return self._end

    def check_writable(self) -> None:
        """Raises if the log has stopped. A caller asks before it makes folders for an entry."""
        if self.stopped is not None:
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE,
                f"the state log takes no entries after {self.stopped}; check the disk, then restart",
            )

    def append(self, user_id: int, command: Command, *, must_be_durable: bool = False) -> StateEntry:
        """Writes the command as a request of `user_id` at the present time. If it raises, nothing was changed.

        `must_be_durable` syncs the entry even if the settings do not ask for it.
        """
        self.check_writable()
        _check_readable(command)
        entry = StateEntry(self._next_index, now_us(self._clock), user_id, command)
        try:
            end = write_all(self._file, self._encode(entry, self._encrypt), self._end)
        except OSError as error:
            self._cut_back("a failed write whose bytes could not be cut off")
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE, f"{self._file.path}: an entry could not be written: {error}"
            ) from error
        if self.enforce_fsync or must_be_durable:
            self._sync()
            self._synced_end = end
        self._end = end
        self._next_index += 1
        return entry

    def sync(self) -> None:
        """Makes all entries durable."""
        if self.stopped is None:
            self._sync()
            self._synced_end = self._end

    def close(self) -> None:
        """Syncs the log, unless it has stopped, and closes the file."""
        try:
            self.sync()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Closes the file without a sync, for a start that failed: no client was told of its entries."""
        self._file.close()

    def _sync(self) -> None:
        try:
            self._file.fsync()
        except OSError as error:
            self.stopped = "a failed sync"
            self._cut_back(self.stopped)
            self._write_again()
            raise StreamsError(
                StreamStatus.CANNOT_SYNC_FILE, f"{self._file.path} could not be synced: {error}"
            ) from error

    def _cut_back(self, failure: str) -> None:
        try:
            self._file.truncate(self._end)
        except OSError:
            self.stopped = failure
            logger.exception("%s: could not be cut back to its last good entry", self._file.path)

    def _write_again(self) -> None:
        try:
            write_all(self._file, self._file.pread(self._end - self._synced_end, self._synced_end), self._synced_end)
        except OSError as error:
            logger.warning("%s: entries since the last sync may be lost: %s", self._file.path, error)


def _check_readable(command: Command) -> None:
    """Raises if the command could not be read back. The readers of both flavours are equally strict."""
    try:
        decode_page(encode_page(command))
    except (TypeError, ValueError, OverflowError) as error:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"the command cannot be stored: {error}") from error


def _recover(file: File, flavour: Flavour, cipher: CommandCipher | None) -> tuple[list[StateEntry], int]:
    """The entries, and where they end. Cuts off a torn last entry."""
    scan = scan_page if flavour is Flavour.PAGE else scan_iggy
    size = file.size()
    entries: list[StateEntry] = []
    try:
        for scanned in scan(file.pread(size, 0), None if cipher is None else cipher.decrypt):
            entries.append(scanned.entry)  # noqa: PERF401 - entries before a torn tail are kept
    except Torn as torn:
        logger.warning("%s: cut from %d to %d bytes, a torn last entry: %s", file.path, size, torn.offset, torn.message)
        file.truncate(torn.offset)
        return entries, torn.offset
    except BadFrame as bad:
        raise StartRefused(
            f"{file.path}: damaged at offset {bad.offset}, after {len(entries)} good entries: {bad.message}; "
            "restore the file from a copy, or check the encryption settings; nothing was changed",
            {"file": file.path, "offset": bad.offset},
        ) from bad
    return entries, size
