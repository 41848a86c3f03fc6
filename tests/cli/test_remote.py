"""Commands that ask a server: pipes, signals, terminals, wrong input, and which server gets which key."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

import topics
from topics.cli.main import app
from topics.cli.remote.contexts import contexts_path
from topics.cli.remote.target import find_target
from topics.testing.server_process import ServerProcess

COMMAND: Final = [sys.executable, "-m", "topics.cli.entry"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as running:
        yield running


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_") and name != "TOPICS_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def client(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[topics.Client]:
    """A server without topics, which the commands ask."""
    monkeypatch.setenv("TOPICS_URL", server.url)
    with topics.Client(server.url) as made:
        for name in made.topics():
            made.drop(name)
        yield made


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def start(*args: object, **options: Any) -> "subprocess.Popen[bytes]":
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *map(str, args)], **streams)


def piped(data: bytes, *args: object) -> tuple[int, str, str]:
    with start(*args) as process:
        out, err = process.communicate(data, timeout=60)
    return process.returncode, out.decode(), err.decode()


# Which server, which key.


def test_a_key_of_a_context_goes_to_the_server_of_that_context_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("context", "add", "prod", "--server", "http://prod:1", "--key", "s3cret").exit_code == 0
    assert find_target()[:2] == ("http://prod:1", "s3cret")
    assert find_target(server="http://other:1")[:2] == ("http://other:1", None)
    monkeypatch.setenv("TOPICS_URL", "http://env:1")
    assert find_target()[:2] == ("http://env:1", None)
    monkeypatch.setenv("TOPICS_KEY", "of-env")
    assert find_target()[:2] == ("http://env:1", "of-env")
    assert find_target(context="prod")[:2] == ("http://prod:1", "s3cret")


def test_the_file_of_the_contexts_is_for_its_owner_and_no_output_shows_a_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    shown = [
        run("context", "add", "prod", "--server", "http://prod:1", "--key-file", tmp_path / "key"),
        *(run("context", "ls", "-o", form) for form in ("table", "json", "jsonl", "csv", "raw")),
        run("context", "show", "prod", "-o", "json"),
        run("topic", "ls", "--curl"),
        run("context", "test", "prod"),
    ]
    assert os.stat(contexts_path()).st_mode & 0o777 == 0o600
    assert "s3cret" in Path(contexts_path()).read_text()
    assert all("s3cret" not in result.stdout + result.stderr for result in shown)


@pytest.mark.parametrize(
    ("content", "args", "text"),
    [
        ("key = s3cret", ("context", "ls"), "is not TOML: mend or remove it, then add the contexts again"),
        (
            "contexts = 1",
            ("topic", "ls"),
            "has no table [contexts.NAME]: mend or remove it, then add the contexts again",
        ),
    ],
)
def test_a_broken_file_of_contexts_is_named_and_not_shown(content: str, args: tuple[str, ...], text: str) -> None:
    path = Path(contexts_path())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    result = run(*args)
    assert (result.exit_code, result.stderr) == (1, f"topics: {path} {text}\n")


def test_a_backup_is_of_the_server_of_the_context_in_use(
    client: topics.Client, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("orders", [1])
    monkeypatch.delenv("TOPICS_URL")
    run("context", "add", "ours", "--server", server.url)
    done = run("backup", tmp_path / "backup")
    assert (done.exit_code, ": 1 topics, 1 records" in done.stdout) == (0, True), done.stderr


# Wrong input.


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("topics", "no such command 'topics', did you mean 'topic'?; see `topics --help`"),
        ("topic lst", "no such command 'lst', did you mean 'ls'?; see `topics topic --help`"),
        ("read", "missing argument 'TOPIC'; see `topics read --help`"),
        ("read ordres", 'topic "ordres" does not exist; did you mean "orders"?'),
        ("read xyz", 'topic "xyz" does not exist; `topics topic ls` lists what there is'),
        ("topic rm orders", "this removes topic orders for good; there is no terminal to ask, so give --yes"),
        ("topic rm ordres --yes", 'topic "ordres" does not exist; did you mean "orders"?'),
        ("topic create orders", 'topic "orders" is there already; `topics topic set orders` changes its config'),
        (
            "topic delete orders",
            "say which records: --tag, --before-seq or both; `topics topic rm` removes a whole topic",
        ),
        (
            "topic delete orders --tag x",
            "this removes records of topic orders for good; there is no terminal to ask, so give --yes",
        ),
        ("queue extend jobs 7 --lease 1m --node w", "not leased to w: 7; `topics queue show jobs` lists the leases"),
        ("topic set orders", "say what to change, as in `topics topic set orders --ttl 7d`"),
        ("topic set orders --ttl soon", '"soon" is no span of time: write it like 250ms, 10s, 10m, 1h30m, 2d'),
        ("topic set orders --cap-bytes 1x", '"1x" is no size: write it like 500, 64k, 10M, 2G'),
        ("queue claim orders", 'topic "orders" is not a queue; `topics queue ls` lists the queues'),
        ("work orders -- cat", 'topic "orders" is not a queue; `topics queue ls` lists the queues'),
        (
            "queue redrive jobs",
            'queue "jobs" has no dead_letter: set one, or name the queue that its jobs go to in `to`',
        ),
        ("group show orders x", 'topic "orders" has no group "x"; there is none yet'),
        ("group move orders x soon", '"soon" is no place: give start, head or a seq'),
        ("router show x", 'router "x" does not exist; there is none yet'),
        ("read orders --context x", 'context "x" does not exist; there is none yet'),
        ("read orders --since soon", '"soon" is no time: write it like 10m (ago), 2026-01-31 or 2026-01-31T10:00:00Z'),
        (
            "read orders --since 1h --from-seq 1",
            "give one beginning only: --from-seq, --since, --group, or -n with a negative number",
        ),
        ("tail orders --since 1h -n 1", "give one beginning only: --from-seq, --since or -n"),
        ("tail orders -o json", "a tail has no end, and JSON needs one: use -o jsonl, or --no-follow"),
        ("read orders --format %x", "%x is not known in --format; there are %t %s %T %m %g %n %d %j %M %%"),
        ("errors topic_fll", 'there is no error code "topic_fll"; did you mean "topic_full"?'),
        ("topic ls --server ftp://x", "the endpoint must look like http://host:4000"),
    ],
)
def test_wrong_input_says_what_is_wrong_and_what_to_do(client: topics.Client, line: str, text: str) -> None:
    client.append("orders", [1])
    client.create("jobs", type="queue")
    result = run(*line.split())
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"topics: {text}\n")


def test_a_server_with_keys_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerProcess(environ={"TOPICS_API_KEYS": "s3cret:read"}) as locked:
        monkeypatch.setenv("TOPICS_URL", locked.url)
        refused = run("topic", "ls")
        assert refused.stderr == (
            "topics: a valid key is needed: Authorization: Bearer <key>; "
            "set TOPICS_KEY, or add a context with the key: topics context add --help\n"
        )
        assert run("check").exit_code == 3
        monkeypatch.setenv("TOPICS_KEY", "s3cret")
        assert run("topic", "ls", "-o", "json").stdout == "[]\n"
        forbidden = run("topic", "create", "orders")
        assert forbidden.exit_code == 1
        assert "the key that was sent comes with TOPICS_URL" in forbidden.stderr


# Deleting.


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--tag a:1", [2, 3, 4]),
        ("--tag a:*", [3, 4]),
        ("--before-seq 3", [3, 4]),
        ("--tag a:* --before-seq 2", [2, 3, 4]),
        ("--tag b:*", [1, 2, 3, 4]),
    ],
)
def test_records_are_deleted_and_a_dry_run_counts_them(client: topics.Client, options: str, left: list[int]) -> None:
    tags = ["a:1", "a:2", "a", None]
    client.append("orders", [topics.NewRecord(number, tag) for number, tag in enumerate(tags, 1)])
    count = len(tags) - len(left)
    told = run("topic", "delete", "orders", *options.split(), "--dry-run").stderr
    assert told == f'records of "orders" that match: {count}\n'
    done = run("topic", "delete", "orders", *options.split(), "--yes", "-o", "jsonl")
    assert json.loads(done.stdout) == {"topic": "orders", "deleted": count}
    assert records(client, "orders") == left


# Writing.


def records(client: topics.Client, topic: str) -> list[Any]:
    return [json.loads(record.data) for record in client.read_all(topic, loss="raise")]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("auto", b'{"a":1}\n[2]\n3\n"x"\nplain\n\n{bad\n', [{"a": 1}, [2], "3", '"x"', "plain", "{bad"]),
        ("lines", b'{"a":1}\r\n\nlast', ['{"a":1}', "", "last"]),
        ("jsonl", b'{"a":1}\n\n3\n"x"\n', [{"a": 1}, 3, "x"]),
        ("csv", b'\xef\xbb\xbfa,b\n1,"x\ny"\n\n2,\xc3\xa9\n', [{"a": "1", "b": "x\ny"}, {"a": "2", "b": "é"}]),
        ("records", b'{"seq":9,"data":1,"tag":"t"}\n{"tombstone":{}}\n', [1]),
    ],
)
def test_stdin_is_written_as_its_kind(client: topics.Client, kind: str, text: bytes, expected: list[Any]) -> None:
    code, out, err = piped(text, "write", "orders", "--from", kind)
    assert (code, out) == (0, ""), err
    assert records(client, "orders") == expected


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("jsonl", b"1\n{bad\n", "line 2 of FILE is not JSON; --from lines takes each line as text"),
        ("lines", b"ok\n\xff\n", "line 2 of FILE is not text in UTF-8"),
        ("csv", b"a,b\n1\n", "line 2 of FILE has 1 cells, the heading 2"),
        ("records", b"1\n", 'line 1 of FILE is no record: a record is an object with "data"'),
    ],
)
def test_a_wrong_line_is_named(client: topics.Client, tmp_path: Path, kind: str, text: bytes, problem: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(text)
    result = run("write", "orders", path, "--from", kind)
    assert result.exit_code == 1
    assert result.stderr.replace(str(path), "FILE") == f"topics: {problem}; nothing of FILE was written\n"


def test_a_file_whose_write_failed_half_way_goes_on_without_repeats(client: topics.Client, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text("1\n2\n3\n4\nbad\n")
    first = run("write", "orders", path, "--batch", 2)
    assert first.exit_code == 1
    assert first.stderr.endswith(f"{path} is written up to line 4: --skip 4 goes on after it\n")
    path.write_text("1\n2\n3\n4\n5\n")
    assert run("write", "orders", path, "--batch", 2).exit_code == 0
    assert records(client, "orders") == [1, 2, 3, 4, 5]
    assert run("write", "orders", path, "--skip", 4, "--again").exit_code == 0
    assert records(client, "orders") == [1, 2, 3, 4, 5, 5]


def test_a_write_that_was_killed_is_run_again_and_every_line_is_there_once(
    client: topics.Client, tmp_path: Path
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(5000)))
    client.create("orders")
    with start("write", "orders", path, "--batch", 5) as process:
        assert client.read("orders", wait_ms=30_000).records
        process.kill()
    assert run("write", "orders", path, "--batch", 5).exit_code == 0
    assert records(client, "orders") == list(range(5000))


def test_other_content_in_the_same_lines_is_written(client: topics.Client, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    for content in ("1\n", "2\n", "2\n"):
        path.write_text(content)
        assert run("write", "orders", path).exit_code == 0
    assert records(client, "orders") == [1, 2]


def test_a_line_of_a_pipe_that_stays_open_is_written_at_once(client: topics.Client) -> None:
    client.create("orders")
    with start("write", "orders") as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert client.read("orders", wait_ms=30_000).records[0].data == b'"first"'
        process.stdin.write(b"no line end")
        process.stdin.close()
        assert process.wait(60) == 0
    assert records(client, "orders") == ["first", "no line end"]


# Reading.


def test_lost_records_are_told_in_line_in_every_form(client: topics.Client) -> None:
    client.create("orders", cap_records=1)
    client.append("orders", [1, "two"])
    printed = {form: run("read", "orders", "-o", form) for form in ("table", "jsonl", "json", "csv", "raw")}
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        r" {7}SEQ  TIME {22}TAG {15}DATA\n-- records 1 to 1 are lost \(cap\) --\n"
        rf" {{9}}2  {time}  - {{17}}\"two\"\n",
        printed["table"].stdout,
    )
    lost = '{"tombstone":{"gap_from":1,"gap_to":1,"reason":"cap"}}'
    assert re.fullmatch(rf'{re.escape(lost)}\n{{"seq":2,"ts":\d+,"data":"two"}}\n', printed["jsonl"].stdout)
    assert [set(item) for item in json.loads(printed["json"].stdout)] == [{"tombstone"}, {"seq", "ts", "data"}]
    assert re.fullmatch(r'seq,ts,tag,node,data,meta\n2,\d+,,,"""two""",\n', printed["csv"].stdout)
    assert printed["raw"].stdout == "two\n"
    assert printed["csv"].stderr == printed["raw"].stderr == "topics: records 1 to 1 are lost (cap)\n"


@pytest.mark.parametrize(
    ("args", "seqs"),
    [
        ((), [1, 2, 3, 4, 5, 8]),
        (("-n", "2"), [1, 2]),
        (("-n", "-2"), [5, 8]),
        (("-n", "-20"), [1, 2, 3, 4, 5, 8]),
        (("--from-seq", "4"), [5, 8]),
        (("--since", "1h"), [1, 2, 3, 4, 5, 8]),
        (("--since", "2099-01-01"), []),
        (("--match", "tag=b*"), [2, 4, 8]),
        (("--match", "n.0=3"), [3]),
        (("--match", "tag=b*", "--match", ":[4"), [4]),
    ],
)
def test_records_are_chosen(client: topics.Client, args: tuple[str, ...], seqs: list[int]) -> None:
    tags = {6: "gone", 7: "gone"}
    payloads = [topics.NewRecord({"n": [n]}, tag=tags.get(n, "ab"[n % 2 == 0])) for n in range(1, 9)]
    client.append("orders", payloads)
    client.delete("orders", tag="gone")
    assert [json.loads(line)["seq"] for line in run("read", "orders", *args).stdout.splitlines()] == seqs


def test_payloads_with_line_ends_and_control_characters_stay_what_they_are(client: topics.Client) -> None:
    payload = {"a": "\x9b1m", "b": "x\u2028y\x85z\n"}
    client.create("jobs", type="queue")
    client.append("jobs", [json.dumps(payload, ensure_ascii=False, indent=1).encode()])
    lines = run("read", "jobs").stdout
    document = run("read", "jobs", "-o", "json").stdout
    claimed = run("queue", "claim", "jobs", "-o", "json").stdout
    assert lines.count("\n") == 1
    assert not {"\x9b", "\x85"} & set(lines + document + claimed)
    assert json.loads(lines)["data"] == payload
    assert json.loads(document)[0]["data"] == payload
    assert json.loads(claimed)[0]["data"] == payload


def test_tail_prints_records_as_they_come_and_ends_with_130_at_ctrl_c(client: topics.Client) -> None:
    client.append("orders", [1])
    with start("tail", "orders", "--format", "%s %d") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1 1\n"
        client.append("orders", ["new"])
        assert process.stdout.readline() == b"2 new\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_tail_whose_reader_went_away_ends_without_an_error(client: topics.Client) -> None:
    client.append("orders", [1])
    with start("tail", "orders", "-o", "raw") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        client.append("orders", [2])
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_read_into_head_is_no_error(client: topics.Client) -> None:
    client.append("orders", ["x" * 1000] * 1000)
    with start("read", "orders") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (0, b"")


# Terminals.


def on_terminal(typed: bytes, *args: str, **environ: str) -> tuple[int, bytes]:
    """The exit code, and what a terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*COMMAND, *args], os.environ | {"TERM": "xterm"} | environ)
    os.write(terminal, typed)
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown


