"""Where a shard ends and what its end means: torn tail, damage, or nothing wrong at all."""

import errno
from collections.abc import Callable
from struct import pack

import pytest

from tests.conftest import FULL, SEED, sampled_range
from tests.storage.wal.wal_bench import DIRECTORY, FILE_BYTES, FIRST_FILE, Answers, frame, new_shard, read_shard
from topics.errors import Damaged, FutureVersion
from topics.formats import wal_frame
from topics.formats.snapshot import WalPosition
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE
from topics.limits import FRAME_BYTES_MAX
from topics.storage.wal.reader import WINDOW_BYTES, ShardEnd, ShardReader, list_wal_files
from topics.storage.wal.settling import settle
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

MARK_BYTES = wal_frame.SYNC_FRAME_BYTES


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(DIRECTORY)
    return disk


def name_of(first_frame: int) -> str:
    return f"{DIRECTORY}/wal-{first_frame:016d}.log"


def put(disk: FakeDisk, *parts: bytes, first_frame: int = 1, file_bytes: int = FILE_BYTES) -> str:
    """A WAL file of these bytes, followed by zeros."""
    path = name_of(first_frame)
    disk.replace(path, b"".join(parts).ljust(file_bytes, b"\0"))
    return path


def mark(synced_frame: int) -> bytes:
    return wal_frame.encode_sync_mark(synced_frame, 1)


def end_of(disk: FakeDisk, start: WalPosition | None = None) -> ShardEnd:
    end = read_shard(disk, start)[1].end
    assert end is not None
    return end


def recover(disk: FakeDisk, window_bytes: int = WINDOW_BYTES) -> list[int]:
    """Reads and settles, as a start does; the seqs that came back."""
    seqs, reader = read_shard(disk, window_bytes=window_bytes)
    assert reader.end is not None
    settle(disk, reader.end)
    return seqs


def torn_files(disk: FakeDisk) -> dict[str, bytes]:
    return {path: content for path, content in disk.files().items() if path.endswith(".torn")}


def damage_of(disk: FakeDisk, start: WalPosition | None = None, window_bytes: int = WINDOW_BYTES) -> Damaged:
    before = disk.files()
    with pytest.raises(Damaged) as caught:
        read_shard(disk, start, window_bytes=window_bytes)
    assert disk.files() == before, "damage is never cut by a start"
    return caught.value


# --- torn tails ---------------------------------------------------------------------------------------------


def test_a_frame_torn_at_any_byte_ends_the_log_before_it(disk: FakeDisk) -> None:
    """Invariant 43: in the length, the header, the payload and the checksum."""
    good, last = frame(1) + frame(2), frame(3)
    for cut in range(1, len(last)):
        put(disk, good, last[:cut])
        assert recover(disk) == [1, 2], cut
        assert disk.read(FIRST_FILE) == good.ljust(FILE_BYTES, b"\0"), cut
        assert torn_files(disk) == {f"{FIRST_FILE}.{len(good)}.torn": last[:cut].rstrip(b"\0")} or not any(last[:cut])
        for path in torn_files(disk):
            disk.unlink(path)


def test_a_file_that_ends_inside_a_frame_is_torn_at_any_byte(disk: FakeDisk) -> None:
    """Invariant 43: as above, in a file without preallocated zeros."""
    good, last = frame(1) + frame(2), frame(3)
    for cut in range(len(last)):
        disk.replace(FIRST_FILE, good + last[:cut])
        assert recover(disk) == [1, 2], cut
        for path in torn_files(disk):
            disk.unlink(path)


def test_what_is_appended_behind_a_cut_tail_is_there_after_the_next_start(disk: FakeDisk) -> None:
    """The second recovery is where the bugs hide."""
    good = frame(1)
    put(disk, good, frame(2)[:-3])
    assert recover(disk) == [1]
    file = disk.open(FIRST_FILE, "write")
    file.pwrite(frame(2), len(good))
    file.fsync()
    disk.crash(Damage.DROP)
    assert recover(disk) == [1, 2]


def test_any_flipped_byte_of_the_last_frame_is_a_torn_tail(disk: FakeDisk) -> None:
    """Nothing says that it was ever on disk."""
    good, last = frame(1) + frame(2), frame(3)
    for offset in sampled_range(len(last), 7):
        put(disk, good, last)
        disk.poke(FIRST_FILE, len(good) + offset, bytes([last[offset] ^ 0x10]))
        assert recover(disk) == [1, 2], offset


