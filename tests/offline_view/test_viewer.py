"""The read-only recovery: it gives the records that a start would serve, and changes no byte of the directory."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import sampled_range
from tests.engine.small_log import ROOT, SEGMENT_EVENTS, SmallLog
from topics.engine.topic.router import RouterSpec
from topics.errors import Damaged, StartRefused
from topics.formats import segment as codec
from topics.offline_view.view import TopicView, ViewAnswer, ViewRequest
from topics.offline_view.viewer import recover_view, view_directory
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import path_of_address
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store_id import read_store_id
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk


class Place:
    """A data directory on disk, logs on it, and views of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "data"
        self.clock = ManualClock()
        self._views = 0

    def log(self, **settings: Any) -> SmallLog:
        return SmallLog(RealFs(), root=str(self.root), clock=self.clock, **settings)

    def view(self, *, topic_id: int | None = None, cold_dir: str | None = None) -> ViewAnswer:
        """Checks that nothing changed."""
        self._views += 1
        folder = self.folder / f"view-{self._views}"
        before = self.content()
        request = ViewRequest(root=str(self.root), folder=str(folder), topic_id=topic_id, cold_dir=cold_dir)
        try:
            return view_directory(RealFs(), request, self.clock)
        finally:
            assert self.content() == before

    def content(self) -> dict[str, tuple[bytes, int]]:
        """Every file with its bytes and its modification time."""
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def crash(log: SmallLog) -> None:
    """The process ends, and its lock with it."""
    log.engine.directory.release()


def shown(view: TopicView) -> list[int]:
    """The seqs that a reader of the files finds."""
    manifest = view.manifest
    hidden = {seq for first, last in manifest["pending_deletes"] for seq in range(first, last + 1)}
    floor = max(manifest["evict_floor"], manifest["delete_below"])
    found: list[int] = []
    for segment in manifest["segments"]:
        path = path_of_address(segment["uri"])
        assert path is not None
        data, idx = (Path(path).with_suffix(f".{kind}").read_bytes() for kind in ("data", "idx"))
        assert len(idx[: segment["idx_len"]]) == segment["records"] * 20
        frames = codec.walk(data[: segment["data_len"]], 0, segment["data_len"])
        found += [frame.seq for frame in frames if not frame.deleted]
    return [seq for seq in found if seq >= floor and seq not in hidden]


def names(answer: ViewAnswer) -> list[str]:
    assert answer.status == "taken"
    return [view.manifest["topic"] for view in answer.topics]


def test_a_view_is_what_a_start_serves(place: Place) -> None:
    log = place.log()
    log.create("a", cap_records=4 * SEGMENT_EVENTS)
    log.append(count=3 * SEGMENT_EVENTS + 2, tag="x")
    log.append("b", count=2)
    log.checkpoint()
    log.append(count=7, tag="y")
    log.delete(tag="y")
    log.delete(before_seq=4)
    log.append(count=3)
    crash(log)
    answer = place.view()
    assert names(answer) == ["a", "b"]
    a, b = answer.topics
    started = place.log()
    assert shown(a) == started.seqs("a")
    assert shown(b) == started.seqs("b") == [1, 2]
    topic = started.topic("a")
    assert (a.count, a.bytes, a.type) == (topic.count, topic.size_bytes, "log")
    assert a.config["cap_records"] == 4 * SEGMENT_EVENTS
    assert (a.manifest["head_seq"], a.manifest["checkpointed_seq"]) == (topic.head_seq, topic.head_seq)
    assert a.manifest["segments"][-1]["tier"] == "tail"
    assert (a.manifest["evict_floor"], a.manifest["delete_below"]) == (topic.live.evict_floor, 4)


def test_a_directory_that_was_never_checkpointed_is_all_tail(place: Place) -> None:
    log = place.log()
    log.append(count=4)
    crash(log)
    (view,) = place.view().topics
    assert [segment["tier"] for segment in view.manifest["segments"]] == ["tail"]
    assert shown(view) == [1, 2, 3, 4]


def test_the_tail_lies_in_a_tier_of_the_same_store(place: Place) -> None:
    log = place.log()
    log.append()
    crash(log)
    (view,) = place.view().topics
    folder = place.folder / "view-1"
    assert view.manifest["segments"][0]["uri"].startswith(f"file://{folder}/topics/00000001/")
    assert read_store_id(FolderStore(RealFs(), str(folder))) == view.manifest["store_id"]


