"""`docs/http.md`: its examples work, and its tables agree with the server."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.conftest import REPOSITORY
from tests.server.openapi_document import fetch_document, operations
from tests.server.running import Running, running
from topics.protocol.error_codes import ERROR_CODES
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId

PAGE: Final = (REPOSITORY / "docs" / "http.md").read_text("utf-8")
ADDRESS: Final = "localhost:4000"
KEY: Final = "a-key"


class Example(NamedTuple):
    command: str
    output: str


def examples(page: str) -> Iterator[Example]:
    """The commands of the page and their output. A command begins with `$`, and a backslash continues it."""
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            match = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*)\n(.*)", text, re.DOTALL)
            assert match is not None, text
            yield Example(match[1], match[2].strip())


def expect_output(example: Example, server: Running) -> None:
    command = example.command.replace(ADDRESS, f"{server.host}:{server.port}")
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/bin:/usr/bin", "KEY": KEY},
    )
    pattern = ".*?".join(map(re.escape, example.output.split("…")))
    assert re.fullmatch(pattern, done.stdout.strip()), f"{example.command}\n{done.stdout}{done.stderr}"


def send_two_messages(server: Running) -> None:
    """What the section about streams takes for granted."""
    system = server.server.streams.system
    assert system is not None
    system.create_stream("orders")
    system.create_topic("orders", "events", partitions_count=2)
    messages = [NewMessage(b'{"id":42}', 7, {"trace": "t-1"}), NewMessage(b"\0\1\2")]
    system.send("orders", "events", encode_send(messages), PartitionId(0))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_example_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    count = 0
    with (
        running(tmp_path / "open", streams_port=0) as plain,
        running(tmp_path / "keys", keys=KEY) as locked,
    ):
        send_two_messages(plain)
        for section in sections:
            for example in examples(section):
                expect_output(example, locked if section.startswith("Keys") else plain)
                count += 1
    assert count == PAGE.count("\n$ curl ")


def test_the_page_lists_every_endpoint_with_its_summary_and_scope(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        document = fetch_document(server)
    rows = {
        f"| `{method} {path}` | {operation['summary']} | {', '.join(operation['x-scopes']) or '–'} |"
        for method, path, operation in operations(document)
    }
    assert rows == set(re.findall(r"^\| `[A-Z]+ /.*$", PAGE, re.MULTILINE))


def test_the_page_lists_every_error_code() -> None:
    rows = [
        f"| {entry.status} | `{entry.code}` | {entry.meaning} | {'yes' if entry.retriable else 'no'} |"
        for entry in ERROR_CODES
    ]
    assert re.findall(r"^\| [45][0-9][0-9] \|.*$", PAGE, re.MULTILINE) == rows
