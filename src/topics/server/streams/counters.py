"""The numbers of the streams that only their listener knows. The engine knows the rest."""


class StreamsCounters:
    """Loop thread only; callers add to the fields directly."""

    __slots__ = ("bytes_received", "bytes_sent", "connections_total", "errors", "requests")

    def __init__(self) -> None:
        self.connections_total = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        # By the code of the command.
        self.requests: dict[int, int] = {}
        # By the status of the answer.
        self.errors: dict[int, int] = {}

    def note_request(self, code: int) -> None:
        self.requests[code] = self.requests.get(code, 0) + 1

    def note_error(self, status: int) -> None:
        self.errors[status] = self.errors.get(status, 0) + 1
