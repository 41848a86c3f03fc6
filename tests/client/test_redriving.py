"""A redrive over several requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from topics.client.redriving import Redrive
from topics.protocol.response_body import Performance, Redriven


def redrive(*, dry_run: bool) -> Redrive:
    return Redrive(
        "q",
        to=None,
        tag="t",
        tag_prefix=None,
        from_ts=0,
        to_ts=None,
        from_seq=0,
        until_seq=None,
        limit=10,
        rate=0,
        dry_run=dry_run,
        key=None,
    )


def answer(stopped: Any, *, moved: int, matched: int, next_from_seq: int) -> Redriven:
    return Redriven(
        topic="q",
        source="dead",
        dest="q",
        moved=moved,
        matched=matched,
        skipped=1,
        next_from_seq=next_from_seq,
        until_seq=90,
        remaining=5,
        stopped=stopped,
        dry_run=False,
        jobs=[],
        performance=Performance(server_total_ms=0.0),
    )


def asked(made: Redrive) -> dict[str, Any]:
    members: dict[str, Any] = msgspec.json.decode(made.next().body or b"")
    return members


def test_the_next_request_goes_on_where_the_last_one_ended_under_the_same_key() -> None:
    made = redrive(dry_run=False)
    first = asked(made)
    assert made.answered(answer("time", moved=4, matched=4, next_from_seq=40)) is None
    second = asked(made)
    assert second == first | {"from_seq": 40, "until_seq": 90}
    done = made.answered(answer("limit", moved=10, matched=10, next_from_seq=70))
    assert done is not None
    # The server counted the jobs of the first request under the key.
    assert (done.moved, done.matched, done.skipped, done.next_from_seq) == (10, 10, 2, 70)


@pytest.mark.parametrize("count", [2, 3])
def test_a_dry_run_counts_the_jobs_of_all_requests(count: int) -> None:
    made = redrive(dry_run=True)
    for number in range(1, count):
        assert made.answered(answer("time", moved=0, matched=2, next_from_seq=10 * number)) is None
        assert asked(made)["limit"] == 10 - 2 * number
    done = made.answered(answer("end", moved=0, matched=2, next_from_seq=90))
    assert done is not None
    assert done.matched == 2 * count
