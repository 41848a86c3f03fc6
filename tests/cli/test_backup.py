"""`topics backup` and `topics restore` on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import topics
from topics.cli.main import app


def run(*arguments: object, **environ: str) -> Result:
    return CliRunner(env={"TOPICS_URL": None, "TOPICS_KEY": None} | environ).invoke(app, [str(a) for a in arguments])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    with topics.open(data) as log:
        log.append("orders", [topics.NewRecord({"n": n}, tag=f"t{n % 2}") for n in range(10)])
        log.delete("orders", tag="t1")
    return data


def test_a_directory_goes_into_a_backup_and_comes_back(directory: Path, tmp_path: Path) -> None:
    place, restored = tmp_path / "backup", tmp_path / "restored"
    result = run("backup", place, "--data-dir", directory)
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith("backup: point 20")
    assert ": 1 topics, 5 records, " in first
    assert "1 new files with" in second
    assert "1 files with" in second
    again = run("backup", "take", place, "--data-dir", directory, "--json")
    assert json.loads(again.stdout)["new_files"] == 0
    listed = run("backup", "ls", place).stdout.splitlines()
    assert listed[0].split() == ["TIME", "TOPICS", "RECORDS", "BYTES", "NEW", "BYTES"]
    assert [row.split()[1:3] for row in listed[1:]] == [["1", "5"], ["1", "5"]]
    rows = [json.loads(line) for line in run("backup", "ls", place, "--json").stdout.splitlines()]
    assert [row["topics"] for row in rows] == [1, 1]
    checked = run("backup", "verify", place)
    assert checked.stdout.startswith("verify: 2 points, 1 files, ")
    assert checked.stdout.endswith(" bytes: no damage\n")
    done = run("restore", place, "--data-dir", restored)
    assert done.stdout.startswith("restore: 1 topics, 5 records of point 20")
    assert run("restore", place, "--data-dir", restored).stdout == (
        f"restore: {restored} has this restore already; nothing was changed\n"
    )
    assert run("verify", restored).exit_code == 0
    with topics.open(restored) as log:
        assert [record.seq for record in log.read("orders").records] == [1, 3, 5, 7, 9]
    cut = tmp_path / "cut"
    options = ("--topic", "orders", "--until-seq", "orders=4", "--until", rows[0]["time"])
    assert run("restore", place, "--data-dir", cut, *options).exit_code == 0
    with topics.open(cut) as log:
        assert [record.seq for record in log.read("orders").records] == [1, 3]


def test_damage_is_named_with_exit_code_2(directory: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    assert run("backup", place, "--data-dir", directory).exit_code == 0
    (file,) = (place / "files").rglob("*.data")
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    result = run("backup", "verify", place)
    assert result.exit_code == 2
    assert result.stdout.startswith(f"damage: {file}: damaged at offset 0: expected XXH3-64 ")
    assert result.stdout.endswith(": 1 damaged objects\n")
    assert json.loads(run("backup", "verify", place, "--json").stdout.splitlines()[-1])["damage"] == 1
    result = run("restore", place, "--data-dir", tmp_path / "restored")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"topics: the backup is damaged: {file}: damaged at offset 0: ")
    assert not (tmp_path / "restored").exists()
    # These records are in no sealed segment. The next run compares them, and puts the file again.
    assert json.loads(run("backup", place, "--data-dir", directory, "--json").stdout)["new_files"] == 1
    assert run("backup", "verify", place).exit_code == 0


def test_wrong_input_says_what_to_do(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICS_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = tmp_path / "backup"
    assert run("backup", place, "--data-dir", directory).exit_code == 0
    for arguments, message in (
        (("backup", place), "say what to back up: --server URL for a running server, or --data-dir DIR for a closed "),
        (("backup", place, "--data-dir", tmp_path / "none"), "/none is no data directory: it has no STORE\n"),
        (("backup", "ls", tmp_path / "none"), "/none has no backup: there is no object BACKUP\n"),
        (("backup", directory, "--data-dir", directory), "data is not empty, and it is no backup: it has "),
        (("restore", place, "--data-dir", directory), "a restore never writes over data; give a directory that "),
        (("restore", place, "--data-dir", tmp_path / "r", "--until", "noon"), '"noon" is no time: write '),
        (
            ("restore", place, "--data-dir", tmp_path / "r", "--until-seq", "x"),
            "--until-seq x: write TOPIC=N, such as ",
        ),
        (("restore", place, "--data-dir", tmp_path / "r", "--topic", "x"), 'topic "x" does not exist'),
    ):
        result = run(*arguments)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert message in result.stderr
    assert "--until-seq" in run("restore", "--help").stdout
    assert "topics backup ls ./backup" in run("backup").stdout
