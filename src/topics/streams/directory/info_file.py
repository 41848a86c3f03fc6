"""The version file of a directory: `info.json` (`page`) or `state/info` (`iggy`). Informational; nothing depends on it.

* `info.json`: `{"version": {"version": …, "hash": …}, "migrations": [], "flavour": "page"}`. The version is that of
  this package; unknown members stay as they are.
* `state/info`: the same in MessagePack with arrays for structs, `[[version, hash], migrations]`. The version is the one
  of the Apache Iggy server with this layout, so that a directory of that server stays unchanged.

The hash is SipHash-1-3 with a zero key over the previous hash and the byte 0xFF, in decimal; the first hash follows an
empty text. The file is replaced as a whole, and only if its version differs. A file that cannot be read is replaced as
well, with a warning: an Apache Iggy server overwrites its file without cutting it, so old bytes may remain at its end.
"""

import logging
from typing import Any, Final

import msgspec

from topics.formats.control import MALFORMED
from topics.formats.stream_layout import Flavour
from topics.storage.fs import Fs, read_file, write_atomic
from topics.version import VERSION

logger = logging.getLogger(__name__)

IGGY_VERSION_NAME: Final = "0.8.0"


class _InfoMembers(msgspec.Struct):
    """The members that `info.json` must have."""

    version: dict[str, Any]
    migrations: list[Any] = []


def update_info(fs: Fs, root: str, flavour: Flavour) -> bool:
    """Makes the file name the right version. Returns whether it had to be written."""
    path = flavour.info_path(root)
    members = _read(fs, path, flavour) if fs.exists(path) else _fresh()
    version = members["version"]
    ours = VERSION if flavour is Flavour.PAGE else IGGY_VERSION_NAME
    if version.get("version") == ours:
        return False
    version |= {"version": ours, "hash": next_hash(str(version.get("hash", "")))}
    if flavour is Flavour.PAGE:
        members["flavour"] = flavour.value
        data = msgspec.json.format(msgspec.json.encode(members), indent=2) + b"\n"
    else:
        data = msgspec.msgpack.encode([[version["version"], version["hash"]], members["migrations"]])
    write_atomic(fs, path, data)
    return True


def _fresh() -> dict[str, Any]:
    return {"version": {}, "migrations": []}


def _read(fs: Fs, path: str, flavour: Flavour) -> dict[str, Any]:
    data = read_file(fs, path)
    try:
        if flavour is Flavour.PAGE:
            members = msgspec.json.decode(data, type=dict[str, Any])
            msgspec.convert(members, _InfoMembers)
        else:
            (version, its_hash), migrations = msgspec.msgpack.decode(data, type=tuple[tuple[str, str], list[Any]])
            members = {"version": {"version": version, "hash": its_hash}, "migrations": migrations}
    except MALFORMED as error:
        logger.warning("%s: replaced, because it cannot be read: %s", path, error)
        return _fresh()
    return members


def next_hash(previous: str) -> str:
    return str(_siphash13(previous.encode() + b"\xff"))


_U64_MASK: Final = 2**64 - 1


def _siphash13(data: bytes) -> int:
    """With a key of zeros: one round for each 8 bytes, three at the end."""
    state = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    padded = data + bytes(7 - len(data) % 8) + bytes((len(data) & 0xFF,))
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state[3] ^= word
        _sip_round(state)
        state[0] ^= word
    state[2] ^= 0xFF
    for _ in range(3):
        _sip_round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_round(state: list[int]) -> None:
    a, b, c, d = state
    a = (a + b) & _U64_MASK
    b = _rotate(b, 13) ^ a
    a = _rotate(a, 32)
    c = (c + d) & _U64_MASK
    d = _rotate(d, 16) ^ c
    a = (a + d) & _U64_MASK
    d = _rotate(d, 21) ^ a
    c = (c + b) & _U64_MASK
    b = _rotate(b, 17) ^ c
    c = _rotate(c, 32)
    state[:] = a, b, c, d


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _U64_MASK
