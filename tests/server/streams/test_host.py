"""The life of the streams in a server: ports, recovery, readiness, stop."""

import socket
from pathlib import Path

import pytest

import topics
from tests.server.running import running
from tests.server.streams.peer import Peer, streams_server
from topics.errors import SettingsError, StartRefused
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import encode_frame
from topics.protocol.iggy.requests import LoginUser
from topics.server.streams import config as config_module


def test_streams_live_in_a_folder_of_the_data_directory_and_survive_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with streams_server(tmp_path) as served:
            root = served.login()
            if number == 0:
                root.create("s", "t")
                root.send("s", "t", [b"hello"], 0)
            assert root.poll("s", "t").payloads == [b"hello"]
    assert (tmp_path / "streams" / "state.messages").exists()


def test_a_directory_can_be_named(tmp_path: Path) -> None:
    with streams_server(tmp_path / "data", streams_dir=str(tmp_path / "elsewhere")) as served:
        served.login().create("s")
    assert (tmp_path / "elsewhere" / "state.messages").exists()
    assert not (tmp_path / "data" / "streams").exists()


def test_settings_of_the_engine_are_used(tmp_path: Path) -> None:
    environ = {"IGGY_SYSTEM_FLAVOUR": "iggy", "IGGY_ROOT_USERNAME": "ada", "IGGY_ROOT_PASSWORD": "engine"}
    with streams_server(tmp_path, environ=environ) as served:
        served.login("ada", "engine")
        assert served.connect().status(LoginUser("iggy", "iggy")) == 42
    assert (tmp_path / "streams" / "state" / "log").exists()


def test_a_taken_port_refuses_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match="choose another TOPICS_STREAMS_PORT"),
            running(tmp_path, streams_port=port),
        ):
            pass


def test_streams_without_their_packages_refuse_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "_PACKAGES", ("no_such_package",))
    with pytest.raises(SettingsError, match=r"pip install 'topics-log\[streams\]'"), running(tmp_path, streams_port=0):
        pass


def test_a_server_has_no_streams_unless_it_is_asked_for_them(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert not server.server.streams.is_on
    assert not (tmp_path / "streams").exists()


def test_a_damaged_directory_refuses_the_start_and_frees_the_log(tmp_path: Path) -> None:
    with streams_server(tmp_path) as served:
        served.login().create("s")
    state = tmp_path / "streams" / "state.messages"
    data = bytearray(state.read_bytes())
    data[100] ^= 1
    state.write_bytes(data)
    with pytest.raises(StartRefused), streams_server(tmp_path):
        pass
    with running(tmp_path):
        pass


def test_a_data_directory_of_another_process_gets_no_streams(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data"):
        with pytest.raises(StartRefused, match="is in use by process"), streams_server(tmp_path / "data"):
            pass
        assert not (tmp_path / "data" / "streams").exists()


def test_clients_that_connect_before_the_recovery_wait_for_it(tmp_path: Path) -> None:
    with running(tmp_path, streams_port=0, recovers=False) as server:
        address = server.server.streams.address
        assert address is not None
        with Peer(address) as early:
            early.write(encode_frame(Code.PING) * 3)
            early.socket.settimeout(0.05)
            with pytest.raises(TimeoutError):
                early.read(8)
            server.call(server.server.recover())
            early.socket.settimeout(30)
            assert early.read(24) == bytes(24)
            early.login()


def test_a_stop_answers_what_runs_and_tells_every_client(tmp_path: Path) -> None:
    with streams_server(tmp_path) as served:
        idle, busy = served.connect(), served.login()
        idle.ask(Code.PING)
        busy.create("s", "t")
        served.server.call(served.server.server.streams.drain())
        for peer in (idle, busy):
            assert peer.answer() == (8, b"")
            assert peer.is_closed()
        with pytest.raises(ConnectionRefusedError):
            Peer(served.address)


def test_buffered_messages_are_on_disk_after_a_stop(tmp_path: Path) -> None:
    with streams_server(tmp_path) as served:
        root = served.login()
        root.create("s", "t")
        root.send("s", "t", [b"hello"], 0)
        (log,) = tmp_path.rglob("00000000000000000000.log")
        assert log.stat().st_size == 0
    assert log.stat().st_size == 69
