"""Segments written again from their frames, by columns: a part of the frames, an index, the tags.

What comes out is byte for byte what the writer of segments makes: frames back to back, an entry for every seq from
the first to the last, entries of length 0 with the time before them where there is no frame, flags without the
delete byte, all tagged records in the sidecar whether they are deleted or not.

Import this module where it is used: numpy and pyarrow are not among the things every installation has.
"""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from topics.errors import BadFrame
from topics.formats import segment, tag_sidecar
from topics.formats.frame_table import ENTRIES, FrameTable, Mask, select_headers, windows
from topics.formats.record_layout import DELETED, FLAG_TAG, LABEL_FLAGS


def deleted_frames(table: FrameTable) -> Mask:
    """Which frames have their delete byte set."""
    deleted: Mask = np.frombuffer(table.data, dtype=np.uint8)[table.ends - 1] == DELETED
    return deleted


def keep_frames(table: FrameTable, kept: Mask) -> FrameTable:
    """The kept frames, copied back to back."""
    # One column over the file, a row for each frame and one for each space between two: nothing is copied twice.
    bounds = np.empty(2 * len(table) + 1, dtype=np.int64)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = table.starts, table.ends, len(table.data)
    column = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(table), [None, pa.py_buffer(bounds), pa.py_buffer(table.data)]
    )
    rows = column.take(pa.array(np.flatnonzero(kept) * 2))
    lengths = (table.ends - table.starts)[kept]
    ends = np.cumsum(lengths)
    size = int(ends[-1]) if len(ends) else 0
    data = bytes(rows.buffers()[2])[:size] if size else b""
    headers = select_headers(table.headers, kept)
    return FrameTable(data, ends - lengths, ends, headers, (), None, table.is_confirmed, table.bounds, 0)


def index_of_frames(table: FrameTable, first_seq: int, last_seq: int) -> bytes:
    """The `.idx` of these frames, which must follow each other from the beginning of their file to its end.

    Raises `BadFrame` when they do not, or when one is of another seq: that is damage, and no index hides it.
    """
    seqs = table.headers["seq"]
    if table.bad or not len(table):
        reason = table.bad[0].reason if table.bad else "there is no frame"
        raise BadFrame(reason, table.bad[0].offset if table.bad else 0)
    at_home = bool((table.starts[1:] == table.ends[:-1]).all()) and int(table.starts[0]) == 0
    if not at_home or int(table.ends[-1]) != len(table.data):
        raise BadFrame("the frames do not fill their file")
    if int(seqs[0]) < first_seq or int(seqs[-1]) != last_seq or not bool((seqs[1:] > seqs[:-1]).all()):
        raise BadFrame(f"the frames are not the frames of seqs {first_seq} to {last_seq}")
    places = (seqs - np.uint64(first_seq)).astype(np.int64)
    entries = np.zeros(last_seq - first_seq + 1, dtype=ENTRIES)
    # For each entry the frame that it is of, or that comes next: an empty one lies where that begins.
    following = np.searchsorted(places, np.arange(len(entries)))
    entries["offset"] = table.starts[following]
    times = np.concatenate(([np.uint64(0)], table.headers["ts"]))
    entries["ts"] = times[following]
    entries["ts"][places] = table.headers["ts"]
    entries["length"][places] = table.ends - table.starts
    entries["flags"][places] = table.headers["flags"] & LABEL_FLAGS
    return entries.tobytes()


def tags_of_frames(table: FrameTable, first_seq: int) -> bytes:
    """The `.tags` of these frames; empty when none has a tag."""
    tags: dict[bytes, list[int]] = {}
    view = memoryview(table.data)
    tagged = np.flatnonzero(table.headers["flags"] & FLAG_TAG)
    headers = table.headers[tagged]
    begins = table.starts[tagged] + segment.HEADER_BYTES + headers["node_len"]
    ends = begins + headers["tag_len"]
    for begin, end, seq in zip(begins.tolist(), ends.tolist(), headers["seq"].tolist(), strict=True):
        tags.setdefault(bytes(view[begin:end]), []).append(seq)
    return tag_sidecar.encode(first_seq, tags) if tags else b""


def stored_checksums(table: FrameTable) -> NDArray[np.uint64]:
    """The checksums that are stored in the frames."""
    return windows(table.data, "V8")[table.ends - segment.TRAILER_BYTES].view("<u8")
