"""Pairs that take the place of a segment: its own records, only deleted ones left out, and any crash understood."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.engine.offers import rewritten
from tests.storage.segments.segment_bench import DIRECTORY, ROOT, TOPIC, body, live_seqs, stem, write
from topics.errors import FormatError, InvalidRequest, NotFound
from topics.formats import segment as codec
from topics.formats.record_layout import DELETED
from topics.formats.segment import SegmentFrame
from topics.formats.segment_index import ENTRY_BYTES
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.segments.cache import load_tags
from topics.storage.segments.reader import SegmentReader
from topics.storage.segments.replacement import Replaced, read_mark, replace_segment, settle_index, version_in_place
from topics.storage.segments.sources import FileSource
from topics.storage.segments.writer import SegmentLimits, flag_deleted, seal_segment
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs
from topics.testing.monitor_fs import MonitorFs

STAGING = f"{ROOT}/staging"
# Seq 3 never got a record; 2, 5 and the last one are deleted.
SEQS = [1, 2, 4, 5, 6, 7]
DEAD = {2, 5, 7}


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(STAGING)
    return disk


@pytest.fixture
def state(disk: FakeDisk) -> SegmentState:
    (state,) = write(disk, SEQS, limits=SegmentLimits(7, 1 << 20, 0), tags={1: "red", 2: "red", 5: "blue", 6: "red"})
    assert state.sealed
    flag(disk, state, DEAD)
    state.live_count -= len(DEAD)
    return state


def reader_of(fs: Fs, state: SegmentState) -> SegmentReader:
    return SegmentReader(FileSource(fs, stem(1)), state)


def flag(disk: FakeDisk, state: SegmentState, seqs: set[int]) -> None:
    flag_deleted(disk, stem(1), reader_of(disk, state).positions(sorted(seqs)))


def stage(disk: FakeDisk, state: SegmentState, stays: Callable[[SegmentFrame], bool]) -> None:
    data, index = rewritten(disk.read(f"{stem(1)}.data"), 1, state.entry_count, stays)
    disk.replace(f"{STAGING}/new.data", data)
    disk.replace(f"{STAGING}/new.idx", index)


def stage_purged(disk: FakeDisk, state: SegmentState) -> None:
    stage(disk, state, lambda frame: frame.seq not in {2, 5})


def replace(fs: Fs, state: SegmentState) -> Replaced:
    return replace_segment(fs, ROOT, TOPIC, state, "new.data", "new.idx")


def replaced_state(state: SegmentState, replaced: Replaced) -> SegmentState:
    return msgspec.structs.replace(
        state, data_bytes=replaced.data_bytes, tagged_count=replaced.tagged_count, digest=replaced.digest
    )


def test_deleted_records_are_left_out_and_the_others_stay(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    offered = disk.read(f"{STAGING}/new.data")
    replaced = replace(disk, state)
    assert disk.read(f"{stem(1)}.data") == offered
    assert (replaced.removed_count, replaced.data_bytes, replaced.is_durable) == (2, len(offered), True)
    after = replaced_state(state, replaced)
    assert live_seqs(reader_of(disk, after)) == [1, 4, 6]
    assert [frame.seq for frame in codec.walk(offered, 0, len(offered))] == [1, 4, 6, 7]
    assert disk.listdir(STAGING) == []


def test_the_digest_and_the_tags_are_those_of_a_segment_that_was_sealed_so(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    after = replaced_state(state, replace(disk, state))
    sealed = msgspec.structs.replace(after, sealed=False, digest=b"", tagged_count=0)
    tags = disk.read(f"{stem(1)}.tags")
    seal_segment(disk, stem(1), sealed)
    assert (sealed.digest, sealed.tagged_count) == (after.digest, after.tagged_count)
    assert after.tagged_count == 2
    assert after.digest != state.digest
    assert disk.read(f"{stem(1)}.tags") == tags


def test_without_tagged_records_there_is_no_sidecar(disk: FakeDisk) -> None:
    (state,) = write(disk, [1, 2, 3], limits=SegmentLimits(3, 1 << 20, 0), tags={2: "red"})
    flag(disk, state, {2})
    stage(disk, state, lambda frame: not frame.deleted)
    assert replace(disk, state).tagged_count == 0
    assert load_tags(disk, stem(1)) is None


def test_a_delete_that_came_after_the_pair_was_made_holds(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    flag(disk, state, {4})
    after = replaced_state(state, replace(disk, state))
    assert live_seqs(reader_of(disk, after)) == [1, 6]


def test_a_delete_byte_that_only_the_offered_pair_has_deletes_nothing(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    data = bytearray(disk.read(f"{STAGING}/new.data"))
    for frame in codec.walk(bytes(data), 0, len(data)):
        data[frame.end - 1] = DELETED
    disk.replace(f"{STAGING}/new.data", bytes(data))
    after = replaced_state(state, replace(disk, state))
    assert live_seqs(reader_of(disk, after)) == [1, 4, 6]


def test_the_same_frames_put_a_bad_index_right_and_change_nothing_else(disk: FakeDisk, state: SegmentState) -> None:
    index, data = disk.read(f"{stem(1)}.idx"), disk.read(f"{stem(1)}.data")
    disk.replace(f"{stem(1)}.idx", bytes(len(index)))
    stage(disk, state, lambda frame: True)
    replaced = replace(disk, state)
    assert (replaced.removed_count, replaced.digest) == (0, state.digest)
    assert disk.read(f"{stem(1)}.idx") == index
    assert disk.read(f"{stem(1)}.data") == data
    assert read_mark(disk, stem(1)) == []


# What is refused, and changes nothing.


def refuse(disk: FakeDisk, state: SegmentState, *error: type[Exception]) -> str:
    before = {path: content for path, content in disk.files().items() if path.startswith(DIRECTORY)}
    with pytest.raises(error) as refused:
        replace(disk, state)
    assert {path: content for path, content in disk.files().items() if path.startswith(DIRECTORY)} == before
    return str(refused.value)


def test_a_live_record_cannot_be_left_out(disk: FakeDisk, state: SegmentState) -> None:
    stage(disk, state, lambda frame: frame.seq != 4)
    assert "seq 4 is left out" in refuse(disk, state, InvalidRequest)


def test_the_last_record_cannot_be_left_out(disk: FakeDisk, state: SegmentState) -> None:
    stage(disk, state, lambda frame: not frame.deleted)
    assert "the last record of a segment stays" in refuse(disk, state, InvalidRequest)


def test_a_record_that_is_not_the_present_one_is_refused(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    data = disk.read(f"{STAGING}/new.data")
    frame = next(frame for frame in codec.walk(data, 0, len(data)) if frame.seq == 4)
    other = codec.from_wal_body(body(4).replace(b"4-", b"5-"))
    assert len(other) == frame.end - frame.offset
    disk.replace(f"{STAGING}/new.data", data[: frame.offset] + other + data[frame.end :])
    assert "another record than the segment as seq 4" in refuse(disk, state, InvalidRequest)


def test_a_record_where_there_was_none_is_refused(disk: FakeDisk, state: SegmentState) -> None:
    data = disk.read(f"{stem(1)}.data")
    frames = [data[frame.offset : frame.end] for frame in codec.walk(data, 0, len(data)) if frame.seq not in {2, 5}]
    frames.insert(1, codec.from_wal_body(body(3)))
    smuggled, index = rewritten(b"".join(frames), 1, state.entry_count, lambda frame: True)
    disk.replace(f"{STAGING}/new.data", smuggled)
    disk.replace(f"{STAGING}/new.idx", index)
    assert "seq 3, of which the segment has no record" in refuse(disk, state, InvalidRequest)


def test_every_bit_of_an_offered_frame_counts_but_those_of_delete_bytes(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    good = disk.read(f"{STAGING}/new.data")
    delete_bytes = {frame.end - 1 for frame in codec.walk(good, 0, len(good))}
    for place in range(len(good)):
        if place not in delete_bytes:
            bad = bytearray(good)
            bad[place] ^= 1 << place % 8
            disk.replace(f"{STAGING}/new.data", bytes(bad))
            refuse(disk, state, InvalidRequest)


def test_an_index_that_does_not_fit_is_refused(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    good = disk.read(f"{STAGING}/new.idx")
    # The time of an entry, its flags, one entry less, and nothing at all.
    for bad in (good[:8] + b"\xff" + good[9:], good[:16] + b"\x02" + good[17:], good[:-ENTRY_BYTES], b""):
        disk.replace(f"{STAGING}/new.idx", bad)
        assert "new.idx" in refuse(disk, state, InvalidRequest)


@pytest.mark.parametrize("missing", ["new.data", "new.idx"])
def test_a_missing_file_is_named(disk: FakeDisk, state: SegmentState, missing: str) -> None:
    stage_purged(disk, state)
    disk.unlink(f"{STAGING}/{missing}")
    assert missing in refuse(disk, state, NotFound)


def test_a_file_that_is_larger_than_the_segment_is_not_even_read(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    disk.replace(f"{STAGING}/new.data", bytes(state.data_bytes + 1))
    assert f"{state.data_bytes} at most" in refuse(disk, state, InvalidRequest)


def test_a_damaged_segment_is_not_replaced(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    disk.poke(f"{stem(1)}.data", 40, b"\xff")
    refuse(disk, state, FormatError)


def test_a_segment_of_another_digest_is_not_replaced(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    refuse(disk, msgspec.structs.replace(state, digest=bytes(16)), FormatError)


@pytest.mark.parametrize("name", ["a.data", "purge-1.idx", "_x", "9" * 200])
def test_plain_names_may_be_offered(name: str) -> None:
    assert layout.is_offered_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".hidden", "a/b", "../a", "/etc/passwd", "a\\b", "a\0", "a\n", "ä", "-x", "9" * 201),
        *("a.tmp", "chunk-00000001-7-0-0-2-w.staged"),
    ],
)
def test_other_names_may_not(name: str) -> None:
    assert not layout.is_offered_name(name)


# Crashes and faults.


def readable_as(disk: FakeDisk, noted: SegmentState, before: SegmentState) -> list[int]:
    """Live seqs after a start on what a snapshot notes."""
    for name in disk.listdir(DIRECTORY):
        if name.endswith(layout.TEMPORARY):
            disk.unlink(f"{DIRECTORY}/{name}")
    found = version_in_place(disk, stem(1), noted, 1) or noted
    assert found.sealed
    assert found.live_count == before.live_count
    assert found.live_bytes or noted.sealed
    settle_index(disk, stem(1), found)
    reader = SegmentReader(FileSource(disk, stem(1)), found)
    columns = reader.columns()
    live = live_seqs(reader)
    assert [seq for seq in range(1, 8) if columns.live[seq - 1]] == live
    return live


@pytest.mark.parametrize("damage", [*Damage, None])
def test_a_crash_at_any_call_leaves_the_old_or_the_new_pair(
    disk: FakeDisk, state: SegmentState, damage: Damage | None
) -> None:
    """For a snapshot of before, one of after, and one from before the segment was sealed."""
    unsealed = msgspec.structs.replace(state, sealed=False, digest=b"", entry_count=2, data_bytes=100)
    stage_purged(disk, state)
    data_sizes = set()
    at = 0
    while True:
        crashed = disk.clone()
        hook = crashed.on_operation = CrashAt(at)
        replaced = None
        try:
            replaced = replace(crashed, state)
        except CrashNow:
            pass
        crashed.on_operation = None
        if damage is None:
            crashed.kill()
        else:
            crashed.crash(damage, at)
        data_sizes.add(crashed.size(f"{stem(1)}.data"))
        noted = [state]
        if read_mark(crashed, stem(1)):
            noted.append(unsealed)
        if replaced is not None:
            noted.append(replaced_state(state, replaced))
        for version in noted:
            assert readable_as(crashed.clone(), version, state) == [1, 4, 6]
        if hook.count <= at:
            break
        at += 1
    assert len(data_sizes) == 2
    assert at > 10


def test_the_order_of_calls_is_kept(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    monitor = MonitorFs(disk)
    replace(monitor, state)
    assert monitor.violations == []
    assert monitor.check_settled() == []


@pytest.mark.parametrize("operation", ["create", "pwrite", "fsync", "rename"])
def test_a_disk_that_fails_leaves_the_segment_as_it_was(disk: FakeDisk, state: SegmentState, operation: str) -> None:
    """Or in its new form, when it was in place before."""
    stage_purged(disk, state)
    failures = 0
    for at in range(20):
        failing = FaultFs(disk.clone())
        fault = failing.fail(operation, at=at)  # type: ignore[arg-type]
        try:
            now = replaced_state(state, replace(failing, state))
        except OSError:
            failures += 1
            now = state
            assert not [name for name in failing.listdir(DIRECTORY) if name.endswith(layout.TEMPORARY)]
        failing.heal()
        assert live_seqs(reader_of(failing, now)) == [1, 4, 6]
        if not fault.fired_count:
            break
    else:
        pytest.fail("the fault should have come to its end")
    assert failures


def test_a_sync_of_the_directory_that_fails_behind_the_exchange_is_told(disk: FakeDisk, state: SegmentState) -> None:
    stage_purged(disk, state)
    failing = FaultFs(disk)
    # The first one is that of the mark.
    failing.fail("sync_dir", at=1)
    replaced = replace(failing, state)
    assert not replaced.is_durable
    assert len(read_mark(disk, stem(1))) == 2
    disk.crash(Damage.DROP, 1)
    assert readable_as(disk, replaced_state(state, replaced), state) == [1, 4, 6]


def test_a_second_replacement_is_understood_by_a_snapshot_from_before_the_first(
    disk: FakeDisk, state: SegmentState
) -> None:
    stage(disk, state, lambda frame: frame.seq != 5)
    first = replaced_state(state, replace(disk, state))
    stage(disk, first, lambda frame: frame.seq != 2)
    second = replaced_state(first, replace(disk, first))
    assert [version.digest for version in read_mark(disk, stem(1))] == [state.digest, first.digest, second.digest]
    for noted in (state, first, second):
        found = version_in_place(disk, stem(1), noted, 1) or noted
        assert (found.digest, found.data_bytes) == (second.digest, second.data_bytes)
        assert live_seqs(reader_of(disk, found)) == [1, 4, 6]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format":1,"checksum":"","versions":[]}'])
def test_a_bad_mark_is_passed_over_unless_the_segment_would_be_cut(
    disk: FakeDisk, state: SegmentState, content: bytes
) -> None:
    disk.replace(f"{stem(1)}.replaced", content)
    assert version_in_place(disk, stem(1), state, 1) is None
    with pytest.raises(FormatError):
        version_in_place(disk, stem(1), msgspec.structs.replace(state, sealed=False), 1)


def test_a_mark_of_other_files_is_passed_over(disk: FakeDisk, state: SegmentState) -> None:
    """A segment of the same name and another digest, and bytes of a length that happens to be right."""
    stage_purged(disk, state)
    replaced = replaced_state(state, replace(disk, state))
    other = msgspec.structs.replace(state, digest=bytes(16))
    assert version_in_place(disk, stem(1), other, 1) is None
    disk.replace(f"{stem(1)}.data", bytes(replaced.data_bytes))
    unsealed = msgspec.structs.replace(state, sealed=False, digest=b"")
    assert version_in_place(disk, stem(1), unsealed, 1) is None
