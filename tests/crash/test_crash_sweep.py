"""Crash sweeps: each workload of `scripts` is stopped at every call that changes the disk, with every kind of
damage."""

import pytest

from tests.conftest import FULL
from tests.crash.harness import Broken, World
from tests.crash.scripts import SCRIPTS
from tests.crash.sweep import RecordProperty, Tally, crash_sweep
from topics.testing.fake_disk import Damage, FakeFile

POINTS = None if FULL else 14
BLOWS = None if FULL else 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_at_any_operation_loses_nothing_that_was_promised(name: str, record_property: RecordProperty) -> None:
    """Invariants 20, 23, 25, 26, 39, 40 and 42."""
    script, settings = SCRIPTS[name]
    tally = Tally(f"crash sweep: {name}")
    crash_sweep(script, settings, tally, points_max=POINTS, blows_max=BLOWS)
    tally.record(record_property)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_workload_without_a_crash_is_what_the_model_says(name: str) -> None:
    script, settings = SCRIPTS[name]
    world = World(settings)
    script(world)
    world.check()
    world.close()
    assert world.monitor.check_settled() == []
    world.recover()


def test_the_oracle_notices_an_answer_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the sweep: it finds an engine whose sync does nothing."""
    monkeypatch.setattr(FakeFile, "fdatasync", lambda self: None)
    world = World()
    SCRIPTS["append"][0](world)
    world.crash(Damage.DROP)
    with pytest.raises(Broken):
        world.recover()
