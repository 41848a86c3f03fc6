"""Tasks that wait in the asyncio log: for records, for jobs, for files; and what cancelling them leaves behind."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.embedded.gated_cold_tier import RECORDS, gated_log
from topics.errors import Closed, DirectoryLocked, GroupNotFound, InvalidRequest, RecordsLost, TopicNotFound
from topics.results import Tombstone
from topics.storage.fs import RealFs

SETTINGS = topics.EngineSettings(wal_shards=1, wal_file_bytes=1 << 20)

Body = Callable[[topics.AsyncLog], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def run(path: Path, body: Body) -> None:
    async def main() -> None:
        async with topics.open_async(path, settings=SETTINGS) as log:
            await body(log)

    asyncio.run(main())


async def turns(count: int = 20) -> None:
    """Lets tasks that were started begin to wait."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until_waiting(log: topics.AsyncLog, count: int) -> None:
    queues: Any = log._engine.queues
    while sum(sum(line._is_idle.values()) for line in queues._claiming._lines.values()) != count:  # noqa: ASYNC110 - nothing is called when a claim begins to wait.
        await asyncio.sleep(0)


def assert_nothing_waits(log: topics.AsyncLog, topic: str) -> None:
    queues: Any = log._engine.queues
    assert queues._claiming._lines == {}
    assert log._waiting == set()
    assert not log._engine.topic(topic).has_waiters


# Opening.


def test_a_log_opens_with_and_without_await(path: Path) -> None:
    async def main() -> None:
        async with topics.open_async(path, settings=SETTINGS) as log:
            await log.append("t", [1])
        with pytest.raises(Closed):
            await log.read("t")
        async with await topics.open_async(path, settings=SETTINGS) as log:
            await log.append("t", [2])
        log = await topics.open_async(path, settings=SETTINGS)
        assert [record.data for record in (await log.read("t")).records] == [b"1", b"2"]
        await log.close()

    asyncio.run(main())


def test_other_tasks_run_while_a_log_opens(path: Path) -> None:
    async def main() -> None:
        turned = 0

        async def turn() -> None:
            nonlocal turned
            while True:
                turned += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(turn())
        async with topics.open_async(path, settings=SETTINGS):
            assert turned > 1
        task.cancel()

    asyncio.run(main())


