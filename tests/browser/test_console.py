"""The web console in Chromium, on real servers.

`TOPICS_SCREENSHOTS=/tmp/console` saves pictures of its pages in light, dark and phone width.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

import topics
from tests.browser.conftest import skip_without_chromium
from tests.browser.console_page import ConsolePage
from tests.browser.test_event_source import free_port
from tests.server.clients import Http1Client
from topics.testing.server_process import ServerProcess

skip_without_chromium()

KEYS = "all-rights,only-reads:read,for-acme:rw:acme."
HOSTILE = "<img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "abc\u202edcba"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for all tests that do not restart it. Each test uses other topics."""
    with ServerProcess() as process:
        yield process


@pytest.fixture
def writer(server: ServerProcess) -> Iterator[Http1Client]:
    with Http1Client(server.host, server.port) as client:
        yield client


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[ConsolePage]:
    """A console in a browser of its own. The test fails if a script failed, or the policy of the page was broken."""
    with browser.new_context(**options) as context:
        console = ConsolePage(context.new_page(), url)
        yield console
        assert console.problems == []


@pytest.fixture
def console(browser: Browser, server: ServerProcess) -> Iterator[ConsolePage]:
    with opened(browser, server.url) as console:
        yield console


def record(data: Any, **members: Any) -> dict[str, Any]:
    return {"data": data, **members}


def write(writer: Http1Client, topic: str, *records: dict[str, Any]) -> None:
    answer = writer.request("POST", f"/v0/topics/{topic}", {"records": list(records)})
    assert answer.status in (200, 201), answer.body


# Overview and topics.


def test_the_overview_shows_what_the_server_does(console: ConsolePage, writer: Http1Client) -> None:
    write(writer, "overview.orders", record({"id": 1}), record({"id": 2}))
    console.open()
    expect(console.page).to_have_title("Overview · topics")
    for label in ("Writes", "Reads", "Sync time", "A power cut now takes", "Disk", "Pressure"):
        console.page.get_by_role("heading", name=label, exact=True).wait_for()
    console.wait_text("GiB")
    console.page.get_by_role("link", name="overview.orders").wait_for()
    # Two readings make a rate.
    console.page.wait_for_function("() => document.querySelectorAll('.chart-line').length === 4")


def test_a_topic_is_created_written_configured_and_removed(console: ConsolePage, writer: Http1Client) -> None:
    page = console.page
    console.open("/topics")
    console.button("New topic").first.click()
    page.get_by_label("Name", exact=True).fill("made.here")
    page.get_by_label("Durability", exact=True).select_option("fsync")
    console.button("Create").click()
    console.wait_text("No records")

    page.get_by_role("tab", name="Write").click()
    page.get_by_label("Data", exact=True).fill('{"big": 12345678901234567890, "one": 1.0}')
    page.get_by_label("Tag", exact=True).fill("acme:1")
    console.button("Write the record").click()
    console.wait_text("Written with seq 1.")
    page.get_by_label("Data", exact=True).fill("not json")
    console.button("Write the record").click()
    console.wait_text("This is not JSON")
    page.get_by_role("link", name="Seq 1").click()
    # Numbers are shown as they were written.
    console.wait_text("12345678901234567890")
    console.wait_text("1.0")
    assert writer.diff("made.here")["records"][0]["data"] == {"big": 12345678901234567890, "one": 1.0}

    page.get_by_role("tab", name="Settings").click()
    page.get_by_label("Cap by records").fill("5")
    page.get_by_label("Age limit").fill("3600000")
    console.button("Review changes").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("row").all_inner_texts() == [
        "Setting\tNow\tNew",
        "Age limit\t0 ms\t3,600,000 ms (1.0 h)",
        "Cap by records\t0\t5",
    ]
    console.button("Save").click()
    console.wait_text("The settings were saved.")
    config = writer.state("made.here")["config"]
    assert (config["cap_records"], config["ttl_ms"], config["durability"]) == (5, 3_600_000, "fsync")

    page.get_by_label("With the tag").fill("acme:*")
    console.button("Delete records…").click()
    remove = page.get_by_role("dialog").get_by_role("button", name="Delete the records")
    expect(remove).to_be_disabled()
    page.get_by_label("Type made.here to confirm").fill("made.her")
    expect(remove).to_be_disabled()
    page.get_by_label("Type made.here to confirm").fill("made.here")
    remove.click()
    console.wait_text("1 record deleted.")
    assert writer.state("made.here")["count"] == 0

    console.button("Remove the topic…").click()
    page.get_by_label("Type made.here to confirm").fill("made.here")
    page.get_by_role("dialog").get_by_role("button", name="Remove the topic").click()
    console.wait_text("The topic made.here was removed.")
    assert writer.request("GET", "/v0/topics/made.here").status == 404


