"""A real server is killed under HTTP load, and clients retry by key: every answered record is there exactly once."""

from pathlib import Path

import pytest

from tests.conftest import FULL
from tests.process.http_kill_run import Findings, KillRun
from tests.process.http_writer import CLASSES, Write

KILLS = 30 if FULL else 3


@pytest.mark.timeout(900 if FULL else 300)
def test_clients_that_retry_by_key_end_with_exactly_one_copy(tmp_path: Path) -> None:
    """Classes fsync and disk, single records and batches. Kills happen also during starts and stops."""
    findings = KillRun(tmp_path / "data", seed=20_261_116).run(KILLS)
    assert findings.faults == [], findings.summary()
    assert findings.kills >= KILLS
    assert all(len(findings.acked[topic]) > 100 for topic in CLASSES), findings.summary()
    # The run did have the events that it is made for.
    assert findings.retried > 0, findings.summary()
    assert findings.repeated > 0, findings.summary()


def answer(first_seq: int, *, count: int = 1, deduped: bool = False) -> dict[str, object]:
    last_seq = first_seq + count - 1
    return {
        "seqs": list(range(first_seq, last_seq + 1)),
        "first_seq": first_seq,
        "last_seq": last_seq,
        "deduped": deduped,
    }


def test_the_comparison_finds_what_it_is_made_to_find() -> None:
    """A test of the check itself: it finds each kind of fault."""
    findings = Findings()
    one, two = Write("synced", "0-1", ("0-1 0 x",)), Write("synced", "0-2", ("0-2 0 x", "0-2 1 x"))
    findings.note_answer(one, answer(1), 0)
    findings.note_answer(two, answer(2, count=2, deduped=True), 1)
    findings.note_answer(one, answer(1, deduped=True), 0)
    assert findings.faults == []
    assert (findings.retried, findings.retried_deduped, findings.repeated) == (1, 1, 1)
    whole = {"synced": [(1, "0-1 0 x"), (2, "0-2 0 x"), (3, "0-2 1 x")], "cached": []}
    findings.check_end(whole)
    assert findings.faults == []

    findings.note_answer(two, answer(7, count=2), 0)
    assert len(findings.doubled) == 1, "a key that appends twice"
    findings.note_answer(one, answer(5, deduped=True), 0)
    assert len(findings.wrong) == 1, "a key that is deduped to other seqs"
    findings.note_answer(Write("cached", "1-1", ("1-1 0 ",)), answer(1, deduped=True), 0)
    assert len(findings.wrong) == 2, "a key that is known before it was ever sent"
    findings.note_answer(Write("cached", "1-2", ("1-2 0 ",)), answer(2, count=2), 0)
    assert len(findings.wrong) == 3, "one record that gets two seqs"
    findings.note_answer(Write("cached", "1-3", ("1-3 0 ",)), answer(1), 0)
    assert len(findings.wrong) == 4, "a seq that was given out already"

    findings = Findings()
    findings.note_answer(one, answer(1), 0)
    findings.check_end({"synced": [], "cached": []})
    assert len(findings.lost) == 1
    findings.check_end({"synced": [(1, "0-9 0 x")], "cached": []})
    assert len(findings.wrong) == 1, "another payload"
    findings.check_end({"synced": [(1, "0-1 0 x"), (2, "0-1 0 x")], "cached": []})
    assert len(findings.doubled) == 1
    assert len(findings.wrong) == 2, "a record that no answer named"
    findings.check({"synced": {}, "cached": {}}, {"synced": [(1, "a 0 "), (3, "b 0 ")], "cached": []})
    assert len(findings.wrong) == 3, "a hole"
    assert "lost               1" in findings.summary()
