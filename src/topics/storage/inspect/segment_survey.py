"""One segment as a whole: every frame, the index and the tags against the frames, all of it against the snapshot.

The frames are the truth: an index or a sidecar is never evidence against them. The numbers a snapshot keeps of a
segment (length, counts, digest) are evidence: they were durable, under a checksum of their own.
"""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec
from xxhash import xxh3_128

from topics.errors import FormatError
from topics.formats import segment, segment_index
from topics.formats.record_layout import FLAG_TAG
from topics.formats.segment_index import ENTRY_BYTES, FLAG_DELETED, IndexEntry
from topics.formats.snapshot import SegmentState, TopicState
from topics.formats.tag_sidecar import TagSidecar
from topics.limits import U64_MAX
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.inspect.findings import Finding, Severity
from topics.storage.inspect.scan import BadBytes, Read, SegmentItem, scan_segment
from topics.storage.segments.proof import has_proof, is_proved
from topics.storage.tiers.store import SegmentStore

# Findings of one kind named one by one in a file; further ones are only counted.
NAMED_MAX: Final = 20

_SERVED: Final = "the records around it are served; it stays as it is, restore the file from a copy if there is one"
_DERIVED: Final = "derived: `topics doctor --repair` builds it again from the frames, nothing is lost"

# How many seqs a segment may span when no snapshot says it.
_UNLISTED_SEQS_MAX: Final = 1 << 32

# Which noted numbers a segment is compared with: the numbers of the newest snapshot; of an older snapshot, whose live
# counts are out of date; or of a manifest, which has only length and digest.
Numbers = Literal["newest", "older", "manifest"]


class SegmentFiles:
    """The files of one segment in one tier."""

    def __init__(self, name: str, topic: str, open_read: Callable[[str], tuple[Read, int, Callable[[], None]] | None]):
        # Without its ending, as findings name it.
        self.name = name
        self.topic = topic
        self._open_read = open_read

    def open(self, kind: str) -> tuple[Read, int, Callable[[], None]] | None:
        """(read, size, close) of a file; None when it is missing."""
        return self._open_read(kind)

    def whole(self, kind: str) -> bytes | None:
        opened = self.open(kind)
        if opened is None:
            return None
        read, size, close = opened
        try:
            return read(0, size)
        finally:
            close()


def hot_files(fs: Fs, root: str, topic_id: int, topic: str, first_seq: int) -> SegmentFiles:
    stem = f"{layout.topic_directory(root, topic_id)}/{layout.segment_stem(first_seq)}"

    def open_read(kind: str) -> tuple[Read, int, Callable[[], None]] | None:
        path = f"{stem}.{kind}"
        try:
            file = fs.open(path, "read")
        except FileNotFoundError:
            return None
        return (lambda offset, size: file.pread(size, offset)), file.size(), file.close

    return SegmentFiles(stem.removeprefix(root + "/"), topic, open_read)


def cold_files(cold: SegmentStore, topic_id: int, topic: str, first_seq: int) -> SegmentFiles:
    stem = layout.segment_object(topic_id, first_seq, "data").removesuffix(".data")

    def open_read(kind: str) -> tuple[Read, int, Callable[[], None]] | None:
        name = f"{stem}.{kind}"
        if not cold.exists(name):
            return None
        return (lambda offset, size: cold.read_range(name, offset, size)), cold.size(name), _nothing

    return SegmentFiles(f"{cold.address}/{stem}", topic, open_read)


