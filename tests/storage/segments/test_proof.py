"""The proof that a file is the segment that a snapshot lists."""

import msgspec
import pytest

from tests.storage.segments.segment_bench import stem, write
from topics.formats.snapshot import SegmentState
from topics.storage.segments.proof import has_proof, is_file_proved, prove_file, sample_places
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.testing.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def written(disk: FakeDisk, count: int = 9) -> SegmentState:
    (state,) = write(disk, list(range(1, count + 1)))
    return state


def flip_checksum(disk: FakeDisk, state: SegmentState, place: int) -> None:
    offset, length, _, _ = SegmentReader(FileSource(disk, stem(1)), state)._entries(state.first_seq + place, 1)[0]
    at = offset + length - 9
    disk.poke(f"{stem(1)}.data", at, bytes([disk.read(f"{stem(1)}.data")[at] ^ 1]))


def test_the_first_and_the_last_frame_are_among_the_samples() -> None:
    assert [sample_places(count) for count in (1, 2, 3, 4, 10)] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 3, 6, 9]]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_written_segment_has_a_proof_that_its_file_agrees_with(disk: FakeDisk, count: int) -> None:
    state = written(disk, count)
    assert has_proof(state)
    assert is_file_proved(disk, stem(1), state)


def test_damage_to_one_frame_does_not_make_the_file_another_one(disk: FakeDisk) -> None:
    state = written(disk)
    flip_checksum(disk, state, 0)
    assert is_file_proved(disk, stem(1), state)
    slots = SegmentReader(FileSource(disk, stem(1)), state).read(1, 9)
    assert [isinstance(slot, bytes) for slot in slots] == [False] + [True] * 8


def test_a_rotten_index_does_not_make_the_file_another_one(disk: FakeDisk) -> None:
    state = written(disk)
    disk.poke(f"{stem(1)}.idx", 0, b"\x07" * 60)
    disk.poke(f"{stem(1)}.idx", 100, b"\x07" * 60)
    assert is_file_proved(disk, stem(1), state)
    assert prove_file(disk, stem(1), state) == b""


def test_a_proof_says_nothing_about_a_file_of_another_length(disk: FakeDisk) -> None:
    """Frames were added after the snapshot, or the file was written again without deleted frames."""
    state = written(disk)
    assert not has_proof(msgspec.structs.replace(state, data_bytes=state.data_bytes - 1))
    assert not has_proof(msgspec.structs.replace(state, proof=b""))
