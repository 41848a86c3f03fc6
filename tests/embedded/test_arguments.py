"""What callers of the embedded log pass in."""

import pytest

from topics.embedded.arguments import checked_max_jobs, named_jobs, skipped_nodes, wait_s
from topics.engine.config import TopicConfig
from topics.errors import InvalidRequest
from topics.results import ConfigMembers, Job


def test_the_members_of_a_config_are_those_of_the_contract() -> None:
    assert set(ConfigMembers.__annotations__) == {*TopicConfig.__struct_fields__, "durable"}


def test_a_job_means_its_lease_and_a_seq_any_lease() -> None:
    job = Job(7, 1, None, b"1", None, lease_id=3, deadline=1, deliveries=1)
    assert named_jobs([job, 9]) == ([7, 9], [3, None])
    assert named_jobs(iter(())) == ([], [])


def test_a_claim_gets_at_most_a_thousand_jobs() -> None:
    assert checked_max_jobs(5000) == 1000


def test_a_wait_without_end_has_no_seconds() -> None:
    assert (wait_s(None), wait_s(0), wait_s(1500)) == (None, 0.0, 1.5)


def test_a_text_is_no_list_of_nodes() -> None:
    with pytest.raises(InvalidRequest, match="put a single node into a list"):
        skipped_nodes("me")
