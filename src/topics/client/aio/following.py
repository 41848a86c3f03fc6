"""A watch and its connections, for asyncio. `client.following` says what to ask, and what it means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Literal

from topics.client.aio.connections import Connections
from topics.client.following import SILENCE_S_MAX, Following, Seen
from topics.client.retrying import PAUSE_S_MAX, ClientClosed, Patience, Unreachable, backoff_s
from topics.errors import NotFound, TopicsError


async def follow(
    connections: Connections, patience: Patience, following: Following, wait_ms: int | None
) -> AsyncIterator[Seen]:
    """Everything that the watch sees, until its topics are gone, nothing came for `wait_ms`, or the client is closed.

    The first connection is made with the patience of a call. A later one is tried until it is there, unless the caller
    waits for a limited time only.
    """
    was_connected = False
    failures = 0
    while not following.is_over():
        began_s = monotonic()
        try:
            async for seen in _connection(connections, patience, following, wait_ms):
                if isinstance(seen, Seen):
                    failures = 0
                    yield seen
                elif seen == "over":
                    return
                was_connected = True
        except ClientClosed:
            return
        except TopicsError as error:
            # `NotFound`: a restart ended the session before its stream was opened.
            may_go_on = error.retriable or isinstance(error, NotFound)
            if not may_go_on or not was_connected or wait_ms is not None:
                raise
        if connections.is_closed:
            return
        failures = 0 if monotonic() - began_s > PAUSE_S_MAX else failures
        await asyncio.sleep(backoff_s(failures))
        failures += 1


async def _connection(
    connections: Connections, patience: Patience, following: Following, wait_ms: int | None
) -> AsyncIterator[Seen | Literal["connected", "over"]]:
    """What one connection gives. "over": the caller has waited long enough. Ends when another one is needed."""
    while (call := following.next_read()) is not None:
        try:
            page = await connections.ask(call, patience)
        except TopicsError as error:
            for seen in following.read_failed(error):
                yield seen
        else:
            for seen in following.read(page):
                yield seen
    if following.is_over():
        return
    created = await connections.ask(following.session(), patience)
    for seen in following.opened(created):
        yield seen
    if following.is_over():
        return
    async with await connections.stream(created.stream_url, patience.timeout_s) as stream:
        yield "connected"
        seen_s = monotonic()
        while not following.must_reconnect:
            left_s = SILENCE_S_MAX
            if wait_ms is not None and following.is_caught_up:
                idle_s = wait_ms / 1000 - (monotonic() - seen_s)
                if idle_s <= 0:
                    yield "over"
                    return
                left_s = min(left_s, idle_s)
            data = await stream.read(left_s)
            if data == b"":
                return
            if data is None:
                if left_s == SILENCE_S_MAX:
                    raise Unreachable(f"a stream of {connections.endpoint.url} is silent")
                continue
            for seen in following.feed(data):
                yield seen
                seen_s = monotonic()
