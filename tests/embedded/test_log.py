"""The log inside a program, on a real directory, with real threads and the real worker process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.embedded.other_threads import threads_of_logs
from topics.embedded.log import Log, open_log
from topics.engine.settings import EngineSettings
from topics.engine.topic.router import RouterSpec
from topics.errors import Closed, DirectoryLocked, InvalidRequest, TopicNotFound, TopicsError, WalFailed
from topics.results import NewRecord, Tombstone
from topics.storage.fs import RealFs
from topics.testing.fault_fs import FaultFs

SETTINGS = EngineSettings(wal_shards=2, wal_file_bytes=1 << 20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        yield log


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Results of `work(0)` to `work(count - 1)`, all begun at the same moment."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except TopicsError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def process_state(pid: int) -> str | None:
    """None when there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return "running"


def test_what_was_written_is_there_after_the_log_was_opened_again(tmp_path: Path) -> None:
    with topics.open(tmp_path / "log") as log:
        appended = log.append("t", [{"a": 1}, b" [2] ", NewRecord(None, tag="x", node="n", meta=[1])])
        assert (appended.first_seq, appended.last_seq, appended.created) == (1, 3, True)
        before = log.read("t").records
    with topics.open(tmp_path / "log") as log:
        assert log.read("t").records == before
        assert [record.data for record in before] == [b'{"a":1}', b" [2] ", b"null"]
        assert list(log.read_all("t", 1)) == before[1:]
        assert log.topics() == ["t"]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_writers_on_several_threads_never_share_a_seq_invariant_2(log: Log, durability: str) -> None:
    log.create("t", durability=durability)

    def write(number: int) -> list[tuple[int, int]]:
        answers = [log.append("t", [[number, turn], [number, turn]]) for turn in range(20)]
        assert all(log.state("t").head_seq >= answer.last_seq for answer in answers)
        return [(answer.first_seq, answer.last_seq) for answer in answers]

    spans = sorted(span for spans in in_threads(6, write) for span in spans)
    assert spans == [(first, first + 1) for first in range(1, 241, 2)]
    assert log.state("t").head_seq == log.state("t").count == 240
    data = [record.data for record in log.read_all("t")]
    assert all(data[place] == data[place + 1] for place in range(0, 240, 2))


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
def test_the_same_key_from_many_threads_appends_once_invariant_28(log: Log, durability: str) -> None:
    log.create("t", durability=durability)
    answers = in_threads(8, lambda number: log.append("t", [number, number], key="k"))
    assert sorted(answer.deduped for answer in answers) == [False] + [True] * 7
    assert {(answer.first_seq, answer.last_seq, answer.head_seq) for answer in answers} == {(1, 2, 2)}
    assert log.state("t").count == 2


def test_a_topic_created_by_many_threads_is_created_once(log: Log) -> None:
    assert sorted(in_threads(8, lambda _: log.create("t", cap_records=5))) == [False] * 7 + [True]
    created = in_threads(8, lambda number: log.append("u", [number]).created)
    assert sorted(created) == [False] * 7 + [True]


def test_readers_see_order_while_writers_and_checkpoints_run(log: Log) -> None:
    log.create("t", durability="memory")
    done = threading.Event()

    def work(number: int) -> Any:
        if number == 0:
            try:
                for turn in range(200):
                    log.append("t", [turn])
                    if turn % 50 == 0:
                        log.checkpoint()
            finally:
                done.set()
            return True
        while not done.is_set():
            seqs = [record.seq for record in log.read_all("t")]
            assert seqs == list(range(1, len(seqs) + 1))
        return True

    assert in_threads(3, work) == [True, True, True]
    assert [record.seq for record in log.read_all("t")] == list(range(1, 201))


