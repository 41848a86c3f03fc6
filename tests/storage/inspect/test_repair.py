"""`topics doctor`: what it advises, what it cuts, and that the engine opens afterwards.

Covers A19, B04, C01-C04, D05, D10.
"""

import dataclasses
import errno
import random
from pathlib import Path

import msgspec
import pytest

from tests.storage.directories import ROOT, SMALL, Store, filled_disk, flip, lines, store, verified
from tests.storage.inspect.test_verify import SEGMENT, WAL, cold_disk, random_directory, rotated_disk, store_id_of
from topics.engine.settings import EngineSettings
from topics.errors import DirectoryLocked, StartRefused
from topics.formats.snapshot import SegmentState, TopicState
from topics.results import Tombstone
from topics.storage.fs import RealFs
from topics.storage.inspect.disk_check import FREE_BYTES_MIN, fsync_micros
from topics.storage.inspect.doctor import Doctor
from topics.storage.inspect.dump import dump
from topics.storage.inspect.repair import repair
from topics.storage.inspect.repair_plan import give_up_segments
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk
from topics.testing.fault_fs import FaultFs


def audit_append(disk: FakeDisk, seq: int) -> dict[str, object]:
    return next(row for row in dump(disk, WAL) if row.get("topic_id") == 2 and row.get("seq") == seq)


def disk_with_a_flip_in_the_log() -> FakeDisk:
    disk = filled_disk()
    offset = audit_append(disk, 2)["offset"]
    assert isinstance(offset, int)
    flip(disk, WAL, offset + 50)
    return disk


def tombstone(opened: Store, topic: str, from_seq: int) -> Tombstone | None:
    return opened.engine.read(topic, from_seq).tombstone


def test_a_repair_evicts_nothing_from_a_topic_with_a_small_cap_n01() -> None:
    """The repair gives up the rest of a reservation. The lost seqs take no room under the cap."""
    disk = FakeDisk()
    opened = Store(disk)
    opened.create("jobs", durability="disk", cap_records=10, type="queue")
    for number in range(1, 11):
        opened.append("jobs", number)
    opened.create("audit", durability="fsync")
    opened.append("audit", 1)
    opened.mark_synced()
    opened.kill()
    frame = next(row for row in dump(disk, WAL) if row.get("topic_id") == 2 and row.get("seq") == 1)
    assert isinstance(frame["offset"], int)
    flip(disk, WAL, frame["offset"] + 40)
    disk.crash(Damage.KEEP)
    assert any("jobs" in line for line in repair(disk, ROOT).lost_lines)
    with store(disk) as again:
        assert [record.data for record in again.records("jobs")] == [b"%d" % number for number in range(1, 11)]
        lost = tombstone(again, "jobs", 10)
        assert lost is not None
        assert (lost.gap_from, lost.reason) == (11, "power_loss")
        again.append("jobs", 11)
        assert [record.data for record in again.records("jobs")] == [b"%d" % number for number in range(2, 12)]


# Looking.


def test_diagnosing_changes_nothing_and_says_what_a_repair_would_do_b04() -> None:
    disk = disk_with_a_flip_in_the_log()
    before = disk.files()
    doctor = Doctor(disk, ROOT)
    assert [finding.severity for finding in doctor.diagnose()][:2] == ["damage", "damage"]
    plan = doctor.plan()
    assert disk.files() == before
    offset, frame = audit_append(disk, 1)["offset"], 96
    assert offset == 6413
    assert plan.lost_lines == [
        'lost: seqs 2 to 3 of topic "audit"; readers get a tombstone (1 of them can be read from the copy)'
    ]
    texts = [step.text for step in plan.steps]
    assert texts[:2] == [
        "write down what is lost in repair-0001.json",
        "copy wal/wal-0000000000000001.log to wal/wal-0000000000000001.log.broken",
    ]
    assert texts[2].startswith(
        f"cut the log in wal before frame {frame}, at offset 6546 of wal/wal-0000000000000001.log (checksum does not"
    )
    assert texts[3] == "let wal/CURRENT name wal-0000000000000001.log"


