"""`topics verify`: what is right is found right, and every hurt byte is named.

Covers B03, B04, B07, B21, C01-C06, C15, D04, D05.
"""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import sampled_range
from tests.storage.busy_fs import BusyFs
from tests.storage.directories import ROOT, SMALL, Store, filled_disk, flip, lines, store, verified
from topics.engine.settings import EngineSettings
from topics.errors import CorruptRecord, FutureVersion, StartRefused, TopicNotFound
from topics.formats import segment
from topics.formats import snapshot as snapshot_codec
from topics.results import NewRecord
from topics.storage.fs import RealFs
from topics.storage.inspect.dump import dump
from topics.storage.inspect.verify import Verifier
from topics.storage.segments.relocation import copy_to_cold
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store_id import ensure_store_id
from topics.testing.fake_disk import Damage, FakeDisk

WAL = f"{ROOT}/wal/wal-0000000000000001.log"
SEGMENT = f"{ROOT}/topics/00000001/seg-0000000000000011"


def frame_offset(disk: FakeDisk, path: str, seq: int) -> int:
    return next(row["offset"] for row in dump(disk, path) if row.get("seq") == seq)


def test_a_sound_directory_has_no_findings_and_is_left_as_it_is() -> None:
    disk = filled_disk()
    before = disk.files()
    verifier = Verifier(disk, ROOT)
    assert list(verifier.run()) == []
    assert disk.files() == before
    totals = verifier.totals
    # 43 records: 40 in segments, 3 in the log.
    assert (totals.files, totals.records, totals.damage, totals.in_use) == (17, 43, 0, False)


def test_a_lost_range_of_a_router_is_sound_in_the_log_and_in_a_snapshot() -> None:
    """Also the frames after it: their seqs leave a gap that no bad bytes explain."""
    disk = FakeDisk()
    opened = Store(disk)
    opened.create("source", durability="fsync", cap_records=3)
    opened.create("dest", durability="fsync")
    opened.route("source", "dest")
    for _ in range(2):
        opened.append("source", *range(10))
        opened.append("dest", "direct")
        assert opened.engine.forwarder.bring_up_to_date(opened.engine.topic("dest"))
        opened.mark_synced()
        opened.kill()
        assert lines(verified(disk)) == []
        opened = Store(disk)
        opened.checkpoint()
        opened.kill()
        assert lines(verified(disk)) == []
        opened = Store(disk)
    assert opened.engine.topic("dest").live.lost.pairs() == [(2, 8), (13, 19)]
    opened.kill()
    assert sum(row.get("type") == "lost" for row in dump(disk, WAL)) == 2


def test_progress_reaches_the_total_and_never_goes_back() -> None:
    seen: list[tuple[int, int]] = []
    list(Verifier(filled_disk(), ROOT, progress=lambda done, total: seen.append((done, total))).run())
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 16_384


def test_a_real_directory_is_verified_through_the_same_seam(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    with store(RealFs(), root) as opened:
        opened.append("orders", *range(25))
    assert verified(RealFs(), root) == []


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="there is no such directory"):
        verified(RealFs(), str(tmp_path / "nothing"))
    with pytest.raises(StartRefused, match=r"is no data directory: it has neither wal/ nor meta/ nor topics/"):
        verified(RealFs(), str(tmp_path))


# Segments.


def test_a_flipped_byte_in_a_sealed_segment_is_named_by_file_offset_and_seq_c06_c15() -> None:
    disk = filled_disk()
    offset = frame_offset(disk, f"{SEGMENT}.data", 14)
    flip(disk, f"{SEGMENT}.data", offset + segment.HEADER_BYTES + 6)
    (finding,) = verified(disk)
    message = finding.message
    assert message.startswith("checksum does not agree: stored ")
    assert finding.line() == (
        f'damage: topics/00000001/seg-0000000000000011.data offset {offset} seq 14: {message} [topic "orders"]'
    )
    with store(disk) as opened:
        assert [record.seq for record in opened.records("audit")] == [1, 2, 3]
        read, bad = readable(opened, "orders", 4, 40)
        assert read == [seq for seq in range(4, 41) if seq != 14]
        assert [error.detail for error in bad] == [{"topic": "orders", "seq": 14}]


