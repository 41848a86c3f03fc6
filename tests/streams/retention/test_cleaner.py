"""Retention: decisions over values, then the cleaner on real partitions."""

import errno
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.retention.kept_topic import BATCH_MESSAGES, KeptTopic, key_of
from topics.storage.fs import RealFs
from topics.streams.consumers.consumer_offsets import ConsumerKind
from topics.streams.retention.cleaner import (
    NEVER_EXPIRES,
    UNLIMITED_BYTES,
    Cleaner,
    RetainedSegment,
    expired,
    is_oversized,
    oldest,
    oversized,
)
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

SECOND_US: Final = 1_000_000


@dataclass(frozen=True)
class Part:
    """A segment without files."""

    start_offset: int
    end_offset: int
    start_timestamp: int
    end_timestamp: int
    size_bytes: int = 100
    is_sealed: bool = True


def parts(*times: int, size_bytes: int = 100) -> list[Part]:
    """Segments of ten messages, all sealed except the last; the times are those of their last messages."""
    return [
        Part(place * 10, place * 10 + 9, time - 1, time, size_bytes, place < len(times) - 1)
        for place, time in enumerate(times)
    ]


# --- by time ----------------------------------------------------------------------------------------------------


def test_a_segment_expires_at_the_very_microsecond() -> None:
    segments = parts(100, 200, 300)
    assert expired(segments, 50, 149) == []
    assert expired(segments, 50, 150) == segments[:1]
    assert expired(segments, 50, 250) == segments[:2]


def test_the_active_segment_never_expires_and_never_means_never() -> None:
    segments = parts(100, 200, 300)
    assert expired(segments, 1, 10**18) == segments[:2]
    assert expired(segments, NEVER_EXPIRES, 2**64) == []


def test_what_some_reader_has_not_finished_does_not_expire() -> None:
    segments = parts(100, 200, 300, 400)
    assert expired(segments, 1, 10**9, barrier=8) == []
    assert expired(segments, 1, 10**9, barrier=9) == segments[:1]
    assert expired(segments, 1, 10**9, barrier=28) == segments[:2]
    assert expired(segments, 1, 10**9, barrier=None) == segments[:3]


# --- by size ----------------------------------------------------------------------------------------------------


def test_a_topic_is_too_large_from_nine_tenths_on() -> None:
    assert not is_oversized(899, 1000)
    assert is_oversized(900, 1000)
    # Nine tenths of 1001 are 900, rounded down.
    assert is_oversized(900, 1001)
    assert not is_oversized(2**70, UNLIMITED_BYTES)


def test_the_oldest_of_all_first_segments_goes_until_there_is_room() -> None:
    left, right = parts(20, 50, 90), parts(10, 60, 70)
    chosen = oversized({"left": left, "right": right}, 600, 500)
    assert chosen == [("right", right[0]), ("left", left[0])]
    assert oversized({"left": left, "right": right}, 600, 300) == [
        ("right", right[0]),
        ("left", left[0]),
        ("left", left[1]),
        ("right", right[1]),
    ]


def test_a_protected_first_segment_protects_its_whole_partition() -> None:
    left, right = parts(20, 50, 90), parts(10, 60, 70)
    chosen = oversized({"left": left, "right": right}, 600, 1, lambda key, segment: segment is right[0])
    assert chosen == [("left", left[0]), ("left", left[1])]


def test_a_limit_that_nobody_resolved_is_our_own_bug() -> None:
    """In an Apache Iggy 0.8.0 server a limit of 0 deletes everything."""
    with pytest.raises(AssertionError):
        oversized({"left": parts(1, 2)}, 200, 0)
    with pytest.raises(AssertionError):
        expired(parts(1, 2), 0, 10)


TOPICS = st.dictionaries(
    st.sampled_from("abc"),
    st.lists(st.integers(1, 50), min_size=1, max_size=6).map(lambda times: parts(*sorted(times))),
    min_size=1,
)


