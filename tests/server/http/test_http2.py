"""HTTP/2 over a real socket, with a client that looks at streams and frames.

What endpoints answer is tested over both protocols in `tests/server/contract`; here is what HTTP/2 adds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, Event, StreamEnded, StreamReset
from h2.settings import SettingCodes
from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.http2_peer import RECEIVE_BYTES, Fields, Peer, headers_frame, received_frames
from tests.server.running import Running, running
from tests.server.wires import Wires
from topics.limits import KIB, MIB
from topics.server.http.http2_meter import H2_PREFACE
from topics.server.limits import (
    DRAINED_BODY_BYTES_MAX,
    H2_CONNECTION_WINDOW_BYTES,
    H2_IDLE_FRAMES_MAX,
    H2_RESETS_MAX,
    H2_STREAMS_MAX,
    H2_UNSENT_BYTES_HIGH,
    TARGET_BYTES_MAX,
    Timeouts,
)

CALM: Final = ErrorCodes.ENHANCE_YOUR_CALM
JSON: Final = (b"content-type", b"application/json")
SMALL_BODY_BYTES_MAX: Final = 256 * KIB


@pytest.fixture
def peer(server: Running) -> Iterator[Peer]:
    with Peer(server.connect()) as connected:
        yield connected


@contextlib.contextmanager
def running_with(**timeouts: float) -> Iterator[Running]:
    """A server with these timeouts, and without a log."""
    with running("/nowhere", timeouts=Timeouts(**timeouts), recovers=False) as other:  # type: ignore[arg-type]
        yield other


def waiting_count(server: Running) -> int:
    async def count() -> int:
        return len(server.server.app.waiting)

    return server.call(count())


def start_long_poll(peer: Peer, topic: str) -> int:
    return peer.start("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000})


def get(authority: bytes, path: bytes = b"/v0/health") -> Fields:
    return [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", authority), (b":path", path)]


def last_words(peer: Peer) -> GoAwayFrame:
    """The GOAWAY of a connection that the server ends. Read by hand, because the client's library does not know all
    streams.
    """
    *_, last = received_frames(peer.socket)
    assert isinstance(last, GoAwayFrame)
    return last


def assert_still_serves(peer: Peer) -> None:
    status, _ = peer.request("GET", "/v0/health")
    assert status == 200


# Requests and answers.


def test_the_announced_settings_are_those_of_the_contract(peer: Peer) -> None:
    assert_still_serves(peer)
    announced = peer.h2.remote_settings
    assert announced.max_concurrent_streams >= 1024
    assert announced.initial_window_size == MIB
    assert announced[SettingCodes.MAX_HEADER_LIST_SIZE] == 64 * KIB
    assert peer.h2.outbound_flow_control_window == 4 * MIB


def test_every_endpoint_answers_on_one_connection(peer: Peer, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    status, created = peer.request("PUT", path, {})
    assert (status, created["created"]) == (201, True)
    records = [{"data": {"n": n}, "tag": "t"} for n in range(3)]
    status, appended = peer.request("POST", path, {"records": records})
    assert (status, appended["seqs"]) == (200, [1, 2, 3])
    status, page = peer.request("POST", f"{path}/diff", {"from_seq": 0})
    assert (status, [record["data"]["n"] for record in page["records"]]) == (200, [0, 1, 2])
    status, deleted = peer.request("POST", f"{path}/delete", {"before_seq": 2})
    assert (status, deleted["deleted"]) == (200, 1)
    status, state = peer.request("GET", path)
    assert (status, state["count"]) == (200, 2)
    status, listed = peer.request("GET", f"/v0/topics?prefix={topic}")
    assert status == 200
    assert topic in json.dumps(listed)
    for probe in ("/v0/health", "/v0/ready", "/v0/metrics"):
        stream = peer.start("GET", probe)
        peer.until(lambda: stream in peer.ended)  # noqa: B023 - used up before the next round.
        assert peer.statuses[stream] == 200
    status, gone = peer.request("DELETE", path)
    assert (status, gone["deleted"]) == (200, True)


def test_head_has_the_headers_of_get_and_no_body(peer: Peer, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    stream = peer.start("GET", f"/v0/topics/{topic}")
    peer.json(stream)
    head = peer.start("HEAD", f"/v0/topics/{topic}")
    peer.until(lambda: head in peer.ended)
    assert peer.statuses[head] == 200
    assert peer.bodies[head] == b""
    assert peer.headers[head].keys() == peer.headers[stream].keys()
    assert int(peer.headers[head][b"content-length"]) > 0


def test_bodies_are_gzipped_both_ways(peer: Peer, topic: str) -> None:
    text = json.dumps({"records": [{"data": "x" * 4000}]}).encode()
    coded = gzip.compress(text)
    written = peer.start("POST", f"/v0/topics/{topic}", coded, [(b"content-encoding", b"gzip")])
    assert peer.json(written)["count"] == 1
    read = peer.start("POST", f"/v0/topics/{topic}/diff", {}, [(b"accept-encoding", b"gzip")])
    peer.until(lambda: read in peer.ended)
    assert peer.headers[read][b"content-encoding"] == b"gzip"
    assert json.loads(gzip.decompress(peer.bodies[read]))["records"][0]["data"] == "x" * 4000


def test_a_body_without_length_and_with_trailers_is_taken(peer: Peer, topic: str) -> None:
    stream = peer.begin("POST", f"/v0/topics/{topic}", [JSON])
    peer.send_body(stream, b'{"records":[', ends=False)
    peer.send_body(stream, b'{"data":1}]}', ends=False)
    peer.h2.send_headers(stream, [(b"x-checksum", b"1")], end_stream=True)
    assert peer.json(stream)["first_seq"] == 1


def test_a_length_that_does_not_fit_the_body_ends_the_connection(peer: Peer, topic: str) -> None:
    stream = peer.begin("POST", f"/v0/topics/{topic}", [JSON, (b"content-length", b"5")])
    peer.send_body(stream, b'{"records":[]}')
    peer.until_closed()
    assert peer.goaway == ErrorCodes.PROTOCOL_ERROR


def test_an_authority_that_is_not_ours_is_refused(server: Running) -> None:
    with Peer(server.connect(), authority=b"evil.example") as peer:
        assert peer.request("GET", "/v0/topics")[0] == 403


def test_a_key_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, keys="sesame") as server, Peer(server.connect()) as peer:
        assert peer.request("GET", "/v0/topics")[0] == 401
        assert peer.request("GET", "/v0/topics", headers=[(b"authorization", b"Bearer sesame")])[0] == 200


# Many streams.


def test_many_streams_at_once_each_get_their_own_answer(peer: Peer, topic: str) -> None:
    """Far more requests in one packet than are started in one turn."""
    streams = [peer.start("POST", f"/v0/topics/{topic}", {"records": [{"data": n}]}) for n in range(500)]
    seqs = [peer.json(stream)["first_seq"] for stream in streams]
    assert sorted(seqs) == list(range(1, 501))
    page = peer.request("POST", f"/v0/topics/{topic}/diff", {"limit": 1000})[1]
    assert [record["data"] for record in page["records"]] == [seqs.index(seq) for seq in range(1, 501)]


def test_a_stream_that_waits_holds_up_no_other(peer: Peer, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    waiting = start_long_poll(peer, topic)
    peer.request("POST", f"/v0/topics/{topic}", {"records": [{"data": "news"}]})
    assert [record["data"] for record in peer.json(waiting)["records"]] == ["news"]


def test_a_stream_beyond_the_limit_is_refused_and_can_be_tried_again(peer: Peer, server: Running, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    waiting = [start_long_poll(peer, topic) for _ in range(H2_STREAMS_MAX)]
    peer.flush()
    # Like a client that has not seen the limit.
    peer.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * H2_STREAMS_MAX
    peer.h2.remote_settings.acknowledge()
    extra = [peer.start("GET", "/v0/health") for _ in range(300)]
    peer.until(lambda: peer.resets.keys() >= set(extra))
    assert {peer.resets[stream] for stream in extra} == {ErrorCodes.REFUSED_STREAM}
    with Peer(server.connect()) as writer:
        writer.request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    peer.until(lambda: peer.ended >= set(waiting))
    assert_still_serves(peer)


def test_a_reset_by_the_client_ends_the_wait(peer: Peer, server: Running, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    before = waiting_count(server)
    waiting = start_long_poll(peer, topic)
    assert_still_serves(peer)
    assert waiting_count(server) == before + 1
    peer.reset(waiting)
    assert_still_serves(peer)
    assert waiting_count(server) == before


def test_a_lost_connection_ends_its_waits(server: Running, topic: str) -> None:
    before = waiting_count(server)
    with Peer(server.connect()) as lost:
        lost.request("PUT", f"/v0/topics/{topic}", {})
        for _ in range(20):
            start_long_poll(lost, topic)
        assert_still_serves(lost)
        assert waiting_count(server) == before + 20
    while waiting_count(server) != before:
        pass


def test_a_reset_in_the_same_packet_as_its_request_is_no_trouble(peer: Peer, server: Running, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    before = waiting_count(server)
    for _ in range(50):
        peer.reset(start_long_poll(peer, topic))
        # An early refusal to a stream that is reset by then.
        peer.reset(peer.begin("POST", "/v0/nowhere", [JSON, (b"expect", b"100-continue")]))
    assert_still_serves(peer)
    assert waiting_count(server) == before


# Windows.


def write_big_records(peer: Peer, topic: str, count: int, size: int) -> None:
    for n in range(count):
        peer.json(peer.start("POST", f"/v0/topics/{topic}", {"records": [{"data": f"{n}" + "x" * size}]}))


@pytest.mark.parametrize("window_bytes", [1000, 4096, 100_000])
def test_a_large_answer_goes_through_tiny_windows(server: Running, topic: str, window_bytes: int) -> None:
    with Peer(server.connect()) as writer:
        write_big_records(writer, topic, 10, MIB // 2)
    with Peer(server.connect(), window_bytes=window_bytes) as peer:
        page = peer.json(peer.start("POST", f"/v0/topics/{topic}/diff", {"max_batch_bytes": 8 * MIB}))
        assert [record["data"][:1] for record in page["records"]] == [str(n) for n in range(10)]
        assert all(len(record["data"]) == 1 + MIB // 2 for record in page["records"])


def test_large_answers_share_the_connection(server: Running, topic: str) -> None:
    with Peer(server.connect()) as writer:
        write_big_records(writer, topic, 2, MIB // 2)
    with Peer(server.connect()) as peer:
        wanted = {"max_batch_bytes": 8 * MIB}
        streams = [peer.start("POST", f"/v0/topics/{topic}/diff", wanted) for _ in range(4)]
        answers = [peer.json(stream)["records"] for stream in streams]
        assert all(answer == answers[0] for answer in answers)
        assert len(answers[0]) == 2


def test_a_window_that_opens_by_a_setting_lets_the_answer_go_on(server: Running, topic: str) -> None:
    with Peer(server.connect(), window_bytes=0) as peer:
        stream = peer.start("GET", "/v0/health")
        peer.until(lambda: stream in peer.statuses)
        assert peer.bodies[stream] == b""
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        peer.until(lambda: len(peer.bodies[stream]) == 10)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        assert peer.json(stream)["status"] == "ok"


def test_a_large_body_is_taken_as_windows_are_given_back(peer: Peer, topic: str) -> None:
    records = [{"data": "x" * (MIB - KIB)} for _ in range(9)]
    status, appended = peer.request("POST", f"/v0/topics/{topic}", {"records": records})
    assert (status, appended["count"]) == (201, 9)


# Bodies that are refused.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that accepts small bodies from callers with the key."""
    with running(
        tmp_path_factory.mktemp("guarded"), keys="sesame", max_body_bytes=SMALL_BODY_BYTES_MAX
    ) as running_server:
        yield running_server


