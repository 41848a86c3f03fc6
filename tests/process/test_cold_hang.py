"""A real server whose cold tier hangs: it serves everything else, and SIGTERM ends it."""

import http.client
import json
import os
import socket
from pathlib import Path

from tests.server.test_cold_tier import ColdServer
from topics.testing.server_process import ServerProcess


def test_sigterm_ends_a_server_with_reads_that_hang_for_ever(tmp_path: Path) -> None:
    """The objects are named pipes: to open one blocks until another process writes to it, and none does."""
    cold = ColdServer(tmp_path)
    cold.fill()
    for path in (tmp_path / "cold" / "topics").rglob("*.idx"):
        path.unlink()
        os.mkfifo(path)
    with ServerProcess(tmp_path / "data", cold_dir=tmp_path / "cold", hot_retain_segments=1) as server:
        readers = [socket.create_connection((server.host, server.port)) for _ in range(20)]
        for reader in readers:
            reader.sendall(
                b"POST /v0/topics/t/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 14\r\n\r\n{"from_seq":3}'
            )
        client = http.client.HTTPConnection(server.host, server.port, timeout=30)
        headers = {"Content-Type": "application/json"}
        client.request("POST", "/v0/topics/t", b'{"records":[{"data":1}]}', headers)
        assert client.getresponse().read()
        client.request("GET", "/v0/topics/t")
        assert json.loads(client.getresponse().read())["count"] == 1801
        client.close()
        for reader in readers:
            # No answer has come, and the client goes away.
            reader.setblocking(False)
            reader.close()
        assert server.stop() == 0
