"""The docs site: it builds without a warning, has every page, needs no other server, and can be searched."""

import re

import pytest
from playwright.sync_api import Page, sync_playwright

from docs_build import site
from tests.browser.conftest import CHROMIUM, FLAGS

# Keeps what a copy button gives to the clipboard.
KEEP_COPIED = """document.addEventListener("copy", (event) => { window.copied = event.target.value; }, true)"""


def copied_from(page: Page, path: str, number: int) -> str:
    """What the copy button of a block on that page copies, without empty lines."""
    page.add_init_script(KEEP_COPIED)
    page.goto(site.SITE.joinpath(path).as_uri())
    block = page.locator(".highlight").nth(number)
    block.hover()
    block.locator("[data-md-type=copy], .md-clipboard, .md-code__button").first.click()
    page.wait_for_function("window.copied")
    return re.sub(r"\n+", "\n", page.evaluate("window.copied"))


# One test: two of them in two processes would build into the same folder.
def test_the_site_builds_needs_no_other_server_and_finds_words_without_one() -> None:
    pytest.importorskip("zensical", reason="the docs site needs the group `docs`: make docs")
    site.build()
    pages = [path.removesuffix(".md") + ".html" for _, _, path in site.nav()]
    assert [page for page in pages if not site.SITE.joinpath(page).exists()] == []
    assert site.foreign_sources() == []
    if CHROMIUM is None:
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site.SITE.joinpath("index.html").as_uri())
        page.keyboard.press("Control+k")
        page.locator("input:focus").wait_for()
        page.keyboard.type("tombstone")
        page.get_by_text(re.compile(r"^[0-9]+ results$")).wait_for()
        copied = [copied_from(page, "quickstart.html", number) for number in (2, 3)]
        browser.close()
    writes, tail = copied
    assert writes.splitlines() == [
        """echo '{"id": 1, "item": "tea"}' | topics write sales""",
        """echo '{"id": 2, "item": "cups"}' | topics write sales""",
    ]
    assert tail == "topics tail sales"
    assert [url for url in asked if not url.startswith(("file:", "about:", "data:"))] == []
