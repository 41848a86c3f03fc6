"""Files of segments: their names, their handles, and what a crash may leave."""

import logging

import pytest

from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import segment_path
from topics.streams.partitions.segment_files import (
    create_files,
    find_segments,
    open_files,
    read_codec,
    remove_side_files,
    write_codec,
)
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs

ROOT = "/p"


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(ROOT)
    return disk


def test_a_segment_is_named_by_twenty_digits() -> None:
    assert segment_path("/p", 0, ".log") == "/p/00000000000000000000.log"
    assert segment_path("/p", 2**64 - 1, ".index") == "/p/18446744073709551615.index"


def test_a_segment_without_compression_has_two_empty_files_and_no_other(disk: FakeDisk) -> None:
    create_files(disk, ROOT, 5, Codec.NONE).let_go()
    assert disk.files() == {segment_path(ROOT, 5, ".index"): b"", segment_path(ROOT, 5, ".log"): b""}
    assert read_codec(disk, ROOT, 5) is Codec.NONE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_algorithm_is_a_plain_name_beside_the_log(disk: FakeDisk, codec: Codec) -> None:
    create_files(disk, ROOT, 5, codec).let_go()
    assert disk.read(segment_path(ROOT, 5, ".codec")) == codec.name.lower().encode()
    assert read_codec(disk, ROOT, 5) is codec
    write_codec(disk, ROOT, 5, Codec.NONE)
    assert not disk.exists(segment_path(ROOT, 5, ".codec"))


def test_an_algorithm_nobody_knows_refuses_the_start_and_names_the_file(disk: FakeDisk) -> None:
    create_files(disk, ROOT, 5, Codec.NONE).let_go()
    disk.replace(segment_path(ROOT, 5, ".codec"), b"brotli")
    with pytest.raises(StartRefused) as refused:
        read_codec(disk, ROOT, 5)
    assert refused.value.message == (
        "/p/00000000000000000005.codec: expected one of none, gzip, lz4, zstd, found b'brotli'"
    )


def remove(disk: FakeDisk, start_offset: int) -> None:
    disk.unlink(segment_path(ROOT, start_offset, ".log"))
    remove_side_files(disk, ROOT, [start_offset])


def test_handles_stay_open_until_the_last_holder_lets_go_also_of_deleted_files(disk: FakeDisk) -> None:
    files = create_files(disk, ROOT, 0, Codec.NONE)
    files.log.pwrite(b"hello", 0)
    files.hold()
    remove(disk, 0)
    files.let_go()
    assert files.log.pread(5, 0) == b"hello"
    files.let_go()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.log.pread(5, 0)


def test_a_half_made_pair_is_taken_up_by_the_next_try(disk: FakeDisk) -> None:
    faults = FaultFs(disk)
    faults.fail("create", path=lambda path: path.endswith(".index"))
    with pytest.raises(OSError, match="Input/output error"):
        create_files(faults, ROOT, 3, Codec.ZSTD)
    create_files(faults, ROOT, 3, Codec.NONE).let_go()
    assert disk.listdir(ROOT) == [f"{3:020d}.index", f"{3:020d}.log"]


def test_a_file_with_messages_is_never_taken_for_a_new_one(disk: FakeDisk) -> None:
    disk.replace(segment_path(ROOT, 3, ".log"), b"messages")
    with pytest.raises(FileExistsError):
        create_files(disk, ROOT, 3, Codec.NONE)
    assert disk.read(segment_path(ROOT, 3, ".log")) == b"messages"


def test_a_missing_index_closes_the_log_again(disk: FakeDisk) -> None:
    disk.replace(segment_path(ROOT, 3, ".log"), b"")
    with pytest.raises(FileNotFoundError):
        open_files(disk, ROOT, 3, is_writable=False)


def test_segments_are_found_in_order_and_strangers_left_alone(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    for start_offset in (30, 4, 200):
        create_files(disk, ROOT, start_offset, Codec.NONE).let_go()
    disk.makedirs(f"{ROOT}/offsets/consumers")
    for name in ("5.log", f"{7:020d}.logs", f"{7:021d}.log", "notes.txt"):
        disk.replace(f"{ROOT}/{name}", b"x")
    with caplog.at_level(logging.WARNING):
        assert find_segments(disk, ROOT) == [4, 30, 200]
    assert sorted(record.args[1] for record in caplog.records if isinstance(record.args, tuple)) == sorted(
        ["5.log", f"{7:020d}.logs", f"{7:021d}.log", "notes.txt"]
    )
    assert disk.read(f"{ROOT}/notes.txt") == b"x"


def test_side_files_without_a_log_and_temporary_files_are_removed(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture
) -> None:
    create_files(disk, ROOT, 4, Codec.NONE).let_go()
    for suffix in (".index", ".codec", ".index.tmp"):
        disk.replace(segment_path(ROOT, 9, suffix), b"gzip")
    with caplog.at_level(logging.WARNING):
        assert find_segments(disk, ROOT) == [4]
    assert disk.listdir(ROOT) == [f"{4:020d}.index", f"{4:020d}.log"]
    assert [record.getMessage() for record in caplog.records] == [
        "/p/00000000000000000009.index: removed, because it has no .log",
        "/p/00000000000000000009.codec: removed, because it has no .log",
    ]
    disk.crash(Damage.DROP)
    assert disk.listdir(ROOT) == [f"{4:020d}.index", f"{4:020d}.log"], "the removals are durable"


@pytest.mark.parametrize("damage", list(Damage))
def test_no_crash_leaves_messages_whose_algorithm_is_forgotten(damage: Damage) -> None:
    """A crash at each operation of creating, changing and deleting: a log with messages keeps its codec."""
    operation_index = 0
    while True:
        disk = FakeDisk()
        disk.makedirs(ROOT)
        hook = CrashAt(operation_index)
        disk.on_operation = hook
        try:
            files = create_files(disk, ROOT, 0, Codec.GZIP)
            write_codec(disk, ROOT, 0, Codec.ZSTD)
            files.log.pwrite(b"messages", 0)
            files.log.fsync()
            disk.sync_dir(ROOT)
            remove(disk, 0)
        except CrashNow:
            pass
        disk.on_operation = None
        disk.crash(damage, operation_index)
        log = segment_path(ROOT, 0, ".log")
        if disk.exists(log) and disk.read(log):
            assert read_codec(disk, ROOT, 0) is Codec.ZSTD
        assert find_segments(disk, ROOT) in ([], [0])
        if hook.count <= operation_index:
            break
        operation_index += 1
    assert disk.listdir(ROOT) == []
