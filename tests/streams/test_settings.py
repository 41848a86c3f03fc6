"""Settings: names and defaults of the specification, values as people write them, and what refuses a start."""

from base64 import b64encode
from dataclasses import replace
from typing import Any, Final

import pytest

from topics.errors import SettingsError, StartRefused
from topics.streams.settings import (
    UNLIMITED,
    StreamsSettings,
    environment_mapping,
    from_mapping,
    parse_cache_indexes,
    parse_duration_us,
    parse_expiry_us,
    parse_size,
    parse_topic_size,
    setting_names,
)

KEY: Final = b64encode(bytes(32)).decode()


def nested(path: str, value: object) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        from_mapping(values).check()
    return caught.value.message


def test_the_defaults_are_those_of_the_specification_and_pass() -> None:
    settings = StreamsSettings()
    settings.check()
    assert from_mapping({}) == settings
    system = settings.system
    assert (system.path, system.flavour) == ("local_data", "page")
    assert (system.stream.path, system.topic.path, system.partition.path) == ("streams", "topics", "partitions")
    assert (system.runtime.path, system.logging.path, system.backup.path) == ("runtime", "logs", "backup")
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


def test_names_are_those_of_the_specification() -> None:
    names = set(setting_names())
    assert {
        "system.path",
        "system.flavour",
        "system.backup.compatibility.path",
        "system.state.retry_delay",
        "system.topic.message_expiry",
        "system.message_deduplication.expiry",
        "message_saver.interval",
        "data_maintenance.messages.interval",
        "data_maintenance.archiver.disk.path",
        "data_maintenance.archiver.s3.key_secret",
        "consumer_group.rebalancing_timeout",
        "personal_access_token.cleaner.interval",
        "heartbeat.interval",
        "system.compression.force",
    } <= names
    assert not [name for name in names if name.endswith("_us")]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("1 KB", 1000),
        ("1 KiB", 1024),
        ("1kib", 1024),
        ("  500   MB ", 500_000_000),
        ("1.5 MiB", 1_572_864),
        ("4 GiB", 4 * 2**30),
        ("7 B", 7),
        ("1 TiB", 2**40),
    ],
)
def test_sizes_are_numbers_with_a_unit(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1 XB", "-1", "1 KiB KiB", -1, True, None, 1.5, "\uff11 KB", "unlimited"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r'^a size, such as "1 GiB"'):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        (0, 0),
        ("0", 0),
        ("none", 0),
        ("Disabled", 0),
        ("unlimited", 0),
        ("1 m", 60_000_000),
        ("30s", 30_000_000),
        ("1m30s", 90_000_000),
        ("2 days 4 hours", 52 * 3600 * 1_000_000),
        ("250 ms", 250_000),
        ("7us", 7),
        ("1500 ns", 1),
        ("1 week", 7 * 86_400 * 1_000_000),
        ("1 M", 30.44 * 86_400 * 1_000_000),
        ("1 year", 365.25 * 86_400 * 1_000_000),
        ("0.5 s", 500_000),
    ],
)
def test_durations_are_numbers_with_units(text: int | str, us: float) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize("text", ["", "5", 5, "5 parsecs", "s", "1 m and 3 s", "-1 s", None, False, "1 m 5"])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r'^a duration, such as "30 s"'):
        parse_duration_us(text)


def test_defaults_of_topics_may_be_without_end() -> None:
    assert [parse_expiry_us(text) for text in ("none", "unlimited", "never_expire", "0", 0)] == [UNLIMITED] * 5
    assert parse_expiry_us("1 day") == 86_400_000_000
    assert parse_topic_size("unlimited") == UNLIMITED
    assert parse_topic_size("2 GiB") == 2 * 2**30


def test_cached_indexes_may_be_said_by_a_flag() -> None:
    assert [parse_cache_indexes(value) for value in (True, False, "all", "open_segment", "none", "true")] == [
        "all",
        "none",
        "all",
        "open_segment",
        "none",
        "all",
    ]