def test_a_terminal_is_asked_for_names_and_gets_colours_and_progress(client: topics.Client, tmp_path: Path) -> None:
    client.append("orders", [1])
    code, shown = on_terminal(b"ordres\n", "topic", "rm", "orders")
    assert code == 1
    assert b"that is not the name; nothing is removed" in shown
    assert b"\x1b[1mTOPIC" in on_terminal(b"", "topic", "ls")[1]
    assert b"\x1b" not in on_terminal(b"", "topic", "ls", NO_COLOR="1")[1]
    code, shown = on_terminal(b"", "top", "-n", "1")
    assert (code, b"orders" in shown) == (0, True)
    path = tmp_path / "more.jsonl"
    path.write_text("1\n" * 5)
    code, shown = on_terminal(b"", "write", "orders", str(path), "--batch", "1")
    assert (code, b"5 records" in shown) == (0, True)
    assert on_terminal(b"orders\n", "topic", "rm", "orders")[0] == 0
    assert client.topics() == []


# Work.


def test_a_program_runs_for_each_job_and_its_end_settles_the_job(client: topics.Client) -> None:
    client.create("jobs", type="queue", max_deliveries=1, dead_letter="dead")
    client.append("jobs", [topics.NewRecord({"n": 1}, tag="t"), {"n": 2}])
    script = 'cat; echo " $TOPICS_QUEUE $TOPICS_SEQ $TOPICS_TAG $TOPICS_DELIVERIES"; echo why >&2; test $TOPICS_SEQ = 1'
    with start("work", "jobs", "-n", "2", "--retry-delay", "0s", "--", "sh", "-c", script) as process:
        out, err = process.communicate(timeout=60)
    assert out == b'{"n":1} jobs 1 t 1\n{"n":2} jobs 2  1\n'
    assert err.decode().splitlines() == [
        'waiting for jobs of "jobs"; Ctrl+C ends',
        "why",
        "why",
        'job 2 of "jobs" failed (delivery 1): exit code 1: why',
        "1 job done, 1 failed",
    ]
    assert process.returncode == 0
    assert client.claim("jobs", "other") == []
    assert b"exit code 1: why" in (client.read("dead").records[0].meta or b"")


