"""Ranges that were fetched are read from memory, and never after the object has changed."""

import threading
from collections.abc import Iterator

import pytest

from topics.errors import ColdUnavailable
from topics.storage.fs import Buffer
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.testing.fake_disk import FakeDisk

NAME = "topics/00000001/seg-0000000000000001.data"
OTHER = "topics/00000001/seg-0000000000000001.idx"
CONTENT = bytes(range(100))


class CountedStore(FolderStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(FakeDisk(), "/cold")
        self.reads: list[tuple[str, int, int]] = []

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        self.reads.append((name, offset, size))
        return super().read_range(name, offset, size)


@pytest.fixture
def inner() -> CountedStore:
    store = CountedStore()
    store.put(NAME, CONTENT)
    store.put(OTHER, CONTENT[::-1])
    return store


@pytest.fixture
def store(inner: CountedStore) -> Iterator[CachedStore]:
    store = CachedStore(inner)
    yield store
    store.close()


def test_it_answers_as_the_store_it_wraps(store: CachedStore, inner: CountedStore) -> None:
    as_store: SegmentStore = store
    assert as_store.address == inner.address
    assert as_store.list("topics/") == [NAME, OTHER]
    assert as_store.exists(NAME)
    assert not as_store.exists(NAME + "x")
    assert as_store.size(NAME) == 100
    assert as_store.read_range(NAME, 90, 20) == CONTENT[90:]
    as_store.delete(NAME)
    assert not inner.exists(NAME)


def test_only_what_was_fetched_is_remembered(store: CachedStore, inner: CountedStore) -> None:
    store.read_range(NAME, 10, 20)
    assert not store.has(NAME, 10, 20)
    assert store.fetch(NAME, 10, 20) == CONTENT[10:30]
    assert store.size_bytes == 20
    inner.reads.clear()
    assert store.has(NAME, 12, 5)
    assert store.read_range(NAME, 12, 5) == CONTENT[12:17]
    assert store.fetch(NAME, 10, 20) == CONTENT[10:30]
    assert inner.reads == []


def test_a_range_that_is_only_partly_there_is_not(store: CachedStore) -> None:
    store.fetch(NAME, 10, 20)
    assert not store.has(NAME, 9, 5)
    assert not store.has(NAME, 25, 6)
    assert not store.has(OTHER, 10, 20)
    assert store.read_range(NAME, 25, 10) == CONTENT[25:35]


def test_nothing_is_needed_for_nothing(store: CachedStore) -> None:
    assert store.has(NAME, 5, 0)


def test_the_end_of_an_object_is_remembered_too(store: CachedStore) -> None:
    assert store.fetch(NAME, 90, 50) == CONTENT[90:]
    assert store.has(NAME, 95, 45)
    assert store.read_range(NAME, 95, 45) == CONTENT[95:]


def test_what_was_not_used_for_longest_goes_first(inner: CountedStore) -> None:
    store = CachedStore(inner, bytes_max=50)
    for offset in (0, 20):
        store.fetch(NAME, offset, 20)
    store.read_range(NAME, 0, 1)
    store.fetch(NAME, 40, 20)
    assert [store.has(NAME, offset, 20) for offset in (0, 20, 40)] == [True, False, True]
    assert store.size_bytes == 40


def test_a_range_larger_than_the_cache_is_given_but_not_kept(inner: CountedStore) -> None:
    store = CachedStore(inner, bytes_max=50)
    store.fetch(NAME, 0, 10)
    assert store.fetch(NAME, 20, 51) == CONTENT[20:71]
    assert store.has(NAME, 0, 10)
    assert store.size_bytes == 10


def test_a_larger_range_at_the_same_place_takes_the_place_of_the_smaller(store: CachedStore) -> None:
    store.fetch(NAME, 0, 10)
    store.fetch(NAME, 0, 30)
    assert store.has(NAME, 0, 30)
    assert store.size_bytes == 30


def test_a_put_forgets_what_was_there_and_nothing_else(store: CachedStore) -> None:
    store.fetch(NAME, 0, 10)
    store.fetch(NAME, 50, 10)
    store.fetch(OTHER, 0, 10)
    store.put(NAME, b"new" * 10)
    assert not store.has(NAME, 0, 10)
    assert not store.has(NAME, 50, 10)
    assert store.has(OTHER, 0, 10)
    assert store.fetch(NAME, 0, 3) == b"new"
    store.delete(NAME)
    with pytest.raises(FileNotFoundError):
        store.read_range(NAME, 0, 3)


class BrokenPut(CountedStore):
    """Stores what it is given and then says that it did not."""

    def put(self, name: str, data: Buffer) -> None:
        super().put(name, data)
        if data == b"half":
            raise ColdUnavailable("the answer was lost")


def test_a_put_that_failed_forgets_too_because_it_may_have_happened() -> None:
    inner = BrokenPut()
    inner.put(NAME, CONTENT)
    store = CachedStore(inner)
    store.fetch(NAME, 0, 4)
    with pytest.raises(ColdUnavailable):
        store.put(NAME, b"half")
    assert store.read_range(NAME, 0, 4) == b"half"


class SlowStore(CountedStore):
    """A read that holds its answer back until it is told to give it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read = threading.Event()
        self.may_answer = threading.Event()

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        data = super().read_range(name, offset, size)
        self.has_read.set()
        assert self.may_answer.wait(30)
        return data


def test_a_fetch_that_was_under_way_during_a_put_is_not_remembered() -> None:
    inner = SlowStore()
    inner.put(NAME, CONTENT)
    store = CachedStore(inner)
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.append(store.fetch(NAME, 0, 3)))
    thread.start()
    assert inner.has_read.wait(30)
    store.put(NAME, b"new")
    inner.may_answer.set()
    thread.join()
    assert answers == [CONTENT[:3]]
    assert not store.has(NAME, 0, 3)
    assert store.fetch(NAME, 0, 3) == b"new"


def test_a_fetch_that_fails_leaves_nothing_behind(store: CachedStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.fetch(NAME + "x", 0, 10)
    assert store.size_bytes == 0
    store.put(NAME + "x", CONTENT)
    assert store.fetch(NAME + "x", 0, 10) == CONTENT[:10]
    assert store.has(NAME + "x", 0, 10)
