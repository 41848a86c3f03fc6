"""How the WebSockets of both clients are opened, and what they take."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.client.every_log import client_of, websocket_of
from topics import Unreachable
from topics.errors import Unauthorized
from topics.protocol.ws_message import MESSAGE_BYTES_MAX

UNAUTHORIZED = '{"error":{"code":"unauthorized","message":"no such key"}}'
STOPPING = '{"error":{"code":"shutting_down","message":"bye"}}'

Handler = Callable[[ServerConnection], None]
# The answer to the request of a client; None opens the WebSocket.
Answering = Callable[[ServerConnection], Response | None]


@pytest.fixture(params=["client", "async client"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def websocket_server(handler: Handler, answers: list[Answering]) -> Iterator[str]:
    """The address of a server. Each request uses up one of the answers."""

    def answer(connection: ServerConnection, _: Request) -> Response | None:
        return answers.pop(0)(connection) if answers else None

    with serve(handler, "127.0.0.1", 0, process_request=answer, max_size=None, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def greet(connection: ServerConnection) -> None:
    connection.send('{"op":"hello"}')
    connection.recv()


def stopping(connection: ServerConnection) -> Response:
    return connection.respond(503, STOPPING)  # type: ignore[arg-type]


def unauthorized(connection: ServerConnection) -> Response:
    return connection.respond(401, UNAUTHORIZED)  # type: ignore[arg-type]


def hang_up(connection: ServerConnection) -> None:
    connection.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("fault", [stopping, hang_up])
def test_a_websocket_is_opened_again_as_a_call_is_repeated(kind: str, fault: Answering) -> None:
    answers = [fault] * 2
    with websocket_server(greet, answers) as url, client_of(kind, url, retries=2) as client:
        with websocket_of(client) as opened:
            assert opened.receive(60) == {"op": "hello"}
            opened.send({"op": "bye"})
        assert answers == []


def test_a_websocket_that_is_refused_is_the_error_of_the_server(kind: str) -> None:
    answers: list[Answering] = [unauthorized, unauthorized]
    with websocket_server(greet, answers) as url, client_of(kind, url) as client:
        with pytest.raises(Unauthorized, match="no such key"), websocket_of(client):
            pass
        assert len(answers) == 1


def test_a_websocket_of_a_server_that_is_not_there_is_an_error_after_the_retries(kind: str) -> None:
    # A port that nobody else can take, and that does not listen.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            client_of(kind, url, retries=1) as client,
            pytest.raises(Unreachable, match=f"^{url} does not answer: "),
            websocket_of(client),
        ):
            pass


def test_a_message_above_the_bound_ends_the_websocket(kind: str) -> None:
    def send_much(connection: ServerConnection) -> None:
        connection.send('"%s"' % ("x" * (MESSAGE_BYTES_MAX - 2)))
        connection.send('"%s"' % ("x" * (MESSAGE_BYTES_MAX - 1)))

    with websocket_server(send_much, []) as url, client_of(kind, url) as client, websocket_of(client) as opened:
        assert len(opened.receive(60)) == MESSAGE_BYTES_MAX - 2
        with pytest.raises(Unreachable, match="message too big"):
            opened.receive(60)