@pytest.mark.parametrize("count", [2500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_topics_are_searched_sorted_and_opened_by_keys(
    browser: Browser, tmp_path: Path, count: int
) -> None:
    async def create() -> None:
        async with topics.open_async(tmp_path / "data") as log:
            for first in range(0, count, 500):
                await asyncio.gather(*(log.create(f"t.{number:05}") for number in range(first, first + 500)))
            await log.append("t.02017", list(range(7)))

    # The browser has an event loop in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, create()).result()
    with ServerProcess(data_dir=tmp_path / "data") as server, opened(browser, server.url) as console:
        console.open("/topics")
        console.wait_text("1,000 topics loaded, more follow")
        assert len(console.rows) < 100
        console.page.get_by_role("button", name="Records", exact=True).click()
        console.wait_text(f"{count:,} topics")
        console.page.wait_for_function(
            "() => document.querySelector('.table-row[aria-rowindex=\"2\"]')?.textContent.includes('t.02017')"
        )
        assert len(console.rows) < 100
        console.page.keyboard.press("/")
        console.page.keyboard.type("t.0200")
        console.page.get_by_text("10 topics", exact=True).wait_for()
        console.page.keyboard.press("Escape")
        for key in ("j", "j", "Enter"):
            console.page.keyboard.press(key)
        expect(console.page).to_have_title("t.02001 · topics")


# Records.


def test_gaps_are_drawn_in_line_with_their_range_and_reason(console: ConsolePage, writer: Http1Client) -> None:
    writer.put_topic("gaps", cap_records=4)
    write(writer, "gaps", *(record(number, tag=f"t{number}") for number in range(1, 8)))
    writer.request("POST", "/v0/topics/gaps/delete", {"match": "t6"})
    console.open("/topics/gaps")
    console.wait_rows("7", "Seq 6: deleted", "5", "4", "Seqs 1 to 3 · 3 records removed by the cap of the topic")
    console.button("Oldest").click()
    console.wait_rows("Seqs 1 to 3 · 3 records removed by the cap of the topic", "4", "5", "Seq 6: deleted", "7")


def test_records_are_found_by_tag_node_payload_seq_and_time(console: ConsolePage, writer: Http1Client) -> None:
    for number in range(1, 7):
        tag = "acme:1" if number % 2 else "other"
        write(writer, "found", record({"n": number, "deep": [{"x": f"v{number}"}]}, tag=tag, node=f"n{number % 3}"))
    console.open("/topics/found?tag=acme:*")
    console.wait_rows('"n": 5', '"n": 3', '"n": 1')
    page = console.page
    page.get_by_label("Only records of this node").fill("n0")
    page.keyboard.press("Enter")
    console.wait_rows('"n": 3')
    console.wait_text("1 match in 6 seqs, up to the first seq")
    page.get_by_label("Only records of this node").fill("")
    page.get_by_label("Only records with this tag").fill("")
    for condition, rows in (
        ("n >= 5", ['"n": 6', '"n": 5']),
        ("deep[0].x = v2", ['"n": 2']),
        ('$.deep[0]["x"] ~ 4', ['"n": 4']),
    ):
        page.get_by_label("Only records whose payload matches").fill(condition)
        page.keyboard.press("Enter")
        console.wait_rows(*rows)
    page.get_by_label("Only records whose payload matches").fill("n..x")
    page.keyboard.press("Enter")
    console.wait_text("is no path")
    # The address keeps the filters, and names one record.
    console.open("/topics/found?seq=4")
    console.page.get_by_role("heading", name="Seq 4").wait_for()
    console.open("/topics/found?seq=99")
    console.wait_text("Seq 99 is not there")
    records = writer.diff("found")["records"]
    local = page.evaluate(
        "ts => { const d = new Date(ts); return new Date(ts - d.getTimezoneOffset() * 60000).toISOString(); }",
        records[0]["$ts"],
    )
    console.open("/topics/found?order=oldest")
    page.get_by_label("Go to a time").fill(local[:19])
    page.get_by_label("Go to a time").dispatch_event("change")
    expect(page.get_by_label("Go to a seq")).to_have_value("1")


def test_a_record_is_copied_as_a_command_that_works(
    browser: Browser, server: ServerProcess, writer: Http1Client
) -> None:
    write(writer, "copied", record({"it's": "quoted"}))
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(browser, server.url, permissions=permissions) as console:
        console.open("/topics/copied?seq=1")
        console.button("Copy as curl").click()
        console.wait_text("Command copied.")
        command = console.page.evaluate("navigator.clipboard.readText()")
    assert command == (
        f"curl -s {server.url}/v0/topics/copied/diff -H 'Content-Type: application/json' "
        """-d '{"from_seq":0,"limit":1,"include_tags":true}'"""
    )


def test_names_and_payloads_of_strangers_stay_text(console: ConsolePage, writer: Http1Client) -> None:
    large = {"text": "x" * 1_000_000, HOSTILE: HOSTILE, "link": "javascript:alert(1)"}
    write(
        writer,
        "hostile",
        record(HOSTILE, tag=HOSTILE, node="javascript:alert(1)", meta={"m": HOSTILE}),
        record({"rtl": RIGHT_TO_LEFT}, tag=RIGHT_TO_LEFT),
        record(large),
        record("</script><script>alert(1)</script>"),
    )
    page = console.page
    console.open("/topics/hostile")
    page.wait_for_function("() => document.querySelectorAll('.table-row').length === 4")
    assert HOSTILE in console.rows[3]
    assert "abc⟨U+202E⟩dcba" in console.rows[2]
    for seq in (1, 2, 3, 4):
        page.get_by_role("cell", name=str(seq), exact=True).click()
        page.get_by_role("heading", name=f"Seq {seq}").wait_for()
        for form in ("Text", "Hex", "Tree"):
            console.button(form).click()
    page.get_by_role("cell", name="3", exact=True).click()
    page.get_by_text("1,000,000 characters").wait_for()
    # Live, too.
    console.follow("/topics/hostile?tab=live")
    page.get_by_text("live", exact=True).wait_for()
    write(writer, "hostile", record(HOSTILE, tag=HOSTILE), record(large))
    page.wait_for_function("() => document.querySelectorAll('.table-row').length === 2")
    # In an address.
    console.follow("/topics/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    page.get_by_role("alert").first.wait_for()
    console.follow("/nowhere/<img src=x onerror=alert(1)>")
    console.wait_text("There is no such page")
    assert page.locator("main img").count() == 0


# Live tail.


def test_the_tail_shows_records_as_they_are_written_and_holds_them_while_paused(
    console: ConsolePage, writer: Http1Client
) -> None:
    writer.put_topic("tailed", cap_records=3)
    console.open("/topics/tailed?tab=live")
    console.page.get_by_text("live", exact=True).wait_for()
    write(writer, "tailed", record({"n": 1}))
    write(writer, "tailed", record({"n": 2}))
    console.wait_rows('{"n": 1}', '{"n": 2}')
    console.button("Pause").click()
    write(writer, "tailed", record({"n": 3}))
    write(writer, "tailed", record({"n": 4}))
    console.wait_text("2 rows waiting")
    assert len(console.rows) == 2
    console.button("Go on").click()
    console.wait_rows('{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": 4}')
    # The cap removes most of this write before it can be sent.
    write(writer, "tailed", *(record({"n": number}) for number in range(5, 15)))
    console.wait_rows(
        *(f'{{"n": {number}}}' for number in range(1, 5)),
        "Seqs 5 to 11 · 7 records removed by the cap of the topic",
        *(f'{{"n": {number}}}' for number in range(12, 15)),
    )


def test_a_flood_is_bounded_and_the_place_that_is_read_stays(console: ConsolePage, writer: Http1Client) -> None:
    writer.put_topic("flood")
    console.open("/topics/flood?tab=live")
    page = console.page
    page.get_by_text("live", exact=True).wait_for()
    write(writer, "flood", *(record({"n": number}) for number in range(60)))
    page.wait_for_function("() => document.querySelector('.table-foot')?.textContent.startsWith('60 records')")
    page.evaluate("() => { document.querySelector('.table-scroller').scrollTop = 300; }")
    console.button("To the newest").wait_for()
    for _ in range(2):
        write(writer, "flood", *(record({"n": number}) for number in range(5000)))
    page.wait_for_function("() => document.querySelector('.table-foot')?.textContent.startsWith('10,060 records')")
    assert page.evaluate("() => document.querySelector('.table-scroller').scrollTop") == 300
    console.button("To the newest").click()
    # Records of another second may follow the row that tells of those that are left out.
    page.wait_for_function(
        """() => {
            const scroller = document.querySelector(".table-scroller");
            if (scroller.textContent.includes("more than 500 a second")) return true;
            scroller.scrollTop -= scroller.clientHeight / 2;
            return false;
        }"""
    )


# The server goes away.


def test_after_a_kill_the_page_goes_on_by_itself_and_misses_no_record(browser: Browser) -> None:
    port = free_port()
    with ServerProcess(port=port) as server, opened(browser, server.url) as console:
        with Http1Client(server.host, server.port) as writer:
            write(writer, "survives", record(1))
        console.open("/topics/survives?tab=live")
        console.page.get_by_text("live", exact=True).wait_for()
        with Http1Client(server.host, server.port) as writer:
            write(writer, "survives", record({"n": 2}))
        console.wait_rows('{"n": 2}')
        server.kill()
        console.wait_text("The server does not answer.")
        server.start()
        with Http1Client(server.host, server.port) as writer:
            write(writer, "survives", record({"n": 3}))
        console.wait_rows('{"n": 2}', '{"n": 3}')
        expect(console.page.locator(".banner")).to_be_hidden()
        console.page.get_by_text("Connected").wait_for()


# Keys.


def test_a_key_is_asked_for_kept_in_memory_and_limits_the_controls(browser: Browser) -> None:
    with ServerProcess(environ={"TOPICS_API_KEYS": KEYS}) as server:
        key = {"authorization": "Bearer all-rights"}
        with Http1Client(server.host, server.port) as writer:
            for topic in ("acme.orders", "other"):
                writer.request("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}, key)
        with opened(browser, server.url) as console:
            page = console.page
            console.open("/topics")
            console.sign_in("wrong")
            console.wait_text("a valid key is needed")
            console.sign_in("only-reads")
            console.wait_rows("acme.orders", "other")
            create = console.button("New topic")
            expect(create).to_be_disabled()
            expect(create).to_have_attribute("title", "This key lacks the scope admin.")
            console.follow("/topics/other?tab=write")
            console.wait_text("This key may not write")
            console.follow("/topics/other?tab=settings")
            expect(page.get_by_label("Cap by records")).to_be_disabled()
            expect(console.button("Remove the topic…")).to_be_disabled()
            console.follow("/topics/other?tab=live")
            page.get_by_text("live", exact=True).wait_for()
            # Another key, for other names.
            page.get_by_role("button", name="API key").click()
            console.sign_in("for-acme")
            console.follow("/topics")
            console.wait_rows("acme.orders")
            stored = page.evaluate(
                "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])"
            )
            assert "for-acme" not in stored
            # The key was in memory only.
            page.reload()
            console.wait_text("A key is needed")


# A link on another site, and accessibility.


def test_the_console_is_opened_by_a_link_of_another_site_but_not_in_its_frame(
    browser: Browser, server: ServerProcess
) -> None:
    foreign = f"http://localhost:{server.port}"
    with browser.new_context() as context:
        page = context.new_page()
        page.route(
            "http://elsewhere.example/",
            lambda route: route.fulfill(content_type="text/html", body=f"<a href='{foreign}/'>console</a>"),
        )
        page.goto("http://elsewhere.example/")
        page.get_by_text("console").click()
        page.get_by_role("heading", name="Overview").wait_for()
        page.goto("http://elsewhere.example/")
        page.evaluate(
            """url => new Promise(resolve => {
                const frame = document.createElement("iframe");
                frame.src = url;
                frame.onload = resolve;
                document.body.append(frame);
            })""",
            f"{foreign}/",
        )
        assert page.frames[1].evaluate("document.title") != "Overview · topics"
        assert page.frames[1].locator("nav").count() == 0


AXE_PAGES = {
    "/": ".figure-value",
    "/topics": ".table-row",
    "/topics/TOPIC?seq=4": ".tree",
    "/topics/TOPIC?tab=live": ".badge.good >> text=live",
    "/topics/TOPIC?tab=write": "textarea",
    "/topics/TOPIC?tab=settings": ".settings",
    "/nowhere": "h1",
}


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.slow)])
def test_axe_finds_nothing_in_light_and_dark(
    browser: Browser, server: ServerProcess, writer: Http1Client, width: int
) -> None:
    topic = f"axe.{width}"
    writer.put_topic(topic, cap_records=3)
    write(writer, topic, *(record({"n": number, "text": "some"}, tag="t", node="n") for number in range(1, 5)))
    axe = Axe()
    folder = os.environ.get("TOPICS_SCREENSHOTS")
    with opened(browser, server.url, viewport={"width": width, "height": 860}) as console:
        page = console.page
        console.open()
        for address, selector in AXE_PAGES.items():
            console.follow(address.replace("TOPIC", topic))
            page.locator(selector).first.wait_for()
            if address == "/nowhere":
                page.keyboard.press("?")
                page.get_by_role("dialog").wait_for()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                if folder:
                    name = address.strip("/").replace("/", "-").replace("?", "-") or "overview"
                    page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png")
                found = axe.run(page).response["violations"]
                assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], (
                    address,
                    scheme,
                )
