"""`topics dump`: frames as values, also after bad frames."""

import msgspec
import pytest

from tests.storage.busy_fs import BusyFs
from tests.storage.directories import ROOT, Store, filled_disk, flip, store
from topics.errors import InvalidRequest
from topics.results import NewRecord
from topics.storage.inspect.dump import Row, dump
from topics.testing.fake_disk import FakeDisk

WAL = f"{ROOT}/wal/wal-0000000000000001.log"
DATA = f"{ROOT}/topics/00000001/seg-0000000000000011.data"


def rows(disk: FakeDisk, path: str, *, with_data: bool = True) -> list[Row]:
    """The rows as a reader of the JSON lines gets them."""
    return [msgspec.json.decode(msgspec.json.encode(row)) for row in dump(disk, path, with_data=with_data)]


def one_write() -> FakeDisk:
    disk = FakeDisk()
    opened = Store(disk)
    opened.create("orders", durability="fsync", cap_records=5)
    opened.append("orders", NewRecord(b'{"a": 1.50}', tag="t", node="n", meta={"m": 1}), 2, key="k")
    opened.kill()
    return disk


def test_log_frames_come_with_header_fields_bodies_and_payloads() -> None:
    found = rows(one_write(), WAL)
    assert [row["type"] for row in found] == ["sync", "topic_create", "sync", "note", "append", "append"]
    assert [row["frame"] for row in found] == [1, 2, 3, 4, 5, 6]
    ts = found[1]["ts"]
    assert found[1]["body"] == {"name": "orders", "epoch": 1, "config": {"durability": "fsync", "cap_records": 5}}
    assert found[2]["synced_frame"] == 2
    assert found[3]["body"] == {"key": "k"}
    assert found[4] == {
        "offset": found[3]["offset"] + found[3]["length"],
        "length": found[5]["offset"] - found[4]["offset"],
        "frame": 5,
        "type": "append",
        "topic_id": 1,
        "seq": 1,
        "ts": ts,
        "durable": True,
        "more": True,
        "node": "n",
        "tag": "t",
        "data": {"a": 1.5},
        "meta": {"m": 1},
        "checksum_ok": True,
    }


def test_frames_that_are_appended_meanwhile_are_no_bad_bytes() -> None:
    disk = one_write()
    with store(disk) as opened:

        def append() -> None:
            opened.append("orders", 1)
            opened.mark_synced()

        found = list(dump(BusyFs(disk, append), WAL))
    assert all(row["checksum_ok"] for row in found)
    assert [row["frame"] for row in found] == list(range(1, len(found) + 1))
    assert len(found) > 10


def test_payloads_are_printed_byte_for_byte() -> None:
    append = next(row for row in dump(one_write(), WAL) if row["type"] == "append")
    assert bytes(append["data"]) == b'{"a": 1.50}'


def test_payloads_can_be_left_out() -> None:
    append = next(row for row in rows(one_write(), WAL, with_data=False) if row["type"] == "append")
    assert "data" not in append
    assert "meta" not in append
    assert append["data_bytes"] == len(b'{"d":{"a": 1.50},"m":{"m":1}}')


def test_a_bad_log_frame_is_a_row_and_the_frames_behind_it_follow() -> None:
    disk = filled_disk()
    whole = rows(disk, WAL)
    hurt = whole[20]
    flip(disk, WAL, hurt["offset"] + 46)
    found = rows(disk, WAL)
    assert len(found) == len(whole)
    assert found[:20] == whole[:20]
    assert found[20]["checksum_ok"] is False
    assert found[20]["offset"] == hurt["offset"]
    assert found[20]["next_frame_at"] == whole[21]["offset"]
    assert found[20]["error"].startswith("checksum does not agree: stored ")
    # Behind it the frames are there, but their numbers are not known.
    assert [{**row, "frame": 0} for row in whole[21:]] == [{**row, "frame": 0} for row in found[21:]]
    assert "frame" not in found[21]


def test_a_broken_length_does_not_stop_the_search() -> None:
    disk = filled_disk()
    whole = rows(disk, WAL)
    disk.poke(WAL, whole[3]["offset"], b"\xff\xff\xff\xff")
    found = rows(disk, WAL)
    assert found[3]["error"].startswith("frame length 4294967295 does not fit its parts")
    assert found[4]["offset"] == whole[4]["offset"]


