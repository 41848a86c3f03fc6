"""A Spark session that can run our code, or one sentence about what it lacks.

The errors of Spark about a missing Java, another Python on the workers or a wrong pandas come late, with long stacks.
This module checks what it can before Spark starts.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Final

from topics.errors import TopicsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_INSTALL_JAVA: Final = "on Debian: sudo apt-get install openjdk-17-jre-headless"

_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


class SparkUnavailable(TopicsError):
    """Spark cannot run here; the message says what to install."""

    code = "spark_unavailable"


def session(
    app_name: str = "topics",
    *,
    master: str = "local[*]",
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A session that knows our formats: the running one of this process, or a new one.

    `remote` is the address of a Spark Connect server, such as `sc://host:15002`. Then `master` is not used.
    """
    require_packages()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        require_java()
        # Otherwise workers start the first `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        for name, value in _DEFAULTS.items():
            builder = builder.config(name, value)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def require_packages() -> None:
    """Raises `SparkUnavailable` for packages that are missing, or of versions that Spark refuses later."""
    missing = [name for name in ("pyspark", "pandas", "pyarrow", "numpy", "deltalake") if _version(name) is None]
    if missing:
        raise SparkUnavailable(f"{' and '.join(missing)} missing: pip install 'topics-log[spark]'")
    for name, least, below in (("pyspark", (4, 3), (4, 4)), ("pandas", (2, 2), (3,)), ("pyarrow", (18,), None)):
        found = _version(name)
        assert found is not None
        if found < least or (below is not None and found >= below):
            wanted = f">={_text(least)}" + (f",<{_text(below)}" if below is not None else "")
            raise SparkUnavailable(
                f"{name} {_text(found)} is installed, Spark needs {wanted}: pip install 'topics-log[spark]'"
            )


def _version(package: str) -> tuple[int, ...] | None:
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)[:3])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def require_java() -> None:
    """Raises `SparkUnavailable` when there is no Java that starts Spark."""
    java = find_java()
    modules = _modules(java)
    found = re.search(r"^java\.base@([0-9]+)", modules, re.MULTILINE)
    version = int(found[1]) if found else 0
    if version < JAVA_MIN:
        which = f"version {version}" if version else "too old, or none"
        raise SparkUnavailable(f"{java} is {which}; Spark needs a JRE {JAVA_MIN} or newer; {_INSTALL_JAVA}")
    if _VECTOR_MODULE not in modules:
        raise SparkUnavailable(
            f"{java} has no module {_VECTOR_MODULE}, without which Spark does not start; {_INSTALL_JAVA}"
        )


def find_java() -> str:
    """The Java that the scripts of Spark start: that of JAVA_HOME, or else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _modules(java: str) -> str:
    try:
        done = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        if java == "java":
            raise SparkUnavailable(
                f"there is no Java: install a JRE {JAVA_MIN} or newer, or set JAVA_HOME; {_INSTALL_JAVA}"
            ) from error
        raise SparkUnavailable(
            f"{java} cannot be started ({error.strerror}); set JAVA_HOME; {_INSTALL_JAVA}"
        ) from error
    return done.stdout
