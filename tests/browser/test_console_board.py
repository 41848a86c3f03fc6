"""Pages of the web console about queues, routers, groups, streams, jobs and the server, in Chromium on a real server.

`TOPICS_SCREENSHOTS=/tmp/console` saves pictures of them in light, dark and phone width.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import skip_without_chromium
from tests.browser.console_page import ConsolePage
from tests.browser.test_console import opened
from tests.server.clients import Http1Client
from topics.bench.streams_wire import Client as StreamsClient
from topics.bench.streams_wire import create_stream_frame, create_topic_frame, login_frame
from topics.testing.server_process import ServerProcess

skip_without_chromium()

KEYS = "all-rights,only-reads:read,for-acme:read+write+delete:acme."
HOSTILE = "<img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "abc\u202edcba"
LETTERS = (("acme:1", "550 no such mailbox"), ("acme:2", HOSTILE), ("other", RIGHT_TO_LEFT))


class Caller:
    """Calls of the server with all rights."""

    def __init__(self, client: Http1Client) -> None:
        self._client = client

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, body, {"authorization": "Bearer all-rights"})
        assert answer.status < 300, answer.body
        return answer.json

    def write(self, topic: str, *records: dict[str, Any]) -> None:
        self("POST", f"/v0/topics/{topic}", {"records": list(records)})

    def dead_letters(self, queue: str) -> None:
        """A queue with a dead letter for each of `LETTERS`."""
        self("PUT", f"/v0/topics/{queue}", {"type": "queue", "max_deliveries": 1, "dead_letter": f"{queue}.dead"})
        self.write(queue, *({"data": {"n": HOSTILE}, "tag": tag} for tag, _ in LETTERS))
        for _, reason in LETTERS:
            (job,) = self("POST", f"/v0/topics/{queue}/claim", {"node": "w"})["claimed"]
            self("POST", f"/v0/topics/{queue}/nack", {"node": "w", "seqs": [job["$seq"]], "reason": reason})
        # The claim that finds no job moves those that were delivered once.
        assert self("POST", f"/v0/topics/{queue}/claim", {"node": "w"})["claimed"] == []

    def depth(self, queue: str) -> tuple[int, int]:
        """Jobs that are ready, and dead letters."""
        state = self("GET", f"/v0/topics/{queue}/queue")
        return state["ready"], state["dead"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for all tests. Each test uses other topics."""
    with ServerProcess(streams_port=0, environ={"TOPICS_API_KEYS": KEYS}) as process:
        yield process


@pytest.fixture(scope="module")
def call(server: ServerProcess) -> Iterator[Caller]:
    with Http1Client(server.host, server.port) as client:
        yield Caller(client)


@pytest.fixture
def console(browser: Browser, server: ServerProcess) -> Iterator[ConsolePage]:
    with opened(browser, server.url) as console:
        yield console


def sign_in(console: ConsolePage, address: str, key: str = "all-rights") -> None:
    console.open(address)
    console.sign_in(key)


# Queues.


def test_all_dead_letters_are_redriven_after_a_dry_run_that_moves_none(console: ConsolePage, call: Caller) -> None:
    call.dead_letters("redrive.all")
    sign_in(console, "/queues")
    console.page.get_by_role("link", name="redrive.all").click()
    console.wait_text("550 no such mailbox")
    # Only the page scrolls, and the frame around it stays.
    assert console.page.evaluate("document.documentElement.scrollHeight <= window.innerHeight")
    # Neither the markup nor the mark for the direction of text has an effect.
    console.wait_text(HOSTILE)
    console.wait_text("abc⟨U+202E⟩dcba")
    console.button("Redrive all…").click()
    dialog = console.page.get_by_role("dialog")
    dialog.get_by_text("3 jobs would be moved").wait_for()
    assert call.depth("redrive.all") == (0, 3)
    console.button("Redrive 3 jobs").click()
    dialog.wait_for(state="detached")
    console.page.get_by_role("listitem").get_by_text(
        "3 jobs moved from redrive.all.dead to redrive.all: all letters of this queue."
    ).wait_for()
    assert call.depth("redrive.all") == (3, 0)
    console.wait_text("No dead letters")


