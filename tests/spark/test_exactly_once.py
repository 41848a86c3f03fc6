"""A query from topic to topic under kill -9: every record arrives once, in order."""

from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.spark.kill_run import KillRun, Outcome


def check(outcome: Outcome) -> None:
    print(outcome)
    assert (outcome.missing, outcome.duplicates, outcome.is_in_order) == (0, 0, True), str(outcome)
    assert outcome.records_out == outcome.records_in > 0


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("java")
def test_kills_of_worker_server_and_driver_neither_lose_nor_repeat_a_record(tmp_path: Path) -> None:
    kills = 20 if FULL else 3
    outcome = KillRun(tmp_path, kills=kills, seed=kills).run()
    check(outcome)
    assert outcome.kills.total() == kills
    assert {"worker", "server", "driver"} <= outcome.kills.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("java")
def test_speculative_attempts_neither_lose_nor_repeat_a_record(tmp_path: Path) -> None:
    outcome = KillRun(tmp_path, kills=2, seed=2, speculates=True).run()
    check(outcome)
    assert outcome.second_attempts > 0, "Spark did not speculate"
