"""Bodies of writes as text: correct ones, wrong ones, and everything between.

They are made with a plain `Random`: drawing every bracket from hypothesis costs a hundred times as much, and a body is
short enough to read when it fails. Most bodies have at most one or two mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

BLANKS = [b"", b"", b"", b" ", b"\t", b"\n", b"\r\n  "]
NUMBERS = [
    b"0",
    b"-0",
    b"7",
    b"1.5e3",
    b"-1",
    b"1.0",
    b"1e308",
    b"0e999",
    b"1e-400",
    b"4294967296",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9" * 320,
]
BAD_NUMBERS = [b"1e400", b"-1E+400", b"9" * 320 + b".5", b"01", b"1.", b"+1", b"NaN", b"-Infinity", b"0x1"]
PIECES = [
    b"a",
    b"{",
    b"[",
    b'\\"',
    b"\\\\",
    b"\\u0041",
    b"\\n",
    b"\\ud83d\\ude00",
    "é😀".encode(),
    b',\\"m\\":',
    b"\x7f",
]
BAD_PIECES = [
    b"\\ud800",
    b"\\udc00",
    b"\\ud800\\ud800",
    b"\\udc00\\ud800",
    b"\\x",
    b"\x01",
    b"\n",
    b"\xff",
    b"\xed\xa0\x80",
]
NAMES_OF_OTHERS = ["a", "b", "d", "m", "data", ""]
RECORD_NAMES = ["tag", "node", "meta", "other", "$seq"]
WRITE_NAMES = ["node", "idempotency_key", "create", "config", "disable_backpressure", "other", "Records"]
CONFIG_NAMES = ["type", "ttl_ms", "durable", "durability", "priority", "dead_letter", "auto_create", "other"]

Member = tuple[str, bytes]


class Body(NamedTuple):
    """A body, and the data and meta of its records as they were written. None if a mistake made them unknown."""

    text: bytes
    payloads: list[tuple[bytes | None, bytes | None]]


class BodyMaker:
    def __init__(self, random: Random) -> None:
        self._random = random
        # How this body is written: blanks, escaped names, and mistakes.
        self._blanks = random.choice([[b""], [b""], BLANKS])
        self._escapes = random.random() < 0.2
        self._slips = random.choice([0, 0, 0.02, 0.1])
        self._value_makers: list[Callable[[int], bytes]] = [
            lambda _: self._number(),
            lambda _: self._word(),
            lambda _: self.string(),
            self._array,
            self._object_of_others,
            lambda _: self._deep(),
        ]
        self._makers: dict[str, Callable[[], bytes]] = {
            "tag": self._label,
            "node": self._label,
            "idempotency_key": self._label,
            "dead_letter": self._label,
            "create": self._word,
            "config": self.config,
            "disable_backpressure": self._boolean,
            "durable": self._boolean,
            "auto_create": self._boolean,
            "type": lambda: self._one_of(b'"log"', b'"queue"', b'"LOG"'),
            "durability": lambda: self._one_of(b'"disk"', b'"fsync"', b"null", b'"Disk"'),
            "ttl_ms": self._number,
            "priority": lambda: self._one_of(b"null", b"-5", b"2147483647", b"2147483648", b"1.0"),
        }

    # Values.

    def _one_of(self, *choices: bytes) -> bytes:
        return self._random.choice(choices)

    def _slip(self) -> bool:
        return self._random.random() < self._slips

    def _blank(self) -> bytes:
        return self._random.choice(self._blanks)

    def _number(self) -> bytes:
        return self._random.choice(BAD_NUMBERS if self._slip() else NUMBERS)

    def _word(self) -> bytes:
        return self._one_of(b"true", b"false", b"null")

    def _boolean(self) -> bytes:
        return self._one_of(b"true", b"false")

    def string(self) -> bytes:
        pieces = [self._random.choice(BAD_PIECES if self._slip() else PIECES) for _ in range(self._random.randrange(4))]
        return b'"' + b"".join(pieces) + b'"'

    def _label(self) -> bytes:
        return b"null" if self._random.random() < 0.2 else self.string()

    def _deep(self) -> bytes:
        """A value nested about as deep as the limit, anywhere in a body."""
        if self._random.random() < 0.7:
            return b"[]"
        depth = self._random.randrange(121, 130)
        return self._one_of(b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth)

    def value(self, depth: int = 0) -> bytes:
        makers = self._value_makers if depth < 3 else self._value_makers[:3]
        return self._random.choice(makers)(depth + 1)

    def _array(self, depth: int) -> bytes:
        return self._listed([self.value(depth) for _ in range(self._random.randrange(4))])

    def _listed(self, items: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(self._blank() + item + self._blank() for item in items) + b"]"

    # Objects.

    def _object_of_others(self, depth: int) -> bytes:
        names = [self._random.choice(NAMES_OF_OTHERS) for _ in range(self._random.randrange(4))]
        return self._object([(name, self.value(depth)) for name in names])

    def _object(self, members: Sequence[Member]) -> bytes:
        parts = [
            b"%b%b%b:%b%b%b" % (self._blank(), self._name(name), self._blank(), self._blank(), value, self._blank())
            for name, value in members
        ]
        return b"{" + b",".join(parts) + b"}"

    def _name(self, name: str) -> bytes:
        if name and self._escapes and self._random.random() < 0.3:
            return b'"\\u%04x%b"' % (ord(name[0]), name[1:].encode())
        return b'"%b"' % name.encode()

    def _members(self, names: Sequence[str], first: Sequence[Member] = ()) -> list[Member]:
        """Some of these members, in any order. With a mistake one of them comes twice, or has any value."""
        chosen = self._random.sample(names, self._random.randrange(4))
        members = [*first, *((name, self._makers.get(name, self.value)()) for name in chosen)]
        if members and self._slip():
            members.append((self._random.choice(members)[0], self.value()))
        if members and self._slip():
            place = self._random.randrange(len(members))
            members[place] = (members[place][0], self.value())
        if members and self._slip():
            del members[self._random.randrange(len(members))]
        self._random.shuffle(members)
        return members

    def config(self) -> bytes:
        return b"null" if self._random.random() < 0.1 else self._object(self._members(CONFIG_NAMES))

    def body(self) -> Body:
        records = [self._members(RECORD_NAMES, [("data", self.value())]) for _ in range(self._random.randrange(4))]
        array = self._listed([self._object(members) for members in records])
        members = self._members(WRITE_NAMES, [("records", array)])
        text = self._object(members)
        payloads = [(dict(record).get("data"), dict(record).get("meta")) for record in records]
        if dict(members).get("records") is not array:
            payloads = []
        return Body(self._blank() + text + self._blank(), payloads)

    def broken(self) -> bytes:
        """A body with a piece removed, inserted or replaced."""
        text = self.body().text
        start = self._random.randrange(len(text) + 1)
        piece = self._one_of(b"", b"", b",", b'"', b"}", b"]", b"{", b"[", b":", b"0", b"\\", b"\xff", b"\0", b" ")
        return text[:start] + piece + text[start + self._random.randrange(3) :]
