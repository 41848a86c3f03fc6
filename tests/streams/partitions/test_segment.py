"""One segment: writing at its end, cutting off a failed write, reading slices of it."""

import errno

import numpy as np
import pytest

from tests.streams.partitions.partition_world import batch
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES, decode_entries
from topics.formats.stream_layout import BodyOrder, segment_path
from topics.storage.fs import IOV_MAX, Fs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import StoredBatch, prepare
from topics.streams.partitions.segment import Segment, SyncFailed
from topics.streams.partitions.segment_files import create_files
from topics.streams.partitions.segment_index import SegmentIndex, no_entries
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, OneByteFs

ROOT = "/p"
START = 40
LOG = segment_path(ROOT, START, ".log")
INDEX = segment_path(ROOT, START, ".index")


def stored(first_offset: int, *payloads: bytes, timestamp: int = 1000) -> StoredBatch:
    return prepare(batch(*payloads), order=BodyOrder.PAYLOAD_FIRST).stamp(first_offset, timestamp)


def segment_on(fs: Fs, *, is_cached: bool = True) -> Segment:
    fs.makedirs(ROOT)
    files = create_files(fs, ROOT, START, Codec.NONE)
    fs.sync_dir(ROOT)
    index = SegmentIndex(0, no_entries() if is_cached else None)
    return Segment(fs, ROOT, START, Codec.NONE, index, files=files)


def put(segment: Segment, *batches: StoredBatch, enforce_fsync: bool = False) -> None:
    segment.advance(batches, segment.write(batches, enforce_fsync=enforce_fsync))


@pytest.mark.parametrize("wrap", [lambda disk: disk, OneByteFs], ids=["whole", "byte by byte"])
def test_batches_lie_back_to_back_and_each_message_has_its_entry(wrap: type[OneByteFs]) -> None:
    disk = FakeDisk()
    segment = segment_on(wrap(disk))
    batches = [stored(40, b"a", b"bb", timestamp=10), stored(42, b"ccc", timestamp=20)]
    put(segment, *batches)
    put(segment, stored(43, b"", timestamp=20))
    log = disk.read(LOG)
    assert log[: 65 + 66 + 67] == bytes(batches[0].buffer) + bytes(batches[1].buffer)
    entries = decode_entries(disk.read(INDEX))
    assert entries["offset"].tolist() == [0, 1, 2, 3]
    assert entries["position"].tolist() == [65, 131, 198, 262]
    assert entries["timestamp"].tolist() == [10, 10, 20, 20]
    info = segment.info()
    assert (info.start_offset, info.end_offset, info.messages_count, info.size_bytes) == (40, 43, 4, 262)
    assert (info.start_timestamp, info.end_timestamp) == (10, 20)


def test_more_batches_than_one_vectored_write_takes_are_written_in_several() -> None:
    disk = FakeDisk()
    segment = segment_on(disk)
    calls: list[str] = []
    disk.on_operation = lambda operation, path: calls.append(operation)
    count = 2 * IOV_MAX + 1
    put(segment, *(stored(40 + place, b"m") for place in range(count)))
    assert calls == ["pwritev", "pwritev", "pwritev", "pwrite"]
    assert segment.messages_count == count
    assert len(disk.read(LOG)) == 65 * count


def test_an_empty_segment_ends_where_it_starts() -> None:
    info = segment_on(FakeDisk()).info()
    assert (info.start_offset, info.end_offset, info.messages_count, info.start_timestamp) == (40, 40, 0, 0)


def test_with_fsync_the_log_is_durable_before_the_index_is_written() -> None:
    disk = FakeDisk()
    segment = segment_on(disk)
    calls: list[tuple[str, str]] = []
    disk.on_operation = lambda operation, path: calls.append((operation, path[-4:]))
    put(segment, stored(40, b"a"), enforce_fsync=True)
    assert [call for call in calls if call[0] != "fdatasync" or call[1] == ".log"][:3] == [
        ("pwritev", ".log"),
        ("fdatasync", ".log"),
        ("pwrite", "ndex"),
    ]
    disk.crash(Damage.DROP)
    assert (len(disk.read(LOG)), len(disk.read(INDEX))) == (65, ENTRY_BYTES)


def test_what_a_failed_write_left_is_cut_off_durably() -> None:
    """Half a batch is written, and then the disk is full. Later batches take its place."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    segment = segment_on(faults)
    put(segment, stored(40, b"a"))
    faults.torn_write(error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        segment.write([stored(41, b"b" * 100)], enforce_fsync=False)
    assert len(disk.read(LOG)) > 65
    segment.cut_back()
    assert (len(disk.read(LOG)), len(disk.read(INDEX))) == (65, ENTRY_BYTES)
    assert (len(disk.durable_files()[LOG]), len(disk.durable_files()[INDEX])) == (65, ENTRY_BYTES)
    put(segment, stored(41, b"c"))
    assert len(disk.read(LOG)) == 130


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_a_failed_sync_says_so_and_leaves_the_segment_unsynced(suffix: str) -> None:
    disk = FakeDisk()
    faults = FaultFs(disk)
    segment = segment_on(faults)
    put(segment, stored(40, b"a"))
    faults.fail("fdatasync", path=lambda path: path.endswith(suffix))
    with pytest.raises(SyncFailed):
        segment.sync()
    assert not segment.is_synced


def test_a_found_takes_as_many_messages_as_fit_and_one_if_it_must() -> None:
    segment = segment_on(FakeDisk())
    put(segment, stored(40, *[b"x" * 36] * 10))
    found = segment.slice(2, 5)
    assert found.first_offset == 42
    assert found.spans(1000, at_least_one=False).starts.tolist() == [200, 300, 400, 500, 600]
    assert found.spans(300, at_least_one=False).ends.tolist() == [300, 400, 500]
    assert found.spans(299, at_least_one=False).ends.tolist() == [300, 400]
    assert found.spans(99, at_least_one=False).ends.tolist() == []
    assert found.spans(99, at_least_one=True).ends.tolist() == [300]
    found.close()


def test_a_log_that_was_cut_under_a_reader_is_an_error_of_that_read() -> None:
    """The log is not mapped, so there is no signal."""
    disk = FakeDisk()
    segment = segment_on(disk)
    put(segment, stored(40, b"a", b"b"))
    disk.replace(LOG, disk.read(LOG)[:100])
    found = segment.slice(0, 2)
    with pytest.raises(StreamsError) as refused:
        found.read_into(memoryview(bytearray(130)), 0)
    assert refused.value.number is StreamStatus.CANNOT_READ_MESSAGE
    found.close()


@pytest.mark.parametrize(("place", "position"), [(3, 100), (3, 1 << 31), (3, 0), (0, 0)])
def test_a_position_that_cannot_be_is_an_error_before_any_memory_is_taken(place: int, position: int) -> None:
    disk = FakeDisk()
    segment = segment_on(disk, is_cached=False)
    put(segment, stored(40, *[b"x"] * 4))
    entries = decode_entries(bytearray(disk.read(INDEX)))
    entries["position"][place] = np.uint32(position)
    disk.replace(INDEX, entries.tobytes())
    found = segment.slice(place, 1)
    with pytest.raises(StreamsError) as refused:
        found.spans(10_000, at_least_one=True)
    assert refused.value.number is StreamStatus.CANNOT_READ_INDEX_POSITION
    found.close()
