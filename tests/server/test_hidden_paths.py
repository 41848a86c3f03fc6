"""Paths of this machine in errors."""

from pathlib import Path

import pytest

from topics.errors import ColdUnavailable, Damaged, InvalidRequest, Throttled
from topics.server.hidden_paths import PathHider


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/data/wal/0/1.wal: damaged", "wal/0/1.wal: damaged"),
        ("cannot read '/srv/data//topics/1'", "cannot read 'topics/1'"),
        ("cannot use /srv/data: full", "cannot use (a folder of the server): full"),
        ("/srv/data", "(a folder of the server)"),
        ("/srv/data/", "(a folder of the server)"),
        ("/srv/database/x and metadata/x", "/srv/database/x and metadata/x"),
        ("file:///srv/data/topics/1", "file://topics/1"),
        ("s3://bucket/prefix/topics/1: gone", "topics/1: gone"),
        ("s3://bucket/prefix: gone", "(a folder of the server): gone"),
        ("relative/topics/1, not-relative/x", "topics/1, not-relative/x"),
        ('topic "a" is full', 'topic "a" is full'),
    ],
)
def test_files_are_named_below_their_folder(text: str, told: str) -> None:
    assert PathHider("/srv/data", "s3://bucket/prefix/", "relative", None).hide(text) == told


def test_a_folder_is_known_in_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    hider = PathHider("./link/")
    for spelled in ("./link", "link", f"{tmp_path}/link", f"{tmp_path}/real"):
        assert hider.hide(f"{spelled}/wal/1: bad") == "wal/1: bad"


@pytest.mark.parametrize("folder", [".", "./", "/", ""])
def test_a_folder_without_a_name_changes_no_words(folder: str) -> None:
    """`.` and `/` are parts of many texts that are no paths."""
    assert PathHider(folder).hide("seq 1. The end: a/b") == "seq 1. The end: a/b"


def test_an_error_keeps_its_class_and_its_numbers() -> None:
    hider = PathHider("/srv/data")
    told = hider.error_told(Damaged("/srv/data/wal/1", 7, "a frame", "zeros"))
    assert (type(told), told.code, told.detail) == (Damaged, "internal", {"file": "wal/1", "offset": 7})
    assert told.message.startswith("wal/1: damaged at offset 7: ")
    throttled = hider.error_told(Throttled("no more writes", {"checkpoint": "[Errno 5] '/srv/data/wal'", "max": 3}))
    assert throttled.detail == {"checkpoint": "[Errno 5] 'wal'", "max": 3}


def test_an_error_without_a_path_is_told_as_it_is() -> None:
    for error in (InvalidRequest("bad"), ColdUnavailable("no answer", {"topic": "a", "seq": 3})):
        assert PathHider("/srv/data").error_told(error) is error
