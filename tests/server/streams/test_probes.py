"""What slow work of one client costs the others: nothing. Each disk call is held until the others were answered."""

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.streams.peer import LAST, Peer, StreamsServer, streams_server
from topics.formats.stream_command import CreatePartitions, PurgeTopic
from topics.limits import MIB
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.requests import FlushUnsavedBuffer, LoginUser
from topics.storage.fs import RealFile, RealFs

# As many as a request may ask for take ten seconds.
PARTITIONS = 1000 if os.environ.get("TOPICS_TEST_FULL") == "1" else 40
DURABLE = {"system": {"partition": {"messages_required_to_save": 1, "enforce_fsync": True}}}


class Held:
    """Calls that wait until they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def hold(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Holds calls about paths with this part."""

        def held(first: Any, *args: Any) -> Any:
            path = args[0] if args and isinstance(args[0], str) else first.path
            if part in path:
                self.begun.set()
                assert self.let_go.wait(60)
            return call(first, *args)

        return held


@contextmanager
def during(held: Held, work: Callable[[], object]) -> Iterator[None]:
    """Runs the block while `work`, on another thread, waits in a held call."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert held.begun.wait(60)
        yield
        assert thread.is_alive(), "the work was held all the time"
    finally:
        held.let_go.set()
        thread.join()
    assert not failed


def assert_others_are_served(served: StreamsServer, other: Peer) -> None:
    """HTTP, pings, and sends and polls of another topic."""
    connection = http.client.HTTPConnection(served.server.host, served.server.port, timeout=30)
    for path in ("/v0/health", "/v0/ready"):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()
    for number in range(20):
        assert other.ask(Code.PING) == b""
        other.send("other", "t", [b"%d" % number], 0)
        assert other.poll("other", "t", LAST, count=1).payloads == [b"%d" % number]


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_slow_sync_of_one_partition_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held
) -> None:
    with streams_server(tmp_path, DURABLE) as served:
        root, other = served.login(), served.login()
        root.create("slow", "t")
        other.create("other", "t")
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(RealFile, name, held.hold(getattr(RealFile, name), "streams/0/topics/0/"))
        with during(held, lambda: root.send("slow", "t", [b"x"], 0)):
            assert_others_are_served(served, other)
        assert other.poll("slow", "t").payloads == [b"x"]


def test_a_slow_flush_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """Also a send to the same partition does not stop the loop: it waits on a thread."""
    with streams_server(tmp_path) as served:
        root, sender, other = served.login(), served.login(), served.login()
        root.create("slow", "t")
        other.create("other", "t")
        root.send("slow", "t", [b"first"], 0)
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(RealFile, name, held.hold(getattr(RealFile, name), "streams/0/topics/0/"))
        waiting = threading.Thread(target=lambda: sender.send("slow", "t", [b"second"], 0))
        with during(held, lambda: root.do(FlushUnsavedBuffer("slow", "t", 0, True))):
            waiting.start()
            assert_others_are_served(served, other)
            assert other.poll("slow", "t").payloads == [b"first"]
        waiting.join()
        assert other.poll("slow", "t").payloads == [b"first", b"second"]


def test_many_new_partitions_hold_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """The lock of all commands is held meanwhile. Logins, sends and polls do not need it."""
    with streams_server(tmp_path) as served:
        root, other = served.login(), served.login()
        root.create("many", "t")
        other.create("other", "t")
        monkeypatch.setattr(RealFs, "sync_dir", held.hold(RealFs.sync_dir, "partitions/20"))
        with during(held, lambda: root.do(CreatePartitions("many", "t", PARTITIONS))):
            assert_others_are_served(served, other)
            assert served.connect().status(LoginUser("iggy", "iggy")) == 0
        root.send("many", "t", [b"x"], PARTITIONS)


def test_a_slow_purge_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    with streams_server(tmp_path) as served:
        root, other = served.login(), served.login()
        root.create("slow", "t")
        other.create("other", "t")
        root.send("slow", "t", [b"x"], 0)
        monkeypatch.setattr(RealFs, "unlink", held.hold(RealFs.unlink, "streams/0/topics/0/"))
        with during(held, lambda: root.do(PurgeTopic("slow", "t"))):
            assert_others_are_served(served, other)


def test_a_slow_read_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    with streams_server(tmp_path) as served:
        root, other = served.login(), served.login()
        root.create("slow", "t")
        other.create("other", "t")
        root.send("slow", "t", [bytes(MIB)] * 32, 0)
        monkeypatch.setattr(RealFile, "pread_into", held.hold(RealFile.pread_into, "streams/0/topics/0/"))
        with during(held, lambda: root.poll("slow", "t")):
            assert_others_are_served(served, other)