@given(topic=TOPICS, max_bytes=st.integers(1, 2500), protected=st.sets(st.sampled_from("abc")))
def test_no_more_goes_than_must_and_no_less_than_can(
    topic: dict[str, list[Part]], max_bytes: int, protected: set[str]
) -> None:
    topic_bytes = sum(len(segments) * 100 for segments in topic.values())
    chosen = oversized(topic, topic_bytes, max_bytes, lambda key, segment: key in protected)
    limit = max_bytes * 9 // 10
    left_bytes = topic_bytes - 100 * len(chosen)
    assert not chosen or left_bytes + 100 >= limit
    deletable = sum(len(segments) - 1 for key, segments in topic.items() if key not in protected)
    assert left_bytes < limit or len(chosen) == deletable
    for key, segments in topic.items():
        mine = [segment for other, segment in chosen if other == key]
        assert mine == segments[: len(mine)]
        assert all(segment.is_sealed for segment in mine)
    times = [segment.start_timestamp for _, segment in chosen]
    assert times == sorted(times)


def test_a_client_gets_as_many_of_the_oldest_deleted_as_may_go() -> None:
    segments = parts(1, 2, 3, 4)
    assert oldest(segments, 0) == []
    assert oldest(segments, 2) == segments[:2]
    assert oldest(segments, 100) == segments[:3]
    assert oldest(segments, 100, barrier=12) == segments[:1]


# --- the cleaner ------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


def new_cleaner(*, keep_unconsumed: bool = False) -> Cleaner:
    return Cleaner(keep_unconsumed=keep_unconsumed)


def test_what_has_expired_goes_and_offsets_go_on(disk: FakeDisk) -> None:
    monitor = MonitorFs(disk)
    topic = KeptTopic(monitor)
    for _ in range(4):
        topic.fill()
    assert topic.starts() == [0, 3, 6, 9, 12]
    size_bytes = topic.partition().size_bytes
    cleaner = new_cleaner()
    cleaner.run(topic.retained(message_expiry_us=2 * SECOND_US), topic.now_us())
    assert topic.starts() == [6, 9, 12]
    assert list(topic.messages()) == list(range(6, 12))
    assert cleaner.deleted_segments_total == 2
    assert cleaner.deleted_bytes_total == size_bytes - topic.partition().size_bytes
    cleaner.run(topic.retained(message_expiry_us=1), topic.now_us() + 1)
    assert topic.starts() == [12]
    topic.fill()
    assert list(topic.messages()) == [12, 13, 14]
    assert monitor.check_settled() == []
    topic.close()
    assert list(KeptTopic(disk).messages()) == [12, 13, 14]


def test_what_is_too_much_goes_from_all_partitions_by_age(disk: FakeDisk) -> None:
    topic = KeptTopic(disk, partitions_count=2)
    topic.fill(0, 1, 1, 0, 0, 1)
    segment_bytes = topic.partition().segments[0].size_bytes
    new_cleaner().run(topic.retained(max_bytes=segment_bytes * 4), topic.now_us())
    # Four segments exceed nine tenths of the limit, which is four segments, so three are left.
    assert (topic.starts(0), topic.starts(1)) == ([3, 6, 9], [6, 9])


