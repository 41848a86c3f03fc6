"""The fixture `topics_server` for tests of programs that use topics. pytest finds it by itself.

    def test_orders(topics_server):
        with topics.Client(topics_server.url) as client:
            client.append("orders", [{"id": 1}])
        topics_server.kill()  # as hard as `kill -9`
        topics_server.start()  # the same data again, on another port

Every test gets a server of its own: a real process on a free port, with a data directory that is removed in the end.
Settings of the server come from a marker: `@pytest.mark.topics_server(max_topics=10)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from topics.testing.server_process import ServerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "topics_server(**settings): settings of the server of the fixture topics_server")


@pytest.fixture
def topics_server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A real server: `url`, `kill()`, `stop()`, `start()`, `output`."""
    # Imported here, so that pytest starts without it.
    from topics.testing.server_process import ServerProcess

    marker = request.node.get_closest_marker("topics_server")
    with ServerProcess(**(marker.kwargs if marker is not None else {})) as server:
        yield server
