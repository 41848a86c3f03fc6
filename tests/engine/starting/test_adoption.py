"""The segment files of one topic, compared with its snapshot entry."""

import msgspec
import pytest

from tests.storage.segments.segment_bench import ROOT, TOPIC, seqs_of, stem, write
from topics.engine.starting.adopted_records import AdoptedRecords
from topics.engine.starting.adoption import adopt_segments, segment_files
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage.segments.writer import SegmentLimits
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

DIRECTORY = f"{ROOT}/topics/00000001"
FIVE = SegmentLimits(5, 1 << 20, 0)


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(f"{ROOT}/topics")
    return disk


def state_of(segments: list[SegmentState], **numbers: int) -> TopicState:
    last_seq = segments[-1].last_seq if segments else 0
    return TopicState(
        "a",
        TOPIC,
        1,
        {},
        segments=[msgspec.structs.replace(segment) for segment in segments],
        head_seq=last_seq,
        checkpointed_seq=last_seq,
        **numbers,
    )


def adopt(disk: FakeDisk, state: TopicState) -> list[str]:
    """All warnings and notes."""
    said: list[str] = []
    adopt_segments(disk, ROOT, state, AdoptedRecords(state.checkpointed_seq + 1), said.append, said.append)
    return said


def test_files_as_noted_are_left_as_they_are(disk: FakeDisk) -> None:
    state = state_of(write(disk, list(range(1, 13)), limits=FIVE, tags={3: "red"}))
    before = disk.files()
    assert adopt(disk, state) == []
    assert disk.files() == before
    assert seqs_of(disk, state) == list(range(1, 13))


def test_whole_frames_behind_the_noted_length_are_taken_in(disk: FakeDisk) -> None:
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, [3, 5], active=active, tags={5: "red"})
    state = state_of([noted])
    (warning,) = adopt(disk, state)
    assert "unfinished checkpoint" in warning
    (segment,) = state.segments
    assert (segment.last_seq, segment.live_count, segment.tagged_count, state.checkpointed_seq) == (5, 4, 1, 5)
    assert segment.live_bytes == active.live_bytes
    assert seqs_of(disk, state) == [1, 2, 3, 5]


def test_a_torn_frame_behind_them_is_cut_at_any_byte(disk: FakeDisk) -> None:
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, [3, 4], active=active)
    path = f"{stem(1)}.data"
    whole = disk.read(path)
    third = noted.data_bytes + (len(whole) - noted.data_bytes) // 2
    for cut in range(third, len(whole)):
        disk.replace(path, whole[:cut])
        state = state_of([noted])
        adopt(disk, state)
        assert state.checkpointed_seq == 3, cut
        assert disk.size(path) == third
        assert seqs_of(disk, state) == [1, 2, 3]
        disk.crash(Damage.DROP)
        assert disk.size(path) == third


def test_taking_in_twice_changes_nothing(disk: FakeDisk) -> None:
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, list(range(3, 15)), active=active, limits=FIVE)
    first, second = state_of([noted]), state_of([noted])
    assert adopt(disk, first)
    once = disk.files()
    adopt(disk, second)
    assert disk.files() == once
    assert first.segments == second.segments


def test_segments_that_continue_are_taken_in_and_the_noted_one_is_closed(disk: FakeDisk) -> None:
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, [3, 4, 5, 6, 8], active=active, limits=FIVE)
    state = state_of([noted])
    adopt(disk, state)
    assert [(segment.first_seq, segment.last_seq) for segment in state.segments] == [(1, 5), (6, 8)]
    assert [segment.sealed for segment in state.segments] == [True, False]
    assert (state.checkpointed_seq, seqs_of(disk, state)) == (8, [1, 2, 3, 4, 5, 6, 8])


