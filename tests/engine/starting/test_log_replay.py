"""The replay of frames: writes come back whole, each seq once; floors only rise; deletes keep their bound."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topics
from tests.engine.small_log import ROOT, WAL_FILE_BYTES, SmallLog
from topics.engine.settings import EngineSettings
from topics.engine.starting import log_replay
from topics.errors import Damaged
from topics.formats import control, wal_frame
from topics.formats.records import RecordBatch
from topics.formats.wal_frame import FLAG_FIRST, FLAG_MORE, FrameType
from topics.storage.wal import reader
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

WAL = f"{ROOT}/wal/wal-0000000000000001.log"
NOW_MS = ManualClock().now_ms()
FIRST_OF_SEVERAL = FLAG_FIRST | FLAG_MORE


def append(
    first_seq: int,
    count: int = 1,
    *,
    topic_id: int = 1,
    name: str = "a",
    tag: str | None = None,
    opens: bool = True,
    closes: bool = True,
    ts: int = NOW_MS,
) -> list[bytes]:
    """The frames of one write, or of a part of one."""
    texts = [b'{"topic":"%b","n":%d}' % (name.encode(), first_seq + place) for place in range(count)]
    tags = None if tag is None else [tag.encode()] * count
    batch = RecordBatch([b'{"d":%b}' % text for text in texts], [len(text) for text in texts], tags)
    _, bodies = wal_frame.encode_appends(topic_id, first_seq, ts, batch, durable=False, opens=opens, closes=closes)
    return [wal_frame.seal_bodies([body]) for body in bodies]


def frame(kind: FrameType, data: Any, *, topic_id: int = 1, flags: int = FLAG_FIRST, ts: int = NOW_MS) -> list[bytes]:
    return [wal_frame.encode_control(kind, topic_id, ts, control.encode(data), flags=flags)]


def create(name: str = "a", topic_id: int = 1, **config: Any) -> list[bytes]:
    return frame(FrameType.TOPIC_CREATE, control.TopicCreate(name, 1, config), topic_id=topic_id)


def replay(*writes: list[bytes]) -> SmallLog:
    """A start on a log of exactly these frames. Before it the process died, and the machine did not."""
    disk = FakeDisk()
    SmallLog(disk)
    disk.kill()
    data = b"".join(single for write in writes for single in write)
    disk.replace(WAL, data.ljust(WAL_FILE_BYTES, b"\0"))
    SmallLog(disk)
    disk.kill()
    return SmallLog(disk)


def test_records_come_back_under_their_seqs() -> None:
    log = replay(create(), append(1, 3), append(4))
    assert log.seqs() == [1, 2, 3, 4]
    assert log.topic().head_seq == log.topic().live.logged_last_seq == 4
    assert log.append().first_seq == 5


@pytest.mark.parametrize(
    "unfinished",
    [
        append(3, 2)[:1],
        append(3, 3)[:2],
        append(3, 1, closes=False),
        frame(FrameType.NOTE, control.Note("k"), flags=FIRST_OF_SEVERAL),
        frame(FrameType.NOTE, control.Note("k"), flags=FIRST_OF_SEVERAL) + append(3, 1, opens=False, closes=False),
    ],
)
@pytest.mark.parametrize("followed", [False, True])
def test_a_write_whose_last_frame_is_missing_never_was(unfinished: list[bytes], followed: bool) -> None:
    """The log ends, or the next frame of the topic begins another write."""
    log = replay(create(), append(1, 2), unfinished, append(3) if followed else [])
    assert log.seqs() == ([1, 2, 3] if followed else [1, 2])
    assert len(log.topic().keys) == 0
    assert log.append().first_seq == (4 if followed else 3)


def test_frames_of_other_topics_may_stand_inside_a_write() -> None:
    parts = append(1, 3)
    other = append(1, 2, topic_id=2, name="b")
    log = replay(create(), create("b", 2), parts[:1], other[:1], parts[1:2], other[1:], parts[2:])
    assert log.seqs("a") == [1, 2, 3]
    assert log.seqs("b") == [1, 2]


def test_a_seq_that_was_seen_is_skipped() -> None:
    """Frames are in the log twice, in any order."""
    log = replay(create(), append(1, 2), append(1, 2), append(3), append(2), append(3), create("z"))
    assert log.seqs() == [1, 2, 3]
    assert log.topic().count == 3
    assert sorted(log.engine.topics) == ["a"]


def test_a_forward_jump_is_filled_with_holes() -> None:
    log = replay(create(), append(1), append(10, 2))
    assert log.seqs() == [1, 10, 11]
    assert log.topic().head_seq == 11


def test_a_key_answers_as_it_did() -> None:
    note = frame(FrameType.NOTE, control.Note("k"), flags=FIRST_OF_SEVERAL)
    log = replay(create(), append(1), note + append(2, 3, opens=False))
    again = log.append(count=3, key="k")
    assert (again.first_seq, again.last_seq, again.deduped) == (2, 4, True)
    assert log.append(key="other").first_seq == 5


def test_a_floor_counts_with_the_write_that_raised_it_and_not_before() -> None:
    evict = frame(FrameType.EVICT, control.Evict(2), flags=0)
    whole = append(3, 1, closes=False) + evict
    assert replay(create(cap_bytes=60), append(1), append(2), whole).seqs() == [3]
    cut = replay(create(cap_bytes=10_000), append(1), append(2), append(3, 1, closes=False))
    assert cut.seqs() == [1, 2]


def test_floors_only_rise() -> None:
    """A relaxed config brings no record back."""
    tight = frame(FrameType.CONFIG, control.ConfigUpdate({"cap_records": 2}))
    relaxed = frame(FrameType.CONFIG, control.ConfigUpdate({}, cap_floor=3))
    older = frame(FrameType.CONFIG, control.ConfigUpdate({}, cap_floor=1))
    log = replay(create(), append(1, 5), tight, relaxed, older)
    assert log.seqs() == [4, 5]
    assert log.topic().live.cap_floor == 3
    assert log.topic().config.cap_records == 0


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (control.Delete(5, before_seq=3), [3, 4, 5, 6]),
        (control.Delete(5, before_seq=100), [5, 6]),
        (control.Delete(5, tag="red"), [1, 2, 5, 6]),
        (control.Delete(5, tag="red", before_seq=4), [1, 2, 4, 5, 6]),
        (control.Delete(5, tag_prefix="r"), [1, 2, 5, 6]),
        (control.Delete(5, tag_prefix="x"), [1, 2, 3, 4, 5, 6]),
        (control.Delete(5, seqs=[1, 4, 5, 6]), [2, 3, 5, 6]),
    ],
)
def test_a_delete_keeps_its_bound(delete: control.Delete, left: list[int]) -> None:
    """A delete does not touch records written after it."""
    log = replay(
        create(), append(1, 2), append(3, 2, tag="red"), frame(FrameType.DELETE, delete), append(5, 2, tag="red")
    )
    assert log.seqs() == left
    assert log.topic().count == len(left)


def test_a_delete_between_the_frames_of_another_topics_write_hits_its_own_topic_only() -> None:
    parts = append(1, 2, topic_id=2, name="b")
    delete = frame(FrameType.DELETE, control.Delete(3, seqs=[1]))
    log = replay(create(), create("b", 2), append(1, 2), parts[:1], delete, parts[1:])
    assert log.seqs("a") == [2]
    assert log.seqs("b") == [1, 2]


def test_a_removed_topic_does_not_come_back_whatever_follows() -> None:
    """Neither late frames nor a second creation frame of the same id bring it back."""
    removal = frame(FrameType.TOPIC_DELETE, {})
    log = replay(create(), append(1, 2), removal, append(3), create(), create("b", 2))
    assert sorted(log.engine.topics) == ["b"]
    log.create("a")
    assert log.topic("a").id == 3


def test_a_topic_made_again_is_another_one() -> None:
    removal = frame(FrameType.TOPIC_DELETE, {})
    log = replay(create(), append(1, 5), removal, create("a", 2), append(1, topic_id=2))
    assert log.seqs() == [1]
    assert log.topic().id == 2


def test_frames_of_an_unknown_topic_are_kept_under_a_made_up_name() -> None:
    log = replay(create(), append(1), append(1, 2, topic_id=7, name="x"))
    records, _ = log.read("recovered-7")
    assert [record.seq for record in records] == [1, 2]
    log.create("b")
    assert log.topic("b").id == 8


def test_a_note_about_something_that_this_version_does_not_know_changes_nothing() -> None:
    """A later version writes such a note as a write of one frame, so an older version can ignore it."""
    unknown = {"from_tomorrow": {"name": "g", "event": "moved", "seq": 2}}
    log = replay(create(), append(1, 2), frame(FrameType.NOTE, unknown), append(3))
    assert log.seqs() == [1, 2, 3]
    assert log.topic().groups == {}
    assert log.append().first_seq == 4
    log.close()


def test_a_lost_range_stays_declared() -> None:
    """The start that found the range logged it. Later starts report the same range."""
    head = frame(FrameType.HEAD, control.Head(257, 3))
    log = replay(create(), append(1, 2), head, append(257))
    records, tombstones = log.read()
    assert [record.seq for record in records] == [1, 2, 257]
    assert [(stone.gap_from, stone.gap_to, stone.reason) for stone in tombstones] == [(3, 256, "power_loss")]


def test_a_reservation_alone_moves_nothing_when_only_the_process_died() -> None:
    """The head is exact."""
    log = replay(create(), frame(FrameType.HEAD, control.Head(257)), append(1, 2))
    assert log.topic().head_seq == 2
    assert log.topic().writes.ceiling == 257
    assert log.append().first_seq == 3


def test_records_of_the_time_as_ephemeral_are_declared_lost() -> None:
    stored = frame(FrameType.CONFIG, control.ConfigUpdate({"durability": "fsync"}, unlogged_last_seq=4))
    log = replay(create(durability="ephemeral"), stored, append(5))
    records, tombstones = log.read()
    assert [record.seq for record in records] == [5]
    assert [(stone.gap_from, stone.gap_to) for stone in tombstones] == [(1, 4)]


def test_time_never_runs_behind_what_is_stored() -> None:
    log = replay(create(), append(1, ts=NOW_MS + 50_000))
    assert log.engine.now_ms() == NOW_MS + 50_000
    assert log.append().ts == NOW_MS + 50_000


def test_a_control_frame_that_cannot_be_read_stops_the_start_with_its_place() -> None:
    good = b"".join([*create(), *append(1)])
    with pytest.raises(Damaged) as caught:
        replay(create(), append(1), frame(FrameType.HEAD, {"ceiling": -1}))
    assert (caught.value.path, caught.value.offset) == (WAL, len(good))


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Writes of one topic: whole ones and unfinished ones, with and without tags, metas and keys."""
    frames: list[bytes] = []
    next_seq = 1
    for number in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 20))
        metas = draw(st.lists(st.sampled_from([b"", b',"m":{"a":1}']), min_size=count, max_size=count))
        tags = draw(st.none() | st.lists(st.sampled_from([None, b"", b"red", b"blue"]), min_size=count, max_size=count))
        datas = [b'{"d":%d%b}' % (next_seq + place, meta) for place, meta in enumerate(metas)]
        batch = RecordBatch(datas, [1] * count, tags)
        has_key = draw(st.booleans())
        _, bodies = wal_frame.encode_appends(1, next_seq, NOW_MS + number, batch, durable=False, opens=not has_key)
        write = [wal_frame.seal_bodies([body]) for body in bodies]
        if has_key:
            write = frame(FrameType.NOTE, control.Note(f"k{number}"), flags=FIRST_OF_SEVERAL) + write
        if draw(st.sampled_from([True, True, True, False])):
            next_seq += count
        else:
            del write[draw(st.integers(0, len(write) - 1)) :]
        frames += write
    return frames


