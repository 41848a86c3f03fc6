"""One contract for every `Fs`: what holds for the machine's file system holds for the fakes, and the other way."""

import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.storage import fs as fs_module
from topics.storage.fs import IOV_MAX, Fs, NotAFile, OpenMode, RealFs, read_file, write_all, write_atomic, write_vectors
from topics.storage.overlay import OverlayFs
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs, OneByteFs
from topics.testing.monitor_fs import MonitorFs


def overlay_on(below: Fs) -> Fs:
    below.makedirs("/scratch")
    return OverlayFs(below, "/scratch")


KINDS: dict[str, Callable[[], Fs]] = {
    "real": RealFs,
    "fake": FakeDisk,
    "real-one-byte": lambda: OneByteFs(RealFs()),
    "fake-one-byte": lambda: OneByteFs(FakeDisk()),
    "real-monitor": lambda: MonitorFs(RealFs()),
    "fake-monitor": lambda: MonitorFs(FakeDisk()),
    "fake-fault": lambda: FaultFs(FakeDisk()),
    "fake-overlay": lambda: overlay_on(FakeDisk()),
}


@pytest.fixture(params=list(KINDS))
def fs(request: pytest.FixtureRequest) -> Fs:
    return KINDS[request.param]()


@pytest.fixture
def root(fs: Fs, tmp_path: Path) -> str:
    """An empty directory of the file system under test."""
    path = str(tmp_path / "data")
    fs.makedirs(path)
    return path


@pytest.fixture
def real_root(tmp_path: Path) -> str:
    return str(tmp_path)


def put(fs: Fs, path: str, data: bytes) -> None:
    file = fs.open(path, "create")
    write_all(file, data, 0)
    file.fsync()
    file.close()


def raises(number: int) -> "pytest.RaisesExc[OSError]":
    return pytest.RaisesExc(OSError, check=lambda error: error.errno == number)


