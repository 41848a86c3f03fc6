"""Runs a page of the docs as its reader would: commands in a terminal, programs, files that the reader is told to save.

- A block `console` has commands, which begin with `$`, and the output of each. `…` stands for parts that differ from
  run to run. Output that ends in `^C` is that of a command that goes on: it is interrupted after the lines before.
- A block `python` is a program. A block `text` directly after it is its output.
- "Save this as `NAME`:" makes a file of the block that follows.
- The package and a server on port 4000 are there already, so `pip install …` and a plain `topics serve` are left out.
  `pkill` kills and restarts that server only.
- `topics read`, `tail` and `queue claim` print to a terminal, unless the page asks for a form. A tail is interrupted
  after the lines of the page.
- `&` starts a command beside the others. A server on another port (a free one is taken for it) is awaited.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from docs_build.recording import free_port
from tests.cli.test_page import output_of, sorted_match
from tests.docs.terminal import on_terminal, without_times
from tests.server.openapi.test_document_page import examples
from topics.testing.server_process import ServerProcess

# A start of Spark on a busy machine.
PATIENCE_S: Final = 240
BLOCK: Final = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED: Final = re.compile(r"[Ss]ave this as `([^`]+)`[^`]*:\s*$")
# Blocks that need Spark, or what Spark has made: tests/spark/test_tutorial.py runs pages with these.
ON_SPARK: Final = re.compile(r"^\$ topics pipeline|topics\.spark|\bread_delta\(", re.MULTILINE)
FOR_PEOPLE: Final = re.compile(r"topics (read|tail|queue claim) (?!.*(?:-o|--format|--no-follow) ?)[^|>]*$")
PORT: Final = re.compile(r"(127\.0\.0\.1:|localhost:|--port |http\.server )([34][0-9]{3})\b")


class Block(NamedTuple):
    kind: str
    text: str
    saved_as: str | None
    # The text of the page between the block before and this one.
    before: str


def blocks(page: str) -> list[Block]:
    found, end = [], 0
    for match in BLOCK.finditer(page):
        before = page[end : match.start()]
        name = SAVED.search(before)
        found.append(Block(match[1], match[2], name and name[1], before))
        end = match.end()
    return found


class PageRunner:
    """A terminal in a folder of its own, with `topics` and this Python in its path. `wrong` collects what differs."""

    def __init__(self, folder: Path, server: ServerProcess, jobs: ExitStack, *, with_spark: bool = False) -> None:
        self._folder = folder
        self._server = server
        self._jobs = jobs
        self._with_spark = with_spark
        self._ports = {"4000": str(server.port)}
        self.wrong: list[str] = []
        # Commands and programs that were run, and files that were saved.
        self.ran = 0
        folder.joinpath("bin").mkdir()
        for name, module in (("topics", "-m topics.cli.entry"), ("python", "")):
            script = folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            script.chmod(0o755)

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        # The plugins of our own tests would cost each pytest of a page seconds.
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "topics.testing.pytest_plugin"}
        config = {"TOPICS_URL": self._server.url, "XDG_CONFIG_HOME": str(self._folder / "config")}
        # A reader's terminal shows each line at once, a pipe does not.
        return {**kept, **plugins, **config, "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, page: str) -> None:
        parts = blocks(page)
        for number, block in enumerate(parts):
            if ON_SPARK.search(block.text) and not self._with_spark:
                continue
            if block.saved_as is not None:
                file = self._folder / block.saved_as
                file.write_text(self._ours(block.text), "utf-8")
                if block.text.startswith("#!"):
                    file.chmod(0o755)
                self.ran += 1
            elif block.kind == "console":
                for example in examples(f"```console\n{block.text}```\n"):
                    self._do(example.command, example.output)
            elif block.kind == "python":
                follower = parts[number + 1] if number + 1 < len(parts) else None
                is_shown = follower is not None and follower.kind == "text" and len(follower.before.split()) < 12
                self._do_program(block.text, follower.text.strip() if follower is not None and is_shown else None)

    def _do(self, command: str, shown: str) -> None:
        command = self._ours(command)
        if re.match(r"pip install |topics serve *&?$", command):
            return
        self.ran += 1
        lines = shown.splitlines()
        if command.startswith("pkill -9 "):
            self._server.kill()
            self._server.start()
        elif FOR_PEOPLE.match(command):
            self._compare_on_terminal(command, lines)
        elif command.endswith("&"):
            self._begin(command.removesuffix("&"))
        elif lines[-1:] == ["^C"]:
            self._compare(command, lines[:-1], self._followed(command, len(lines) - 1))
        else:
            self._compare(command, lines, output_of(command, patience_s=PATIENCE_S))

    def _do_program(self, program: str, shown: str | None) -> None:
        self.ran += 1
        name = self._folder / "program.py"
        name.write_text(self._ours(program), "utf-8")
        if "Ctrl+C" in program:
            assert shown, "a program that goes on is compared with what it prints first"
            lines = shown.splitlines()
            self._compare(program, lines, self._followed("python program.py", len(lines)))
            return
        done = subprocess.run(
            [sys.executable, name], cwd=self._folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode != 0:
            self.wrong.append(f"{program}\n{done.stderr}")
        elif shown is not None:
            self._compare(program, shown.splitlines(), done.stdout)

    def _begin(self, command: str) -> None:
        """Starts a command beside the others. It ends with the page."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self._folder,
            env={name: value for name, value in self.environ().items() if name != "TOPICS_URL"}
            | {"TOPICS_STREAMS_PORT": "off"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._jobs.enter_context(process)
        self._jobs.callback(process.kill)
        assert process.stdout is not None
        if "topics serve" in command and not any("listens on" in line for line in iter(process.stdout.readline, "")):
            self.wrong.append(f"$ {command}\nended")

    def _followed(self, command: str, count: int) -> str:
        """The first lines of a command that goes on until it is interrupted."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            assert process.stdout is not None
            try:
                lines = [process.stdout.readline() for _ in range(count)]
            finally:
                process.send_signal(signal.SIGINT)
        return "".join(lines)

    def _compare_on_terminal(self, command: str, shown: list[str]) -> None:
        with on_terminal(command, self._folder, os.environ) as lines:
            printed = "".join(islice(lines, len(shown)) if command.startswith("topics tail") else lines)
        self._compare(command, list(map(without_times, shown)), without_times(printed))

    def _compare(self, what: str, shown: list[str], printed: str) -> None:
        printed = self._theirs(printed).strip()
        expected = [".*?".join(map(re.escape, line.split("…"))) for line in shown]
        # Messages and data may come in either order: they are two streams.
        if not re.fullmatch("\n".join(expected).strip(), printed, re.DOTALL) and not sorted_match(expected, printed):
            self.wrong.append(f"$ {what}\n{printed}")

    def _ours(self, text: str) -> str:
        """With the ports of this run."""
        return PORT.sub(lambda match: match[1] + self._port(match[2]), text)

    def _port(self, port: str) -> str:
        if port not in self._ports:
            self._ports[port] = str(free_port())
        return self._ports[port]

    def _theirs(self, text: str) -> str:
        for port, real in self._ports.items():
            text = text.replace(f":{real}", f":{port}")
        return text.replace(str(self._folder), "/home/ada/topics")
