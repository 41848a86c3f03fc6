"""Files of staged chunks: durable when written, found again by a start, gone when removed."""

import errno

import pytest

from topics.errors import FormatError
from topics.formats import envelope
from topics.formats.records import RecordBatch
from topics.storage.staged_chunks import ChunkId, chunk_path, find_chunks, read_chunk, remove_chunks, write_chunk
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

ROOT = "/data"
CHUNK = ChunkId(31, "w:1.x_y-z", 2**64 - 1, 0, 1, 2)


def batch(*payloads: bytes) -> RecordBatch:
    return RecordBatch([envelope.encode(payload, None) for payload in payloads], list(map(len, payloads)))


def disk_with_root() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(ROOT)
    return disk


@pytest.mark.parametrize("damage", list(Damage))
def test_a_chunk_that_was_written_outlives_a_power_loss(damage: Damage) -> None:
    disk = disk_with_root()
    write_chunk(disk, ROOT, CHUNK, batch(b"1", b"22"), 5)
    disk.crash(damage)
    (head,) = find_chunks(disk, ROOT).heads
    assert (head.topic_id, head.writer, head.epoch, head.part, head.attempt, head.chunk) == CHUNK
    assert (head.ts, head.records, head.size_bytes) == (5, 2, 3)
    assert read_chunk(disk, ROOT, CHUNK).envelopes == batch(b"1", b"22").envelopes


def test_the_name_says_which_chunk_it_is_and_the_longest_one_fits() -> None:
    assert chunk_path(ROOT, CHUNK) == "/data/staging/chunk-0000001F-18446744073709551615-0-1-2-w:1.x_y-z.staged"
    longest = ChunkId(2**64 - 1, "w" * 128, *[2**64 - 1] * 4)
    assert len(chunk_path(ROOT, longest).rpartition("/")[2]) + len(".tmp") <= 255


def test_a_full_disk_leaves_nothing_behind() -> None:
    disk = disk_with_root()
    faults = FaultFs(disk)
    faults.fail("pwrite", "fsync", error=errno.ENOSPC, at=0)
    with pytest.raises(OSError, match="No space left"):
        write_chunk(faults, ROOT, CHUNK, batch(b"1"), 5)
    assert disk.listdir(f"{ROOT}/staging") == []
    faults.heal()
    write_chunk(faults, ROOT, CHUNK, batch(b"1"), 5)
    assert len(find_chunks(disk, ROOT).heads) == 1


def test_a_start_passes_over_what_is_not_a_chunk_and_names_what_is_bad() -> None:
    disk = disk_with_root()
    assert find_chunks(disk, ROOT) == ([], [])
    write_chunk(disk, ROOT, CHUNK, batch(b"1"), 5)
    other = CHUNK._replace(part=9)
    disk.rename(chunk_path(ROOT, CHUNK), chunk_path(ROOT, other))
    for name in ("notes.txt", "chunk-1F-1-1-1-1-w.staged", "seg-0000000000000001.data.tmp"):
        disk.open(f"{ROOT}/staging/{name}", "create").close()
    disk.open(chunk_path(ROOT, CHUNK) + ".tmp", "create").close()
    found = find_chunks(disk, ROOT)
    assert found.heads == []
    assert len(found.bad) == 1
    assert "another chunk than its name says" in found.bad[0]
    assert len(disk.listdir(f"{ROOT}/staging")) == 4
    with pytest.raises(FormatError, match="another chunk"):
        read_chunk(disk, ROOT, other)


def test_removing_is_for_what_is_there() -> None:
    disk = disk_with_root()
    write_chunk(disk, ROOT, CHUNK, batch(b"1"), 5)
    for _ in range(2):
        remove_chunks(disk, ROOT, [CHUNK, CHUNK._replace(chunk=8)])
        assert find_chunks(disk, ROOT).heads == []
