"""The schema: every setting has a description, and keys are never shown."""

import re
from pathlib import Path

import pytest

from topics.server.settings_schema import SETTINGS, KeyList, ServerSettings, shown


def test_every_field_is_a_setting_with_a_meaning_and_a_default_of_its_own_kind() -> None:
    settings = ServerSettings()
    for setting in SETTINGS:
        assert setting.meaning.endswith(".")
        assert type(setting.make_default()) is type(getattr(settings, setting.name))
        assert setting.env == "TOPICS_" + setting.name.upper()
        if setting.kind == "number" and setting.make_default() is not None:
            assert setting.smallest <= setting.make_default() <= setting.largest


@pytest.mark.parametrize(
    ("text", "count", "secrets"),
    [
        ("", 0, ()),
        (" , ,", 0, ()),
        ("abc", 1, ("abc",)),
        ("ops, dash:read:acme. ,team7::team7:", 3, ("ops", "dash", "team7")),
        (":read", 1, ()),
    ],
)
def test_keys_are_counted_and_shown_as_a_count_only(text: str, count: int, secrets: tuple[str, ...]) -> None:
    keys = KeyList(text)
    assert keys.count == count
    assert keys.secrets() == secrets
    assert keys.reveal() == text
    shown_text = {0: "(no keys)", 1: "(1 key)"}.get(count, f"({count} keys)")
    assert (shown(keys), repr(keys)) == (shown_text, f"KeyList{shown_text}")


def test_forgotten_keys_are_gone_and_do_not_look_like_none() -> None:
    keys = KeyList("abc,def")
    keys.forget()
    assert (keys.count, shown(keys)) == (2, "(2 keys)")
    with pytest.raises(AssertionError, match="forgotten"):
        keys.reveal()


def test_values_are_shown_as_they_would_be_written() -> None:
    assert [shown(value) for value in (None, True, False, 0, "", "x")] == [
        "(not set)",
        "true",
        "false",
        "0",
        "(empty)",
        "x",
    ]


def test_limits_keys_and_the_log_level_are_read_again_and_nothing_else() -> None:
    reloaded = {setting.name for setting in SETTINGS if setting.is_reloaded}
    assert reloaded >= {
        "api_keys",
        "cors_origins",
        "probe_auth",
        "log_level",
        "max_body_bytes",
        "max_topics",
        "max_claim",
    }
    assert reloaded.isdisjoint(
        {"host", "port", "port_file", "tls_cert", "tls_key", "data_dir", "cold_dir", "log_format"}
    )
    page = Path(__file__).parents[2].joinpath("docs/configuration.md").read_text("utf-8")
    beside = {
        setting.name for setting in SETTINGS if setting.is_reloaded and setting.group not in ("Request limits", "Caps")
    }
    (line,) = [line for line in page.splitlines() if line.startswith("Read again are ")]
    assert set(re.findall("`([a-z_]+)`", line)) == beside
