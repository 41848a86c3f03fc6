"""The memory pool: sizes, limits, counters, and that no two readers share memory."""

import threading
from random import Random
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.conftest import FULL
from topics.limits import MIB
from topics.streams.partitions.memory_pool import BUCKET_BYTES, BucketCounters, MemoryPool, PooledBuffer

GIB: Final = 1024 * MIB


def make_pool(*, enabled: bool = True, size: int = 4 * GIB, bucket_capacity: int = 8192) -> MemoryPool:
    return MemoryPool(enabled=enabled, size=size, bucket_capacity=bucket_capacity)


def bucket(pool: MemoryPool, size_bytes: int) -> BucketCounters:
    return pool.counters.buckets[BUCKET_BYTES.index(size_bytes)]


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


def test_there_are_32_sizes_from_256_bytes_to_512_mib() -> None:
    assert len(BUCKET_BYTES) == 32
    assert (BUCKET_BYTES[0], BUCKET_BYTES[4], BUCKET_BYTES[-1]) == (256, 4096, 512 * MIB)
    assert list(BUCKET_BYTES) == sorted(set(BUCKET_BYTES))
    assert {768 * 1024, 1536 * 1024, 10 * MIB, 12 * MIB, 384 * MIB} < set(BUCKET_BYTES)


@given(size=st.integers(0, 2 * MIB) | st.sampled_from(BUCKET_BYTES[:16]).flatmap(lambda n: st.integers(n - 1, n + 1)))
def test_a_buffer_is_of_the_smallest_size_that_holds_it_and_shows_no_more(size: int) -> None:
    pool = make_pool()
    with pool.acquire(size) as buffer:
        assert len(buffer.view) == size
        fitting = min(bytes_ for bytes_ in BUCKET_BYTES if bytes_ >= size)
        assert bucket(pool, fitting) == BucketCounters(fitting, in_use=1, free=0, allocated=1, returned=0)
        assert pool.counters.in_use_bytes == fitting
    assert bucket(pool, fitting) == BucketCounters(fitting, in_use=0, free=1, allocated=1, returned=1)
    assert pool.counters.in_use_bytes == 0


def test_a_buffer_that_was_given_back_is_used_again() -> None:
    pool = make_pool()
    with pool.acquire(1000) as buffer:
        first = address(buffer.view)
    with pool.acquire(600) as buffer:
        assert address(buffer.view) == first
        assert len(buffer.view) == 600
    assert bucket(pool, 1024).allocated == 1


def test_beyond_the_limit_a_reader_gets_memory_of_its_own() -> None:
    pool = make_pool(size=3 * 4096)
    held = [pool.acquire(4096) for _ in range(3)]
    with pool.acquire(1) as outside:
        assert len(outside.view) == 1
        assert pool.counters.external_allocations == 1
        assert pool.counters.external_frees == 0
        assert pool.counters.in_use_bytes == 3 * 4096
    assert pool.counters.external_frees == 1
    held.pop().release()
    with pool.acquire(1):
        assert pool.counters.external_allocations == 1
    assert len(held) == 2


def test_free_buffers_do_not_count_as_used() -> None:
    pool = make_pool(size=8192)
    with pool.acquire(8192):
        pass
    with pool.acquire(4096), pool.acquire(4096):
        assert pool.counters.external_allocations == 0


def test_a_free_buffer_is_used_also_beyond_the_limit() -> None:
    pool = make_pool(size=8192)
    with pool.acquire(4096):
        pass
    with pool.acquire(8192), pool.acquire(4096):
        assert pool.counters.external_allocations == 0
        assert pool.counters.in_use_bytes == 12_288


@pytest.mark.slow
def test_more_than_the_largest_size_comes_from_outside() -> None:
    pool = make_pool()
    with pool.acquire(512 * MIB + 1) as buffer:
        assert len(buffer.view) == 512 * MIB + 1
        assert pool.counters.external_allocations == 1
        assert pool.counters.in_use_bytes == 0


def test_a_full_shelf_drops_what_is_given_back() -> None:
    pool = make_pool(bucket_capacity=2)
    held = [pool.acquire(256) for _ in range(3)]
    for buffer in held:
        buffer.release()
    assert bucket(pool, 256) == BucketCounters(256, in_use=0, free=2, allocated=3, returned=2)
    assert pool.counters.dropped_returns == 1


def test_a_disabled_pool_only_allocates() -> None:
    pool = make_pool(enabled=False)
    before = pool.counters
    with pool.acquire(1000) as buffer:
        assert len(buffer.view) == 1000
    assert before.buckets == pool.counters.buckets
    assert pool.counters.external_allocations == 0


