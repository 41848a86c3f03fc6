"""Checks one segment of messages: every message of the `.log`, and the `.index` against the messages.

Each message has a checksum, so that the log is believed. The index is derived from it and proves nothing against a
message. The log of the last segment may have bytes that the index does not cover: an engine that is running, or was
killed, has not indexed them yet. They are no finding.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from topics.formats import message
from topics.formats.buffers import Buffer
from topics.formats.columnar_messages import MessageTable, locate_messages, salvage_messages
from topics.formats.message_index import ENTRY_BYTES, decode_entries, make_entries
from topics.spark.jobs.message_segments import MessageSegment
from topics.spark.jobs.segment_check import Checked
from topics.storage.fs import Fs, RealFs
from topics.storage.inspect.findings import Finding

# So many wrong entries are named one by one. Further ones are counted.
NAMED_MAX: Final = 20
_DERIVED: Final = "derived: the next start, or `topics pipeline rebuild-index`, makes it from the log"


def check_message_segments(segments: Sequence[MessageSegment]) -> list[Checked]:
    """Runs on an executor."""
    return [check_message_segment(segment) for segment in segments]


def check_message_segment(segment: MessageSegment, fs: Fs | None = None) -> Checked:
    """`records` counts the messages in the index: the next segment begins with the offset after them."""
    fs = fs or RealFs()
    # The index first: every message that it names is in the log, which is read later.
    index = _read(fs, segment.index_path)
    log = _read(fs, segment.log_path)
    if log is None:
        return Checked(is_missing=True)
    findings = tuple(_findings(segment, log, index))
    count = len(index or b"") // ENTRY_BYTES
    return Checked(findings, count, len(log) + len(index or b""))


def _read(fs: Fs, path: str) -> bytes | None:
    try:
        file = fs.open(path, "read")
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _findings(segment: MessageSegment, log: bytes, index: bytes | None) -> Iterator[Finding]:
    if index is None:
        yield _finding(segment.index_path, "the index is missing", advice=_DERIVED)
    indexed = index or b""
    if segment.is_last and index is not None:
        entries = decode_entries(indexed)
        end = int(entries["position"][-1]) if len(entries) else 0
        if end < len(log):
            table = _verified(memoryview(log)[:end], indexed, segment.start_offset)
            if table.index_problem is None and not table.bad:
                return
    table = _verified(log, index, segment.start_offset)
    for bad in table.bad:
        yield _finding(segment.log_path, bad.reason, offset=bad.offset, seq=bad.first_seq, last_seq=bad.last_seq)
    if index is not None:
        yield from _index_findings(segment, table, indexed)


def _verified(log: Buffer, index: bytes | None, start_offset: int) -> MessageTable:
    """The messages whose checksums agree. All others are bad."""
    table = locate_messages(log, index, start_offset)
    wrong = message.checksums(log, table.starts, table.ends) != table.headers["checksum"]
    return salvage_messages(table) if bool(wrong.any()) else table


def _index_findings(segment: MessageSegment, table: MessageTable, index: bytes) -> Iterator[Finding]:
    """Entries of the index that do not agree with the messages in the log."""
    path = segment.index_path
    entries = decode_entries(index)
    if len(index) % ENTRY_BYTES:
        text = f"{len(index) % ENTRY_BYTES} bytes after the last whole entry"
        yield _finding(path, text, offset=len(index) - len(index) % ENTRY_BYTES, advice=_DERIVED)
    places = (table.headers["offset"] - np.uint64(segment.start_offset)).astype(np.int64)
    indexed = places < len(entries)
    expected = make_entries(0, table.ends, table.headers["timestamp"])
    expected["offset"] = places
    wrong = np.flatnonzero(entries[places[indexed]] != expected[indexed])
    for row in wrong[:NAMED_MAX].tolist():
        place = int(places[indexed][row])
        yield _finding(
            path,
            "the entry does not agree with its message",
            offset=place * ENTRY_BYTES,
            seq=segment.start_offset + place,
            expected=str(expected[indexed][row]),
            found=str(entries[place]),
            advice=_DERIVED,
        )
    if len(wrong) > NAMED_MAX:
        yield _finding(path, f"{len(wrong) - NAMED_MAX} more entries do not agree", advice=_DERIVED)
    if not bool(indexed.all()):
        first = int(places[~indexed][0])
        text = f"{int((~indexed).sum())} messages are not in the index"
        yield _finding(path, text, offset=len(index), seq=segment.start_offset + first, advice=_DERIVED)
    known = np.zeros(len(entries), dtype=np.bool_)
    known[places[indexed]] = True
    for bad in table.bad:
        known[bad.first_seq - segment.start_offset : bad.last_seq - segment.start_offset + 1] = True
    if not bool(known.all()):
        place = int((~known).argmax())
        text = f"{int((~known).sum())} entries for messages that the log does not have"
        yield _finding(path, text, offset=place * ENTRY_BYTES, seq=segment.start_offset + place, advice=_DERIVED)


def _finding(
    file: str,
    text: str,
    *,
    offset: int | None = None,
    seq: int | None = None,
    last_seq: int | None = None,
    expected: str = "",
    found: str = "",
    advice: str = "",
) -> Finding:
    return Finding(
        severity="damage",
        file=file,
        message=text,
        offset=offset,
        seq=seq,
        last_seq=last_seq,
        expected=expected,
        found=found,
        advice=advice,
    )
