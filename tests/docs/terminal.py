"""A terminal: programs print to it what a person sees, such as tables and progress."""

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
TIME: Final = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z")


@contextmanager
def on_terminal(command: str, folder: Path, environ: Mapping[str, str]) -> "Iterator[Iterator[str]]":
    """The lines that a shell command prints, as they come. Ctrl+C ends it at the end."""
    screen, theirs = pty.openpty()
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield _lines(screen)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait()
        os.close(screen)


def without_times(text: str) -> str:
    """Times differ from run to run, and their length does not: pages show one, so that tables stay aligned."""
    return TIME.sub("TIME", text)


def _lines(screen: int) -> Iterator[str]:
    rest = b""
    while True:
        try:
            rest += os.read(screen, 65536)
        except OSError:
            # How Linux tells that every program on the terminal has ended.
            return
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield ESCAPE.sub("", line.decode()) + "\n"
