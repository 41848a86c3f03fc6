"""A command waits for a server that is starting, so that `topics serve &` and a command can be lines of one script."""

import sys
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from topics.cli.output import message
from topics.client.retrying import Unreachable
from topics.errors import NotReady, TopicsError

if TYPE_CHECKING:
    from topics.client.sync.client import Client

WAIT_S_MAX: Final = 10.0
# A wait longer than this is explained on a terminal.
QUIET_S: Final = 1.0
PAUSE_S: Final = 0.05


def wait_for_start(client: "Client") -> None:
    """Returns when the server is ready, when its answer shows that it is not starting, or after `WAIT_S_MAX`. In the
    last two cases the request of the command fails with the error."""
    asking = client.with_options(timeout_s=2, deadline_s=2, retries=0)
    started_s = monotonic()
    is_told = not sys.stderr.isatty()
    while monotonic() - started_s < WAIT_S_MAX:
        try:
            asking.ready()
            return
        except TopicsError as error:
            if not _may_be_starting(error, client.url):
                return
        if not is_told and monotonic() - started_s >= QUIET_S:
            message(f"topics: waiting up to {WAIT_S_MAX:.0f} s for {client.url} to start (--no-wait: do not)")
            is_told = True
        sleep(PAUSE_S)


def _may_be_starting(error: TopicsError, url: str) -> bool:
    """Another machine that refuses connections is more likely down, or the address is wrong."""
    if isinstance(error, Unreachable):
        from topics.server.settings import is_loopback

        return isinstance(error.__cause__, ConnectionRefusedError) and is_loopback(urlsplit(url).hostname or "")
    return isinstance(error, NotReady)
