"""One contract for all tier stores, then what is special about folders, addresses and the STORE object."""

import errno
import http.client
import itertools
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import ColdUnavailable, Damaged, FormatError, FutureVersion, StartRefused, StorageFull
from topics.storage.fs import Buffer, OpenMode, RealFs
from topics.storage.tiers.addresses import file_address, open_store, path_of_address
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import ensure_store_id, read_store_id
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk, FakeFile

DATA: Final = "topics/0000000A/seg-0000000000000001.data"
INDEX: Final = "topics/0000000A/seg-0000000000000001.idx"
OTHER: Final = "topics/0000000B/seg-0000000000000001.data"
OURS: Final = "0123456789abcdef0123456789abcdef"
THEIRS: Final = "fedcba9876543210fedcba9876543210"
BUCKET: Final = "cold-tier"
ROOT: Final = "/mnt/cold"

_prefix_numbers = itertools.count(1)


# --- S3 on this machine (also for test_s3_store) --------------------------------------------------------------


@contextmanager
def running_moto() -> Iterator[str]:
    """The endpoint of an S3 server in this process. Its buckets are shared by all servers that run here."""
    server_module = pytest.importorskip("moto.server", reason="moto[server] is not installed: no S3 server to test on")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def request_plain(endpoint: str, method: str, path: str, body: bytes = b"") -> int:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def set_aws_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Exactly these settings, whatever the machine has of its own."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def new_s3_address() -> str:
    """A prefix that no other test uses."""
    return f"s3://{BUCKET}/tier {next(_prefix_numbers)}"


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        yield endpoint


# --- the contract -----------------------------------------------------------------------------------------------

# Deprecations inside the S3 server are not ours, and as errors they would become its answers.
ON_S3: Final = pytest.param("s3", marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"))

# Opens the same tier anew each time, as another process would.
Opener = Callable[[], SegmentStore]


@pytest.fixture(params=["folder", "fake disk", ON_S3])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    if request.param == "folder":
        return lambda: FolderStore(RealFs(), str(tmp_path / "cold"))
    if request.param == "fake disk":
        disk = FakeDisk()
        return lambda: FolderStore(disk, ROOT)
    set_aws_environment(monkeypatch, request.getfixturevalue("moto_endpoint"))
    from topics.storage.tiers.s3_store import S3Bounds, S3Store

    address = new_s3_address()
    # Patient with a busy machine.
    return lambda: S3Store(address, bounds=S3Bounds(connect_ms=20_000, idle_ms=20_000))


@pytest.fixture
def store(opener: Opener) -> SegmentStore:
    return opener()


def test_an_object_reads_back_as_it_was_put(store: SegmentStore, opener: Opener) -> None:
    store.put(DATA, b"0123456789")
    for reader in (store, opener()):
        assert reader.read_range(DATA, 0, 10) == b"0123456789"
        assert reader.size(DATA) == 10
        assert reader.exists(DATA)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(b"x" + data))[1:]])
def test_every_kind_of_buffer_can_be_put(store: SegmentStore, kind: Callable[[bytes], Buffer]) -> None:
    store.put(DATA, kind(b"0123456789"))
    assert store.read_range(DATA, 0, 10) == b"0123456789"


def test_a_put_replaces_the_object_by_a_longer_shorter_or_equal_one(store: SegmentStore) -> None:
    for content in (b"first", b"a longer one", b"b longer one", b"", b"x"):
        store.put(DATA, content)
        assert store.size(DATA) == len(content)
        assert store.read_range(DATA, 0, 100) == content
    assert store.list("") == [DATA]


