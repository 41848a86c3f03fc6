"""Commits of staged records: a commit is one write of any size. It is made once, however often it is tried."""

import errno
from itertools import count
from typing import Any

import pytest

from tests.engine.small_log import raised
from tests.engine.staging_log import (
    LARGE_BYTES,
    TURN_BYTES,
    WRITER,
    StagingLog,
    SteppedCommits,
    SteppedWal,
    opened,
    staged_names,
    stepped,
)
from topics.engine.config import checked_config
from topics.engine.topic.router import RouterSpec
from topics.engine.writing.commits import Committed
from topics.engine.writing.intake import batch_of_records
from topics.engine.writing.staging import StagedPart
from topics.errors import (
    Closed,
    InvalidRequest,
    RecordTooLarge,
    StageIncomplete,
    StorageFull,
    Throttled,
    TopicFull,
    TopicNotFound,
    WalFailed,
)
from topics.results import NewRecord
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs


def test_parts_are_appended_in_the_order_of_their_numbers_as_one_write() -> None:
    log = opened()
    log.append("a", 1)
    log.stage(["b1", "b2"], part=1)
    log.stage(["a2"], part=0, chunk=1)
    log.stage(["a1"], part=0, chunk=0)
    assert log.seqs() == [1]
    committed = log.commit([StagedPart(1, 0, 1, 2), StagedPart(0, 0, 2, 2)])
    assert (committed.first_seq, committed.last_seq, committed.count, committed.deduped) == (2, 5, 4, False)
    assert log.payloads()[1:] == [b"a1", b"a2", b"b1", b"b2"]
    assert log.ledger() == [(1, 2, 5)]


def test_labels_and_meta_come_through() -> None:
    log = opened()
    log.stage([NewRecord(1), NewRecord(2, tag="t", node="n", meta={"m": 1})])
    log.stage([NewRecord(3), NewRecord(4, node="")], chunk=1)
    log.stage([NewRecord(5, tag="")], part=1)
    log.commit([StagedPart(0, 0, 2, 4), StagedPart(1, 0, 1, 1)])
    found = [(record.data, record.tag, record.node, record.meta) for record in log.read()[0]]
    assert found == [
        (b"1", None, None, None),
        (b"2", "t", "n", b'{"m":1}'),
        (b"3", None, None, None),
        (b"4", None, "", None),
        (b"5", "", None, None),
    ]
    assert log.topic().live.tagged_seqs(b"t", is_prefix=False, end_seq=9) == [2]
    assert log.delete(tag="t") == 1


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_repeated_commit_adds_nothing_and_tells_the_same_seqs(durability: str) -> None:
    log = opened(durability=durability)
    for epoch in (1, 2):
        log.stage([epoch, epoch], epoch)
        first = log.commit([StagedPart(0, 0, 1, 2)], epoch)
        again = log.commit([StagedPart(0, 0, 1, 2)], epoch)
        assert again.deduped
        assert (again.first_seq, again.last_seq, again.count) == (first.first_seq, first.last_seq, 2)
    older = log.commit([StagedPart(0, 0, 1, 2)], 1)
    assert (older.deduped, older.first_seq, older.last_seq, older.count) == (True, None, None, None)
    assert log.payloads() == [b"1", b"1", b"2", b"2"]
    assert log.engine.commits.epochs(WRITER) == [(log.topic(), log.topic().writers[WRITER])]


def test_an_attempt_that_is_not_named_is_never_seen_and_goes_with_the_epoch() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.stage(["old"], epoch=0)
    log.stage(["failed"], attempt=0)
    log.stage(["good"], attempt=1)
    log.stage(["next"], epoch=2)
    log.commit([StagedPart(0, 1, 1, 1)])
    assert log.payloads() == [b"good"]
    assert len(staged_names(disk)) == 1
    log.commit([StagedPart(0, 0, 1, 1)], 2)
    assert staged_names(disk) == []
    assert log.payloads() == [b"good", b"next"]


