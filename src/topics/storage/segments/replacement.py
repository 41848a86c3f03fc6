"""Replacing the files of a sealed segment by files without some of its deleted records.

A checkpoint job does it by itself when more than half of a segment is deleted (`rewrite_segment`), and a program may
offer files (`replace_segment`). The offered files only say which frames stay. Each offered frame must equal the frame
in the present file, except for its delete byte. The bytes are taken from the present file, so that no new bytes get
in, and no delete byte that was set meanwhile gets lost. A frame is left out only if its delete byte is set in the
file: the log up to that delete is synced by then. The last frame always stays, because a segment ends with a record:
a reader without an index finds the end that way.

A snapshot notes length and digest of a segment, and the two kept snapshots go on noting the old ones. So a *mark*
beside the files, `seg-….replaced`, lists every version that a snapshot may note.

1. The new `.data` and `.idx` are written under temporary names and synced.
2. The mark is written, synced.
3. `.idx` is renamed, then `.data`: an index that does not fit its `.data` is noticed, whichever of the two is older.
   The directory is synced.
4. `.tags` is written.

Every version is shorter than the one before, so the length of `.data` says which version it is. The mark goes when both
kept snapshots were taken after the exchange.
"""

import logging
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128

from topics.errors import BadFrame, FormatError, InvalidRequest, NotFound, Torn
from topics.formats import envelope, segment_index, tag_sidecar
from topics.formats import segment as codec
from topics.formats.record_layout import FLAG_TAG
from topics.formats.segment import SegmentFrame
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.fs import Fs, NotAFile, read_file, write_all, write_atomic
from topics.storage.segments.frame_walk import rebuild_index
from topics.storage.segments.proof import prove

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_TEMPORARY: Final = ".replacing" + layout.TEMPORARY


class _Mark(msgspec.Struct):
    """The content of `seg-….replaced`, as JSON."""

    format: int
    # XXH3-64 of the bytes of `versions`, in hexadecimal.
    checksum: str
    versions: msgspec.Raw


class Replaced(NamedTuple):
    """A segment after its replacement."""

    data_bytes: int
    tagged_count: int
    digest: bytes
    # Frames that were left out.
    removed_count: int
    # False when the directory could not be synced: a power loss may bring the old files back, so the mark stays.
    is_durable: bool
    proof: bytes


# Offering.


def replace_segment(fs: Fs, root: str, topic_id: int, state: SegmentState, data_name: str, idx_name: str) -> Replaced:
    """Puts the pair of these names in `staging/` in the place of a sealed, hot segment.

    Raises `NotFound` and `InvalidRequest` for what is offered, `FormatError` for a present file that is damaged.
    The files must not change meanwhile, and `state` must describe them.
    """
    stem = f"{layout.topic_directory(root, topic_id)}/{layout.segment_stem(state.first_seq)}"
    present = read_file(fs, f"{stem}.data")
    frames = _present_frames(present, state)
    offered = _offered_frames(fs, root, state, data_name, idx_name, present, frames)
    removed_count = _check_left_out(frames, offered)
    replaced = _put_in_place(
        fs, stem, state, present, [frame for frame in frames if frame.seq in offered], removed_count
    )
    _remove_offered(fs, root, data_name, idx_name)
    return replaced


class Rewritten(NamedTuple):
    """A segment that was looked at, and its replacement if it was written again."""

    # Bytes of the frames whose delete byte is not set.
    kept_bytes: int
    replaced: Replaced | None


def rewrite_segment(fs: Fs, root: str, topic_id: int, state: SegmentState) -> Rewritten:
    """Writes a sealed, hot segment again without its deleted records, if they are more than half of its bytes.

    Raises `FormatError` for a file that is damaged. The files must not change meanwhile, and `state` must describe
    them, or the version before the present one: the worker may have died after it replaced the files.
    """
    stem = f"{layout.topic_directory(root, topic_id)}/{layout.segment_stem(state.first_seq)}"
    newer = version_in_place(fs, stem, state, 0)
    if newer is not None:
        settle_index(fs, stem, newer)
        replaced = Replaced(
            newer.data_bytes,
            newer.tagged_count,
            newer.digest,
            removed_count=0,
            is_durable=True,
            proof=newer.proof,
        )
        return Rewritten(newer.data_bytes, replaced)
    present = read_file(fs, f"{stem}.data")
    frames = _present_frames(present, state)
    deleted = [frame for frame in frames if frame.deleted]
    kept_bytes = state.data_bytes - sum(frame.end - frame.offset for frame in deleted)
    if 2 * kept_bytes >= state.data_bytes:
        return Rewritten(kept_bytes, None)
    kept = [frame for frame in frames if not frame.deleted or frame is frames[-1]]
    if len(kept) == len(frames):
        return Rewritten(kept_bytes, None)
    return Rewritten(kept_bytes, _put_in_place(fs, stem, state, present, kept, len(frames) - len(kept)))


