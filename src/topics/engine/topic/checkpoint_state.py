"""What the snapshots know of one topic, and whether it changed since.

`mark_changed` is the one way to say that the next snapshot needs a new entry of the topic. Forgetting it would be a
checkpoint that omits a change.

Only this module assigns the fields of `CheckpointState`. Owner only.
"""


class CheckpointState:
    __slots__ = ("_entry", "_is_captured", "snapshot_seqs", "topic_json")

    def __init__(self) -> None:
        # The entry that the last snapshot has; None when the topic has changed since, or no snapshot has it.
        self._entry: bytes | None = None
        # Whether a running checkpoint has captured the topic and nothing has changed since.
        self._is_captured = False
        # Up to which seq the last but one snapshot, and the last one, have the records in segments.
        self.snapshot_seqs = (0, 0)
        # The content of the topic's topic.json file; None when only an earlier process knows it.
        self.topic_json: bytes | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the next snapshot needs a new entry."""
        return self._entry is None and not self._is_captured

    @property
    def entry(self) -> bytes | None:
        """The entry for the next snapshot, when nothing has changed since the last one."""
        return self._entry

    def mark_changed(self) -> None:
        self._entry = None
        self._is_captured = False

    def use_entry(self, entry: bytes) -> None:
        """This entry says everything: also the next snapshot may use it."""
        self._entry = entry
        self._is_captured = False

    def begin_capture(self) -> None:
        """A checkpoint has copied the state: every later change must mark the topic again."""
        self._entry = None
        self._is_captured = True

    @property
    def is_as_captured(self) -> bool:
        """Whether nothing has changed since `begin_capture`."""
        return self._is_captured

    def capture_failed(self) -> None:
        """The checkpoint wrote no segments. The topic.json file may exist without being durable, so it counts as
        unknown content and is written again."""
        self.mark_changed()
        self.topic_json = b""

    def topic_json_written(self, content: bytes) -> None:
        if content:
            self.topic_json = content

    def snapshot_written(self, upto_seq: int) -> None:
        """A snapshot says that the records up to this seq are in segments."""
        self.snapshot_seqs = (self.snapshot_seqs[1], upto_seq)
