"""What a worker decides."""

from __future__ import annotations

import pytest

from topics import Job
from topics.client.retrying import Unreachable
from topics.client.working import REASON_CHARACTERS_MAX, WorkerOptions, WorkerSettings, must_claim, reason_of
from topics.errors import InvalidRequest, NotAcceptable, NotFound, Throttled, TopicNotFound


def job(deliveries: int) -> Job:
    return Job(1, 0, None, b"1", None, 1, 0, deliveries)


def test_a_failed_job_waits_twice_as_long_each_time_up_to_a_limit() -> None:
    settings = WorkerSettings.of({})
    delays = [settings.delay_ms(job(deliveries), ValueError()) for deliveries in (1, 2, 3, 9, 10, 1000)]
    assert delays == [1000, 2000, 4000, 256_000, 300_000, 300_000]
    assert WorkerSettings.of({"retry_delay_ms": 7}).delay_ms(job(3), ValueError()) == 7
    wanted = WorkerSettings.of({"retry_delay_ms": lambda failed, error: failed.deliveries + len(str(error))})
    assert wanted.delay_ms(job(3), ValueError("ab")) == 5


def test_workers_have_names_of_their_own_and_extend_in_time() -> None:
    first, second = WorkerSettings.of({}), WorkerSettings.of({})
    assert first.node != second.node
    assert WorkerSettings.of({"node": "w"}).node == "w"
    assert WorkerSettings.of({"lease_ms": 9000}).extend_every_s == 3.0


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"lease_ms": 99}])
def test_options_that_cannot_be_are_refused(options: WorkerOptions) -> None:
    with pytest.raises(InvalidRequest):
        WorkerSettings.of(options)


def test_the_reason_of_a_failure_is_short_and_names_the_error() -> None:
    assert reason_of(KeyError("id")) == "KeyError: 'id'"
    assert len(reason_of(ValueError("x" * 10_000))) == REASON_CHARACTERS_MAX


def test_jobs_are_claimed_where_they_cannot_be_pushed() -> None:
    assert all(must_claim(error) for error in (NotFound("no route"), NotAcceptable("no SSE"), Throttled("full")))
    assert not any(must_claim(error) for error in (TopicNotFound("q"), Unreachable("gone")))