@pytest.mark.parametrize("how", ["gone", "empty", "zeros"])
def test_a_lost_log_file_is_damage_until_a_repair_goes_on_without_it(how: str) -> None:
    """What the file held cannot be known. Every topic of its shard that the snapshot knows gets a tombstone."""
    disk = filled_disk()
    if how == "gone":
        disk.unlink(WAL)
    else:
        disk.replace(WAL, b"" if how == "empty" else bytes(SMALL.wal_file_bytes))
    (line,) = lines(verified(disk), "damage")
    found = {"gone": "no file", "empty": "a file without frames", "zeros": "a file without frames"}[how]
    assert line.startswith(
        f"damage: wal/wal-0000000000000001.log offset 0: {found}, but the newest snapshot goes on at"
    )
    with pytest.raises(StartRefused, match="wal-0000000000000001"):
        Store(disk)
    plan = repair(disk, ROOT)
    assert "how much that is cannot be known" in plan.lost_lines[0]
    assert plan.lost_lines[1].startswith('lost: seqs 41 to 41 of topic "orders"; readers get a tombstone')
    assert lines(verified(disk), "damage") == []
    with store(disk) as opened:
        assert [record.seq for record in opened.records("orders")] == list(range(4, 41))
        stone = tombstone(opened, "orders", 40)
        assert stone is not None
        assert (stone.gap_from, stone.gap_to) == (41, 41)
        opened.append("orders", {"number": 42})
        assert [record.seq for record in opened.records("orders")][-2:] == [40, 42]


def test_a_lost_last_log_file_is_named_and_the_files_before_it_are_kept() -> None:
    disk = rotated_disk()
    name = disk.read(f"{ROOT}/wal/CURRENT").decode()
    with store(disk.clone()) as opened:
        before = [record.seq for record in opened.records("orders")]
    disk.unlink(f"{ROOT}/wal/{name}")
    (line,) = lines(verified(disk), "damage")
    assert line.startswith(f"damage: wal/{name} offset 0: no file, but CURRENT names it")
    repair(disk, ROOT)
    assert lines(verified(disk), "damage") == []
    with store(disk) as opened:
        kept = [record.seq for record in opened.records("orders")]
        assert kept == before[: len(kept)]
        assert 0 < len(kept) < len(before)
        assert tombstone(opened, "orders", kept[-1]) is not None


def test_a_log_without_any_file_and_snapshot_is_damage_while_current_names_a_file() -> None:
    disk = FakeDisk()
    opened = Store(disk)
    opened.create("orders", durability="fsync")
    opened.append("orders", 1)
    opened.kill()
    disk.unlink(WAL)
    (line,) = lines(verified(disk), "damage")
    assert line.startswith("damage: wal/wal-0000000000000001.log offset 0: no file, but CURRENT names it")
    repair(disk, ROOT)
    assert lines(verified(disk), "damage") == []
    with store(disk) as again:
        again.create("orders", durability="fsync")
        again.append("orders", 1)
        assert [record.seq for record in again.records("orders")] == [1]


def test_a_sound_directory_needs_no_repair() -> None:
    disk = filled_disk()
    doctor = Doctor(disk, ROOT)
    assert lines(list(doctor.diagnose()), "damage") == []
    assert doctor.plan().steps == []
    before = disk.files()
    assert repair(disk, ROOT).steps == []
    assert disk.files() == before


def test_an_implausibly_fast_sync_is_a_warning_a19() -> None:
    disk = filled_disk()
    (finding,) = Doctor(disk, ROOT).diagnose()
    assert finding.severity == "warning"
    assert finding.message.endswith("µs, which no disk can do: it may not reach the disk at all")
    assert not disk.exists(f"{ROOT}/doctor.tmp")


def test_a_sync_is_timed_on_a_real_disk_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "doctor.tmp").write_bytes(b"left by a killed doctor")
    assert fsync_micros(RealFs(), str(tmp_path)) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_still_diagnosed() -> None:
    disk = filled_disk()
    faulty = FaultFs(disk)
    faulty.fail("create", error=errno.EROFS, lasts=True, path=lambda path: path.endswith("doctor.tmp"))
    findings = list(Doctor(faulty, ROOT).diagnose())
    assert lines(findings) == ["warning: .: cannot be written to: Read-only file system"]


def test_a_directory_that_cannot_be_read_is_a_finding_not_a_crash() -> None:
    faulty = FaultFs(filled_disk())
    faulty.fail("listdir", error=errno.EACCES, lasts=True, path=lambda path: path.endswith("/wal"))
    doctor = Doctor(faulty, ROOT)
    findings = list(doctor.diagnose())
    assert any(finding.message.startswith("cannot be looked at: [Errno 13]") for finding in findings)
    assert doctor.plan().steps == []


class CrampedHost:
    """A machine with little room, on which others may read everything."""

    def mode(self, path: str) -> int:
        return 0o755 if path == ROOT else 0o600

    def free_bytes(self, path: str) -> int:
        return FREE_BYTES_MIN - 1

    def can_sync_dir(self, path: str) -> bool:
        return False


