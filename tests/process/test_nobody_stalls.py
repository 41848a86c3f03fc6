"""No request, and no client that takes nothing, keeps other clients waiting: one server, one probe, every route.

A probe asks for health every 10 ms while one request with the largest legal body runs. The bound is relative to the
idle server of the same run, because the machine may have other work. What is beyond it is measured again, on a new
server: a request that keeps others waiting does so every time, and a machine that stalls for a moment does not.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest
from h2.connection import H2Connection
from h2.settings import SettingCodes
from websockets.frames import Frame, Opcode

from tests.server.http2_peer import Fields, Peer
from tests.server.running import running
from topics.bench.stalls import HealthProbe, members, records, send
from topics.limits import MIB
from topics.testing.server_process import ServerProcess

KIB = 1024
GAP_MS_MAX = 250.0
IDLE_FACTOR = 5
ROUNDS_MAX = 3
LARGE = 24 * MIB
SMALL = MIB - KIB
_numbers = count(1)


def padded(body: bytes, size: int = SMALL) -> bytes:
    """The object, with a long unknown string."""
    return (
        b'%b,"unknown":"%b"}' % (body[:-1], b"x" * (size - len(body) - 14))
        if len(body) > 2
        else b'{"unknown":"%b"}' % (b"x" * size)
    )


def values(body: bytes, size: int = SMALL) -> bytes:
    """The object, with many tiny unknown members."""
    comma = b"" if body == b"{}" else b","
    return b"%b%b%b}" % (body[:-1], comma, members(size - len(body))[1:])


def writes() -> Iterator[bytes]:
    yield records(LARGE // MIB, b'{"data":"%b"}' % (b"x" * (MIB - 2)))
    yield records(10_000, b'{"data":{"id":1},"tag":"t","node":"n","meta":{"a":1}}')
    yield records(1, b'{"data":1}', members(LARGE // 4))
    yield records(2_000, b'{"data":1%b}' % members(8_000))
    yield records(1, b'{"data":1}', b',"x":[%b0]' % (b"0," * (LARGE // 2)))
    yield records(LARGE // 11, b'{"data":1}')
    yield records(LARGE // 4 // MIB, b'{"data":[%b0]}' % (b"[]," * 340_000))


def staged() -> Iterator[bytes]:
    place = b',"writer":"w","epoch":%d,"part":1,"attempt":1,"chunk":0' % next(_numbers)
    yield records(LARGE // MIB, b'{"data":"%b"}' % (b"x" * (MIB - 2)), place)
    yield records(10_000, b'{"data":1,"tag":"t"}', place)


def small(*bodies: bytes) -> Callable[[], Iterator[bytes]]:
    """The largest bodies of a route that takes 1 MiB: one long string, many values, and more than is legal."""

    def made() -> Iterator[bytes]:
        for body in bodies:
            yield padded(body)
            yield values(body)
        yield values(bodies[0], 4 * MIB)

    return made


def nothing() -> Iterator[bytes]:
    yield b""


ACK = b'{"node":"n","seqs":[%b0]}' % (b"0," * (SMALL // 2))
WATCH_MANY = b'{"topics":{"t":{}%b}}' % b"".join([b',"%x":{}' % number for number in range(80_000)])

# The largest bodies of each endpoint, by its name. A new endpoint needs a row here.
BODIES: dict[str, Callable[[], Iterator[bytes]]] = {
    "append": writes,
    "stage": staged,
    "diff": small(b'{"limit":1000,"max_batch_bytes":8388608}', b'{"node":[%b""]}' % (b'"",' * (SMALL // 3))),
    "delete": small(b'{"match":"%b*"}' % (b"x" * 500_000), b'{"before_seq":1}'),
    "put_topic": small(b'{"ttl_ms":0}'),
    "claim": small(b'{"node":"n","max":1000}'),
    "ack": small(b'{"node":"n","seqs":[1]}', ACK),
    "nack": small(b'{"node":"n","seqs":[1]}', ACK),
    "redrive": small(b'{"to":"d2"}', b'{"to":"d2","match":"%b*"}' % (b"x" * 500_000)),
    "extend": small(b'{"node":"n","seqs":[1],"lease_ms":100}', ACK),
    "watch": small(b'{"topics":{"t":{}}}', WATCH_MANY),
    "put_router": small(b'{"source":"t","dest":"d"}'),
    "put_group": small(b'{"seq":1}'),
    "commit_group": small(b'{"seq":1}'),
    "manifest": small(b'{"from_seq":0}'),
    "capture": small(b'{"pin_ms":0}'),
    "commit_epoch": small(
        b'{"epoch":1,"topic":"t","parts":[]}',
        b'{"epoch":1,"topic":"t","parts":[%b]}'
        % b",".join([b'{"part":%d,"attempt":1,"chunks":0,"records":0}' % part for part in range(9_000)]),
    ),
    "abort_epoch": small(b'{"epoch":1}'),
    "replace_segment": small(
        b'{"topic_id":1,"epoch":1,"first_seq":1,"expect_digest":"00","data":"a","idx":"b"}',
    ),
}
# They have a test of their own.
STREAMS = {"watch_stream", "work", "ws"}


def endpoints(tmp_path: Path) -> list[tuple[str, str, str, bool]]:
    """(name, method, path, whether it reads a body) of every endpoint of a server. Deletions come last."""
    with running(tmp_path) as server:
        table = sorted(server.server.app.routes.endpoints(), key=lambda row: row[0] == "DELETE")
        return [(endpoint.name, method, path, endpoint.body.value != "ignored") for method, path, endpoint in table]


def requests(name: str, method: str, path: str, *, reads_body: bool) -> Iterator[bytes]:
    path = path.replace("{topic}", "q" if name in ("claim", "ack", "nack", "extend", "redrive") else "t")
    for parameter in ("{router}", "{group}", "{writer}", "{wid}"):
        path = path.replace(parameter, "r")
    if name == "frames":
        path += "?max_bytes=67108864"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for body in BODIES[name]() if reads_body else nothing():
        yield f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        if name == "append":
            zipped = gzip.compress(body, 1)
            yield f"{head}Content-Encoding: gzip\r\nContent-Length: {len(zipped)}\r\n\r\n".encode() + zipped
    if name == "append":
        body = next(writes())
        chunks = [body[start : start + 64 * KIB] for start in range(0, len(body), 64 * KIB)]
        text = b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks])
        yield f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + text + b"0\r\n\r\n"


def idle_gap_ms(server: ServerProcess, probe: HealthProbe) -> float:
    """The longest answer to the probe while only small requests run."""
    probe.start_over()
    for _ in range(200):
        assert send(server.port, _json_request("POST", "/v0/topics/idle", {"records": [{"data": 1}]})) in (200, 201)
    return probe.take_longest_ms()


def too_long(gaps: dict[str, float], idle_ms: float) -> dict[str, int]:
    """The gaps beyond the bound."""
    print(f"idle: {idle_ms:.0f} ms")
    for what, gap_ms in sorted(gaps.items(), key=lambda item: -item[1])[:10]:
        print(f"{what}: {gap_ms:.0f} ms")
    bound_ms = max(GAP_MS_MAX, IDLE_FACTOR * idle_ms)
    return {what: round(gap_ms) for what, gap_ms in gaps.items() if gap_ms > bound_ms}


def too_long_each_time(measure: Callable[[], dict[str, int]]) -> dict[str, int]:
    """What `measure` found in every one of its rounds. It is not called again when nothing is left."""
    found = measure()
    for _ in range(ROUNDS_MAX - 1):
        if found:
            found = {what: gap_ms for what, gap_ms in measure().items() if what in found}
    return found


@pytest.mark.timeout(900)
def test_no_request_of_any_route_keeps_others_waiting(tmp_path: Path) -> None:
    table = [endpoint for endpoint in endpoints(tmp_path) if endpoint[0] not in STREAMS]
    assert {name for name, _, _, reads_body in table if reads_body} == set(BODIES)

    def measure() -> dict[str, int]:
        with ServerProcess() as server, ExitStack() as stack:
            send(server.port, _json_request("PUT", "/v0/topics/q", {"type": "queue"}))
            send(server.port, _json_request("PUT", "/v0/topics/t", {"cap_bytes": 64 * MIB}))
            probe = HealthProbe(server.port)
            stack.callback(probe.close)
            idle_ms = idle_gap_ms(server, probe)
            gaps: dict[str, float] = {}
            for name, method, path, reads_body in table:
                for number, request in enumerate(requests(name, method, path, reads_body=reads_body)):
                    probe.start_over()
                    status = send(server.port, request)
                    assert status not in (0, 500), (name, number, status)
                    gaps[f"{name} {number}"] = probe.take_longest_ms()
            # The idle server again, since the machine may have become busier.
            idle_ms = max(idle_ms, idle_gap_ms(server, probe))
        return too_long(gaps, idle_ms)

    assert too_long_each_time(measure) == {}


def requests_by_http2() -> Iterator[tuple[str, str, str, bytes, Fields]]:
    """(what, method, path, body, headers): the routes with the largest bodies, and the largest answers."""
    for number, body in enumerate(writes()):
        yield f"append {number}", "POST", "/v0/topics/t", body, []
    zipped = gzip.compress(next(writes()), 1)
    yield "append, gzip", "POST", "/v0/topics/t", zipped, [(b"content-encoding", b"gzip")]
    for number, body in enumerate(staged()):
        yield f"stage {number}", "POST", "/v0/topics/t/stage", body, []
    for number, body in enumerate(BODIES["diff"]()):
        yield f"diff {number}", "POST", "/v0/topics/t/diff", body, []
    yield "frames", "GET", "/v0/topics/t/frames?max_bytes=67108864", b"", []


def send_by_http2(server: ServerProcess, method: str, path: str, body: bytes, headers: Fields) -> int:
    """The status of the answer."""
    with Peer(socket.create_connection((server.host, server.port), timeout=60)) as peer:
        stream = peer.start(method, path, body or None, headers)
        peer.until(lambda: stream in peer.ended or stream in peer.resets)
        return peer.statuses[stream]


@pytest.mark.timeout(900)
def test_no_large_body_by_http2_keeps_others_waiting() -> None:
    def measure() -> dict[str, int]:
        with ServerProcess() as server, ExitStack() as stack:
            probe = HealthProbe(server.port)
            stack.callback(probe.close)
            idle_ms = idle_gap_ms(server, probe)
            gaps: dict[str, float] = {}
            statuses: dict[str, int] = {}
            for what, method, path, body, headers in requests_by_http2():
                probe.start_over()
                statuses[what] = send_by_http2(server, method, path, body, headers)
                gaps[what] = probe.take_longest_ms()
            assert (statuses["append 0"], statuses["append, gzip"], statuses["frames"]) == (201, 200, 200)
            assert set(statuses.values()) <= {200, 201, 400, 413}
            idle_ms = max(idle_ms, idle_gap_ms(server, probe))
        return too_long(gaps, idle_ms)

    assert too_long_each_time(measure) == {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("frame_bytes", [64 * MIB, 64 * KIB], ids=["one frame", "fragments"])
def test_no_message_of_a_websocket_keeps_others_waiting(frame_bytes: int) -> None:
    message = b'{"op":"publish","topic":"t",%b' % next(writes())[1:]
    starts = range(0, len(message), frame_bytes)
    frames = [
        Frame(
            Opcode.CONT if start else Opcode.TEXT,
            message[start : start + frame_bytes],
            fin=start + frame_bytes >= len(message),
        ).serialize(mask=True)
        for start in starts
    ]

    def measure() -> dict[str, int]:
        with ServerProcess() as server, ExitStack() as stack:
            probe = HealthProbe(server.port)
            stack.callback(probe.close)
            idle_ms = idle_gap_ms(server, probe)
            client = connected(server, stack, WEBSOCKET_HEAD)
            client.sendall(b"".join(frames))
            answer = b""
            while b'"last_seq":%d' % (LARGE // MIB) not in answer:
                received = client.recv(4096)
                assert received, answer
                answer += received
            gap_ms = probe.take_longest_ms()
            idle_ms = max(idle_ms, idle_gap_ms(server, probe))
        return too_long({"publish": gap_ms}, idle_ms)

    assert too_long_each_time(measure) == {}


def _json_request(method: str, path: str, body: object) -> bytes:
    text = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


# Clients that take nothing.

READERS = 40
RECORDS_OF_1_MIB = 24
# Beside the records themselves and what the server shares between readers.
GROWTH_MIB_MAX = 200


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / KIB


def connected(server: ServerProcess, stack: ExitStack, text: bytes) -> socket.socket:
    """A connection that has sent this, and that takes next to nothing."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect((server.host, server.port))
    client.sendall(text)
    return client


