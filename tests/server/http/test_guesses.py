"""What a wrong first guess is told."""

import pytest

from topics.server.http.guesses import what_was_meant

WRITE = "POST /v0/topics/orders writes records"
READ = "GET /v0/topics/orders/records?from_seq=0 reads records, and so does POST /v0/topics/orders/diff"


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/v0/topics/orders/records", WRITE),
        ("PUT", "/v0/topics/orders/records", WRITE),
        ("POST", "/v0/topics/orders/publish", WRITE),
        ("GET", "/v0/topics/orders/diff", READ),
        ("GET", "/v0/topics/orders/messages", READ),
        ("GET", "/v0/topics/orders/stream", "POST /v0/watch begins a stream of new records"),
        (
            "POST",
            "/v0/topics",
            "PUT /v0/topics/{topic} creates a topic, POST /v0/topics/{topic} writes records",
        ),
        ("GET", "/v0/topics/orders/", "leave out the slash at the end"),
        ("GET", "/topics/orders", "paths of the API begin with /v0/, and GET /v0/openapi.json lists them"),
        ("GET", "/v0/nothing", "GET /v0/openapi.json lists all paths"),
        ("GET", "/v0/topics/<b>/diff", "GET /v0/openapi.json lists all paths"),
    ],
)
def test_the_endpoint_that_was_meant_is_named(method: str, path: str, told: str) -> None:
    assert what_was_meant(method.encode(), path.encode()) == told
