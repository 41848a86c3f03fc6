"""The asyncio log: writes of one turn share a group; answers, errors and cancellation come out right."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

import topics
from topics.engine.topic.router import RouterSpec
from topics.errors import Closed, InvalidRequest, TopicNotFound, WalFailed
from topics.storage.fs import RealFs
from topics.testing.fault_fs import FaultFs

SETTINGS = topics.EngineSettings(wal_shards=1, wal_file_bytes=1 << 20)


def test_writes_of_one_turn_share_one_sync_and_keep_their_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with topics.open_async(tmp_path / "log", settings=SETTINGS) as log:
            await log.create("t", durability="fsync")
            before = log.syncs_total
            answers = await asyncio.gather(*(log.append("t", [number]) for number in range(50)))
            assert [answer.first_seq for answer in answers] == list(range(1, 51))
            assert log.syncs_total == before + 1
            assert [record.data async for record in log.read_all("t", loss="raise")] == [
                b"%d" % number for number in range(50)
            ]

    asyncio.run(run())


def test_what_was_answered_is_there_when_the_log_is_opened_again(tmp_path: Path) -> None:
    async def write() -> None:
        async with topics.open_async(tmp_path / "log", settings=SETTINGS) as log:
            await log.append("t", [{"a": 1}], key="k")
            assert (await log.append("t", [{"a": 2}], key="k")).deduped
            await log.append("t", [topics.NewRecord(2, tag="x")])
            assert (await log.delete("t", tag="x")).deleted == 1
            await log.checkpoint()

    asyncio.run(write())
    with topics.open(tmp_path / "log", settings=SETTINGS) as log:
        assert [record.data for record in log.read_all("t", loss="raise")] == [b'{"a":1}']


def test_errors_are_raised_where_the_call_is_awaited(tmp_path: Path) -> None:
    async def run() -> None:
        async with topics.open_async(tmp_path / "log", settings=SETTINGS) as log:
            with pytest.raises(TopicNotFound):
                await log.append("absent", [1], create=False)
            with pytest.raises(InvalidRequest):
                await log.append("t", [b"not json"])
            assert await log.drop("absent") is False
            assert await log.create("t") is True
            assert await log.create("t", cap_records=1) is False
            assert log.state("t").config.cap_records == 1
            assert log.topics() == ["t"]
        with pytest.raises(Closed):
            await log.read("t")
        await log.close()

    asyncio.run(run())


def test_a_cancelled_writer_takes_nobody_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with topics.open_async(tmp_path / "log", settings=SETTINGS) as log:
            await log.create("t", durability="fsync")
            first, second = log.append("t", [1]), log.append("t", [2])
            first.cancel()
            assert (await second).first_seq == 2
            assert [record.data for record in (await log.read("t")).records] == [b"1", b"2"]

    asyncio.run(run())


def test_a_failed_sync_answers_every_waiting_writer(tmp_path: Path) -> None:
    async def run() -> None:
        fs = FaultFs(RealFs())
        log = await topics.open_async(tmp_path / "log", settings=SETTINGS, fs=fs)
        await log.create("t", durability="fsync")
        fs.fail("fdatasync", lasts=True)
        answers = await asyncio.gather(*(log.append("t", [number]) for number in range(8)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {WalFailed}
        assert log.state("t").head_seq == 0
        with pytest.raises(WalFailed):
            await log.close()

    asyncio.run(run())


def test_copies_of_routers_follow_a_write_within_a_few_turns_of_the_loop(tmp_path: Path) -> None:
    """Nothing is read, so nothing but the write makes the copies. Turns are counted, not milliseconds."""

    async def run() -> None:
        async with await topics.open_async(tmp_path / "log", settings=SETTINGS) as log:
            for source, dest in pairwise("abcde"):
                spec = RouterSpec(source=source, dest=dest)
                assert await log._call(lambda done, spec=spec: log._engine.put_router(spec.dest, spec, done))  # type: ignore[misc]
            for number in (1, 2, 3):
                await log.append("a", [number])
                for _ in range(3):
                    await asyncio.sleep(0)
                assert [log._engine.topic(name).head_seq for name in "bcde"] == [number] * 4

    asyncio.run(run())
