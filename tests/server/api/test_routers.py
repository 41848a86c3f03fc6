"""What `GET /v0/routers/{router}` says of a router that cannot read its source."""

from pathlib import Path
from typing import Any

from tests.server.clients import Http1Client
from tests.server.running import running


def test_the_state_of_a_router_tells_of_failures_and_of_the_next_try(tmp_path: Path) -> None:
    with running(tmp_path) as server, Http1Client(server.host, server.port) as client:
        client.request("PUT", "/v0/routers/r", {"source": "a", "dest": "b"})
        engine = server.server.app.open_engine().engine

        def state() -> dict[str, Any]:
            document: dict[str, Any] = client.request("GET", "/v0/routers/r").json
            return document

        async def fail(now_ms: int) -> None:
            engine.router("r").note_failure(now_ms)

        assert "retry" not in state()
        for _ in range(3):
            server.call(fail(engine.core.clock.monotonic_ms()))
        retry = state()["retry"]
        assert retry["failures"] == 3
        assert retry["retry_in_ms"] <= 400
        # The next try is far away: the router does nothing about the write.
        server.call(fail(engine.core.clock.monotonic_ms() + 3_600_000))
        client.write("a", 1)
        # The time of the next try has come.
        server.call(fail(-10_000))
        assert client.request("GET", "/v0/topics/b").json["head_seq"] == 1
        assert "retry" not in state()
