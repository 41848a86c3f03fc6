"""A view through a real viewer process. A refusal in the process is raised as the same error in the caller."""

from pathlib import Path

import pytest

from topics.errors import Damaged, FutureVersion, StartRefused
from topics.offline_view.view import Refusal, ViewRequest, refusal_error, take_view


def test_a_directory_without_topics_has_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    answer = take_view(ViewRequest(root=str(tmp_path / "data"), folder=str(tmp_path / "view")))
    assert (answer.status, answer.topics) == ("taken", [])
    assert not list((tmp_path / "data").iterdir())


def test_a_snapshot_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "meta").mkdir(parents=True)
    (tmp_path / "data" / "meta" / "snapshot.0001.bin").write_bytes(b"TSNP")
    with pytest.raises(StartRefused, match=r"snapshot\.0001\.bin: no readable snapshot"):
        take_view(ViewRequest(root=str(tmp_path / "data"), folder=str(tmp_path / "view")))


def test_a_process_that_fails_says_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartRefused, match=r"the recovery for a view failed with status 1: NotADirectoryError.*verify"):
        take_view(ViewRequest(root=str(tmp_path), folder=str(tmp_path / "file")))


def test_errors_keep_their_kind() -> None:
    damage = ("/data/x", 7, "a frame", "zeros")
    error = refusal_error(Refusal(kind="damaged", message="", damage=damage))
    assert isinstance(error, Damaged)
    assert (error.path, error.offset, error.expected, error.found) == damage
    assert isinstance(refusal_error(Refusal(kind="future_version", message="new")), FutureVersion)
    plain = refusal_error(Refusal(kind="other", message="away"))
    assert (type(plain), plain.message) == (StartRefused, "away")