class SegmentTask(NamedTuple):
    """A survey that is made later, or on another machine: all that it needs, and small."""

    # The data directory, or the cold tier when it is one.
    address: str
    is_cold: bool
    topic: TopicState
    state: SegmentState
    numbers: Numbers = "newest"

    @classmethod
    def of(
        cls, address: str, topic: TopicState, state: SegmentState, *, is_cold: bool, numbers: Numbers = "newest"
    ) -> "SegmentTask":
        """With only the parts of the topic that a survey needs."""
        pending = [
            (max(first, state.first_seq), min(last, state.last_seq))
            for first, last in topic.pending_deletes
            if first <= state.last_seq and last >= state.first_seq
        ]
        small = TopicState(
            name=topic.name,
            id=topic.id,
            epoch=topic.epoch,
            config={},
            head_seq=topic.head_seq,
            cap_floor=topic.cap_floor,
            ttl_floor=topic.ttl_floor,
            trim_floor=topic.trim_floor,
            delete_below=topic.delete_below,
            first_live=topic.first_live,
            pending_deletes=pending,
        )
        return cls(address, is_cold, small, msgspec.structs.replace(state), numbers)

    @property
    def first_seq(self) -> int:
        return self.state.first_seq

    @property
    def name(self) -> str:
        """Of its `.data`, in the tier."""
        return layout.segment_object(self.topic.id, self.first_seq, "data")

    @property
    def uri(self) -> str:
        return f"{self.address}/{self.name}"