class TestOpening:
    @pytest.mark.parametrize("mode", ["read", "write"])
    def test_a_missing_file_is_not_made_by_opening_it(self, fs: Fs, root: str, mode: OpenMode) -> None:
        with raises(errno.ENOENT):
            fs.open(f"{root}/a", mode)
        assert not fs.exists(f"{root}/a")

    def test_create_makes_an_empty_file_that_can_be_read_and_written(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        assert file.path == f"{root}/a"
        assert file.size() == 0
        write_all(file, b"abc", 0)
        assert file.pread(3, 0) == b"abc"
        file.close()

    def test_create_refuses_a_name_that_is_taken(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        with raises(errno.EEXIST):
            fs.open(f"{root}/a", "create")
        assert read_file(fs, f"{root}/a") == b"abc"

    def test_create_needs_its_directory(self, fs: Fs, root: str) -> None:
        with raises(errno.ENOENT):
            fs.open(f"{root}/missing/a", "create")

    def test_a_file_is_no_directory_on_the_way(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOTDIR):
            fs.open(f"{root}/a/b", "create")

    @pytest.mark.parametrize("mode", ["read", "write"])
    def test_a_directory_is_not_opened_as_a_file(self, fs: Fs, root: str, mode: OpenMode) -> None:
        with raises(errno.EISDIR):
            fs.open(root, mode)

    def test_a_file_opened_for_reading_refuses_changes(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "read")
        with raises(errno.EBADF):
            file.pwrite(b"x", 0)
        with raises(errno.EINVAL):
            file.truncate(1)
        assert file.pread(9, 0) == b"abc"
        file.close()

    def test_a_file_opened_for_reading_can_be_synced(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "read")
        file.fsync()
        file.fdatasync()
        file.close()

    def test_a_closed_file_answers_ebadf_and_may_be_closed_again(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        file.close()
        file.close()
        calls: list[Callable[[], object]] = [
            lambda: file.pread(1, 0),
            lambda: file.pwrite(b"x", 0),
            lambda: file.truncate(0),
            lambda: file.preallocate(9),
            lambda: file.seek_data(0),
            file.map,
            file.fdatasync,
            file.fsync,
            file.size,
        ]
        for call in calls:
            with raises(errno.EBADF):
                call()


class TestReadingAndWriting:
    def test_reads_fall_short_only_at_the_end(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "read")
        assert file.pread(4, 3) == b"3456"
        assert file.pread(9, 8) == b"89"
        assert file.pread(9, 10) == b""
        assert file.pread(9, 99) == b""
        assert file.pread(0, 0) == b""
        file.close()

    def test_behind_the_end_there_is_nothing_to_wait_for(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "read")
        if not file.is_cached(10, 0):
            pytest.skip("the system does not tell what is cached")
        assert file.is_cached(0, 3)
        assert file.is_cached(99, 8)
        assert file.is_cached(9, 99)
        file.close()
        with raises(errno.EBADF):
            file.is_cached(10, 0)

    def test_a_write_beyond_the_end_leaves_zeros_between(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        write_all(file, b"x", 5)
        assert file.pread(9, 0) == b"\0\0\0\0\0x"
        file.close()

    def test_a_write_in_place_changes_only_its_range(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "write")
        assert write_all(file, b"ab", 3) == 5
        assert file.pread(99, 0) == b"012ab56789"
        assert file.size() == 10
        file.close()

    def test_a_write_says_how_much_it_wrote(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        count = file.pwrite(b"abc", 0)
        assert 1 <= count <= 3
        assert file.pread(9, 0) == b"abc"[:count]
        file.close()

    def test_an_empty_write_changes_nothing(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        assert file.pwrite(b"", 7) == 0
        assert file.size() == 0
        file.close()

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_kind_of_buffer_is_written(
        self, fs: Fs, root: str, kind: Callable[[bytes], fs_module.Buffer]
    ) -> None:
        file = fs.open(f"{root}/a", "create")
        write_all(file, kind(b"abc"), 0)
        assert file.pread(9, 0) == b"abc"
        file.close()

    def test_a_written_buffer_may_be_reused(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        buffer = bytearray(b"abc")
        write_all(file, buffer, 0)
        buffer[:] = b"xyz"
        assert file.pread(9, 0) == b"abc"
        file.close()

    def test_negative_positions_are_refused(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        with raises(errno.EINVAL):
            file.pwrite(b"x", -1)
        with raises(errno.EINVAL):
            file.pread(1, -1)
        with raises(errno.EINVAL):
            file.truncate(-1)
        file.close()

    def test_handles_of_one_file_see_each_other(self, fs: Fs, root: str) -> None:
        writer = fs.open(f"{root}/a", "create")
        reader = fs.open(f"{root}/a", "read")
        write_all(writer, b"abc", 0)
        assert reader.pread(9, 0) == b"abc"
        writer.truncate(1)
        assert reader.size() == 1
        writer.close()
        reader.close()

    def test_write_all_writes_every_buffer_in_turn(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        assert write_all(file, [b"ab", bytearray(b"c"), b"", memoryview(b"def")], 2) == 8
        assert file.pread(99, 0) == b"\0\0abcdef"
        file.close()

    @pytest.mark.parametrize("count", [0, 1, IOV_MAX, 2 * IOV_MAX + 1])
    def test_write_vectors_writes_every_buffer_in_turn(self, fs: Fs, root: str, count: int) -> None:
        file = fs.open(f"{root}/a", "create")
        buffers = [b"%d;" % number if number % 3 else b"" for number in range(count)]
        data = b"".join(buffers)
        assert write_vectors(file, buffers, 3) == 3 + len(data)
        assert file.pread(99_999, 3) == data
        file.close()

    def test_pread_into_fills_a_buffer_up_to_the_end_of_the_file(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "read")
        buffer = bytearray(b"......")
        assert file.pread_into(memoryview(buffer), 2) == 6
        assert file.pread_into(memoryview(buffer)[1:], 8) == 2
        assert file.pread_into(memoryview(buffer), 10) == 0
        assert buffer == b"289567"
        file.close()

    def test_pread_into_nowait_fills_the_whole_buffer_or_says_no(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "read")
        buffer = bytearray(6)
        if not file.pread_into_nowait(memoryview(buffer), 2):
            pytest.skip("the system does not tell what is cached")
        assert buffer == b"234567"
        assert not file.pread_into_nowait(memoryview(buffer), 5)
        assert not file.pread_into_nowait(memoryview(buffer), 99)
        assert file.pread_into_nowait(memoryview(buffer)[:0], 99)
        file.close()
        with raises(errno.EBADF):
            file.pread_into_nowait(memoryview(buffer), 0)


class TestSizes:
    def test_truncate_cuts_and_what_comes_back_is_zeros(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "write")
        file.truncate(4)
        assert (file.size(), fs.size(f"{root}/a")) == (4, 4)
        file.truncate(6)
        assert file.pread(99, 0) == b"0123\0\0"
        file.close()

    def test_preallocate_gives_zeros_up_to_the_size(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "write")
        file.preallocate(10_000)
        assert file.size() == 10_000
        assert file.pread(10_000, 0) == b"abc" + bytes(9_997)
        file.close()

    @pytest.mark.parametrize("size", [0, 2])
    def test_preallocate_never_shrinks(self, fs: Fs, root: str, size: int) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "write")
        file.preallocate(size)
        assert file.pread(99, 0) == b"abc"
        file.close()

    def test_seek_data_never_skips_a_byte_that_is_not_zero(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        file.preallocate(300_000)
        write_all(file, b"x", 200_000)
        for offset in (0, 1, 199_999, 200_000):
            found = file.seek_data(offset)
            assert found is not None
            assert offset <= found <= 200_000
        file.close()

    def test_seek_data_finds_nothing_at_or_behind_the_end(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "read")
        assert file.seek_data(0) == 0
        assert file.seek_data(2) == 2
        assert file.seek_data(3) is None
        assert file.seek_data(99) is None
        file.close()

    def test_the_size_of_a_missing_file_or_a_directory_is_an_error(self, fs: Fs, root: str) -> None:
        with raises(errno.ENOENT):
            fs.size(f"{root}/a")
        with raises(errno.EISDIR):
            fs.size(root)


class TestMaps:
    def test_an_empty_file_maps_to_nothing(self, fs: Fs, root: str) -> None:
        file = fs.open(f"{root}/a", "create")
        assert bytes(file.map()) == b""
        file.close()

    def test_a_map_shows_later_writes_in_place(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"0123456789")
        file = fs.open(f"{root}/a", "write")
        view = file.map()
        write_all(file, b"\xd5", 4)
        assert bytes(view) == b"0123\xd556789"
        file.close()

    def test_a_map_cannot_be_written(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "write")
        view = file.map()
        with pytest.raises(TypeError):
            view[0] = 1  # type: ignore[index]
        file.close()

    def test_a_map_keeps_its_length_while_the_file_grows_and_still_shows_writes(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "write")
        view = file.map()
        write_all(file, b"defghi", 3)
        write_all(file, b"XYZ", 2)
        assert bytes(view) == b"abX"
        assert bytes(file.map()) == b"abXYZfghi"
        file.close()

    def test_a_map_outlives_its_file_and_name(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "read")
        view = file.map()
        file.close()
        put(fs, f"{root}/b", b"new")
        fs.rename(f"{root}/b", f"{root}/a")
        assert bytes(view) == b"abc"


class TestDirectories:
    def test_listdir_is_sorted_and_holds_files_and_directories(self, fs: Fs, root: str) -> None:
        for name in ("c", "a", "B"):
            put(fs, f"{root}/{name}", b"")
        fs.makedirs(f"{root}/b/inner")
        assert fs.listdir(root) == ["B", "a", "b", "c"]
        assert fs.listdir(f"{root}/b/inner") == []

    def test_listdir_of_a_missing_directory_or_of_a_file_is_an_error(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOENT):
            fs.listdir(f"{root}/missing")
        with raises(errno.ENOTDIR):
            fs.listdir(f"{root}/a")

    def test_mkdir_makes_one_directory_once(self, fs: Fs, root: str) -> None:
        fs.mkdir(f"{root}/a")
        assert fs.listdir(f"{root}/a") == []
        with raises(errno.EEXIST):
            fs.mkdir(f"{root}/a")
        with raises(errno.ENOENT):
            fs.mkdir(f"{root}/missing/a")
        put(fs, f"{root}/file", b"")
        with raises(errno.EEXIST):
            fs.mkdir(f"{root}/file")
        with raises(errno.ENOTDIR):
            fs.mkdir(f"{root}/file/a")

    def test_makedirs_may_be_repeated(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/a/b/c")
        fs.makedirs(f"{root}/a/b/c")
        assert fs.exists(f"{root}/a/b/c")

    def test_makedirs_does_not_pass_a_file(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOTDIR):
            fs.makedirs(f"{root}/a")
        with raises(errno.ENOTDIR):
            fs.makedirs(f"{root}/a/b")

    def test_exists_knows_files_directories_and_nothing(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        assert fs.exists(f"{root}/a")
        assert fs.exists(root)
        assert not fs.exists(f"{root}/b")
        assert not fs.exists(f"{root}/b/c")

    def test_exists_raises_when_a_file_stands_in_the_way(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOTDIR):
            fs.exists(f"{root}/a/b")

    def test_rmdir_takes_empty_directories_only(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        put(fs, f"{root}/d/a", b"")
        with raises(errno.ENOTEMPTY):
            fs.rmdir(f"{root}/d")
        with raises(errno.ENOTDIR):
            fs.rmdir(f"{root}/d/a")
        fs.unlink(f"{root}/d/a")
        fs.rmdir(f"{root}/d")
        assert not fs.exists(f"{root}/d")
        with raises(errno.ENOENT):
            fs.rmdir(f"{root}/d")

    def test_sync_dir_needs_a_directory(self, fs: Fs, root: str) -> None:
        fs.sync_dir(root)
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOENT):
            fs.sync_dir(f"{root}/missing")
        with raises(errno.ENOTDIR):
            fs.sync_dir(f"{root}/a")


class TestNames:
    def test_rename_replaces_and_the_old_handle_keeps_the_old_content(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/old", b"old")
        put(fs, f"{root}/new", b"new")
        file = fs.open(f"{root}/old", "read")
        fs.rename(f"{root}/new", f"{root}/old")
        assert fs.listdir(root) == ["old"]
        assert read_file(fs, f"{root}/old") == b"new"
        assert file.pread(9, 0) == b"old"
        file.close()

    def test_rename_of_a_missing_file_or_into_a_missing_directory_is_an_error(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        with raises(errno.ENOENT):
            fs.rename(f"{root}/missing", f"{root}/b")
        with raises(errno.ENOENT):
            fs.rename(f"{root}/a", f"{root}/missing/a")
        assert fs.listdir(root) == ["a"]

    def test_rename_to_its_own_name_changes_nothing(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        fs.rename(f"{root}/a", f"{root}/a")
        assert read_file(fs, f"{root}/a") == b"abc"

    def test_rename_takes_a_directory_with_all_that_is_in_it(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d/e")
        put(fs, f"{root}/d/e/a", b"abc")
        file = fs.open(f"{root}/d/e/a", "write")
        fs.rename(f"{root}/d", f"{root}/d.deleted")
        assert fs.listdir(root) == ["d.deleted"]
        write_all(file, b"X", 0)
        file.close()
        assert read_file(fs, f"{root}/d.deleted/e/a") == b"Xbc"

    def test_rename_moves_between_directories(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        put(fs, f"{root}/a", b"abc")
        fs.rename(f"{root}/a", f"{root}/d/b")
        assert fs.listdir(root) == ["d"]
        assert read_file(fs, f"{root}/d/b") == b"abc"

    def test_rename_does_not_mix_files_and_directories(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        put(fs, f"{root}/a", b"")
        with raises(errno.EISDIR):
            fs.rename(f"{root}/a", f"{root}/d")
        with raises(errno.ENOTDIR):
            fs.rename(f"{root}/d", f"{root}/a")

    def test_rename_replaces_a_directory_only_if_it_is_empty(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        fs.makedirs(f"{root}/e")
        put(fs, f"{root}/e/a", b"")
        with raises(errno.ENOTEMPTY):
            fs.rename(f"{root}/d", f"{root}/e")
        fs.rename(f"{root}/e", f"{root}/d")
        assert fs.listdir(f"{root}/d") == ["a"]

    def test_a_directory_is_not_renamed_into_itself(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        with raises(errno.EINVAL):
            fs.rename(f"{root}/d", f"{root}/d/e")

    def test_a_rename_to_a_new_name_is_refused_where_there_is_one(self, fs: Fs, root: str) -> None:
        fs.makedirs(f"{root}/d")
        put(fs, f"{root}/a", b"first")
        fs.rename_new(f"{root}/a", f"{root}/d/name")
        put(fs, f"{root}/b", b"second")
        with raises(errno.EEXIST):
            fs.rename_new(f"{root}/b", f"{root}/d/name")
        with raises(errno.EEXIST):
            fs.rename_new(f"{root}/b", f"{root}/d")
        with raises(errno.ENOENT):
            fs.rename_new(f"{root}/missing", f"{root}/c")
        with raises(errno.ENOENT):
            fs.rename_new(f"{root}/b", f"{root}/missing/c")
        assert fs.listdir(root) == ["b", "d"]
        assert read_file(fs, f"{root}/d/name") == b"first"

    def test_a_file_has_a_time_and_a_missing_one_has_none(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"")
        assert fs.modified_ms(f"{root}/a") >= 0
        with raises(errno.ENOENT):
            fs.modified_ms(f"{root}/missing")

    def test_unlink_frees_the_name_while_the_handle_goes_on(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a", b"abc")
        file = fs.open(f"{root}/a", "write")
        fs.unlink(f"{root}/a")
        assert not fs.exists(f"{root}/a")
        write_all(file, b"d", 3)
        assert file.pread(9, 0) == b"abcd"
        file.close()
        put(fs, f"{root}/a", b"other")
        assert read_file(fs, f"{root}/a") == b"other"

    def test_unlink_of_a_missing_file_or_a_directory_is_an_error(self, fs: Fs, root: str) -> None:
        with raises(errno.ENOENT):
            fs.unlink(f"{root}/a")
        # Linux answers EISDIR, POSIX and macOS EPERM.
        with pytest.raises(OSError, check=lambda error: error.errno in (errno.EISDIR, errno.EPERM)):
            fs.unlink(root)


class TestLocks:
    def test_a_lock_is_held_once_and_free_after_its_release(self, fs: Fs, root: str) -> None:
        lock = fs.lock(f"{root}/.lock")
        assert lock is not None
        assert lock.path == f"{root}/.lock"
        assert fs.lock(f"{root}/.lock") is None
        lock.release()
        lock.release()
        again = fs.lock(f"{root}/.lock")
        assert again is not None
        again.release()

    def test_the_holder_writes_the_content_and_others_read_it(self, fs: Fs, root: str) -> None:
        lock = fs.lock(f"{root}/.lock")
        assert lock is not None
        file = fs.open(f"{root}/.lock", "write")
        write_all(file, b"42", 0)
        file.close()
        assert fs.lock(f"{root}/.lock") is None
        assert read_file(fs, f"{root}/.lock") == b"42"
        lock.release()

    def test_a_lock_needs_its_directory(self, fs: Fs, root: str) -> None:
        with raises(errno.ENOENT):
            fs.lock(f"{root}/missing/.lock")

    def test_locks_of_two_files_do_not_meet(self, fs: Fs, root: str) -> None:
        locks = [fs.lock(f"{root}/{name}") for name in "ab"]
        for lock in locks:
            assert lock is not None
            lock.release()

    def test_the_boot_id_stays_the_same(self, fs: Fs) -> None:
        assert fs.boot_id() == fs.boot_id()


class TestWriteAtomic:
    def test_the_file_is_made_and_then_replaced(self, fs: Fs, root: str) -> None:
        write_atomic(fs, f"{root}/a", b"first")
        write_atomic(fs, f"{root}/a", b"2")
        assert read_file(fs, f"{root}/a") == b"2"
        assert fs.listdir(root) == ["a"]

    def test_a_temporary_file_left_by_a_crash_is_no_obstacle(self, fs: Fs, root: str) -> None:
        put(fs, f"{root}/a.tmp", b"left over, and longer")
        write_atomic(fs, f"{root}/a", b"new")
        assert read_file(fs, f"{root}/a") == b"new"
        assert fs.listdir(root) == ["a"]


class TestRealFs:
    def test_the_time_of_a_file_is_that_of_its_last_write(self, real_root: str) -> None:
        put(RealFs(), f"{real_root}/a", b"")
        os.utime(f"{real_root}/a", (1_700_000_000.25, 1_700_000_000.25))
        assert RealFs().modified_ms(f"{real_root}/a") == 1_700_000_000_250

    def test_files_and_directories_are_private(self, real_root: str) -> None:
        fs = RealFs()
        fs.makedirs(f"{real_root}/d/e")
        fs.open(f"{real_root}/d/a", "create").close()
        lock = fs.lock(f"{real_root}/d/.lock")
        assert lock is not None
        lock.release()
        modes = {name: stat.S_IMODE(os.stat(f"{real_root}/{name}").st_mode) for name in ("d", "d/e", "d/a", "d/.lock")}
        assert modes == {"d": 0o700, "d/e": 0o700, "d/a": 0o600, "d/.lock": 0o600}

    def test_descriptors_are_not_inherited_by_accident(self, real_root: str) -> None:
        fs = RealFs()
        file = fs.open(f"{real_root}/a", "create")
        lock = fs.lock(f"{real_root}/.lock")
        assert lock is not None
        assert not os.get_inheritable(file._fd)
        assert not os.get_inheritable(lock.fileno())
        file.close()
        lock.release()

    def test_a_short_read_in_the_middle_is_continued(self, real_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fs = RealFs()
        put(fs, f"{real_root}/a", b"0123456789")
        file = fs.open(f"{real_root}/a", "read")
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
        assert file.pread(8, 1) == b"12345678"
        assert file.pread(99, 4) == b"456789"
        file.close()

    def test_a_lock_is_held_until_the_child_that_inherited_it_ends(self, real_root: str) -> None:
        fs = RealFs()
        lock = fs.lock(f"{real_root}/.lock")
        assert lock is not None
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.fileno()]) as child:
            lock.release()
            assert fs.lock(f"{real_root}/.lock") is None
            child.communicate()
        again = fs.lock(f"{real_root}/.lock")
        assert again is not None
        again.release()

    def test_readers_share_a_lock_that_nobody_has_for_himself(self, real_root: str) -> None:
        fs, path = RealFs(), f"{real_root}/.lock"
        with raises(errno.ENOENT):
            fs.lock_shared(path)
        assert not fs.exists(path)
        owner = fs.lock(path)
        assert owner is not None
        assert fs.lock_shared(path) is None
        owner.release()
        first, second = fs.lock_shared(path), fs.lock_shared(path)
        assert first is not None
        assert second is not None
        first.release()
        assert fs.lock(path) is None
        second.release()
        owner = fs.lock(path)
        assert owner is not None
        owner.release()

    def test_a_lock_that_fails_for_another_reason_raises(self, real_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def flock(fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(fcntl, "flock", flock)
        with raises(errno.ENOLCK):
            RealFs().lock(f"{real_root}/.lock")

    def test_a_link_into_nowhere_is_not_taken_for_an_empty_place(self, real_root: str) -> None:
        os.symlink(f"{real_root}/not-mounted", f"{real_root}/data")
        with raises(errno.ENOENT):
            RealFs().exists(f"{real_root}/data")

    @pytest.mark.parametrize(
        ("kind", "make"), [("a FIFO", os.mkfifo), ("a symbolic link", lambda path: os.symlink("/etc/hosts", path))]
    )
    def test_what_is_no_file_is_refused_at_once(self, real_root: str, kind: str, make: Callable[[str], None]) -> None:
        path = f"{real_root}/a"
        make(path)
        fs = RealFs()
        calls: list[Callable[[], object]] = [
            lambda: fs.open(path, "read"),
            lambda: fs.open(path, "write"),
            lambda: fs.size(path),
            lambda: fs.lock(path),
            lambda: fs.lock_shared(path),
        ]
        for call in calls:
            with pytest.raises(NotAFile) as caught:
                call()
            assert (caught.value.strerror, caught.value.filename) == (f"is {kind}, not a file", path)

    def test_a_directory_made_meanwhile_by_somebody_else_is_fine(
        self, real_root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mkdir = os.mkdir

        def mkdir_after_somebody(path: str, mode: int) -> None:
            mkdir(path, mode)
            mkdir(path, mode)

        monkeypatch.setattr(os, "mkdir", mkdir_after_somebody)
        RealFs().makedirs(f"{real_root}/a/b")
        assert os.path.isdir(f"{real_root}/a/b")

    @pytest.mark.skipif(sys.platform != "linux", reason="where Linux keeps it")
    def test_the_boot_id_is_that_of_the_kernel(self) -> None:
        assert RealFs().boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class TestFileSystemsThatCannot:
    """Operations that some file systems do not have are done without, and real failures are not hidden."""

    @pytest.fixture
    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
        def refuse(name: str, number: int) -> None:
            def call(*arguments: object) -> None:
                raise OSError(number, os.strerror(number))

            module = fs_module if name.startswith("_") else os
            monkeypatch.setattr(module, name, call)

        return refuse

    @pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP])
    def test_what_is_not_cached_or_not_told_may_have_to_be_waited_for(
        self, real_root: str, refuse: Callable[[str, int], None], number: int
    ) -> None:
        put(RealFs(), f"{real_root}/a", b"0123456789")
        file = RealFs().open(f"{real_root}/a", "read")
        refuse("preadv", number)
        assert not file.is_cached(10, 0)
        assert not file.pread_into_nowait(memoryview(bytearray(10)), 0)
        assert file.pread(10, 0) == b"0123456789"
        file.close()

    def test_a_system_that_cannot_tell_what_is_cached_says_no(
        self, real_root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fs_module, "_RWF_NOWAIT", None)
        put(RealFs(), f"{real_root}/a", b"0123456789")
        file = RealFs().open(f"{real_root}/a", "read")
        assert not file.is_cached(10, 0)
        assert not file.pread_into_nowait(memoryview(bytearray(10)), 0)
        file.close()

    @pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
    def test_a_directory_that_cannot_be_synced_is_reported_once(
        self,
        real_root: str,
        refuse: Callable[[str, int], None],
        caplog: pytest.LogCaptureFixture,
        number: int,
    ) -> None:
        refuse("_fsync", number)
        fs = RealFs()
        with caplog.at_level(logging.WARNING):
            fs.sync_dir(real_root)
            fs.sync_dir(real_root)
        assert [record.getMessage() for record in caplog.records] == [
            f"{real_root}: this file system cannot sync directories; a power cut may undo renames"
        ]

    def test_a_directory_sync_that_fails_is_raised(self, real_root: str, refuse: Callable[[str, int], None]) -> None:
        refuse("_fsync", errno.EIO)
        with raises(errno.EIO):
            RealFs().sync_dir(real_root)

    @pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
    def test_preallocation_falls_back_to_the_length(
        self, real_root: str, refuse: Callable[[str, int], None], number: int
    ) -> None:
        file = RealFs().open(f"{real_root}/a", "create")
        refuse("posix_fallocate", number)
        file.preallocate(4096)
        assert file.pread(9999, 0) == bytes(4096)
        file.preallocate(1)
        assert file.size() == 4096
        file.close()

    def test_preallocation_on_a_full_disk_is_raised(self, real_root: str, refuse: Callable[[str, int], None]) -> None:
        file = RealFs().open(f"{real_root}/a", "create")
        refuse("posix_fallocate", errno.ENOSPC)
        with raises(errno.ENOSPC):
            file.preallocate(4096)
        assert file.size() == 0
        file.close()

    def test_without_holes_all_is_data(self, real_root: str, refuse: Callable[[str, int], None]) -> None:
        file = RealFs().open(f"{real_root}/a", "create")
        file.truncate(10)
        refuse("lseek", errno.EINVAL)
        assert file.seek_data(3) == 3
        assert file.seek_data(10) is None
        file.close()

    def test_a_search_for_data_that_fails_is_raised(self, real_root: str, refuse: Callable[[str, int], None]) -> None:
        file = RealFs().open(f"{real_root}/a", "create")
        refuse("lseek", errno.EIO)
        with raises(errno.EIO):
            file.seek_data(0)
        file.close()

    def test_a_failed_sync_of_a_file_is_raised(self, real_root: str, refuse: Callable[[str, int], None]) -> None:
        file = RealFs().open(f"{real_root}/a", "create")
        refuse("_fsync", errno.EINVAL)
        refuse("_fdatasync", errno.EIO)
        with raises(errno.EINVAL):
            file.fsync()
        with raises(errno.EIO):
            file.fdatasync()
        file.close()