def test_a_commit_without_records_moves_the_epoch_alone() -> None:
    disk = FakeDisk()
    log = opened(disk)
    committed = log.commit([], 4)
    assert (committed.first_seq, committed.last_seq, committed.count) == (1, 0, 0)
    log.append("a", 2)
    assert log.commit([StagedPart(3, 0, 0, 0)], 5).first_seq == 3
    for _ in range(2):
        disk.crash(Damage.DROP)
        log = StagingLog(disk)
        assert log.ledger() == [(5, 3, 2)]
        assert log.seqs() == [1, 2]
        log.checkpoint()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([StagedPart(0, 0, 2, 2)], "part 0, attempt 0: chunk 1 of 2 is not staged"),
        ([StagedPart(0, 1, 1, 2)], "part 0, attempt 1: chunk 0 of 1 is not staged"),
        ([StagedPart(0, 0, 1, 3)], "part 0, attempt 0: its chunks have 2 records, the commit says 3"),
        ([StagedPart(0, 0, 1, 2), StagedPart(1, 0, 2**63, 1)], "part 1, attempt 0: chunk 0 of"),
    ],
)
def test_a_commit_of_what_is_not_there_is_refused_and_can_be_made_good(parts: list[StagedPart], reason: str) -> None:
    log = opened()
    log.stage([1, 2])
    with pytest.raises(StageIncomplete, match=reason):
        log.commit(parts)
    assert log.topic().head_seq == 0
    assert log.commit([StagedPart(0, 0, 1, 2)]).count == 2


def test_a_commit_names_each_part_once_and_a_topic_that_is_there() -> None:
    log = opened()
    with pytest.raises(InvalidRequest, match="one attempt of each part"):
        log.commit([StagedPart(0, 0, 0, 0), StagedPart(0, 1, 0, 0)])
    with pytest.raises(TopicNotFound):
        log.commit([], name="b")
    with pytest.raises(InvalidRequest, match="is not a writer's name"):
        log.engine.commits.commit("a", "no/name", 1, [], [].append)


def test_a_commit_of_several_turns_is_seen_at_once_and_as_a_whole() -> None:
    log, turns = stepped()
    log.append("a", 1)
    results = log.commit_large()
    seen = 0
    while not results:
        assert log.seqs() == [1]
        assert log.ledger() == []
        assert turns.step()
        log.engine.flush()
        seen += 1
    assert seen > 2
    assert raised(results).count == 7
    assert log.payloads()[1:] == [b"1-%d" % place for place in range(7)]
    assert log.ledger() == [(1, 2, 8)]


def test_what_is_asked_of_the_topic_meanwhile_happens_behind_the_commit() -> None:
    """A frame of the topic between the frames of the commit would end the commit for a replay. Invariant 2."""
    disk = FakeDisk()
    log, turns = stepped(disk)
    log.append("a", 2)
    results = log.commit_large()
    turns.step()
    log.engine.flush()
    answers: list[Any] = []
    log.start_append("a", 1, answers)
    log.engine.delete_records("a", answers.append, before_seq=2)
    log.engine.groups.put("a", "g", "head", answers.append)
    log.engine.put_topic("a", checked_config({"cap_records": 100}), answers.append)
    second = log.start_commit([StagedPart(0, 0, 2, 7)])
    log.append("other", 3)
    log.engine.flush()
    assert answers == []
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    assert (raised(results).first_seq, raised(results).last_seq) == (3, 9)
    assert raised(second).deduped
    assert len(answers) == 4
    head = log.topic().head_seq
    assert head == 10
    disk.kill()
    log = StagingLog(disk)
    assert [record.seq for record in log.read()[0]] == list(range(2, 11))
    assert log.ledger() == [(1, 3, 9)]
    assert log.topic().groups["g"].seq == 9
    assert log.topic().config.cap_records == 100


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_process_that_dies_half_way_leaves_nothing_and_the_commit_is_made_again(durability: str) -> None:
    disk = FakeDisk()
    log, turns = stepped(disk, durability=durability)
    log.append("a", 2)
    log.commit_large()
    for _ in range(2):
        turns.step()
        log.engine.flush()
    disk.kill()
    log = StagingLog(disk)
    assert log.seqs() == [1, 2]
    assert log.ledger() == []
    assert log.append("a", 1).first_seq == 3
    assert log.commit([StagedPart(0, 0, 2, 7)]).first_seq == 4
    log.checkpoint()
    disk.crash(Damage.DROP)
    log = StagingLog(disk)
    assert log.payloads()[3:] == [b"1-%d" % place for place in range(7)]
    assert log.ledger() == [(1, 4, 10)]
    assert staged_names(disk) == []


