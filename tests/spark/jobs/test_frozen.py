"""Plans that are made once."""

from pathlib import Path
from threading import Barrier, Thread

import msgspec
import pytest

from topics.errors import TopicsError
from topics.spark.errors import Conflict
from topics.spark.jobs.frozen import default_id, freeze


class Plan(msgspec.Struct, frozen=True):
    files: list[str]


def test_a_rerun_gets_the_plan_and_the_writer_of_the_first_run(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    first = freeze(state, "import", "a", {"path": "x"}, Plan, lambda: Plan(["1"]))
    again = freeze(state, "import", "a", {"path": "x"}, Plan, lambda: pytest.fail("planned twice"))
    assert again == first
    assert first[0].startswith("import:a:")


def test_another_id_is_another_plan_with_a_writer_of_its_own(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    writer, _ = freeze(state, "import", "a", {}, Plan, lambda: Plan(["1"]))
    other, plan = freeze(state, "import", "b", {}, Plan, lambda: Plan(["2"]))
    assert plan == Plan(["2"])
    assert other != writer


def test_the_same_id_in_another_place_has_another_writer(tmp_path: Path) -> None:
    """The server's ledger would take the one for a repeat of the other."""
    writers = [
        freeze(str(tmp_path / place), "import", "a", {}, Plan, lambda: Plan([]))[0] for place in ("here", "there")
    ]
    assert writers[0] != writers[1]


def test_a_plan_is_not_taken_for_that_of_another_question(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    freeze(state, "import", "a", {"topic": "orders"}, Plan, lambda: Plan([]))
    with pytest.raises(Conflict, match="is the plan of another import; give this import another --id"):
        freeze(state, "import", "a", {"topic": "parcels"}, Plan, lambda: Plan([]))


def test_of_two_runs_at_once_both_go_by_one_plan(tmp_path: Path) -> None:
    together = Barrier(2, timeout=60)
    found: list[tuple[str, Plan]] = []

    def run(name: str) -> None:
        def make() -> Plan:
            together.wait()
            return Plan([name])

        found.append(freeze(str(tmp_path / "state"), "import", "a", {}, Plan, make))

    threads = [Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2
    assert found[0] == found[1]


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "import-a.json").write_bytes(b"{")
    with pytest.raises(TopicsError, match=r"import-a\.json is not readable"):
        freeze(str(tmp_path), "import", "a", {}, Plan, lambda: Plan([]))


def test_the_default_id_goes_by_the_question_alone() -> None:
    assert default_id({"a": 1, "b": None}) == default_id({"b": None, "a": 1})
    assert default_id({"a": 1}) != default_id({"a": 2})
