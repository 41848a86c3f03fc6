"""Which messages of a batch a partition has seen before, by their ids. The memory is not persisted.

A message is noted only once it was appended: one that was refused, for whatever reason, may be sent again. Nothing here
is thread-safe; the lock of the partition is around it.
"""

from collections import OrderedDict
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topics.formats.message import Bytes

Mask = NDArray[np.bool_]

_ID: Final = Struct("16s")


class Deduplicator:
    """Remembers the last `max_entries` ids (0: all) for `expiry_us` (0: for ever) from their first sighting on."""

    __slots__ = ("_max_entries", "_expiry_us", "_first_seen_us")

    def __init__(self, max_entries: int, expiry_us: int) -> None:
        self._max_entries = max_entries
        self._expiry_us = expiry_us
        # In the order of the sightings. A plain dict would walk over all that left at its front to find the oldest.
        self._first_seen_us: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first_seen_us)

    def keep_mask(self, ids: Bytes, is_assigned: Mask, now_us: int) -> Mask | None:
        """Which messages are new; None when all are, the usual case. `PreparedBatch.without` takes the inverse.

        Ids that the engine has just made are new by definition.
        """
        self._forget_expired(now_us)
        keys = _keys(ids if not is_assigned.any() else ids[~is_assigned])
        fresh = set(keys)
        if len(fresh) == len(keys) and fresh.isdisjoint(self._first_seen_us):
            return None
        keep = np.ones(len(ids), dtype=np.bool_)
        met: set[bytes] = set()
        for position, key in zip(np.flatnonzero(~is_assigned).tolist(), keys, strict=True):
            if key in met or self._is_remembered(key, now_us):
                keep[position] = False
            met.add(key)
        return None if keep.all() else keep

    def note(self, ids: Bytes, now_us: int) -> None:
        """Remembers the ids of messages that were appended, none of which is a duplicate."""
        seen = self._first_seen_us
        for key in _keys(ids):
            seen[key] = now_us
            seen.move_to_end(key)
        while 0 < self._max_entries < len(seen):
            seen.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything, as a purged partition does."""
        self._first_seen_us.clear()

    def _is_remembered(self, key: bytes, now_us: int) -> bool:
        first_seen_us = self._first_seen_us.get(key)
        return first_seen_us is not None and not self._is_expired(first_seen_us, now_us)

    def _is_expired(self, first_seen_us: int, now_us: int) -> bool:
        return self._expiry_us > 0 and first_seen_us + self._expiry_us <= now_us

    def _forget_expired(self, now_us: int) -> None:
        """Those in front. Behind a clock that was set back there may be others; they are told by their times."""
        seen = self._first_seen_us
        while seen and self._is_expired(next(iter(seen.values())), now_us):
            seen.popitem(last=False)


def _keys(ids: Bytes) -> list[bytes]:
    return [key for (key,) in _ID.iter_unpack(ids.tobytes())]
