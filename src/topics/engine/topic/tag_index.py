"""Tags of the records that are in no sealed segment: tag -> ascending seqs.

The index may still list seqs of dead records: the caller checks them. A sealed segment has a tag sidecar file instead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right


class TagIndex:
    __slots__ = ("_seqs", "_sorted")

    def __init__(self) -> None:
        self._seqs: dict[bytes, array[int]] = {}
        # All tags, sorted. None when a tag was added or removed since the last sort.
        self._sorted: list[bytes] | None = None

    def add(self, tag: bytes, seq: int) -> None:
        seqs = self._seqs.get(tag)
        if seqs is None:
            self._seqs[tag] = array("Q", (seq,))
            self._sorted = None
        else:
            seqs.append(seq)

    def add_all(self, seqs_by_tag: dict[bytes, array[int]]) -> None:
        """Adds seqs that are all higher than the ones of their tag in the index. The arrays belong to the index now."""
        for tag, seqs in seqs_by_tag.items():
            known = self._seqs.get(tag)
            if known is None:
                self._seqs[tag] = seqs
                self._sorted = None
            else:
                known.extend(seqs)

    def seqs(self, tag: bytes) -> list[int]:
        return list(self._seqs.get(tag, ()))

    def seqs_by_prefix(self, prefix: bytes) -> list[int]:
        if self._sorted is None:
            self._sorted = sorted(self._seqs)
        found: list[int] = []
        for tag in self._sorted[bisect_left(self._sorted, prefix) :]:
            if not tag.startswith(prefix):
                break
            found += self._seqs[tag]
        found.sort()
        return found

    def forget_below(self, seq: int) -> None:
        """Drops seqs below `seq`: their records were evicted, or are in a sealed segment now."""
        gone = []
        for tag, seqs in self._seqs.items():
            if seqs[0] < seq:
                del seqs[: bisect_right(seqs, seq - 1)]
                if not seqs:
                    gone.append(tag)
        for tag in gone:
            del self._seqs[tag]
        if gone:
            self._sorted = None

    def merge(self, later: TagIndex) -> None:
        """Adds an index whose seqs are all higher than the seqs in this one."""
        for tag, seqs in later._seqs.items():
            self._seqs.setdefault(tag, array("Q")).extend(seqs)
        self._sorted = None

    def __len__(self) -> int:
        return len(self._seqs)
