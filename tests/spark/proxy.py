"""A proxy before a real server that loses answers, or gives other answers."""

import socket
import threading
from collections.abc import Callable
from typing import Self

Answer = bytes


class Proxy:
    """Passes requests on, one at a time on each connection.

    `loses(request)` says whose answers get lost, after the server has done what was asked. `answers(request)` gives an
    answer without asking the server. `edits(answer)` changes what comes back. The request is its first line.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.loses: Callable[[str], bool] = lambda _: False
        self.answers: Callable[[str], Answer | None] = lambda _: None
        self.edits: Callable[[Answer], Answer] = lambda answer: answer
        # First lines of requests, in the order in which they were answered or lost.
        self.requests: list[str] = []
        self.lost_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Shut down first: a close alone does not wake the thread that waits for it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, socket.create_connection(self._target) as server:
                while (message := _message(client)) is not None:
                    self._pass_on(message, client, server)
        except (OSError, EOFError):
            return

    def _pass_on(self, message: bytes, client: socket.socket, server: socket.socket) -> None:
        request = message.split(b"\r\n", 1)[0].decode()
        answer = self.answers(request)
        if answer is None:
            server.sendall(message)
            answer = _message(server)
            if answer is None:
                raise EOFError
        self.requests.append(request)
        if self.loses(request):
            self.lost_count += 1
            raise EOFError
        client.sendall(self.edits(answer))


def _message(source: socket.socket) -> bytes | None:
    """The next request or answer, head and body; None at the end."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(source, at_start=not received)
        if not received:
            return None
    head, _, body = received.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    parts, missing = [received], length - len(body)
    while missing > 0:
        parts.append(_some(source, at_start=False))
        missing -= len(parts[-1])
    return b"".join(parts)


def _some(source: socket.socket, *, at_start: bool) -> bytes:
    received = source.recv(1 << 20)
    if not received and not at_start:
        raise EOFError
    return received
