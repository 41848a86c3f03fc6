"""Archive runs on a real server: what is live is in the lake once, whatever happens to the job or to the topic."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.spark.in_process import InProcess
from tests.spark.lakes import archive_inline, lake_rows
from tests.spark.world import SEGMENT_EVENTS, World, world
from tests.storage.tiers.test_folder_store import (
    BUCKET,
    new_s3_address,
    request_plain,
    running_moto,
    set_aws_environment,
)
from topics.formats.segment import HEADER_BYTES
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.archive import Archiver
from topics.spark.jobs.archive_plan import ArchiveItem
from topics.spark.jobs.job import EXIT_DATA_LOSS, EXIT_DONE
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeChange
from topics.storage.tiers.shared_folder import SCRATCH


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.client.create("t")
        yield made


@pytest.fixture
def config(place: World, tmp_path: Path) -> ArchiveOptions:
    return ArchiveOptions(endpoint=place.url, lake=str(tmp_path / "lake"), file_records=2 * SEGMENT_EVENTS, pin_ms=0)


def fill(place: World, segments: int) -> None:
    place.fill("t", segments * SEGMENT_EVENTS)
    place.checkpoint()


# --- what is in the lake ----------------------------------------------------------------------------------------


def test_the_lake_has_what_a_diff_has_up_to_the_last_sealed_segment(place: World, config: ArchiveOptions) -> None:
    fill(place, 5)
    place.fill("t", 30)
    report = archive_inline(config)
    assert (report.records, report.exit_code, report.findings) == (500, EXIT_DONE, ())
    assert lake_rows(config.lake) == place.rows("t", 500)
    assert report.detail["segments"] == 5
    assert report.detail["files"] == 3


def test_a_second_run_does_nothing_and_a_later_one_only_what_is_new(place: World, config: ArchiveOptions) -> None:
    fill(place, 3)
    archive_inline(config)
    again = archive_inline(config)
    assert (again.records, again.items_done, again.exit_code) == (0, 0, EXIT_DONE)
    assert again.detail["version"] == 1
    fill(place, 2)
    assert archive_inline(config).records == 200
    assert lake_rows(config.lake) == place.rows("t", 500)


def test_deleted_and_evicted_records_are_not_archived(place: World, config: ArchiveOptions) -> None:
    fill(place, 4)
    place.client.delete("t", tag="t1")
    place.client.create("t", cap_records=150)
    report = archive_inline(config)
    assert lake_rows(config.lake) == place.rows("t", 400)
    assert 0 < len(lake_rows(config.lake)) < 150
    (gap,) = report.findings
    assert (gap["gap_from"], gap["reason"], report.exit_code) == (1, "cap", EXIT_DATA_LOSS), "also in the first run"


def test_segments_of_the_cold_tier_are_archived(tmp_path: Path) -> None:
    with world(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1) as place:
        place.client.create("t")
        fill(place, 4)
        place.relocate()
        assert {segment.tier for segment in place.manifest("t").segments} == {"cold", "hot"}
        assert archive_inline(ArchiveOptions(endpoint=place.url, lake=str(tmp_path / "lake"))).records == 400
        assert lake_rows(str(tmp_path / "lake")) == place.rows("t", 400)


def test_a_directory_is_archived_without_a_server(tmp_path: Path) -> None:
    with world(tmp_path) as place:
        place.client.create("t")
        place.client.create("other")
        place.fill("other", SEGMENT_EVENTS)
        fill(place, 3)
        expected = place.rows("t")
    config = ArchiveOptions(path=str(tmp_path / "data"), topics=("t",), lake=str(tmp_path / "lake"))
    assert archive_inline(config).records == 300
    assert lake_rows(config.lake) == expected
    assert archive_inline(config).records == 0
    assert lake_rows(config.lake, "other") == []
    assert archive_inline(config, topics=(), pattern="o.*").records == 100
    with pytest.raises(BadOption, match="only a server can seal segments"):
        archive_inline(config, seal=True)


def test_topics_are_chosen_by_name_or_pattern(place: World, config: ArchiveOptions) -> None:
    for name in ("a1", "a2", "b:c"):
        place.client.create(name)
        place.fill(name, SEGMENT_EVENTS)
    place.checkpoint()
    assert archive_inline(config, topics=("a1",)).records == 100
    assert archive_inline(config, pattern="a.").records == 100
    assert archive_inline(config).records == 100
    assert lake_rows(config.lake, "b:c") == place.rows("b:c")


def test_a_dry_run_says_what_there_is_to_do_and_changes_nothing(place: World, config: ArchiveOptions) -> None:
    fill(place, 3)
    report = archive_inline(config, dry_run=True)
    assert (report.items_done, report.items_skipped) == (0, 2)
    assert not Path(config.lake).exists()


def test_sealing_first_brings_the_newest_records_along(place: World, config: ArchiveOptions) -> None:
    place.fill("t", 250)
    assert archive_inline(config).records == 0
    assert archive_inline(config, seal=True).records == 250
    assert lake_rows(config.lake) == place.rows("t")


def test_a_topic_that_was_created_again_is_another_instance_in_the_lake(place: World, config: ArchiveOptions) -> None:
    fill(place, 1)
    archive_inline(config)
    first = place.rows("t")
    place.client.drop("t")
    place.client.create("t")
    fill(place, 2)
    report = archive_inline(config)
    assert [finding["reason"] for finding in report.findings] == ["recreated"]
    assert report.exit_code == EXIT_DATA_LOSS
    epochs = sorted(epoch for _, epoch in open_lake(config.lake).state.segments)
    assert lake_rows(config.lake, epoch=epochs[0]) == first
    assert lake_rows(config.lake, epoch=epochs[1]) == place.rows("t")
    assert archive_inline(config).exit_code == EXIT_DONE


def test_another_server_does_not_get_into_the_lake(place: World, config: ArchiveOptions, tmp_path: Path) -> None:
    fill(place, 1)
    archive_inline(config)
    with world(tmp_path / "other") as other:
        other.client.create("t")
        other.fill("t", SEGMENT_EVENTS)
        other.checkpoint()
        with pytest.raises(Conflict, match="give each server a lake of its own"):
            archive_inline(config, endpoint=other.url)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lake_can_be_a_bucket(place: World, config: ArchiveOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        set_aws_environment(monkeypatch, endpoint)
        lake = new_s3_address()
        fill(place, 3)
        assert archive_inline(config, lake=lake).records == 300
        assert archive_inline(config, lake=lake).records == 0
        assert lake_rows(lake) == place.rows("t")


# --- segments that change afterwards ----------------------------------------------------------------------------


def test_a_segment_that_was_purged_is_recognised_and_its_rows_leave_the_lake(
    place: World, config: ArchiveOptions
) -> None:
    fill(place, 4)
    archive_inline(config)
    before = lake_rows(config.lake)
    place.client.delete("t", tag="t1")
    place.checkpoint()
    assert archive_inline(config).records == 0, "a delete alone does not reach the lake"
    assert place.purge("t") == 4
    report = archive_inline(config)
    assert report.detail["segments"] == 4
    assert lake_rows(config.lake) == place.rows("t", 400)
    assert lake_rows(config.lake, at=1) == before, "a reader of an older version reads what it read before"
    assert archive_inline(config).items_done == 0


def test_a_purge_of_what_was_never_archived_changes_no_file(place: World, config: ArchiveOptions) -> None:
    fill(place, 2)
    place.client.delete("t", tag="t1")
    archive_inline(config)
    place.checkpoint()
    files = set(open_lake(config.lake).state.files)
    place.purge("t")
    report = archive_inline(config)
    assert (report.records, report.detail["segments"]) == (0, 2)
    assert set(open_lake(config.lake).state.files) == files
    assert archive_inline(config).detail["segments"] == 0


@pytest.mark.parametrize("is_flagged", [False, True])
def test_deletes_reach_the_lake_when_they_are_to_be_applied(
    place: World, config: ArchiveOptions, is_flagged: bool
) -> None:
    """Whether they are in the files already, or only known to the server."""
    fill(place, 4)
    archive_inline(config)
    place.client.delete("t", tag="t1")
    if is_flagged:
        place.checkpoint()
    assert archive_inline(config).items_done == 0
    assert len(lake_rows(config.lake)) == 400
    archive_inline(config, apply_deletes=True)
    assert lake_rows(config.lake) == place.rows("t", 400)
    assert archive_inline(config, apply_deletes=True).items_done == 0


def test_a_delete_below_a_seq_is_applied_and_an_eviction_is_not(place: World, config: ArchiveOptions) -> None:
    fill(place, 4)
    rows = place.rows("t")
    archive_inline(config)
    place.client.delete("t", before_seq=51)
    place.client.create("t", cap_records=120)
    place.checkpoint()
    archive_inline(config, apply_deletes=True)
    assert lake_rows(config.lake) == [row for row in rows if row[0] >= 51]


# --- what is missing --------------------------------------------------------------------------------------------


def test_what_was_evicted_before_it_was_archived_is_a_finding_once(place: World, config: ArchiveOptions) -> None:
    fill(place, 2)
    archive_inline(config)
    fill(place, 4)
    place.client.create("t", cap_records=150)
    report = archive_inline(config)
    assert report.exit_code == EXIT_DATA_LOSS
    assert report.findings == (
        {"topic": "t", "epoch": report.findings[0]["epoch"], "gap_from": 201, "gap_to": 450, "reason": "cap"},
    )
    assert [row[0] for row in lake_rows(config.lake)] == [*range(1, 201), *range(451, 601)]
    gaps = open_lake(config.lake).state.gaps
    assert [(gap.first_seq, gap.last_seq) for gap in gaps] == [(201, 450)]
    assert archive_inline(config).exit_code == EXIT_DONE


def damage(file: Path, seq: int) -> Callable[[], None]:
    """Flips a bit of a record's payload; the call that is returned flips it back."""
    content = file.read_bytes()
    offset = 0
    for _ in range(seq - 1):
        offset += 4 + int.from_bytes(content[offset : offset + 4], "little")
    offset += HEADER_BYTES + 12

    def flip() -> None:
        changed = bytearray(file.read_bytes())
        changed[offset] ^= 1
        file.write_bytes(changed)

    flip()
    return flip


