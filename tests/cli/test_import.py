"""`topics import`: logs of a real Redis, NATS and broker of Kafka in a topic, each entry once, whatever is killed."""

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import topics
from docs_build.recording import free_port
from tests.cli.peer_processes import KafkaBroker, NatsProcess, RedisProcess
from tests.server.test_tls import make_pair
from topics.cli.main import app
from topics.cli.remote.importing import kafka_source
from topics.cli.remote.importing.redis_source import RedisSource, parse_address
from topics.errors import TopicNotFound
from topics.testing.server_process import ServerProcess

COMMAND: Final = [sys.executable, "-m", "topics.cli.entry"]
REFUSED: Final = (
    "Redis at {at} refuses the user or password (invalid username-password pair or user is disabled); give them in the "
    "address, or the password in REDISCLI_AUTH"
)
# Far beyond what any wait here takes.
PATIENCE_S: Final = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as running:
        yield running


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[topics.Client]:
    for name in [name for name in os.environ if name.startswith("TOPICS_") and name != "TOPICS_TEST_FULL"]:
        monkeypatch.delenv(name)
    for name in ("REDISCLI_AUTH", "NATS_USER", "NATS_PASSWORD", "KAFKA_USER", "KAFKA_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOPICS_URL", server.url)
    with topics.Client(server.url) as made:
        for name in made.topics():
            made.drop(name)
        yield made


@pytest.fixture
def redis(peer: RedisProcess) -> Iterator[Any]:
    with peer.client() as made:
        made.flushall()
        yield made


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["import", *map(str, args)])