def readable(opened: Store, topic: str, first_seq: int, last_seq: int) -> tuple[list[int], list[CorruptRecord]]:
    """(seqs that can be read one by one, the errors of the others)."""
    read: list[int] = []
    bad: list[CorruptRecord] = []
    for seq in range(first_seq, last_seq + 1):
        try:
            read += [record.seq for record in opened.engine.read(topic, seq - 1, limit=1).records]
        except CorruptRecord as error:
            bad.append(error)
    return read, bad


def test_each_of_several_bad_frames_is_named_once_c15() -> None:
    disk = filled_disk()
    path = f"{SEGMENT}.data"
    for seq in (12, 13, 20):
        flip(disk, path, frame_offset(disk, path, seq) + segment.HEADER_BYTES + 6)
    found = [(finding.seq, finding.last_seq) for finding in verified(disk)]
    assert found == [(12, 12), (13, 13), (20, 20)]


def test_a_bad_length_does_not_hide_the_frames_behind_it() -> None:
    disk = filled_disk()
    path = f"{SEGMENT}.data"
    disk.poke(path, frame_offset(disk, path, 15), b"\xff\xff\xff\xff")
    (finding,) = verified(disk)
    assert (finding.seq, finding.last_seq) == (15, 15)
    assert finding.message == "frame length 4294967295 does not fit its parts (node 0, tag 3, data 19)"


def test_a_frame_that_another_one_replaced_is_found_by_the_digest() -> None:
    disk = filled_disk()
    path = f"{SEGMENT}.data"
    offset = frame_offset(disk, path, 14)
    row = next(row for row in dump(disk, path) if row.get("seq") == 14)
    forged = segment.encode(segment.Record(14, row["ts"], None, None, b'{"number":99}', None))
    assert len(forged) == row["length"]
    disk.poke(path, offset, forged)
    (finding,) = verified(disk)
    assert finding.severity == "damage"
    assert finding.message == "every frame is valid, but they are not the ones that were sealed"


def test_a_delete_byte_that_is_lost_is_damage() -> None:
    disk = filled_disk()
    first = f"{ROOT}/topics/00000001/seg-0000000000000001.data"
    with store(disk) as opened:
        opened.delete("orders", tag="odd")
    row = next(row for row in dump(disk, first) if row["seq"] == 5)
    assert row["deleted"] is True
    disk.poke(first, row["offset"] + row["length"] - 1, b"\0")
    (finding,) = [finding for finding in verified(disk) if finding.severity == "damage"]
    assert finding.message == "deleted records have lost their delete bytes"


def test_a_short_segment_says_which_seqs_are_missing_b21() -> None:
    disk = filled_disk()
    path = f"{SEGMENT}.data"
    offset = frame_offset(disk, path, 18)
    disk.replace(path, disk.read(path)[:offset])
    (finding,) = verified(disk)
    assert finding.line() == (
        f"damage: topics/00000001/seg-0000000000000011.data offset {offset} seq 18 to 20: the file has {offset} of "
        'the 585 bytes that the snapshot notes; seqs 18 to 20 are missing [topic "orders"]'
    )


def test_a_missing_index_is_a_warning_and_a_wrong_one_is_damage_c01_c02_c03_c05() -> None:
    disk = filled_disk()
    whole = disk.read(f"{SEGMENT}.idx")
    disk.unlink(f"{SEGMENT}.idx")
    assert lines(verified(disk)) == [
        'warning: topics/00000001/seg-0000000000000011.idx: the index is missing [topic "orders"]'
    ]
    disk.replace(f"{SEGMENT}.idx", whole[:-30])
    assert lines(verified(disk)) == [
        (
            "damage: topics/00000001/seg-0000000000000011.idx offset 170: the index has 170 bytes, 10 entries need 200 "
            '[topic "orders"]'
        )
    ]
    disk.replace(f"{SEGMENT}.idx", whole + whole[:40])
    assert lines(verified(disk)) == [
        'warning: topics/00000001/seg-0000000000000011.idx offset 200: 40 bytes after the 10 entries [topic "orders"]'
    ]
    disk.replace(f"{SEGMENT}.idx", whole[20:40] + whole[20:])
    (finding,) = verified(disk)
    assert (finding.severity, finding.offset, finding.seq) == ("damage", 0, 11)
    assert finding.expected.startswith("offset 0 length 60 ts ")
    assert finding.found.startswith("offset 60 length 57 ts ")


