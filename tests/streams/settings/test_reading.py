"""Settings from mappings and from the environment."""

import pytest

from topics.errors import SettingsError
from topics.streams.settings import check_settings, environment_mapping, from_mapping, setting_names
from topics.streams.settings.reading import WITHOUT_EFFECT, parse_cache_indexes


def test_names_are_those_of_the_specification() -> None:
    names = set(setting_names())
    assert {
        "system.path",
        "system.flavour",
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


def test_settings_without_effect_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for name in WITHOUT_EFFECT:
        caplog.clear()
        values: object = "1"
        for part in reversed(name.split(".")):
            values = {part: values}
        assert isinstance(values, dict)
        assert from_mapping(values) == from_mapping({})
        assert caplog.messages == [f"{name} has no effect here"]
    with pytest.raises(SettingsError, match=r"system\.logging is not a setting"):
        from_mapping({"system": {"logging": {"path": "logs", "level": "info"}}})


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
    check_settings(settings)
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
        "systm is not a setting; did you mean system?",
        "zzz is not a setting",
        "system.partition.enforce_fsync is 'yes': it must be true or false",
        "system.segment.sise is not a setting; did you mean system.segment.size?",
        'system.segment.cache_indexes is \'some\': it must be one of "all", "open_segment", "none"',
        'message_saver.interval is 30: it must be a duration, such as "30 s", "1 m" or "2 days 4 hours"',
        "heartbeat is a section, not a value",
    )


def test_secrets_are_in_no_message_and_no_repr() -> None:
    with pytest.raises(SettingsError) as caught:
        from_mapping({"system": {"encryption": {"key": ["hush"]}}})
    assert caught.value.message == "system.encryption.key: it must be text"
    with pytest.raises(SettingsError) as caught:
        check_settings(from_mapping({"system": {"encryption": {"enabled": True, "key": "hush"}}}))
    assert "hush" not in caught.value.message
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