def test_permissions_room_and_directory_syncs_are_checked_d10() -> None:
    findings = list(Doctor(filled_disk(), ROOT, host=CrampedHost()).diagnose())
    assert lines(findings)[:3] == [
        "warning: .: only 255 MiB are free on its disk",
        "warning: .: this file system cannot sync directories; a power cut may undo renames",
        "warning: .: others may read or change it (expected mode 0700, found 0755)",
    ]


def test_permissions_of_a_real_directory_are_right_as_the_engine_makes_them(tmp_path: Path) -> None:
    fs, root = RealFs(), str(tmp_path / "data")
    with store(fs, root) as opened:
        opened.append("orders", *range(25))
    texts = lines(list(Doctor(fs, root, host=fs).diagnose()))
    assert not any("others may read" in text for text in texts)
    (tmp_path / "data" / "STORE").chmod(0o644)
    texts = lines(list(Doctor(fs, root, host=fs).diagnose()))
    assert "warning: STORE: others may read or change it (expected mode 0600, found 0644)" in texts


def test_a_repair_is_refused_while_a_server_runs() -> None:
    disk = filled_disk()
    with store(disk), pytest.raises(DirectoryLocked, match="/data is in use; stop the server first"):
        repair(disk, ROOT)


# The log.


def test_a_repair_cuts_at_the_damage_and_the_engine_opens_b04() -> None:
    disk = disk_with_a_flip_in_the_log()
    broken = disk.read(WAL)
    with pytest.raises(StartRefused):
        Store(disk)
    said: list[str] = []
    repair(disk, ROOT, say=said.append)
    assert said[0].startswith("lost: seqs 2 to 3 ")
    assert disk.read(WAL + ".broken") == broken
    assert len(disk.read(WAL)) == len(broken)
    report = msgspec.json.decode(disk.read(f"{ROOT}/repair-0001.json"))
    (loss,) = report["lost"]
    assert (loss["file"], loss["offset"], loss["first_lost_frame"], loss["valid_frames_behind"]) == (
        "wal/wal-0000000000000001.log",
        6546,
        96,
        3,
    )
    assert loss["topics"] == [{"topic": "audit", "id": 2, "first_seq": 2, "last_seq": 3, "records_behind": 1}]
    assert lines(verified(disk), "damage") == []
    with store(disk) as opened:
        assert [record.seq for record in opened.records("audit")] == [1]
        lost = tombstone(opened, "audit", 1)
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (2, 3)
        opened.append("audit", {"entry": "after"})
        # No seq that was answered is given again.
        assert [record.seq for record in opened.records("audit")] == [1, 4]
        assert len(opened.records("orders")) == 37
    assert lines(verified(disk), "damage") == []


def test_a_missing_file_in_between_sets_the_later_ones_aside() -> None:
    disk = rotated_disk()
    names = [name for name in disk.listdir(f"{ROOT}/wal") if name.endswith(".log")]
    disk.unlink(f"{ROOT}/wal/{names[1]}")
    repair(disk, ROOT)
    left = disk.listdir(f"{ROOT}/wal")
    assert [name for name in left if name.endswith(".log")] == names[:1]
    assert {f"{name}.broken" for name in names[2:]} <= set(left)
    with store(disk) as opened:
        kept = [record.seq for record in opened.records("orders")]
        assert kept == list(range(1, len(kept) + 1))
        lost = tombstone(opened, "orders", kept[-1])
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (kept[-1] + 1, 60)


def test_a_log_whose_beginning_is_missing_goes_on_in_a_new_file() -> None:
    disk = rotated_disk()
    opened = Store(disk, settings=dataclasses.replace(SMALL, wal_file_bytes=2048))
    opened.checkpoint()
    for number in range(60, 100):
        opened.append("orders", {"number": number})
    opened.kill()
    names = [name for name in disk.listdir(f"{ROOT}/wal") if name.endswith(".log")]
    snapshot = next(row for row in dump(disk, f"{ROOT}/meta/snapshot.0001.bin"))
    start = f"wal-{snapshot['wal'][0]['file_frame']:016d}.log"
    for name in names:
        if name <= start:
            disk.unlink(f"{ROOT}/wal/{name}")
    with pytest.raises(StartRefused):
        Store(disk)
    repair(disk, ROOT)
    with store(disk) as again:
        assert len(again.records("orders")) == 60
        lost = tombstone(again, "orders", 60)
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (61, 100)


