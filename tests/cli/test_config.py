"""`topics config`: values and their origins; `topics serve` as far as its settings go."""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.conftest import REPOSITORY
from topics.cli.main import app
from topics.server.settings_schema import SETTINGS

DOCUMENT = REPOSITORY / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(*args: object, **environ: str) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env=environ)


def rows(result: Result) -> dict[str, list[str]]:
    """Value and origin by name."""
    assert result.exit_code == 0, result.stderr
    return {line.split()[0]: re.split(r" {2,}", line)[1:] for line in result.stdout.splitlines()}


# show.


def test_show_prints_each_value_and_where_it_came_from(folder: Path) -> None:
    (folder / "topics.toml").write_text('data_dir = "/var/lib/topics"\nport = 3\nmax_claim = 5\n')
    result = run("config", "show", "--port", 1, "--probe-auth", TOPICS_PORT="2", TOPICS_MAX_CLAIM="4")
    shown = rows(result)
    assert list(shown) == [setting.name for setting in SETTINGS]
    assert shown["port"] == ["1", "flag --port"]
    assert shown["probe_auth"] == ["true", "flag --probe-auth"]
    assert shown["max_claim"] == ["4", "environment TOPICS_MAX_CLAIM"]
    assert shown["data_dir"] == ["/var/lib/topics", "topics.toml"]
    assert shown["cold_dir"] == ["(not set)", "default"]
    assert result.stderr == ""


def test_show_prints_json_when_asked() -> None:
    result = run("config", "show", "--output", "json", "--port", 1, "--api-keys", "hush,hush2")
    shown = json.loads(result.stdout)
    assert list(shown) == [setting.name for setting in SETTINGS]
    assert shown["port"] == {"value": 1, "origin": "flag --port"}
    assert shown["cold_dir"] == {"value": None, "origin": "default"}
    assert shown["api_keys"] == {"value": "(2 keys)", "origin": "flag --api-keys"}


@pytest.mark.parametrize("form", ["table", "json"])
def test_show_never_prints_a_key(folder: Path, form: str) -> None:
    (folder / "keys").write_text("hush-hush:read\nhush-hush-2\n")
    for result in (
        run("config", "show", "--output", form, "--api-keys-file", "keys"),
        run("config", "show", "--output", form, TOPICS_API_KEYS_FILE=str(folder / "keys")),
        run("config", "show", "--output", form, TOPICS_API_KEYS="hush-hush,hush-hush-2", TOPICS_API_KEY="hush-hush"),
    ):
        assert result.exit_code == 0
        assert "(2 keys)" in result.stdout
        assert "hush" not in result.output


def test_show_reads_the_named_file_instead_of_topics_toml(folder: Path) -> None:
    (folder / "topics.toml").write_text("port = 1")
    other = folder / "other.toml"
    other.write_text("max_claim = 7")
    shown = rows(run("config", "show", "--config", other))
    assert shown["max_claim"] == ["7", str(other)]
    assert shown["port"] == ["4000", "default"]


def test_a_switch_that_a_weaker_source_sets_can_be_taken_back() -> None:
    shown = rows(run("config", "show", "--no-probe-auth", TOPICS_PROBE_AUTH="1"))
    assert shown["probe_auth"] == ["false", "flag --probe-auth"]


def test_warnings_go_to_stderr_one_line_each() -> None:
    result = run("config", "show", TOPICS_PROT="1", TOPICS_ZZZ="1")
    assert rows(result)["port"] == ["4000", "default"]
    assert result.stderr == (
        "topics: warning: TOPICS_PROT is no setting of this server; did you mean TOPICS_PORT?\n"
        "topics: warning: TOPICS_ZZZ is no setting of this server\n"
    )


# Errors, the same for every command that takes settings.