def test_zeros_in_the_place_of_index_entries_are_damage_c04() -> None:
    disk = filled_disk()
    disk.poke(f"{SEGMENT}.idx", 100, bytes(40))
    assert [(finding.severity, finding.seq) for finding in verified(disk)] == [("damage", 16), ("damage", 17)]


def test_a_bad_tag_sidecar_is_damage_and_a_missing_one_a_warning() -> None:
    disk = filled_disk()
    flip(disk, f"{SEGMENT}.tags", 50)
    (finding,) = verified(disk)
    assert (finding.severity, finding.file) == ("damage", "topics/00000001/seg-0000000000000011.tags")
    disk.unlink(f"{SEGMENT}.tags")
    assert lines(verified(disk)) == [
        'warning: topics/00000001/seg-0000000000000011.tags: the tag sidecar is missing [topic "orders"]'
    ]


def test_a_missing_segment_is_named_with_its_seqs_b21() -> None:
    disk = filled_disk()
    for kind in ("data", "idx", "tags"):
        disk.unlink(f"{SEGMENT}.{kind}")
    (finding,) = verified(disk)
    assert finding.line() == (
        "damage: topics/00000001/seg-0000000000000011.data seq 11 to 20: missing: the newest snapshot lists it with "
        '10 live records [topic "orders"]'
    )
    with pytest.raises(StartRefused):
        Store(disk)


def test_a_missing_segment_that_the_log_has_deleted_since_is_no_damage() -> None:
    disk = filled_disk()
    opened = Store(disk)
    opened.delete("orders", before_seq=21)
    opened.kill()
    for stem in ("01", "11"):
        for kind in ("data", "idx", "tags"):
            disk.unlink(f"{ROOT}/topics/00000001/seg-00000000000000{stem}.{kind}")
    assert lines(verified(disk)) == []
    with store(disk) as opened:
        assert [record.seq for record in opened.records("orders")] == list(range(21, 41))


def test_the_files_of_a_topic_that_the_log_removed_are_not_missed() -> None:
    disk = filled_disk()
    opened = Store(disk)
    opened.drop("orders")
    opened.kill()
    assert lines(verified(disk), "damage") == []


def test_index_and_tags_without_their_data_and_unknown_files_are_only_noted_c01() -> None:
    disk = filled_disk()
    for path in ("notes.txt", "topics/00000001/seg-0000000000000077.idx", "topics/readme", "wal/x.torn"):
        disk.replace(f"{ROOT}/{path}", b"mine")
    assert lines(verified(disk)) == [
        "note: notes.txt: not one of ours; left alone",
        "note: wal/x.torn: bytes that were set aside; delete the file when you do not need it",
        'note: topics/00000001/seg-0000000000000077: idx without data; left alone [topic "orders"]',
        "note: topics/readme: not one of ours; left alone",
    ]


# Snapshots, CURRENT, STORE.


def test_a_bad_snapshot_is_damage_whichever_it_is_d04() -> None:
    disk = filled_disk()
    for number in (1, 2):
        flip(disk, f"{ROOT}/meta/snapshot.000{number}.bin", 40)
    found = verified(disk)
    assert [(finding.severity, finding.file) for finding in found[:3]] == [
        ("damage", "meta/snapshot.0002.bin"),
        ("damage", "meta/snapshot.0001.bin"),
        ("warning", "meta"),
    ]
    with store(disk) as opened:
        assert [record.seq for record in opened.records("orders")] == list(range(4, 41))


