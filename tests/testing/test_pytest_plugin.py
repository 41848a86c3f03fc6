"""The fixture `topics_server`, as pytest gives it to the tests of another project."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import topics
from tests.conftest import REPOSITORY
from tests.embedded.python_process import run_code

pytest_plugins = ["pytester"]

TESTS = """
import pytest
import topics

def test_a_server_of_its_own(topics_server):
    with topics.Client(topics_server.url) as client:
        assert client.topics() == []
        client.append("orders", [{"id": 1}])
    topics_server.kill()
    topics_server.start()
    with topics.Client(topics_server.url) as client:
        assert client.topics() == ["orders"]

@pytest.mark.topics_server(max_topics=1)
def test_settings(topics_server):
    with topics.Client(topics_server.url, retries=0) as client:
        assert client.topics() == []
        client.create("a")
        with pytest.raises(topics.TopicsError, match="topic"):
            client.create("b")
"""


def test_tests_of_another_project_get_a_server_each(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package that is tested here, whichever form of it that is.
    monkeypatch.setenv("PYTHONPATH", str(Path(topics.__file__).parents[1]))
    # Named here, because the package may be tested without being installed.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-q", "--strict-markers", "-p", "topics.testing.pytest_plugin")
    result.assert_outcomes(passed=2)


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"topics": "topics.testing.pytest_plugin"}


def test_the_plugin_costs_a_run_without_servers_nothing() -> None:
    code = "import pytest, sys; before = set(sys.modules); import topics.testing.pytest_plugin; "
    code += "print(sorted(set(sys.modules) - before))"
    assert run_code(code).stdout == "['topics', 'topics.testing', 'topics.testing.pytest_plugin']\n"
