"""Writes on their way to the engine: access, the answer, and waiting for room in the commit queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, HTTP1
from tests.server.http2_peer import Peer
from tests.server.pressed import make_room, parked_count, press, wait_parked, wait_refusals
from tests.server.raw import RawConnection, append, ask, get
from tests.server.running import Running, running
from tests.server.ws_peer import TEXT, RawWebSocket, frame
from topics.engine.topic.appended import Appended
from topics.errors import Forbidden, Throttled, TopicNotFound, TopicsError
from topics.protocol.write_body import decode_write
from topics.server.api.appending import Appender, PendingWrite, appended_members, seqs_member
from topics.server.auth import FULL_ACCESS, WRITE, Key
from topics.server.limits import H2_STREAM_WINDOW_BYTES, Timeouts
from topics.server.pressure import Load

PATIENT: dict[str, Any] = {"records": [{"data": 1}], "disable_backpressure": True}
WRITER = Key(WRITE, (), "writer")


class Parking:
    """A connection that only notes `park` and `unpark`."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def park(self) -> None:
        self.told.append("park")

    def unpark(self) -> None:
        self.told.append("unpark")


class Write:
    """One write on the loop of a server, and its result."""

    def __init__(
        self,
        server: Running,
        topic: str,
        body: dict[str, Any],
        *,
        caller: Key = FULL_ACCESS,
        before: Callable[[Running], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`before` runs in the same turn of the loop as the write."""
        self.connection = Parking()
        self.size_bytes = -1
        self.parked_ms = -1.0
        self._server = server
        self._done = asyncio.Event()
        self._result: Appended | TopicsError | None = None

        async def begin() -> None:
            if before is not None:
                await before(server)
            request = decode_write(json.dumps(body).encode())
            write = PendingWrite(caller, topic, request, self.connection, self._note)
            Appender(server.server.app).append(write)

        server.call(begin())

    def _note(self, write: PendingWrite, result: Appended | TopicsError) -> None:
        assert self._result is None, "told twice"
        self.size_bytes, self.parked_ms, self._result = write.size_bytes, write.parked_ms, result
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._result is not None

    def result(self) -> Appended | TopicsError:
        async def wait() -> None:
            await self._done.wait()

        self._server.call(wait())
        assert self._result is not None
        return self._result


@pytest.fixture
def pressed(tmp_path: Path) -> Iterator[Running]:
    """A server at full pressure whose commit queue is full. The topic `there` was made before."""
    with running(tmp_path) as server:
        with CLIENTS[HTTP1](server.host, server.port) as client:
            client.put_topic("there")
        server.call(press(server))
        yield server


# To the engine and back.


def test_a_write_is_told_its_size_and_its_seqs(server: Running, topic: str) -> None:
    write = Write(server, topic, {"records": [{"data": "four"}, {"data": 12}]})
    result = write.result()
    assert isinstance(result, Appended)
    assert (result.first_seq, result.last_seq, result.created) == (1, 2, True)
    assert write.size_bytes == len('"four"') + len("12")
    assert write.parked_ms == 0.0
    assert write.connection.told == []


def test_the_answer_names_what_the_write_got() -> None:
    result = Appended("t", first_seq=3, last_seq=5, head_seq=9, count=3, ts=1, created=False, deduped=False)
    assert seqs_member(result) == '"seqs":[3,4,5],'
    members = appended_members(result, elapsed_ms=1.5, parked_ms=0.0, seqs=seqs_member(result))
    assert json.loads(f"{{{members}}}") == {
        "topic": "t",
        "first_seq": 3,
        "last_seq": 5,
        "seqs": [3, 4, 5],
        "head_seq": 9,
        "count": 3,
        "created": False,
        "deduped": False,
        "performance": {"server_total_ms": 1.5, "wal_append_ms": 0.0, "fsync_ms": 0.0},
    }


def test_a_repeat_is_told_its_total_only_however_long_it_waited() -> None:
    result = Appended("t", first_seq=3, last_seq=3, head_seq=9, count=1, ts=1, created=False, deduped=True)
    members = appended_members(result, elapsed_ms=1.5, parked_ms=7.0, seqs="")
    assert json.loads(f"{{{members}}}")["performance"] == {"server_total_ms": 1.5}


def test_only_who_may_configure_creates_a_topic_with_a_config(server: Running, topic: str) -> None:
    body = {"records": [{"data": 1}], "config": {"cap_records": 5}}
    with pytest.raises(Forbidden):
        Write(server, topic, body, caller=WRITER)
    assert isinstance(Write(server, topic, body).result(), Appended)
    assert isinstance(Write(server, topic, body, caller=WRITER).result(), Appended), "it is there now"


# Under pressure.


def test_a_write_under_full_pressure_is_told_when_to_come_back(pressed: Running, protocol: str) -> None:
    with CLIENTS[protocol](pressed.host, pressed.port) as client:
        answer = client.request("POST", "/v0/topics/a", {"records": [{"data": 1}]})
        assert answer.refusal == (429, "throttled")
        assert answer.error["detail"] == {"retry_after_ms": 1000}


async def calm_down(server: Running) -> None:
    server.server.app.governor.note(Load())


def test_a_full_queue_without_pressure_makes_every_write_wait(pressed: Running, protocol: str) -> None:
    pressed.call(calm_down(pressed))
    with CLIENTS[protocol](pressed.host, pressed.port) as client:
        client.start("POST", "/v0/topics/there", {"records": [{"data": 1}]})
        pressed.call(wait_refusals(pressed, 3))
        pressed.call(make_room(pressed))
        answer = client.finish()
        assert (answer.status, answer.json["last_seq"]) == (200, 1)
        assert answer.json["performance"]["throttle_wait_ms"] > 0


def test_writes_that_wait_are_served_in_the_order_in_which_they_came(pressed: Running) -> None:
    writes = [Write(pressed, "there", PATIENT) for _ in range(3)]
    # There is room when the last one comes, but three others came before it.
    writes.append(Write(pressed, "there", PATIENT, before=make_room))
    results = [write.result() for write in writes]
    assert [result.last_seq for result in results if isinstance(result, Appended)] == [1, 2, 3, 4]
    assert writes[-1].connection.told == ["park", "unpark"]


def test_a_write_to_a_new_topic_waits_for_room_too(pressed: Running) -> None:
    pressed.call(calm_down(pressed))
    write = Write(pressed, "new", {"records": [{"data": 1}]})
    pressed.call(wait_refusals(pressed, 3))
    assert not write.is_done
    pressed.call(make_room(pressed))
    result = write.result()
    assert isinstance(result, Appended)
    assert result.created


def test_a_patient_write_waits_for_room_and_its_connection_with_it(pressed: Running) -> None:
    write = Write(pressed, "there", PATIENT)
    pressed.call(wait_refusals(pressed, 3))
    assert not write.is_done
    assert write.connection.told == ["park"]
    pressed.call(make_room(pressed))
    result = write.result()
    assert isinstance(result, Appended)
    assert result.last_seq == 1
    assert write.parked_ms > 0
    assert write.connection.told == ["park", "unpark"]


def test_pressure_that_ends_before_there_is_room_does_not_end_the_wait(pressed: Running) -> None:
    write = Write(pressed, "there", PATIENT)
    pressed.call(calm_down(pressed))
    pressed.call(wait_refusals(pressed, 3))
    assert not write.is_done
    pressed.call(make_room(pressed))
    assert isinstance(write.result(), Appended)
    assert write.connection.told == ["park", "unpark"]


def test_what_goes_wrong_while_a_write_waits_is_told_to_it(pressed: Running) -> None:
    absent = Write(pressed, "there", PATIENT | {"create": False})

    async def remove() -> None:
        engine = pressed.server.app.open_engine().engine
        await make_room(pressed)
        removed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        engine.delete_topic("there", if_empty=False, done=removed.set_result)
        engine.flush()
        await removed

    pressed.call(remove())
    assert isinstance(absent.result(), TopicNotFound)
    assert absent.connection.told == ["park", "unpark"]


def test_patience_is_for_pressure_and_not_for_caps(tmp_path: Path) -> None:
    with running(tmp_path, max_topics=1) as server, CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic("only")
        server.call(press(server))
        with pytest.raises(Throttled) as refused:
            Write(server, "another", PATIENT)
        assert refused.value.detail is not None
        assert refused.value.detail["limit"] == "max_topics"


# Over a socket.


def test_who_waited_for_room_is_told_how_long(pressed: Running, protocol: str) -> None:
    with CLIENTS[protocol](pressed.host, pressed.port) as client:
        client.start("POST", "/v0/topics/there", PATIENT)
        pressed.call(wait_refusals(pressed, 2))
        pressed.call(make_room(pressed))
        answer = client.finish().json
        assert answer["last_seq"] == 1
        performance = answer["performance"]
        assert performance.keys() == {"server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms"}
        assert 0 < performance["throttle_wait_ms"] <= performance["server_total_ms"]
        assert "throttle_wait_ms" not in client.write("there", 2)["performance"], "this one did not wait"


def test_a_server_that_stops_lets_nobody_wait(tmp_path: Path) -> None:
    with ExitStack() as clients:
        with running(tmp_path) as server:
            client = clients.enter_context(CLIENTS[HTTP1](server.host, server.port))
            client.put_topic("there")
            server.call(press(server))
            client.start("POST", "/v0/topics/there", PATIENT)
            server.call(wait_parked(server))
        assert client.finish().refusal == (503, "shutting_down")


def test_over_http_1_1_nothing_more_is_read_while_a_write_waits_for_room(pressed: Running) -> None:
    with RawConnection(pressed) as connection:
        body = json.dumps(PATIENT).encode()
        head = b"POST /v0/topics/there HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        pressed.call(wait_parked(pressed))
        received_bytes = pressed.server.app.counters.bytes_received
        connection.send(get() * 10)
        pressed.call(wait_refusals(pressed, 5))
        assert pressed.server.app.counters.bytes_received == received_bytes
        pressed.call(make_room(pressed))
        assert connection.answer().json["last_seq"] == 1
        assert [answer.status for answer in connection.answers(10)] == [200] * 10
        assert pressed.call(parked_count(pressed)) == 0


def test_over_http_2_no_request_is_started_while_a_write_waits_for_room(pressed: Running) -> None:
    with Peer(pressed.connect()) as peer:
        write = peer.start("POST", "/v0/topics/there", PATIENT)
        peer.flush()
        pressed.call(wait_parked(pressed))
        health = [peer.start("GET", "/v0/health") for _ in range(20)]
        # Frames are read meanwhile, because they bring windows and resets.
        peer.h2.ping(b"are you?")
        peer.until(lambda: peer.pong_count == 1)
        pressed.call(wait_refusals(pressed, 5))
        assert peer.statuses == {}
        assert ask(pressed, get()).status == 200, "others are served"
        pressed.call(make_room(pressed))
        assert peer.json(write)["last_seq"] == 1
        peer.until(lambda: peer.ended.issuperset(health))


def test_over_http_2_no_window_is_given_back_while_a_write_waits_for_room(tmp_path: Path) -> None:
    """Bodies that stop meanwhile are not too slow."""
    with running(tmp_path, timeouts=Timeouts(body_s=0.05)) as server, Peer(server.connect()) as peer:
        assert peer.request("PUT", "/v0/topics/there", {})[0] == 201
        server.call(press(server))
        write = peer.start("POST", "/v0/topics/there", PATIENT)
        peer.flush()
        server.call(wait_parked(server))
        slow, large = (
            peer.begin("POST", "/v0/topics/there", [(b"content-type", b"application/json")]) for _ in range(2)
        )
        body = json.dumps({"records": [{"data": "x" * 900_000}, {"data": "y" * 900_000}]}).encode()
        assert len(body) > H2_STREAM_WINDOW_BYTES
        peer.send_body(large, body[:H2_STREAM_WINDOW_BYTES], ends=False)
        peer.h2.ping(b"are you?")
        peer.until(lambda: peer.pong_count == 1)
        server.call(wait_refusals(server, 20))
        peer.h2.ping(b"are you?")
        peer.until(lambda: peer.pong_count == 2)
        assert peer.h2.local_flow_control_window(large) == 0
        assert slow not in peer.statuses
        peer.reset(slow)
        peer.flush()
        server.call(make_room(server))
        assert peer.json(write)["last_seq"] == 1
        peer.send_body(large, body[H2_STREAM_WINDOW_BYTES:])
        assert peer.json(large)["last_seq"] == 3


def test_over_a_websocket_no_command_is_handled_while_one_waits_for_room(pressed: Running) -> None:
    def command(op: str, number: int, **members: Any) -> bytes:
        return frame(TEXT, json.dumps({"op": op, "request_id": number} | members).encode())

    with RawWebSocket(pressed) as socket:
        # Some commands come in one packet with the write, some after it.
        socket.send(command("publish", 1, topic="there", **PATIENT) + command("ping", 2) + command("ping", 3))
        pressed.call(wait_parked(pressed))
        received_bytes = pressed.server.app.counters.bytes_received
        socket.send(command("ping", 4))
        pressed.call(wait_refusals(pressed, 5))
        assert pressed.server.app.counters.bytes_received == received_bytes
        socket.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            socket.socket.recv(1)
        socket.socket.settimeout(30)
        pressed.call(make_room(pressed))
        replies = {reply["request_id"]: reply for reply in (socket.message() for _ in range(4))}
        assert replies[1]["last_seq"] == 1
        assert replies[1]["performance"]["throttle_wait_ms"] > 0
        assert all(replies[number]["op"] == "pong" for number in (2, 3, 4))


def test_a_client_that_leaves_while_its_write_waits_harms_no_other_client(pressed: Running) -> None:
    with RawConnection(pressed) as connection:
        body = json.dumps(PATIENT).encode()
        head = b"POST /v0/topics/there HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        pressed.call(wait_parked(pressed))
    pressed.call(wait_refusals(pressed, 2))
    pressed.call(make_room(pressed))
    pressed.call(wait_parked(pressed, 0))
    assert ask(pressed, append("there", b"2")).json["last_seq"] == 2, "what was accepted is done"