def test_a_snapshot_of_the_future_is_refused_not_called_damaged() -> None:
    disk = filled_disk()
    disk.poke(f"{ROOT}/meta/snapshot.0002.bin", 4, b"\x09")
    with pytest.raises(FutureVersion, match=r"snapshot\.0002\.bin: snapshot version 9 is unknown"):
        verified(disk)


def test_numbers_of_a_snapshot_that_contradict_each_other_are_damage() -> None:
    disk = filled_disk()
    path = f"{ROOT}/meta/snapshot.0002.bin"
    snapshot = snapshot_codec.decode(disk.read(path))
    state = snapshot_codec.decode_topic(snapshot.topics[0])
    state.head_seq = 30
    state.pending_deletes = [(90, 91)]
    snapshot.topics = [snapshot_codec.encode_topic(state)]
    disk.replace(path, snapshot_codec.encode(snapshot))
    assert [finding.message for finding in verified(disk)] == [
        "seq 40 is in segments, but the head is 30",
        "the pending delete range 90 to 91 is no range of seqs up to the head 30",
        "the pending deletes 90 to 91 are in no segment",
    ]


def test_without_any_snapshot_a_trimmed_log_is_damage_that_a_start_rebuilds_from() -> None:
    disk = FakeDisk()
    opened = Store(disk, settings=dataclasses.replace(SMALL, wal_file_bytes=2048))
    opened.create("orders", durability="fsync")
    for _ in range(3):
        for number in range(40):
            opened.append("orders", {"number": number})
        opened.checkpoint()
    opened.append("orders", {"number": 121})
    opened.kill()
    for name in disk.listdir(f"{ROOT}/meta"):
        disk.unlink(f"{ROOT}/meta/{name}")
    assert not disk.exists(WAL), "the log is trimmed"
    assert lines(verified(disk), "damage") == [
        "damage: meta: there is no snapshot, and the log does not reach back to its beginning"
    ]
    with store(disk) as again:
        assert [record.seq for record in again.records("orders")] == list(range(1, 122))


def test_a_hot_segment_that_only_the_cold_tier_has_is_noted() -> None:
    disk, cold = cold_disk()
    path = f"{ROOT}/meta/snapshot.0002.bin"
    snapshot = snapshot_codec.decode(disk.read(path))
    state = snapshot_codec.decode_topic(snapshot.topics[0])
    state.segments[1].tier = "hot"
    snapshot.topics = [snapshot_codec.encode_topic(state)]
    disk.replace(path, snapshot_codec.encode(snapshot))
    found = verified(disk, cold=cold)
    assert lines(found)[0] == (
        "note: topics/00000001/seg-0000000000000011.data seq 11 to 20: only the cold tier has it, the newest snapshot "
        'says it is here [topic "orders"]'
    )
    assert lines(found, "damage") == []
    with store(disk, settings=dataclasses.replace(SMALL, cold_dir="/cold")) as opened:
        assert [record.seq for record in opened.records("orders")] == list(range(4, 41))


@pytest.mark.parametrize("content", [b"", b"wal-0000000000000009.lo", b"\xff\xfe"])
def test_a_wrong_current_is_a_warning_d05(content: bytes) -> None:
    disk = filled_disk()
    disk.replace(f"{ROOT}/wal/CURRENT", content)
    (finding,) = verified(disk)
    assert (finding.severity, finding.file, finding.message) == (
        "warning",
        "wal/CURRENT",
        "does not name the newest file",
    )


def test_a_damaged_store_file_is_damage() -> None:
    disk = filled_disk()
    disk.replace(f"{ROOT}/STORE", b"{")
    (finding,) = verified(disk)
    assert (finding.severity, finding.file, finding.message) == ("damage", "STORE", "not a store id")
    with pytest.raises(StartRefused):
        Store(disk)


# WAL.


