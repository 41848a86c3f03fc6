"""Queue workers in one process: threads claim, ack and give back jobs through `topics.open`."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.embedded.other_threads import threads_of_logs, wait_until
from tests.embedded.python_process import run_code
from topics.embedded.log import Log, open_log
from topics.engine.settings import EngineSettings
from topics.errors import Closed, InvalidRequest, NoDeadLetter, NotAQueue, TopicNotFound

SETTINGS = EngineSettings(wal_shards=2, wal_file_bytes=1 << 20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        log.create("q", type="queue")
        yield log


def queue_state(log: Log, topic: str = "q") -> tuple[int, int, int]:
    queue = log.state(topic).queue
    assert queue is not None
    return tuple(queue)


def waiting_claims(log: Log) -> int:
    queues: Any = log._engine.queues
    with log._lock:
        return sum(sum(line._is_idle.values()) for line in queues._claiming._lines.values())


def test_a_worker_claims_extends_gives_back_and_acks(log: Log) -> None:
    log.append("q", [{"n": 1}, topics.NewRecord({"n": 2}, tag="a", meta={"k": 1})])
    first, second = log.claim("q", "w", max_jobs=5)
    assert (first.seq, first.data, first.deliveries, second.tag, second.meta) == (1, b'{"n":1}', 1, "a", b'{"k":1}')
    assert log.claim("q", "v") == []
    assert log.extend("q", "w", [first], lease_ms=60_000).deadlines[1] > first.deadline
    assert log.nack("q", "w", [second]).settled == 1
    (again,) = log.claim("q", "v")
    assert (again.seq, again.deliveries) == (2, 2)
    assert log.ack("q", "w", [second]).skipped == [2], "the lease that came with the job has ended"
    assert log.ack("q", "v", [2]).settled == 1, "a seq means any lease of the node"
    assert log.ack("q", "w", [first]).in_flight == 0
    assert queue_state(log) == (0, 0, 0)
    assert log.state("q").count == 0


def test_a_delayed_job_is_ready_when_its_delay_is_over(log: Log) -> None:
    log.append("q", [1])
    (job,) = log.claim("q", "w")
    log.nack("q", "w", [job], delay_ms=50)
    (again,) = log.claim("q", "w", wait_ms=None)
    assert again.deliveries == 2


def test_a_job_that_fails_too_often_becomes_a_dead_letter(log: Log) -> None:
    log.create("q", type="queue", max_deliveries=2, dead_letter="dead")
    log.append("q", ["poison", "good"])
    done = []
    while jobs := log.claim("q", "w", wait_ms=1):
        for job in jobs:
            if job.data == b'"good"':
                done.append(job.seq)
                log.ack("q", "w", [job])
            else:
                log.nack("q", "w", [job])
    assert done == [2]
    assert [record.data for record in log.read("dead").records] == [b'"poison"']
    assert queue_state(log) == (0, 0, 1)


def test_a_claim_waits_for_a_job_and_blocks_no_other_thread(log: Log) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.claim, "q", "w", wait_ms=None)
        wait_until(lambda: waiting_claims(log) == 1)
        assert not waiting.done()
        log.append("q", ["a"])
        assert [job.data for job in waiting.result()] == [b'"a"']


def test_a_wait_that_ends_gives_an_empty_list(log: Log) -> None:
    assert log.claim("q", "w", wait_ms=1) == []
    log.append("q", [1])
    assert len(log.claim("q", "w")) == 1


def test_workers_that_wait_are_served_in_the_order_in_which_they_came(log: Log) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = []
        for number in range(4):
            waiting.append(pool.submit(log.claim, "q", f"w{number}", wait_ms=None))
            wait_until(lambda count=number + 1: waiting_claims(log) == count)
        for number in range(4):
            log.append("q", [number])
            assert [job.seq for job in waiting[number].result()] == [number + 1]


def test_many_threads_work_a_queue_and_every_job_is_done_once(log: Log) -> None:
    log.create("done")
    count = 200

    def work(number: int) -> int:
        worked = 0
        # The last thing that is written is a job that ends its worker.
        while True:
            for job in log.claim("q", f"w{number}", max_jobs=3, wait_ms=None):
                if job.data == b'"end"':
                    log.nack("q", f"w{number}", [job])
                    return worked
                log.append("done", [job.data])
                assert log.ack("q", f"w{number}", [job]).settled == 1
                worked += 1

    with ThreadPoolExecutor() as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        for number in range(count):
            log.append("q", [number])
        log.append("q", ["end"])
        assert sum(worker.result() for worker in workers) == count
    (end,) = log.claim("q", "w")
    log.ack("q", "w", [end])
    assert sorted(int(record.data) for record in log.read_all("done", loss="raise")) == list(range(count))
    assert queue_state(log) == (0, 0, 0)


def test_closing_the_log_ends_claims_that_wait(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", settings=SETTINGS)
    log.create("q", type="queue")
    before = threads_of_logs()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.claim, "q", "w", wait_ms=None)
        wait_until(lambda: waiting_claims(log) == 1)
        log.close()
        assert isinstance(waiting.exception(), Closed)
    assert threads_of_logs() <= before


def test_closing_the_log_ends_claims_that_share_a_window(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", settings=SETTINGS)
    log.create("q", type="queue", claim_jitter_ms=5000)
    queues: Any = log._engine.queues
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(log.claim, "q", "w")
        wait_until(lambda: bool(queues._claiming._windows))
        log.close()
        assert isinstance(waiting.exception(), Closed)


def test_no_timer_thread_is_left_when_the_log_is_closed(tmp_path: Path) -> None:
    """The lease of the job would end in 30 seconds, and a claim waits for that."""
    before = threads_of_logs()
    with open_log(tmp_path / "log", settings=SETTINGS) as log:
        log.create("q", type="queue")
        log.append("q", [1])
        log.claim("q", "v")
        assert log.claim("q", "w", wait_ms=1) == []
    assert threads_of_logs() <= before


def test_a_claim_that_is_interrupted_takes_no_job(tmp_path: Path) -> None:
    """The signal reaches another thread, so it does not wake the main thread. One that comes right before the wait
    does not wake it either."""
    code = """
