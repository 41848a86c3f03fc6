"""HTTPS on the server's port: HTTP/1.1 and HTTP/2 by ALPN, and what happens when only one side speaks TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.server.http2_peer import Peer
from tests.server.running import PATIENCE_S, Running, running
from tests.server.streams.peer import Peer as StreamsPeer
from tests.server.streams.peer import streams_server
from topics.errors import SettingsError
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import encode_frame


class Pair(NamedTuple):
    cert: str
    key: str


def make_pair(folder: Path) -> Pair:
    """A self-signed certificate for this machine."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the command `openssl` is missing: it makes the certificates")
    pair = Pair(str(folder / "cert.pem"), str(folder / "key.pem"))
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [openssl, "req", "-x509", *kind, *names, "-out", pair.cert, "-keyout", pair.key],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("secure"), tls_cert=pair.cert, tls_key=pair.key) as running_server:
        yield running_server


def client_context(pair: Pair, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pair.cert)
    context.set_alpn_protocols(protocols)
    return context


def connect(server: Running, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(server.connect(), server_hostname="localhost")


def test_http1_over_tls(secure: Running, pair: Pair) -> None:
    connection = HTTPSConnection(secure.host, secure.port, timeout=PATIENCE_S, context=client_context(pair, "http/1.1"))
    for _ in range(2):
        connection.request("GET", "/v0/health")
        with connection.getresponse() as response:
            assert response.status == 200
            assert b'"ok"' in response.read()
    connection.close()


def test_http1_over_tls_without_alpn(secure: Running, pair: Pair) -> None:
    with connect(secure, ssl.create_default_context(cafile=pair.cert)) as connected:
        assert connected.selected_alpn_protocol() is None
        connected.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert connected.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_http2_over_tls_by_alpn(secure: Running, pair: Pair) -> None:
    with connect(secure, client_context(pair, "h2", "http/1.1")) as connected:
        assert connected.selected_alpn_protocol() == "h2"
        peer = Peer(connected)
        streams = [peer.start("POST", "/v0/topics/t", {"records": [{"data": n}]}) for n in range(100)]
        assert sorted(peer.json(stream)["first_seq"] for stream in streams) == list(range(1, 101))


def test_a_large_answer_over_tls(secure: Running, pair: Pair) -> None:
    texts = [f"{n}" + "x" * 500_000 for n in range(8)]
    with connect(secure, client_context(pair, "h2")) as connected:
        peer = Peer(connected)
        for text in texts:
            peer.json(peer.start("POST", "/v0/topics/large", {"records": [{"data": text}]}))
        page = peer.json(peer.start("POST", "/v0/topics/large/diff", {"max_batch_bytes": 8_000_000}))
        assert [record["data"] for record in page["records"]] == texts


def test_http1_spoken_where_h2_was_agreed_is_ended(secure: Running, pair: Pair) -> None:
    with connect(secure, client_context(pair, "h2")) as connected:
        connected.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        received = b""
        while data := connected.recv(65_536):
            received += data
        assert b"HTTP/1.1" not in received


def test_an_old_version_of_tls_is_refused(secure: Running, pair: Pair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pair.cert)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with secure.connect() as connected, pytest.raises((ssl.SSLError, ConnectionResetError)):
        context.wrap_socket(connected, server_hostname="localhost")


def test_plain_http_on_a_tls_port_is_ended(secure: Running) -> None:
    with secure.connect() as connected:
        connected.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert read_to_end(connected).startswith(b"HTTP/1.1") is False


def test_tls_on_a_plain_port_is_ended(server: Running, pair: Pair) -> None:
    with server.connect() as connected, pytest.raises((ssl.SSLError, ConnectionResetError)):
        client_context(pair, "h2").wrap_socket(connected, server_hostname="localhost")


def read_to_end(connected: socket.socket) -> bytes:
    received = b""
    try:
        while data := connected.recv(65_536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_a_certificate_that_is_missing_stops_the_start(tmp_path: Path, pair: Pair) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(SettingsError) as caught, running(tmp_path, tls_cert=missing, tls_key=pair.key):
        pass
    assert str(caught.value) == (
        f"cannot use tls_cert {missing} with tls_key {pair.key}: [Errno 2] No such file or directory"
    )


def test_a_key_of_another_certificate_stops_the_start(tmp_path: Path, pair: Pair) -> None:
    other = make_pair(tmp_path)
    with pytest.raises(SettingsError) as caught, running(tmp_path, tls_cert=pair.cert, tls_key=other.key):
        pass
    assert str(caught.value).startswith(f"cannot use tls_cert {pair.cert} with tls_key {other.key}: ")


def test_streams_are_over_tls_as_well(tmp_path: Path, pair: Pair) -> None:
    with streams_server(tmp_path, tls_cert=pair.cert, tls_key=pair.key) as served:
        with StreamsPeer(served.address) as plain:
            plain.write(encode_frame(Code.PING))
            assert plain.is_closed()
        with StreamsPeer(served.address) as secure:
            context = ssl.create_default_context(cafile=pair.cert)
            secure.socket = context.wrap_socket(secure.socket, server_hostname="localhost")
            secure.login()
            secure.create("s", "t")
            payloads = [bytes([number]) * 300_000 for number in range(9)]
            secure.send("s", "t", payloads, 0)
            assert secure.poll("s", "t").payloads == payloads
