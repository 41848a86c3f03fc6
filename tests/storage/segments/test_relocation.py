"""Copies in the cold tier: verified, whole, with delete bytes put again."""

import pytest

from tests.storage.segments.segment_bench import ROOT, TOPIC, live_seqs, stem, write
from topics.errors import ColdUnavailable, FormatError
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.segments.cache import SegmentCache
from topics.storage.segments.relocation import copy_to_cold, flag_deleted_cold
from topics.storage.segments.writer import SegmentLimits
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.folder_store import FolderStore
from topics.testing.fake_disk import Damage, FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs("/cold")
    return disk


@pytest.fixture
def cold(disk: FakeDisk) -> FolderStore:
    return FolderStore(disk, "/cold")


@pytest.fixture
def state(disk: FakeDisk) -> SegmentState:
    (state,) = write(disk, [1, 2, 4, 5], limits=SegmentLimits(5, 1 << 20, 0), tags={2: "red"})
    assert state.sealed
    return state


def name(kind: str) -> str:
    return layout.segment_object(TOPIC, 1, kind)


def cold_seqs(disk: FakeDisk, cold: FolderStore, state: SegmentState) -> list[int]:
    cache = SegmentCache(disk, ROOT, CachedStore(cold))
    moved = SegmentState(1, state.entry_count, state.data_bytes, 1, 1, 0, 0, sealed=True, tier="cold")
    cache.fetch(TOPIC, moved, 1, moved.last_seq, 1 << 20)
    return live_seqs(cache.reader(TOPIC, moved))


def test_a_copy_has_the_same_bytes_under_the_same_names(disk: FakeDisk, cold: FolderStore, state: SegmentState) -> None:
    copy_to_cold(disk, ROOT, cold, TOPIC, state)
    assert cold.list("topics/") == [name(kind) for kind in ("data", "idx", "tags")]
    for kind in ("data", "idx", "tags"):
        assert disk.read(f"/cold/{name(kind)}") == disk.read(f"{stem(1)}.{kind}")
    assert cold_seqs(disk, cold, state) == [1, 2, 4, 5]
    disk.crash(Damage.DROP)
    assert cold_seqs(disk, FolderStore(disk, "/cold"), state) == [1, 2, 4, 5]


def test_data_goes_last_because_it_is_what_counts(disk: FakeDisk, cold: FolderStore, state: SegmentState) -> None:
    """A copy that was cut short is no copy."""
    order: list[str] = []
    disk.on_operation = lambda operation, path: order.append(path) if operation == "rename" else None
    copy_to_cold(disk, ROOT, cold, TOPIC, state)
    assert order == [f"/cold/{name(kind)}" for kind in ("idx", "tags", "data")]


def test_a_damaged_segment_is_not_moved(disk: FakeDisk, cold: FolderStore, state: SegmentState) -> None:
    """Rot does not travel."""
    disk.poke(f"{stem(1)}.data", 40, b"\xff")
    with pytest.raises(FormatError, match="not moved"):
        copy_to_cold(disk, ROOT, cold, TOPIC, state)
    assert cold.list("topics/") == []


class Forgetful(FolderStore):
    """A tier that drops the last byte of everything."""

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return super().read_range(name, offset, size)[:-1]


def test_a_tier_that_gives_back_something_else_keeps_the_hot_copy(disk: FakeDisk, state: SegmentState) -> None:
    with pytest.raises(ColdUnavailable, match="the hot copy stays"):
        copy_to_cold(disk, ROOT, Forgetful(disk, "/cold"), TOPIC, state)
    assert disk.exists(f"{stem(1)}.data")


def test_delete_bytes_are_set_by_putting_the_object_again(
    disk: FakeDisk, cold: FolderStore, state: SegmentState
) -> None:
    copy_to_cold(disk, ROOT, cold, TOPIC, state)
    flag_deleted_cold(cold, TOPIC, state, [2, 3, 5])
    assert cold_seqs(disk, cold, state) == [1, 4]
    flag_deleted_cold(cold, TOPIC, state, [2])
    assert cold_seqs(disk, cold, state) == [1, 4]


def test_delete_bytes_are_not_set_in_half_an_object(disk: FakeDisk, cold: FolderStore, state: SegmentState) -> None:
    copy_to_cold(disk, ROOT, cold, TOPIC, state)
    before = disk.read(f"/cold/{name('data')}")
    with pytest.raises(ColdUnavailable, match="only a part"):
        flag_deleted_cold(Forgetful(disk, "/cold"), TOPIC, state, [2])
    assert disk.read(f"/cold/{name('data')}") == before
