"""A server with streams that tests share."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.server.streams.peer import Peer, StreamsServer, streams_server

_numbers = count(1)


@pytest.fixture(scope="session")
def shared_streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamsServer]:
    """Each test uses streams and users of its own."""
    with streams_server(tmp_path_factory.mktemp("streams")) as served:
        yield served


@pytest.fixture
def streams(shared_streams: StreamsServer) -> Iterator[StreamsServer]:
    yield shared_streams
    shared_streams.close_peers()


@pytest.fixture
def root(streams: StreamsServer) -> Peer:
    """A client whose user may do everything."""
    return streams.login()


@pytest.fixture
def name() -> str:
    """A new name, of a stream or a user."""
    return f"name{next(_numbers)}"