def test_a_flip_in_the_middle_of_the_log_is_damage_with_its_frame_number_b04() -> None:
    disk = filled_disk()
    row = [row for row in dump(disk, WAL) if row.get("topic_id") == 2 and row["type"] == "append"][1]
    flip(disk, WAL, row["offset"] + 50)
    damage, lost = verified(disk)
    assert (damage.severity, damage.file, damage.offset) == ("damage", "wal/wal-0000000000000001.log", row["offset"])
    assert damage.message.startswith(f"frame {row['frame']}: checksum does not agree: stored ")
    assert damage.message.endswith("; the sync mark at offset 6742 covers it")
    assert lost.line() == (
        f"damage: wal/wal-0000000000000001.log offset {row['offset']} seq 2: records that were in the missing or bad "
        'bytes, as the seqs of their neighbours show [topic "audit"]'
    )
    with pytest.raises(StartRefused, match=f"damaged at offset {row['offset']}"):
        Store(disk)


def test_a_bad_end_that_no_mark_covers_is_a_torn_tail_b07() -> None:
    disk = filled_disk()
    opened = Store(disk)
    opened.append("audit", {"entry": 4})
    opened.kill()
    row = list(dump(disk, WAL))[-1]
    flip(disk, WAL, row["offset"] + 50)
    disk.poke(WAL, row["offset"] + row["length"], random.Random(1).randbytes(5000))
    (finding,) = verified(disk)
    assert (finding.severity, finding.offset) == ("note", row["offset"])
    assert finding.message.startswith(f"a torn tail of {row['length'] + 5000} bytes from frame {row['frame']} on (")
    with store(disk) as opened:
        assert [record.seq for record in opened.records("audit")] == [1, 2, 3]


def test_damage_before_the_snapshots_position_does_not_stop_a_start() -> None:
    disk = filled_disk()
    flip(disk, WAL, 300)
    (finding,) = verified(disk)
    assert finding.severity == "damage"
    assert finding.advice.startswith("everything here is in segments")
    Store(disk).kill()


def rotated_disk() -> FakeDisk:
    """Several WAL files that no checkpoint has taken in."""
    disk = FakeDisk()
    opened = Store(disk, settings=dataclasses.replace(SMALL, wal_file_bytes=2048))
    opened.create("orders", durability="fsync")
    for number in range(60):
        opened.append("orders", {"number": number})
    opened.kill()
    return disk


def test_a_missing_file_of_the_log_is_damage_that_names_the_frames() -> None:
    disk = rotated_disk()
    files = [name for name in disk.listdir(f"{ROOT}/wal") if name.endswith(".log")]
    assert len(files) > 3
    first, behind = (int(name[4:20]) for name in files[1:3])
    disk.unlink(f"{ROOT}/wal/{files[1]}")
    damage = [finding for finding in verified(disk) if finding.severity == "damage"]
    assert damage[0].line() == (
        f"damage: wal/{files[2]} offset 0: frames {first} to {behind - 1} are missing: no file holds them"
    )
    assert damage[1].topic == "orders"
    with pytest.raises(StartRefused):
        Store(disk)


def test_a_bad_frame_in_an_earlier_file_is_damage_b03() -> None:
    disk = rotated_disk()
    path = f"{ROOT}/wal/{disk.listdir(f'{ROOT}/wal')[1]}"
    flip(disk, path, list(dump(disk, path))[-1]["offset"] + 45)
    assert verified(disk)[0].severity == "damage"
    with pytest.raises(StartRefused):
        Store(disk)


def test_a_frame_of_an_unknown_kind_is_a_newer_version_not_damage() -> None:
    disk = filled_disk()
    row = list(dump(disk, WAL))[-1]
    frame = bytearray(disk.read(WAL)[row["offset"] : row["offset"] + row["length"]])
    frame[4] = 77
    from xxhash import xxh3_64_intdigest

    frame[-8:] = xxh3_64_intdigest(bytes(frame[4:-8])).to_bytes(8, "little")
    disk.poke(WAL, row["offset"], bytes(frame))
    with pytest.raises(FutureVersion, match="frame type 77"):
        verified(disk)


# In use, copies, the cold tier.


