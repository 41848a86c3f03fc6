"""Checks every message, index entry and state entry of a data directory, and that folders and entries agree.

Nothing is changed. `doctor` asks the verifier what a start would mend.
While an engine has the directory open, what is bad is looked at again (`confirmation`).
Messages are checked against the index and against their checksums. With the key they are also decrypted and expanded,
which shows damage from before they were stored.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np

from topics.errors import FormatError, StartRefused, Torn
from topics.formats.message import (
    CHECKSUM_AT,
    OFFSET_AT,
    RESERVED_AT,
    TIMESTAMP_AT,
    Positions,
    checksums,
    read_column,
)
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, Entries
from topics.formats.state_entry import StateEntry, scan_iggy, scan_page
from topics.formats.stream_layout import INDEX, LOCK_FILE, LOG, Flavour, segment_path
from topics.storage.fs import File, Fs, read_file
from topics.storage.inspect.confirmation import confirmed, may_vanish
from topics.storage.inspect.findings import Finding, Totals
from topics.stream_errors import StreamsError
from topics.streams.directory.directories import DELETED, Directories
from topics.streams.metadata.metadata import Metadata
from topics.streams.partitions.log_walk import find_good, read_piece, walk_piece
from topics.streams.partitions.outgoing import to_wire
from topics.streams.partitions.segment_files import list_segments, read_codec
from topics.streams.partitions.segment_index import count_good, read_entries
from topics.streams.settings import StreamsSettings

# How much is read at a time.
ENTRIES_PER_PIECE: Final = 4096
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024

Progress = Callable[[int, int], None]


class StreamsVerifier:
    """`totals.records` counts messages, `totals.frames` entries of the state log."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        *,
        settings: StreamsSettings | None = None,
        cipher: Cipher | None = None,
        progress: Progress | None = None,
        holds_lock: bool = False,
        only: Collection[str] | None = None,
    ) -> None:
        """`only` are files as findings name them: other segments are not looked at."""
        self.totals = Totals()
        # What a start would mend, and what it would refuse.
        self.torn_state: Torn | None = None
        self.repairable: list[str] = []
        self.half_deleted: list[str] = []
        self.missing: list[str] = []
        self.refusals: list[str] = []
        self.flavour: Flavour | None = None
        self._fs = fs
        self._root = root
        self._settings = settings or StreamsSettings()
        self._directories = Directories(fs, root, self._settings)
        self._cipher = cipher
        self._progress = progress or _no_progress
        self._holds_lock = holds_lock
        self._only = None if only is None else {file.rpartition(".")[0] for file in only}
        # Findings that a start mends, in partitions.
        self._repairs = 0

    def run(self) -> Iterator[Finding]:
        """Raises `OSError` as it comes."""
        return confirmed(self._run(), self.totals, self._look_again)

    def _look_again(self, files: Collection[str]) -> Iterator[Finding]:
        again = StreamsVerifier(
            self._fs, self._root, settings=self._settings, cipher=self._cipher, holds_lock=True, only=files
        )
        again.totals.in_use = True
        return again._run()

    def _run(self) -> Iterator[Finding]:
        flavours = [flavour for flavour in Flavour if self._fs.exists(flavour.state_log_path(self._root))]
        if len(flavours) != 1:
            text = "two state logs: it is unknown which one is right" if flavours else "no state log"
            self.refusals.append(f"{text}; move away the one that does not belong here" if flavours else text)
            yield Finding(severity="damage", file=".", message=text)
            return
        self.flavour = flavours[0]
        yield from self._check_lock()
        partitions = list(self._partitions())
        self.totals.bytes_total = sum(self._size(path) for path, _ in self._files(partitions))
        entries = yield from self._check_state(flavours[0])
        yield from self._check_folders(entries)
        for key in partitions:
            with may_vanish(self.totals):
                yield from self._check_partition(key, flavours[0])

    def _check_lock(self) -> Iterator[Finding]:
        path = f"{self._root}/{LOCK_FILE}"
        if self._holds_lock or not self._fs.exists(path):
            return
        try:
            lock = self._fs.lock(path)
        except OSError as error:
            text = f"cannot tell whether an engine holds it: {error.strerror or error}"
            yield Finding(severity="note", file=LOCK_FILE, message=text)
            return
        if lock is not None:
            lock.release()
            return
        self.totals.in_use = True
        text = "an engine has the directory open: what is sealed is checked, the ends of partitions may be moving"
        yield Finding(severity="note", file=LOCK_FILE, message=text)

    # Partitions and files.

    def _partitions(self) -> Iterator[str]:
        keys = self._directories.keys
        for stream_id in _ids(self._names(keys.streams)):
            for topic_id in _ids(self._names(keys.topics_of(stream_id))):
                for partition_id in _ids(self._names(keys.partitions_of(stream_id, topic_id))):
                    yield keys.partition(stream_id, topic_id, partition_id)

    def _names(self, key: str) -> list[str]:
        try:
            return self._directories.names(key)
        except FileNotFoundError:
            # An engine has removed the folder since it was listed.
            return []

    def _files(self, partitions: list[str]) -> Iterator[tuple[str, int]]:
        for key in partitions:
            path = self._directories.path(key)
            with may_vanish(self.totals):
                for start_offset in list_segments(self._fs, path):
                    yield segment_path(path, start_offset, LOG), start_offset

    def _size(self, path: str) -> int:
        try:
            return self._fs.size(path)
        except FileNotFoundError:
            return 0

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root + "/")

    # The state log.

    def _check_state(self, flavour: Flavour) -> Generator[Finding, None, list[StateEntry]]:
        """Returns the entries up to the first bad one."""
        path = flavour.state_log_path(self._root)
        scan = scan_page if flavour is Flavour.PAGE else scan_iggy
        self.totals.files += 1
        entries: list[StateEntry] = []
        try:
            for scanned in scan(read_file(self._fs, path), None if self._cipher is None else self._cipher.decrypt):
                self.totals.frames += 1
                entries.append(scanned.entry)
        except Torn as torn:
            self.torn_state = torn
            yield Finding(
                severity="damage",
                file=self._name(path),
                offset=torn.offset,
                message=torn.message,
                advice="an entry that a crash left unfinished; the next start cuts it off",
            )
        except (FormatError, StreamsError) as error:
            self.refusals.append(f"{self._name(path)} is damaged: restore it from a copy, or check the encryption key")
            yield Finding(
                severity="damage",
                file=self._name(path),
                offset=error.offset if isinstance(error, FormatError) else None,
                message=error.message,
                advice="a start refuses this; restore the file from a copy, or check the encryption key",
            )
        return entries

    def _check_folders(self, entries: list[StateEntry]) -> Iterator[Finding]:
        """Partitions of the state log without a folder, and folders without a partition."""
        metadata = Metadata(self._settings)
        try:
            metadata.replay(entries, 0)
        except StartRefused as error:
            self.refusals.append(error.message)
            yield Finding(severity="damage", file=".", message=error.message, advice="a start refuses this")
            return
        keys = self._directories.keys
        yield from self._check_names(keys.streams, set(metadata.streams))
        for stream in metadata.streams.ascending():
            yield from self._check_names(keys.topics_of(stream.id), set(stream.topics))
            for topic in stream.topics.ascending():
                known = {partition.id for partition in topic.partitions}
                yield from self._check_names(keys.partitions_of(stream.id, topic.id), known)
                for partition_id in sorted(known):
                    yield from self._check_exists(keys.partition(stream.id, topic.id, partition_id))

    def _check_names(self, key: str, known: set[int]) -> Iterator[Finding]:
        if self.totals.in_use:
            # An engine makes and removes folders.
            return
        for name in sorted(self._names(key)):
            if name.endswith(DELETED):
                self.half_deleted.append(f"{key}/{name}")
                text = "its removal was interrupted; the next start finishes it"
                yield Finding(severity="note", file=f"{key}/{name}", message=text)
            elif name not in map(str, known) and not self.torn_state and not self.refusals:
                text = "not in the state log; left alone"
                yield Finding(severity="note", file=f"{key}/{name}", message=text)

    def _check_exists(self, key: str) -> Iterator[Finding]:
        if not self._directories.exists(key):
            self.missing.append(key)
            yield Finding(
                severity="damage",
                file=key,
                message="missing, and the state log has the partition",
                advice="bring the folder back; or let a repair with --accept-loss begin the partition without messages",
            )

    # Segments.

    def _check_partition(self, key: str, flavour: Flavour) -> Iterator[Finding]:
        path = self._directories.path(key)
        start_offsets = list_segments(self._fs, path)
        repairs_before = self._repairs
        next_offset: int | None = None
        for place, start_offset in enumerate(start_offsets):
            if self._is_skipped(path, start_offsets[place : place + 2]):
                next_offset = None
                continue
            if next_offset is not None and start_offset != next_offset:
                yield Finding(
                    severity="warning",
                    file=self._name(segment_path(path, start_offset, LOG)),
                    message="does not begin where the previous segment ends",
                    expected=str(next_offset),
                    found=str(start_offset),
                )
            is_last = start_offset == start_offsets[-1]
            next_offset = None
            with may_vanish(self.totals):
                count = yield from self._check_segment(path, start_offset, flavour, is_last=is_last)
                next_offset = start_offset + count
        if self._repairs > repairs_before:
            self.repairable.append(key)

    def _is_skipped(self, path: str, start_offsets: list[int]) -> bool:
        """Whether neither the segment nor the next one, which begins where it ends, was asked for."""
        if self._only is None:
            return False
        names = (self._name(segment_path(path, start_offset, LOG)) for start_offset in start_offsets)
        return not any(name.rpartition(".")[0] in self._only for name in names)

    def _check_segment(
        self, path: str, start_offset: int, flavour: Flavour, *, is_last: bool
    ) -> Generator[Finding, None, int]:
        """Returns the number of messages that it has after a start."""
        log_path, index_path = segment_path(path, start_offset, LOG), segment_path(path, start_offset, INDEX)
        has_index = self._fs.exists(index_path)
        if not has_index:
            self._repairs += 1
            yield Finding(
                severity="warning",
                file=self._name(index_path),
                message="missing",
                advice="the next start rebuilds it from the log",
            )
        try:
            codec = read_codec(self._fs, path, start_offset)
        except StartRefused as error:
            self.refusals.append(error.message)
            yield Finding(severity="damage", file=self._name(log_path), message=error.message)
            return 0
        with ExitStack() as files:
            log = self._opened(log_path, files)
            if not has_index:
                return (yield from self._check_rest(log, 0, start_offset))
            index = self._opened(index_path, files)
            return (yield from self._check_files(log, index, start_offset, codec, flavour, is_last=is_last))

    def _opened(self, path: str, files: ExitStack) -> File:
        file = self._fs.open(path, "read")
        files.callback(file.close)
        self.totals.files += 1
        return file

    def _check_files(
        self, log: File, index: File, start_offset: int, codec: Codec, flavour: Flavour, *, is_last: bool
    ) -> Generator[Finding, None, int]:
        log_bytes = log.size()
        good, total = count_good(index, log_bytes)
        if index.size() % ENTRY_BYTES:
            yield self._index_finding(index, total, "is cut off")
        position = done = 0
        while done < good:
            entries = read_entries(index, done, min(ENTRIES_PER_PIECE, good - done))
            while len(entries) > 1 and int(entries["position"][-1]) - position > PIECE_BYTES_MAX:
                entries = entries[: len(entries) // 2]
            is_end = is_last and done + len(entries) == total
            yield from self._check_messages(log, entries, start_offset + done, position, codec, flavour, is_end=is_end)
            done += len(entries)
            position = int(entries["position"][-1])
        if good < total:
            yield self._index_finding(index, good, "does not fit the log")
        elif position < log_bytes:
            self._repairs += 1
            yield Finding(
                severity="warning",
                file=self._name(log.path),
                offset=position,
                message=f"{log_bytes - position} bytes are not in the index",
                advice="the next start takes whole messages in and cuts off the rest"
                if is_last
                else "they are not served; the next start takes whole messages in",
            )
        # What a crash left at the end of a partition is no damage.
        is_cut = is_last and index.size() == good * ENTRY_BYTES
        return done + (yield from self._check_rest(log, position, start_offset + done, ends_at_damage=is_cut))

    def _check_rest(
        self, log: File, position: int, offset: int, *, ends_at_damage: bool = False
    ) -> Generator[Finding, None, int]:
        """The messages that have no entry, as a start would take them in. Returns their number, with the damaged ones
        between them."""
        first_offset, log_bytes = offset, log.size()
        while position < log_bytes:
            walked = walk_piece(read_piece(log, position, log_bytes), position, offset)
            if walked.ends:
                self.totals.records += len(walked.ends)
                self.totals.bytes_read += walked.ends[-1] - position
                position = walked.ends[-1]
                offset += len(walked.ends)
                continue
            after = None if ends_at_damage else find_good(log, position, offset, log_bytes)
            if after is None:
                break
            for damaged in range(offset, after[1]):
                yield self._message_finding(log, position, damaged, "cannot be read")
            position, offset = after
        return offset - first_offset

    def _index_finding(self, index: File, place: int, what: str) -> Finding:
        self._repairs += 1
        return Finding(
            severity="damage",
            file=self._name(index.path),
            offset=place * ENTRY_BYTES,
            message=f"entry {place} {what}",
            advice="the next start rebuilds it from the log",
        )

    def _check_messages(
        self,
        log: File,
        entries: Entries,
        first_offset: int,
        position: int,
        codec: Codec,
        flavour: Flavour,
        *,
        is_end: bool,
    ) -> Iterator[Finding]:
        """`is_end`: the last message is the last one of the partition. If it is bad, a start cuts it off."""
        ends: Positions = entries["position"].astype(np.int64) - position
        starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
        data = log.pread(int(ends[-1]), position)
        self.totals.bytes_read += len(data)
        self.totals.records += len(entries)
        self._progress(self.totals.bytes_read, self.totals.bytes_total)
        numbers = np.arange(first_offset, first_offset + len(entries), dtype=np.uint64)
        problems = (
            ("does not match its checksum", checksums(data, starts, ends) == read_column(data, starts, CHECKSUM_AT, 8)),
            ("has a wrong offset", read_column(data, starts, OFFSET_AT, 8) == numbers),
            ("has a reserved field that is not 0", read_column(data, starts, RESERVED_AT, 8) == 0),
            (
                "has a different time than its index entry",
                read_column(data, starts, TIMESTAMP_AT, 8) == entries["timestamp"],
            ),
        )
        is_sound = np.ones(len(entries), dtype=bool)
        for what, is_good in problems:
            for place in np.flatnonzero(~is_good & is_sound).tolist():
                yield self._message_finding(log, position + int(starts[place]), first_offset + place, what)
            is_sound &= is_good
        self._repairs += is_end and not is_sound[-1]
        if self._cipher is None and codec is Codec.NONE:
            return
        for place in np.flatnonzero(is_sound).tolist():
            one = slice(place, place + 1)
            try:
                to_wire(data, starts[one], ends[one], order=flavour.body_order, codec=codec, cipher=self._cipher)
            except StreamsError as error:
                yield self._message_finding(
                    log, position + int(starts[place]), first_offset + place, f"cannot be read: {error.message}"
                )

    def _message_finding(self, log: File, offset: int, message_offset: int, what: str) -> Finding:
        return Finding(
            severity="damage",
            file=self._name(log.path),
            offset=offset,
            seq=message_offset,
            message=f"the message {what}",
            advice="polls that reach it fail; bring the segment back from an archive or a copy",
        )


def _ids(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _no_progress(done: int, total: int) -> None:
    pass
