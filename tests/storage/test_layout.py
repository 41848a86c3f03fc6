"""Names in the data directory: spelled and parsed in one place, pinned here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.storage import layout

U64 = st.integers(1, 2**64 - 1)


def test_names_are_those_of_the_contract() -> None:
    assert layout.wal_directory("/d") == "/d/wal"
    assert layout.shard_directory("/d", 0, 1) == "/d/wal"
    assert layout.shard_directory("/d", 3, 8) == "/d/wal/shard-03"
    assert layout.wal_name(17) == "wal-0000000000000017.log"
    assert layout.snapshot_path("/d", 3) == "/d/meta/snapshot.0003.bin"
    assert layout.snapshot_path("/d", 12_345) == "/d/meta/snapshot.12345.bin"
    assert layout.topic_directory("/d", 255) == "/d/topics/000000FF"
    assert layout.topic_name(2**40) == "10000000000"
    assert layout.segment_stem(9) == "seg-0000000000000009"
    assert layout.segment_object(10, 1, "data") == "topics/0000000A/seg-0000000000000001.data"
    assert (layout.LOCK, layout.STORE, layout.CURRENT, layout.TOPIC_JSON) == (
        ".topics.lock",
        "STORE",
        "CURRENT",
        "topic.json",
    )


@given(U64)
def test_a_topic_directory_is_parsed_back(topic_id: int) -> None:
    assert layout.topic_of(layout.topic_name(topic_id)) == topic_id


@given(st.integers(1, 2**64 - 1), st.sampled_from(["data", "idx", "tags"]))
def test_a_segment_name_is_parsed_back(first_seq: int, kind: str) -> None:
    assert layout.segment_of(f"{layout.segment_stem(first_seq)}.{kind}") == (first_seq, kind)


@given(st.integers(1, 10**16 - 1))
def test_a_wal_name_is_parsed_back(first_frame: int) -> None:
    assert layout.wal_first_frame(layout.wal_name(first_frame)) == first_frame


@given(st.integers(1, 10**9))
def test_a_snapshot_name_is_parsed_back(number: int) -> None:
    assert layout.snapshot_number(layout.snapshot_path("", number).rpartition("/")[2]) == number


@pytest.mark.parametrize(
    "name",
    [
        "wal-1.log",
        "wal-0000000000000001.log.tmp",
        "wal-0000000000000001.log.120.torn",
        "wal-000000000000000\N{ARABIC-INDIC DIGIT ONE}.log",
        "snapshot.001.bin",
        "snapshot.0001.bin.tmp",
        "seg-1.data",
        "seg-0000000000000001.dat",
        "seg-0000000000000001.data.tmp",
        "shard-1",
        "shard-001",
        "0000000a",
        "00000001.deleted",
        "0000001",
        "CURRENT",
        "",
    ],
)
def test_what_is_not_spelled_exactly_so_is_not_ours(name: str) -> None:
    parsers = (
        layout.wal_first_frame,
        layout.snapshot_number,
        layout.segment_of,
        layout.shard_of,
        layout.topic_of,
    )
    assert [parse(name) for parse in parsers] == [None] * len(parsers)


@given(U64, st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True), st.tuples(*[st.integers(0, 2**64 - 1)] * 4))
def test_the_name_of_a_staged_chunk_is_parsed_back(
    topic_id: int, writer: str, place: tuple[int, int, int, int]
) -> None:
    name = layout.staged_chunk_name(topic_id, writer, *place)
    assert layout.staged_chunk_of(name) == (topic_id, writer, *place)
    assert layout.staged_chunk_of(name + layout.TEMPORARY) is None
