"""S3 in good and bad days: a real server, and in front of it one that refuses, lies, stalls or cuts answers off."""

import http.client
import http.server
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")

from tests.storage.tiers.test_folder_store import (
    BUCKET,
    new_s3_address,
    request_plain,
    running_moto,
    set_aws_environment,
)
from topics.errors import ColdUnavailable, StartRefused
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_store
from topics.storage.tiers.s3_store import S3Bounds, S3Store
from topics.storage.tiers.store_id import ensure_store_id, read_store_id

# Deprecations inside the S3 server are not ours, and as errors they would become its answers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA: Final = "topics/0000000A/seg-0000000000000001.data"
OTHER: Final = "topics/0000000A/seg-0000000000000002.data"
ABSENT: Final = "topics/0000000A/seg-0000000000000003.data"
OURS: Final = "0123456789abcdef0123456789abcdef"
OLD: Final = bytes(range(200))
NEW: Final = bytes(reversed(range(200)))

# Patient with a busy machine, but not a second time.
NO_RETRIES: Final = S3Bounds(connect_ms=20_000, idle_ms=20_000, retries_max=0)
TWO_RETRIES: Final = S3Bounds(connect_ms=20_000, idle_ms=20_000, retries_max=2)


# --- a server with faults in front of the real one ----------------------------------------------------------


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    # What is sent of the body, and whether the connection then stays open without a word.
    sent_bytes: int | None = None
    is_stalled: bool = False


Forward = Callable[[], Answer]
Fault = Callable[[Forward], Answer | None]


@dataclass
class Front:
    """Passes requests on to the real server, except those that a fault answers: the first ones, or all."""

    endpoint: str
    backend: str
    faults: list[Fault] = field(default_factory=list)
    persistent_fault: Fault | None = None
    # The real server cuts listings into pages of so many names.
    page_names_max: int | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    is_released: threading.Event = field(default_factory=threading.Event)
    # Ends the server, and waits for the requests that are still being passed on.
    stop: Callable[[], None] = lambda: None

    def next_fault(self) -> Fault | None:
        return self.faults.pop(0) if self.faults else self.persistent_fault

    def methods(self) -> list[str]:
        return [method for method, _, _ in self.requests]


class FrontHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Front

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        pass

    def handle_any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            # The client is gone.
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.front.requests.append((self.command, self.path, headers))

        def forward() -> Answer:
            connection = http.client.HTTPConnection(self.front.backend.removeprefix("http://"))
            try:
                path = self.path
                if "list-type=2" in path and self.front.page_names_max is not None:
                    path = f"{path}&max-keys={self.front.page_names_max}"
                connection.request(self.command, path, body, headers)
                response = connection.getresponse()
                kept = {"etag", "last-modified", "content-length", "content-range", "content-type"}
                found = {name.lower(): value for name, value in response.getheaders() if name.lower() in kept}
                return Answer(response.status, found, response.read())
            finally:
                connection.close()

        fault = self.front.next_fault()
        self.close_connection = True
        answer = fault(forward) if fault else forward()
        if answer is not None:
            self.send(answer)

    def send(self, answer: Answer) -> None:
        if self.command == "HEAD":
            answer.body = b""
        else:
            answer.headers.setdefault("content-length", str(len(answer.body)))
        lines = [f"HTTP/1.1 {answer.status} Made up", *(f"{name}: {value}" for name, value in answer.headers.items())]
        head = "\r\n".join([*lines, "connection: close", "", ""]).encode()
        try:
            self.wfile.write(head + answer.body[: answer.sent_bytes])
        except ConnectionError:
            return
        if answer.is_stalled:
            self.front.is_released.wait()

    do_GET = do_PUT = do_HEAD = do_DELETE = handle_any  # noqa: N815 (the names are the base class's)


