"""The place of a backup: whose it is, and what is put into it once."""

import msgspec
import pytest

from tests.backup.engine_world import store_on
from tests.backup.test_format import FRAMES, POINT, file_of
from topics.errors import Damaged, StartRefused
from topics.testing.fake_disk import FakeDisk

ID = "8" * 32


def test_a_place_belongs_to_one_log() -> None:
    disk = FakeDisk()
    store_on(disk).claim(ID, 0)
    store_on(disk).claim(ID, 0)
    assert store_on(disk).require() == ID
    with pytest.raises(StartRefused, match="is the backup of another data directory"):
        store_on(disk).claim("9" * 32, 0)


def test_a_place_with_other_files_does_not_become_a_backup() -> None:
    disk = FakeDisk()
    disk.makedirs("/backup")
    disk.open("/backup/photo.jpg", "create").close()
    with pytest.raises(StartRefused, match=r'is not empty, and it is no backup: it has "photo.jpg"'):
        store_on(disk).claim(ID, 0)
    with pytest.raises(StartRefused, match="has no backup"):
        store_on(disk).require()


def test_two_points_of_one_millisecond_get_two_names_and_one_point_gets_one() -> None:
    store = store_on(FakeDisk())
    first = store.put_point(POINT)
    assert store.put_point(POINT) == first
    other = msgspec.structs.replace(POINT, new_files=7)
    second = store.put_point(other)
    assert store.point_names() == [first, second]
    assert (store.point(first), store.point(second)) == (POINT, other)


def test_a_file_that_another_process_has_put_is_not_replaced() -> None:
    disk = FakeDisk()
    store, other = store_on(disk), store_on(disk)
    store.claim(ID, 0)
    other.claim(ID, 0)
    file = file_of(FRAMES)
    assert store.put_new_file(file, FRAMES)
    assert not other.put_new_file(file, FRAMES[::-1])
    assert store.read(file)[0] == FRAMES
    with pytest.raises(Damaged, match="an object of the backup"):
        store.point("points/none.json")
