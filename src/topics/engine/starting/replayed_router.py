"""One router while the WAL is read."""

from topics.formats.control import RouterState


class ReplayedRouter:
    """All source records up to `cursor` are handled. Its copies in dest end at `dest_seq`."""

    __slots__ = (
        "cursor",
        "dest",
        "dest_base",
        "dest_seq",
        "evidence",
        "forwarded_total",
        "id",
        "name",
        "searched_seq",
        "source",
        "spec",
    )

    def __init__(self, state: RouterState) -> None:
        self.id = state.id
        self.name = state.name
        # Topic ids.
        self.source = state.source
        self.dest = state.dest
        self.spec = state.spec
        self.cursor = state.cursor
        self.dest_seq = state.dest_seq
        self.dest_base = state.dest_base
        self.forwarded_total = state.forwarded_total
        self.searched_seq = state.searched_seq
        self.evidence = state.evidence

    def move(self, cursor: int, forwarded_total: int) -> None:
        self.cursor = cursor
        self.forwarded_total = forwarded_total

    def note_dest_seq(self, dest_seq: int) -> None:
        """Dest has records up to this seq."""
        self.dest_seq = max(self.dest_seq, dest_seq)

    def catch_up(self, state: RouterState) -> None:
        """A checkpoint mark says how far the router was. Its definition may have changed since."""
        if state.cursor > self.cursor:
            self.cursor = state.cursor
            self.dest_seq = max(self.dest_seq, state.dest_seq)
            self.forwarded_total = state.forwarded_total
            self.searched_seq = state.searched_seq
            self.evidence = state.evidence

    def change(self, state: RouterState) -> None:
        self.spec = state.spec
        self.cursor = state.cursor
        self.dest_seq = max(self.dest_seq, state.dest_seq)
        self.forwarded_total = state.forwarded_total
        self.searched_seq = state.searched_seq
        self.evidence = state.evidence
