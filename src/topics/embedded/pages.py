"""Pages of a topic, as a reader goes through them: which page comes next, and what is in it."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from topics.engine.topic.page import Page, Tombstone
from topics.errors import InvalidRequest, RecordsLost
from topics.formats.records import Record

Loss = Literal["yield", "raise"]
"""What an iterator does where records are lost: it yields a `Tombstone`, or it raises `RecordsLost`."""


class PageBounds(NamedTuple):
    """How much one page may have, and which nodes' records it leaves out."""

    limit: int
    bytes_max: int
    nodes: frozenset[bytes] | None = None


def has_nothing(page: Page) -> bool:
    """Whether a reader may wait for the next record: the page has no record and no tombstone, and no record is left."""
    return page.caught_up and not page.chunks and page.tombstone is None


def items_of(page: Page) -> Iterator[Record | Tombstone]:
    """What a page tells a reader, in seq order: lost records come before the records that are there."""
    if page.tombstone is not None:
        yield page.tombstone
    yield from page.records


def records_of(page: Page) -> list[Record]:
    """The records of a page from which none is missing. Raises `RecordsLost` otherwise."""
    lost = page.tombstone
    if lost is not None:
        raise RecordsLost(page.topic, lost.gap_from, lost.gap_to, lost.reason, lost.earliest_seq - 1)
    return page.records


def check_loss(loss: Loss) -> None:
    if loss not in ("yield", "raise"):
        raise InvalidRequest(f'loss is {loss!r}: choose "yield" or "raise"')
