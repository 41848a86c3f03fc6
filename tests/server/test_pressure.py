"""The governor: its pressure for given samples, and its steps."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, HTTP1, Client
from tests.server.event_streams import EVENT_STREAMS
from tests.server.pressed import FULL, make_room, press
from tests.server.running import Running, running
from tests.server.ws_peer import ws_client
from topics.engine.runtime import LoopRuntime
from topics.server.pressure import STRAINED_SAMPLES, Governor, Load, PressureMeter
from topics.server.work_pool import WorkPool
from topics.testing.clock import ManualClock

CALM = Load()


class ManualLoop:
    """As much of a loop as a meter needs."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[_Timer] = []

    def time(self) -> float:
        return self._now_s

    def call_at(self, due_s: float, call: Callable[..., None], *args: Any) -> "_Timer":
        timer = _Timer(due_s, partial(call, *args))
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        end_s = self._now_s + seconds + 1e-6
        while due := sorted((timer for timer in self._timers if timer.due_s <= end_s), key=lambda timer: timer.due_s):
            self._timers.remove(due[0])
            self._now_s = due[0].due_s
            if not due[0].is_cancelled:
                due[0].call()
        self._now_s = end_s - 1e-6


@dataclass
class _Timer:
    due_s: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


def loaded(pressure: float) -> Governor:
    """A governor at this pressure, made by the depth of the ready set."""
    governor = Governor()
    governor.note(Load(ready_depth=1000 + round(9000 * pressure)))
    assert governor.pressure == pytest.approx(pressure)
    return governor


# Pressure.


def test_a_server_with_little_to_do_is_at_exactly_zero() -> None:
    governor = Governor()
    for _ in range(100):
        governor.note(Load(ready_depth=1000, lag_ms=4.9, pool_waiting=16))
        assert governor.pressure == 0.0
        assert (governor.coalesce_ms, governor.commit_window_ms) == (0.0, 0.0)
        assert not governor.is_strained


def test_one_late_turn_of_the_loop_is_nothing_and_a_second_of_them_is_pressure() -> None:
    governor = Governor()
    governor.note(Load(lag_ms=20))
    assert governor.pressure == 0.0
    for _ in range(10):
        governor.note(Load(lag_ms=20))
    assert 0.2 < governor.pressure < 0.4


def test_a_loop_that_is_on_time_again_takes_the_pressure_away() -> None:
    governor = Governor()
    for _ in range(50):
        governor.note(Load(lag_ms=500))
    assert governor.pressure == 1.0
    for _ in range(50):
        governor.note(CALM)
    assert governor.pressure == 0.0


@pytest.mark.parametrize("load", [FULL, Load(lag_ms=1e6), Load(pool_waiting=10_000)])
def test_each_part_alone_can_be_all_of_it(load: Load) -> None:
    governor = Governor()
    governor.note(load)
    assert governor.pressure == 1.0


def test_a_clock_that_jumps_back_is_not_a_load() -> None:
    governor = Governor()
    governor.note(Load(lag_ms=-1e9))
    governor.note(Load(lag_ms=100))
    assert governor.pressure > 0


# The steps.


@pytest.mark.parametrize(("pressure", "window_ms"), [(0.0, 0), (0.2, 0), (0.6, 10), (1.0, 20)])
def test_pushes_wait_longer_for_company_the_higher_it_is(pressure: float, window_ms: float) -> None:
    assert loaded(pressure).coalesce_ms == pytest.approx(window_ms)


@pytest.mark.parametrize(("pressure", "window_ms"), [(0.0, 0), (0.4, 0), (0.7, 5.25), (1.0, 10)])
def test_so_do_writes_that_are_to_be_committed(pressure: float, window_ms: float) -> None:
    assert loaded(pressure).commit_window_ms == pytest.approx(window_ms)


def test_the_commit_window_begins_at_half_a_millisecond() -> None:
    assert 0.5 < loaded(0.401).commit_window_ms < 0.6


def test_the_lowest_band_is_paused_when_high_pressure_lasts_and_goes_on_well_below_it() -> None:
    governor = Governor()
    high, middle, low = Load(9000), Load(7000), Load(6000)
    for _ in range(STRAINED_SAMPLES - 1):
        governor.note(high)
    governor.note(middle)
    for _ in range(STRAINED_SAMPLES - 1):
        governor.note(high)
        assert not governor.is_strained
    governor.note(high)
    assert governor.is_strained
    governor.note(middle)
    assert governor.is_strained
    governor.note(low)
    assert not governor.is_strained


def test_a_full_commit_queue_is_called_load_only_at_the_top() -> None:
    assert not loaded(0.95).refuses_writes
    assert loaded(1.0).refuses_writes


# Samples.


