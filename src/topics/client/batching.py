"""Many small writes as few large ones: which records go together, and when. Pure: the shells measure time and send.

rule 1  A batch is due when its oldest record has waited for `linger_ms`, when it has `max_bytes` or `max_records`, and
        when somebody waits for all of them (a flush).
rule 2  At most `max_in_flight` batches are on their way. With 1, the default, records arrive in the order of the calls.
rule 3  At most `buffer_bytes` wait. A caller that has more must wait, too.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypedDict, TypeVar

from topics.errors import InvalidRequest
from topics.limits import BATCH_RECORDS_MAX, MIB
from topics.protocol.payload_text import payload_text
from topics.results import NewRecord

F = TypeVar("F")

# What a record needs in a body beside its texts.
RECORD_OVERHEAD_BYTES: Final = 64


class ProducerOptions(TypedDict, total=False):
    """See `ProducerSettings`."""

    linger_ms: float
    max_bytes: int
    max_records: int
    max_in_flight: int
    buffer_bytes: int


class ProducerSettings(NamedTuple):
    """How long a record waits for others, how large a batch gets, how many batches are on their way, how much waits."""

    linger_ms: float
    max_bytes: int
    max_records: int
    max_in_flight: int
    buffer_bytes: int

    @classmethod
    def of(cls, options: ProducerOptions) -> ProducerSettings:
        made = cls(
            options.get("linger_ms", 5.0),
            options.get("max_bytes", MIB),
            options.get("max_records", 1000),
            options.get("max_in_flight", 1),
            options.get("buffer_bytes", 32 * MIB),
        )
        if not 1 <= made.max_records <= BATCH_RECORDS_MAX:
            raise InvalidRequest(f"max_records is 1 to {BATCH_RECORDS_MAX}")
        if made.linger_ms < 0 or min(made.max_bytes, made.max_in_flight, made.buffer_bytes) < 1:
            raise InvalidRequest("linger_ms is not negative, and max_bytes, max_in_flight and buffer_bytes at least 1")
        return made


class Entry(NamedTuple, Generic[F]):
    """A record that waits, and the future of its caller."""

    record: NewRecord
    size_bytes: int
    added_s: float
    future: F


def encoded(record: NewRecord) -> tuple[NewRecord, int]:
    """The record with its texts, and how many bytes it counts. Raises `InvalidRequest`."""
    data = payload_text(record.data)
    meta = None if record.meta is None else payload_text(record.meta)
    size_bytes = len(data) + (0 if meta is None else len(meta)) + RECORD_OVERHEAD_BYTES
    return NewRecord(data, record.tag, record.node, meta), size_bytes


class Batches(Generic[F]):
    """The records that wait. Not for several threads at once."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._entries: deque[Entry[F]] = deque()
        self._waiting_bytes = 0
        self._flying = 0
        self._is_flushing = False

    @property
    def is_idle(self) -> bool:
        """Whether every record was sent and answered."""
        return not self._entries and not self._flying

    def has_room(self, size_bytes: int) -> bool:
        """Whether a record may be added. A record that is larger than the whole buffer waits until it is empty."""
        return not self._entries or self._waiting_bytes + size_bytes <= self._settings.buffer_bytes

    def add(self, entry: Entry[F]) -> None:
        self._entries.append(entry)
        self._waiting_bytes += entry.size_bytes

    def flush(self) -> None:
        """Everything that waits now is due."""
        self._is_flushing = bool(self._entries)

    def due_in_s(self, now_s: float) -> float | None:
        """How long until a batch must be sent; 0.0 if one is due; None if there is nothing to send, or no place."""
        if not self._entries or self._flying >= self._settings.max_in_flight:
            return None
        if self._is_flushing or self._is_full():
            return 0.0
        return max(0.0, self._entries[0].added_s + self._settings.linger_ms / 1000 - now_s)

    def _is_full(self) -> bool:
        return self._waiting_bytes >= self._settings.max_bytes or len(self._entries) >= self._settings.max_records

    def take(self) -> list[Entry[F]]:
        """The next batch: it is on its way until `landed`."""
        taken: list[Entry[F]] = []
        size_bytes = 0
        while self._entries and len(taken) < self._settings.max_records:
            if taken and size_bytes + self._entries[0].size_bytes > self._settings.max_bytes:
                break
            entry = self._entries.popleft()
            size_bytes += entry.size_bytes
            taken.append(entry)
        self._waiting_bytes -= size_bytes
        self._flying += 1
        if not self._entries:
            self._is_flushing = False
        return taken

    def landed(self) -> None:
        """A batch was answered."""
        self._flying -= 1