def imported(*args: object) -> str:
    """What a run says, without its speed."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    return re.sub(r"\([\d,]+ records/s\)", "(…)", result.stderr)


def start(*args: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, "import", *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ids(client: topics.Client, topic: str) -> list[str]:
    return [msgspec.json.decode(record.meta or b"null")["id"] for record in client.read_all(topic, loss="raise")]


def fill(redis: Any, stream: str, count: int) -> list[str]:
    """Ids that ascend irregularly, as those of a busy Redis do."""
    made = [f"{1_000 + number // 7}-{number % 7}" for number in range(count)]
    with redis.pipeline(transaction=False) as pipe:
        for number, entry in enumerate(made):
            pipe.xadd(stream, {"number": number}, id=entry)
        pipe.execute()
    return made


def wait_for(client: topics.Client, topic: str, count: int) -> None:
    """Until the topic has so many records."""
    deadline = monotonic() + PATIENCE_S
    while monotonic() < deadline:
        try:
            head_seq = client.state(topic).head_seq
            if head_seq >= count:
                return
            client.read(topic, head_seq, limit=1, wait_ms=1000)
        except TopicNotFound:
            continue
    pytest.fail(f"{topic} did not get {count} records")


# What becomes of entries and groups.


def test_entries_become_records_and_a_second_run_goes_on(client: topics.Client, redis: Any, peer: RedisProcess) -> None:
    redis.xadd("orders", {"id": "1", "name": "ada"}, id="1-1")
    redis.execute_command("XADD", "orders", "2-0", "id", "2", "id", "3", "id", "4")
    redis.xadd("orders", {"bytes": b"a\xff", "text": "ä"}, id="5-0")
    source = f"{peer.url}/orders"
    assert imported(source, "--topic", "orders") == (
        'topic "orders" is created\nimported to "orders": 3 records (…), seqs 1 to 3, up to entry 5-0\n'
    )
    records = list(client.read_all("orders", loss="raise"))
    assert [msgspec.json.decode(record.data) for record in records] == [
        {"id": "1", "name": "ada"},
        {"id": ["2", "3", "4"]},
        {"bytes": {"$base64": "Yf8="}, "text": "ä"},
    ]
    assert msgspec.json.decode(records[0].meta or b"") == {"source": source, "id": "1-1"}
    assert imported(source, "--topic", "orders") == "going on after entry 5-0\nthere is nothing new to import\n"
    redis.xadd("orders", {"id": "9"}, id="9-0")
    result = run(source, "--topic", "orders", "-o", "json")
    assert json.loads(result.stdout) == {
        "topic": "orders",
        "source": source,
        "records": 1,
        "first_seq": 4,
        "last_seq": 4,
        "position": "9-0",
    }
    assert ids(client, "orders") == ["1-1", "2-0", "5-0", "9-0"]


def test_a_field_may_be_the_payload_and_another_one_the_tag(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    redis.xadd("events", {"data": '{"id": 1}', "customer": "acme"}, id="1-0")
    redis.xadd("events", {"data": "no json"}, id="2-0")
    imported(f"{peer.url}/events", "--topic", "events", "--field", "data", "--tag-field", "customer")
    records = list(client.read_all("events", loss="raise"))
    assert [(record.data, record.tag) for record in records] == [(b'{"id": 1}', "acme"), (b'"no json"', None)]


def test_groups_begin_where_they_are_in_redis_and_never_go_back(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    entries = fill(redis, "orders", 40)
    for group, at in (("new", "0"), ("all", "$"), ("some", "0"), ("pending", "0")):
        redis.xgroup_create("orders", group, at)
    redis.xreadgroup("some", "c", {"orders": ">"}, count=17)
    redis.xack("orders", "some", *entries[:17])
    redis.xreadgroup("pending", "c", {"orders": ">"}, count=20)
    redis.xack("orders", "pending", *entries[:4], *entries[5:9])
    # Records of others are between those of the import.
    source = f"{peer.url}/orders"
    assert run(source, "--topic", "t", "--batch", 7, "--no-groups").exit_code == 0
    client.append("t", [{"other": True}] * 3)
    more = [f"9999-{number}" for number in range(3)]
    for entry in more:
        redis.xadd("orders", {"number": 0}, id=entry)
    told = imported(source, "--topic", "t")
    assert 'group "pending" is created: seq 4, lag 42; 12 of its entries are not acknowledged and come again' in told
    assert {cursor.group: cursor.seq for cursor in client.groups("t")} == {
        "all": 40,
        "new": 0,
        "pending": 4,
        "some": 17,
    }
    client.commit("t", "new", 30)
    redis.xreadgroup("new", "c", {"orders": ">"}, count=10, noack=True)
    redis.xreadgroup("some", "c", {"orders": ">"}, noack=True)
    assert imported(source, "--topic", "t") == (
        'going on after entry 9999-2\ngroup "some" is at seq 46, lag 0\nthere is nothing new to import\n'
    )
    assert client.group("t", "new").seq == 30


# Each entry once.


def test_an_import_that_is_killed_again_and_again_writes_each_entry_once(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    entries = fill(redis, "orders", 5_000)
    arguments = (f"{peer.url}/orders", "--topic", "t")
    for reached in (20, 100, 200):
        # One by one they would need many seconds more.
        with start(*arguments, "--batch", 1) as process:
            wait_for(client, "t", reached)
            process.send_signal(signal.SIGKILL)
    assert 200 <= client.state("t").head_seq < len(entries), "it was killed in the middle"
    assert run(*arguments).exit_code == 0
    assert ids(client, "t") == entries


def test_two_imports_at_the_same_time_write_each_entry_once(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    entries = fill(redis, "orders", 1_000)
    arguments = (f"{peer.url}/orders", "--topic", "t", "--batch", 20)
    client.create("t")
    with start(*arguments) as one, start(*arguments) as other:
        assert (one.wait(PATIENCE_S), other.wait(PATIENCE_S)) == (0, 0)
    assert ids(client, "t") == entries


def test_a_mirror_goes_on_when_redis_or_the_server_was_killed(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as peer:
        with peer.client() as redis:
            first = fill(redis, "orders", 10)
        # The address of a server changes with its start; a mirror has one, so that a port is chosen here.
        with ServerProcess(port=free_port()) as fixed, topics.Client(fixed.url) as client:
            with start(f"{peer.url}/orders", "--topic", "t", "--follow", "--server", fixed.url) as mirror:
                wait_for(client, "t", 10)
                peer.kill()
                fixed.kill()
                peer.start()
                fixed.start()
                with peer.client() as redis:
                    second = redis.xadd("orders", {"number": 10}).decode()
                wait_for(client, "t", 11)
                mirror.send_signal(signal.SIGINT)
                _, err = mirror.communicate(timeout=PATIENCE_S)
            assert mirror.returncode == 130
            # Ctrl+C may come before the answer to the last write.
            told = re.search(r"topics: stopped; imported up to entry (\S+): run it again to go on\n", err.decode())
            assert told is not None
            assert told[1] in {first[-1], second}
            assert ids(client, "t") == [*first, second]


def test_an_import_goes_on_although_its_last_record_is_gone(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    client.create("t", cap_records=2)
    entries = fill(redis, "orders", 10)
    source = f"{peer.url}/orders"
    imported(source, "--topic", "t")
    client.append("t", ["x", "y"])
    redis.xadd("orders", {"number": 10}, id="5000-0")
    assert imported(source, "--topic", "t").startswith(f"going on after entry {entries[-1]}\n")
    assert client.state("t").head_seq == 13


def test_without_any_trace_of_the_last_entry_nothing_is_written(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    count = 5_000
    fill(redis, "orders", count)
    arguments = (f"{peer.url}/orders", "--topic", "t")
    with start(*arguments, "--batch", 1) as process:
        wait_for(client, "t", 3)
        process.send_signal(signal.SIGKILL)
    head = client.state("t").head_seq
    assert head < count, "it was killed in the middle"
    last = ids(client, "t")[-1]
    client.delete("t", before_seq=head + 1)
    result = run(*arguments)
    assert result.exit_code == 1
    assert f"but record {head}, which knows where to go on, is gone; say it with --after ID" in result.stderr
    assert run(*arguments, "--after", last).exit_code == 0
    assert client.state("t").head_seq == count


# Errors.


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("redis://{at}/0/none", 'Redis at {at} has no key "none" in database 0'),
        ("redis://{at}/0/list", '"list" in Redis at {at} is a list, and not a stream'),
        (
            "redis://127.0.0.1:1/0/x",
            "Redis at 127.0.0.1:1 does not answer: Error 111 connecting to 127.0.0.1:1. Connection refused",
        ),
        (
            "redis://{at}",
            "an address of Redis is like redis://127.0.0.1:6379/0/orders: host, port, database, stream",
        ),
        ("redis://{at}/99/x", "Redis at {at}: DB index is out of range"),
        (
            "mysql://{at}/x",
            (
                '"mysql://{at}/x" is no source: give redis://HOST:PORT/DB/STREAM, nats://HOST:PORT/STREAM or '
                "kafka://HOST:PORT/TOPIC"
            ),
        ),
        (
            "redis://me:s3cret@{at}/0/x",
            REFUSED,
        ),
    ],
)
def test_a_source_that_cannot_be_read_is_told_and_no_topic_is_made(
    client: topics.Client, redis: Any, peer: RedisProcess, source: str, text: str
) -> None:
    redis.rpush("list", 1)
    at = f"127.0.0.1:{peer.port}"
    result = run(source.replace("{at}", at), "--topic", "t")
    assert (result.exit_code, result.stderr) == (1, f"topics: {text.replace('{at}', at)}\n")
    assert client.topics() == []


def test_a_password_comes_from_the_address_or_the_environment_and_is_never_shown(
    client: topics.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisProcess(tmp_path, "--requirepass", "s3cret") as peer:
        with peer.client(password="s3cret") as redis:
            redis.xadd("orders", {"id": 1})
        refused = run(f"{peer.url}/orders", "--topic", "t")
        assert refused.exit_code == 1
        assert "refuses the user or password" in refused.stderr
        address = f"redis://:s3cret@127.0.0.1:{peer.port}/0/orders"
        told = imported(address, "--topic", "t")
        monkeypatch.setenv("REDISCLI_AUTH", "s3cret")
        told += imported(f"{peer.url}/orders", "--topic", "t")
    assert "there is nothing new to import" in told
    metas = [record.meta or b"" for record in client.read_all("t", loss="raise")]
    assert "s3cret" not in told + repr(metas) + repr(parse_address(address))


def test_a_redis_with_tls_is_trusted_by_its_certificate_only(
    client: topics.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(tmp_path)
    files = ["--tls-cert-file", pair.cert, "--tls-key-file", pair.key, "--tls-ca-cert-file", pair.cert]
    with RedisProcess(tmp_path) as peer, peer.client() as redis:
        redis.xadd("orders", {"id": 1})
        (port,) = {free_port()} - {peer.port}
        for name, value in zip(files[::2], files[1::2], strict=True):
            redis.config_set(name.removeprefix("--"), value)
        redis.config_set("tls-auth-clients", "no")
        redis.config_set("tls-port", port)
        source = f"rediss://localhost:{port}/0/orders"
        refused = run(source, "--topic", "t")
        assert refused.exit_code == 1
        assert f"Redis at localhost:{port} does not answer:" in refused.stderr
        assert "certificate" in refused.stderr
        monkeypatch.setenv("SSL_CERT_FILE", pair.cert)
        imported(source, "--topic", "t")
    assert client.state("t").count == 1


def test_an_entry_that_cannot_be_a_record_is_named(client: topics.Client, redis: Any, peer: RedisProcess) -> None:
    redis.xadd("orders", {"a": "b"}, id="1-0")
    redis.xadd("orders", {"large": "x" * 2**20}, id="2-0")
    result = run(f"{peer.url}/orders", "--topic", "t", "--batch", 1)
    assert result.exit_code == 1
    assert re.search(
        r"topics: entry 2-0 is a record of \d+ bytes, and a record has at most 1048576; imported up to entry 1-0: "
        r"run it again to go on\n",
        result.stderr,
    )
    result = run(f"{peer.url}/orders", "--topic", "t", "--field", "a", "--after", "x")
    assert (result.exit_code, result.stderr) == (
        1,
        'topics: "x" is no id of an entry; an id is like 1526919030474-55\n',
    )
    result = run(f"{peer.url}/orders", "--topic", "t2", "--field", "a")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        'topics: entry 2-0 has no field "a"; nothing was imported',
    )


@pytest.mark.parametrize(
    ("package", "extra", "logs"),
    [
        ("redis", "redis", "streams of Redis"),
        ("nats", "nats", "streams of NATS"),
        ("confluent_kafka", "kafka", "topics of Kafka"),
    ],
)
def test_without_its_package_the_error_says_what_to_install(
    client: topics.Client, monkeypatch: pytest.MonkeyPatch, package: str, extra: str, logs: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run(f"{extra}://127.0.0.1/x", "--topic", "t")
    assert (result.exit_code, result.stderr) == (
        1,
        f"topics: {logs} need a package that is not installed: pip install 'topics-log[{extra}]'\n",
    )


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(
    client: topics.Client, redis: Any, peer: RedisProcess
) -> None:
    redis.xadd("orders", {"id": 1}, id="5-0")
    source = f"{peer.url}/orders"
    imported(source, "--topic", "t")
    redis.delete("orders")
    redis.xadd("orders", {"id": 2}, id="3-0")
    result = run(source, "--topic", "t")
    assert result.exit_code == 1
    assert result.stderr == (
        f"going on after entry 5-0\ntopics: {source} is not the stream whose entry 5-0 was imported: it was made anew; "
        "--name NAME imports it as another source; nothing was imported\n"
    )
    imported(source, "--topic", "t", "--name", "orders, made anew")
    assert ids(client, "t") == ["5-0", "3-0"]


# NATS.


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsProcess]:
    with NatsProcess(tmp_path_factory.mktemp("nats")) as running:
        yield running


def publish(nats: NatsProcess, stream: str, payloads: list[bytes], **headers: str) -> None:
    """To the subjects STREAM.0, STREAM.1 and STREAM.2 in turn."""

    async def work(jetstream: Any) -> None:
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"])
        for number, payload in enumerate(payloads):
            await jetstream.publish(f"{stream}.{number % 3}", payload, headers=headers or None)

    nats.do(work)


def test_messages_of_nats_become_records_with_their_subjects_and_headers(
    client: topics.Client, nats: NatsProcess
) -> None:
    publish(nats, "KINDS", [b'{"id": 1}', b"text", b"a\xff", b""], trace="7")
    source = f"{nats.url}/KINDS"
    assert imported(source, "--topic", "t") == (
        'topic "t" is created\nimported to "t": 4 records (…), seqs 1 to 4, up to entry 4\n'
    )
    records = list(client.read_all("t", loss="raise"))
    assert [record.data for record in records] == [b'{"id": 1}', b'"text"', b'{"$base64":"Yf8="}', b'""']
    assert [record.tag for record in records] == ["KINDS.0", "KINDS.1", "KINDS.2", "KINDS.0"]
    meta = msgspec.json.decode(records[0].meta or b"")
    assert datetime.fromisoformat(meta.pop("time")).timestamp() == pytest.approx(records[0].ts / 1000, abs=3600)
    assert meta == {"source": source, "id": "1", "subject": "KINDS.0", "headers": {"trace": "7"}}
    assert imported(source, "--topic", "t") == "going on after entry 4\nthere is nothing new to import\n"

    async def consumers(jetstream: Any) -> list[Any]:
        found: list[Any] = await jetstream.consumers_info("KINDS")
        return found

    assert nats.do(consumers) == [], "an import leaves nothing behind"


def test_durable_consumers_become_groups_after_what_they_have_acknowledged(
    client: topics.Client, nats: NatsProcess
) -> None:
    publish(nats, "GROUPS", [b"%d" % number for number in range(20)])

    async def read(jetstream: Any) -> None:
        billing = await jetstream.pull_subscribe("GROUPS.>", durable="billing", stream="GROUPS")
        messages = await billing.fetch(10)
        for message in (*messages[:4], messages[5]):
            await message.ack_sync()
        await jetstream.pull_subscribe("GROUPS.>", durable="new", stream="GROUPS")
        await jetstream.delete_msg("GROUPS", 2)

    nats.do(read)
    told = imported(f"{nats.url}/GROUPS", "--topic", "t", "--batch", 6)
    assert 'group "billing" is created: seq 3, lag 16; 5 of its entries are not acknowledged and come again' in told
    assert {cursor.group: cursor.seq for cursor in client.groups("t")} == {"billing": 3, "new": 0}


def test_an_import_from_nats_that_is_killed_and_a_mirror_that_loses_nats_write_each_message_once(
    client: topics.Client, tmp_path: Path
) -> None:
    with NatsProcess(tmp_path) as nats:
        publish(nats, "ORDERS", [b"%d" % number for number in range(3_000)])
        arguments = (f"{nats.url}/ORDERS", "--topic", "t")
        for reached in (40, 150):
            with start(*arguments, "--batch", 1) as process:
                wait_for(client, "t", reached)
                process.send_signal(signal.SIGKILL)
        assert client.state("t").head_seq < 3_000, "it was killed in the middle"
        with start(*arguments, "--follow") as mirror:
            wait_for(client, "t", 3_000)
            nats.kill()
            nats.start()
            publish(nats, "ORDERS", [b"3000"])
            wait_for(client, "t", 3_001)
            mirror.send_signal(signal.SIGINT)
            assert mirror.wait(PATIENCE_S) == 130
        assert ids(client, "t") == [str(number) for number in range(1, 3_002)]


def test_a_stream_of_nats_that_was_made_anew_is_noticed_also_when_it_is_longer(
    client: topics.Client, nats: NatsProcess
) -> None:
    publish(nats, "ANEW", [b"1", b"2"])
    source = f"{nats.url}/ANEW"
    imported(source, "--topic", "t")
    nats.do(lambda jetstream: jetstream.delete_stream("ANEW"))
    publish(nats, "ANEW", [b"3", b"4", b"5"])
    result = run(source, "--topic", "t")
    assert result.exit_code == 1
    assert f"{source} is not the stream whose entry 2 was imported: it was made anew;" in result.stderr
    imported(source, "--topic", "t", "--name", "second")
    assert [record.data for record in client.read_all("t", loss="raise")] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("nats://{at}/NONE", 'NATS at {at} has no stream "NONE"'),
        ("nats://127.0.0.1:1/X", "NATS at 127.0.0.1:1 does not answer: nats: no servers available for connection"),
        ("nats://{at}", "an address of NATS is like nats://127.0.0.1:4222/ORDERS: host, port, stream"),
    ],
)
def test_a_stream_of_nats_that_cannot_be_read_is_told(
    client: topics.Client, nats: NatsProcess, source: str, text: str
) -> None:
    result = run(source.replace("{at}", nats.address), "--topic", "t")
    assert (result.exit_code, result.stderr) == (1, f"topics: {text.replace('{at}', nats.address)}\n")
    result = run(f"{nats.url}/X", "--topic", "t", "--field", "data")
    assert (result.exit_code, result.stderr) == (
        1,
        "topics: messages of NATS and Kafka have no fields: --field and --tag-field are for Redis\n",
    )


def test_user_and_password_of_nats_come_from_the_address_or_the_environment(
    client: topics.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NatsProcess(tmp_path, "--user", "me", "--pass", "s3cret") as nats:
        refused = run(f"nats://me:wrong@{nats.address}/X", "--topic", "t")
        assert refused.stderr == (
            f"topics: NATS at {nats.address} refuses the user or password; give them in the address, or in NATS_USER "
            "and NATS_PASSWORD\n"
        )
        missing = f'topics: NATS at {nats.address} has no stream "X"\n'
        assert run(f"nats://me:s3cret@{nats.address}/X", "--topic", "t").stderr == missing
        monkeypatch.setenv("NATS_USER", "me")
        monkeypatch.setenv("NATS_PASSWORD", "s3cret")
        assert run(f"{nats.url}/X", "--topic", "t").stderr == missing


# Kafka.


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaBroker]:
    broker = KafkaBroker()
    yield broker
    broker.stop()


def kafka_ids(client: topics.Client, topic: str) -> dict[int, list[int]]:
    """The offsets of each partition in the order of the records."""
    found: dict[int, list[int]] = {}
    for entry in ids(client, topic):
        partition, offset = map(int, entry.split(":"))
        found.setdefault(partition, []).append(offset)
    return found


def test_messages_of_kafka_become_records_with_key_headers_and_timestamp(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    headers = [("trace", b"7"), ("part", b"a"), ("part", b"\xff"), ("none", None)]
    kafka.publish("kinds", [b'{"id": 1}'], 2, key=b"acme", headers=headers, timestamp=1_526_919_030_474)
    kafka.publish("kinds", [b"text", b"a\xff", b"", None], 0, key=b"k\xff", timestamp=5)
    source = f"{kafka.url}/kinds"
    told = imported(source, "--topic", "t", "--no-groups")
    assert told == 'topic "t" is created\nimported to "t": 5 records (…), seqs 1 to 5, up to entry 0:3,2:0\n'
    found = {msgspec.json.decode(record.meta or b"")["id"]: record for record in client.read_all("t", loss="raise")}
    assert [found[f"0:{offset}"].data for offset in range(4)] == [b'"text"', b'{"$base64":"Yf8="}', b'""', b"null"]
    assert (found["2:0"].data, found["2:0"].tag, found["0:0"].tag) == (b'{"id": 1}', "acme", None)
    metas = {entry: msgspec.json.decode(record.meta or b"") for entry, record in found.items()}
    assert [meta.pop("after") for meta in metas.values() if "after" in meta] == ["0:3,2:0"], "only the last one"
    assert metas["2:0"] == {
        "source": source,
        "id": "2:0",
        "timestamp": 1_526_919_030_474,
        "key": "acme",
        "headers": {"trace": "7", "part": ["a", {"$base64": "/w=="}], "none": None},
    }
    assert metas["0:1"] == {"source": source, "id": "0:1", "timestamp": 5, "key": {"$base64": "a/8="}}
    again = imported(source, "--topic", "t", "--no-groups")
    assert again == "going on after entry 0:3,2:0\nthere is nothing new to import\n"
    kafka.publish("kinds", [b"1"], 3)
    assert "up to entry 0:3,2:0,3:0\n" in imported(source, "--topic", "t", "--no-groups")
    assert client.state("t").head_seq == 6


def test_an_import_from_kafka_that_is_killed_writes_each_message_of_each_partition_once(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    counts = {0: 3_700, 1: 3_500, 2: 1, 3: 3_300}
    for partition, count in counts.items():
        kafka.publish("killed", [b"%d" % number for number in range(count)], partition)
    arguments = (f"{kafka.url}/killed", "--topic", "t", "--no-groups")
    for reached in (40, 150):
        with start(*arguments, "--batch", 1) as process:
            wait_for(client, "t", reached)
            process.send_signal(signal.SIGKILL)
    assert 150 <= client.state("t").head_seq < 10_501, "it was killed in the middle"
    with start(*arguments, "--follow") as mirror:
        wait_for(client, "t", 10_501)
        kafka.publish("killed", [b"1"], 2)
        wait_for(client, "t", 10_502)
        mirror.send_signal(signal.SIGINT)
        _, err = mirror.communicate(timeout=PATIENCE_S)
    assert mirror.returncode == 130
    # Ctrl+C may come before the answer to the last write.
    assert re.search(
        r"topics: stopped; imported up to entry 0:3699,1:3499,2:[01],3:3299: run it again to go on\n", err.decode()
    )
    counts[2] += 1
    assert kafka_ids(client, "t") == {partition: list(range(count)) for partition, count in counts.items()}


def test_two_imports_from_kafka_at_the_same_time_write_each_message_once(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    for partition in range(4):
        kafka.publish("both", [b"1"] * 60, partition)
    arguments = (f"{kafka.url}/both", "--topic", "t", "--batch", 20, "--no-groups")
    client.create("t")
    with start(*arguments) as one, start(*arguments) as other:
        assert (one.wait(PATIENCE_S), other.wait(PATIENCE_S)) == (0, 0)
    assert kafka_ids(client, "t") == {partition: list(range(60)) for partition in range(4)}


def test_an_import_from_kafka_goes_on_although_its_last_record_is_gone(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    client.create("t", cap_records=2)
    arguments = (f"{kafka.url}/capped", "--topic", "t", "--no-groups")
    for partition in (0, 2):
        kafka.publish("capped", [b"1"] * 3, partition)
    imported(*arguments)
    for last in (2, 3):
        client.append("t", ["x", "y"])
        kafka.publish("capped", [b"1"], 2)
        assert imported(*arguments).startswith(f"going on after entry 0:2,2:{last}\n")
    # A batch whose position was not committed by itself: nothing knows where to go on.
    kafka.publish("capped", [b"1"] * 10_000, 0)
    head = client.state("t").head_seq
    with start(*arguments, "--batch", 1) as process:
        wait_for(client, "t", head + 3)
        process.send_signal(signal.SIGKILL)
    assert client.state("t").head_seq < head + 10_000, "it was killed in the middle"
    client.append("t", ["x", "y"])
    result = run(*arguments)
    assert result.exit_code == 1
    assert "which knows where to go on, is gone; say it with --after ID" in result.stderr


def test_messages_that_kafka_removed_before_they_were_imported_are_told(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    kafka.publish("removed", [b"1"] * 3, 1)
    source = f"{kafka.url}/removed"
    imported(source, "--topic", "t", "--no-groups")
    # More than the broker keeps. Partition 3 had no entry at the first import.
    for partition in (1, 3):
        kafka.publish("removed", [b"1" * 900_000] * 8, partition)
    told = imported(source, "--topic", "t", "--no-groups")
    found = kafka_ids(client, "t")
    assert found[1][:3] == [0, 1, 2]
    for partition, new, first, end in ((1, found[1][3:], 3, 11), (3, found[3], 0, 8)):
        assert new[0] > first
        assert new == list(range(new[0], end))
        lost = f"offsets {first} to {new[0] - 1} are lost: Kafka removed them before they were imported"
        assert f"topics: warning: partition {partition} of {source}: {lost}\n" in told
    assert "are lost" not in imported(source, "--topic", "first", "--no-groups"), "a first import begins at the oldest"


def test_messages_that_kafka_removes_while_a_mirror_stands_still_are_told(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    kafka.publish("still", [b"1"], 1)
    arguments = (f"{kafka.url}/still", "--topic", "t", "--no-groups")
    with start(*arguments, "--follow") as mirror:
        wait_for(client, "t", 1)
        mirror.send_signal(signal.SIGSTOP)
        kafka.publish("still", [b"1" * 900_000] * 12, 1)
        mirror.send_signal(signal.SIGCONT)
        wait_for(client, "t", 5)
        mirror.send_signal(signal.SIGINT)
        _, err = mirror.communicate(timeout=PATIENCE_S)
    imported(*arguments)
    told = re.search(r"partition 1 of \S+: offsets (\d+) to (\d+) are lost", err.decode())
    assert told is not None, err
    lost = range(int(told[1]), int(told[2]) + 1)
    assert kafka_ids(client, "t") == {1: [offset for offset in range(13) if offset not in lost]}


def test_groups_of_kafka_begin_before_the_oldest_message_that_they_have_not_read(
    client: topics.Client, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker for tests keeps offsets of groups, but has no list of groups: the names are given here."""
    for partition in (0, 1):
        kafka.publish("grouped", [b"1"] * 30, partition)
    committed = {"all": {0: 30, 1: 30}, "some": {0: 30, 1: 4}, "one": {1: 7}, "new": {0: 0}}
    for group, offsets in committed.items():
        kafka.commit(group, "grouped", offsets)
    kafka.publish("beside", [b"1"], 0)
    kafka.commit("other", "beside", {0: 1})
    source = f"{kafka.url}/grouped"
    told = imported(source, "--topic", "t", "--batch", 7)
    assert "topics: warning: groups of Kafka are left out: Local: Required feature not supported by broker\n" in told
    client.append("t", [{"other": True}])
    listed: Future[Any] = Future()
    listed.set_result(
        SimpleNamespace(errors=[], valid=[SimpleNamespace(group_id=one) for one in (*committed, "other")])
    )
    monkeypatch.setattr(AdminClient, "list_consumer_groups", lambda *_, **__: listed)
    told = imported(source, "--topic", "t")
    entries = [tuple(map(int, entry.split(":"))) for entry in ids_of_source(client, "t")]
    expected = {
        group: next((seq for seq, (part, offset) in enumerate(entries) if offset >= offsets.get(part, 0)), 60)
        for group, offsets in committed.items()
    }
    assert {cursor.group: cursor.seq for cursor in client.groups("t")} == expected
    assert expected["all"] == 60
    assert f'group "some" is created: seq {expected["some"]}, lag {61 - expected["some"]}; entries that it has' in told


