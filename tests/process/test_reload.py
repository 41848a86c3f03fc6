"""SIGHUP: a real server process reads its settings again, from `topics.toml` and the file of keys."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import Answer, Http1Client
from tests.server.event_streams import Http1EventStream
from topics.testing.server_process import ServerProcess

TAKEN = "the settings were read again"
REFUSED = "the settings were not read again, and nothing has changed"


class Reloading:
    """A server with a `topics.toml` and a file of keys that the test rewrites."""

    def __init__(self, folder: Path) -> None:
        self.toml = folder / "topics.toml"
        self.keys = folder / "keys"
        self.keys.write_text("old-secret\nkept-secret:rw\n")
        self.write_toml()
        self.server = ServerProcess(config=self.toml)

    def write_toml(self, *lines: str) -> None:
        self.toml.write_text("\n".join([f'api_keys_file = "{self.keys}"', *lines]))

    def lines(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message."""
        # The last line may be on its way.
        whole = self.server.output.rpartition("\n")[0]
        logged = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in logged if line["message"] == message]

    def hang_up(self, message: str) -> dict[str, Any]:
        """Sends the signal, and waits for a new log line with this message. The time limit of the tests ends it."""
        seen = len(self.lines(message))
        self.server.send_signal(signal.SIGHUP)
        while len(found := self.lines(message)) == seen:
            assert self.server.is_ready()
        return found[-1]

    def ask(self, key: str, method: str, path: str, body: Any = None) -> Answer:
        with Http1Client(self.server.host, self.server.port) as client:
            return client.request(method, path, body, {"authorization": f"Bearer {key}"})


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[Reloading]:
    reloading = Reloading(tmp_path)
    with reloading.server:
        yield reloading


def test_keys_are_read_again_and_streams_of_a_removed_key_end(reloading: Reloading) -> None:
    server = reloading.server
    streams: dict[str, Http1EventStream] = {}
    reloading.ask("kept-secret", "POST", "/v0/topics/t", {"records": [{"data": 1}]})
    for key in ("old-secret", "kept-secret"):
        url = reloading.ask(key, "POST", "/v0/watch", {"topics": {"t": {"tail": True}}}).json["stream_url"]
        headers = {"authorization": f"Bearer {key}"}
        streams[key] = Http1EventStream((server.host, server.port), url, headers)
        streams[key].until("caught-up")
    reloading.keys.write_text("kept-secret:rw\nnew-secret\n")
    line = reloading.hang_up(TAKEN)
    assert (line["keys_added"], line["keys_removed"], line["streams_ended"]) == (1, 1, 1)
    assert "secret" not in server.output.replace(str(reloading.keys), "")
    assert reloading.ask("old-secret", "GET", "/v0/topics").refusal == (401, "unauthorized")
    assert reloading.ask("new-secret", "GET", "/v0/topics").status == 200
    with streams["old-secret"] as ended:
        (event,) = ended.rest()
        assert (event.name, event.data["code"]) == ("error", "unauthorized")
    with streams["kept-secret"] as kept:
        reloading.ask("new-secret", "POST", "/v0/topics/t", {"records": [{"data": "later"}]})
        assert kept.next().datas == ["later"]


def test_limits_the_log_level_and_origins_are_read_again(reloading: Reloading) -> None:
    reloading.write_toml("max_topics = 1", "max_batch_records = 1", 'cors_origins = "https://app.example"')
    line = reloading.hang_up(TAKEN)
    assert line["changed"] == {
        "cors_origins": "https://app.example",
        "max_batch_records": "1",
        "max_topics": "1",
    }
    records = {"records": [{"data": 1}]}
    assert reloading.ask("old-secret", "POST", "/v0/topics/a", records).status == 201
    assert reloading.ask("old-secret", "POST", "/v0/topics/b", records).refusal == (429, "throttled")
    two = {"records": [{"data": 1}] * 2}
    assert reloading.ask("old-secret", "POST", "/v0/topics/a", two).refusal == (400, "batch_too_large")
    reloading.write_toml('log_level = "error"')
    reloading.server.send_signal(signal.SIGHUP)
    while reloading.ask("old-secret", "POST", "/v0/topics/b", records).status == 429:
        pass
    # The level is set after the line is written. Then only errors are logged.
    reloading.write_toml("port = 'x'")
    reloading.hang_up(REFUSED)
    reloading.write_toml('log_level = "error"', "port = 5")
    taken = len(reloading.lines(TAKEN))
    reloading.server.send_signal(signal.SIGHUP)
    reloading.write_toml("port = 'x'")
    reloading.hang_up(REFUSED)
    assert len(reloading.lines(TAKEN)) == taken


