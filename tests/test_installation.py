"""What a user of the package index gets: a small package that says what to install for the rest of it."""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

import topics
from tests.docs.page_runner import blocks
from tests.installed import BUILD_INPUTS, commands_path, copy_of
from topics.cli.form import running_form
from topics.cli.main import app
from topics.testing.server_process import ServerProcess

ROOT: Final = Path(__file__).resolve().parents[1]
# Without the package that is tested, which PYTHONPATH names.
CLEAN_ENVIRON: Final = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final = set(PROJECT["optional-dependencies"])
HINT: Final = re.compile(r"\btopics(?:-log)?\[([a-z0-9, ]+)\]")


def written() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]


def hints() -> list[tuple[str, str, list[str]]]:
    """Each mention of an extra: the file, the whole text, the names of the extras."""
    return [
        (str(path.relative_to(ROOT)), found[0], found[1].replace(" ", "").split(","))
        for path in written()
        for found in HINT.finditer(path.read_text())
    ]


def test_every_hint_names_this_project_and_extras_that_it_has() -> None:
    wrong = [hint for hint in hints() if set(hint[2]) & EXTRAS and not hint[1].startswith(f"{PROJECT['name']}[")]
    assert wrong == []
    unknown = [hint for hint in hints() if hint[1].startswith(f"{PROJECT['name']}[") and set(hint[2]) - EXTRAS]
    assert unknown == []
    assert len(hints()) >= 10


def test_the_extra_all_has_every_other_extra() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"{PROJECT['name']}[{','.join(sorted(EXTRAS - {'all'}))}]"


# As PYTHONVERBOSE prints it.
SOURCE_OF_SERVE: Final = re.compile(r"(/[^\s']*/topics)/server/(?:__pycache__/)?serve\.")


def test_the_tests_and_the_examples_of_the_docs_run_the_installed_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process, the commands of a shell, and the servers that tests start. A developer may run the sources."""
    package = Path(topics.__file__).parent
    if package == ROOT / "src" / "topics" and os.environ.get("CI") != "true":
        pytest.skip("the tests run the sources; `make test` builds the wheel and runs that")
    assert package in {ROOT / "build" / "compiled" / "topics", ROOT / "build" / "plain" / "topics"}
    distribution = importlib.metadata.distribution(PROJECT["name"])
    assert distribution.version == topics.__version__
    # A wheel, not a link to the sources.
    assert json.loads(distribution.read_text("direct_url.json") or "{}")["url"].endswith(".whl")
    assert "topics/server/serve.py" in {str(path) for path in distribution.files or ()}
    monkeypatch.setenv("PATH", commands_path())
    monkeypatch.chdir(tmp_path)
    shell = ["/bin/sh", "-c", "topics version; python -c 'import topics; print(topics.__file__)'"]
    assert run(shell).splitlines() == [f"topics {topics.__version__} ({running_form()})", topics.__file__]
    with ServerProcess(environ={"PYTHONVERBOSE": "1"}) as server:
        assert set(SOURCE_OF_SERVE.findall(server.output)) == {str(package)}


class Installation:
    """What the install block of README.md makes of a copy of this tree, in plain Python: compiling takes a minute."""

    def __init__(self, folder: Path) -> None:
        self._clone = copy_of(BUILD_INPUTS, folder)
        self.bin = self._clone / ".venv" / "bin"
        (block,) = [block for block in blocks((ROOT / "README.md").read_text("utf-8")) if "pip install ." in block.text]
        self.install(block.text, {"PATH": commands_path(), "TOPICS_COMPILE": "0"})

    def install(self, commands: str, environ: dict[str, str]) -> None:
        """Skips the test where the package index cannot be reached."""
        done = subprocess.run(
            ["/bin/sh", "-ec", commands],
            cwd=self._clone,
            env=CLEAN_ENVIRON | environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode != 0 and "No matching distribution" in done.stderr:
            pytest.skip("the package index cannot be reached")
        assert done.returncode == 0, done.stderr

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "python"), "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
        )

    def packages(self) -> set[str]:
        listed = run([str(self.bin / "python"), "-m", "pip", "list", "--format=freeze"], env=CLEAN_ENVIRON)
        return {line.partition("==")[0].lower() for line in listed.splitlines()}


def run(command: list[str], *, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installation"))


WRITE_AND_READ: Final = """
import urllib.request
from topics.testing.server_process import ServerProcess

