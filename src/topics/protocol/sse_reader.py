"""Server-sent events out of the bytes of a stream. Pure: any split of the bytes gives the same events."""

from typing import Final, NamedTuple

from topics.errors import TopicsError
from topics.limits import MIB

# More than any event of the server: a page of records has at most 8 MiB.
EVENT_BYTES_MAX: Final = 64 * MIB


class SseEvent(NamedTuple):
    """One event. `id` is empty if the event had none."""

    name: str
    data: bytes
    id: str = ""


class StreamTooLong(TopicsError):
    """An event has more bytes than any event of the server."""


class SseReader:
    """Takes bytes, gives the events that are complete. Comments and blocks without data give nothing."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[SseEvent]:
        *blocks, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > EVENT_BYTES_MAX:
            raise StreamTooLong(f"an event has more than {EVENT_BYTES_MAX} bytes")
        return [event for block in blocks if (event := _parse(block)) is not None]


def _parse(block: bytes) -> SseEvent | None:
    name, event_id = "message", ""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id":
            event_id = value.decode(errors="replace")
    return SseEvent(name, b"\n".join(data), event_id) if data else None