@given(history=histories(), window_bytes=st.integers(100, 2000))
def test_frames_taken_by_the_column_give_what_frames_taken_one_by_one_give(
    history: list[bytes], window_bytes: int
) -> None:
    """Wherever the windows of the reader cut a write."""
    found = []
    for frames_min in (1, 1_000_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_replay, "RUN_FRAMES_MIN", frames_min)
            patch.setattr(reader, "WINDOW_BYTES", window_bytes)
            log = replay(create(), history)
        topic = log.topic()
        records, _ = log.read()
        tagged = {tag: topic.live.tagged_seqs(tag, is_prefix=False, end_seq=1000) for tag in (b"", b"red", b"blue")}
        numbers = (topic.count, topic.size_bytes)
        keys = [log.append(key=f"k{number}").first_seq for number in range(8)]
        found.append((records, numbers, tagged, keys))
    assert found[0] == found[1]


SETTINGS = EngineSettings(wal_shards=1, wal_file_bytes=16 * 1024, segment_events_max=50, tail_cache_bytes=0)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to see open files")
def test_wal_files_that_records_were_read_from_are_let_go_after_the_first_checkpoint(tmp_path: Path) -> None:
    """The checkpoint removes the files. Their disk space is free only when no process has them open."""
    with topics.open(tmp_path / "first", settings=SETTINGS) as log:
        for number in range(200):
            log.append("a", [{"n": number, "pad": "x" * 200}])
        # A copy of the directory as a kill would leave it.
        shutil.copytree(tmp_path / "first", tmp_path / "killed")
    with topics.open(tmp_path / "killed", settings=SETTINGS) as log:
        assert len(list(log.read_all("a"))) == 200
        assert len(open_logs(tmp_path / "killed")) > 2
        log.checkpoint()
        assert len(list(log.read_all("a"))) == 200
        assert len(open_logs(tmp_path / "killed")) <= 2, "the active file and the prepared next file"
    assert open_logs(tmp_path / "killed") == []


