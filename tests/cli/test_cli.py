"""The command `topics`: what it prints where, and its exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import topics
import topics.streams
from topics.cli.form import running_form
from topics.cli.late import loaded
from topics.cli.main import LATE, app
from topics.cli.output import escaped
from topics.storage.fs import RealFs
from topics.storage.inspect.dump import dump

SETTINGS = topics.EngineSettings(wal_shards=1, wal_file_bytes=65_536, segment_events_max=10)


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def start(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
    """As a process of its own."""
    command = [sys.executable, "-m", "topics.cli.entry", *(str(arg) for arg in args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """25 records of `orders`: two sealed segments and an active one; the log is checkpointed."""
    path = tmp_path / "data"
    with topics.open(path, settings=SETTINGS) as log:
        log.create("orders", durability="fsync")
        log.append("orders", [{"number": number} for number in range(1, 26)])
    return path


@pytest.fixture
def segment(directory: Path) -> Path:
    return directory / "topics" / "00000001" / "seg-0000000000000011.data"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def hurt_record(path: Path, seq: int) -> int:
    """Flips a byte of a record's payload; where its frame begins."""
    offset: int = next(row["offset"] for row in dump(RealFs(), str(path)) if row.get("seq") == seq)
    flip(path, offset + 40)
    return offset


def hurt_log(directory: Path) -> int:
    """Adds records to the log, kills it, flips a byte that a sync mark covers; where that frame begins."""
    script = (
        "import sys, os, topics\n"
        f"log = topics.open({str(directory)!r}, settings=topics.EngineSettings(wal_shards=1, wal_file_bytes=65536))\n"
        "for number in range(26, 31): log.append('orders', [{'number': number}])\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    wal = max((directory / "wal").glob("*.log"))
    return hurt_record(wal, 27)


# Help and usage.


def test_without_arguments_it_shows_five_examples() -> None:
    result = run()
    assert result.exit_code == 0
    assert len(re.findall(r"^  .*\btopics [a-z]+", result.stdout, re.MULTILINE)) == 5
    assert result.stdout.endswith("`topics --help` lists all commands, `topics COMMAND --help` explains one.\n")


def test_the_help_lists_every_command_without_importing_it() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert set(re.findall(r"^  ([a-z]+)  ", result.stdout.partition("Commands:")[2], re.MULTILINE)) >= {*LATE, "verify"}


def test_every_command_for_a_server_has_an_example_in_its_help() -> None:
    for name, late in LATE.items():
        if late.module.startswith("topics.cli.remote."):
            verbs = getattr(loaded(late.module), "commands", {}) or [""]
            for verb in verbs:
                words = [name, verb] if verb else [name]
                assert re.search(rf"Examples?:\n.*topics {' '.join(words)}", run(*words, "--help").stdout, re.DOTALL)


@pytest.mark.parametrize("command", ["verify", "doctor", "dump", "bench", "version"])
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n +topics {command}", result.stdout)


def test_the_version_is_printed_either_way() -> None:
    assert run("version").stdout == run("--version").stdout == f"topics {topics.__version__} ({running_form()})\n"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("verify",), "topics: missing argument 'DIR'; see `topics verify --help`\n"),
        (("nonsense",), "topics: no such command 'nonsense'; see `topics --help`\n"),
        (("verify", "/no/such/place"), "topics: /no/such/place: there is no such directory\n"),
        (("dump", "/no/such/file.log"), "topics: /no/such/file.log: No such file or directory\n"),
        (("verify", "/tmp", "--cold", "ftp://x"), None),
    ],
)
def test_errors_are_one_sentence_on_stderr_and_exit_code_1(args: tuple[str, ...], text: str | None) -> None:
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("topics: ")
    assert result.stderr.count("\n") == 1
    if text is not None:
        assert result.stderr == text