@pytest.mark.parametrize("command", [("config", "show"), ("config", "check"), ("serve",)])
@pytest.mark.parametrize(
    ("args", "toml", "text"),
    [
        (("--port", "x"), "", '--port is "x": it must be a whole number from 0 to 65535'),
        ((), "prot = 1", 'topics.toml: "prot" is no setting; did you mean port?'),
        ((), "port", None),
        (("--config", "missing.toml"), "", "missing.toml: No such file or directory"),
        (("--config", "latin.toml"), "", "latin.toml is not text in UTF-8"),
        (("--tls-key", "key.pem"), "", "tls_cert and tls_key belong together: set both, or none for plain HTTP"),
        (("--api-keys-file", "none"), "", "--api-keys-file: none: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_code_1(
    folder: Path, command: tuple[str, ...], args: tuple[str, ...], toml: str, text: str | None
) -> None:
    (folder / "topics.toml").write_text(toml)
    (folder / "latin.toml").write_bytes(b"data_dir = '\xff'")
    result = run(*command, *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("topics: ")
    assert result.stderr.count("\n") == 1
    if text is not None:
        assert result.stderr == f"topics: {text}\n"


@pytest.mark.parametrize("command", [("config", "show"), ("config", "check"), ("serve",)])
def test_a_variable_that_does_not_parse_refuses_the_start(command: tuple[str, ...]) -> None:
    result = run(*command, TOPICS_PORT="47O9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == 'topics: TOPICS_PORT is "47O9": it must be a whole number from 0 to 65535\n'


@pytest.mark.parametrize("command", [("config", "check"), ("serve",)])
def test_a_server_without_keys_is_not_opened_to_others(command: tuple[str, ...]) -> None:
    result = run(*command, "--host", "0.0.0.0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        'topics: host "0.0.0.0" can be reached by other machines, and there are no API keys: '
        "set TOPICS_API_KEYS, listen on 127.0.0.1, or start with --allow-insecure-no-auth\n"
    )


# check.


def test_check_of_settings_that_work_exits_0() -> None:
    result = run("config", "check", "--host", "0.0.0.0", "--api-keys", "abc:read")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "config: no problem found\n", "")


def test_check_refuses_the_default_root_user_where_other_machines_can_reach_it() -> None:
    result = run("config", "check", "--host", "0.0.0.0", "--api-keys", "abc:read", "--streams")
    assert result.exit_code == 1
    assert "set IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD" in result.stderr


def test_check_reads_the_settings_of_the_streams(folder: Path) -> None:
    (folder / "topics.toml").write_text('[streams.system.segment]\nsize = "1 mile"')
    result = run("config", "check", "--streams")
    assert result.exit_code == 1
    assert "system.segment.size" in result.stderr
    assert run("config", "check").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "environ", "shown"),
    [
        ([], {}, "(not set) default"),
        (["--streams"], {}, "8090 flag --streams"),
        (["--streams"], {"TOPICS_STREAMS_PORT": "9090"}, "9090 environment TOPICS_STREAMS_PORT"),
        (["--streams", "--streams-port", "0"], {}, "0 flag --streams-port"),
        (["--streams"], {"TOPICS_STREAMS_PORT": "off"}, "8090 flag --streams"),
    ],
)
def test_streams_opens_the_usual_port_unless_another_one_is_set(
    flags: list[str], environ: dict[str, str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (line,) = [line for line in run("config", "show", *flags).stdout.splitlines() if line.startswith("streams_port ")]
    assert line.split(maxsplit=1)[1].split() == shown.split()


def test_check_names_every_problem_on_a_line_of_its_own(folder: Path) -> None:
    (folder / "topics.toml").write_text("prot = 1\nmax_claim = 0")
    result = run("config", "check", "--port", "x")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 3


def test_check_reads_the_keys_and_repeats_none_of_them() -> None:
    result = run("config", "check", "--api-keys", "good,hush:hush-scope")
    assert result.exit_code == 1
    assert "entry 2" in result.stderr
    assert "hush" not in result.stderr


# Help and documents.


@pytest.mark.parametrize("command", [("serve",), ("config", "show"), ("config", "check")])
def test_help_lists_every_setting_in_its_group_and_an_example(command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert re.search(rf"Examples?:\n +topics {' '.join(command)}", text)
    for setting in SETTINGS:
        assert re.search(rf"^{setting.group}:\n(?:  .*\n)*  {setting.flag}\b", text, re.MULTILINE), setting.name


def test_config_alone_shows_its_help() -> None:
    assert run("config").stdout == run("config", "--help").stdout


def test_the_document_holds_the_tables_of_the_schema() -> None:
    """To renew them: put what `topics config reference` prints below "## Settings"."""
    section = DOCUMENT.read_text("utf-8").partition("\n## Settings\n\n")[2].partition("\n\n## ")[0]
    assert section + "\n" == run("config", "reference").stdout


def test_the_example_of_the_document_is_what_is_printed(folder: Path) -> None:
    example = DOCUMENT.read_text("utf-8").partition("```console\n")[2].partition("```")[0]
    toml, _, rest = example.removeprefix("$ cat topics.toml\n").partition("\n\n$ ")
    command, _, output = rest.partition("\n")
    assert command == "TOPICS_PORT=4200 TOPICS_API_KEYS=… topics config show --log-format json"
    (folder / "topics.toml").write_text(toml)
    result = run("config", "show", "--log-format", "json", TOPICS_PORT="4200", TOPICS_API_KEYS="abc")
    printed = result.stdout.splitlines()
    shown = [line for line in output.splitlines() if line != "…"]
    assert len(shown) > 4
    assert [line for line in printed if line in shown] == shown
