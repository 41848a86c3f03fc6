"""What both directions of a bridge share: one task that copies, waits, tries again, and ends when it is told to."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from topics.engine.core import Done
from topics.engine.engine import Engine
from topics.errors import Closed, TopicsError
from topics.server.bridges.definition import BridgeSpec

logger = logging.getLogger(__name__)

RETRY_MS_MIN: Final = 50
RETRY_MS_MAX: Final = 10_000

T = TypeVar("T")


class Pump(ABC):
    """The task of one bridge. Loop thread only. A call for the bridge that has begun always ends before the task."""

    def __init__(
        self, name: str, spec: BridgeSpec, engine: Engine, loop: asyncio.AbstractEventLoop, files: Executor
    ) -> None:
        self.name = name
        self.spec = spec
        # Failures in a row, and when the next try begins (in milliseconds of the loop's clock).
        self.failure_count = 0
        self.retry_at_ms = 0
        self._engine = engine
        self._loop = loop
        self._files = files
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _copy(self) -> bool:
        """Copies some records. Returns False when there is nothing more to copy."""

    @abstractmethod
    async def _settle(self) -> None:
        """Called when there is nothing more to copy, and before the task ends."""

    @property
    @abstractmethod
    def lag(self) -> int | None:
        """Seqs or messages of the source that are not copied or passed over yet; None if that is not known."""

    def reads(self, stream_id: int, topic_id: int) -> bool:
        """Any thread. Whether messages that were sent to this topic of a stream are news for the bridge."""
        return False

    @property
    def is_awake(self) -> bool:
        """Any thread."""
        return self._wake.is_set()

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    def wake(self) -> None:
        """There may be something to copy."""
        self._wake.set()

    async def stop(self) -> None:
        """Returns when the task has ended."""
        self._is_stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._wake.clear()
                if not await self._copy():
                    await self._settle()
                    self.failure_count = 0
                    await self._wake.wait()
            except Closed:
                return
            except (OSError, TopicsError) as error:
                await self._wait_after(error)
            except Exception:
                logger.exception("a router to or from a stream has ended", extra={"fields": {"router": self.name}})
                return
        try:
            await self._settle()
        except (OSError, TopicsError) as error:
            # The next start copies the same records again.
            fields = {"router": self.name, "reason": str(error)}
            logger.warning("a router into a stream could not note its position", extra={"fields": fields})

    async def _wait_after(self, error: Exception) -> None:
        """Waits longer after each failure in a row, and not at all once the bridge is stopped."""
        self.failure_count += 1
        delay_ms = min(RETRY_MS_MIN << min(self.failure_count - 1, 10), RETRY_MS_MAX)
        self.retry_at_ms = int(self._loop.time() * 1000) + delay_ms
        if self.failure_count == 1:
            fields = {"router": self.name, "reason": str(error)}
            logger.warning("a router to or from a stream is tried again", extra={"fields": fields})
        deadline = self._loop.time() + delay_ms / 1000
        while not self._is_stopping and (left := deadline - self._loop.time()) > 0:
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return
            self._wake.clear()

    # Calls that wait.

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._files, work)

    async def _ask(self, call: Callable[[Done[T]], None]) -> T:
        return await answered(self._loop, call)


async def answered(loop: asyncio.AbstractEventLoop, call: Callable[[Done[T]], None]) -> T:
    """The result of a call of the engine that answers through `done`."""
    answer: asyncio.Future[T | TopicsError] = loop.create_future()
    call(answer.set_result)
    result = await answer
    if isinstance(result, TopicsError):
        raise result
    return result