def test_sigterm_lets_all_running_programs_end_and_their_jobs_are_acked(client: topics.Client, tmp_path: Path) -> None:
    client.create("jobs", type="queue")
    client.append("jobs", [1, 2])
    for seq in (1, 2):
        os.mkfifo(tmp_path / f"gate-{seq}")
    script = f"echo begun; cat {tmp_path}/gate-$TOPICS_SEQ"
    with start("work", "jobs", "-c", "2", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
        process.send_signal(signal.SIGTERM)
        for seq in (1, 2):
            (tmp_path / f"gate-{seq}").write_text("done\n")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"done\ndone\n")
    assert err.decode().endswith("2 jobs done, 0 failed\n")
    assert client.state("jobs").count == 0


# --curl, check, completion.


@pytest.mark.parametrize(
    "line",
    [
        "topic ls",
        "topic show orders",
        "topic create new --ttl 1d",
        "topic set orders --ttl 1d",
        "read orders",
        "queue ls",
        "queue show jobs",
        "queue claim jobs --node it's",
        "queue ack jobs 1 --node w",
        "queue nack jobs 1 --node w",
        "queue extend jobs 1 --node w --lease 1m",
        "topic delete orders --tag x",
        "topic delete orders --tag x --dry-run",
        "queue redrive jobs --dry-run",
        "router ls",
        "router create r orders copy",
        "group ls orders",
        "group move orders g start",
        "group commit orders g 0",
        "check",
        "top",
    ],
)
def test_the_curl_of_a_command_is_a_request_that_the_server_takes(client: topics.Client, line: str) -> None:
    client.append("orders", [1])
    client.create_group("orders", "g")
    client.create("jobs", type="queue", dead_letter="dead")
    shown = run(*line.split(), "--curl", "--key", "s3cret").stdout
    assert shown.startswith("curl -sS ")
    assert "s3cret" not in shown
    assert client.topics() == ["jobs", "orders"]
    done = subprocess.run(shown, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout


def test_check_has_the_exit_codes_of_monitoring(client: topics.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create("jobs", type="queue")
    client.append("jobs", [1, 2])
    client.create_group("jobs", "g", at="start")

    def code(*args: str) -> int:
        return run("check", *args).exit_code

    assert [code(), code("--depth", "3,4"), code("--lag", ",3")] == [0, 0, 0]
    assert [code("--depth", "2,3"), code("--lag", "2"), code("nothing", "--depth", "0")] == [1, 1, 0]
    assert [code("--depth", "1,2"), code("--lag", ",2"), code("--age", ",1ms"), code("--disk", ",0")] == [2, 2, 2, 2]
    assert [code("--depth", "x"), code("--disk", "1", "--data-dir", "/no/such")] == [3, 3]
    monkeypatch.setenv("TOPICS_URL", "http://127.0.0.1:1")
    assert code() == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topics to", ["topic", "top"]),
        ("topics topic show o", ["orders", "orders.old"]),
        ("topics tail orders.", ["orders.old"]),
        ("topics work ", ["jobs"]),
        ("topics router rm ", ["copy"]),
        ("topics group show orders b", ["billing"]),
        ("topics context use p", ["prod"]),
        ("topics topic show --server http://127.0.0.1:1 o", []),
    ],
)
def test_names_are_completed(client: topics.Client, words: str, expected: list[str]) -> None:
    client.append("orders", [1])
    client.append("orders.old", [1])
    client.create("jobs", type="queue")
    client.create_group("orders", "billing")
    client.create_router("copy", "orders", "orders.old")
    run("context", "add", "prod", "--server", "http://prod:1")
    environ = {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    result = CliRunner().invoke(app, [], env=environ, prog_name="topics")
    assert result.stdout.split() == expected
    client.drop_router("copy")