import os, signal, sys, threading, time, topics
def interrupt():
    while not any(any(line._is_idle.values()) for line in list(log._engine.queues._claiming._lines.values())):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
with topics.open(sys.argv[1]) as log:
    log.create("q", type="queue")
    threading.Thread(target=interrupt).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        log.claim("q", "gone", wait_ms=None)
    except KeyboardInterrupt:
        print("interrupted")
    log.append("q", ["a"])
    print([job.seq for job in log.claim("q", "w")], log.state("q").queue)
"""
    done = run_code(code, tmp_path / "log")
    assert done.stdout == "interrupted\n[1] Counters(ready=0, in_flight=1, dead_lettered=0)\n"


def test_arguments_are_checked(log: Log) -> None:
    log.append("log", [1])
    calls: list[Callable[[], Any]] = [
        lambda: log.claim("q", ""),
        lambda: log.claim("q", "x" * 129),
        lambda: log.claim("q", "w", max_jobs=0),
        lambda: log.claim("q", "w", lease_ms=-1),
        lambda: log.claim("q", "w", wait_ms=-1),
        lambda: log.ack("q", "", [1]),
        lambda: log.nack("q", "w", [1], delay_ms=-1),
        lambda: log.extend("q", "w", [1], lease_ms=-1),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
    with pytest.raises(NotAQueue):
        log.claim("log", "w", wait_ms=None)
    with pytest.raises(TopicNotFound):
        log.ack("absent", "w", [1])


WORKER = """
import os, signal, sys, topics
acks_left = int(sys.argv[2])
log = topics.open(sys.argv[1], settings=topics.EngineSettings(wal_shards=1, wal_file_bytes=1 << 18,
    checkpoint_wal_bytes=1 << 14, checkpoint_interval_ms=100))
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
say("ready")
while True:
    for job in log.claim("q", "w", max_jobs=7, wait_ms=None):
        say("claimed", job.seq)
        if job.seq % 5:
            log.ack("q", "w", [job])
            say("acked", job.seq)
            acks_left -= 1
            if acks_left == 0:
                signal.pause()
