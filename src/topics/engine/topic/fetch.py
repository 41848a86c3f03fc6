"""Bringing what a read needs to where it costs no waiting: see `Engine.fetch_needed`."""

from collections.abc import Callable

from topics.engine.topic.replayed import Replayed, Span
from topics.engine.topic.segment_set import Part, SegmentSet
from topics.errors import ColdUnavailable
from topics.limits import READ_PIECE_BYTES_MIN


class Fetch:
    """What one page comes to: parts of segments, then bytes of WAL files. The call is for any thread."""

    __slots__ = ("_bytes_max", "_first_seq", "_parts", "_replayed", "_segments", "_spans", "_topic")

    def __init__(
        self,
        topic: str,
        first_seq: int,
        segments: SegmentSet,
        parts: list[Part],
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

    def is_at_hand(self) -> bool:
        """Whether there is nothing to wait for. Owner only."""
        try:
            is_at_hand, goes_on = self._parts_done(self._segments.at_hand)
            if not is_at_hand or not goes_on or self._replayed is None:
                return is_at_hand
            return all(map(self._replayed.is_cached, self._spans))
        except (ColdUnavailable, OSError) as error:
            raise unreadable(self._topic, self._first_seq, error) from error

    def __call__(self) -> None:
        try:
            _, goes_on = self._parts_done(self._segments.fetch)
            if goes_on and self._replayed is not None:
                for span in self._spans:
                    self._replayed.fetch(span)
        except FileNotFoundError:
            # Moved to the cold tier, put into a segment or removed meanwhile: the read looks where it is now.
            return
        except (ColdUnavailable, OSError) as error:
            raise unreadable(self._topic, self._first_seq, error) from error

    def _parts_done(self, do: Callable[[Part, int], tuple[int, int] | None]) -> tuple[bool, bool]:
        """Does it to the parts that fit the page; whether all were done, and whether the page goes on behind them."""
        budget = self._bytes_max
        for part in self._parts:
            done = do(part, max(budget, READ_PIECE_BYTES_MIN))
            if done is None:
                return False, False
            slots, size = done
            budget -= size
            if budget <= 0 or slots <= part.last_seq - part.first_seq:
                return True, False
        return True, True


def unreadable(topic: str, seq: int, error: OSError | ColdUnavailable) -> ColdUnavailable:
    """A disk, a network, or for want of descriptors a file does not answer: worth another try."""
    return ColdUnavailable(
        f'records of topic "{topic}" from seq {seq} on cannot be read now: {error}', {"topic": topic, "seq": seq}
    )
