"""The commands in README.md are run against a real server, and their output is compared with the shown output."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.cli.form import running_form
from topics.testing.server_process import ServerProcess

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")

ADDRESS = "localhost:4000"
SEPARATOR = "--- next command ---"
# Times differ from run to run. Everything else must be equal.
TIME = re.compile(r'("(?:\$ts|[a-z_]+_ts|[a-z_]+_ms)":)[0-9.]+')


def console_blocks() -> Iterator[str]:
    yield from re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def python_blocks() -> Iterator[str]:
    """All examples except those on Spark, which tests/spark/test_tutorial.py runs."""
    for block in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        if "topics.spark" not in block:
            yield block


def commands(block: str) -> list[tuple[str, str]]:
    """Each command with the output shown below it. A backslash at the end of a line continues the command."""
    found: list[list[str]] = []
    goes_on = False
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append([line.removeprefix("$ "), ""])
        else:
            found[-1][0 if goes_on else 1] += ("\n" if goes_on else "") + line + ("" if goes_on else "\n")
        goes_on = line.endswith("\\")
    return [(command, shown) for command, shown in found]


def pattern(shown: str) -> str:
    """A pattern for the shown output. It matches any times, and any text in the place of three dots."""
    parts = (re.escape(TIME.sub(r"\1TIME", part)) for part in shown.strip().split("…"))
    return ".*".join(parts).replace("TIME", r"[0-9.]+")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_answer_as_shown() -> None:
    steps = [step for block in console_blocks() if ADDRESS in block for step in commands(block)]
    assert len(steps) >= 8
    with ServerProcess() as server:
        script = f"\necho\necho '{SEPARATOR}'\n".join(command for command, _ in steps)
        done = subprocess.run(
            ["bash", "-c", script.replace(ADDRESS, server.address)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    outputs = [output.strip() for output in done.stdout.split(SEPARATOR)]
    assert len(outputs) == len(steps)
    for (command, shown), output in zip(steps, outputs, strict=True):
        assert re.fullmatch(pattern(shown), output), f"$ {command}\nshown: {shown}\nfound: {output}"


def test_the_start_prints_what_is_shown() -> None:
    (shown,) = [shown for block in console_blocks() for command, shown in commands(block) if command == "make run"]
    with ServerProcess() as server:
        printed = [line for line in server.output.splitlines() if not line.startswith("{")]
        folder, port = str(server.data_dir.parent), str(server.port)
    expected = shown.replace("/home/ada/topics/topics-data", f"{folder}/data").replace(":4000", f":{port}")
    expected = re.sub(r"compiled, [0-9]+ modules", running_form(), expected)
    assert printed == expected.splitlines()


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    programs = list(python_blocks())
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(programs) == 3
    assert """1 b'{"id":1,"total":9.5}'""" in printed
    assert "0 b'first'\n1 b'second'\n" in printed
    assert "http://127.0.0.1:" in printed


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/architecture.md",
        "docs/embedded.md",
        "docs/guarantees.md",
        "docs/spark.md",
        "docs/spark-tutorial.md",
        "docs/streams.md",
        "CHANGELOG.md",
    ],
)
def test_what_is_linked_is_there(page: str) -> None:
    text = (REPOSITORY / page).read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if not link.startswith("http")]
    missing = [link for link in links if not (REPOSITORY / page).parent.joinpath(link).exists()]
    assert missing == []


def test_the_tests_that_prove_the_guarantees_are_there() -> None:
    text = (REPOSITORY / "docs/guarantees.md").read_text("utf-8")
    names = re.findall(r"`(tests/[a-z0-9_/]+\.py)(?:::([a-z0-9_]+))?", text)
    assert len(names) > 30
    for path, name in names:
        source = REPOSITORY / path
        assert source.exists(), path
        assert not name or f"def {name}(" in source.read_text("utf-8"), f"{path}::{name}"


def test_every_guarantee_has_a_number_of_its_own_and_each_table_is_in_order() -> None:
    text = (REPOSITORY / "docs/guarantees.md").read_text("utf-8")
    tables = [re.findall(r"^\| ([A-Z])(\d+) \|", section, re.MULTILINE) for section in text.split("\n## ")]
    numbers = [(kind, int(number)) for table in tables for kind, number in table]
    assert len(numbers) == len(set(numbers)) > 60
    for table in tables:
        in_order = [int(number) for _, number in table]
        assert in_order == sorted(in_order)
