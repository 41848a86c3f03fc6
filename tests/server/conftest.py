"""A server that tests share, and clients to it over each protocol.

A test file that needs another server defines a fixture `server`; the clients then use that server.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.running import Running, running

Connect = Callable[..., Client]

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server without keys, with the default settings. Each test uses topics of its own."""
    with running(tmp_path_factory.mktemp("shared")) as running_server:
        yield running_server


@pytest.fixture(params=list(CLIENTS))
def protocol(request: pytest.FixtureRequest) -> str:
    """Every test that uses this fixture, or a client, runs once over each protocol."""
    name: str = request.param
    return name


@pytest.fixture
def connect(server: Running, protocol: str) -> Iterator[Connect]:
    """Makes clients, each with its own connection."""
    with ExitStack() as clients:
        yield lambda source_host=None: clients.enter_context(CLIENTS[protocol](server.host, server.port, source_host))


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def topic() -> str:
    """A new name."""
    return f"t{next(_numbers)}"