def test_a_segment_behind_a_gap_is_left_to_the_log(disk: FakeDisk) -> None:
    """The WAL has all its records, and perhaps the records of the gap."""
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, [3, 4, 5, 9, 10, 11], active=active, limits=FIVE)
    state = state_of([noted])
    before = disk.read(f"{stem(9)}.data")
    adopt(disk, state)
    assert (state.checkpointed_seq, seqs_of(disk, state)) == (5, [1, 2, 3, 4, 5])
    assert disk.read(f"{stem(9)}.data") == before


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_an_index_is_built_again(disk: FakeDisk, damage: str) -> None:
    state = state_of(write(disk, [1, 2, 4]))
    if damage == "missing":
        disk.unlink(f"{stem(1)}.idx")
    else:
        disk.replace(f"{stem(1)}.idx", disk.read(f"{stem(1)}.idx")[:-1])
    (warning,) = adopt(disk, state)
    assert ".idx is missing or short" in warning
    assert seqs_of(disk, state) == [1, 2, 4]


def test_data_shorter_than_noted_is_damage_and_never_cut_or_appended_to(disk: FakeDisk) -> None:
    state = state_of(write(disk, [1, 2, 3]))
    path = f"{stem(1)}.data"
    disk.replace(path, disk.read(path)[:-5])
    before = disk.read(path)
    (warning,) = adopt(disk, state)
    assert path in warning
    assert state.segments[0].sealed
    assert disk.read(path) == before


def test_what_continues_nothing_is_left_alone_and_named(disk: FakeDisk) -> None:
    state = state_of(write(disk, list(range(1, 13)), limits=FIVE))
    state.segments.pop(1)
    before = disk.files()
    (warning,) = adopt(disk, state)
    assert "seqs 6 to 10 are in no snapshot" in warning
    assert disk.files() == before


def test_a_segment_below_the_floors_is_handed_back_for_removal_not_removed(disk: FakeDisk) -> None:
    """The previous snapshot may still list it."""
    state = state_of(write(disk, list(range(1, 13)), limits=FIVE), cap_floor=6)
    state.segments.pop(0)
    before = disk.files()
    dropped = adopt_segments(disk, ROOT, state, AdoptedRecords(state.checkpointed_seq + 1), pytest.fail, pytest.fail)
    assert [segment.first_seq for segment in dropped] == [1]
    assert disk.files() == before


def test_an_index_without_data_is_left_alone_and_named(disk: FakeDisk) -> None:
    state = state_of(write(disk, [1, 2]))
    disk.replace(f"{stem(9)}.idx", b"?" * 40)
    (warning,) = adopt(disk, state)
    assert "without their data" in warning
    assert disk.exists(f"{stem(9)}.idx")


def test_a_cold_segment_with_hot_files_is_hot_again(disk: FakeDisk) -> None:
    state = state_of(write(disk, list(range(1, 6)), limits=FIVE))
    state.segments[0].tier = "cold"
    assert adopt(disk, state) == []
    assert state.segments[0].tier == "hot"


def test_the_order_of_calls_is_kept(disk: FakeDisk) -> None:
    (active,) = write(disk, [1, 2])
    noted = msgspec.structs.replace(active)
    write(disk, list(range(3, 15)), active=active, limits=FIVE)
    monitor = MonitorFs(disk)
    state = state_of([noted])
    adopt_segments(monitor, ROOT, state, AdoptedRecords(state.checkpointed_seq + 1), pytest.fail, lambda note: None)
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_files_are_found_by_kind(disk: FakeDisk) -> None:
    write(disk, list(range(1, 8)), limits=FIVE, tags={1: "red"})
    disk.replace(f"{DIRECTORY}/notes", b"")
    disk.replace(f"{DIRECTORY}/seg-0000000000000006.replaced", b"")
    assert segment_files(disk, DIRECTORY) == ({1: {"data", "idx", "tags"}, 6: {"data", "idx"}}, [6])
    assert segment_files(disk, f"{ROOT}/topics/00000009") == ({}, [])
