"""Compares the records that a start takes in from segments that no snapshot lists with the log.

Such a segment has no proof (`storage/segments/proof.py`), and frames do not name their topic. But the log still has the
frames of an unfinished checkpoint. A record that is another one in the log, or that the log does not have, shows that
the file was swapped or was restored into the wrong directory. Then the start is refused.

Two kinds of records have no frame and may be in a segment: records that the topic got while it was `ephemeral`, if it
is not any more, and copies that a router makes again. The log says up to which seq there may be records of the first
kind. In the dest of a router, a record that the log does not have is taken in. `router_recovery` compares the copies.
"""

from array import array
from typing import Final

from topics.errors import Damaged
from topics.formats.segment import SegmentColumns

_NONE: Final = 0


class AdoptedRecords:
    """The records of one topic that were taken in, until the log was compared with them."""

    __slots__ = ("_checksums", "_files", "_first_seq", "_is_compared_whole", "_met", "_unlogged_last_seq")

    def __init__(self, first_seq: int) -> None:
        self._first_seq = first_seq
        # By seq: the checksum of a record that the log did not confirm yet. `_NONE` for all others.
        self._checksums = array("Q")
        # First seq and path of each file.
        self._files: list[tuple[int, str]] = []
        # First seq and checksums of the frames of the write that is being read.
        self._met: list[tuple[int, array[int]]] = []
        self._is_compared_whole = True
        self._unlogged_last_seq = 0

    def add(self, path: str, frames: SegmentColumns) -> None:
        """The frames of a segment that were taken in."""
        self._files.append((self._first_seq + len(self._checksums), path))
        first_seq, count = frames.seqs[0], len(frames)
        self._checksums.extend([_NONE] * (first_seq - self._first_seq - len(self._checksums)))
        if frames.seqs[-1] - first_seq + 1 == count:
            self._checksums.extend(frames.checksums)
            return
        for seq, checksum in zip(frames.seqs, frames.checksums, strict=True):
            self._checksums.extend([_NONE] * (seq - self._first_seq - len(self._checksums)))
            self._checksums.append(checksum)

    def __len__(self) -> int:
        return len(self._checksums)

    def expect_unlogged(self) -> None:
        """Any record of the topic may have no frame."""
        self._is_compared_whole = False

    def expect_unlogged_to(self, last_seq: int) -> None:
        """Records up to this seq may have no frames."""
        self._unlogged_last_seq = max(self._unlogged_last_seq, last_seq)

    # The log.

    def meet(self, first_seq: int, checksums: "array[int]") -> None:
        """Frames of the log with seqs that follow each other, as segment frames (`kernel.filed_frames`). They count
        when their write is whole."""
        self._met.append((first_seq, checksums))

    def drop_write(self) -> None:
        self._met.clear()

    def finish_write(self) -> None:
        """Raises `Damaged` when the log has another record with the same seq."""
        for first_seq, checksums in self._met:
            start = max(first_seq - self._first_seq, 0)
            stop = min(first_seq + len(checksums) - self._first_seq, len(self._checksums))
            if start < stop:
                self._confirm(start, checksums[start + self._first_seq - first_seq :][: stop - start])
        self._met.clear()

    def _confirm(self, start: int, checksums: "array[int]") -> None:
        stop = start + len(checksums)
        if self._checksums[start:stop] != checksums:
            for place, checksum in enumerate(checksums, start):
                # A frame that a start wrote again has been met already.
                if self._checksums[place] not in (_NONE, checksum):
                    raise self._damage(self._first_seq + place, "another record")
        self._checksums[start:stop] = array("Q", bytes(8 * len(checksums)))

    def check_end(self) -> None:
        """The log was read. Raises `Damaged` for a record that it should have and does not have."""
        if self._is_compared_whole:
            for seq, checksum in enumerate(self._checksums, self._first_seq):
                if checksum != _NONE and seq > self._unlogged_last_seq:
                    raise self._damage(seq, "a record that the log does not have")

    def _damage(self, seq: int, found: str) -> Damaged:
        path = next(path for first_seq, path in reversed(self._files) if first_seq <= seq)
        return Damaged(
            path,
            0,
            f"seq {seq} of this topic, as in the log",
            f"{found}: a file of another topic or another instance; move it away, the log has all records",
        )
