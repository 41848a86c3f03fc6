"""How a command takes effect: it is checked, logged, and applied to the metadata, one command at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from topics.formats.stream_command import Command
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import Metadata
from topics.streams.metadata.state_log import StateLog


class Commands:
    """`lock` guards the metadata, the list of running topics and the groups. A thread that holds it may call anything
    here. It is never held during a send, a poll or a flush."""

    def __init__(self, metadata: Metadata, state_log: StateLog) -> None:
        self.metadata = metadata
        self.lock = threading.RLock()
        self._state_log = state_log
        self._is_closed = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change of metadata: no other thread makes one, and the state log takes entries."""
        with self.lock:
            self.check_open()
            self._state_log.check_writable()
            yield

    @property
    def can_log(self) -> bool:
        """False once the state log has stopped; what its file holds is unknown then."""
        return self._state_log.stopped is None

    def check_open(self) -> None:
        if self._is_closed:
            raise StreamsError(StreamStatus.DISCONNECTED, "the engine is closed")

    def log_and_apply(self, user_id: int, command: Command, *, must_be_durable: bool = False) -> None:
        """Logs and applies a command that the caller has checked."""
        entry = self._state_log.append(user_id, command, must_be_durable=must_be_durable)
        self.metadata.apply(entry.timestamp, user_id, command)

    def execute(self, user_id: int, command: Command) -> None:
        """Checks, logs and applies a command that changes metadata only."""
        with self.changing():
            self.metadata.check(user_id, command)
            self.log_and_apply(user_id, command)

    def refuse_more(self) -> bool:
        """Every later command is refused. False if that was so already."""
        with self.lock:
            was_closed, self._is_closed = self._is_closed, True
            return not was_closed

    def close_log(self) -> None:
        """Syncs and closes the state log. Raises `StreamsError` if its entries are not all durable."""
        self._state_log.close()
        # A log that has stopped has entries that no sync covered.
        self._state_log.check_writable()
