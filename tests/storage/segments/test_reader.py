"""Reading segments: through the index, around a bad one, and past a bad frame."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import sampled_range
from tests.storage.segments.segment_bench import NOW_MS, ROOT, TOPIC, body, live_seqs, stem, write
from topics.errors import ColdUnavailable, FormatError, NotFetched
from topics.formats import segment_index
from topics.formats.segment_index import ENTRY, ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.fs import RealFs
from topics.storage.segments.cache import READERS_MAX, SegmentCache, TagSelector, load_tags
from topics.storage.segments.frame_walk import rebuild_index, walk_entries
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import SegmentAppender, SegmentLimits, flag_deleted
from topics.storage.tiers.cached_store import CachedStore
from topics.storage.tiers.folder_store import FolderStore
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs

TAGS = {2: "red", 4: "blue", 5: "red"}


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def state(disk: FakeDisk) -> SegmentState:
    """Seqs 1 to 6 with a hole at 3, not sealed."""
    (state,) = write(disk, [1, 2, 4, 5, 6], tags=TAGS)
    return state


def open_reader(disk: FakeDisk, state: SegmentState) -> SegmentReader:
    return SegmentReader(FileSource(disk, stem(state.first_seq)), state)


def entry(disk: FakeDisk, seq: int) -> tuple[int, int]:
    offset, length, _, _ = ENTRY.unpack_from(disk.read(f"{stem(1)}.idx"), (seq - 1) * ENTRY_BYTES)
    return offset, length


def set_entry(disk: FakeDisk, seq: int, offset: int, length: int) -> None:
    disk.poke(f"{stem(1)}.idx", (seq - 1) * ENTRY_BYTES, ENTRY.pack(offset, length, 1000, 0))


def test_every_record_is_read_by_its_seq_and_a_hole_is_nothing(disk: FakeDisk, state: SegmentState) -> None:
    reader = open_reader(disk, state)
    assert live_seqs(reader) == [1, 2, 4, 5, 6]
    assert live_seqs(reader, 3, 3) == []
    assert live_seqs(reader, 5, 6) == [5, 6]


def test_a_read_stops_where_the_bytes_do_but_not_before_the_first_record(disk: FakeDisk, state: SegmentState) -> None:
    reader = open_reader(disk, state)
    length = entry(disk, 1)[1]
    assert len(reader.read(1, 6, 1)) == 1
    assert len(reader.read(1, 6, length)) == 1
    assert len(reader.read(1, 6, length + entry(disk, 2)[1])) == 3, "a hole takes no room"
    assert len(reader.read(1, 6, 1 << 20)) == 6
    for bytes_max in (1, 3 * length, 1 << 20):
        slots = len(reader.read(1, 6, bytes_max))
        fetched = SegmentCache(disk, ROOT, None).fetch(TOPIC, state, 1, 6, bytes_max)
        assert fetched[0] == slots
        assert reader.at_hand(1, 6, bytes_max) == fetched


def test_a_range_of_holes_needs_no_bytes(disk: FakeDisk, state: SegmentState) -> None:
    assert open_reader(disk, state).at_hand(3, 3, 1) == (1, 0)


@pytest.mark.parametrize("kind", ["idx", "data"])
def test_a_segment_that_cannot_be_opened_keeps_no_file_open(disk: FakeDisk, state: SegmentState, kind: str) -> None:
    """Most of all when there are no descriptors left."""
    fs = FaultFs(disk)
    cache = SegmentCache(fs, ROOT, None)
    fault = fs.fail("open", error=errno.EMFILE, path=lambda path: path.endswith(f".{kind}"))
    with pytest.raises(OSError, match="open files"):
        cache.fetch(TOPIC, state, 1, 6, 1 << 20)
    assert fault.fired_count == 1
    assert not cache.is_open(TOPIC, state)
    assert cache.fetch(TOPIC, state, 1, 6, 1 << 20)[0] == 6


@pytest.mark.parametrize("size", [0, 19, 3 * ENTRY_BYTES])
def test_a_fetch_by_a_short_index_does_no_harm(disk: FakeDisk, state: SegmentState, size: int) -> None:
    disk.replace(f"{stem(1)}.idx", disk.read(f"{stem(1)}.idx")[:size])
    cache = SegmentCache(disk, ROOT, None)
    cache.fetch(TOPIC, state, 2, 6, 1 << 20)
    reader = cache.reader(TOPIC, state)
    assert reader.at_hand(2, 6, 1 << 20) is not None
    assert live_seqs(reader) == [1, 2, 4, 5, 6]


@pytest.mark.parametrize("seq", [1, 2, 6])
@pytest.mark.parametrize("claim", [(1, 5), (0, 0), (2**32 - 1, 2**32 - 1)])
def test_a_fetch_by_a_bad_index_does_no_harm(
    disk: FakeDisk, state: SegmentState, seq: int, claim: tuple[int, int]
) -> None:
    set_entry(disk, seq, *claim)
    cache = SegmentCache(disk, ROOT, None)
    cache.fetch(TOPIC, state, 1, 6, 1 << 20)
    reader = cache.reader(TOPIC, state)
    assert reader.at_hand(1, 6, 1 << 20) is not None
    assert live_seqs(reader) == [1, 2, 4, 5, 6]


def test_a_deleted_record_is_nothing_and_its_neighbours_stay(disk: FakeDisk, state: SegmentState) -> None:
    reader = open_reader(disk, state)
    flag_deleted(disk, stem(1), reader.positions([2, 3, 6]))
    assert live_seqs(reader) == [1, 4, 5]


def test_any_delete_byte_but_the_right_one_is_live(disk: FakeDisk, state: SegmentState) -> None:
    """Invariant 26: a torn delete byte never makes a record half deleted."""
    offset, length = entry(disk, 2)
    for value in (0, 1, 0xD4, 0xFF):
        disk.poke(f"{stem(1)}.data", offset + length - 1, bytes([value]))
        assert live_seqs(open_reader(disk, state)) == [1, 2, 4, 5, 6]


def test_an_index_entry_that_points_to_another_record_is_found_out(disk: FakeDisk, state: SegmentState) -> None:
    """The seq in the frame must be the one that was asked for."""
    set_entry(disk, 2, *entry(disk, 4))
    assert live_seqs(open_reader(disk, state)) == [1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 5), (3, 70), (2**32 - 1, 64), (0, 2**32 - 1), (17, 0), (10**6, 10**6)]
)
def test_an_index_entry_that_leads_nowhere_does_not_hide_the_record(
    disk: FakeDisk, state: SegmentState, offset: int, length: int
) -> None:
    """Also one that calls it a hole. The index is never evidence against the frames."""
    set_entry(disk, 4, offset, length)
    reader = open_reader(disk, state)
    assert live_seqs(reader) == [1, 2, 4, 5, 6]
    assert bytes(reader.columns().live) == b"\1\1\0\1\1\1"
    assert reader.live_sizes([4]) == [20]


def test_a_bad_index_entry_never_misleads_a_delete(disk: FakeDisk, state: SegmentState) -> None:
    """The delete byte would land in the middle of a neighbour."""
    offset, length = entry(disk, 5)
    set_entry(disk, 2, offset, length - 10)
    flag_deleted(disk, stem(1), open_reader(disk, state).positions([2]))
    assert live_seqs(open_reader(disk, state)) == [1, 4, 5, 6]


def test_an_index_of_zeros_is_no_index(disk: FakeDisk, state: SegmentState) -> None:
    """Zeros are not valid entries."""
    disk.replace(f"{stem(1)}.idx", bytes(state.entry_count * ENTRY_BYTES))
    assert live_seqs(open_reader(disk, state)) == [1, 2, 4, 5, 6]


def test_a_short_index_is_replaced_by_a_walk_over_the_frames(disk: FakeDisk, state: SegmentState) -> None:
    disk.replace(f"{stem(1)}.idx", disk.read(f"{stem(1)}.idx")[:30])
    assert live_seqs(open_reader(disk, state)) == [1, 2, 4, 5, 6]


def test_a_bad_frame_is_reported_for_its_seq_alone(disk: FakeDisk, state: SegmentState) -> None:
    """Named with its offset; neighbours stay readable, in whatever part of the frame the rot is."""
    offset, length = entry(disk, 4)
    good = disk.read(f"{stem(1)}.data")
    for place in sampled_range(length - 1, 5):
        disk.replace(f"{stem(1)}.data", good)
        disk.poke(f"{stem(1)}.data", offset + place, bytes([good[offset + place] ^ 0x21]))
        reader = open_reader(disk, state)
        for _ in range(2):
            slots = reader.read(1, 6)
            assert isinstance(slots[3], FormatError), place
        assert [slot is not None for slot in slots] == [True, True, False, True, True, True]
        assert live_seqs(reader, 1, 2) == [1, 2]
        assert live_seqs(reader, 5, 6) == [5, 6]


def test_a_data_file_that_ends_early_loses_only_what_is_gone(disk: FakeDisk, state: SegmentState) -> None:
    offset, length = entry(disk, 5)
    disk.replace(f"{stem(1)}.data", disk.read(f"{stem(1)}.data")[: offset + length - 2])
    slots = open_reader(disk, state).read(1, 6)
    assert [type(slot).__name__ for slot in slots[:4]] == ["bytes", "bytes", "NoneType", "bytes"]
    assert all(isinstance(slot, FormatError) for slot in slots[4:])


def test_columns_tell_sizes_times_and_liveness(disk: FakeDisk, state: SegmentState) -> None:
    reader = open_reader(disk, state)
    flag_deleted(disk, stem(1), reader.positions([5]))
    columns = reader.columns()
    assert list(columns.sizes) == [20, 20, 0, 20, 20, 20]
    assert list(columns.ts) == [1001, 1002, 1002, 1004, 1005, 1006]
    assert bytes(columns.live) == b"\1\1\0\1\0\1"
    assert reader.live_sizes([1, 3, 5]) == [20, None, None]
    block = reader.block(2, 5)
    assert (block.first_seq, block.end_seq, bytes(block.live)) == (2, 6, b"\1\0\1\0")
    assert (block.numbers(1, 4), block.numbers(2, 7), block.numbers(4, 4)) == ((1, 20), (2, 40), (0, 0))
    block.clear(1, 3)
    assert block.numbers(2, 6) == (1, 20)


def test_bytes_that_are_no_frame_are_not_dead_by_chance(disk: FakeDisk, state: SegmentState) -> None:
    """The last of them looks like a delete byte; a read must come to them all the same, and name them."""
    disk.replace(f"{stem(1)}.data", bytes(state.data_bytes - 1) + b"\xd5")
    assert bytes(open_reader(disk, state).columns().live) == b"\1\1\0\1\1\1"


def test_walking_the_frames_gives_the_index_that_was_written(disk: FakeDisk, state: SegmentState) -> None:
    data, index = disk.read(f"{stem(1)}.data"), disk.read(f"{stem(1)}.idx")
    walked = walk_entries(data, 1, state.entry_count)
    written = list(ENTRY.iter_unpack(index))
    assert [entry for entry in walked if entry[1]] == [entry for entry in written if entry[1]]
    assert [bool(entry[1]) for entry in walked] == [bool(entry[1]) for entry in written]


def test_a_rebuilt_index_is_as_good_as_the_first(disk: FakeDisk, state: SegmentState) -> None:
    """Through a temporary file."""
    disk.unlink(f"{stem(1)}.idx")
    rebuild_index(disk, stem(1), state)
    segment_index.check(disk.read(f"{stem(1)}.idx"), entry_count=state.entry_count, data_bytes=state.data_bytes)
    assert live_seqs(open_reader(disk, state)) == [1, 2, 4, 5, 6]
    assert f"{stem(1)}.idx.tmp" not in disk.files()


def test_a_rebuilt_index_does_not_turn_a_bad_frame_into_a_hole(disk: FakeDisk, state: SegmentState) -> None:
    """Fewer records without a report is the one thing that must not happen."""
    offset, _ = entry(disk, 4)
    last_offset, _ = entry(disk, 6)
    disk.poke(f"{stem(1)}.data", offset, b"\xff\xff\xff\x7f")
    disk.poke(f"{stem(1)}.data", last_offset, b"\xff\xff\xff\x7f")
    disk.unlink(f"{stem(1)}.idx")
    size = disk.size(f"{stem(1)}.data")
    rebuild_index(disk, stem(1), state)
    reader = open_reader(disk, state)
    slots = reader.read(1, 6)
    assert [type(slot).__name__ for slot in slots] == ["bytes", "bytes", "BadFrame", "BadFrame", "bytes", "BadFrame"]
    assert [bool(length) for _, length in reader.positions([4, 5, 6])] == [False, True, False]
    flag_deleted(disk, stem(1), reader.positions([4, 6]))
    assert disk.size(f"{stem(1)}.data") == size


@given(damage=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_whatever_is_in_the_files_a_record_is_right_or_reported(damage: list[tuple[int, bytes]]) -> None:
    """Never wrong data, in `.data` as in `.idx`."""
    for kind in ("data", "idx"):
        disk = FakeDisk()
        (state,) = write(disk, [1, 2, 4, 5, 6])
        good = open_reader(disk, state).read(1, 6)
        content = bytearray(disk.read(f"{stem(1)}.{kind}"))
        for offset, bytes_ in damage:
            content[offset : offset + len(bytes_)] = bytes_[: max(len(content) - offset, 0)]
        disk.replace(f"{stem(1)}.{kind}", bytes(content))
        reader = open_reader(disk, state)
        slots = reader.read(1, 6)
        reader.columns()
        for slot, right in zip(slots, good, strict=True):
            if kind == "idx":
                assert slot == right
            else:
                # A delete byte is under no checksum: it may turn a record into nothing, and nothing else may.
                assert slot == right or slot is None or isinstance(slot, FormatError)


# --- the cache ----------------------------------------------------------------------------------------------


def sealed(disk: FakeDisk) -> list[SegmentState]:
    return write(disk, [1, 2, 4, 5, 6, 7, 8], limits=SegmentLimits(3, 1 << 20, 0), tags=TAGS)


def test_a_reader_is_kept_until_its_segment_changes(disk: FakeDisk, state: SegmentState) -> None:
    cache = SegmentCache(disk, ROOT, None)
    reader = cache.reader(TOPIC, state)
    assert cache.reader(TOPIC, state) is reader
    (grown,) = write(disk, [7], active=state)
    assert grown is state
    other = SegmentState(1, 7, state.data_bytes, 1, 1, 6, 6)
    assert cache.reader(TOPIC, other) is not reader
    assert live_seqs(cache.reader(TOPIC, other)) == [1, 2, 4, 5, 6, 7]
    cache.close()


def test_the_number_of_open_readers_is_bounded(disk: FakeDisk) -> None:
    """Each keeps descriptors."""
    cache = SegmentCache(disk, ROOT, None)
    first, *others, last = write(disk, list(range(1, READERS_MAX + 2)), limits=SegmentLimits(1, 1 << 20, 0))
    reader = cache.reader(TOPIC, first)
    for state in others:
        cache.reader(TOPIC, state)
    assert live_seqs(cache.reader(TOPIC, last)) == [last.first_seq]
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EBADF):
        reader._source._files[0].size()
    assert cache.reader(TOPIC, first) is not reader
    cache.close()


def test_a_sealed_segment_is_read_through_a_map_and_sees_its_delete_bytes(tmp_path: Path) -> None:
    fs = RealFs()
    root = str(tmp_path)
    directory = layout.topic_directory(root, TOPIC)
    appender = SegmentAppender(fs, directory, None, SegmentLimits(3, 1 << 20, 0), NOW_MS)
    for seq in range(1, 4):
        appender.add_bodies([body(seq)])
    appender.finish()
    (state,) = appender.touched
    assert state.sealed
    cache = SegmentCache(fs, root, None)
    reader = cache.reader(TOPIC, state)
    assert live_seqs(reader) == [1, 2, 3]
    flag_deleted(fs, cache.stem(TOPIC, 1), reader.positions([2]))
    assert live_seqs(reader) == [1, 3]
    cache.forget(TOPIC, 1)
    cache.forget_topic(TOPIC)
    assert live_seqs(cache.reader(TOPIC, state)) == [1, 3]
    cache.close()


def test_a_missing_index_is_built_when_the_segment_is_opened(disk: FakeDisk, state: SegmentState) -> None:
    disk.unlink(f"{stem(1)}.idx")
    cache = SegmentCache(disk, ROOT, None)
    assert live_seqs(cache.reader(TOPIC, state)) == [1, 2, 4, 5, 6]
    assert disk.exists(f"{stem(1)}.idx")


@pytest.mark.parametrize("damage", ["missing", "rotten"])
def test_tags_are_built_again_when_the_sidecar_is_gone_or_bad(disk: FakeDisk, damage: str) -> None:
    states = write(disk, [1, 2, 4, 5, 6], limits=SegmentLimits(6, 1 << 20, 0), tags=TAGS)
    cache = SegmentCache(disk, ROOT, None)
    path = f"{stem(1)}.tags"
    before = disk.read(path)
    if damage == "missing":
        disk.unlink(path)
    else:
        disk.poke(path, 20, b"\xff\xff")
        assert load_tags(disk, stem(1)) is None
    assert cache.tagged(TOPIC, states[0], TagSelector(b"red", False, 1, 7)) == [2, 5]
    assert cache.tagged(TOPIC, states[0], TagSelector(b"b", True, 1, 7)) == [4]
    assert disk.read(path) == before


def test_a_cold_segment_is_read_from_its_store(disk: FakeDisk) -> None:
    """And without one there is a clear error."""
    states = write(disk, [1, 2, 4, 5, 6], limits=SegmentLimits(6, 1 << 20, 0), tags=TAGS)
    (state,) = states
    cold = FolderStore(disk, "/cold")
    for kind in ("data", "idx", "tags"):
        cold.put(layout.segment_object(TOPIC, 1, kind), disk.read(f"{stem(1)}.{kind}"))
        disk.unlink(f"{stem(1)}.{kind}")
    state.tier = "cold"
    cache = SegmentCache(disk, ROOT, CachedStore(cold))
    red = TagSelector(b"red", False, 1, 7)
    assert cache.tagged(TOPIC, state, red) == [2, 5]
    assert list(cache.measure(TOPIC, state, red).seqs) == [2, 5]
    cold.delete(layout.segment_object(TOPIC, 1, "tags"))
    cache = SegmentCache(disk, ROOT, CachedStore(cold))
    assert cache.tagged(TOPIC, state, red) == [2, 5]
    assert cache.measure_resident(TOPIC, state, [1]) is None
    with pytest.raises(NotFetched):
        cache.reader(TOPIC, state).read(1, 6)
    cache.fetch(TOPIC, state, 1, 6, 1 << 20)
    assert live_seqs(cache.reader(TOPIC, state)) == [1, 2, 4, 5, 6]
    with pytest.raises(ColdUnavailable):
        SegmentCache(disk, ROOT, None).reader(TOPIC, state)
