"""docs/tutorials/chat-page.md: two windows with its page, and a server that is killed in between."""

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from docs_build.recording import free_port
from tests.browser.conftest import skip_without_chromium
from tests.browser.watch_page import PATIENCE_MS
from tests.conftest import REPOSITORY
from tests.docs.page_runner import blocks
from topics.client.sync.client import Client
from topics.testing.server_process import ServerProcess

skip_without_chromium()


class Files(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` does, without its messages."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """A web site beside the server, with the files of the folder."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path))) as pages:
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{pages.server_port}"
        pages.shutdown()
        thread.join()


@pytest.fixture
def server(origin: str) -> Iterator[ServerProcess]:
    with ServerProcess(port=free_port(), cors_origins=origin) as process:
        yield process


def opened(browser: Browser, origin: str) -> Page:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{origin}/chat.html")
    return page


def send(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("button")


def wait_messages(page: Page, *texts: str) -> None:
    page.wait_for_function(
        "texts => JSON.stringify([...document.querySelectorAll('li')].map(item => item.textContent)) === texts",
        arg=str(list(texts)).replace("'", '"').replace(", ", ","),
    )


def test_messages_appear_in_both_windows_and_go_on_after_a_kill(
    browser: Browser, origin: str, server: ServerProcess, tmp_path: Path
) -> None:
    text = (REPOSITORY / "docs/tutorials/chat-page.md").read_text("utf-8")
    (block,) = [block for block in blocks(text) if block.kind == "html"]
    tmp_path.joinpath("chat.html").write_text(block.text.replace("http://localhost:4300", server.url), "utf-8")
    with Client(server.url) as client:
        client.create("chat", cap_records=1000)
    ada, bob = opened(browser, origin), opened(browser, origin)
    send(ada, "hello")
    wait_messages(bob, "hello")
    send(bob, "<b>hi</b>")
    wait_messages(ada, "hello", "<b>hi</b>")
    server.kill()
    server.start()
    with Client(server.url) as client:
        client.append("chat", ["back"])
    wait_messages(ada, "hello", "<b>hi</b>", "back")
    wait_messages(bob, "hello", "<b>hi</b>", "back")
    ada.close()
    bob.close()
