"""Which messages of a batch are duplicates: messages whose id the partition has seen before.

The ids are not persisted: after a restart `recent_ids` reads them from the newest messages. An id is noted after its
message was appended, so a message that was refused may be sent again. Not thread-safe: the caller holds the partition's
lock for writing.
"""

from collections import OrderedDict
from math import inf
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topics.formats.message import Bytes, Column

Mask = NDArray[np.bool_]

_ID: Final = Struct("16s")


class Deduplicator:
    """Remembers the last `max_entries` ids (0: all), each for `expiry_us` (0: for ever) after it was first seen."""

    __slots__ = ("_max_entries", "_expiry_us", "_first_seen_us")

    def __init__(self, max_entries: int, expiry_us: int) -> None:
        self._max_entries = max_entries
        self._expiry_us = expiry_us
        # Oldest first. A plain dict would walk over all deleted slots at its front to find the oldest.
        self._first_seen_us: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first_seen_us)

    def keep_mask(self, ids: Bytes, is_assigned: Mask, now_us: int) -> Mask | None:
        """Which messages are new; None if all are, which is the usual case.

        Ids that the engine has just assigned are always new.
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
        """Remembers the ids of messages that were appended. None of them is a duplicate."""
        seen = self._first_seen_us
        for key in _keys(ids):
            seen[key] = now_us
            seen.move_to_end(key)
        self._drop_oldest()

    # After a restart.

    @property
    def entries_max(self) -> float:
        """How many ids can be remembered."""
        return self._max_entries or inf

    def oldest_remembered_us(self, now_us: int) -> int:
        """An id that was seen earlier is forgotten."""
        return max(now_us - self._expiry_us + 1, 0) if self._expiry_us else 0

    def recall(self, ids: Bytes, times_us: Column) -> None:
        """Remembers ids of messages that were appended before a restart, in their order, each at its own time."""
        seen = self._first_seen_us
        for key, time_us in zip(_keys(ids), times_us.tolist(), strict=True):
            seen[key] = time_us
            seen.move_to_end(key)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        seen = self._first_seen_us
        while 0 < self._max_entries < len(seen):
            seen.popitem(last=False)

    def clear(self) -> None:
        """Forgets all ids: the partition was purged."""
        self._first_seen_us.clear()

    def _is_remembered(self, key: bytes, now_us: int) -> bool:
        first_seen_us = self._first_seen_us.get(key)
        return first_seen_us is not None and not self._is_expired(first_seen_us, now_us)

    def _is_expired(self, first_seen_us: int, now_us: int) -> bool:
        return self._expiry_us > 0 and first_seen_us + self._expiry_us <= now_us

    def _forget_expired(self, now_us: int) -> None:
        """Drops expired ids at the front. If the clock was set back, later ids may have expired, too; `_is_remembered`
        checks the time of each."""
        seen = self._first_seen_us
        while seen and self._is_expired(next(iter(seen.values())), now_us):
            seen.popitem(last=False)


def _keys(ids: Bytes) -> list[bytes]:
    return [key for (key,) in _ID.iter_unpack(ids.tobytes())]
