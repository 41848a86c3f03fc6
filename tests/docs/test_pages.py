"""README.md and the pages below docs/: each example is run against a real server, and prints what the page says.

The pages that have test files of their own (docs/http.md, docs/cli.md, docs/client.md, docs/embedded.md,
docs/spark-tutorial.md) are run there; examples on Spark in tests/spark/test_tutorial.py, the chat page in
tests/browser/test_chat_page.py.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import topics
from tests.conftest import REPOSITORY
from tests.docs.page_runner import PageRunner
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
    with ServerProcess() as process:
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
    with topics.Client(server.url) as client:
        for router in client.routers():
            client.drop_router(router.router)
        for topic in client.topics():
            client.drop(topic)
    if runner.wrong:
        pytest.fail("\n\n".join(runner.wrong), pytrace=False)


def test_a_start_prints_what_the_quickstart_shows(server: ServerProcess) -> None:
    """Every line of the page in its order. A server with more to say (streams, a console) has more lines."""
    page = (REPOSITORY / "docs" / "quickstart.md").read_text("utf-8")
    (shown,) = [example.output for example in examples(page) if example.command == "topics serve"]
    printed = server.output.replace(str(server.data_dir), "/home/ada/topics/topics-data")
    printed = printed.replace(f":{server.port}", ":4000").replace(f"({running_form()})", "(compiled, 32 modules)")
    assert [line for line in printed.splitlines() if line in shown.splitlines()] == shown.splitlines()