def test_a_mapping_is_read_section_by_section() -> None:
    settings = from_mapping(
        {
            "system": {
                "segment": {"size": "1 MiB", "cache_indexes": False},
                "compression": {"default_algorithm": "ZSTD", "allow_override": True},
                "topic": {"max_size": "10 MiB", "message_expiry": "7 days"},
            },
            "message_saver": {"interval": "100 ms", "enforce_fsync": False},
        }
    )
    settings.check()
    assert settings.system.segment.size == 2**20
    assert settings.system.segment.cache_indexes == "none"
    assert settings.system.compression.default_algorithm == "zstd"
    assert settings.system.topic.max_size == 10 * 2**20
    assert settings.message_saver.interval_us == 100_000
    assert not settings.message_saver.enforce_fsync


def test_every_problem_of_a_mapping_is_told_with_a_suggestion() -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping(
            {
                "systm": {},
                "system": {"segment": {"sise": 3, "cache_indexes": "some"}, "partition": {"enforce_fsync": "yes"}},
                "message_saver": {"interval": 30},
                "heartbeat": "5 s",
                "zzz": 1,
            }
        )
    assert caught.value.problems == (
        "systm is no setting; did you mean system?",
        "zzz is no setting",
        "system.partition.enforce_fsync is 'yes': it must be true or false",
        "system.segment.sise is no setting; did you mean system.segment.size?",
        'system.segment.cache_indexes is \'some\': it must be one of "all", "open_segment", "none"',
        'message_saver.interval is 30: it must be a duration, such as "30 s", "1 m" or "2 days 4 hours"',
        "heartbeat is a section, not a value",
    )


def test_secrets_are_in_no_message_and_no_repr() -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping({"system": {"encryption": {"key": ["hush"]}}})
    assert caught.value.message == "system.encryption.key: it must be text"
    assert "hush" not in refusal({"system": {"encryption": {"enabled": True, "key": "hush"}}})
    secret = {"key_id": "hush", "key_secret": "hush"}
    settings = from_mapping(
        {"system": {"encryption": {"key": "hush"}}, "data_maintenance": {"archiver": {"s3": secret}}}
    )
    assert "hush" not in repr(settings)


def test_the_environment_names_settings_by_their_path() -> None:
    values = environment_mapping(
        {
            "IGGY_SYSTEM_SEGMENT_SIZE": "1 MiB",
            "IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC": "true",
            "IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "5000",
            "IGGY_MESSAGE_SAVER_INTERVAL": "1 s",
            "IGGY_ROOT_PASSWORD": "of the server",
            "PATH": "/bin",
        }
    )
    settings = from_mapping(values)
    assert settings.system.segment.size == 2**20
    assert settings.system.partition.enforce_fsync
    assert settings.system.partition.messages_required_to_save == 5000
    assert settings.message_saver.interval_us == 1_000_000


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
        from_mapping(nested("system.segment.size", 1)).check()


def test_what_is_switched_off_may_be_wrong() -> None:
    from_mapping({"message_saver": {"enabled": False, "interval": 0}}).check()
    from_mapping({"system": {"memory_pool": {"enabled": False, "size": 1, "bucket_capacity": 1}}}).check()
    from_mapping({"system": {"encryption": {"enabled": False, "key": "short"}}}).check()
    from_mapping({"data_maintenance": {"messages": {"interval": 0}}}).check()
    assert refusal({"data_maintenance": {"messages": {"interval": 0, "cleaner_enabled": True}}}) == (
        "data_maintenance.messages.interval must not be 0 while it is enabled"
    )


def test_archiving_to_s3_needs_a_bucket() -> None:
    archiver: dict[str, Any] = {"enabled": True, "kind": "s3"}
    assert "s3.bucket must be set" in refusal({"data_maintenance": {"archiver": archiver}})
    from_mapping({"data_maintenance": {"archiver": {**archiver, "s3": {"bucket": "b"}}}}).check()


def test_a_key_of_32_bytes_passes() -> None:
    from_mapping({"system": {"encryption": {"enabled": True, "key": KEY}}}).check()
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
        replace(settings, system=system).check()
    assert len(caught.value.problems) == 2
