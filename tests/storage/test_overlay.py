"""Changes stay in the overlay: the files below stay the same, byte for byte.

That an overlay behaves like any other file system is in `test_fs.py`.
"""

import errno
import os
from pathlib import Path

import pytest

from topics.storage.fs import RealFs, read_file, write_all, write_atomic
from topics.storage.overlay import OverlayFs, OverlayStore
from topics.storage.tiers.folder_store import FolderStore


@pytest.fixture
def below(tmp_path: Path) -> Path:
    folder = tmp_path / "below"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"0123456789")
    (folder / "b").write_bytes(b"b")
    (folder / "inner" / "c").write_bytes(b"c")
    (folder / "inner" / "deep" / "d").write_bytes(b"d")
    return folder


@pytest.fixture
def fs(tmp_path: Path) -> OverlayFs:
    (tmp_path / "scratch").mkdir()
    return OverlayFs(RealFs(), str(tmp_path / "scratch"))


def content(folder: Path) -> dict[str, tuple[bytes, int] | None]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_writes_show_above_and_not_below(fs: OverlayFs, below: Path) -> None:
    before = content(below)
    file = fs.open(f"{below}/a", "write")
    write_all(file, b"xy", 3)
    file.truncate(7)
    file.preallocate(9)
    file.fsync()
    file.close()
    write_atomic(fs, f"{below}/b", b"new")
    assert read_file(fs, f"{below}/a") == b"012xy56\0\0"
    assert (read_file(fs, f"{below}/b"), fs.size(f"{below}/b")) == (b"new", 3)
    assert content(below) == before


def test_only_what_was_changed_is_said_to_be(fs: OverlayFs, below: Path) -> None:
    fs.open(f"{below}/b", "read").close()
    fs.open(f"{below}/a", "write").close()
    assert (fs.is_changed(f"{below}/a"), fs.is_changed(f"{below}/b")) == (True, False)


def test_names_that_go_are_gone_above_and_may_come_back(fs: OverlayFs, below: Path) -> None:
    before = content(below)
    fs.unlink(f"{below}/a")
    assert not fs.exists(f"{below}/a")
    assert fs.listdir(str(below)) == ["b", "inner"]
    with pytest.raises(FileNotFoundError):
        fs.open(f"{below}/a", "write")
    fs.open(f"{below}/a", "create").close()
    assert read_file(fs, f"{below}/a") == b""
    fs.unlink(f"{below}/a")
    assert not fs.exists(f"{below}/a")
    assert content(below) == before


def test_a_directory_is_renamed_with_what_is_below(fs: OverlayFs, below: Path) -> None:
    before = content(below)
    fs.rename(f"{below}/inner", f"{below}/outer")
    assert not fs.exists(f"{below}/inner")
    assert fs.listdir(str(below)) == ["a", "b", "outer"]
    assert fs.listdir(f"{below}/outer") == ["c", "deep"]
    assert read_file(fs, f"{below}/outer/deep/d") == b"d"
    fs.makedirs(f"{below}/inner")
    assert fs.listdir(f"{below}/inner") == []
    assert content(below) == before


def test_a_directory_can_be_emptied_and_removed(fs: OverlayFs, below: Path) -> None:
    before = content(below)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        fs.rmdir(f"{below}/inner/deep")
    fs.unlink(f"{below}/inner/deep/d")
    fs.rmdir(f"{below}/inner/deep")
    assert fs.listdir(f"{below}/inner") == ["c"]
    assert not fs.exists(f"{below}/inner/deep/d")
    assert content(below) == before


def test_a_file_below_is_renamed_over_another(fs: OverlayFs, below: Path) -> None:
    before = content(below)
    fs.rename(f"{below}/a", f"{below}/b")
    assert fs.listdir(str(below)) == ["b", "inner"]
    assert read_file(fs, f"{below}/b") == b"0123456789"
    file = fs.open(f"{below}/b", "write")
    write_all(file, b"X", 0)
    file.close()
    assert read_file(fs, f"{below}/b") == b"X123456789"
    assert content(below) == before


def test_a_lock_is_for_those_above(fs: OverlayFs, below: Path) -> None:
    path = f"{below}/lock"
    held = fs.lock(path)
    assert held is not None
    assert fs.lock(path) is None
    assert not Path(path).exists()
    real = RealFs().lock(path)
    assert real is not None
    real.release()


def test_copies_that_are_not_needed_any_more_take_no_room(fs: OverlayFs, below: Path, tmp_path: Path) -> None:
    for _ in range(3):
        write_atomic(fs, f"{below}/b", b"new")
    fs.open(f"{below}/a", "write").close()
    assert len(list((tmp_path / "scratch").iterdir())) == 2
    fs.unlink(f"{below}/a")
    fs.unlink(f"{below}/b")
    assert not list((tmp_path / "scratch").iterdir())


def test_a_store_keeps_what_it_is_given_to_itself(below: Path) -> None:
    before = content(below)
    store = OverlayStore(FolderStore(RealFs(), str(below)))
    store.put("inner/e", b"0123")
    store.delete("a")
    store.delete("missing")
    assert store.list("") == ["b", "inner/c", "inner/deep/d", "inner/e"]
    assert (store.read_range("inner/e", 1, 2), store.size("inner/e")) == (b"12", 4)
    assert (store.read_range("b", 0, 9), store.size("b")) == (b"b", 1)
    assert [store.exists(name) for name in ("a", "b", "inner/e", "missing")] == [False, True, True, False]
    for call in (lambda: store.read_range("a", 0, 1), lambda: store.size("a")):
        with pytest.raises(FileNotFoundError):
            call()
    assert store.address == str(below)
    store.close()
    assert content(below) == before
