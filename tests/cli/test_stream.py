"""`topics stream`: what it prints of streams, partitions and messages, and how it follows them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from tests.server.running import running
from topics.cli.main import app
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.streams.system import System

# Spaces and the form of the number are kept.
ORDER: Final = b'{"id": 42,  "price":1.0e2}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, System]]:
    with running(tmp_path_factory.mktemp("data"), streams_port=0) as server:
        system = server.server.streams.system
        assert system is not None
        yield server.url, system


@pytest.fixture
def streams(served: tuple[str, System], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> System:
    """Two streams, which the commands see; the topic `orders/events` has two partitions with messages."""
    url, system = served
    for name in [name for name in os.environ if name.startswith("TOPICS_") and name != "TOPICS_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TOPICS_URL", url)
    for stream in system.stream_names():
        system.delete_stream(stream)
    system.create_stream("orders")
    system.create_stream("payments")
    system.create_topic("orders", "events", partitions_count=2)
    send(system, 0, NewMessage(ORDER, 7, {"trace": "t-1"}), NewMessage(b"\0\xff"))
    send(system, 1, NewMessage(b"plain"))
    return system


def send(system: System, partition: int, *messages: NewMessage) -> None:
    system.send("orders", "events", encode_send(list(messages)), PartitionId(partition))


def run(line: str) -> Result:
    return CliRunner().invoke(app, ["stream", *line.split()])


def printed(line: str) -> list[str]:
    result = run(line)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def objects(line: str) -> list[Any]:
    return [json.loads(text) for text in printed(line)]


def test_a_message_is_printed_in_every_form(streams: System) -> None:
    first, second, third = objects("read orders/events")
    assert (first["partition"], first["offset"], first["id"]) == (0, 0, "7")
    assert first["headers"] == [{"key": "trace", "kind": "string", "value": "t-1"}]
    assert (second["payload_base64"], third["payload_base64"]) == ("AP8=", "cGxhaW4=")
    assert f'"payload":{ORDER.decode()}' in printed("read orders/events -n 1")[0]
    assert json.loads("".join(printed("read orders/events -o json"))) == [first, second, third]
    assert run("read orders/events -o raw").stdout_bytes == ORDER + b"\n\0\xff\nplain\n"
    assert [line.split(maxsplit=3)[3] for line in printed("read orders/events -o table")] == [
        "PAYLOAD",
        ORDER.decode(),
        "base64:AP8=",
        "plain",
    ]
    assert printed("read orders/events -o csv")[0] == "partition,offset,timestamp,id,headers,payload,payload_base64"
    assert printed("read orders/events -n 1 --format %t:%p/%o:%i:%h") == ['orders/events:0/0:7:{"trace":"t-1"}']


def test_a_read_begins_where_it_is_told_to(streams: System) -> None:
    for number in range(3):
        send(streams, 1, NewMessage(b"%d" % number))

    def payloads(options: str) -> list[str]:
        return printed(f"read orders/events --partition 1 {options} -o raw")

    assert payloads("") == payloads("--first") == payloads("--since 1h") == ["plain", "0", "1", "2"]
    assert payloads("--offset 2") == payloads("--last -n 2") == payloads("-n -2") == ["1", "2"]
    assert payloads("--offset 1 -n 1") == ["0"]
    assert payloads("--offset 9") == payloads("-n 0") == payloads("--since 2100-01-01") == []
    assert printed("read orders/events --last -n 1 -o raw") == ["2"]
    assert objects("read 0/0 --match id=42 --match header.trace=t-*") == objects("read orders/events -n 1")


def test_partitions_are_merged_by_time_page_by_page(streams: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.cli.remote.stream_reading.PAGES_BYTES", 0)
    monkeypatch.setattr("topics.cli.remote.stream_reading._PAGE_BYTES_MIN", 1)
    for number in range(20):
        send(streams, number % 2, NewMessage(b"%d" % number))
    found = objects("read orders/events")
    assert len(found) == 23
    places = [(one["timestamp"], one["partition"], one["offset"]) for one in found]
    assert places == sorted(places)


def test_the_state_of_a_topic_has_its_partitions_and_groups(streams: System) -> None:
    streams.create_group("orders", "events", "billing")
    shown = printed("show orders/events")
    assert [line.split()[:4] for line in shown if line.split()[:1] in (["0"], ["1"])] == [
        ["0", "0", "2", "2"],
        ["1", "0", "1", "1"],
    ]
    assert shown[-1].split() == ["billing", "0", "0"]
    assert [topic["name"] for topic in json.loads("".join(printed("show orders -o json")))["topics"]] == ["events"]
    assert printed("ls -o raw") == ["orders", "payments"]
    assert printed("ls pay -o raw") == ["payments"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("show ordres", 'stream "ordres" does not exist; did you mean "orders"?'),
        ("read ordres/events", 'stream "ordres" does not exist; did you mean "orders"?'),
        ("tail orders/evnts", 'stream "orders" has no topic "evnts"; did you mean "events"?'),
        ("show payments/x", 'stream "payments" has no topic "x"; there is none yet'),
        ("show 999", "stream 999 does not exist"),
        ("read orders", '"orders" is a stream: give a topic of it, like orders/events'),
        ("read payments", '"payments" is a stream: give a topic of it, once it has one'),
        ("show orders/", '"orders/" is no path: give STREAM or STREAM/TOPIC, by names or numbers'),
        ("read orders/events -p 2", 'topic "orders/events" has no partition 2: its partitions are 0 to 1'),
        ("read orders/events --offset 1", "give --partition with --offset: each partition has its own offsets"),
        (
            "read orders/events --last --since 1h",
            "give one beginning only: --offset, --first, --last (or -n with a negative number), or --since",
        ),
        ("tail orders/events --since 1h -n 1", "give one beginning only: --offset, --since or -n"),
        ("tail orders/events -o json", "a tail has no end, and JSON needs one: use -o jsonl, or --no-follow"),
        ("read orders/events --format %x", "%x is not known in --format; there are %t %p %o %i %T %m %h %d %%"),
    ],
)
def test_wrong_input_says_what_is_wrong_and_what_to_do(streams: System, line: str, text: str) -> None:
    result = run(line)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"topics: {text}\n")


def test_a_server_without_streams_says_how_it_gets_them(streams: System, tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        for line in ("ls", "show orders", "read orders/events"):
            assert run(f"{line} --server {server.url}").stderr == (
                "topics: this server has no streams: start it with `topics serve --streams`\n"
            )


@pytest.mark.parametrize(
    "line", ["ls", "show orders", "show orders/events", "read orders/events", "tail orders/events"]
)
def test_the_curl_of_a_command_is_requests_that_the_server_takes(streams: System, line: str) -> None:
    lines = printed(f"{line} --curl --key s3cret")
    assert len(lines) == (2 if line.split(maxsplit=1)[0] in ("read", "tail") else 1)
    for shown in lines:
        assert "s3cret" not in shown
        done = subprocess.run(shown, shell=True, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout.startswith("{")
        assert '"error"' not in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topics stream show ", ["orders", "payments"]),
        ("topics stream read o", ["orders", "orders/events"]),
        ("topics stream tail orders/e", ["orders/events"]),
        ("topics stream tail nothing/e", []),
    ],
)
def test_names_are_completed(streams: System, words: str, expected: list[str]) -> None:
    environ = {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    assert CliRunner().invoke(app, [], env=environ, prog_name="topics").stdout.split() == expected


@pytest.fixture
def tail() -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "topics.cli.entry", "stream", "tail", "orders/events", "-n", "1", "-i", "20ms"]
    with subprocess.Popen([*command, "-o", "table"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_tail_follows_all_partitions_and_names_what_is_gone(streams: System, tail: "subprocess.Popen[bytes]") -> None:
    assert tail.stdout is not None
    assert tail.stderr is not None
    lines = (line.decode().rstrip("\n") for line in tail.stdout)
    payloads = (line.split(maxsplit=3)[3] for line in lines)
    assert [next(payloads), next(payloads)] == ["PAYLOAD", "plain"]
    for number, partition in enumerate((1, 0, 1)):
        send(streams, partition, NewMessage(b"new-%d" % number))
        assert next(payloads) == f"new-{number}"
    streams.create_partitions("orders", "events", 1)
    send(streams, 2, NewMessage(b"of a new partition"))
    assert next(payloads) == "of a new partition"
    streams.purge_topic("orders", "events")
    assert {next(lines) for _ in range(3)} == {
        f"-- messages 0 to {last} of partition {number} are gone --" for number, last in enumerate((2, 2, 0))
    }
    send(streams, 1, NewMessage(b"after the purge"))
    assert next(payloads) == "after the purge"
    tail.send_signal(signal.SIGINT)
    assert (tail.wait(60), tail.stderr.read()) == (130, b"")


def test_a_read_into_head_is_no_error(streams: System) -> None:
    for _ in range(300):
        send(streams, 0, NewMessage(b"x" * 1000))
    command = [sys.executable, "-m", "topics.cli.entry", "stream", "read", "orders/events", "-o", "raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