def test_a_commit_that_power_took_back_can_be_made_again() -> None:
    """The chunks stay until the records are synced. In class `memory` that is after the answer."""
    disk = FakeDisk()
    runtime = SteppedWal()
    log = StagingLog(disk, runtime=runtime)
    results: list[Any] = []
    log.engine.put_topic("a", checked_config({"durability": "memory"}), results.append)
    log.engine.flush()
    while runtime.syncs.step():
        pass
    raised(results)
    log.stage([1, 2])
    assert log.commit([StagedPart(0, 0, 1, 2)]).last_seq == 2
    disk.crash(Damage.DROP)
    log = StagingLog(disk)
    assert (log.topic().head_seq, log.ledger()) == (0, [])
    assert log.commit([StagedPart(0, 0, 1, 2)]).deduped is False
    assert log.payloads() == [b"1", b"2"]


def test_a_full_disk_half_way_leaves_nothing_visible_and_a_retry_works() -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    log, turns = stepped(faults)
    log.append("a", 2)
    results = log.commit_large()
    turns.step()
    log.engine.flush()
    faults.fail("pwrite", "preallocate", error=errno.ENOSPC, lasts=True, path=lambda path: "/wal/" in path)
    while turns.step():
        log.engine.flush()
    assert isinstance(results[0], StorageFull)
    assert (log.seqs(), log.ledger()) == ([1, 2], [])
    faults.heal()
    assert log.append("a", 1).first_seq == 3
    again = log.start_commit([StagedPart(0, 0, 2, 7)])
    while turns.step():
        log.engine.flush()
    assert raised(again).first_seq == 4
    log.checkpoint()
    assert log.payloads()[3:] == [b"1-%d" % place for place in range(7)]
    disk.kill()
    log = StagingLog(disk)
    assert log.payloads()[3:] == [b"1-%d" % place for place in range(7)]
    assert log.ledger() == [(1, 4, 10)]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_disk_that_is_full_at_any_write_costs_nothing_but_a_retry(durability: str) -> None:
    """From the failed write on the disk is full, until the test frees room."""
    for at in count():
        disk = FakeDisk()
        faults = FaultFs(disk)
        log, turns = stepped(faults, durability=durability)
        log.append("a", 1)
        fault = faults.fail("pwrite", error=errno.ENOSPC, at=at, lasts=True)
        try:
            results = log.commit_large()
            while turns.step():
                log.engine.flush()
            assert isinstance(results[0], StorageFull | Committed)
        except StorageFull:
            results = []
        has_struck = fault.fired_count > 0
        faults.heal()
        again = log.commit_large()
        while turns.step():
            log.engine.flush()
        log.engine.flush()
        assert raised(again).deduped == bool(results and isinstance(results[0], Committed))
        log.append("a", 1)
        for _ in range(2):
            assert [payload for payload in log.payloads() if payload.startswith(b"1-")] == [
                b"1-%d" % place for place in range(7)
            ]
            assert log.ledger() == [(1, 2, 8)]
            log.checkpoint()
            disk.kill()
            log = StagingLog(disk)
        if not has_struck:
            break
    assert at == 5, "two chunks and three turns"


def test_a_commit_takes_the_seqs_that_a_failed_write_before_it_gave_back() -> None:
    faults = FaultFs(FakeDisk())
    log, turns = stepped(faults)
    log.stage(["late"])
    answers: list[Any] = []
    log.start_append("a", 3, answers)
    results = log.start_commit([StagedPart(0, 0, 1, 1)])
    faults.fail("pwrite", error=errno.ENOSPC, path=lambda path: "/wal/" in path, lasts=True)
    log.engine.flush()
    assert isinstance(answers[0], StorageFull)
    faults.heal()
    turns.step()
    log.engine.flush()
    assert (raised(results).first_seq, log.payloads(), log.ledger()) == (1, [b"late"], [(1, 1, 1)])


