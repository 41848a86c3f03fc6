import pytest

from topics.engine.topic.replayed import Replayed, WalFiles
from topics.errors import BadFrame
from topics.formats import wal_frame
from topics.formats.records import RecordBatch
from topics.testing.fake_disk import FakeDisk


class Frames:
    """WAL files with append frames of one topic, and the `Replayed` index that a start would make of them."""

    def __init__(self, first_seq: int = 5) -> None:
        self.disk = FakeDisk()
        self.replayed = Replayed(WalFiles(self.disk), first_seq)
        self.bodies: list[bytes | None] = []

    def add(self, path: str, *payloads: bytes, ts: int = 100, gap: bytes = b"") -> None:
        """One frame per payload, with `gap` (frames of other topics) before each."""
        content = self.disk.read(path) if self.disk.exists(path) else b""
        for payload in payloads:
            content += gap
            batch = RecordBatch([b'{"d":%b}' % payload], [len(payload)])
            frame, bodies = wal_frame.encode_appends(1, self.replayed.end_seq, ts, batch, durable=False)
            self.replayed.append(path, len(content), len(frame), len(payload), ts)
            self.bodies += bodies
            content += frame
        self.disk.replace(path, content)

    def hole(self, count: int) -> None:
        self.replayed.append_holes(count)
        self.bodies += [None] * count


@pytest.fixture
def frames() -> Frames:
    """Seqs 5 to 10 over two files: 5 and 6 at 100, a hole at 7, 8 to 10 at 200."""
    frames = Frames()
    frames.add("/a", b"1", b"22")
    frames.hole(1)
    frames.add("/b", b"4444", b"55555", b"666666", ts=200)
    return frames


def test_records_are_read_from_the_files_they_stand_in(frames: Frames) -> None:
    replayed = frames.replayed
    assert (replayed.first_seq, replayed.end_seq) == (5, 11)
    assert replayed.read(5, 10) == frames.bodies
    for first in range(5, 11):
        for last in range(first, 11):
            assert replayed.read(first, last) == frames.bodies[first - 5 : last - 4]


def test_frames_far_apart_are_read_one_by_one() -> None:
    frames = Frames()
    frames.add("/a", b"1", b"2", b"3", gap=bytes(5000))
    assert frames.replayed.read(5, 7) == frames.bodies


def test_holes_in_front_of_everything_need_no_file() -> None:
    frames = Frames()
    frames.hole(3)
    assert frames.replayed.read(5, 7) == [None, None, None]
    frames.add("/a", b"1")
    assert frames.replayed.read(5, 8) == frames.bodies


def test_a_frame_that_rotted_is_named_and_its_neighbours_are_read(frames: Frames) -> None:
    offset = frames.disk.read("/b").index(b"55555")
    frames.disk.poke("/b", offset, b"5")
    frames.disk.poke("/b", offset, b"4")
    found = frames.replayed.read(8, 10)
    assert (found[0], found[2]) == (frames.bodies[3], frames.bodies[5])
    assert isinstance(found[1], BadFrame)
    assert found[1].message == "the checksum of the frame is wrong: the file has changed since the start"


def test_a_file_that_got_shorter_gives_bad_frames_not_wrong_ones(frames: Frames) -> None:
    frames.disk.replace("/b", frames.disk.read("/b")[:60])
    found = frames.replayed.read(8, 10)
    assert isinstance(found[1], BadFrame)
    assert isinstance(found[2], BadFrame)


def test_numbers_are_those_of_live_records(frames: Frames) -> None:
    replayed = frames.replayed
    assert replayed.live_numbers(1, 100) == (5, 1 + 2 + 4 + 5 + 6)
    assert replayed.live_numbers(8, 8) == (1, 4)
    assert replayed.live_numbers(11, 20) == (0, 0)
    assert replayed.kill(9) == 5
    assert replayed.kill(9) is None
    assert replayed.kill(7) is None
    assert replayed.live_numbers(1, 100) == (4, 13)
    assert list(replayed.live_sizes(6)) == [(6, 2), (8, 4), (10, 6)]
    assert (replayed.next_live(7), replayed.next_live(9), replayed.next_live(11)) == (8, 10, None)
    assert replayed.dead_marks(5, 10) == b"\0\0\1\0\1\0"
    assert list(replayed.sizes(5, 6)) == [1, 2]


def test_slots_below_a_floor_die_once(frames: Frames) -> None:
    replayed = frames.replayed
    assert replayed.forget_below(5) == (0, 0)
    assert replayed.forget_below(9) == (3, 7)
    assert replayed.forget_below(9) == (0, 0)
    assert replayed.read(5, 10) == [None, None, None, None, *frames.bodies[4:]]
    assert replayed.forget_below(1000) == (2, 11)
    assert replayed.next_live(5) is None


@pytest.mark.parametrize(("cutoff_ts", "last_seq"), [(100, 4), (101, 7), (200, 7), (201, 10)])
def test_a_record_of_exactly_the_cutoff_is_not_expired_invariant_18(
    frames: Frames, cutoff_ts: int, last_seq: int
) -> None:
    assert frames.replayed.expired_last_seq(cutoff_ts) == last_seq


@pytest.mark.parametrize("end_seq", range(5, 12))
def test_an_unfinished_write_is_taken_back(frames: Frames, end_seq: int) -> None:
    replayed = frames.replayed
    replayed.truncate(end_seq)
    del frames.bodies[end_seq - 5 :]
    assert replayed.end_seq == end_seq
    frames.add("/c", b"7", b"88", ts=300)
    assert replayed.read(5, replayed.end_seq - 1) == frames.bodies
