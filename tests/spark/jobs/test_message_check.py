"""Every byte of a `.log` or `.index` that changes is found in its file and at its place."""

from typing import Final

import pytest

from topics.formats.message_index import decode_entries
from topics.spark.jobs.message_check import check_message_segment
from topics.spark.jobs.message_segments import MessageSegment
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.settings import from_mapping
from topics.streams.system import System
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

ROOT: Final = "/data"
PARTITION: Final = f"{ROOT}/streams/0/topics/0/partitions/0"
FLIPS: Final = (0x01, 0x80)


@pytest.fixture(params=["page", "iggy"])
def disk(request: pytest.FixtureRequest) -> FakeDisk:
    disk = FakeDisk()
    engine = System.open(disk, ROOT, from_mapping({"system": {"flavour": request.param}}), clock=ManualClock())
    engine.create_stream("s")
    engine.create_topic("s", "t")
    for number in range(5):
        headers = {"n": "v"} if number % 2 else None
        engine.send("s", "t", encode_send([NewMessage(b"payload %d" % number, user_headers=headers)]), PartitionId(0))
    engine.close()
    return disk


def test_a_sound_segment_has_no_findings_and_is_counted(disk: FakeDisk) -> None:
    task = MessageSegment(PARTITION, 0, is_last=True)
    checked = check_message_segment(task, disk)
    size = len(disk.read(task.log_path)) + len(disk.read(task.index_path))
    assert checked == ((), 5, size, False)


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("kind", ["log", "index"])
def test_every_byte_that_changes_is_found_in_its_file(disk: FakeDisk, kind: str, is_last: bool) -> None:
    task = MessageSegment(PARTITION, 0, is_last)
    path = task.log_path if kind == "log" else task.index_path
    content = disk.read(path)
    ends = decode_entries(disk.read(task.index_path))["position"].tolist()
    starts = [0, *ends[:-1]]
    for at in range(len(content)):
        for flip in FLIPS:
            disk.poke(path, at, bytes((content[at] ^ flip,)))
            findings = check_message_segment(task, disk).findings
            disk.poke(path, at, content[at : at + 1])
            place = at // 16 if kind == "index" else next(i for i, end in enumerate(ends) if at < end)
            offset = place * 16 if kind == "index" else starts[place]
            assert any((each.file, each.offset, each.seq) == (path, offset, place) for each in findings), (at, findings)


def test_bytes_that_are_not_indexed_yet_are_no_finding_at_the_end_of_a_partition(disk: FakeDisk) -> None:
    last, inner = MessageSegment(PARTITION, 0, is_last=True), MessageSegment(PARTITION, 0, is_last=False)
    index = disk.read(last.index_path)
    disk.replace(last.index_path, index[:-16])
    assert check_message_segment(last, disk).findings == ()
    (finding,) = check_message_segment(inner, disk).findings
    assert (finding.file, finding.message, finding.seq) == (inner.index_path, "1 messages are not in the index", 4)


def test_a_missing_index_is_a_finding_and_a_missing_log_is_told(disk: FakeDisk) -> None:
    task = MessageSegment(PARTITION, 0, is_last=False)
    disk.unlink(task.index_path)
    (finding,) = check_message_segment(task, disk).findings
    assert (finding.file, finding.message) == (task.index_path, "the index is missing")
    assert check_message_segment(MessageSegment(PARTITION, 77, is_last=False), disk).is_missing
