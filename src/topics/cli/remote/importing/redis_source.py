"""A stream of Redis as the source of an import.

Positions are the ids of entries, `1526919030474-55`: milliseconds and a number in them. The fields of an entry become
an object. Redis allows a field more than once in an entry: then its values are an array.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from topics.cli.remote.importing.ledger import POSITION_MEMBER
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

PORT_DEFAULT: Final = 6379
# A read that waits for new entries returns after this time, so that a stop and a lost connection are noticed.
BLOCK_MS: Final = 1000
CONNECT_S: Final = 5.0
# A position as an epoch: the number inside its millisecond has this many bits.
_NUMBER_BITS: Final = 20
_EPOCH_MAX: Final = 2**63 - 1


class RedisAddress(NamedTuple):
    host: str
    port: int
    database: int
    stream: str
    username: str | None
    password: str | None
    is_tls: bool

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"RedisAddress({self.server}/{self.database}/{self.stream})"


def parse_address(text: str) -> RedisAddress:
    """`redis://[user:password@]host[:port][/database]/stream`. The password may be in REDISCLI_AUTH instead."""
    parts = urlsplit(text)
    first, slash, rest = parts.path.removeprefix("/").partition("/")
    database, stream = (int(first), rest) if slash and first.isdecimal() else (0, parts.path.removeprefix("/"))
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError:
        port = 0
    if not parts.hostname or not stream or not port:
        raise SourceError("an address of Redis is like redis://127.0.0.1:6379/0/orders: host, port, database, stream")
    return RedisAddress(
        host=parts.hostname,
        port=port,
        database=database,
        stream=unquote(stream),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else os.environ.get("REDISCLI_AUTH") or None,
        is_tls=parts.scheme == "rediss",
    )


class RedisSource:
    """`field`: the value of this field is the payload, instead of all fields. `tag_field`: its value is the tag."""

    position_example: Final = "1526919030474-55"
    is_partitioned: Final = False
    partitions: Final = ("",)

    def __init__(
        self, address: RedisAddress, *, name: str | None, field: str | None, tag_field: str | None, batch_entries: int
    ) -> None:
        self._address = address
        self._name = name
        self._field = None if field is None else field.encode()
        self._tag_field = None if tag_field is None else tag_field.encode()
        self._batch_entries = batch_entries
        self._key = address.stream.encode()
        self._redis: Any = None

    @property
    def name(self) -> str:
        return self._name or f"redis://{self._address.server}/{self._address.database}/{self._address.stream}"

    def open(self) -> int:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ModuleNotFoundError as error:
            if error.name != "redis":
                raise
            raise SourceError(
                "streams of Redis need a package that is not installed: pip install 'topics-log[redis]'"
            ) from None
        address = self._address
        self._redis = redis.Redis(
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.username,
            password=address.password,
            ssl=address.is_tls,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=CONNECT_S + BLOCK_MS / 1000,
            # One more try, for a connection that was lost meanwhile. Whoever calls decides about patience.
            retry=Retry(NoBackoff(), 1),
            protocol=2,
        )
        # The package makes a dict of the fields of an entry, and loses fields that are there more than once.
        self._redis.set_response_callback("XREAD", lambda answer, **_: answer)
        kind = self._ask("type", self._key).decode()
        if kind == "none":
            raise SourceError(f'Redis at {address.server} has no key "{address.stream}" in database {address.database}')
        if kind != "stream":
            raise SourceError(f'"{address.stream}" in Redis at {address.server} is a {kind}, and not a stream')
        return int(self._ask("xlen", self._key))

    def check_same(self, position: str, meta: Mapping[str, Any]) -> None:
        """Ids are times, so that a new stream has higher ids than an old one, unless they are made by hand."""
        last = self._ask("xinfo_stream", self._key)["last-generated-id"].decode()
        if self.order(last) < self.order(position):
            raise SourceMadeAnew(self.name, position)

    def batches(self, after: str | None, *, follow: bool) -> Iterator[list[Entry]]:
        position = (after or "0-0").encode()
        while True:
            block = {"block": BLOCK_MS} if follow else {}
            found = self._ask("xread", {self._key: position}, count=self._batch_entries, **block)
            entries = [entry for _, part in found or [] for entry in part]
            if entries:
                position = entries[-1][0]
                yield [self._entry(*entry) for entry in entries]
            elif follow:
                yield []
            else:
                return

    def _entry(self, position: bytes, fields: list[bytes]) -> Entry:
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        tag = next((value for name, value in pairs if name == self._tag_field), None)
        tag_text = None if tag is None else text_of(tag)
        if isinstance(tag_text, dict):
            raise SourceError(f"the tag of entry {position.decode()} is not text in UTF-8")
        return Entry(position.decode(), self._payload(position, pairs), tag_text)

    def _payload(self, position: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
        if self._field is not None:
            for name, value in pairs:
                if name == self._field:
                    return json_of(value)
            raise SourceError(f'entry {position.decode()} has no field "{self._field.decode()}"')
        members = members_of((name.decode("utf-8", "backslashreplace"), text_of(value)) for name, value in pairs)
        return msgspec.json.encode(members)

    def readers(self) -> list[Reader]:
        made = []
        for group in self._ask("xinfo_groups", self._key):
            name, done = group["name"].decode("utf-8", "backslashreplace"), group["last-delivered-id"].decode()
            if group["pending"]:
                # What was given out and not acknowledged comes again, and so does everything after it.
                summary = self._ask("xpending", self._key, group["name"])
                done = _before(summary["min"].decode())
            made.append(Reader(name, None if done == "0-0" else done, group["pending"]))
        return made

    def advance(self, position: str | None, entries: Sequence[Entry]) -> str:
        return entries[-1].position

    def is_beyond(self, meta: Mapping[str, Any], done: str) -> bool:
        return self.order(meta[POSITION_MEMBER]) > self.order(done)

    def check_position(self, position: str) -> None:
        self.order(position)

    def order(self, position: str) -> int:
        """A number that ascends with the positions."""
        milliseconds, number = map(int, position.split("-"))
        return milliseconds << 64 | number

    def to_epochs(self, position: str) -> dict[str, int] | None:
        milliseconds, number = map(int, position.split("-"))
        epoch = milliseconds << _NUMBER_BITS | number
        return {"": epoch} if number < 1 << _NUMBER_BITS and epoch <= _EPOCH_MAX else None

    def from_epochs(self, epochs: Mapping[str, int]) -> str:
        epoch = epochs[""]
        return f"{epoch >> _NUMBER_BITS}-{epoch & (1 << _NUMBER_BITS) - 1}"

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _ask(self, command: str, *arguments: Any, **options: Any) -> Any:
        from redis import exceptions

        try:
            return getattr(self._redis, command)(*arguments, **options)
        except exceptions.AuthenticationError as error:
            reason = str(error).rstrip(".")
            raise SourceError(
                f"Redis at {self._address.server} refuses the user or password ({reason}); give them in the address, "
                "or the password in REDISCLI_AUTH"
            ) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            reason = str(error).rstrip(".")
            raise SourceAway(f"Redis at {self._address.server} does not answer: {reason}") from error
        except exceptions.RedisError as error:
            raise SourceError(f"Redis at {self._address.server}: {error}") from error


def _before(position: str) -> str:
    """The highest position below this one, an entry or not."""
    milliseconds, number = map(int, position.split("-"))
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{2**64 - 1}" if milliseconds else "0-0"
