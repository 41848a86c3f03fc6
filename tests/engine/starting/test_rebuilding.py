"""Topics that a start rebuilds from their segments and `topic.json`, because no snapshot is readable."""

import pytest

from tests.storage.segments.segment_bench import ROOT, TOPIC, seqs_of, stem, write
from topics.engine.starting.rebuilding import RebuiltTopic, rebuild_topics
from topics.errors import ColdUnavailable, StartRefused
from topics.storage import layout
from topics.storage.segments.writer import SegmentLimits
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import MissingStore
from topics.testing.fake_disk import FakeDisk

DIRECTORY = f"{ROOT}/topics/00000001"
COLD = "/cold"
FIVE = SegmentLimits(5, 1 << 20, 0)


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(f"{ROOT}/topics")
    return disk


def rebuilt(disk: FakeDisk) -> RebuiltTopic:
    (topic,), _ = rebuild_topics(disk, ROOT, lambda warning: None)
    return topic


def test_states_are_rebuilt_from_segments_and_topic_json(disk: FakeDisk) -> None:
    write(disk, list(range(4, 13)), limits=FIVE)
    disk.replace(
        f"{DIRECTORY}/topic.json", b'{"name":"orders","epoch":3,"config":{"cap_records":9},"ttl_floor":2,"cap_floor":1}'
    )
    disk.unlink(f"{stem(4)}.idx")
    (topic,), next_id = rebuild_topics(disk, ROOT, pytest.fail)
    state = topic.state
    assert (state.name, state.epoch, state.config) == ("orders", 3, {"cap_records": 9})
    assert (state.head_seq, state.checkpointed_seq, state.cap_floor, state.ttl_floor) == (12, 12, 3, 2)
    assert seqs_of(disk, state) == list(range(4, 13))
    assert next_id == 0x10000
    assert topic.is_named


@pytest.mark.parametrize("left", [0, 10])
def test_the_records_of_a_segment_that_lost_its_bytes_are_a_lost_range(disk: FakeDisk, left: int) -> None:
    write(disk, list(range(1, 16)), limits=FIVE)
    disk.replace(f"{stem(6)}.data", disk.read(f"{stem(6)}.data")[:left])
    state = rebuilt(disk).state
    assert state.lost == [(6, 10)]
    assert seqs_of(disk, state) == [*range(1, 6), *range(11, 16)]


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{", b"[]", b'{"name":7}', b'{"name":"x"}', b'{"name":"x","config":{"cap_records":[]}}', b"\xff"],
)
def test_a_topic_without_a_good_topic_json_keeps_its_records_under_a_made_up_name(
    disk: FakeDisk, content: bytes | None
) -> None:
    """No topic is deleted."""
    write(disk, [1, 2])
    if content is not None:
        disk.replace(f"{DIRECTORY}/topic.json", content)
    state = rebuilt(disk).state
    assert (state.name, state.config) == ("recovered-1", {})
    assert not rebuilt(disk).is_named
    assert seqs_of(disk, state) == [1, 2]


def test_a_removed_topic_is_not_rebuilt_but_its_id_is_not_used_again(disk: FakeDisk) -> None:
    disk.makedirs(f"{ROOT}/topics/0002ABCD.deleted")
    topics, next_id = rebuild_topics(disk, ROOT, pytest.fail)
    assert topics == []
    assert next_id > 0x2ABCD


def test_a_segment_that_overlaps_the_one_before_is_not_taken_twice(disk: FakeDisk) -> None:
    write(disk, [1, 2, 3, 4])
    disk.replace(f"{stem(3)}.data", disk.read(f"{stem(1)}.data"))
    state = rebuilt(disk).state
    assert [segment.first_seq for segment in state.segments] == [1]


@pytest.mark.parametrize(("delete_below", "lost"), [(0, [(6, 10)]), (8, [(8, 10)]), (11, [])])
@pytest.mark.parametrize("gaps_are_lost", [True, False])
def test_a_missing_segment_is_a_lost_range_unless_the_log_can_tell(
    disk: FakeDisk, delete_below: int, lost: list[tuple[int, int]], gaps_are_lost: bool
) -> None:
    """No file of the segment is there, and only a delete of everything below a seq is known."""
    write(disk, list(range(1, 16)), limits=FIVE)
    for kind in ("data", "idx"):
        disk.unlink(f"{stem(6)}.{kind}")
    disk.replace(f"{DIRECTORY}/topic.json", b'{"name":"orders","config":{},"delete_below":%d}' % delete_below)
    (found,), _ = rebuild_topics(disk, ROOT, lambda warning: None, gaps_are_lost=gaps_are_lost)
    assert found.state.lost == (lost if gaps_are_lost else [])
    assert seqs_of(disk, found.state) == [*range(1, 6), *range(11, 16)]


