"""The sources of each setting, errors, and warnings."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.settings import EngineSettings
from topics.errors import SettingsError, StartRefused
from topics.server.settings import LoadedSettings, check_safe, engine_settings, is_loopback, load_settings
from topics.server.settings_schema import SETTINGS, KeyList, ServerSettings

NUMBERS = [setting for setting in SETTINGS if setting.kind == "number"]


def load(
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    toml: str | None = None,
    *,
    read_text: Callable[[str], str] | None = None,
) -> LoadedSettings:
    return load_settings(flags or {}, environ or {}, toml, "topics.toml", read_text=read_text)


def problems(
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    toml: str | None = None,
    *,
    read_text: Callable[[str], str] | None = None,
) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ, toml, read_text=read_text)
    return caught.value.problems


# Order of sources.


def test_without_any_source_everything_is_the_default() -> None:
    loaded = load()
    assert (loaded.settings.host, loaded.settings.port, loaded.settings.data_dir) == (
        "127.0.0.1",
        4000,
        "./topics-data",
    )
    assert loaded.settings.api_keys.count == 0
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.origins.keys() == {setting.name for setting in SETTINGS}
    assert loaded.warnings == ()


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default() -> None:
    toml = "port = 3\nmax_claim = 3\nmax_topics = 3"
    loaded = load({"port": "1", "probe_auth": None}, {"TOPICS_PORT": "2", "TOPICS_MAX_CLAIM": "2"}, toml)
    assert (loaded.settings.port, loaded.settings.max_claim, loaded.settings.max_topics) == (1, 2, 3)
    assert loaded.settings.max_routers == 10_000
    assert [loaded.origins[name] for name in ("port", "max_claim", "max_topics", "max_routers")] == [
        "flag --port",
        "environment TOPICS_MAX_CLAIM",
        "topics.toml",
        "default",
    ]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_can_be_given_in_every_place(setting: Any) -> None:
    text, toml_value = {
        "number": (str(setting.smallest + 1), setting.smallest + 1),
        "switch": ("true", "true"),
        "choice": (next(iter(setting.choices), ""), f'"{next(iter(setting.choices), "")}"'),
        "keys": ("abc", '"abc"'),
        "text": ("abc", '"abc"'),
        "port": ("8091", 8091),
    }[setting.kind]
    if setting.name == "cors_origins":
        text, toml_value = "https://app.example", '"https://app.example"'
    # A certificate comes with its key.
    pair = {"tls_cert": "tls_key", "tls_key": "tls_cert"}.get(setting.name)
    flags: dict[str, Any] = {setting.name: True if setting.kind == "switch" else text}
    environ = {setting.env: text}
    toml = f"{setting.name} = {toml_value}"
    if pair is not None:
        flags[pair], environ[f"TOPICS_{pair.upper()}"], toml = "pair", "pair", f'{toml}\n{pair} = "pair"'
    for loaded, origin in (
        (load(flags), f"flag {setting.flag}"),
        (load(environ=environ), f"environment {setting.env}"),
        (load(toml=toml), "topics.toml"),
    ):
        assert loaded.origins[setting.name] == origin
        assert loaded.warnings == ()


def test_the_file_is_named_as_it_was_given() -> None:
    loaded = load_settings({}, {}, "port = 1", "/etc/topics/main.toml")
    assert loaded.origins["port"] == "/etc/topics/main.toml"


# Wrong values.


@pytest.mark.parametrize("text", ["abc", "", "1.5", "0x10", "1_000", "٤", "-1", "65536", "9" * 5000, "nan"])
def test_a_number_that_cannot_be_used_is_an_error_in_the_environment(text: str) -> None:
    (problem,) = problems(environ={"TOPICS_PORT": text}, toml="port = 5000")
    assert problem.startswith('TOPICS_PORT is "')
    assert problem.endswith(": it must be a whole number from 0 to 65535")
    assert len(problem) < 200


UNUSABLE = {
    "number": "47O9",
    "switch": "yes",
    "choice": "loud",
    "text": "a\0b",
    "keys": "secret:nothing-that-is-a-scope",
    "port": "on",
}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_value_that_does_not_parse_refuses_the_start_for_every_variable(setting: Any) -> None:
    """The message names the variable, and no secret. `KeyRing.parse` checks the rights of keys."""
    if setting.kind == "keys":
        return
    (problem,) = problems(environ={setting.env: UNUSABLE[setting.kind]})
    assert problem.startswith(f'{setting.env} is "{UNUSABLE[setting.kind]}": it must be ')


def test_a_number_that_cannot_be_used_is_an_error_in_flags_and_file() -> None:
    assert problems({"port": "abc"}) == ('--port is "abc": it must be a whole number from 0 to 65535',)
    assert problems({"port": "70000"}) == ('--port is "70000": it must be a whole number from 0 to 65535',)
    assert problems(toml="port = 70000") == ("topics.toml: port is 70000: it must be a whole number from 0 to 65535",)
    assert problems(toml="max_topics = -1") == ("topics.toml: max_topics is -1: it must be a whole number, 0 or more",)


@pytest.mark.parametrize("value", ['"4000"', "true", "4000.0", "[4000]", "1979-05-27"])
def test_a_number_of_the_file_is_a_number_there(value: str) -> None:
    (problem,) = problems(toml=f"port = {value}")
    assert problem.startswith("topics.toml: port is ")


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_both_ends_of_a_range_are_inside_it(setting: Any) -> None:
    for value in (setting.smallest, setting.largest):
        assert getattr(load({setting.name: value}).settings, setting.name) == value
    for value in (setting.smallest - 1, setting.largest + 1):
        assert len(problems({setting.name: value})) == 1


@pytest.mark.parametrize("text", ["1", "true"])
def test_a_switch_of_the_environment_is_on_for_1_and_true(text: str) -> None:
    assert load(environ={"TOPICS_PROBE_AUTH": text}).settings.probe_auth is True


@pytest.mark.parametrize("text", ["", "0", "false"])
def test_a_switch_of_the_environment_is_off_without_a_word_for_what_says_off(text: str) -> None:
    loaded = load(environ={"TOPICS_PROBE_AUTH": text}, toml="probe_auth = true")
    assert (loaded.settings.probe_auth, loaded.warnings) == (False, ())


@pytest.mark.parametrize("text", ["yes", "on", "True", "TRUE", " 1", "2"])
def test_a_switch_of_the_environment_is_an_error_for_anything_else(text: str) -> None:
    told = problems(environ={"TOPICS_ALLOW_INSECURE_NO_AUTH": text})
    assert told == (f'TOPICS_ALLOW_INSECURE_NO_AUTH is "{text}": it must be true or false',)


@pytest.mark.parametrize("value", ["1", '"true"', "0"])
def test_a_switch_of_the_file_is_a_boolean(value: str) -> None:
    (problem,) = problems(toml=f"probe_auth = {value}")
    assert problem.endswith(": it must be true or false")


def test_a_choice_is_one_of_its_words() -> None:
    assert load(environ={"TOPICS_LOG_FORMAT": "json"}).settings.log_format == "json"
    assert problems(environ={"TOPICS_LOG_LEVEL": "loud"}) == (
        'TOPICS_LOG_LEVEL is "loud": it must be debug, info, warning or error',
    )
    assert problems({"log_format": "xml"}) == ('--log-format is "xml": it must be auto, text or json',)


def test_an_empty_text_switches_an_optional_setting_off() -> None:
    loaded = load(environ={"TOPICS_COLD_DIR": ""}, toml='cold_dir = "/mnt/archive"')
    assert loaded.settings.cold_dir is None
    assert loaded.origins["cold_dir"] == "environment TOPICS_COLD_DIR"
    assert problems({"data_dir": ""}) == ('--data-dir is "": it must not be empty',)


def test_all_problems_are_told_at_once() -> None:
    told = problems({"port": "x"}, {}, "max_claim = 0\nprot = 1\ntls_cert = 'cert.pem'")
    assert len(told) == 4
    with pytest.raises(StartRefused, match=r"--port.*; "):
        load({"port": "x"}, {}, "max_claim = 0")


def test_a_bad_line_of_the_file_is_told_even_when_a_flag_wins_over_it() -> None:
    assert len(problems({"port": "1"}, {}, "port = 'x'")) == 1


def test_a_bad_variable_is_told_even_when_a_flag_wins_over_it() -> None:
    assert len(problems({"port": "1"}, {"TOPICS_PORT": "x"})) == 1


def test_a_file_that_is_not_toml_is_refused_with_the_place() -> None:
    (problem,) = problems(toml="port 4000")
    assert problem.startswith("topics.toml is not TOML: ")
    assert "line 1" in problem


def test_certificate_and_key_come_together() -> None:
    text = "tls_cert and tls_key belong together: set both, or none for plain HTTP"
    assert problems({"tls_cert": "cert.pem"}) == (text,)
    assert problems(environ={"TOPICS_TLS_KEY": "key.pem"}) == (text,)
    loaded = load({"tls_cert": "cert.pem"}, {"TOPICS_TLS_KEY": "key.pem"})
    assert (loaded.settings.tls_cert, loaded.settings.tls_key) == ("cert.pem", "key.pem")


def test_origins_of_pages_are_checked_and_all_of_them_need_keys() -> None:
    assert load(environ={"TOPICS_CORS_ORIGINS": ""}).settings.cors_origins is None
    (problem,) = problems(environ={"TOPICS_CORS_ORIGINS": "https://a.example, https://b.example/page"})
    assert problem == (
        'TOPICS_CORS_ORIGINS is "https://a.example, https://b.example/page": "https://b.example/page" is no origin: '
        "write scheme://host or scheme://host:port without a path, as the browser shows it"
    )
    (problem,) = problems(environ={"TOPICS_CORS_ORIGINS": "*"})
    assert problem.startswith("cors_origins is *, and there are no API keys: ")
    assert load(environ={"TOPICS_CORS_ORIGINS": "*", "TOPICS_API_KEYS": "secret"}).settings.cors_origins == "*"


# Unknown names.


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("prot", "; did you mean port?"),
        ("TOPICS_PORT", "; did you mean port?"),
        ("data-dir", "; did you mean data_dir?"),
        ("max_topic", "; did you mean max_topics?"),
        ("api_key_file", "; did you mean api_keys_file?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_key_of_the_file_is_an_error_with_a_suggestion(key: str, hint: str) -> None:
    assert problems(toml=f"{key} = 1") == (f'topics.toml: "{key}" is no setting{hint}',)


def test_a_table_of_the_file_is_told_where_settings_stand() -> None:
    assert problems(toml="[server]\nport = 1") == (
        'topics.toml: "server" is no setting; settings stand at the top of the file, not in a table',
    )


def test_an_unknown_variable_is_a_warning_with_a_suggestion_and_without_its_value() -> None:
    environ = {"TOPICS_PROT": "hush", "TOPICS_ZZZ": "hush", "topics_port": "1", "PORT": "1", "TOPICS_Port": "1"}
    loaded = load(environ=environ)
    assert loaded.settings.port == 4000
    assert loaded.warnings == (
        "TOPICS_PROT is no setting of this server; did you mean TOPICS_PORT?",
        "TOPICS_Port is no setting of this server; did you mean TOPICS_PORT?",
        "TOPICS_ZZZ is no setting of this server",
    )


def test_variables_of_the_command_line_as_a_client_and_of_the_build_are_no_wrong_settings() -> None:
    names = ("URL", "KEY", "CONTEXT", "CA_FILE", "NODE", "COMPILE")
    assert load(environ={f"TOPICS_{name}": "x" for name in names}).warnings == ()


def test_variables_of_tests_are_passed_over() -> None:
    loaded = load(environ={"TOPICS_TEST_FULL": "1", "TOPICS_TEST_MIN_HEARTBEAT_MS": "20"})
    assert (loaded.settings.test_min_heartbeat_ms, loaded.warnings) == (20, ())


# Host and port.


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", 4000),
        ("0.0.0.0:5000", "0.0.0.0", 5000),
        ("localhost:0", "localhost", 0),
        ("[::1]:4001", "::1", 4001),
        ("[::1]", "::1", 4000),
        ("::1", "::1", 4000),
        ("::", "::", 4000),
        ("", "", 4000),
        (":5000", "", 5000),
    ],
)
def test_a_host_may_carry_its_port(text: str, host: str, port: int) -> None:
    for loaded in (load({"host": text}), load(environ={"TOPICS_HOST": text}), load(toml=f"host = '{text}'")):
        assert (loaded.settings.host, loaded.settings.port) == (host, port)
        assert loaded.warnings == ()


@pytest.mark.parametrize(
    "text", ["a:b", "a:", "[::1", "[::1]x", "[::1]:", "[name]:1", "a:1:2", "a b", "a:65536", "a\0"]
)
def test_a_host_that_is_none_is_refused(text: str) -> None:
    for told, label in ((problems({"host": text}), "--host"), (problems(environ={"TOPICS_HOST": text}), "TOPICS_HOST")):
        (problem,) = told
        assert problem.startswith(f"{label} is ")


def test_the_port_of_a_host_counts_where_the_host_comes_from() -> None:
    assert load({"port": "1"}, {"TOPICS_HOST": "localhost:2"}).settings.port == 1
    assert load({"host": "localhost:1"}, {"TOPICS_PORT": "2"}).settings.port == 1
    loaded = load(environ={"TOPICS_HOST": "localhost:2"}, toml="port = 3")
    assert (loaded.settings.port, loaded.origins["port"]) == (2, "environment TOPICS_HOST")


def test_two_ports_from_one_place_are_a_warning_and_that_of_the_host_is_used() -> None:
    loaded = load(environ={"TOPICS_HOST": "localhost:2", "TOPICS_PORT": "3"})
    assert loaded.settings.port == 2
    assert loaded.warnings == ("host has the port 2 and port is 3: 2 is used",)
    assert load(environ={"TOPICS_HOST": "localhost:2", "TOPICS_PORT": "2"}).warnings == ()


@given(st.text(max_size=30))
def test_any_host_is_taken_or_refused_with_a_settings_error(text: str) -> None:
    try:
        loaded = load({"host": text})
    except SettingsError:
        return
    assert 0 <= loaded.settings.port <= 65_535


# Keys.


def test_keys_can_stand_in_a_file_one_per_line() -> None:
    files = {"/run/keys": "first:read\nsecond, third\n"}
    for loaded, origin in (
        (load({"api_keys_file": "/run/keys"}, read_text=files.__getitem__), "flag --api-keys-file"),
        (
            load(environ={"TOPICS_API_KEYS_FILE": "/run/keys"}, read_text=files.__getitem__),
            "environment TOPICS_API_KEYS_FILE",
        ),
        (load(toml="api_keys_file = '/run/keys'", read_text=files.__getitem__), "topics.toml"),
    ):
        assert loaded.settings.api_keys.reveal() == "first:read,second, third"
        assert loaded.settings.api_keys.count == 3
        assert loaded.origins["api_keys"] == origin


def test_a_file_of_keys_wins_over_keys_of_a_weaker_source() -> None:
    loaded = load({"api_keys_file": "f"}, {"TOPICS_API_KEYS": "weak"}, read_text=lambda _: "strong")
    assert loaded.settings.api_keys.reveal() == "strong"
    loaded = load({"api_keys": "strong"}, {"TOPICS_API_KEYS_FILE": "f"}, read_text=lambda _: "weak")
    assert loaded.settings.api_keys.reveal() == "strong"


def test_a_file_of_keys_that_is_of_no_use_is_an_error_from_the_environment_too() -> None:
    def missing(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    def binary(path: str) -> str:
        return b"\xff".decode("utf-8")

    environ = {"TOPICS_API_KEYS_FILE": "/f"}
    label = "TOPICS_API_KEYS_FILE: /f"
    assert problems(environ=environ, read_text=missing) == (f"{label}: No such file or directory",)
    assert problems(environ=environ, read_text=binary) == (f"{label} is not text in UTF-8",)
    assert problems(environ=environ, read_text=lambda _: " \n,\n") == (f"{label} holds no key",)
    assert problems(environ=environ) == (f"{label}: files are not read here",)
    assert problems(environ={**environ, "TOPICS_API_KEYS": "hush"}, read_text=lambda _: "k") == (
        "TOPICS_API_KEYS_FILE and TOPICS_API_KEYS exclude each other: keep one of them",
    )
    assert problems(toml="api_keys_file = 7") == ("topics.toml: api_keys_file must be the path of a file",)


def test_blank_keys_do_not_switch_off_those_of_a_weaker_source() -> None:
    loaded = load(environ={"TOPICS_API_KEYS": "", "TOPICS_API_KEYS_FILE": ""}, toml="api_keys = 'abc'")
    assert (loaded.settings.api_keys.reveal(), loaded.origins["api_keys"]) == ("abc", "topics.toml")


def test_a_secret_is_in_no_repr_warning_or_error() -> None:
    hush = "hush-hush-hush"
    loaded = load(environ={"TOPICS_API_KEYS": f"{hush}:read,{hush}2", "TOPICS_API_KEY": hush})
    assert hush not in repr(loaded)
    assert "KeyList(2 keys)" in repr(loaded.settings)
    for told in (
        problems(toml=f"api_keys = ['{hush}']"),
        problems({"api_keys": hush, "port": "x"}),
        problems({"api_keys": hush}, toml=f"api_key = '{hush}'"),
    ):
        assert hush not in str(told)


# Streams.


def test_the_port_of_streams_is_a_number_or_off() -> None:
    assert load().settings.streams_port is None
    assert load({"streams_port": "8090"}).settings.streams_port == 8090
    assert load(environ={"TOPICS_STREAMS_PORT": "off"}).settings.streams_port is None
    assert load(toml="streams_port = 0").settings.streams_port == 0
    assert load(toml='streams_port = "off"').settings.streams_port is None
    for value in ("65536", "-1", "Off", ""):
        assert problems({"streams_port": value}) == (
            f'--streams-port is "{value}": it must be a whole number from 0 to 65535, or off',
        )


def test_settings_of_the_engine_are_a_table_of_the_file_and_variables() -> None:
    toml = '[streams.system.segment]\nsize = "1 MiB"'
    loaded = load(environ={"IGGY_SYSTEM_PATH": "there", "OTHER": "x"}, toml=toml)
    assert loaded.streams.table == {"system": {"segment": {"size": "1 MiB"}}}
    assert loaded.streams.environ == {"IGGY_SYSTEM_PATH": "there"}
    assert "there" not in repr(loaded)
    assert problems(toml="streams = 1") == ("topics.toml: streams is a table, not a value",)


# Safety.


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_what_only_this_machine_can_reach(host: str) -> None:
    assert is_loopback(host)
    check_safe(ServerSettings(host=host))


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "*", "0", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "localhost.example", "127.0.0.1.example"],
)
def test_other_hosts_need_keys_or_consent(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(SettingsError, match=r"set TOPICS_API_KEYS, listen on 127\.0\.0\.1, or start with --allow-"):
        check_safe(ServerSettings(host=host))
    with pytest.raises(SettingsError):
        check_safe(ServerSettings(host=host, api_keys=KeyList(" , ,")))
    check_safe(ServerSettings(host=host, api_keys=KeyList("abc")))
    check_safe(ServerSettings(host=host, api_keys=KeyList(":read")))
    check_safe(ServerSettings(host=host, allow_insecure_no_auth=True))


# The engine.


def test_the_engine_gets_what_is_set_for_it() -> None:
    names = {
        "wal_shards": "wal_shards",
        "segment_max_events": "segment_events_max",
        "segment_max_bytes": "segment_bytes_max",
        "segment_max_age_ms": "segment_age_ms_max",
        "hot_retain_segments": "hot_retain_segments",
        "hot_retain_bytes": "hot_retain_bytes",
        "max_topics": "topics_max",
        "max_total_bytes": "total_bytes_max",
    }
    assert engine_settings(ServerSettings()) == EngineSettings()
    assert engine_settings(ServerSettings(cold_dir="s3://bucket/prefix")).cold_dir == "s3://bucket/prefix"
    setting_by_name = {setting.name: setting for setting in NUMBERS}
    for name, engine_name in names.items():
        # The engine accepts everything that the schema allows.
        for value in (setting_by_name[name].smallest, setting_by_name[name].largest):
            assert getattr(engine_settings(load({name: value}).settings), engine_name) == value
