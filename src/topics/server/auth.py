"""API keys: the key of a caller, its scopes, and the names that it may use.

Rules of this file:

1. A secret is never kept, logged or shown. The server keeps its HMAC-SHA256 under a random secret of the process, so
   a label in a log cannot be used to test guesses. Messages name an entry by its place in the list.
2. Every token, known or not, costs the same hashes and the same comparison, so timing tells nothing. A token is looked
   up by its keyed hash, which no caller can predict, and then compared in constant time; an unknown token is compared
   with a digest that no token has. This takes 2 µs for any number of keys; a scan over 100 digests takes 15 µs.
3. A doubtful entry grants less than it says, or stops the start. It never grants more than was meant.
"""

import hashlib
import hmac
import os
from typing import Final

from topics.errors import SettingsError

# Scopes: bits of a mask.
READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ADMIN: Final = 8
ALL: Final = READ | WRITE | DELETE | ADMIN

_SCOPE_BY_TOKEN: Final[dict[str, int]] = {
    "read": READ,
    "r": READ,
    "write": WRITE,
    "w": WRITE,
    "delete": DELETE,
    "del": DELETE,
    "d": DELETE,
    "admin": ADMIN,
    "a": ADMIN,
    "rw": READ | WRITE,
}
_SCOPE_NAMES: Final[dict[int, str]] = {READ: "read", WRITE: "write", DELETE: "delete", ADMIN: "admin"}

# The characters that `bytes.strip` removes. A secret is trimmed like the token in the header, which is bytes.
_BLANKS: Final = " \t\n\r\v\f"
_BEARER: Final = b"Bearer "
_SHA256_BLOCK_BYTES: Final = 64


def scope_names(mask: int) -> list[str]:
    return [name for bit, name in _SCOPE_NAMES.items() if mask & bit]


class Key:
    """What one key grants, with the numbers of its open requests and streams. Loop thread only."""

    __slots__ = ("in_flight", "label", "prefixes", "scopes", "streams")

    def __init__(self, scopes: int, prefixes: tuple[str, ...], label: str) -> None:
        self.scopes = scopes
        # Empty = any name.
        self.prefixes = prefixes
        # Tells keys apart in logs. It is a part of the keyed digest: it says nothing about the secret, and changes with
        # every start.
        self.label = label
        self.in_flight = 0
        self.streams = 0

    def allows(self, mask: int) -> bool:
        """Whether the key has all scopes of the mask."""
        return self.scopes & mask == mask

    def may_name(self, name: str) -> bool:
        """Whether the name starts with one of the prefixes. In UTF-8 that is the same for text and for bytes."""
        prefixes = self.prefixes
        return not prefixes or name.startswith(prefixes)

    def __repr__(self) -> str:
        scopes = "+".join(scope_names(self.scopes))
        return f"<Key {self.label} {scopes} {'|'.join(self.prefixes) or 'any name'}>"


# The key of every caller of a server without keys. The limits per key do not apply to it.
FULL_ACCESS: Final = Key(ALL, (), "no-auth")


