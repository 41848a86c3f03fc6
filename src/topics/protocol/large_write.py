"""The body of a large write, checked in steps: between two steps the server serves other clients.

One call of the parser for 64 MiB would hold everything up for a fifth of a second, in every thread: the parser keeps
the interpreter's lock. So the array of records is cut into pieces of some 64 KiB. Each piece is a whole number of
records, and is checked by the code for small bodies. The rest of the body (all other members) is checked at the end.

1. `"records":[` is found. The text before it, closed with `]}`, must be a valid body: only then it is that member.
2. A piece is cut at a place that looks like the border of two records. If the piece parses as a list of records, the
   border is real: JSON text that begins with a record can be read in one way only.
3. If it does not parse, brackets are counted to find the border, some thousand tokens in one step.
4. The piece is checked: syntax, types, repeated members, depth, numbers. Envelopes are made of its records.
5. At the end the rest is checked: the text before and after the records, as a body with one record.

The count of records is checked with each piece, so a body with too many records is refused after its first pieces. A
long rest is cut like the records, and its unknown members are dropped. One record and one member have a bound of four
times the largest record: more can only be blanks or unknown members. Memory holds the body, and the envelopes of its
records.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import UnsetType

from topics.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge, TopicsError
from topics.formats.records import RecordBatch
from topics.limits import JSON_DEPTH_MAX, KIB, MIB
from topics.protocol.body_decoder import MalformedBody, check_repeats, check_text, decoded, pairs_of
from topics.protocol.json_text import check_depth, check_numbers_in_steps, check_unicode
from topics.protocol.request_body import RecordBody, RecordsBody, StageBody
from topics.protocol.write_body import (
    BODY_NAMES,
    RECORD_NAMES,
    WriteBatch,
    WriteLimits,
    WriteRequest,
    checked_records,
    decode_publish,
    decode_stage,
    decode_write,
    has_each_name_once,
    label_column,
    records_request,
)
from topics.protocol.ws_command import Publish

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work in steps: the result comes with the end. A step takes a few milliseconds at most."""

PIECE_BYTES: Final = 64 * KIB
# All other members of a write together.
REST_BYTES_MAX: Final = 64 * KIB
# The text of one record, with its blanks and unknown members, in records of the largest size.
RECORD_TEXTS_MAX: Final = 4
# Tokens that are read in one step when a piece is cut slowly.
_TOKENS_PER_STEP: Final = 4096
# Places that look like the member `records`: a string may hold the same text.
_PLACES_TRIED_MAX: Final = 8

_BLANKS: Final = b" \t\r\n"
_BLANK: Final = rb"[ \t\r\n]*+"
_COMMA_HERE: Final = re.compile(rb"%b," % _BLANK)
# The name may be written with escapes, as every name.
_RECORDS: Final = re.compile(rb'("(?:[a-z]|\\u00[67][0-9a-fA-F]){7}")%b:%b\[' % (_BLANK, _BLANK))
_FIRST_NAME: Final = re.compile(rb'%b\{%b("[A-Za-z0-9_$.-]{1,64}")' % (_BLANK, _BLANK))
# The text up to the next token, and the token; the token is empty at the end. A string that does not end is a token.
_TOKEN: Final = re.compile(rb'[^"\[\]{},]*+([\[\]{},]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\Z)', re.DOTALL)
_NAME: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")%b:' % _BLANK, re.DOTALL)
_KNOWN_FIRST: Final = rb'"(?:data|tag|node|meta)"'
_QUOTE: Final = b'"'
_COMMA: Final = b","
_OPENING: Final = frozenset((b"[", b"{"))
_CLOSING: Final = frozenset((b"]", b"}"))
# Members of a record are inside the body, its list of records, and the record.
_DEPTH_OF_MEMBERS: Final = 3
_OPEN: Final = b'{"records":['
_CLOSE: Final = b"]}"


class _Tail(msgspec.Struct):
    records: msgspec.Raw


_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_records: Final = msgspec.json.Decoder(list[RecordBody]).decode
_decode_tail: Final = msgspec.json.Decoder(_Tail).decode
_decode_name: Final = msgspec.json.Decoder(str).decode


def decode_write_in_steps(text: bytes, limits: WriteLimits, piece_bytes: int = PIECE_BYTES) -> Steps[WriteRequest]:
    """What `decode_write` and `WriteRequest.batch` give together: the request has its batch already."""
    records = _Records(text, limits, piece_bytes)
    yield from records.read()
    request = decode_write(records.rest)
    request.use_batch(records.batch)
    return request


def decode_stage_in_steps(
    text: bytes, limits: WriteLimits, piece_bytes: int = PIECE_BYTES
) -> Steps[tuple[StageBody, WriteRequest]]:
    records = _Records(text, limits, piece_bytes)
    yield from records.read()
    body, request = decode_stage(records.rest)
    request.use_batch(records.batch)
    return body, request


