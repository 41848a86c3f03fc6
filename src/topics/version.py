"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    try:
        return version("topics")
    except PackageNotFoundError:
        # Run from a source tree that was never installed.
        return "0.0.0"
