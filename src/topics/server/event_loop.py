"""The event loop of a server: uvloop where it is installed, asyncio elsewhere, with the same answers."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
