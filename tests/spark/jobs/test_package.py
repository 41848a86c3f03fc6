"""The archive for `--py-files`: Python imports from it, and Spark finds the formats in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from topics.spark.errors import BadOption
from topics.spark.jobs.job_options import PackageOptions
from topics.spark.jobs.package import run

# What Spark does to find formats, and what a task imports.
PROGRAM = """
import pkgutil, sys
import topics
import topics.formats.columnar, topics.spark.data_sources, topics.spark.reading.columns, topics.spark.writing.sink
import topics.spark.jobs.archive_task, topics.spark.shaping.columns
found = sorted(module.name for module in pkgutil.iter_modules([sys.argv[1]]) if module.name.startswith("pyspark_"))
outside = [name for name, module in sys.modules.items()
           if name.split(".")[0] == "topics" and not (module.__file__ or "").startswith(sys.argv[1])]
print(found, outside)
"""


def test_python_runs_from_the_archive_which_has_plain_modules_only(tmp_path: Path) -> None:
    archive = tmp_path / "topics.zip"
    report = run(None, PackageOptions(out=str(archive)))
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        assert opened.testzip() is None
    assert len(names) == report.items_done
    assert {os.path.splitext(name)[1] for name in names} <= {".py", ".typed"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(archive)],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['pyspark_topics', 'pyspark_topics_streams'] []\n", done.stderr


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    for archive in (first, second):
        run(None, PackageOptions(out=str(archive)))
    assert first.read_bytes() == second.read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"must end with \.zip"):
        run(None, PackageOptions(out=str(tmp_path / "topics.tar")))
    with pytest.raises(BadOption, match="cannot be written"):
        run(None, PackageOptions(out=str(tmp_path / "nowhere" / "topics.zip")))
