"""The chain of manifests: what counts, who wins, and what a crash, a full disk or a failing bucket leaves of it."""

import http.server
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.lakes import archived, assert_whole, content_of, covered_seqs, done, lake_file, merged, put_files
from tests.storage.tiers.test_folder_store import (
    BUCKET,
    new_s3_address,
    request_plain,
    running_moto,
    set_aws_environment,
)
from tests.storage.tiers.test_shared_folder import RunAt
from topics.errors import ColdUnavailable, FutureVersion, StorageFull
from topics.spark.errors import Conflict
from topics.spark.lake.lake import Lake, manifest_name, open_lake
from topics.spark.lake.state import GAPS, GapFile, LakeChange, LakeDamaged, LakeFile, LakeState, gap_name
from topics.storage.fs import RealFs
from topics.storage.tiers.shared_folder import SharedFolder
from topics.storage.tiers.store import SharedStore
from topics.testing.fake_disk import CrashAt, CrashNow, Damage, FakeDisk

ROOT: Final = "/mnt/lake"
NOW_MS: Final = 1_800_000_000_000
ONE, TWO, THREE = archived(1, 10), archived(11, 20), archived(21, 30)

Opener = Callable[[], SharedStore]


def on_disk(disk: FakeDisk) -> Lake:
    lake = Lake(SharedFolder(disk, ROOT))
    lake.refresh()
    return lake


def put_and_commit(lake: Lake, *parts: LakeChange) -> tuple[LakeChange, ...]:
    put_files(lake.store, *parts)
    return lake.commit("test", parts, now_ms=NOW_MS)


# --- what counts ------------------------------------------------------------------------------------------------


def test_a_lake_that_is_not_there_yet_is_empty() -> None:
    assert on_disk(FakeDisk()).state == LakeState()


def test_what_is_committed_counts_for_everybody_who_looks_from_then_on() -> None:
    disk = FakeDisk()
    writer, reader = on_disk(disk), on_disk(disk)
    assert put_and_commit(writer, ONE, TWO) == (ONE, TWO)
    assert reader.state.number == 0
    assert reader.refresh() == writer.state == on_disk(disk).state
    assert reader.state.totals.records == 20
    assert [file.first_seq for file in reader.state.files_of(["a"])] == [1, 11]
    assert reader.state.files_of(["b"]) == []


def test_a_file_that_no_manifest_names_is_invisible() -> None:
    disk = FakeDisk()
    lake = on_disk(disk)
    put_and_commit(lake, ONE)
    put_files(lake.store, TWO)
    assert covered_seqs(on_disk(disk).state) == list(range(1, 11))


def test_an_older_manifest_still_says_what_it_said() -> None:
    lake = on_disk(FakeDisk())
    put_and_commit(lake, ONE, TWO)
    before = lake.at(1)
    put_and_commit(lake, merged(*lake.state.files_of()))
    assert lake.at(1) == before
    assert len(lake.state.files) == 1
    assert covered_seqs(lake.at(1)) == covered_seqs(lake.at(2)) == list(range(1, 21))
    assert lake.at(0) == LakeState()
    with pytest.raises(LakeDamaged, match=r"^/mnt/lake has no manifest 3, the newest is 2$"):
        lake.at(3)


def test_a_manifest_is_readable_json_with_the_members_of_the_format() -> None:
    lake = on_disk(FakeDisk())
    put_and_commit(lake, ONE)
    manifest = msgspec.json.decode(lake.store.read_range(manifest_name(1), 0, 10_000))
    assert manifest_name(1) == "_topics/manifest-00000000000000000001.json"
    assert manifest.keys() == {"v", "job", "writer", "parent", "created_ms", "adds", "removes", "segments", "totals"}
    assert (manifest["v"], manifest["job"], manifest["parent"], manifest["created_ms"]) == (1, "test", 0, NOW_MS)
    assert manifest["adds"][0]["name"] == "topic=a/date=2026-01-01/1-10-10.parquet"


def test_a_topic_is_quoted_so_that_it_is_one_folder_of_a_lake() -> None:
    name = lake_file(1, 2, topic="a/b ü%=..").name
    assert name == "topic=a%2Fb%20%C3%BC%25%3D../date=2026-01-01/1-2-10.parquet"


def test_gaps_are_named_once_however_often_they_are_met() -> None:
    lake = on_disk(FakeDisk())
    name = gap_name("a", 1, 5, 9, "ttl")
    gap = LakeFile(name=name, topic="a", epoch=1, first_seq=5, last_seq=9, records=1, bytes=10)
    for _ in range(2):
        assert lake.commit("archive", [LakeChange(gaps=(GapFile(gap, "ttl"),))], now_ms=NOW_MS)
    assert lake.state.gaps == {name: gap}
    assert name.startswith(GAPS)
    assert lake.state.files == {}


