"""The lake as a Delta table: commits, writers that meet, crashes, and readers that know nothing of this package."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.spark.lakes import NOW_MS, archived, done, lake_file, lake_seqs, put, state_of
from topics.spark import lake as offered
from topics.spark.errors import BadOption, Conflict
from topics.spark.lake import lake as lake_module
from topics.spark.lake.lake import Lake, open_lake, restore
from topics.spark.lake.state import LakeChange, LakeDamaged, LakeGap, LakeNotFound, WriterEpoch
from topics.spark.lake.table import Table
from topics.storage.tiers.shared_folder import SharedFolder

GAP = LakeGap("a", 1, 31, 40, "ttl")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def new_lake(address: str) -> Lake:
    return open_lake(address, must_exist=False)


def commit(lake: Lake, *changes: LakeChange) -> tuple[LakeChange, ...]:
    return lake.commit("test", changes, now_ms=NOW_MS)


# --- what is in a lake ------------------------------------------------------------------------------------------


def test_every_process_sees_what_was_committed_and_nothing_else(address: str) -> None:
    writer, reader = new_lake(address), new_lake(address)
    assert not reader.is_there
    one, two = archived(writer, 1, 10), archived(writer, 11, 20)
    put(writer, [21, 22])
    assert commit(writer, one, two) == (one, two)
    assert lake_seqs(address) == list(range(1, 21))
    assert reader.refresh() == writer.state == open_lake(address).state
    assert [file.first_seq for file in reader.state.files_of(["a"])] == [1, 11]
    assert reader.state.files_of(["b"]) == []


def test_a_place_without_a_lake_and_a_topic_that_is_not_there_are_errors(address: str) -> None:
    with pytest.raises(BadOption, match="cannot use a path with a %; choose another"):
        open_lake(f"{address}%20")
    with pytest.raises(LakeNotFound, match=r"there is no lake at .*/lake; `topics pipeline archive` makes one"):
        open_lake(address)
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    with pytest.raises(LakeNotFound, match=r'has no records of topic "b"; it has a$'):
        offered.read(None, address, topics=["b"])  # type: ignore[arg-type]


def test_programs_without_this_package_read_the_table_and_leave_out_files_by_its_statistics(address: str) -> None:
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10), archived(lake, 11, 20), archived(lake, 5, 8, topic="o:1"))
    commit(lake, LakeChange(gaps=(GAP,)))
    found = pl.read_delta(address).sort("topic", "seq")
    assert found.columns == ["topic", "seq", "ts", "node", "tag", "data", "meta", "epoch"]
    assert found.filter(pl.col("topic") == "a")["seq"].to_list() == list(range(1, 21))
    assert found.row(0, named=True)["ts"].timestamp() * 1000 == NOW_MS + 1
    rows = DeltaTable(address).scan()
    assert duckdb.sql("SELECT topic, count(*), sum(seq) FROM rows GROUP BY topic ORDER BY topic").fetchall() == [
        ("a", 20, 210),
        ("o:1", 4, 26),
    ]
    assert rows is not None
    pruned = DeltaTable(address).file_uris(file_pruning_predicate=f"seq > 15 AND topic = 'a' AND ts > {NOW_MS!r}000")
    assert [Path(uri).name.partition("-")[0] for uri in pruned] == ["11"]
    assert pl.read_delta(f"{address}/_topics/gaps").rows() == [("a", 1, 31, 40, "ttl")]


def test_the_log_has_a_transaction_for_each_instance_and_says_which_segments_are_in(address: str) -> None:
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10), archived(lake, 5, 8, topic="b"))
    table = DeltaTable(address)
    assert (table.transaction_version("lake/a/1"), table.transaction_version("lake/b/1")) == (10, 8)
    (info,) = table.history(1)
    assert [segment["digest"] for segment in info["topics"]["segments"]] == ["1-10", "5-8"]
    assert info["topics"]["job"] == "test"


def test_an_older_version_still_says_what_it_said_and_can_be_restored(address: str) -> None:
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    before = lake.at(1)
    commit(lake, archived(lake, 11, 20))
    assert lake.at(1) == before
    assert lake_seqs(address, at=1) == list(range(1, 11))
    with pytest.raises(LakeDamaged, match="has no version 3, the newest is 2"):
        lake.at(3)
    assert restore(address, 1) == 3
    assert lake_seqs(address) == list(range(1, 11))
    assert [each.digest for each in open_lake(address).state.segments["a", 1]] == ["1-10"], "the rest is not archived"
    assert lake.refresh() == open_lake(address).state, "also for a process that knew more"
    commit(lake, archived(lake, 11, 20))
    assert lake_seqs(address) == list(range(1, 21))
    operations = [told["operation"] for told in offered.history(address)]
    assert operations == ["WRITE", "RESTORE", "WRITE", "WRITE", "CREATE TABLE"]


def test_a_restore_to_a_time_is_one_to_the_version_of_that_time(address: str) -> None:
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    commit(lake, archived(lake, 11, 20))
    commits = [{"timestamp": 5}, *lake.table.commits(range(1, 3))]
    commits[1]["timestamp"], commits[2]["timestamp"] = 10, 20
    commits.append({"operation": "RESTORE", "operationParameters": {"datetime": 15}, "timestamp": 30})
    found = lake_module._ledger_of(commits, 3, address)
    assert [each.digest for each in found.segments["a", 1]] == ["1-10"]


def test_gaps_are_there_once_however_often_they_are_met(address: str) -> None:
    for _ in range(2):
        assert commit(new_lake(address), LakeChange(gaps=(GAP,)))
    assert open_lake(address).state.gaps == {GAP}
    assert DeltaTable(f"{address}/_topics/gaps").version() == 1, "an empty table and one commit"


def test_a_segment_that_was_written_again_takes_the_place_of_the_first(address: str) -> None:
    lake = new_lake(address)
    one = archived(lake, 1, 10)
    commit(lake, one, archived(lake, 11, 20))
    again = LakeChange(
        adds=(put(lake, [1, 2]),),
        removes=(one.adds[0].name,),
        segments=(done(1, 10, "other"),),
        expects=frozenset({"1-10"}),
    )
    assert commit(lake, again) == (again,)
    assert [each.digest for each in lake.state.segments["a", 1]] == ["other", "11-20"]
    assert lake_seqs(address) == [1, 2, *range(11, 21)]


def test_a_file_without_statistics_may_have_any_seq(address: str) -> None:
    """Another program may have written it."""
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    entry = Path(address, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    entry.write_text("\n".join(map(json.dumps, actions)))
    assert [file.first_seq for file in open_lake(address).state.files_between("a", 1, 500, 600)] == [0]


# --- writers that meet ------------------------------------------------------------------------------------------


def test_the_loser_keeps_only_what_the_winner_did_not_cover(address: str) -> None:
    winner, loser = new_lake(address), new_lake(address)
    one, two = archived(winner, 1, 10), archived(winner, 11, 20)
    commit(winner, one)
    assert commit(loser, one, two) == (two,)
    assert commit(winner, two) == ()
    assert lake_seqs(address) == list(range(1, 21))


def test_a_change_that_shares_only_some_segments_with_the_winner_is_given_up_as_a_whole(address: str) -> None:
    winner, loser = new_lake(address), new_lake(address)
    commit(winner, archived(winner, 1, 10))
    both = LakeChange(adds=(put(loser, list(range(1, 21))),), segments=(done(1, 10), done(11, 20)))
    assert commit(loser, both) == ()


def test_two_instances_of_a_topic_do_not_get_the_same_epoch(address: str) -> None:
    """The topic was created again, twice, and each archiver has seen another instance."""
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    other = done(11, 20)
    change = LakeChange(segments=(type(other)(**{**_members(other), "topic_id": 8}),))
    assert not lake.state.fits(change)


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


@contextmanager
def just_before_the_commit(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another process acts after the change was found to fit, and before it is committed."""
    real, is_done = Table.commit, []

    def commit_later(self: Table, *given: Any, **named: Any) -> None:
        if not is_done:
            is_done.append(True)
            act()
        real(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", commit_later)
        yield
    assert is_done


def test_a_commit_that_another_overtakes_at_the_last_moment_is_refused_by_the_format(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner, loser = new_lake(address), new_lake(address)
    one, two = archived(winner, 1, 10), archived(winner, 11, 20)
    with just_before_the_commit(lambda: _ensure(commit(winner, one)), monkeypatch):
        assert commit(loser, one, two) == (two,)
    assert lake_seqs(address) == list(range(1, 21))


def test_an_optimize_at_the_last_moment_makes_a_rewrite_plan_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(address)
    one = archived(lake, 1, 10)
    commit(lake, one)
    commit(lake, archived(lake, 11, 20))
    rewrite = LakeChange(adds=(put(lake, [1]),), removes=(one.adds[0].name,))
    with just_before_the_commit(lambda: _ensure(DeltaTable(address).optimize.compact()), monkeypatch):
        assert commit(lake, rewrite) == ()
    assert lake_seqs(address) == list(range(1, 21))


def test_an_optimize_that_a_rewrite_overtakes_is_refused(address: str) -> None:
    lake = new_lake(address)
    one = archived(lake, 1, 10)
    commit(lake, one)
    commit(lake, archived(lake, 11, 20))
    optimizer = DeltaTable(address)
    assert commit(lake, LakeChange(adds=(put(lake, [1]),), removes=(one.adds[0].name,)))
    with pytest.raises(CommitFailedError):
        optimizer.optimize.compact()
    assert lake_seqs(address) == [1, *range(11, 21)]


def _ensure(found: object) -> None:
    assert found


def test_a_lost_answer_is_no_second_commit(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library tries again, and is refused because of its own commit."""
    from topics.spark.lake.table import CommitRefused

    lake = new_lake(address)
    real = Table.commit

    def commit_and_be_refused(self: Table, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        raise CommitRefused("concurrent transaction")

    one = archived(lake, 1, 10)
    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", commit_and_be_refused)
        assert commit(lake, one) == (one,)
    assert lake_seqs(address) == list(range(1, 11))


def test_a_writer_that_never_wins_says_so_in_the_end(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from topics.spark.lake.table import CommitRefused

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitRefused("concurrent transaction")

    lake = new_lake(address)
    one = archived(lake, 1, 10)
    monkeypatch.setattr(lake_module, "COMMITS_LOST_MAX", 3)
    monkeypatch.setattr(Table, "commit", refuse)
    with pytest.raises(Conflict, match=r"3 commits of others came first; .*: concurrent transaction"):
        commit(lake, one)


def test_many_writers_at_once_lose_nothing_and_add_nothing_twice(address: str) -> None:
    """Each wants all of it, in an order of its own."""
    changes = [archived(new_lake(address), first, first + 9) for first in range(1, 61, 10)]

    def write(number: int) -> int:
        lake = new_lake(address)
        mine = changes[number:] + changes[:number]
        return sum(len(commit(lake, change)) for change in mine)

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(write, range(3))) == len(changes)
    assert lake_seqs(address) == list(range(1, 61))


def test_a_run_of_a_writer_is_in_the_lake_once(address: str) -> None:
    first, second = new_lake(address), new_lake(address)
    run = LakeChange(adds=(put(first, [1, 2]),), writer=WriterEpoch("w", 3))
    assert commit(first, run) == (run,)
    assert commit(second, run) == ()
    assert second.state.has_epoch(WriterEpoch("w", 3))
    assert not second.state.has_epoch(WriterEpoch("w", 4))
    assert DeltaTable(address).transaction_version("writer/w") == 3


def test_rows_of_a_writer_fit_only_beside_files_that_were_compared() -> None:
    state = state_of(lake_file(1, 30))
    adds = (lake_file(11, 20, mark="1"),)
    assert not state.fits(LakeChange(adds=adds, writer=WriterEpoch("w", 0)))
    compared = frozenset(state.overlapping(adds))
    assert state.fits(LakeChange(adds=adds, writer=WriterEpoch("w", 0), compared=compared))


# --- crashes and damage -----------------------------------------------------------------------------------------


class Crashed(BaseException):
    pass


@contextmanager
def crash_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Ends the run before or after the n-th thing that it does to the disk; the steps that were made are listed."""
    steps: list[str] = []
    numbers = count()

    def wrap(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def acted(self: Any, *given: Any, **named: Any) -> Any:
            if next(numbers) == step:
                raise Crashed
            found = real(self, *given, **named)
            steps.append(name)
            if next(numbers) == step:
                raise Crashed
            return found

        patched.setattr(owner, name, acted)

    with monkeypatch.context() as patched:
        for owner, name in ((SharedFolder, "put"), (Table, "create"), (Table, "commit"), (Table, "synced")):
            wrap(owner, name)
        yield steps


def test_a_crash_at_any_step_leaves_the_table_as_it_was_or_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in count():
        address = str(tmp_path / str(step))
        lake = new_lake(address)
        old = archived(lake, 1, 10)
        commit(lake, old)

        def change(lake: Lake = lake, old: LakeChange = old) -> None:
            fresh = archived(lake, 11, 20)
            rewrite = LakeChange(
                adds=(put(lake, [1, 2, 3]),),
                removes=(old.adds[0].name,),
                segments=(done(1, 10, "purged"),),
                expects=frozenset({"1-10"}),
                gaps=(GAP,),
            )
            commit(lake, rewrite, fresh)

        is_over = False
        with crash_at(step, monkeypatch) as steps, suppress(Crashed):
            change()
            is_over = True
        # The gaps are the first commit, the records the second. A commit may be there before it is synced.
        expected = [1, 2, 3, *range(11, 21)] if open_lake(address).state.version == 2 else list(range(1, 11))
        is_in = expected[-1] == 20
        assert is_in or steps.count("commit") < 2, f"step {step}: {steps}"
        assert lake_seqs(address) == expected, f"step {step}: {steps}"
        assert pl.read_delta(address)["seq"].sort().to_list() == expected
        if is_in:
            assert open_lake(address).state.gaps == {GAP}, "gaps come before the records around them"
        # The next run does the rest, once.
        again = new_lake(address)
        change(again)
        assert lake_seqs(address) == [1, 2, 3, *range(11, 21)]
        assert again.state.gaps == {GAP}
        if is_over:
            break
    assert step > 10


def test_a_log_entry_that_is_missing_or_not_whole_is_named(address: str) -> None:
    lake = new_lake(address)
    commit(lake, archived(lake, 1, 10))
    commit(lake, archived(lake, 11, 20))
    entry = Path(address, "_delta_log", f"{2:020d}.json")
    content = entry.read_bytes()
    entry.write_bytes(content[:50])
    with pytest.raises(LakeDamaged, match=address):
        open_lake(address)
    entry.write_bytes(content)
    DeltaTable(address).create_checkpoint()
    Path(address, "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(LakeDamaged, match=r"the log has no entry 1, .* bring back _delta_log/0*1\.json"):
        open_lake(address)


def test_the_package_offers_what_the_documentation_calls() -> None:
    assert sorted(offered.__all__) == ["gaps", "history", "read", "restore"]
