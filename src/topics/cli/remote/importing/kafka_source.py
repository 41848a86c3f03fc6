"""A topic of Kafka as the source of an import: all its partitions, each in its order.

The id of an entry is `2:17`: partition and offset. A position is the last entry of each partition, `0:41,2:17`; a
partition that is not in it has not been read. The import reads without a consumer group, and changes nothing in Kafka.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from topics.cli.output import message
from topics.cli.remote.importing.ledger import AFTER_MEMBER, POSITION_MEMBER
from topics.cli.remote.importing.source import (
    Entry,
    Reader,
    SourceAway,
    SourceError,
    SourceMadeAnew,
    json_of,
    members_of,
    text_of,
)
from topics.limits import TAG_BYTES_MAX

T = TypeVar("T")

PORT_DEFAULT: Final = 9092
CONNECT_S: Final = 5.0
# A question to a broker that does not answer is asked again after this time, until `CONNECT_S`.
TRY_S: Final = 1.0
# A read that waits for new entries returns after this time, so that a stop and a lost connection are noticed.
WAIT_S: Final = 1.0
# What arrives within this time after the first entry is in the same batch.
FILL_S: Final = 0.02
# A partition whose broker sends nothing for this time, although there are entries, is away.
STALL_S: Final = 30.0
# How often an import that follows looks for new partitions.
PARTITIONS_EVERY_S: Final = 30.0
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_POSITION: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")
# Around the reason in an error of the package: `127.0.0.1:9092/bootstrap: REASON (after 0ms in state CONNECT)`.
_AROUND_REASON: Final = re.compile(r"^\S+/\w+: | \(after \d+ms in state \w+.*\)$")


class KafkaAddress(NamedTuple):
    servers: str
    topic: str
    user: str | None
    password: str | None
    mechanism: str
    is_tls: bool

    def __repr__(self) -> str:
        return f"KafkaAddress({self.servers}/{self.topic})"


def parse_address(text: str) -> KafkaAddress:
    """`kafka://[user:password@]host[:port][,host[:port]…]/TOPIC[?sasl=MECHANISM]`, and `kafkas://` for TLS. User and
    password may be in KAFKA_USER and KAFKA_PASSWORD instead."""
    parts = urlsplit(text)
    account, _, hosts = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    topic = unquote(parts.path.removeprefix("/"))
    found = [re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?", host) for host in hosts.split(",")]
    servers = ",".join(f"{one[1]}:{one[2] or PORT_DEFAULT}" for one in found if one)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    mechanism = options.pop("sasl", SASL_MECHANISMS[0])
    if not all(found) or not topic or "/" in topic or options:
        raise SourceError("an address of Kafka is like kafka://127.0.0.1:9092/orders: host, port, topic")
    if mechanism not in SASL_MECHANISMS:
        raise SourceError(f'"{mechanism}" is no way to sign in to Kafka; sasl is one of {", ".join(SASL_MECHANISMS)}')
    return KafkaAddress(
        servers=servers,
        topic=topic,
        user=unquote(user) or os.environ.get("KAFKA_USER") or None,
        password=unquote(password) or os.environ.get("KAFKA_PASSWORD") or None,
        mechanism=mechanism,
        is_tls=parts.scheme == "kafkas",
    )


class KafkaSource:
    """The package connects in the background. Its errors come while it is polled, and are kept for the next answer."""

    position_example: Final = "0:41,2:17"
    is_partitioned: Final = True

    def __init__(self, address: KafkaAddress, *, name: str | None, batch_entries: int) -> None:
        self._address = address
        self._name = name
        self._batch_entries = batch_entries
        self._consumer: Any = None
        self._reason: str | None = None
        self._is_refused = False
        self._is_down = False

    @property
    def name(self) -> str:
        return self._name or f"kafka://{self._address.servers}/{self._address.topic}"

    @property
    def partitions(self) -> Sequence[str]:
        return [str(partition) for partition in self._partitions()]

    # Connecting.

    def open(self) -> int:
        try:
            import confluent_kafka
        except ModuleNotFoundError as error:
            if error.name != "confluent_kafka":
                raise
            raise SourceError(
                "topics of Kafka need a package that is not installed: pip install 'topics-log[kafka]'"
            ) from None
        self.close()
        self._reason, self._is_refused, self._is_down = None, False, False
        options = {
            # The package asks for the name of a group; without a commit there is none in Kafka.
            "group.id": "topics-import",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # A broker answers a connection's requests in turn: what waits for entries delays the others.
            "fetch.wait.max.ms": 100,
            # An offset that is gone is told, and never skipped in silence.
            "auto.offset.reset": "error",
        }
        self._consumer = self._ask(lambda: confluent_kafka.Consumer(self._connection() | options))
        self._wait_for_broker()
        return sum(high - low for low, high in map(self._range, self._partitions()))

    def _connection(self) -> dict[str, Any]:
        address = self._address
        protocol = ("SASL_" if address.user else "") + ("SSL" if address.is_tls else "PLAINTEXT")
        options = {
            "bootstrap.servers": address.servers,
            "client.id": "topics-import",
            "security.protocol": protocol,
            # Errors are those of the calls; the package would log each of them beside that.
            "log_level": 0,
            "error_cb": self._keep,
        }
        if address.user:
            options |= {
                "sasl.mechanism": address.mechanism,
                "sasl.username": address.user,
                "sasl.password": address.password or "",
            }
        if address.is_tls and os.environ.get("SSL_CERT_FILE"):
            options["ssl.ca.location"] = os.environ["SSL_CERT_FILE"]
        return options

    def _keep(self, error: Any) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._is_down = True
        else:
            self._is_refused = error.name() == "_AUTHENTICATION"
            self._reason = _AROUND_REASON.sub("", error.str())

    def _wait_for_broker(self) -> None:
        from confluent_kafka import KafkaException

        deadline = monotonic() + CONNECT_S
        while True:
            try:
                self._consumer.list_topics(self._address.topic, timeout=TRY_S)
            except KafkaException as error:
                self._consumer.poll(0)
                if self._is_down or monotonic() > deadline:
                    raise self._explained(error) from error
            else:
                return

    def _partitions(self) -> list[int]:
        described = self._ask(lambda: self._consumer.list_topics(self._address.topic, timeout=CONNECT_S))
        topic = described.topics[self._address.topic]
        if topic.error is not None and topic.error.name() == "UNKNOWN_TOPIC_OR_PART":
            raise SourceError(f'Kafka at {self._address.servers} has no topic "{self._address.topic}"')
        if topic.error is not None:
            raise SourceError(f"Kafka at {self._address.servers}: {topic.error.str()}")
        return sorted(topic.partitions)

    def _range(self, partition: int) -> tuple[int, int]:
        """The offset of its oldest entry, and the one that its next entry will have."""
        place = self._place(partition)
        low, high = self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=CONNECT_S))
        return low, high

    def _place(self, partition: int, offset: int | None = None) -> Any:
        from confluent_kafka import OFFSET_INVALID, TopicPartition

        return TopicPartition(self._address.topic, partition, OFFSET_INVALID if offset is None else offset)

    def check_same(self, position: str, meta: Mapping[str, Any]) -> None:
        """A topic that ends before an entry that was imported is another one, and so is one that has another entry in
        its place. An entry that Kafka has removed tells nothing."""
        if self._is_down:
            self.open()
        ranges = {partition: self._range(partition) for partition in self._partitions()}
        for partition, offset in offsets_of(position).items():
            if partition not in ranges or ranges[partition][1] <= offset:
                raise SourceMadeAnew(self.name, position)
        if "timestamp" in meta:
            ((partition, offset),) = offsets_of(meta[POSITION_MEMBER]).items()
            found = self._entry_at(partition, offset) if offset >= ranges[partition][0] else None
            if found is not None and found.timestamp()[1] != meta["timestamp"]:
                raise SourceMadeAnew(self.name, meta[POSITION_MEMBER])

    def _entry_at(self, partition: int, offset: int) -> Any:
        self._consumer.assign([self._place(partition, offset)])
        found = self._consumer.poll(CONNECT_S)
        self._consumer.unassign()
        return found if found is not None and found.error() is None and found.offset() == offset else None

    # Reading.

    def batches(self, after: str | None, *, follow: bool) -> Iterator[list[Entry]]:
        if self._is_down:
            self.open()
        reading = _Reading(offsets_of(after) if after else {})
        if after:
            # A partition that had no entry for the last import.
            reading.next = dict.fromkeys(self._partitions(), 0) | reading.next
        self._start(reading)
        while follow or reading.behind:
            entries = self._fetch(reading)
            if entries or follow:
                yield entries
            if follow and monotonic() - reading.started_s > PARTITIONS_EVERY_S:
                reading.started_s = monotonic()
                if set(self._partitions()) != set(reading.ends):
                    self._start(reading)

    def _start(self, reading: "_Reading") -> None:
        """Begins after the last entry of each partition. What Kafka has removed before it was read is told."""
        for partition in self._partitions():
            low, high = self._range(partition)
            start = reading.next.get(partition, low)
            if start > high:
                raise SourceMadeAnew(self.name, f"{partition}:{start - 1}")
            if start < low:
                message(
                    f"topics: warning: partition {partition} of {self.name}: offsets {start} to {low - 1} are lost: "
                    "Kafka removed them before they were imported"
                )
                start = low
            reading.next[partition] = start
            reading.ends[partition] = high
        reading.behind = {partition for partition, end in reading.ends.items() if reading.next[partition] < end}
        self._consumer.assign([self._place(partition, start) for partition, start in reading.next.items()])

    def _fetch(self, reading: "_Reading") -> list[Entry]:
        first = self._consumer.poll(WAIT_S)
        found = [] if first is None else [first]
        if found and self._batch_entries > 1:
            found += self._ask(lambda: self._consumer.consume(self._batch_entries - 1, timeout=FILL_S))
        entries = []
        is_gone = False
        for one in found:
            partition, error = one.partition(), one.error()
            if error is None:
                entries.append(_entry(one))
                reading.next[partition] = one.offset() + 1
                if reading.next[partition] >= reading.ends[partition]:
                    reading.behind.discard(partition)
            elif error.name() == "_PARTITION_EOF":
                reading.behind.discard(partition)
            elif error.name() == "_AUTO_OFFSET_RESET":
                is_gone = True
            else:
                raise SourceError(f"Kafka at {self._address.servers}: {error.str()}")
        if found:
            reading.heard_s = monotonic()
            self._is_down = False
        elif self._is_down or (reading.behind and monotonic() - reading.heard_s > STALL_S):
            self._is_down = True
            raise self._away(f"it sent nothing for {STALL_S:g} s")
        if is_gone:
            self._start(reading)
        return entries

    def advance(self, position: str | None, entries: Sequence[Entry]) -> str:
        last = offsets_of(position) if position else {}
        for entry in entries:
            last |= offsets_of(entry.position)
        return position_of(last)

    # Groups.

    def readers(self) -> list[Reader]:
        """The groups that have committed an offset of this topic."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
        from confluent_kafka.admin import AdminClient

        places = [self._place(partition) for partition in self._partitions()]
        made = []
        try:
            admin = AdminClient(self._connection())
            listed = admin.list_consumer_groups(request_timeout=CONNECT_S).result()
            if listed.errors:
                raise KafkaException(listed.errors[0])
            for name in sorted(group.group_id for group in listed.valid):
                asked = ConsumerGroupTopicPartitions(name, places)
                (answer,) = admin.list_consumer_group_offsets([asked], request_timeout=CONNECT_S).values()
                commits = {place.partition: place.offset for place in answer.result().topic_partitions}
                if any(offset >= 0 for offset in commits.values()):
                    done = position_of({partition: offset - 1 for partition, offset in commits.items() if offset > 0})
                    made.append(Reader(name, done or None, 0))
        except KafkaException as error:
            message(f"topics: warning: groups of Kafka are left out: {error.args[0].str()}")
            return []
        return made

    def is_beyond(self, meta: Mapping[str, Any], done: str) -> bool | None:
        """Only the last record of a batch knows how far all partitions are."""
        read = offsets_of(done)
        reached = offsets_of(meta.get(AFTER_MEMBER, meta[POSITION_MEMBER]))
        if any(offset > read.get(partition, -1) for partition, offset in reached.items()):
            return True
        return False if AFTER_MEMBER in meta else None

    # Positions.

    def check_position(self, position: str) -> None:
        offsets_of(position)

    def to_epochs(self, position: str) -> dict[str, int]:
        """The first epoch of a writer is 1, the first offset 0."""
        return {str(partition): offset + 1 for partition, offset in offsets_of(position).items()}

    def from_epochs(self, epochs: Mapping[str, int]) -> str:
        return position_of({int(partition): epoch - 1 for partition, epoch in epochs.items()})

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # Errors.

    def _ask(self, work: Callable[[], T]) -> T:
        from confluent_kafka import KafkaException

        try:
            return work()
        except KafkaException as error:
            raise self._explained(error) from error

    def _explained(self, error: Any) -> SourceError:
        code, reason = error.args[0].name(), error.args[0].str()
        if code in {"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE"}:
            return self._away(reason)
        return SourceError(f"Kafka at {self._address.servers}: {reason}")

    def _away(self, reason: str) -> SourceError:
        servers = self._address.servers
        self._is_down = True
        if self._is_refused:
            return SourceError(
                f"Kafka at {servers} refuses the user or password ({self._reason}); give them in the address, or in "
                "KAFKA_USER and KAFKA_PASSWORD"
            )
        return SourceAway(f"Kafka at {servers} does not answer: {self._reason or reason}")


