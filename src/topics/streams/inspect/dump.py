"""`topics dump` of files of a stream directory: one plain value for each message, index entry or state entry.

Bad bytes are values, too, and good messages after them are looked for. Messages are decrypted and expanded if the
settings have the key. Password hashes and token hashes are left out.

What a file is, its name tells: a segment file has 20 digits, a state log its place in the directory.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from topics.errors import FormatError, InvalidRequest
from topics.formats.message import HEADER_BYTES, read_headers, starts_of
from topics.formats.message_cipher import Cipher
from topics.formats.message_index import ENTRY_BYTES, decode_entries
from topics.formats.state_entry import ScannedEntry, scan_iggy, scan_page
from topics.formats.stream_command import (
    ChangePassword,
    Command,
    CreatePersonalAccessToken,
    CreateUser,
    command_code,
)
from topics.formats.stream_layout import INDEX, LOG, SEGMENT_FILE, Flavour, state_flavour
from topics.protocol.stream_message import message_members
from topics.storage.fs import File, Fs, read_file
from topics.stream_errors import StreamsError
from topics.streams.partitions.log_walk import find_good, read_piece, walk_piece
from topics.streams.partitions.message_view import MessageChunk, MessageView
from topics.streams.partitions.outgoing import to_wire
from topics.streams.partitions.segment_files import read_codec

Row = dict[str, Any]

_SECRETS: Final = {CreateUser: "password", ChangePassword: "password", CreatePersonalAccessToken: "hash"}


def dump_streams(fs: Fs, path: str, *, cipher: Cipher | None = None, with_data: bool = True) -> Iterator[Row]:
    """The file must be one for which `is_streams_file` is true."""
    name = path.rpartition("/")[2]
    flavour = state_flavour(path)
    if flavour is not None:
        yield from _dump_state(read_file(fs, path), flavour, cipher)
    elif match := SEGMENT_FILE.fullmatch(name):
        if match[2] == LOG:
            yield from _LogDump(fs, path, int(match[1]), cipher, with_data=with_data).rows()
        elif match[2] == INDEX:
            yield from _dump_index(read_file(fs, path), int(match[1]))
        else:
            yield {"codec": read_file(fs, path).decode("utf-8", "backslashreplace")}
    elif name.isdigit():
        yield _offset_row(read_file(fs, path))
    else:
        yield _info_row(read_file(fs, path), is_json=name.endswith(".json"))


# The state log.


def _dump_state(data: bytes, flavour: Flavour, cipher: Cipher | None) -> Iterator[Row]:
    scan = scan_page if flavour is Flavour.PAGE else scan_iggy
    try:
        for scanned in scan(data, None if cipher is None else cipher.decrypt):
            yield _state_row(scanned)
    except FormatError as error:
        yield {"position": error.offset, "checksum_ok": False, "error": error.message}
    except StreamsError as error:
        yield {"checksum_ok": False, "error": error.message}


def _state_row(scanned: ScannedEntry) -> Row:
    entry = scanned.entry
    return {
        "position": scanned.start,
        "length": scanned.end - scanned.start,
        "index": entry.index,
        "timestamp": entry.timestamp,
        "user_id": entry.user_id,
        "code": command_code(entry.command),
        "command": _command_name(entry.command),
        "body": _without_secret(entry.command),
        "checksum_ok": True,
    }


def _command_name(command: Command) -> str:
    name = type(command).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _without_secret(command: Command) -> Row:
    members = {name: getattr(command, name) for name in command.__struct_fields__}
    secret = _SECRETS.get(type(command))
    if secret is not None:
        del members[secret]
    body: Row = msgspec.to_builtins(members, str_keys=True)
    return body


# Messages.


class _LogDump:
    def __init__(self, fs: Fs, path: str, start_offset: int, cipher: Cipher | None, *, with_data: bool) -> None:
        self._fs = fs
        self._path = path
        self._offset = start_offset
        self._cipher = cipher
        self._with_data = with_data
        directory = path.rpartition("/")[0]
        self._codec = read_codec(fs, directory, start_offset)
        self._flavour = _flavour_above(fs, directory)

    def rows(self) -> Iterator[Row]:
        log = self._fs.open(self._path, "read")
        try:
            yield from self._rows(log, log.size())
        finally:
            log.close()

    def _rows(self, log: File, size: int) -> Iterator[Row]:
        position = 0
        while position < size:
            piece = read_piece(log, position, size)
            ends = walk_piece(piece, 0, self._offset).ends
            if ends:
                yield from self._messages(piece, ends, position)
                position += ends[-1]
                self._offset += len(ends)
                continue
            after = find_good(log, position, self._offset, size)
            yield {
                "position": position,
                "length": (after[0] if after else size) - position,
                "checksum_ok": False,
                "error": f"no good message with offset {self._offset} is here",
                "next_message_at": after[0] if after else None,
            }
            if after is None:
                return
            position, self._offset = after

    def _messages(self, piece: bytes, ends: list[int], position: int) -> Iterator[Row]:
        last = np.array(ends, dtype=np.int64)
        for start, end in zip(starts_of(last).tolist(), ends, strict=True):
            yield {"position": position + start, "length": end - start, **self._message(piece[start:end])}

    def _message(self, stored: bytes) -> Row:
        """The message as a client gets it; its header alone if its body cannot be read."""
        starts, ends = np.zeros(1, dtype=np.int64), np.array([len(stored)], dtype=np.int64)
        chunk = MessageChunk(memoryview(stored), starts, ends)
        error = None
        # Without user headers both orders are the same bytes.
        flavour = self._flavour if read_headers(stored, starts)["user_headers_length"][0] else Flavour.PAGE
        if flavour is None:
            error = "no state log was found above the file: the order of headers and payload is unknown"
        else:
            order = flavour.body_order
            try:
                chunk = to_wire(chunk.buffer, starts, ends, order=order, codec=self._codec, cipher=self._cipher)
            except StreamsError as failed:
                error = failed.message
        return self._members(next(iter(chunk)), len(stored), error)

    def _members(self, message: MessageView, stored_bytes: int, error: str | None) -> Row:
        headers = {}
        if error is None:
            try:
                headers = message.user_headers
            except StreamsError as failed:
                error = failed.message
        members = message_members(
            offset=message.offset,
            message_id=message.id,
            timestamp=message.timestamp,
            origin_timestamp=message.origin_timestamp,
            headers=headers,
            payload=bytes(message.payload) if self._with_data and error is None else None,
            payload_bytes=len(message.payload) if error is None else stored_bytes - HEADER_BYTES,
        )
        return {**members, **({} if error is None else {"error": error}), "checksum_ok": True}


def _flavour_above(fs: Fs, directory: str) -> Flavour | None:
    """The flavour of the directory that the partition is in; None if the file was taken out of its directory."""
    while directory:
        for flavour in Flavour:
            if fs.exists(flavour.state_log_path(directory)):
                return flavour
        directory = directory.rpartition("/")[0]
    return None


# Small files.


def _dump_index(data: bytes, start_offset: int) -> Iterator[Row]:
    position = 0
    for entry in decode_entries(data):
        end = int(entry["position"])
        yield {
            "offset": start_offset + int(entry["offset"]),
            "position": position,
            "length": end - position,
            "timestamp": int(entry["timestamp"]),
        }
        position = end
    if len(data) % ENTRY_BYTES:
        yield {"error": f"{len(data) % ENTRY_BYTES} bytes after the last whole entry"}


def _offset_row(data: bytes) -> Row:
    if len(data) < 8:
        return {"error": f"{len(data)} bytes: a stored offset has 8"}
    return {"stored_offset": int.from_bytes(data[:8], "little")}


def _info_row(data: bytes, *, is_json: bool) -> Row:
    decode = msgspec.json.decode if is_json else msgspec.msgpack.decode
    try:
        found = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the file cannot be read: {error}") from error
    return found if isinstance(found, dict) else {"info": found}
