"""Talks to a running `topics serve` with the client of Apache Iggy, and with plain frames for what it cannot send.

    topics serve --streams                       in one terminal
    pip install apache-iggy==0.8.0               in another one
    python examples/streams_client.py 127.0.0.1:8090

It makes a stream of its own at each run and deletes it at the end.
"""

import asyncio
import os
import socket
import sys
from struct import pack, unpack

from apache_iggy import IggyClient, PollingStrategy, SendMessage

PARTITIONS = 3

# Codes of commands, and the two ways to name things.
LOGIN, POLL, SEND, GET_OFFSET, STORE_OFFSET, DELETE_STREAM = 38, 100, 101, 120, 121, 203
GET_GROUP, CREATE_GROUP, JOIN_GROUP, LEAVE_GROUP = 600, 602, 604, 605


def named(name: str) -> bytes:
    return pack("<BB", 2, len(name)) + name.encode()


def text(value: str) -> bytes:
    return pack("<B", len(value)) + value.encode()


class Frames:
    """A connection that speaks the protocol itself."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._file = self._socket.makefile("rb")
        self.ask(LOGIN, text("iggy") + text("iggy") + bytes(8))

    def ask(self, code: int, payload: bytes) -> bytes:
        self._socket.sendall(pack("<II", 4 + len(payload), code) + payload)
        status, size = unpack("<II", self._file.read(8))
        if status:
            raise SystemExit(f"command {code} was refused with status {status}")
        return self._file.read(size)

    def send(self, stream: str, topic: str, partitioning: bytes, payload: bytes) -> None:
        where = named(stream) + named(topic) + partitioning + pack("<I", 1)
        message = pack("<Q16sQQQIIQ", 0, bytes(16), 0, 0, 0, 0, len(payload), 0) + payload
        self.ask(SEND, pack("<I", len(where)) + where + pack("<IIQ", 0, len(message), 0) + message)

    def poll_as_member(self, stream: str, topic: str, group: str) -> tuple[int, list[int]]:
        """The partition that the server chose, and the offsets of its next messages, which are committed."""
        who = pack("<B", 2) + named(group) + named(stream) + named(topic)
        answer = self.ask(POLL, who + bytes(5) + pack("<BQIB", 5, 0, 10, 1))
        partition, _, count = unpack("<IQI", answer[:16])
        offsets, at = [], 16
        for _ in range(count):
            offset, headers_bytes, payload_bytes = unpack("<24xQ16xII8x", answer[at : at + 64])
            offsets.append(offset)
            at += 64 + headers_bytes + payload_bytes
        return partition, offsets

    def members(self, stream: str, topic: str, group: str) -> list[list[int]]:
        """The partitions of each member, in the order of joins."""
        answer = self.ask(GET_GROUP, named(stream) + named(topic) + named(group))
        at = 13 + answer[12]
        found = []
        while at < len(answer):
            (count,) = unpack("<I", answer[at + 4 : at + 8])
            found.append(list(unpack(f"<{count}I", answer[at + 8 : at + 8 + 4 * count])))
            at += 8 + 4 * count
        return found

    def close(self) -> None:
        self._file.close()
        self._socket.close()


async def main(address: str) -> None:
    stream, topic, group = f"example-{os.getpid()}", "events", "workers"
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream(stream)
    await client.create_topic(stream, topic, PARTITIONS)
    found = await client.get_topic(stream, topic)
    print(f"created          {stream}/{topic} with {found.partitions_count} partitions")
    frames = Frames(address)
    try:
        await partitionings(client, frames, stream, topic)
        await strategies(client, stream, topic)
        offsets(frames, stream, topic)
        groups(address, frames, stream, topic, group)
    finally:
        frames.ask(DELETE_STREAM, named(stream))
        frames.close()
    print("deleted          the stream")


async def partitionings(client: IggyClient, frames: Frames, stream: str, topic: str) -> None:
    await client.send_messages(stream, topic, 0, [SendMessage(f"named {number}") for number in range(4)])
    for number in range(PARTITIONS):
        frames.send(stream, topic, pack("<BB", 1, 0), b"balanced %d" % number)
    for key in (b"customer-1", b"customer-3"):
        for number in range(2):
            frames.send(stream, topic, pack("<BB", 3, len(key)) + key, b"%s message %d" % (key, number))
    for partition in range(PARTITIONS):
        polled = await client.poll_messages(stream, topic, partition, PollingStrategy.First(), 100, False)
        print(f"partition {partition}      {[message.payload().decode() for message in polled]}")


async def strategies(client: IggyClient, stream: str, topic: str) -> None:
    async def show(name: str, strategy: PollingStrategy, count: int, *, auto_commit: bool = False) -> list[int]:
        polled = await client.poll_messages(stream, topic, 0, strategy, count, auto_commit)
        offsets = [message.offset() for message in polled]
        print(f"poll {name:<12}{offsets}")
        return [message.timestamp() for message in polled]

    times = await show("first", PollingStrategy.First(), 2)
    await show("last", PollingStrategy.Last(), 2)
    await show("offset 3", PollingStrategy.Offset(3), 10)
    await show("timestamp", PollingStrategy.Timestamp(times[0]), 3)
    await show("next", PollingStrategy.Next(), 2, auto_commit=True)
    await show("next again", PollingStrategy.Next(), 2, auto_commit=True)


def offsets(frames: Frames, stream: str, topic: str) -> None:
    slot = pack("<B", 1) + named("billing") + named(stream) + named(topic) + pack("<BI", 1, 0)
    print(f"offset           none stored: {frames.ask(GET_OFFSET, slot) == b''}")
    frames.ask(STORE_OFFSET, slot + pack("<Q", 2))
    partition, current, stored = unpack("<IQQ", frames.ask(GET_OFFSET, slot))
    print(f"offset           partition {partition}: stored {stored} of {current}")


def groups(address: str, frames: Frames, stream: str, topic: str, group: str) -> None:
    where = named(stream) + named(topic)
    frames.ask(CREATE_GROUP, where + text(group))
    one, two = Frames(address), Frames(address)
    one.ask(JOIN_GROUP, where + named(group))
    print(f"one member       {frames.members(stream, topic, group)}")
    two.ask(JOIN_GROUP, where + named(group))
    print(f"two members      {frames.members(stream, topic, group)}")
    for name, member in (("first", one), ("second", two)):
        partition, offsets = member.poll_as_member(stream, topic, group)
        print(f"{name:<7}polls     partition {partition}: offsets {offsets}")
    one.ask(LEAVE_GROUP, where + named(group))
    print(f"first has left   {frames.members(stream, topic, group)}")
    one.close()
    two.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8090"))
    # The client keeps a thread with a runtime of its own, which does not end in time.
    sys.stdout.flush()
    os._exit(0)
