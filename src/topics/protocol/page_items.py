"""What a page tells a reader: records, or lost ones. For pages of a server and of a log inside a program."""

from collections.abc import Iterator
from typing import Literal, Protocol

from topics.errors import InvalidRequest, RecordsLost
from topics.formats.records import Record
from topics.results import Tombstone

Loss = Literal["yield", "raise"]
"""What an iterator does where records are lost: it yields a `Tombstone`, or it raises `RecordsLost`."""


class PageLike(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def records(self) -> list[Record]: ...
    @property
    def tombstone(self) -> Tombstone | None: ...


def items_of(page: PageLike) -> Iterator[Record | Tombstone]:
    """What a page tells a reader, in seq order: lost records come before the records that are there."""
    if page.tombstone is not None:
        yield page.tombstone
    yield from page.records


def records_of(page: PageLike) -> list[Record]:
    """The records of a page from which none is missing. Raises `RecordsLost` otherwise."""
    lost = page.tombstone
    if lost is not None:
        raise RecordsLost(page.topic, lost.gap_from, lost.gap_to, lost.reason, lost.earliest_seq - 1)
    return page.records


def check_loss(loss: Loss) -> None:
    if loss not in ("yield", "raise"):
        raise InvalidRequest(f'loss is {loss!r}: choose "yield" or "raise"')
