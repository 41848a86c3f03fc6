"""Probes of a server that requires a key for them (`TOPICS_PROBE_AUTH`)."""

from collections.abc import Iterator

import pytest

from tests.server.clients import Client
from tests.server.running import Running, running

PROBES = ["/v0/health", "/healthz", "/v0/ready", "/readyz"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = "ro:read,wo:write,del:delete,adm:admin,far::far."
    with running(tmp_path_factory.mktemp("probes"), keys=keys, probe_auth=True) as server:
        yield server


@pytest.mark.parametrize("path", PROBES)
def test_a_probe_without_a_key_is_refused(client: Client, path: str) -> None:
    assert client.request("GET", path).refusal == (401, "unauthorized")
    assert client.request("GET", path, headers={"authorization": "Bearer no"}).refusal == (401, "unauthorized")


@pytest.mark.parametrize("path", PROBES)
@pytest.mark.parametrize("secret", ["ro", "wo", "del", "adm", "far"])
def test_a_probe_takes_any_key(client: Client, path: str, secret: str) -> None:
    assert client.request("GET", path, headers={"authorization": f"Bearer {secret}"}).status == 200
