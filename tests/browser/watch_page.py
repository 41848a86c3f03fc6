"""Drives the page `watch.html` for a test, and reads its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from playwright.sync_api import Page, Request

PATIENCE_MS: Final = 60_000
HTML: Final = Path(__file__).with_name("watch.html").read_text("utf-8")


class Row(NamedTuple):
    """A line of the table of the page, as text."""

    topic: str
    seq: str
    kind: str
    data: str


class WatchPage:
    def __init__(self, page: Page) -> None:
        self.page = page
        page.set_default_timeout(PATIENCE_MS)
        # Addresses of the requested streams, one per try.
        self.stream_urls: list[str] = []
        page.on("request", self._keep_stream_url)

    def _keep_stream_url(self, request: Request) -> None:
        if request.resource_type == "eventsource":
            self.stream_urls.append(request.url)

    def follow(self, url: str, topics: dict[str, Any], *, key: str | None = None, **members: Any) -> None:
        """Opens the page with the origin of the server at `url`, and starts a stream.

        The server allows no pages of other origins. So the page replaces an answer of the server that needs no key.
        """
        self.page.goto(f"{url}/v0/health")
        self.page.set_content(HTML)
        self.page.evaluate("([request, key]) => { follow(request, key); }", [{"topics": topics, **members}, key])

    @property
    def rows(self) -> list[Row]:
        cells = self.page.eval_on_selector_all(
            "#rows tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return [Row(*texts) for texts in cells]

    def records(self, topic: str) -> list[tuple[int, str]]:
        """Seq and data of the records on the page, in the order in which they came."""
        return [(int(row.seq), row.data) for row in self.rows if (row.topic, row.kind) == (topic, "record")]

    @property
    def session_count(self) -> int:
        return int(self.page.inner_text("#sessions"))

    def wait_state(self, state: str) -> None:
        self.page.wait_for_function("state => document.getElementById('state').textContent === state", arg=state)

    def wait_row(self, *texts: str) -> None:
        """Waits for a line that begins with these values."""
        self.page.wait_for_function(
            "texts => [...document.querySelectorAll('#rows tr')]"
            ".some(row => texts.every((text, index) => row.cells[index].textContent === text))",
            arg=texts,
        )

    def wait_refused(self) -> None:
        """Waits until the browser has requested a stream again while no server listens."""
        self.page.wait_for_event(
            "requestfailed",
            lambda request: request.resource_type == "eventsource" and request.failure == "net::ERR_CONNECTION_REFUSED",
        )

    def screenshot(self, path: str) -> None:
        self.page.set_viewport_size({"width": 900, "height": 500})
        self.page.screenshot(path=path, full_page=True)
