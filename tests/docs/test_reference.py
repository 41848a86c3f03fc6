"""docs/reference/ is what the code says now, and says something about everything."""

import json
import re
import subprocess
import sys

import pytest

from docs_build import llms
from docs_build.commands import command_paths
from docs_build.reference import NoMeaning, parse_metrics
from tests.conftest import REPOSITORY
from topics.protocol.error_codes import ERROR_CODES
from topics.server.settings_schema import SETTINGS

FOLDER = REPOSITORY / "docs" / "reference"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """As `make reference` makes them: in a process of its own, which no other test has changed."""
    pytest.importorskip("numpy", reason="the metrics of streams need topics-log[streams]")
    code = "import json; from docs_build import reference; print(json.dumps(reference.pages()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    pages: dict[str, str] = json.loads(done.stdout)
    return pages


def test_the_pages_are_up_to_date(made: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == made.keys()
    stale = [name for name, text in made.items() if FOLDER.joinpath(name).read_text("utf-8") != text]
    assert stale == [], "run `make reference`, and commit what it makes"


def test_everything_is_on_its_page(made: dict[str, str]) -> None:
    assert all(f"### {code.code}\n" in made["errors.md"] for code in ERROR_CODES)
    assert all(f"| `{setting.name}` |" in made["settings.md"] for setting in SETTINGS)
    assert all(f"# topics {' '.join(path)}\n" in made["commands.md"] for path in command_paths())
    source = (REPOSITORY / "src/topics/server/metrics.py").read_text("utf-8")
    names = set(re.findall(r'"(topics_[a-z_]+[a-z])"', source))
    assert len(names) > 40
    assert [name for name in sorted(names) if f"| `{name}` |" not in made["metrics.md"]] == []


def test_a_metric_without_a_meaning_or_a_series_is_refused() -> None:
    good = "# HELP a_total Things.\n# TYPE a_total counter\na_total 1\n"
    assert parse_metrics(good) == [("a_total", "counter", (), "Things.")]
    assert parse_metrics(good.replace("a_total 1", 'a_total{x="1"} 1'))[0].labels == ("x",)
    for bad in (good.replace("Things.", " "), good.replace("Things.", "things"), good.replace("a_total 1", "")):
        with pytest.raises(NoMeaning):
            parse_metrics(bad)


def test_the_list_for_language_models_is_up_to_date() -> None:
    assert llms.FILE.read_text("utf-8") == llms.text(), "run `make reference`, and commit what it makes"
