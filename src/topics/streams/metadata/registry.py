"""Named things of one parent: the streams of a directory, the topics of a stream, the groups of a topic, the users."""

from typing import Generic, Protocol, TypeVar

from topics.formats.stream_command import Identifier
from topics.formats.stream_permissions import U32_MAX
from topics.stream_errors import StreamsError, StreamStatus


class Named(Protocol):
    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    def rename(self, name: str) -> None: ...


N = TypeVar("N", bound=Named)


class Registry(dict[int, N], Generic[N]):
    """Entities by id, with an index of their names and the smallest free id.

    Only `add`, `drop` and `rename` change it.
    """

    def __init__(self, not_found: StreamStatus, name_taken: StreamStatus, kind: str) -> None:
        super().__init__()
        self._not_found = not_found
        self._name_taken = name_taken
        self._kind = kind
        self._ids: dict[str, int] = {}
        # Every id below is taken.
        self._free_from = 0

    def resolve(self, identifier: Identifier) -> N:
        found = self.by_name(identifier) if isinstance(identifier, str) else self.get(identifier)
        if found is None:
            raise StreamsError(self._not_found, f"{self._kind} {identifier!r} does not exist")
        return found

    def by_name(self, name: str) -> N | None:
        return self.get(self._ids.get(name, -1))

    def next_id(self) -> int:
        while self._free_from in self:
            self._free_from += 1
        return self._free_from

    def check_new(self, new_id: int, name: str) -> None:
        """Raises if the id or the name is taken."""
        self.check_name(name)
        if new_id in self or not 0 <= new_id <= U32_MAX:
            raise StreamsError(self._name_taken, f"{new_id} is not free as the id of a {self._kind}")

    def check_name(self, name: str, owner: N | None = None) -> None:
        """Raises if another entity than `owner` has the name."""
        if name in self._ids and (owner is None or owner.name != name):
            raise StreamsError(self._name_taken, f"{self._kind} {name!r} exists already")

    def add(self, entity: N) -> None:
        self.check_new(entity.id, entity.name)
        self[entity.id] = entity
        self._ids[entity.name] = entity.id

    def drop(self, entity: N) -> None:
        del self[entity.id], self._ids[entity.name]
        self._free_from = min(self._free_from, entity.id)

    def rename(self, entity: N, name: str) -> None:
        self.check_name(name, entity)
        del self._ids[entity.name]
        entity.rename(name)
        self._ids[name] = entity.id

    def ascending(self) -> list[N]:
        return [self[key] for key in sorted(self)]