class SegmentSurvey:
    """Iterate `scan()` to its end; `bad_index` and `bad_tags` then say what should be built again.

    `state` is None for a segment that no snapshot lists. `topic` gives the floor and the pending deletes.
    """

    def __init__(
        self,
        files: SegmentFiles,
        first_seq: int,
        state: SegmentState | None,
        topic: TopicState | None,
        *,
        numbers: Numbers = "newest",
    ) -> None:
        self._files = files
        self._first_seq = first_seq
        self._state = state
        self._numbers = numbers
        self._floor = counting_floor(topic) if topic is not None else 0
        self._pending = _pending_inside(topic, state) if topic is not None and state is not None else frozenset()
        # Index entry each seq should have; absent for holes. Seqs of bad frames are in `_bad`.
        self._entries: dict[int, IndexEntry] = {}
        self._deleted: set[int] = set()
        self._bad: list[tuple[int, int]] = []
        self._tags: dict[bytes, list[int]] = {}
        self._digest = xxh3_128()
        self.live_count = self._live_bytes = 0
        self.frames = 0
        self.bytes_read = 0
        self._named = 0
        self.bad_index = False
        self.bad_tags = False

    def _finding(
        self,
        severity: Severity,
        kind: str,
        message: str,
        *,
        offset: int | None = None,
        seq: int | None = None,
        last_seq: int | None = None,
        expected: str = "",
        found: str = "",
        advice: str = "",
    ) -> Finding:
        return Finding(
            severity=severity,
            file=f"{self._files.name}.{kind}",
            message=message,
            offset=offset,
            seq=seq,
            last_seq=last_seq,
            topic=self._files.topic,
            expected=expected,
            found=found,
            advice=advice,
        )

    def scan(self) -> Iterator[Finding]:
        opened = self._files.open("data")
        if opened is None:
            # The caller has seen it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self._files.name}.data")
        read, size, close = opened
        try:
            yield from self._frames(read, size)
        finally:
            close()
        yield from self._check_index()
        yield from self._check_tags()
        if self._state is not None:
            yield from self._check_numbers(self._state)

    # The frames.

    def _frames(self, read: Read, size: int) -> Iterator[Finding]:
        state = self._state
        self.bytes_read += size
        noted = state.data_bytes if state is not None else size
        end_seq = state.last_seq + 1 if state is not None else min(self._first_seq + _UNLISTED_SEQS_MAX, U64_MAX)
        spans: list[tuple[BadBytes, int]] = []
        next_seq = self._first_seq
        for item in scan_segment(read, min(size, noted), self._first_seq, end_seq):
            if isinstance(item, BadBytes):
                spans.append((item, next_seq))
                continue
            if spans and spans[-1][0].end == item.offset:
                yield from self._bad_frames(read, *spans[-1], item.frame.seq - 1)
            next_seq = item.frame.seq + 1
            size_bytes = item.frame.data_len
            try:
                record = segment.decode(item.raw, item.frame)
                size_bytes = len(record.data) + (0 if record.meta is None else len(record.meta))
            except FormatError as error:
                yield self._finding(
                    "damage",
                    "data",
                    f"the checksum agrees, but the record cannot be read: {error.message}",
                    offset=item.offset,
                    seq=item.frame.seq,
                    advice="it was written like this: please report it",
                )
            self._take(item, size_bytes)
        if spans and not spans[-1][0].is_followed:
            if state is None:
                yield self._unfinished(spans[-1][0].offset, size)
            else:
                yield from self._bad_frames(read, *spans[-1], max(end_seq - 1, next_seq))
        if self._named > NAMED_MAX:
            yield self._finding("damage", "data", f"{self._named - NAMED_MAX} more bad frames", advice=_SERVED)
        if state is not None:
            yield from self._check_length(state, size, next_seq)

    def _bad_frames(self, read: Read, span: BadBytes, first_seq: int, last_seq: int) -> Iterator[Finding]:
        """One finding a frame as far as the index tells them apart, else one for all the bytes."""
        places = self._placed_in(span, first_seq, max(first_seq, last_seq))
        if not places:
            self._bad.append((first_seq, max(first_seq, last_seq)))
            places = [(first_seq, span.offset, span.message)]
        else:
            last_seq = 0
            self._bad += [(seq, seq) for seq, _, _ in places]
        for seq, offset, text in places:
            self._named += 1
            if self._named <= NAMED_MAX:
                last = max(last_seq, seq)
                text = text or _why_bad(read, offset, span.end)
                yield self._finding("damage", "data", text, offset=offset, seq=seq, last_seq=last, advice=_SERVED)

    def _placed_in(self, span: BadBytes, first_seq: int, last_seq: int) -> list[tuple[int, int, str]]:
        """(seq, offset, what is known to be wrong) of the frames that the index places there."""
        index = (self._files.whole("idx") or b"")[: (last_seq - self._first_seq + 1) * ENTRY_BYTES]
        whole = index[(first_seq - self._first_seq) * ENTRY_BYTES : len(index) - len(index) % ENTRY_BYTES]
        return [
            (seq, entry.offset, span.message if entry.offset == span.offset else "")
            for seq, entry in enumerate(segment_index.decode(whole), first_seq)
            if entry.length and span.offset <= entry.offset < span.end
        ]

    def _unfinished(self, offset: int, size: int) -> Finding:
        return self._finding(
            "note",
            "data",
            f"{size - offset} bytes after the last whole frame",
            offset=offset,
            advice="left by an unfinished checkpoint; the log still has what they were made from",
        )

    def _check_length(self, state: SegmentState, size: int, next_seq: int) -> Iterator[Finding]:
        if size < state.data_bytes:
            last = state.last_seq
            missing = f"; seqs {next_seq} to {last} are missing" if next_seq <= last else ""
            self._bad.append((next_seq, max(last, next_seq)))
            yield self._finding(
                "damage",
                "data",
                f"the file has {size} of the {state.data_bytes} bytes that the snapshot notes{missing}",
                offset=size,
                seq=next_seq if next_seq <= last else None,
                last_seq=last if next_seq <= last else None,
                advice=_SERVED,
            )
        elif size > state.data_bytes:
            yield self._finding(
                "warning" if state.sealed else "note",
                "data",
                f"{size - state.data_bytes} bytes after the noted length",
                offset=state.data_bytes,
                advice="left by an unfinished checkpoint; a start takes in whole frames and cuts the rest",
            )

    def _take(self, item: SegmentItem, size_bytes: int) -> None:
        offset, frame, raw = item
        self.frames += 1
        seq = frame.seq
        flags = frame.flags | (FLAG_DELETED if frame.deleted else 0)
        self._entries[seq] = IndexEntry(offset, len(raw), frame.ts, flags)
        self._digest.update(segment.frame_checksum(raw))
        if frame.flags & FLAG_TAG:
            self._tags.setdefault(frame.tag_in(raw), []).append(seq)
        if frame.deleted:
            self._deleted.add(seq)
        elif seq >= self._floor and seq not in self._pending:
            self.live_count += 1
            self._live_bytes += size_bytes

    def _is_bad(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self._bad)

    # The index.

    def _check_index(self) -> Iterator[Finding]:
        raw = self._files.whole("idx")
        if raw is None:
            self.bad_index = True
            yield self._finding("warning", "idx", "the index is missing", advice=_DERIVED)
            return
        self.bytes_read += len(raw)
        state = self._state
        last_seq = max(self._entries, default=self._first_seq - 1)
        count = state.entry_count if state is not None else last_seq - self._first_seq + 1
        if len(raw) < count * ENTRY_BYTES:
            self.bad_index = True
            severity: Severity = "damage" if state is not None else "note"
            text = f"the index has {len(raw)} bytes, {count} entries need {count * ENTRY_BYTES}"
            yield self._finding(severity, "idx", text, offset=len(raw), advice=_DERIVED)
        elif len(raw) > count * ENTRY_BYTES:
            is_odd = state is not None and state.sealed
            self.bad_index |= is_odd
            text = f"{len(raw) - count * ENTRY_BYTES} bytes after the {count} entries"
            yield self._finding("warning" if is_odd else "note", "idx", text, offset=count * ENTRY_BYTES)
        named = 0
        for finding in self._wrong_entries(raw[: count * ENTRY_BYTES]):
            self.bad_index |= finding.severity == "damage"
            named += 1
            if named <= NAMED_MAX:
                yield finding
        if named > NAMED_MAX:
            yield self._finding("damage", "idx", f"{named - NAMED_MAX} more entries do not agree", advice=_DERIVED)

    def _wrong_entries(self, raw: bytes) -> Iterator[Finding]:
        whole = raw[: len(raw) - len(raw) % ENTRY_BYTES]
        ts_before = position = 0
        for place, entry in enumerate(segment_index.decode(whole)):
            seq = self._first_seq + place
            if self._is_bad(seq):
                ts_before, position = entry.ts, entry.offset + entry.length
                continue
            offset = place * ENTRY_BYTES
            expected = self._entries.get(seq)
            padding = whole[offset + 17 : offset + ENTRY_BYTES]
            if expected is None:
                if entry.length or entry.flags or any(padding):
                    yield self._entry(offset, seq, "a hole", _entry_text(entry, padding))
                elif entry.ts != ts_before:
                    text = "a hole does not have the time of the entry before it"
                    yield self._finding("warning", "idx", text, offset=offset, seq=seq, advice=_DERIVED)
                elif entry.offset not in (0, position):
                    # The offset of a hole is not used. A wrong offset shows that the entry was changed.
                    text = "a hole is not where the next frame begins"
                    yield self._finding("warning", "idx", text, offset=offset, seq=seq, advice=_DERIVED)
                continue
            if entry[:3] != expected[:3] or (entry.flags ^ expected.flags) & ~FLAG_DELETED or any(padding):
                yield self._entry(offset, seq, _entry_text(expected, b""), _entry_text(entry, padding))
            elif entry.flags & FLAG_DELETED and not expected.flags & FLAG_DELETED:
                text = "the entry says deleted, the record's delete byte does not"
                yield self._finding("warning", "idx", text, offset=offset, seq=seq, advice="the delete byte rules")
            ts_before, position = expected.ts, expected.offset + expected.length

    def _entry(self, offset: int, seq: int, expected: str, found: str) -> Finding:
        text = "the index entry does not agree with the frame"
        return self._finding(
            "damage", "idx", text, offset=offset, seq=seq, expected=expected, found=found, advice=_DERIVED
        )

    # The tags.

    def _check_tags(self) -> Iterator[Finding]:
        state = self._state
        raw = self._files.whole("tags")
        if raw is None:
            if state is not None and state.sealed and self._tags:
                self.bad_tags = True
                yield self._finding("warning", "tags", "the tag sidecar is missing", advice=_DERIVED)
            return
        self.bytes_read += len(raw)
        try:
            sidecar = TagSidecar(raw)
            listed = dict(sidecar)
        except FormatError as error:
            self.bad_tags = True
            yield self._finding("damage", "tags", error.message, offset=error.offset, advice=_DERIVED)
            return
        wrong = [] if sidecar.first_seq == self._first_seq else [self._first_seq]
        for tag in sorted(listed.keys() | self._tags.keys()):
            there, said = set(self._tags.get(tag, ())), set(listed.get(tag, ()))
            # A sidecar that was built again leaves out what was deleted by then.
            wrong += [seq for seq in sorted(there - said) if seq not in self._deleted]
            wrong += [seq for seq in sorted(said - there) if not self._is_bad(seq)]
        for seq in sorted(set(wrong))[:NAMED_MAX]:
            self.bad_tags = True
            yield self._finding("damage", "tags", "the sidecar does not agree with the frame", seq=seq, advice=_DERIVED)

    # The snapshot's numbers.

    def _is_proved(self, state: SegmentState) -> bool:
        opened = self._files.open("data")
        if opened is None:
            return True
        read, _, close = opened
        hole = IndexEntry(0, 0, 0, 0)
        try:
            return is_proved(state, lambda place: self._entries.get(self._first_seq + place, hole), read)
        finally:
            close()

    def _check_numbers(self, state: SegmentState) -> Iterator[Finding]:
        if self._bad:
            return
        if state.digest and self._digest.digest() != state.digest:
            yield self._finding(
                "damage",
                "data",
                "every frame is valid, but they are not the ones that were sealed",
                expected=f"digest {state.digest.hex()}",
                found=f"digest {self._digest.hexdigest()}",
                advice="a frame was replaced or lost; restore the file from a copy",
            )
        elif not state.digest and has_proof(state) and not self._is_proved(state):
            yield self._finding(
                "damage",
                "data",
                "every frame is valid, but they are not the ones that the snapshot lists",
                advice="the file belongs to another topic or another instance; restore the right one from a copy",
            )
        counted, noted = (self.live_count, self._live_bytes), (state.live_count, state.live_bytes)
        if self._numbers == "newest" and counted != noted:
            came_back = counted > noted
            yield self._finding(
                "damage" if came_back else "warning",
                "data",
                "deleted records have lost their delete bytes"
                if came_back
                else "more records are deleted than the snapshot knows of",
                expected=f"{noted[0]} live records of {noted[1]} bytes",
                found=f"{counted[0]} of {counted[1]}",
                advice="" if came_back else "an unfinished checkpoint sets delete bytes first; the log has the deletes",
            )
        if self._numbers == "manifest":
            return
        tagged = sum(map(len, self._tags.values()))
        last_ts = max((entry.ts for entry in self._entries.values()), default=0)
        for what, expected, found in (
            ("records with a tag", state.tagged_count, tagged),
            ("the time of its last record", state.last_ts, last_ts),
            ("its last seq", state.last_seq, max(self._entries, default=0)),
        ):
            if expected != found:
                text = f"the snapshot's number of this segment does not agree: {what}"
                yield self._finding("warning", "data", text, expected=str(expected), found=str(found))


def counting_floor(topic: TopicState) -> int:
    """Records below it count as dead, whatever their delete bytes say."""
    evict_floor = min(max(topic.cap_floor, topic.ttl_floor, topic.trim_floor), topic.head_seq) + 1
    return max(evict_floor, min(topic.delete_below, topic.head_seq + 1), topic.first_live)


def _why_bad(read: Read, offset: int, end: int) -> str:
    raw = read(offset, end - offset)
    try:
        segment.check(raw, 0, len(raw))
    except FormatError as error:
        return error.message
    return "the frame is not of the seq that belongs here"


def _pending_inside(topic: TopicState, state: SegmentState) -> frozenset[int]:
    return frozenset(
        seq
        for first, last in topic.pending_deletes
        for seq in range(max(first, state.first_seq), min(last, state.last_seq) + 1)
    )


def _entry_text(entry: IndexEntry, padding: bytes) -> str:
    text = f"offset {entry.offset} length {entry.length} ts {entry.ts} flags {entry.flags}"
    return f"{text} padding {padding.hex()}" if any(padding) else text


def _nothing() -> None:
    pass
