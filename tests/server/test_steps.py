"""Long work in steps: other calls of the loop run between them, and works take turns."""

import asyncio
from collections.abc import Callable, Generator

import pytest

from topics.errors import Closed
from topics.server.steps import StepRunner, while_wanted


def steps(name: str, count: int, seen: list[str]) -> Generator[None, None, str]:
    for _ in range(count):
        seen.append(name)
        yield
    return name


def slow_steps(count: int, seen: list[str]) -> Generator[None, None, None]:
    """Each step takes the time of a whole turn."""
    for number in range(count):
        seen.append(f"step {number}")
        until = asyncio.get_running_loop().time() + 0.003
        while asyncio.get_running_loop().time() < until:
            pass
        yield


async def finished(runner: StepRunner, work: Generator[None, None, object]) -> object:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def done(result: Callable[[], object]) -> None:
        try:
            future.set_result(result())
        except ValueError as error:
            future.set_exception(error)

    runner.run(work, done)
    return await future


def test_works_take_turns_and_give_their_results() -> None:
    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        seen: list[str] = []
        results = await asyncio.gather(
            finished(runner, steps("a", 3, seen)), finished(runner, steps("b", 1, seen)), finished(runner, iter_none())
        )
        assert results == ["a", "b", None]
        assert seen == ["a", "b", "a", "a"]

    asyncio.run(main())


def iter_none() -> Generator[None, None, None]:
    return
    yield


def test_other_calls_run_between_long_steps() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        runner = StepRunner(loop)
        seen: list[str] = []

        def note() -> None:
            seen.append("other")
            loop.call_soon(note)

        work = asyncio.ensure_future(finished(runner, slow_steps(3, seen)))
        loop.call_soon(note)
        await work
        assert "other" in seen[seen.index("step 0") : seen.index("step 1")]
        assert "other" in seen[seen.index("step 1") : seen.index("step 2")]

    asyncio.run(main())


def test_an_error_is_the_result_and_other_works_go_on() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("bad")

    async def main() -> None:
        runner = StepRunner(asyncio.get_running_loop())
        bad, good = await asyncio.gather(
            finished(runner, failing()), finished(runner, steps("a", 5, [])), return_exceptions=True
        )
        assert isinstance(bad, ValueError)
        assert good == "a"

    asyncio.run(main())


def test_steps_end_when_their_result_is_not_wanted_any_more() -> None:
    seen: list[str] = []
    work = while_wanted(steps("a", 5, seen), lambda: len(seen) < 2)
    with pytest.raises(Closed):
        list(work)
    assert seen == ["a", "a"]


def test_steps_that_are_wanted_give_their_result() -> None:
    def result() -> Generator[None, None, None]:
        got.append((yield from while_wanted(steps("a", 2, []), lambda: True)))

    got: list[str] = []
    list(result())
    assert got == ["a"]
