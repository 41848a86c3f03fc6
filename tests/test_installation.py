"""What a user of the package index gets: a small package that says what to install for the rest of it."""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

import topics
from tests.cli.every_command import AT_A_SERVER, Case, hint
from tests.docs.page_runner import blocks
from tests.installed import BUILD_INPUTS, commands_path, copy_of
from topics.cli.form import running_form
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


# What the other tests of commands leave out, because it starts servers and takes seconds.
BY_ITSELF: Final = [Case("demo --seconds 2", "0 missing"), Case("bench append --seconds 0.1", "records/s")]


# Runs each command of a list in a fork, which is three times as fast as a new process for each.
RUN_COMMANDS: Final = """
import json, os, sys, tempfile
import topics.cli.main, topics.client.sync.client
from topics.cli.entry import main

ended = []
for words in json.load(sys.stdin):
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = ["topics", *words]
            main()
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        ended.append((code, output.read().decode()))
json.dump(ended, sys.stdout)
"""


def test_every_command_works_or_names_the_extra_that_it_needs(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"id":1}\n')
    (tmp_path / "three.jsonl").write_text('{"id":1}\n{"id":2}\n{"id":3}\n')
    (tmp_path / "state.messages").write_bytes(b"")
    wrong = []
    with ServerProcess() as server:
        environ = {"PATH": f"{installation.bin}:{os.defpath}", "HOME": str(tmp_path), "TOPICS_URL": server.url}
        cases = [*AT_A_SERVER, *BY_ITSELF]
        done = subprocess.run(
            [str(installation.bin / "python"), "-I", "-c", RUN_COMMANDS],
            input=json.dumps([shlex.split(case.command.format(url=server.url)) for case in cases]),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for case, (code, output) in zip(cases, json.loads(done.stdout), strict=True):
            told = case.told if case.extra is None else hint(case.extra)
            assert told is not None
            if "Traceback" in output or not re.search(told, output):
                wrong.append(f"$ topics {case.command}\n{output[-600:]}")
            elif case.extra is None and code != case.code:
                wrong.append(f"$ topics {case.command}\nends with exit code {code}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_the_hint_of_a_missing_extra_works(installation: Installation) -> None:
    refused = installation.python("import topics.streams")
    hint = "pip install 'topics-log[streams]'"
    assert refused.returncode == 1
    assert hint in refused.stderr
    installation.install(hint, {"PATH": f"{installation.bin}:{os.defpath}"})
    assert installation.python("import topics.streams").returncode == 0
