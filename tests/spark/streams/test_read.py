"""Rows of messages: what comes out of a directory, and what becomes of those that are not there any more."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import topics.streams
from tests.spark.streams_world import (
    HEADERS,
    KEY,
    OTHER_KEY,
    batch_reader,
    offsets,
    open_world,
    payload,
    read,
    rows_of,
    send,
    settings_of,
    write,
)
from topics.errors import StartRefused
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.streams.directory import directory_path
from topics.stream_errors import StreamsError
from topics.streams import PollingStrategy, StreamsSettings

PARTITION = "streams/0/topics/0/partitions/0"


def logs(path: Path, partition: str = PARTITION) -> list[Path]:
    return sorted((path / partition).glob("*.log"))


@pytest.mark.parametrize("flavour", ["page", "iggy"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_every_message_comes_with_all_that_was_sent(
    flavour: str, compression: str, key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 100, settings_of(flavour=flavour, compression=compression, key=key))
    if key is not None:
        monkeypatch.setenv("KEY_OF_ORDERS", key)
    rows = read(tmp_path, **({} if key is None else {"keyEnv": "KEY_OF_ORDERS"}))
    assert offsets(rows) == list(range(100))
    for number, row in enumerate(rows):
        assert (row["stream"], row["topic"], row["partition"]) == ("orders", "events", 0)
        assert row["id"] == (number + 1).to_bytes(16, "little").hex()
        assert row["payload"] == payload(number)
        assert row["headers"] == (HEADERS if number % 3 == 0 else None)
        assert row["origin_timestamp"] == (datetime.fromtimestamp(number / 1e6, UTC) if number else None)
        assert row["timestamp"].year >= 2026
    assert len(logs(tmp_path)) > 1


def test_a_directory_of_another_server_is_read_as_the_engine_reads_it(shared_fixtures: Path, tmp_path: Path) -> None:
    source = shared_fixtures / "iggy-0.8.0"
    if not source.is_dir():
        pytest.skip("the directory of another server is missing: no folder iggy-0.8.0 in ../shared/fixtures")
    # The engine needs one that it may write to; ours is read where it is.
    copy = tmp_path / "data"
    shutil.copytree(source, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    with topics.streams.open(copy) as streams:
        for topic, partition in (("events", 0), ("events", 1), ("audit", 0)):
            polled = streams.poll("orders", topic, partition=partition, count=10_000, strategy=PollingStrategy.first())
            rows = read(source, topic=topic, partitions=str(partition))
            assert len(rows) == len(polled) > 0
            assert [(row["offset"], row["payload"], row["headers"]) for row in rows] == [
                (message.offset, bytes(message.payload), bytes(message.user_headers) or None) for message in polled
            ]


def test_an_engine_at_work_is_read_beside(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 30)
        assert len(read(tmp_path)) == 30
        send(streams, 30, first=30)
        reader = batch_reader(tmp_path)
        planned = reader.partitions()
        send(streams, 30, first=60)
        # What came after planning belongs to the next read.
        assert offsets(rows_of(reader, planned)) == list(range(60))


def test_messages_that_the_engine_still_buffers_are_not_there_yet(tmp_path: Path) -> None:
    with open_world(tmp_path, StreamsSettings()) as streams:
        send(streams, 30)
        assert read(tmp_path) == []
        streams.flush("orders", "events", 0)
        assert len(read(tmp_path)) == 30


def test_a_torn_end_of_a_log_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, 25, settings_of(segment_bytes=1024 * 1024))
    (log,) = logs(tmp_path)
    with log.open("ab") as file:
        file.write(b"half of a message")
    assert offsets(read(tmp_path)) == list(range(25))


def test_offsets_times_and_partitions_are_chosen(tmp_path: Path) -> None:
    with open_world(tmp_path, partitions=3) as streams:
        for partition in range(3):
            send(streams, 30, partition=partition)
    assert len(read(tmp_path)) == 90
    assert {row["partition"] for row in read(tmp_path, partitions="2,0")} == {0, 2}
    rows = read(tmp_path, partitions="1", startingOffsets='{"1": 7}', endingOffsets='{"1": 12}')
    assert offsets(rows) == [7, 8, 9, 10, 11, 12]
    # Batches of ten share a time, and times of the engine never stand still for longer than a batch.
    every = read(tmp_path, partitions="1")
    middle = every[10]["timestamp"]
    late = [row for row in every if row["timestamp"] >= middle.replace(microsecond=middle.microsecond // 1000 * 1000)]
    assert read(tmp_path, partitions="1", startingTimestamp=middle.isoformat(timespec="milliseconds")) == late
    early = read(tmp_path, partitions="1", endingTimestamp=middle.isoformat(timespec="milliseconds"))
    assert early + late == every
    assert read(tmp_path, endingTimestamp="2020-01-01T00:00:00Z") == []
    assert read(tmp_path, startingTimestamp="2100-01-01T00:00:00Z") == []


def test_tasks_are_cut_by_bytes_and_give_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path, 200, settings_of(segment_bytes=8192))
    whole = read(tmp_path)
    for given in ({"partitionBytes": "2k"}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "13"}):
        reader = batch_reader(tmp_path, **given)
        parts = reader.partitions()
        assert len(parts) >= 7
        assert rows_of(reader, parts) == whole
    reader = batch_reader(tmp_path, batchRecords="9")
    (part,) = reader.partitions()
    assert max(batch.num_rows for batch in reader.read(part)) == 9


def test_what_retention_took_is_a_gap_where_it_was_asked_for(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 100)
        assert streams.system.delete_segments("orders", "events", 0, 1) == 1
        first = int(logs(tmp_path)[0].stem)
        assert offsets(read(tmp_path)) == list(range(first, 100))
        with pytest.raises(TopicsDataLoss) as caught:
            read(tmp_path, startingOffsets='{"0": 3}')
        assert caught.value.message.startswith(
            f'stream "orders", topic "events": data loss: partition "0": offsets 3-{first - 1} are evicted by a cap or '
            f"expired (evict_floor {first}, earliest_offset {first}, head_offset 99)."
        )
        gap, *rest = read(tmp_path, startingOffsets='{"0": 3}', gaps="rows")
        assert (gap["kind"], gap["offset"], gap["gap_to"], gap["gap_reason"]) == ("gap", 3, first - 1, "mixed")
        assert gap["payload"] is None
        assert offsets(rest) == list(range(first, 100))
        assert {row["kind"] for row in rest} == {"record"}


def test_a_file_that_retention_takes_after_planning_is_a_gap(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 100)
        strict, lenient = batch_reader(tmp_path), batch_reader(tmp_path, gaps="rows")
        planned, planned_leniently = strict.partitions(), lenient.partitions()
        streams.system.delete_segments("orders", "events", 0, 1)
        first = int(logs(tmp_path)[0].stem)
        with pytest.raises(TopicsDataLoss) as caught:
            rows_of(strict, planned)
        assert caught.value.gap[1:4] == (0, first - 1, "mixed")
        gap, *rest = rows_of(lenient, planned_leniently)
        assert (gap["offset"], gap["gap_to"], gap["gap_reason"]) == (0, first - 1, "mixed")
        assert offsets(rest) == list(range(first, 100))


def test_a_segment_that_is_missing_between_others_is_a_gap(tmp_path: Path) -> None:
    write(tmp_path, 100)
    second, third = (int(log.stem) for log in logs(tmp_path)[1:3])
    for suffix in (".log", ".index"):
        (tmp_path / PARTITION / f"{second:020d}{suffix}").unlink()
    with pytest.raises(TopicsDataLoss, match="in no file"):
        read(tmp_path)
    rows = read(tmp_path, gaps="rows")
    (gap,) = [row for row in rows if row["kind"] == "gap"]
    assert (gap["offset"], gap["gap_to"], gap["gap_reason"]) == (second, third - 1, "missing")
    assert offsets(rows) == [*range(second), second, *range(third, 100)]


def test_messages_of_a_topic_that_was_emptied_meanwhile_are_never_taken_for_the_old_ones(tmp_path: Path) -> None:
    with open_world(tmp_path) as streams:
        send(streams, 30)
        reader = batch_reader(tmp_path, gaps="rows")
        planned = reader.partitions()
        streams.purge_topic("orders", "events")
        send(streams, 60, first=1000)
        with pytest.raises(TopicsDataLoss) as caught:
            rows_of(reader, planned)
        assert caught.value.gap.reason == "recreated"
        streams.delete_topic("orders", "events")
        with pytest.raises(TopicsDataLoss) as caught:
            rows_of(reader, planned)
        assert caught.value.gap.reason == "topic_deleted"


def test_a_damaged_message_fails_the_read_or_is_a_row(tmp_path: Path) -> None:
    write(tmp_path, 100)
    log = logs(tmp_path)[1]
    first = int(log.stem)
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    with pytest.raises(TopicsDataLoss) as caught:
        read(tmp_path)
    assert caught.value.message.startswith(
        f'stream "orders", topic "events": {log}: data loss: partition "0": offsets {first}-{first} are damaged. '
        "Ways out: accept it as a row with option onCorrupt=rows;"
    )
    rows = read(tmp_path, onCorrupt="rows")
    assert offsets(rows) == list(range(100))
    (gap,) = [row for row in rows if row["kind"] == "gap"]
    assert (gap["offset"], gap["gap_to"], gap["gap_reason"]) == (first, first, "corrupt")
    assert offsets(read(tmp_path, verify="false")) == list(range(100))


def test_an_index_of_a_sealed_segment_that_is_wrong_or_missing_costs_no_message(tmp_path: Path) -> None:
    write(tmp_path, 100)
    whole = read(tmp_path)
    index = logs(tmp_path)[1].with_suffix(".index")
    content = index.read_bytes()
    damaged = bytearray(content)
    damaged[20] ^= 0xFF
    for wrong in (content[:-16], content[:-3], bytes(damaged), b""):
        index.write_bytes(wrong)
        assert read(tmp_path) == whole
        assert read(tmp_path, partitionBytes="1k") == whole
    index.unlink()
    assert read(tmp_path) == whole


def test_a_last_segment_with_a_wrong_index_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 25, settings_of(segment_bytes=1024 * 1024))
    (log,) = logs(tmp_path)
    log.with_suffix(".index").unlink()
    with pytest.raises(StartRefused, match="the next start of the engine makes it again"):
        read(tmp_path)


def test_a_key_that_is_wrong_or_missing_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 10, settings_of(key=KEY))
    with pytest.raises(StartRefused, match="an encrypted directory needs its key: IGGY_SYSTEM_ENCRYPTION_ENABLED=true"):
        read(tmp_path)
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("IGGY_SYSTEM_ENCRYPTION_KEY", KEY)
    assert len(read(tmp_path)) == 10
    key_file = tmp_path / "key"
    key_file.write_text(OTHER_KEY + "\n")
    with pytest.raises(StartRefused) as caught:
        read(tmp_path, keyFile=str(key_file))
    assert OTHER_KEY not in caught.value.message
    key_file.write_text("not a key")
    with pytest.raises(BadOption) as refused:
        read(tmp_path, keyFile=str(key_file))
    assert refused.value.message == f"{key_file}: an encryption key is 32 bytes in standard base64"
    monkeypatch.delenv("IGGY_SYSTEM_ENCRYPTION_KEY")
    with pytest.raises(BadOption, match="no variable NOT_THERE"):
        read(tmp_path, keyEnv="NOT_THERE")


def test_a_key_for_a_directory_without_encryption_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 10)
    monkeypatch.setenv("KEY", KEY)
    with pytest.raises(StreamsError, match="offsets 0-9: "):
        read(tmp_path, keyEnv="KEY")


def test_names_that_are_not_there_are_answered_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, 10)
    for given, problem in (
        ({"stream": "invoices"}, 'there is no stream "invoices" in '),
        ({"topic": "audits"}, 'there is no topic "audits" in stream "orders"; it has events'),
        ({"partitions": "0,4"}, 'option `partitions` has 4, topic "events" has partitions 0 to 0'),
    ):
        with pytest.raises(BadOption) as caught:
            read(tmp_path, **given)
        assert caught.value.message.startswith(problem)
    with pytest.raises(BadOption, match="a directory of streams is read from files; mount it, or copy it"):
        directory_path("s3://bucket/streams")
    with pytest.raises(StartRefused, match="no data directory of streams"):
        read(tmp_path / "elsewhere")
    # A number is an id where it is no name.
    assert read(tmp_path, stream="0", topic="0") == read(tmp_path)


def test_only_the_columns_that_are_asked_for_are_made(tmp_path: Path) -> None:
    write(tmp_path, 10)
    assert read(tmp_path, columns="payload,offset")[3] == {"payload": payload(3), "offset": 3}