def test_decisions_behind_the_damage_hold_although_the_records_there_are_lost() -> None:
    disk = filled_disk()
    opened = Store(disk)
    opened.append("audit", {"entry": 4})
    opened.create("late", durability="fsync")
    opened.append("late", 1, 2, 3)
    opened.delete("audit", before_seq=2)
    opened.create("orders", durability="fsync", cap_records=35)
    opened.drop("late")
    opened.create("newest", durability="fsync")
    opened.append("newest", 1, 2)
    opened.mark_synced()
    opened.kill()
    offset = audit_append(disk, 3)["offset"]
    assert isinstance(offset, int)
    flip(disk, WAL, offset + 50)
    repair(disk, ROOT)
    with store(disk) as again:
        assert sorted(again.engine.topics) == ["audit", "newest", "orders"]
        assert [record.seq for record in again.records("audit")] == [2]
        assert again.engine.topic("audit").head_seq == 4
        assert again.engine.topic("orders").config.cap_records == 35
        lost = tombstone(again, "newest", 0)
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (1, 2)


def test_a_write_that_the_cut_tears_is_lost_as_a_whole() -> None:
    disk = filled_disk()
    opened = Store(disk)
    opened.append("audit", 4, 5, 6)
    opened.append("audit", 7)
    opened.mark_synced()
    opened.kill()
    offset = audit_append(disk, 6)["offset"]
    assert isinstance(offset, int)
    flip(disk, WAL, offset + 50)
    repair(disk, ROOT)
    with store(disk) as again:
        assert [record.seq for record in again.records("audit")] == [1, 2, 3]
        lost = tombstone(again, "audit", 3)
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (4, 7)


def test_a_shard_that_lost_all_its_files_gets_a_new_one() -> None:
    disk = FakeDisk()
    settings = dataclasses.replace(SMALL, wal_shards=2)
    opened = Store(disk, settings=settings)
    for topic in ("first", "second"):
        opened.create(topic, durability="fsync")
        opened.append(topic, 1, 2, 3)
    opened.kill()
    for name in disk.listdir(f"{ROOT}/wal/shard-00"):
        disk.unlink(f"{ROOT}/wal/shard-00/{name}")
    with pytest.raises(StartRefused):
        Store(disk, settings=settings)
    assert lines(verified(disk), "damage") == [
        "damage: wal/shard-00: the shard has no file, and no snapshot covers what was in it"
    ]
    repair(disk, ROOT)
    with store(disk, settings=settings) as again:
        (topic,) = again.engine.topics
        assert [record.seq for record in again.records(topic)] == [1, 2, 3]


def test_a_copy_that_an_interrupted_start_left_is_part_of_the_log() -> None:
    disk = disk_with_a_flip_in_the_log()
    flip(disk, WAL, 6546 + 50)
    disk.replace(f"{WAL}.6546.rewrite", disk.read(WAL)[6546:6812])
    disk.poke(WAL, 6546, b"whatever a power cut left")
    assert lines(verified(disk)) == [
        (
            "note: wal/wal-0000000000000001.log.6546.rewrite: a copy of the log's end that a start left; the next one "
            "writes it back"
        )
    ]
    said: list[str] = []
    repair(disk, ROOT, say=said.append)
    assert said == ["write back the log's end in wal, as an interrupted start left it"]
    assert verified(disk) == []


@pytest.mark.parametrize("operation_index", range(0, 40, 3))
def test_an_interrupted_repair_is_run_again_and_loses_nothing_silently(operation_index: int) -> None:
    disk = rotated_disk()
    path = f"{ROOT}/wal/{disk.listdir(f'{ROOT}/wal')[1]}"
    flip(disk, path, list(dump(disk, path))[-1]["offset"] + 45)
    disk.on_operation = CrashAt(operation_index)
    try:
        repair(disk, ROOT)
    except CrashNow:
        pass
    disk.on_operation = None
    disk.kill()
    repair(disk, ROOT)
    with store(disk) as opened:
        kept = [record.seq for record in opened.records("orders")]
        lost = tombstone(opened, "orders", kept[-1])
        assert lost is not None
        assert (kept[0], lost.gap_from, lost.gap_to) == (1, kept[-1] + 1, 60)


# Segments and what is derived.


def test_bad_indexes_tags_and_current_are_built_again_c01_c02_c03_c04_d05() -> None:
    disk = filled_disk()
    sound = disk.files()
    flip(disk, f"{SEGMENT}.idx", 45)
    flip(disk, f"{SEGMENT}.tags", 50)
    disk.unlink(f"{ROOT}/topics/00000001/seg-0000000000000021.idx")
    disk.replace(f"{ROOT}/wal/CURRENT", b"")
    said: list[str] = []
    repair(disk, ROOT, say=said.append)
    assert said == [
        "build topics/00000001/seg-0000000000000011.idx again from the frames",
        "build topics/00000001/seg-0000000000000021.idx again from the frames",
        "build topics/00000001/seg-0000000000000011.tags again from the frames",
        "let wal/CURRENT name wal-0000000000000001.log",
    ]
    assert disk.files() == sound