WEBSOCKET_HEAD = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def subscribe_by_websocket(server: ServerProcess, stack: ExitStack) -> None:
    command = b'{"op":"subscribe","topic":"large","max_batch_bytes":8388608}'
    frame = bytes([0x81, 0x80 | len(command)]) + bytes(4) + command
    connected(server, stack, WEBSOCKET_HEAD + frame)


def watch_by_events(server: ServerProcess, stack: ExitStack) -> None:
    body = {"topics": {"large": {}}, "max_batch_bytes": 8_388_608}
    with closing(http.client.HTTPConnection(server.host, server.port, timeout=60)) as client:
        client.request("POST", "/v0/watch", json.dumps(body), {"Content-Type": "application/json"})
        wid = json.loads(client.getresponse().read())["wid"]
    connected(server, stack, f"GET /v0/watch/{wid} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def pipeline_pages(server: ServerProcess, stack: ExitStack) -> None:
    page = _json_request("POST", "/v0/topics/large/diff", {"limit": 1000, "max_batch_bytes": 8_388_608})
    connected(server, stack, page * 16)


def ask_by_http2(server: ServerProcess, stack: ExitStack) -> None:
    """Many pages on one connection whose windows stay closed."""
    client = stack.enter_context(socket.create_connection((server.host, server.port), timeout=60))
    frames = H2Connection()
    frames.initiate_connection()
    frames.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    for _ in range(16):
        stream = frames.get_next_available_stream_id()
        text = json.dumps({"limit": 1000, "max_batch_bytes": 8_388_608}).encode()
        head = [
            (":method", "POST"),
            (":path", "/v0/topics/large/diff"),
            (":scheme", "http"),
            (":authority", "localhost"),
        ]
        frames.send_headers(stream, [*head, ("content-type", "application/json")])
        frames.send_data(stream, text, end_stream=True)
    client.sendall(frames.data_to_send())


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "connect",
    [subscribe_by_websocket, watch_by_events, pipeline_pages, ask_by_http2],
    ids=["websocket", "events", "pipelined", "http2"],
)
def test_clients_that_take_nothing_cost_little_and_delay_no_writer(
    connect: Callable[[ServerProcess, ExitStack], None],
) -> None:
    large = {"records": [{"data": "x" * (MIB - 2)}]}

    def measure() -> dict[str, int]:
        with ServerProcess() as server, ExitStack() as stack:
            for _ in range(RECORDS_OF_1_MIB):
                assert send(server.port, _json_request("POST", "/v0/topics/large", large)) in (200, 201)
            probe = HealthProbe(server.port)
            stack.callback(probe.close)
            idle_ms = idle_gap_ms(server, probe)
            before_mib = resident_mib(server.pid)
            for _ in range(READERS):
                connect(server, stack)
            probe.start_over()
            for _ in range(20):
                assert send(server.port, _json_request("POST", "/v0/topics/large", large)) == 200
            gap_ms = probe.take_longest_ms()
            growth_mib = resident_mib(server.pid) - before_mib - 20
            idle_ms = max(idle_ms, idle_gap_ms(server, probe))
        print(f"memory: {growth_mib:.0f} MiB more")
        assert growth_mib < GROWTH_MIB_MAX
        return too_long({"appends": gap_ms}, idle_ms)

    assert too_long_each_time(measure) == {}
