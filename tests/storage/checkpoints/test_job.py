"""A checkpoint job: WAL ranges in, segments out; any number of times with the same result."""

import msgspec
import pytest

from tests.storage.segments.segment_bench import NOW_MS, ROOT, live_seqs, stem
from tests.storage.wal.wal_bench import DIRECTORY, frame
from topics.errors import Damaged, FormatError
from topics.formats import wal_frame
from topics.formats.snapshot import SegmentState, WalPosition
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.storage import layout
from topics.storage.checkpoints.job import FlagWork, Job, JobResult, ShardRange, TopicWork, run_job
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.sources import FileSource
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.monitor_fs import MonitorFs

WAL_FILE = f"{DIRECTORY}/wal-0000000000000001.log"


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(DIRECTORY)
    return disk


def put_wal(disk: FakeDisk, *frames: bytes) -> list[ShardRange]:
    """A WAL of these frames; the range that covers all of them."""
    data = b"".join(frames)
    disk.replace(WAL_FILE, data.ljust(8192, b"\0"))
    return [ShardRange(DIRECTORY, WalPosition(1, 1, 0), WalPosition(len(frames) + 1, 1, len(data)))]


def topic(
    upto_seq: int,
    *,
    after_seq: int = 0,
    floor_seq: int = 1,
    dead: list[tuple[int, int]] | None = None,
    active: SegmentState | None = None,
    unlogged: list[bytes] | None = None,
    topic_json: bytes = b"",
    topic_id: int = 1,
) -> TopicWork:
    return TopicWork(topic_id, after_seq, upto_seq, floor_seq, dead or [], active, unlogged or [], topic_json)


def job(
    shards: list[ShardRange],
    *topics: TopicWork,
    flags: list[FlagWork] | None = None,
    events_max: int = 1000,
    bytes_max: int = 1 << 20,
    age_ms_max: int = 0,
    now_ms: int = NOW_MS,
) -> Job:
    return Job(ROOT, now_ms, shards, list(topics), flags or [], events_max, bytes_max, age_ms_max)


def seqs_of(disk: FakeDisk, states: list[SegmentState]) -> list[int]:
    seqs = []
    for state in states:
        seqs += live_seqs(SegmentReader(FileSource(disk, stem(state.first_seq)), state))
    return seqs


def test_records_of_the_range_go_into_segments(disk: FakeDisk) -> None:
    shards = put_wal(disk, frame(1), frame(2), frame(3))
    result = run_job(disk, job(shards, topic(3)))
    assert seqs_of(disk, result.touched[1]) == [1, 2, 3]


def test_only_what_lies_between_the_positions_is_read(disk: FakeDisk) -> None:
    put_wal(disk, frame(1), frame(2), frame(3), frame(4))
    size = len(frame(1))
    shards = [ShardRange(DIRECTORY, WalPosition(2, 1, size), WalPosition(4, 1, 3 * size))]
    result = run_job(disk, job(shards, topic(9, after_seq=1)))
    assert seqs_of(disk, result.touched[1]) == [2, 3]


def test_an_empty_range_reads_nothing_and_touches_nothing(disk: FakeDisk) -> None:
    position = WalPosition(5, 5, 0)
    result = run_job(disk, job([ShardRange("/nowhere", position, position)], topic(0)))
    assert result.touched == {1: []}


def test_a_seq_that_is_in_segments_already_is_skipped(disk: FakeDisk) -> None:
    """Also a frame that is in the log twice."""
    shards = put_wal(disk, frame(1), frame(2), frame(2), frame(1), frame(3))
    result = run_job(disk, job(shards, topic(3, after_seq=1)))
    assert seqs_of(disk, result.touched[1]) == [2, 3]


def test_what_was_not_published_when_the_checkpoint_began_stays_in_the_wal(disk: FakeDisk) -> None:
    shards = put_wal(disk, frame(1), frame(2), frame(3))
    assert seqs_of(disk, run_job(disk, job(shards, topic(2))).touched[1]) == [1, 2]


