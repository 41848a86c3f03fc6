"""The files of the web console, over HTTP/1.1 and HTTP/2."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.clients import CLIENTS, Client
from tests.server.running import Running, running
from topics.console.files import load_files

FILES = {file.path: file for file in load_files()}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SCRIPT = "/console/app.js"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("console"), keys="secret") as server:
        yield server


def test_every_file_is_served_without_a_key_and_with_its_headers(client: Client) -> None:
    for path, file in FILES.items():
        answer = client.request("GET", path)
        assert (answer.status, answer.body) == (200, file.body)
        assert answer.headers["content-type"] == file.content_type.decode()
        assert answer.headers["etag"] == file.etag.decode()
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert client.request("GET", "/v0/topics").refusal == (401, "unauthorized")


def test_a_file_that_the_browser_has_is_not_sent_again(client: Client) -> None:
    etag = FILES[SCRIPT].etag.decode()
    for asked in (etag, f'"other", {etag}'):
        answer = client.request("GET", SCRIPT, headers={"if-none-match": asked})
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["etag"] == etag
        # They would have to be those of the file.
        assert not {"content-type", "content-length"} & answer.headers.keys()
    assert client.request("GET", SCRIPT, headers={"if-none-match": '"other"'}).body == FILES[SCRIPT].body
    # The connection goes on.
    assert client.request("GET", "/").body == FILES["/"].body


def test_files_are_compressed_for_browsers(client: Client) -> None:
    answer = client.request("GET", SCRIPT, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == FILES[SCRIPT].body


def test_nothing_else_is_found_beside_the_files(client: Client) -> None:
    key = {"authorization": "Bearer secret"}
    for path in ("/console", "/console/", "/console/nothing.js", "/console/../files.py", "/console/%2e%2e/files.py"):
        assert client.request("GET", path, headers=key).refusal == (404, "not_found")
    assert client.request("POST", "/", b"{}", key).refusal == (405, "method_not_allowed")
    assert client.request("HEAD", "/").status == 200


def test_the_console_can_be_switched_off(tmp_path: Path, protocol: str) -> None:
    with running(tmp_path, console=False) as server, CLIENTS[protocol](server.host, server.port) as client:
        assert client.request("GET", "/").refusal == (404, "not_found")
        assert client.request("GET", SCRIPT).refusal == (404, "not_found")
        assert client.request("GET", "/v0/topics").status == 200
