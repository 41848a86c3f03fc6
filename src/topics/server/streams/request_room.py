"""Room for large requests: bounds what the server holds of requests that are not answered, for each user and in all.

A large request takes room for all of its bytes before the server receives its body, and gives it back when it is
answered, or when its client is gone. So a request that has room can always arrive as a whole. A request without room
waits, and its client with it: nothing more is read from the connection. Requests of one user get room in their order,
users take turns, and a user who has used up its own room keeps no other user waiting.

The other way would be to refuse what does not fit now. The protocol has no status for "try again", so that would fail
sends of clients that do nothing wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Claim:
    """What one large request needs. Loop thread only."""

    __slots__ = ("room", "user_id", "size_bytes", "on_room", "is_held", "is_waiting")

    def __init__(self, room: RequestRoom, user_id: int, size_bytes: int, on_room: Callable[[], None]) -> None:
        self.room = room
        self.user_id = user_id
        self.size_bytes = size_bytes
        # Called when the request gets the room that it waited for.
        self.on_room = on_room
        self.is_held = False
        self.is_waiting = False

    def ask(self) -> bool:
        """Whether the request has room now. If not, it waits."""
        self.room.add(self)
        self.is_waiting = not self.is_held
        return self.is_held

    def end(self) -> None:
        """The request needs no room any more, whether it has some or waits for it."""
        self.room.remove(self)
        self.is_held = self.is_waiting = False


class RequestRoom:
    """Loop thread only. Claims add and remove themselves."""

    def __init__(self, bytes_max: int, user_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._user_bytes_max = user_bytes_max
        self.held_bytes = 0
        self._held_by_user: dict[int, int] = {}
        # By user, in the order of their turns. No line is empty.
        self._lines: dict[int, deque[Claim]] = {}

    def held_by(self, user_id: int) -> int:
        return self._held_by_user.get(user_id, 0)

    def is_wanted_of(self, user_id: int) -> bool:
        """Whether a request waits for room that requests of this user have."""
        return user_id in self._lines or self._next_user() is not None

    def _next_user(self) -> int | None:
        """The user with the next turn: the first one whose next request is within the bound of the user."""
        for user_id, line in self._lines.items():
            if self.held_by(user_id) + line[0].size_bytes <= self._user_bytes_max:
                return user_id
        return None

    def add(self, claim: Claim) -> None:
        assert claim.size_bytes <= min(self._user_bytes_max, self._bytes_max), "it would wait for ever"
        self._lines.setdefault(claim.user_id, deque()).append(claim)
        self._serve()

    def remove(self, claim: Claim) -> None:
        if claim.is_held:
            self._count(claim.user_id, -claim.size_bytes)
        else:
            line = self._lines[claim.user_id]
            line.remove(claim)
            if not line:
                del self._lines[claim.user_id]
        self._serve()

    def _serve(self) -> None:
        """Gives room to requests that wait, one of each user in turn. Nothing overtakes the request with the next turn:
        a large one would wait for ever if smaller ones could."""
        while (user_id := self._next_user()) is not None:
            line = self._lines[user_id]
            if self.held_bytes + line[0].size_bytes > self._bytes_max:
                return
            claim = line.popleft()
            del self._lines[user_id]
            if line:
                # The user goes to the end of the line of users.
                self._lines[user_id] = line
            self._count(user_id, claim.size_bytes)
            claim.is_held = True
            if claim.is_waiting:
                claim.is_waiting = False
                claim.on_room()

    def _count(self, user_id: int, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        of_user = self.held_by(user_id) + size_bytes
        if of_user:
            self._held_by_user[user_id] = of_user
        else:
            del self._held_by_user[user_id]