def _put_in_place(
    fs: Fs, stem: str, state: SegmentState, present: bytes, kept: list[SegmentFrame], removed_count: int
) -> Replaced:
    """Exchanges the files for files with these frames of the present file."""
    data = b"".join([present[frame.offset : frame.end] for frame in kept])
    tags = _tags(present, kept)
    new = msgspec.structs.replace(
        state, data_bytes=len(data), digest=_digest(present, kept), tagged_count=sum(map(len, tags.values()))
    )
    entries = _entries(kept, state)
    new.proof = prove(new, entries.__getitem__, lambda offset, size: data[offset : offset + size])
    index = segment_index.encode(entries)
    sidecar = tag_sidecar.encode(state.first_seq, tags) if tags else b""
    if removed_count:
        _exchange(fs, stem, state, new, data, index)
    else:
        write_atomic(fs, f"{stem}.idx", index)
    is_durable = _finish(fs, stem, sidecar)
    return Replaced(new.data_bytes, new.tagged_count, new.digest, removed_count, is_durable, new.proof)


def _present_frames(present: bytes, state: SegmentState) -> list[SegmentFrame]:
    if len(present) < state.data_bytes:
        raise Torn(f"the file has {len(present)} of {state.data_bytes} bytes", len(present))
    frames = list(codec.walk(present, 0, state.data_bytes))
    if _digest(present, frames) != state.digest:
        raise BadFrame("the frames are not the ones that were sealed")
    return frames


def _offered_frames(
    fs: Fs,
    root: str,
    state: SegmentState,
    data_name: str,
    idx_name: str,
    present: bytes,
    frames: list[SegmentFrame],
) -> set[int]:
    """Seqs of the offered frames. Each frame is compared with the present frame and with the offered index."""
    data = _read_offered(fs, root, data_name, state.data_bytes)
    index = _read_offered(fs, root, idx_name, state.entry_count * ENTRY_BYTES)
    by_seq = {frame.seq: frame for frame in frames}
    seqs: set[int] = set()
    try:
        segment_index.check(index, entry_count=state.entry_count, data_bytes=len(data))
    except FormatError as error:
        raise InvalidRequest(f'"{idx_name}" is no index of these data: {error.message}') from error
    try:
        for frame in codec.walk(data, 0, len(data)):
            there = by_seq.get(frame.seq)
            if there is None:
                raise InvalidRequest(f'"{data_name}" has seq {frame.seq}, of which the segment has no record')
            if data[frame.offset : frame.end - 1] != present[there.offset : there.end - 1]:
                raise InvalidRequest(f'"{data_name}" has another record than the segment as seq {frame.seq}')
            entry = segment_index.entry_at(index, frame.seq - state.first_seq)
            expected = (frame.offset, frame.end - frame.offset, frame.ts, frame.flags)
            if (*entry[:3], entry.flags & ~segment_index.FLAG_DELETED) != expected:
                raise InvalidRequest(f'the entry of seq {frame.seq} in "{idx_name}" does not fit its frame')
            seqs.add(frame.seq)
    except FormatError as error:
        raise InvalidRequest(f'"{data_name}" is bad at offset {error.offset}: {error.message}') from error
    return seqs


def _read_offered(fs: Fs, root: str, name: str, bytes_max: int) -> bytes:
    path = f"{layout.staging_directory(root)}/{name}"
    try:
        size = fs.size(path)
        if size > bytes_max:
            raise InvalidRequest(f'"{name}" has {size} bytes; for this segment it can have {bytes_max} at most')
        return read_file(fs, path)
    except FileNotFoundError as error:
        raise NotFound(f'there is no "{name}" in the folder staging of the data directory') from error
    except IsADirectoryError as error:
        raise InvalidRequest(f'"{name}" is a folder') from error
    except NotAFile as error:
        raise InvalidRequest(f'"{name}" {error.strerror}') from error