def test_a_large_object_reads_back_whole(store: SegmentStore) -> None:
    content = bytes(range(256)) * 24_000
    assert len(content) > 5 * 1024 * 1024, "what obstore would send in parts if it were let"
    store.put(DATA, content)
    assert store.read_range(DATA, 0, len(content)) == content
    assert store.read_range(DATA, len(content) - 3, 100) == b"\xfd\xfe\xff"


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 4, b"0123"),
        (3, 4, b"3456"),
        (9, 1, b"9"),
        (8, 2, b"89"),
        (8, 100, b"89"),
        (10, 1, b""),
        (10, 0, b""),
        (11, 5, b""),
        (10**9, 5, b""),
        (3, 0, b""),
        (0, 10**6, b"0123456789"),
    ],
)
def test_a_range_is_short_only_where_the_object_ends(
    store: SegmentStore, offset: int, size: int, expected: bytes
) -> None:
    store.put(DATA, b"0123456789")
    assert store.read_range(DATA, offset, size) == expected


def test_an_empty_object_is_an_object(store: SegmentStore) -> None:
    store.put(DATA, b"")
    assert store.exists(DATA)
    assert store.size(DATA) == 0
    assert store.read_range(DATA, 0, 10) == b""
    assert store.read_range(DATA, 5, 10) == b""
    assert store.read_range(DATA, 0, 0) == b""
    assert store.list("topics/") == [DATA]


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_missing_object_is_file_not_found_and_names_the_tier(store: SegmentStore, is_claimed: bool) -> None:
    if is_claimed:
        ensure_store_id(store, OURS)
    for read in (
        lambda: store.read_range(DATA, 0, 1),
        lambda: store.read_range(DATA, 0, 0),
        lambda: store.size(DATA),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            read()
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == f"{store.address}/{DATA}"
    assert not store.exists(DATA)


def test_a_deleted_object_is_gone_and_deleting_it_again_is_no_error(store: SegmentStore, opener: Opener) -> None:
    store.put(DATA, b"1")
    store.put(INDEX, b"2")
    store.delete(DATA)
    store.delete(DATA)
    store.delete(OTHER)
    assert not store.exists(DATA)
    assert opener().list("") == [INDEX]
    store.delete(INDEX)
    assert opener().list("") == []
    store.put(DATA, b"3")
    assert store.read_range(DATA, 0, 9) == b"3"


def test_names_are_listed_sorted_and_by_any_prefix(store: SegmentStore) -> None:
    tenth = "topics/0000000A/seg-0000000000000010.data"
    for name in (OTHER, tenth, "STORE", DATA, INDEX):
        store.put(name, b"")
    assert store.list("") == ["STORE", DATA, INDEX, tenth, OTHER]
    assert store.list("topics/") == [DATA, INDEX, tenth, OTHER]
    assert store.list("topics/0000000A") == [DATA, INDEX, tenth]
    assert store.list("topics/0000000A/") == [DATA, INDEX, tenth]
    assert store.list("topics/0000000A/seg-0000000000000001") == [DATA, INDEX]
    assert store.list(DATA) == [DATA]
    assert store.list(f"{DATA}/") == []
    assert store.list("ST") == ["STORE"]
    assert store.list("topics/0000000C/") == []
    assert store.list("nothing/of/this") == []


def test_nothing_is_listed_in_a_tier_that_was_never_used(store: SegmentStore) -> None:
    assert store.list("") == []
    assert not store.exists(DATA)
    store.delete(DATA)


def test_a_closed_store_leaves_the_tier_as_it_is(store: SegmentStore, opener: Opener) -> None:
    store.put(DATA, b"1")
    store.close()
    assert opener().read_range(DATA, 0, 1) == b"1"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "./a", "a.tmp"])
def test_a_name_that_could_leave_the_tier_is_refused(store: SegmentStore, name: str) -> None:
    """A backup lists names, and it may come from anywhere."""
    for call in (
        lambda: store.put(name, b""),
        lambda: store.read_range(name, 0, 1),
        lambda: store.delete(name),
        lambda: store.exists(name),
        lambda: store.size(name),
    ):
        with pytest.raises(FormatError, match=re.escape(f"not the name of an object: {name!r}")):
            call()


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1)])
def test_a_negative_range_is_refused(store: SegmentStore, offset: int, size: int) -> None:
    store.put(DATA, b"123")
    with pytest.raises(FormatError, match=f"no range of an object: {size} bytes at {offset}"):
        store.read_range(DATA, offset, size)