def test_zeros_behind_the_frames_are_the_clean_end(disk: FakeDisk) -> None:
    """Preallocated space is neither a frame nor torn."""
    good = frame(1) + frame(2)
    put(disk, good)
    seqs, reader = read_shard(disk)
    assert seqs == [1, 2]
    assert reader.end is not None
    assert reader.end.torn_end == 0
    assert reader.end.position == WalPosition(3, 1, len(good))


def test_a_file_of_zeros_alone_has_no_frames(disk: FakeDisk) -> None:
    put(disk)
    assert read_shard(disk)[0] == []
    assert end_of(disk).position == WalPosition(1, 1, 0)


def test_zeros_and_then_frames_are_a_torn_tail_too(disk: FakeDisk) -> None:
    """Unsynced sectors reach a disk in any order."""
    good, later = frame(1), frame(3)
    put(disk, good, bytes(512), later)
    assert recover(disk) == [1]
    assert disk.read(FIRST_FILE) == good.ljust(FILE_BYTES, b"\0")
    (torn,) = torn_files(disk).values()
    assert torn == bytes(512) + later


def test_a_tail_is_torn_whatever_its_size(disk: FakeDisk) -> None:
    """Garbage over many windows, kept whole beside the file."""
    good = frame(1)
    garbage = b"\xa5" * 300_000
    put(disk, good, garbage, file_bytes=400_000)
    assert recover(disk) == [1]
    assert list(torn_files(disk).values()) == [garbage]


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x80000000, FRAME_BYTES_MAX + 1, 41, 1])
def test_a_length_without_sense_allocates_nothing_and_is_torn(disk: FakeDisk, length: int) -> None:
    """Over the limit, negative as a signed number, below the smallest frame."""
    good = frame(1)
    put(disk, good, pack("<I", length) + b"\x01" * 60)
    assert recover(disk) == [1]


def test_a_claimed_length_within_the_limit_is_checked_against_the_bytes_that_are_there(disk: FakeDisk) -> None:
    """A header that adds up, over a file that ends long before."""
    size = 20 * 1024 * 1024
    header = pack("<IBBQQQHHI", size + 42, 1, FLAG_FIRST, 1, 2, 1, 0, 0, size)
    put(disk, frame(1), header)
    assert recover(disk) == [1]


def test_the_torn_bytes_are_kept_once_however_often_a_start_is_tried(disk: FakeDisk) -> None:
    put(disk, frame(1), b"torn!")
    _, reader = read_shard(disk)
    assert reader.end is not None
    settle(disk, reader.end)
    disk.poke(FIRST_FILE, len(frame(1)), b"torn!")
    settle(disk, reader.end)
    assert list(torn_files(disk).values()) == [b"torn!"]


def test_other_torn_bytes_at_the_same_place_get_a_file_of_their_own(disk: FakeDisk) -> None:
    offset = len(frame(1))
    for tail in (b"first", b"second"):
        put(disk, frame(1), tail)
        assert recover(disk) == [1]
    assert torn_files(disk) == {
        f"{FIRST_FILE}.{offset}.torn": b"first",
        f"{FIRST_FILE}.{offset}-2.torn": b"second",
    }


def test_nothing_is_cut_while_the_torn_bytes_cannot_be_kept(disk: FakeDisk) -> None:
    """Full disk."""
    put(disk, frame(1), b"torn!")
    before = disk.files()
    fs = FaultFs(disk)
    fs.fail("pwrite", error=errno.ENOSPC, path=lambda path: ".torn" in path)
    end = end_of(disk)
    with pytest.raises(OSError, match="No space"):
        settle(fs, end)
    assert disk.files() == before
    fs.heal()
    settle(fs, end)
    assert disk.read(FIRST_FILE) == frame(1).ljust(FILE_BYTES, b"\0")


def test_settling_twice_changes_nothing(disk: FakeDisk) -> None:
    put(disk, mark(0), frame(1), frame(2), b"garbage")
    assert recover(disk) == [1, 2]
    once = disk.files()
    assert recover(disk) == [1, 2]
    assert disk.files() == once
    assert disk.durable_files() == once


