"""Stored offsets: their promises, files of an Apache Iggy server, crashes and failing disks."""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.conftest import FULL, SEED
from topics.errors import StartRefused
from topics.storage.fs import RealFs
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.consumers.consumer_offsets import ConsumerKind, ConsumerOffsets, check_offset, consumer_file_id
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs, OneByteFs, Operation
from topics.testing.monitor_fs import MonitorFs

PARTITION: Final = "/data/streams/0/topics/0/partitions/0"
CONSUMER: Final = ConsumerKind.CONSUMER
GROUP: Final = ConsumerKind.GROUP
CONSUMER_7: Final = f"{PARTITION}/offsets/consumers/7"
GROUP_3: Final = f"{PARTITION}/offsets/groups/3"


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.makedirs(PARTITION)
    return disk


def reopened(disk: FakeDisk) -> ConsumerOffsets:
    return ConsumerOffsets.open(disk, PARTITION)


# --- ids, checks, files ---------------------------------------------------------------------------------------


def test_a_named_consumer_has_the_file_id_that_other_servers_give_it() -> None:
    assert consumer_file_id("my-consumer") == 2115191887
    assert consumer_file_id("key") == 3017358048
    assert consumer_file_id(42) == 42


def test_an_offset_is_eight_bytes_in_a_file_named_after_its_reader(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 7, 0x0102030405060708)
    offsets.store(GROUP, 3, 2**64 - 1)
    assert disk.files() == {CONSUMER_7: bytes.fromhex("0807060504030201"), GROUP_3: b"\xff" * 8}
    offsets.store(CONSUMER, 7, 1)
    assert disk.read(CONSUMER_7) == b"\x01" + bytes(7)
    assert reopened(disk).get(CONSUMER, 7) == 1


