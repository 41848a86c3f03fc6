"""Many clients at once on a few topics, each with its own thread and connection. Their operations are the history."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Any, Final

from tests.server.clients import Client
from tests.server.history import LAST_READER, Erased, History, Operation, Read, Wrote

CAP_RECORDS: Final = 60
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"durability": "disk"},
    "synced": {"durability": "fsync"},
    "capped": {"durability": "disk", "cap_records": CAP_RECORDS},
}
TAGS: Final = ("red", "green", "blue", None, None)
WRITERS: Final = 3
READERS: Final = 3
FOLLOW_MS: Final = 20
PATIENCE_S: Final = 60

Connect = Callable[[], Client]


@dataclass
class Actor:
    """One client. Its operations are in a list that only its thread uses."""

    name: str
    client: Client
    dice: random.Random
    prefix: str
    operations: list[Operation] = field(default_factory=list)
    # The highest head seen, by topic: no cursor is above it.
    heads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))

    def write(self, topic: str, payloads: tuple[str, ...], tag: str | None, key: str | None) -> None:
        members: dict[str, Any] = {"records": [{"data": payload, "tag": tag} for payload in payloads]}
        if key is not None:
            members["idempotency_key"] = key
        begun_ns = monotonic_ns()
        answer = self.client.write(self.prefix + topic, **members)
        ended_ns = monotonic_ns()
        self.operations.append(
            Wrote(
                topic=topic,
                client=self.name,
                begun_ns=begun_ns,
                ended_ns=ended_ns,
                payloads=payloads,
                tag=tag,
                key=key,
                seqs=tuple(answer["seqs"]),
                deduped=answer["deduped"],
            )
        )

    def read(self, topic: str, from_seq: int, limit: int, wait_ms: int = 0) -> Read:
        begun_ns = monotonic_ns()
        page = self.client.diff(self.prefix + topic, from_seq=from_seq, limit=limit, wait_ms=wait_ms, include_tags=True)
        ended_ns = monotonic_ns()
        gap = page["tombstone"]
        read = Read(
            topic=topic,
            client=self.name,
            begun_ns=begun_ns,
            ended_ns=ended_ns,
            from_seq=from_seq,
            limit=limit,
            records=tuple((record["$seq"], record["data"], record.get("$tag")) for record in page["records"]),
            next_from_seq=page["next_from_seq"],
            head_seq=page["head_seq"],
            earliest_seq=page["earliest_seq"],
            caught_up=page["caught_up"],
            gap=None if gap is None else (gap["gap_from"], gap["gap_to"]),
        )
        self.heads[topic] = max(self.heads[topic], read.head_seq)
        self.operations.append(read)
        return read

    def read_anywhere(self) -> None:
        topic = self.dice.choice(list(TOPICS))
        self.read(topic, self.dice.randint(0, self.heads[topic]), self.dice.choice((1, 7, 100, 1000)))

    def erase(self, topic: str, tag: str) -> None:
        begun_ns = monotonic_ns()
        answer = self.client.request("POST", f"/v0/topics/{self.prefix}{topic}/delete", {"match": ["tag", "Eq", tag]})
        ended_ns = monotonic_ns()
        self.operations.append(
            Erased(
                topic=topic,
                client=self.name,
                begun_ns=begun_ns,
                ended_ns=ended_ns,
                tag=tag,
                deleted=answer.json["deleted"],
            )
        )

    # The operations of each kind of client.

    def write_own(self, count: int) -> None:
        """Single records and batches; every third has a key that no other client uses."""
        for number in range(count):
            self.write(*_write_of(self.name, number, self.dice), f"{self.name}-{number}" if number % 3 == 0 else None)

    def write_shared(self, count: int, seed: int) -> None:
        """The same writes with the same keys as a second client, at about the same time."""
        dice = random.Random(seed)
        for number in range(count):
            self.write(*_write_of("twins", number, dice), f"twins-{number}")

    def follow(self, topic: str, count: int) -> None:
        """Continues where the last page ended, and waits there for more."""
        cursor = 0
        for _ in range(count):
            cursor = self.read(topic, cursor, self.dice.choice((3, 50, 1000)), FOLLOW_MS).next_from_seq

    def look_around(self, count: int) -> None:
        for _ in range(count):
            self.read_anywhere()

    def delete_and_look(self, count: int) -> None:
        for _ in range(count // 4):
            for _ in range(3):
                self.read_anywhere()
            tag = self.dice.choice([tag for tag in TAGS if tag is not None])
            self.erase(self.dice.choice(list(TOPICS)), tag)


def _write_of(name: str, number: int, dice: random.Random) -> tuple[str, tuple[str, ...], str | None]:
    topic = dice.choice(list(TOPICS))
    size = dice.choice((1, 1, 1, 3, 12))
    return topic, tuple(f"{name} {number} {place}" for place in range(size)), dice.choice(TAGS)


def run_load(connect: Connect, seed: int, count: int, prefix: str = "") -> History:
    """This many operations of each client, all clients at the same time; then a last reader reads everything."""
    dice = random.Random(seed)

    def actor(name: str) -> Actor:
        return Actor(name, connect(), random.Random(dice.randrange(2**32)), prefix)

    last = actor(LAST_READER)
    for topic, config in TOPICS.items():
        last.client.put_topic(prefix + topic, **config)
    shared_seed = dice.randrange(2**32)
    writers = [actor(f"writer-{number}") for number in range(WRITERS)]
    twins = [actor(f"twin-{number}") for number in range(2)]
    followers = {topic: actor(f"follower-{topic}") for topic in TOPICS}
    readers = [actor(f"reader-{number}") for number in range(READERS)]
    deleter = actor("deleter")
    _run_at_once(
        [
            *(partial(writer.write_own, count) for writer in writers),
            *(partial(twin.write_shared, count, shared_seed) for twin in twins),
            *(partial(follower.follow, topic, count) for topic, follower in followers.items()),
            *(partial(reader.look_around, count) for reader in readers),
            partial(deleter.delete_and_look, count),
        ]
    )
    actors = [*writers, *twins, *followers.values(), *readers, deleter, last]
    for topic in TOPICS:
        cursor, is_done = 0, False
        while not is_done:
            page = last.read(topic, cursor, 1000)
            cursor, is_done = page.next_from_seq, page.caught_up
    operations = [operation for one in actors for operation in one.operations]
    return History(operations, {"capped": CAP_RECORDS})


def _run_at_once(works: list[Callable[[], None]]) -> None:
    """Runs each on its own thread, started together. Raises the first error of a thread."""
    begin = threading.Barrier(len(works))
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            begin.wait(PATIENCE_S)
            work()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for this one.
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
