"""docs/client.md: its programs run, and its table has every operation of the OpenAPI document."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

import topics
from tests.conftest import REPOSITORY
from tests.embedded.other_threads import wait_until
from tests.server.running import running

PAGE = (REPOSITORY / "docs" / "client.md").read_text("utf-8")
ROW = re.compile(r"^\| `([A-Z]+ /[^`]+)` \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([a-z_]+)`")


def public_names(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_both_clients_have_a_method_for_every_operation_of_the_openapi_document(tmp_path: Path) -> None:
    with running(tmp_path) as server, topics.Client(server.url) as client:
        paths = client.openapi()["paths"]
    methods = {"get", "put", "post", "delete"}
    operations = {f"{method.upper()} {path}" for path, item in paths.items() for method in item if method in methods}
    rows = ROW.findall(PAGE)
    assert len(rows) == len({operation for operation, _ in rows}), "an operation is in the table twice"
    assert {operation for operation, _ in rows} == operations
    for operation, entry in rows:
        names = set(NAME.findall(entry))
        assert names, operation
        assert names <= public_names(topics.Client) & public_names(topics.AsyncClient), operation


def test_every_method_of_a_client_is_on_the_page() -> None:
    told = set(NAME.findall(PAGE[PAGE.index("## Every operation") :]))
    assert public_names(topics.Client) - told == {"url"}


def stop_worker(url: str) -> None:
    """Ends the worker of the page as a terminal would, when its jobs are done."""
    with topics.Client(url) as client:
        client.create("gifs", type="queue")
        wait_until(lambda: client.state("gifs").head_seq >= 2)
        wait_until(lambda: client.state("gifs").count == 0)
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_programs_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    printed = []
    with running(tmp_path / "data") as server:
        stopper = threading.Thread(target=stop_worker, args=(server.url,))
        stopper.start()
        for program in programs:
            program = program.replace("http://localhost:4000", server.url)
            with pytest.raises(SystemExit) if "until SIGTERM" in program else nullcontext():
                exec(compile(program, "docs/client.md", "exec", dont_inherit=True), {"__name__": "__main__"})
            printed.append(capsys.readouterr().out)
        stopper.join()
    first, with_asyncio, follower, worker, inside, producer, typed, test = printed
    assert first == '[1, 2] None True\n1 None {"id":1}\n2 customer-7 {"id":2}\n'
    assert with_asyncio.startswith("Record(seq=3, ")
    assert follower.startswith("bill 1\nbill 2\nbill 3\naudit.login Record(seq=1, ")
    assert sorted(worker.splitlines()) == [f'resize {{"resize":"{name}.png"}} delivery 1' for name in "ab"]
    assert inside == "job 1\njob 2\njob 3\n"
    assert producer == "1000\n"
    assert typed == "1 9.5\n"
    assert test == ""