def ids_of_source(client: topics.Client, topic: str) -> list[str]:
    metas = [msgspec.json.decode(record.meta) for record in client.read_all(topic, loss="raise") if record.meta]
    return [meta["id"] for meta in metas]


def test_a_topic_of_kafka_that_was_made_anew_is_noticed_also_when_it_is_longer(
    client: topics.Client, kafka: KafkaBroker
) -> None:
    kafka.publish("old", [b"1", b"2"], 0, timestamp=1_000)
    kafka.publish("longer", [b"3"] * 9, 0, timestamp=2_000)
    kafka.publish("shorter", [b"3"], 0, timestamp=1_000)
    imported(f"{kafka.url}/old", "--topic", "t", "--name", "orders", "--no-groups")
    for topic in ("longer", "shorter"):
        result = run(f"{kafka.url}/{topic}", "--topic", "t", "--name", "orders")
        assert result.exit_code == 1
        assert "orders is not the stream whose entry 0:1 was imported: it was made anew;" in result.stderr
    assert client.state("t").head_seq == 2


def test_an_import_tells_that_kafka_is_away(client: topics.Client) -> None:
    broker = KafkaBroker()
    broker.publish("orders", [b"1"], 0)
    with start(f"{broker.url}/orders", "--topic", "t", "--follow", "--no-groups") as mirror:
        wait_for(client, "t", 1)
        broker.stop()
        assert mirror.stderr is not None
        lines = (line.decode() for line in iter(mirror.stderr.readline, b""))
        told = [next(line for line in lines if "does not answer" in line) for _ in range(2)]
        mirror.send_signal(signal.SIGINT)
        mirror.stderr.read()
    for line, pause_s in zip(told, ("0.5", "1"), strict=True):
        assert re.fullmatch(rf"topics: Kafka at {broker.address} does not answer: .+; next try in {pause_s} s\n", line)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("kafka://{at}/none", 'Kafka at {at} has no topic "none"'),
        (
            "kafka://me:s3cret@127.0.0.1:1/x",
            "Kafka at 127.0.0.1:1 does not answer: Connect to ipv4#127.0.0.1:1 failed: Connection refused",
        ),
        ("kafka://{at}", "an address of Kafka is like kafka://127.0.0.1:9092/orders: host, port, topic"),
        (
            "kafka://{at}/x?sasl=s3cret",
            '"s3cret" is no way to sign in to Kafka; sasl is one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512',
        ),
        (
            "kafka://me:s3cret@{at}/x",
            (
                "Kafka at {at} refuses the user or password (Failed to initialize SASL authentication: SASL Handshake "
                "not supported by broker (required by mechanism PLAIN)); give them in the address, or in KAFKA_USER "
                "and KAFKA_PASSWORD"
            ),
        ),
    ],
)
def test_a_topic_of_kafka_that_cannot_be_read_is_told(
    client: topics.Client, kafka: KafkaBroker, source: str, text: str
) -> None:
    result = run(source.replace("{at}", kafka.address), "--topic", "t")
    assert (result.exit_code, result.stderr) == (1, f"topics: {text.replace('{at}', kafka.address)}\n")
    assert client.topics() == []


