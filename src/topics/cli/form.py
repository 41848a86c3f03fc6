"""Which form of the package runs: what of it is compiled."""

import os
from importlib.machinery import EXTENSION_SUFFIXES

# An editable install compiles the two kernels and nothing else: see setup.py.
_KERNELS = 2


def running_form(folder: str | None = None) -> str:
    """For people: `compiled, 32 modules`, `sources with compiled kernels` or `plain Python`. Of this package, or of the
    one in a folder."""
    package = f"{folder}/topics" if folder is not None else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    suffixes = tuple(EXTENSION_SUFFIXES)
    count = sum(name.endswith(suffixes) for _, _, names in os.walk(package) for name in names)
    if count > _KERNELS:
        return f"compiled, {count} modules"
    return "sources with compiled kernels" if count else "plain Python"