def test_a_damaged_record_is_a_finding_until_it_can_be_read(place: World, config: ArchiveOptions) -> None:
    fill(place, 3)
    rows = place.rows("t")
    repair = damage(place.files("t")[0], seq=10)
    report = archive_inline(config)
    assert report.exit_code == EXIT_DATA_LOSS
    assert [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in report.findings] == [(10, 10, "corrupt")]
    assert lake_rows(config.lake) == [row for row in rows if row[0] != 10]
    again = archive_inline(config)
    assert (again.exit_code, again.items_done, again.detail["damaged_segments"]) == (EXIT_DATA_LOSS, 0, 1)
    repair()
    assert archive_inline(config).exit_code == EXIT_DONE
    assert lake_rows(config.lake) == rows
    assert archive_inline(config).items_done == 0


def test_a_row_of_the_lake_stays_when_the_server_cannot_read_it_any_more(place: World, config: ArchiveOptions) -> None:
    fill(place, 2)
    rows = place.rows("t")
    archive_inline(config)
    place.client.delete("t", tag="t1")
    place.checkpoint()
    deleted = {row[0] for row in rows} - {row[0] for row in place.rows("t")}
    assert deleted
    assert 10 not in deleted
    damage(place.files("t")[0], seq=10)
    report = archive_inline(config, apply_deletes=True)
    assert [gap["gap_from"] for gap in report.findings] == [10]
    assert lake_rows(config.lake) == [row for row in rows if row[0] not in deleted]


