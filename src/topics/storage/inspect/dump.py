"""`topics dump`: one file of a data directory as a stream of plain values, one per frame, entry or topic.

Payloads are given as the JSON that was written (`msgspec.Raw`), so that printing changes nothing.
Bad bytes are values, too, and what follows them is looked for. The kind of a file is told by its name; one with
another name by how it begins.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from topics.errors import FormatError, FutureVersion, InvalidRequest
from topics.formats import envelope, segment_index, wal_frame
from topics.formats import snapshot as snapshot_codec
from topics.formats.record_layout import FLAG_NODE, FLAG_TAG, SEGMENT_BODY, WAL_BODY, RawParts, split_raw
from topics.formats.segment_index import FLAG_DELETED
from topics.formats.tag_sidecar import MAGIC as TAGS_MAGIC
from topics.formats.tag_sidecar import TagSidecar
from topics.formats.wal_frame import FLAG_DURABLE, FLAG_FIRST, FLAG_MORE, FrameType
from topics.limits import U64_MAX
from topics.storage import layout
from topics.storage.fs import Fs, read_file
from topics.storage.inspect.scan import BadBytes, Read, SegmentItem, WalItem, scan_segment, scan_wal
from topics.storage.inspect.wal_survey import decode_control

Row = dict[str, Any]

# Endings that a start or `doctor` adds to a file that it sets aside.
_SET_ASIDE: Final = (layout.TORN, layout.BROKEN, layout.TEMPORARY)


def dump(fs: Fs, path: str, *, with_data: bool = True) -> Iterator[Row]:
    """Raises `InvalidRequest` when the file is none of ours, `FutureVersion`, or `OSError`."""
    kind, first_number = _kind_of(fs, path)
    if kind == "snapshot":
        yield from _dump_snapshot(read_file(fs, path))
    elif kind == "idx":
        yield from _dump_index(read_file(fs, path), first_number)
    elif kind == "tags":
        yield from _dump_tags(read_file(fs, path))
    else:
        file = fs.open(path, "read")

        def read(offset: int, size: int) -> bytes:
            return file.pread(size, offset)

        try:
            if kind == "wal":
                yield from _dump_wal(read, file.size(), first_number, with_data=with_data)
            else:
                yield from _dump_segment(read, file.size(), first_number, with_data=with_data)
        finally:
            file.close()


def _kind_of(fs: Fs, path: str) -> tuple[str, int]:
    """(kind, number in the name)."""
    name = path.rpartition("/")[2]
    while name.endswith(_SET_ASIDE):
        name = name.rpartition(".")[0]
    parsed = layout.segment_of(name)
    if parsed is not None:
        return parsed[1], parsed[0]
    number = layout.wal_first_frame(name)
    if number is None and name.startswith("wal-"):
        # The name of a torn tail has the offset of the cut. The numbers of its frames are unknown.
        number = 0
    if number is not None:
        return "wal", number
    if layout.snapshot_number(name) is not None:
        return "snapshot", 0
    return _kind_by_content(fs, path)


def _kind_by_content(fs: Fs, path: str) -> tuple[str, int]:
    file = fs.open(path, "read")
    try:
        size = file.size()
        head = file.pread(4096, 0)
        if head.startswith(snapshot_codec.MAGIC):
            return "snapshot", 0
        if head.startswith(TAGS_MAGIC):
            return "tags", 0

        def read(offset: int, count: int) -> bytes:
            return file.pread(count, offset)

        for item in scan_wal(read, size):
            if isinstance(item, WalItem) and item.offset == 0:
                return "wal", 0
            break
        for first in scan_segment(read, size, 0, U64_MAX):
            if isinstance(first, SegmentItem) and first.offset == 0:
                return "data", first.frame.seq
            break
    except FutureVersion as error:
        raise FutureVersion(f"{path}: {error.message}") from error
    finally:
        file.close()
    raise InvalidRequest(f"{path} is no file that can be dumped: neither WAL, segment, index, tags nor snapshot")


def _dump_wal(read: Read, size: int, first_frame: int, *, with_data: bool) -> Iterator[Row]:
    # 0 when the frame number is not known: after bad bytes, or in a file that is not named by its first frame.
    number = first_frame
    try:
        for item in scan_wal(read, size):
            if isinstance(item, BadBytes):
                if item.end > size:
                    # The file has grown since it was opened, and its old end cuts a frame.
                    return
                number = 0
                yield _bad(item)
                continue
            yield _wal_row(item, number, with_data=with_data)
            number += number > 0
    except FutureVersion as error:
        yield {"offset": error.offset, "checksum_ok": True, "error": error.message}


def _wal_row(item: WalItem, number: int, *, with_data: bool) -> Row:
    frame = item.frame
    kind = FrameType(frame.type)
    parts = split_raw(item.body, WAL_BODY)
    row: Row = {"offset": item.offset, "length": frame.end - frame.offset}
    if number:
        row["frame"] = number
    row |= {"type": kind.name.lower(), "topic_id": frame.topic_id}
    if frame.seq:
        row["seq"] = frame.seq
    row["ts"] = frame.ts
    row |= {
        name: True
        for name, flag in (("durable", FLAG_DURABLE), ("more", FLAG_MORE), ("first", FLAG_FIRST))
        if frame.flags & flag
    }
    row |= _labels(parts)
    data = parts.envelope
    if kind == FrameType.APPEND:
        row |= _payload(data, with_data=with_data)
    else:
        try:
            if kind == FrameType.SYNC:
                row["synced_frame"] = wal_frame.decode_sync_mark(data)
            else:
                body = decode_control(kind, data)
                row["body"] = msgspec.to_builtins(body) if body is not None else {}
        except FormatError as error:
            row["error"] = error.message
    row["checksum_ok"] = True
    return row


def _dump_segment(read: Read, size: int, first_seq: int, *, with_data: bool) -> Iterator[Row]:
    for item in scan_segment(read, size, first_seq, U64_MAX):
        if isinstance(item, BadBytes):
            yield _bad(item)
            continue
        frame, raw = item.frame, item.raw
        parts = split_raw(frame.body_in(raw), SEGMENT_BODY)
        row: Row = {"offset": item.offset, "length": len(raw), "seq": frame.seq, "ts": frame.ts}
        row |= _labels(parts)
        row |= _payload(parts.envelope, with_data=with_data)
        row |= {"deleted": frame.deleted, "checksum_ok": True}
        yield row


def _labels(parts: RawParts) -> Row:
    labels = {"node": parts.node, "tag": parts.tag}
    return {name: _text(label) for name, label in labels.items() if label is not None}


def _payload(data: bytes, *, with_data: bool) -> Row:
    if not with_data:
        return {"data_bytes": len(data)}
    try:
        payload, meta = envelope.split(data)
        # Believed only as far as it is JSON: raw bytes go into the middle of an output line.
        for part in (payload, meta):
            if part is not None:
                msgspec.json.decode(part)
    except (FormatError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return {"error": str(error), "data_hex": data.hex()}
    row: Row = {"data": msgspec.Raw(payload)}
    if meta is not None:
        row["meta"] = msgspec.Raw(meta)
    return row


def _bad(item: BadBytes) -> Row:
    return {
        "offset": item.offset,
        "length": item.end - item.offset,
        "checksum_ok": False,
        "error": item.message,
        "next_frame_at": item.end if item.is_followed else None,
    }


def _dump_index(raw: bytes, first_seq: int) -> Iterator[Row]:
    whole = raw[: len(raw) - len(raw) % segment_index.ENTRY_BYTES]
    for place, entry in enumerate(segment_index.decode(whole)):
        yield {
            "seq": first_seq + place,
            "offset": entry.offset,
            "length": entry.length,
            "ts": entry.ts,
            "has_tag": bool(entry.flags & FLAG_TAG),
            "has_node": bool(entry.flags & FLAG_NODE),
            "deleted": bool(entry.flags & FLAG_DELETED),
            "hole": entry.length == 0,
        }
    if len(whole) < len(raw):
        yield {"error": f"{len(raw) - len(whole)} bytes after the last whole entry"}


def _dump_tags(raw: bytes) -> Iterator[Row]:
    try:
        for tag, seqs in TagSidecar(raw):
            yield {"tag": _text(tag), "seqs": seqs}
    except FormatError as error:
        yield {"offset": error.offset, "checksum_ok": False, "error": error.message}


def _dump_snapshot(raw: bytes) -> Iterator[Row]:
    try:
        snapshot = snapshot_codec.decode(raw)
    except (FormatError, FutureVersion) as error:
        yield {"offset": 0, "checksum_ok": False, "error": error.message}
        return
    yield {
        "type": "snapshot",
        "number": snapshot.number,
        "next_topic_id": snapshot.next_topic_id,
        "wal": [
            {"frame": position.frame, "file_frame": position.file_frame, "offset": position.offset}
            for position in snapshot.wal
        ],
        "topics": len(snapshot.topics),
        "checksum_ok": True,
    }
    for entry in snapshot.topics:
        try:
            state = snapshot_codec.decode_topic(entry)
        except FormatError as error:
            yield {"type": "topic", "error": error.message}
            continue
        row = msgspec.to_builtins(state)
        for item, found in zip(row.get("segments", []), state.segments, strict=True):
            if found.digest:
                item["digest"] = found.digest.hex()
        yield {"type": "topic", **row}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
