"""Delayed calls happen once, on the owner."""

import asyncio
import gc
import threading
from functools import partial
from time import monotonic

import pytest

from topics.engine.runtime import InlineRuntime, LockRuntime, LoopRuntime


def test_inline_time_passes_when_the_caller_says_so() -> None:
    runtime = InlineRuntime()
    called: list[str] = []
    runtime.call_later(20, lambda: called.append("late"))
    runtime.call_later(10, lambda: called.append("early"))
    runtime.call_later(0, lambda: called.append("now"))
    runtime.pass_time(9)
    assert called == ["now"]
    runtime.pass_time(11)
    runtime.pass_time(1000)
    assert called == ["now", "early", "late"]


def test_an_inline_call_may_ask_for_another_one() -> None:
    runtime = InlineRuntime()
    called: list[int] = []

    def again() -> None:
        called.append(len(called))
        runtime.call_later(5, again)

    runtime.call_later(5, again)
    runtime.pass_time(5)
    runtime.pass_time(5)
    assert called == [0, 1]


def test_an_embedded_owner_holds_the_lock_and_flushes() -> None:
    runtime = LockRuntime()
    flushed = threading.Event()
    owned: list[bool] = []
    runtime.flush_soon(flushed.set)
    runtime.call_later(1, lambda: owned.append(runtime.lock._is_owned()))  # type: ignore[attr-defined]
    assert flushed.wait(30)
    assert owned == [True]
    runtime.close()


def test_a_loop_calls_on_its_own_thread() -> None:
    async def later() -> int:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[int] = loop.create_future()
        LoopRuntime(loop).call_later(1, lambda: called.set_result(threading.get_ident()))
        return await asyncio.wait_for(called, 30)

    assert asyncio.run(later()) == threading.get_ident()


def test_an_inline_call_for_the_next_turn_waits_for_it() -> None:
    runtime = InlineRuntime()
    called: list[int] = []
    runtime.call_soon(lambda: runtime.call_soon(lambda: called.append(2)))
    runtime.call_soon(lambda: called.append(1))
    assert called == []
    assert runtime.take_turn()
    assert runtime.take_turn()
    assert called == [1]
    assert runtime.take_turn()
    assert called == [1, 2]
    assert not runtime.take_turn()


def test_delayed_calls_of_an_embedded_owner_come_in_the_order_of_their_times() -> None:
    runtime = LockRuntime()
    is_in_time = False
    while not is_in_time:
        called: list[str] = []
        done = threading.Event()
        with runtime.lock:
            began_s = monotonic()
            runtime.call_later(60, done.set)
            runtime.call_later(40, partial(called.append, "late"))
            runtime.call_later(20, partial(called.append, "early"))
            runtime.call_soon(partial(called.append, "soon"))
            runtime.call_soon(partial(called.append, "soon after"))
            # A thread that was held up between two calls asked for other times.
            is_in_time = monotonic() - began_s < 0.015
        assert done.wait(60)
    assert called == ["soon", "soon after", "early", "late"]
    runtime.close()


def test_a_closed_embedded_owner_makes_no_delayed_calls_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    runtime = LockRuntime()
    called: list[int] = []
    runtime.call_later(600_000, lambda: called.append(1))
    runtime.close()
    runtime.call_soon(lambda: called.append(2))
    assert called == []
    # Threads of other tests may come and go.
    assert {thread for thread in threading.enumerate() if thread.name.startswith("topics-")} <= before


def test_a_loop_makes_a_call_for_the_next_turn_after_those_that_wait_already() -> None:
    async def soon() -> list[int]:
        loop = asyncio.get_running_loop()
        called: list[int] = []
        loop.call_soon(called.append, 1)
        LoopRuntime(loop).call_soon(lambda: called.append(2))
        assert called == []
        await asyncio.sleep(0)
        return called

    assert asyncio.run(soon()) == [1, 2]


@pytest.mark.parametrize("owns_process", [True, False])
@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_rests_during_a_checkpoint_of_a_process_of_the_log(
    owns_process: bool, is_on: bool
) -> None:
    async def during() -> tuple[bool, bool]:
        runtime = LoopRuntime(asyncio.get_running_loop(), owns_process=owns_process)
        runtime.note_checkpoint(is_running=True)
        found = gc.isenabled()
        runtime.note_checkpoint(is_running=False)
        return found, gc.isenabled()

    was_on = gc.isenabled()
    try:
        if is_on:
            gc.enable()
        else:
            gc.disable()
        assert asyncio.run(during()) == (is_on and not owns_process, is_on)
    finally:
        if was_on:
            gc.enable()
        else:
            gc.disable()
