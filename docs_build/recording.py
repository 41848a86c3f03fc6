"""The picture of README.md: a server that is killed, and a reader that goes on.

`python -m docs_build.recording` (or `make pictures`) really does it: it starts a server, writes with the command line,
follows the topic, kills the server as hard as `kill -9`, starts it again, and writes once more. What the programs print
becomes `docs/pictures/recording.svg`. Ports, rates and the form of the package differ from run to run and are left out,
so that a test can compare the picture with a new run.
"""

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple
from xml.sax.saxutils import escape

from topics.testing.server_process import ServerProcess

FILE: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "recording.svg"

Pane = Literal["server", "writer", "reader"]
TITLES: Final[dict[Pane, str]] = {"server": "the server", "writer": "a writer", "reader": "a reader"}

WRITES: Final = """for n in 1 2 3; do echo "order $n" | topics write orders; done"""
LATER_WRITES: Final = """for n in 4 5; do echo "order $n" | topics write orders; done"""
TAIL: Final = ["tail", "orders", "--format", "%s  %d"]

WIDTH: Final = 980
LINE_HEIGHT: Final = 21
STEP_S: Final = 0.4


class Shown(NamedTuple):
    """One line on one of the three terminals. What is typed begins with a dollar sign."""

    pane: Pane
    text: str


def record() -> list[Shown]:
    """Everything that was typed and printed, in order."""
    shown: list[Shown] = []
    with tempfile.TemporaryDirectory() as folder, ServerProcess(folder, port=free_port()) as server:
        shown += _start(server)
        shown += _write(WRITES, (1, 2, 3), server.url)
        with _following(server.url) as output:
            shown.append(Shown("reader", "$ topics tail orders --format '%s  %d'"))
            shown += _read(output, 3)
            server.kill()
            shown += [Shown("server", "$ kill -9 %1"), Shown("server", "[1]+  Killed                  topics serve")]
            server.start()
            shown += _start(server)
            shown += _write(LATER_WRITES, (4, 5), server.url)
            shown += _read(output, 2)
    return shown


def _start(server: ServerProcess) -> Iterator[Shown]:
    yield Shown("server", "$ topics serve &")
    (line,) = [line for line in server.output.splitlines() if " listens on " in line]
    yield Shown("server", re.sub(r" \(.*\)", "", line).replace(f":{server.port}", ":4000"))


def _write(typed: str, numbers: tuple[int, ...], url: str) -> Iterator[Shown]:
    yield Shown("writer", f"$ {typed}")
    for number in numbers:
        done = _topics("write", "orders", url=url, stdin=f"order {number}\n")
        yield Shown("writer", re.sub(r" \(.*\)", "", done.strip()))


def _topics(*arguments: str, url: str, stdin: str) -> str:
    """What a command says. Its messages go to stderr."""
    command = [sys.executable, "-m", "topics.cli.entry", *arguments]
    return subprocess.run(command, input=stdin, env=_environ(url), capture_output=True, text=True, check=True).stderr


@contextmanager
def _following(url: str) -> Iterator[IO[str]]:
    command = [sys.executable, "-m", "topics.cli.entry", *TAIL]
    with subprocess.Popen(command, env=_environ(url), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def _read(output: IO[str], count: int) -> Iterator[Shown]:
    for _ in range(count):
        yield Shown("reader", output.readline().rstrip("\n"))


def _environ(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return {**kept, "TOPICS_URL": url}


def free_port() -> int:
    """A port that stays free while its server is down: below the ports that the system gives to clients."""
    for port in random.sample(range(20_000, 32_000), 1000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("a thousand ports are in use")


# The picture.

STYLE: Final = f"""
.window{{fill:#161b22;stroke:#30363d}}.bar{{fill:#21262d}}.title{{font:13px system-ui,sans-serif;fill:#9da7b3}}
.line{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6dde6;white-space:pre}}
.typed{{fill:#7ee2a8}}.killed{{fill:#ff8e86}}
.line{{animation:appear {STEP_S}s steps(1) backwards}}
@keyframes appear{{from{{opacity:0}}to{{opacity:0}}}}
@media (prefers-reduced-motion:reduce){{.line{{animation:none}}}}
"""


def svg(shown: list[Shown]) -> str:
    """Three terminals. The lines appear in their order; where animations are off, all of them are there at once."""
    columns: dict[Pane, tuple[int, int, int]] = {
        "server": (10, 10, 570),
        "writer": (10, 190, 570),
        "reader": (590, 10, 380),
    }
    heights: dict[Pane, int] = {"server": 170, "writer": 215, "reader": 395}
    parts = []
    for pane, (x, y, width) in columns.items():
        parts.append(f'<rect class="window" x="{x}" y="{y}" width="{width}" height="{heights[pane]}" rx="8"/>')
        parts.append(f'<path class="bar" d="M{x} {y + 28} v-20 q0 -8 8 -8 h{width - 16} q8 0 8 8 v20 z"/>')
        parts.append(
            f'<text class="title" x="{x + width // 2}" y="{y + 19}" text-anchor="middle">{TITLES[pane]}</text>'
        )
    used: dict[Pane, int] = dict.fromkeys(columns, 0)
    for number, (pane, text) in enumerate(shown):
        x, y, _ = columns[pane]
        kind = " typed" if text.startswith("$ ") else " killed" if "Killed" in text else ""
        top = y + 52 + LINE_HEIGHT * used[pane]
        used[pane] += 1
        delay = f"animation-duration:{STEP_S * (number + 1):.1f}s"
        parts.append(f'<text class="line{kind}" x="{x + 14}" y="{top}" style="{delay}">{escape(text)}</text>')
    about = "A server is killed with kill -9 and started again; the reader goes on with the next record"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 415" role="img" aria-label="{about}">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def main() -> None:
    FILE.write_text(svg(record()), "utf-8")
    sys.stdout.write("docs/pictures/recording.svg\n")


if __name__ == "__main__":
    main()
