"""One WAL shard as a whole: every frame of every file, also after damage, and whether a start would refuse it.

`ShardSurvey` only reads. It finds the places that `wal.reader.ShardReader` would refuse; the first one is the `cut`. It
reads on after the cut, and keeps for each topic what the frames before and after the cut say. `verify` reports it;
`repair` cuts there and writes down what is lost.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from topics.errors import BadFrame, FutureVersion
from topics.formats import control, envelope, wal_frame
from topics.formats.record_layout import CHECKSUM_BYTES
from topics.formats.snapshot import WalPosition
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.storage import layout
from topics.storage.fs import File, Fs, read_file
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.scan import BadBytes, Read, WalItem, scan_wal
from topics.storage.wal.missing_files import MissingFile, missing_file
from topics.storage.wal.reader import WalFile, list_wal_files

# Bad places named one by one in a file; further ones are only counted.
SPANS_MAX: Final = 20

_NOT_NEEDED: Final = "everything here is in segments; it would be needed only if the newest snapshot were lost"
_REFUSED: Final = "a start is refused; `topics doctor --repair` cuts the shard here and says what is lost"

_BODIES: Final[dict[FrameType, type[msgspec.Struct]]] = {
    FrameType.TOPIC_CREATE: control.TopicCreate,
    FrameType.ROUTER_CREATE: control.RouterState,
    FrameType.ROUTER_DELETE: control.RouterDelete,
    FrameType.CONFIG: control.ConfigUpdate,
    FrameType.DELETE: control.Delete,
    FrameType.EVICT: control.Evict,
    FrameType.LEASE: control.Lease,
    FrameType.HEAD: control.Head,
    FrameType.NOTE: control.Note,
    FrameType.CHECKPOINT: control.CheckpointMark,
    FrameType.LOST: control.Lost,
}
# Decisions that hold although the records around them are lost: repair writes them again.
_DECISIONS: Final = frozenset(
    {
        FrameType.TOPIC_CREATE,
        FrameType.TOPIC_DELETE,
        FrameType.ROUTER_CREATE,
        FrameType.ROUTER_DELETE,
        FrameType.CONFIG,
        FrameType.DELETE,
    }
)


class TopicTrace:
    """What the frames of one topic tell."""

    __slots__ = (
        "cap_floor",
        "ceiling",
        "delete_below",
        "first_seq",
        "last_seq",
        "name",
        "open_seq",
        "records",
        "removed",
    )

    def __init__(self) -> None:
        self.name: str | None = None
        self.removed = False
        self.cap_floor = 0
        self.delete_below = 0
        self.ceiling = 0
        self.records = 0
        # Lowest and highest seq of an append or of a lost range of a router; 0 when there is none.
        self.first_seq = 0
        self.last_seq = 0
        # First seq of a write whose last frame is still to come.
        self.open_seq: int | None = None

    @property
    def whole_last_seq(self) -> int:
        """The last seq whose write is whole."""
        return self.last_seq if self.open_seq is None else self.open_seq - 1


class Cut:
    """Where a start is refused: frames from `frame` on cannot be replayed."""

    def __init__(
        self,
        file: WalFile | None,
        offset: int,
        frame: int,
        reason: str,
        later: list[WalFile],
        *,
        is_extent_known: bool = True,
    ) -> None:
        # The file to cut at `offset`; None when the very first one that is needed is missing.
        self.file = file
        self.offset = offset
        self.frame = frame
        self.reason = reason
        # The files after it.
        self.later = later
        # False when a file is missing and nothing says how much it held.
        self.is_extent_known = is_extent_known


class ShardSurvey:
    """Iterate `scan()` to its end; then the rest is known."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        directory: str,
        start: WalPosition | None,
        *,
        in_use: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        topic_names: Mapping[int, str] | None = None,
    ) -> None:
        self._fs = fs
        self._root = root
        self.directory = directory
        self._start = start
        self._in_use = in_use
        self._on_bytes = on_bytes or _ignore
        # By topic id, for the findings.
        self._topic_names = topic_names or {}
        # Copies of the ends of files that a start was writing again: the next one writes them back first.
        self._rewrites: dict[str, list[tuple[int, bytes]]] = {}
        self.files = self._list_files()
        self.frames = 0
        self.records = 0
        self.cut: Cut | None = None
        # A file that was written and is missing or empty.
        self.missing: MissingFile | None = None
        self.before: dict[int, TopicTrace] = {}
        self.behind: dict[int, TopicTrace] = {}
        # Bodies of `_DECISIONS` after the cut, and the number of valid frames there.
        self.decisions: list[bytes] = []
        self.frames_behind = 0
        # Number and place of the next frame, where the frames before any cut end.
        self.end = start or WalPosition(1, 1, 0)
        self._number: int | None = None
        self._end_offset = 0
        self._place = 0
        # The file of the start ends before the start: a new one goes on.
        self._is_short = False

    def _name(self, path: str) -> str:
        return path.removeprefix(self._root + "/")

    # The files.

    def _list_files(self) -> list[WalFile]:
        files = list_wal_files(self._fs, self.directory)
        for name in self._fs.listdir(self.directory) if self._fs.exists(self.directory) else []:
            found = layout.rewrite_of(name)
            if found is not None:
                copy = (found[1], read_file(self._fs, f"{self.directory}/{name}"))
                self._rewrites.setdefault(f"{self.directory}/{found[0]}", []).append(copy)
        return [file if file.path not in self._rewrites else self._rewritten(file) for file in files]

    def _rewritten(self, file: WalFile) -> WalFile:
        ends = [offset + len(copy) for offset, copy in self._rewrites[file.path]]
        return WalFile(file.first_frame, file.path, max(file.size, *ends))

    def _reader(self, handle: File) -> Read:
        copies = self._rewrites.get(handle.path)
        if copies is None:
            return lambda offset, size: handle.pread(size, offset)
        return partial(_read_rewritten, handle, copies)

    def scan(self) -> Iterator[Finding]:
        start = self._start
        first_needed = start.file_frame if start is not None else 1
        yield from self._check_beginning()
        number: int | None = None
        for place, file in enumerate(self.files):
            is_needed = file.first_frame >= first_needed
            if number is not None and number != file.first_frame:
                yield from self._missing(place, number, is_needed=is_needed)
            number = file.first_frame
            split = start.offset if start is not None and file.first_frame == start.file_frame else 0
            following = self.files[place + 1] if place + 1 < len(self.files) else None
            try:
                handle = self._fs.open(file.path, "read")
            except FileNotFoundError:
                if not self._in_use:
                    raise
                # The server has removed it.
                number = None
                continue
            try:
                if split:
                    yield from self._part(file, handle, 0, min(split, file.size), number, None, is_needed=False)
                    assert start is not None
                    number = start.frame
                    if not _reaches(self._reader(handle), file, split):
                        yield self._short(file, start)
                        continue
                self._place = place
                yield from self._part(file, handle, split, file.size, number, following, is_needed=is_needed)
                number = self._number
            finally:
                handle.close()
            self._on_bytes(file.size)
        yield from self._check_missing_file()
        yield from self._lost_records()

    def _check_beginning(self) -> Iterator[Finding]:
        """The first file that the replay needs must begin with the frame it needs."""
        start, files = self._start, self.files
        if start is None:
            if files and files[0].first_frame != 1:
                self.cut = Cut(None, 0, 1, "the first file is missing", files)
                yield Finding(
                    severity="damage",
                    file=self._name(files[0].path),
                    offset=0,
                    message=f"frames 1 to {files[0].first_frame - 1} are missing, and no snapshot covers them",
                    advice=_REFUSED,
                )
            return
        needed = [file for file in files if file.first_frame >= start.file_frame]
        if needed and needed[0].first_frame not in (start.file_frame, start.frame):
            self.cut = Cut(None, 0, start.frame, "the file the newest snapshot goes on from is missing", needed)
            yield Finding(
                severity="damage",
                file=self._name(needed[0].path),
                offset=0,
                message=f"frames {start.frame} to {needed[0].first_frame - 1} are missing: "
                "the file that the newest snapshot goes on from is not there",
                advice=_REFUSED,
            )
        elif not needed and start.offset:
            yield Finding(
                severity="warning",
                file=self._name(self.directory),
                message=f"the shard ends before frame {start.frame}, where the newest snapshot goes on",
                advice="everything before it is in segments; whatever was written since is not in this directory",
            )

    def _check_missing_file(self) -> Iterator[Finding]:
        self.missing = missing_file(self._fs, self.directory, self.files, self._start)
        if self.missing is None:
            return
        if self.cut is None:
            self.cut = self._cut_at_end(self.missing)
        yield Finding(
            severity="damage",
            file=self._name(self.missing.path),
            offset=0,
            message=f"{self.missing.found}, but {self.missing.proof}",
            advice=_REFUSED,
        )

    def _cut_at_end(self, missing: MissingFile) -> Cut:
        """The log goes on where the frames that are left end."""
        reason = f"{self._name(missing.path)} is lost: {missing.proof}"
        last = next((file for file in self.files if file.first_frame == self.end.file_frame), None)
        if last is not None and not self._is_short:
            return Cut(last, self.end.offset, self.end.frame, reason, [], is_extent_known=False)
        first_frame = self._start.frame if self._start is not None else missing.first_frame
        return Cut(None, 0, first_frame, reason, [], is_extent_known=False)

    def lose_all(self) -> Finding:
        """Every shard gets its first file before any shard takes a frame. So a shard without a file has lost its
        files."""
        self.cut = Cut(None, 0, 1, "the shard has no file", [])
        return Finding(
            severity="damage",
            file=self._name(self.directory),
            message="the shard has no file, and no snapshot covers what was in it",
            advice=_REFUSED,
        )

    def _missing(self, place: int, number: int, *, is_needed: bool) -> Iterator[Finding]:
        file, before = self.files[place], self.files[place - 1]
        is_refused = is_needed and file.first_frame > (self._start.frame if self._start is not None else 0)
        if number < file.first_frame:
            message = f"frames {number} to {file.first_frame - 1} are missing: no file holds them"
        else:
            message = f"the file begins with frame {file.first_frame}, but the one before it ends with {number - 1}"
        if is_refused and self.cut is None:
            cut_file = None if self._is_short else before
            self.cut = Cut(cut_file, self._end_offset, number, message, self.files[place:])
        yield Finding(
            severity="damage" if is_refused else "warning",
            file=self._name(file.path),
            offset=0,
            message=message,
            advice=_REFUSED if is_refused else _NOT_NEEDED,
        )

    def _short(self, file: WalFile, start: WalPosition) -> Finding:
        self._is_short = True
        self.end = WalPosition(start.frame, start.frame, 0)
        return Finding(
            severity="warning",
            file=self._name(file.path),
            message=f"the file ends before frame {start.frame}, where the newest snapshot goes on",
            advice="everything before it is in segments; a start goes on in a new file",
        )

    # One file, or the part of it before or after the snapshot's position.

    def _part(
        self,
        file: WalFile,
        handle: File,
        begin: int,
        end: int,
        number: int,
        following: WalFile | None,
        *,
        is_needed: bool,
    ) -> Iterator[Finding]:
        """Leaves the number of the next frame in `_number`, None when bad bytes made it unknown."""
        spans: list[tuple[BadBytes, int | None]] = []
        synced_frame, mark_offset = 0, 0
        self._number = number
        self._end_offset = begin
        read = self._reader(handle)
        for item in self._items(file, read, begin, end):
            if isinstance(item, BadBytes):
                spans.append((item, self._number))
                self._number = None
                continue
            if item.frame.type == FrameType.SYNC and spans:
                synced_frame, mark_offset = max((synced_frame, mark_offset), (_covered(item), item.offset))
            finding = self._take(file, item, is_needed=is_needed, is_behind=bool(spans) or self.cut is not None)
            if finding is not None:
                yield finding
            if self._number is not None:
                self._number += 1
                self._end_offset = item.offset + item.frame.end - item.frame.offset
        if is_needed and self.cut is None and not spans:
            self.end = WalPosition(self._number or number, file.first_frame, self._end_offset)
        if spans:
            yield from self._judge(file, spans, following, synced_frame, mark_offset, is_needed=is_needed)

    def _items(self, file: WalFile, read: Read, begin: int, end: int) -> Iterator[WalItem | BadBytes]:
        try:
            yield from scan_wal(read, end, begin)
        except FutureVersion as error:
            raise FutureVersion(f"{file.path}: {error.message}") from error

    def _judge(
        self,
        file: WalFile,
        spans: list[tuple[BadBytes, int | None]],
        following: WalFile | None,
        synced_frame: int,
        mark_offset: int,
        *,
        is_needed: bool,
    ) -> Iterator[Finding]:
        """A torn tail, bytes that do not matter, or damage."""
        first, number = spans[0]
        assert number is not None, "the count is known up to the first bad byte"
        if following is not None and following.first_frame == number:
            self._number = number
            yield Finding(
                severity="warning",
                file=self._name(file.path),
                offset=first.offset,
                message=f"{first.end - first.offset} bytes after the last frame are no frame",
                advice="the count goes on in the next file: no frame is missing",
            )
            return
        if is_needed and following is None and synced_frame < number:
            # The frames after it are cut with it.
            self._forget_behind()
            self.end = WalPosition(number, file.first_frame, first.offset)
            yield Finding(
                severity="note",
                file=self._name(file.path),
                offset=first.offset,
                message=f"a torn tail of {spans[-1][0].end - first.offset} bytes from frame {number} on "
                f"({first.message})",
                advice="a server writes to it just now"
                if self._in_use
                else "no sync mark covers it, so nothing synced is in it; a start cuts it, and keeps the bytes",
            )
            return
        if is_needed and self.cut is None:
            self.cut = Cut(file, first.offset, number, first.message, self.files[self._place + 1 :])
        for span, frame in spans[:SPANS_MAX]:
            named = f"frame {frame}: " if frame is not None else ""
            covered = f"; the sync mark at offset {mark_offset} covers it" if synced_frame >= number else ""
            yield Finding(
                severity="damage",
                file=self._name(file.path),
                offset=span.offset,
                message=f"{named}{span.message}{covered}",
                advice=_REFUSED if is_needed else _NOT_NEEDED,
            )
        if len(spans) > SPANS_MAX:
            yield Finding(
                severity="damage",
                file=self._name(file.path),
                offset=spans[SPANS_MAX][0].offset,
                message=f"{len(spans) - SPANS_MAX} more bad places from here on",
                advice=_REFUSED if is_needed else _NOT_NEEDED,
            )

    def _forget_behind(self) -> None:
        if self.cut is None:
            self.behind.clear()
            self.decisions.clear()
            self.frames_behind = 0

    # One frame.

    def _take(self, file: WalFile, item: WalItem, *, is_needed: bool, is_behind: bool) -> Finding | None:
        self.frames += 1
        frame = item.frame
        kind = FrameType(frame.type)
        data = item.body[len(item.body) - frame.data_len :]
        try:
            body = decode_control(kind, data)
            if kind == FrameType.SYNC:
                wal_frame.decode_sync_mark(data)
            if kind == FrameType.APPEND:
                envelope.accounted_bytes(data)
                if frame.seq == 0:
                    raise BadFrame("an append of seq 0")
        except BadFrame as error:
            if is_needed and kind != FrameType.APPEND and self.cut is None and self._number is not None:
                later = self.files[self._place + 1 :]
                self.cut = Cut(file, item.offset, self._number, error.message, later)
            return Finding(
                severity="damage",
                file=self._name(file.path),
                offset=item.offset,
                seq=frame.seq or None,
                message=f"the checksum agrees, but the {kind.name.lower()} frame cannot be read: {error.message}",
                advice="it was written like this: please report it",
            )
        if not is_needed:
            return None
        self.records += kind == FrameType.APPEND
        traces = self.behind if is_behind else self.before
        if is_behind:
            self.frames_behind += 1
            if kind in _DECISIONS:
                self.decisions.append(item.body)
        if frame.topic_id:
            trace = traces.get(frame.topic_id)
            if trace is None:
                trace = traces[frame.topic_id] = TopicTrace()
            _trace(trace, kind, item, body)
        return None

    def _lost_records(self) -> Iterator[Finding]:
        """Records that were in the bad bytes, as far as the seqs of their neighbours show."""
        cut = self.cut
        if cut is None:
            return
        for topic_id, behind in sorted(self.behind.items()):
            before = self.before.get(topic_id)
            if before is None or not before.last_seq or behind.first_seq <= before.last_seq + 1:
                continue
            yield Finding(
                severity="damage",
                file=self._name(cut.file.path if cut.file is not None else self.directory),
                offset=cut.offset,
                seq=before.last_seq + 1,
                last_seq=behind.first_seq - 1,
                topic=self._topic_names.get(topic_id) or before.name or f"id {topic_id}",
                message="records that were in the missing or bad bytes, as the seqs of their neighbours show",
                advice=_REFUSED,
            )