@pytest.mark.parametrize(
    ("args", "late"),
    [
        (["--help"], {"msgspec", "topics.server.settings_schema"}),
        (["topic", "--help"], set()),
        (["tail", "--help"], set()),
        (["work", "--help"], set()),
    ],
)
def test_help_starts_without_what_only_the_command_needs(args: list[str], late: set[str]) -> None:
    late = late | {
        "asyncio",
        "obstore",
        "rich",
        "ssl",
        "xxhash",
        "topics.client.sync",
        "topics.engine",
        "topics.storage",
    }
    script = (
        "import sys\n"
        "from topics.cli.main import app\n"
        f"try: app({args})\n"
        "except SystemExit: pass\n"
        f"print(sorted({late} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"


# verify.


def test_verify_of_a_sound_directory_exits_0_with_a_summary(directory: Path) -> None:
    result = run("verify", directory)
    assert result.exit_code == 0
    summary = r"verify: \d+ files, \d+ frames, 25 records, \d+ bytes in \d+\.\d\d s: no damage, 0 warnings, \d notes\n"
    assert re.search(rf"^{summary}", result.stdout, re.MULTILINE)
    assert result.stderr == ""


def test_verify_names_file_offset_and_seq_of_a_flipped_byte_and_exits_2(directory: Path, segment: Path) -> None:
    offset = hurt_record(segment, 14)
    done = start("verify", directory)
    assert done.returncode == 2
    assert done.stderr == ""
    assert re.match(
        rf"damage: topics/00000001/seg-0000000000000011\.data offset {offset} seq 14: "
        r'checksum does not agree: stored [0-9a-f]{16}, computed [0-9a-f]{16} \[topic "orders"\]\n',
        done.stdout,
    )
    assert "1 damaged places" in done.stdout.splitlines()[-1]
    with topics.open(directory, settings=SETTINGS) as log:
        assert [record.seq for record in log.read("orders", 10, limit=3).records] == [11, 12, 13]
        assert [record.seq for record in log.read_all("orders", 14)] == list(range(15, 26))
        with pytest.raises(topics.TopicsError, match="record 14 of topic"):
            log.read("orders", 13, limit=1)


@pytest.mark.parametrize("command", ["verify", "doctor"])
@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_log_file_that_current_names_and_that_is_lost_is_damage(directory: Path, command: str, how: str) -> None:
    path = directory / "wal" / (directory / "wal" / "CURRENT").read_text()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(b"")
    result = run(command, directory)
    assert result.exit_code == 2
    assert f"wal/{path.name}" in result.stdout
    with pytest.raises(topics.TopicsError, match=path.name):
        topics.open(directory, settings=SETTINGS)


def test_verify_prints_json_lines_when_asked(directory: Path, segment: Path) -> None:
    offset = hurt_record(segment, 14)
    result = run("verify", directory, "--json")
    assert result.exit_code == 2
    finding, *_, summary = (json.loads(line) for line in result.stdout.splitlines())
    assert (finding["kind"], finding["severity"], finding["offset"], finding["seq"]) == (
        "finding",
        "damage",
        offset,
        14,
    )
    assert (summary["kind"], summary["damage"]) == ("summary", 1)


def test_verify_of_a_directory_in_use_still_checks_what_is_sealed(directory: Path, segment: Path) -> None:
    with topics.open(directory, settings=SETTINGS) as log:
        log.append("orders", [1])
        assert run("verify", directory).exit_code == 0
        hurt_record(segment, 14)
        result = run("verify", directory)
    assert result.exit_code == 2
    assert result.stdout.startswith(f"note: .topics.lock: process {os.getpid()} on ")


def test_a_cold_tier_can_be_named(directory: Path, tmp_path: Path) -> None:
    result = run("verify", directory, "--cold", tmp_path / "cold")
    assert result.exit_code == 2
    assert "STORE: missing: this is not the tier it was; is it mounted?" in result.stdout


# doctor.


def test_doctor_only_advises_until_it_is_told_to_repair_b04(directory: Path) -> None:
    offset = hurt_log(directory)
    with pytest.raises(topics.TopicsError, match=f"damaged at offset {offset}"):
        topics.open(directory, settings=SETTINGS)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    told = start("doctor", directory)
    assert told.returncode == 2
    assert f"offset {offset}: frame " in told.stdout
    assert "`--repair` would do this:\n" in told.stdout
    assert '- lost: seqs 27 to 30 of topic "orders"; readers get a tombstone' in told.stdout
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    done = start("doctor", directory, "--repair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repair: copy wal/" in done.stdout
    assert done.stdout.splitlines()[-1] == "repair: done, no damage is left"
    with topics.open(directory, settings=SETTINGS) as log:
        assert [record.seq for record in log.read("orders", limit=1000).records] == list(range(1, 27))
        tombstone = log.read("orders", 26).tombstone
        assert tombstone is not None
        assert (tombstone.gap_from, tombstone.gap_to) == (27, 30)
    assert run("verify", directory).exit_code == 0


def test_doctor_gives_missing_segments_up_only_with_accept_loss(directory: Path, segment: Path) -> None:
    segment.unlink()
    refused = run("doctor", directory, "--repair", "--yes")
    assert refused.exit_code == 2
    assert "not repaired: topics/00000001/seg-0000000000000011.data is missing (seqs 11 to 20" in refused.stdout
    accepted = run("doctor", directory, "--repair", "--accept-loss", "--yes")
    assert accepted.exit_code == 0
    with topics.open(directory, settings=SETTINGS) as log:
        items = list(log.read_all("orders"))
        assert [item.seq for item in items if isinstance(item, topics.Record)] == [*range(1, 11), *range(21, 26)]
        assert [(item.gap_from, item.gap_to) for item in items if isinstance(item, topics.Tombstone)] == [(11, 20)]


def test_doctor_of_a_sound_directory_has_nothing_to_repair(directory: Path) -> None:
    assert run("doctor", directory).exit_code == 0
    result = run("doctor", directory, "--repair", "--yes")
    assert result.exit_code == 0
    assert result.stderr == "topics: there is nothing to repair\n"


def test_doctor_offers_no_repair_under_a_running_server(directory: Path, segment: Path) -> None:
    with topics.open(directory, settings=SETTINGS):
        segment.with_suffix(".idx").unlink()
        hurt_record(segment, 14)
        told = run("doctor", directory)
        refused = run("doctor", directory, "--repair", "--yes")
    assert told.exit_code == 2
    assert "the index is missing" in told.stdout
    assert "would do this" not in told.stdout
    assert told.stderr == "topics: stop the server, and `topics doctor` says what a repair would do\n"
    assert refused.exit_code == 1
    assert refused.stderr == f"topics: {directory} is in use; stop the server first\n"
    assert not segment.with_suffix(".idx").exists()


def test_doctor_does_not_repair_under_a_running_server(directory: Path, segment: Path) -> None:
    segment.with_suffix(".idx").write_bytes(b"")
    (directory / "wal" / "CURRENT").write_bytes(b"")
    with topics.open(directory, settings=SETTINGS):
        (directory / "wal" / "CURRENT").write_bytes(b"")
        result = run("doctor", directory, "--repair", "--yes")
    assert result.exit_code == 1
    assert result.stderr == f"topics: {directory} is in use; stop the server first\n"


# Streams.


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """A directory of streams with five messages, and half a message after them."""
    path = tmp_path / "local_data"
    with topics.streams.open(path) as engine:
        engine.create_stream("orders")
        engine.create_topic("orders", "events")
        engine.send("orders", "events", [b'{"n":1}'] * 5)
    (log,) = path.rglob("*.log")
    log.write_bytes(log.read_bytes() + b"half a message")
    return path


def test_streams_are_verified_and_repaired_alone_and_in_a_directory_of_topics(directory: Path, streams: Path) -> None:
    inside = directory / "streams"
    streams.rename(inside)
    for where, prefix in ((inside, ""), (directory, "streams/")):
        told = run("doctor", where)
        assert f"{prefix}streams/0/topics/0/partitions/0/{0:020d}.log offset 355: 14 bytes are not in" in told.stdout
        where_said = f"in {prefix}: " if prefix else ""
        assert f"- {where_said}make the indexes of streams/0/topics/0/partitions/0 fit its logs" in told.stdout
        assert f"{prefix}streams/0/topics/0/partitions/0/" in run("verify", where).stdout
    done = run("doctor", directory, "--repair", "--yes")
    assert done.exit_code == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "repair: done, no damage is left"
    assert "1 warnings" not in run("verify", directory).stdout
    assert [path.read_bytes() for path in inside.rglob("*.broken")] == [b"half a message"]


def test_a_server_says_that_a_directory_holds_streams_instead_of_starting_beside_them(streams: Path) -> None:
    before = sorted(streams.rglob("*"))
    refused = start("serve", "--data-dir", streams, "--port", 0)
    assert refused.returncode == 1
    assert f"{streams} is a data directory of streams: it has state.messages" in refused.stderr
    with pytest.raises(topics.TopicsError, match="is a data directory of streams"):
        topics.open(streams)
    assert sorted(streams.rglob("*")) == before


def test_dump_shows_messages_and_state_entries(streams: Path) -> None:
    (log,) = streams.rglob("*.log")
    rows = [json.loads(line) for line in run("dump", log).stdout.splitlines()]
    assert [row.get("payload") for row in rows] == [{"n": 1}] * 5 + [None]
    commands = [json.loads(line)["command"] for line in run("dump", streams / "state.messages").stdout.splitlines()]
    assert commands == ["create_user", "create_stream", "create_topic"]


# dump.


def test_dump_prints_json_lines_and_can_be_limited(segment: Path) -> None:
    result = run("dump", segment, "--limit", 2)
    assert result.exit_code == 0
    assert [json.loads(line)["data"] for line in result.stdout.splitlines()] == [{"number": 11}, {"number": 12}]
    assert all("data" not in json.loads(line) for line in run("dump", segment, "--no-data").stdout.splitlines())


def test_dump_stops_quietly_when_its_reader_goes_away(directory: Path) -> None:
    with topics.open(directory, settings=SETTINGS) as log:
        log.append("orders", ["x" * 1000] * 2000)
    segment = max((directory / "topics" / "00000001").glob("*.data"), key=lambda path: path.stat().st_size)
    command = f"{sys.executable} -m topics.cli.entry dump {segment}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; for i in 1 2 3 4 5 6 7 8; do {command}; done | head -n 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_control_characters_never_reach_the_terminal_l12(directory: Path) -> None:
    nasty = "\x1b]0;owned\x07\x9b31m\u202eab\x7f"
    with topics.open(directory, settings=SETTINGS) as log:
        log.append("nasty", [topics.NewRecord({"text": nasty}, tag="t")])
    (path,) = (directory / "topics" / "00000002").glob("*.data")
    result = run("dump", path)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", result.stdout)
    assert json.loads(result.stdout)["data"] == {"text": nasty}
    (directory / "evil\x1b[2Jname").write_bytes(b"")
    assert "note: evil\\u001b[2Jname: not one of ours; left alone\n" in run("verify", directory).stdout


def test_escaping_keeps_ordinary_text() -> None:
    assert escaped("plain, äöü, 日本\ttab") == "plain, äöü, 日本\ttab"
    assert escaped("a\nb\x00") == "a\\u000ab\\u0000"
