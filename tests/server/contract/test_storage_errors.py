"""Answers of a server whose file system fails."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.clients import CLIENTS, HTTP1, Client
from tests.server.http2_peer import Peer
from tests.server.pressed import parked_count, wait_parked, wait_some_parked
from tests.server.raw import RawConnection
from tests.server.raw import append as raw_append
from tests.server.running import Running, running
from topics.clock import SystemClock
from topics.embedded.async_log import open_for_loop
from topics.engine.runtime import InlineRuntime, LoopRuntime, Runtime
from topics.engine.settings import EngineSettings
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.writing.intake import batch_of_records
from topics.errors import Throttled
from topics.limits import WAL_QUEUE_SUBMISSIONS_MAX
from topics.results import NewRecord
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import File, Fs, OpenMode, RealFs
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.wrapped_fs import WrappedFile, WrappedFs

RECORD = {"records": [{"data": 1}]}


class Disk:
    """The folders of a test, and an engine in them that seals five records at a time and keeps none in memory."""

    def __init__(self, path: Path) -> None:
        self.data = path / "data"
        self.cold = path / "cold"

    def open(self, fs: Fs, runtime: Runtime, progress: Callable[[float], None] | None = None) -> OpenEngine:
        settings = EngineSettings(
            wal_shards=1, segment_events_max=5, tail_cache_bytes=0, cold_dir=str(self.cold), hot_retain_segments=1
        )
        return open_engine(
            fs,
            str(self.data),
            settings=settings,
            clock=SystemClock(),
            runtime=runtime,
            runner=InlineRunner(fs),
            progress=progress,
        )

    def fill(self, count: int) -> None:
        """Topic `a` with this many records, all except the newest segment in the cold tier."""
        log = self.open(RealFs(), InlineRuntime())
        answers: list[object] = []
        append(log, *range(1, count + 1))
        for _ in range(3):
            log.checkpointer.start()
            moved_before = -1
            log.relocator.tick()
            while log.relocator.moved_total != moved_before:
                moved_before = log.relocator.moved_total
                log.relocator.tick()
            # Something must change, or the next checkpoint has nothing to record.
            log.engine.topics["a"].checkpoint.mark_changed()
        log.close(answers.append)
        log.release()

    @contextlib.contextmanager
    def served(self, fs: Fs) -> Iterator[Running]:
        def open_log(loop: asyncio.AbstractEventLoop, progress: Callable[[float], None]) -> OpenEngine:
            return self.open(fs, LoopRuntime(loop), progress)

        with running(self.data, open_log=open_log) as server:
            yield server


def append(log: OpenEngine, *payloads: object) -> None:
    log.engine.append("a", batch_of_records(NewRecord(payload) for payload in payloads), lambda _: None)
    log.engine.flush()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def faults() -> FaultFs:
    return FaultFs(RealFs())


@pytest.fixture
def server(disk: Disk, faults: FaultFs) -> Iterator[Running]:
    with disk.served(faults) as server:
        yield server
        faults.heal()


def is_wal(path: str) -> bool:
    return "/wal" in path


CHANGES = {
    "write": ("POST", "/v0/topics/a", RECORD),
    "write that creates": ("POST", "/v0/topics/new", RECORD),
    "create": ("PUT", "/v0/topics/new", {}),
    "configure": ("PUT", "/v0/topics/a", {"durability": "fsync", "ttl_ms": 1_000_000}),
    "delete records": ("POST", "/v0/topics/a/delete", {"before_seq": 2}),
    "delete the topic": ("DELETE", "/v0/topics/a", None),
}


@pytest.fixture
def filled(client: Client) -> Client:
    client.put_topic("a", durability="fsync")
    client.write("a", "one", "two")
    return client


@pytest.mark.parametrize(("method", "path", "body"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("operation", ["fdatasync", "pwrite"])
def test_a_failed_log_refuses_changes_until_a_restart(
    filled: Client, faults: FaultFs, method: str, path: str, body: object, operation: str
) -> None:
    faults.fail(operation, lasts=True, path=is_wal)  # type: ignore[arg-type]
    first = filled.request(method, path, body)
    assert first.refusal == (503, "wal_failed")
    assert first.error["detail"] == {"shard": 0}
    faults.heal()
    for again_method, again_path, again_body in CHANGES.values():
        assert filled.request(again_method, again_path, again_body).refusal == (503, "wal_failed")
    # The failed write is not visible, and reads work.
    assert filled.datas("a") == ["one", "two"]
    assert filled.state("a")["config"]["ttl_ms"] == 0
    assert filled.request("GET", "/v0/topics/new").refusal == (404, "topic_not_found")
    ready = filled.request("GET", "/v0/ready")
    assert ready.refusal == (503, "wal_failed")
    assert ready.error["detail"] == {"shard": 0}
    assert filled.request("GET", "/v0/health").status == 200
    metrics = filled.request("GET", "/v0/metrics", headers={"accept": "application/json"}).json
    assert metrics["wal"]["read_only"] in (1, True)


@pytest.mark.parametrize(("method", "path", "body"), CHANGES.values(), ids=CHANGES)
def test_a_full_disk_refuses_changes_until_there_is_room(
    filled: Client, faults: FaultFs, method: str, path: str, body: object
) -> None:
    faults.fail("pwrite", "preallocate", error=errno.ENOSPC, lasts=True, path=is_wal)
    answer = filled.request(method, path, body)
    assert answer.refusal == (503, "storage_full")
    assert "detail" not in answer.error
    assert filled.request(method, path, body).refusal == (503, "storage_full")
    assert filled.datas("a") == ["one", "two"]
    assert filled.request("GET", "/v0/ready").status == 200
    faults.heal()
    assert filled.request(method, path, body).status in (200, 201)
    assert filled.write("b", 1)["first_seq"] == 1


def test_a_write_that_failed_for_room_may_be_repeated_with_its_key(filled: Client, faults: FaultFs) -> None:
    body = RECORD | {"idempotency_key": "k"}
    faults.fail("pwrite", error=errno.ENOSPC, lasts=True, path=is_wal)
    assert filled.request("POST", "/v0/topics/a", body).refusal == (503, "storage_full")
    faults.heal()
    answer = filled.request("POST", "/v0/topics/a", body).json
    assert (answer["deduped"], answer["first_seq"]) == (False, 3)


# A log that is slower than its writers.


class HeldSyncs(WrappedFs):
    """Syncs of the WAL wait until the test releases them."""

    def __init__(self, inner: Fs) -> None:
        super().__init__(inner)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def open(self, path: str, mode: OpenMode) -> File:
        return HeldFile(self.inner.open(path, mode), self)


class HeldFile(WrappedFile):
    __slots__ = ("_fs",)

    def __init__(self, inner: File, fs: HeldSyncs) -> None:
        super().__init__(inner)
        self._fs = fs

    def fdatasync(self) -> None:
        self._fs.may_go_on.wait()
        self.inner.fdatasync()


@contextlib.contextmanager
def served_with_held_syncs(path: Path) -> Iterator[tuple[Running, HeldSyncs]]:
    fs = HeldSyncs(RealFs())

    def open_log(loop: asyncio.AbstractEventLoop, progress: Callable[[float], None]) -> OpenEngine:
        return open_for_loop(path, loop, settings=EngineSettings(wal_shards=1), fs=fs, progress=progress)

    with running(path, open_log=open_log) as server:
        with CLIENTS[HTTP1](server.host, server.port) as client:
            client.put_topic("a", durability="fsync")
        # The server counts as calm, however busy the machine is.
        server.server._meter.stop()
        fs.may_go_on.clear()
        try:
            yield server, fs
        finally:
            fs.may_go_on.set()


async def fill_commit_queue(server: Running) -> list[object]:
    """Writes to topic `a` until the commit queue takes no more. Returns the list that gets their answers."""
    answered: list[object] = []
    engine = server.server.app.open_engine().engine
    batch = batch_of_records([NewRecord(1)])
    with contextlib.suppress(Throttled):
        while True:
            engine.append("a", batch, answered.append)
    return answered


def test_a_write_to_a_full_commit_queue_waits_for_room(tmp_path: Path, protocol: str) -> None:
    with (
        served_with_held_syncs(tmp_path) as (server, fs),
        CLIENTS[protocol](server.host, server.port) as client,
    ):
        answered = server.call(fill_commit_queue(server))
        client.start("POST", "/v0/topics/a", RECORD)
        server.call(wait_parked(server))
        assert not answered
        fs.may_go_on.set()
        answer = client.finish()
        assert (answer.status, answer.json["first_seq"]) == (200, WAL_QUEUE_SUBMISSIONS_MAX + 1)
        assert answer.json["performance"]["throttle_wait_ms"] > 0
        assert len(answered) == WAL_QUEUE_SUBMISSIONS_MAX


def test_more_writes_than_the_commit_queue_holds_are_all_answered_in_order(tmp_path: Path) -> None:
    """5000 HTTP/2 streams of five connections, and two connections that pipeline 200 writes each over HTTP/1.1. The
    last write of each connection comes after its others: nothing overtakes a write that waits."""
    h2_writes, h1_writes = 1000, 200
    with served_with_held_syncs(tmp_path) as (server, fs), contextlib.ExitStack() as connections:
        peers = [connections.enter_context(Peer(server.connect())) for _ in range(5)]
        started = [[peer.start("POST", "/v0/topics/a", RECORD) for _ in range(h2_writes)] for peer in peers]
        for peer in peers:
            peer.flush()
        # The queue is full now. Which of the connections wait depends on how fast the server took their streams.
        server.call(wait_some_parked(server, 1))
        raws = [connections.enter_context(RawConnection(server)) for _ in range(2)]
        for raw in raws:
            raw.send(raw_append("a", b"1") * h1_writes)
        server.call(wait_some_parked(server, 1 + len(raws)))
        fs.may_go_on.set()
        seqs: list[int] = []
        for peer, streams in zip(peers, started, strict=True):
            peer.until(lambda: peer.ended.issuperset(streams))  # noqa: B023 - called in the same round.
            assert {peer.statuses[stream] for stream in streams} == {200}
            own = [peer.json(stream)["first_seq"] for stream in streams]
            assert own == sorted(own)
            seqs += own
        for raw in raws:
            own = [answer.json["first_seq"] for answer in raw.answers(h1_writes)]
            assert own == sorted(own)
            seqs += own
        assert sorted(seqs) == list(range(1, len(seqs) + 1))
        assert len(seqs) == 5 * h2_writes + 2 * h1_writes
        assert server.call(parked_count(server)) == 0


# Reads of damaged records and of an unreachable tier. The records are written before the server starts.


def test_a_damaged_record_is_told_and_its_neighbours_are_read(disk: Disk, protocol: str) -> None:
    disk.fill(20)
    # The newest segment is in the hot tier: seqs 16 to 20.
    (path,) = disk.data.glob("topics/*/*.data")
    content = bytearray(path.read_bytes())
    place = content.index(b'{"d":18}')
    content[place + 5] ^= 1
    path.write_bytes(bytes(content))
    with disk.served(RealFs()) as server, CLIENTS[protocol](server.host, server.port) as client:
        before = client.diff("a", from_seq=15)
        assert [record["$seq"] for record in before["records"]] == [16, 17]
        assert before["next_from_seq"] == 17
        answer = client.request("POST", "/v0/topics/a/diff", {"from_seq": 17})
        assert answer.refusal == (500, "corrupt_record")
        assert answer.error["detail"] == {"topic": "a", "seq": 18}
        behind = client.diff("a", from_seq=18)
        assert [record["$seq"] for record in behind["records"]] == [19, 20]


def test_a_cold_tier_that_does_not_answer_is_told_and_worth_another_try(
    disk: Disk, faults: FaultFs, protocol: str
) -> None:
    disk.fill(20)
    with disk.served(faults) as server, CLIENTS[protocol](server.host, server.port) as client:
        faults.fail("open", "pread", "map", lasts=True, path=lambda path: path.startswith(str(disk.cold)))
        answer = client.request("POST", "/v0/topics/a/diff", {"from_seq": 3})
        assert answer.refusal == (503, "cold_unavailable")
        assert answer.error["detail"] == {"topic": "a", "seq": 4}
        # Hot records can be read, and writes work.
        assert client.datas("a", from_seq=15) == [16, 17, 18, 19, 20]
        assert client.write("a", 21)["first_seq"] == 21
        faults.heal()
        assert client.datas("a", from_seq=3) == list(range(4, 22))


def test_a_page_says_how_many_of_its_records_were_cold(disk: Disk, protocol: str) -> None:
    disk.fill(20)
    with disk.served(RealFs()) as server, CLIENTS[protocol](server.host, server.port) as client:
        page = client.diff("a", from_seq=12)
        assert [record["$seq"] for record in page["records"]] == list(range(13, 21))
        assert page["performance"]["cold_segments_read"] == 3
        assert "cold_segments_read" not in client.diff("a", from_seq=15)["performance"]


def test_what_a_power_loss_may_have_taken_is_a_gap(tmp_path: Path, protocol: str) -> None:
    """The topic has class `disk`: unsynced records are gone, and their seqs are never used again."""
    disk, fake = Disk(tmp_path), FakeDisk()
    log = disk.open(fake, InlineRuntime())
    append(log, "kept")
    append(log, "lost")
    fake.crash(Damage.DROP)
    with disk.served(fake) as server, CLIENTS[protocol](server.host, server.port) as client:
        first = client.diff("a")
        assert [record["data"] for record in first["records"]] == ["kept"]
        head_seq = first["head_seq"]
        assert head_seq > 2
        page = client.diff("a", from_seq=first["next_from_seq"])
        assert page["tombstone"] == {
            "gap_from": 2,
            "gap_to": head_seq,
            "reason": "power_loss",
            "missed_estimate": head_seq - 1,
            "earliest_seq": head_seq + 1,
            "head_seq": head_seq,
        }
        assert client.write("a", "new")["first_seq"] == head_seq + 1
