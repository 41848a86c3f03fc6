"""Deletes over segments: what they remove is found out first, in cold segments without the owner. Then they happen
whole."""

import errno
from typing import Any

import pytest

from tests.engine.cold_log import ColdLog
from tests.engine.small_log import ROOT, SmallLog
from topics.engine.runtime import InlineRuntime
from topics.engine.writing.deletion import DELETE_TURN_RECORDS
from topics.errors import Closed, ColdUnavailable, StartRefused, TopicNotFound
from topics.formats import control, wal_frame
from topics.formats.wal_frame import FrameType
from topics.limits import FRAME_BYTES_MAX
from topics.storage import layout
from topics.storage.segments.writer import flag_deleted
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs, Operation

WAL = f"{ROOT}/wal/wal-0000000000000001.log"
# What a delete may select, and the seqs of 40 records that it removes. Tags are t0, t1 and t2 in turn.
SELECTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"tag": "t1"}, list(range(1, 41, 3))),
    ({"tag_prefix": "t"}, list(range(1, 41))),
    ({"tag": "t2", "before_seq": 13}, [2, 5, 8, 11]),
    ({"before_seq": 14}, list(range(1, 14))),
    ({"seqs": [3, 4, 11, 38, 99]}, [3, 4, 11, 38]),
]
# The same for 43 records, the last three in the active segment.
HOT_SELECTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"tag": "t1"}, [*range(1, 41, 3), 43]),
    ({"tag_prefix": "t"}, list(range(1, 44))),
    ({"tag": "t2", "before_seq": 13}, [2, 5, 8, 11]),
    ({"before_seq": 14}, list(range(1, 14))),
    ({"before_seq": 43}, list(range(1, 43))),
    ({"seqs": [3, 4, 11, 38, 42, 99]}, [3, 4, 11, 38, 42]),
]


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def log(disk: FakeDisk) -> ColdLog:
    log = ColdLog(disk)
    log.make(40)
    return log


def start(log: ColdLog, **what: Any) -> list[Any]:
    answers: list[Any] = []
    log.engine.delete_records("a", answers.append, **what)
    log.engine.flush()
    return answers


def expect(log: ColdLog, seqs: list[int]) -> None:
    records, _ = log.read()
    assert [record.seq for record in records] == seqs
    assert log.topic().count == len(seqs)
    assert log.topic().size_bytes == sum(len(record.data) for record in records)


def left(gone: list[int], head_seq: int = 40) -> list[int]:
    return [seq for seq in range(1, head_seq + 1) if seq not in gone]


@pytest.mark.parametrize(("what", "gone"), SELECTIONS)
def test_a_delete_removes_the_same_records_from_both_tiers_also_after_a_crash(
    disk: FakeDisk, log: ColdLog, what: dict[str, Any], gone: list[int]
) -> None:
    (answer,) = start(log, **what)
    assert answer.deleted == len(gone)
    expect(log, left(gone))
    disk.kill()
    log = ColdLog(disk)
    expect(log, left(gone))
    assert start(log, **what)[0].deleted == 0
    log.settle()
    expect(log, left(gone))
    assert log.tier.calls_of_owner == []


@pytest.mark.parametrize(("what", "gone"), SELECTIONS)
def test_a_start_needs_no_tier_to_know_what_was_deleted(
    disk: FakeDisk, log: ColdLog, what: dict[str, Any], gone: list[int]
) -> None:
    start(log, **what)
    expected = log.topic().count, log.topic().size_bytes
    disk.kill()
    log = ColdLog(disk, is_down=True)
    assert (log.topic().count, log.topic().size_bytes) == expected
    log.tier.heal()
    expect(log, left(gone))