@pytest.fixture
def known(guarded: Running) -> Iterator[Peer]:
    with Peer(guarded.connect()) as connected:
        yield connected


AUTHORIZED: Final = (b"authorization", b"Bearer sesame")


def begin_write(peer: Peer, *headers: tuple[bytes, bytes]) -> int:
    return peer.begin("POST", "/v0/topics/t", [JSON, *headers])


def assert_refused(peer: Peer, stream: int, status: int) -> None:
    """The stream is answered in full, then reset; the connection stays."""
    peer.until(lambda: stream in peer.resets)
    assert stream in peer.ended
    assert peer.statuses[stream] == status
    assert peer.resets[stream] == ErrorCodes.NO_ERROR
    assert_still_serves(peer)


def test_expect_is_answered_before_the_body(known: Peer) -> None:
    stream = begin_write(known, AUTHORIZED, (b"expect", b"100-continue"))
    known.until(lambda: known.informational[stream] == [100])
    known.send_body(stream, b'{"records":[{"data":1}]}')
    assert known.json(stream)["count"] == 1


def test_expect_is_refused_early(known: Peer) -> None:
    """A caller without a key is not asked for a body."""
    stream = begin_write(known, (b"expect", b"100-continue"))
    assert_refused(known, stream, 401)
    assert known.informational[stream] == []


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(known: Peer) -> None:
    length = b"%d" % (SMALL_BODY_BYTES_MAX + 1)
    assert_refused(known, begin_write(known, AUTHORIZED, (b"content-length", length)), 413)


