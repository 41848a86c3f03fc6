import pytest

from topics.engine.config import TopicConfig, checked_config, config_members, stored_config
from topics.errors import BadFrame, InvalidRequest


def test_no_members_give_the_defaults_of_the_contract() -> None:
    config = checked_config({})
    assert config == TopicConfig()
    assert (config.type, config.discard, config.durability, config.durable) == ("log", "old", "disk", False)
    assert (config.ttl_ms, config.cap_records, config.cap_bytes, config.idempotency_window_ms) == (0, 0, 0, 120_000)
    assert (config.auto_create, config.auto_priority, config.dedupe_node, config.priority) == (True, True, True, None)


@pytest.mark.parametrize(
    ("members", "durability"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": False}, "disk"),
        ({"durability": None}, "disk"),
        ({"durability": None, "durable": True}, "fsync"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_durability_wins_over_its_alias(members: dict[str, object], durability: str) -> None:
    config = checked_config(members)
    assert config.durability == durability
    assert config.durable == (durability == "fsync")


def test_leases_and_jitter_are_clamped_and_kept_on_logs_too() -> None:
    config = checked_config({"lease_ms": 1, "claim_jitter_ms": 99_999})
    assert (config.lease_ms, config.claim_jitter_ms) == (100, 5000)
    assert checked_config({"lease_ms": 10**12}).lease_ms == 86_400_000


@pytest.mark.parametrize("name", ["", ".x", "a b", "x" * 256])
def test_a_dead_letter_is_a_topic_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match="dead_letter") as refused:
        checked_config({"dead_letter": name})
    assert refused.value.detail == {"dead_letter": name}
    assert checked_config({"dead_letter": "jobs.dead"}).dead_letter == "jobs.dead"
    assert checked_config({"dead_letter": None}).dead_letter is None


def test_the_largest_numbers_are_accepted() -> None:
    config = checked_config({"ttl_ms": 2**64 - 1, "priority": 99_999})
    assert (config.ttl_ms, config.priority) == (2**64 - 1, 99_999)


@pytest.mark.parametrize("value", [-1, 1.5, 1.0, "5", None, 2**64, True])
def test_a_number_of_the_wrong_kind_or_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^bad topic config: "):
        checked_config({"ttl_ms": value})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"priority": 3_000_000_000}, "bad topic config: priority is out of range"),
        ({"priority": -3_000_000_000}, "bad topic config: priority is out of range"),
        ({"cap_bytes": -1}, "bad topic config: cap_bytes is out of range"),
        ({"ttl": 5}, "unknown topic config member: ttl; did you mean ttl_ms?"),
        ({"durable": None}, "bad topic config: durable must be true or false"),
        ({"type": None}, "bad topic config: type is None: choose among log, queue"),
        ({"durability": "Disk"}, "bad topic config: durability is 'Disk': choose among ephemeral, memory, disk, fsync"),
        ({"discard": "new"}, "bad topic config: discard is 'new': choose among old, reject"),
        ({"auto_create": 1}, "bad topic config: Expected `bool`, got `int` - at `$.auto_create`"),
    ],
)
def test_what_is_wrong_with_a_config_is_said(members: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_config(members)
    assert caught.value.message == message


def test_what_is_stored_is_what_differs_from_the_default() -> None:
    config = checked_config({"durability": "fsync", "cap_records": 3, "priority": 0})
    assert config_members(config) == {"durability": "fsync", "cap_records": 3, "priority": 0}
    assert config_members(TopicConfig()) == {}
    assert stored_config(config_members(config)) == config


def test_members_of_a_newer_version_are_passed_over_when_read_back() -> None:
    assert stored_config({"cap_records": 3, "invented_later": [1]}) == TopicConfig(cap_records=3)


def test_a_stored_config_of_another_shape_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame, match=r"^not a topic config: "):
        stored_config({"cap_records": "three"})