def test_a_segment_that_was_written_again_takes_the_place_of_the_first() -> None:
    lake = on_disk(FakeDisk())
    put_and_commit(lake, ONE, TWO)
    again = LakeChange(
        adds=(lake_file(1, 10, mark="x"),),
        removes=(ONE.adds[0].name,),
        segments=(done(1, 10, "other"),),
        expects=frozenset({"1-10"}),
    )
    assert put_and_commit(lake, again) == (again,)
    assert [each.digest for each in lake.state.segments["a", 1]] == ["other", "11-20"]
    assert lake.state.removed_ms == {ONE.adds[0].name: NOW_MS}
    assert covered_seqs(lake.state) == list(range(1, 21))


# --- who wins ---------------------------------------------------------------------------------------------------


def test_the_loser_keeps_only_what_the_winner_did_not_cover() -> None:
    disk = FakeDisk()
    winner, loser = on_disk(disk), on_disk(disk)
    put_and_commit(winner, ONE)
    assert put_and_commit(loser, ONE, TWO) == (TWO,)
    assert put_and_commit(winner, TWO) == ()
    assert covered_seqs(on_disk(disk).state) == list(range(1, 21))
    assert on_disk(disk).state.number == 2


def test_a_part_that_shares_only_some_segments_with_the_winner_is_given_up_as_a_whole() -> None:
    disk = FakeDisk()
    winner, loser = on_disk(disk), on_disk(disk)
    put_and_commit(winner, TWO)
    both = LakeChange(adds=(lake_file(1, 20),), segments=(done(1, 10), done(11, 20)))
    assert put_and_commit(loser, both) == ()
    assert put_and_commit(loser, ONE) == (ONE,)


def test_two_instances_of_a_topic_do_not_get_the_same_epoch() -> None:
    """The topic was created again, twice, and each archiver has seen another instance."""
    disk = FakeDisk()
    winner, loser = on_disk(disk), on_disk(disk)
    put_and_commit(winner, ONE)
    other = msgspec.structs.replace(done(11, 20), topic_id=8)
    assert put_and_commit(loser, LakeChange(adds=(lake_file(11, 20),), segments=(other,))) == ()


def test_two_optimizers_do_not_both_replace_the_same_files() -> None:
    disk = FakeDisk()
    put_and_commit(on_disk(disk), ONE, TWO, THREE)
    first, second = on_disk(disk), on_disk(disk)
    files = first.state.files_of()
    assert put_and_commit(first, merged(*files[:2]))
    assert put_and_commit(second, merged(*files[1:])) == ()
    assert covered_seqs(on_disk(disk).state) == list(range(1, 31))


def test_a_commit_that_another_interrupts_anywhere_adds_nothing_twice() -> None:
    for operation_index in itertools.count():
        disk = FakeDisk()
        put_and_commit(on_disk(disk), ONE)
        first, other = on_disk(disk), on_disk(disk)
        put_files(first.store, TWO, THREE)

        def interrupt(disk: FakeDisk = disk, other: Lake = other) -> None:
            hook, disk.on_operation = disk.on_operation, None
            other.commit("other", [TWO], now_ms=NOW_MS)
            disk.on_operation = hook

        hook = disk.on_operation = RunAt(operation_index)
        hook.work = interrupt
        kept = first.commit("first", [TWO, THREE], now_ms=NOW_MS)
        was_interrupted = hook.count > operation_index
        disk.on_operation = None
        assert THREE in kept
        assert (TWO in kept) or was_interrupted
        assert covered_seqs(on_disk(disk).state) == list(range(1, 31))
        if not was_interrupted:
            break
    assert operation_index > 4


class AlwaysFirst(SharedFolder):
    """A store on which another writer is always faster."""

    def put_if_absent(self, name: str, data: bytes | bytearray | memoryview) -> bool:
        manifest = msgspec.json.decode(bytes(data))
        nothing = {**manifest, "adds": [], "segments": [], "totals": {"files": 0, "records": 0, "bytes": 0}}
        super().put_if_absent(name, msgspec.json.encode(nothing))
        return super().put_if_absent(name, data)


def test_a_writer_that_never_wins_says_so_in_the_end() -> None:
    lake = Lake(AlwaysFirst(FakeDisk(), ROOT))
    with pytest.raises(Conflict, match="commits of others came first; run fewer jobs at once"):
        lake.commit("test", [ONE], now_ms=NOW_MS)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, str, int]]:
    """Steps of two writers: which one, what it does, and to which segment or file."""
    steps = st.tuples(st.integers(0, 1), st.sampled_from(["archive", "merge", "rewrite", "look"]), st.integers(0, 7))
    return draw(st.lists(steps, max_size=25))


