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

from xxhash import xxh3_64_intdigest

from topics.errors import Damaged
from topics.formats import segment as codec
from topics.formats.record_layout import FRAME_LEN_BYTES, SEGMENT_CORE_AT, SEGMENT_TRAILER_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage.fs import Buffer

_CORE_AT: Final = FRAME_LEN_BYTES + SEGMENT_CORE_AT
_NONE: Final = 0


class AdoptedRecords:
    """The records of one topic that were taken in, until the log was compared with them."""

    __slots__ = ("_digests", "_files", "_first_seq", "_is_compared_whole", "_met", "_unlogged_last_seq")

    def __init__(self, first_seq: int) -> None:
        self._first_seq = first_seq
        # By seq: the digest of the core of a record that the log did not confirm yet. `_NONE` for all others.
        self._digests = array("Q")
        # First seq and path of each file.
        self._files: list[tuple[int, str]] = []
        # Seq and digest of the frames of the write that is being read.
        self._met: list[tuple[int, int]] = []
        self._is_compared_whole = True
        self._unlogged_last_seq = 0

    def add(self, path: str, data: bytes, start: int, segment: SegmentState) -> None:
        """The frames of a segment from offset `start` on, up to its noted end."""
        self._files.append((self._first_seq + len(self._digests), path))
        for frame in codec.walk(data, start, segment.data_bytes):
            place = frame.seq - self._first_seq
            self._digests.extend([_NONE] * (place + 1 - len(self._digests)))
            self._digests[place] = xxh3_64_intdigest(data[frame.offset + _CORE_AT : frame.end - SEGMENT_TRAILER_BYTES])

    def __len__(self) -> int:
        return len(self._digests)

    def expect_unlogged(self) -> None:
        """Any record of the topic may have no frame."""
        self._is_compared_whole = False

    def expect_unlogged_to(self, last_seq: int) -> None:
        """Records up to this seq may have no frames."""
        self._unlogged_last_seq = max(self._unlogged_last_seq, last_seq)

    # The log.

    def meet(self, seq: int, core: Buffer) -> None:
        """A frame of the log. It counts when its write is whole."""
        place = seq - self._first_seq
        if 0 <= place < len(self._digests) and self._digests[place] != _NONE:
            self._met.append((seq, xxh3_64_intdigest(core)))

    def drop_write(self) -> None:
        self._met.clear()

    def finish_write(self) -> None:
        """Raises `Damaged` when the log has another record with the same seq."""
        for seq, digest in self._met:
            place = seq - self._first_seq
            # A frame that a start wrote again has been met already.
            if self._digests[place] not in (_NONE, digest):
                raise self._damage(seq, "another record")
            self._digests[place] = _NONE
        self._met.clear()

    def check_end(self) -> None:
        """The log was read. Raises `Damaged` for a record that it should have and does not have."""
        if self._is_compared_whole:
            for seq, digest in enumerate(self._digests, self._first_seq):
                if digest != _NONE and seq > self._unlogged_last_seq:
                    raise self._damage(seq, "a record that the log does not have")

    def _damage(self, seq: int, found: str) -> Damaged:
        path = next(path for first_seq, path in reversed(self._files) if first_seq <= seq)
        return Damaged(
            path,
            0,
            f"seq {seq} of this topic, as in the log",
            f"{found}: a file of another topic or another instance; move it away, the log has all records",
        )