class Meter:
    """A meter on a loop whose time the test sets, and the number of its samples."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self.pool = WorkPool(1, "test")
        self.depth = 0
        self.samples = 0
        self.meter = PressureMeter(Governor(), self.loop, self.pool, lambda: self.depth, self.note)  # type: ignore[arg-type]

    def note(self, governor: Governor) -> None:
        self.samples += 1

    def sampled(self, seconds: float) -> int:
        """Samples in this time."""
        before = self.samples
        self.loop.advance(seconds)
        return self.samples - before


def test_without_requests_no_sample_is_taken() -> None:
    assert Meter().sampled(10) == 0


def test_samples_are_taken_from_a_request_on_until_a_second_without_one() -> None:
    meter = Meter()
    for _ in range(3):
        meter.meter.note_request()
        assert meter.sampled(0.5) == 5
    assert meter.sampled(10) == 6, "ten without a request, and four of them were before"
    meter.meter.note_request()
    assert meter.sampled(10) == 11


def test_samples_are_taken_as_long_as_there_is_pressure() -> None:
    meter = Meter()
    meter.depth = 1_000_000
    meter.meter.note_request()
    assert meter.sampled(10) == 100
    meter.depth = 0
    assert meter.sampled(10) == 10


def test_a_stopped_meter_takes_no_samples() -> None:
    meter = Meter()
    meter.meter.note_request()
    meter.meter.stop()
    meter.meter.note_request()
    assert meter.sampled(10) == 0


# In a server.


# The test stops the clock while topics are held back, because a topic that waits leaves the lowest band.


async def pause_lowest_band(server: Running, *, on: bool) -> int:
    """Pauses the lowest band. Returns how many topics are held back. The meter is stopped, because it would end the
    pause.
    """
    hub = server.server.app.hub
    assert hub is not None
    server.server._meter.stop()
    hub.pause_lowest_band(on=on)
    return len(hub._ready.paused())


def watch(client: Client, *topics: str) -> str:
    path: str = client.request("POST", "/v0/watch", {"topics": {name: {} for name in topics}}).json["stream_url"]
    return path


def test_a_stream_is_told_what_is_held_back_and_gets_it_later(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path, clock=ManualClock()) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("low", priority=-1000)
        client.put_topic("high", priority=0)
        with EVENT_STREAMS[protocol]((server.host, server.port), watch(client, "low", "high")) as stream:
            assert {event.name for event in stream.take(2)} == {"caught-up"}
            server.call(pause_lowest_band(server, on=True))
            client.write("low", 1)
            client.write("high", 2)
            assert stream.until("caught-up", topic="high")[0].datas == [2]
            assert server.call(pause_lowest_band(server, on=True)) == 1
            assert server.call(pause_lowest_band(server, on=True)) == 1, "and it is told once"
            advice = stream.next()
            assert (advice.name, advice.id) == ("error", None)
            assert advice.data == {"code": 429, "error": "throttled", "retry_after_ms": 1000, "topics": ["low"]}
            assert client.datas("low") == [1], "it can be read all the while"
            server.call(pause_lowest_band(server, on=False))
            assert stream.next().datas == [1]


def test_a_stream_that_is_opened_under_pressure_begins_with_what_is_not_held_back(
    tmp_path: Path, protocol: str
) -> None:
    with running(tmp_path, clock=ManualClock()) as server, CLIENTS[protocol](server.host, server.port) as client:
        client.put_topic("a-low", priority=-1000)
        client.write("a-low", 1)
        client.write("high", 2)
        server.call(pause_lowest_band(server, on=True))
        with EVENT_STREAMS[protocol]((server.host, server.port), watch(client, "a-low", "high")) as stream:
            assert stream.next().datas == [2]
            assert stream.next().data["topic"] == "high"
            assert server.call(pause_lowest_band(server, on=True)) == 1
            assert stream.next().data["topics"] == ["a-low"]
            server.call(pause_lowest_band(server, on=False))
            assert stream.next().datas == [1]


def test_a_websocket_gets_later_what_was_held_back_and_no_frame_that_the_contract_does_not_know(
    tmp_path: Path,
) -> None:
    with (
        running(tmp_path, clock=ManualClock()) as server,
        CLIENTS[HTTP1](server.host, server.port) as client,
        ws_client(server) as socket,
    ):
        client.put_topic("low", priority=-1000)
        client.put_topic("high", priority=0)
        assert socket.ask("subscribe", topics={"low": {}, "high": {}})["op"] == "subscribed"
        assert {socket.receive()["op"], socket.receive()["op"]} == {"caught_up"}
        server.call(pause_lowest_band(server, on=True))
        client.write("low", 1)
        client.write("high", 2)
        assert [socket.receive()["topic"] for _ in ("record", "caught_up")] == ["high", "high"]
        assert server.call(pause_lowest_band(server, on=True)) == 1
        assert socket.ask("ping")["op"] == "pong", "nothing was said in between"
        server.call(pause_lowest_band(server, on=False))
        assert (socket.receive()["op"], socket.receive()["op"]) == ("record", "caught_up")


def test_writes_are_committed_as_ever_while_groups_wait_for_company(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path) as server, CLIENTS[protocol](server.host, server.port) as client:
        server.call(press(server))
        server.call(make_room(server))
        runtime = server.server.app.open_engine().engine.runtime
        assert isinstance(runtime, LoopRuntime)
        assert runtime.commit_window_ms == 10
        _write_and_read(client)


def test_routers_run_one_band_lower_while_the_server_is_strained(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        forwarder = server.server.app.open_engine().engine.forwarder

        async def feel(*loads: Load) -> bool:
            server.server._meter.stop()
            for load in loads:
                server.server.app.governor.note(load)
            server.server._apply_pressure(server.server.app.governor)
            return forwarder.is_lowered

        assert not server.call(feel(FULL)), "one sample is nothing"
        assert server.call(feel(*[FULL] * STRAINED_SAMPLES))
        assert not server.call(feel(CALM))


def _write_and_read(client: Client) -> None:
    assert [client.write("a", number)["last_seq"] for number in (1, 2, 3)] == [1, 2, 3]
    assert client.request("PUT", "/v0/topics/a", {"ttl_ms": 60_000}).status == 200
    assert [record["data"] for record in client.diff("a")["records"]] == [1, 2, 3]
