"""What `topics write` reads: lines, JSON lines, CSV or whole records, in batches with the lines that they come from.

The batches of a file are the same at each run, so that a batch has the same idempotency key.
"""

import csv
import hashlib
import os
import select
import stat
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.limits import MIB

BATCH_BYTES_MAX: Final = MIB
# A line of a pipe waits at most this long for others.
LINGER_S: Final = 0.05
_READ_BYTES: Final = 256 * 1024


class Kind(StrEnum):
    """What the lines are. `auto`: a line that is a JSON object or array stays JSON, any other line becomes a string."""

    AUTO = "auto"
    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    RECORDS = "records"


class Batch(NamedTuple):
    """Records as the JSON text of a write. The lines are numbered from 1; `size_bytes` counts bytes of the source."""

    records: list[bytes]
    first_line: int
    last_line: int
    size_bytes: int

    @property
    def text(self) -> bytes:
        return b"[" + b",".join(self.records) + b"]"

    def key(self, name: str) -> str:
        """The idempotency key: the same for the same lines of the same source, another for other content."""
        digest = hashlib.sha256(b"\0".join([name.encode(errors="surrogateescape"), *self.records])).hexdigest()
        return f"write:{digest[:40]}:{self.first_line}-{self.last_line}"


class Fixed(NamedTuple):
    """Members that every record gets."""

    tag: str | None
    node: str | None


def kind_of(path: str, given: Kind) -> Kind:
    """By the ending of the file's name, unless it is given."""
    if given is not Kind.AUTO:
        return given
    endings = {".jsonl": Kind.JSONL, ".ndjson": Kind.JSONL, ".csv": Kind.CSV}
    return endings.get(os.path.splitext(path)[1].lower(), Kind.AUTO)


def size_of(file: BinaryIO) -> int | None:
    """The bytes of a file; None for a pipe."""
    found = os.fstat(file.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def batches(file: BinaryIO, name: str, kind: Kind, fixed: Fixed, *, records_max: int, skip: int) -> Iterator[Batch]:
    """The records after the first `skip` lines. Raises `InvalidRequest` with the line that is wrong."""
    is_live = size_of(file) is None
    rows = _csv_rows(file, name) if kind is Kind.CSV else _lines(file, is_live=is_live)
    records: list[bytes] = []
    first = last = text_bytes = source_bytes = 0
    for row in rows:
        if row is not None:
            last, data, size = row.line, row.data, row.size_bytes
            if last <= skip:
                continue
            record = _record(data, f"line {last} of {name}", kind, fixed)
            source_bytes += size
            if record is None:
                continue
            if records and text_bytes + len(record) > BATCH_BYTES_MAX:
                yield Batch(records, first, last - 1, source_bytes - size)
                records, text_bytes, source_bytes = [], 0, size
            first = first if records else last
            records.append(record)
            text_bytes += len(record)
        if records and (row is None or len(records) >= records_max):
            yield Batch(records, first, last, source_bytes)
            records, text_bytes, source_bytes = [], 0, 0
    if records:
        yield Batch(records, first, last, source_bytes)


class _Row(NamedTuple):
    """A line, or a row of CSV, which may have several lines."""

    line: int
    data: Any
    size_bytes: int


def _lines(file: BinaryIO, *, is_live: bool) -> Iterator[_Row | None]:
    """None: a pipe is silent, so that what was read should be written."""
    number = 0
    for line in _live_lines(file) if is_live else file:
        if line is None:
            yield None
        else:
            number += 1
            yield _Row(number, line.rstrip(b"\r\n"), len(line))


def _live_lines(file: BinaryIO) -> Iterator[bytes | None]:
    descriptor = file.fileno()
    rest = b""
    is_waiting = False
    while True:
        if is_waiting and not select.select([descriptor], [], [], LINGER_S)[0]:
            is_waiting = False
            yield None
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        is_waiting = is_waiting or bool(lines)
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _csv_rows(file: BinaryIO, name: str) -> Iterator[_Row]:
    size_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal size_bytes
        for number, line in enumerate(file, 1):
            size_bytes += len(line)
            yield _utf8(line, f"line {number} of {name}").removeprefix("\ufeff")

    reader = csv.reader(texts(), strict=True)
    try:
        heading = next(reader, None)
        taken = size_bytes
        for cells in reader:
            place = f"line {reader.line_num} of {name}"
            if heading is None or (cells and len(cells) != len(heading)):
                raise InvalidRequest(f"{place} has {len(cells)} cells, the heading {len(heading or [])}")
            yield _Row(reader.line_num, dict(zip(heading, cells, strict=True)) if cells else None, size_bytes - taken)
            taken = size_bytes
    except csv.Error as error:
        raise InvalidRequest(f"line {reader.line_num} of {name} is not CSV: {error}") from error


def _record(data: Any, place: str, kind: Kind, fixed: Fixed) -> bytes | None:
    """The JSON text of a record; None for an empty line."""
    if kind is Kind.CSV:
        return None if data is None else _with_members(msgspec.json.encode(data), fixed)
    if kind is Kind.LINES:
        return _with_members(msgspec.json.encode(_utf8(data, place)), fixed)
    if not data.strip():
        return None
    if kind is Kind.AUTO:
        is_json = data.lstrip()[:1] in (b"{", b"[") and _is_json(data)
        return _with_members(data if is_json else msgspec.json.encode(_utf8(data, place)), fixed)
    if not _is_json(data):
        raise InvalidRequest(f"{place} is not JSON; --from lines takes each line as text")
    if kind is Kind.JSONL:
        return _with_members(data, fixed)
    return _whole_record(data, place, fixed)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _with_members(data: bytes, fixed: Fixed) -> bytes:
    members = {name: value for name, value in fixed._asdict().items() if value is not None}
    return msgspec.json.encode({"data": msgspec.Raw(data), **members})


def _whole_record(data: bytes, place: str, fixed: Fixed) -> bytes | None:
    """A line as `topics read -o jsonl` prints it. Its seq and time are not kept; a tombstone is left out."""
    try:
        given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        given = {}
    if "tombstone" in given:
        return None
    if "data" not in given:
        raise InvalidRequest(f'{place} is no record: a record is an object with "data"')
    members: dict[str, Any] = {name: given[name] for name in ("tag", "node", "meta") if name in given}
    members |= {name: value for name, value in fixed._asdict().items() if value is not None}
    return msgspec.json.encode({"data": given["data"], **members})


def _utf8(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{place} is not text in UTF-8") from None
