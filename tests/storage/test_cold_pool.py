"""The threads that wait for the cold tier: bounded in number, in waiting calls and in time, shared fairly by topics."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from topics.errors import ColdUnavailable
from topics.storage.cold_pool import InlineColdPool, ThreadColdPool
from topics.testing.clock import ManualClock

PATIENCE_S = 30


class Owner:
    """Takes what the pool posts. `run` calls the next callback."""

    def __init__(self) -> None:
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.results: list[tuple[str, Any]] = []

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run(self) -> None:
        self._posted.get(timeout=PATIENCE_S)()

    def done(self, name: str) -> Callable[[Any], None]:
        return lambda result: self.results.append((name, result))


class Gate:
    """Work that waits until it is let through, and tells when it has begun."""

    def __init__(self, name: str, begun: "SimpleQueue[str]") -> None:
        self._name = name
        self._begun = begun
        self.open = threading.Event()

    def __call__(self) -> str:
        self._begun.put(self._name)
        assert self.open.wait(PATIENCE_S)
        return self._name


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def begun() -> "SimpleQueue[str]":
    return SimpleQueue()


@pytest.fixture
def gates(begun: "SimpleQueue[str]") -> Iterator[Callable[[str], Gate]]:
    made: list[Gate] = []

    def make(name: str) -> Gate:
        made.append(Gate(name, begun))
        return made[-1]

    yield make
    for gate in made:
        gate.open.set()


def test_results_and_errors_come_back_on_the_owner(owner: Owner) -> None:
    pool = ThreadColdPool(owner.post)
    threads: list[int] = []
    pool.run(1, lambda: threads.append(threading.get_ident()), owner.done("a"))
    owner.run()
    pool.run(1, lambda: 1 // 0, owner.done("b"))
    owner.run()
    (first, nothing), (second, error) = owner.results
    assert (first, nothing, second) == ("a", None, "b")
    assert isinstance(error, ZeroDivisionError)
    assert threads != [threading.get_ident()]
    pool.close()


def test_the_calls_of_one_topic_leave_threads_for_other_topics(
    owner: Owner, gates: Callable[[str], Gate], begun: "SimpleQueue[str]"
) -> None:
    pool = ThreadColdPool(owner.post, threads_max=3, threads_per_line_max=2)
    for number in range(10):
        pool.run(1, gates(f"slow {number}"), owner.done("slow"))
    assert sorted(begun.get(timeout=PATIENCE_S) for _ in range(2)) == ["slow 0", "slow 1"]
    pool.run(2, lambda: "other", owner.done("other"))
    owner.run()
    assert owner.results == [("other", "other")]
    assert begun.empty(), "no third call of the slow topic has begun"
    pool.close()


def test_topics_take_turns(owner: Owner, gates: Callable[[str], Gate], begun: "SimpleQueue[str]") -> None:
    pool = ThreadColdPool(owner.post, threads_max=1, threads_per_line_max=1)
    first = gates("first")
    pool.run(1, first, owner.done("first"))
    begun.get(timeout=PATIENCE_S)
    for line in (1, 1, 2, 2, 3):
        pool.run(line, lambda: None, owner.done(str(line)))
    first.open.set()
    for _ in range(6):
        owner.run()
    assert [name for name, _ in owner.results] == ["first", "1", "2", "3", "1", "2"]
    pool.close()


def test_calls_beyond_the_bounds_are_refused_at_once(
    owner: Owner, gates: Callable[[str], Gate], begun: "SimpleQueue[str]"
) -> None:
    pool = ThreadColdPool(owner.post, threads_max=1, threads_per_line_max=1, waiting_max=3, waiting_per_line_max=2)
    pool.run(1, gates("runs"), owner.done("runs"))
    begun.get(timeout=PATIENCE_S)
    for line in (1, 1, 1, 2, 3):
        pool.run(line, gates(f"waits {line}"), owner.done(f"refused {line}"))
    for _ in range(2):
        owner.run()
    assert [name for name, _ in owner.results] == ["refused 1", "refused 3"]
    assert all(isinstance(result, ColdUnavailable) for _, result in owner.results)
    pool.close()


def test_a_call_that_takes_too_long_fails_whether_it_runs_or_waits(
    owner: Owner, gates: Callable[[str], Gate], begun: "SimpleQueue[str]"
) -> None:
    clock = ManualClock()
    pool = ThreadColdPool(owner.post, clock=clock, threads_max=1, threads_per_line_max=1, call_ms_max=50)
    hung = gates("hung")
    pool.run(1, hung, owner.done("hung"))
    begun.get(timeout=PATIENCE_S)
    pool.run(1, gates("waits"), owner.done("waits"))
    clock.advance(50)
    for _ in range(2):
        owner.run()
    assert [name for name, _ in owner.results] == ["hung", "waits"]
    assert all("did not answer within 0.05 seconds" in str(result) for _, result in owner.results)
    hung.open.set()
    pool.run(2, lambda: "later", owner.done("later"))
    owner.run()
    assert owner.results[2:] == [("later", "later")], "the thread works again, and the late call is not begun"
    assert begun.empty()
    pool.close()


def test_a_close_fails_what_is_under_way_and_waits_for_nothing(
    owner: Owner, gates: Callable[[str], Gate], begun: "SimpleQueue[str]"
) -> None:
    pool = ThreadColdPool(owner.post, threads_max=1)
    pool.run(1, gates("hung"), owner.done("hung"))
    begun.get(timeout=PATIENCE_S)
    pool.run(1, gates("waits"), owner.done("waits"))
    pool.close()
    pool.run(1, gates("late"), owner.done("late"))
    for _ in range(3):
        owner.run()
    assert [name for name, _ in owner.results] == ["hung", "waits", "late"]
    assert {str(result) for _, result in owner.results} == {"the log is being closed"}


def test_inline_work_runs_at_once_and_nested_work_after_it() -> None:
    pool = InlineColdPool()
    order: list[str] = []
    pool.run(1, lambda: pool.run(1, lambda: order.append("inner"), lambda _: None), lambda _: order.append("outer"))
    assert order == ["outer", "inner"]
    pool.close()
