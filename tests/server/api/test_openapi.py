"""The OpenAPI document is made in the pool, once for all requests that wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.server.openapi_document import ask, fetch_document
from tests.server.running import PATIENCE_S, running
from topics.server.limits import POOL_THREADS
from topics.server.settings import LoadedSettings
from topics.server.work_pool import WorkPool


def test_others_are_answered_while_the_document_is_made_and_it_has_the_newest_settings(tmp_path: Path) -> None:
    is_free = threading.Event()
    with running(tmp_path) as server, ThreadPoolExecutor() as callers:
        app = server.server.app
        pool = app.pool
        assert isinstance(pool, WorkPool)

        async def take_settings() -> None:
            settings = replace(app.settings, max_limit=2)
            server.server.reload(LoadedSettings(settings=settings, origins={}, warnings=()))

        try:
            for _ in range(POOL_THREADS):
                pool.submit(is_free.wait, PATIENCE_S)
            asking = [callers.submit(fetch_document, server) for _ in range(3)]
            with server.connect() as leaving:
                leaving.sendall(b"GET /v0/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while pool.waiting_count == 0:
                ask(server, "GET", "/v0/health")
            server.call(take_settings())
            assert ask(server, "GET", "/v0/health").status == 200
            assert not any(document.done() for document in asking)
        finally:
            is_free.set()
        for document in asking:
            limit = document.result(PATIENCE_S)["components"]["schemas"]["DiffBody"]["properties"]["limit"]
            assert limit["x-clamped-to"] == 2
