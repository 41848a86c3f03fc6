"""Compares the segment files of a topic with its snapshot entry.

An unfinished checkpoint leaves frames after the noted length of the active segment, or whole files that no snapshot
lists. Their records were synced in the WAL and published. So frames and files that continue the noted segments are
taken in, and the replay skips their seqs, but compares them (`adopted_records`). Any other file that is not listed is
left alone and reported.
"""

from array import array
from collections.abc import Callable

from topics.engine.starting.adopted_records import AdoptedRecords
from topics.errors import Damaged, FormatError
from topics.formats import kernel, segment_index
from topics.formats.segment import SegmentColumns
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage import layout
from topics.storage.fs import Fs, read_file, write_atomic
from topics.storage.segments.frame_walk import rebuild_index, walk_entries
from topics.storage.segments.numbers import extend
from topics.storage.segments.proof import is_file_proved
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
    fs: Fs,
    root: str,
    state: TopicState,
    adopted: AdoptedRecords,
    warn: Tell,
    note: Tell,
    on_replaced: Callable[[int], None] | None = None,
) -> list[SegmentState]:
    """Brings the noted segments of one topic in line with its files.

    `adopted` gets the records that are taken in, `warn` gets damage, `note` gets repairs that lost nothing,
    `on_replaced` gets the first seq of each segment that was replaced. Returns segments that the snapshot does not list
    because the floors have passed them. Their files must stay until no kept snapshot lists them, like the files of
    every dropped segment.
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
    _adopt_active(fs, directory, state, adopted, warn, note)
    unlisted = [
        _adopt_unlisted(fs, directory, state, first_seq, found[first_seq], adopted, warn, note)
        for first_seq in sorted(found)
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


def _adopt_active(fs: Fs, directory: str, state: TopicState, adopted: AdoptedRecords, warn: Tell, note: Tell) -> None:
    """Takes in whole frames after the noted length of the active segment."""
    if not state.segments or state.segments[-1].sealed or state.segments[-1].tier != "hot":
        return
    segment = state.segments[-1]
    stem = f"{directory}/{layout.segment_stem(segment.first_seq)}"
    path = f"{stem}.data"
    if not fs.exists(path) or fs.size(path) == segment.data_bytes:
        return
    if not is_file_proved(fs, stem, segment):
        warn(f"{path} is a file of another topic or another instance: its records are not served")
        segment.sealed = True
        return
    data = read_file(fs, path)
    before = segment.entry_count
    added = extend(segment, data)
    if segment.data_bytes < len(data):
        _cut(fs, path, segment.data_bytes)
    if segment.entry_count > before:
        adopted.add(path, added)
        note(f"{path}: took in {segment.entry_count - before} records of an unfinished checkpoint")
        write_atomic(
            fs, f"{stem}.idx", segment_index.encode(walk_entries(data[: segment.data_bytes], segment.first_seq, None))
        )
        fs.sync_dir(directory)
        sync_file(fs, path)
        state.checkpointed_seq = max(state.checkpointed_seq, segment.last_seq)


def _adopt_unlisted(
    fs: Fs,
    directory: str,
    state: TopicState,
    first_seq: int,
    kinds: set[str],
    adopted: AdoptedRecords,
    warn: Tell,
    note: Tell,
) -> SegmentState | None:
    """Takes in a segment that continues the listed ones. Returns the segment when it is wholly below the floors."""
    stem = f"{directory}/{layout.segment_stem(first_seq)}"
    floor = max(state.cap_floor, state.ttl_floor, state.trim_floor, state.delete_below - 1) + 1
    if "data" not in kinds:
        warn(f"{stem}.*: index or tags without their data; left alone")
        return None
    data = read_file(fs, f"{stem}.data")
    segment = SegmentState(first_seq, 0, 0, 0, 0, 0, 0)
    frames = extend(segment, data)
    last_seq = segment.last_seq
    # A segment after a gap is not taken in: the WAL has all its records, and perhaps the records of the gap.
    if segment.entry_count == 0 or first_seq != state.checkpointed_seq + 1:
        if segment.entry_count and last_seq < floor:
            return segment
        if segment.entry_count:
            warn(f"{stem}.data: seqs {first_seq} to {last_seq} are in no snapshot and follow no segment; left alone")
        return None
    adopted.add(f"{stem}.data", frames)
    if state.segments and not state.segments[-1].sealed:
        state.segments[-1].sealed = True
    if segment.data_bytes < len(data):
        _cut(fs, f"{stem}.data", segment.data_bytes)
    _write_index(fs, stem, segment, data, frames)
    fs.sync_dir(directory)
    sync_file(fs, f"{stem}.data")
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


def sync_file(fs: Fs, path: str) -> None:
    file = fs.open(path, "write")
    try:
        file.fsync()
    finally:
        file.close()


def _write_index(fs: Fs, stem: str, segment: SegmentState, data: bytes, frames: SegmentColumns) -> None:
    """The index of a segment whose frames are all in `frames`. A file that has the right content already is only
    synced: the job that wrote it may not have come so far."""
    path = f"{stem}.idx"
    if len(frames) == segment.entry_count:
        content = kernel.index_entries(array("I", frames.ends), frames.times, frames.flags, 0, len(frames), 0)
    else:
        content = segment_index.encode(walk_entries(data[: segment.data_bytes], segment.first_seq, None))
    if fs.exists(path) and fs.size(path) == len(content) and read_file(fs, path) == content:
        sync_file(fs, path)
    else:
        write_atomic(fs, path, content)
