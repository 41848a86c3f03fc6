"""A watch and its connections, for a thread that blocks. `client.following` says what to ask, and what it means."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Literal

from topics.client.answers import Refused
from topics.client.following import SILENCE_S_MAX, Following, Seen
from topics.client.http1 import BadAnswer
from topics.client.retrying import PAUSE_S_MAX, ClientClosed, Limit, Patience, Tries, Unreachable, backoff_s
from topics.client.sync.connections import FAILED, Connections, Stream
from topics.errors import NotFound, TopicsError
from topics.protocol.response_body import WatchCreated


def follow(connections: Connections, patience: Patience, following: Following, wait_ms: int | None) -> Iterator[Seen]:
    """Everything that the watch sees, until its topics are gone, nothing came for `wait_ms`, or the client is closed.

    Each connection is made with the patience of a call. If that is not enough, a caller who waits without end for new
    records waits for the connection, too, except for the first one. Any other caller gets the error, and also gets
    the error of a stream that broke when as many streams as the call has retries broke before it and gave nothing.
    """
    was_connected = False
    failures = 0
    while not following.is_over():
        began_s = monotonic()
        is_connected = False
        try:
            for seen in _connection(connections, patience, following, wait_ms):
                if isinstance(seen, Seen):
                    failures = 0
                    yield seen
                elif seen == "over":
                    return
                else:
                    is_connected = was_connected = True
        except ClientClosed:
            return
        except TopicsError as error:
            if connections.is_closed:
                return
            may_go_on = was_connected if wait_ms is None else is_connected and failures < patience.retries
            if not error.retriable or not may_go_on:
                raise
        if connections.is_closed:
            return
        failures = 0 if monotonic() - began_s > PAUSE_S_MAX else failures
        sleep(backoff_s(failures))
        failures += 1


def _connection(
    connections: Connections, patience: Patience, following: Following, wait_ms: int | None
) -> Iterator[Seen | Literal["connected", "over"]]:
    """What one connection gives. "over": the caller has waited long enough. Ends when another one is needed."""
    while (call := following.next_read()) is not None:
        try:
            page = connections.ask(call, patience)
        except TopicsError as error:
            yield from following.read_failed(error)
        else:
            yield from following.read(page)
    if following.is_over():
        return
    tries = Tries(patience, monotonic(), is_repeatable=True)
    while True:
        # A new session for each try: a stream of the old one may have moved its cursors although nothing arrived.
        try:
            created = connections.ask_once(following.session(), tries.limit)
            yield from following.opened(created)
            if following.is_over():
                return
            stream = _stream_of(connections, created, tries.limit)
            break
        except FAILED as failure:
            connections.pause_after(failure, tries)
    with stream:
        yield "connected"
        seen_s = monotonic()
        while not (following.must_reconnect or following.is_over()):
            left_s = SILENCE_S_MAX
            if wait_ms is not None and following.is_caught_up:
                idle_s = wait_ms / 1000 - (monotonic() - seen_s)
                if idle_s <= 0:
                    yield "over"
                    return
                left_s = min(left_s, idle_s)
            data = stream.read(left_s)
            if data == b"":
                raise Unreachable(f"a stream of {connections.endpoint.url} ended")
            if data is None:
                if left_s == SILENCE_S_MAX:
                    raise Unreachable(f"a stream of {connections.endpoint.url} is silent")
                continue
            for seen in following.feed(data):
                yield seen
                seen_s = monotonic()


def _stream_of(connections: Connections, created: WatchCreated, limit: Limit) -> Stream:
    try:
        return connections.stream_once(created.stream_url, limit)
    except Refused as refused:
        if isinstance(refused.error, NotFound):
            # A restart of the server, for example.
            raise BadAnswer("the watch session ended before its stream was opened") from refused
        raise
