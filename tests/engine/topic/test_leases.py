"""The lease table alone: it applies events, and the tests pass the times in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.topic import leases
from topics.engine.topic.leases import LeaseTable
from topics.formats.snapshot import LeaseState


def table_of(*seqs: int, node: str = "w", deadline_ms: int = 100) -> LeaseTable:
    """A table in which these jobs are leased."""
    table = LeaseTable()
    table.ceiling = 1000
    for seq in seqs:
        table.hand_out(seq, node, deadline_ms, held=False)
    return table


def returned(table: LeaseTable) -> list[int]:
    """Takes all returned jobs. Returns their seqs in the order in which they are handed out."""
    seqs = []
    while (lease := table.first_returned()) is not None:
        seqs.append(lease.seq)
        table.take_first_returned()
    return seqs


def test_a_lease_is_over_behind_its_deadline_and_a_delay_at_its_time() -> None:
    table = table_of(1, 2)
    lease = table.held_by(2, "w", None)
    assert lease is not None
    table.release(lease, due_ms=100)
    assert (table.in_flight, table.delayed, table.next_change_ms) == (1, 1, 100)
    assert not table.refresh(99)
    assert table.refresh(100)
    assert (table.in_flight, table.delayed) == (1, 0)
    assert table.refresh(101)
    assert (table.in_flight, table.delayed, table.next_change_ms) == (0, 0, None)
    assert returned(table) == [1, 2]


def test_who_holds_what_is_a_matter_of_node_token_and_state() -> None:
    table = table_of(1)
    assert table.held_by(1, "w", None) is table.held_by(1, "w", 1) is table.current(1, 1)
    assert table.held_by(1, "w", 2) is None
    assert table.held_by(1, "v", None) is None
    assert table.held_by(2, "w", None) is None
    assert table.current(1, 2) is None
    lease = table.held_by(1, "w", None)
    assert lease is not None
    table.hold(lease)
    assert table.held_by(1, "w", 1) is None
    assert not table.refresh(1000), "what is held does not run out"
    table.let_go(lease)
    assert table.refresh(1000)
    assert table.held_by(1, "w", 1) is None


def test_an_extended_lease_does_not_end_at_its_old_time() -> None:
    table = table_of(1)
    lease = table.held_by(1, "w", None)
    assert lease is not None
    table.hold(lease)
    table.let_go(lease, 500)
    assert not table.refresh(101)
    assert table.refresh(501)


def test_a_delivery_that_nobody_was_told_of_is_none() -> None:
    table = table_of(1)
    table.refresh(101)
    returned(table)
    lease = table.hand_out(1, "v", 300, held=True)
    assert (lease.deliveries, lease.lease_id) == (2, 2)
    table.take_back(lease)
    assert (lease.deliveries, table.in_flight) == (1, 0)
    assert returned(table) == [1]
    assert table.hand_out(1, "v", 300, held=False).lease_id == 3


def test_a_second_lease_on_a_job_is_a_bug() -> None:
    """Invariant 45."""
    table = table_of(1)
    with pytest.raises(AssertionError):
        table.hand_out(1, "v", 100, held=False)


def test_an_id_beyond_the_reservation_is_a_bug() -> None:
    table = LeaseTable()
    with pytest.raises(AssertionError):
        table.hand_out(1, "v", 100, held=False)


def test_jobs_that_are_gone_count_nowhere() -> None:
    table = table_of(1, 2, 3, 4)
    lease = table.held_by(2, "w", None)
    assert lease is not None
    table.release(lease, due_ms=50)
    table.forget(1)
    table.forget(1)
    table.forget_below(4)
    assert (len(table), table.in_flight, table.delayed, table.cursor) == (1, 1, 0, 4)
    assert not table.refresh(99)
    assert not table.has(lease)


def test_a_start_finds_what_a_snapshot_says() -> None:
    table = table_of(3, 1, 2, 4)
    for seq, due_ms in ((1, 0), (2, 400)):
        lease = table.held_by(seq, "w", None)
        assert lease is not None
        table.release(lease, due_ms)
    again = LeaseTable()
    for state in table.states():
        again.restore(state)
    assert (
        again.states()
        == table.states()
        == [
            LeaseState(1, 2, 1, "", 0),
            LeaseState(2, 3, 1, "", 400),
            LeaseState(3, 1, 1, "w", 100),
            LeaseState(4, 4, 1, "w", 100),
        ]
    )
    assert (again.in_flight, again.delayed, returned(again)) == (2, 1, [1])
    again.ceiling = 77
    again.resume()
    assert (again.next_id, again.ceiling) == (77, 77)
    again.forget_all()
    assert (len(again), again.in_flight, again.delayed, again.refresh(10_000)) == (0, 0, 0, False)


def test_an_event_about_an_earlier_lease_changes_nothing() -> None:
    table = LeaseTable()
    table.replay_claimed(1, 5, "w", 100, 1)
    table.replay_claimed(1, 9, "v", 200, 2)
    before = table.states()
    table.replay_claimed(1, 5, "w", 100, 1)
    table.replay_extended(1, 5, 900)
    table.replay_released(1, 5, 0)
    table.replay_extended(2, 5, 900)
    table.replay_released(2, 5, 0)
    assert table.states() == before == [LeaseState(1, 9, 2, "v", 200)]
    assert table.in_flight == 1
    table.replay_extended(1, 9, 300)
    table.replay_released(1, 9, 400)
    table.replay_released(1, 9, 0)
    assert table.states() == [LeaseState(1, 9, 2, "", 400)]
    table.replay_claimed(1, 10, "w", 500, 3)
    assert (table.in_flight, table.delayed) == (1, 0)


def test_a_job_that_came_back_twice_goes_out_once() -> None:
    table = LeaseTable()
    table.replay_claimed(1, 5, "w", 100, 1)
    table.replay_released(1, 5, 0)
    table.replay_claimed(1, 6, "w", 100, 2)
    table.replay_released(1, 6, 0)
    assert returned(table) == [1]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["out", "ack", "nack", "delay", "time", "floor"]), st.integers(1, 12)), max_size=60
    )
)
def test_numbers_are_those_of_the_jobs_whatever_happens(steps: list[tuple[str, int]]) -> None:
    """Invariant 46."""
    table = LeaseTable()
    table.ceiling = 1000
    now_ms = floor = 0
    for verb, number in steps:
        lease = table.held_by(number, "w", None)
        if verb == "out" and number not in table and number >= floor:
            table.hand_out(number, "w", now_ms + number, held=False)
        elif verb == "out" and (first := table.first_returned()) is not None:
            table.take_first_returned()
            table.hand_out(first.seq, "w", now_ms + number, held=False)
        elif verb == "ack" and lease is not None:
            table.forget(number)
        elif verb == "nack" and lease is not None:
            table.release(lease)
        elif verb == "delay" and lease is not None:
            table.release(lease, now_ms + number)
        elif verb == "time":
            now_ms += number
            table.refresh(now_ms)
        elif verb == "floor":
            floor = max(floor, number)
            table.forget_below(number)
        leased = [state for state in table.states() if state.node]
        delayed = [state for state in table.states() if not state.node and state.until_ms]
        assert (table.in_flight, table.delayed) == (len(leased), len(delayed))
        assert all(state.until_ms >= now_ms for state in leased)
        assert all(state.until_ms > now_ms for state in delayed)
        assert all(state.seq >= floor for state in table.states())
    ready = [state.seq for state in table.states() if not state.node and not state.until_ms]
    assert returned(table) == ready


def test_what_came_and_went_takes_no_room() -> None:
    """One job stays leased while many others come and go. The table keeps nothing of the others."""
    table = table_of(1, deadline_ms=10**9)
    table.ceiling = 10**6
    for seq in range(2, 20_000):
        table.hand_out(seq, "w", 10**9 + seq, held=False)
        table.forget(seq)
    sizes = [len(heap) for heap in (table._timers, table._seqs, table._returned)]
    assert max(sizes) <= leases.TIDY_ENTRIES_MIN + 2
    assert table.in_flight == 1
    assert table.refresh(10**9 + 1)
    assert returned(table) == [1]
