"""The server's reading of HTTP/1.1 compared with that of h11, which shares no code with it.

Request smuggling needs two parsers that disagree about the end of a request: one of them sees a request that the other
took for a body. So h11 must read every request that the application gets as the same request, at the same place. The
server may refuse more than h11. h11 may refuse more than the server only in the few ways listed in `LENIENT`, which do
not move the end of a request.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, NamedTuple

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.server.wires import RecordingApp, Wires, without_dates

BODY_BYTES_MAX: Final = 4_000
CODING_NAME: Final = b"transfer-encoding"

# What llhttp accepts and h11 refuses: more than one blank in the request line, and two names of other protocols in the
# version.
LENIENT: Final = re.compile(rb"[A-Z-]+(?: {2,}|[^\r\n]* (?:RTSP|ICE)/)")


REASON: Final = re.compile(rb'content-length: [0-9]+\r\nconnection: close\r\n\r\n{"error":.*')


class Seen(NamedTuple):
    method: bytes
    path: bytes
    query: bytes
    # The last value of a repeated header; without the coding, which h11 writes in its own way.
    headers: dict[bytes, bytes]
    body: bytes


class Ours(NamedTuple):
    seen: list[Seen]
    statuses: list[int]
    written: bytes
    is_ended: bool


class Theirs(NamedTuple):
    seen: list[Seen]
    # Bytes after the last request that h11 does not accept as HTTP.
    refused: bytes


def our_reading(packets: list[bytes], wires: Wires | None = None) -> Ours:
    wires = wires or Wires(RecordingApp(body_bytes_max=BODY_BYTES_MAX))
    app = wires.app
    handled_before, refused_before = len(app.handled), len(app.refused)
    transport = wires.connect()
    for packet in packets:
        transport.receive(packet)
        wires.loop.settle()
    seen = [
        Seen(
            b"HEAD" if exchange.is_head else exchange.method,
            exchange.path,
            exchange.query,
            {name: value for name, value in exchange.headers.items() if name != CODING_NAME},
            exchange.body,
        )
        for exchange in app.handled[handled_before:]
    ]
    is_ended = transport.is_ended or transport.has_written_eof
    refused = [error.status for error in app.refused[refused_before:]]
    assert all(status == 413 for status in refused[:-1])
    return Ours(seen, refused, said(transport.written), is_ended)


def said(written: bytes) -> bytes:
    """The answers without what depends on the packets: the date, 100 Continue, and which of two mistakes in a head is
    found first.
    """
    return REASON.sub(b"", without_dates(written).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))


def their_reading(data: bytes) -> Theirs:
    """Reads each request with a new h11 connection: h11 closes after HTTP/1.0, and accepts no blank lines before a
    request.
    """
    seen: list[Seen] = []
    while data := data.lstrip(b"\r\n"):
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
        connection.receive_data(data)
        try:
            request = connection.next_event()
            if not isinstance(request, h11.Request):
                break
            body = b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError:
            return Theirs(seen, data)
        if not isinstance(event, h11.EndOfMessage):
            break
        path, _, query = request.target.partition(b"?")
        headers = {name: value for name, value in request.headers if name != CODING_NAME}
        seen.append(Seen(request.method, path, query, headers, body))
        if not stays(request):
            break
        data = connection.trailing_data[0]
    return Theirs(seen, b"")


def stays(request: h11.Request) -> bool:
    values = b",".join(value for name, value in request.headers if name == b"connection")
    options = {option.strip().lower() for option in values.split(b",")}
    return b"close" not in options and (request.http_version == b"1.1" or b"keep-alive" in options)


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]


# Streams of requests, good and bad.

BLANK = st.sampled_from([b"", b" ", b" ", b" ", b" ", b"\t", b"  ", b" \t "])
ODD = st.sampled_from([b"\r", b"\n", b"\0", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xff", b" ", b":", b";", b",", b"0"])
METHOD = st.sampled_from(
    b"GET GET POST POST PUT DELETE HEAD OPTIONS PATCH TRACE CONNECT get PRI SOURCE M-SEARCH FOO GETX P\0ST".split(b" ")
)
TARGET = st.one_of(
    st.sampled_from([b"/", b"/a", b"/a/b?c=d", b"/a?", b"*", b"/%2e%2e/", b"/a#b", b"//", b"/a%00"]),
    st.sampled_from([b"http://h/a", b"h:80", b"", b"/a b", b"/\t", b"/\xc3\xa4", b"a", b"?", b"/" + b"x" * 300]),
    st.binary(min_size=1, max_size=6).map(lambda tail: b"/" + tail),
)
VERSION = st.sampled_from(
    [b"HTTP/1.1"] * 8
    + [b"HTTP/1.0"] * 3
    + [b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"http/1.1", b""]
    + [b"HTTP/1.", b"HTTP/11", b"RTSP/1.0", b"ICE/1.0"]
)
LINE_END = st.sampled_from([b"\r\n"] * 30 + [b"\n", b"\r", b"\r\r\n", b"\r\n ", b"\n\r\n"])
PLAIN_HEADER = st.tuples(
    st.sampled_from([b"Accept", b"X-A", b"x_b", b"Cookie", b"Date", b"!#$%&'*+-.^_`|~9", b"X\x80", b"X Y", b""]),
    st.one_of(st.sampled_from([b"", b"v", b"a, b", b"\xff", b'"q"', b"a\tb"]), st.binary(max_size=5)),
)
LENGTH = st.sampled_from(
    [*b"0 1 3 5 05 10 +3 -1 0x3 3,3 3.0 1e1 \xb2 18446744073709551616 99999".split(), b"", b"3, 3", b"3 3", b"9" * 40]
)
CODING = st.sampled_from(
    [b"chunked"] * 6
    + [b"Chunked", b"CHUNKED", b"chunked, chunked", b"gzip, chunked", b"chunked, identity", b"identity", b"xchunked"]
    + [b"chunked;q=1", b'"chunked"', b"chunked\x0b", b"\x0bchunked", b"gzip", b"", b",chunked", b"chunked,"]
)
FRAMING_HEADER = st.one_of(
    st.tuples(st.just(b"Content-Length"), LENGTH),
    st.tuples(st.sampled_from([b"Transfer-Encoding", b"transfer-encoding", b"TRANSFER-ENCODING"]), CODING),
    st.tuples(
        st.just(b"Connection"),
        st.sampled_from([b"close", b"keep-alive", b"Upgrade", b"upgrade, close", b"Close", b"x", b"", b"TE"]),
    ),
    st.tuples(st.just(b"Upgrade"), st.sampled_from([b"h2c", b"websocket", b""])),
    st.tuples(st.just(b"Expect"), st.sampled_from([b"100-continue", b"100-Continue", b"x"])),
    st.tuples(st.just(b"Host"), st.sampled_from([b"b", b""])),
)


@st.composite
def header_lines(draw: st.DrawFn, fields: list[tuple[bytes, bytes]]) -> bytes:
    lines = b""
    for name, value in fields:
        before = draw(st.sampled_from([b""] * 40 + [b" ", b"\t"]))
        lines += name + before + b":" + draw(BLANK) + value + draw(BLANK) + draw(LINE_END)
    return lines


@st.composite
def chunked_body(draw: st.DrawFn) -> bytes:
    text = b""
    for part in draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4)):
        size = draw(st.sampled_from([b"%x", b"%X", b"0%x", b"%x", b"%x "])) % len(part)
        text += size + draw(EXTENSION) + draw(LINE_END) + part + draw(LINE_END)
    last = draw(st.sampled_from([b"0"] * 8 + [b"00", b"-0", b"", b"0x0", b"fffffffffffffffff"]))
    text += last + draw(EXTENSION) + draw(LINE_END)
    trailers = draw(st.lists(st.one_of(PLAIN_HEADER, FRAMING_HEADER), max_size=2))
    return text + draw(header_lines(trailers)) + draw(LINE_END)


EXTENSION = st.sampled_from(
    [b""] * 8 + [b";a", b";a=b", b';a="b;c"', b"; a = b", b";", b";a=\n", b";\r", b" ;a", b";\x00"]
)


@st.composite
def request(draw: st.DrawFn) -> bytes:
    """A request whose framing is mostly correct; everything else may be unusual."""
    is_chunked = draw(st.booleans())
    body = draw(st.binary(max_size=30))
    fields: list[tuple[bytes, bytes]] = draw(st.lists(PLAIN_HEADER, max_size=3))
    if draw(st.integers(0, 19)):
        fields.append((b"Host", b"a"))
    if is_chunked:
        fields.append((b"Transfer-Encoding", b"chunked"))
        body = draw(chunked_body())
    elif draw(st.booleans()):
        fields.append((b"Content-Length", b"%d" % len(body)))
    else:
        body = b""
    if draw(st.integers(0, 2)) == 0:
        fields += draw(st.lists(FRAMING_HEADER, max_size=2))
    fields = draw(st.permutations(fields))
    blank = draw(st.sampled_from([b" "] * 20 + [b"  ", b"\t", b""]))
    line = draw(METHOD) + blank + draw(TARGET) + b" " + draw(VERSION)
    lead = draw(st.sampled_from([b""] * 8 + [b"\r\n", b"\n", b"\r\n\r\n", b" "]))
    return lead + line + draw(LINE_END) + draw(header_lines(fields)) + draw(LINE_END) + body


@st.composite
def stream(draw: st.DrawFn) -> bytes:
    """Some requests one after the other, often damaged."""
    data = b"".join(draw(st.lists(request(), min_size=1, max_size=4)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(data)))
        removed = draw(st.integers(0, 3))
        data = data[:place] + draw(st.one_of(ODD, st.just(b""))) + data[place + removed :]
    return data


GOOD = b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n"
UPGRADE = b"POST /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"


@given(stream())
@example(UPGRADE + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
@example(UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + GOOD)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GOOD)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked \r\n\r\n0\r\n\r\n" + GOOD)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\nX: y\r\n\r\n" + GOOD)
@example(b"CONNECT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + GOOD)
@example(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + GOOD)
@example(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + GOOD)
@example(b"GET / HTTP/1.0\r\n\r\n" + GOOD)
def test_whatever_is_accepted_is_the_same_request_to_h11(data: bytes) -> None:
    """No stream has two meanings."""
    ours, theirs = our_reading([data]), their_reading(data)
    common = min(len(ours.seen), len(theirs.seen))
    assert ours.seen[:common] == theirs.seen[:common]
    if len(ours.seen) > common:
        assert LENIENT.match(theirs.refused)


@given(stream(), st.lists(st.integers(0, 2_000), max_size=12))
@example(UPGRADE + b"Content-Length: 3\r\n\r\nabc" + GOOD + UPGRADE + b"\r\n" + GOOD, list(range(200)))
def test_any_split_into_packets_gives_the_same_exchanges_and_the_same_answers(data: bytes, cuts: list[int]) -> None:
    whole = our_reading([data])
    assert our_reading(split_at(data, cuts)) == whole
    assert our_reading([data[place : place + 1] for place in range(len(data))]) == whole


@given(st.lists(request(), min_size=1, max_size=4), st.lists(st.integers(0, 2_000), max_size=4))
@example([GOOD, UPGRADE + b"\r\n", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"], [])
@example([b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", GOOD], [])
@example([b"GET / HTTP/1.0\r\n\r\n", GOOD, b"\r\n" + GOOD, b"\r", b"\n\r", GOOD], [])
def test_what_was_read_before_is_read_the_same_again(requests: list[bytes], cuts: list[int]) -> None:
    """The server remembers heads. The test sends packets with exactly one request, other packets, and streams that
    begin in the middle.
    """
    wires = Wires(RecordingApp(body_bytes_max=BODY_BYTES_MAX))
    data = b"".join(requests)
    ways = [requests, [data], split_at(data, cuts), [data[1:]], requests[::-1]]
    for packets in ways + ways + [[packet] for packet in requests + requests]:
        ours = our_reading(packets, wires)
        fresh = our_reading(packets)
        assert (ours.seen, ours.statuses, ours.is_ended) == (fresh.seen, fresh.statuses, fresh.is_ended)
    assert our_reading(requests, wires).seen == our_reading([data]).seen


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans(), st.booleans()), min_size=1, max_size=5), st.data())
def test_every_proper_stream_is_accepted_whole(bodies: list[tuple[bytes, bool, bool]], data: st.DataObject) -> None:
    """The server refuses more than h11, but no correct request."""
    text = b""
    for number, (body, is_chunked, upgrades) in enumerate(bodies):
        text += b"POST /%d HTTP/1.1\r\nHost: a\r\n" % number
        if upgrades:
            text += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        if is_chunked:
            cut = data.draw(st.integers(0, len(body)))
            parts = [part for part in (body[:cut], body[cut:]) if part]
            chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
            text += b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Trailer: v\r\n\r\n"
        else:
            text += b"Content-Length: %d\r\n\r\n" % len(body) + body
    ours, theirs = our_reading([text]), their_reading(text)
    assert ours.seen == theirs.seen
    assert [seen.body for seen in ours.seen] == [body for body, _, _ in bodies]
    assert not ours.statuses
    assert not ours.is_ended


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_answered_or_waited_for(data: bytes, cuts: list[int]) -> None:
    """Any bytes lead to requests or to one refusal."""
    ours = our_reading(split_at(data, cuts))
    assert len(ours.statuses) <= 1
    assert ours.is_ended or not ours.statuses


@pytest.mark.parametrize("line", [b"GET  /a HTTP/1.1", b"GET /a RTSP/1.0", b"SOURCE /a ICE/1.0", b"POST /a RTSP/1.1"])
def test_what_only_h11_refuses_ends_where_it_says(line: bytes) -> None:
    """What only llhttp accepts: each line is one request, and the bytes after it are the next."""
    keeps = b"Connection: keep-alive\r\n"
    data = line + b"\r\nHost: a\r\n" + keeps + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD + GOOD
    assert their_reading(data) == Theirs([], data)
    assert [(seen.path, seen.body) for seen in our_reading([data]).seen] == [(b"/a", GOOD), (b"/good", b"")]