def test_an_opening_that_is_cancelled_leaves_the_directory_free(path: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(_entered(topics.open_async(path, settings=SETTINGS)))
        await turns(2)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with topics.open_async(path, settings=SETTINGS) as log:
            await log.append("t", [1])

    asyncio.run(main())


class GatedFs(RealFs):
    """Recovery waits at its first file until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_reached = threading.Event()

    def makedirs(self, path: str) -> None:
        self.is_reached.set()
        assert self.gate.wait(30)
        super().makedirs(path)


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_an_opening_that_is_cancelled_while_it_runs_leaves_the_directory_free(path: Path, cancels: int) -> None:
    """Also when it is cancelled again while it waits for its thread, as the end of `asyncio.run` does."""
    fs = GatedFs()
    threads = set(threading.enumerate())

    async def main() -> None:
        opening = asyncio.ensure_future(_entered(topics.open_async(path, settings=SETTINGS, fs=fs)))
        await asyncio.get_running_loop().run_in_executor(None, fs.is_reached.wait)
        for _ in range(cancels):
            opening.cancel()
            await turns(3)
        asyncio.get_running_loop().call_later(0.05, fs.gate.set)
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    # The end of the loop has waited for its threads.
    assert set(threading.enumerate()) <= threads
    with topics.open(path, settings=SETTINGS) as log:
        log.append("t", [1])


def test_an_opening_that_is_cancelled_and_then_fails_is_cancelled(path: Path) -> None:
    fs = GatedFs()

    async def main() -> None:
        async with topics.open_async(path, settings=SETTINGS):
            opening = asyncio.ensure_future(_entered(topics.open_async(path, settings=SETTINGS, fs=fs)))
            await asyncio.get_running_loop().run_in_executor(None, fs.is_reached.wait)
            opening.cancel()
            await turns(3)
            fs.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await opening

    asyncio.run(main())


async def _entered(opening: Any) -> Any:
    return await opening


def test_a_directory_that_is_in_use_is_refused_where_it_is_awaited(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        with pytest.raises(DirectoryLocked):
            await topics.open_async(path, settings=SETTINGS)

    run(path, body)


# Claims.


def test_a_worker_claims_extends_gives_back_and_acks(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.create("q", type="queue")
        await log.append("q", [1, 2])
        first, second = await log.claim("q", "w", max_jobs=5)
        assert (await log.extend("q", "w", [first], lease_ms=60_000)).deadlines[1] > first.deadline
        assert (await log.nack("q", "w", [second])).settled == 1
        (again,) = await log.claim("q", "w", wait_ms=1)
        assert (await log.ack("q", "w", [first, again])).settled == 2
        assert log.state("q").queue == (0, 0, 0)
        assert await log.claim("q", "w", wait_ms=1) == []

    run(path, body)


def test_a_cancelled_claim_takes_no_job(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.create("q", type="queue")
        gone = asyncio.create_task(log.claim("q", "gone", wait_ms=None))
        other = asyncio.create_task(log.claim("q", "w", wait_ms=None))
        await until_waiting(log, 2)
        gone.cancel()
        await turns()
        await log.append("q", ["a"])
        assert [job.deliveries for job in await other] == [1]
        assert gone.cancelled()
        assert_nothing_waits(log, "q")

    run(path, body)


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("turn_count", range(8))
def test_a_claim_that_is_cancelled_while_its_job_comes_gives_it_to_another(
    path: Path, leases_durable: bool, turn_count: int
) -> None:
    """Cancelled in every turn from the write on: before its pass, in it, and after it, before the task runs again."""

    async def body(log: topics.AsyncLog) -> None:
        await log.create("q", type="queue", durability="fsync", leases_durable=leases_durable)
        gone = asyncio.create_task(log.claim("q", "gone", wait_ms=None))
        await until_waiting(log, 1)
        written = log.append("q", ["a"])
        await turns(turn_count)
        was_done = gone.done()
        gone.cancel()
        await written
        if was_done:
            assert len(await gone) == 1
            return
        with pytest.raises(asyncio.CancelledError):
            await gone
        (job,) = await log.claim("q", "w", wait_ms=None)
        assert job.seq == 1
        assert_nothing_waits(log, "q")

    run(path, body)


def test_a_claim_under_a_timeout_loses_no_job(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.create("q", type="queue")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.claim("q", "gone", wait_ms=None), 0.01)
        await log.append("q", ["a"])
        assert len(await log.claim("q", "w")) == 1

    run(path, body)


def test_closing_the_log_ends_what_waits(path: Path) -> None:
    async def main() -> None:
        log = await topics.open_async(path, settings=SETTINGS)
        await log.create("q", type="queue")
        claiming = asyncio.create_task(log.claim("q", "w", wait_ms=None))
        reading = asyncio.create_task(log.read("q", wait_ms=None))
        following = asyncio.create_task(_items(log.tail("q")))
        await until_waiting(log, 1)
        await turns()
        await log.close()
        answers = await asyncio.gather(claiming, reading, following, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Closed, Closed, list]

    asyncio.run(main())


async def _items(tail: Any) -> list[Any]:
    return [item async for item in tail]


# Reads.


def test_a_read_waits_for_the_next_record(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.append("t", [1])
        waiting = asyncio.create_task(log.read("t", 1, wait_ms=None))
        await turns()
        assert not waiting.done()
        await log.append("t", [2])
        assert [record.seq for record in (await waiting).records] == [2]
        assert (await log.read("t", 2, wait_ms=1)).records == []
        assert_nothing_waits(log, "t")

    run(path, body)


def test_a_cancelled_read_leaves_nothing_behind(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.append("t", [1])
        waiting = asyncio.create_task(log.read("t", 1, wait_ms=None))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert_nothing_waits(log, "t")

    run(path, body)


def test_a_tail_yields_records_tombstones_and_what_is_written_later(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.create("t", cap_records=2)
        await log.append("t", [1, 2, 3])
        tail = log.tail("t")
        assert await anext(tail) == Tombstone(1, 1, "cap", 1, 2, 3)
        assert [(await anext(tail)).seq, (await anext(tail)).seq] == [2, 3]  # type: ignore[union-attr]
        waiting = asyncio.ensure_future(anext(tail))
        await turns()
        await log.append("t", [4])
        assert (await waiting).seq == 4  # type: ignore[union-attr]
        assert len([item async for item in log.tail("t", wait_ms=1)]) == 3
        with pytest.raises(RecordsLost):
            assert [record async for record in log.read_all("t", loss="raise")]
        assert [type(item) async for item in log.read_all("t")] == [Tombstone, topics.Record, topics.Record]
        with pytest.raises(InvalidRequest):
            log.read_all("t", loss="hide")  # type: ignore[call-overload]

    run(path, body)


def test_a_reader_that_waits_learns_that_its_topic_is_gone(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.append("t", [1])
        waiting = asyncio.create_task(log.read("t", 1, wait_ms=None))
        await turns()
        await log.drop("t")
        with pytest.raises(TopicNotFound):
            await waiting

    run(path, body)


def test_other_tasks_run_while_a_page_comes_from_the_cold_tier(tmp_path: Path) -> None:
    """The file can be read only when another task says so."""
    path, settings, fs = gated_log(tmp_path)

    async def main() -> None:
        async with topics.open_async(path, settings=settings, fs=fs) as log:
            fs.gate.clear()
            reading = asyncio.create_task(log.read("t", limit=5))
            cancelled = asyncio.create_task(log.read("t", limit=5))
            await asyncio.to_thread(fs.is_waiting.wait, 60)
            await log.append("hot", [1])
            assert not reading.done(), reading
            cancelled.cancel()
            await turns()
            assert cancelled.cancelled()
            fs.gate.set()
            assert [record.seq for record in (await reading).records] == [1, 2, 3, 4, 5]
            assert [item.seq async for item in log.read_all("t", loss="raise")] == list(range(1, RECORDS + 1))

    asyncio.run(main())


def test_closing_the_log_waits_for_a_file_that_is_being_read(tmp_path: Path) -> None:
    path, settings, fs = gated_log(tmp_path)

    async def main() -> None:
        log = await topics.open_async(path, settings=settings, fs=fs)
        fs.gate.clear()
        reading = asyncio.create_task(log.read("t"))
        await asyncio.to_thread(fs.is_waiting.wait, 60)
        closing = asyncio.create_task(log.close())
        await turns()
        assert not closing.done()
        fs.gate.set()
        await closing
        with pytest.raises(Closed):
            await reading

    asyncio.run(main())


# Groups and routers.


def test_groups_and_routers_are_as_in_the_other_log(path: Path) -> None:
    async def body(log: topics.AsyncLog) -> None:
        await log.append("t", [topics.NewRecord(number, tag=f"t{number}") for number in range(3)])
        assert (await log.create_group("t", "g")).created
        assert (await log.commit("t", "g", 2)).moved
        assert [record.seq for record in (await log.read("t", group="g")).records] == [3]
        assert [cursor.seq for cursor in log.groups("t")] == [log.group("t", "g").seq] == [2]
        assert await log.drop_group("t", "g")
        with pytest.raises(GroupNotFound):
            log.tail("t", group="g")
        assert await log.create_router("r", "t", "u", tag="t1")
        await log.append("t", [topics.NewRecord("copied", tag="t1")])
        page = await log.read("u", wait_ms=None)
        assert page.records[-1].data == b'"copied"'
        assert [state.router for state in log.routers()] == [log.router("r").router] == ["r"]
        assert await log.drop_router("r")

    run(path, body)