@pytest.mark.parametrize(("what", "gone"), SELECTIONS)
def test_a_tier_that_fails_at_any_call_of_a_delete_makes_it_change_nothing(
    disk: FakeDisk, what: dict[str, Any], gone: list[int]
) -> None:
    log = ColdLog(disk)
    log.make(40)
    calls = 0
    while True:
        wal = {path: disk.read(path) for path in disk.files() if "/wal/" in path}
        log.tier.fail_after(calls)
        (answer,) = start(log, **what)
        log.tier.heal()
        if not isinstance(answer, ColdUnavailable):
            break
        assert answer.detail["topic"] == "a"
        assert {path: disk.read(path) for path in disk.files() if "/wal/" in path} == wal
        expect(log, left([]))
        calls += 1
    assert answer.deleted == len(gone)
    expect(log, left(gone))
    assert calls >= 1


def test_records_that_are_written_while_a_delete_waits_are_not_deleted(disk: FakeDisk, log: ColdLog) -> None:
    log.runtime.holds = True
    answers = start(log, tag="t2")
    log.write(41)
    assert not answers
    log.runtime.holds = False
    log.runtime.begin_held()
    log.runtime.end_held()
    log.engine.flush()
    gone = list(range(2, 41, 3))
    assert answers[0].deleted == len(gone)
    expect(log, left(gone, 41))
    disk.kill()
    expect(ColdLog(disk), left(gone, 41))


def test_records_that_die_while_a_delete_waits_are_counted_once(disk: FakeDisk, log: ColdLog) -> None:
    """Another delete, and a cap that evicts half of a cold segment."""
    log.runtime.holds = True
    answers = start(log, tag="t1")
    log.runtime.begin_held()
    log.runtime.holds = False
    assert start(log, seqs=[1, 4, 16, 31])[0].deleted == 4
    log.create(durability="fsync", cap_records=33)
    log.runtime.end_held()
    log.engine.flush()
    gone = sorted({*range(1, 41, 3), *range(1, 8)})
    assert answers[0].deleted == len([seq for seq in range(8, 41) if seq % 3 == 1 and seq not in (16, 31)])
    expect(log, left(gone))
    disk.kill()
    expect(ColdLog(disk), left(gone))


def test_what_was_found_before_delete_bytes_were_set_is_looked_up_again(log: ColdLog) -> None:
    assert start(log, seqs=[1, 4])[0].deleted == 2
    log.runtime.holds = True
    answers = start(log, tag="t1")
    # The files are read now, and still say that seqs 1 and 4 are live.
    log.runtime.begin_held()
    log.runtime.holds = False
    log.checkpoint()
    assert not log.topic().live.segments.has_pending(log.topic().live.segments.segments[0])
    log.runtime.end_held()
    log.engine.flush()
    assert answers[0].deleted == len(range(7, 41, 3))
    expect(log, left(list(range(1, 41, 3))))


def test_two_deletes_of_the_same_records_at_once_count_them_once(disk: FakeDisk, log: ColdLog) -> None:
    log.runtime.holds = True
    answers = [start(log, tag="t1"), start(log, tag_prefix="t1")]
    log.runtime.begin_held()
    for _ in range(20):
        log.runtime.end_held()
        log.runtime.begin_held()
    log.engine.flush()
    log.runtime.holds = False
    assert sorted(answer[0].deleted for answer in answers) == [0, 14]
    expect(log, left(list(range(1, 41, 3))))
    disk.kill()
    expect(ColdLog(disk), left(list(range(1, 41, 3))))


def test_a_segment_that_becomes_cold_while_a_delete_waits_loses_its_records_too(disk: FakeDisk, log: ColdLog) -> None:
    for number in range(41, 51):
        log.write(number)
    log.checkpoint()
    log.runtime.holds = True
    answers = start(log, tag="t1")
    log.settle()
    log.runtime.holds = False
    log.runtime.begin_held()
    log.runtime.end_held()
    log.engine.flush()
    gone = list(range(1, 51, 3))
    assert answers[0].deleted == len(gone)
    expect(log, left(gone, 50))
    disk.kill()
    expect(ColdLog(disk), left(gone, 50))


def test_a_delete_that_waits_for_the_tier_ends_with_its_topic(log: ColdLog) -> None:
    log.runtime.holds = True
    answers = start(log, tag="t1")
    log.drop()
    log.runtime.begin_held()
    log.runtime.end_held()
    log.engine.flush()
    assert isinstance(answers[0], TopicNotFound)


