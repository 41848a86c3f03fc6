"""One contract for stores with several writers, then folders: what a crash, a race and a full disk leave."""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.storage.tiers.test_folder_store import (
    BUCKET,
    ON_S3,
    FailAt,
    new_s3_address,
    request_plain,
    running_moto,
    set_aws_environment,
)
from topics.errors import ColdUnavailable, StorageFull
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.shared_folder import SCRATCH, SharedFolder
from topics.storage.tiers.store import SharedStore
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

ROOT: Final = "/mnt/lake"
FIRST: Final = "_topics/manifest-1.json"
SECOND: Final = "_topics/manifest-2.json"
DATA: Final = "topic=a/date=2026-01-01/1-9-0123.parquet"
OLD: Final = b"old " * 500
NEW: Final = b"new!" * 700

# In folders that are there: create, write, sync, sync of the directory, rename, sync of the directory.
OPERATIONS_OF_A_PUT: Final = 6

# Opens the same store anew each time, as another process would.
Opener = Callable[[], SharedStore]


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        yield endpoint


@pytest.fixture(params=["folder", "fake disk", ON_S3])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    if request.param == "folder":
        return lambda: SharedFolder(RealFs(), str(tmp_path / "lake"))
    if request.param == "fake disk":
        disk = FakeDisk()
        return lambda: SharedFolder(disk, ROOT)
    set_aws_environment(monkeypatch, request.getfixturevalue("s3_endpoint"))
    from topics.storage.tiers.s3_store import S3Bounds, S3Store

    address = new_s3_address()
    # Patient with a busy machine.
    return lambda: S3Store(address, bounds=S3Bounds(connect_ms=20_000, idle_ms=20_000))


def content(store: SharedStore, name: str) -> bytes | None:
    return store.read_range(name, 0, 1_000_000) if store.exists(name) else None


# --- the contract ---------------------------------------------------------------------------------------------


def test_the_first_put_if_absent_wins_and_the_second_changes_nothing(opener: Opener) -> None:
    assert opener().put_if_absent(FIRST, OLD)
    assert not opener().put_if_absent(FIRST, NEW)
    assert content(opener(), FIRST) == OLD


