"""The endpoint that a caller meant: what the answer to an unknown path or method says."""

import re
from typing import Final

_WRITES: Final = frozenset({b"append", b"events", b"messages", b"produce", b"publish", b"records", b"write"})
_READS: Final = frozenset({b"consume", b"diff", b"events", b"fetch", b"messages", b"poll", b"read", b"records"})
_FOLLOWS: Final = frozenset({b"sse", b"stream", b"subscribe", b"tail", b"watch"})
_TOPIC: Final = re.compile(rb"/v0/topics/([A-Za-z0-9._:%-]{1,255})(?:/([a-z]+))?")


def what_was_meant(method: bytes, path: bytes) -> str:
    """The way to do what was most likely wanted, or to the list of all endpoints."""
    if path.startswith(b"/v0/") and path.endswith(b"/"):
        return "leave out the slash at the end"
    if path == b"/v0/topics" and method != b"GET":
        return "PUT /v0/topics/{topic} creates a topic, POST /v0/topics/{topic} writes records"
    match = _TOPIC.fullmatch(path)
    if match is not None:
        topic, action = match[1].decode(), match[2]
        if action in _READS and method == b"GET":
            return f"GET /v0/topics/{topic}/records?from_seq=0 reads records, and so does POST /v0/topics/{topic}/diff"
        if action in _FOLLOWS and method == b"GET":
            return "POST /v0/watch begins a stream of new records"
        if action in _WRITES and method in (b"POST", b"PUT"):
            return f"POST /v0/topics/{topic} writes records"
    if not path.startswith(b"/v0/"):
        return "paths of the API begin with /v0/, and GET /v0/openapi.json lists them"
    return "GET /v0/openapi.json lists all paths"