class KeyRing:
    """The keys of a server. `parse` and `renewed` make it, and it does not change after that."""

    __slots__ = ("_decoy", "_found_by_digest", "_inner", "_outer", "enabled")

    def __init__(self, process_secret: bytes) -> None:
        assert len(process_secret) <= _SHA256_BLOCK_BYTES
        # The two halves of HMAC, hashed up to the token: 1.6 µs for each token, where `hmac.digest` takes 3.6 µs.
        block = process_secret.ljust(_SHA256_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in block]))
        self._outer = hashlib.sha256(bytes([byte ^ 0x5C for byte in block]))
        # Each digest with itself and its key: the lookup finds a candidate, the comparison decides.
        self._found_by_digest: dict[bytes, tuple[bytes, Key | None]] = {}
        self._decoy: tuple[bytes, Key | None] = (os.urandom(hashlib.sha256().digest_size), None)
        # Whether callers must send a key. One entry is enough, even an entry that no token matches.
        self.enabled = False

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """The keys of `TOPICS_API_KEYS`. Raises `SettingsError`, which names an entry only by its place.

        An entry may appear twice. It is refused if the two grant different things, because it is unclear which one is
        meant.
        """
        ring = cls(os.urandom(_SHA256_BLOCK_BYTES))
        ring._add_all(text, {})
        return ring

    def renewed(self, text: str) -> "KeyRing":
        """The keys of another text. A key that is in both, with the same rights, stays the same object, so its open
        requests and streams still count for it. Raises `SettingsError` as `parse` does.
        """
        ring = KeyRing(b"")
        ring._inner, ring._outer = self._inner, self._outer
        ring._add_all(text, self._found_by_digest)
        return ring

    def all_keys(self) -> set[Key]:
        """Every key that a caller may have. A server without keys has one: `FULL_ACCESS`."""
        found = {key for _, key in self._found_by_digest.values() if key is not None}
        return found if self.enabled else {FULL_ACCESS}

    def _add_all(self, text: str, earlier: dict[bytes, tuple[bytes, Key | None]]) -> None:
        for place, entry in enumerate(text.split(","), 1):
            if entry.strip(_BLANKS):
                self._add(entry, place)
        for digest, (_, key) in self._found_by_digest.items():
            same = earlier.get(digest, self._decoy)[1]
            if key is not None and same is not None and (same.scopes, same.prefixes) == (key.scopes, key.prefixes):
                self._found_by_digest[digest] = (digest, same)

    def _add(self, entry: str, place: int) -> None:
        secret_text, _, rights = entry.partition(":")
        scopes_text, _, prefixes_text = rights.partition(":")
        scopes = _parse_scopes(scopes_text, place)
        prefixes = _parse_prefixes(prefixes_text, place)
        self.enabled = True
        # Environment variables are bytes: this gives the same bytes back.
        secret = secret_text.strip(_BLANKS).encode("utf-8", "surrogateescape")
        if not secret:
            return
        digest = self._digest(secret)
        known = self._found_by_digest.get(digest, self._decoy)[1]
        if known is not None and (known.scopes, known.prefixes) != (scopes, prefixes):
            raise _refusal(place, "repeats the secret of an earlier entry with other rights: keep one of them")
        self._found_by_digest[digest] = (digest, Key(scopes, prefixes, digest.hex()[:8]))

    def find(self, token: bytes) -> Key | None:
        """The key with this secret. It takes the same time whether the key exists or not."""
        digest = self._digest(token)
        expected, key = self._found_by_digest.get(digest, self._decoy)
        if hmac.compare_digest(expected, digest):
            return key
        return None

    def _digest(self, token: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(token)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self._found_by_digest)}>"


def _parse_scopes(text: str, place: int) -> int:
    """The mask of the scopes. Messages do not repeat the text: in `my:secret` the second half is parsed as scopes."""
    if not text.strip(_BLANKS):
        return ALL
    scopes = 0
    for token in text.split("+"):
        token = token.strip(_BLANKS).lower()
        if token:
            bits = _SCOPE_BY_TOKEN.get(token)
            if bits is None:
                raise _refusal(
                    place, 'has an unknown scope: join read, write, delete, admin or rw by "+"; secrets have no ":"'
                )
            scopes |= bits
    if not scopes:
        raise _refusal(place, "has separators for scopes: leave the field empty for all of them")
    return scopes


def _parse_prefixes(text: str, place: int) -> tuple[str, ...]:
    """The prefixes. An empty prefix would match every name, so it is skipped beside others, and refused alone."""
    if not text.strip(_BLANKS):
        return ()
    prefixes = tuple(prefix for part in text.split("|") if (prefix := part.strip(_BLANKS)))
    if not prefixes:
        raise _refusal(place, "has separators for prefixes: leave the field empty for any name")
    return prefixes


def _refusal(place: int, reason: str) -> SettingsError:
    return SettingsError(f"TOPICS_API_KEYS: entry {place} {reason}")


def bearer_token(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization` header; None if it is not a bearer header."""
    if authorization is None or not authorization.startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()
