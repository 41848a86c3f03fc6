"""Work away from the owner: in order, one piece at a time, errors as results."""

import threading

import pytest

from topics.storage.background import Background, InlineBackground, ThreadBackground


class Owner:
    """Collects what is posted; runs it when told, as an event loop would."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.posted = threading.Semaphore(0)
        self._waiting: list[object] = []
        self._lock = threading.Lock()

    def post(self, callback: object) -> None:
        with self._lock:
            self._waiting.append(callback)
        self.posted.release()

    def run_one(self) -> None:
        assert self.posted.acquire(timeout=30)
        with self._lock:
            callback = self._waiting.pop(0)
        callback()  # type: ignore[operator]


@pytest.fixture
def owner() -> Owner:
    return Owner()


def fail() -> None:
    raise OSError(5, "Input/output error")


def test_a_thread_does_the_work_and_the_owner_gets_the_result(owner: Owner) -> None:
    background = ThreadBackground("test", owner.post)
    background.run(threading.current_thread, owner.calls.append)
    owner.run_one()
    background.close()
    (worker,) = owner.calls
    assert worker is not threading.current_thread()
    assert isinstance(worker, threading.Thread)
    assert not worker.is_alive()


def test_pieces_run_in_order_one_at_a_time(owner: Owner) -> None:
    background = ThreadBackground("test", owner.post)
    gate = threading.Event()
    order: list[int] = []
    background.run(lambda: (gate.wait(30), order.append(1)), owner.calls.append)
    for number in (2, 3):
        background.run(lambda number=number: order.append(number), owner.calls.append)
    assert order == []
    gate.set()
    for _ in range(3):
        owner.run_one()
    background.close()
    assert order == [1, 2, 3]


def test_an_error_is_a_result_and_the_thread_goes_on(owner: Owner) -> None:
    background = ThreadBackground("test", owner.post)
    background.run(fail, owner.calls.append)
    background.run(lambda: 7, owner.calls.append)
    owner.run_one()
    owner.run_one()
    background.close()
    assert isinstance(owner.calls[0], OSError)
    assert owner.calls[1] == 7


def test_closing_finishes_what_was_handed_over(owner: Owner) -> None:
    background = ThreadBackground("test", owner.post)
    done: list[int] = []
    for number in range(20):
        background.run(lambda number=number: done.append(number), owner.calls.append)
    background.close()
    assert done == list(range(20))


def test_a_background_may_be_closed_from_its_own_work(owner: Owner) -> None:
    background = ThreadBackground("test", owner.post)
    background.run(background.close, owner.calls.append)
    owner.run_one()
    background.close()
    assert owner.calls == [None]


def test_inline_work_is_done_when_the_call_returns(owner: Owner) -> None:
    background: Background = InlineBackground()
    background.run(lambda: 5, owner.calls.append)
    background.run(fail, owner.calls.append)
    assert owner.calls[0] == 5
    assert isinstance(owner.calls[1], OSError)
    background.close()


def test_inline_work_handed_over_by_a_callback_runs_behind_it_not_inside(owner: Owner) -> None:
    background = InlineBackground()

    def first_done(result: object) -> None:
        owner.calls.append("first begins")
        background.run(lambda: "second", owner.calls.append)
        owner.calls.append("first ends")

    background.run(lambda: "first", first_done)
    assert owner.calls == ["first begins", "first ends", "second"]


def test_what_is_no_exception_stops_inline_work_where_it_stands(owner: Owner) -> None:
    """A fake disk without power must not be taken for a failed call; and the background is usable after it."""
    background = InlineBackground()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        background.run(stop, owner.calls.append)
    assert owner.calls == []
    background.run(lambda: 1, owner.calls.append)
    assert owner.calls == [1]
