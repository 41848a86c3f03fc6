"""Which form of the package runs: the hot modules are compiled, or everything is plain Python."""

import os
from importlib.machinery import EXTENSION_SUFFIXES


def running_form() -> str:
    """For people: `compiled, 102 modules` or `plain Python`."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    suffixes = tuple(EXTENSION_SUFFIXES)
    count = sum(name.endswith(suffixes) for _, _, names in os.walk(package) for name in names)
    return f"compiled, {count} modules" if count else "plain Python"
