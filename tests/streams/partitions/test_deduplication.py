"""Deduplication: against a plain model, and each rule by itself."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.conftest import FULL
from topics.formats.message import Bytes
from topics.streams.partitions.deduplication import Deduplicator

MINUTE_US: Final = 60_000_000


def ids_of(numbers: Sequence[int]) -> Bytes:
    data = b"".join(number.to_bytes(16, "little") for number in numbers)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 16)


def kept(deduplicator: Deduplicator, numbers: Sequence[int], now_us: int) -> list[int]:
    """Appends a batch with ids of the client. Returns the messages that are kept."""
    ids = ids_of(numbers)
    keep = deduplicator.keep_mask(ids, np.zeros(len(ids), dtype=np.bool_), now_us)
    if keep is None:
        keep = np.ones(len(ids), dtype=np.bool_)
    deduplicator.note(ids[keep], now_us)
    return [number for number, is_kept in zip(numbers, keep, strict=True) if is_kept]


def test_a_batch_of_new_messages_needs_no_mask() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    assert deduplicator.keep_mask(ids_of([1, 2]), np.zeros(2, dtype=np.bool_), 0) is None


def test_what_was_seen_is_dropped() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    assert kept(deduplicator, [1, 2], 0) == [1, 2]
    assert kept(deduplicator, [2, 3, 1], 1) == [3]
    assert kept(deduplicator, [1, 2, 3], 1) == []


def test_within_one_batch_the_first_wins() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    keep = deduplicator.keep_mask(ids_of([5, 6, 5, 6, 7]), np.zeros(5, dtype=np.bool_), 0)
    assert keep is not None
    assert keep.tolist() == [True, True, False, False, True]


def test_ids_differ_in_any_of_their_bytes() -> None:
    deduplicator = Deduplicator(0, 0)
    numbers = [1 << bit for bit in range(128)]
    assert kept(deduplicator, numbers, 0) == numbers
    assert kept(deduplicator, [*numbers, 3], 0) == [3]


def test_asking_alone_remembers_nothing() -> None:
    """A retry after a failed append is not a duplicate."""
    deduplicator = Deduplicator(10, MINUTE_US)
    for _ in range(2):
        assert deduplicator.keep_mask(ids_of([1]), np.zeros(1, dtype=np.bool_), 0) is None
    assert len(deduplicator) == 0


def test_ids_that_the_engine_made_are_never_duplicates() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    kept(deduplicator, [1], 0)
    assert deduplicator.keep_mask(ids_of([1, 1, 2]), np.array([True, True, False]), 0) is None
    keep = deduplicator.keep_mask(ids_of([1, 1, 2, 2]), np.array([True, False, False, False]), 0)
    assert keep is not None
    assert keep.tolist() == [True, False, True, False]


def test_an_id_is_forgotten_when_its_time_is_over() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    kept(deduplicator, [1], 1000)
    assert kept(deduplicator, [1], 999 + MINUTE_US) == []
    assert kept(deduplicator, [1], 1000 + MINUTE_US) == [1]


def test_a_duplicate_does_not_refresh_the_time() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    for now_us in (0, MINUTE_US // 2):
        kept(deduplicator, [1], now_us)
    assert kept(deduplicator, [1], MINUTE_US) == [1]


def test_without_an_expiry_nothing_is_forgotten() -> None:
    deduplicator = Deduplicator(10, 0)
    kept(deduplicator, [1], 0)
    assert kept(deduplicator, [1], 2**60) == []


def test_the_oldest_goes_when_it_is_full() -> None:
    deduplicator = Deduplicator(2, 0)
    kept(deduplicator, [1, 2, 3], 0)
    assert len(deduplicator) == 2
    assert kept(deduplicator, [2, 3, 1], 0) == [1]
    assert kept(deduplicator, [3, 1, 2], 0) == [2]


def test_without_a_limit_all_are_kept() -> None:
    deduplicator = Deduplicator(0, 0)
    numbers = list(range(1, 20_000))
    kept(deduplicator, numbers, 0)
    assert kept(deduplicator, numbers, 0) == []


def test_after_a_clock_was_set_back_each_id_has_its_own_time() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    kept(deduplicator, [1], 5 * MINUTE_US)
    kept(deduplicator, [2], 1 * MINUTE_US)
    assert kept(deduplicator, [2], 2 * MINUTE_US - 1) == []
    assert kept(deduplicator, [1, 2], 2 * MINUTE_US) == [2]
    assert kept(deduplicator, [1, 2], 3 * MINUTE_US - 1) == []


def test_a_purge_forgets_everything() -> None:
    deduplicator = Deduplicator(10, MINUTE_US)
    kept(deduplicator, [1], 0)
    deduplicator.clear()
    assert kept(deduplicator, [1], 0) == [1]


@given(numbers=st.lists(st.integers(1, 5), max_size=20))
def test_each_id_is_kept_once(numbers: list[int]) -> None:
    deduplicator = Deduplicator(0, 0)
    assert kept(deduplicator, numbers, 0) == list(dict.fromkeys(numbers))


class DeduplicationMachine(RuleBasedStateMachine):
    """Against a list of all ids that were seen."""

    @initialize(max_entries=st.integers(0, 4), expiry_us=st.sampled_from((0, 10)))
    def start(self, max_entries: int, expiry_us: int) -> None:
        self.max_entries = max_entries
        self.expiry_us = expiry_us
        self.deduplicator = Deduplicator(max_entries, expiry_us)
        self.sightings: list[tuple[int, int]] = []
        self.now_us = 0

    @rule(step_us=st.integers(1, 12))
    def wait(self, step_us: int) -> None:
        self.now_us += step_us

    @rule(numbers=st.lists(st.integers(1, 6), max_size=5), is_stored=st.booleans())
    def append(self, numbers: list[int], is_stored: bool) -> None:
        if self.expiry_us:
            self.sightings = [(n, seen) for n, seen in self.sightings if seen + self.expiry_us > self.now_us]
        known = {number for number, _ in self.sightings}
        wanted = [number not in known and number not in numbers[:place] for place, number in enumerate(numbers)]
        ids = ids_of(numbers)
        keep = self.deduplicator.keep_mask(ids, np.zeros(len(ids), dtype=np.bool_), self.now_us)
        assert (keep is None) == all(wanted)
        assert keep is None or keep.tolist() == wanted
        if is_stored:
            new = [number for number, is_new in zip(numbers, wanted, strict=True) if is_new]
            self.deduplicator.note(ids_of(new), self.now_us)
            self.sightings += [(number, self.now_us) for number in new]
            if self.max_entries:
                self.sightings = self.sightings[-self.max_entries :]

    @invariant()
    def remembers_no_more_than_it_may(self) -> None:
        assert not self.max_entries or len(self.deduplicator) <= self.max_entries


DeduplicationMachine.TestCase.settings = settings(max_examples=500 if FULL else 50, stateful_step_count=30)
TestDeduplication = DeduplicationMachine.TestCase
