"""What `make demo-embedded` shows is true."""

import re

import pytest

from topics.demos.embedded import main


def test_the_demo_tells_of_the_loss_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    shown = capsys.readouterr().out
    assert "Tombstone(gap_from=1, gap_to=3, reason='cap'" in shown
    assert "nack 2 " in shown
    assert "no job is left: Counters(ready=0, in_flight=0, dead_lettered=0)" in shown
    counts = re.search(r"(\d+) answered, (\d+) found, none missing", shown)
    assert counts is not None
    # More than it waited for: the child writes on until the signal reaches it.
    assert 500 <= int(counts[1]) <= int(counts[2])