with ServerProcess() as server:
    request = urllib.request.Request(
        server.url + "/v0/topics/orders", b'{"records":[{"data":7}]}', {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()
    server.kill()
    server.start()
    request = urllib.request.Request(
        server.url + "/v0/topics/orders/diff", b'{"from_seq":0}', {"Content-Type": "application/json"}
    )
    print(urllib.request.urlopen(request).read().decode())
    assert b"/console/app.js" in urllib.request.urlopen(server.url).read()
    assert b"import" in urllib.request.urlopen(server.url + "/console/app.js").read()
"""


def test_a_base_installation_serves_and_is_small(installation: Installation) -> None:
    assert installation.packages().isdisjoint({"numpy", "pandas", "pyarrow", "pyspark", "obstore", "cryptography"})
    done = installation.python(WRITE_AND_READ)
    assert done.returncode == 0, done.stderr
    assert '"data":7' in done.stdout


def extra(name: str) -> str:
    return rf"pip install 'topics-log\[{name}\]'"


# Each command with arguments that do something, and what it prints.
COMMANDS: Final = [
    ("config show", "port "),
    ("config check", "no problem found"),
    ("config reference", "### Network"),
    ("write orders one.jsonl", "1 record"),
    ("topic ls", "orders"),
    ("topic show orders", "head_seq +1"),
    ("topic create jobs --queue --dead-letter dead --max-deliveries 1", "is created"),
    ("topic set orders --cap-records 10", "-> 10"),
    ("topic delete orders --before-seq 1 --yes", "0 records"),
    ("import redis://127.0.0.1:1/s --topic copy", extra("redis")),
    ("import nats://127.0.0.1:1/s --topic copy", extra("nats")),
    ("import kafka://127.0.0.1:1/t --topic copy", extra("kafka")),
    ("read orders", '"id":1'),
    ("tail orders --no-follow", '"id":1'),
    ("write jobs three.jsonl", "3 records"),
    ("queue ls", "jobs"),
    ("queue show jobs", "ready"),
    ("queue claim jobs -n 2", "leased"),
    ("queue extend jobs 1 --lease 5s", "DEADLINE"),
    ("queue ack jobs 1", "1 job acked"),
    ("queue nack jobs 2", "1 job"),
    ("work jobs -n 1 -- cat", '"id":3'),
    ("write jobs one.jsonl", "1 record"),
    ("queue work jobs -n 1 -- cat", '"id":1'),
    ("queue redrive jobs", "moved"),
    ("router create copies orders copied", "is created"),
    ("router ls", "copies"),
    ("router show copies", "copied"),
    ("router rm copies --yes", "is removed"),
    ("group move orders readers start", "readers"),
    ("group ls orders", "readers"),
    ("group show orders readers", "lag"),
    ("group commit orders readers 1", "1"),
    ("group rm orders readers --yes", "is removed"),
    ("stream ls", "topics serve --streams"),
    ("stream show s", "topics serve --streams"),
    ("stream read s/t", "topics serve --streams"),
    ("stream tail s/t", "topics serve --streams"),
    ("backup take backups --server {url}", "verified"),
    ("backup ls backups", "RECORDS"),
    ("backup verify backups", "no damage"),
    ("restore backups --data-dir restored", "records of point"),
    ("backup take s3://bucket/prefix --server {url}", extra("s3")),
    ("check", "OK"),
    ("top -n 1", "orders"),
    ("errors", "topic_full"),
    ("context add local --server {url}", "local"),
    ("context use local", "local"),
    ("context ls", "local"),
    ("context show", "server"),
    ("context test", "answers in"),
    ("context rm local", "local"),
    ("generate config", "#port = 4000"),
    ("generate systemd", "ExecStart="),
    ("generate dockerfile", "ENTRYPOINT"),
    ("generate compose", "services:"),
    ("generate grafana", "panels"),
    ("generate alerts", "groups:"),
    ("generate man", "SEE ALSO"),
    ("demo --seconds 2", "0 missing"),
    ("demo --spark", extra("spark")),
    ("bench append --seconds 0.1", "records/s"),
    ("bench spark --seconds 0.1", extra("spark")),
    ("version", topics.__version__),
    ("verify restored", "no damage"),
    ("verify restored --cold s3://bucket/prefix", extra("s3")),
    ("doctor restored", "no damage"),
    ("topic rm copied --yes", "is removed"),
    ("dump restored/STORE", "no file of a data directory"),
    ("dump state.messages", extra("streams")),
    ("serve --data-dir other --streams", extra("streams")),
    ("serve --data-dir other --cold-dir s3://bucket/prefix", extra("s3")),
    ("pipeline doctor", extra("spark")),
    ("pipeline verify", extra("spark")),
    ("pipeline stats", extra("spark")),
    ("pipeline import a.parquet --topic orders", extra("spark")),
    ("pipeline replay orders --to again", extra("spark")),
    ("pipeline archive lake", extra("spark")),
    ("pipeline optimize lake", extra("spark")),
    ("pipeline vacuum lake", extra("spark")),
    ("pipeline convert-lake lake", extra("spark")),
    ("pipeline restore --topic orders --to again --lake lake", extra("spark")),
    ("pipeline rebuild-index", extra("spark")),
    ("pipeline compact --purge", extra("spark")),
    ("pipeline reencode streams again", extra("spark")),
    ("pipeline run pipeline.yml", extra("spark")),
    ("pipeline sql 'SELECT 1'", extra("spark")),
    ("pipeline package out", extra("spark")),
]


def test_every_command_works_or_names_the_extra_that_it_needs(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"id":1}\n')
    (tmp_path / "three.jsonl").write_text('{"id":1}\n{"id":2}\n{"id":3}\n')
    (tmp_path / "state.messages").write_bytes(b"")
    wrong = []
    with ServerProcess() as server:
        environ = {"PATH": f"{installation.bin}:{os.defpath}", "HOME": str(tmp_path), "TOPICS_URL": server.url}
        for command, told in COMMANDS:
            words = shlex.split(command.format(url=server.url))
            done = subprocess.run(
                ["topics", *words],
                cwd=tmp_path,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            if "Traceback" in done.stdout or not re.search(told, done.stdout):
                wrong.append(f"$ topics {command}\n{done.stdout[-600:]}")
    assert not wrong, "\n".join(wrong)


def test_the_list_has_every_command() -> None:
    words = [shlex.split(command)[:2] for command, _ in COMMANDS]
    listed = {tuple(pair) for pair in words} | {(pair[0],) for pair in words}
    assert [path for path in leaves(typer.main.get_command(app)) if path not in listed and path != ("serve",)] == []


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "list_commands"):
        yield path
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*path, name))


@pytest.mark.slow
def test_the_hint_of_a_missing_extra_works(installation: Installation) -> None:
    refused = installation.python("import topics.streams")
    hint = "pip install 'topics-log[streams]'"
    assert refused.returncode == 1
    assert hint in refused.stderr
    installation.install(hint, {"PATH": f"{installation.bin}:{os.defpath}"})
    assert installation.python("import topics.streams").returncode == 0
