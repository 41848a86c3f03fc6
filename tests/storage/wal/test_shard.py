"""Group commit, failures, rotation, sync marks and holding still, one shard at a time."""

import errno
from collections.abc import Callable
from itertools import groupby

import pytest

from tests.storage.held_background import HeldBackground
from tests.storage.wal.wal_bench import (
    DIRECTORY,
    FILE_BYTES,
    FIRST_FILE,
    Answers,
    frame,
    kinds_in,
    new_shard,
    read_shard,
    seqs_in,
)
from topics.errors import Throttled, TopicsError, WalFailed
from topics.formats import wal_frame
from topics.formats.snapshot import WalPosition
from topics.formats.wal_frame import FrameType
from topics.limits import BACKGROUND_SYNC_MS, FRAME_BYTES_MAX, SYNC_MARK_DELAY_MS, WAL_QUEUE_SUBMISSIONS_MAX
from topics.storage.background import InlineBackground
from topics.storage.wal.missing_files import missing_file
from topics.storage.wal.reader import list_wal_files
from topics.storage.wal.shard import FIRST_ROOM_BYTES, ROOM_FACTOR, WalShard, create_shard_files
from topics.storage.wal.stats import FSYNC_BUCKETS_US, WalStats
from topics.storage.wal.wal import Wal, shard_index
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, Operation
from topics.testing.monitor_fs import MonitorFs

NEXT = "wal-next.tmp"


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def held() -> HeldBackground:
    return HeldBackground()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def answers() -> Answers:
    return Answers()


def watch(disk: FakeDisk) -> list[tuple[str, str]]:
    """Operations from here on, with the last part of the path.

    A WAL file is known by the name it was opened by, which is that of the next file, whatever it is called now.
    """
    seen: list[tuple[str, str]] = []
    disk.on_operation = lambda operation, path: seen.append((operation, path.rpartition("/")[2]))
    return seen


def submit(shard: WalShard, answers: Answers, seq: int, *, durable: bool, size: int = 20) -> None:
    shard.submit(frame(seq, size=size), 1, durable=durable, done=answers(str(seq)))


def fill(shard: WalShard, answers: Answers, first_seq: int, room_left: int) -> int:
    """Writes single frames until at most `room_left` bytes of the file are free; the next seq."""
    seq = first_seq
    while FILE_BYTES - shard.position.offset > room_left:
        submit(shard, answers, seq, durable=False, size=100)
        shard.flush()
        seq += 1
    return seq