def test_the_directory_of_a_log_without_records_is_small(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", settings=EngineSettings(wal_shards=8)) as log:
        log.create("a")
    taken_bytes = sum(path.lstat().st_blocks * 512 for path in (tmp_path / "log").rglob("*"))
    assert taken_bytes < 512 * 1024


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", settings=SETTINGS)
    log.append("t", [1])
    log.close()
    log.close()
    calls: list[Callable[[], Any]] = [
        lambda: log.append("t", [1]),
        lambda: log.append("new", [1]),
        lambda: log.read("t"),
        lambda: list(log.read_all("t")),
        lambda: log.state("t"),
        lambda: log.create("t"),
        lambda: log.drop("t"),
        lambda: log.delete("t", before_seq=1),
        log.topics,
        log.checkpoint,
    ]
    for call in calls:
        with pytest.raises(Closed) as caught:
            call()
        assert caught.value.message == "the log is closed"


def test_a_log_closes_when_its_block_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_log(tmp_path / "log", settings=SETTINGS) as log:
        log.append("t", [1 // 0])
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        assert log.topics() == []


def test_a_second_open_is_refused_and_names_the_process(tmp_path: Path, log: Log) -> None:
    with pytest.raises(DirectoryLocked) as caught:
        open_log(tmp_path / "log", settings=SETTINGS)
    assert f"{tmp_path}/log is in use by process {os.getpid()} on " in caught.value.message
    code = """
import sys, topics
from topics.errors import DirectoryLocked
try:
    topics.open(sys.argv[1])
except DirectoryLocked as error:
    print(error)
"""
    other = subprocess.run(
        [sys.executable, "-c", code, f"{tmp_path}/log"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"in use by process {os.getpid()} on " in other.stdout


def test_the_worker_process_makes_the_segments_and_ends_with_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", settings=SETTINGS)
    log.append("t", list(range(10)))
    runner: Any = log._opened.runner
    log.checkpoint()
    (pid,) = [process.pid for process in runner._processes]
    assert pid != os.getpid()
    assert process_state(pid) == "running"
    assert list((tmp_path / "log" / "topics").glob("*/seg-*.data"))
    log.append("t", [1])
    log.checkpoint()
    assert [process.pid for process in runner._processes] == [pid], "one worker for all checkpoints"
    log.close()
    assert process_state(pid) is None
    open_log(tmp_path / "log", settings=SETTINGS).close()


def test_a_log_closes_although_its_worker_process_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.starting.opened.STOP_MS_MAX", 100)
    log = open_log(tmp_path, settings=SETTINGS)
    log.append("orders", [1])
    log.checkpoint()
    log.append("orders", [2])
    (process,) = log._opened.runner._processes
    os.kill(process.pid, signal.SIGSTOP)
    log.close()
    with open_log(tmp_path, settings=SETTINGS) as log:
        assert [record.data for record in log.read_all("orders")] == [b"1", b"2"]


def test_no_thread_is_left_when_the_log_is_closed(tmp_path: Path) -> None:
    before = threads_of_logs()
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        log.append("t", [1])
        log.checkpoint()
    assert threads_of_logs() <= before


def test_a_log_whose_disk_failed_answers_its_writers_and_lets_go_of_the_directory(tmp_path: Path) -> None:
    fs = FaultFs(RealFs())
    log = open_log(tmp_path / "log", settings=EngineSettings(wal_shards=1, wal_file_bytes=1 << 20), fs=fs)
    log.append("t", [1])
    fs.fail("fdatasync", lasts=True)
    answers = in_threads(4, lambda number: log.append("t", [number] * 200))
    assert WalFailed in {type(answer) for answer in answers}
    assert [record.data for record in log.read("t", limit=1).records] == [b"1"], "reads go on"
    with pytest.raises(WalFailed):
        log.close()
    fs.heal()
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        assert log.read("t", limit=1).records[0].data == b"1"


def test_what_retention_took_is_told_by_a_tombstone(log: Log) -> None:
    log.create("t", cap_records=2)
    log.append("t", [1, 2, 3])
    page = log.read("t")
    assert page.tombstone == Tombstone(1, 1, "cap", 1, 2, 3)
    assert [record.seq for record in page.records] == [2, 3]
    assert list(log.read_all("t")) == [page.tombstone, *page.records]
    state = log.state("t")
    assert (state.head_seq, state.next_seq, state.earliest_seq, state.count, state.size_bytes) == (3, 4, 2, 2, 2)
    assert state.config.cap_records == 2


def test_deletes_and_nodes_work_through_the_log(log: Log) -> None:
    log.append("t", [NewRecord(n, tag=f"t{n % 2}", node=f"n{n % 3}") for n in range(6)])
    assert [record.data for record in log.read("t", skip_nodes=["n0", "n1"]).records] == [b"2", b"5"]
    assert log.delete("t", tag="t1", before_seq=5).deleted == 2
    assert log.delete("t", tag_prefix="t").deleted == 4
    assert log.state("t").count == 0
    with pytest.raises(InvalidRequest):
        log.delete("t")


def test_drop_and_create_are_answered(log: Log) -> None:
    assert log.create("t") is True
    assert log.create("t", ttl_ms=5) is False
    assert log.drop("t") is True
    assert log.drop("t") is False
    with pytest.raises(TopicNotFound):
        log.read("t")
    with pytest.raises(TopicNotFound):
        log.append("t", [1], create=False)
    with pytest.raises(InvalidRequest, match=r"^unknown topic config member: ttl; did you mean ttl_ms\?$"):
        log.create("t", ttl=5)


def test_a_writer_that_outruns_the_checkpoints_waits_for_them(tmp_path: Path) -> None:
    settings = EngineSettings(wal_shards=1, wal_file_bytes=1 << 20, checkpoint_wal_bytes=20_000, tail_cache_bytes=0)
    with open_log(tmp_path / "log", settings=settings) as log:
        for number in range(60):
            log.append("t", [b'"%b"' % (b"x" * 100)] * 50, key=str(number))
        assert log.state("t").count == 3000


def test_every_public_name_is_there() -> None:
    """Names of the package are imported when they are used first, from the modules that have them."""
    for name in topics.__all__:
        assert getattr(topics, name) is not None, name


def test_copies_of_routers_follow_a_write_without_a_read(tmp_path: Path) -> None:
    with topics.open(tmp_path / "log") as log:
        for source, dest in pairwise("abc"):
            spec = RouterSpec(source=source, dest=dest)
            log._call(lambda call, spec=spec: log._engine.put_router(spec.dest, spec, call))  # type: ignore[misc]
        copied = threading.Event()
        with log._lock:
            log._engine.wait_append("c", copied.set)
        log.append("a", [1])
        assert copied.wait(60)


def test_a_closed_log_leaves_no_thread(tmp_path: Path) -> None:
    before = threads_of_logs()
    with topics.open(tmp_path / "log") as log:
        log.append("a", [1])
    assert threads_of_logs() <= before
