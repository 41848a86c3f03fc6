from threading import Event

from topics.server.work_pool import WorkPool


def test_work_that_waits_for_a_thread_is_counted_until_it_is_done() -> None:
    pool = WorkPool(2, "test-pool")
    go = Event()
    futures = [pool.submit(go.wait) for _ in range(5)]
    assert pool.waiting_count == 3
    go.set()
    for future in futures:
        assert future.result(30)
    pool.shutdown()
    assert pool.waiting_count == 0


def test_work_that_fails_is_done_too() -> None:
    pool = WorkPool(1, "test-pool")
    future = pool.submit(int, "no number")
    assert isinstance(future.exception(30), ValueError)
    pool.shutdown()
    assert pool.waiting_count == 0