def test_a_checkpoint_waits_for_the_commit_and_holds_the_next_one_back() -> None:
    disk = FakeDisk()
    log, turns = stepped(disk)
    log.create("b")
    first = log.commit_large()
    turns.step()
    log.engine.flush()
    outcome: list[Any] = []
    log.checkpointer.start(outcome.append)
    log.stage(["late"], name="b")
    second = log.start_commit([StagedPart(0, 0, 1, 1)], name="b")
    log.engine.flush()
    assert (outcome, second) == ([], [])
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    assert (raised(first).count, raised(second).count, outcome) == (7, 1, [None])
    assert log.topic().live.checkpointed_seq == 7
    disk.crash(Damage.DROP)
    log = StagingLog(disk)
    assert (log.ledger("a"), log.ledger("b")) == ([(1, 1, 7)], [(1, 1, 1)])
    assert len(log.payloads("a")) == 7


def test_a_stop_lets_an_open_commit_end_and_refuses_others() -> None:
    disk = FakeDisk()
    log, turns = stepped(disk)
    log.create("b")
    first = log.commit_large()
    turns.step()
    log.stage(["late"], name="b")
    outcome: list[Any] = []
    log.engine.flush()
    log.checkpointer.start(outcome.append)
    held_back = log.start_commit([StagedPart(0, 0, 1, 1)], name="b")
    log.opened.close(outcome.append)
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    assert raised(first).count == 7
    assert isinstance(held_back[0], Closed)
    assert outcome == [None, None]
    log.opened.release()
    log = StagingLog(disk)
    assert (len(log.payloads("a")), log.ledger("b")) == (7, [])
    assert log.commit([StagedPart(0, 0, 1, 1)], name="b").count == 1


def test_a_failed_sync_fails_the_commit_and_everything_behind_it() -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    log, turns = stepped(faults, durability="fsync")
    results = log.commit_large()
    answers: list[Any] = []
    log.start_append("a", 1, answers)
    faults.fail("fdatasync")
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    assert isinstance(results[0], WalFailed)
    assert isinstance(answers[0], WalFailed)
    assert (log.topic().head_seq, log.ledger()) == (0, [])


def test_caps_hold_for_a_commit_as_for_a_write() -> None:
    log = opened(cap_records=3)
    log.append("a", 2)
    log.stage([1, 2])
    log.commit([StagedPart(0, 0, 1, 2)])
    assert [record.seq for record in log.read()[0]] == [2, 3, 4]

    log = opened(cap_bytes=10)
    log.stage(["12345678", 1])
    log.stage([2], chunk=1)
    log.commit([StagedPart(0, 0, 2, 3)])
    assert log.payloads() == [b"1", b"2"]

    log = opened(cap_records=3, discard="reject")
    log.append("a", 2)
    log.stage([1, 2])
    with pytest.raises(TopicFull):
        log.commit([StagedPart(0, 0, 1, 2)])
    log.stage([1, 2, 3, 4], epoch=2)
    with pytest.raises(RecordTooLarge):
        log.commit([StagedPart(0, 0, 1, 4)], 2)
    log.delete(before_seq=2)
    assert log.commit([StagedPart(0, 0, 1, 2)]).count == 2


def test_a_byte_cap_that_a_commit_of_several_turns_raised_is_known_to_a_replay() -> None:
    disk = FakeDisk()
    log = opened(disk, cap_bytes=3 * LARGE_BYTES + 10)
    log.append("a", 2)
    results = log.commit_large()
    log.engine.flush()
    raised(results)
    assert [record.seq for record in log.read()[0]] == [7, 8, 9]
    numbers = log.topic().count, log.topic().size_bytes, log.topic().live.cap_floor
    disk.kill()
    log = StagingLog(disk)
    assert (log.topic().count, log.topic().size_bytes, log.topic().live.cap_floor) == numbers
    assert log.ledger() == [(1, 3, 9)]


def test_the_quota_is_taken_when_the_commit_begins() -> None:
    runtime = SteppedCommits()
    log = StagingLog(FakeDisk(), runtime=runtime, commit_turn_bytes=TURN_BYTES, total_bytes_max=8 * LARGE_BYTES)
    log.create("a")
    results = log.commit_large()
    log.stage(["x" * LARGE_BYTES], 2)
    with pytest.raises(Throttled, match="byte quota"):
        log.engine.append("b", batch_of_records([NewRecord("x" * LARGE_BYTES)]), [].append)
    while runtime.turns.step():
        log.engine.flush()
    assert raised(results).count == 7
    with pytest.raises(Throttled, match="byte quota"):
        log.commit([StagedPart(0, 0, 1, 1)], 2)


