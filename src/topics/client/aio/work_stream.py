"""Jobs that the server pushes, for asyncio."""

from __future__ import annotations

from collections import deque
from time import monotonic
from types import TracebackType
from typing import Final, Self

from topics.client.aio.connections import Stream
from topics.client.job_events import JobEvents
from topics.client.retrying import Unreachable
from topics.results import Job

# The server sends a heartbeat every 15 seconds.
SILENCE_S_MAX: Final = 45.0


class AsyncWorkStream:
    """Iterate over it, or `take` with a time limit. One task reads."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._events = JobEvents()
        self._jobs: deque[Job] = deque()
        # Bytes that came while no call of `take` waited are read first, so a stream that lives is not taken for dead.
        self._heard_s = monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        while not self._jobs:
            jobs = await self.take(SILENCE_S_MAX)
            if jobs is None:
                raise StopAsyncIteration
            self._jobs.extend(jobs)
        return self._jobs.popleft()

    async def take(self, timeout_s: float) -> list[Job] | None:
        """The jobs that came, none if none came in that time; None at the end of the stream. Raises `Unreachable`."""
        data = await self._stream.read(timeout_s)
        if data is None:
            if monotonic() - self._heard_s > SILENCE_S_MAX:
                raise Unreachable("the stream of jobs is silent")
            return []
        self._heard_s = monotonic()
        return None if data == b"" else self._events.feed(data)

    async def close(self) -> None:
        """Ends the stream: its jobs that are not acked are ready for others."""
        self._stream.end()
