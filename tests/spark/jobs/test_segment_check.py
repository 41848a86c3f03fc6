"""Every byte of a segment's files that changes is found, and in the right file, by what an executor runs."""

from typing import Final

import msgspec
import pytest

from tests.storage.directories import ROOT, SMALL, Store, filled_disk
from topics.engine.settings import EngineSettings
from topics.formats import segment, segment_index
from topics.results import NewRecord
from topics.spark.jobs.segment_check import check_segment
from topics.storage.inspect.segment_survey import SegmentTask
from topics.storage.inspect.verify import Verifier
from topics.testing.fake_disk import FakeDisk

FLIPS: Final = (0x01, 0x80)


def tasks_of(disk: FakeDisk) -> list[SegmentTask]:
    tasks: list[SegmentTask] = []
    findings = list(Verifier(disk, ROOT, leave_segment=tasks.append).run())
    assert not [finding for finding in findings if finding.severity != "note"]
    return tasks


def disk_with_holes() -> FakeDisk:
    """One segment of ten seqs, of which some were deleted before they got there, one after."""
    disk = FakeDisk()
    opened = Store(disk, settings=SMALL)
    opened.create("orders", durability="fsync")
    for number in range(1, 12):
        opened.append("orders", NewRecord({"number": number}, tag="odd" if number % 2 else None, node="n1"))
    for seq in (3, 4, 8):
        opened.delete("orders", seqs=[seq])
    opened.checkpoint()
    opened.delete("orders", seqs=[6])
    opened.checkpoint()
    opened.kill()
    return disk


def delete_bytes(disk: FakeDisk, task: SegmentTask) -> set[int]:
    data = disk.read(f"{ROOT}/{task.name}")
    return {frame.end - 1 for frame in segment.walk(data, 0, len(data))}


@pytest.fixture(scope="module")
def holes() -> FakeDisk:
    return disk_with_holes()


def first_task(disk: FakeDisk) -> SegmentTask:
    return min(tasks_of(disk), key=lambda task: task.first_seq)


def test_sound_segments_have_no_findings_and_are_counted() -> None:
    disk = filled_disk()
    checked = [check_segment(task, disk) for task in tasks_of(disk)]
    assert [each.findings for each in checked] == [()] * len(checked)
    assert sum(each.records for each in checked) == 40
    task = first_task(disk)
    assert checked[0].bytes == len(disk.read(f"{ROOT}/{task.name}")) + task.state.entry_count * 20


def test_a_segment_with_holes_is_sound(holes: FakeDisk) -> None:
    task = first_task(holes)
    entries = list(segment_index.decode(holes.read(f"{ROOT}/{task.name}".replace(".data", ".idx"))))
    assert [entry.length == 0 for entry in entries].count(True) == 3
    checked = check_segment(task, holes)
    assert (checked.findings, checked.records) == ((), 7)


@pytest.mark.parametrize("kind", ["data", "idx"])
def test_every_byte_that_changes_is_found_in_its_file(holes: FakeDisk, kind: str) -> None:
    task = first_task(holes)
    path = f"{ROOT}/{task.name}".removesuffix("data") + kind
    content = holes.read(path)
    may_change = delete_bytes(holes, task) if kind == "data" else set()
    frames = list(segment.walk(holes.read(f"{ROOT}/{task.name}"), 0, task.state.data_bytes))
    for at in range(len(content)):
        for flip in FLIPS:
            holes.poke(path, at, bytes((content[at] ^ flip,)))
            findings = check_segment(task, holes).findings
            holes.poke(path, at, content[at : at + 1])
            if at in may_change:
                continue
            if not findings:
                # The hint of a record that is deleted may be there or not.
                assert (kind, at % 20, flip) == ("idx", 16, 0x80)
                assert task.first_seq + at // 20 == 6
                continue
            places = [finding for finding in findings if finding.file == path]
            assert places, f"{path} {at}: {findings}"
            if kind == "idx":
                assert any(finding.offset == at - at % 20 for finding in places)
            else:
                frame = next(frame for frame in frames if frame.offset <= at < frame.end)
                assert any((finding.offset, finding.seq) == (frame.offset, frame.seq) for finding in places)
    assert check_segment(task, holes).findings == ()


def test_a_flip_in_the_tag_sidecar_is_found(holes: FakeDisk) -> None:
    task = first_task(holes)
    path = f"{ROOT}/{task.name}".replace(".data", ".tags")
    content = holes.read(path)
    for at in range(len(content)):
        holes.poke(path, at, bytes((content[at] ^ 0x04,)))
        assert [finding.file for finding in check_segment(task, holes).findings] == [path]
        holes.poke(path, at, content[at : at + 1])


def test_a_segment_that_is_not_there_is_told_apart_from_a_sound_one(holes: FakeDisk) -> None:
    task = first_task(holes)
    other = task._replace(state=msgspec.structs.replace(task.state, first_seq=999))
    assert check_segment(other, holes).is_missing
    assert not check_segment(task, holes).is_missing


def test_frames_that_are_valid_but_others_than_those_that_were_sealed_are_found() -> None:
    one, other = filled_disk(), FakeDisk()
    opened = Store(other, settings=EngineSettings(wal_shards=1, segment_events_max=10, segment_age_ms_max=0))
    opened.create("orders", durability="fsync")
    for number in range(1, 41):
        opened.append("orders", NewRecord({"number": 100 - number}, tag="odd" if number % 2 else None))
    opened.checkpoint()
    opened.kill()
    task = first_task(one)._replace(numbers="manifest")
    same = first_task(other)._replace(numbers="manifest")
    mixed = same._replace(state=msgspec.structs.replace(same.state, digest=task.state.digest))
    (finding,) = check_segment(mixed, other).findings
    assert finding.message == "every frame is valid, but they are not the ones that were sealed"
    assert check_segment(same, other).findings == ()
