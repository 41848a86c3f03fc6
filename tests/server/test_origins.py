"""Which web pages may call the server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.server.origins import OriginGuard, parse_origins


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", set()),
        (" , ", set()),
        ("https://app.example", {"https://app.example"}),
        (" HTTPS://App.Example:443 , http://app.example:80", {"https://app.example", "http://app.example"}),
        ("http://localhost:03000,http://[::1]:3000", {"http://localhost:3000", "http://[::1]:3000"}),
        ("http://app.example:443", {"http://app.example:443"}),
        ("tauri://localhost", {"tauri://localhost"}),
        ("*", {"*"}),
    ],
)
def test_origins_are_written_as_browsers_write_them(text: str, origins: set[str]) -> None:
    assert parse_origins(text) == origins


@pytest.mark.parametrize(
    "entry",
    [
        "app.example",
        "https://app.example/",
        "https://app.example/path",
        "https://*.example",
        "https://user@app.example",
        "https://app.example:port",
        "https://app.example:123456",
        "https://::1",
        "https://",
        "null",
        "file://",
    ],
)
def test_an_entry_that_no_browser_sends_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ValueError, match=r"^[^ ]+$") as refusal:
        parse_origins(f"https://good.example,{entry}")
    assert str(refusal.value) == entry


# Host and Origin, without Sec-Fetch-Site: tests/server/contract/test_websocket.py has more of them.
@pytest.mark.parametrize(
    ("host", "origin", "is_allowed"),
    [
        ("localhost:4000", "http://localhost:4000", True),
        ("app.example", "https://app.example", True),
        ("localhost:4000", "http://localhost:3000", False),
        ("localhost:4000", "null", False),
        ("", "null", False),
        ("", "http://", False),
        ("[", "http://[", False),
        ("localhost:4000", "https://listed.example", True),
        ("localhost:4000", "http://listed.example", False),
        ("localhost:4000", "https://listed.example:8443", False),
    ],
)
def test_an_origin_is_allowed_if_it_is_listed_or_has_the_host_and_port_of_the_server(
    host: str, origin: str, is_allowed: bool
) -> None:
    guard = OriginGuard("https://listed.example")
    assert guard.allows({b"host": host.encode(), b"origin": origin.encode()}) is is_allowed


@pytest.mark.parametrize(
    ("site", "origin", "is_allowed"),
    [
        ("same-origin", None, True),
        # A proxy has changed the Host.
        ("same-origin", "https://app.example", True),
        ("none", None, True),
        ("none", "https://app.example", False),
        ("same-site", None, False),
        ("cross-site", None, False),
        ("cross-site", "https://app.example", False),
        # The page has the same host over HTTP, and the server is behind TLS.
        ("cross-site", "http://localhost:4000", False),
        ("cross-site", "https://listed.example", True),
        ("anything else", None, False),
    ],
)
def test_the_relation_that_the_browser_states_decides(site: str, origin: str | None, is_allowed: bool) -> None:
    guard = OriginGuard("https://listed.example")
    headers = {b"host": b"localhost:4000", b"sec-fetch-site": site.encode()}
    if origin is not None:
        headers[b"origin"] = origin.encode()
    assert guard.allows(headers) is is_allowed


def test_any_origin_is_answered_with_a_star() -> None:
    guard = OriginGuard("*")
    assert guard.allows({b"host": b"localhost", b"origin": b"https://app.example", b"sec-fetch-site": b"cross-site"})
    assert guard.allows({b"host": b"localhost", b"origin": b"null"})
    assert (b"access-control-allow-origin", b"*") in guard.response_headers(b"https://app.example")
    # Without an Origin no answer can be read by a page, and the request may change something.
    assert not guard.allows({b"host": b"localhost", b"sec-fetch-site": b"cross-site"})


def test_only_listed_origins_may_read() -> None:
    guard = OriginGuard("https://listed.example")
    assert guard.response_headers(b"https://other.example") == ()
    assert dict(guard.response_headers(b"https://listed.example"))[b"vary"] == b"Origin"


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from([b"", b"http://", b"https://["]))
def test_any_bytes_are_decided(origin: bytes, host: bytes, scheme: bytes) -> None:
    """Nothing that a client sends is an error of the server, and only the same bytes can be the same place."""
    guard = OriginGuard("https://listed.example")
    is_allowed = guard.allows({b"host": host, b"origin": scheme + origin})
    assert not is_allowed or scheme + origin != b""
    assert guard.allows({b"host": host, b"origin": scheme + origin, b"sec-fetch-site": b"cross-site"}) is False
