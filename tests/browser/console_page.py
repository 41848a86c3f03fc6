"""Drives the web console for a test, and notes everything that a console must never do."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Locator, Page, Request

PATIENCE_MS: Final = 60_000

# Runs before every script of the page. Violations of the content security policy are kept for `problems`.
_LISTEN: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => {
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


class ConsolePage:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        # Errors of scripts, messages of the browser, dialogs that a script opened, requests to other servers.
        self._problems: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(_LISTEN)
        page.on("pageerror", lambda error: self._problems.append(f"error: {error}"))
        page.on("console", self._note_message)
        page.on("dialog", lambda dialog: (self._problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", self._note_request)

    def _note_message(self, message: ConsoleMessage) -> None:
        # The browser also reports every refused request, and a server that is away.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self._problems.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc and not request.url.startswith("data:"):
            self._problems.append(f"request: {request.url}")

    @property
    def problems(self) -> list[str]:
        violations: list[str] = self.page.evaluate("window.violations")
        return self._problems + violations

    def open(self, address: str = "/") -> None:
        """Opens a page of the console, such as `/topics/orders?tab=live`, in a fresh document."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/#{address}")

    def follow(self, address: str) -> None:
        """Goes to another page of the console, without loading the document again."""
        self.page.evaluate("address => { location.hash = address; }", address)

    def sign_in(self, key: str) -> None:
        # The button that opens the dialog has the same label.
        self.page.get_by_role("dialog").get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Use this key").click()

    def text(self, text: str) -> Locator:
        return self.page.get_by_text(text)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def wait_text(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def wait_rows(self, *texts: str) -> None:
        """Waits until the rows of the table show these texts, in this order."""
        self.page.wait_for_function(
            """texts => {
                const rows = [...document.querySelectorAll(".table-row")];
                rows.sort((one, other) => one.getAttribute("aria-rowindex") - other.getAttribute("aria-rowindex"));
                const isShown = (row, place) => row.textContent.includes(texts[place]);
                return rows.length === texts.length && rows.every(isShown);
            }""",
            arg=texts,
        )

    @property
    def rows(self) -> list[str]:
        """The text of each row in the document, from top to bottom."""
        rows: list[str] = self.page.evaluate(
            """() => [...document.querySelectorAll(".table-row")]
                .sort((one, other) => one.getAttribute("aria-rowindex") - other.getAttribute("aria-rowindex"))
                .map(row => row.textContent)"""
        )
        return rows
