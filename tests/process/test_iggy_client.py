"""The client of Apache Iggy against a real server: a walk, a group, a refusal, and `kill -9` under its load."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.server.streams.peer import Peer, at_offset
from topics.testing.server_process import ServerProcess

pytest.importorskip("apache_iggy")

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "streams_client.py"
PATIENCE_S: Final = 120

GROUP: Final = """
import asyncio, os, sys
from apache_iggy import AutoCommit, AutoCommitWhen, IggyClient, PollingStrategy, SendMessage

async def main():
    client = IggyClient(sys.argv[1])
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.ping()
    await client.create_stream("orders")
    assert (await client.get_stream("orders")).name == "orders"
    assert await client.get_stream("nothing") is None
    await client.create_topic("orders", "events", 2)
    assert (await client.get_topic("orders", "events")).partitions_count == 2
    for partition in (0, 1):
        await client.send_messages("orders", "events", partition, [SendMessage(f"{partition}-{n}") for n in range(50)])
    consumer = client.consumer_group(
        "workers", "orders", "events", polling_strategy=PollingStrategy.Next(), batch_length=10,
        auto_commit=AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()), create_consumer_group_if_not_exists=True,
        auto_join_consumer_group=True,
    )
    consumer = await consumer
    seen = []
    async for message in consumer.iter_messages():
        seen.append(message.payload().decode())
        if len(seen) == 100:
            break
    assert sorted(seen) == sorted(f"{partition}-{n}" for partition in (0, 1) for n in range(50)), seen
    print("ok", flush=True)
    os._exit(0)

asyncio.run(main())
"""

# The user has no permission at all. Its connection goes on.
REFUSED: Final = """
import asyncio, os, sys
from apache_iggy import IggyClient, SendMessage

async def main():
    client = IggyClient(sys.argv[1])
    await client.connect()
    await client.login_user("nobody", "nobody")
    for _ in range(2):
        try:
            await client.send_messages("orders", "events", 0, [SendMessage(b"x" * 10_000_000)])
        except RuntimeError as error:
            print(error)
    await client.ping()
    print("ok", flush=True)
    os._exit(0)

asyncio.run(main())
"""

# Sends batches of ten numbers, and prints the last one of each batch that was acknowledged.
PRODUCER: Final = """
import asyncio, sys
from apache_iggy import IggyClient, SendMessage

async def main():
    client = IggyClient(sys.argv[1])
    await client.connect()
    await client.login_user("iggy", "iggy")
    number = int(sys.argv[2])
    while True:
        await client.send_messages("orders", "events", 0, [SendMessage(str(number + n)) for n in range(10)])
        number += 10
        print(number - 1, flush=True)

asyncio.run(main())
"""


def run(server: ServerProcess, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, server.streams_address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def peer_of(server: ServerProcess) -> Peer:
    host, _, port = server.streams_address.rpartition(":")
    return Peer((host, int(port))).login()


def test_the_example_shows_what_it_says() -> None:
    with ServerProcess(streams_port=0) as server:
        lines = run(server, str(EXAMPLE)).splitlines()
        assert f"streams          {server.streams_address}, for clients of Apache Iggy 0.8" in server.output
        assert server.stop() == 0
    shown = [(line[:17].strip(), line[17:]) for line in lines]
    assert ("partition 0", "['named 0', 'named 1', 'named 2', 'named 3', 'balanced 0']") in shown
    assert ("poll first", "[0, 1]") in shown
    assert ("poll last", "[3, 4]") in shown
    assert ("poll next again", "[2, 3]") in shown
    assert ("offset", "partition 0: stored 2 of 4") in shown
    assert ("two members", "[[0, 1], [2]]") in shown
    assert ("first has left", "[[0, 1, 2]]") in shown


def test_a_consumer_group_of_the_client_reads_all_messages() -> None:
    with ServerProcess(streams_port=0) as server:
        assert run(server, "-c", GROUP) == "ok\n"


def test_the_client_is_told_why_a_large_send_is_refused() -> None:
    with ServerProcess(streams_port=0) as server:
        with peer_of(server) as peer:
            peer.create("orders", "events")
            peer.create_user("nobody")
        assert run(server, "-c", REFUSED) == "Unauthorized\nUnauthorized\nok\n"


def test_kill_nine_loses_nothing_that_the_client_was_told_is_stored() -> None:
    environ = {
        "IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "1",
        "IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true",
        "IGGY_SYSTEM_SEGMENT_SIZE": "64 KiB",
    }
    with ServerProcess(streams_port=0, environ=environ) as server:
        with peer_of(server) as peer:
            peer.create("orders", "events")
        stored: list[int] = []
        for round_number in range(2):
            first = round_number * 1_000_000
            with subprocess.Popen(
                [sys.executable, "-c", PRODUCER, server.streams_address, str(first)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as producer:
                assert producer.stdout is not None
                acked = [int(producer.stdout.readline()) for _ in range(60 + 30 * round_number)]
                server.kill()
                # The client tries to connect again for ever.
                producer.kill()
                acked += [int(line) for line in producer.stdout.read().splitlines() if line]
            server.start()
            with peer_of(server) as peer:
                found: list[int] = []
                while polled := peer.poll("orders", "events", at_offset(len(found)), count=1000).messages:
                    assert [offset for offset, _ in polled] == list(range(len(found), len(found) + len(polled)))
                    found += [int(payload) for _, payload in polled]
            # What earlier rounds found is still there, then everything acked, then perhaps one batch more.
            assert found[: len(stored)] == stored
            fresh = found[len(stored) :]
            assert fresh == list(range(first, first + len(fresh)))
            assert acked[-1] - first + 1 <= len(fresh) <= acked[-1] - first + 1 + 10
            print(f"round {round_number}: {acked[-1] - first + 1} acked, {len(fresh)} found")
            stored = found
