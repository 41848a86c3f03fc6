"""Records of one topic that another topic has by now, and whose deletion here is not applied yet.

A snapshot lists them: the note that names them may be in a part of the log that no start reads again. Only this module
assigns the fields of `MovedRecords`. Owner only.
"""

from collections.abc import Iterable


class MovedRecords:
    __slots__ = ("_stuck", "seqs")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self.seqs = set(seqs)
        # Seqs in `seqs` whose deletion failed: it is tried again.
        self._stuck: set[int] = set()

    def note(self, seqs: Iterable[int]) -> None:
        """The other topic has these records; their deletion here follows."""
        self.seqs.update(seqs)

    def note_stuck(self, seqs: Iterable[int]) -> None:
        """The deletion of these records failed. They are not given out again: the other topic has them."""
        self._stuck.update(seq for seq in seqs if seq in self.seqs)

    def take_stuck(self) -> list[int]:
        stuck = sorted(self._stuck)
        self._stuck.clear()
        return stuck

    def take_all(self) -> list[int]:
        """A start: every record that another topic has."""
        seqs = sorted(self.seqs)
        self.seqs.clear()
        return seqs

    def forget(self, seqs: Iterable[int]) -> None:
        """These records are gone."""
        self.seqs.difference_update(seqs)
        self._stuck.difference_update(seqs)

    def forget_below(self, seq: int) -> None:
        """Everything below `seq` is gone."""
        if self.seqs:
            self.forget([other for other in self.seqs if other < seq])