def _covered(mark: WalItem) -> int:
    try:
        return wal_frame.decode_sync_mark(mark.body[wal_frame.BODY_HEADER_BYTES :])
    except BadFrame:
        return 0


def decode_control(kind: FrameType, data: bytes) -> msgspec.Struct | None:
    """The data of a control frame that has any. Raises `BadFrame`."""
    shape = _BODIES.get(kind)
    return control.decode(shape, data) if shape is not None else None


def _trace(trace: TopicTrace, kind: FrameType, item: WalItem, body: object) -> None:
    frame = item.frame
    if frame.flags & FLAG_FIRST and trace.open_seq is not None:
        # The write before it was never finished.
        trace.last_seq, trace.open_seq = trace.open_seq - 1, None
    if kind == FrameType.APPEND:
        trace.records += 1
        trace.first_seq = trace.first_seq or frame.seq
        if frame.flags & FLAG_MORE and trace.open_seq is None:
            trace.open_seq = frame.seq
        trace.last_seq = max(trace.last_seq, frame.seq)
    elif kind == FrameType.TOPIC_DELETE:
        trace.removed = True
    elif isinstance(body, control.TopicCreate):
        trace.name = body.name
    elif isinstance(body, control.ConfigUpdate):
        trace.cap_floor = max(trace.cap_floor, body.cap_floor, body.ttl_floor)
    elif isinstance(body, control.Evict):
        trace.cap_floor = max(trace.cap_floor, body.cap_floor, body.trim_floor)
    elif isinstance(body, control.Lost):
        trace.first_seq = trace.first_seq or body.first_seq
        trace.last_seq = max(trace.last_seq, body.last_seq)
    elif isinstance(body, control.Head):
        trace.ceiling = max(trace.ceiling, body.ceiling)
    elif isinstance(body, control.Delete) and body.tag is None and body.tag_prefix is None and body.seqs is None:
        bound = body.bound if body.before_seq is None else min(body.bound, body.before_seq)
        trace.delete_below = max(trace.delete_below, bound)
    if not frame.flags & FLAG_MORE:
        trace.open_seq = None


def _read_rewritten(handle: File, copies: list[tuple[int, bytes]], offset: int, size: int) -> bytes:
    """What the file will hold once the copies are written back."""
    window = bytearray(handle.pread(size, offset))
    for start, copy in copies:
        first, last = max(start, offset), min(start + len(copy), offset + size)
        if first < last:
            window.extend(bytes(max(0, last - offset - len(window))))
            window[first - offset : last - offset] = copy[first - start : last - start]
    return bytes(window)


def _reaches(read: Read, file: WalFile, offset: int) -> bool:
    """Whether the frame that ended at `offset` is still there: its checksum cannot be zeros."""
    return file.size >= offset and any(read(offset - CHECKSUM_BYTES, CHECKSUM_BYTES))


def _ignore(count: int) -> None:
    pass