def test_whole_writes_only(disk: FakeDisk) -> None:
    """A write whose last frame is missing, because another begins or the range ends, is dropped."""
    first, more = FLAG_FIRST | FLAG_MORE, FLAG_MORE
    shards = put_wal(
        disk,
        *(frame(1, flags=first), frame(2, flags=more), frame(3, flags=0)),
        *(frame(4, flags=first), frame(5, flags=more)),
        frame(4),
        *(frame(5, flags=first), frame(6, flags=more)),
    )
    result = run_job(disk, job(shards, topic(9)))
    assert seqs_of(disk, result.touched[1]) == [1, 2, 3, 4]


def test_frames_of_other_topics_may_stand_inside_a_write(disk: FakeDisk) -> None:
    first = FLAG_FIRST | FLAG_MORE
    shards = put_wal(disk, frame(1, flags=first), frame(1, topic_id=2), frame(2, flags=0), frame(1, topic_id=3))
    result = run_job(disk, job(shards, topic(9), topic(9, topic_id=2)))
    assert seqs_of(disk, result.touched[1]) == [1, 2]
    assert [state.entry_count for state in result.touched[2]] == [1]
    assert not disk.exists(layout.topic_directory(ROOT, 3)), "a topic that is not asked for is left alone"


def test_notes_and_floors_around_a_write_are_part_of_it(disk: FakeDisk) -> None:
    note = wal_frame.encode_control(FrameType.NOTE, 1, 1, b"\x80", flags=FLAG_FIRST | FLAG_MORE)
    evict = wal_frame.encode_control(FrameType.EVICT, 1, 1, b"\x80", flags=0)
    shards = put_wal(disk, note, frame(1, flags=FLAG_MORE), evict, note, frame(2, flags=FLAG_MORE))
    assert seqs_of(disk, run_job(disk, job(shards, topic(9))).touched[1]) == [1]


def test_dead_ranges_become_holes(disk: FakeDisk) -> None:
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 10)))
    result = run_job(disk, job(shards, topic(9, dead=[(2, 3), (5, 5), (8, 9)])))
    assert seqs_of(disk, result.touched[1]) == [1, 4, 6, 7]
    (state,) = result.touched[1]
    assert (state.first_seq, state.last_seq, state.live_count) == (1, 7, 4)


def test_records_below_the_floor_are_not_worth_writing(disk: FakeDisk) -> None:
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 7)))
    (state,) = run_job(disk, job(shards, topic(6, floor_seq=4))).touched[1]
    assert state.first_seq == 4
    assert seqs_of(disk, [state]) == [4, 5, 6]


def test_records_that_are_in_no_wal_file_are_merged_in_order(disk: FakeDisk) -> None:
    """Written while the topic was ephemeral; before, between and after the logged records."""
    shards = put_wal(disk, frame(3), frame(4), frame(7))
    bodies = [frame(seq)[4:-8] for seq in (1, 2, 5, 6, 8)]
    result = run_job(disk, job(shards, topic(8, unlogged=bodies)))
    assert seqs_of(disk, result.touched[1]) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("limits", "spans"),
    [
        ({"events_max": 3}, [(1, 3, True), (4, 6, True), (7, 7, False)]),
        ({"bytes_max": 64 * 4}, [(1, 4, True), (5, 7, False)]),
        ({"age_ms_max": 1, "now_ms": NOW_MS}, [(1, 7, False)]),
    ],
    ids=["events", "bytes", "young"],
)
def test_segments_roll(disk: FakeDisk, limits: dict[str, int], spans: list[tuple[int, int, bool]]) -> None:
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 8)))
    states = run_job(disk, job(shards, topic(7), **limits)).touched[1]  # type: ignore[arg-type]
    assert [(state.first_seq, state.last_seq, state.sealed) for state in states] == spans
    assert seqs_of(disk, states) == list(range(1, 8))


def test_an_active_segment_is_sealed_by_age_though_nothing_new_came(disk: FakeDisk) -> None:
    shards = put_wal(disk, frame(1))
    (state,) = run_job(disk, job(shards, topic(1))).touched[1]
    old = job([], topic(1, after_seq=1, active=state), age_ms_max=1000, now_ms=NOW_MS + 1000)
    (sealed,) = run_job(disk, old).touched[1]
    assert sealed.sealed


