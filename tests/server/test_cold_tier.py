"""A cold tier that is slow or hangs delays no request that does not need it.

A probe asks `/v0/health` all the time. Its longest wait is compared with what it sees on the same server without load.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.running import Running, running
from tests.storage.tiers.slow_store import SlowStore
from topics.engine.config import checked_config
from topics.engine.runtime import InlineRuntime, LoopRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting import cold_tier
from topics.engine.starting.opened import OpenEngine
from topics.engine.starting.recovery import open_engine
from topics.engine.writing.intake import batch_of_records
from topics.limits import COLD_THREADS_PER_TOPIC_MAX, COLD_WAITING_PER_TOPIC_MAX
from topics.results import NewRecord
from topics.server.limits import Timeouts
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import Fs, RealFs
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.store import SegmentStore
from topics.testing.clock import ManualClock

SEGMENTS: Final = 18
EVENTS: Final = 100
RECORDS: Final = SEGMENTS * EVENTS
PATIENCE_S: Final = 60
START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 1000
# A noisy machine makes gaps too. The gaps that these tests are about were seconds long.
GAP_S_MAX: Final = 0.5
DATA: Final = "x" * 400


class ColdServer:
    """A data directory whose sealed segments are cold, except the newest one of each topic."""

    def __init__(self, tmp_path: Path) -> None:
        self._root = str(tmp_path / "data")
        self._settings = EngineSettings(
            wal_shards=1,
            segment_events_max=EVENTS,
            tail_cache_bytes=0,
            cold_dir=str(tmp_path / "cold"),
            hot_retain_segments=1,
        )
        self.tier: SlowStore
        self.clock = ManualClock(START_MS)
        self.heals_at_the_end = True
        self.hangs_at_the_start = False

    def _open_tier(self, address: str, fs: Fs) -> SegmentStore:
        self.tier = SlowStore(open_store(address, fs))
        if self.hangs_at_the_start:
            self.tier.hang()
        return self.tier

    def leave_as_after_a_kill(self) -> None:
        """From now on a copy of the directory is served, as a kill would leave it."""
        copy = f"{self._root}-killed"
        shutil.copytree(self._root, copy)
        self._root = copy

    def fill(self, name: str = "t", **config: Any) -> None:
        """`RECORDS` records. Every tenth has the tag "x". Each segment has two writes, one second apart."""
        log = open_engine(
            RealFs(),
            self._root,
            settings=self._settings,
            clock=self.clock,
            runtime=InlineRuntime(),
            runner=InlineRunner(RealFs()),
            open_tier=self._open_tier,
        )
        answers: list[Any] = []
        log.engine.put_topic(name, checked_config({"durability": "fsync", **config}), answers.append)
        log.engine.flush()
        for first in range(0, RECORDS, EVENTS // 2):
            batch = batch_of_records(
                NewRecord({"n": n, "data": DATA}, tag="x" if n % 10 == 0 else "y")
                for n in range(first, first + EVENTS // 2)
            )
            log.engine.append(name, batch, answers.append)
            log.engine.flush()
            self.clock.advance(STEP_MS)
        for _ in range(4):
            log.checkpointer.start(answers.append)
            log.relocator.tick()
            before = -1
            while before != log.relocator.moved_total:
                before = log.relocator.moved_total
                log.relocator.tick()
            log.engine.topic(name).checkpoint.mark_changed()
        tiers = [segment.tier for segment in log.engine.topic(name).live.segments.segments]
        assert tiers == ["cold"] * (SEGMENTS - 1) + ["hot"]
        log.close(answers.append)
        log.release()

    def busy_threads(self) -> bool:
        return bool(self.tier.calls_hanging)

    def _open_log(
        self, settings: EngineSettings, loop: asyncio.AbstractEventLoop, progress: Callable[[float], None]
    ) -> OpenEngine:
        return open_engine(
            RealFs(),
            self._root,
            settings=settings,
            clock=self.clock,
            runtime=LoopRuntime(loop),
            progress=progress,
            open_tier=self._open_tier,
        )

    @contextlib.contextmanager
    def served(self, *, timeouts: Timeouts | None = None, **settings: Any) -> Iterator[Running]:
        open_log = partial(self._open_log, replace(self._settings, **settings))
        with running(self._root, open_log=open_log, timeouts=timeouts) as server:

            async def owner() -> int:
                return threading.get_ident()

            self.tier.owner = server.call(owner())
            try:
                yield server
            finally:
                if self.heals_at_the_end:
                    self.tier.heal()


@pytest.fixture
def cold(tmp_path: Path) -> ColdServer:
    return ColdServer(tmp_path)


def ask(server: Running, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    try:
        content = None if body is None else json.dumps(body).encode()
        if content is not None and headers.get("content_encoding") == "gzip":
            content = gzip.compress(content)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, content, {"Content-Type": "application/json"} | names)
        answer = connection.getresponse()
        raw = answer.read()
        if answer.headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        return answer.status, json.loads(raw)
    finally:
        connection.close()


def state(server: Running) -> dict[str, Any]:
    status, found = ask(server, "GET", "/v0/topics/t")
    assert status == 200
    return found  # type: ignore[no-any-return]


def write(server: Running, count: int = 1) -> None:
    status, _ = ask(server, "POST", "/v0/topics/t", {"records": [{"data": DATA}] * count})
    assert status == 200


def wait_until(is_true: Callable[[], bool]) -> None:
    """The columns of a cold segment come when the tier has answered."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


