"""A stream of NATS JetStream as the source of an import.

Positions are the sequence numbers of the stream. The payload of a message stays as it is if it is JSON. Its subject
becomes the tag. The import reads with a consumer of its own, which it removes at its end, and changes nothing else.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from topics.cli.remote.importing.ledger import POSITION_MEMBER
from topics.cli.remote.importing.source import Entry, Reader, SourceAway, SourceError, SourceMadeAnew, json_of
from topics.limits import TAG_BYTES_MAX

T = TypeVar("T")

PORT_DEFAULT: Final = 4222
CONNECT_S: Final = 5.0
# A read that waits for new messages returns after this time, so that a stop and a lost connection are noticed.
WAIT_S: Final = 1.0
# The server forgets the consumer of an import that was killed after this time.
FORGET_S: Final = 300.0
_EPOCH_MAX: Final = 2**63 - 1


class NatsAddress(NamedTuple):
    host: str
    port: int
    stream: str
    user: str | None
    password: str | None

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"NatsAddress({self.server}/{self.stream})"


def parse_address(text: str) -> NatsAddress:
    """`nats://[user:password@]host[:port]/STREAM`. User and password may be in NATS_USER and NATS_PASSWORD instead."""
    parts = urlsplit(text)
    stream = unquote(parts.path.removeprefix("/"))
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError:
        port = 0
    if not parts.hostname or not stream or "/" in stream or not port:
        raise SourceError("an address of NATS is like nats://127.0.0.1:4222/ORDERS: host, port, stream")
    return NatsAddress(
        host=parts.hostname,
        port=port,
        stream=stream,
        user=unquote(parts.username) if parts.username else os.environ.get("NATS_USER") or None,
        password=unquote(parts.password) if parts.password else os.environ.get("NATS_PASSWORD") or None,
    )


class NatsSource:
    """The client of NATS is asynchronous: it runs on a loop that turns while it is asked something."""

    position_example: Final = "17"
    is_partitioned: Final = False
    partitions: Final = ("",)

    def __init__(self, address: NatsAddress, *, name: str | None, batch_entries: int) -> None:
        self._address = address
        self._name = name
        self._batch_entries = batch_entries
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._stream: Any = None
        self._consumer: str | None = None

    @property
    def name(self) -> str:
        return self._name or f"nats://{self._address.server}/{self._address.stream}"

    def open(self) -> int:
        try:
            import nats.aio.client
        except ModuleNotFoundError as error:
            if error.name != "nats":
                raise
            raise SourceError(
                "streams of NATS need a package that is not installed: pip install 'topics-log[nats]'"
            ) from None
        self._disconnect()
        self._connection = nats.aio.client.Client()
        connecting = self._connection.connect(
            f"nats://{self._address.server}",
            user=self._address.user,
            password=self._address.password,
            connect_timeout=CONNECT_S,
            # One more try. Whoever calls decides about patience.
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,
            allow_reconnect=False,
            # Errors are those of the calls; the package would log each of them beside that.
            error_cb=_ignore,
        )
        self._ask(connecting)
        self._stream = self._connection.jetstream()
        return int(self._info().state.messages)

    def _info(self) -> Any:
        return self._ask(self._stream.stream_info(self._address.stream))

    def check_same(self, position: str, meta: Mapping[str, Any]) -> None:
        """A stream that was made after a message that it should have is another one. Both times are of NATS."""
        if self._connection.is_closed:
            self.open()
        info = self._info()
        time = meta.get("time")
        is_younger = isinstance(time, str) and info.created > datetime.fromisoformat(time)
        if info.state.last_seq < int(position) or is_younger:
            raise SourceMadeAnew(self.name, position)

    def batches(self, after: str | None, *, follow: bool) -> Iterator[list[Entry]]:
        if self._connection.is_closed:
            self.open()
        subscription, pending = self._ask(self._subscribe(int(after or 0) + 1))
        while pending or follow:
            messages = self._ask(self._fetch(subscription))
            if messages:
                pending = messages[-1].metadata.num_pending
            else:
                # Messages that were there at first may be deleted by now.
                pending = self._ask(subscription.consumer_info()).num_pending
            yield [self._entry(message) for message in messages]

    async def _subscribe(self, first_seq: int) -> tuple[Any, int]:
        """A consumer without a name, and how many messages there are for it."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first_seq,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=FORGET_S,
        )
        made = await self._stream.add_consumer(self._address.stream, config)
        self._consumer = made.name
        bound = await self._stream.pull_subscribe_bind(consumer=made.name, stream=self._address.stream)
        return bound, made.num_pending

    async def _fetch(self, subscription: Any) -> list[Any]:
        from nats.errors import TimeoutError as NatsTimeout

        try:
            found: list[Any] = await subscription.fetch(self._batch_entries, timeout=WAIT_S)
        except NatsTimeout:
            # Also what a fetch says when the connection is lost.
            if self._connection.is_closed:
                raise
            return []
        return found

    def _entry(self, message: Any) -> Entry:
        place = message.metadata
        meta: dict[str, Any] = {"subject": message.subject, "time": place.timestamp.isoformat()}
        if message.headers:
            meta["headers"] = dict(message.headers)
        tag = message.subject if len(message.subject.encode()) <= TAG_BYTES_MAX else None
        return Entry(str(place.sequence.stream), json_of(message.data), tag, meta)

    def readers(self) -> list[Reader]:
        """Durable consumers. One that does not acknowledge is done with what it was given."""
        found: list[Any] = []
        while page := self._ask(self._stream.consumers_info(self._address.stream, offset=len(found))):
            found += page
        made = []
        for one in found:
            if one.config.durable_name:
                place = one.delivered if one.config.ack_policy == "none" else one.ack_floor
                made.append(
                    Reader(one.name, str(place.stream_seq) if place.stream_seq else None, one.num_ack_pending or 0)
                )
        return made

    def advance(self, position: str | None, entries: Sequence[Entry]) -> str:
        return entries[-1].position

    def is_beyond(self, meta: Mapping[str, Any], done: str) -> bool:
        return int(meta[POSITION_MEMBER]) > int(done)

    def check_position(self, position: str) -> None:
        int(position)

    def to_epochs(self, position: str) -> dict[str, int] | None:
        return {"": int(position)} if int(position) <= _EPOCH_MAX else None

    def from_epochs(self, epochs: Mapping[str, int]) -> str:
        return str(epochs[""])

    def close(self) -> None:
        if self._consumer is not None and not self._connection.is_closed:
            with suppress(SourceError):
                self._ask(self._stream.delete_consumer(self._address.stream, self._consumer))
        self._disconnect()
        self._loop.close()

    def _disconnect(self) -> None:
        if self._connection is not None and not self._connection.is_closed:
            self._loop.run_until_complete(self._connection.close())

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        from nats import errors
        from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

        server = self._address.server
        try:
            return self._loop.run_until_complete(work)
        except NotFoundError as error:
            raise SourceError(f'NATS at {server} has no stream "{self._address.stream}"') from error
        except (ServiceUnavailableError, errors.NoRespondersError) as error:
            raise SourceError(f"NATS at {server} has no JetStream: start it with nats-server -js") from error
        except APIError as error:
            raise SourceError(f"NATS at {server}: {error.description}") from error
        except (errors.Error, OSError) as error:
            reason = str(error).rstrip(".") or type(error).__name__
            # The package has a class for it, and does not use it while it connects.
            if isinstance(error, errors.AuthorizationError) or "Authorization Violation" in reason:
                raise SourceError(
                    f"NATS at {server} refuses the user or password; give them in the address, or in NATS_USER and "
                    "NATS_PASSWORD"
                ) from error
            raise SourceAway(f"NATS at {server} does not answer: {reason}") from error


async def _ignore(_error: Exception) -> None:
    return