def test_a_delete_that_waits_for_the_tier_is_refused_when_the_log_closes(log: ColdLog) -> None:
    log.runtime.holds = True
    answers = start(log, tag="t1")
    log.runtime.begin_held()
    log.engine.stop_writes()
    log.runtime.end_held()
    log.engine.flush()
    assert isinstance(answers[0], Closed)


def test_acks_of_cold_jobs_need_no_second_look_at_the_tier(log: ColdLog) -> None:
    """The claim has brought the bytes, and the ack finds them in memory."""
    log.create("q", type="queue", durability="fsync")
    for number in range(1, 21):
        log.write(number, "q")
    log.settle()
    claims: list[Any] = []
    log.engine.queues.claim("q", "worker", 3, None, claims.append)
    log.engine.flush()
    assert [job.seq for job in claims[0].jobs] == [1, 2, 3]
    log.tier.fail_after(0)
    acks: list[Any] = []
    log.engine.queues.ack("q", "worker", [1, 2, 3], [], acks.append)
    log.engine.flush()
    assert acks[0].settled == 3
    assert log.topic("q").count == 17
    assert log.tier.calls_of_owner == []


def test_an_ack_that_the_tier_refuses_leaves_the_job_to_be_delivered_again(log: ColdLog) -> None:
    log.create("q", type="queue", durability="fsync")
    for number in range(1, 21):
        log.write(number, "q")
    claims: list[Any] = []
    log.engine.queues.claim("q", "worker", 3, None, claims.append)
    log.engine.flush()
    log.settle()
    log.tier.fail_after(0)
    acks: list[Any] = []
    log.engine.queues.ack("q", "worker", [1, 2], [], acks.append)
    log.engine.flush()
    assert isinstance(acks[0], ColdUnavailable)
    log.tier.heal()
    log.engine.queues.claim("q", "other", 1, None, claims.append)
    log.engine.flush()
    assert [job.seq for job in claims[1].jobs] == [1]


def test_a_frame_of_an_older_version_makes_a_start_ask_the_tier(disk: FakeDisk, log: ColdLog) -> None:
    """It does not name the records of cold segments. Without the tier the start is refused: else they would come
    back."""
    disk.kill()
    content = disk.read(WAL)
    end = max(frame.end for frame in wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX))
    delete = control.Delete(bound=41, tag="t1")
    disk.poke(WAL, end, wal_frame.encode_control(FrameType.DELETE, 1, log.clock.now_ms(), control.encode(delete)))
    with pytest.raises(StartRefused, match="needs the cold tier, which does not answer"):
        ColdLog(disk, is_down=True)
    expect(ColdLog(disk), left(list(range(1, 41, 3))))


# Hot segments.

READS: tuple[Operation, ...] = ("open", "exists", "size", "map", "pread")


@pytest.fixture(scope="module")
def filed() -> FakeDisk:
    """43 records in sealed segments and an active one, after a kill."""
    disk = FakeDisk()
    log = SmallLog(disk)
    log.create(durability="fsync")
    for seq in range(1, 41):
        log.append(tag=f"t{seq % 3}")
    log.checkpoint()
    log.append(tag="t2")
    log.append(tag="t0")
    log.append(tag="t1")
    log.checkpoint()
    disk.kill()
    return disk


def in_segments(path: str) -> bool:
    return "/topics/" in path