class Probe:
    """Asks for the health of the server again and again. `longest_s` is the longest wait for an answer."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.longest_s = 0.0

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=PATIENCE_S)
        while not self._stop.is_set():
            began = time.perf_counter()
            connection.request("GET", "/v0/health")
            connection.getresponse().read()
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            self._stop.wait(0.005)
        connection.close()

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Stalls:
    """Notes how late a thread wakes up that only sleeps: that is how long the machine kept this process waiting."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sleep)
        self.longest_s = 0.0

    def _sleep(self) -> None:
        began = time.perf_counter()
        while not self._stop.wait(0.005):
            began, last = time.perf_counter(), began
            self.longest_s = max(self.longest_s, began - last)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def no_other_request_waits(server: Running, cold: ColdServer, record: Callable[[str, object], None]) -> Iterator[None]:
    """The probe sees no longer gap than a busy machine makes, and the loop has not called the tier."""
    with Probe(server) as idle:
        threading.Event().wait(0.3)
    with Stalls() as stalls, Probe(server) as probe:
        yield
    record("idle_gap_ms", round(idle.longest_s * 1000, 1))
    record("longest_gap_ms", round(probe.longest_s * 1000, 1))
    assert cold.tier.calls_of_owner == []
    # A request waits for several turns of threads, each of which may come late.
    assert probe.longest_s < max(GAP_S_MAX, 20 * idle.longest_s) + 4 * stalls.longest_s


Record = Callable[[str, object], None]