def test_a_stopped_directory_has_no_tail(place: Place) -> None:
    log = place.log()
    log.append(count=4)
    log.close()
    (view,) = place.view().topics
    assert [segment["tier"] for segment in view.manifest["segments"]] == ["hot"]
    assert shown(view) == [1, 2, 3, 4]
    assert not (place.folder / "view-1" / "topics").exists()


def test_a_torn_tail_stays_where_it_is(place: Place) -> None:
    log = place.log()
    log.append(count=4)
    crash(log)
    path = next((place.root / "wal").glob("wal-*.log"))
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[end : end + 40] = b"\x55" * 40
    path.write_bytes(data)
    answer = place.view()
    assert shown(answer.topics[0]) == [1, 2, 3, 4]
    assert not list((place.root / "wal").glob("*.torn"))


def test_what_an_unfinished_checkpoint_left_is_taken_in_from_a_copy(place: Place) -> None:
    log = place.log()
    log.append(count=2)
    log.checkpoint()
    before = place.content()
    log.append(count=2)
    log.checkpoint()
    after = place.content()
    crash(log)
    # The segments of the second checkpoint. All other files except the log are older than it.
    for name, (data, _) in after.items():
        path = place.root / name
        if name.startswith("meta/"):
            path.unlink()
        elif name.endswith(".idx"):
            path.write_bytes(before[name][0])
        assert name.endswith(".idx") or not path.exists() or path.read_bytes() == data
    for name, (data, _) in before.items():
        if name.startswith("meta/"):
            (place.root / name).write_bytes(data)
    (view,) = place.view().topics
    assert shown(view) == [1, 2, 3, 4]
    assert [segment["uri"].startswith(f"file://{place.root}") for segment in view.manifest["segments"]] == [False]


def test_expired_records_are_hidden_as_of_now(place: Place) -> None:
    log = place.log()
    log.create("a", ttl_ms=1000)
    log.append(count=3)
    log.checkpoint()
    place.clock.advance(900)
    log.append(count=2)
    crash(log)
    place.clock.advance(500)
    (view,) = place.view().topics
    assert (view.manifest["evict_floor"], view.manifest["ttl_floor"]) == (4, 3)
    assert shown(view) == [4, 5]


def test_only_the_wanted_topic_is_looked_at(place: Place) -> None:
    log = place.log()
    log.append("a")
    log.append("b")
    crash(log)
    assert names(place.view(topic_id=2)) == ["b"]
    assert names(place.view(topic_id=9)) == []


def test_copies_of_routers_are_there(place: Place) -> None:
    log = place.log()
    log.create("b")
    log.append("a", count=2)
    results: list[Any] = []
    log.engine.put_router("r", RouterSpec(source="a", dest="b"), results.append)
    log.engine.flush()
    log.append("a", count=3)
    crash(log)
    answer = place.view()
    views = {view.manifest["topic"]: view for view in answer.topics}
    started = place.log()
    records, _ = started.read("b")
    assert shown(views["b"]) == [record.seq for record in records] != []


def test_several_shards_stay_several(place: Place) -> None:
    log = place.log(wal_shards=3)
    for name in "abcd":
        log.append(name, count=3)
    log.checkpoint()
    for name in "abcd":
        log.append(name, count=2)
    crash(log)
    assert [shown(view) for view in place.view().topics] == [[1, 2, 3, 4, 5]] * 4


def test_a_directory_that_is_served_is_locked_and_readers_share_it(place: Place) -> None:
    log = place.log()
    log.append()
    assert place.view().status == "locked"
    crash(log)
    lock = RealFs().lock_shared(str(place.root / ".topics.lock"))
    assert lock is not None
    assert place.view().status == "taken"
    lock.release()


def test_without_a_lock_file_none_is_made(place: Place) -> None:
    log = place.log()
    log.append(count=2)
    log.close()
    (place.root / ".topics.lock").unlink()
    assert shown(place.view().topics[0]) == [1, 2]
    assert not (place.root / ".topics.lock").exists()


def test_cold_segments_are_read_where_they_are_and_the_tier_is_not_changed(place: Place) -> None:
    cold = place.folder / "cold"
    log = place.log(cold_dir=str(cold), hot_retain_segments=0)
    log.append(count=3 * SEGMENT_EVENTS)
    log.checkpoint()
    for _ in range(8):
        log.opened.tick()
        log.checkpoint()
    log.close()
    before = {path: path.read_bytes() for path in cold.rglob("*") if path.is_file()}
    assert before
    (view,) = place.view(cold_dir=str(cold)).topics
    assert {segment["tier"] for segment in view.manifest["segments"]} == {"cold"}
    assert shown(view) == list(range(1, 3 * SEGMENT_EVENTS + 1))
    assert {path: path.read_bytes() for path in cold.rglob("*") if path.is_file()} == before
    with pytest.raises(StartRefused, match="are in the cold tier, and its address is not set; set TOPICS_COLD_DIR"):
        place.view()


