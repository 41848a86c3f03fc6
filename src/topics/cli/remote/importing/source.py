"""A log of another system that can be imported: its entries in order, and how far its readers are."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from topics.errors import InvalidRequest


class Entry(NamedTuple):
    """One entry of the other log. `position` names it there; positions ascend, of several partitions in each."""

    position: str
    data: bytes
    """The payload as JSON text."""
    tag: str | None = None
    meta: dict[str, Any] | None = None


class Reader(NamedTuple):
    """A consumer group of the other log. It is done with every entry up to `done`, an entry or not; None: with none.
    `pending` entries were given to it before, and come again because they are not acknowledged."""

    name: str
    done: str | None
    pending: int


class Source(Protocol):
    """Made with what a user gives; `open` connects."""

    @property
    def position_example(self) -> str: ...

    @property
    def is_partitioned(self) -> bool:
        """Whether a position is the last entry of each of several partitions, and not one entry."""
        ...

    @property
    def partitions(self) -> Sequence[str]:
        """Their names; one empty name for a log that has none."""
        ...

    @property
    def name(self) -> str:
        """Tells this log apart from others, without a secret. Imports under the same name go on after each other."""
        ...

    def open(self) -> int:
        """Connects, and returns how many entries there are. Raises `SourceError`."""
        ...

    def check_same(self, position: str, meta: Mapping[str, Any]) -> None:
        """Raises `SourceMadeAnew` if this cannot be the stream that had the entry at `position`. `meta` is the meta of
        its record, as far as that is known."""
        ...

    def batches(self, after: str | None, *, follow: bool) -> Iterator[list[Entry]]:
        """Entries with a position above `after`, oldest first. With `follow` it waits for new ones, and gives an empty
        batch from time to time while there is none."""
        ...

    def advance(self, position: str | None, entries: Sequence[Entry]) -> str:
        """The position after these entries, which came after `position`."""
        ...

    def readers(self) -> list[Reader]: ...

    def is_beyond(self, meta: Mapping[str, Any], done: str) -> bool | None:
        """Whether the record with this meta, or one before it, is of an entry that is not among those up to `done`.
        None: this record cannot tell it of those before."""
        ...

    def check_position(self, position: str) -> None:
        """Raises ValueError for a text that is no position."""
        ...

    def to_epochs(self, position: str) -> dict[str, int] | None:
        """For each partition with a place in the position a number below 2**63 that ascends with its places, and from
        which `from_epochs` makes the position again. None: this position has none."""
        ...

    def from_epochs(self, epochs: Mapping[str, int]) -> str: ...

    def close(self) -> None: ...


class SourceError(InvalidRequest):
    """The other system cannot be read: it is away, refuses, or has no such log. The message has the next step."""


class SourceMadeAnew(SourceError):
    """The ids of the stream began again, so that its entries would be taken for known ones."""

    def __init__(self, name: str, position: str) -> None:
        super().__init__(
            f"{name} is not the stream whose entry {position} was imported: it was made anew; --name NAME imports it "
            "as another source"
        )


class SourceAway(SourceError):
    """The other server does not answer now. It may later."""


def json_of(value: bytes) -> bytes:
    """The value as JSON text: JSON stays as it is, other text becomes a string, bytes become base64 in an object."""
    try:
        value.decode()
        msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(text_of(value))
    return value


def members_of(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Pairs as an object. The values of a name that is there more than once are an array."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def text_of(value: bytes) -> str | dict[str, str]:
    """Text in UTF-8 as it is; other bytes as an object, because JSON has no bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"$base64": base64.b64encode(value).decode()}