# --- the STORE object -------------------------------------------------------------------------------------------


def test_an_unclaimed_tier_has_no_store_id_and_is_claimed_once(store: SegmentStore, opener: Opener) -> None:
    assert read_store_id(store) is None
    ensure_store_id(store, OURS)
    assert store.read_range("STORE", 0, 100) == b'{"format":1,"store_id":"%s"}' % OURS.encode()
    assert read_store_id(opener()) == OURS
    ensure_store_id(opener(), OURS)


def test_a_tier_of_another_data_directory_is_refused_and_left_as_it_is(store: SegmentStore, opener: Opener) -> None:
    ensure_store_id(store, THEIRS)
    with pytest.raises(StartRefused) as caught:
        ensure_store_id(opener(), OURS)
    assert str(caught.value) == (
        f"{store.address}: this cold tier belongs to another data directory: its STORE says {THEIRS}, "
        f"this one is {OURS}; give each data directory a cold tier of its own"
    )
    assert read_store_id(store) == THEIRS


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\xff\xfe", b'{"format":1}', b'{"format":1,"store_id":"xyz"}', b"x" * 5000, b"<html></html>"],
)
def test_a_store_object_that_is_none_is_damage_and_not_overwritten(store: SegmentStore, content: bytes) -> None:
    store.put("STORE", content)
    with pytest.raises(Damaged) as caught:
        ensure_store_id(store, OURS)
    assert caught.value.path == f"{store.address}/STORE"
    assert store.read_range("STORE", 0, 10_000) == content


def test_a_store_object_of_a_later_format_is_refused_and_one_with_more_members_is_read() -> None:
    store = FolderStore(FakeDisk(), ROOT)
    store.put("STORE", b'{"format":2,"id":7}')
    with pytest.raises(FutureVersion) as caught:
        read_store_id(store)
    assert str(caught.value) == f"{ROOT}/STORE: format 2, this version knows 1; use a newer topics"
    store.put("STORE", b'{"format":1,"store_id":"%s","since":"2026"}' % OURS.encode())
    assert read_store_id(store) == OURS


@given(st.binary(max_size=200))
def test_any_bytes_are_a_store_id_or_a_refusal(content: bytes) -> None:
    store = FolderStore(FakeDisk(), ROOT)
    store.put("STORE", content)
    with pytest.raises(StartRefused):
        read_store_id(store)


class ClaimedBySomebodyElse(FolderStore):
    """Another server puts its STORE right after ours."""

    def put(self, name: str, data: Buffer) -> None:
        super().put(name, data)
        super().put(name, bytes(data).replace(OURS.encode(), THEIRS.encode()))


def test_two_servers_that_claim_the_same_tier_do_not_both_get_it() -> None:
    with pytest.raises(StartRefused, match="belongs to another data directory"):
        ensure_store_id(ClaimedBySomebodyElse(FakeDisk(), ROOT), OURS)


# --- folders: crashes -------------------------------------------------------------------------------------------

OLD: Final = b"old " * 500
NEW: Final = b"new!" * 700


def stopped_put(disk: FakeDisk, operation_index: int) -> bool:
    """Puts NEW on a machine that stops before that operation; True when the put came to its end."""
    disk.on_operation = CrashAt(operation_index)
    try:
        FolderStore(disk, ROOT).put(DATA, NEW)
    except CrashNow:
        return False
    finally:
        disk.on_operation = None
    return True


