"""Delayed calls happen once, on the owner."""

import asyncio
import threading

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


def test_a_loop_calls_on_its_own_thread() -> None:
    async def later() -> int:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[int] = loop.create_future()
        LoopRuntime(loop).call_later(1, lambda: called.set_result(threading.get_ident()))
        return await asyncio.wait_for(called, 30)

    assert asyncio.run(later()) == threading.get_ident()