# --- jobs that end early, and jobs that meet ------------------------------------------------------------------------


class TaskFailed(Exception):
    pass


def test_a_task_that_fails_anywhere_leaves_nothing_half_done_and_the_next_run_does_the_rest(
    place: World, config: ArchiveOptions
) -> None:
    fill(place, 12)
    for fail_at in range(6):
        lake = f"{config.lake}-{fail_at}"
        count = itertools.count()

        def spread_out(
            items: Sequence[ArchiveItem],
            work: Callable[[ArchiveItem], LakeChange],
            count: Iterator[int] = count,
            at: int = fail_at,
        ) -> list[LakeChange]:
            parts = []
            for item in items:
                parts.append(work(item))
                if next(count) == at:
                    raise TaskFailed
            return parts

        with pytest.raises(TaskFailed):
            Archiver(ArchiveOptions(endpoint=place.url, lake=lake, file_records=200), InProcess(spread_out)).run()
        # Waves of four: what the first one did stays.
        assert len(lake_rows(lake)) == (800 if fail_at >= 4 else 0)
        archive_inline(config, lake=lake)
        assert lake_rows(lake) == place.rows("t")


def test_an_archiver_that_another_one_overtakes_adds_nothing_twice(place: World, config: ArchiveOptions) -> None:
    """The other one runs between the tasks of a wave and its commit, and cuts its files elsewhere."""
    for other_records in (100, 200, 300, 1200):
        lake = f"{config.lake}-{other_records}"
        place.client.create("t")
        fill(place, 3)
        expected = place.rows("t")
        has_run: list[bool] = []

        def spread_out(
            items: Sequence[ArchiveItem],
            work: Callable[[ArchiveItem], LakeChange],
            lake: str = lake,
            other_records: int = other_records,
            has_run: list[bool] = has_run,
        ) -> list[LakeChange]:
            parts = [work(item) for item in items]
            if not has_run:
                has_run.append(True)
                archive_inline(config, lake=lake, file_records=other_records)
            return parts

        Archiver(ArchiveOptions(endpoint=place.url, lake=lake, file_records=200), InProcess(spread_out)).run()
        assert lake_rows(lake) == expected


