"""README.md and the pages below docs/: each example is run against a real server, and prints what the page says.

The pages that have test files of their own (docs/http.md, docs/cli.md, docs/client.md, docs/embedded.md,
docs/spark-tutorial.md) are run there; pages with examples on Spark, README.md and the quickstart among them, as a whole
in tests/spark/test_tutorial.py, the chat page in tests/browser/test_chat_page.py.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import pytest

from docs_build.recording import free_port
from tests.conftest import REPOSITORY
from tests.docs.page_runner import PageRunner, blocks
from tests.docs.terminal import on_terminal, without_times
from tests.installed import commands_path
from tests.server.openapi.test_document_page import examples
from topics.cli.form import running_form
from topics.testing.server_process import ServerProcess

PAGES: Final = [
    "README.md",
    "docs/index.md",
    "docs/quickstart.md",
    *(
        str(path.relative_to(REPOSITORY))
        for folder in ("tutorials", "how-to", "concepts")
        for path in sorted((REPOSITORY / "docs" / folder).glob("*.md"))
    ),
    "docs/security.md",
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    # It is killed and restarted: a port that the system chooses could be taken meanwhile.
    with ServerProcess(port=free_port()) as process:
        yield process


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", PAGES)
def test_every_example_of_the_page_prints_what_the_page_says(
    page: str, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as jobs:
        runner = PageRunner(tmp_path, server, jobs)
        for name in [name for name in os.environ if name.startswith("TOPICS_")]:
            monkeypatch.delenv(name)
        for name, value in runner.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        runner.run((REPOSITORY / page).read_text("utf-8"))
    if runner.wrong:
        pytest.fail("\n\n".join(runner.wrong), pytrace=False)


def test_the_first_block_of_the_readme_works_when_it_is_pasted_as_a_whole(tmp_path: Path) -> None:
    found = blocks((REPOSITORY / "README.md").read_text("utf-8"))
    first, second = next(pair for pair in pairwise(found) if "topics serve &" in pair[0].text)
    assert (first.kind, second.kind) == ("sh", "text")
    port = free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {"PATH": commands_path(), "TOPICS_PORT": str(port), "TOPICS_URL": f"http://127.0.0.1:{port}"}
    with on_terminal(f"{first.text}\nkill $!; wait", tmp_path, environ) as lines:
        printed = without_times("".join(lines))
    printed = printed.replace(f":{port}", ":4000").replace(f"({running_form()})", "(compiled, 32 modules)")
    # Log lines of the stop come after the last line.
    assert re.match(".*?".join(map(re.escape, without_times(second.text).split("…"))), printed, re.DOTALL), printed


def test_the_quickstart_installs_as_the_readme_does() -> None:
    """tests/test_installation.py runs the block of README.md."""
    pages = [blocks((REPOSITORY / page).read_text("utf-8")) for page in ("README.md", "docs/quickstart.md")]
    readme, quickstart = (next(block.text for block in page if "pip install ." in block.text) for page in pages)
    assert readme == quickstart


# What a reader does on a server that has what other pages made.
WRITES: Final = re.compile(
    r"(?:topics (?:write|topic create|router create \S+) |v0/topics/|(?:append|create|worker)\(\")([\w.-]+)"
)
# Pages with a directory or a server of their own, and pages that show a request without sending it.
APART: Final = {
    "docs/embedded.md",
    "docs/how-to/test-your-program.md",
    "docs/how-to/tls-and-keys.md",
    "docs/architecture.md",
}


def test_no_two_pages_write_to_the_same_topic() -> None:
    pages: dict[str, set[str]] = {}
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        page = str(path.relative_to(REPOSITORY))
        if page in APART or page.startswith("docs/reference/"):
            continue
        for block in blocks(path.read_text("utf-8")):
            for match in WRITES.finditer(block.text):
                pages.setdefault(match[1], set()).add(page)
    assert len(pages) > 20
    assert {name: found for name, found in pages.items() if len(found) > 1} == {}


def test_a_start_prints_what_the_quickstart_shows(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "quickstart.md").read_text("utf-8")
    (shown,) = [example.output for example in examples(page) if example.command == "topics serve"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    port = free_port()
    environ |= {"PATH": commands_path(), "TOPICS_PORT": str(port)}
    with on_terminal("exec topics serve", tmp_path, environ) as lines:
        printed = without_times("".join(islice(lines, len(shown.splitlines()))))
    printed = printed.replace(str(tmp_path), "/home/ada/topics").replace(f":{port}", ":4000")
    assert printed.replace(f"({running_form()})", "(compiled, 32 modules)") == f"{without_times(shown)}\n"
