"""Readers in one process: waiting for the next record, following a topic, groups, routers, lost records."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.embedded.gated_cold_tier import RECORDS, gated_log
from tests.embedded.other_threads import wait_until
from topics.embedded.log import Log, open_log
from topics.engine.settings import EngineSettings
from topics.errors import Closed, GroupNotFound, InvalidRequest, RecordsLost, RouterNotFound, TopicNotFound
from topics.results import Tombstone

SETTINGS = EngineSettings(wal_shards=2, wal_file_bytes=1 << 20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        yield log


def wait_for_readers(log: Log, count: int = 1) -> None:
    wait_until(lambda: len(log._waiting) == count)


# Waiting for the next record.


def test_a_read_waits_for_the_next_record_and_blocks_no_other_thread(log: Log) -> None:
    log.append("t", [1])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.read, "t", 1, wait_ms=None)
        wait_for_readers(log)
        assert not waiting.done()
        log.append("t", [2, 3])
        assert [record.seq for record in waiting.result().records] == [2, 3]
    assert log._waiting == set()
    assert not log._engine.topic("t").has_waiters


def test_a_read_that_waited_in_vain_has_an_empty_page(log: Log) -> None:
    log.append("t", [1])
    page = log.read("t", 1, wait_ms=1)
    assert (page.records, page.next_from_seq, page.caught_up) == ([], 1, True)
    assert not log._engine.topic("t").has_waiters


def test_a_read_with_a_tombstone_does_not_wait(log: Log) -> None:
    log.create("t", cap_bytes=1)
    log.append("t", ["too large"])
    page = log.read("t", wait_ms=None)
    assert page.records == []
    assert page.tombstone is not None


def test_a_reader_that_waits_learns_that_its_topic_is_gone(log: Log) -> None:
    log.append("t", [1])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.read, "t", 1, wait_ms=None)
        wait_for_readers(log)
        log.drop("t")
        assert isinstance(waiting.exception(), TopicNotFound)


def test_closing_the_log_ends_reads_that_wait(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", settings=SETTINGS)
    log.append("t", [1])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.read, "t", 1, wait_ms=None)
        following = pool.submit(lambda: [item.seq for item in log.tail("t") if isinstance(item, topics.Record)])
        wait_for_readers(log, 2)
        log.close()
        assert isinstance(waiting.exception(), Closed)
        assert following.result() == [1], "a tail ends without an error"


# Tail.


def test_a_tail_yields_what_is_there_and_then_what_is_written(log: Log) -> None:
    log.append("t", ["a", "b"])
    with ThreadPoolExecutor() as pool:
        tail = log.tail("t")
        assert [next(tail), next(tail)] == log.read("t").records
        waiting = pool.submit(next, tail)
        wait_for_readers(log)
        log.append("t", ["c"])
        assert waiting.result().data == b'"c"'


def test_a_tail_ends_when_no_record_came_for_a_while(log: Log) -> None:
    log.append("t", list(range(2500)))
    assert [item.seq for item in log.tail("t", 10, wait_ms=0) if isinstance(item, topics.Record)] == list(
        range(11, 2501)
    )
    assert list(log.tail("t", 2500, wait_ms=1)) == []


def test_a_tail_yields_tombstones_in_their_place(log: Log) -> None:
    log.create("t", cap_records=3)
    log.append("t", [1])
    tail = log.tail("t", wait_ms=None)
    assert next(tail).seq == 1  # type: ignore[union-attr]
    log.append("t", [2, 3, 4, 5, 6])
    items = [next(tail) for _ in range(4)]
    assert items[0] == Tombstone(2, 3, "cap", 2, 4, 6)
    assert [item.seq for item in items[1:] if isinstance(item, topics.Record)] == [4, 5, 6]


def test_a_tail_of_a_topic_that_was_created_again_says_so(log: Log) -> None:
    log.append("t", [1, 2, 3])
    tail = log.tail("t", 3)
    log.drop("t")
    log.append("t", ["new"])
    lost = next(tail)
    assert isinstance(lost, Tombstone)
    assert lost.reason == "recreated"
    assert next(tail).data == b'"new"'  # type: ignore[union-attr]


def test_a_tail_leaves_out_nodes_and_waits_on(log: Log) -> None:
    log.append("t", [topics.NewRecord(1, node="me"), topics.NewRecord(2, node="you")])
    assert [item.data for item in log.tail("t", skip_nodes=["me"], wait_ms=0)] == [b"2"]  # type: ignore[union-attr]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, log.tail("t", 2, skip_nodes=["me"]))
        wait_for_readers(log)
        log.append("t", [topics.NewRecord(3, node="me")])
        log.append("t", [topics.NewRecord(4, node="you")])
        assert waiting.result().data == b"4"


def test_a_tail_that_is_closed_leaves_nothing_behind(log: Log) -> None:
    log.append("t", [1])
    tail: Any = log.tail("t")
    next(tail)
    tail.close()
    assert list(tail) == []
    assert not log._engine.topic("t").has_waiters


def test_several_threads_follow_one_topic_while_others_write(log: Log) -> None:
    log.create("t", durability="memory")

    def follow() -> list[int]:
        seqs = []
        for item in log.tail("t"):
            assert isinstance(item, topics.Record)
            seqs.append(item.seq)
            if item.seq == 400:
                break
        return seqs

    with ThreadPoolExecutor() as pool:
        followers = [pool.submit(follow) for _ in range(3)]
        writers = [pool.submit(lambda: [log.append("t", [1]) for _ in range(200)]) for _ in range(2)]
        for writer in writers:
            writer.result()
        for follower in followers:
            assert follower.result() == list(range(1, 401))


# Lost records.


def test_records_never_hide_a_loss(log: Log) -> None:
    log.create("t", cap_records=2)
    log.append("t", [1, 2, 3, 4])
    lost, *rest = log.read_all("t")
    assert lost == Tombstone(1, 2, "cap", 2, 3, 4)
    assert rest == log.read("t").records
    with pytest.raises(RecordsLost) as caught:
        list(log.read_all("t", loss="raise"))
    error = caught.value
    assert (error.gap_from, error.gap_to, error.reason, error.next_from_seq) == (1, 2, "cap", 2)
    assert error.message == 'records 1 to 2 of topic "t" are lost (cap); read on with from_seq=2'
    assert [record.seq for record in log.read_all("t", error.next_from_seq, loss="raise")] == [3, 4]


def test_a_loss_in_a_topic_that_was_created_again_says_where_to_go_on(log: Log) -> None:
    log.append("t", [1, 2, 3])
    log.drop("t")
    log.append("t", ["a"])
    with pytest.raises(RecordsLost) as caught:
        list(log.read_all("t", 3, loss="raise"))
    assert [record.data for record in log.read_all("t", caught.value.next_from_seq, loss="raise")] == [b'"a"']


def test_deleted_records_are_no_loss(log: Log) -> None:
    log.append("t", [topics.NewRecord(1, tag="x"), 2])
    log.delete("t", tag="x")
    assert [record.seq for record in log.read_all("t", loss="raise")] == [2]


# Groups.


def test_a_group_keeps_its_place(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        log.append("t", list(range(5)))
        assert log.create_group("t", "g").created
        assert not log.create_group("t", "g").created
        assert log.create_group("t", "late", at="head").cursor.seq == 5
        for item in log.tail("t", group="g", wait_ms=0):
            assert isinstance(item, topics.Record)
            if item.seq == 3:
                break
        assert log.commit("t", "g", 3).moved
        assert not log.commit("t", "g", 1).moved
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        assert (log.group("t", "g").seq, log.group("t", "g").lag) == (3, 2)
        assert [record.seq for record in log.read("t", group="g").records] == [4, 5]
        assert [record.seq for record in log.read("t", 1, limit=1, group="g").records] == [2]
        assert log.commit("t", "g", 1, rewind=True).cursor.seq == 1
        assert [cursor.group for cursor in log.groups("t")] == ["g", "late"]
        assert (log.drop_group("t", "g"), log.drop_group("t", "g")) == (True, False)
        for call in (lambda: log.group("t", "g"), lambda: log.commit("t", "g", 1), lambda: log.tail("t", group="g")):
            with pytest.raises(GroupNotFound):
                call()
        with pytest.raises(InvalidRequest):
            log.commit("t", "late", 99)


# Routers.


def test_a_router_copies_and_a_read_of_its_dest_has_every_copy(log: Log) -> None:
    log.create("orders")
    assert log.create_router("r", "orders", "acme", tag_prefix="acme:") is True
    assert log.create_router("r", "orders", "acme", tag_prefix="acme:") is False
    log.append("orders", [topics.NewRecord(1, tag="acme:1"), topics.NewRecord(2, tag="other")])
    assert [record.data for record in log.read("acme").records] == [b"1"]
    assert [record.data for record in log.tail("acme", wait_ms=0)] == [b"1"]  # type: ignore[union-attr]
    (state,) = log.routers()
    assert state == log.router("r")
    assert (state.source, state.dest, state.tag, state.tag_prefix) == ("orders", "acme", None, "acme:")
    assert state.forwarded_total == 1
    assert (log.drop_router("r"), log.drop_router("r")) == (True, False)
    with pytest.raises(RouterNotFound):
        log.router("r")


def test_a_follower_of_a_dest_gets_copies(log: Log) -> None:
    log.create("a")
    log.create_router("r", "a", "b", tag="x")
    with ThreadPoolExecutor() as pool:
        following = pool.submit(next, log.tail("b"))
        wait_for_readers(log)
        log.append("a", [topics.NewRecord(1, tag="y"), topics.NewRecord(2, tag="x")])
        assert following.result().data == b"2"


def test_wrong_arguments_are_refused(log: Log) -> None:
    log.append("t", [1])
    calls: list[Callable[[], Any]] = [
        lambda: log.read_all("t", loss="hide"),  # type: ignore[call-overload]
        lambda: log.tail("t", skip_nodes="me"),
        lambda: log.tail("t", wait_ms=-1),
        lambda: log.read("t", wait_ms=-1),
        lambda: log.create_router("r", "t", "u", tag="a", tag_prefix="b"),
        lambda: log.create_router("r", "t", "t"),
        lambda: log.create_router("-", "t", "u"),
        lambda: log.create_router("r", "t", "u", guarantee="never"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()


def test_sealed_records_stay_readable(log: Log) -> None:
    log.append("t", [1, 2])
    log.seal("t")
    assert [state.sealed for state in log._engine.topic("t").live.segments.segments] == [True]
    assert [record.seq for record in log.read_all("t", loss="raise")] == [1, 2]
    with pytest.raises(TopicNotFound):
        log.seal("absent")


# Files.


def test_a_page_from_the_cold_tier_keeps_no_other_thread_waiting(tmp_path: Path) -> None:
    path, settings, fs = gated_log(tmp_path)
    with open_log(path, settings=settings, fs=fs) as log, ThreadPoolExecutor() as pool:
        fs.gate.clear()
        reading = pool.submit(log.read, "t", limit=5)
        assert fs.is_waiting.wait(60)
        log.append("hot", [1])
        assert [record.seq for record in log.read("hot").records] == [1]
        assert not reading.done()
        fs.gate.set()
        assert [record.seq for record in reading.result().records] == [1, 2, 3, 4, 5]
        assert [record.seq for record in log.read_all("t", loss="raise")] == list(range(1, RECORDS + 1))


def test_closing_the_log_waits_for_a_file_that_is_being_read(tmp_path: Path) -> None:
    path, settings, fs = gated_log(tmp_path)
    log = open_log(path, settings=settings, fs=fs)
    with ThreadPoolExecutor() as pool:
        fs.gate.clear()
        reading = pool.submit(log.read, "t", limit=5)
        assert fs.is_waiting.wait(60)
        closing = pool.submit(log.close)
        wait_until(lambda: log._engine.is_closed)
        assert not closing.done()
        fs.gate.set()
        closing.result()
        assert isinstance(reading.exception(), Closed)
