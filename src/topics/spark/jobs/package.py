"""`package`: this package as one archive for `spark-submit --py-files`.

The archive has the plain modules: an archive cannot have compiled ones, and every compiled module has its source beside
it. It has none of the packages that this one needs. The same sources give the same bytes.
"""

import os
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from time import monotonic
from typing import TYPE_CHECKING, Final

from topics.spark.errors import BadOption
from topics.spark.jobs.job import Report, ReportProgress
from topics.spark.jobs.job_options import PackageOptions
from topics.storage.fs import RealFs, write_atomic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark looks for modules whose names begin with `pyspark_`.
PACKAGES: Final = ("topics", "pyspark_topics", "pyspark_topics_streams")
# The first time that the format has.
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def run(
    spark: "SparkSession | None",  # noqa: ARG001 - every job is given one.
    options: PackageOptions,
    *,
    report: ReportProgress | None = None,  # noqa: ARG001 - it is one step.
) -> Report:
    started_s = monotonic()
    if not options.out.endswith(".zip"):
        raise BadOption(f"{options.out} must end with .zip: Spark and Python know the archive by that")
    made = BytesIO()
    modules = list(_modules())
    with zipfile.ZipFile(made, "w") as archive:
        for name, module in modules:
            archive.writestr(zipfile.ZipInfo(name, _TIME), module.read_bytes(), zipfile.ZIP_DEFLATED)
    path = os.path.abspath(options.out)
    try:
        write_atomic(RealFs(), path, made.getvalue())
    except OSError as error:
        raise BadOption(f"{options.out} cannot be written: {error.strerror}") from error
    return Report(
        job="package",
        bytes=len(made.getvalue()),
        seconds=monotonic() - started_s,
        items_done=len(modules),
        detail={"archive": path},
    )


def _modules() -> Iterator[tuple[str, Traversable]]:
    """Sources, with their names in the archive."""

    def below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                yield from below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".py") or entry.name == "py.typed":
                yield f"{prefix}{entry.name}", entry

    for package in PACKAGES:
        yield from below(files(package), f"{package}/")
