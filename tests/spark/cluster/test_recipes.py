"""docs/spark-cluster.md and its examples: command lines as their programs parse them, files as far as they can be."""

import ast
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest
import typer
from click.testing import CliRunner

from tests.conftest import REPOSITORY

PAGE: Final = (REPOSITORY / "docs" / "spark-cluster.md").read_text("utf-8")
EXAMPLES: Final = REPOSITORY / "examples"
PROJECT: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


def commands(program: str) -> list[list[str]]:
    """What the page lets users type, as a shell splits it, from the program on."""
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    lines = [shlex.split(line.removeprefix("$ ")) for line in blocks.splitlines() if line.startswith("$ ")]
    return [words[words.index(program) :] for words in lines if program in words]


def test_spark_understands_the_command_lines(java: None) -> None:
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    launcher = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]

    def parse(words: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*launcher, "org.apache.spark.deploy.SparkSubmit", *words],
            env={**os.environ, "SPARK_HOME": home, "SPARK_SCALA_VERSION": "2.13"},
            capture_output=True,
            text=True,
            check=False,
        )

    submits = commands("spark-submit")
    masters = {words[words.index("--master") + 1].split(":")[0] for words in submits}
    assert masters == {"local[*]", "spark", "yarn", "k8s"}
    for _, *words in submits:
        done = parse(words)
        started = done.stdout.split("\0")
        assert done.returncode == 0, done.stderr
        assert [each for each in words if each in started] == words
    assert "Unrecognized option: --archivez" in parse(["--archivez", "x", "program.py"]).stderr


def test_the_program_of_the_examples_is_there_and_takes_what_it_is_given() -> None:
    tree = ast.parse((EXAMPLES / "spark" / "totals.py").read_text("utf-8"))
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    for words in commands("spark-submit"):
        program = next(place for place, word in enumerate(words) if word.endswith(".py"))
        assert Path(words[program]).name == "totals.py"
        assert len(words[program + 1 :]) == len(main.args.args)


def test_the_image_has_what_the_package_needs() -> None:
    text = (EXAMPLES / "spark" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {step for step, _ in steps} == {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "ENTRYPOINT"}
    stages = {image.split(" AS ")[1] for step, image in steps if step == "FROM" and " AS " in image}
    sources = {found[1] for step, rest in steps if step == "COPY" and (found := re.match(r"--from=(\S+)", rest))}
    assert sources == stages == {"spark"}
    for step, rest in steps:
        if step == "COPY" and not rest.startswith("--from"):
            assert (REPOSITORY / rest.split()[0]).exists()
    (image,) = (rest for step, rest in steps if step == "FROM" and rest.startswith("python:"))
    version = re.search(r"python:3\.(\d+)", image)
    assert version is not None
    assert int(version[1]) >= int(PROJECT["requires-python"].removeprefix(">=3."))
    assert f"/python3.{version[1]}/site-packages/pyspark" in text
    extras = re.search(r"topics-log\[([a-z0-9,]+)\]", text)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    assert json.loads(next(rest for step, rest in steps if step == "ENTRYPOINT")) == ["/opt/entrypoint.sh"]


def test_the_commands_of_the_dag_are_commands_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics.cli.pipeline import commands as pipeline

    text = (EXAMPLES / "airflow" / "topics_lake.py").read_text("utf-8")
    given = [
        keyword.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "bash_command" and isinstance(keyword.value, ast.Constant)
    ]
    assert len(given) == 2
    # The page has the same lines.
    assert all(f'bash_command="{command}"' in PAGE for command in given)
    # Only the job itself is left out: the command line is parsed.
    monkeypatch.setattr(pipeline, "exit_code_of", lambda call, *, debug: 0 if callable(call) and not debug else 1)
    for command in given:
        words = shlex.split(str(command))
        assert words[:2] == ["topics", "pipeline"]
        result = CliRunner().invoke(typer.main.get_command(pipeline.jobs), words[2:])
        assert result.exit_code == 0, result.output


def test_the_dlt_source_asks_the_client_for_what_it_has() -> None:
    from topics import Client
    from topics.client.answers import Page
    from topics.formats.records import Record

    tree = ast.parse((EXAMPLES / "dlt" / "topics_source.py").read_text("utf-8"))
    asked: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            asked.setdefault(node.value.id, set()).add(node.attr)
    for name, kind in (("client", Client), ("page", Page), ("each", Record)):
        assert asked[name]
        assert all(hasattr(kind, attribute) or attribute in kind.__annotations__ for attribute in asked[name])