@given(histories())
def test_whatever_two_writers_do_every_seq_is_there_once_and_all_see_the_same(
    steps: list[tuple[int, str, int]],
) -> None:
    disk = FakeDisk()
    writers = [on_disk(disk), on_disk(disk)]
    expected: set[int] = set()
    for number, (which, what, place) in enumerate(steps):
        lake = writers[which]
        files = lake.state.files_of()
        if what == "look":
            lake.refresh()
        elif what == "archive":
            first_seq = place * 10 + 1
            for part in put_and_commit(lake, archived(first_seq, first_seq + 9)):
                expected |= set(range(part.segments[0].first_seq, part.segments[0].last_seq + 1))
        elif what == "merge" and len(files) > 1:
            # Planned on what this writer has seen, which may be long ago.
            start = place % (len(files) - 1)
            file, after = files[start : start + 2]
            if lake.state.is_covered("a", 1, (file.last_seq or 0) + 1, after.first_seq - 1):
                put_and_commit(lake, merged(file, after))
        elif what == "rewrite" and files:
            old = files[place % len(files)]
            new = lake_file(old.first_seq, old.last_seq or 0, mark=f"r{number}")
            put_and_commit(lake, LakeChange(adds=(new,), removes=(old.name,)))
        assert set(covered_seqs(on_disk(disk).state)) == expected
    final = on_disk(disk)
    assert covered_seqs(final.state) == sorted(expected)
    assert [writer.refresh() for writer in writers] == [final.state, final.state]
    assert_whole(final)


# --- crashes and full disks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", list(Damage))
def test_a_crash_anywhere_leaves_a_chain_that_is_valid_and_nothing_half_visible(damage: Damage) -> None:
    def work(disk: FakeDisk) -> None:
        lake = on_disk(disk)
        put_and_commit(lake, ONE)
        put_and_commit(lake, TWO, THREE)
        put_and_commit(lake, merged(*lake.state.files_of()))

    def is_done(disk: FakeDisk) -> bool:
        with suppress(CrashNow):
            work(disk)
            return True
        return False

    allowed = ([], list(range(1, 11)), list(range(1, 31)))
    for operation_index in itertools.count():
        for seed in range(3):
            disk = FakeDisk()
            disk.on_operation = CrashAt(operation_index)
            finished = is_done(disk)
            disk.on_operation = None
            disk.crash(damage, seed)
            lake = on_disk(disk)
            assert covered_seqs(lake.state) in allowed, f"operation {operation_index}, seed {seed}"
            assert_whole(lake)
            assert not finished or lake.state.number == 3
            # And the job is run again.
            for part in (ONE, TWO, THREE):
                put_and_commit(lake, part)
            assert covered_seqs(on_disk(disk).state) == list(range(1, 31))
            assert_whole(on_disk(disk))
        if finished:
            break
    assert operation_index > 20


def test_a_full_disk_leaves_the_lake_as_it_was_and_the_commit_works_with_more_room() -> None:
    disk = FakeDisk()
    lake = on_disk(disk)
    put_and_commit(lake, ONE)
    put_files(lake.store, TWO)
    disk.capacity_bytes = sum(map(len, disk.files().values())) + 100
    with pytest.raises(StorageFull):
        lake.commit("test", [TWO], now_ms=NOW_MS)
    with pytest.raises(StorageFull):
        put_files(lake.store, THREE)
    assert on_disk(disk).state == lake.state
    assert covered_seqs(lake.state) == list(range(1, 11))
    disk.capacity_bytes = None
    assert put_and_commit(lake, TWO, THREE) == (TWO, THREE)


# --- damage -----------------------------------------------------------------------------------------------------


def damaged_lake(change: Callable[[FakeDisk], None]) -> Lake:
    disk = FakeDisk()
    lake = on_disk(disk)
    put_and_commit(lake, ONE)
    put_and_commit(lake, TWO)
    change(disk)
    return Lake(SharedFolder(disk, ROOT))


def rewritten(number: int, old: bytes, new: bytes) -> Callable[[FakeDisk], None]:
    path = f"{ROOT}/{manifest_name(number)}"

    def change(disk: FakeDisk) -> None:
        assert old in disk.read(path)
        disk.replace(path, disk.read(path).replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda disk: disk.unlink(f"{ROOT}/{manifest_name(1)}"), "the chain is broken"),
        (rewritten(2, b'"parent":1', b'"parent":0'), "manifest 2 follows 0, not 1"),
        (rewritten(2, b'"records":20', b'"records":21'), "manifest 2 counts"),
        (rewritten(2, b'"first_seq":11', b'"first_seq":10'), "whose seqs are also in"),
        (rewritten(2, b'"removes":[]', b'"removes":["x"]'), "manifest 2 removes x, which is not in the lake"),
        (rewritten(2, b'"job"', b'"bob"'), "is not readable"),
        (rewritten(2, b"{", b"["), "is not readable"),
    ],
)
def test_a_chain_that_is_none_is_refused_and_says_where(change: Callable[[FakeDisk], None], words: str) -> None:
    with pytest.raises(LakeDamaged, match=words):
        damaged_lake(change).refresh()