def test_without_limits_nothing_goes(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    topic.fill()
    new_cleaner().run(topic.retained(), topic.now_us() * 2)
    assert topic.starts() == [0, 3]


@pytest.mark.parametrize("limits", [{"message_expiry_us": 1}, {"max_bytes": 1}])
def test_unread_messages_stay_if_they_are_to(disk: FakeDisk, limits: dict[str, int]) -> None:
    topic = KeptTopic(disk)
    for _ in range(3):
        topic.fill()
    retained = topic.retained(**limits)
    offsets = topic.partitions[0].offsets
    offsets.store(ConsumerKind.CONSUMER, 1, 100)
    offsets.store(ConsumerKind.GROUP, 1, 4)
    keeping = new_cleaner(keep_unconsumed=True)
    keeping.run(retained, topic.now_us() + 1)
    assert topic.starts() == [3, 6, 9]
    offsets.store(ConsumerKind.GROUP, 1, 5)
    keeping.run(retained, topic.now_us() + 1)
    assert topic.starts() == [6, 9]
    new_cleaner().run(retained, topic.now_us() + 1)
    assert topic.starts() == [9]


@pytest.mark.parametrize("limits", [{"message_expiry_us": 1}, {"max_bytes": 1}])
def test_a_partition_that_cannot_delete_does_not_keep_others_from_it(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, limits: dict[str, int]
) -> None:
    faults = FaultFs(disk)
    topic = KeptTopic(faults, partitions_count=2)
    topic.fill(0, 0, 1, 1)
    # Only the first segment cannot be deleted. The second must not be deleted before it.
    faults.fail("unlink", error=errno.EIO, path=lambda path: path.endswith(f"{key_of(0)}/{0:020d}.log"))
    cleaner = new_cleaner()
    cleaner.run(topic.retained(**limits), topic.now_us() + 1)
    assert (topic.starts(0), topic.starts(1)) == ([0, 3, 6], [6])
    assert f"{key_of(0)}: segment 0 is not deleted yet" in caplog.text
    assert list(topic.messages(0)) == list(range(6))
    cleaner.run(topic.retained(**limits), topic.now_us() + 1)
    assert (topic.starts(0), topic.starts(1)) == ([6], [6])


def test_a_client_deletes_the_oldest_segments_under_the_same_protection(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    for _ in range(4):
        topic.fill()
    kept = topic.partitions[0]
    assert new_cleaner().delete_oldest(kept, 1) == 1
    assert topic.starts() == [3, 6, 9, 12]
    kept.offsets.store(ConsumerKind.CONSUMER, 1, 7)
    assert new_cleaner(keep_unconsumed=True).delete_oldest(kept, 10) == 1
    assert topic.starts() == [6, 9, 12]

    def is_second(key: str, segment: RetainedSegment) -> bool:
        return key == key_of(0) and segment.start_offset == 9

    assert Cleaner(keep_unconsumed=False, must_stay=is_second).delete_oldest(kept, 10) == 1
    assert topic.starts() == [9, 12]
    assert new_cleaner().delete_oldest(kept, 10) == 1
    assert new_cleaner().delete_oldest(kept, 10) == 0
    assert topic.starts() == [12]


def test_what_follows_a_segment_that_must_stay_waits_for_it(disk: FakeDisk) -> None:
    topic = KeptTopic(disk)
    for _ in range(3):
        topic.fill()
    cleaner = Cleaner(keep_unconsumed=False, must_stay=lambda key, segment: segment.start_offset == 3)
    cleaner.run(topic.retained(message_expiry_us=1, max_bytes=1), topic.now_us() + 1)
    assert topic.starts() == [3, 6, 9]


def test_readers_and_retention_meet_without_harm(tmp_path: Path) -> None:
    """Polls run while the segments that they read are deleted, and a restart works."""
    topic = KeptTopic(RealFs(), str(tmp_path))
    problems: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            found = topic.messages()
            # A poll may miss whole segments that were deleted while it ran.
            starts = [offset for offset in found if offset % BATCH_MESSAGES == 0]
            whole = [start + place for start in sorted(starts) for place in range(BATCH_MESSAGES)]
            if list(found) != whole or any(found[start].split()[2] != b"0" for start in starts):
                problems.append(found)

    def read_and_note() -> None:
        try:
            read()
        except Exception as error:  # noqa: BLE001 - the outer edge of the thread
            problems.append(error)

    readers = [threading.Thread(target=read_and_note) for _ in range(2)]
    for reader in readers:
        reader.start()
    cleaner = new_cleaner()
    for _ in range(60):
        topic.fill()
        cleaner.run(topic.retained(message_expiry_us=3 * SECOND_US), topic.now_us())
    is_over.set()
    for reader in readers:
        reader.join()
    assert problems == []
    last = 60 * BATCH_MESSAGES
    assert list(topic.messages()) == list(range(last - 3 * BATCH_MESSAGES, last))
    topic.close()
    assert list(KeptTopic(RealFs(), str(tmp_path)).messages()) == list(range(last - 3 * BATCH_MESSAGES, last))
