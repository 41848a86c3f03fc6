"""Takes a backup: copies what is new, reads it back, and writes the point last.

rule 1  A point is written when every object that it needs is there, durable and checked. So a killed run leaves objects
        that no point refers to, and the next run uses them.
rule 2  A sealed segment is copied once: it is recognised by its digest. Only its delete bytes change. A segment whose
        number of live records is the same as in the last point has no new deletes, and is not read again.
rule 3  All topics of a point are from one picture of the log. Copying may take long, so a new picture is taken after
        many bytes were copied: the next copy is short, and the point is close to the present.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import msgspec

from topics.backup import format as codec
from topics.backup.format import Point, StoredFile, TopicEntry, TopicRef
from topics.backup.ranges import Range, Ranges, clip, count, intersect, normal, runs_of, subtract
from topics.backup.source import TAIL_BYTES, Gap, Outdated, Picture, Source
from topics.backup.store import BackupStore
from topics.errors import Damaged, TopicsError
from topics.formats.segment import SegmentColumns
from topics.formats.snapshot import SegmentState, TopicState
from topics.limits import MIB
from topics.storage.inspect.scan import BadBytes, scan_segment
from topics.version import VERSION

# After a pass that copied more than this a new picture is taken.
SETTLED_BYTES: Final = 64 * MIB
# So many pictures are taken because of long copies, and so many because the log changed under the copy.
PASSES_MAX: Final = 5
OUTDATED_MAX: Final = 20

Progress = Callable[[int, int], None]
"""Gets the bytes that are done, and the bytes in all, of the present pass."""


class NotSettled(TopicsError):
    """The log changed faster than it could be copied."""

    code = "not_settled"


@dataclass(slots=True)
class BackupReport:
    point: str = ""
    ts: int = 0
    topics: int = 0
    records: int = 0
    size_bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0
    verified_files: int = 0
    verified_bytes: int = 0
    pictures: int = 0
    # What is damaged in the log: the backup has all records but these.
    damage: list[str] = field(default_factory=list)
    # What the backup does not hold, in sentences.
    notes: list[str] = field(default_factory=list)


def take_backup(
    source: Source,
    store: BackupStore,
    now_ms: int,
    *,
    verify_all: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Every object that this run wrote is read back and checked, with `verify_all` also every older one.

    Damaged records of the log are named in the report; the point has all others, and a lost range for these. Raises
    `Damaged` when bytes of the backup are bad, and `NotSettled`.
    """
    return _Taking(source, store, verify_all=verify_all, progress=progress or _no_progress).run(now_ms)


