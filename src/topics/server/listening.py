"""A port that the server listens on.

Listening begins before recovery: a port in use is reported before any file is opened. A client that connects during
recovery waits in the backlog until the server calls `accept`.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from topics.errors import SettingsError

BACKLOG: Final = 1024


class Listener:
    """Loop thread only. `address` is the host and the port that it has got."""

    def __init__(self, host: str, port: int, *, advice: str) -> None:
        """An empty host means every address. Raises `SettingsError`, which ends in the advice."""
        self._servers: list[asyncio.Server] = []
        try:
            self._sockets = _listening(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
            if error.errno == errno.EADDRINUSE:
                advice = f"stop the server that uses it, or {advice}"
            raise SettingsError(f"cannot listen on {host or '*'} port {port}: {reason}; {advice}") from error
        name = self._sockets[0].getsockname()
        self.address = str(name[0]), int(name[1])

    async def accept(self, protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None) -> None:
        """Starts to accept connections, including clients that connected during recovery."""
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            self._servers.append(await loop.create_server(protocol, sock=each, ssl=tls, backlog=BACKLOG))

    def close(self) -> None:
        """Stops accepting connections. Open connections stay open."""
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()


def _listening(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            # With port 0 all addresses have the port that the first one gets.
            chosen = made[0].getsockname()[1] if made else port
            try:
                made.append(_listening_on(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                # A machine without IPv6 may have a name for an address of it.
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) or len(found) == 1:
                    raise
    except OSError:
        for each in made:
            each.close()
        raise
    if not made:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return made


def _listening_on(family: int, address: tuple[object, ...]) -> socket.socket:
    # The protocol is named because asyncio sets TCP_NODELAY only where it is.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