def test_kafka_with_tls_is_trusted_by_its_certificate_only(
    client: topics.Client, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker for tests has no TLS. Here a relay has it, which is enough to ask for a topic."""
    pair = make_pair(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    host, port = kafka.address.split(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, behind_writer), _pass_on(behind_reader, writer))

    async def both_runs() -> tuple[Result, Result]:
        async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as server:
            source = f"kafkas://127.0.0.1:{server.sockets[0].getsockname()[1]}/none"
            refused = await asyncio.to_thread(run, source, "--topic", "t")
            monkeypatch.setenv("SSL_CERT_FILE", pair.cert)
            return refused, await asyncio.to_thread(run, source, "--topic", "t")

    refused, trusted = asyncio.run(both_runs())
    assert refused.exit_code == trusted.exit_code == 1
    # The library of Kafka tells one of two errors, whichever it notes last.
    assert re.search("does not answer: .*(SSL handshake failed|certificate verify failed)", refused.stderr)
    assert "certificate" in refused.stderr
    assert 'has no topic "none"' in trusted.stderr


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


def test_an_address_of_kafka_has_brokers_and_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    address = kafka_source.parse_address("kafkas://me:s3%40cret@a,b:9093,[::1]:7/or%20ders?sasl=SCRAM-SHA-512")
    assert address[:2] == ("a:9092,b:9093,[::1]:7", "or ders")
    assert address[2:] == ("me", "s3@cret", "SCRAM-SHA-512", True)
    assert "s3@cret" not in repr(address)
    assert kafka_source.KafkaSource(address, name=None, batch_entries=1).name == f"kafka://{address.servers}/or ders"
    monkeypatch.setenv("KAFKA_USER", "me")
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    assert kafka_source.parse_address("kafka://a/x")[2:] == ("me", "s3cret", "PLAIN", False)


# Positions.


@given(
    one=st.tuples(st.integers(0, 2**43), st.integers(0, 2**21)),
    other=st.tuples(st.integers(0, 2**43), st.integers(0, 2**21)),
)
def test_positions_keep_their_order_and_come_back(one: tuple[int, int], other: tuple[int, int]) -> None:
    source = RedisSource(parse_address("redis://h/s"), name=None, field=None, tag_field=None, batch_entries=1)
    texts = [f"{milliseconds}-{number}" for milliseconds, number in (one, other)]
    assert (source.order(texts[0]) < source.order(texts[1])) == (one < other)
    epochs = [source.to_epochs(text) for text in texts]
    for text, epoch in zip(texts, epochs, strict=True):
        assert epoch is None or (epoch[""] < 2**63 and source.from_epochs(epoch) == text)
    if epochs[0] is not None and epochs[1] is not None:
        assert (epochs[0][""] < epochs[1][""]) == (one < other)


@pytest.mark.parametrize(
    ("text", "database", "stream"),
    [
        ("redis://h/orders", 0, "orders"),
        ("redis://h/3/orders", 3, "orders"),
        ("redis://h/3/a/b", 3, "a/b"),
        ("redis://h/a/b", 0, "a/b"),
        ("redis://h/17", 0, "17"),
        ("rediss://h/0/a%20b", 0, "a b"),
    ],
)
def test_an_address_has_a_database_and_a_stream(text: str, database: int, stream: str) -> None:
    address = parse_address(text)
    assert (address.database, address.stream, address.port) == (database, stream, 6379)
    assert address.is_tls == text.startswith("rediss")
