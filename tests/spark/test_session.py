"""What a session lacks is said in one sentence, before Spark is started."""

from __future__ import annotations

import stat
from importlib import metadata
from pathlib import Path

import pytest

from topics.spark.session import SparkUnavailable, find_java, require_java, require_packages, session


def install(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretends that these versions are what is installed: packages cannot be exchanged in a running process."""
    real = metadata.version

    def version(package: str) -> str:
        found = versions.get(package, "")
        if found is None:
            raise metadata.PackageNotFoundError(package)
        return found or real(package)

    monkeypatch.setattr(metadata, "version", version)


def java(folder: Path, modules: str) -> str:
    """A Java that says it has these modules; its home."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\ncat <<END\n{modules}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize(
    ("package", "version", "sentence"),
    [
        ("pyspark", None, "pyspark missing: pip install 'topics-log[spark]'"),
        ("pandas", "3.0.1", "pandas 3.0.1 is installed, Spark needs >=2.2,<3: pip install 'topics-log[spark]'"),
        ("pyspark", "3.5.2", "pyspark 3.5.2 is installed, Spark needs >=4.3,<4.4: pip install 'topics-log[spark]'"),
        ("pyarrow", "17.0.0", "pyarrow 17.0.0 is installed, Spark needs >=18: pip install 'topics-log[spark]'"),
    ],
)
def test_a_package_that_is_missing_or_of_another_version_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, sentence: str
) -> None:
    install(monkeypatch, **{package: version})
    with pytest.raises(SparkUnavailable) as caught:
        session()
    assert caught.value.message == sentence


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, pandas=None, numpy=None)
    with pytest.raises(SparkUnavailable, match=r"^pandas and numpy missing: "):
        require_packages()


def test_no_java_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"^there is no Java: install a JRE 17 or newer, or set JAVA_HOME"):
        require_java()


@pytest.mark.parametrize(
    ("modules", "sentence"),
    [
        ("java.base@11.0.2", "is version 11; Spark needs a JRE 17 or newer"),
        ("Unrecognized option: --list-modules", "is too old, or none; Spark needs a JRE 17 or newer"),
        ("java.base@17.0.1\njava.sql@17.0.1", "has no module jdk.incubator.vector, without which Spark does not start"),
    ],
)
def test_a_java_that_cannot_start_spark_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, modules: str, sentence: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path / "java", modules))
    with pytest.raises(SparkUnavailable) as caught:
        require_java()
    assert sentence in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"cannot be started .*set JAVA_HOME"):
        require_java()


def test_a_java_that_will_do_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = java(tmp_path / "java", "java.base@21.0.1\njdk.incubator.vector@21.0.1")
    monkeypatch.setenv("JAVA_HOME", home)
    require_java()
    assert find_java() == f"{home}/bin/java"