class _Taking:
    def __init__(self, source: Source, store: BackupStore, *, verify_all: bool, progress: Progress) -> None:
        self._source = source
        self._store = store
        self._verify_all = verify_all
        self._progress = progress
        # (topic id, digest) -> the segment in the last point, or as this run has copied it.
        self._known: dict[tuple[int, str], StoredFile] = {}
        # Entries of the last point.
        self._known_entries: set[str] = set()
        # Of the log: where -> what is damaged, and topic id -> seqs of the damaged records.
        self._damage: dict[str, Damaged] = {}
        self._lost: dict[int, list[Range]] = {}
        # Topic id -> records of segments that were evicted after the picture was taken.
        self._evicted: dict[int, list[Gap]] = {}
        # Files that this run wrote, by name.
        self._written: dict[str, StoredFile] = {}
        self._report = BackupReport()

    def run(self, now_ms: int) -> BackupReport:
        picture = self._source.picture()
        self._store.claim(picture.store_id, now_ms)
        self._load_known()
        entries = self._settled_entries(picture)
        return self._finish(*entries)

    def _load_known(self) -> None:
        names = self._store.point_names()
        if not names:
            return
        for ref in self._store.point(names[-1]).topics:
            self._known_entries.add(ref.entry)
            for file in self._store.entry(ref.entry).files:
                if file.digest and self._store.has(file):
                    self._known[ref.id, file.digest] = file

    # Pictures.

    def _settled_entries(self, picture: Picture) -> tuple[Picture, list[TopicEntry]]:
        """The last picture, and the entries of its topics. Their files are all in the store."""
        passes = outdated = 0
        while True:
            self._report.pictures += 1
            try:
                copied = self._copy_segments(picture)
                passes += 1
                if copied <= SETTLED_BYTES or passes >= PASSES_MAX:
                    return picture, [self._entry(topic) for topic in picture.topics]
            except Outdated as error:
                outdated += 1
                if outdated >= OUTDATED_MAX:
                    raise NotSettled(
                        f"{outdated} pictures of the log were outdated before they were copied: {error}"
                    ) from error
            taken = self._source.picture()
            if taken.store_id != picture.store_id:
                raise NotSettled(
                    "another data directory took the place of the log during the backup: store "
                    f"{picture.store_id} became {taken.store_id}; back up each one to a place of its own"
                )
            picture = taken

    def _copy_segments(self, picture: Picture) -> int:
        """Brings every sealed segment into the store. Returns how many bytes were written."""
        written = self._report.new_bytes
        wanted = [(topic, segment) for topic in picture.topics for segment in topic.segments if segment.sealed]
        total = sum(segment.data_bytes for _, segment in wanted)
        done = 0
        for topic, segment in wanted:
            self._segment_file(topic, segment)
            done += segment.data_bytes
            self._progress(done, total)
        return self._report.new_bytes - written

    # Segments.

    def _segment_file(self, topic: TopicState, segment: SegmentState) -> StoredFile | None:
        """The segment in the store, with the records that are live in the picture; None when it has none."""
        key = topic.id, segment.digest.hex()
        known = self._known.get(key)
        if known is None or known.counted_live != segment.live_count or not segment.digest:
            known = self._copy(topic, segment, known)
            if known is None:
                return None
            self._known[key] = known
        live = subtract(known.live, normal(topic.pending_deletes))
        return msgspec.structs.replace(known, live=live)

    def _copy(self, topic: TopicState, segment: SegmentState, known: StoredFile | None) -> StoredFile | None:
        copy = self._source.segment(topic, segment)
        if copy.evicted is not None:
            self._evicted.setdefault(topic.id, []).append(copy.evicted)
        if copy.lost:
            self._note_damage(topic, copy.where, list(copy.lost))
            return self._put_undamaged(topic, segment, copy.where, copy.data)
        try:
            frames = codec.scan_frames(copy.where, copy.data)
        except Damaged as damage:
            data, lost = valid_frames(copy.data, segment)
            self._note_damage(topic, copy.where, lost, damage)
            return self._put_undamaged(topic, segment, copy.where, data)
        digest = codec.digest_of(frames)
        if copy.is_whole and segment.digest and digest != segment.digest.hex():
            raise Outdated(f"{copy.where} was written again")
        live = _live_in(frames)
        if known is not None:
            # The file is in the store. Only the records that were deleted meanwhile are new.
            if not copy.is_whole:
                # Records that were evicted meanwhile are not in the copy either. They were not deleted.
                evicted_to = 0 if copy.evicted is None else copy.evicted.last_seq
                live = normal([*live, *subtract(known.live, [(evicted_to + 1, segment.last_seq)])])
            live = intersect(known.live, live)
            return msgspec.structs.replace(known, live=live, counted_live=segment.live_count)
        if not len(frames):
            return None
        identity = segment.digest.hex() or digest
        file = codec.stored_file(
            codec.segment_name(topic.id, segment.first_seq, identity),
            copy.data,
            frames,
            live,
            digest=identity,
            counted_live=segment.live_count,
        )
        return self._put(file, copy.data)

    def _note_damage(self, topic: TopicState, where: str, lost: Ranges, damage: Damaged | None = None) -> None:
        """The seqs of damaged records become lost ranges of the point."""
        seqs = ", ".join(f"{first} to {last}" for first, last in lost)
        self._damage[where] = damage or Damaged(where, 0, f"seqs {seqs}", "damaged records")
        self._lost.setdefault(topic.id, []).extend(lost)

    def _put_undamaged(self, topic: TopicState, segment: SegmentState, where: str, data: bytes) -> StoredFile | None:
        """The valid frames of a damaged segment."""
        if not data:
            return None
        frames = codec.scan_frames(where, data)
        # With another digest the next run looks at the segment again.
        digest = codec.digest_of(frames)
        name = codec.segment_name(topic.id, segment.first_seq, digest)
        return self._put(codec.stored_file(name, data, frames, _live_in(frames), digest=digest), data)

    def _put(self, file: StoredFile, data: bytes) -> StoredFile:
        """Writes the file, unless it is there: a killed run left it, or another run has put it. Returns what is there:
        a segment may have other delete bytes."""
        if not self._store.put_new_file(file, data):
            found = self._found(file)
            if found is not None:
                return found
            self._store.replace_file(file, data)
        self._written[file.name] = file
        self._report.new_files += 1
        self._report.new_bytes += len(data)
        return file

    def _found(self, file: StoredFile) -> StoredFile | None:
        """The file as it is in the store, with every frame checked; None when it is not usable."""
        data = self._store.content(file.name)
        if not data:
            return None
        try:
            frames = codec.scan_frames(file.name, data)
        except Damaged:
            return None
        # A segment may have been copied as frames, without the records that were deleted then.
        has_all = bool(file.digest) and not subtract(file.live, runs_of(frames.seqs))
        if not has_all and sha256(data).hexdigest() != file.sha256:
            return None
        live = intersect(file.live, _live_in(frames))
        return codec.stored_file(file.name, data, frames, live, digest=file.digest, counted_live=file.counted_live)

    # Topics.

    def _entry(self, topic: TopicState) -> TopicEntry:
        sealed = [segment for segment in topic.segments if segment.sealed]
        files = [file for segment in sealed if (file := self._segment_file(topic, segment)) is not None]
        first_seq = max(sealed[-1].last_seq + 1 if sealed else 1, topic.first_live)
        state = msgspec.structs.replace(topic, segments=[], pending_deletes=[], ceiling=0)
        for evicted in self._evicted.get(topic.id, []):
            self._note_gap(state, evicted)
        for data, gap in self._tail_chunks(topic, first_seq):
            if gap is not None:
                self._note_gap(state, gap)
            if data:
                frames = codec.scan_frames(f'topic "{topic.name}"', data)
                name = codec.tail_name(topic.id, frames.seqs[0], data)
                files.append(self._put(codec.stored_file(name, data, frames, runs_of(frames.seqs)), data))
        state.lost = normal(
            [*state.lost, *clip(normal(self._lost.get(topic.id, [])), state.first_live, state.head_seq)]
        )
        return TopicEntry(state=state, files=files)

    def _note_gap(self, state: TopicState, gap: Gap) -> None:
        if gap.reason == "corrupt":
            self._note_damage(state, f'topic "{state.name}"', [(gap.first_seq, gap.last_seq)])
        else:
            _raise_floors(state, gap.last_seq, gap.reason)

    def _tail_chunks(self, topic: TopicState, first_seq: int) -> Iterator[tuple[bytes, Gap | None]]:
        """The tail in chunks of a bounded size, and the gap after each."""
        pieces: list[bytes] = []
        size = 0
        for part in self._source.tail(topic, first_seq):
            if part.gap is not None or size + len(part.data) > TAIL_BYTES:
                yield b"".join(pieces), part.gap
                pieces, size = [], 0
            pieces.append(part.data)
            size += len(part.data)
        yield b"".join(pieces), None

    # The end.

    def _finish(self, picture: Picture, entries: list[TopicEntry]) -> BackupReport:
        report = self._report
        self._verify(entries)
        refs = [self._ref(entry) for entry in entries]
        point = Point(
            ts=picture.ts,
            store_id=picture.store_id,
            version=VERSION,
            topics=refs,
            routers=picture.snapshot.routers,
            next_topic_id=picture.snapshot.next_topic_id,
            next_router_id=picture.snapshot.next_router_id,
            new_files=report.new_files,
            new_bytes=report.new_bytes,
        )
        self._store.settle()
        report.point = self._store.put_point(point)
        report.ts = point.ts
        report.topics = len(refs)
        report.records = sum(ref.records for ref in refs)
        report.size_bytes = sum(ref.size_bytes for ref in refs)
        report.notes = list(_notes(entries))
        report.damage = [damage.message for damage in self._damage.values()]
        return report

    def _verify(self, entries: list[TopicEntry]) -> None:
        report = self._report
        wanted = {file.name: file for entry in entries for file in entry.files}
        if not self._verify_all:
            wanted = {name: file for name, file in wanted.items() if name in self._written}
        total = sum(file.size_bytes for file in wanted.values())
        for file in wanted.values():
            self._store.check(file)
            report.verified_files += 1
            report.verified_bytes += file.size_bytes
            self._progress(report.verified_bytes, total)

    def _ref(self, entry: TopicEntry) -> TopicRef:
        return TopicRef(
            id=entry.state.id,
            name=entry.state.name,
            entry=self._store.put_entry(entry.state.id, entry, self._known_entries),
            records=sum(count(live_of(entry, file)) for file in entry.files),
            size_bytes=sum(file.size_bytes for file in entry.files),
        )


