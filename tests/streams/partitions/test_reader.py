"""Polls of a partition: by offset, by time, over segments and journal, and with damage on disk."""

import base64
import errno
from itertools import product

import pytest

from tests.streams.partitions.partition_world import (
    EAGER,
    FIRST_INDEX,
    FIRST_LOG,
    World,
    offsets,
    payloads,
)
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.message_index import ENTRY_BYTES
from topics.formats.stream_layout import BodyOrder
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.must_wait import MustWait
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeFile

KEY = base64.b64encode(bytes(range(32))).decode()
START_US = ManualClock().now_ms() * 1000


def numbered(first: int, count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


@pytest.fixture(params=list(product(["all", "open_segment", "none"], ["fresh", "reopened"])), ids="-".join)
def spread(request: pytest.FixtureRequest) -> World:
    """Offsets 0 to 19 by batches of two, ten milliseconds apart: sealed segments, the active one, the journal."""
    mode, age = request.param
    world = World()
    world.open(segment_size=500, cache_indexes=mode)
    for number in range(0, 18, 2):
        world.send(*numbered(number, 2))
        world.clock.advance(10)
    world.partition.flush()
    if age == "reopened":
        world.reopen()
    world.send(*numbered(18, 2))
    assert len(world.partition.segments) == 3
    assert world.partition.unsaved_messages_count == 2
    return world


def test_polls_by_offset_cross_segments_and_the_journal(spread: World) -> None:
    for offset in range(22):
        for count in (0, 1, 2, 3, 7, 100):
            polled = spread.partition.reader.poll_offset(offset, count)
            expected = list(range(offset, min(offset + count, 20)))
            assert offsets(polled) == expected
            assert payloads(polled) == [b"message %d" % number for number in expected]
            assert (polled.partition_id, polled.current_offset, len(polled)) == (7, 19, len(expected))


def test_a_poll_that_must_not_wait_gets_the_same_or_says_that_it_must_wait(spread: World) -> None:
    reader = spread.partition.reader
    for offset in (0, 1, 5, 12, 17, 18, 19, 20, 21):
        for count in (0, 1, 3, 7, 100):
            expected = reader.poll_offset(offset, count)
            try:
                polled = reader.poll_offset_nowait(offset, count)
            except MustWait:
                # Of sealed segments that are synced only the one that was read last is open.
                continue
            assert polled.to_bytes() == expected.to_bytes()
    assert offsets(reader.poll_offset_nowait(18, 100)) == [18, 19], "the journal"
    assert offsets(reader.poll_offset(0, 1)) == offsets(reader.poll_offset_nowait(0, 1)) == [0]


def test_a_poll_that_must_not_wait_does_not_read_what_is_not_cached(
    spread: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = spread.partition.reader
    assert offsets(reader.poll_offset(0, 2)) == offsets(reader.poll_offset_nowait(0, 2)) == [0, 1]
    monkeypatch.setattr(FakeFile, "pread_into_nowait", lambda *_: False)
    with pytest.raises(MustWait):
        reader.poll_offset_nowait(0, 2)
    assert offsets(reader.poll_offset_nowait(18, 2)) == [18, 19]


def test_a_poll_that_must_not_wait_reads_no_more_than_a_little() -> None:
    world = World(EAGER)
    world.open()
    world.send(*[bytes(300_000)] * 5)
    reader = world.partition.reader
    assert len(reader.poll_offset_nowait(0, 4)) == 4
    with pytest.raises(MustWait):
        reader.poll_offset_nowait(0, 5)
    world.send(*[b""] * 30_000)
    with pytest.raises(MustWait):
        reader.poll_offset_nowait(5, 2**32 - 1)
    assert len(reader.poll_offset_nowait(5, 1000)) == 1000


@pytest.mark.parametrize("others", [{"codec": Codec.LZ4}, {"cipher": Cipher(KEY)}])
def test_messages_that_are_compressed_or_encrypted_must_wait(others: dict[str, object]) -> None:
    world = World(EAGER, **others)
    world.open()
    world.send(b"x" * 100)
    assert payloads(world.partition.reader.poll_offset(0, 1)) == [b"x" * 100]
    with pytest.raises(MustWait):
        world.partition.reader.poll_offset_nowait(0, 1)


def test_polls_of_the_first_and_the_last_messages(spread: World) -> None:
    for count in (0, 1, 5, 19, 20, 21):
        assert offsets(spread.partition.reader.poll_first(count)) == list(range(min(count, 20)))
        assert offsets(spread.partition.reader.poll_last(count)) == list(range(20))[20 - min(count, 20) :]


def test_a_poll_by_time_begins_with_the_first_message_that_is_not_older(spread: World) -> None:
    """The exact time of a batch begins with its first message."""
    for step in range(10):
        exact = START_US + step * 10_000
        assert offsets(spread.partition.reader.poll_timestamp(exact, 3)) == list(range(step * 2, min(step * 2 + 3, 20)))
        assert offsets(spread.partition.reader.poll_timestamp(exact - 1, 3)) == list(
            range(step * 2, min(step * 2 + 3, 20))
        )
        later = list(range(step * 2 + 2, min(step * 2 + 5, 20)))
        assert offsets(spread.partition.reader.poll_timestamp(exact + 1, 3)) == later
    assert offsets(spread.partition.reader.poll_timestamp(0, 2)) == [0, 1]
    assert offsets(spread.partition.reader.poll_timestamp(START_US + 90_001, 2)) == [], "nothing when all are older"


def test_an_empty_partition_answers_every_poll_with_nothing() -> None:
    partition = World().open()
    for polled in (
        partition.reader.poll_offset(0, 10),
        partition.reader.poll_first(10),
        partition.reader.poll_last(10),
        partition.reader.poll_timestamp(0, 10),
    ):
        assert (len(polled), polled.current_offset) == (0, 0)


def test_a_partial_cache_is_not_taken_for_the_whole_index() -> None:
    """A poll without a cache, after a restart and an append, returns the right messages."""
    world = World(EAGER)
    world.open(cache_indexes="none")
    for number in range(6):
        world.send(b"%d" % number)
    world.reopen()
    world.send(b"6")
    for offset in range(7):
        assert world.partition.reader.poll_offset(offset, 2).count == min(2, 7 - offset)
        assert payloads(world.partition.reader.poll_offset(offset, 1)) == [b"%d" % offset]


def test_an_answer_stops_at_its_limit_but_has_one_message_at_least() -> None:
    world = World()
    partition = world.open(max_poll_bytes=200, segment_size=400, messages_required_to_save=2)
    for _ in range(9):
        world.send(b"x")
    assert [offsets(partition.reader.poll_offset(offset, 100)) for offset in (0, 3, 5, 6, 7, 8)] == [
        [0, 1, 2],
        [3, 4, 5],
        [5, 6, 7],
        [6, 7, 8],
        [7, 8],
        [8],
    ]
    world.send(b"y" * 500)
    assert offsets(partition.reader.poll_offset(8, 100)) == [8]
    assert offsets(partition.reader.poll_offset(9, 100)) == [9]
    partition.flush()
    assert offsets(partition.reader.poll_offset(8, 100)) == [8]
    assert offsets(partition.reader.poll_offset(9, 100)) == [9]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_limit_of_an_answer_is_about_what_travels_not_what_is_stored(codec: Codec) -> None:
    world = World(codec=codec)
    partition = world.open(max_poll_bytes=250_000)
    for _ in range(10):
        world.send(bytes(100_000), bytes(100_000))
    assert partition.size_bytes < 50_000
    for flush in (False, True):
        if flush:
            partition.flush()
        polled = partition.reader.poll_offset(3, 100)
        assert offsets(polled) == [3, 4]
        assert polled.size_bytes == 200_128


def test_many_small_batches_of_the_journal_are_one_chunk_and_large_ones_are_not_copied() -> None:
    world = World()
    partition = world.open()
    for number in range(50):
        world.send(b"%d" % number)
    world.send(bytes(100_000))
    world.send(bytes(100_000))
    polled = partition.reader.poll_first(100)
    assert [len(chunk) for chunk in polled.chunks] == [50, 1, 1]
    assert offsets(polled) == list(range(52))
    assert payloads(partition.reader.poll_offset(48, 2)) == [b"48", b"49"]


@pytest.mark.parametrize(
    ("order", "codec", "is_encrypted"),
    list(product(BodyOrder, [Codec.NONE, Codec.ZSTD], [False, True])),
)
def test_messages_come_back_as_they_were_sent_however_they_are_stored(
    order: BodyOrder, codec: Codec, is_encrypted: bool
) -> None:
    world = World(order=order, codec=codec, cipher=Cipher(KEY) if is_encrypted else None)
    partition = world.open(segment_size=600, messages_required_to_save=3)
    for number in range(7):
        headers = {"number": str(number)} if number % 2 else None
        partition.append(
            encode_send(
                [NewMessage(b"payload %d" % number, number + 1, headers, number), NewMessage(b"", 100 + number)]
            )
        )
    for _ in range(2):
        polled = list(world.partition.reader.poll_first(100))
        assert [message.id for message in polled[::2]] == list(range(1, 8))
        assert [bytes(message.payload) for message in polled[::2]] == [b"payload %d" % number for number in range(7)]
        assert [bool(message.user_headers) for message in polled[::2]] == [bool(number % 2) for number in range(7)]
        assert [message.origin_timestamp for message in polled[::2]] == list(range(7))
        assert all(not message.payload for message in polled[1::2])
        world.reopen()


# Damage on disk.


@pytest.mark.parametrize("mode", ["all", "open_segment", "none"])
def test_a_message_with_a_wrong_checksum_fails_its_poll_and_no_other(mode: str) -> None:
    world = World(EAGER)
    partition = world.open(segment_size=300, cache_indexes=mode)
    for number in range(10):
        world.send(b"%d" % number)
    world.disk.poke(FIRST_LOG, 2 * 65 + 64, b"X")
    for poll in (
        lambda: partition.reader.poll_offset(2, 1),
        lambda: partition.reader.poll_first(10),
        lambda: partition.reader.poll_last(10),
    ):
        with pytest.raises(StreamsError) as refused:
            poll()
        assert refused.value.number is StreamStatus.INVALID_MESSAGE_CHECKSUM
    with pytest.raises(StreamsError) as refused:
        partition.reader.poll_timestamp(START_US, 5)
    assert refused.value.number is StreamStatus.INVALID_MESSAGE_CHECKSUM
    assert offsets(partition.reader.poll_offset(0, 2)) == [0, 1]
    assert offsets(partition.reader.poll_offset(3, 100)) == list(range(3, 10))


def test_an_index_that_points_to_another_message_fails_the_poll() -> None:
    """The offset in the message must be the one that was polled."""
    world = World(EAGER)
    world.open(cache_indexes="none")
    for number in range(4):
        world.send(b"%d" % number)
    message = world.disk.read(FIRST_LOG)[:65]
    world.disk.poke(FIRST_LOG, 130, message)
    with pytest.raises(StreamsError) as refused:
        world.partition.reader.poll_offset(2, 1)
    assert refused.value.number is StreamStatus.INVALID_OFFSET


def test_positions_that_fall_between_good_ones_fail_the_poll() -> None:
    world = World(EAGER)
    world.open(cache_indexes="none")
    world.send(*[b"x"] * 6)
    world.disk.poke(FIRST_INDEX, 2 * ENTRY_BYTES + 4, (70).to_bytes(4, "little"))
    with pytest.raises(StreamsError) as refused:
        world.partition.reader.poll_first(6)
    assert refused.value.number is StreamStatus.CANNOT_READ_INDEX_POSITION
    assert offsets(world.partition.reader.poll_offset(0, 2)) == [0, 1]
    assert offsets(world.partition.reader.poll_offset(4, 2)) == [4, 5]
    world.restart()
    assert offsets(world.partition.reader.poll_first(6)) == list(range(6))


def test_files_that_cannot_be_opened_or_read_now_are_an_error_of_that_poll() -> None:
    """A poll without free file descriptors fails, and a later one works."""
    world = World(EAGER)
    partition = world.open(segment_size=130)
    world.send(b"1", b"2")
    world.reopen()
    partition = world.partition
    for operation, number in (("open", errno.EMFILE), ("pread", errno.EIO)):
        world.faults.fail(operation, error=number)
        with pytest.raises(StreamsError) as refused:
            partition.reader.poll_first(1)
        assert refused.value.number is StreamStatus.IO_ERROR
        world.faults.heal()
        assert payloads(partition.reader.poll_first(1)) == [b"1"]