def test_delete_bytes_are_set(disk: FakeDisk) -> None:
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 5)))
    (state,) = run_job(disk, job(shards, topic(4))).touched[1]
    run_job(disk, job([], flags=[FlagWork(1, state, [1, 3])]))
    assert seqs_of(disk, [state]) == [2, 4]


def test_topic_json_is_written_with_the_segments(disk: FakeDisk) -> None:
    run_job(disk, job([], topic(0, topic_json=b'{"name":"a"}')))
    assert disk.read(f"{layout.topic_directory(ROOT, 1)}/topic.json") == b'{"name":"a"}'


def test_a_job_and_its_result_travel_as_bytes(disk: FakeDisk) -> None:
    shards = put_wal(disk, frame(1))
    sent = job(shards, topic(1, dead=[(3, 4)], unlogged=[frame(2)[4:-8]]), flags=[])
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Job)
    assert received == sent
    result = run_job(disk, received)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=JobResult) == result


def test_a_job_that_was_cut_short_anywhere_is_simply_run_again(disk: FakeDisk) -> None:
    """Same segments, same bytes, from the same inputs."""
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 9)))
    (active,) = run_job(disk, job(shards, topic(3))).touched[1]
    work = job(
        shards,
        topic(8, after_seq=3, active=active, dead=[(5, 5)], topic_json=b"{}"),
        flags=[FlagWork(1, msgspec.structs.replace(active), [2])],
        events_max=4,
    )

    def again(machine: FakeDisk) -> JobResult:
        return run_job(machine, msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=Job))

    whole = disk.clone()
    wanted = again(whole)
    assert seqs_of(whole, wanted.touched[1]) == [1, 3, 4, 6, 7, 8]
    for damage in (Damage.DROP, Damage.SUBSET):
        point = 0
        while True:
            machine = disk.clone()
            machine.on_operation = hook = CrashAt(point)
            try:
                again(machine)
            except CrashNow:
                pass
            machine.on_operation = None
            machine.crash(damage, point)
            assert again(machine) == wanted, point
            files = {path: data for path, data in machine.files().items() if not path.endswith(".tmp")}
            assert files == whole.files(), point
            if hook.count <= point:
                break
            point += 1
        assert point > 15


def test_a_finished_job_is_durable_and_kept_the_order_of_calls(disk: FakeDisk) -> None:
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 9)))
    monitor = MonitorFs(disk)
    result = run_job(monitor, job(shards, topic(8, topic_json=b"{}"), events_max=3))
    monitor.require_synced(ROOT)
    assert monitor.violations == []
    assert monitor.check_settled() == []
    disk.crash(Damage.DROP)
    assert seqs_of(disk, result.touched[1]) == list(range(1, 9))


def test_directories_of_new_topics_are_durable_after_one_sync_of_the_folder_above_them(disk: FakeDisk) -> None:
    shards = put_wal(disk, *(frame(1, topic_id=number) for number in (1, 2, 3)))
    disk.makedirs(layout.topics_directory(ROOT))
    synced: list[str] = []
    disk.on_operation = lambda operation, path: synced.append(path) if operation == "sync_dir" else None
    run_job(disk, job(shards, *(topic(1, topic_id=number) for number in (1, 2, 3))))
    disk.on_operation = None
    assert synced.count(layout.topics_directory(ROOT)) == 1
    disk.crash(Damage.DROP)
    for number in (1, 2, 3):
        assert disk.listdir(layout.topic_directory(ROOT, number)) == [
            f"{layout.segment_stem(1)}.data",
            f"{layout.segment_stem(1)}.idx",
        ]


def test_a_bad_frame_inside_the_range_fails_the_job_instead_of_ending_it_early(disk: FakeDisk) -> None:
    """A checkpoint must not call records checkpointed that it never saw, for then their WAL goes."""
    shards = put_wal(disk, *(frame(seq) for seq in range(1, 6)))
    disk.poke(WAL_FILE, 2 * len(frame(1)) + 50, b"\xff")
    with pytest.raises((FormatError, Damaged)):
        run_job(disk, job(shards, topic(5)))
