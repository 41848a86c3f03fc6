"""A driver with calls for routers. Shared by the tests of forwarding."""

from typing import Any

import msgspec

from tests.engine.driver import Driver
from topics.engine.topic.router import Router, RouterSpec
from topics.formats.records import Record
from topics.limits import READ_BYTES_MAX, READ_LIMIT_MAX
from topics.protocol.tag_match import TagMatch


class RouterDriver(Driver):
    def route(self, source: str = "a", dest: str = "b", *, name: str | None = None, **spec: Any) -> bool:
        """Creates or changes the router `source->dest`. A filter is given as text."""
        wanted = spec.pop("filter", None)
        answers: list[Any] = []
        self.opened.engine.put_router(
            name or f"{source}->{dest}",
            RouterSpec(source=source, dest=dest, filter=TagMatch.parse(wanted) if wanted else None, **spec),
            answers.append,
        )
        created: bool = self.answer(answers)
        return created

    def unroute(self, name: str = "a->b") -> bool:
        answers: list[Any] = []
        self.opened.engine.delete_router(name, answers.append)
        deleted: bool = self.answer(answers)
        return deleted

    def router(self, name: str = "a->b") -> Router:
        return self.opened.engine.router(name)

    def records(self, topic: str = "b") -> list[Record]:
        """Every record that a reader from the start gets."""
        found: list[Record] = []
        from_seq = 0
        while True:
            page = self.read(from_seq, topic=topic)
            found += page.records
            from_seq = page.next_from_seq
            if page.caught_up:
                return found

    def content(self, topic: str = "b") -> list[tuple[int, Any]]:
        """(seq, payload) of every record."""
        return [(record.seq, msgspec.json.decode(record.data)) for record in self.records(topic)]

    def stored(self, topic: str = "b") -> list[tuple[int, Any]]:
        """(seq, payload) of every record that is there. Unlike a read it makes no copies first."""
        found: list[tuple[int, Any]] = []
        from_seq = 0
        while True:
            page = self.topic(topic).read(from_seq, READ_LIMIT_MAX, READ_BYTES_MAX, None)
            found += [(record.seq, msgspec.json.decode(record.data)) for record in page.records]
            from_seq = page.next_from_seq
            if page.caught_up:
                return found

    def gaps(self, topic: str = "b") -> list[tuple[int, int, str]]:
        """(first seq, last seq, reason) of every tombstone that a reader from the start gets."""
        found: list[tuple[int, int, str]] = []
        from_seq = 0
        while True:
            page = self.read(from_seq, topic=topic)
            if page.tombstone is not None:
                found.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
            from_seq = page.next_from_seq
            if page.caught_up:
                return found

    def payloads(self, topic: str = "b") -> list[Any]:
        return [payload for _, payload in self.content(topic)]

    def frames(self) -> int:
        """WAL frames written since the start."""
        return self.opened.engine.wal.total_stats().frames
