"""docs/embedded.md: its programs run, and its table has every operation of the HTTP interface."""

import inspect
import re
from pathlib import Path

import pytest

import topics
from tests.server.running import running

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "embedded.md").read_text("utf-8")
ROW = re.compile(r"^\| `([A-Z]+ /[^`]+)` \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([a-z_]+)`")
NOT_OFFERED = "not offered: "


def public_names(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")} - {"leave_to_parent"}


def test_every_http_operation_has_an_embedded_method_or_a_reason(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        operations = {f"{method} {path}" for method, path, _ in server.server.app.routes.endpoints()}
    rows = ROW.findall(PAGE)
    assert len(rows) == len({operation for operation, _ in rows}), "an operation is in the table twice"
    assert {operation for operation, _ in rows} == operations
    for operation, entry in rows:
        if entry.startswith(NOT_OFFERED):
            assert entry.removeprefix(NOT_OFFERED), operation
        else:
            methods = {name for name in NAME.findall(entry) if name != "wait_ms"}
            assert methods, operation
            assert methods <= public_names(topics.Log), operation


def test_every_embedded_method_is_on_the_page() -> None:
    told = set(NAME.findall(PAGE[PAGE.index("## Every operation") :]))
    assert public_names(topics.Log) - told == {"close"}
    assert public_names(topics.AsyncLog) - told == {"close"}


def test_both_logs_have_the_same_methods_with_the_same_arguments() -> None:
    assert public_names(topics.AsyncLog) - public_names(topics.Log) == {"syncs_total"}
    for name in public_names(topics.Log) - {"recovery"}:
        own, other = (inspect.signature(getattr(kind, name)) for kind in (topics.Log, topics.AsyncLog))
        assert [str(parameter) for parameter in own.parameters.values()] == [
            str(parameter) for parameter in other.parameters.values()
        ], name


def test_every_method_is_explained_with_an_example() -> None:
    for kind in (topics.Log, topics.AsyncLog):
        for name in public_names(kind) - {"append_batch", "recovery", "syncs_total"}:
            assert ">>> " in (getattr(kind, name).__doc__ or ""), f"{kind.__name__}.{name}"


def test_the_programs_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(programs) == 5
    printed = []
    for program in programs:
        exec(compile(program, "docs/embedded.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    first, worker, follower, loss, both = printed
    assert first == "[1, 2] 2 True\n"
    assert worker.count("delivery 1\n") == 2
    assert worker.endswith("Counters(ready=0, in_flight=0, dead_lettered=0)\n")
    assert follower.count("bill ") == 5
    assert follower.endswith("left to bill: 0\n")
    assert "Tombstone(gap_from=1, gap_to=1, reason='cap'" in loss
    assert """records 1 to 1 of topic "recent" are lost (cap); read on with from_seq=1\n[b'"b"', b'"c"']\n""" in loss
    assert both.startswith("jobs done: 20\n")
    assert both.count("Record(") == 5