@pytest.mark.parametrize("damage", list(Damage))
@pytest.mark.parametrize("old", [None, OLD])
def test_a_crash_anywhere_in_a_put_leaves_the_old_or_the_new_object(damage: Damage, old: bytes | None) -> None:
    """The copy step. Whatever the disk kept, a put that returned is there, and the next one works."""
    before = FakeDisk()
    if old is not None:
        FolderStore(before, ROOT).put(DATA, old)
    is_done = False
    for operation_index in itertools.count():
        if is_done:
            break
        for seed in range(5):
            disk = before.clone()
            is_done = stopped_put(disk, operation_index)
            disk.crash(damage, seed)
            store = FolderStore(disk, ROOT)
            found = store.read_range(DATA, 0, 10_000) if store.exists(DATA) else None
            assert found in ({NEW} if is_done else {old, NEW}), f"operation {operation_index}, seed {seed}"
            assert store.list("") == ([] if found is None else [DATA])
            store.put(DATA, b"again")
            assert disk.durable_files() == {f"{ROOT}/{DATA}": b"again"}
    assert operation_index > 4, "create, write, sync, rename and sync of the directory can each be cut off"


@pytest.mark.parametrize("damage", list(Damage))
def test_a_deleted_object_does_not_come_back_after_a_crash(damage: Damage) -> None:
    """The delete step."""
    for seed in range(5):
        disk = FakeDisk()
        store = FolderStore(disk, ROOT)
        store.put(DATA, OLD)
        store.put(OTHER, OLD)
        store.delete(DATA)
        disk.crash(damage, seed)
        assert FolderStore(disk, ROOT).list("") == [OTHER]


def test_a_put_syncs_the_file_before_the_rename_and_the_directory_after_it() -> None:
    disk = FakeDisk()
    store = FolderStore(disk, ROOT)
    store.put(DATA, OLD)
    seen: list[str] = []
    disk.on_operation = lambda operation, path: seen.append(f"{operation} {path.rpartition('/')[2]}")
    store.put(DATA, NEW)
    name = DATA.rpartition("/")[2]
    assert seen == [
        f"create {name}.tmp",
        f"pwrite {name}.tmp",
        f"fsync {name}.tmp",
        f"rename {name}",
        "sync_dir 0000000A",
    ]


# --- folders: faults --------------------------------------------------------------------------------------------


class FailAt:
    """A hook that fails one operation, as a disk with one bad moment."""

    def __init__(self, operation_index: int, number: int) -> None:
        self.operation_index = operation_index
        self.number = number
        self.count = 0

    def __call__(self, operation: str, path: str) -> None:
        self.count += 1
        if self.count == self.operation_index + 1:
            raise OSError(self.number, "made up", path)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, ColdUnavailable),
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.ENOENT, ColdUnavailable),
    ],
)
def test_a_put_that_fails_anywhere_says_so_and_leaves_the_old_or_the_new_object(
    number: int, expected: type[Exception]
) -> None:
    """Also a failed sync. No unfinished file stays to take space, and the next put works."""
    for operation_index in itertools.count():
        disk = FakeDisk()
        store = FolderStore(disk, ROOT)
        store.put(DATA, OLD)
        hook = disk.on_operation = FailAt(operation_index, number)
        if operation_index == 5:
            store.put(DATA, NEW)
            assert hook.count == 5
            break
        with pytest.raises(expected) as caught:
            store.put(DATA, NEW)
        assert isinstance(caught.value.__cause__, OSError)
        assert str(caught.value).startswith(f"{ROOT}: ")
        assert disk.files().keys() == {f"{ROOT}/{DATA}"}
        assert store.read_range(DATA, 0, 10_000) in {OLD, NEW}
        store.put(DATA, NEW)
        assert disk.durable_files() == {f"{ROOT}/{DATA}": NEW}