def test_a_segment_with_a_bad_frame_is_left_as_it_is() -> None:
    disk = filled_disk()
    flip(disk, f"{SEGMENT}.data", 200)
    hurt = disk.files()
    repair(disk, ROOT)
    assert disk.files() == hurt


def test_a_missing_segment_is_given_up_only_when_told_so() -> None:
    disk = filled_disk()
    for kind in ("data", "idx", "tags"):
        disk.unlink(f"{SEGMENT}.{kind}")
    before = disk.files()
    plan = repair(disk, ROOT)
    assert plan.refusals == [
        (
            'topics/00000001/seg-0000000000000011.data is missing (seqs 11 to 20 of topic "orders"): put it back from '
            "a copy, or give --accept-loss to go on without"
        )
    ]
    assert disk.files() == before
    said: list[str] = []
    repair(disk, ROOT, accept_loss=True, say=said.append)
    assert said == [
        'lost: seqs 11 to 20 of topic "orders" with 10 live records; readers get a tombstone',
        "write down what is lost in repair-0001.json",
        "write meta/snapshot.0003.bin without the 1 missing segments",
    ]
    assert lines(verified(disk), "damage") == []
    with store(disk) as opened:
        lost = tombstone(opened, "orders", 10)
        assert lost is not None
        assert (lost.gap_from, lost.gap_to) == (11, 20)
        assert [record.seq for record in opened.records("orders")] == [*range(4, 11), *range(21, 41)]
        opened.append("orders", "more")
    assert lines(verified(disk), "damage") == []
    with store(disk) as opened:
        assert len(opened.records("orders")) == 28


def test_giving_up_segments_merges_the_lost_ranges_and_drops_their_pending_deletes() -> None:
    segments = [SegmentState(first, 10, 100, 1, 1, 10, 50, sealed=True) for first in (1, 11, 21)]
    state = TopicState(
        "t", 1, 1, {}, head_seq=40, cap_floor=4, first_live=5, checkpointed_seq=30, segments=segments, lost=[(31, 35)]
    )
    state.pending_deletes = [(12, 13), (22, 23)]
    give_up_segments(state, {1, 21})
    assert state.lost == [(5, 10), (21, 35)]
    assert [segment.first_seq for segment in state.segments] == [11]
    assert state.pending_deletes == [(12, 13)]


# STORE.


def test_a_bad_store_is_taken_from_the_cold_tier_or_refused() -> None:
    disk, cold = cold_disk()
    store_id = store_id_of(disk)
    disk.replace(f"{ROOT}/STORE", b"{")
    plan = repair(disk, ROOT)
    assert plan.refusals == [
        (
            "STORE is damaged: give --cold ADDRESS to take the store id from the cold tier, or --accept-loss for a "
            "new id, which no cold tier will know"
        )
    ]
    assert disk.read(f"{ROOT}/STORE") == b"{"
    repair(disk, ROOT, cold=cold)
    assert store_id_of(disk) == store_id
    assert disk.read(f"{ROOT}/STORE.broken") == b"{"


def test_a_new_store_id_is_made_when_loss_is_accepted() -> None:
    disk = filled_disk()
    old = store_id_of(disk)
    disk.replace(f"{ROOT}/STORE", b"")
    repair(disk, ROOT, accept_loss=True)
    assert store_id_of(disk) != old
    Store(disk).kill()


# Whatever is flipped.


@pytest.mark.parametrize("seed", range(20))
def test_a_start_that_is_refused_was_foretold_and_can_be_repaired(seed: int) -> None:
    disk, settings = random_directory(seed)
    chance = random.Random(seed)
    files = [path for path, content in disk.files().items() if content.strip(b"\0") and not path.endswith(".lock")]
    for path in chance.sample(files, min(6, len(files))):
        hurt = disk.clone()
        used_bytes = len(hurt.read(path).rstrip(b"\0"))
        flip(hurt, path, chance.randrange(used_bytes))
        started = hurt.clone()
        refusal = refused(started, settings)
        if refusal is None or "newer" in refusal.message:
            continue
        assert lines(verified(hurt), "damage"), refusal
        repair(hurt, ROOT, accept_loss=True)
        Store(hurt, settings=settings).kill()


def refused(disk: FakeDisk, settings: EngineSettings) -> StartRefused | None:
    try:
        Store(disk, settings=settings).kill()
    except StartRefused as error:
        return error
    return None
