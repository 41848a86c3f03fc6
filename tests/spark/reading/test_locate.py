"""What a task does, with a real server and without Spark: files that move, vanish or break while it reads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from tests.client.faulty_proxy import DROP, faulty_proxy
from tests.conftest import FULL, SEED
from tests.spark.world import SEGMENT_EVENTS, Row, World, batch_options, gaps, plan, read, read_rows, short, world
from topics.client.retrying import Unreachable
from topics.client.sync.client import Client
from topics.engine.pins import PINS_MAX
from topics.errors import ColdUnavailable
from topics.formats.segment import HEADER_BYTES
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.reading.file_manifest import DamagedFiles
from topics.spark.reading.offline import TailMissing
from topics.spark.reading.plan import Partition
from topics.testing.server_process import ServerProcess


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    """A cold tier takes all sealed segments but one when a test says so."""
    with world(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1) as made:
        yield made


@pytest.mark.parametrize("seed", range(SEED, SEED + (12 if FULL else 1)))
@pytest.mark.parametrize("access", ["files", "http", "auto"])
def test_a_read_equals_the_diff_at_its_head_whatever_happens_to_the_files_meanwhile(
    place: World, access: str, seed: int
) -> None:
    """Between planning and reading, and between partitions, records are appended, sealed, moved away and
    written again. Files are not pinned, so they do vanish."""
    chance = random.Random(seed)
    happenings: list[Callable[[], object]] = [
        partial(place.fill, "t", 37),
        partial(place.fill, "t", 2 * SEGMENT_EVENTS),
        place.checkpoint,
        place.relocate,
        partial(place.purge, "t"),
    ]
    place.fill("t", 250)
    for happening in happenings[-3:]:
        happening()
        options = place.options(subscribe="t", access=access, pinMs=0, minPartitions=3)
        partitions = plan(options)
        expected = place.rows("t", partitions[-1].last_seq)
        assert len(expected) == partitions[-1].last_seq
        found = []
        for each in partitions:
            chance.choice(happenings)()
            found += short(read_rows(each, options))
        assert found == expected


def test_a_read_equals_the_diff_at_its_head_while_a_writer_never_stops(place: World) -> None:
    """With a writer in a thread of its own that also seals and moves, and a topic that evicts: what is
    not delivered is named as a gap."""
    place.client.create("capped", cap_records=500)
    over = threading.Event()

    def write() -> None:
        chance = random.Random(7)
        while not over.is_set():
            place.fill("t", 50)
            place.fill("capped", 90)
            chance.choice([place.checkpoint, place.relocate, lambda: None])()

    place.fill("t", 50)
    place.fill("capped", 50)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for round_number in range(60 if FULL else 6):
            access = ("files", "http", "auto")[round_number % 3]
            # Records of this topic stay, so that a diff of later has those of now.
            options = place.options(subscribe="t", access=access, pinMs=(round_number % 2) * 60_000)
            partitions = plan(options)
            found = [row for each in partitions for row in short(read_rows(each, options))]
            assert found == place.rows("t", partitions[-1].last_seq)
            options = place.options(subscribe="capped", access=access, pinMs=0, gaps="rows")
            partitions = plan(options)
            rows = [row for each in partitions for row in read_rows(each, options)]
            told = {row["seq"] for row in rows if row["kind"] == "record"}
            lost = {seq for first, last, _ in gaps(rows) for seq in range(first, (last or 0) + 1)}
            wanted = set(range(partitions[0].first_seq, partitions[-1].last_seq + 1))
            assert told | lost == wanted
            assert not told & lost
            assert len(told) == sum(row["kind"] == "record" for row in rows)
    finally:
        over.set()
        writer.join()


def test_a_path_gives_the_same_rows_as_its_server(place: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`path`, with segments in both tiers; what is not in segments yet is left out, or fails."""
    monkeypatch.setenv("TOPICS_COLD_DIR", str(place.root.parent / "cold"))
    place.fill("t", 450)
    assert place.relocate() == ["cold"] * 3 + ["hot"] * 2
    head_seq = place.client.state("t").head_seq

    def read_path(**more: str) -> list[Row]:
        return short([row for row in read(place.options(path=place.root, **more)) if row["topic"] == "t"])

    assert read_path() == place.rows("t")
    place.fill("t", 20)
    with pytest.raises(TailMissing, match="tail=skip"):
        read_path()
    assert read_path(tail="skip") == place.rows("t", head_seq)


