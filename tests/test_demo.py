"""What `make run` shows is true."""

import pytest

from topics.demo import main


def test_the_demo_tells_of_the_loss_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    shown = capsys.readouterr().out
    assert "Tombstone(gap_from=1, gap_to=3, reason='cap'" in shown
    assert "500 answered" in shown
    assert "none missing" in shown
