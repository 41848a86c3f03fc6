"""The pictures of the docs are what their programs make. The one of README.md shows a kill that really happens here."""

from xml.etree import ElementTree as ET

import pytest

from docs_build import recording
from docs_build.pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_up_to_date_and_well_formed(name: str) -> None:
    made = PICTURES[name]().svg()
    assert FOLDER.joinpath(f"{name}.svg").read_text("utf-8") == made, "run `make pictures`, and commit what it makes"
    assert ET.fromstring(made).get("aria-label")


def test_the_recording_shows_what_happens() -> None:
    shown = recording.record()
    seen = [line.text.split()[0] for line in shown if line.pane == "reader" and not line.text.startswith("$ ")]
    assert seen == ["1", "2", "3", "4", "5"]
    assert recording.FILE.read_text("utf-8") == recording.svg(shown), "run `make pictures`, and commit what it makes"