def numbers(log: SmallLog) -> tuple[int, int, int]:
    topic = log.topic()
    topic.refresh(log.clock.now_ms())
    return topic.count, topic.size_bytes, topic.earliest_seq


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize(("what", "gone"), HOT_SELECTIONS)
def test_a_segment_file_that_fails_at_any_call_of_a_delete_makes_it_whole_or_refused(
    filed: FakeDisk, what: dict[str, Any], gone: list[int], error: int, lasts: bool
) -> None:
    refusals = 0
    at = 0
    while True:
        disk = filed.clone()
        fs = FaultFs(disk)
        log = SmallLog(fs)
        wal = {path: disk.read(path) for path in disk.files() if "/wal/" in path}
        fault = fs.fail(*READS, error=error, at=at, lasts=lasts, path=in_segments)
        answers: list[Any] = []
        try:
            log.engine.delete_records("a", answers.append, **what)
            log.engine.flush()
        except ColdUnavailable as refusal:
            answers.append(refusal)
        fs.heal()
        (answer,) = answers
        if isinstance(answer, ColdUnavailable):
            refusals += 1
            assert answer.detail["topic"] == "a"
            assert {path: disk.read(path) for path in disk.files() if "/wal/" in path} == wal
        else:
            assert answer.deleted == len(gone)
        expected = left([] if isinstance(answer, ColdUnavailable) else gone, 43)
        assert log.seqs() == expected
        shown = numbers(log)
        assert shown[2] == [*expected, 44][0]
        # A delete that was refused works when it is repeated, and deletes what it would have deleted at first.
        assert log.delete(**what) == (len(gone) if isinstance(answer, ColdUnavailable) else 0)
        expected, shown = left(gone, 43), numbers(log)
        assert log.seqs() == expected
        disk.kill()
        log = SmallLog(disk)
        assert log.seqs() == expected
        assert numbers(log) == shown
        if not fault.fired_count:
            break
        at += 1
    assert refusals >= 1


# Deletes of very many records.


def test_a_delete_that_takes_several_turns_removes_what_was_live_when_it_was_called(disk: FakeDisk) -> None:
    """Between its turns records die, a checkpoint sets delete bytes and seals segments, and new records come."""
    segment_events = DELETE_TURN_RECORDS * 3 // 4
    runtime = InlineRuntime()
    log = SmallLog(disk, runtime=runtime, segment_events_max=segment_events, wal_file_bytes=2**22)
    log.create(durability="fsync")
    log.append(count=5 * segment_events, tag="all")
    log.checkpoint()
    log.append(count=100, tag="all")
    last_seq = log.topic().head_seq
    log.delete(seqs=[2])
    answers: list[Any] = []
    log.engine.delete_records("a", answers.append, tag="all")
    log.engine.flush()
    turns = 0
    while runtime.take_turn():
        turns += 1
        if turns == 1:
            # Seq 2 is pending, seq 3 dies in a segment that was searched, the last one in memory.
            assert log.delete(seqs=[3, last_seq]) == 2
            log.append(tag="all")
            log.checkpoint()
    assert turns > 1
    (deleted,) = answers
    assert (deleted.deleted, deleted.count) == (last_seq - 3, 1)
    assert log.seqs() == [last_seq + 1]
    log.checkpoint()
    disk.kill()
    log = SmallLog(disk)
    assert log.seqs() == [last_seq + 1]
    assert log.topic().count == 1


def test_records_that_got_their_delete_bytes_after_a_delete_was_logged_are_counted_once(disk: FakeDisk) -> None:
    """The delete has searched the segment before. A checkpoint ends before the delete is applied."""
    log = SmallLog(disk)
    log.create(durability="fsync")
    for seq in range(1, 13):
        log.append(tag="odd" if seq % 2 else "even")
    log.checkpoint()
    answers: list[Any] = []
    log.engine.delete_records("a", answers.append, tag="even")
    segments = log.topic().live.segments
    # As another delete and a checkpoint do it.
    segments.kill_many([2, 8])
    for first_seq, seq in ((1, 2), (6, 8)):
        state = segments.segment_of(first_seq)
        assert state is not None
        stem = f"{ROOT}/topics/00000001/{layout.segment_stem(first_seq)}"
        reader = log.engine.core.cache.reader(log.topic().id, state)
        flag_deleted(disk, stem, reader.positions([seq]))
        segments.clear_pending(first_seq, segments.pending_bits(state))
    log.engine.flush()
    (deleted,) = answers
    assert deleted.deleted == 4