class _Reading:
    """How far a run is: the next offset of each partition, where each ended at the start, and which are not there."""

    def __init__(self, last: dict[int, int]) -> None:
        self.next = {partition: offset + 1 for partition, offset in last.items()}
        self.ends: dict[int, int] = {}
        self.behind: set[int] = set()
        self.started_s = self.heard_s = monotonic()


def _entry(found: Any) -> Entry:
    meta: dict[str, Any] = {"timestamp": found.timestamp()[1]}
    key, headers, value = found.key(), found.headers(), found.value()
    tag = None
    if key is not None:
        meta["key"] = text_of(key)
        tag = meta["key"] if key and len(key) <= TAG_BYTES_MAX and isinstance(meta["key"], str) else None
    if headers:
        meta["headers"] = members_of((name, None if one is None else text_of(one)) for name, one in headers)
    data = b"null" if value is None else json_of(value)
    return Entry(f"{found.partition()}:{found.offset()}", data, tag, meta)


def offsets_of(position: str) -> dict[int, int]:
    """The last offset of each partition. Raises ValueError."""
    if not _POSITION.fullmatch(position):
        raise ValueError(f'"{position}" is no position in Kafka')
    pairs = (one.split(":") for one in position.split(","))
    return {int(partition): int(offset) for partition, offset in pairs}


def position_of(offsets: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(offsets.items()))