class FrontServer(http.server.ThreadingHTTPServer):
    """When it is closed no request is under way: one that its client gave up may reach the real server much later."""

    daemon_threads = False

    def __init__(self, handler: type[FrontHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        for connection in self._connections:
            # What has come is still read, and nothing else is waited for.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        super().server_close()


XML_ERROR: Final = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>made up</Message></Error>'


def refuse(status: int, code: str) -> Fault:
    """An error of S3's own kind; the request is not carried out."""
    body = XML_ERROR % code.encode()
    return lambda forward: Answer(status, {"content-type": "application/xml"}, body)


def carry_out_but_fail(forward: Forward) -> Answer:
    """The request is carried out, and its answer is lost on the way."""
    forward()
    return Answer(500, {}, b"")


def hang_up(forward: Forward) -> None:
    """No answer at all."""


def error_document_with_status_200(forward: Forward) -> Answer:
    return Answer(200, {"content-type": "application/xml"}, XML_ERROR % b"InternalError")


def error_document_with_the_headers_of_success(forward: Forward) -> Answer:
    """The worst kind: an ETag, and a Content-Range that fits."""
    answer = forward()
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return Answer(answer.status, headers, XML_ERROR % b"InternalError")


def page_of_a_proxy(forward: Forward) -> Answer:
    return Answer(200, {"content-type": "text/html"}, b"<html><body><p>Please log in</p></body></html>")


def empty_page(forward: Forward) -> Answer:
    return Answer(200, {}, b"")


def cut_off(forward: Forward) -> Answer:
    """The connection breaks in the middle of the body, if there is one."""
    answer = forward()
    answer.sent_bytes = len(answer.body) // 2
    return answer


def cut_short(forward: Forward) -> Answer:
    """Half of the body, if there is one, and a Content-Length to match."""
    answer = forward()
    if answer.body:
        answer.body = answer.body[: len(answer.body) // 2]
        answer.headers["content-length"] = str(len(answer.body))
    return answer


def stall(forward: Forward) -> Answer:
    """Half of the body, and then silence."""
    answer = cut_off(forward)
    answer.is_stalled = True
    return answer


FAULTS: Final[dict[str, Fault]] = {
    "503": refuse(503, "SlowDown"),
    "403": refuse(403, "RequestTimeTooSkewed"),
    "carried out but 500": carry_out_but_fail,
    "hang up": hang_up,
    "200 with an error": error_document_with_status_200,
    "200 with an error and good headers": error_document_with_the_headers_of_success,
    "page of a proxy": page_of_a_proxy,
    "empty page": empty_page,
    "cut off": cut_off,
    "cut short": cut_short,
}


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    with running_moto() as endpoint:
        assert request_plain(endpoint, "PUT", f"/{BUCKET}") == 200
        yield endpoint


@pytest.fixture(scope="module")
def truth(moto_endpoint: str) -> S3Store:
    """A claimed tier with two objects in it, seen without faults."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_aws_environment(monkeypatch, moto_endpoint)
        store = S3Store(new_s3_address(), bounds=NO_RETRIES)
    ensure_store_id(store, OURS)
    store.put(DATA, OLD)
    store.put(OTHER, b"other")
    return store


@pytest.fixture
def front(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Its endpoint is where stores go in a test that asks for it."""

    class Handler(FrontHandler):
        pass

    server = FrontServer(Handler)
    Handler.front = front = Front(f"http://127.0.0.1:{server.server_port}", moto_endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def stop() -> None:
        front.is_released.set()
        server.shutdown()
        thread.join()
        server.server_close()

    front.stop = stop
    set_aws_environment(monkeypatch, front.endpoint)
    yield front
    front.stop()


@pytest.fixture
def address(front: Front, truth: S3Store) -> Iterator[str]:
    """The tier of `truth`, to be opened through the front; made good again after the test."""
    yield truth.address
    front.stop()
    if not {"PUT", "DELETE"}.isdisjoint(front.methods()):
        truth.put(DATA, OLD)
        truth.delete(ABSENT)


def claimed_store(address: str, front: Front, bounds: S3Bounds) -> S3Store:
    store = S3Store(address, bounds=bounds)
    assert read_store_id(store) == OURS
    front.requests.clear()
    return store


# --- never wrong data -------------------------------------------------------------------------------------------

READS: Final[dict[str, tuple[Callable[[S3Store], object], object]]] = {
    "read": (lambda store: store.read_range(DATA, 50, 100), OLD[50:150]),
    "read to the end": (lambda store: store.read_range(DATA, 150, 100), OLD[150:]),
    "read beyond the end": (lambda store: store.read_range(DATA, 200, 100), b""),
    "read nothing": (lambda store: store.read_range(DATA, 0, 0), b""),
    "list": (lambda store: store.list(""), ["STORE", DATA, OTHER]),
    "list a folder": (lambda store: store.list("topics/0000000A/"), [DATA, OTHER]),
    "list entries": (lambda store: [entry[:2] for entry in store.entries("topics/")], [(DATA, 200), (OTHER, 5)]),
    "list nothing": (lambda store: store.list("topics/0000000B/"), []),
    "exists": (lambda store: store.exists(DATA), True),
    "does not exist": (lambda store: store.exists(ABSENT), False),
    "size": (lambda store: store.size(DATA), 200),
}
# What is done to which object, and what is there afterwards.
WRITES: Final[dict[str, tuple[Callable[[S3Store], object], str, bytes | None]]] = {
    "put": (lambda store: store.put(DATA, NEW), DATA, NEW),
    "put another": (lambda store: store.put(ABSENT, NEW), ABSENT, NEW),
    "put if absent": (lambda store: store.put_if_absent(ABSENT, NEW), ABSENT, NEW),
    "put if absent where one is": (lambda store: store.put_if_absent(DATA, NEW), DATA, OLD),
    "delete": (lambda store: store.delete(DATA), DATA, None),
}
CALLS: Final = {name: case[0] for name, case in (READS | WRITES).items()}


def content(store: S3Store, name: str) -> bytes | None:
    # Not asked for first: a delete whose client gave it up may come in between.
    try:
        return store.read_range(name, 0, 1000)
    except FileNotFoundError:
        return None


def answered(store: S3Store, call: str, truth: S3Store) -> bool:
    """Makes the call, which may fail; if it does not it must have answered, or done, the right thing."""
    is_answered = True
    found = None
    try:
        found = CALLS[call](store)
    except ColdUnavailable as error:
        is_answered = False
        message = error.message
    if call in READS:
        assert not is_answered or found == READS[call][1]
    else:
        _, name, after = WRITES[call]
        before = OLD if name == DATA else None
        there = content(truth, name)
        assert there == after if is_answered else there in {before, after}
    assert is_answered or message.startswith(f"{store.address}: ")
    return is_answered


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_keeps_failing_gives_no_wrong_answer(
    call: str, fault: str, front: Front, address: str, truth: S3Store
) -> None:
    """Without retries, since they would all fail the same way."""
    store = claimed_store(address, front, NO_RETRIES)
    front.persistent_fault = FAULTS[fault]
    is_answered = answered(store, call, truth)
    # A HEAD, or an answer of no bytes, has no body to spoil.
    may_pass = FAULTS[fault] in {cut_short, cut_off, error_document_with_the_headers_of_success}
    assert may_pass or not is_answered


@pytest.mark.parametrize(
    "fault",
    ["503", "carried out but 500", "200 with an error", "200 with an error and good headers", "cut off", "cut short"],
)
@pytest.mark.parametrize("call", CALLS)
def test_one_failed_request_of_a_call_gives_no_wrong_answer(
    call: str, fault: str, front: Front, address: str, truth: S3Store
) -> None:
    """The request that fails is each one that a call makes in turn, such as the check after a put."""
    store = claimed_store(address, front, NO_RETRIES)
    for fault_index in itertools.count():
        front.faults = [lambda forward: forward()] * fault_index + [FAULTS[fault]]
        answered(store, call, truth)
        if front.faults:
            break
        if call in WRITES:
            truth.delete(ABSENT)
            truth.put(DATA, OLD)
    assert fault_index > 0


@pytest.mark.parametrize("fault", ["503", "hang up"])
@pytest.mark.parametrize("call", CALLS)
def test_a_passing_failure_is_retried_to_success(
    call: str, fault: str, front: Front, address: str, truth: S3Store
) -> None:
    """Slow-down and a lost connection, as many times as the bound says."""
    store = claimed_store(address, front, TWO_RETRIES)
    front.faults = [FAULTS[fault]] * 2
    assert answered(store, call, truth)
    assert front.faults == []


@pytest.mark.parametrize("fault", [refuse(500, "InternalError"), refuse(429, "TooManyRequests"), carry_out_but_fail])
def test_a_put_is_retried_after_every_passing_failure(fault: Fault, front: Front, address: str, truth: S3Store) -> None:
    """A put that was carried out, but whose answer was lost, is simply put again."""
    store = claimed_store(address, front, TWO_RETRIES)
    front.faults = [fault]
    assert answered(store, "put", truth)
    assert front.methods() == ["PUT", "PUT", "HEAD"]


def test_a_body_that_breaks_off_is_continued(front: Front, address: str) -> None:
    """Truncated body."""
    store = claimed_store(address, front, TWO_RETRIES)
    front.faults = [cut_off]
    assert store.read_range(DATA, 0, 200) == OLD
    assert [headers["range"] for _, _, headers in front.requests] == ["bytes=0-199", "bytes=100-199"]


def test_retries_are_bounded(front: Front, address: str) -> None:
    store = claimed_store(address, front, TWO_RETRIES)
    front.persistent_fault = refuse(503, "SlowDown")
    with pytest.raises(ColdUnavailable):
        store.size(DATA)
    assert front.methods() == ["HEAD"] * 3
    front.requests.clear()
    with pytest.raises(ColdUnavailable):
        store.read_range(DATA, 0, 200)
    assert front.methods() == ["GET"] * 3 + ["HEAD"], "one question, asked once, whether the range was at fault"


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_falls_silent_is_unavailable(call: str, front: Front, address: str, truth: S3Store) -> None:
    """Timeout before an answer, and in the middle of a body."""
    store = S3Store(address, bounds=S3Bounds(connect_ms=20_000, idle_ms=100, retries_max=0))

    def say_nothing(forward: Forward) -> None:
        front.is_released.wait()

    front.persistent_fault = say_nothing
    assert not answered(store, call, truth)
    front.persistent_fault = stall
    answered(store, call, truth)


def test_a_large_put_is_not_cut_off_because_the_server_has_nothing_to_say_meanwhile(
    front: Front, address: str, truth: S3Store
) -> None:
    """The HEAD after the put is bounded. That a HEAD is sent shows that the put succeeded."""
    store = S3Store(address, bounds=S3Bounds(connect_ms=20_000, idle_ms=1, retries_max=0))
    content = bytes(1_000_000)
    with pytest.raises(ColdUnavailable, match="Error performing HEAD"):
        store.put(ABSENT, content)
    assert truth.read_range(ABSENT, 0, 2_000_000) == content


def test_a_put_is_checked_against_what_is_there_afterwards(front: Front, address: str) -> None:
    """The server says yes and keeps the old object, of the same size."""
    store = S3Store(address, bounds=NO_RETRIES)
    front.faults = [lambda forward: Answer(200, {"etag": '"new"'}, b"")]
    with pytest.raises(ColdUnavailable) as caught:
        store.put(DATA, NEW)
    assert caught.value.message.startswith(
        f'{address}: {DATA} is not what was put: 200 bytes with ETag "new" went there, 200 bytes with ETag '
    )
    assert store.read_range(DATA, 0, 1000) == OLD


def test_a_delete_is_checked_against_what_is_there_afterwards(front: Front, address: str) -> None:
    store = S3Store(address, bounds=NO_RETRIES)
    front.faults = [lambda forward: Answer(204, {}, b"")]
    with pytest.raises(ColdUnavailable) as caught:
        store.delete(DATA)
    assert caught.value.message == f"{address}: cannot delete {DATA}: it is still there"


def test_a_delete_that_is_answered_with_404_is_no_error(front: Front, address: str) -> None:
    store = claimed_store(address, front, NO_RETRIES)
    front.faults = [refuse(404, "NoSuchKey")]
    store.delete(ABSENT)


def test_a_page_that_is_no_listing_hides_no_names(front: Front, address: str) -> None:
    """The first page is good, the second an error with status 200."""
    store = claimed_store(address, front, NO_RETRIES)

    def first_page(forward: Forward) -> Answer:
        answer = forward()
        cut = answer.body.index(b"</Contents>") + len(b"</Contents>")
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
        return Answer(200, {}, answer.body[:cut] + more)

    front.faults = [first_page, error_document_with_status_200]
    assert store.list("topics/") == [DATA, OTHER]


def test_a_server_that_ignores_where_a_listing_should_begin_repeats_no_names(front: Front, address: str) -> None:
    store = claimed_store(address, front, NO_RETRIES)
    first: list[Answer] = []

    def same_again(forward: Forward) -> Answer:
        first.append(forward())
        return Answer(200, {}, first[0].body)

    front.faults = [same_again, lambda forward: forward(), same_again]
    assert store.list("topics/") == [DATA, OTHER]


# --- the real server --------------------------------------------------------------------------------------------


def test_a_listing_of_many_pages_is_complete(front: Front) -> None:
    front.page_names_max = 3
    store = S3Store(new_s3_address(), bounds=NO_RETRIES)
    names = [f"topics/0000000A/seg-{seq:016d}.data" for seq in range(1, 12)]
    for name in names:
        store.put(name, b"")
    front.requests.clear()
    assert store.list("topics/") == names
    assert front.methods() == ["GET"] * 5, "four pages, and one question whether that was all"
    ensure_store_id(store, OURS)
    assert store.list("") == ["STORE", *names]
    assert store.list("topics/0000000A/seg-000000000000001") == names[9:]


@pytest.mark.slow
def test_more_than_a_thousand_objects_are_all_listed(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand is the size of a page on S3."""
    set_aws_environment(monkeypatch, moto_endpoint)
    store = S3Store(new_s3_address(), bounds=NO_RETRIES)
    names = [f"topics/0000000A/seg-{seq:016d}.data" for seq in range(1, 1102)]
    for name in names:
        store.put(name, b"")
    assert store.list("topics/") == names
    ensure_store_id(store, OURS)
    assert store.list("") == ["STORE", *names]


def test_tiers_in_one_bucket_do_not_see_each_other(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_aws_environment(monkeypatch, moto_endpoint)
    assert request_plain(moto_endpoint, "PUT", "/bucket.of-two") == 200
    whole, below, beside = (
        S3Store(f"s3://bucket.of-two{prefix}", bounds=NO_RETRIES) for prefix in ("", "/a b/ü?#%20/", "/a")
    )
    assert whole.address == "s3://bucket.of-two"
    assert below.address == "s3://bucket.of-two/a b/ü?#%20"
    below.put(DATA, OLD)
    beside.put(OTHER, b"1")
    assert below.list("") == [DATA]
    assert beside.list("") == [OTHER]
    assert below.read_range(DATA, 0, 1000) == OLD
    whole.put(DATA, b"2")
    assert DATA in whole.list("")
    assert below.read_range(DATA, 0, 1000) == OLD


def test_a_stopped_server_is_unavailable_for_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_moto() as endpoint:
        set_aws_environment(monkeypatch, endpoint)
        request_plain(endpoint, "PUT", f"/{BUCKET}")
        store, patient = (S3Store(new_s3_address(), bounds=bounds) for bounds in (NO_RETRIES, None))
        ensure_store_id(store, OURS)
        store.put(DATA, OLD)
    for call in CALLS.values():
        with pytest.raises(ColdUnavailable) as caught:
            call(store)
        assert caught.value.__cause__ is not None
        assert caught.value.message.startswith(f"{store.address}: cannot ")
        assert "Debug source" not in caught.value.message
    with pytest.raises(ColdUnavailable):
        ensure_store_id(store, OURS)
    with pytest.raises(ColdUnavailable, match="after 2 retries"):
        patient.exists(DATA)


def test_a_bucket_that_does_not_exist_is_named_by_the_first_put(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aws_environment(monkeypatch, moto_endpoint)
    store = S3Store("s3://no-such-bucket/tier", bounds=NO_RETRIES)
    with pytest.raises(ColdUnavailable) as caught:
        ensure_store_id(store, OURS)
    assert caught.value.message == (
        "s3://no-such-bucket/tier: cannot put STORE: the bucket does not exist, or lost it at once"
    )
    with pytest.raises(ColdUnavailable):
        store.list("")


def test_a_claimed_bucket_that_was_removed_is_unavailable_rather_than_empty(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 404 for the bucket must not pass for one for the object."""
    set_aws_environment(monkeypatch, moto_endpoint)
    assert request_plain(moto_endpoint, "PUT", "/short-lived") == 200
    store = S3Store("s3://short-lived/tier", bounds=NO_RETRIES)
    ensure_store_id(store, OURS)
    S3Store("s3://short-lived/tier", bounds=NO_RETRIES).delete("STORE")
    assert request_plain(moto_endpoint, "DELETE", "/short-lived") == 204
    for call in CALLS.values():
        with pytest.raises(ColdUnavailable):
            call(store)
    with pytest.raises(ColdUnavailable):
        read_store_id(store)


# --- credentials and settings -----------------------------------------------------------------------------------


def test_wrong_credentials_are_named_in_the_error(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that checks them."""
    set_aws_environment(monkeypatch, moto_endpoint)
    store = S3Store(new_s3_address(), bounds=NO_RETRIES)
    store.put(DATA, OLD)
    request_plain(moto_endpoint, "POST", "/moto-api/reset-auth", b"0")
    try:
        for name, call in CALLS.items():
            with pytest.raises(ColdUnavailable) as caught:
                call(store)
            # A refused listing is not told from one that failed, but the server's own words are there.
            words = (
                "InvalidAccessKeyId" if name.startswith("list") else "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
            )
            assert words in caught.value.message
    finally:
        request_plain(moto_endpoint, "POST", "/moto-api/reset-auth", b"inf")
    assert store.read_range(DATA, 0, 1000) == OLD


@pytest.mark.parametrize(
    ("status", "code"), [(403, "InvalidAccessKeyId"), (403, "RequestTimeTooSkewed"), (400, "ExpiredToken")]
)
def test_what_the_server_says_about_credentials_is_passed_on(
    status: int, code: str, front: Front, address: str
) -> None:
    """Expired credentials and clock skew."""
    store = claimed_store(address, front, NO_RETRIES)
    front.persistent_fault = refuse(status, code)
    with pytest.raises(ColdUnavailable) as caught:
        store.read_range(DATA, 0, 1)
    assert code in caught.value.message


def test_without_credentials_the_error_says_so(front: Front, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's role is asked for, and there is none."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", front.endpoint)
    store = S3Store(address, bounds=NO_RETRIES)
    front.persistent_fault = refuse(500, "NoRole")
    with pytest.raises(ColdUnavailable) as caught:
        store.size(DATA)
    assert caught.value.message.startswith(f"{address}: cannot measure {DATA}; AWS_ACCESS_KEY_ID is not set: ")


def test_a_token_in_a_query_is_not_repeated_in_the_error(front: Front, address: str) -> None:
    store = claimed_store(address, front, NO_RETRIES)
    front.persistent_fault = refuse(500, "InternalError")
    with pytest.raises(ColdUnavailable) as caught:
        store.list("topics/")
    assert f"{front.endpoint}/{BUCKET}?… " in caught.value.message
    assert "list-type" not in caught.value.message


def test_the_usual_variables_decide_where_and_as_whom(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", front.endpoint)
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "for-an-hour")
    S3Store(f"s3://{BUCKET}/settings", bounds=NO_RETRIES).put(DATA, OLD)
    method, path, headers = front.requests[0]
    assert (method, path) == ("PUT", f"/{BUCKET}/settings/{DATA}")
    assert headers["x-amz-security-token"] == "for-an-hour"
    assert "Credential=somebody/" in headers["authorization"]
    assert "/eu-central-1/s3/aws4_request" in headers["authorization"]
    assert len(headers["x-amz-content-sha256"]) == 64, "the body is signed"

    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    front.requests.clear()
    assert S3Store(f"s3://{BUCKET}/settings", bounds=NO_RETRIES).exists(DATA)
    assert "/eu-west-1/s3/aws4_request" in front.requests[0][2]["authorization"]


def test_an_s3_address_opens_a_bucket_without_a_word_to_the_server(front: Front) -> None:
    store = open_store("s3://bucket/a/prefix/", RealFs())
    assert isinstance(store, S3Store)
    assert store.address == "s3://bucket/a/prefix"
    assert front.requests == []


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:9000",
        "ftp://127.0.0.1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:9000?x=1",
        "http://a b",
        "http://",
    ],
)
def test_a_malformed_endpoint_is_refused_at_the_start(
    endpoint: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(StartRefused) as caught:
        S3Store("s3://bucket/prefix")
    assert str(caught.value) == f"{variable} is not of the form http://host:port or https://host:port"


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
@pytest.mark.parametrize("value", ["", "key\n", "k ey", "k\u00fc"])
def test_malformed_credentials_are_refused_by_the_name_of_the_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line end at the end of a secret is the usual way to get this."""
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartRefused) as caught:
        S3Store("s3://bucket/prefix")
    assert str(caught.value) == f"{variable} is empty or has blanks, line ends or other odd characters in it"


def test_half_of_the_credentials_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StartRefused) as caught:
        S3Store("s3://bucket/prefix")
    assert str(caught.value) == (
        "s3://bucket/prefix: cannot use the AWS settings: Generic S3 error: Missing SecretAccessKey"
    )


@pytest.mark.parametrize("address", ["s3://", "s3:///prefix", "s3://key:word@bucket/x", "s3://b cket/x", "s3://ü/x"])
def test_an_address_without_a_valid_bucket_is_refused_and_not_repeated(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(StartRefused) as caught:
        S3Store(address)
    assert str(caught.value) == (
        "the cold tier's address has no valid bucket: write s3://bucket/prefix, and give credentials in "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )


@pytest.mark.parametrize("prefix", ["a//b", "../a", "a/./b", "a\tb"])
def test_a_prefix_that_is_no_path_is_refused(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(StartRefused):
        S3Store(f"s3://bucket/{prefix}")
