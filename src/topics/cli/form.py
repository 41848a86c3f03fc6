"""Which form of the package runs: the hot modules are compiled, or everything is plain Python."""

import os
from importlib.machinery import EXTENSION_SUFFIXES


def running_form(folder: str | None = None) -> str:
    """For people: `compiled, 102 modules` or `plain Python`. Of this package, or of the one in a folder."""
    package = f"{folder}/topics" if folder is not None else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    suffixes = tuple(EXTENSION_SUFFIXES)
    count = sum(name.endswith(suffixes) for _, _, names in os.walk(package) for name in names)
    return f"compiled, {count} modules" if count else "plain Python"