def test_one_letter_those_that_match_and_those_that_are_selected_are_redriven(
    console: ConsolePage, call: Caller
) -> None:
    page = console.page
    call.dead_letters("redrive.some")
    call.dead_letters("redrive.chosen")
    sign_in(console, "/queues/redrive.some")
    page.get_by_label("Tag", exact=True).fill("acme:*")
    console.wait_text("2 of 3 letters shown")
    console.button("Redrive matching…").click()
    console.button("Redrive 2 jobs").click()
    console.wait_text("2 jobs moved from redrive.some.dead to redrive.some: letters whose tag begins with acme:.")
    assert call.depth("redrive.some") == (2, 1)

    console.follow("/queues/redrive.chosen")
    page.get_by_label("Find in the list").fill("MAILBOX")
    console.wait_text("1 of 3 letters shown")
    page.get_by_label("Select all letters that are shown").check()
    page.get_by_label("Find in the list").fill("")
    page.get_by_label("Select letter 3").check()
    console.button("Redrive 2 selected…").click()
    page.get_by_label("Jobs a second").fill("1000")
    console.button("Redrive 2 jobs").click()
    console.wait_text("2 jobs moved from redrive.chosen.dead to redrive.chosen: 2 selected letters.")
    letters = call("POST", "/v0/topics/redrive.chosen.dead/diff", {})["records"]
    assert [letter["$seq"] for letter in letters] == [2]

    console.wait_text("1 letter listed")
    console.button("Redrive").click()
    console.button("Redrive 1 job").click()
    console.wait_text("1 job moved from redrive.chosen.dead to redrive.chosen: letter 2.")
    assert call.depth("redrive.chosen") == (3, 0)