def test_two_archivers_that_take_turns_share_the_work(place: World, config: ArchiveOptions) -> None:
    """The other one has done a part in the middle: its own segments are kept, the rest is planned again."""
    fill(place, 6)
    has_run: list[bool] = []

    def spread_out(items: Sequence[ArchiveItem], work: Callable[[ArchiveItem], LakeChange]) -> list[LakeChange]:
        parts = [work(item) for item in items]
        if not has_run:
            has_run.append(True)
            # Segments 2 and 3 of six, of which the first lies in one file of ours, the second in the next.
            lake = open_lake(config.lake, must_exist=False)
            single = Archiver(ArchiveOptions(endpoint=place.url, lake=config.lake, file_records=100), InProcess())
            own = [work(item) for item in single._plan()[1:3]]
            assert len(lake.commit("archive", own, now_ms=1)) == 2
        return parts

    report = Archiver(config, InProcess(spread_out)).run()
    assert lake_rows(config.lake) == place.rows("t")
    assert report.records == 400
    assert sum(file.records for file in open_lake(config.lake).state.files.values()) == 600


def killed_at(place: World, lake: str, stops: int) -> str:
    """Runs an archiver in a process of its own up to its n-th stop and kills it there; says what that was."""
    command = [sys.executable, "-m", "tests.spark.jobs.archiver", place.url, lake]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(stops):
            where = process.stdout.readline().strip()
            assert where in {"task", "wave"}
            process.stdin.write("\n")
            process.stdin.flush()
        where = process.stdout.readline().strip()
        os.kill(process.pid, signal.SIGKILL)
    return where


def test_an_archiver_that_is_killed_anywhere_leaves_every_record_once_after_another_run(
    place: World, config: ArchiveOptions
) -> None:
    """A wave has four tasks of 200 records: it is killed in the first wave, after it, and in the second."""
    fill(place, 12)
    for number, stops in enumerate(range(7) if FULL else (0, 4, 5)):
        lake = f"{config.lake}-{number}"
        where = killed_at(place, lake, stops)
        assert where == ("wave" if stops == 4 else "task")
        assert len(lake_rows(lake)) == (0 if stops < 4 else 800), "what is not committed is not there"
        assert list(Path(lake).rglob("*.parquet")), "though its files are"
        report = archive_inline(config, lake=lake)
        assert report.records == (1200 if stops < 4 else 400)
        assert lake_rows(lake) == place.rows("t")
        assert not list(Path(lake, SCRATCH).iterdir())
