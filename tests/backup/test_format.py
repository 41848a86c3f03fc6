"""The objects of a backup: what is written is read back, and every changed byte is found."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topics
from topics.backup import format as codec
from topics.backup.checking import BackupCheck
from topics.backup.format import Point, StoredFile, TopicEntry, TopicRef
from topics.backup.plan import RestoreOrder
from topics.backup.restoring import restore_backup
from topics.backup.store import open_backup
from topics.errors import Damaged, FutureVersion
from topics.formats import segment
from topics.formats.control import RouterState
from topics.formats.records import Record
from topics.formats.snapshot import GroupState, KeyState, TopicState
from topics.storage.fs import RealFs

STATE = TopicState(
    "orders", 31, 1, {"ttl_ms": 0}, head_seq=9, keys=[KeyState("k", 5, 1, 2, 9)], groups=[GroupState("g", 7, 5)]
)
FRAMES = b"".join(segment.encode(Record(seq, 1000 + seq, None, "t", b"{}", None)) for seq in (4, 5, 9))


def file_of(data: bytes) -> StoredFile:
    frames = codec.scan_frames("x", data)
    return codec.stored_file(codec.tail_name(31, 4, data), data, frames, [(4, 5), (9, 9)])


POINT = Point(
    ts=1794881938972,
    store_id="8" * 32,
    version="0.1.0",
    topics=[TopicRef(id=31, name="orders", entry="catalog/0000001F/00.json", records=3, size_bytes=len(FRAMES))],
    routers=[RouterState(1, "r", 31, 32, {"preserve_tag": False}, 9, 4, 0, 4)],
    next_topic_id=33,
    next_router_id=2,
)


def test_points_and_entries_are_read_back() -> None:
    entry = TopicEntry(state=STATE, files=[file_of(FRAMES)])
    content = codec.encode_entry(entry)
    assert codec.decode_entry("x", codec.entry_name(31, content), content) == entry
    assert codec.decode_point("x", codec.encode_point(POINT)) == POINT
    assert codec.decode_mark("x", codec.encode_mark("8" * 32)).store_id == "8" * 32


def test_names_say_topic_seq_and_content() -> None:
    assert codec.point_name(POINT.ts) == "points/0001794881938972.json"
    assert codec.segment_name(31, 41, "ab" * 16) == f"files/0000001F/seg-0000000000000041-{'ab' * 16}.data"
    assert codec.tail_name(31, 4, b"").startswith("files/0000001F/tail-0000000000000004-e3b0c442")


@given(st.data())
def test_every_changed_byte_is_found(data: st.DataObject) -> None:
    file, point = file_of(FRAMES), codec.encode_point(POINT)
    entry = codec.encode_entry(TopicEntry(state=STATE, files=[file]))
    content, decode = data.draw(
        st.sampled_from(
            (
                (FRAMES, lambda changed: codec.check_file("x", file, changed)),
                (point, lambda changed: codec.decode_point("x", changed)),
                (entry, lambda changed: codec.decode_entry("x", codec.entry_name(31, entry), changed)),
            )
        )
    )
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises((Damaged, FutureVersion)):
        decode(bytes(changed))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    for decode in (codec.decode_point, codec.decode_mark):
        try:
            decode("x", content)
        except (Damaged, FutureVersion):
            continue


def test_a_damaged_file_is_named_with_the_place_and_the_reason() -> None:
    with pytest.raises(Damaged) as caught:
        codec.scan_frames("files/a", FRAMES[:-1])
    assert (caught.value.path, caught.value.offset) == ("files/a", len(FRAMES) // 3 * 2)
    with pytest.raises(Damaged) as caught:
        codec.check_file("files/a", file_of(FRAMES), FRAMES[:-1])
    assert (caught.value.expected, caught.value.found) == (f"{len(FRAMES)} bytes", str(len(FRAMES) - 1))


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    with pytest.raises(FutureVersion, match="use a newer topics"):
        codec.decode_mark("b/BACKUP", msgspec.json.encode({"format": 2, "what": "ever"}))


def test_a_backup_of_version_1_stays_readable(tmp_path: Path) -> None:
    """The folder was written by the first version of the format."""
    place = Path(__file__).parent.parent / "golden" / "backup-v1"
    store = open_backup(str(place), RealFs())
    check = BackupCheck(store)
    assert list(check.run()) == []
    assert (check.totals.points, check.totals.files) == (2, 5)
    for order, seqs in ((RestoreOrder(), range(11, 26)), (RestoreOrder(until_ms=1_700_000_000_000), range(11, 25))):
        directory = tmp_path / str(len(seqs))
        restore_backup(store, RealFs(), str(directory), order, new_store_id=lambda: "5" * 32)
        with topics.open(directory) as log:
            page = log.read("orders")
            assert [record.seq for record in page.records] == list(seqs)
            assert (page.head_seq, page.records[0].tag) == (seqs[-1], "y")
            assert [record.data for record in log.read("copies").records][:2] == [b'{"n":30}', b'{"n":31}']
            assert log.group("orders", "g").seq == 11
