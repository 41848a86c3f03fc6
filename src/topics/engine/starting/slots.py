"""Reads records during a start, also records of cold segments: a start may wait for the tier."""

from collections.abc import Sequence

from topics.engine.topic.fetch import Fetch
from topics.engine.topic.topic import Topic
from topics.errors import ColdUnavailable, FormatError
from topics.formats.record_layout import RecordForm


def read_slots(
    topic: Topic, seq: int, last_seq: int, bytes_max: int
) -> tuple[RecordForm, Sequence[bytes | FormatError | None]]:
    """(form, slots) from `seq` on: the part of the range that is in one place, in memory or in one segment.

    Raises `ColdUnavailable` when the tier does not answer.
    """
    found = topic.job_slots(seq, last_seq, bytes_max, may_wait=True)
    if isinstance(found, Fetch):
        found()
        found = topic.job_slots(seq, last_seq, bytes_max, may_wait=True)
    if isinstance(found, Fetch):
        raise ColdUnavailable("a record of the cold tier is larger than the memory for records of the tier")
    return found
