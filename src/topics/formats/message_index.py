"""The index of a segment of messages: 16 bytes for each message, in order, without a file header.

    offset u32, less the segment's start | position u32, the end of the message in the `.log` | timestamp u64

A send request has the same entries before its messages, with offset and timestamp 0.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

ENTRY_BYTES: Final = 16
ENTRY: Final = np.dtype([("offset", "<u4"), ("position", "<u4"), ("timestamp", "<u8")])
OFFSET_MAX: Final = 2**32 - 1
POSITION_MAX: Final = 2**32 - 1

Entries = NDArray[np.void]
Buffer = bytes | bytearray | memoryview


def decode_entries(data: Buffer) -> Entries:
    """Entries over the same memory. An incomplete last entry is left out."""
    return np.frombuffer(data, dtype=ENTRY, count=len(data) // ENTRY_BYTES)


def make_entries(first_offset: int, positions: NDArray[np.int64], timestamps: NDArray[np.uint64]) -> Entries:
    """`first_offset` is relative to the segment; `positions` are ends in its `.log`. Both must fit 32 bits."""
    assert first_offset >= 0
    assert first_offset + len(positions) - 1 <= OFFSET_MAX, "offsets would start again at 0"
    assert not len(positions) or int(positions[-1]) <= POSITION_MAX, "positions would start again at 0"
    entries = np.empty(len(positions), dtype=ENTRY)
    entries["offset"] = np.arange(first_offset, first_offset + len(positions))
    entries["position"] = positions
    entries["timestamp"] = timestamps
    return entries


def count_in_order(entries: Entries) -> int:
    """How many entries from the first on are good: offsets 0, 1, 2 …, positions rise, times never fall."""
    if not len(entries):
        return 0
    good = entries["offset"] == np.arange(len(entries), dtype=np.uint32)
    good[0] &= entries["position"][0] > 0
    good[1:] &= entries["position"][1:] > entries["position"][:-1]
    good[1:] &= entries["timestamp"][1:] >= entries["timestamp"][:-1]
    return len(entries) if bool(good.all()) else int(good.argmin())
