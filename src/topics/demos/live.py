"""`topics demo`: a server with a busy shop on it, for the console and for the first look at everything.

The server is killed with `kill -9` in the middle and started again. The shop goes on, and the demo counts what was
answered and what is there. With the address of a server that runs already, nothing is killed.
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Final, NamedTuple

from topics.bench.processes import Process, ProcessFailed, start_server
from topics.bench.streams_wire import Client as StreamsClient
from topics.bench.streams_wire import create_stream_frame, create_topic_frame, login_frame
from topics.client.sync.client import Client
from topics.demos.shop import CLICKS, CLICKS_KEPT, MAILS, ORDERS, Audit, Shop
from topics.demos.terminal import choose_port, tell_command, tell_detail, tell_step
from topics.server.streams.config import missing_packages

# A demo without an end kills its server after so long.
KILL_AFTER_S: Final = 20.0
_STREAM: Final = "shop"
_STREAM_TOPIC: Final = "orders"
# A write is repeated until the server is back.
_RETRIES: Final = 100

# How often the demo looks whether Ctrl+C came.
_LOOK_EVERY_S: Final = 0.1


class Options(NamedTuple):
    """`seconds` is None for a demo that runs until Ctrl+C."""

    server: str | None = None
    token: str | None = None
    data_dir: str | None = None
    port: int | None = None
    seconds: float | None = None


class DemoFailed(Exception):
    """The server did not keep what it had answered. The text says what."""


def run(options: Options) -> int:
    """Returns the exit code: 0, or 1 when something that was answered is not there."""
    # Jobs fail because they are meant to.
    logging.getLogger("topics.worker").setLevel(logging.CRITICAL)
    ended = _End()
    with _interrupts_set(ended):
        try:
            if options.server is None:
                _run_own_server(options, ended)
            else:
                _run_on_server(options, options.server, ended)
        except (DemoFailed, ProcessFailed) as error:
            print(f"topics: {error}", file=sys.stderr)
            return 1
    return 0


class _End:
    """Whether the demo is to end. A handler of a signal may run between any two steps of the main thread, also while
    that thread holds a lock. So there is no lock in here: the handler would wait for the thread that it interrupted."""

    def __init__(self) -> None:
        self._has_come = False

    def set(self) -> None:
        self._has_come = True

    def is_set(self) -> bool:
        return self._has_come

    def wait(self, seconds: float | None) -> bool:
        """Waits until the end has come, or for some seconds; whether it has come."""
        until_s = None if seconds is None else monotonic() + seconds
        while not self._has_come and (until_s is None or monotonic() < until_s):
            sleep(_LOOK_EVERY_S)
        return self._has_come


@contextmanager
def _interrupts_set(ended: _End) -> Iterator[None]:
    """Ctrl+C and SIGTERM end the demo in order. A second one ends it at once."""

    def end(_number: int, _frame: FrameType | None) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# A server of the demo.


def _run_own_server(options: Options, ended: _End) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="topics-demo-"))
        own = _OwnServer(folder, options)
        stack.callback(own.stop)
        tell_step(f"a server, with its data in {own.data_dir}")
        stream = own.make_stream()
        client = Client(own.url, retries=_RETRIES)
        shop = Shop(client)
        stack.callback(shop.close)
        _furnish(shop, own.url, stream)
        kill_after_s = KILL_AFTER_S if options.seconds is None else options.seconds / 2
        tell_step(f"the server is killed with kill -9 in {kill_after_s:.0f} s")
        if not ended.wait(kill_after_s):
            _kill_and_count(own, shop)
            tell_step("orders, workers, routers and groups carry on. Ctrl+C ends the demo.")
            ended.wait(None if options.seconds is None else options.seconds / 2)
        _count(shop.audit(), "at the end")
        _show_shop(client)
    tell_step("the demo has ended" + ("" if options.data_dir else "; its data is removed"))


class _OwnServer:
    """A server process that can be killed and started again, with the same port and the same data."""

    def __init__(self, folder: str, options: Options) -> None:
        self._folder = folder
        self.data_dir = os.path.abspath(options.data_dir or f"{folder}/data")
        self._has_streams = not missing_packages()
        self._process: Process | None = None
        self._start(choose_port(options.port))
        self._port = self.process.port

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _start(self, port: int) -> None:
        flags = ["--port", str(port), "--data-dir", self.data_dir]
        if self._has_streams:
            flags += ["--streams-port", "0", "--streams-port-file", self._streams_file]
        self._process = start_server(self._folder, flags=flags)

    @property
    def _streams_file(self) -> str:
        return f"{self._folder}/streams-port"

    def kill_and_start(self) -> float:
        """Returns after how many seconds the server was ready again."""
        self.process.kill()
        killed_s = monotonic()
        self._start(self._port)
        return monotonic() - killed_s

    def stop(self) -> None:
        self.process.stop()

    def make_stream(self) -> str | None:
        """A topic of a stream, for the router that copies orders there; None in a server without streams."""
        if not self._has_streams:
            return None
        port = int(Path(self._streams_file).read_text("utf-8").rpartition(":")[2])
        with StreamsClient(port) as client:
            client.call(login_frame())
            # With a data directory of an earlier demo they are there already.
            with suppress(ProcessFailed):
                client.call(create_stream_frame(_STREAM.encode()))
                client.call(create_topic_frame(0, _STREAM_TOPIC.encode(), partitions=3))
        return f"stream:{_STREAM}/{_STREAM_TOPIC}"


def _kill_and_count(own: _OwnServer, shop: Shop) -> None:
    answered = shop.answered_count
    down_s = own.kill_and_start()
    tell_step(f"kill -9 after {answered} acknowledged orders; the server is back after {down_s:.1f} s")
    _count(shop.audit(), "after the kill")


# A server that runs already.


def _run_on_server(options: Options, url: str, ended: _End) -> None:
    with ExitStack() as stack:
        client = Client(url, token=options.token, retries=_RETRIES)
        # Without patience: an address that is wrong is told at once.
        client.with_options(retries=1).ready()
        shop = Shop(client)
        stack.callback(shop.close)
        _furnish(shop, url, None)
        tell_step("this server was running already, so it is not killed. Ctrl+C ends the demo.")
        ended.wait(options.seconds)
        _count(shop.audit(), "at the end")
        _show_shop(client)
    tell_step("the demo has ended; its topics, whose names begin with demo., stay on the server")


# What both have in common.


def _furnish(shop: Shop, url: str, stream: str | None) -> None:
    shop.furnish(stream)
    shop.open()
    tell_step(f"the console: {url}/")
    tell_step("topics, routers, a queue with failing jobs, groups, and a live producer; in another terminal:")
    for command in (
        f"topics tail {ORDERS}",
        f"topics queue show {MAILS}",
        f"topics queue redrive {MAILS} --dry-run",
        f"topics read {CLICKS}",
    ):
        tell_command(command, url)
    if stream is not None:
        tell_detail(f"a router copies every order to {stream}")
    tell_detail(f"{CLICKS} keeps {CLICKS_KEPT} records; a read from the start begins with a tombstone")


def _count(audit: Audit, when: str) -> None:
    if not audit.is_kept:
        raise DemoFailed(
            f"{when}, {audit.missing} of {audit.answered} acknowledged orders are missing, {audit.repeated} duplicated"
        )
    tell_step(f"{when}: {audit.answered} orders acknowledged, {audit.found} found, 0 missing, 0 duplicated")


def _show_shop(client: Client) -> None:
    depth = client.depth(MAILS)
    tell_detail(
        f"{MAILS}: {depth.ready} ready, {depth.in_flight} in flight, {depth.delayed} delayed, {depth.dead} dead"
    )