def test_of_many_writers_at_once_one_wins_each_name(opener: Opener) -> None:
    names = [f"_topics/manifest-{number}.json" for number in range(5)]
    won: list[tuple[str, bytes]] = []
    gate = threading.Barrier(4)

    def write(data: bytes) -> None:
        store = opener()
        for name in names:
            gate.wait(60)
            if store.put_if_absent(name, data):
                won.append((name, data))

    threads = [threading.Thread(target=write, args=(bytes([65 + number]) * 5000,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in won) == names
    assert [content(opener(), name) for name, _ in won] == [data for _, data in won]


def test_a_put_replaces_and_a_deleted_name_is_free_again(opener: Opener) -> None:
    store = opener()
    store.put(DATA, OLD)
    store.put(DATA, NEW)
    assert content(opener(), DATA) == NEW
    store.delete(DATA)
    assert store.put_if_absent(DATA, OLD)


def test_entries_have_names_sizes_and_times(opener: Opener) -> None:
    store = opener()
    store.put(DATA, OLD)
    store.put_if_absent(FIRST, NEW)
    entries = store.entries("topic=")
    assert [entry[:2] for entry in entries] == [(DATA, len(OLD))]
    assert entries[0].modified_ms == store.modified_ms(DATA)
    assert [entry.name for entry in store.entries("")] == [FIRST, DATA]
    assert store.entries("topic=b") == []
    with pytest.raises(FileNotFoundError):
        store.modified_ms(SECOND)


def test_an_address_opens_a_folder_or_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_shared_store("/mnt/lake", FakeDisk()), SharedFolder)
    assert open_shared_store("file:///mnt/lake", FakeDisk()).address == "/mnt/lake"
    set_aws_environment(monkeypatch, "http://127.0.0.1:9")
    assert open_shared_store(f"s3://{BUCKET}/lake", FakeDisk()).address == f"s3://{BUCKET}/lake"


# --- folders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", list(Damage))
@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_crash_anywhere_in_a_put_leaves_nothing_or_the_whole_object(damage: Damage, call: str) -> None:
    for operation_index in itertools.count():
        for seed in range(3):
            disk = FakeDisk()
            disk.on_operation = CrashAt(operation_index)
            is_done = False
            with suppress(CrashNow):
                getattr(SharedFolder(disk, ROOT), call)(DATA, NEW)
                is_done = True
            disk.on_operation = None
            disk.crash(damage, seed)
            store = SharedFolder(disk, ROOT)
            assert content(store, DATA) in ({NEW} if is_done else {None, NEW}), f"operation {operation_index}"
            assert store.list("") == ([DATA] if store.exists(DATA) else [])
            store.remove_unfinished(1)
            assert not [path for path in disk.files() if SCRATCH in path]
            assert store.put_if_absent(DATA, OLD) is (content(store, DATA) == OLD)
        if is_done:
            break
    assert operation_index > 6


def test_an_object_is_durable_before_the_one_that_is_made_after_it() -> None:
    """Another process makes the second one while the first is not synced yet; then the power goes."""
    for operation_index, seed in itertools.product(range(20), range(20)):
        disk = FakeDisk()
        SharedFolder(disk, ROOT).put("_topics/there", b"")

        def another_follows(operation: str, path: str, disk: FakeDisk = disk, stop: int = operation_index) -> None:
            if operation == "sync_dir" and path == f"{ROOT}/_topics" and f"{ROOT}/{FIRST}" in disk.files():
                disk.on_operation = CrashAt(stop)
                SharedFolder(disk, ROOT).put_if_absent(SECOND, NEW)
                raise CrashNow

        disk.on_operation = another_follows
        with pytest.raises(CrashNow):
            SharedFolder(disk, ROOT).put_if_absent(FIRST, OLD)
        disk.on_operation = None
        disk.crash(Damage.SUBSET, seed)
        left = SharedFolder(disk, ROOT).list("_topics/manifest")
        assert left in ([], [FIRST], [FIRST, SECOND]), f"operation {operation_index}, seed {seed}"


class RunAt:
    """A hook that does something else before one operation, as another process would."""

    def __init__(self, operation_index: int) -> None:
        self.operation_index = operation_index
        self.count = 0
        self.work: Callable[[], None] = lambda: None

    def __call__(self, _operation: str, _path: str) -> None:
        self.count += 1
        if self.count == self.operation_index + 1:
            self.work()


def interrupt(disk: FakeDisk, call: str) -> None:
    hook, disk.on_operation = disk.on_operation, None
    getattr(SharedFolder(disk, ROOT), call)(DATA, OLD)
    disk.on_operation = hook


@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_put_that_another_process_interrupts_anywhere_leaves_one_of_the_two_whole(call: str) -> None:
    for operation_index in itertools.count():
        disk = FakeDisk()
        hook = disk.on_operation = RunAt(operation_index)
        hook.work = partial(interrupt, disk, call)
        won = getattr(SharedFolder(disk, ROOT), call)(DATA, NEW)
        was_interrupted = hook.count > operation_index
        disk.on_operation = None
        found = content(SharedFolder(disk, ROOT), DATA)
        assert found in {OLD, NEW}
        if call == "put_if_absent":
            assert found == (NEW if won else OLD)
        assert not [path for path in disk.files() if SCRATCH in path]
        if not was_interrupted:
            break
    assert operation_index > 6


def test_the_order_of_a_put_is_one_that_a_crash_cannot_punish() -> None:
    fs = MonitorFs(FakeDisk())
    store = SharedFolder(fs, ROOT)
    store.put(DATA, OLD)
    assert store.put_if_absent(FIRST, NEW)
    assert not store.put_if_absent(FIRST, OLD)
    assert fs.violations == []
    # Only the scratch folder has unsynced changes, and they need no sync.
    assert set(fs.check_settled()) <= {f"{ROOT}/{SCRATCH}"}


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, ColdUnavailable), (errno.ENOSPC, StorageFull)])
def test_a_put_that_fails_anywhere_says_so_and_leaves_no_rest(number: int, expected: type[Exception]) -> None:
    for operation_index in itertools.count():
        disk = FakeDisk()
        store = SharedFolder(disk, ROOT)
        store.put("_topics/there", b"")
        hook = disk.on_operation = FailAt(operation_index, number)
        if operation_index == OPERATIONS_OF_A_PUT:
            assert store.put_if_absent(FIRST, NEW)
            assert hook.count == OPERATIONS_OF_A_PUT
            break
        with pytest.raises(expected, match=f"^{ROOT}: "):
            store.put_if_absent(FIRST, NEW)
        disk.on_operation = None
        assert not [path for path in disk.files() if SCRATCH in path]
        assert content(store, FIRST) in {None, NEW}


def test_a_full_disk_is_storage_full_and_keeps_what_it_had() -> None:
    disk = FakeDisk(capacity_bytes=3000)
    store = SharedFolder(disk, ROOT)
    store.put(DATA, OLD)
    with pytest.raises(StorageFull, match=f"^{ROOT}: no space left for {FIRST}; make room there$"):
        store.put_if_absent(FIRST, NEW)
    assert disk.files() == {f"{ROOT}/{DATA}": OLD}
    disk.capacity_bytes = None
    assert store.put_if_absent(FIRST, NEW)


def test_unfinished_puts_are_removed_when_they_are_old(tmp_path: Path) -> None:
    store = SharedFolder(RealFs(), str(tmp_path))
    assert store.remove_unfinished(2**60) == 0
    scratch = tmp_path / SCRATCH
    scratch.mkdir(parents=True)
    for name, age_s in (("old", 1_000), ("young", 2_000)):
        (scratch / f"{name}.tmp").write_bytes(b"half")
        os.utime(scratch / f"{name}.tmp", (age_s, age_s))
    assert store.list("") == []
    assert store.remove_unfinished(1_500_000) == 1
    assert [path.name for path in scratch.iterdir()] == ["young.tmp"]


def test_a_delete_leaves_the_folder_for_whoever_is_about_to_put_something_there(tmp_path: Path) -> None:
    store = SharedFolder(RealFs(), str(tmp_path))
    store.put(DATA, OLD)
    store.delete(DATA)
    assert (tmp_path / DATA).parent.is_dir()
