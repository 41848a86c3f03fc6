"""Warnings about configs."""

import pytest

from topics.protocol.config_warnings import config_warnings, router_warnings
from topics.protocol.request_body import ConfigBody


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("durabilty", ": did you mean durability?"),
        ("Durability", ": did you mean durability?"),
        ("cap-records", ": did you mean cap_records?"),
        ("max_delivery", ": did you mean max_deliveries?"),
        ("deadletter", ": did you mean dead_letter?"),
        ("ttl", ": did you mean ttl_ms?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_an_unknown_member_is_named_with_the_nearest_known_one(name: str, hint: str) -> None:
    assert config_warnings(ConfigBody(), ["cap_records", name]) == [f'"{name}" is not known, and was ignored{hint}']


def test_many_unknown_members_are_counted_and_long_names_are_cut() -> None:
    names = ["durabilty" * 100_000, *(f"zz{number}" for number in range(1000))]
    warnings = config_warnings(ConfigBody(), names)
    assert len(warnings) == 9
    assert len(warnings[0]) < 100
    assert warnings[-1] == "993 more members are not known, and were ignored"


def test_every_known_member_is_known() -> None:
    assert config_warnings(ConfigBody(), ConfigBody.__struct_fields__) == []
    assert router_warnings(["source", "dest", "filter", "create_dest"]) == []
    assert router_warnings(["sorce"]) == ['"sorce" is not known, and was ignored: did you mean source?']


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            ConfigBody(type="queue", dead_letter="d"),
            "dead_letter has no effect without max_deliveries: jobs are delivered again without end",
        ),
        (
            ConfigBody(type="queue", max_deliveries=3),
            "max_deliveries has no effect without dead_letter: jobs are delivered again without end",
        ),
        (
            ConfigBody(max_deliveries=3, dead_letter="d"),
            "only queues use max_deliveries, dead_letter: the type of this topic is log",
        ),
        (
            ConfigBody(durable=True, durability="disk"),
            "durable is true, and has no effect: durability is disk, and wins",
        ),
    ],
)
def test_a_config_that_cannot_do_what_it_says_is_told_so(body: ConfigBody, warning: str) -> None:
    assert config_warnings(body, []) == [warning]


@pytest.mark.parametrize(
    "body",
    [
        ConfigBody(),
        ConfigBody(type="queue"),
        ConfigBody(type="queue", max_deliveries=3, dead_letter="d", leases_durable=True),
        ConfigBody(durable=True, durability="fsync"),
        ConfigBody(durable=True),
        ConfigBody(lease_ms=1, claim_jitter_ms=5, leases_durable=True),
        ConfigBody(discard="reject", cap_records=1, ttl_ms=1, priority=5000),
    ],
)
def test_a_config_that_does_what_it_says_has_no_warnings(body: ConfigBody) -> None:
    assert config_warnings(body, []) == []