def test_lost_ranges_are_read_from_topic_json(disk: FakeDisk) -> None:
    """Seqs of a lost range are used, also when no segment follows it: `head_seq` says so."""
    write(disk, [1, 2, 3])
    described = b'{"name":"orders","config":{},"head_seq":9,"lost":[[4,6]],"source_trims":[[7,9]]}'
    disk.replace(f"{DIRECTORY}/topic.json", described)
    (found,), _ = rebuild_topics(disk, ROOT, lambda warning: None)
    assert (found.state.lost, found.state.source_trims, found.state.head_seq) == ([(4, 6)], [(7, 9)], 9)


@pytest.mark.parametrize(("lost", "cap_floor"), [(b"[[1,3]]", 0), (b"[[1,2]]", 3), (b"[[2,3]]", 3), (b"[]", 3)])
def test_a_lost_range_before_the_oldest_record_is_no_floor(disk: FakeDisk, lost: bytes, cap_floor: int) -> None:
    write(disk, [4, 5])
    disk.replace(f"{DIRECTORY}/topic.json", b'{"name":"orders","config":{},"source_trims":%b}' % lost)
    assert rebuilt(disk).state.cap_floor == cap_floor


def test_a_topic_ends_where_topic_json_says_if_its_last_seqs_have_no_record(disk: FakeDisk) -> None:
    """Else the seqs of deleted records would be given out again."""
    write(disk, [1, 2, 3])
    disk.replace(f"{DIRECTORY}/topic.json", b'{"name":"a","config":{},"head_seq":9}')
    topic = rebuilt(disk)
    assert (topic.state.head_seq, topic.state.checkpointed_seq, topic.state.lost) == (9, 9, [])


def test_records_lost_at_the_end_of_the_last_file_are_a_lost_range(disk: FakeDisk) -> None:
    write(disk, [1, 2, 3])
    disk.replace(f"{stem(1)}.data", disk.read(f"{stem(1)}.data")[:-1])
    assert rebuilt(disk).ends_damaged
    disk.replace(f"{DIRECTORY}/topic.json", b'{"name":"a","config":{},"head_seq":9}')
    topic = rebuilt(disk)
    assert (topic.state.lost, topic.ends_damaged) == ([(3, 9)], False)


def test_a_damaged_end_that_the_next_file_continues_is_no_loss(disk: FakeDisk) -> None:
    write(disk, list(range(1, 11)), limits=FIVE)
    disk.replace(f"{stem(1)}.data", disk.read(f"{stem(1)}.data") + b"garbage")
    topic = rebuilt(disk)
    assert topic.state.lost == []
    assert [segment.first_seq for segment in topic.state.segments] == [1, 6]


def test_segments_of_the_cold_tier_are_found(disk: FakeDisk) -> None:
    write(disk, list(range(1, 16)), limits=FIVE)
    cold = FolderStore(disk, COLD)
    for first_seq in (1, 6):
        for kind in ("data", "idx"):
            cold.put(layout.segment_object(TOPIC, first_seq, kind), disk.read(f"{stem(first_seq)}.{kind}"))
    for kind in ("data", "idx"):
        disk.unlink(f"{stem(1)}.{kind}")
    (topic,), _ = rebuild_topics(disk, ROOT, pytest.fail, cold=cold)
    found = [(segment.first_seq, segment.tier, segment.live_count) for segment in topic.state.segments]
    assert found == [(1, "cold", 5), (6, "hot", 5), (11, "hot", 5)]
    assert topic.state.cap_floor == 0


def test_a_cold_tier_that_does_not_answer_refuses_the_start(disk: FakeDisk) -> None:
    """The floors would pass the records that it has, and they would never come back."""
    write(disk, [6, 7])
    with pytest.raises(StartRefused, match="the cold tier does not say which segments it has") as caught:
        rebuild_topics(disk, ROOT, pytest.fail, cold=MissingStore(COLD))
    assert isinstance(caught.value.__cause__, ColdUnavailable)


def test_a_file_that_an_unfinished_checkpoint_left_does_not_hide_the_one_that_was_written_later(disk: FakeDisk) -> None:
    write(disk, [1, 2, 3, 4])
    data, index = disk.read(f"{stem(1)}.data"), disk.read(f"{stem(1)}.idx")
    write(disk, [3, 4, 5, 6])
    disk.replace(f"{stem(1)}.data", data)
    disk.replace(f"{stem(1)}.idx", index)
    state = rebuilt(disk).state
    assert [(segment.first_seq, segment.entry_count) for segment in state.segments] == [(1, 2), (3, 4)]
    assert seqs_of(disk, state) == [1, 2, 3, 4, 5, 6]