def test_the_config_shows_where_each_value_comes_from_before_and_after_a_reload(reloading: Reloading) -> None:
    def setting(name: str) -> dict[str, Any]:
        answer = reloading.ask("old-secret", "GET", "/v0/admin/config")
        assert b"old-secret" not in answer.body
        (found,) = [each for each in answer.json["settings"] if each["name"] == name]
        return dict(found)

    assert (setting("api_keys")["value"], setting("api_keys")["origin"]) == ("(2 keys)", str(reloading.toml))
    assert (setting("max_topics")["origin"], setting("max_topics")["reloaded"]) == ("default", True)
    assert (setting("data_dir")["origin"], setting("data_dir")["reloaded"]) == ("environment TOPICS_DATA_DIR", False)
    reloading.write_toml("max_topics = 7", "wal_shards = 63")
    reloading.hang_up(TAKEN)
    assert (setting("max_topics")["value"], setting("max_topics")["origin"]) == ("7", str(reloading.toml))
    assert setting("wal_shards")["origin"] == "default", "it changes only with a restart"
    assert reloading.ask("kept-secret", "GET", "/v0/admin/config").refusal == (403, "forbidden")


def test_what_needs_a_restart_is_named_and_stays(reloading: Reloading) -> None:
    reloading.write_toml("port = 1", 'host = "127.0.0.2"', "wal_shards = 63", "max_topics = 7")
    reloading.hang_up(TAKEN)
    (line,) = reloading.lines("these settings change only with a restart")
    # The port of the process comes from its environment, which wins.
    assert line["settings"] == ["host", "wal_shards"]
    assert reloading.ask("old-secret", "GET", "/v0/topics").status == 200


@pytest.mark.parametrize(
    "toml",
    [
        "max_topics = -1",
        "max_topic = 1",
        "not toml",
        'cors_origins = "app.example"',
        'tls_cert = "cert.pem"',
    ],
)
def test_a_wrong_value_changes_nothing_and_is_named(reloading: Reloading, toml: str) -> None:
    reloading.keys.write_text("new-secret")
    reloading.write_toml("max_batch_records = 1", toml)
    line = reloading.hang_up(REFUSED)
    assert len(line["problems"]) == 1
    two = {"records": [{"data": 1}] * 2}
    assert reloading.ask("old-secret", "POST", "/v0/topics/a", two).status == 201
    assert reloading.ask("new-secret", "GET", "/v0/topics").refusal == (401, "unauthorized")


@pytest.mark.parametrize("keys", [None, "", "secret:nothing"])
def test_keys_that_cannot_be_read_change_nothing(reloading: Reloading, keys: str | None) -> None:
    if keys is None:
        reloading.keys.unlink()
    else:
        reloading.keys.write_text(keys)
    reloading.hang_up(REFUSED)
    assert reloading.ask("old-secret", "GET", "/v0/topics").status == 200


def test_no_reload_opens_a_server_to_every_caller(reloading: Reloading) -> None:
    reloading.toml.write_text("")
    line = reloading.hang_up(REFUSED)
    assert line["problems"] == ["the new settings have no API keys: only a restart opens the server to every caller"]
    assert reloading.ask("unknown", "GET", "/v0/topics").refusal == (401, "unauthorized")
