"""The state log of a directory: every change of metadata, in order, appended before the change is answered.

Rules:
1. An entry is on disk as a whole or not at all: a write that fails is cut back, and the log goes on.
2. A sync that fails stops the log, and so does a cut that fails: what is in the file is unknown then. Every later
   append raises until a restart. The entry in question is cut off where that still works, since it was refused.
   Earlier ones that waited for the sync are written once more: the kernel counts them as written and may show them
   to the next start, which must not build on what no sync would ever bring to the disk.
3. A torn last entry, which a crash leaves, is cut at the next start, with a warning. Other damage refuses the start.
4. What could not be read back is not written: it would refuse every later start.
5. Nothing is compacted: a log holds all there ever was.

Open a directory by `open_flavour` first: that makes the empty log of a fresh one. Not thread-safe: whoever changes
metadata holds its lock.
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
        # What the file held when it was opened; for the replay.
        self.entries = entries
        self.enforce_fsync = enforce_fsync
        self._file = file
        self._encode = encode_page_entry if flavour is Flavour.PAGE else encode_iggy_entry
        self._encrypt = None if cipher is None else cipher.encrypt
        self._clock = clock
        self._next_index = len(entries)
        # Behind the last good entry, which is where the file ends.
        self._end = end
        self._synced_end = end
        # Why nothing can be appended any more.
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
            # What was read may still wait in the cache of a process that is gone.
            file.fsync()
        except BaseException:
            file.close()
            raise
        return cls(file, flavour, cipher, clock, entries, end, enforce_fsync=enforce_fsync)

    @property
    def size_bytes(self) -> int:
        return self._end

    def check_writable(self) -> None:
        """For whoever does something before the entry that only makes sense with it."""
        if self.stopped is not None:
            raise StreamsError(
                StreamStatus.CANNOT_APPEND_TO_FILE,
                f"the state log takes no entries after {self.stopped}; check the disk, then restart",
            )

    def append(self, user_id: int, command: Command, *, must_be_durable: bool = False) -> StateEntry:
        """Writes the command as what `user_id` asked for now. Nothing was changed where this raises.

        `must_be_durable` is for an entry that something durable follows; others are as durable as the setting says.
        """
        self.check_writable()
        _check_readable(command)
        entry = StateEntry(self._next_index, now_us(self._clock), user_id, command)
        try:
            end = write_all(self._file, self._encode(entry, self._encrypt), self._end)
        except OSError as error:
            self._cut_back("a write and the cut behind it failed")
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
        """Makes all entries durable, for those who do not ask for it by entry."""
        if self.stopped is None:
            self._sync()
            self._synced_end = self._end

    def close(self) -> None:
        """Durable, unless the log was stopped."""
        try:
            self.sync()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """For a start that failed later on: nothing of its own is in it that anybody was told of."""
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
    """The reader of the other flavour is as strict about every member, so one of them will do."""
    try:
        decode_page(encode_page(command))
    except (TypeError, ValueError, OverflowError) as error:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"a command that cannot be stored: {error}") from error


def _recover(file: File, flavour: Flavour, cipher: CommandCipher | None) -> tuple[list[StateEntry], int]:
    """The entries and where they end; the file ends there, too."""
    scan = scan_page if flavour is Flavour.PAGE else scan_iggy
    size = file.size()
    entries: list[StateEntry] = []
    try:
        for scanned in scan(file.pread(size, 0), None if cipher is None else cipher.decrypt):
            entries.append(scanned.entry)  # noqa: PERF401 - what came before the torn tail is kept
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