"""


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_no_acked_job_comes_back_after_kill_nine_and_unacked_jobs_do(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "log"
    total = 600
    with open_log(path) as log:
        log.create("q", type="queue", durability=durability, lease_ms=86_400_000)
        log.append("q", list(range(1, total + 1)))
    claimed: set[int] = set()
    acked: set[int] = set()
    for kill_after in (40, 90, 150):
        process = subprocess.Popen(
            # Not many more than it is killed after: there must be jobs left for the next one.
            [sys.executable, "-c", WORKER, str(path), str(kill_after + 30)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        told = 0
        with process:
            for line in process.stdout:
                words = line.decode().split()
                if not line.endswith(b"\n"):
                    break
                if words[0] == "claimed":
                    assert int(words[1]) not in acked, "an acked job came back"
                    claimed.add(int(words[1]))
                elif words[0] == "acked":
                    acked.add(int(words[1]))
                    told += 1
                    if told == kill_after:
                        os.kill(process.pid, signal.SIGKILL)
    with open_log(path) as log:
        left = {job.seq for job in log.claim("q", "w", max_jobs=1000)}
    assert acked & left == set(), "acked jobs are gone"
    # At most the last ack of each run was logged and not told.
    gone = set(range(1, total + 1)) - left
    assert len(gone - acked) <= 3
    assert gone - acked <= claimed


# Redrive.


def test_dead_letters_come_back_and_the_reason_is_kept(log: Log) -> None:
    log.create("p", type="queue", max_deliveries=1, dead_letter="dead")
    log.append("p", [topics.NewRecord(number, tag="a" if number % 2 else "b") for number in range(1200)])
    while log.state("p").count:
        log.nack("p", "w", log.claim("p", "w", max_jobs=1000), reason="no such customer")
    letters = log.read("dead", limit=1).records
    assert b'"$dead_letter_reason":"no such customer"' in (letters[0].meta or b"")
    assert log.depth("p").dead_lettered == 1200
    assert log.redrive("p", tag="a", dry_run=True).matched == 600
    # More than one batch, so the thread that runs delayed calls takes part.
    moved = log.redrive("p", tag="a")
    assert (moved.moved, moved.stopped, moved.remaining) == (600, "end", 0)
    assert log.redrive("p", limit=100, key="k").moved == 100
    assert log.redrive("p", limit=100, key="k").moved == 100
    assert log.redrive("dead", to="q").moved == 500
    depth = log.depth("p")
    assert (depth.ready, log.state("dead").count, log.depth("q").ready) == (700, 0, 500)
    assert depth.oldest_ready_ts is not None


def test_a_redrive_of_nonsense_is_refused(log: Log) -> None:
    with pytest.raises(InvalidRequest, match="not both"):
        log.redrive("q", to="p", tag="a", tag_prefix="a")
    with pytest.raises(InvalidRequest, match="not negative"):
        log.redrive("q", to="p", limit=-1)
    with pytest.raises(NoDeadLetter):
        log.redrive("q")
    log.create("log")
    with pytest.raises(NotAQueue):
        log.depth("log")


def test_a_redrive_that_is_paced_ends_when_the_log_is_closed(log: Log) -> None:
    log.create("p", type="queue")
    log.append("q", list(range(100)))
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(log.redrive, "q", to="p", rate=10)
        wait_until(lambda: log.state("p").count > 0)
        log.close()
        with pytest.raises(Closed):
            moving.result(30)


def test_a_redrive_under_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        async with topics.open_async(tmp_path / "log") as log:
            for name in ("q", "p"):
                await log.create(name, type="queue")
            await log.append("q", list(range(1100)))
            assert (await log.redrive("q", to="p", rate=50_000)).moved == 1100
            assert (await log.depth("p")).ready == 1100

    asyncio.run(run())