def with_all_room(shard: WalShard, held: HeldBackground, answers: Answers) -> int:
    """Writes until the room of a whole file is reserved; the next seq."""
    seq = fill(shard, answers, 1, FILE_BYTES - FILE_BYTES // ROOM_FACTOR)
    held.run_all()
    return seq


# --- group commit -------------------------------------------------------------------------------------------


def test_everything_queued_is_written_with_one_write(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    for seq in (2, 3, 4):
        submit(shard, answers, seq, durable=False)
    seen = watch(disk)
    shard.flush()
    assert seen == [("pwrite", NEXT)]
    assert seqs_in(disk.read(FIRST_FILE)) == [1, 2, 3, 4]
    assert shard.stats.batches == 2
    assert shard.stats.frames == 6
    assert shard.stats.queue_depth_peak == 3


def test_a_flush_without_anything_queued_touches_nothing(disk: FakeDisk) -> None:
    shard = new_shard(disk)
    seen = watch(disk)
    shard.flush()
    shard.sync()
    assert seen == []


def test_nothing_is_answered_before_the_flush(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=False)
    assert answers.given == []
    assert shard.queue_depth == 1
    shard.flush()
    assert answers.committed == ["1"]
    assert shard.queue_depth == 0


def test_entries_without_sync_are_done_after_the_write_and_durable_ones_after_a_later_sync(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=True)
    submit(shard, answers, 2, durable=False)
    shard.flush()
    assert answers.committed == ["2"]
    held.begin()
    assert answers.committed == ["2"]
    held.end()
    assert answers.committed == ["2", "1"]
    assert seqs_in(disk.durable_files()[FIRST_FILE]) == [1, 2]


def test_a_lone_durable_write_syncs_at_once(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=False)
    shard.flush()
    submit(shard, answers, 2, durable=True)
    seen = watch(disk)
    shard.flush()
    assert [operation for operation, _ in seen] == ["pwrite", "fdatasync"]
    assert answers.committed == ["1", "2"]


def test_what_arrives_while_a_sync_runs_shares_the_next_one(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    for seq in (2, 3):
        submit(shard, answers, seq, durable=True)
        shard.flush()
    assert len(held) == 1, "one sync at a time"
    held.step()
    assert answers.committed == ["1"], "a sync covers only what was written before it was called"
    held.step()
    assert answers.committed == ["1", "2", "3"]
    assert shard.stats.fsyncs == 2
    assert len(held) == 0


class Turns(HeldBackground):
    """Deferred calls wait for `turn`, as with an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[Callable[[], None]] = []

    def defer(self, call: Callable[[], None]) -> None:
        self._deferred.append(call)

    def turn(self) -> None:
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            call()


def answered_writers(disk: FakeDisk, answers: Answers, count: int) -> tuple[WalShard, Turns]:
    """A shard whose first sync has just answered so many writers."""
    turns = Turns()
    shard = new_shard(disk, turns)
    for seq in range(1, count + 1):
        submit(shard, answers, seq, durable=True)
    shard.flush()
    turns.run_all()
    assert len(answers.committed) == count
    return shard, turns


def test_the_next_write_of_a_lone_writer_waits_for_no_other(disk: FakeDisk, answers: Answers) -> None:
    shard, turns = answered_writers(disk, answers, 1)
    submit(shard, answers, 2, durable=True)
    shard.flush()
    turns.run_all()
    assert answers.committed == ["1", "2"]


def test_the_next_sync_waits_until_all_answered_writers_have_written_again(disk: FakeDisk, answers: Answers) -> None:
    shard, turns = answered_writers(disk, answers, 3)
    for seq in (4, 5):
        submit(shard, answers, seq, durable=True)
        shard.flush()
    turns.run_all()
    assert len(answers.committed) == 3
    submit(shard, answers, 6, durable=True)
    shard.flush()
    turns.run_all()
    assert answers.committed == ["1", "2", "3", "4", "5", "6"]
    assert shard.stats.fsyncs == 2


def test_the_next_sync_waits_while_writers_come_back_and_not_for_those_that_do_not(
    disk: FakeDisk, answers: Answers
) -> None:
    shard, turns = answered_writers(disk, answers, 4)
    for seq in (5, 6):
        submit(shard, answers, seq, durable=True)
        shard.flush()
        turns.turn()
        turns.run_all()
        assert len(answers.committed) == 4
    turns.turn()
    turns.run_all()
    assert answers.committed[4:] == ["5", "6"]
    assert shard.stats.fsyncs == 2


def test_a_write_during_a_running_sync_is_not_covered_by_it(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    """The position is noted when the sync is called; a frame that came later waits for the next one."""
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    held.begin()
    submit(shard, answers, 2, durable=True)
    shard.flush()
    held.end()
    assert answers.committed == ["1"]
    disk.crash(Damage.DROP)
    assert seqs_in(disk.read(FIRST_FILE)) == [1]


def test_answers_come_in_the_order_of_the_frames(disk: FakeDisk, held: HeldBackground, answers: Answers) -> None:
    shard = new_shard(disk, held)
    for seq in range(1, 6):
        submit(shard, answers, seq, durable=True)
        if seq % 2:
            shard.flush()
    shard.flush()
    held.run_all()
    assert answers.committed == ["1", "2", "3", "4", "5"]


def test_a_short_write_is_continued(disk: FakeDisk, answers: Answers) -> None:
    """Never a half frame that counts as whole."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    fs.short_write(path=lambda path: path.endswith(".log"))
    submit(shard, answers, 1, durable=True)
    shard.flush()
    assert answers.committed == ["1"]
    assert seqs_in(disk.read(FIRST_FILE)) == [1]


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failed_write_turns_the_shard_read_only_and_fails_everything_that_waits(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    """The whole group fails, and the ones that waited for a sync; nothing is tried again."""
    fs = FaultFs(disk)
    shard = new_shard(fs, held)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    fs.fail("pwrite")
    submit(shard, answers, 2, durable=False)
    submit(shard, answers, 3, durable=True)
    shard.flush()
    assert answers.refused == {"1": "wal_failed", "2": "wal_failed", "3": "wal_failed"}
    assert shard.failed is not None
    fs.heal()
    seen = watch(disk)
    with pytest.raises(WalFailed):
        submit(shard, answers, 4, durable=False)
    held.run_all()
    shard.flush()
    shard.tick()
    shard.sync()
    assert [operation for operation, _ in seen if operation != "fdatasync"] == []
    assert answers.committed == []


def test_bytes_of_a_failed_write_are_cut_so_that_no_later_start_finds_them(disk: FakeDisk, answers: Answers) -> None:
    """A torn group is gone after the restart, the one before it is not."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    fs.torn_write(error=errno.EIO)
    submit(shard, answers, 2, durable=True, size=200)
    shard.flush()
    assert answers.refused == {"2": "wal_failed"}
    disk.kill()
    seqs, reader = read_shard(disk)
    assert seqs == [1]
    assert reader.end is not None
    assert reader.end.torn_end == 0


def test_a_failed_sync_turns_the_shard_read_only_and_is_never_repeated(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    """A second sync that succeeds proves nothing."""
    fs = FaultFs(disk)
    shard = new_shard(fs, held)
    fault = fs.fail("fdatasync")
    submit(shard, answers, 1, durable=True)
    shard.flush()
    submit(shard, answers, 2, durable=True)
    shard.flush()
    submit(shard, answers, 3, durable=False)
    held.step()
    assert answers.refused == {"1": "wal_failed", "2": "wal_failed", "3": "wal_failed"}
    assert isinstance(shard.failed, WalFailed)
    shard.flush()
    shard.sync()
    shard.tick()
    held.run_all()
    assert fault.call_count == 1
    assert answers.committed == []


def test_no_room_refuses_the_group_cuts_it_back_and_later_writes_work(disk: FakeDisk, answers: Answers) -> None:
    """The refused record never appears later; later records survive."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    fs.torn_write(error=errno.ENOSPC)
    submit(shard, answers, 2, durable=True, size=300)
    submit(shard, answers, 3, durable=False)
    shard.flush()
    assert answers.refused == {"2": "storage_full", "3": "storage_full"}
    assert shard.failed is None
    submit(shard, answers, 4, durable=True)
    shard.flush()
    assert answers.committed == ["1", "4"]
    disk.crash(Damage.DROP)
    assert read_shard(disk)[0] == [1, 4]


@pytest.mark.parametrize("error", [errno.EDQUOT, errno.EFBIG])
def test_a_quota_or_a_file_size_limit_is_no_room_either(disk: FakeDisk, answers: Answers, error: int) -> None:
    """As ENOSPC."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    fs.fail("pwrite", error=error, lasts=True)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    assert answers.refused == {"1": "storage_full"}
    assert shard.failed is None


def test_a_refused_group_that_cannot_be_cut_back_fails_the_shard(disk: FakeDisk, answers: Answers) -> None:
    """Its bytes might be read again after the next group."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    fs.torn_write(error=errno.ENOSPC)
    fs.fail("truncate")
    submit(shard, answers, 1, durable=True, size=300)
    shard.flush()
    assert answers.refused == {"1": "wal_failed"}
    assert shard.failed is not None


@pytest.mark.parametrize(("operation", "error"), [("preallocate", errno.ENOSPC), ("create", errno.EMFILE)])
def test_no_room_for_a_new_file_refuses_and_resumes_by_itself(
    disk: FakeDisk, answers: Answers, operation: Operation, error: int
) -> None:
    """The old file stays intact, and writes work again once there is room, or a descriptor."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    fs.fail(operation, error=error, lasts=True, path=lambda path: path.endswith(".tmp"))
    seq = fill(shard, answers, 1, 200)
    submit(shard, answers, seq, durable=True, size=200)
    shard.flush()
    assert answers.refused == {str(seq): "storage_full"}
    submit(shard, answers, seq, durable=True, size=20)
    shard.flush()
    assert answers.committed[-1] == str(seq), "a small one still fits the old file"
    fs.heal()
    submit(shard, answers, seq + 1, durable=True, size=200)
    shard.flush()
    assert answers.committed[-1] == str(seq + 1)
    disk.crash(Damage.DROP)
    assert read_shard(disk)[0] == list(range(1, seq + 2))


@pytest.mark.parametrize(
    "failing",
    [
        lambda fs: fs.fail("create", error=errno.ENOSPC, path=lambda path: "CURRENT" in path),
        lambda fs: fs.fail("pwrite", error=errno.ENOSPC, path=lambda path: "CURRENT" in path),
        lambda fs: fs.fail("sync_dir", error=errno.ENOSPC),
        lambda fs: fs.fail("rename", error=errno.ENOSPC, path=lambda path: path.endswith(".log")),
    ],
    ids=["create CURRENT", "write CURRENT", "sync the directory", "rename the file"],
)
def test_no_room_at_any_step_of_a_rotation_leaves_a_log_that_opens(
    disk: FakeDisk, answers: Answers, failing: Callable[[FaultFs], object]
) -> None:
    """The new file must not stay under a frame number that the old file then takes."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    seq = fill(shard, answers, 1, 200)
    failing(fs)
    submit(shard, answers, seq, durable=True, size=200)
    shard.flush()
    assert answers.refused == {str(seq): "storage_full"}
    fs.heal()
    submit(shard, answers, seq, durable=True, size=20)
    shard.flush()
    assert answers.committed[-1] == str(seq)
    disk.crash(Damage.KEEP)
    assert read_shard(disk)[0] == list(range(1, seq + 1))
    assert missing_file(disk, DIRECTORY, list_wal_files(disk, DIRECTORY), None) is None


def test_a_full_queue_throttles_before_anything_is_kept(disk: FakeDisk, held: HeldBackground, answers: Answers) -> None:
    shard = new_shard(disk, held)
    buffer = frame(1)
    for _ in range(WAL_QUEUE_SUBMISSIONS_MAX):
        shard.submit(buffer, 1, durable=False, done=answers("queued"))
    with pytest.raises(Throttled):
        shard.submit(buffer, 1, durable=False, done=answers("refused"))
    assert shard.queue_depth == WAL_QUEUE_SUBMISSIONS_MAX
    assert shard.stats.submit_full == 1
    assert answers.given == []


def test_a_frame_that_admitted_writes_wait_for_is_taken_by_a_full_queue_and_synced(
    disk: FakeDisk, answers: Answers
) -> None:
    shard = new_shard(disk)
    for _ in range(WAL_QUEUE_SUBMISSIONS_MAX):
        shard.admit()
    shard.submit_aside(frame(1), done=answers("aside"))
    shard.flush()
    assert answers.committed == ["aside"]
    assert shard.queue_depth == WAL_QUEUE_SUBMISSIONS_MAX
    disk.crash(Damage.DROP)
    assert read_shard(disk)[0] == [1]


# --- rotation -----------------------------------------------------------------------------------------------


def test_a_rotation_syncs_the_old_file_names_the_new_one_durably_and_only_then_writes_to_it(
    disk: FakeDisk, answers: Answers
) -> None:
    """By the order of the calls."""
    shard = new_shard(disk)
    seq = fill(shard, answers, 1, 150)
    seen = watch(disk)
    submit(shard, answers, seq, durable=True, size=100)
    shard.flush()
    new = f"wal-{shard.position.file_frame:016d}.log"
    # Zeros are written ahead of the frames, so there may be two writes to the new file.
    assert [call for call, _ in groupby(seen)] == [
        ("fdatasync", NEXT),
        ("rename", new),
        ("sync_dir", "wal"),
        ("create", "CURRENT.tmp"),
        ("pwrite", "CURRENT.tmp"),
        ("fsync", "CURRENT.tmp"),
        ("rename", "CURRENT"),
        ("sync_dir", "wal"),
        ("pwrite", NEXT),
        ("fdatasync", NEXT),
    ]
    assert disk.read(f"{DIRECTORY}/CURRENT").decode() == new
    assert shard.stats.rotations == 1


def test_no_order_of_calls_breaks_the_rules_of_the_file_system(disk: FakeDisk, answers: Answers) -> None:
    monitor = MonitorFs(disk)
    shard = new_shard(monitor)
    for seq in range(1, 120):
        submit(shard, answers, seq, durable=seq % 3 == 0, size=120)
        shard.flush()
    assert shard.stats.rotations > 3
    assert monitor.violations == []
    assert monitor.check_settled() == []


def test_the_first_file_begins_small_and_gets_room_before_it_is_needed(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    room = FILE_BYTES // ROOM_FACTOR
    assert len(disk.read(FIRST_FILE)) == room < FIRST_ROOM_BYTES
    seq = 1
    while shard.position.offset <= room // 2:
        assert len(disk.read(FIRST_FILE)) == room
        submit(shard, answers, seq, durable=False)
        shard.flush()
        seq += 1
    assert len(disk.read(FIRST_FILE)) == FILE_BYTES
    fill(shard, answers, seq, room_left=150)
    assert shard.stats.rotations == 0, "the file is used up to its end"


def test_a_group_that_comes_before_its_room_makes_the_file_longer(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=False, size=FILE_BYTES // ROOM_FACTOR)
    shard.flush()
    submit(shard, answers, 2, durable=False)
    shard.flush()
    assert answers.committed == ["1", "2"]
    held.run_all()
    assert len(disk.read(FIRST_FILE)) == FILE_BYTES
    assert seqs_in(disk.read(FIRST_FILE)) == [1, 2]


def test_room_that_cannot_be_reserved_fails_no_write(disk: FakeDisk, answers: Answers) -> None:
    fs = FaultFs(disk)
    shard = new_shard(fs)
    fs.fail("preallocate", error=errno.ENOSPC, lasts=True)
    fill(shard, answers, 1, room_left=FILE_BYTES // 2)
    assert answers.refused == {}


def test_the_next_file_is_made_ahead_of_time_and_used(disk: FakeDisk, held: HeldBackground, answers: Answers) -> None:
    shard = new_shard(disk, held)
    seq = with_all_room(shard, held, answers)
    seq = fill(shard, answers, seq, FILE_BYTES // 2)
    assert len(held) == 1, "past the half the next file is prepared"
    seen = watch(disk)
    held.step()
    assert seen == [("create", NEXT), ("preallocate", NEXT), ("fsync", NEXT)]
    seq = fill(shard, answers, seq, 150)
    seen.clear()
    submit(shard, answers, seq, durable=False, size=100)
    shard.flush()
    held.step()
    assert ("create", NEXT) not in seen
    assert answers.committed[-1] == str(seq)


def test_a_rotation_waits_for_the_preparation_that_runs(disk: FakeDisk, held: HeldBackground, answers: Answers) -> None:
    shard = new_shard(disk, held)
    seq = with_all_room(shard, held, answers)
    seq = fill(shard, answers, seq, FILE_BYTES // 2)
    submit(shard, answers, seq, durable=True, size=FILE_BYTES // 2 + 100)
    shard.flush()
    assert len(held) == 1
    held.run_all()
    assert answers.committed[-1] == str(seq)
    assert read_shard(disk)[0] == list(range(1, seq + 1))


def test_an_oversized_group_gets_a_larger_file(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    submit(shard, answers, 2, durable=True, size=3 * FILE_BYTES)
    shard.flush()
    assert answers.committed == ["1", "2"]
    path = f"{DIRECTORY}/wal-{shard.position.file_frame:016d}.log"
    assert disk.size(path) > 3 * FILE_BYTES
    assert read_shard(disk)[0] == [1, 2]


def test_an_oversized_group_does_not_squeeze_into_the_file_that_was_prepared(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    seq = fill(shard, answers, 1, FILE_BYTES // 3)
    submit(shard, answers, seq, durable=True, size=2 * FILE_BYTES)
    shard.flush()
    assert answers.committed[-1] == str(seq)
    assert read_shard(disk)[0] == list(range(1, seq + 1))


def test_a_failed_sync_of_the_old_file_fails_the_shard_even_when_it_says_no_space(
    disk: FakeDisk, answers: Answers
) -> None:
    """What it could not place was already written."""
    fs = FaultFs(disk)
    shard = new_shard(fs)
    seq = fill(shard, answers, 1, 150)
    fs.fail("fdatasync", error=errno.ENOSPC)
    submit(shard, answers, seq, durable=True, size=100)
    shard.flush()
    assert answers.refused == {str(seq): "wal_failed"}
    assert shard.failed is not None


def test_writes_that_come_during_a_rotation_go_into_the_new_file(
    disk: FakeDisk, held: HeldBackground, answers: Answers
) -> None:
    shard = new_shard(disk, held)
    seq = fill(shard, answers, 1, 150)
    held.run_all()
    submit(shard, answers, seq, durable=False, size=100)
    shard.flush()
    submit(shard, answers, seq + 1, durable=False)
    shard.flush()
    assert str(seq) not in answers.committed
    held.step()
    assert answers.committed[-2:] == [str(seq), str(seq + 1)]
    assert shard.position.file_frame > 1


# --- sync marks ---------------------------------------------------------------------------------------------


def marks(content: bytes) -> list[int]:
    """What the sync marks of a file say, in order."""
    found = wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX)
    return [
        wal_frame.decode_sync_mark(content[mark.offset + wal_frame.HEADER_BYTES : mark.end - 8])
        for mark in found
        if mark.type == FrameType.SYNC
    ]


def test_the_first_group_after_each_sync_begins_with_a_mark(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    submit(shard, answers, 2, durable=False)
    shard.flush()
    submit(shard, answers, 3, durable=False)
    shard.flush()
    content = disk.read(FIRST_FILE)
    sync, append = FrameType.SYNC, FrameType.APPEND
    assert kinds_in(content) == [sync, append, sync, append, append]
    assert marks(content) == [0, 2], "the second covers the first mark and the first append"


def test_a_mark_is_written_alone_after_a_second_of_silence_and_never_a_second_one(
    disk: FakeDisk, clock: ManualClock, answers: Answers
) -> None:
    shard = new_shard(disk, clock=clock)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    clock.advance(SYNC_MARK_DELAY_MS - 1)
    shard.tick()
    assert marks(disk.read(FIRST_FILE)) == [0]
    clock.advance(1)
    seen = watch(disk)
    shard.tick()
    assert [operation for operation, _ in seen] == ["pwrite"], "it needs no sync of its own"
    assert marks(disk.read(FIRST_FILE)) == [0, 2]
    for _ in range(10):
        clock.advance(SYNC_MARK_DELAY_MS)
        shard.tick()
    assert marks(disk.read(FIRST_FILE)) == [0, 2]
    assert len(seen) == 1


def test_a_shard_without_frames_gets_no_mark(disk: FakeDisk, clock: ManualClock) -> None:
    shard = new_shard(disk, clock=clock)
    clock.advance(10 * SYNC_MARK_DELAY_MS)
    shard.tick()
    assert kinds_in(disk.read(FIRST_FILE)) == []


def test_a_lone_mark_is_synced_before_a_checkpoint_notes_a_position_behind_it(
    disk: FakeDisk, clock: ManualClock, answers: Answers
) -> None:
    """Else a power loss would leave the noted position beyond the end of the shard."""
    shard = new_shard(disk, clock=clock)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    clock.advance(SYNC_MARK_DELAY_MS)
    shard.tick()
    shard.hold(lambda: None)
    position = shard.position
    shard.release()
    disk.crash(Damage.DROP)
    _, reader = read_shard(disk, position)
    assert reader.end is not None
    assert reader.end.path == FIRST_FILE
    assert reader.end.warnings == []
    shard_marks = marks(disk.read(FIRST_FILE))
    assert shard_marks == [0, 2]


def test_a_sync_for_a_checkpoint_of_nothing_but_a_mark_asks_for_no_other_mark(
    disk: FakeDisk, clock: ManualClock, answers: Answers
) -> None:
    shard = new_shard(disk, clock=clock)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    for _ in range(5):
        clock.advance(SYNC_MARK_DELAY_MS)
        shard.tick()
        shard.hold(lambda: None)
        shard.release()
    assert marks(disk.read(FIRST_FILE)) == [0, 2]


# --- loss window --------------------------------------------------------------------------------------------


def test_unsynced_bytes_and_their_age_are_told_and_bounded_in_the_background(
    disk: FakeDisk, clock: ManualClock, answers: Answers
) -> None:
    """The live loss window."""
    shard = new_shard(disk, clock=clock)
    assert (shard.unsynced_bytes, shard.unsynced_ms) == (0, 0)
    submit(shard, answers, 1, durable=False)
    shard.flush()
    written = shard.position.offset
    clock.advance(BACKGROUND_SYNC_MS - 1)
    submit(shard, answers, 2, durable=False)
    shard.flush()
    shard.tick()
    assert shard.unsynced_bytes == shard.position.offset > written
    assert shard.unsynced_ms == BACKGROUND_SYNC_MS - 1, "the age of the oldest byte"
    clock.advance(1)
    shard.tick()
    assert (shard.unsynced_bytes, shard.unsynced_ms) == (0, 0)
    disk.crash(Damage.DROP)
    assert seqs_in(disk.read(FIRST_FILE)) == [1, 2]


def test_what_was_written_during_a_sync_ages_from_then_on_not_from_its_end(
    disk: FakeDisk, clock: ManualClock, held: HeldBackground, answers: Answers
) -> None:
    """A slow sync must not hide how old the unsynced bytes are."""
    shard = new_shard(disk, held, clock=clock)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    held.begin()
    submit(shard, answers, 2, durable=False)
    shard.flush()
    clock.advance(30_000)
    assert shard.unsynced_ms == 30_000
    held.end()
    assert shard.unsynced_bytes > 0
    assert shard.unsynced_ms == 30_000
    shard.tick()
    held.run_all()
    assert (shard.unsynced_bytes, shard.unsynced_ms) == (0, 0)


def test_sync_is_not_called_when_all_is_synced(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    seen = watch(disk)
    shard.sync()
    assert seen == []


# --- holding still ------------------------------------------------------------------------------------------


class Quiet:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def test_a_held_shard_writes_nothing_until_it_is_released(disk: FakeDisk, answers: Answers, quiet: Quiet) -> None:
    shard = new_shard(disk)
    shard.hold(quiet)
    assert quiet.count == 1
    submit(shard, answers, 1, durable=True)
    shard.flush()
    assert answers.given == []
    shard.release()
    assert answers.committed == ["1"]


def test_holding_syncs_first_what_is_written(
    disk: FakeDisk, held: HeldBackground, answers: Answers, quiet: Quiet
) -> None:
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=False)
    shard.flush()
    shard.hold(quiet)
    assert quiet.count == 0
    held.run_all()
    assert quiet.count == 1
    assert shard.unsynced_bytes == 0


def test_holding_waits_for_the_running_sync_and_for_what_was_written_during_it(
    disk: FakeDisk, held: HeldBackground, answers: Answers, quiet: Quiet
) -> None:
    shard = new_shard(disk, held)
    submit(shard, answers, 1, durable=True)
    shard.flush()
    held.begin()
    submit(shard, answers, 2, durable=False)
    shard.flush()
    shard.hold(quiet)
    held.end()
    assert quiet.count == 0
    held.run_all()
    assert quiet.count == 1
    assert shard.unsynced_bytes == 0


def test_holding_waits_for_the_running_rotation_and_its_queue_stays(
    disk: FakeDisk, held: HeldBackground, answers: Answers, quiet: Quiet
) -> None:
    shard = new_shard(disk, held)
    seq = fill(shard, answers, 1, 150)
    held.run_all()
    submit(shard, answers, seq, durable=True, size=100)
    shard.flush()
    shard.hold(quiet)
    assert quiet.count == 0
    held.step()
    assert quiet.count == 1
    assert str(seq) not in answers.committed
    shard.release()
    held.run_all()
    assert answers.committed[-1] == str(seq)


@pytest.mark.parametrize("what", ["sync", "write", "rotation"])
def test_a_shard_that_fails_while_it_is_asked_to_hold_still_says_so(
    disk: FakeDisk, held: HeldBackground, answers: Answers, quiet: Quiet, what: str
) -> None:
    """A checkpoint, or a stop, must not wait for ever for a shard that is dead."""
    fs = FaultFs(disk)
    shard = new_shard(fs, held)
    seq = fill(shard, answers, 1, 150)
    held.run_all()
    submit(shard, answers, seq, durable=True)
    shard.flush()
    if what == "write":
        fs.fail("pwrite")
        submit(shard, answers, seq + 1, durable=False, size=10)
        shard.flush()
    else:
        fs.fail("fdatasync")
        if what == "rotation":
            submit(shard, answers, seq + 1, durable=True, size=100)
            shard.flush()
    shard.hold(quiet)
    held.run_all()
    assert shard.failed is not None
    assert quiet.count == 1
    assert set(answers.refused.values()) == {"wal_failed"}


def test_all_shards_are_quiet_before_the_wal_is(disk: FakeDisk, answers: Answers, quiet: Quiet) -> None:
    backgrounds = [HeldBackground(), HeldBackground()]
    shards = []
    for index, background in enumerate(backgrounds):
        directory = f"/data/wal/shard-{index:02d}"
        file = create_shard_files(disk, directory, 1, FILE_BYTES)
        shards.append(
            WalShard(disk, directory, index, background, ManualClock(), file, WalPosition(1, 1, 0), file_bytes=4096)
        )
    wal = Wal(shards)
    for shard in shards:
        submit(shard, answers, shard.index + 1, durable=False)
    wal.flush()
    wal.hold(quiet)
    backgrounds[1].run_all()
    assert quiet.count == 0
    backgrounds[0].run_all()
    assert quiet.count == 1
    assert [position.frame for position in wal.positions] == [3, 3]
    wal.release()
    wal.tick()
    assert wal.failure() is None
    wal.close()
    assert all(background.is_closed for background in backgrounds)


# --- small things -------------------------------------------------------------------------------------------


def test_the_shard_of_a_topic_never_changes() -> None:
    """Part of the layout on disk: these values are pinned."""
    assert [shard_index(topic_id, 8) for topic_id in range(1, 13)] == [4, 1, 6, 3, 0, 5, 2, 7, 4, 1, 6, 3]
    assert [shard_index(topic_id, 3) for topic_id in range(1, 9)] == [1, 0, 2, 1, 0, 2, 0, 2]
    assert [shard_index(topic_id, 1) for topic_id in (1, 2**63, 2**64 - 1)] == [0, 0, 0]
    assert [shard_index(2**64 - 1, count) for count in (2, 5, 8)] == [0, 1, 3]


def test_a_topic_goes_to_its_shard(disk: FakeDisk) -> None:
    shards = []
    for index in range(3):
        directory = f"/data/wal/shard-{index:02d}"
        file = create_shard_files(disk, directory, 1, FILE_BYTES)
        shards.append(WalShard(disk, directory, index, InlineBackground(), ManualClock(), file, WalPosition(1, 1, 0)))
    wal = Wal(shards)
    assert [wal.shard_for(topic_id).index for topic_id in range(1, 9)] == [1, 0, 2, 1, 0, 2, 0, 2]
    assert Wal(shards[:1]).shard_for(2).index == 0


def test_the_first_file_is_durable_and_named_by_current(disk: FakeDisk) -> None:
    create_shard_files(disk, DIRECTORY, 7, FILE_BYTES).close()
    disk.crash(Damage.DROP)
    assert disk.read(f"{DIRECTORY}/CURRENT") == b"wal-0000000000000007.log"
    assert disk.read(f"{DIRECTORY}/wal-0000000000000007.log") == bytes(FILE_BYTES // ROOM_FACTOR)


def test_a_left_over_next_file_is_made_anew(disk: FakeDisk) -> None:
    disk.makedirs(DIRECTORY)
    disk.replace(f"{DIRECTORY}/wal-next.tmp", b"half of something")
    create_shard_files(disk, DIRECTORY, 1, FILE_BYTES).close()
    assert disk.read(FIRST_FILE) == bytes(FILE_BYTES // ROOM_FACTOR)
    assert not disk.exists(f"{DIRECTORY}/wal-next.tmp")


def test_sync_times_fall_into_their_buckets() -> None:
    stats = WalStats()
    for micros in (0, 50, 51, 100_000, 100_001, 10**9):
        stats.note_fsync(micros)
    assert stats.fsyncs == 6
    assert stats.fsync_buckets[0] == 2
    assert stats.fsync_buckets[1] == 1
    assert stats.fsync_buckets[len(FSYNC_BUCKETS_US) - 1] == 1
    assert stats.fsync_buckets[-1] == 2
    assert stats.fsync_us_total == 50 + 51 + 100_000 + 100_001 + 10**9


def test_numbers_of_all_shards_are_summed_and_of_the_peaks_the_highest_counts(disk: FakeDisk, answers: Answers) -> None:
    wal = Wal([new_shard(disk), new_shard(FakeDisk())])
    for shard, count in zip(wal.shards, (1, 3), strict=True):
        for seq in range(count):
            submit(shard, answers, seq + 1, durable=True)
    assert wal.queue_depth == 4
    wal.flush()
    total = wal.total_stats()
    assert (total.batches, total.frames, total.fsyncs) == (2, 6, 2)
    assert total.bytes_written == sum(shard.stats.bytes_written for shard in wal.shards)
    assert (total.queue_depth_peak, wal.queue_depth) == (3, 0)
    assert sum(total.fsync_buckets) == 2
    assert len(total.fsync_buckets) == len(total.fsync_bounds_us) + 1
    assert not wal.is_read_only


def test_each_entry_is_answered_with_the_times_of_its_own_group(disk: FakeDisk, held: HeldBackground) -> None:
    shard = new_shard(disk, held)
    times: dict[str, tuple[float, float]] = {}

    def submit_timed(name: str, seq: int, *, durable: bool) -> None:
        def done(error: TopicsError | None) -> None:
            times[name] = (shard.write_ms, shard.sync_ms)

        shard.submit(frame(seq), 1, durable=durable, done=done)

    submit_timed("synced", 1, durable=True)
    submit_timed("written", 2, durable=False)
    shard.flush()
    assert times.keys() == {"written"}
    submit_timed("late", 3, durable=True)
    shard.flush()
    held.run_all()
    assert times["written"][1] == 0.0
    # Written together, so with the same time.
    assert times["synced"][0] == times["written"][0] > 0.0
    assert times["synced"][1] > 0.0
    assert times["late"][1] > 0.0


# Long writes.


def test_other_frames_of_a_topic_wait_for_the_end_of_its_long_write(disk: FakeDisk, answers: Answers) -> None:
    """Those of other topics do not, and neither does the next part."""
    shard = new_shard(disk)
    shard.begin_long(1)
    shard.submit_part(frame(1, flags=wal_frame.FLAG_FIRST | wal_frame.FLAG_MORE), 1, durable=False, done=answers("one"))
    shard.submit(frame(9), 1, durable=True, done=answers("behind"))
    shard.submit(frame(1, topic_id=2), 1, durable=False, done=answers("other"))
    shard.flush()
    shard.submit_part(frame(2, flags=0), 1, durable=True, done=answers("two"))
    shard.flush()
    assert answers.committed == ["one", "other", "two"]
    shard.end_long(1)
    shard.flush()
    assert answers.committed == ["one", "other", "two", "behind"]
    assert seqs_in(disk.read(FIRST_FILE)) == [1, 1, 2, 9]
    assert shard.queue_depth == 0


def test_a_long_write_is_refused_when_it_begins_or_not_at_all(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    shard.begin_long(1)
    shard.throttle(Throttled("later"))
    with pytest.raises(Throttled, match="later"):
        shard.begin_long(2)
    shard.submit_part(frame(1), 1, durable=False, done=answers("one"))
    shard.end_long(1)
    shard.flush()
    assert answers.committed == ["one"]


def test_a_long_write_takes_one_place_in_the_queue(disk: FakeDisk, answers: Answers) -> None:
    shard = new_shard(disk)
    shard.begin_long(1)
    for seq in (1, 2):
        shard.submit_part(frame(seq), 1, durable=True, done=answers(str(seq)))
    assert shard.queue_depth == 1
    shard.submit(frame(3), 1, durable=True, done=answers("behind"))
    assert shard.queue_depth == 2
    shard.end_long(1)
    shard.flush()
    assert shard.queue_depth == 0


def test_a_failure_answers_what_waits_behind_a_long_write(disk: FakeDisk, answers: Answers) -> None:
    faults = FaultFs(disk)
    shard = new_shard(faults)
    shard.begin_long(1)
    shard.submit(frame(9), 1, durable=True, done=answers("behind"))
    shard.submit_part(frame(1), 1, durable=True, done=answers("part"))
    faults.fail("fdatasync")
    shard.flush()
    assert answers.refused == {"part": "wal_failed", "behind": "wal_failed"}
    with pytest.raises(WalFailed):
        shard.submit_part(frame(2), 1, durable=True, done=answers("next"))
    shard.end_long(1)
    assert shard.queue_depth == 0