def open_logs(directory: Path) -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(directory)) and "/wal/" in link]


# Source trims.


def router(router_id: int, source: int, dest: int, cursor: int, dest_seq: int) -> list[bytes]:
    state = control.RouterState(router_id, f"r{router_id}", source, dest, cursor=cursor, dest_seq=dest_seq)
    return frame(FrameType.ROUTER_CREATE, state, topic_id=dest)


def chain(trim: list[bytes]) -> SmallLog:
    """Topic 1 is copied to 2, and 2 to 3. Router 1 trimmed source seqs 4 to 6, router 2 is up to date before that."""
    return replay(
        create("source", 1),
        create("dest", 2),
        create("end", 3),
        append(1, 6, topic_id=1, name="source"),
        router(1, 1, 2, cursor=0, dest_seq=0),
        router(2, 2, 3, cursor=0, dest_seq=0),
        frame(FrameType.NOTE, control.Note(copies=control.Copies(1, 3, 3, 3)), topic_id=2, flags=FIRST_OF_SEVERAL),
        append(1, 3, topic_id=2, name="dest", opens=False),
        trim,
        append(7, 1, topic_id=2, name="dest"),
    )


def test_a_lost_range_keeps_older_records_and_moves_its_router() -> None:
    log = chain(frame(FrameType.LOST, control.Lost(4, 6, 1, 3, 6, 6), topic_id=2))
    assert log.seqs("dest") == [1, 2, 3, 7]
    assert [(gap.gap_from, gap.gap_to, gap.reason) for gap in log.read("dest")[1]] == [(4, 6, "source_trim")]
    moved = log.engine.router("r1")
    assert (moved.cursor, moved.forwarded_total) == (6, 6)
    log.engine.forwarder.bring_up_to_date(log.topic("end"))
    assert [record.seq for record in log.read("end")[0]] == [1, 2, 3, 7]
    assert log.topic("end").live.lost.pairs("source_trim") == [(4, 6)]


def test_a_source_trim_of_an_older_version_is_a_floor_as_it_was() -> None:
    """Older versions wrote an EVICT frame with `trim_floor`, and lost every older record of dest with it."""
    evict = control.Evict(trim_floor=6, copies=control.Copies(1, 6, 6, 6), trim_first=4)
    log = chain(frame(FrameType.EVICT, evict, topic_id=2))
    assert log.seqs("dest") == [7]
    assert [(gap.gap_from, gap.gap_to) for gap in log.read("dest")[1]] == [(1, 6)]
    assert log.topic("dest").live.lost.pairs() == []
    moved = log.engine.router("r1")
    assert (moved.cursor, moved.forwarded_total) == (6, 6)
    log.engine.forwarder.bring_up_to_date(log.topic("end"))
    assert [record.seq for record in log.read("end")[0]] == [1, 2, 3, 7], "what a start copies again is not lost"
    assert log.topic("end").live.lost.pairs("source_trim") == [(4, 6)]
