"""Chromium, as Debian packages it, and a page in it that follows topics."""

import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.watch_page import PATIENCE_MS, WatchPage

CHROMIUM: Final = shutil.which("chromium")
# Only for pages of the tests: no sandbox, because it does not work for root, and no requests to other servers.
FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


# `expect` has a time limit of its own, which is five seconds.
expect.set_options(timeout=PATIENCE_MS)


def skip_without_chromium() -> None:
    """Called at the top of each test module of this folder. Skips the whole module, with the reason in one line."""
    if CHROMIUM is None:
        pytest.skip(
            "no browser: the command `chromium` is missing; on Debian: sudo apt-get install chromium",
            allow_module_level=True,
        )


# Not for the whole session: while the browser is open, an event loop runs in the thread of the tests, and the tests of
# other modules could not run theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Headless, with a new profile that is removed at the end.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[WatchPage]:
    with browser.new_context() as context:
        yield WatchPage(context.new_page())