def test_a_directory_in_use_is_verified_with_a_note_on_its_moving_tail() -> None:
    disk = filled_disk()
    with store(disk) as opened:
        opened.append("orders", 1, 2, 3)
        verifier = Verifier(disk, ROOT)
        (note,) = list(verifier.run())
        assert verifier.totals.in_use
        assert note.message.endswith("what is sealed is checked, the tail may be moving")


def syncs(opened: Store) -> None:
    opened.append("orders", 1)
    opened.mark_synced()


def begins_log_files(opened: Store) -> None:
    """Also removes the ones that no snapshot needs any more."""
    for _ in range(3):
        for _ in range(8):
            opened.append("audit", "x" * 3000)
        opened.checkpoint()


def deletes(opened: Store) -> None:
    """Segments are written again without what is deleted."""
    opened.delete("orders", tag="odd")
    opened.checkpoint()


def evicts(opened: Store) -> None:
    opened.create("orders", durability="fsync", cap_records=3)
    opened.checkpoint()


def removes(opened: Store) -> None:
    opened.drop("orders")


@pytest.mark.parametrize("work", [syncs, begins_log_files, deletes, evicts, removes])
def test_what_a_server_does_between_two_calls_of_a_look_is_nothing_bad(work: Callable[[Store], None]) -> None:
    def look(turn: int | None) -> int:
        disk = filled_disk()
        opened = Store(disk)
        busy = BusyFs(disk, lambda: work(opened) if turn else None, turn)
        bad = [finding for finding in verified(busy) if finding.severity != "note"]
        opened.kill()
        assert lines(bad) == [], turn
        return busy.calls

    for turn in sampled_range(look(None), 4):
        look(turn + 1)


def test_damage_is_found_while_a_server_writes() -> None:
    disk = filled_disk()
    opened = Store(disk)
    # Of `audit`, which is in no segment. The message names the last mark, and the server writes further marks.
    wal_offset = max(row["offset"] for row in dump(disk, WAL) if row.get("seq") == 2)
    flip(disk, WAL, wal_offset + 45)
    segment_offset = frame_offset(disk, f"{SEGMENT}.data", 14)
    flip(disk, f"{SEGMENT}.data", segment_offset + 45)
    disk.unlink(f"{SEGMENT.replace('11', '21')}.data")
    busy = BusyFs(disk, lambda: None if busy.calls % 8 else syncs(opened))
    verifier = Verifier(busy, ROOT)
    found = [finding for finding in verifier.run() if finding.severity == "damage"]
    assert {(finding.file, finding.offset, finding.seq) for finding in found} >= {
        (WAL.removeprefix(f"{ROOT}/"), wal_offset, None),
        (f"{SEGMENT.removeprefix(f'{ROOT}/')}.data", segment_offset, 14),
        (f"{SEGMENT.replace('11', '21').removeprefix(f'{ROOT}/')}.data", None, 21),
    }
    assert verifier.totals.damage == len(found)
    opened.kill()


def test_a_copy_taken_while_running_says_what_is_missing_b21() -> None:
    disk = filled_disk()
    early = disk.files()
    opened = Store(disk)
    for number in range(41, 61):
        opened.append("orders", {"number": number})
    opened.checkpoint()
    opened.kill()
    # The topics were copied first, meta and the log after the checkpoint.
    copy = FakeDisk()
    copy.makedirs(f"{ROOT}/topics/00000001")
    copy.makedirs(f"{ROOT}/meta")
    copy.makedirs(f"{ROOT}/wal")
    for path, content in {**disk.files(), **early}.items():
        if "/topics/" not in path:
            copy.replace(path, disk.files().get(path, content))
        elif path in early:
            copy.replace(path, content)
    damage = [finding for finding in verified(copy) if finding.severity == "damage"]
    assert [(finding.seq, finding.last_seq, finding.message.split(":")[0]) for finding in damage] == [
        (41, 50, "missing"),
        (51, 60, "missing"),
        (1, 3, "missing"),
    ]
    assert "take it again with the server stopped" in damage[0].advice