def test_giving_back_twice_does_nothing() -> None:
    pool = make_pool()
    buffer = pool.acquire(256)
    buffer.release()
    other = pool.acquire(256)
    buffer.release()
    assert bucket(pool, 256).in_use == 1
    assert len(buffer.view) == 0
    other.release()
    assert bucket(pool, 256) == BucketCounters(256, in_use=0, free=1, allocated=1, returned=2)


@pytest.mark.parametrize(
    "view_of",
    [
        lambda view: view[2:5],
        lambda view: view[2:5].toreadonly()[1:],
        lambda view: np.frombuffer(view, dtype=np.uint8)[2:5],
        lambda view: np.frombuffer(view[2:5], dtype=np.uint8),
    ],
    ids=["slice", "read-only slice", "array", "array of a slice"],
)
def test_a_buffer_with_a_view_on_it_is_not_handed_out(view_of: object) -> None:
    pool = make_pool()
    with pool.acquire(256) as buffer:
        buffer.view[:] = b"r" * 256
        kept = view_of(buffer.view)  # type: ignore[operator]
    assert bucket(pool, 256).in_use == 1
    for _ in range(10):
        with pool.acquire(256) as other:
            other.view[:] = b"w" * 256
    assert set(bytes(kept)) == {ord("r")}
    del kept
    assert bucket(pool, 256) == BucketCounters(256, in_use=0, free=2, allocated=2, returned=12 - 1)


def test_a_view_that_is_gone_makes_room_under_the_limit() -> None:
    pool = make_pool(size=8192)
    kept = []
    for _ in range(2):
        with pool.acquire(4096) as buffer:
            kept.append(buffer.view[:1])
    with pool.acquire(256):
        assert pool.counters.external_allocations == 1
    kept.clear()
    with pool.acquire(256):
        assert pool.counters.external_allocations == 1


def test_an_error_in_the_block_gives_the_buffer_back() -> None:
    pool = make_pool()
    with pytest.raises(OSError, match="disk"), pool.acquire(256):
        raise OSError("disk")
    assert bucket(pool, 256).free == 1


def test_threads_never_share_a_buffer() -> None:
    pool = make_pool(size=20_000, bucket_capacity=3)
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = Random(seed)
        views: list[memoryview] = []
        mark = bytes([seed])
        for _ in range(300):
            size = random.choice((100, 256, 3000, 4096))
            with pool.acquire(size) as buffer:
                buffer.view[:] = mark * size
                views.append(buffer.view[random.randrange(size) :])
                if buffer.view.tobytes() != mark * size:
                    wrong.append(seed)
            if len(views) > 5:
                view = views.pop(random.randrange(5))
                if view.tobytes() != mark * len(view):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    counters = pool.counters
    assert counters.in_use_bytes == 0
    assert counters.external_allocations == counters.external_frees
    assert all(bucket.in_use == 0 and bucket.free <= 3 for bucket in counters.buckets)


class PoolMachine(RuleBasedStateMachine):
    """Each buffer is filled with a byte of its own, and every view of it must keep that byte as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(size=4096, bucket_capacity=2)
        self.held: list[tuple[PooledBuffer, int]] = []
        self.views: list[tuple[memoryview, int]] = []
        self.mark = 0

    @rule(size=st.sampled_from((0, 1, 256, 257, 1000, 5000)))
    def acquire(self, size: int) -> None:
        self.mark = self.mark % 255 + 1
        buffer = self.pool.acquire(size)
        buffer.view[:] = bytes([self.mark]) * size
        self.held.append((buffer, self.mark))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        buffer, mark = data.draw(st.sampled_from(self.held))
        self.views.append((buffer.view[len(buffer.view) // 2 :], mark))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        self.held.pop(place)[0].release()

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def forget_view(self, data: st.DataObject) -> None:
        self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))

    @invariant()
    def every_view_is_as_it_was_filled(self) -> None:
        for view, mark in [*((buffer.view, mark) for buffer, mark in self.held), *self.views]:
            assert bytes(view) == bytes([mark]) * len(view)

    def teardown(self) -> None:
        for buffer, _ in self.held:
            buffer.release()
        self.views.clear()
        counters = self.pool.counters
        assert counters.in_use_bytes == 0
        assert all(bucket.in_use == 0 for bucket in counters.buckets)
        assert counters.external_allocations == counters.external_frees
        for bucket_counters in counters.buckets:
            assert bucket_counters.free <= min(2, bucket_counters.allocated)


PoolMachine.TestCase.settings = settings(max_examples=500 if FULL else 40, stateful_step_count=40)
TestMemoryPool = PoolMachine.TestCase
