"""The version of this package. `pyproject.toml` reads it from here: to ask the installed package takes 20 ms."""

from typing import Final

VERSION: Final = "0.1.0"
