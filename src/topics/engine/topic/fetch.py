"""Brings the bytes that a read needs into memory, so that the read does not wait: see `Engine.fetch_needed`."""

import logging
from collections.abc import Callable
from typing import Final

from topics.engine.topic.replayed import Replayed, Span
from topics.engine.topic.segment_set import SegmentPart, SegmentSet
from topics.errors import ColdBusy, ColdUnavailable, NotFetched
from topics.limits import READ_PIECE_BYTES_MIN

logger = logging.getLogger(__name__)

# How often one read fetches the same page of the cold tier. The bytes may leave the memory again before they are read.
FETCHES_MAX: Final = 3


class Fetch:
    """The bytes of one page: parts of segments, then spans of WAL files. Calling it fetches them, on any thread."""

    __slots__ = ("_bytes_max", "_first_seq", "_parts", "_replayed", "_segments", "_spans", "_topic")

    def __init__(
        self,
        topic: str,
        first_seq: int,
        segments: SegmentSet,
        parts: list[SegmentPart],
        replayed: Replayed | None,
        spans: list[Span],
        bytes_max: int,
    ) -> None:
        self._topic = topic
        self._first_seq = first_seq
        self._segments = segments
        self._parts = parts
        self._replayed = replayed
        self._spans = spans
        self._bytes_max = bytes_max

    @property
    def is_cold(self) -> bool:
        """Whether the call waits for the cold tier: then it belongs on a thread of the cold pool."""
        return any(part.state.tier == "cold" for part in self._parts)

    def is_at_hand(self) -> bool:
        """Whether a read of the page would not wait. Owner only."""
        try:
            is_at_hand, goes_on = self._visit_parts(self._segments.at_hand)
            if not is_at_hand or not goes_on or self._replayed is None:
                return is_at_hand
            return all(map(self._replayed.is_cached, self._spans))
        except (ColdUnavailable, OSError) as error:
            raise unreadable(self._topic, self._first_seq, error) from error

    def __call__(self) -> None:
        try:
            _, goes_on = self._visit_parts(self._segments.fetch)
            if goes_on and self._replayed is not None:
                for span in self._spans:
                    self._replayed.fetch(span)
        except FileNotFoundError as error:
            if self.is_cold:
                raise unreadable(self._topic, self._first_seq, error) from error
            # The file was moved to the cold tier, or its records were put into a segment or removed. The read finds
            # them.
            return
        except (ColdUnavailable, OSError) as error:
            raise unreadable(self._topic, self._first_seq, error) from error

    def _visit_parts(self, visit: Callable[[SegmentPart, int], tuple[int, int] | None]) -> tuple[bool, bool]:
        """Calls `visit` for the parts that fit the page, until it returns None.

        Returns whether no call returned None, and whether the page has room after the last part.
        """
        budget = self._bytes_max
        for part in self._parts:
            done = visit(part, max(budget, READ_PIECE_BYTES_MIN))
            if done is None:
                return False, False
            slots, size = done
            budget -= size
            if budget <= 0 or slots <= part.last_seq - part.first_seq:
                return True, False
        return True, True


def unreadable(topic: str, seq: int, error: OSError | ColdUnavailable) -> ColdUnavailable:
    """The error for a disk or network that does not answer, or for too few file descriptors: a retry may help.

    The message goes to clients, so it does not say where the data directory or the tier is. The log does.
    """
    kind = NotFetched if isinstance(error, NotFetched) else ColdUnavailable
    if isinstance(error, (ColdBusy, NotFetched)):
        reason = error.message
    else:
        logger.info('records of topic "%s" from seq %d on cannot be read: %s', topic, seq, error)
        reason = "the cold tier does not answer"
        if not isinstance(error, ColdUnavailable):
            reason = error.strerror or "no answer"
    return kind(
        f'records of topic "{topic}" from seq {seq} on cannot be read now: {reason}', {"topic": topic, "seq": seq}
    )
