"""A server with nothing to do sleeps. Its wake-ups are counted, as the kernel counts them."""

import threading
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest
from websockets.sync.client import connect

from tests.server.clients import HTTP1, Http1Client
from tests.server.event_streams import EVENT_STREAMS
from topics.bench.processes import wake_ups
from topics.testing.server_process import ServerProcess

WINDOW_S = 2.0
# About 2 a second are needed: one tick of the engine, one look at the deadlines of connections.
PER_SECOND_MAX = 10
# Work that follows requests ends within a few seconds: a sync, a sync mark, samples of the load.
WINDOWS_MAX = 15


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not count wake-ups per process")
def test_an_idle_server_with_topics_routers_leases_and_readers_sleeps() -> None:
    with ServerProcess() as server, Http1Client(server.host, server.port) as client, ExitStack() as readers:
        for number in range(5):
            client.put_topic(f"t{number}", ttl_ms=600_000)
        for number in range(4):
            spec = {"source": f"t{number}", "dest": f"t{number + 1}"}
            assert client.request("PUT", f"/v0/routers/r{number}", spec).status == 201
        client.put_topic("jobs", type="queue")
        client.write("jobs", 1, 2, 3)
        assert client.request("POST", "/v0/topics/jobs/claim", {"node": "n", "lease_ms": 600_000}).status == 200
        for _ in range(10):
            path = client.request("POST", "/v0/watch", {"topics": {"t0": {}, "t4": {}}}).json["stream_url"]
            stream = readers.enter_context(EVENT_STREAMS[HTTP1]((server.host, server.port), path))
            stream.until("caught-up", topic="t4")
            socket = readers.enter_context(connect(f"ws://{server.address}/v0/ws", proxy=None))
            socket.send('{"op":"subscribe","topics":{"t0":{}}}')
        worker = EVENT_STREAMS[HTTP1]((server.host, server.port), "/v0/topics/jobs/work?node=w")
        readers.enter_context(worker)
        client.write("t0", 1)
        assert client.datas("t4") == [1]
        counts = []
        for _ in range(WINDOWS_MAX):
            before, begun_s = wake_ups(server.pid), monotonic()
            threading.Event().wait(WINDOW_S)
            counts.append((wake_ups(server.pid) - before) / (monotonic() - begun_s))
            if counts[-1] <= PER_SECOND_MAX:
                break
        assert counts[-1] <= PER_SECOND_MAX, f"wake-ups a second, in windows of {WINDOW_S} s: {counts}"