def test_segment_frames_come_with_their_delete_byte() -> None:
    found = rows(filled_disk(), f"{ROOT}/topics/00000001/seg-0000000000000001.data")
    assert [row["seq"] for row in found] == list(range(1, 11))
    assert [row["deleted"] for row in found] == [True, True, True, *([False] * 7)]
    assert found[4]["data"] == {"number": 5}
    assert found[4]["tag"] == "odd"
    assert "tag" not in found[5]


def test_a_bad_segment_frame_is_a_row_and_the_frames_behind_it_follow() -> None:
    disk = filled_disk()
    whole = rows(disk, DATA)
    flip(disk, DATA, whole[3]["offset"] + 33)
    disk.poke(DATA, whole[6]["offset"], b"\xff\xff")
    found = rows(disk, DATA)
    assert [row.get("seq") for row in found] == [11, 12, 13, None, 15, 16, None, 18, 19, 20]
    assert [row["checksum_ok"] for row in found].count(False) == 2


def test_index_tags_and_snapshot_files_are_dumped_too() -> None:
    disk = filled_disk()
    index = rows(disk, DATA.replace(".data", ".idx"))
    assert [row["seq"] for row in index] == list(range(11, 21))
    assert index[0]["offset"] == 0
    assert rows(disk, DATA.replace(".data", ".tags")) == [{"tag": "odd", "seqs": [11, 13, 15, 17, 19]}]
    head, topic = rows(disk, f"{ROOT}/meta/snapshot.0002.bin")
    assert (head["type"], head["number"], head["topics"]) == ("snapshot", 2, 1)
    assert (topic["name"], topic["head_seq"], topic["delete_below"]) == ("orders", 40, 4)
    assert len(topic["segments"][0]["digest"]) == 32


def test_bad_derived_files_are_one_row_with_the_error() -> None:
    disk = filled_disk()
    flip(disk, DATA.replace(".data", ".tags"), 50)
    flip(disk, f"{ROOT}/meta/snapshot.0002.bin", 50)
    (tags,) = rows(disk, DATA.replace(".data", ".tags"))
    (snapshot,) = rows(disk, f"{ROOT}/meta/snapshot.0002.bin")
    assert tags["checksum_ok"] is snapshot["checksum_ok"] is False
    disk.replace(DATA.replace(".data", ".idx"), bytes(45))
    assert rows(disk, DATA.replace(".data", ".idx"))[-1] == {"error": "5 bytes after the last whole entry"}


def test_files_that_were_set_aside_or_renamed_are_recognized() -> None:
    disk = filled_disk()
    for path, name in ((WAL, "wal-0000000000000001.log.broken"), (WAL, "a"), (DATA, "b")):
        disk.replace(f"/{name}", disk.read(path))
        assert [row["offset"] for row in rows(disk, f"/{name}")] == [row["offset"] for row in rows(disk, path)]
    disk.replace("/wal-0000000000000001.log.6546.torn", disk.read(WAL)[6546:7012])
    assert [row["type"] for row in rows(disk, "/wal-0000000000000001.log.6546.torn")][:2] == ["append", "sync"]


def test_a_file_that_is_none_of_ours_is_refused() -> None:
    disk = FakeDisk()
    disk.replace("/photo.jpg", b"\xff\xd8\xff\xe0 not a log")
    with pytest.raises(InvalidRequest, match=r"^/photo\.jpg is no file that can be dumped: neither WAL, segment,"):
        rows(disk, "/photo.jpg")


def test_a_frame_of_a_newer_version_is_a_row() -> None:
    from xxhash import xxh3_64_intdigest

    disk = one_write()
    last = rows(disk, WAL)[-1]
    frame = bytearray(disk.read(WAL)[last["offset"] : last["offset"] + last["length"]])
    frame[4] = 99
    frame[-8:] = xxh3_64_intdigest(bytes(frame[4:-8])).to_bytes(8, "little")
    disk.poke(WAL, last["offset"], bytes(frame))
    assert rows(disk, WAL)[-1]["error"].startswith("frame type 99 with flags")