def test_a_lease_shows_its_holder_and_is_extended_and_released(console: ConsolePage, call: Caller) -> None:
    page = console.page
    call("PUT", "/v0/topics/leases", {"type": "queue", "lease_ms": 600_000})
    call.write("leases", {"data": 1}, {"data": 2})
    (job,) = call("POST", "/v0/topics/leases/claim", {"node": HOSTILE})["claimed"]
    sign_in(console, "/queues/leases")
    console.wait_text(HOSTILE)
    console.wait_text("10 min")
    console.button("Extend").click()
    page.get_by_label("Seconds from now").fill("7200")
    page.get_by_role("dialog").get_by_role("button", name="Extend").click()
    console.wait_text("is leased until")
    (lease,) = call("GET", "/v0/topics/leases/queue")["leases"]
    assert lease["deadline"] > job["deadline"] + 5_000_000
    console.wait_text("2.0 h")
    console.button("Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    console.wait_text("No job is in flight")
    state = call("GET", "/v0/topics/leases/queue")
    assert (state["ready"], state["leases"]) == (2, [])


def test_a_key_that_reads_sees_the_board_and_can_change_nothing(console: ConsolePage, call: Caller) -> None:
    call.dead_letters("narrow")
    call.write("narrow", {"data": 1})
    call("POST", "/v0/topics/narrow/claim", {"node": "w"})
    call("PUT", "/v0/topics/narrow/groups/readers")
    call("PUT", "/v0/routers/narrow.copy", {"source": "narrow", "dest": "narrow.copy"})
    sign_in(console, "/queues/narrow", "only-reads")
    for name in ("Extend", "Release"):
        expect(console.button(name)).to_be_disabled()
        expect(console.button(name)).to_have_attribute("title", "This key lacks the scope write.")
    for name in ("Redrive all…", "Redrive selected…"):
        expect(console.button(name)).to_be_disabled()
    console.follow("/groups?find=narrow")
    expect(console.button("New group")).to_be_disabled()
    console.button("readers").click()
    for name in ("Move", "Delete…"):
        expect(console.button(name)).to_be_disabled()
    console.button("Cancel").click()
    console.follow("/routers?find=narrow.copy")
    console.button("narrow.copy").click()
    expect(console.button("Remove this router…")).to_be_disabled()
    console.page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
    console.follow("/settings")
    console.wait_text("This key may not see the settings")
    console.follow("/health")
    console.wait_text("Keys are needed")


def test_a_key_with_prefixes_sees_its_queues_only(console: ConsolePage, call: Caller) -> None:
    for queue in ("acme.jobs", "other.jobs"):
        call("PUT", f"/v0/topics/{queue}", {"type": "queue", "max_deliveries": 1, "dead_letter": "other.dead"})
    call("PUT", "/v0/routers/acme.copy", {"source": "acme.a", "dest": "acme.b"})
    sign_in(console, "/queues", "for-acme")
    console.wait_rows("acme.jobs")
    console.page.get_by_role("link", name="acme.jobs").click()
    console.wait_text("This key may not see the dead letters")
    console.follow("/routers")
    console.wait_rows("acme.copy")
    console.follow("/queues/other.jobs")
    console.wait_text("This key may not see this")


# Routers and groups.


def edge(console: ConsolePage, name: str) -> Locator:
    return console.page.locator("g.graph-edge", has=console.page.locator(f"title:text-matches('^{name}:')"))


def test_the_graph_of_routers_shows_rates_and_lags_and_removes_a_router(console: ConsolePage, call: Caller) -> None:
    call("PUT", "/v0/topics/graph.full", {"cap_records": 1, "discard": "reject"})
    tree = {
        "graph>b": ("graph.a", "graph.b"),
        "graph>c": ("graph.b", "graph.c"),
        "graph>full": ("graph.a", "graph.full"),
    }
    for name, (source, dest) in tree.items():
        call("PUT", f"/v0/routers/{name.replace('>', '%3E')}", {"source": source, "dest": dest})
    call(
        "PUT",
        "/v0/routers/graph%3Eback",
        {"source": "graph.c", "dest": "graph.a", "allow_cycle": True, "filter": "never"},
    )
    for number in range(3):
        call.write("graph.a", {"data": number})
    sign_in(console, "/routers?find=graph")
    edge(console, "graph>full").get_by_text("lag 2", exact=False).first.wait_for(state="attached")
    assert console.page.locator(".graph-edge").count() == 4
    assert console.page.locator(".graph-node").count() == 4
    for number in range(100):
        call.write("graph.a", {"data": number})
    # Two readings make a rate.
    console.page.locator(".graph-edge.busy").first.wait_for()
    edge(console, "graph>c").press("Enter")
    dialog = console.page.get_by_role("dialog")
    dialog.get_by_text("every record").wait_for()
    console.button("Remove this router…").click()
    console.page.get_by_label("Type graph>c to confirm").fill("graph>c")
    console.button("Remove the router").click()
    console.wait_text("The router graph>c is removed.")
    console.page.wait_for_function("() => document.querySelectorAll('.graph-edge').length === 3")


def test_layers_put_every_dest_right_of_its_source_and_survive_cycles(console: ConsolePage) -> None:
    console.open()
    layers = """async edges => {
        const { layersOf } = await import("/console/core/layers.js");
        return layersOf(edges);
    }"""
    chain = [[f"n{number}", f"n{number + 1}"] for number in range(50)]
    assert console.page.evaluate(layers, chain) == [[f"n{number}"] for number in range(51)]
    tree = [["a", "x"], ["a", "y"], ["y", "z"], ["a", "z"], ["z", "a"], ["q", "q"]]
    found = console.page.evaluate(layers, tree)
    assert [sorted(layer) for layer in found] == [["a", "q"], ["x", "y"], ["z"]]


def test_a_group_is_moved_with_what_that_means_and_deleted(console: ConsolePage, call: Caller) -> None:
    page = console.page
    call.write("moved", *({"data": number} for number in range(10)))
    call("PUT", "/v0/topics/moved/groups/readers", {"seq": 4})
    sign_in(console, "/groups?find=moved")
    console.wait_rows("readers")
    console.button("readers").click()
    dialog = page.get_by_role("dialog")
    page.get_by_label("The last seq that is done").fill("2")
    dialog.get_by_text("Its reader gets the last 2 seqs again.").wait_for()
    page.get_by_label("The last seq that is done").fill("11")
    expect(console.button("Move")).to_be_disabled()
    page.get_by_label("Move the group").select_option("head")
    dialog.get_by_text("Its reader never gets the next 6 seqs.").wait_for()
    console.button("Move").click()
    console.wait_text("is at seq 10; its lag is 0.")
    assert call("GET", "/v0/topics/moved/groups/readers")["seq"] == 10
    console.button("readers").click()
    console.button("Delete…").click()
    page.get_by_label("Type readers to confirm").fill("readers")
    console.button("Delete the group").click()
    console.wait_text("The group readers of moved is deleted.")
    assert call("GET", "/v0/topics/moved/groups")["groups"] == []


# Streams, jobs, the server.


def make_stream(server: ServerProcess, call: Caller, stream: str) -> None:
    """A stream with a topic `events`, which has two partitions."""
    with StreamsClient(int(server.streams_address.rpartition(":")[2])) as client:
        client.call(login_frame())
        client.call(create_stream_frame(stream.encode()))
        ids = {each["name"]: each["id"] for each in call("GET", "/v0/streams")["streams"]}
        client.call(create_topic_frame(ids[stream], b"events", partitions=2))


def test_streams_are_browsed_down_to_a_message(console: ConsolePage, server: ServerProcess, call: Caller) -> None:
    page = console.page
    for stream in ("shop", HOSTILE):
        make_stream(server, call, stream)
    call("PUT", "/v0/routers/to-stream", {"source": "to-stream", "dest": "stream:shop/events"})
    call.write("to-stream", {"data": {"text": HOSTILE}}, {"data": RIGHT_TO_LEFT})
    sign_in(console, "/streams")
    page.get_by_role("link", name=HOSTILE).click()
    console.wait_rows("events")
    page.get_by_role("heading", name=HOSTILE).wait_for()
    page.get_by_role("navigation", name="Where this page is").get_by_role("link", name="Streams").click()
    page.get_by_role("link", name="shop").click()
    page.get_by_role("link", name="events").click()
    console.wait_rows("takes messages", "takes messages")
    filled = page.locator(".table-row", has_text="1 KiB").or_(page.locator(".table-row", has_text=" B")).first
    filled.wait_for()
    partition = next(
        number for number in (0, 1) if call("GET", f"/v0/streams/shop/topics/events/partitions/{number}")["messages"]
    )
    page.get_by_role("link", name=str(partition), exact=True).click()
    console.wait_text("abc⟨U+202E⟩dcba")
    console.button("0").click()
    page.get_by_role("dialog").get_by_text(HOSTILE).wait_for()


def test_reports_of_jobs_are_shown_and_the_page_says_what_it_does_not_know(console: ConsolePage, call: Caller) -> None:
    sign_in(console, "/pipeline?topic=left.here")
    console.wait_text("Jobs that ran without --report-to are not known here.")
    done = {"job": "archive", "exit_code": 0, "records": 16001, "seconds": 2.5, "options": {"lake": f"/lake/{HOSTILE}"}}
    failed = {"job": "sql", "exit_code": 1, "error": HOSTILE}
    call.write("left.here", {"data": done}, {"data": failed}, {"data": "no report"})
    console.wait_rows("sql", "archive")
    console.wait_text("16,001 records archived in these reports")
    console.button("sql").click()
    console.page.get_by_role("dialog").get_by_text(HOSTILE).first.wait_for()


def test_settings_show_their_origins_and_no_key(console: ConsolePage) -> None:
    sign_in(console, "/settings")
    console.wait_text("environment TOPICS_API_KEYS")
    console.wait_text("(3 keys)")
    assert "only-reads" not in console.page.content()
    console.button("Set by you").click()
    expect(console.page.get_by_text("max_batch_records")).to_have_count(0)
    console.page.get_by_label("Settings whose name or meaning contains").fill("data_dir")
    console.wait_text("environment TOPICS_DATA_DIR")


def test_health_names_what_to_do(console: ConsolePage, call: Caller) -> None:
    call.dead_letters("health.queue")
    sign_in(console, "/health")
    console.wait_text("The log is recovered")
    console.wait_text("with dead letters")
    console.wait_text("See why, mend the worker, then redrive.")
    console.wait_text("topics verify DATA_DIR")


AXE_PAGES = [
    "/queues",
    "/queues/axe",
    "/routers",
    "/groups",
    "/streams",
    "/streams/axe",
    "/streams/axe/events",
    "/streams/axe/events/0",
    "/pipeline",
    "/health",
    "/settings",
]


# Pages whose parts are placed in another way on a phone.
NARROW_PAGES = ["/queues/axe", "/routers", "/groups", "/settings"]


@pytest.fixture(scope="module")
def world(server: ServerProcess, call: Caller) -> None:
    """Something to show on every page."""
    call.dead_letters("axe")
    call.write("axe", {"data": 1})
    call("POST", "/v0/topics/axe/claim", {"node": "worker-1"})
    call("PUT", "/v0/topics/axe/groups/readers")
    make_stream(server, call, "axe")
    call("PUT", "/v0/routers/axe", {"source": "axe", "dest": "stream:axe/events"})
    call("PUT", "/v0/routers/axe.copy", {"source": "axe", "dest": "axe.copy"})
    call.write("axe", {"data": 2})
    call.write("pipeline.reports", {"data": {"job": "archive", "exit_code": 0, "options": {"lake": "/lake"}}})


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("width", "addresses"), [(1280, AXE_PAGES), (390, NARROW_PAGES)])
def test_axe_finds_nothing_in_both_themes(
    browser: Browser, server: ServerProcess, width: int, addresses: list[str]
) -> None:
    with opened(browser, server.url, viewport={"width": width, "height": 860}) as console:
        sign_in(console, "/")
        for address in addresses:
            console.follow(address)
            console.page.locator("h1").wait_for()
            console.page.wait_for_load_state("networkidle")
            assert violations(console, f"{address.strip('/').replace('/', '-')}-{width}") == [], address
        console.follow("/queues/axe")
        console.button("Redrive all…").click()
        console.page.get_by_text("jobs would be moved").wait_for()
        assert violations(console, f"redrive-{width}") == []


def violations(console: ConsolePage, name: str) -> list[Any]:
    """What axe finds on the page as it is now, in light and in dark."""
    found: list[Any] = []
    folder = os.environ.get("TOPICS_SCREENSHOTS")
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        console.page.emulate_media(color_scheme=scheme)
        if folder:
            console.page.screenshot(path=f"{folder}/{name}-{scheme}.png")
        told = Axe().run(console.page).response["violations"]
        found += [(scheme, each["id"], [node["html"] for node in each["nodes"]]) for each in told]
    return found
