"""The Python that runs this program: what it must be like, and how another process is started with it."""

import os
import sys

from topics.errors import StartRefused


class NoInterpreter(Exception):
    """The program knows no Python that it could start."""


def require_asserts() -> None:
    """Raises `StartRefused` in a Python that leaves out asserts. They stop the program at a bug of its own, before the
    bug reaches a file. Call it before a log is opened."""
    if not __debug__:
        raise StartRefused(
            "topics does not run in a Python that leaves out asserts, because they stop it before a bug damages a log: "
            "start Python without -O, and without the variable PYTHONOPTIMIZE"
        )


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line of a process that runs a module of this package.

    With `-P`: the current directory is not searched for modules. A file there may have the name of one, such as
    `queue.py`.

    Raises `NoInterpreter` where `sys.executable` is not a Python. In uWSGI, mod_wsgi and a frozen program it is that
    program, which must not be started a second time.
    """
    name = os.path.basename(sys.executable or "").lower()
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy", "graalpy")):
        raise NoInterpreter(f"sys.executable is not a Python interpreter: {sys.executable!r}")
    return [sys.executable, "-P", "-m", module, *arguments]
