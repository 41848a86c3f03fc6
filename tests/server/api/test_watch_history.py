"""Watchers under load: each watcher sees the log, minus declared gaps, in order, and each record once.

Writers, a deleter, and a thread that deletes and recreates a topic work at the same time. Watchers are quick, slow, or
die and connect again with the id of the last event they handled. The answers of the writes say which seq has which
record, so the judge knows the log without reading it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import FULL, SEED
from tests.server.clients import CLIENTS, Client
from tests.server.event_streams import EVENT_STREAMS, Event, EventStream
from tests.server.running import Running, running
from topics.protocol.sse import encode_cursor

CAP_RECORDS: Final = 40
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "capped": {"cap_records": CAP_RECORDS},
    "erased": {},
    "plain": {"durability": "fsync"},
    "renewed": {},
}
STEADY: Final = ("capped", "erased", "plain")
WRITERS: Final = 3
WRITES: Final = 150
RENEWALS: Final = 4
# Small, but a window is always as large as a segment: below that the kernel sends very little every 200 ms.
RECEIVE_BUFFER_BYTES: Final = 16_384
SEEDS: Final = range(SEED, SEED + (10 if FULL else 1))
# The last record of each topic.
END: Final = "end"


@dataclass
class Log:
    """The answered writes: payload and tag by seq. A recreated topic has several logs, all in one."""

    payloads: dict[str, dict[int, set[str]]] = field(default_factory=lambda: {name: {} for name in TOPICS})
    deletable: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in TOPICS})
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, client: Client, topic: str, payload: str, count: int, tag: str | None) -> None:
        payloads = [f"{payload} {place}" for place in range(count)] if count > 1 else [payload]
        seqs = client.write(topic, records=[{"data": text, "tag": tag} for text in payloads])["seqs"]
        with self.lock:
            for seq, text in zip(seqs, payloads, strict=True):
                self.payloads[topic].setdefault(seq, set()).add(text)
                if tag == "red":
                    self.deletable[topic].add(seq)


@dataclass
class Watcher:
    """Watches topics up to their last record. `patience` is the number of events after which it dies; 0 = never."""

    server: Running
    protocol: str
    topics: tuple[str, ...]
    dice: random.Random
    patience: int = 0
    receive_buffer_bytes: int = 0
    limit: int = 7
    seen: list[Event] = field(default_factory=list)
    connections: int = 0
    path: str = ""

    def begin(self) -> None:
        with CLIENTS[self.protocol](self.server.host, self.server.port) as client:
            body = {"topics": {name: {} for name in self.topics}, "limit": self.limit}
            self.path = client.request("POST", "/v0/watch", body).json["stream_url"]

    def follow(self) -> None:
        waiting = set(self.topics)
        last_id: str | None = None
        while waiting:
            with self._open(last_id) as stream:
                last_id = self._take_in(stream, waiting) or last_id

    def _open(self, last_id: str | None) -> EventStream:
        self.connections += 1
        return EVENT_STREAMS[self.protocol](
            (self.server.host, self.server.port),
            self.path,
            {} if last_id is None else {"last-event-id": last_id},
            receive_buffer_bytes=self.receive_buffer_bytes,
        )

    def _take_in(self, stream: EventStream, waiting: set[str]) -> str | None:
        last_id = None
        # At least one event is handled: without an id the watcher could not ask for lost events.
        left = self.dice.randint(2, self.patience) if self.patience else -1
        while waiting and left != 0:
            event = stream.next()
            left -= 1
            if left == 0:
                # Dies before it has handled the event, and will ask for it again.
                return last_id
            if event.id is None:
                # An event about pressure moves no cursor.
                continue
            self.seen.append(event)
            last_id = event.id
            if event.name == "record" and END in event.datas:
                waiting.discard(event.data["topic"])
            elif event.name == "topic-deleted":
                return last_id
        return last_id


def run_at_once(works: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
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


def load(server: Running, protocol: str, log: Log, seed: int) -> None:
    def write(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        with CLIENTS[protocol](server.host, server.port) as client:
            for count in range(WRITES):
                topic = dice.choice(list(TOPICS))
                log.write(client, topic, f"{number}-{count}", dice.choice((1, 1, 5)), dice.choice((None, "red")))

    def erase() -> None:
        with CLIENTS[protocol](server.host, server.port) as client:
            for _ in range(WRITES // 5):
                assert client.request("POST", "/v0/topics/erased/delete", {"match": "red"}).status == 200

    def renew() -> None:
        with CLIENTS[protocol](server.host, server.port) as client:
            for _ in range(RENEWALS):
                assert client.request("DELETE", "/v0/topics/renewed").status == 200
                client.put_topic("renewed")

    try:
        run_at_once([*((lambda number=number: write(number)) for number in range(WRITERS)), erase, renew])
    finally:
        # Also after a failure, because watchers wait for the end.
        with CLIENTS[protocol](server.host, server.port) as client:
            for topic in TOPICS:
                log.write(client, topic, END, 1, None)


# The judge.


def faults_of(log: Log, topic: str, events: list[Event], head_seq: int) -> list[str]:
    """Faults in the events of a topic that was never recreated."""
    found: list[str] = []
    at = 0
    for event in events:
        data = event.data
        if event.name == "tombstone":
            if data["gap_from"] != at + 1 or data["reason"] not in ("cap", "from_seq_too_old"):
                found.append(f"{topic}: at {at} the gap {data}")
            if data["gap_to"] > head_seq - TOPICS[topic].get("cap_records", head_seq):
                found.append(f"{topic}: the gap {data} is not the cap's")
            at = data["gap_to"]
        elif event.name == "record":
            seqs = event.seqs
            if seqs != sorted(set(seqs)) or seqs[0] <= at or data["from_seq"] < at or data["to_seq"] < seqs[-1]:
                found.append(f"{topic}: at {at} the seqs {seqs}, from {data['from_seq']} to {data['to_seq']}")
            for seq, text in zip(seqs, event.datas, strict=True):
                if log.payloads[topic].get(seq) != {text}:
                    found.append(f"{topic}: seq {seq} is {text!r}, not {log.payloads[topic].get(seq)}")
            missing = set(range(at + 1, data["to_seq"] + 1)) - set(seqs)
            if not missing <= (log.deletable[topic] if topic == "erased" else set()):
                found.append(f"{topic}: nobody deleted {sorted(missing)}")
            at = data["to_seq"]
        elif event.name == "caught-up" and event.cursors[topic] != data["head_seq"]:
            found.append(f"{topic}: caught up at {event.cursors} of {data['head_seq']}")
        if event.cursors[topic] < at:
            found.append(f"{topic}: the id {event.cursors} at {at}")
    if at != head_seq:
        found.append(f"{topic}: ended at {at} of {head_seq}")
    return found


def faults_of_renewed(log: Log, events: list[Event], last: list[str]) -> list[str]:
    """Faults in the events of a recreated topic: each log from its start, no record twice, and all of the last log."""
    found: list[str] = []
    instances: list[list[tuple[int, str]]] = [[]]
    for event in events:
        if event.name == "tombstone":
            if (event.data["reason"], event.data["gap_from"], event.cursors["renewed"]) != ("from_seq_too_old", 1, 0):
                found.append(f"renewed: {event}")
            instances.append([])
        elif event.name == "record":
            instances[-1] += zip(event.seqs, event.datas, strict=True)
    for instance in instances:
        if [seq for seq, _ in instance] != list(range(1, len(instance) + 1)):
            found.append(f"renewed: seqs {[seq for seq, _ in instance]}")
        found += [f"renewed: {seq} is {text}" for seq, text in instance if text not in log.payloads["renewed"][seq]]
    texts = [text for instance in instances for _, text in instance]
    if len(texts) != len(set(texts)):
        found.append("renewed: a record was seen twice")
    if [text for _, text in instances[-1]] != last:
        found.append("renewed: the last instance was not seen as it is")
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_watcher_sees_the_log_minus_declared_gaps_in_order_once(tmp_path: Path, protocol: str, seed: int) -> None:
    """Invariants 54 and 56."""
    log = Log()
    with running(tmp_path, wal_shards=2, segment_max_events=50) as server:
        with CLIENTS[protocol](server.host, server.port) as client:
            for name, config in TOPICS.items():
                client.put_topic(name, **config)

        def watcher(topics: tuple[str, ...], **kind: Any) -> Watcher:
            return Watcher(server, protocol, topics, random.Random(seed), **kind)

        watchers = [
            watcher(tuple(TOPICS)),
            watcher(tuple(TOPICS), receive_buffer_bytes=RECEIVE_BUFFER_BYTES, limit=2),
            watcher(STEADY, patience=5),
            watcher(STEADY, patience=40, limit=1000),
        ]
        for one in watchers:
            one.begin()
        run_at_once([*(one.follow for one in watchers), lambda: load(server, protocol, log, seed)])
        late = watcher(tuple(TOPICS))
        late.begin()
        late.follow()
        with CLIENTS[protocol](server.host, server.port) as client:
            heads = {topic: client.state(topic)["head_seq"] for topic in TOPICS}
            last = client.datas("renewed", limit=1000)
    for one in [*watchers, late]:
        by_topic = {name: [event for event in one.seen if event.data["topic"] == name] for name in one.topics}
        faults = [fault for name in STEADY for fault in faults_of(log, name, by_topic[name], heads[name])]
        if "renewed" in one.topics:
            faults += faults_of_renewed(log, by_topic["renewed"], last)
        assert faults[:5] == [], one.connections
    assert watchers[2].connections > 5
    assert any(event.name == "tombstone" for event in late.seen)
    # Watchers got the end of the recreated topic, or connected too late for it.
    assert any(event.data.get("topic") == "renewed" and event.name != "record" for event in watchers[0].seen)


# The judge is tested: a stream without faults, and each rule broken once.


def record(from_seq: int, to_seq: int, *seqs: int, texts: str = "") -> Event:
    records = [{"$seq": seq, "data": text} for seq, text in zip(seqs, texts or "abcdefg"[from_seq:], strict=False)]
    data = {"topic": "plain", "records": records, "from_seq": from_seq, "to_seq": to_seq, "head_seq": 4}
    return Event("record", data, encode_cursor({"plain": to_seq}).decode())


def gap(first: int, last: int) -> Event:
    data = {"topic": "plain", "reason": "cap", "gap_from": first, "gap_to": last}
    return Event("tombstone", data, encode_cursor({"plain": last}).decode())


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        pytest.param([record(0, 2, 1, 2), record(2, 4, 3, 4)], "", id="everything, in order"),
        pytest.param([record(0, 2, 1, 2)], "ended at 2 of 4", id="the end is missing"),
        pytest.param([record(0, 2, 1, 2), record(3, 4, 4)], "nobody deleted [3]", id="a record is missing"),
        pytest.param([record(0, 2, 1, 2), record(1, 4, 2, 3, 4)], "at 2 the seqs", id="a record twice"),
        pytest.param([record(0, 4, 2, 1, 3, 4, texts="bacd")], "at 0 the seqs", id="out of order"),
        pytest.param([record(0, 4, 1, 2, 3, 4, texts="abXd")], "seq 3 is 'X'", id="another payload"),
        pytest.param([record(0, 2, 1, 2), gap(3, 4)], "is not the cap's", id="a gap where nothing was lost"),
    ],
)
def test_each_broken_rule_is_found(events: list[Event], fault: str) -> None:
    log = Log()
    log.payloads["plain"] = {seq: {text} for seq, text in enumerate("abcd", 1)}
    found = faults_of(log, "plain", events, head_seq=4)
    assert found == [] if not fault else any(fault in text for text in found), found