def test_a_delete_by_tag_over_a_slow_tier_delays_no_other_client(cold: ColdServer, record_property: Record) -> None:
    """18 segments, 50 ms for each call of the tier."""
    cold.fill()
    with cold.served() as server:
        cold.tier.delay_s = 0.05
        with no_other_request_waits(server, cold, record_property):
            status, answer = ask(server, "POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "x"]})
        assert (status, answer["deleted"], answer["count"]) == (200, RECORDS // 10, RECORDS - RECORDS // 10)
        assert answer["bytes"] == state(server)["bytes"]
        cold.tier.heal()
        page = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": 0, "limit": 30})[1]
        assert [record["$seq"] for record in page["records"]] == [n + 1 for n in range(30) if n % 10]


def test_a_delete_is_refused_and_changes_nothing_while_the_tier_hangs(
    cold: ColdServer, record_property: Record
) -> None:
    cold.fill()
    with cold.served(cold_call_ms_max=500) as server:
        before = state(server)
        cold.tier.hang()
        with no_other_request_waits(server, cold, record_property):
            status, answer = ask(server, "POST", "/v0/topics/t/delete", {"match": ["tag", "Glob", "x*"]})
            assert (status, answer["error"]["code"]) == (503, "cold_unavailable")
            write(server)
        assert state(server)["count"] == before["count"] + 1
        cold.tier.heal()
        wait_until(lambda: not cold.busy_threads())
    with cold.served() as server:
        assert state(server)["count"] == before["count"] + 1, "no frame of the delete was written"
        assert ask(server, "POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "x"]})[1]["deleted"] == RECORDS // 10


@pytest.mark.parametrize("calls", [0, 3, 25])
def test_a_delete_that_the_tier_fails_half_way_deletes_nothing(cold: ColdServer, calls: int) -> None:
    cold.fill()
    with cold.served() as server:
        before = state(server)
        cold.tier.fail_after(calls)
        status, answer = ask(server, "POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "x"]})
        assert (status, answer["error"]["code"]) == (503, "cold_unavailable")
        assert answer["error"]["detail"]["topic"] == "t"
        after = state(server)
        assert (after["count"], after["bytes"]) == (before["count"], before["bytes"])
        cold.tier.heal()
        assert ask(server, "POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "x"]})[1]["deleted"] == RECORDS // 10
        assert cold.tier.calls_of_owner == []


def test_records_of_cold_segments_expire_without_the_loop(cold: ColdServer, record_property: Record) -> None:
    """A record lives for a minute. Two writes make a segment, so a segment may be half expired."""
    cold.fill(ttl_ms=60_000)
    with cold.served() as server:
        cold.tier.delay_s = 0.05
        with no_other_request_waits(server, cold, record_property):
            for segments in range(SEGMENTS - 2):
                # The first half of the next segment has expired too.
                cold.clock.set(START_MS + 60_000 + STEP_MS * (2 * segments + 1))
                expected = (segments * 2 + 1) * EVENTS // 2
                wait_until(lambda expected=expected: state(server)["earliest_seq"] == expected + 1)  # type: ignore[misc]
        assert state(server)["count"] == RECORDS - expected


def test_no_expired_record_is_delivered_while_its_segment_is_not_counted(cold: ColdServer) -> None:
    cold.fill(ttl_ms=60_000)
    with cold.served() as server:
        cold.clock.set(START_MS + 60_000 + STEP_MS)
        page = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": 0, "limit": 1})[1]
        assert page["records"][0]["$seq"] == EVENTS // 2 + 1
        assert page["tombstone"]["reason"] == "ttl"
        assert cold.tier.calls_of_owner == []


def test_a_record_cap_goes_on_while_the_tier_hangs(cold: ColdServer, record_property: Record) -> None:
    cold.fill(cap_records=RECORDS)
    with cold.served(cold_call_ms_max=500) as server:
        cold.tier.hang()
        with no_other_request_waits(server, cold, record_property):
            write(server, 30)
            assert state(server)["earliest_seq"] == 31
        assert state(server)["count"] == RECORDS
        write(server, EVENTS)
        assert (state(server)["earliest_seq"], state(server)["count"]) == (EVENTS + 31, RECORDS)


def test_a_byte_cap_evicts_exactly_once_the_tier_has_answered(cold: ColdServer, record_property: Record) -> None:
    cold.fill()
    with cold.served(cold_call_ms_max=500) as server:
        cap_bytes = state(server)["bytes"]
        config = {"durability": "fsync", "cap_bytes": cap_bytes}
        cold.tier.hang()
        assert ask(server, "PUT", "/v0/topics/t", config)[0] == 200
        with no_other_request_waits(server, cold, record_property):
            write(server)
            # Which records are too many is not known yet, and none is lost.
            assert state(server)["earliest_seq"] == 1
            # A whole segment is too much, and is evicted without a look into it.
            write(server, 2 * EVENTS)
            assert state(server)["earliest_seq"] % EVENTS == 1
            assert state(server)["earliest_seq"] > EVENTS
        cold.tier.heal()
        cold.clock.advance(10_000)

        def is_within() -> bool:
            write(server)
            return bool(state(server)["bytes"] <= cap_bytes)

        wait_until(is_within)
        assert cap_bytes - state(server)["bytes"] < 1000, "no more is evicted than needed"
        assert cold.tier.calls_of_owner == []


def test_a_checkpoint_ends_while_the_tier_hangs(cold: ColdServer, record_property: Record) -> None:
    """Delete bytes of cold segments are set later: the deletes stay pending, also over a restart."""
    cold.fill()
    deleted = RECORDS // 10
    with cold.served() as server:
        assert ask(server, "POST", "/v0/topics/t/delete", {"match": "x"})[1]["deleted"] == deleted
        cold.tier.hang()
        with no_other_request_waits(server, cold, record_property):
            for _ in range(3):
                write(server)
                checkpoint(server)
        # Delete bytes are on their way.
        wait_until(lambda: any(call.startswith("read ") for call in tuple(cold.tier.calls_hanging)))
        cold.heals_at_the_end = False
    cold.tier.heal()
    with cold.served() as server:
        assert state(server)["count"] == RECORDS - deleted + 3
        write(server)
        checkpoint(server)
        puts = [f"put topics/00000001/seg-{first:016}.data" for first in range(1, RECORDS - EVENTS, EVENTS)]
        wait_until(lambda: set(puts) <= set(cold.tier.calls))
        assert cold.tier.calls_of_owner == []
    with cold.served() as server:
        assert state(server)["count"] == RECORDS - deleted + 4
        page = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": 0, "limit": 30})[1]
        assert [record["$seq"] for record in page["records"]] == [n + 1 for n in range(30) if n % 10]


def checkpoint(server: Running) -> None:
    async def run() -> Exception | None:
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        server.server.app.open_engine().checkpointer.start(ended.set_result)
        return await ended

    assert server.call(run()) is None


def test_a_server_starts_while_the_tier_hangs(cold: ColdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cold.fill(cap_records=RECORDS)
    with cold.served() as server:
        # The log has a delete by tag and a record that the cap evicts another one for.
        assert ask(server, "POST", "/v0/topics/t/delete", {"match": "x"})[1]["deleted"] == RECORDS // 10
        write(server, 5)
        expected = state(server)
        cold.leave_as_after_a_kill()
    monkeypatch.setattr(cold_tier, "COLD_CLAIM_MS_MAX", 200)
    cold.hangs_at_the_start = True
    with cold.served(cold_call_ms_max=300) as server:
        found = state(server)
        assert found["head_seq"] == expected["head_seq"]
        # The cap has cut a cold segment. What it had below the cut is counted when the tier answers.
        assert expected["count"] <= found["count"] <= expected["count"] + 5
        status, answer = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": 0})
        assert (status, answer["error"]["code"]) == (503, "cold_unavailable")
        write(server)
        cold.tier.heal()
        cold.clock.advance(10_000)

        def is_exact() -> bool:
            write(server)
            return bool(state(server)["bytes"] == live_bytes(server))

        wait_until(is_exact)
        assert cold.tier.calls_of_owner == []


def live_bytes(server: Running) -> int:
    """What readers get, added up."""
    total, from_seq = 0, 0
    while True:
        page = ask(server, "POST", "/v0/topics/t/diff", {"from_seq": from_seq, "limit": 1000})[1]
        total += sum(len(json.dumps(record["data"], separators=(",", ":"))) for record in page["records"])
        if page["caught_up"]:
            return total
        from_seq = page["next_from_seq"]


def test_forty_readers_of_a_hung_tier_keep_no_gzip_body_waiting(cold: ColdServer, record_property: Record) -> None:
    cold.fill()
    with cold.served(cold_call_ms_max=50_000) as server, ThreadPoolExecutor(40) as pool:
        cold.tier.hang()
        readers: list[Future[tuple[int, Any]]] = [
            pool.submit(ask, server, "POST", "/v0/topics/t/diff", {"from_seq": 40 * n, "limit": 30}) for n in range(40)
        ]
        assert cold.tier.hanging.wait(PATIENCE_S)
        with no_other_request_waits(server, cold, record_property):
            for _ in range(5):
                body = {"records": [{"data": "z" * 300_000}]}
                assert ask(server, "POST", "/v0/topics/g", body, content_encoding="gzip")[0] in (200, 201)
                assert ask(server, "POST", "/v0/topics/g/diff", {}, accept_encoding="gzip")[0] == 200
            assert not any(reader.done() for reader in readers), "the gzip bodies did not wait for the readers"
        cold.tier.heal()
        assert [reader.result(PATIENCE_S)[0] for reader in readers] == [200] * 40
        assert cold.tier.calls_of_owner == []


def test_readers_beyond_the_bound_are_refused_at_once_and_told_to_come_back(cold: ColdServer) -> None:
    cold.fill()
    readers_max = COLD_THREADS_PER_TOPIC_MAX + COLD_WAITING_PER_TOPIC_MAX
    with cold.served(cold_call_ms_max=50_000) as server, ThreadPoolExecutor(readers_max + 10) as pool:
        cold.tier.hang()
        body = {"from_seq": 3, "limit": 3}
        readers = [pool.submit(ask, server, "POST", "/v0/topics/t/diff", body) for _ in range(readers_max + 10)]
        wait_until(lambda: sum(reader.done() for reader in readers) == 10)
        for status, answer in [reader.result() for reader in readers if reader.done()]:
            assert (status, answer["error"]["code"]) == (503, "cold_unavailable")
            assert "too many calls wait for the cold tier" in answer["error"]["message"]
        cold.tier.heal()
        assert [reader.result(PATIENCE_S)[0] for reader in readers].count(200) == readers_max


def test_a_stop_does_not_wait_for_a_tier_that_hangs(cold: ColdServer) -> None:
    cold.fill()
    with ThreadPoolExecutor(1) as pool:
        with cold.served(timeouts=Timeouts(drain_s=0.2)) as server:
            cold.tier.hang()
            reader = pool.submit(ask, server, "POST", "/v0/topics/t/diff", {"from_seq": 3})
            assert cold.tier.hanging.wait(PATIENCE_S)
            cold.heals_at_the_end = False
        with pytest.raises((http.client.HTTPException, OSError)):
            reader.result(PATIENCE_S)
        cold.tier.heal()


def test_no_route_waits_for_the_tier_on_the_loop(cold: ColdServer, record_property: Record) -> None:
    """Every route that may touch records of cold segments, on a log and on a queue."""
    cold.fill()
    cold.fill("q", type="queue", max_deliveries=1, dead_letter="dead")

    def good(method: str, path: str, body: Any = None) -> Any:
        status, answer = ask(server, method, path, body)
        assert status in (200, 201), answer
        return answer

    with cold.served() as server:
        cold.tier.delay_s = 0.01
        with no_other_request_waits(server, cold, record_property):
            good("GET", "/v0/topics/t")
            good("GET", "/v0/topics?page_size=10")
            page = good("POST", "/v0/topics/t/diff", {"from_seq": 700})
            assert page["performance"]["cold_segments_read"] == len(page["records"]) > 0
            good("POST", "/v0/topics/t/manifest", {"pin_ms": 1000})
            good("PUT", "/v0/topics/t/groups/g", {"seq": 5})
            assert good("POST", "/v0/topics/t/diff", {"group": "g", "limit": 2})["records"][0]["$seq"] == 6
            good("PUT", "/v0/routers/r", {"source": "t", "dest": "copies"})
            write(server)
            assert len(good("POST", "/v0/topics/copies/diff", {})["records"]) == 1
            (job,) = good("POST", "/v0/topics/q/claim", {"node": "w"})["claimed"]
            assert good("POST", "/v0/topics/q/extend", {"node": "w", "seqs": [1], "lease_ms": 9000})["deadlines"]
            assert good("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [job["$seq"]]})["nacked"] == 1
            # It was delivered once, so it becomes a dead letter. That claim may get no other job.
            while not (jobs := good("POST", "/v0/topics/q/claim", {"node": "w"})["claimed"]):
                pass
            (job,) = jobs
            assert good("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [job["$seq"]]})["acked"] == 1
            assert good("GET", "/v0/topics/dead")["count"] == 1
            assert good("POST", "/v0/topics/q/delete", {"before_seq": 250})["deleted"] == 247
            good("PUT", "/v0/topics/t", {"durability": "fsync", "cap_records": 1250})
            wait_until(lambda: bool(good("GET", "/v0/topics/t")["count"] == 1250))
            good("PUT", "/v0/topics/t", {"durability": "fsync", "cap_records": 1250, "cap_bytes": 300_000})
            good("PUT", "/v0/topics/t", {"durability": "fsync", "ttl_ms": 1})
            assert ask(server, "GET", "/v0/metrics", accept="application/json")[0] == 200
            checkpoint(server)
            good("DELETE", "/v0/topics/q")
