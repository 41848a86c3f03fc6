"""Real servers of other systems for tests: a process on a free port, with its data in a folder of its own.

Kafka is the exception: its broker needs a JVM. The client library brings a broker for tests, which listens on a port of
this process and speaks the protocol. It keeps its data in memory, and the newest 5 MB of each of its four partitions.
"""

import asyncio
import os
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

import nats
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition

from docs_build.recording import free_port

START_S_MAX: Final = 30.0
# Debian has servers where only root looks for programs.
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


class PeerProcess(ABC):
    """One process at a time. Not thread-safe."""

    program: str

    def __init__(self, folder: Path, *options: str) -> None:
        path = shutil.which(self.program, path=PATH)
        if path is None:
            pytest.skip(f"{self.program} is missing; on Debian: apt-get install {self.program}")
        self.port = free_port()
        self._command = [path, *self.arguments(folder), *options]
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def arguments(self, folder: Path) -> list[str]: ...

    @abstractmethod
    def answers(self) -> bool: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self._process is None
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = monotonic() + START_S_MAX
        while not self.answers():
            assert self._process.poll() is None, f"{self.program} ended"
            assert monotonic() < deadline, f"{self.program} did not start in time"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RedisProcess(PeerProcess):
    program = "redis-server"

    def arguments(self, folder: Path) -> list[str]:
        persistence = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return ["--port", str(self.port), "--dir", str(folder), *persistence]

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def client(self, **options: Any) -> Any:
        return redis.Redis(port=self.port, **options)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False
        return True


class NatsProcess(PeerProcess):
    program = "nats-server"

    def arguments(self, folder: Path) -> list[str]:
        return ["-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(folder)]

    @property
    def url(self) -> str:
        return f"nats://{self.address}"

    def answers(self) -> bool:
        """It greets who connects."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def do(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Runs the work with a JetStream client."""

        async def connected() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())


class KafkaBroker:
    """The broker for tests of the client library. Topics are made by the first message."""

    def __init__(self) -> None:
        self._broker: Producer | None = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        (described,) = self._broker.list_topics(timeout=START_S_MAX).brokers.values()
        self.address = f"127.0.0.1:{described.port}"
        self._client: Producer | None = Producer({"bootstrap.servers": self.address, "log_level": 0})

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def publish(self, topic: str, values: Sequence[bytes | None], partition: int, **message: Any) -> None:
        assert self._client is not None
        for value in values:
            self._client.produce(topic, value, partition=partition, **message)
        assert self._client.flush(START_S_MAX) == 0

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """What consumers of the group read next."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "log_level": 0})
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def stop(self) -> None:
        """The library closes the port when it drops them."""
        self._client = self._broker = None