def test_a_segment_that_is_too_short_is_an_error(place: Place) -> None:
    log = place.log()
    log.append(count=2 * SEGMENT_EVENTS)
    log.close()
    path = next((place.root / "topics").rglob("*.data"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(Damaged, match=path.name):
        place.view()


def test_an_unreadable_snapshot_is_an_error_although_the_one_before_it_would_do(place: Place) -> None:
    log = place.log()
    log.append()
    log.checkpoint()
    log.append()
    log.close()
    newest = max((place.root / "meta").glob("snapshot.*.bin"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(StartRefused, match=r"no readable snapshot.*topics verify"):
        place.view()


def test_a_log_without_its_beginning_and_without_a_snapshot_is_an_error(place: Place) -> None:
    log = place.log()
    log.append(count=200)
    log.close()
    for path in (place.root / "meta").glob("snapshot.*.bin"):
        path.unlink()
    files = sorted((place.root / "wal").glob("wal-*.log"))
    for path in files:
        path.rename(path.with_name(f"wal-{int(path.stem[4:]) + 1000:016d}.log"))
    with pytest.raises(StartRefused, match="no readable snapshot"):
        place.view()


def test_a_view_can_be_told_as_json(place: Place) -> None:
    log = place.log()
    log.append(count=2, tag="x")
    crash(log)
    answer = place.view()
    assert msgspec.json.decode(msgspec.json.encode(answer), type=ViewAnswer) == msgspec.convert(
        msgspec.to_builtins(answer), ViewAnswer
    )


# After a crash at any point.


def work(disk: FakeDisk) -> None:
    """Writes of two classes, deletes, a cap, checkpoints, and the removal of a topic."""
    log = SmallLog(disk)
    log.create("a", cap_records=3 * SEGMENT_EVENTS)
    log.create("b", durability="fsync")
    for number in range(4):
        log.append("a", count=SEGMENT_EVENTS, tag=f"t{number}")
        log.append("b", count=2)
        log.append("c")
        log.delete("a", tag=f"t{number - 1}")
        log.checkpoint()
        log.append("b", count=2)
        log.delete("b", before_seq=number + 1)
    log.drop("c")
    log.append("a", count=2)


def shown_on(disk: FakeDisk, view: TopicView) -> list[int]:
    manifest = view.manifest
    hidden = {seq for first, last in manifest["pending_deletes"] for seq in range(first, last + 1)}
    floor = max(manifest["evict_floor"], manifest["delete_below"])
    found: list[int] = []
    for segment in manifest["segments"]:
        path = path_of_address(segment["uri"])
        assert path is not None
        data = disk.read(path)[: segment["data_len"]]
        assert len(data) == segment["data_len"]
        found += [frame.seq for frame in codec.walk(data, 0, len(data)) if not frame.deleted]
    return [seq for seq in found if seq >= floor and seq not in hidden]


@pytest.mark.parametrize("damage", [None, Damage.DROP, Damage.TORN, Damage.SUBSET])
def test_after_a_crash_anywhere_a_view_is_what_a_start_serves(damage: Damage | None) -> None:
    """`None` is a kill: no data is lost, also not data that was not synced."""
    crash_at = CrashAt(0)
    for operation_index in sampled_range(100_000, 11):
        disk = FakeDisk()
        disk.on_operation = crash_at = CrashAt(operation_index)
        try:
            work(disk)
        except CrashNow:
            pass
        disk.on_operation = None
        disk.kill() if damage is None else disk.crash(damage, operation_index)
        if not disk.exists(ROOT):
            continue
        before = {path: data for path, data in disk.files().items() if path.startswith(f"{ROOT}/")}
        answer = recover_view(disk, ViewRequest(root=ROOT, folder="/view"), ManualClock())
        after = {path: data for path, data in disk.files().items() if path.startswith(f"{ROOT}/")}
        assert after == before, f"operation {operation_index}"
        views = {view.manifest["topic"]: view for view in answer.topics}
        started = SmallLog(disk.clone())
        assert views.keys() == started.engine.topics.keys(), f"operation {operation_index}"
        for name, view in views.items():
            assert shown_on(disk, view) == started.seqs(name), f"operation {operation_index}, topic {name}"
            lost = [tuple(each) for each in view.manifest["lost_ranges"]]
            assert lost == started.topic(name).live.lost.pairs()
        if crash_at.count <= operation_index:
            return
    pytest.fail("the work does not end")