def test_the_unsynced_part_is_written_again_so_that_no_failed_sync_can_take_it_later(disk: FakeDisk) -> None:
    """The page cache holds what the disk never got."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    answers = Answers()
    shard.submit(frame(1), 1, durable=True, done=answers("1"))
    shard.flush()
    fs.fail("fdatasync")
    shard.submit(frame(2), 1, durable=True, done=answers("2"))
    shard.flush()
    assert answers.refused == {"2": "wal_failed"}
    disk.kill()
    assert recover(disk) == [1, 2], "it may turn up after a restart"
    disk.crash(Damage.DROP)
    assert read_shard(disk)[0] == [1, 2], "but then it stays"


def test_settling_keeps_the_order_of_calls(disk: FakeDisk) -> None:
    put(disk, mark(0), frame(1), b"garbage")
    monitor = MonitorFs(disk)
    settle(monitor, end_of(disk))
    assert monitor.violations == []
    assert monitor.check_settled() == []


# --- sync marks: torn tail or damage ------------------------------------------------------------------------


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_bad_frame_that_a_later_mark_covers_is_damage_with_file_and_offset(disk: FakeDisk) -> None:
    """It was on disk. Nothing is cut, the start is refused."""
    put(disk, frame(1), flipped(frame(2)), frame(3), mark(3), frame(4))
    error = damage_of(disk)
    assert (error.path, error.offset) == (FIRST_FILE, len(frame(1)))
    assert "frame 2" in error.expected
    assert "checksum" in error.found


def test_a_bad_frame_behind_what_the_last_mark_covers_is_torn_though_valid_frames_follow(disk: FakeDisk) -> None:
    """The mark says how far the shard was synced, and no further."""
    put(disk, frame(1), frame(2), mark(2), frame(3), flipped(frame(4)), frame(5))
    assert recover(disk) == [1, 2, 3]


def test_a_mark_behind_the_bad_frame_that_covers_less_proves_nothing(disk: FakeDisk) -> None:
    """A mark written after a sync of frames 1 and 2 says nothing of frame 3."""
    put(disk, frame(1), frame(2), flipped(frame(3)), mark(2), frame(4))
    assert recover(disk) == [1, 2]


def test_a_mark_that_covers_exactly_the_bad_frame_is_enough(disk: FakeDisk) -> None:
    put(disk, frame(1), flipped(frame(2)), mark(2))
    assert damage_of(disk).offset == len(frame(1))


def test_zeros_in_place_of_a_covered_frame_are_damage_too(disk: FakeDisk) -> None:
    """A lost sector in the synced part."""
    put(disk, frame(1), bytes(len(frame(2))), frame(3), mark(3))
    error = damage_of(disk)
    assert error.offset == len(frame(1))
    assert error.found == "zeros"


def test_a_bad_mark_is_itself_only_a_bad_frame(disk: FakeDisk) -> None:
    put(disk, frame(1), frame(2), flipped(mark(2)), frame(3))
    assert recover(disk) == [1, 2]


def test_the_mark_is_found_where_no_frame_begins(disk: FakeDisk) -> None:
    """After a bad length it is unknown where frames begin."""
    put(disk, frame(1), b"\xff" * 77, mark(5))
    assert damage_of(disk).offset == len(frame(1))


def test_the_covered_frame_number_is_what_is_rewritten_from(disk: FakeDisk) -> None:
    first = mark(0) + frame(1)
    put(disk, first, mark(2), frame(2), frame(3))
    end = end_of(disk)
    assert end.synced_frame == 2
    assert end.rewrite_offset == len(first)
    assert end.position == WalPosition(6, 1, len(first) + MARK_BYTES + len(frame(2)) * 2)


# --- several files ------------------------------------------------------------------------------------------


def two_files(disk: FakeDisk, first: bytes, second: bytes, second_frame: int) -> None:
    put(disk, first)
    put(disk, second, first_frame=second_frame)


def test_frames_go_on_in_the_next_file(disk: FakeDisk) -> None:
    two_files(disk, frame(1) + frame(2), frame(3), 3)
    seqs, reader = read_shard(disk)
    assert seqs == [1, 2, 3]
    assert reader.end is not None
    assert reader.end.path == name_of(3)
    assert reader.end.position == WalPosition(4, 3, len(frame(3)))


def test_a_bad_frame_in_an_earlier_file_is_damage(disk: FakeDisk) -> None:
    """A new file takes frames only after the old one is synced."""
    two_files(disk, frame(1) + flipped(frame(2)), frame(3), 3)
    error = damage_of(disk)
    assert (error.path, error.offset) == (FIRST_FILE, len(frame(1)))


def test_a_torn_tail_in_an_earlier_file_is_damage(disk: FakeDisk) -> None:
    two_files(disk, frame(1) + frame(2)[:-5], frame(3), 3)
    assert damage_of(disk).path == FIRST_FILE


def test_a_file_missing_in_between_is_damage(disk: FakeDisk) -> None:
    """Names must continue the frame count."""
    two_files(disk, frame(1) + frame(2), frame(5), 5)
    error = damage_of(disk)
    assert error.path == name_of(5)
    assert "frame 3" in error.expected


def test_a_file_that_repeats_frame_numbers_is_damage(disk: FakeDisk) -> None:
    """Stale or misdirected content does not continue the count."""
    two_files(disk, frame(1) + frame(2) + frame(3), frame(3), 3)
    assert damage_of(disk).path == name_of(3)


def test_a_missing_first_file_is_damage(disk: FakeDisk) -> None:
    put(disk, frame(3), first_frame=3)
    assert "frame 1" in damage_of(disk).expected


def test_a_prepared_file_that_never_got_a_frame_is_the_last_one_of_a_clean_log(disk: FakeDisk) -> None:
    """A crash right after a rotation."""
    two_files(disk, frame(1) + frame(2), b"", 3)
    assert read_shard(disk)[0] == [1, 2]
    assert end_of(disk).position == WalPosition(3, 3, 0)


def test_garbage_behind_the_frames_of_an_earlier_file_hurts_nobody_when_the_count_goes_on(disk: FakeDisk) -> None:
    """What was cut back after a refused write may lie there; the next file says how many frames there were."""
    two_files(disk, frame(1) + frame(2) + b"\x99" * 10, frame(3), 3)
    assert read_shard(disk)[0] == [1, 2, 3]


def test_files_are_listed_by_number_and_nothing_else_is(disk: FakeDisk) -> None:
    for first_frame in (12, 3):
        put(disk, first_frame=first_frame)
    for name in ("CURRENT", "wal-next.tmp", "wal-0000000000000001.log.10.torn", "wal-1.log", "notes.txt"):
        disk.replace(f"{DIRECTORY}/{name}", b"?")
    assert [file.first_frame for file in list_wal_files(disk, DIRECTORY)] == [3, 12]
    assert list_wal_files(disk, "/data/nowhere") == []


# --- beginning in the middle --------------------------------------------------------------------------------


def test_a_start_reads_from_the_noted_position_on(disk: FakeDisk) -> None:
    put(disk, frame(1), frame(2), frame(3))
    seqs, reader = read_shard(disk, WalPosition(2, 1, len(frame(1))))
    assert seqs == [2, 3]
    assert reader.end is not None
    assert reader.end.position.frame == 4


def test_files_before_the_noted_one_are_not_read(disk: FakeDisk) -> None:
    """Damage before the noted position is no damage: everything there is in segments already."""
    two_files(disk, b"\xde\xad" * 20, frame(3) + frame(4), 3)
    assert read_shard(disk, WalPosition(4, 3, len(frame(3))))[0] == [4]


def test_a_position_beyond_the_end_goes_on_in_a_new_file(disk: FakeDisk) -> None:
    """Nothing is lost, all of it is in segments; and it is said."""
    put(disk, frame(1))
    seqs, reader = read_shard(disk, WalPosition(9, 1, 700))
    assert seqs == []
    assert reader.end is not None
    assert reader.end.path is None
    assert reader.end.position == WalPosition(9, 9, 0)
    assert len(reader.end.warnings) == 1


def test_a_position_beyond_the_end_of_a_short_file_is_not_taken_for_its_end(disk: FakeDisk) -> None:
    """A file that was cut short by another program."""
    disk.replace(FIRST_FILE, frame(1))
    seqs, reader = read_shard(disk, WalPosition(9, 1, 700))
    assert seqs == []
    assert reader.end is not None
    assert reader.end.path is None


def test_a_shard_without_any_file_goes_on_at_the_noted_number(disk: FakeDisk) -> None:
    assert end_of(disk, WalPosition(9, 1, 700)).position == WalPosition(9, 9, 0)
    assert end_of(disk).position == WalPosition(1, 1, 0)


def test_a_missing_noted_file_is_no_harm_when_the_next_one_starts_exactly_at_the_position(disk: FakeDisk) -> None:
    """The noted position may be the end of a file that is gone: every later frame is in the next file."""
    put(disk, frame(5), first_frame=5)
    assert read_shard(disk, WalPosition(5, 1, 700))[0] == [5]


def test_a_missing_noted_file_is_damage_when_the_next_one_starts_later(disk: FakeDisk) -> None:
    put(disk, frame(6), first_frame=6)
    error = damage_of(disk, WalPosition(5, 1, 700))
    assert "frame 5" in error.expected


# --- frames and windows -------------------------------------------------------------------------------------


def test_frames_larger_than_the_window_and_across_its_edge_are_read(disk: FakeDisk) -> None:
    frames = [frame(seq, size=size) for seq, size in enumerate((20, 400, 30, 1000, 190, 20, 60), 1)]
    put(disk, *frames)
    assert read_shard(disk, window_bytes=256)[0] == [1, 2, 3, 4, 5, 6, 7]
    put(disk, *frames, frame(8, size=900)[:-1])
    assert recover(disk, 256) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("size", [*range(20, 90), 300, 301])
def test_no_alignment_of_frames_and_window_changes_what_is_read(disk: FakeDisk, size: int) -> None:
    put(disk, *(frame(seq, size=size) for seq in range(1, 11)))
    seqs, reader = read_shard(disk, window_bytes=128)
    assert seqs == list(range(1, 11))
    assert reader.end is not None
    assert reader.end.position.offset == 10 * len(frame(1, size=size))
    assert reader.end.torn_end == 0


def test_marks_are_found_across_the_edge_of_a_window(disk: FakeDisk) -> None:
    for distance in range(1, 130):
        put(disk, frame(1), b"\xff" * distance, mark(9))
        assert damage_of(disk, window_bytes=64).offset == len(frame(1)), distance


def test_a_tail_longer_than_the_window_is_kept_and_cut_whole(disk: FakeDisk) -> None:
    tail = bytes(range(1, 256)) * 5
    put(disk, frame(1), frame(2), tail)
    assert recover(disk, 128) == [1, 2]
    assert list(torn_files(disk).values()) == [tail]


@pytest.mark.parametrize(
    "forge",
    [
        lambda body: bytes([max(wal_frame.FrameType) + 1]) + body[1:],
        lambda body: body[:1] + bytes([body[1] | 64]) + body[2:],
    ],
    ids=["unknown kind", "unknown flag"],
)
def test_a_frame_from_the_future_is_refused_with_its_file(disk: FakeDisk, forge: Callable[[bytes], bytes]) -> None:
    """Valid by its checksum, so it is neither torn nor damage."""
    put(disk, frame(1), wal_frame.seal_bodies([forge(frame(2)[4:-8])]))
    before = disk.files()
    with pytest.raises(FutureVersion, match="newer version") as caught:
        read_shard(disk)
    assert FIRST_FILE in caught.value.message
    assert disk.files() == before


def test_the_frames_of_an_unfinished_write_are_handed_out_with_their_flags(disk: FakeDisk) -> None:
    """The reader decides about bytes only; which writes are whole is for the replay."""
    open_write = [frame(2, flags=FLAG_FIRST | FLAG_MORE), frame(3, flags=FLAG_MORE)]
    put(disk, frame(1), *open_write)
    reader = ShardReader(disk, DIRECTORY, None)
    assert [found.flags for *_, found in reader] == [FLAG_FIRST, FLAG_FIRST | FLAG_MORE, FLAG_MORE]


def test_a_written_shard_survives_any_crash_as_a_prefix_that_has_all_that_was_acked(disk: FakeDisk) -> None:
    """Every damage mode, several seeds."""
    for damage in Damage:
        for seed in range(SEED, SEED + (20 if FULL else 4)):
            machine = FakeDisk()
            shard = new_shard(machine)
            answers = Answers()
            for seq in range(1, 60):
                shard.submit(frame(seq, size=90), 1, durable=seq % 7 == 0, done=answers(str(seq)))
                if seq % 3 == 0:
                    shard.flush()
            machine.crash(damage, seed)
            seqs = recover(machine)
            assert seqs == list(range(1, len(seqs) + 1))
            assert len(seqs) >= 56
            once = machine.files()
            assert recover(machine) == seqs
            assert machine.files() == once
