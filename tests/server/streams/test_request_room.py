"""Room for large requests: bounds that always hold, the order of turns, and that nothing waits for ever."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from topics.server.streams.request_room import Claim, RequestRoom

ALL, EACH = 20, 10
ADA, BOB, EVE, DAN = range(4)


class Requests:
    """Large requests by name, and the room for them."""

    def __init__(self) -> None:
        self.room = RequestRoom(ALL, EACH)
        self.claims: dict[str, Claim] = {}
        # Those that waited, in the order in which they got room.
        self.served: list[str] = []

    def ask(self, name: str, user_id: int, size: int) -> bool:
        claim = self.claims[name] = Claim(self.room, user_id, size, self._note(name))
        return claim.ask()

    def _note(self, name: str) -> Callable[[], None]:
        return lambda: self.served.append(name)

    def end(self, name: str) -> None:
        self.claims[name].end()


def test_requests_within_both_bounds_do_not_wait() -> None:
    requests = Requests()
    assert requests.ask("a", ADA, 6)
    assert requests.ask("b", ADA, 4)
    assert requests.ask("c", BOB, 10)
    assert (requests.room.held_bytes, requests.room.held_by(ADA), requests.room.held_by(BOB)) == (20, 10, 10)
    assert requests.served == []


def test_a_user_without_room_holds_up_no_other_user() -> None:
    requests = Requests()
    requests.ask("a", ADA, 10)
    assert not requests.ask("b", ADA, 1)
    assert requests.ask("c", BOB, 10)
    requests.end("a")
    assert requests.served == ["b"]


def test_requests_of_a_user_get_room_in_their_order() -> None:
    requests = Requests()
    requests.ask("a", ADA, 6)
    assert not requests.ask("b", ADA, 8)
    assert not requests.ask("c", ADA, 1), "it would fit, but it came later"
    requests.end("a")
    assert requests.served == ["b", "c"]


def test_a_large_request_is_not_overtaken_by_small_ones_of_others() -> None:
    requests = Requests()
    for name, user_id in (("a", ADA), ("b", BOB)):
        requests.ask(name, user_id, 9)
    assert not requests.ask("large", EVE, 10)
    assert not requests.ask("small", DAN, 1), "it would fit, but it came later"
    requests.end("a")
    assert requests.served == ["large", "small"]


def test_users_take_turns() -> None:
    requests = Requests()
    for name, user_id in (("a", ADA), ("b", BOB)):
        requests.ask(name, user_id, 10)
    for number in range(2):
        for user_id in (EVE, DAN):
            requests.ask(f"{user_id}{number}", user_id, 5)
    requests.ask("late", EVE, 5)
    requests.end("a")
    requests.end("b")
    assert requests.served == [f"{EVE}0", f"{DAN}0", f"{EVE}1", f"{DAN}1"]


def test_a_request_that_stops_waiting_lets_others_pass() -> None:
    requests = Requests()
    requests.ask("a", ADA, 6)
    requests.ask("b", ADA, 10)
    requests.ask("c", ADA, 4)
    requests.end("b")
    assert requests.served == ["c"]


def test_room_is_wanted_of_those_who_hold_what_others_wait_for() -> None:
    requests = Requests()
    requests.ask("a", ADA, 10)
    requests.ask("b", BOB, 5)
    assert not requests.room.is_wanted_of(ADA)
    requests.ask("c", ADA, 1)
    assert requests.room.is_wanted_of(ADA)
    assert not requests.room.is_wanted_of(BOB), "its room is of no use to a user without room"
    requests.ask("d", EVE, 10)
    assert requests.room.is_wanted_of(BOB)


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, EACH)) | st.integers(0, 30), max_size=60)


@given(STEPS)
def test_bounds_hold_and_everything_gets_room_in_the_end(steps: list[tuple[int, int] | int]) -> None:
    """Each step is a new request, or the end of one, whether it has room or waits."""
    requests = Requests()
    room, claims = requests.room, requests.claims

    def check() -> None:
        held = [claim for claim in claims.values() if claim.is_held]
        assert room.held_bytes == sum(claim.size_bytes for claim in held) <= ALL
        for user_id in range(4):
            assert room.held_by(user_id) == sum(c.size_bytes for c in held if c.user_id == user_id) <= EACH
        assert all(claim.is_held != claim.is_waiting for claim in claims.values())

    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            requests.ask(str(number), *step)
        elif claims:
            name = list(claims)[step % len(claims)]
            requests.end(name)
            del claims[name]
        check()
    while claims:
        name = next(name for name, claim in claims.items() if claim.is_held)
        requests.end(name)
        del claims[name]
        check()
    assert not any(room.is_wanted_of(user_id) for user_id in range(4))