def decode_publish_in_steps(
    text: bytes, limits: WriteLimits, piece_bytes: int = PIECE_BYTES
) -> Steps[tuple[Publish, WriteRequest]]:
    """A command that is larger than any other command may be. Raises `InvalidRequest` if it is no `publish`."""
    # Only after the whole text the reply can name the `request_id`.
    records = _Records(text, limits, piece_bytes, stops_early=False)
    yield from records.read()
    command, request = decode_publish(records.rest)
    request.use_batch(records.batch)
    return command, request


def may_have_records(text: bytes) -> bool:
    """Whether a command may be a `publish`. If not, it is surely none."""
    return any(True for _ in _places_of_records(text))


def _places_of_records(text: bytes, begin: int = 0) -> Iterator[re.Match[bytes]]:
    """Places near the beginning that look like the member `records`."""
    for match in _RECORDS.finditer(text, begin, begin + REST_BYTES_MAX):
        if _decode_name(match[1]) == "records":
            yield match


class _Records:
    """The records of a body, and its other members, which become known while `read` goes through the text."""

    def __init__(self, text: bytes, limits: WriteLimits, piece_bytes: int, *, stops_early: bool = True) -> None:
        self._text = text
        # Whether too many records are refused at once.
        self._stops_early = stops_early
        self._limits = limits
        self._piece_bytes = piece_bytes
        self._value_bytes_max = RECORD_TEXTS_MAX * limits.record_bytes_max + piece_bytes
        # Where the text begins after its blanks.
        self._begin = 0
        # The body without its records.
        self.rest = b""
        self._count = 0
        self._envelopes: list[bytes] = []
        self._sizes: list[int] = []
        self._tags: list[str | UnsetType | None] = []
        self._nodes: list[str | UnsetType | None] = []
        # The error of the first record that is over a limit. An error of syntax wins over it.
        self._refusal: TopicsError | None = None
        self._border: re.Pattern[bytes]

    def batch(self, request: WriteRequest) -> WriteBatch:
        """The records, once the other members are known."""
        if self._refusal is not None:
            raise self._refusal
        limits = self._limits
        tags = label_column(self._tags, None, "tag", limits.tag_bytes_max)
        nodes = label_column(self._nodes, request.node, "node", limits.node_bytes_max)
        return RecordBatch(self._envelopes, self._sizes, tags, nodes)

    def read(self) -> Steps[None]:
        text = self._text
        start = at = self._find_start()
        first = _FIRST_NAME.match(text, at, at + KIB)
        first_names = _KNOWN_FIRST if first is None else b"(?:%b|%b)" % (_KNOWN_FIRST, re.escape(first[1]))
        self._border = re.compile(rb"\}%b(,)%b\{%b%b" % (_BLANK, _BLANK, _BLANK, first_names))
        while True:
            if len(text) - at <= 2 * self._piece_bytes:
                end = self._end_of_rest(at)
                break
            comma = self._likely_border(at)
            if comma is not None:
                body = self._maybe_records(text[at:comma])
                if body is not None:
                    yield from self._take(text[at:comma], body)
                    at = comma + 1
                    yield
                    continue
            place, is_end = yield from self._find_border(at)
            if is_end:
                end = place
                break
            yield from self._take_checked(text[at:place])
            at = place + 1
            yield
        if at > start or text[at:end].strip(_BLANKS):
            yield from self._take_checked(text[at:end])
        tail = text[end:]
        if len(tail) > REST_BYTES_MAX:
            tail = yield from self._known_members(end + 1)
        # One record stands for all of them.
        self.rest = text[self._begin : start] + (b'{"data":0}' if self._count else b"") + tail
        self._text = b""

    def _known_members(self, at: int) -> Steps[bytes]:
        """The end of the body from `]` on, with the known members only. The text there begins after `]`."""
        text = self._text
        comma = _COMMA_HERE.match(text, at)
        if comma is None:
            # Only blanks may be left.
            return b"]" + text[at:].strip(_BLANKS)[:KIB]
        at = comma.end()
        kept: list[bytes] = []
        while True:
            place, is_end = yield from self._find_border(at)
            group = b"{%b}" % text[at:place]
            members = _members_of(group)
            if b"\\u" in group or any(group.count(b'"%b"' % name.encode()) > 1 for name in BODY_NAMES & members.keys()):
                check_repeats(pairs_of(group), BODY_NAMES)
            kept += [b',"%b":%b' % (name.encode(), members[name]) for name in sorted(BODY_NAMES & members.keys())]
            if sum(map(len, kept)) > REST_BYTES_MAX:
                raise PayloadTooLarge(f"a write has at most {REST_BYTES_MAX} bytes of known members beside its records")
            yield
            if is_end:
                return b"]%b%b" % (b"".join(kept), text[place:].rstrip(_BLANKS)[:KIB])
            at = place + 1

    def _find_start(self) -> int:
        """Where the first record begins."""
        text = self._text
        self._begin = begin = min(len(text), MIB) - len(text[:MIB].lstrip(_BLANKS))
        for tried, match in enumerate(_places_of_records(text, begin)):
            if tried == _PLACES_TRIED_MAX:
                break
            try:
                _decode_members(text[begin : match.end()] + _CLOSE)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            return match.end()
        raise MalformedBody(f"the first {REST_BYTES_MAX} bytes have no list of records")

    def _likely_border(self, at: int) -> int | None:
        """The comma of the first likely border after enough text for a piece."""
        begin = at + self._piece_bytes
        match = self._border.search(self._text, begin, begin + self._limits.record_bytes_max + 2 * self._piece_bytes)
        return None if match is None else match.start(1)

    def _find_border(self, at: int) -> Steps[tuple[int, bool]]:
        """The next border after enough text for a piece, or the end of the array, and which of the two it is."""
        text = self._text
        depth = 0
        enough = at + self._piece_bytes
        end = enough + self._value_bytes_max
        for number, match in enumerate(_TOKEN.finditer(text, at, end), 1):
            if number % _TOKENS_PER_STEP == 0:
                yield
            token = match[1]
            if token in _OPENING:
                depth += 1
                if depth > JSON_DEPTH_MAX:
                    raise MalformedBody("nested too deeply")
            elif token in _CLOSING:
                depth -= 1
                if depth < 0:
                    return match.start(1), True
            elif token == _COMMA and depth == 0 and match.end() > enough:
                return match.start(1), False
        if end < len(text):
            raise RecordTooLarge(f"the text of a record or a member has at most {self._value_bytes_max} bytes")
        raise MalformedBody("the list of records does not end")

    def _end_of_rest(self, at: int) -> int:
        """Where the array ends, if not much text is left."""
        rest = _OPEN + self._text[at:]
        array = bytes(decoded(_decode_tail, rest).records)
        # The parser keeps the last of two members of the same name.
        if not rest.startswith(array, len(_OPEN) - 1):
            raise MalformedBody('member "records" is given twice')
        return at + len(array) - 2

    def _maybe_records(self, piece: bytes) -> RecordsBody | None:
        """The records of the piece; None if it is no list of records. As a list: in a body the piece could end the
        array, and begin another member.
        """
        try:
            return RecordsBody(records=_decode_records(b"[%b]" % piece))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _take_checked(self, piece: bytes) -> Steps[None]:
        yield from self._take(piece, RecordsBody(records=decoded(_decode_records, b"[%b]" % piece)))

    def _take(self, piece: bytes, body: RecordsBody) -> Steps[None]:
        """Checks a piece, and keeps its records."""
        records = body.records
        if not records:
            raise MalformedBody("a comma has no record after it")
        self._count += len(records)
        if self._count > self._limits.records_max:
            too_many = BatchTooLarge(f"a write has at most {self._limits.records_max} records, this one has more")
            if self._stops_early:
                raise too_many
            self._refusal = too_many
        text = _OPEN + piece + _CLOSE
        if len(piece) > 4 * self._piece_bytes:
            yield from _check_large_piece(text, records)
            request = records_request(text, body)
        else:
            request = checked_records(text, body)
        yield
        if self._refusal is None:
            self._tags += [record.tag for record in records]
            self._nodes += [record.node for record in records]
            try:
                envelopes, sizes = request.payloads(self._limits)
            except TopicsError as error:
                self._refusal = error
            else:
                self._envelopes += envelopes
                self._sizes += sizes


def _members_of(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        check_text(text)
        return _decode_members(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedBody(error) from error


def _check_large_piece(text: bytes, records: list[RecordBody]) -> Steps[None]:
    """Checks a piece with a large record, step by step: what `checked_records` checks at once."""
    try:
        check_unicode(text)
        yield
        yield from check_numbers_in_steps(text)
        yield
        check_depth(text)
        yield
        if not has_each_name_once(text, records):
            yield from _check_names(text)
    except MalformedBody:
        raise
    except InvalidRequest as error:
        raise MalformedBody(error.message) from None


def _check_names(text: bytes) -> Steps[None]:
    """Refuses a record with a known member given twice. The text is `{"records":[…]}`, and valid."""
    depth = 0
    names: list[tuple[str, None]] = []
    for number, match in enumerate(_TOKEN.finditer(text), 1):
        if number % _TOKENS_PER_STEP == 0:
            yield
        token = match[1]
        if token.startswith(_QUOTE):
            if depth == _DEPTH_OF_MEMBERS and (name := _NAME.match(text, match.start(1))) is not None:
                names.append((_decode_name(name[1]), None))
        elif token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
            if depth == _DEPTH_OF_MEMBERS - 1:
                check_repeats(names, RECORD_NAMES)
                names = []