def _check_left_out(frames: list[SegmentFrame], offered: set[int]) -> int:
    """How many frames are left out. Raises `InvalidRequest` if one of them must stay."""
    left_out = [frame for frame in frames if frame.seq not in offered]
    for frame in left_out:
        if not frame.deleted:
            raise InvalidRequest(f"seq {frame.seq} is left out, but its record is not marked as deleted in the file")
    if left_out and left_out[-1] is frames[-1]:
        raise InvalidRequest(f"seq {frames[-1].seq} is left out; the last record of a segment stays, deleted or not")
    return len(left_out)


def _digest(data: bytes, frames: list[SegmentFrame]) -> bytes:
    digest = xxh3_128()
    for frame in frames:
        digest.update(frame.checksum_in(data))
    return digest.digest()


def _tags(data: bytes, frames: list[SegmentFrame]) -> dict[bytes, list[int]]:
    tags: dict[bytes, list[int]] = {}
    for frame in frames:
        if frame.flags & FLAG_TAG:
            tags.setdefault(frame.tag_in(data), []).append(frame.seq)
    return tags


def _entries(frames: list[SegmentFrame], state: SegmentState) -> list[tuple[int, int, int, int]]:
    """Index entries of these frames, back to back. A hole carries the time of the entry before it."""
    entries: list[tuple[int, int, int, int]] = []
    offset, last_ts = 0, 0
    for frame in frames:
        entries += [(offset, 0, last_ts, 0)] * (frame.seq - state.first_seq - len(entries))
        length, last_ts = frame.end - frame.offset, frame.ts
        entries.append((offset, length, frame.ts, frame.flags))
        offset += length
    assert len(entries) == state.entry_count, "the last frame stays"
    return entries


# The exchange.


def _exchange(fs: Fs, stem: str, old: SegmentState, new: SegmentState, data: bytes, index: bytes) -> None:
    assert new.data_bytes < old.data_bytes
    try:
        _write_temporary(fs, f"{stem}.data", data)
        _write_temporary(fs, f"{stem}.idx", index)
        _write_mark(fs, stem, old, new)
        fs.rename(f"{stem}.idx{_TEMPORARY}", f"{stem}.idx")
        fs.rename(f"{stem}.data{_TEMPORARY}", f"{stem}.data")
    except OSError:
        _take_back(fs, stem, old)
        raise


def _write_temporary(fs: Fs, path: str, data: bytes) -> None:
    _unlink_if_there(fs, path + _TEMPORARY)
    file = fs.open(path + _TEMPORARY, "create")
    try:
        write_all(file, data, 0)
        file.fsync()
    finally:
        file.close()


def _write_mark(fs: Fs, stem: str, old: SegmentState, new: SegmentState) -> None:
    before = [state for state in _versions(fs, stem) if state.digest not in (old.digest, new.digest)]
    versions = msgspec.json.encode([*before, old, new])
    mark = _Mark(FORMAT, xxh3_64_hexdigest(versions), msgspec.Raw(versions))
    write_atomic(fs, f"{stem}{layout.REPLACED}", msgspec.json.encode(mark))


def _take_back(fs: Fs, stem: str, old: SegmentState) -> None:
    """The old `.data` stays. Its index may be the new one: if it cannot be rebuilt now, a reader notices that later."""
    try:
        for ending in (f".data{_TEMPORARY}", f".idx{_TEMPORARY}", layout.REPLACED + layout.TEMPORARY):
            _unlink_if_there(fs, stem + ending)
        rebuild_index(fs, stem, old)
    except OSError as error:
        logger.warning("%s: files of a failed replacement stay for now: %s", stem, error.strerror)