def test_a_server_that_is_gone_between_planning_and_reading_is_an_error_and_never_a_short_result(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with Client(server.url) as client:
            client.create("t")
            client.append_encoded("t", b'[{"data":1},{"data":2}]')
            client.seal("t")
            client.append_encoded("t", b'[{"data":3}]')
        options = batch_options(endpoint=server.url, subscribe="t", retries=1)
        (each,) = plan(options)
        server.kill()
        # The sealed records can be had, the third cannot: the task fails as a whole.
        with pytest.raises(Unreachable, match=f"^{server.url} does not answer"):
            read_rows(each, options)
        with pytest.raises(Unreachable, match="does not answer"):
            plan(options)


def test_a_server_that_is_away_for_a_moment_is_asked_again(place: World) -> None:
    place.fill("t", 30)
    with faulty_proxy(place.url) as proxy:
        options = place.options(endpoint=proxy.url, subscribe="t", access="http", retries=3)
        (each,) = plan(options)
        proxy.faults = [DROP, DROP]
        assert short(read_rows(each, options)) == place.rows("t")


def test_files_that_moved_after_planning_are_read_where_they_are_now(place: World) -> None:
    """Relocated to the cold folder, and no server that gives frames instead."""
    place.fill("t", 450)
    place.checkpoint()
    options = place.options(subscribe="t", access="files", pinMs=0)
    (each,) = plan(options)
    old = place.files("t")
    place.relocate()
    assert [path.exists() for path in old] == [False, False, False, True, True]
    assert short(read_rows(each, options)) == place.rows("t")


def test_a_pin_keeps_the_files_where_they_are(place: World) -> None:
    place.fill("t", 450)
    place.checkpoint()
    plan(place.options(subscribe="t", access="files", pinMs=60_000))
    assert place.relocate() == ["hot"] * 5


def test_files_that_were_evicted_after_planning_are_a_gap_and_the_rest_is_read(place: World) -> None:
    place.fill("t", 450)
    place.checkpoint()
    for access in ("files", "http"):
        failing = place.options(subscribe="t", access=access, pinMs=0)
        telling = place.options(subscribe="t", access=access, pinMs=0, gaps="rows")
        partitions = [plan(failing)[0], plan(telling)[0]]
        expected = place.rows("t")
        first_seq = partitions[0].first_seq
        place.client.create("t", cap_records=450 - first_seq - 130)
        place.checkpoint()
        place.checkpoint()
        floor = place.manifest("t").evict_floor
        assert floor > first_seq + SEGMENT_EVENTS
        with pytest.raises(TopicsDataLoss, match=f"seqs {first_seq}-") as caught:
            read_rows(partitions[0], failing)
        assert "cap" in caught.value.message
        assert f"evict_floor {floor}" in caught.value.message
        rows = read_rows(partitions[1], telling)
        ((gap_from, gap_to, reason),) = gaps(rows)
        assert (gap_from, reason) == (first_seq, "cap")
        assert gap_to is not None
        assert short(rows) == [row for row in expected if row[0] > gap_to]


def test_a_topic_that_was_deleted_or_created_again_is_not_read_as_the_old_one(place: World) -> None:
    for access in ("files", "http"):
        place.client.create("u")
        place.fill("u", 150)
        place.checkpoint()
        options = place.options(subscribe="u", access=access, pinMs=0, gaps="rows")
        (each,) = plan(options)
        place.client.drop("u")
        place.checkpoint()
        assert not any(Path(file.uri.removeprefix("file://")).exists() for file in each.files)
        with pytest.raises(TopicsDataLoss, match="gone with the topic"):
            read_rows(each, options)
        place.client.create("u")
        place.fill("u", 150)
        with pytest.raises(TopicsDataLoss, match="created again"):
            read_rows(each, options)
        place.client.drop("u")


def test_a_store_that_only_has_the_same_path_is_not_read(place: World) -> None:
    place.fill("t", 250)
    place.checkpoint()
    options = place.options(subscribe="t")
    (each,) = plan(options)
    elsewhere = replace(each, store_id="0" * 32)
    with faulty_proxy(place.url) as proxy:
        options = place.options(endpoint=proxy.url, subscribe="t")
        assert short(read_rows(elsewhere, options)) == place.rows("t")
        # Files beside each other in a store that is not here are asked for together.
        assert len(proxy.asked) == 1
        assert short(read_rows(each, options)) == place.rows("t")
        assert len(proxy.asked) == 1
    with pytest.raises(ColdUnavailable, match=r"is another store here.*access=auto"):
        read_rows(elsewhere, place.options(subscribe="t", access="files"))


@pytest.mark.parametrize("access", ["files", "http"])
def test_a_damaged_record_is_never_delivered(tmp_path: Path, access: str) -> None:
    with world(tmp_path) as place:
        place.fill("t", 250)
        place.checkpoint()
        expected = place.rows("t")
        damaged = {1: place.files("t")[0], 101: place.files("t")[1]}
        if access == "files":
            damaged[201] = place.files("t")[2]
    for path in damaged.values():
        data = bytearray(path.read_bytes())
        data[HEADER_BYTES + 12] ^= 1
        path.write_bytes(data)
    # Started again, it has none of them in memory.
    with world(tmp_path) as place:
        with pytest.raises(TopicsDataLoss, match=r"record 1 .*onCorrupt=rows"):
            read(place.options(subscribe="t", access=access))
        rows = read(place.options(subscribe="t", access=access, onCorrupt="rows"))
    assert gaps(rows) == [(seq, seq, "corrupt") for seq in damaged]
    assert [row["seq"] for row in rows] == list(range(1, 251))
    assert short(rows) == [row for row in expected if row[0] not in damaged]


@pytest.mark.parametrize("tier", ["hot", "cold"])
def test_a_file_of_another_topic_is_an_error_and_never_its_rows(place: World, tier: str) -> None:
    """Files are swapped while the server runs. The server has checked its own maps of them already."""
    for topic in ("t", "u"):
        place.fill(topic, 450)
    place.checkpoint()
    if tier == "cold":
        place.relocate()
        place.relocate()
    assert place.manifest("t").segments[0].tier == tier
    for kind in ("data", "idx"):
        one, other = (place.files(topic)[0].with_suffix(f".{kind}") for topic in ("t", "u"))
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(kept)
    for topic in ("t", "u"):
        for first, last in ((1, 450), (40, 60)):
            options = place.options(
                subscribe=topic,
                access="files",
                onCorrupt="rows",
                startingOffsets=f'{{"{topic}":{first}}}',
                endingOffsets=f'{{"{topic}":{last}}}',
            )
            with pytest.raises(DamagedFiles, match=rf'^topics/.*{one.stem}.* of topic "{topic}", found a file of'):
                read(options)
    options = place.options(subscribe="t", access="files", startingOffsets='{"t":101}')
    assert len(read(options)) == 350


def test_a_server_without_proofs_is_read_as_before(place: World) -> None:
    """An older version of the server."""
    place.fill("t", 250)
    place.checkpoint()
    options = place.options(subscribe="t", access="files")
    (each,) = plan(options)
    assert all(file.proof for file in each.files)
    each = replace(each, files=tuple(structs.replace(file, proof="") for file in each.files))
    assert short(read_rows(each, options)) == place.rows("t")


def test_an_index_that_is_gone_or_wrong_costs_nothing_but_a_warning(
    place: World, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill("t", 250)
    place.checkpoint()
    expected = place.rows("t")
    first, second, active = (path.with_suffix(".idx") for path in place.files("t"))
    first.unlink()
    second.write_bytes(bytes(len(second.read_bytes())))
    active.write_bytes(bytes(len(active.read_bytes())))
    options = place.options(subscribe="t", access="files")
    assert short(read(options)) == expected
    told = [record.message for record in caplog.records if "were read without it" in record.message]
    assert len(told) == 3


def test_a_range_of_an_active_segment_is_read_without_the_rest(place: World) -> None:
    place.fill("t", 90)
    place.checkpoint()
    place.client.delete("t", tag="t1")
    place.checkpoint()
    for first, last in ((1, 1), (20, 40), (90, 90)):
        options = place.options(
            subscribe="t", access="files", startingOffsets=f'{{"t":{first}}}', endingOffsets=f'{{"t":{last}}}'
        )
        assert short(read(options)) == [row for row in place.rows("t") if first <= row[0] <= last]


def test_deleted_records_are_no_gap_and_are_there_for_those_who_ask(place: World) -> None:
    place.fill("t", 250)
    place.checkpoint()
    everything = place.rows("t")
    place.client.delete("t", before_seq=31)
    place.client.delete("t", tag="t2")
    left = place.rows("t")
    assert 0 < len(left) < 200
    for _ in range(2):
        # At first the deletes are pending, then they are in the files.
        for access in ("files", "http", "auto"):
            assert short(read(place.options(subscribe="t", access=access))) == left
        place.checkpoint()
    options = place.options(subscribe="t", access="files", includeDeleted="true", endingOffsets='{"t":250}')
    assert short(read(options)) == everything
    with pytest.raises(BadOption, match="includeDeleted"):
        read(replace(options, access="http"))


def test_who_gets_no_pin_reads_without_one(place: World) -> None:
    place.fill("t", 150)
    place.checkpoint()

    async def take_all() -> None:
        opened = place.server.server.app.opened
        assert opened is not None
        for number in range(PINS_MAX):
            opened.engine.pins.pin(frozenset(((1000 + number, 1),)), 600_000)

    place.server.call(take_all())
    assert short(read(place.options(subscribe="t", pinMs=60_000))) == place.rows("t")


def test_filters_leave_out_before_anything_is_copied_the_same_on_every_way(place: World) -> None:
    place.fill("t", 250)
    place.checkpoint()
    place.fill("t", 20)
    everything = place.rows("t")
    for access in ("files", "http"):
        ask = partial(place.options, subscribe="t", access=access)
        assert short(read(ask(tag="t1"))) == [row for row in everything if row[2] == "t1"]
        assert short(read(ask(tagPrefix="t"))) == [row for row in everything if row[2] is not None]
        assert short(read(ask(node="node1"))) == [row for row in everything if row[1] == "node1"]
        assert short(read(ask(excludeNode="node1"))) == [row for row in everything if row[1] != "node1"]


def test_a_partition_stays_small_however_many_files_it_has(place: World) -> None:
    import pickle

    place.fill("t", 900)
    place.checkpoint()
    (each,) = plan(place.options(subscribe="t"))
    assert isinstance(each, Partition)
    assert len(each.files) == 9
    assert len(pickle.dumps(each)) / 9 < 330
