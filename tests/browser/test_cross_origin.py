"""Pages of another origin than the server, in a browser: a listed one can use the API, another one changes nothing."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.browser.conftest import skip_without_chromium
from tests.browser.watch_page import WatchPage
from tests.server.clients import Http1Client
from topics.testing.server_process import ServerProcess

skip_without_chromium()


class Site(NamedTuple):
    """A web site beside the server. It has two names, so it has two origins: only one of them is listed."""

    server: ServerProcess
    listed: str
    foreign: str


class EmptyPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>a page</title>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as pages:
        thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
        thread.start()
        listed = f"http://127.0.0.1:{pages.server_port}"
        try:
            with ServerProcess(environ={"TOPICS_CORS_ORIGINS": listed}) as server:
                yield Site(server, listed, f"http://localhost:{pages.server_port}")
        finally:
            pages.shutdown()
            thread.join()


def client(server: ServerProcess) -> Http1Client:
    return Http1Client(server.host, server.port)


def test_a_page_of_a_listed_origin_writes_reads_and_watches(site: Site, page: WatchPage) -> None:
    page.page.goto(site.listed)
    outcome = page.page.evaluate(
        """async url => {
            const json = {"content-type": "application/json", "idempotency-key": "page-1"};
            const body = JSON.stringify({records: [{data: "from a page"}]});
            const written = await fetch(url + "/v0/topics/page", {method: "POST", headers: json, body});
            const absent = await fetch(url + "/v0/topics/none");
            const frames = await fetch(url + "/v0/topics/page/frames");
            const watch = {method: "POST", headers: json, body: JSON.stringify({topics: {page: {}}})};
            const session = await (await fetch(url + "/v0/watch", watch)).json();
            const source = new EventSource(url + session.stream_url);
            const event = await new Promise(resolve => source.addEventListener("record", resolve));
            source.close();
            const socket = new WebSocket(url.replace("http", "ws") + "/v0/ws");
            await new Promise(resolve => { socket.onopen = resolve; });
            socket.send('{"op":"ping"}');
            const pong = await new Promise(resolve => { socket.onmessage = resolve; });
            socket.close();
            return [
                written.status, (await written.json()).last_seq, (await absent.json()).error.code,
                frames.headers.get("topics-head-seq"), JSON.parse(event.data).records[0].data, JSON.parse(pong.data).op,
            ];
        }""",
        site.server.url,
    )
    assert outcome == [201, 1, "topic_not_found", "1", "from a page", "pong"]


def test_a_page_of_another_origin_changes_nothing(site: Site, page: WatchPage) -> None:
    """The page sends every request that a browser lets it send, and waits until each has failed."""
    with client(site.server) as writer:
        writer.put_topic("jobs", type="queue")
        writer.write("jobs", 1)
        page.page.goto(site.foreign)
        outcome = page.page.evaluate(
            """async url => {
                const work = url + "/v0/topics/jobs/work?node=page";
                const text = {method: "POST", mode: "no-cors", headers: {"content-type": "text/plain"}};
                const body = JSON.stringify({records: [{data: "from a page"}], node: "page"});
                await new Promise(resolve => {
                    const image = new Image();
                    image.onerror = image.onload = resolve;
                    image.src = work;
                });
                await fetch(work, {mode: "no-cors", headers: {accept: "text/event-stream"}});
                await fetch(url + "/v0/topics/jobs/seal", text);
                await fetch(url + "/v0/topics/jobs", {...text, body});
                await fetch(url + "/v0/topics/jobs/claim", {...text, body});
                const form = document.createElement("form");
                Object.assign(form, {method: "post", action: url + "/v0/topics/jobs/seal", target: "frame"});
                const frame = document.createElement("iframe");
                frame.name = "frame";
                document.body.append(frame, form);
                await new Promise(resolve => { frame.onload = resolve; form.submit(); });
                const source = new EventSource(work);
                await new Promise(resolve => { source.onerror = resolve; });
                const socket = new WebSocket(url.replace("http", "ws") + "/v0/ws");
                const opened = await new Promise(resolve => {
                    socket.onopen = () => resolve(true);
                    socket.onerror = () => resolve(false);
                });
                const json = {"content-type": "application/json"};
                const preflighted = await fetch(url + "/v0/topics/jobs", {method: "POST", headers: json, body})
                    .catch(() => "refused");
                return [source.readyState === EventSource.CLOSED, opened, preflighted];
            }""",
            site.server.url,
        )
        assert outcome == [True, False, "refused"]
        state = writer.state("jobs")
        queue = state["queue"]
        assert (state["count"], queue["ready"], queue["in_flight"], queue["dead_lettered"]) == (1, 1, 0, 0)
        assert writer.request("POST", "/v0/topics/jobs/manifest").json["segments"] == []
        # A job that a page had taken, even for a moment, would have a delivery already.
        claimed = writer.request("POST", "/v0/topics/jobs/claim", {"node": "worker"}).json["claimed"]
        assert [job["deliveries"] for job in claimed] == [1]
