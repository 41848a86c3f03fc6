"""Start and stop of a server.

The ports listen first. Connections are accepted when the log is recovered, or after `ACCEPT_AFTER_S` if that takes
longer: then probes and metrics answer, and every other request gets `503 not_ready`. A stop drains: it accepts no new
connections, answers waiting readers early, lets running requests end, and then writes a checkpoint.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from topics.clock import Clock, SystemClock
from topics.embedded.async_log import open_for_loop
from topics.engine.runtime import LoopRuntime
from topics.engine.starting.opened import OpenEngine
from topics.errors import SettingsError, StartRefused
from topics.server.api.admin import AdminApi
from topics.server.api.console import ConsoleFiles
from topics.server.api.groups import GroupsApi
from topics.server.api.openapi import Documents
from topics.server.api.probes import ProbesApi
from topics.server.api.queues import QueuesApi
from topics.server.api.records import RecordsApi
from topics.server.api.redrive import RedriveApi
from topics.server.api.routers import RoutersApi
from topics.server.api.segments import SegmentsApi
from topics.server.api.streams import StreamsApi
from topics.server.api.topics import TopicsApi
from topics.server.api.watch import WatchApi
from topics.server.api.websockets import WebSocketApi
from topics.server.api.work import WorkApi
from topics.server.api.writers import WritersApi
from topics.server.app import Application
from topics.server.auth import FULL_ACCESS, KeyRing
from topics.server.bridges.bridge_set import BridgeSet
from topics.server.event_loop import new_event_loop
from topics.server.http.connections import ConnectionSet
from topics.server.http.listener import Sniffer
from topics.server.http.peers import HostGuard
from topics.server.late_imports import import_late_modules
from topics.server.limits import FILE_THREADS, POOL_THREADS, Timeouts
from topics.server.listening import Listener
from topics.server.live.delivery import Hub
from topics.server.logs import configure_logging
from topics.server.pressure import Governor, PressureMeter
from topics.server.settings import LoadedSettings, check_safe, engine_settings, is_loopback
from topics.server.settings_schema import SETTINGS, ServerSettings, StreamsConfig, shown
from topics.server.streams.host import StreamsHost
from topics.server.work_pool import WorkPool

logger = logging.getLogger(__name__)

# A longer recovery is watched through the probes. A shorter one is invisible: a client that waited for
# `GET /v0/health` can write.
ACCEPT_AFTER_S: Final = 2.0

# Reads the settings again. Raises `SettingsError`, or `OSError` of a file.
LoadAgain = Callable[[], LoadedSettings]
Address = tuple[str, int]
# Called with the host and port of the server, and those for clients of Apache Iggy; None without streams.
Announce = Callable[[Address, Address | None], None]
OpenLog = Callable[[asyncio.AbstractEventLoop, Callable[[float], None]], OpenEngine]


class Server:
    """A listening server. Loop thread only."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        streams: StreamsConfig | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock | None = None,
        open_log: OpenLog | None = None,
        owns_process: bool = False,
    ) -> None:
        """`owns_process`: nothing else runs in the process."""
        timeouts = timeouts or Timeouts()
        self._settings = settings
        self._owns_process = owns_process
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._pool = WorkPool(POOL_THREADS, "topics-pool")
        self._files = WorkPool(FILE_THREADS, "topics-files")
        self._open_log = open_log or self._open_data_dir
        keys = KeyRing.parse(settings.api_keys.reveal())
        hosts = _host_guard(settings, keys)
        self.streams = StreamsHost(settings, streams or StreamsConfig(), self._loop, self._clock, timeouts)
        self.app = Application(settings, keys, hosts, self._loop, self._pool, self._files, self._clock, self.streams)
        TopicsApi(self.app)
        RecordsApi(self.app)
        SegmentsApi(self.app)
        QueuesApi(self.app)
        RedriveApi(self.app)
        RoutersApi(self.app)
        GroupsApi(self.app)
        WritersApi(self.app)
        StreamsApi(self.app)
        AdminApi(self.app)
        WatchApi(self.app)
        WebSocketApi(self.app)
        WorkApi(self.app)
        ProbesApi(self.app)
        Documents(self.app)
        if settings.console:
            ConsoleFiles(self.app)
        if not keys.enabled:
            logger.warning("there are no API keys: every caller has full access")
        self._connections = ConnectionSet(self.app, self._loop, self._clock, timeouts)
        self._listener: Listener
        self._tls: ssl.SSLContext | None = None
        # Host and port for HTTP.
        self.address: Address
        # How much of the log and of the streams is recovered, each from 0 to 1.
        self._progress = {"log": 0.0, "streams": 0.0}
        self._meter = PressureMeter(self.app.governor, self._loop, self._pool, self._ready_depth, self._apply_pressure)

    def _open_data_dir(self, loop: asyncio.AbstractEventLoop, progress: Callable[[float], None]) -> OpenEngine:
        return open_for_loop(
            self._settings.data_dir,
            loop,
            settings=engine_settings(self._settings),
            clock=self._clock,
            progress=progress,
            owns_process=self._owns_process,
        )

    def listen(self) -> None:
        """Takes the ports. Raises `SettingsError` if one cannot be used."""
        settings = self._settings
        self._tls = tls_context(settings.tls_cert, settings.tls_key)
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2", "http/1.1"])
        self._listener = Listener(settings.host, settings.port, advice="choose another --host or --port")
        try:
            self.streams.listen(tls_context(settings.tls_cert, settings.tls_key))
        except SettingsError:
            self._listener.close()
            raise
        self.address = self._listener.address

    async def start(self, on_accepting: Announce, on_ready: Announce) -> None:
        """Recovers, and then accepts connections; before its end if it takes long. Raises `StartRefused`."""
        recovering = asyncio.ensure_future(self.recover())
        await asyncio.wait((recovering,), timeout=ACCEPT_AFTER_S)
        if recovering.done():
            recovering.result()
            # The port file and the start message are written before the first request is answered.
            on_accepting(self.address, self.streams.address)
            on_ready(self.address, self.streams.address)
            await self.accept()
        else:
            on_accepting(self.address, self.streams.address)
            await self.accept()
            await recovering
            on_ready(self.address, self.streams.address)

    async def accept(self) -> None:
        await self._listener.accept(partial(Sniffer, self._connections), self._tls)
        await self.streams.accept()

    async def recover(self) -> None:
        """Opens the log and the streams. Raises `StartRefused` if a data directory cannot be served."""
        log_locked = asyncio.Event()
        log_opening = self._loop.run_in_executor(
            self._files, self._open_log, self._loop, partial(self._note_log_progress, log_locked)
        )
        if self.streams.is_on:
            await self._until_locked(log_opening, log_locked)
            try:
                system = await self._loop.run_in_executor(
                    self._files, self.streams.open_engine, partial(self._note_progress, "streams")
                )
            except StartRefused:
                await self._abandon(log_opening)
                raise
        self._note_progress("streams", 1.0)
        try:
            opened = await log_opening
        except StartRefused:
            if self.streams.is_on:
                await self._loop.run_in_executor(self._files, system.close)
            raise
        await self.app.disk.start(opened.disk_space)
        self.app.replay_progress = 1.0
        self.app.opened = opened
        self._limit_engine(opened)
        self.app.hub = Hub(opened.engine, self._loop, self._files)
        opened.start()
        self.app.meter = self._meter
        if self.streams.is_on:
            self.streams.start(system)
        self.app.bridges = BridgeSet(opened.engine, self.streams.system, self._loop, self._files)
        self.app.bridges.start()

    async def _until_locked(self, log_opening: asyncio.Future[OpenEngine], log_locked: asyncio.Event) -> None:
        """The streams are usually below the data directory. Another server may have that open, without streams: nothing
        is made there then."""
        locked = asyncio.ensure_future(log_locked.wait())
        try:
            await asyncio.wait((log_opening, locked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            locked.cancel()
        if log_opening.done():
            log_opening.result()

    async def _abandon(self, log_opening: asyncio.Future[OpenEngine]) -> None:
        """The streams cannot be served: the log is closed again, so that its directory is free."""
        try:
            opened = await log_opening
        except StartRefused as error:
            logger.error("the log cannot be served either", extra={"fields": {"reason": error.message}})
            return
        await self._close_log(opened)

    # New settings.

    def reload(self, loaded: LoadedSettings) -> None:
        """Takes keys, limits and other settings that can change in a running server, and logs what changed.

        Raises `SettingsError`, and then nothing has changed.
        """
        new, old = loaded.settings, self._settings
        check_safe(new)
        keys = self.app.renewed_keys(new.api_keys.reveal())
        if self.app.has_keys and not keys.enabled:
            raise SettingsError("the new settings have no API keys: only a restart opens the server to every caller")
        names = [setting.name for setting in SETTINGS if setting.is_reloaded]
        changed = {name: shown(getattr(new, name)) for name in names if _differs(old, new, name)}
        before, after = self.app.keys - {FULL_ACCESS}, keys.all_keys() - {FULL_ACCESS}
        self._settings = replace(old, **{name: getattr(new, name) for name in names})
        kept = self.app.origins_of_settings
        self.app.origins_of_settings = {**kept, **{name: loaded.origins.get(name, "default") for name in names}}
        ended = self.app.use_settings(self._settings, keys, _host_guard(old, keys))
        if self.app.opened is not None:
            self._limit_engine(self.app.opened)
        fields = {
            "changed": changed,
            "keys_added": len(after - before),
            "keys_removed": len(before - after),
            "streams_ended": ended,
        }
        logger.info("the settings were read again", extra={"fields": fields})
        for warning in loaded.warnings:
            logger.warning("a setting was ignored", extra={"fields": {"reason": warning}})
        waiting = [each.name for each in SETTINGS if not each.is_reloaded and _differs(old, new, each.name)]
        if waiting:
            logger.warning("these settings change only with a restart", extra={"fields": {"settings": waiting}})

    def _limit_engine(self, opened: OpenEngine) -> None:
        limits = engine_settings(self._settings)
        opened.engine.change_limits(
            topics_max=limits.topics_max, routers_max=limits.routers_max, total_bytes_max=limits.total_bytes_max
        )

    async def load_and_reload(self, load: LoadAgain) -> None:
        """Reads the settings in a thread, because a file may be slow, and takes them. A problem is logged."""
        try:
            loaded = await self._loop.run_in_executor(self._pool, load)
            secrets = loaded.settings.api_keys.secrets()
            self.reload(loaded)
        except (SettingsError, OSError) as error:
            problems = error.problems if isinstance(error, SettingsError) else (str(error),)
            fields = {"problems": list(problems)}
            logger.error("the settings were not read again, and nothing has changed", extra={"fields": fields})
            return
        configure_logging(self._settings.log_level, self._settings.log_format, secrets=secrets)
        loaded.settings.api_keys.forget()

    def _note_log_progress(self, locked: asyncio.Event, fraction: float) -> None:
        self._note_progress("log", fraction)
        if fraction == 0:
            self._loop.call_soon_threadsafe(locked.set)

    def _note_progress(self, part: str, fraction: float) -> None:
        # Called on the recovering threads: each assignment is atomic.
        self._progress[part] = fraction
        if part == "streams":
            self.streams.recovery_progress = fraction
        self.app.replay_progress = min(self._progress.values())

    def _ready_depth(self) -> int:
        hub = self.app.hub
        return 0 if hub is None else hub.ready_depth + hub.engine.forwarder.ready_depth

    def _apply_pressure(self, governor: Governor) -> None:
        """Passes the steps of the governor on to the parts that take them."""
        engine = self.app.open_engine().engine
        if isinstance(engine.runtime, LoopRuntime):
            engine.runtime.commit_window_ms = governor.commit_window_ms
        engine.forwarder.lower(is_lowered=governor.is_strained)
        self.app.counters.pressure = governor.pressure
        hub = self.app.hub
        if hub is not None:
            hub.coalesce_ms = governor.coalesce_ms
            hub.pause_lowest_band(on=governor.is_strained)

    async def stop(self) -> None:
        """Drains, writes the last checkpoint, and closes everything."""
        self._listener.close()
        # Set before the last answers, so that the last answer of a connection says that it is the last.
        self._connections.is_draining = True
        self.app.end_waiting()
        await asyncio.gather(self._connections.drain(), self.streams.drain())
        self._connections.close()
        if self.app.bridges is not None:
            await self.app.bridges.stop()
        self._meter.stop()
        opened, self.app.opened = self.app.opened, None
        if opened is not None:
            await self._close_log(opened)
        await self.streams.close()
        self._pool.shutdown()
        self._files.shutdown()

    async def _close_log(self, opened: OpenEngine) -> None:
        closed: asyncio.Future[Exception | None] = self._loop.create_future()
        opened.close(closed.set_result)
        error = await closed
        if error is not None:
            # The log has all records, and the next start reads it.
            logger.warning("the last checkpoint failed", extra={"fields": {"reason": str(error)}})
        await self._loop.run_in_executor(self._files, opened.release)


def _host_guard(settings: ServerSettings, keys: KeyRing) -> HostGuard | None:
    return HostGuard(settings.host) if not keys.enabled and is_loopback(settings.host) else None


def _differs(old: ServerSettings, new: ServerSettings, name: str) -> bool:
    """Keys are compared by their number: their text is forgotten."""
    return shown(getattr(old, name)) != shown(getattr(new, name))


def tls_context(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """The context of one listener; None without a certificate."""
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"cannot use tls_cert {cert} with tls_key {key}: {error}") from error
    return context


def run(
    loaded: LoadedSettings,
    *,
    on_accepting: Announce,
    on_ready: Announce,
    load_again: LoadAgain,
) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code. Calls `on_accepting` when clients can connect,
    `on_ready` when the log is recovered, and `load_again` at SIGHUP.
    """
    raise_file_limit()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(loaded, on_accepting, on_ready, load_again))


async def _serve(loaded: LoadedSettings, on_accepting: Announce, on_ready: Announce, load_again: LoadAgain) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    hung_up = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    server = Server(loaded.settings, streams=loaded.streams, owns_process=True)
    server.app.origins_of_settings = loaded.origins
    reloading = asyncio.ensure_future(_reload_at_signal(server, hung_up, load_again))
    loaded.settings.api_keys.forget()
    server.listen()
    starting = asyncio.ensure_future(server.start(on_accepting, on_ready))
    stop_wanted = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, stop_wanted), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # A start that is stopped leaves the same files as a crash, and the next start recovers again.
        logger.info("stopped while recovering")
        os._exit(0)
    try:
        starting.result()
        # Objects of the start live as long as the process, so the garbage collector need not visit them.
        await loop.run_in_executor(None, import_late_modules)
        gc.enable()
        gc.collect()
        gc.freeze()
        await stop_wanted
        logger.info("stopping")
    finally:
        reloading.cancel()
        await server.stop()
    logger.info("stopped")
    return 0


async def _reload_at_signal(server: Server, hung_up: asyncio.Event, load_again: LoadAgain) -> None:
    """One reload at a time. Signals that come during a reload cause one more reload."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        await server.load_and_reload(load_again)


def raise_file_limit() -> None:
    """Raises the limit of open files: every connection and every mapped segment takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
