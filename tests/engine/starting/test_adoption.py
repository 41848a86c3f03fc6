"""The segment files of one topic, compared with its snapshot entry."""

import msgspec
import pytest

from tests.storage.segments.segment_bench import ROOT, TOPIC, live_seqs, stem, write
from topics.engine.starting.adoption import adopt_segments, rebuild_states, segment_files
from topics.formats import segment_index
from topics.formats.snapshot import SegmentState, TopicState
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
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
    adopt_segments(disk, ROOT, state, said.append, said.append)
    return said


def seqs_of(disk: FakeDisk, state: TopicState) -> list[int]:
    seqs: list[int] = []
    for segment in state.segments:
        name = stem(segment.first_seq)
        segment_index.check(
            disk.read(f"{name}.idx")[: segment.entry_count * segment_index.ENTRY_BYTES],
            entry_count=segment.entry_count,
            data_bytes=segment.data_bytes,
        )
        seqs += live_seqs(SegmentReader(FileSource(disk, name), segment))
    return seqs


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
    dropped = adopt_segments(disk, ROOT, state, pytest.fail, pytest.fail)
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
    adopt_segments(monitor, ROOT, state_of([noted]), pytest.fail, lambda note: None)
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_files_are_found_by_kind(disk: FakeDisk) -> None:
    write(disk, list(range(1, 8)), limits=FIVE, tags={1: "red"})
    disk.replace(f"{DIRECTORY}/notes", b"")
    disk.replace(f"{DIRECTORY}/seg-0000000000000006.replaced", b"")
    assert segment_files(disk, DIRECTORY) == ({1: {"data", "idx", "tags"}, 6: {"data", "idx"}}, [6])
    assert segment_files(disk, f"{ROOT}/topics/00000009") == ({}, [])


# --- without any snapshot -----------------------------------------------------------------------------------


def test_states_are_rebuilt_from_segments_and_topic_json(disk: FakeDisk) -> None:
    write(disk, list(range(4, 13)), limits=FIVE)
    disk.replace(
        f"{DIRECTORY}/topic.json", b'{"name":"orders","epoch":3,"config":{"cap_records":9},"ttl_floor":2,"cap_floor":1}'
    )
    disk.unlink(f"{stem(4)}.idx")
    warnings: list[str] = []
    (state,), next_id = rebuild_states(disk, ROOT, warnings.append)
    assert (state.name, state.epoch, state.config) == ("orders", 3, {"cap_records": 9})
    assert (state.head_seq, state.checkpointed_seq, state.cap_floor, state.ttl_floor) == (12, 12, 3, 2)
    assert seqs_of(disk, state) == list(range(4, 13))
    assert next_id == 0x10000
    assert any("orders" in warning for warning in warnings)


@pytest.mark.parametrize("left", [0, 10])
def test_a_segment_that_lost_its_bytes_is_told_of(disk: FakeDisk, left: int) -> None:
    write(disk, list(range(1, 16)), limits=FIVE)
    disk.replace(f"{stem(6)}.data", disk.read(f"{stem(6)}.data")[:left])
    (state,), _ = rebuild_states(disk, ROOT, lambda warning: None)
    assert state.lost == [(6, 10)]
    assert seqs_of(disk, state) == [*range(1, 6), *range(11, 16)]


@pytest.mark.parametrize(("delete_below", "lost"), [(0, [(6, 10)]), (8, [(8, 10)]), (11, [])])
def test_a_segment_without_a_trace_is_told_of(disk: FakeDisk, delete_below: int, lost: list[tuple[int, int]]) -> None:
    """No file of the segment is there, and only a delete of everything below a seq is known."""
    write(disk, list(range(1, 16)), limits=FIVE)
    for kind in ("data", "idx"):
        disk.unlink(f"{stem(6)}.{kind}")
    disk.replace(f"{DIRECTORY}/topic.json", b'{"name":"orders","config":{},"delete_below":%d}' % delete_below)
    (state,), _ = rebuild_states(disk, ROOT, lambda warning: None)
    assert state.lost == lost
    assert seqs_of(disk, state) == [*range(1, 6), *range(11, 16)]


@pytest.mark.parametrize("trims", [b"[[7,9]]", b'[[7,9]],"more":1', b"[7]", b'"x"'])
def test_lost_ranges_are_read_from_topic_json(disk: FakeDisk, trims: bytes) -> None:
    """Seqs of a lost range are used, also when no segment follows it."""
    write(disk, [1, 2, 3])
    described = b'{"name":"orders","config":{},"lost":[[4,6]],"source_trims":%b}' % trims
    disk.replace(f"{DIRECTORY}/topic.json", described)
    (state,), _ = rebuild_states(disk, ROOT, lambda warning: None)
    is_good = trims.startswith(b"[[")
    assert state.lost == [(4, 6)]
    assert state.source_trims == ([(7, 9)] if is_good else [])
    assert (state.head_seq, state.checkpointed_seq) == (9 if is_good else 6, 3)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"name":7}', b'{"name":"x"}', b"\xff"])
def test_a_topic_without_a_good_topic_json_keeps_its_records_under_a_made_up_name(
    disk: FakeDisk, content: bytes | None
) -> None:
    """No topic is deleted."""
    write(disk, [1, 2])
    if content is not None:
        disk.replace(f"{DIRECTORY}/topic.json", content)
    (state,), _ = rebuild_states(disk, ROOT, lambda warning: None)
    assert (state.name, state.config) == ("recovered-1", {})
    assert seqs_of(disk, state) == [1, 2]


def test_a_removed_topic_is_not_rebuilt_but_its_id_is_not_used_again(disk: FakeDisk) -> None:
    disk.makedirs(f"{ROOT}/topics/0002ABCD.deleted")
    states, next_id = rebuild_states(disk, ROOT, pytest.fail)
    assert states == []
    assert next_id > 0x2ABCD


def test_a_segment_that_overlaps_the_one_before_is_not_taken_twice(disk: FakeDisk) -> None:
    write(disk, [1, 2, 3, 4])
    disk.replace(f"{stem(3)}.data", disk.read(f"{stem(1)}.data"))
    (state,), _ = rebuild_states(disk, ROOT, lambda warning: None)
    assert [segment.first_seq for segment in state.segments] == [1]
