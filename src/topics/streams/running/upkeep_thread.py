"""The thread that does the regular work of an engine."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from topics.errors import TopicsError

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0


class UpkeepThread:
    """Calls `tick` once a second, from now until `stop`."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics-streams-tick", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits until the work that is under way is done. A second call does nothing."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            try:
                self._tick()
            except (OSError, TopicsError) as error:
                # The next tick tries again.
                logger.warning("background work failed: %s", error)
