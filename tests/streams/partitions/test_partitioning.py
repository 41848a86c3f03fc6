"""Which partition a send goes to."""

import threading
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh32_intdigest

from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.partitions.partitioning import Balanced, MessagesKey, PartitionId, Partitioning, RoundRobin, choose


def test_balanced_requests_go_round() -> None:
    counter = RoundRobin()
    assert [choose(Balanced(), 3, counter) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_round_goes_on_when_partitions_come_and_go() -> None:
    counter = RoundRobin()
    assert [choose(Balanced(), count, counter) for count in (3, 3, 3, 4, 4, 4, 4, 2, 2, 1, 1)] == [
        *(0, 1, 2),
        *(0, 1, 2, 3),
        *(0, 1),
        *(0, 0),
    ]
    for _ in range(3):
        counter.take(4)
    assert counter.take(2) in (0, 1)


def test_other_partitionings_do_not_move_the_round() -> None:
    counter = RoundRobin()
    choose(PartitionId(1), 3, counter)
    choose(MessagesKey(b"key"), 3, counter)
    assert choose(Balanced(), 3, counter) == 0


def test_threads_share_one_round() -> None:
    counter = RoundRobin()
    chosen: list[list[int]] = [[] for _ in range(4)]

    def work(own: list[int]) -> None:
        own.extend(choose(Balanced(), 5, counter) for _ in range(500))

    threads = [threading.Thread(target=work, args=(own,)) for own in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(chain.from_iterable(chosen)) == dict.fromkeys(range(5), 400)


def test_a_partition_that_is_named_is_taken() -> None:
    assert choose(PartitionId(2), 3, RoundRobin()) == 2


def test_a_key_has_the_documented_partition() -> None:
    assert xxh32_intdigest(b"key") == 3017358048
    assert choose(MessagesKey(b"key"), 3, RoundRobin()) == 0


@given(key=st.binary(min_size=1, max_size=255), partitions_count=st.integers(1, 1000))
def test_equal_keys_go_to_the_same_partition_that_exists(key: bytes, partitions_count: int) -> None:
    chosen = choose(MessagesKey(key), partitions_count, RoundRobin())
    assert chosen == choose(MessagesKey(key), partitions_count, RoundRobin())
    assert 0 <= chosen < partitions_count


@pytest.mark.parametrize(
    ("partitioning", "partitions_count", "number"),
    [
        (Balanced(), 0, StreamStatus.TOPIC_ID_NOT_FOUND),
        (PartitionId(3), 3, StreamStatus.PARTITION_NOT_FOUND),
        (PartitionId(0), 0, StreamStatus.PARTITION_NOT_FOUND),
        (MessagesKey(b"key"), 0, StreamStatus.NO_PARTITIONS),
    ],
)
def test_partitions_that_do_not_exist_are_refused(
    partitioning: Partitioning, partitions_count: int, number: StreamStatus
) -> None:
    with pytest.raises(StreamsError) as refused:
        choose(partitioning, partitions_count, RoundRobin())
    assert refused.value.number is number


@pytest.mark.parametrize("key", [b"", b"x" * 256])
def test_a_key_has_1_to_255_bytes(key: bytes) -> None:
    with pytest.raises(StreamsError) as refused:
        MessagesKey(key)
    assert refused.value.number is StreamStatus.INVALID_COMMAND
