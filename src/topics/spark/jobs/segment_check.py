"""Checks one segment: quickly by columns, and with the survey when the quick check has a doubt.

The quick check compares all checksums, all entries of the index and the digest, at the speed of the checksums. It does
not say precisely what is wrong. `SegmentSurvey` does: it has the rules of `topics verify`, and is slow. A doubt that
the survey does not confirm is reported as a finding, too. So no doubt is dropped.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from topics.errors import FormatError
from topics.formats import segment
from topics.formats.buffers import Buffer
from topics.formats.columnar import checksums, chunks
from topics.formats.frame_table import ENTRIES, FrameTable, Mask, from_index, windows
from topics.formats.record_layout import DELETED, FLAG_TAG
from topics.formats.segment_index import ENTRY_BYTES, FLAG_DELETED
from topics.formats.tag_sidecar import TagSidecar
from topics.limits import MIB
from topics.storage.fs import Fs, RealFs
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.segment_survey import SegmentSurvey, SegmentTask, cold_files, counting_floor, hot_files
from topics.storage.tiers.addresses import open_store, path_of_address

# A piece of this size stays in the cache of a core while its frames are hashed.
_PIECE_BYTES: Final = 2 * MIB


class Checked(NamedTuple):
    """The check of a file, or of a pair of files. A missing file has no findings: the caller knows what it means."""

    findings: tuple[Finding, ...] = ()
    records: int = 0
    bytes: int = 0
    is_missing: bool = False


def check_segments(tasks: Sequence[SegmentTask]) -> list[Checked]:
    """Runs on an executor."""
    return [check_segment(task) for task in tasks]


def check_segment(task: SegmentTask, fs: Fs | None = None) -> Checked:
    """All findings except notes. Files are named by address."""
    fs = fs or RealFs()
    try:
        looked = _look(task, fs)
        if looked.doubt is None:
            return Checked((), looked.records, looked.bytes)
        findings = tuple(finding for finding in _survey(task, fs) if finding.severity != "note")
        if not findings:
            # A running server may have marked a record as deleted in one file, not yet in the other. Look once more.
            looked = _look(task, fs)
    except FileNotFoundError:
        return Checked(is_missing=True)
    if not findings and looked.doubt is not None:
        findings = (Finding(severity="damage", file=task.uri, topic=task.topic.name, message=looked.doubt),)
    return Checked(findings, looked.records, looked.bytes)


def _survey(task: SegmentTask, fs: Fs) -> list[Finding]:
    topic, first_seq = task.topic, task.first_seq
    path = path_of_address(task.address)
    if path is not None and not task.is_cold:
        files, prefix = hot_files(fs, path, topic.id, topic.name, first_seq), f"{task.address}/"
    else:
        files, prefix = cold_files(open_store(task.address, fs), topic.id, topic.name, first_seq), ""
    opened = files.open("data")
    if opened is None:
        raise FileNotFoundError(task.uri)
    opened[2]()
    survey = SegmentSurvey(files, first_seq, task.state, topic, numbers=task.numbers)
    return [_with_file(finding, f"{prefix}{finding.file}") for finding in survey.scan()]


def _with_file(finding: Finding, file: str) -> Finding:
    return msgspec.structs.replace(finding, file=file)


# The quick check.


class _Looked(NamedTuple):
    doubt: str | None
    records: int
    bytes: int


def _look(task: SegmentTask, fs: Fs) -> _Looked:
    state = task.state
    # The index first: a record that it calls deleted is deleted in the data that is read later.
    idx = _read(task, fs, "idx", state.entry_count * ENTRY_BYTES)
    data = _read(task, fs, "data", state.data_bytes)
    if data is None:
        raise FileNotFoundError(task.uri)
    size_bytes = len(data) + len(idx or b"")
    if len(data) != state.data_bytes:
        return _Looked(f"{len(data)} bytes, not the {state.data_bytes} that are noted", 0, size_bytes)
    if idx is None:
        return _Looked("the index is missing", 0, size_bytes)
    table = from_index(data, idx, state.first_seq, last_seq=state.last_seq)
    doubt = _doubt(table, idx, task)
    if doubt is None and state.sealed and bool((table.headers["flags"] & FLAG_TAG).any()):
        doubt = _tags_doubt(_read(task, fs, "tags", None), state.first_seq)
    return _Looked(doubt, len(table), size_bytes)


def _read(task: SegmentTask, fs: Fs, kind: str, noted_bytes: int | None) -> Buffer | None:
    """A file of the segment; of a growing file only the bytes that count. None when it is missing."""
    name = f"{task.name.removesuffix('data')}{kind}"
    is_whole = task.state.sealed or noted_bytes is None
    path = path_of_address(task.address)
    try:
        if path is None:
            store = open_store(task.address, fs)
            return store.read_range(name, 0, store.size(name) if is_whole or noted_bytes is None else noted_bytes)
        file = fs.open(f"{path}/{name}", "read")
        try:
            # The index is copied, because it is used again after the data was read.
            if kind == "data" and is_whole and file.size():
                return file.map()
            return file.pread(file.size() if is_whole or noted_bytes is None else noted_bytes, 0)
        finally:
            file.close()
    except FileNotFoundError:
        return None


def _doubt(table: FrameTable, idx: Buffer, task: SegmentTask) -> str | None:
    if table.index_problem is not None:
        return table.index_problem
    if table.bad:
        return table.bad[0].reason
    stored = windows(table.data, "<u8")[table.ends - segment.TRAILER_BYTES]
    wrong = _first_wrong_checksum(table, stored)
    if wrong is not None:
        return f"seq {int(table.headers['seq'][wrong])}: checksum does not agree"
    digest = task.state.digest
    if digest and xxh3_128_digest(stored.tobytes()) != digest:
        return "the frames are not the ones that were sealed"
    deleted = windows(table.data, "u1")[table.ends - 1] == DELETED
    return _entries_doubt(idx, deleted) or _live_doubt(table, deleted, task)


def _first_wrong_checksum(table: FrameTable, stored: NDArray[Any]) -> int | None:
    view = memoryview(table.data)
    for part in chunks(table.starts, table.ends, len(table), _PIECE_BYTES):
        starts, ends = table.starts[part], table.ends[part]
        base = int(starts[0])
        piece = bytes(view[base : int(ends[-1])])
        wrong = checksums(piece, starts - base, ends - base) != stored[part]
        if bool(wrong.any()):
            return int(part.start) + int(wrong.argmax())
    return None


def _entries_doubt(idx: Buffer, deleted: Mask) -> str | None:
    """Delete hints and the entries of holes, which the table does not compare."""
    entries = np.frombuffer(idx, dtype=ENTRIES)
    is_hole = entries["length"] == 0
    hints = entries["flags"][~is_hole] & FLAG_DELETED != 0
    if bool((hints & ~deleted).any()):
        return "an index entry says deleted, the record's delete byte does not"
    if bool(is_hole.any()):
        positions = np.cumsum(entries["length"], dtype=np.int64)
        times_before = np.concatenate((np.zeros(1, dtype=np.uint64), entries["ts"][:-1]))
        odd = entries["flags"] != 0
        odd |= entries["ts"] != times_before
        odd |= (entries["offset"] != 0) & (entries["offset"] != positions)
        if bool((odd & is_hole).any()):
            return f"index entry {int((odd & is_hole).argmax())} is a hole with something in it"
    return None


def _live_doubt(table: FrameTable, deleted: Mask, task: SegmentTask) -> str | None:
    if task.numbers != "newest":
        return None
    seqs = table.headers["seq"]
    live = ~deleted & (seqs >= counting_floor(task.topic))
    for first, last in task.topic.pending_deletes:
        live &= (seqs < first) | (seqs > last)
    found = int(live.sum())
    return None if found == task.state.live_count else f"{found} live records, not {task.state.live_count}"


def _tags_doubt(raw: Buffer | None, first_seq: int) -> str | None:
    """Checks the checksum of the sidecar. `topics verify` compares it with every frame."""
    if raw is None:
        return "the tag sidecar is missing"
    try:
        sidecar = TagSidecar(raw)
    except FormatError as error:
        return error.message
    return None if sidecar.first_seq == first_seq else "the tag sidecar belongs to another segment"