def cold_disk() -> tuple[FakeDisk, FolderStore]:
    """`filled_disk` with the segment of seqs 11 to 20 in the cold tier only."""
    disk = filled_disk()
    cold = FolderStore(disk, "/cold")
    path = f"{ROOT}/meta/snapshot.0002.bin"
    snapshot = snapshot_codec.decode(disk.read(path))
    state = snapshot_codec.decode_topic(snapshot.topics[0])
    ensure_store_id(cold, store_id_of(disk))
    copy_to_cold(disk, ROOT, cold, 1, state.segments[1])
    state.segments[1].tier = "cold"
    snapshot.topics = [snapshot_codec.encode_topic(state)]
    disk.replace(path, snapshot_codec.encode(snapshot))
    for kind in ("data", "idx", "tags"):
        disk.unlink(f"{SEGMENT}.{kind}")
    return disk, cold


def store_id_of(disk: FakeDisk) -> str:
    verifier = Verifier(disk, ROOT)
    list(verifier.run())
    assert verifier.store_id is not None
    return verifier.store_id


def test_the_cold_tier_is_checked_when_it_is_named_c15() -> None:
    disk, cold = cold_disk()
    assert lines(verified(disk)) == ["note: meta: 1 segments are in a cold tier and were not checked"]
    assert verified(disk, cold=cold) == []
    path = "/cold/topics/00000001/seg-0000000000000011.data"
    flip(disk, path, frame_offset(disk, path, 14) + segment.HEADER_BYTES + 6)
    (finding,) = verified(disk, cold=cold)
    assert (finding.severity, finding.file, finding.seq) == ("damage", path, 14)
    disk.unlink(path)
    (finding, *notes) = verified(disk, cold=cold)
    assert (finding.severity, finding.file, finding.seq, finding.last_seq) == ("damage", path, 11, 20)
    assert {note.severity for note in notes} <= {"note"}


def test_a_cold_tier_of_another_directory_is_named() -> None:
    disk, cold = cold_disk()
    disk.replace("/cold/STORE", disk.read("/cold/STORE").replace(store_id_of(disk).encode(), b"0" * 32))
    found = [finding.message for finding in verified(disk, cold=cold)]
    assert found == ["this tier belongs to another data directory"]


# Soundness.


def random_directory(seed: int) -> tuple[FakeDisk, EngineSettings]:
    chance = random.Random(seed)
    disk = FakeDisk()
    settings = dataclasses.replace(
        SMALL,
        wal_shards=chance.choice((1, 1, 2)),
        segment_events_max=chance.choice((3, 7, 20)),
        wal_file_bytes=chance.choice((2048, 16_384)),
    )
    for cycle in range(chance.randint(1, 3)):
        opened = Store(disk, settings=settings)
        opened.clock.advance(cycle * 100_000)
        for _ in range(chance.randint(3, 30)):
            random_step(opened, chance)
        ending = chance.choice(("close", "kill", "crash"))
        if ending == "close":
            opened.close()
        elif ending == "kill":
            opened.kill()
        else:
            disk.crash(chance.choice(list(Damage)), seed)
    return disk, settings


def random_step(opened: Store, chance: random.Random) -> None:
    topic, dice = chance.choice("abc"), chance.random()
    try:
        if dice < 0.6:
            tags = [chance.choice((None, "x", "y")) for _ in range(chance.randint(1, 5))]
            opened.append(topic, *(NewRecord({"n": chance.random()}, tag=tag) for tag in tags))
        elif dice < 0.66:
            opened.create(
                topic,
                durability=chance.choice(("fsync", "disk", "memory")),
                cap_records=chance.choice((0, 5, 20)),
                ttl_ms=chance.choice((0, 0, 5000)),
            )
        elif dice < 0.74:
            opened.delete(topic, before_seq=chance.randint(1, 30))
        elif dice < 0.82:
            opened.delete(topic, tag="x")
        elif dice < 0.86:
            opened.drop(topic)
        elif dice < 0.94:
            opened.checkpoint()
        else:
            opened.mark_synced()
    except TopicNotFound:
        pass


@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_crash_leaves_is_never_called_damage(seed: int) -> None:
    disk, _ = random_directory(seed)
    assert lines(verified(disk), "damage") == []