def live_of(entry: TopicEntry, file: StoredFile) -> Ranges:
    """The live records of a file: without the ones below the floors of the topic."""
    return [(max(first, entry.state.first_live), last) for first, last in file.live if last >= entry.state.first_live]


def _live_in(frames: SegmentColumns) -> Ranges:
    """The seqs of the frames whose delete byte is not set."""
    return runs_of(seq for seq, is_deleted in zip(frames.seqs, frames.deleted, strict=True) if not is_deleted)


def valid_frames(data: bytes, segment: SegmentState) -> tuple[bytes, Ranges]:
    """The valid frames of a damaged segment, and the seqs of which there is none because of the damage."""
    pieces: list[bytes] = []
    lost: Ranges = []
    next_seq, is_bad = segment.first_seq, False

    def read(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    for item in scan_segment(read, len(data), segment.first_seq, segment.last_seq + 1):
        if isinstance(item, BadBytes):
            is_bad = True
            continue
        if is_bad:
            lost += [(next_seq, item.frame.seq - 1)] if next_seq < item.frame.seq else []
        is_bad = False
        pieces.append(item.raw)
        next_seq = item.frame.seq + 1
    if next_seq <= segment.last_seq:
        lost.append((next_seq, segment.last_seq))
    return b"".join(pieces), lost


def _raise_floors(state: TopicState, last_seq: int, reason: str) -> None:
    """Records were evicted after the picture was taken: their seqs are below a floor now."""
    if reason in {"cap", "mixed"}:
        state.cap_floor = max(state.cap_floor, last_seq)
    if reason in {"ttl", "mixed"}:
        state.ttl_floor = max(state.ttl_floor, last_seq)
    state.first_live = max(state.first_live, min(last_seq, state.head_seq) + 1)


def _notes(entries: list[TopicEntry]) -> Iterator[str]:
    for entry in entries:
        state = entry.state
        if state.config.get("durability") == "ephemeral" and state.head_seq > state.checkpointed_seq:
            yield f'topic "{state.name}" is ephemeral: its records are in memory only, and not in the backup'


def _no_progress(_done: int, _total: int) -> None:
    pass
