"""What the streams are started with, and starts that are refused."""

import os

import pytest

from topics.errors import SettingsError
from topics.server.settings_schema import ServerSettings, StreamsConfig
from topics.server.streams import config as config_module
from topics.server.streams.config import (
    check_streams,
    iggy_secrets,
    missing_packages,
    read_settings,
    root_user,
    streams_directory,
)

ROOT = {"IGGY_ROOT_USERNAME": "ada", "IGGY_ROOT_PASSWORD": "engine"}


def test_variables_win_over_the_table() -> None:
    table = {"system": {"segment": {"size": "1 MiB"}, "state": {"enforce_fsync": True}}}
    settings = read_settings(StreamsConfig(table=table, environ={"IGGY_SYSTEM_SEGMENT_SIZE": "2 MiB"}))
    assert settings.system.segment.size == 2 * 1024 * 1024
    assert settings.system.state.enforce_fsync


def test_all_problems_of_the_settings_are_told() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(StreamsConfig(table={"system": {"segmnt": {}}}, environ={"IGGY_SYSTEM_SEGMENT_SIZE": "x"}))
    assert len(caught.value.problems) == 2


def test_the_directory_is_named_or_a_folder_of_the_data_directory() -> None:
    table = {"system": {"path": "of-table"}}
    settings = ServerSettings(data_dir="data")
    assert streams_directory(settings, StreamsConfig()) == os.path.join("data", "streams")
    assert streams_directory(settings, StreamsConfig(table=table)) == "of-table"
    assert streams_directory(settings, StreamsConfig(table=table, environ={"IGGY_SYSTEM_PATH": "named"})) == "named"
    named = ServerSettings(data_dir="data", streams_dir="mine")
    assert streams_directory(named, StreamsConfig(table=table)) == "mine"


@pytest.mark.parametrize("host", ["0.0.0.0", "", "10.0.0.1"])
def test_the_default_root_user_is_for_this_machine_only(host: str) -> None:
    settings = ServerSettings(host=host, streams_port=0)
    for environ in ({}, {"IGGY_ROOT_USERNAME": "iggy", "IGGY_ROOT_PASSWORD": "iggy"}):
        with pytest.raises(SettingsError, match="set IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD"):
            check_streams(settings, StreamsConfig(environ=environ))
    check_streams(settings, StreamsConfig(environ=ROOT))
    check_streams(ServerSettings(host=host, streams_port=None), StreamsConfig())
    check_streams(ServerSettings(host="127.0.0.1", streams_port=0), StreamsConfig())


@pytest.mark.parametrize("name", ROOT)
def test_name_and_password_of_the_root_user_belong_together(name: str) -> None:
    with pytest.raises(SettingsError, match="belong together"):
        check_streams(ServerSettings(streams_port=0), StreamsConfig(environ={name: ROOT[name]}))


def test_the_root_user_is_that_of_the_variables() -> None:
    user = root_user(StreamsConfig(environ=ROOT))
    assert (user.username, user.password) == ("ada", "engine")
    assert root_user(StreamsConfig()).username == "iggy"
    assert iggy_secrets(StreamsConfig(environ=ROOT)) == ("engine",)


def test_missing_packages_refuse_a_start_with_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages() == []
    monkeypatch.setattr(config_module, "_PACKAGES", ("numpy", "no_such_package"))
    assert missing_packages() == ["no_such_package"]
    check_streams(ServerSettings(), StreamsConfig())
    with pytest.raises(SettingsError, match=r"no_such_package.*pip install 'topics-log\[streams\]'"):
        check_streams(ServerSettings(streams_port=0), StreamsConfig())