def _finish(fs: Fs, stem: str, sidecar: bytes) -> bool:
    """Makes the renames durable, then the tags follow; whether all of it is durable.

    The old tags name records that are gone, which does no harm.
    """
    directory = stem.rpartition("/")[0]
    try:
        fs.sync_dir(directory)
        if sidecar:
            _write_temporary(fs, f"{stem}.tags", sidecar)
            fs.rename(f"{stem}.tags{_TEMPORARY}", f"{stem}.tags")
        else:
            _unlink_if_there(fs, f"{stem}.tags")
        fs.sync_dir(directory)
    except OSError as error:
        logger.warning("%s was replaced, perhaps not durably: %s", stem, error.strerror)
        return False
    return True


def _remove_offered(fs: Fs, root: str, data_name: str, idx_name: str) -> None:
    directory = layout.staging_directory(root)
    try:
        for name in {data_name, idx_name}:
            _unlink_if_there(fs, f"{directory}/{name}")
        fs.sync_dir(directory)
    except OSError as error:
        logger.warning("%s stays in staging: %s", data_name, error.strerror)


def _unlink_if_there(fs: Fs, path: str) -> None:
    if fs.exists(path):
        fs.unlink(path)


# Marks.


def read_mark(fs: Fs, stem: str) -> list[SegmentState]:
    """Versions of a segment, oldest first; none when there is no mark. Raises `BadFrame` when it cannot be read."""
    path = f"{stem}{layout.REPLACED}"
    if not fs.exists(path):
        return []
    try:
        mark = msgspec.json.decode(read_file(fs, path), type=_Mark)
        versions = msgspec.json.decode(mark.versions, type=list[SegmentState])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame("not the mark of a replaced segment") from error
    if mark.format != FORMAT or mark.checksum != xxh3_64_hexdigest(bytes(mark.versions)):
        raise BadFrame("damaged, or of another version")
    return versions


def _versions(fs: Fs, stem: str) -> list[SegmentState]:
    """`read_mark`, with the name of the file in the message of its error."""
    try:
        return read_mark(fs, stem)
    except BadFrame as error:
        raise BadFrame(f"{stem.rpartition('/')[2]}{layout.REPLACED}: {error.message}") from error


def version_in_place(fs: Fs, stem: str, noted: SegmentState, floor_seq: int) -> SegmentState | None:
    """The version that the files of a marked segment are, if the snapshot notes another version; else None.

    `noted` may be older than the seal of the segment. Then an unreadable mark raises `BadFrame`, because without the
    mark a start would cut the segment. The frames of a sealed segment are found without a mark. Records below
    `floor_seq` are not live.
    """
    size = fs.size(f"{stem}.data")
    try:
        versions = _versions(fs, stem)
    except BadFrame as error:
        if not noted.sealed:
            raise
        logger.warning("%s", error.message)
        return None
    # A failed attempt may have had the same length as a later successful one: the latest version counts.
    found = next((state for state in reversed(versions) if state.data_bytes == size), None)
    if found is None or (noted.sealed and noted.data_bytes == size):
        return None
    if noted.sealed:
        if all(state.digest != noted.digest for state in versions):
            return None
        return msgspec.structs.replace(
            noted,
            data_bytes=found.data_bytes,
            tagged_count=found.tagged_count,
            digest=found.digest,
            proof=found.proof,
        )
    return _counted(fs, stem, found, floor_seq)


def _counted(fs: Fs, stem: str, state: SegmentState, floor_seq: int) -> SegmentState | None:
    """The state with the live counts of its file; None when the file is of another version."""
    data = read_file(fs, f"{stem}.data")
    try:
        frames = list(codec.walk(data, 0, len(data)))
        if _digest(data, frames) != state.digest:
            return None
        sizes = [
            envelope.accounted_bytes(frame.data_in(data))
            for frame in frames
            if not frame.deleted and frame.seq >= floor_seq
        ]
    except FormatError:
        return None
    return msgspec.structs.replace(state, live_count=len(sizes), live_bytes=sum(sizes), tier="hot")


def settle_index(fs: Fs, stem: str, state: SegmentState) -> None:
    """After a start that found a mark: rebuilds the index if it is of another version, and makes the files durable."""
    try:
        index = read_file(fs, f"{stem}.idx")
        segment_index.check(index, entry_count=state.entry_count, data_bytes=state.data_bytes)
    except (FileNotFoundError, FormatError):
        rebuild_index(fs, stem, state)
    fs.sync_dir(stem.rpartition("/")[0])