def test_a_partition_that_nobody_read_has_no_folder_for_offsets(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    assert offsets.get(CONSUMER, 0) is None
    assert offsets.minimum() is None
    offsets.discard(GROUP, 0)
    offsets.delete_all()
    assert disk.listdir(PARTITION) == []


def test_consumers_and_groups_with_the_same_id_are_apart(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 1, 10)
    offsets.store(GROUP, 1, 20)
    offsets.delete(CONSUMER, 1)
    assert offsets.get(CONSUMER, 1) is None
    assert offsets.get(GROUP, 1) == 20


def test_the_smallest_offset_of_consumers_and_groups_is_the_minimum(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 1, 10)
    offsets.store(GROUP, 1, 5)
    offsets.store(GROUP, 2, 50)
    assert offsets.minimum() == 5
    offsets.store(GROUP, 1, 30)
    assert offsets.minimum() == 10


def test_deleting_an_offset_that_is_not_there_is_3021(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 1, 10)
    offsets.delete(CONSUMER, 1)
    for kind, consumer_id in ((CONSUMER, 1), (GROUP, 1)):
        with pytest.raises(StreamsError) as caught:
            offsets.delete(kind, consumer_id)
        assert caught.value.number == StreamStatus.CONSUMER_OFFSET_NOT_FOUND


@pytest.mark.parametrize(
    ("offset", "current_offset", "has_messages", "is_allowed"),
    [(0, 0, True, True), (0, 0, False, False), (9, 9, True, True), (10, 9, True, False), (3, 9, True, True)],
)
def test_an_offset_beyond_the_last_message_is_4100(
    offset: int, current_offset: int, has_messages: bool, is_allowed: bool
) -> None:
    if is_allowed:
        check_offset(offset, current_offset=current_offset, has_messages=has_messages)
        return
    with pytest.raises(StreamsError) as caught:
        check_offset(offset, current_offset=current_offset, has_messages=has_messages)
    assert caught.value.number == StreamStatus.INVALID_OFFSET


def test_a_purge_removes_every_file_of_both_folders(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 7, 1)
    offsets.store(GROUP, 3, 2)
    disk.replace(f"{PARTITION}/offsets/consumers/8", b"torn")
    disk.replace(f"{PARTITION}/offsets/groups/notes", b"")
    offsets = reopened(disk)
    offsets.delete_all()
    assert disk.files() == {}
    assert offsets.minimum() is None


def test_a_group_that_gets_a_used_id_does_not_begin_where_the_other_stopped(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(GROUP, 3, 100)
    offsets.store(GROUP, 4, 200)
    offsets.discard(GROUP, 3)
    offsets.discard(GROUP, 3)
    assert offsets.ids(GROUP) == [4]
    # The file of a group whose offset was ignored, because the file is too short.
    disk.replace(GROUP_3, b"torn")
    offsets = reopened(disk)
    offsets.discard(GROUP, 3)
    assert list(disk.files()) == [f"{PARTITION}/offsets/groups/4"]


def test_offsets_of_groups_that_are_gone_are_dropped_at_start(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    offsets = reopened(disk)
    offsets.store(GROUP, 3, 100)
    offsets.store(GROUP, 4, 200)
    offsets.store(CONSUMER, 3, 300)
    offsets = reopened(disk)
    offsets.keep_groups({4, 5})
    assert "groups that do not exist: [3]" in caplog.text
    for view in (offsets, reopened(disk)):
        assert view.ids(GROUP) == [4]
        assert view.ids(CONSUMER) == [3]


# --- starts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(8))
def test_a_torn_file_is_skipped_with_a_warning_and_its_neighbours_are_read(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Its consumer starts at the first message, the others at their stored offsets."""
    offsets = reopened(disk)
    offsets.store(CONSUMER, 6, 60)
    offsets.store(CONSUMER, 7, 70)
    offsets.store(GROUP, 3, 30)
    disk.replace(CONSUMER_7, bytes(size))
    offsets = reopened(disk)
    assert f"{CONSUMER_7}: {size} bytes instead of 8" in caplog.text
    assert offsets.get(CONSUMER, 7) is None
    assert (offsets.get(CONSUMER, 6), offsets.get(GROUP, 3)) == (60, 30)
    offsets.store(CONSUMER, 7, 71)
    assert reopened(disk).get(CONSUMER, 7) == 71


@pytest.mark.parametrize("name", ["seven", "-1", "+7", "07", "4294967296", "7.tmp", "\u0667", "99999999999"])
def test_a_name_that_is_no_id_is_skipped_with_a_warning(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 7, 70)
    disk.replace(f"{PARTITION}/offsets/consumers/{name}", b"\x01" + bytes(7))
    offsets = reopened(disk)
    assert offsets.ids(CONSUMER) == [7]
    assert offsets.get(CONSUMER, 7) == 70
    assert "the name is not the id" in caplog.text


@pytest.mark.parametrize("operation", ["listdir", "open", "pread"])
def test_an_unreadable_folder_or_file_refuses_the_start(disk: FakeDisk, operation: Operation) -> None:
    reopened(disk).store(CONSUMER, 7, 70)
    faults = FaultFs(disk)
    faults.fail(operation, error=errno.EIO)
    with pytest.raises(StartRefused, match="cannot read the stored offsets"):
        ConsumerOffsets.open(faults, PARTITION)


def test_an_offset_beyond_the_end_is_lowered_for_good(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    """The partition grows past the stale offset before the next start, which must not use it again."""
    offsets = reopened(disk)
    offsets.store(CONSUMER, 7, 1000)
    offsets.store(GROUP, 3, 500)
    offsets = reopened(disk)
    offsets.clamp(500)
    assert f"{CONSUMER_7}: offset 1000 is beyond the last message; lowered to 500" in caplog.text
    assert GROUP_3 not in caplog.text
    assert (offsets.get(CONSUMER, 7), offsets.get(GROUP, 3)) == (500, 500)
    offsets = reopened(disk)
    offsets.clamp(2000)
    assert offsets.get(CONSUMER, 7) == 500


def test_in_a_partition_without_messages_nobody_has_processed_any(disk: FakeDisk) -> None:
    offsets = reopened(disk)
    offsets.store(CONSUMER, 7, 1000)
    offsets = reopened(disk)
    offsets.clamp(0, has_messages=False)
    assert offsets.get(CONSUMER, 7) is None
    assert disk.files() == {}


@pytest.mark.parametrize("has_messages", [True, False])
def test_a_file_that_cannot_be_lowered_does_not_stop_the_start(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture, has_messages: bool
) -> None:
    reopened(disk).store(CONSUMER, 7, 1000)
    faults = FaultFs(disk)
    faults.fail("pwrite", "unlink", error=errno.EROFS, lasts=True)
    offsets = ConsumerOffsets.open(faults, PARTITION)
    offsets.clamp(10, has_messages=has_messages)
    assert offsets.get(CONSUMER, 7) == (10 if has_messages else None)
    assert "could not be changed" in caplog.text


def test_offsets_of_another_server_are_read_and_written_byte_for_byte(shared_fixtures: Path, tmp_path: Path) -> None:
    source = shared_fixtures / "iggy-0.8.0/streams/0/topics/0/partitions/1/offsets"
    shutil.copytree(source, tmp_path / "offsets")
    offsets = ConsumerOffsets.open(RealFs(), str(tmp_path))
    assert offsets.ids(CONSUMER) == [0]
    stored = offsets.get(CONSUMER, 0)
    assert stored is not None
    offsets.store(CONSUMER, 0, stored + 1)
    offsets.store(CONSUMER, 0, stored)
    assert (tmp_path / "offsets/consumers/0").read_bytes() == (source / "consumers/0").read_bytes()


def test_writes_that_move_a_byte_at_a_time_store_whole_numbers(disk: FakeDisk) -> None:
    offsets = ConsumerOffsets.open(OneByteFs(disk), PARTITION)
    for offset in (0x0102030405060708, 0x1112131415161718):
        offsets.store(CONSUMER, 7, offset)
        assert reopened(disk).get(CONSUMER, 7) == offset


def test_threads_store_beside_each_other(tmp_path: Path) -> None:
    offsets = ConsumerOffsets.open(RealFs(), str(tmp_path))

    def advance(consumer_id: int) -> None:
        for offset in range(200):
            offsets.store(CONSUMER, consumer_id, offset)
            offsets.store(GROUP, 0, offset)

    threads = [threading.Thread(target=advance, args=(consumer_id,)) for consumer_id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ConsumerOffsets.open(RealFs(), str(tmp_path))
    assert {consumer_id: found.get(CONSUMER, consumer_id) for consumer_id in range(4)} == dict.fromkeys(range(4), 199)
    assert found.get(GROUP, 0) == offsets.get(GROUP, 0)


# --- against a model --------------------------------------------------------------------------------------------

KINDS = st.sampled_from(ConsumerKind)
IDS = st.sampled_from([0, 1, 7, 2**32 - 1])
OFFSETS = st.one_of(st.integers(0, 20), st.sampled_from([2**32, 2**63, 2**64 - 1]))


class OffsetsMachine(RuleBasedStateMachine):
    """The model is two dictionaries. A kill loses nothing, so every step must look the same after one."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FakeDisk()
        self.disk.makedirs(PARTITION)
        self.monitor = MonitorFs(self.disk)
        self.offsets = ConsumerOffsets.open(self.monitor, PARTITION)
        self.model: dict[ConsumerKind, dict[int, int]] = {CONSUMER: {}, GROUP: {}}

    @rule(kind=KINDS, consumer_id=IDS, offset=OFFSETS)
    def store(self, kind: ConsumerKind, consumer_id: int, offset: int) -> None:
        self.offsets.store(kind, consumer_id, offset)
        self.model[kind][consumer_id] = offset

    @rule(kind=KINDS, consumer_id=IDS)
    def delete(self, kind: ConsumerKind, consumer_id: int) -> None:
        if consumer_id in self.model[kind]:
            self.offsets.delete(kind, consumer_id)
            del self.model[kind][consumer_id]
        else:
            with pytest.raises(StreamsError):
                self.offsets.delete(kind, consumer_id)

    @rule(kind=KINDS, consumer_id=IDS)
    def discard(self, kind: ConsumerKind, consumer_id: int) -> None:
        self.offsets.discard(kind, consumer_id)
        self.model[kind].pop(consumer_id, None)

    @rule(group_ids=st.sets(IDS))
    def keep_groups(self, group_ids: set[int]) -> None:
        self.offsets.keep_groups(group_ids)
        self.model[GROUP] = {key: offset for key, offset in self.model[GROUP].items() if key in group_ids}

    @rule(current_offset=OFFSETS)
    def clamp(self, current_offset: int) -> None:
        self.offsets.clamp(current_offset)
        for offsets in self.model.values():
            offsets.update({key: min(offset, current_offset) for key, offset in offsets.items()})

    @rule()
    def clamp_without_messages(self) -> None:
        self.offsets.clamp(0, has_messages=False)
        self.model = {CONSUMER: {}, GROUP: {}}

    @precondition(lambda self: any(self.model.values()))
    @rule()
    def delete_all(self) -> None:
        self.offsets.delete_all()
        self.model = {CONSUMER: {}, GROUP: {}}

    @rule()
    def kill_and_reopen(self) -> None:
        self.disk.kill()
        self.monitor = MonitorFs(self.disk)
        self.offsets = ConsumerOffsets.open(self.monitor, PARTITION)

    @invariant()
    def memory_and_files_agree_with_the_model(self) -> None:
        for view in (self.offsets, ConsumerOffsets.open(self.disk, PARTITION)):
            for kind, offsets in self.model.items():
                assert {key: view.get(kind, key) for key in view.ids(kind)} == offsets
        smallest = min((offset for offsets in self.model.values() for offset in offsets.values()), default=None)
        assert self.offsets.minimum() == smallest

    @invariant()
    def directories_are_synced(self) -> None:
        assert self.monitor.check_settled() == []


TestOffsetsAgainstAModel = OffsetsMachine.TestCase


# --- crashes ----------------------------------------------------------------------------------------------------

# Offsets below 256 differ in one byte. Larger ones, cut in the middle of their 8 bytes, would show whether a disk
# writes whole sectors, on which the format relies. Garbled bytes are left out: the format has no checksum.
DAMAGES: Final = [damage for damage in Damage if damage is not Damage.GARBLE]

Reader = tuple[ConsumerKind, int]


class History:
    """The offsets that each consumer may have: any one stored since its last durable removal, 0, or none."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self.offsets = offsets
        self.possible: dict[Reader, set[int]] = {}

    def store(self, kind: ConsumerKind, consumer_id: int, offset: int) -> None:
        # Noted before the store: a crash in the middle may keep the offset.
        self.possible.setdefault((kind, consumer_id), {0}).add(offset)
        self.offsets.store(kind, consumer_id, offset)

    def delete(self, kind: ConsumerKind, consumer_id: int) -> None:
        self.offsets.delete(kind, consumer_id)
        del self.possible[kind, consumer_id]

    def delete_all(self) -> None:
        self.offsets.delete_all()
        self.possible.clear()


def life_of_offsets(history: History) -> None:
    for offset in (3, 9, 200):
        history.store(CONSUMER, 7, offset)
        history.store(GROUP, 3, offset + 1)
    history.store(CONSUMER, 8, 5)
    history.delete(CONSUMER, 7)
    history.store(CONSUMER, 7, 1)
    history.delete_all()
    history.store(GROUP, 3, 0)
    history.store(CONSUMER, 7, 2)


def crash_points() -> Iterator[tuple[int, FakeDisk, History]]:
    """Every operation of the process, and the disk right before it."""
    for operation_index in range(1000):
        disk = FakeDisk()
        disk.makedirs(PARTITION)
        history = History(reopened(disk))
        hook = CrashAt(operation_index)
        disk.on_operation = hook
        try:
            life_of_offsets(history)
        except CrashNow:
            pass
        disk.on_operation = None
        yield operation_index, disk, history
        if hook.count <= operation_index:
            return


def test_a_crash_anywhere_sets_readers_back_and_never_ahead(
    caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    caplog.set_level(logging.ERROR)
    points = recoveries = 0
    for operation_index, disk, history in crash_points():
        points += 1
        for damage in DAMAGES:
            for seed in range(SEED, SEED + (8 if FULL else 2)):
                survivor = disk.clone()
                survivor.crash(damage, seed)
                found = reopened(survivor)
                where = f"before operation {operation_index}, {damage.name}, seed {seed}"
                for kind in ConsumerKind:
                    for consumer_id in found.ids(kind):
                        possible = history.possible.get((kind, consumer_id), set())
                        assert found.get(kind, consumer_id) in possible, where
                # A second process on the files of the first one; this time it is only killed.
                found.store(CONSUMER, 7, 77)
                found.store(GROUP, 9, 99)
                survivor.kill()
                again = reopened(survivor)
                assert (again.get(CONSUMER, 7), again.get(GROUP, 9)) == (77, 99), where
                again.delete_all()
                survivor.crash(damage, seed)
                assert reopened(survivor).minimum() is None, where
                recoveries += 3
    record_property("sweep", ["offset crash sweep", points, recoveries])
    assert points > 30


def succeeds(call: Callable[[], None]) -> bool:
    """False for the one error that a failing disk may become."""
    try:
        call()
    except StreamsError as error:
        if error.number != StreamStatus.IO_ERROR:
            raise
        return False
    return True


FAULTED: Final[tuple[Operation, ...]] = ("open", "create", "pwrite", "makedirs", "unlink", "sync_dir", "listdir")


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("operation", FAULTED)
def test_a_refused_store_or_removal_changes_nothing_that_a_restart_could_show(
    operation: Operation, lasts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory has acknowledged offsets. A file may lack one, but never has a refused one."""
    caplog.set_level(logging.ERROR)
    fired = 0
    for at in range(1000):
        disk = FakeDisk()
        disk.makedirs(PARTITION)
        faults = FaultFs(disk)
        offsets = ConsumerOffsets.open(faults, PARTITION)
        fault = faults.fail(operation, error=errno.ENOSPC, at=at, lasts=lasts)
        acked: dict[Reader, int] = {}
        for step in range(6):
            for kind, consumer_id in ((CONSUMER, 7), (GROUP, 3)):
                offset = 1000 * step + consumer_id
                if succeeds(partial(offsets.store, kind, consumer_id, offset)):
                    acked[kind, consumer_id] = offset
                assert offsets.get(kind, consumer_id) == acked.get((kind, consumer_id))
            if step % 3 == 1 and (CONSUMER, 7) in acked:
                if succeeds(partial(offsets.delete, CONSUMER, 7)):
                    del acked[CONSUMER, 7]
                assert offsets.get(CONSUMER, 7) == acked.get((CONSUMER, 7))
            if step == 4:
                if succeeds(offsets.delete_all):
                    acked.clear()
                for kind, consumer_id in list(acked):
                    # Some files may be deleted already; none may hold another offset.
                    if offsets.get(kind, consumer_id) is None:
                        del acked[kind, consumer_id]
            found = reopened(disk)
            for kind in ConsumerKind:
                for consumer_id in found.ids(kind):
                    assert found.get(kind, consumer_id) == acked.get((kind, consumer_id)), (at, step)
        if not fault.fired_count:
            break
        fired += 1
    assert fired


def test_a_write_that_stops_half_way_leaves_the_old_number(disk: FakeDisk) -> None:
    faults = FaultFs(disk)
    offsets = ConsumerOffsets.open(faults, PARTITION)
    offsets.store(CONSUMER, 7, 0x0102030405060708)
    faults.torn_write(error=errno.EIO)
    with pytest.raises(StreamsError) as caught:
        offsets.store(CONSUMER, 7, 0x1112131415161718)
    assert caught.value.number == StreamStatus.IO_ERROR
    assert offsets.get(CONSUMER, 7) == reopened(disk).get(CONSUMER, 7) == 0x0102030405060708


def test_a_number_that_is_half_old_and_half_new_is_better_no_number(disk: FakeDisk) -> None:
    faults = FaultFs(disk)
    offsets = ConsumerOffsets.open(faults, PARTITION)
    offsets.store(CONSUMER, 7, 0x0102030405060708)
    faults.torn_write(error=errno.EIO, lasts=True)
    with pytest.raises(StreamsError):
        offsets.store(CONSUMER, 7, 0x1112131415161718)
    assert offsets.get(CONSUMER, 7) == 0x0102030405060708
    assert reopened(disk).get(CONSUMER, 7) is None
    faults.heal()
    offsets.store(CONSUMER, 7, 5)
    assert reopened(disk).get(CONSUMER, 7) == 5
