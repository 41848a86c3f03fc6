"""Compares the segment files of a topic with its snapshot entry.

An unfinished checkpoint leaves frames after the noted length of the active segment, or whole files that no snapshot
lists. Their records were synced in the WAL and published. So frames and files that continue the noted segments are
taken in, and the replay skips their seqs. Any other file that is not listed is left alone and reported.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from topics.errors import Damaged, FormatError
from topics.formats import envelope, segment_index
from topics.formats import segment as codec
from topics.formats.record_layout import FLAG_TAG
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic
from topics.storage.segments.frame_walk import rebuild_index, walk_entries
from topics.storage.segments.replacement import settle_index, version_in_place

Tell = Callable[[str], None]
"""Gets a warning or a note for the report of the start."""


def segment_files(fs: Fs, directory: str) -> tuple[dict[int, set[str]], list[int]]:
    """First seq -> kinds of files found; and first seqs of segments that have a mark file: they were replaced."""
    found: dict[int, set[str]] = {}
    replaced: list[int] = []
    if fs.exists(directory):
        for name in fs.listdir(directory):
            parsed = layout.segment_of(name)
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
            elif (first_seq := layout.replaced_mark_of(name)) is not None:
                replaced.append(first_seq)
    return found, replaced


def adopt_segments(
    fs: Fs, root: str, state: TopicState, warn: Tell, note: Tell, on_replaced: Callable[[int], None] | None = None
) -> list[SegmentState]:
    """Brings the noted segments of one topic in line with its files.

    `warn` gets damage, `note` gets repairs that lost nothing, `on_replaced` gets the first seq of each segment that was
    replaced. Returns segments that the snapshot does not list because the floors have passed them. Their files must
    stay until no kept snapshot lists them, like the files of every dropped segment.
    """
    directory = layout.topic_directory(root, state.id)
    found, replaced = segment_files(fs, directory)
    if replaced:
        _adopt_replaced(fs, directory, state, replaced, note)
    if on_replaced is not None:
        for first_seq in replaced:
            on_replaced(first_seq)
    for segment in state.segments:
        kinds = found.pop(segment.first_seq, set())
        if segment.tier == "cold" and "data" in kinds:
            # The segment has a hot and a cold copy. The hot one is used, and is moved again later.
            segment.tier = "hot"
        if "data" in kinds:
            _check_segment(fs, f"{directory}/{layout.segment_stem(segment.first_seq)}", segment, kinds, warn)
    _adopt_active(fs, directory, state, note)
    unlisted = [
        _adopt_unlisted(fs, directory, state, first_seq, found[first_seq], warn, note) for first_seq in sorted(found)
    ]
    return [segment for segment in unlisted if segment is not None]


def _adopt_replaced(fs: Fs, directory: str, state: TopicState, replaced: list[int], note: Tell) -> None:
    """Replaced segments: the snapshot may describe the old files, so the state is read from the new ones."""
    for place, segment in enumerate(state.segments):
        stem = f"{directory}/{layout.segment_stem(segment.first_seq)}"
        if segment.first_seq not in replaced or not fs.exists(f"{stem}.data"):
            continue
        try:
            found = version_in_place(fs, stem, segment, state.first_live)
        except FormatError as error:
            raise Damaged(
                f"{stem}{layout.REPLACED}", 0, "the mark file of a replaced segment", error.message
            ) from error
        if found is not None:
            note(f"{stem}.data: the segment was replaced after the snapshot was taken; the new file is used")
            state.segments[place] = segment = found
            state.checkpointed_seq = max(state.checkpointed_seq, segment.last_seq)
        if segment.sealed:
            settle_index(fs, stem, segment)


def _check_segment(fs: Fs, stem: str, segment: SegmentState, kinds: set[str], warn: Tell) -> None:
    size = fs.size(f"{stem}.data")
    if size < segment.data_bytes:
        warn(f"{stem}.data has {size} of {segment.data_bytes} bytes: records at its end are damaged")
        segment.sealed = True
    index_bytes = segment.entry_count * segment_index.ENTRY_BYTES
    if "idx" not in kinds or fs.size(f"{stem}.idx") < index_bytes:
        warn(f"{stem}.idx is missing or short: built again from the frames")
        rebuild_index(fs, stem, segment)


def _adopt_active(fs: Fs, directory: str, state: TopicState, note: Tell) -> None:
    """Takes in whole frames after the noted length of the active segment."""
    if not state.segments or state.segments[-1].sealed or state.segments[-1].tier != "hot":
        return
    segment = state.segments[-1]
    stem = f"{directory}/{layout.segment_stem(segment.first_seq)}"
    path = f"{stem}.data"
    if not fs.exists(path) or fs.size(path) == segment.data_bytes:
        return
    data = read_file(fs, path)
    before = segment.entry_count
    _extend(segment, data)
    if segment.data_bytes < len(data):
        _cut(fs, path, segment.data_bytes)
    if segment.entry_count > before:
        note(f"{path}: took in {segment.entry_count - before} records of an unfinished checkpoint")
        write_atomic(
            fs, f"{stem}.idx", segment_index.encode(walk_entries(data[: segment.data_bytes], segment.first_seq, None))
        )
        fs.sync_dir(directory)
        _sync(fs, path)
        state.checkpointed_seq = max(state.checkpointed_seq, segment.last_seq)


def _adopt_unlisted(
    fs: Fs, directory: str, state: TopicState, first_seq: int, kinds: set[str], warn: Tell, note: Tell
) -> SegmentState | None:
    """Takes in a segment that continues the listed ones. Returns the segment when it is wholly below the floors."""
    stem = f"{directory}/{layout.segment_stem(first_seq)}"
    floor = max(state.cap_floor, state.ttl_floor, state.trim_floor, state.delete_below - 1) + 1
    if "data" not in kinds:
        warn(f"{stem}.*: index or tags without their data; left alone")
        return None
    data = read_file(fs, f"{stem}.data")
    segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0)
    _extend(segment, data)
    last_seq = segment.last_seq
    # A segment after a gap is not taken in: the WAL has all its records, and perhaps the records of the gap.
    if segment.entry_count == 0 or first_seq != state.checkpointed_seq + 1:
        if segment.entry_count and last_seq < floor:
            return segment
        if segment.entry_count:
            warn(f"{stem}.data: seqs {first_seq} to {last_seq} are in no snapshot and follow no segment; left alone")
        return None
    if state.segments and not state.segments[-1].sealed:
        state.segments[-1].sealed = True
    if segment.data_bytes < len(data):
        _cut(fs, f"{stem}.data", segment.data_bytes)
    write_atomic(fs, f"{stem}.idx", segment_index.encode(walk_entries(data[: segment.data_bytes], first_seq, None)))
    fs.sync_dir(directory)
    _sync(fs, f"{stem}.data")
    note(f"{stem}.data: took in {segment.entry_count} records of an unfinished checkpoint")
    state.segments.append(segment)
    state.checkpointed_seq = last_seq
    return None


def _cut(fs: Fs, path: str, size: int) -> None:
    file = fs.open(path, "write")
    try:
        file.truncate(size)
        file.fsync()
    finally:
        file.close()


def _sync(fs: Fs, path: str) -> None:
    file = fs.open(path, "write")
    try:
        file.fsync()
    finally:
        file.close()


def _extend(segment: SegmentState, data: bytes) -> None:
    """Adds the whole valid frames after the noted length to the numbers of the segment."""
    try:
        for frame in codec.walk(data, segment.data_bytes, len(data)):
            if frame.seq <= segment.last_seq:
                return
            if segment.entry_count == 0 and segment.first_ts == 0:
                segment.first_ts = segment.created_ts = frame.ts
            segment.entry_count = frame.seq - segment.first_seq + 1
            segment.data_bytes = frame.end
            segment.last_ts = max(segment.last_ts, frame.ts)
            if frame.flags & FLAG_TAG:
                segment.tagged_count += 1
            if not frame.deleted:
                segment.live_count += 1
                segment.live_bytes += envelope.accounted_bytes(frame.data_in(data))
    except FormatError:
        return


def rebuild_states(fs: Fs, root: str, warn: Tell) -> tuple[list[TopicState], int]:
    """Topic states from segments and topic.json alone, and a next topic id that no topic ever had."""
    states: list[TopicState] = []
    highest_id = 0
    topics = layout.topics_directory(root)
    for name in fs.listdir(topics):
        topic_id = layout.topic_of(name.removesuffix(layout.DELETED))
        if topic_id is None:
            continue
        highest_id = max(highest_id, topic_id)
        if not name.endswith(layout.DELETED):
            states.append(_rebuild_state(fs, f"{topics}/{name}", topic_id, warn))
    # A removed topic leaves no trace of its id, so many ids are skipped.
    return states, (highest_id | 0xFFFF) + 1


def _rebuild_state(fs: Fs, directory: str, topic_id: int, warn: Tell) -> TopicState:
    described = _read_topic_json(fs, directory, topic_id, warn)
    state = TopicState(described["name"], topic_id, described["epoch"], described["config"])
    for floor in ("cap_floor", "ttl_floor", "trim_floor", "delete_below"):
        setattr(state, floor, described.get(floor, 0))
    state.lease_ceiling = described.get("lease_ceiling", 1)
    state.lost, state.source_trims = _ranges(described, "lost"), _ranges(described, "source_trims")
    for first_seq in sorted(segment_files(fs, directory)[0]):
        stem = f"{directory}/{layout.segment_stem(first_seq)}"
        if first_seq <= state.checkpointed_seq:
            continue
        if not fs.exists(f"{stem}.data"):
            continue
        segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0)
        data = read_file(fs, f"{stem}.data")
        _extend(segment, data)
        if segment.data_bytes < len(data):
            warn(f"{stem}.data is damaged at offset {segment.data_bytes}: records after that offset are lost")
        if segment.entry_count == 0:
            continue
        gap_from = max(state.checkpointed_seq + 1, state.delete_below)
        if state.segments and gap_from < first_seq:
            # An older file is damaged or missing. Perhaps all its records were deleted, but without a snapshot that is
            # not known. Readers get a tombstone.
            state.lost.append((gap_from, first_seq - 1))
        if state.segments:
            state.segments[-1].sealed = True
        state.segments.append(segment)
        state.checkpointed_seq = state.head_seq = segment.last_seq
        state.last_ts = max(state.last_ts, segment.last_ts)
        rebuild_index(fs, stem, segment)
    # Seqs of a lost range are used, also when no segment follows it.
    state.head_seq = max([state.head_seq, *(last for _, last in (*state.lost, *state.source_trims))])
    if state.segments:
        # Records older than the oldest one found are gone. The floor tells readers.
        state.cap_floor = max(state.cap_floor, state.segments[0].first_seq - 1)
        state.segments[-1].sealed = True
        state.first_live = state.segments[0].first_seq
    warn(f'topic "{state.name}" was rebuilt from {len(state.segments)} segments')
    return state


def _ranges(described: dict[str, Any], member: str) -> list[tuple[int, int]]:
    try:
        return msgspec.convert(described.get(member, []), list[tuple[int, int]])
    except msgspec.ValidationError:
        return []


def _read_topic_json(fs: Fs, directory: str, topic_id: int, warn: Tell) -> dict[str, Any]:
    path = f"{directory}/{layout.TOPIC_JSON}"
    if fs.exists(path):
        try:
            described: dict[str, Any] = msgspec.json.decode(read_file(fs, path), type=dict[str, Any])
            if isinstance(described.get("name"), str) and isinstance(described.get("config"), dict):
                return {"epoch": 1, **described}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        warn(f"{path} is damaged")
    return {"name": f"recovered-{topic_id}", "epoch": 1, "config": {}}
