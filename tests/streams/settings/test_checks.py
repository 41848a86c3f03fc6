"""The defaults pass, and settings that cannot work refuse the start."""

from base64 import b64encode
from dataclasses import replace
from typing import Any, Final

import pytest

from topics.errors import SettingsError, StartRefused
from topics.streams.settings import UNLIMITED, StreamsSettings, check_settings, from_mapping

KEY: Final = b64encode(bytes(32)).decode()


def nested(path: str, value: object) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        check_settings(from_mapping(values))
    return caught.value.message


def test_the_defaults_are_those_of_the_specification_and_pass() -> None:
    settings = StreamsSettings()
    check_settings(settings)
    assert from_mapping({}) == settings
    system = settings.system
    assert (system.path, system.flavour) == ("local_data", "page")
    assert (system.stream.path, system.topic.path, system.partition.path) == ("streams", "topics", "partitions")
    assert (system.runtime.path, system.backup.path) == ("runtime", "backup")
    assert (system.topic.max_size, system.topic.message_expiry_us) == (UNLIMITED, UNLIMITED)
    assert system.partition.messages_required_to_save == 1024
    assert system.partition.size_of_messages_required_to_save == 2**20
    assert system.partition.max_poll_bytes == 64 * 2**20
    assert (system.segment.size, system.segment.cache_indexes) == (2**30, "open_segment")
    assert (system.memory_pool.size, system.memory_pool.bucket_capacity) == (4 * 2**30, 8192)
    assert system.message_deduplication.expiry_us == 60_000_000
    assert settings.message_saver.interval_us == 30_000_000
    assert settings.message_saver.enforce_fsync
    assert not system.partition.enforce_fsync
    assert settings.consumer_group.rebalancing_timeout_us == 30_000_000
    assert settings.consumer_group.rebalancing_check_interval_us == 5_000_000
    assert settings.personal_access_token.max_tokens_per_user == 100
    assert not settings.data_maintenance.messages.keep_unconsumed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("system.segment.size", 513, "system.segment.size is 513: it must be a multiple of 512 bytes, 1073741824"),
        ("system.segment.size", 0, "system.segment.size is 0: "),
        ("system.segment.size", "1025 MiB", "system.segment.size is 1074790400: "),
        ("system.topic.max_size", "1 MiB", "system.topic.max_size is 1048576: "),
        ("system.partition.messages_required_to_save", 0, "system.partition.messages_required_to_save must be 1 or"),
        ("system.partition.max_poll_bytes", 0, "system.partition.max_poll_bytes must be 1 or more"),
        ("system.memory_pool.size", "511 MiB", "system.memory_pool.size is 535822336: "),
        ("system.memory_pool.size", 536_870_913, "system.memory_pool.size is 536870913: "),
        ("system.memory_pool.bucket_capacity", 64, "system.memory_pool.bucket_capacity is 64: "),
        ("system.memory_pool.bucket_capacity", 129, "system.memory_pool.bucket_capacity is 129: "),
        ("system.encryption.enabled", True, "system.encryption.key must be the base64 of exactly 32 bytes"),
        ("message_saver.interval", "0", "message_saver.interval must not be 0 while it is enabled"),
        ("system.runtime.path", "state", "system.runtime.path is 'state', which belongs to the state log"),
        ("system.runtime.path", "logs", "system.runtime.path is 'logs', which belongs to the logs of an Apache Iggy"),
        ("system.runtime.path", "streams", "system.stream.path is 'streams', which belongs to system.runtime.path"),
        ("system.stream.path", "../streams", "system.stream.path is '../streams': it must be the name of one folder"),
        ("system.path", "", "system.path is empty: it must be a folder"),
        ("system.segment.archive_expired", True, "system.segment.archive_expired keeps every segment until"),
        ("system.message_deduplication.max_entries", -1, "system.message_deduplication.max_entries is -1: "),
        ("system.flavour", "vanilla", 'system.flavour is \'vanilla\': it must be one of "page", "iggy"'),
    ],
)
def test_a_start_is_refused_with_what_cannot_work(path: str, value: object, message: str) -> None:
    assert refusal(nested(path, value)).startswith(message)


def test_a_refusal_is_one_of_the_start() -> None:
    with pytest.raises(StartRefused):
        check_settings(from_mapping(nested("system.segment.size", 1)))


def test_what_is_switched_off_may_be_wrong() -> None:
    check_settings(from_mapping({"message_saver": {"enabled": False, "interval": 0}}))
    check_settings(from_mapping({"system": {"memory_pool": {"enabled": False, "size": 1, "bucket_capacity": 1}}}))
    check_settings(from_mapping({"system": {"encryption": {"enabled": False, "key": "short"}}}))
    check_settings(from_mapping({"data_maintenance": {"messages": {"interval": 0}}}))
    assert refusal({"data_maintenance": {"messages": {"interval": 0, "cleaner_enabled": True}}}) == (
        "data_maintenance.messages.interval must not be 0 while it is enabled"
    )


def test_archiving_to_s3_needs_a_bucket() -> None:
    archiver: dict[str, Any] = {"enabled": True, "kind": "s3"}
    assert "s3.bucket must be set" in refusal({"data_maintenance": {"archiver": archiver}})
    check_settings(from_mapping({"data_maintenance": {"archiver": {**archiver, "s3": {"bucket": "b"}}}}))


def test_a_key_of_32_bytes_passes() -> None:
    check_settings(from_mapping({"system": {"encryption": {"enabled": True, "key": KEY}}}))
    for key in (b64encode(bytes(31)).decode(), b64encode(bytes(33)).decode(), KEY + " ", "x" * 44):
        assert "32 bytes" in refusal({"system": {"encryption": {"enabled": True, "key": key}}})


def test_all_problems_of_a_start_are_told_at_once() -> None:
    settings = StreamsSettings()
    system = replace(
        settings.system,
        segment=replace(settings.system.segment, size=1),
        partition=replace(settings.system.partition, messages_required_to_save=0),
    )
    with pytest.raises(SettingsError) as caught:
        check_settings(replace(settings, system=system))
    assert len(caught.value.problems) == 2
