"""How a command that changes what there is comes to count: checked, logged, applied, one at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from topics.formats.stream_command import Command
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import Metadata
from topics.streams.metadata.state_log import StateLog


class Commands:
    """`lock` guards the metadata and all that follows from them. Whoever holds it may call anything here."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.lock = threading.RLock()
        # Set by the start, which reads it.
        self.state_log: StateLog
        self.is_closed = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change of what there is: nobody else makes one, and it can be logged."""
        with self.lock:
            self.check_open()
            self.state_log.check_writable()
            yield

    def check_open(self) -> None:
        if self.is_closed:
            raise StreamsError(StreamStatus.DISCONNECTED, "the engine is closed")

    def log_and_apply(self, user_id: int, command: Command, *, must_be_durable: bool = False) -> None:
        """The caller has checked it."""
        entry = self.state_log.append(user_id, command, must_be_durable=must_be_durable)
        self.metadata.apply(entry.timestamp, user_id, command)

    def execute(self, user_id: int, command: Command) -> None:
        """For commands that are about metadata alone."""
        with self.changing():
            self.metadata.check(user_id, command)
            self.log_and_apply(user_id, command)