def test_a_body_that_turns_out_too_large_is_refused_when_it_does(known: Peer) -> None:
    stream = begin_write(known, AUTHORIZED)
    known.send_body(stream, b" " * (SMALL_BODY_BYTES_MAX + 1), ends=False)
    assert_refused(known, stream, 413)


def test_a_large_body_without_key_is_refused_on_the_way(known: Peer) -> None:
    stream = begin_write(known)
    known.send_body(stream, b" " * (DRAINED_BODY_BYTES_MAX + 1), ends=False)
    assert_refused(known, stream, 401)


def test_what_is_sent_after_a_refusal_is_thrown_away(known: Peer) -> None:
    stream = begin_write(known, AUTHORIZED, (b"content-length", b"99999999"))
    with contextlib.suppress(Exception):
        known.send_body(stream, b" " * (4 * MIB))
    known.until(lambda: stream in known.ended)
    assert known.statuses[stream] == 413
    assert_still_serves(known)


def test_all_bodies_of_a_connection_together_are_bounded(known: Peer) -> None:
    part = b" " * (SMALL_BODY_BYTES_MAX * 3 // 4)
    streams = []
    for _ in range(H2_CONNECTION_WINDOW_BYTES // len(part) + 1):
        streams.append(begin_write(known, AUTHORIZED))
        known.send_body(streams[-1], part, ends=False)
    *others, last = streams
    assert_refused(known, last, 429)
    for stream in others:
        known.send_body(stream, b'{"records":[{"data":1}]}')
        assert known.json(stream)["count"] == 1


# Resets.


def test_rapid_resets_end_the_connection(peer: Peer, server: Running, topic: str) -> None:
    peer.request("PUT", f"/v0/topics/{topic}", {})
    before = waiting_count(server)
    for _ in range(H2_RESETS_MAX + 1):
        peer.reset(start_long_poll(peer, topic))
    peer.until_closed()
    assert peer.goaway == CALM
    assert waiting_count(server) == before


def test_requests_that_make_the_server_reset_count_as_well(peer: Peer) -> None:
    """The resets of the server count too."""
    bad = get(peer.authority)[:-1]
    peer.send_frames(headers_frame(1 + 2 * n, bad, "END_STREAM") for n in range(H2_RESETS_MAX + 1))
    assert last_words(peer).error_code == CALM


# Header blocks.


def test_a_header_list_that_is_too_long_is_answered(peer: Peer) -> None:
    """Above 64 KiB by the rules of the standard."""
    stream = peer.start("GET", "/v0/health", headers=[(b"x-long", b"x" * 16 * KIB)] * 4)
    assert peer.json(stream)["error"]["code"] == "headers_too_large"
    assert peer.statuses[stream] == 431
    assert_still_serves(peer)


def test_too_many_headers_are_answered(peer: Peer) -> None:
    at_most = peer.start("GET", "/v0/health", headers=[(b"x-n", b"%d" % n) for n in range(100)])
    too_many = peer.start("GET", "/v0/health", headers=[(b"x-n", b"%d" % n) for n in range(101)])
    peer.until(lambda: {at_most, too_many} <= peer.ended)
    assert (peer.statuses[at_most], peer.statuses[too_many]) == (200, 431)
    assert_still_serves(peer)


def test_a_target_that_is_too_long_is_answered(peer: Peer) -> None:
    status, document = peer.request("GET", "/" + "x" * TARGET_BYTES_MAX)
    assert (status, document["error"]["code"]) == (414, "uri_too_long")


def test_a_header_block_without_end_ends_the_connection(peer: Peer) -> None:
    """A flood of CONTINUATION frames, empty ones included."""
    for size in (0, 1000):
        head = HeadersFrame(1, data=b"\x82")
        peer.send_frames([head, *(ContinuationFrame(1, data=b"\0\1a\1b" * (size // 5)) for _ in range(2000))])
    peer.until_closed()
    assert peer.goaway in (CALM, ErrorCodes.PROTOCOL_ERROR)


def test_a_header_bomb_ends_the_connection(peer: Peer) -> None:
    """One long field in the dynamic table, named ten thousand times."""
    encoder = Encoder()
    block = encoder.encode([*get(peer.authority), (b"x-bomb", b"x" * 3000)])
    again = encoder.encode([(b"x-bomb", b"x" * 3000)])
    assert len(again) == 1
    peer.send_frames([HeadersFrame(1, data=block + again * 10_000, flags=["END_HEADERS", "END_STREAM"])])
    peer.until_closed()
    assert peer.goaway == CALM


def test_a_frame_longer_than_announced_is_refused_by_its_head(peer: Peer) -> None:
    """The server does not wait for sixteen megabytes."""
    peer.until(lambda: peer.h2.remote_settings.max_concurrent_streams == H2_STREAMS_MAX)
    peer.send(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")
    peer.until_closed()
    assert peer.goaway == ErrorCodes.FRAME_SIZE_ERROR


# Frames that ask for nothing.


def ping(_: int) -> Frame:
    return PingFrame(0, opaque_data=b"12345678")


def empty_settings(_: int) -> Frame:
    return SettingsFrame(0)


def priority(_: int) -> Frame:
    return PriorityFrame(1, depends_on=0, stream_weight=1)


def window_update(_: int) -> Frame:
    return WindowUpdateFrame(0, window_increment=1)


def unknown_frame(_: int) -> Frame:
    return ExtensionFrame(0xBE, 0, body=b"")


def reset_of_nothing(_: int) -> Frame:
    return RstStreamFrame(1, error_code=8)


FLOODS: Final[list[Callable[[int], Frame]]] = [
    ping,
    empty_settings,
    priority,
    window_update,
    unknown_frame,
    reset_of_nothing,
]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_frames_that_ask_for_nothing_ends_the_connection(
    peer: Peer, server: Running, flood: Callable[[int], Frame]
) -> None:
    assert_still_serves(peer)
    peer.send_frames(flood(n) for n in range(50 * H2_IDLE_FRAMES_MAX))
    peer.until_closed()
    assert peer.goaway == CALM
    with Peer(server.connect()) as other:
        assert_still_serves(other)


@pytest.mark.parametrize("pad_length", [0, 10])
def test_a_flood_of_empty_data_ends_the_connection(peer: Peer, topic: str, pad_length: int) -> None:
    stream = peer.begin("POST", f"/v0/topics/{topic}", [JSON])
    peer.flush()
    flags = ["PADDED"] if pad_length else []
    peer.send_frames(DataFrame(stream, pad_length=pad_length, flags=flags) for _ in range(50 * H2_IDLE_FRAMES_MAX))
    peer.until_closed()
    assert peer.goaway == CALM


def test_a_client_that_does_not_read_gets_no_endless_answers() -> None:
    """The waiting bytes are bounded, and the connection is cut off."""
    with running_with(stalled_s=0.2) as impatient, Peer(impatient.connect()) as peer:
        # All windows at their maximum, so that only the socket holds the answers back.
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        peer.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        peer.flush()
        fields = get(peer.authority, b"/v0/metrics")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for first in range(1, 10**7, 1000):
                frames = (headers_frame(first + 2 * n, fields, "END_STREAM") for n in range(500))
                peer.socket.sendall(b"".join(frame.serialize() for frame in frames))


def test_decent_control_frames_are_answered(peer: Peer) -> None:
    for _ in range(100):
        peer.h2.ping(b"12345678")
    peer.h2.update_settings({SettingCodes.MAX_FRAME_SIZE: 20_000})
    peer.until(lambda: peer.pong_count == 100)
    assert_still_serves(peer)


# Windows that stay shut.


def test_answers_that_wait_for_windows_are_bounded_and_then_cut(tmp_path: Path, topic: str) -> None:
    """A thousand streams ask for a megabyte each and take nothing."""
    with running(tmp_path, timeouts=Timeouts(stalled_s=0.3)) as impatient:
        with Peer(impatient.connect()) as writer:
            write_big_records(writer, topic, 1, MIB - KIB)
        with Peer(impatient.connect(), window_bytes=0) as peer:
            for _ in range(1000):
                peer.start("POST", f"/v0/topics/{topic}/diff", {})
            peer.until_closed()
            assert peer.goaway == CALM
            started = len(peer.statuses)
            assert 1 <= started <= H2_UNSENT_BYTES_HIGH // MIB + 2
            assert sum(map(len, peer.bodies.values())) == 0


def test_an_answer_that_is_not_taken_is_reset_after_a_while_though_others_go_on() -> None:
    """The test moves the time, and the client answers pings."""
    wires = Wires()
    transport = wires.connect_unknown()
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = 1000
    client.local_settings.acknowledge()
    client.initiate_connection()
    seen_bytes = 0

    def exchange_bytes() -> list[Event]:
        nonlocal seen_bytes
        transport.receive(client.data_to_send())
        wires.loop.settle()
        written, seen_bytes = transport.written[seen_bytes:], len(transport.written)
        return client.receive_data(written)

    def ask(stream_id: int, *, answer_bytes: int) -> list[Event]:
        wires.app.answer_bytes = answer_bytes
        client.send_headers(stream_id, get(AUTHORITY), end_stream=True)
        return exchange_bytes()

    assert not any(isinstance(event, StreamEnded) for event in ask(1, answer_bytes=5000))
    reset_after_s = 0
    while not reset_after_s:
        wires.loop.advance(1)
        stream_id = client.get_next_available_stream_id()
        events = ask(stream_id, answer_bytes=0)
        assert any(isinstance(event, StreamEnded) and event.stream_id == stream_id for event in events)
        assert not any(isinstance(event, ConnectionTerminated) for event in events)
        if any(isinstance(event, StreamReset) and event.stream_id == 1 for event in events):
            reset_after_s = stream_id // 2
    assert Timeouts().stalled_s <= reset_after_s <= Timeouts().stalled_s + 2


# Heads that another parser may read differently.

AUTHORITY: Final = b"127.0.0.1"
HEAD: Final = get(AUTHORITY)

MALFORMED: Final[dict[str, Fields]] = {
    "line break in a value": [*HEAD, (b"x-a", b"1\r\nx-b: 2")],
    "bare line feed in a value": [*HEAD, (b"x-a", b"1\nx-b: 2")],
    "NUL in a value": [*HEAD, (b"x-a", b"1\0")],
    "blank before a value": [*HEAD, (b"x-a", b" 1")],
    "line break in a name": [*HEAD, (b"x-a\r\nx-b", b"1")],
    "upper case in a name": [*HEAD, (b"X-A", b"1")],
    "colon in a name": [*HEAD, (b"x:a", b"1")],
    "empty name": [*HEAD, (b"", b"1")],
    "line break in the path": [*HEAD[:3], (b":path", b"/v0/health HTTP/1.1\r\nx: y")],
    "blank in the path": [*HEAD[:3], (b":path", b"/v0/ health")],
    "empty path": [*HEAD[:3], (b":path", b"")],
    "path that is a URL": [*HEAD[:3], (b":path", b"http://127.0.0.1/v0/health")],
    "two paths": [*HEAD, (b":path", b"/v0/topics")],
    "two methods": [(b":method", b"POST"), *HEAD],
    "two authorities": [*HEAD, (b":authority", b"127.0.0.1")],
    "no path": HEAD[:3],
    "no method": HEAD[1:],
    "no scheme": [HEAD[0], *HEAD[2:]],
    "no authority": [*HEAD[:2], HEAD[3]],
    "bad method": [(b":method", b"GET /"), *HEAD[1:]],
    "host other than the authority": [*HEAD, (b"host", b"evil.example")],
    "two hosts": [*HEAD, (b"host", AUTHORITY), (b"host", AUTHORITY)],
    "unknown pseudo-header": [*HEAD, (b":protocol", b"websocket")],
    "status in a request": [*HEAD, (b":status", b"200")],
    "pseudo-header behind a header": [*HEAD[:3], (b"x-a", b"1"), HEAD[3]],
    "transfer-encoding": [*HEAD, (b"transfer-encoding", b"chunked")],
    "connection": [*HEAD, (b"connection", b"close")],
    "upgrade": [*HEAD, (b"upgrade", b"h2c")],
    "te": [*HEAD, (b"te", b"gzip")],
    "two lengths": [*HEAD, (b"content-length", b"0"), (b"content-length", b"0")],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_head_costs_its_stream(peer: Peer, fields: Fields) -> None:
    peer.send_frames([headers_frame(1, fields, "END_STREAM"), headers_frame(3, get(peer.authority), "END_STREAM")])
    frames = received_frames(peer.socket)
    answered = [frame for frame in islice(frames, 6) if frame.stream_id]
    reset, head = answered[:2]
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (1, ErrorCodes.PROTOCOL_ERROR)
    assert isinstance(head, HeadersFrame)
    assert head.stream_id == 3


def test_a_proper_head_of_every_kind_is_answered(peer: Peer) -> None:
    stream = peer.start("GET", "/v0/health", headers=[(b"te", b"trailers"), (b"host", peer.authority), (b"x-a", b"")])
    assert peer.json(stream)["status"] == "ok"
    assert peer.request("OPTIONS", "*")[0] in (404, 405)


def test_host_can_stand_for_the_authority(peer: Peer) -> None:
    stream = peer.h2.get_next_available_stream_id()
    fields = [*HEAD[:2], HEAD[3], (b"host", peer.authority)]
    peer.h2.send_headers(stream, fields, end_stream=True)
    assert peer.json(stream)["status"] == "ok"


# Deadlines.


def test_a_body_that_comes_too_slowly_is_answered() -> None:
    with running_with(body_s=0.1) as impatient, Peer(impatient.connect()) as peer:
        stream = peer.begin("POST", "/v0/topics/t", [JSON])
        peer.send_body(stream, b"{", ends=False)
        assert_refused(peer, stream, 408)


def test_a_header_block_that_comes_too_slowly_ends_the_connection() -> None:
    with running_with(head_s=0.1) as impatient, Peer(impatient.connect()) as peer:
        peer.send_frames([HeadersFrame(1, data=b"\x82")])
        assert last_words(peer).error_code == CALM


def test_an_idle_connection_is_told_goodbye() -> None:
    # Long enough for the first request to come in time on a busy machine.
    with running_with(idle_s=3) as impatient, Peer(impatient.connect()) as peer:
        assert_still_serves(peer)
        peer.until_closed()
        assert peer.goaway == ErrorCodes.NO_ERROR


def test_a_client_that_answers_no_ping_is_let_go() -> None:
    with running_with(ping_s=0.1) as patient, Peer(patient.connect()) as alive:
        alive.until(lambda: alive.ping_count == 3)
        assert_still_serves(alive)
    with running_with(ping_s=0.1, pong_s=0.1) as impatient, impatient.connect() as dead:
        Peer(dead)
        kinds = [type(frame) for frame in received_frames(dead)]
        assert kinds.count(PingFrame) == 1
        assert kinds[-1] is GoAwayFrame


def test_a_slow_client_to_which_the_ping_has_not_come_yet_is_there_as_long_as_it_takes_something() -> None:
    """The client opens its windows while it reads the answer, and reads the ping after it much later."""
    wires = Wires()
    wires.app.holds = True
    request = headers_frame(1, get(b"here"), "END_STREAM")
    silent, slow = wires.connect_unknown(), wires.connect_unknown()
    for transport in (silent, slow):
        transport.receive(H2_PREFACE + SettingsFrame(0).serialize() + request.serialize())
    for _ in range(10):
        slow.receive(WindowUpdateFrame(0, window_increment=1).serialize())
        wires.loop.advance(Timeouts().pong_s / 2)
    assert silent.is_ended
    assert not slow.is_ended
    wires.loop.advance(Timeouts().pong_s * 2)
    assert slow.is_ended


# Draining.


def test_a_stop_lets_streams_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        server = stack.enter_context(running(tmp_path))
        connected = stack.enter_context(server.connect())
        peer = Peer(connected)
        stream = peer.begin("POST", "/v0/topics/t", [JSON])
        late = peer.start("GET", "/v0/health")
        peer.json(late)
        stopped = pool.submit(server.call, server.server.stop())
        frames = received_frames(connected)
        goodbye = next(frame for frame in frames if isinstance(frame, GoAwayFrame))
        assert (goodbye.error_code, goodbye.last_stream_id) == (ErrorCodes.NO_ERROR, late)
        peer.send_frames([headers_frame(late + 2, get(peer.authority), "END_STREAM")])
        refused = next(frame for frame in frames if isinstance(frame, RstStreamFrame))
        assert (refused.stream_id, refused.error_code) == (late + 2, ErrorCodes.REFUSED_STREAM)
        peer.send_frames([DataFrame(stream, data=b'{"records":[{"data":1}]}', flags=["END_STREAM"])])
        answer = next(frame for frame in frames if isinstance(frame, HeadersFrame))
        assert answer.stream_id == stream
        assert (b":status", b"503") in Decoder().decode(answer.data, raw=True)
        assert isinstance(list(frames)[-1], GoAwayFrame)
        stopped.result()


# Random bytes.


def frames_of_any_kind() -> st.SearchStrategy[bytes]:
    def as_frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload

    return st.lists(
        st.builds(
            as_frame,
            st.integers(0, 11),
            st.integers(0, 255),
            st.integers(0, 5),
            st.binary(max_size=40) | st.sampled_from([b"\x82\x84\x86\x41\x09127.0.0.1", b"\0\0\0\x08", b"\0" * 8]),
        ),
        max_size=12,
    ).map(b"".join)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=frames_of_any_kind() | st.binary(max_size=200), cut=st.integers(1, 64))
def test_no_frames_whatsoever_upset_the_server(server: Running, data: bytes, cut: int) -> None:
    """Any bytes lead to answers, resets or a GOAWAY, never to a failure inside the server."""
    failures: list[dict[str, Any]] = []
    server.loop.set_exception_handler(lambda _, context: failures.append(context))
    with Peer(server.connect()) as peer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for start in range(0, len(data), cut):
            peer.socket.sendall(data[start : start + cut])
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(RECEIVE_BYTES):
            pass
    server.call(asyncio.sleep(0))
    server.loop.set_exception_handler(None)
    assert failures == []