def test_a_delete_that_fails_anywhere_says_so_and_is_done_for_good_when_repeated() -> None:
    """A delete whose sync failed has not removed anything yet, though nothing is to be seen."""
    for operation_index in range(2):
        disk = FakeDisk()
        store = FolderStore(disk, ROOT)
        store.put(DATA, OLD)
        disk.on_operation = FailAt(operation_index, errno.EIO)
        with pytest.raises(ColdUnavailable):
            store.delete(DATA)
        store.delete(DATA)
        disk.crash(Damage.DROP)
        assert disk.files() == {}


def test_a_full_cold_disk_is_storage_full_and_keeps_what_it_had() -> None:
    disk = FakeDisk(capacity_bytes=3000)
    store = FolderStore(disk, ROOT)
    store.put(DATA, OLD)
    with pytest.raises(StorageFull) as caught:
        store.put(OTHER, NEW)
    assert str(caught.value) == f"{ROOT}: no space left for {OTHER}; make room in the cold tier"
    assert store.list("") == [DATA]
    assert disk.files() == {f"{ROOT}/{DATA}": OLD}
    disk.capacity_bytes = None
    store.put(OTHER, NEW)
    assert store.read_range(OTHER, 0, 10_000) == NEW


class SilentDisk(FakeDisk):
    """Answers every question with this error while it has one, as a network disk in trouble does."""

    outage: int | None = None

    def _check(self, path: str) -> None:
        if self.outage is not None:
            raise OSError(self.outage, "made up", path)

    def open(self, path: str, mode: OpenMode) -> FakeFile:
        self._check(path)
        return super().open(path, mode)

    def exists(self, path: str) -> bool:
        self._check(path)
        return super().exists(path)

    def size(self, path: str) -> int:
        self._check(path)
        return super().size(path)

    def listdir(self, path: str) -> list[str]:
        self._check(path)
        return super().listdir(path)

    def unlink(self, path: str) -> None:
        self._check(path)
        super().unlink(path)


CALLS: Final[dict[str, Callable[[SegmentStore], object]]] = {
    "put": lambda store: store.put(DATA, NEW),
    "read": lambda store: store.read_range(DATA, 0, 10_000),
    "read nothing": lambda store: store.read_range(DATA, 0, 0),
    "delete": lambda store: store.delete(DATA),
    "list": lambda store: store.list(""),
    "exists": lambda store: store.exists(DATA),
    "size": lambda store: store.size(DATA),
}


@pytest.mark.parametrize("is_claimed", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, errno.EMFILE])
@pytest.mark.parametrize("call", CALLS)
def test_a_folder_that_does_not_answer_is_unavailable_and_fine_afterwards(
    call: str, number: int, is_claimed: bool
) -> None:
    """The cold tier goes away and comes back."""
    disk = SilentDisk()
    store = FolderStore(disk, ROOT)
    if is_claimed:
        ensure_store_id(store, OURS)
    store.put(DATA, OLD)
    disk.outage = number
    with pytest.raises(ColdUnavailable) as caught:
        CALLS[call](store)
    assert isinstance(caught.value.__cause__, OSError)
    assert str(caught.value).startswith(f"{ROOT}: cannot ")
    disk.outage = None
    assert store.read_range(DATA, 0, 10_000) == OLD


@pytest.mark.parametrize("call", CALLS)
def test_a_claimed_folder_that_is_no_longer_mounted_is_unavailable_and_gets_no_puts(call: str, tmp_path: Path) -> None:
    """An empty mount point is not an empty tier, and a put there would vanish with the next mount."""
    root = tmp_path / "cold"
    store = FolderStore(RealFs(), str(root))
    ensure_store_id(store, OURS)
    store.put(DATA, OLD)
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    with pytest.raises(ColdUnavailable) as caught:
        CALLS[call](store)
    assert str(caught.value) == f"{root}: the cold tier's STORE is gone; is its disk mounted, does its bucket exist?"
    assert list(root.iterdir()) == []
    with pytest.raises(ColdUnavailable):
        ensure_store_id(store, OURS)
    root.rmdir()
    (tmp_path / "elsewhere").rename(root)
    assert store.read_range(DATA, 0, 10_000) == OLD