def test_the_ledger_is_in_snapshots_and_ends_with_its_topic() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.stage([1])
    log.commit([StagedPart(0, 0, 1, 1)])
    log.close()
    log = StagingLog(disk)
    assert log.ledger() == [(1, 1, 1)]
    assert [topic.name for topic, _ in log.engine.commits.epochs(WRITER)] == ["a"]
    log.stage([2], 2)
    log.drop()
    assert staged_names(disk) == []
    assert log.engine.commits.epochs(WRITER) == []
    log.create()
    log.stage([3])
    assert log.commit([StagedPart(0, 0, 1, 1)]).first_seq == 1


def test_a_chunk_that_rots_is_told_and_can_be_staged_again() -> None:
    disk = FakeDisk()
    log = opened(disk)
    log.stage([1, 2])
    (name,) = staged_names(disk)
    file = disk.open(f"/data/staging/{name}", "write")
    file.pwrite(b"\xff", file.size() - 12)
    file.close()
    with pytest.raises(StageIncomplete, match="chunk 0 is unreadable"):
        log.commit([StagedPart(0, 0, 1, 2)])
    assert log.append("a", 1).first_seq == 1
    assert log.stage([1, 2]).deduped is False
    assert log.commit([StagedPart(0, 0, 1, 2)]).last_seq == 3


def test_a_commit_into_a_queue_gives_jobs() -> None:
    log, turns = stepped(type="queue")
    log.append("a", 1)
    results = log.commit_large()
    turns.step()
    log.engine.flush()
    claims: list[Any] = []
    log.engine.queues.claim("a", "w", 2, None, claims.append)
    while turns.step():
        log.engine.flush()
    for _ in range(3):
        log.engine.flush()
    raised(results)
    assert raised(claims).jobs
    claims.clear()
    log.engine.queues.claim("a", "w", 9, None, claims.append)
    for _ in range(3):
        log.engine.flush()
    assert len(raised(claims).jobs) >= 6


def test_routers_copy_what_was_committed_and_wait_while_it_is() -> None:
    log, turns = stepped()
    log.create("up")
    answers: list[Any] = []
    for source, dest in (("up", "a"), ("a", "down")):
        log.engine.put_router(f"{source}->{dest}", RouterSpec(source=source, dest=dest), answers.append)
        for _ in range(4):
            log.engine.flush()
    assert answers == [True, True]
    log.append("up", 2)
    log.engine.bring_up_to_date("a")
    results = log.commit_large()
    turns.step()
    log.engine.flush()
    log.append("up", 1)
    log.engine.bring_up_to_date("a")
    assert log.topic("a").head_seq == 2
    while turns.step():
        log.engine.flush()
    raised(results)
    for _ in range(3):
        log.engine.bring_up_to_date("down")
        log.engine.flush()
    assert (log.topic("a").head_seq, log.topic("down").head_seq) == (10, 10)


def test_a_commit_of_many_chunks_looks_for_them_over_several_turns() -> None:
    log, turns = stepped()
    parts = [StagedPart(part, 0, 1, 1) for part in range(2_100)]
    for part in parts[:-1]:
        log.stage([part.part], part=part.part)
    incomplete = log.start_commit(parts)
    # Meanwhile writes to the topic wait, and its chunks stay.
    waiting: list[Any] = []
    log.engine.append("a", batch_of_records([NewRecord("later")]), waiting.append)
    assert log.engine.staging.abort(WRITER, 1, lambda _: True) == 0
    log.engine.flush()
    assert (incomplete, waiting) == ([], [])
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    with pytest.raises(StageIncomplete, match="part 2099, attempt 0: chunk 0 of 1 is not staged"):
        raised(incomplete)
    assert raised(waiting).first_seq == 1
    log.stage([2_099], part=2_099)
    complete = log.start_commit(parts)
    while turns.step():
        log.engine.flush()
    log.engine.flush()
    assert (raised(complete).first_seq, raised(complete).last_seq) == (2, 2_101)
    assert log.ledger() == [(1, 2, 2_101)]
    assert log.topic().head_seq == 2_101
