"""Pages of a topic, as a reader goes through them: how large, and when there is nothing in them."""

from typing import NamedTuple

from topics.engine.topic.reading import Page


class PageBounds(NamedTuple):
    """How much one page may have, and which nodes' records it leaves out."""

    limit: int
    bytes_max: int
    nodes: frozenset[bytes] | None = None


def has_nothing(page: Page) -> bool:
    """Whether a reader may wait for the next record: the page has no record and no tombstone, and no record is left."""
    return page.caught_up and not page.chunks and page.tombstone is None