def test_a_manifest_of_a_later_version_is_refused() -> None:
    with pytest.raises(FutureVersion, match="version 2, this one knows 1; use a newer topics"):
        damaged_lake(rewritten(2, b'"v":1', b'"v":2')).refresh()


def test_a_commit_that_would_break_the_chain_is_refused_before_anybody_sees_it() -> None:
    """Parts that overlap each other are our own bug; the lake must not pay for it."""
    disk = FakeDisk()
    lake = on_disk(disk)
    both = [archived(1, 10), LakeChange(adds=(lake_file(5, 15),), segments=(done(11, 15),))]
    with pytest.raises(LakeDamaged):
        lake.commit("test", both, now_ms=NOW_MS)
    assert on_disk(disk).state.number == 0


# --- real stores ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        yield endpoint


ON_S3: Final = pytest.param("s3", marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"))


def s3_opener(address: str, retries_max: int) -> Opener:
    from topics.storage.tiers.s3_store import S3Bounds, S3Store

    # Patient with a busy machine.
    return lambda: S3Store(address, bounds=S3Bounds(connect_ms=20_000, idle_ms=20_000, retries_max=retries_max))


@pytest.fixture(params=["folder", ON_S3])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
    if request.param == "folder":
        return lambda: SharedFolder(RealFs(), str(tmp_path / "lake"))
    set_aws_environment(monkeypatch, request.getfixturevalue("s3_endpoint"))
    return s3_opener(new_s3_address(), retries_max=2)


def test_many_writers_at_once_lose_nothing_and_add_nothing_twice(opener: Opener) -> None:
    parts = [archived(place * 10 + 1, place * 10 + 10) for place in range(8)]
    kept: list[LakeChange] = []

    def write(mine: list[LakeChange]) -> None:
        lake = Lake(opener())
        for part in mine:
            kept.extend(put_and_commit(lake, part))

    # All want all, each in another order.
    threads = [threading.Thread(target=write, args=(parts[start:] + parts[:start],)) for start in (0, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lake = Lake(opener())
    assert covered_seqs(lake.refresh()) == list(range(1, 81))
    assert lake.state.number == 8
    assert sorted(part.segments[0].first_seq for part in kept) == [part.segments[0].first_seq for part in parts]
    assert_whole(lake)


def test_a_lake_opens_by_its_address(tmp_path: Path) -> None:
    put_and_commit(open_lake(str(tmp_path / "lake")), ONE)
    assert covered_seqs(open_lake(f"file://{tmp_path}/lake").state) == list(range(1, 11))
    assert (tmp_path / "lake" / ONE.adds[0].name).read_bytes() == content_of(ONE.adds[0].name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("fault_name", ["503", "carried out but 500", "hang up"])
@pytest.mark.parametrize("retries_max", [0, 2])
def test_a_bucket_that_fails_at_any_request_leaves_the_state_before_or_after(
    fault_name: str, retries_max: int, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.storage.tiers.test_s3_store import FAULTS, Front, FrontHandler

    class Handler(FrontHandler):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.front = front = Front(f"http://127.0.0.1:{server.server_port}", s3_endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        set_aws_environment(monkeypatch, s3_endpoint)
        address = new_s3_address()
        truth = s3_opener(address, retries_max=2)
        put_and_commit(Lake(truth()), ONE)
        put_files(truth(), TWO)
        set_aws_environment(monkeypatch, front.endpoint)
        faulty = Lake(s3_opener(address, retries_max)())
        for fault_index in itertools.count():
            front.faults = [lambda forward: forward()] * fault_index + [FAULTS[fault_name]]
            with suppress(ColdUnavailable):
                faulty.commit("test", [TWO], now_ms=NOW_MS)
            is_over = bool(front.faults)
            front.faults = []
            there = Lake(truth())
            assert covered_seqs(there.refresh()) in (list(range(1, 11)), list(range(1, 21)))
            if is_over or there.state.number == 2:
                break
        assert there.state.number == 2
        assert Lake(truth()).commit("test", [TWO], now_ms=NOW_MS) == ()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_package_offers_what_the_documentation_calls() -> None:
    from topics.spark import lake as package
    from topics.spark.lake.lake import read

    assert package.read is read
