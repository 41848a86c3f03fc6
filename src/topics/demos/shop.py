"""A small web shop on a server: topics, routers, a queue with failing jobs, groups, and threads that keep it busy.

All names begin with `demo.`, so that the shop can live on a server that has other topics. Orders are numbered, and
each answered order is remembered: `Shop.audit` compares them with what the server has.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

from topics.client.sync.client import Client
from topics.client.sync.worker import Worker
from topics.errors import TopicsError
from topics.results import Job, NewRecord, Tombstone

ORDERS: Final = "demo.orders"
AUDIT: Final = "demo.orders.audit"
LARGE: Final = "demo.orders.large"
ACME: Final = "demo.orders.acme"
ACME_LARGE: Final = "demo.orders.acme.large"
CLICKS: Final = "demo.clicks"
PRESENCE: Final = "demo.presence"
MAILS: Final = "demo.mails"
DEAD_MAILS: Final = "demo.mails.dead"

CUSTOMERS: Final = ("acme", "globex", "initech", "umbrella")
PAGES: Final = ("/", "/docs", "/prices", "/signup", "/cart")
CLICKS_KEPT: Final = 300
# Orders that are there at the beginning.
FIRST_ORDERS: Final = 240

# A mail to a customer with this rest of the order number never goes out; with the second, not at the first try.
_NEVER: Final = 11
_NOT_AT_ONCE: Final = 5
# Why not.
_REASONS: Final = ("550 no such mailbox", "552 mailbox full", "554 refused as spam")


class Audit(NamedTuple):
    """What the server was asked to keep, and what it has."""

    answered: int
    found: int
    missing: int
    repeated: int

    @property
    def is_kept(self) -> bool:
        return not self.missing and not self.repeated


class Shop:
    """The shop on one server. Any thread may call `audit`. `close` ends all threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: list[Worker] = []
        self._numbers = count(1)
        self._clicks = count(1)
        # Orders whose write was answered. Orders of an earlier demo have seqs up to `_from_seq`.
        self._answered: set[int] = set()
        self._from_seq = 0
        self._lock = threading.Lock()

    # Beginning and end.

    def furnish(self, stream: str | None = None) -> None:
        """Creates topics, routers and groups, and writes the first records. `stream` is a topic of a stream, written
        `stream:STREAM/TOPIC`, that gets a copy of every order."""
        client = self._client
        client.create(ORDERS, durability="fsync")
        self._from_seq = client.state(ORDERS).head_seq
        for topic in (AUDIT, LARGE, ACME, ACME_LARGE):
            client.create(topic, durability="disk")
        client.create(CLICKS, durability="memory", cap_records=CLICKS_KEPT)
        client.create(PRESENCE, durability="ephemeral", ttl_ms=60_000)
        client.create(DEAD_MAILS, durability="fsync")
        client.create(
            MAILS, type="queue", durability="fsync", max_deliveries=3, dead_letter=DEAD_MAILS, leases_durable=True
        )
        client.create_router("demo.audit", ORDERS, AUDIT)
        client.create_router("demo.large", AUDIT, LARGE, tag_prefix="large:")
        client.create_router("demo.acme", ORDERS, ACME, tag_prefix="small:acme")
        client.create_router("demo.acme-large", LARGE, ACME_LARGE, tag_prefix="large:acme")
        client.create_router("demo.mails", ORDERS, MAILS, tag_prefix="small:")
        if stream is not None:
            client.create_router("demo.stream", ORDERS, stream)
        for group in ("billing", "analytics", "yearly-report"):
            client.create_group(ORDERS, group)
        client.create_group(AUDIT, "auditor")
        self._take_orders(FIRST_ORDERS)
        for _ in range(4):
            self._note_clicks(200)

    def open(self) -> None:
        """Starts the threads: customers who order and click, workers that send mails, readers of groups."""
        for name, step, pause_s in (
            ("orders", lambda: self._take_orders(2), 0.15),
            ("clicks", lambda: self._note_clicks(15), 0.2),
            ("presence", self._say_who_is_there, 1.0),
            ("billing", lambda: self._read(ORDERS, "billing", 200), 0.5),
            ("analytics", lambda: self._read(ORDERS, "analytics", 3), 1.0),
            ("auditor", lambda: self._read(AUDIT, "auditor", 20), 2.0),
        ):
            self._start(name, step, pause_s)
        for number in (1, 2, 3):
            worker = Worker(
                self._client,
                MAILS,
                self._send_mail,
                node=f"mailer-{number}",
                concurrency=2,
                lease_ms=20_000,
                retry_delay_ms=2000,
            )
            self._workers.append(worker)
            self._start(worker.node, worker.run, 0.1)

    def close(self) -> None:
        """Ends all threads. The client is closed: calls that wait for a server end at once."""
        self._stopping.set()
        for worker in self._workers:
            worker.stop()
        self._client.close()
        for thread in self._threads:
            thread.join()

    def _start(self, name: str, step: Callable[[], object], pause_s: float) -> None:
        def run() -> None:
            while not self._stopping.is_set():
                # A server that is down for a moment is no reason to end.
                with suppress(TopicsError):
                    step()
                self._stopping.wait(pause_s)

        thread = threading.Thread(target=run, name=f"demo-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    # Customers.

    def _take_orders(self, orders: int) -> None:
        numbers = [next(self._numbers) for _ in range(orders)]
        # The client repeats the write with one key until it is answered, also if the server is killed meanwhile.
        self._client.append(ORDERS, [_order(number) for number in numbers])
        with self._lock:
            self._answered.update(numbers)

    def _note_clicks(self, clicks: int) -> None:
        number = next(self._clicks)
        rows = [{"page": PAGES[(number + each) % len(PAGES)], "ms": 20 + each * 7 % 90} for each in range(clicks)]
        self._client.append(CLICKS, [NewRecord(row, node="web-1") for row in rows])

    def _say_who_is_there(self) -> None:
        visitors = [f"visitor-{number}" for number in range(3)]
        self._client.append(PRESENCE, [NewRecord({"user": user, "is": "online"}, tag=user) for user in visitors])

    # Workers and readers.

    def _send_mail(self, job: Job) -> None:
        number = json.loads(job.data)["order"]
        self._stopping.wait(6.0 if number % 40 == 0 else 0.2)
        if number % _NEVER == 0 or (number % _NOT_AT_ONCE == 0 and job.deliveries == 1):
            raise MailRefused(_REASONS[number % len(_REASONS)])

    def _read(self, topic: str, group: str, limit: int) -> None:
        page = self._client.read(topic, group=group, limit=limit)
        if page.records:
            self._client.commit(topic, group, page.records[-1].seq)

    # The audit.

    @property
    def answered_count(self) -> int:
        with self._lock:
            return len(self._answered)

    def audit(self) -> Audit:
        """Compares the orders that were answered until now with those that the server has."""
        with self._lock:
            answered = set(self._answered)
        found: Counter[int] = Counter()
        for item in self._client.read_all(ORDERS, self._from_seq):
            if not isinstance(item, Tombstone):
                found[json.loads(item.data)["order"]] += 1
        kept = answered & found.keys()
        return Audit(
            answered=len(answered),
            found=len(kept),
            missing=len(answered) - len(kept),
            repeated=sum(1 for times in found.values() if times > 1),
        )


class MailRefused(Exception):
    """A mail of the demo does not go out. The text is the reason of its nack."""


def _order(number: int) -> NewRecord:
    customer = CUSTOMERS[number * number % len(CUSTOMERS) - number % 3]
    euros = 5 + number * 37 % 400
    size = "large" if euros > 300 else "small"
    return NewRecord(
        {"order": number, "customer": customer, "euros": euros}, tag=f"{size}:{customer}", node=f"till-{number % 3}"
    )