def test_a_link_into_nowhere_is_an_outage_rather_than_a_missing_object(tmp_path: Path) -> None:
    """A tier whose root is a link to a disk that is not mounted."""
    root = tmp_path / "cold"
    root.symlink_to(tmp_path / "disk")
    store = FolderStore(RealFs(), str(root))
    with pytest.raises(ColdUnavailable):
        store.put(DATA, b"1")
    (tmp_path / "disk").mkdir()
    store.put(DATA, b"1")
    (tmp_path / "disk" / INDEX).symlink_to(tmp_path / "nowhere")
    with pytest.raises(ColdUnavailable):
        store.exists(INDEX)


def test_unfinished_puts_are_not_listed_and_a_delete_takes_empty_directories_along(tmp_path: Path) -> None:
    root = tmp_path / "cold"
    store = FolderStore(RealFs(), str(root))
    store.put(DATA, b"1")
    store.put(OTHER, b"1")
    (root / (OTHER + ".tmp")).write_bytes(b"half")
    assert store.list("") == [DATA, OTHER]
    store.delete(DATA)
    assert sorted(path.name for path in (root / "topics").iterdir()) == ["0000000B"]
    store.delete(OTHER)
    assert [path.name for path in (root / "topics" / "0000000B").iterdir()] == [f"{OTHER.rpartition('/')[2]}.tmp"]
    store.put(OTHER, b"2")
    store.delete(OTHER)
    assert root.is_dir()
    assert list(root.iterdir()) == []


# --- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/srv/cold", "/srv/cold"),
        ("/srv/cold/", "/srv/cold"),
        ("/srv/a:b%20c", "/srv/a:b%20c"),
        ("file:/srv/cold", "/srv/cold"),
        ("file:///srv/cold/", "/srv/cold"),
        ("file://localhost/srv/cold", "/srv/cold"),
        ("file:///srv/old%20disk/%C3%BC", "/srv/old disk/ü"),
    ],
)
def test_a_path_or_file_address_opens_a_folder(address: str, path: str) -> None:
    store = open_store(address, FakeDisk())
    assert isinstance(store, FolderStore)
    assert store.address == path


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("cold", FakeDisk()).address == str(tmp_path / "cold")


@pytest.mark.parametrize("address", ["", "gs://bucket/prefix", "http://127.0.0.1/x", "S3://bucket"])
def test_an_address_of_another_kind_is_refused_with_the_kinds_there_are(address: str) -> None:
    with pytest.raises(StartRefused) as caught:
        open_store(address, FakeDisk())
    assert str(caught.value) == (
        f'"{address}" is no address of a cold tier: give a path, file:///path or s3://bucket/prefix'
    )


@pytest.mark.parametrize("address", ["file:", "file://", "file:relative", "file://server/share"])
def test_a_file_address_of_no_local_path_is_refused(address: str) -> None:
    with pytest.raises(StartRefused) as caught:
        open_store(address, FakeDisk())
    assert str(caught.value) == f'"{address}" names no path on this machine: write it as file:///path'


def test_an_s3_address_without_obstore_is_refused_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "topics.storage.tiers.s3_store", raising=False)
    with pytest.raises(StartRefused) as caught:
        open_store("s3://bucket/prefix", FakeDisk())
    assert str(caught.value) == "a cold tier on S3 needs the package obstore: pip install 'topics-log[s3]'"


def test_obstore_is_imported_for_s3_addresses_only() -> None:
    code = (
        "import sys, topics.storage.tiers.addresses as s; s.open_store('/x', None); sys.exit('obstore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", ["/srv/cold", "/srv/old disk/ü", "/srv/100%/a%20b"])
def test_an_address_made_of_a_path_leads_back_to_it(path: str) -> None:
    assert path_of_address(file_address(path)) == path
