"""Entries of both flavours: bytes, round trips, and which damage is a torn tail."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.command_strategies import stored_commands, u32
from tests.formats.strategies import flip, u64
from topics.errors import BadFrame, Torn
from topics.formats.state_entry import (
    ScannedEntry,
    StateEntry,
    Transform,
    encode_iggy_entry,
    encode_page_entry,
    scan_iggy,
    scan_page,
)
from topics.formats.stream_command import (
    Command,
    CreateConsumerGroup,
    CreateStream,
    CreateTopic,
    CreateUser,
    DeleteTopic,
    UserStatus,
    decode_page,
    encode_page,
)
from topics.formats.stream_permissions import ALL_PERMISSIONS
from topics.formats.stream_wire import decode_wire, encode_wire
from topics.stream_errors import StreamsError, StreamStatus

TIMESTAMP: Final = 1_700_000_000_000_000

ORDERS: Final = StateEntry(1, TIMESTAMP, 0, CreateStream(0, "orders"))
ORDERS_IGGY: Final = bytes.fromhex(
    "0100000000000000 0000000000000000 00000000 401f0000 0000000000000000 00401e18240a0600 00000000 88abc0084aa2c744"
    "00000000 ca000000 0f000000 00000000 07000000 06 6f7264657273"
)
ORDERS_PAGE: Final = bytes.fromhex(
    "0100000000000000 0000000000000000 00401e18240a0600 00000000 00000000 1b000000"
    "92ccca82a973747265616d5f696400a46e616d65a66f7264657273"
    "d8433a08addc72afab6bdf7b3fb3a589386cad0c5ad2a37a951e43cad6cb2b12"
)

COMMANDS: Final[tuple[Command, ...]] = (
    CreateUser(0, "iggy", "$argon2id$…", UserStatus.ACTIVE, ALL_PERMISSIONS),
    CreateStream(0, "orders"),
    CreateTopic("orders", 0, 2, 1, 0, 0, 0, "events"),
    CreateConsumerGroup(0, "events", 0, "readers"),
    DeleteTopic("orders", 0),
)


def seal(key: int) -> Transform:
    """A simple cipher: its tag depends on the key, and its bytes differ from the plain ones."""

    def encrypt(data: bytes) -> bytes:
        return bytes((key,)) * 28 + bytes(byte ^ key for byte in data)

    return encrypt


def unseal(key: int) -> Transform:
    def decrypt(data: bytes) -> bytes:
        if data[:28] != bytes((key,)) * 28:
            raise StreamsError(StreamStatus.CANNOT_DECRYPT_DATA, "another key")
        return bytes(byte ^ key for byte in data[28:])

    return decrypt


class Layout(NamedTuple):
    encode: Callable[[StateEntry, Transform | None], bytes]
    scan: Callable[[bytes, Transform | None], Iterator[ScannedEntry]]


PAGE: Final = Layout(encode_page_entry, scan_page)
IGGY: Final = Layout(encode_iggy_entry, scan_iggy)

both_layouts = pytest.mark.parametrize("layout", [PAGE, IGGY], ids=["page", "iggy"])
with_and_without_key = pytest.mark.parametrize("key", [None, 7], ids=["plain", "encrypted"])


def small_log(layout: Layout, key: int | None = None) -> tuple[bytes, list[int]]:
    """The bytes; 0 and the ends of the entries."""
    encrypt = None if key is None else seal(key)
    data, ends = b"", [0]
    for index, command in enumerate(COMMANDS):
        data += layout.encode(StateEntry(index, TIMESTAMP + index, index % 2, command), encrypt)
        ends.append(len(data))
    return data, ends


def read(layout: Layout, data: bytes, key: int | None = None) -> tuple[list[ScannedEntry], Exception | None]:
    """Entries up to the first error, and the error."""
    entries = []
    try:
        for scanned in layout.scan(data, None if key is None else unseal(key)):
            entries.append(scanned)  # noqa: PERF402 - what came before the trouble is kept
    except (Torn, BadFrame) as error:
        return entries, error
    return entries, None


def test_the_bytes_are_those_of_the_specification() -> None:
    assert encode_iggy_entry(ORDERS) == ORDERS_IGGY
    assert encode_page_entry(ORDERS) == ORDERS_PAGE


def test_the_state_log_of_a_real_server_comes_back_byte_for_byte(shared_fixtures: Path) -> None:
    data = (shared_fixtures / "iggy-0.8.0" / "state" / "log").read_bytes()
    entries = [scanned.entry for scanned in scan_iggy(data)]
    assert b"".join(encode_iggy_entry(entry) for entry in entries) == data
    assert [(entry.index, entry.code) for entry in entries] == [(0, 33), (1, 202), (2, 302), (3, 302)]
    assert isinstance(entries[0].command, CreateUser)
    assert entries[0].command.permissions == ALL_PERMISSIONS
    assert entries[2].command == CreateTopic("orders", 0, 2, 1, 0, 0, 0, "events")


@both_layouts
@with_and_without_key
def test_entries_come_back_with_their_positions(layout: Layout, key: int | None) -> None:
    data, ends = small_log(layout, key)
    entries, trouble = read(layout, data, key)
    assert trouble is None
    assert [(scanned.start, scanned.end) for scanned in entries] == list(pairwise(ends))
    assert [scanned.entry.command for scanned in entries] == list(COMMANDS)
    assert [scanned.entry.timestamp - TIMESTAMP for scanned in entries] == list(range(len(COMMANDS)))
    assert [scanned.entry.user_id for scanned in entries] == [0, 1, 0, 1, 0]


@both_layouts
@given(command=stored_commands, timestamp=u64, user_id=u32, term=u64, key=st.none() | st.integers(1, 255))
def test_any_command_comes_back(
    layout: Layout, command: Command, timestamp: int, user_id: int, term: int, key: int | None
) -> None:
    entry = StateEntry(0, timestamp, user_id, command, term)
    entries, trouble = read(layout, layout.encode(entry, None if key is None else seal(key)), key)
    assert trouble is None
    (found,) = (scanned.entry for scanned in entries)
    again = decode_page(encode_page(command)) if layout is PAGE else decode_wire(entry.code, encode_wire(command))
    assert replace(found, flags=0) == replace(entry, command=again)


def test_members_of_the_iggy_layout_come_back() -> None:
    entry = StateEntry(0, TIMESTAMP, 3, COMMANDS[1], term=4, flags=5, leader_id=6, version=7, context=b"context")
    assert [scanned.entry for scanned in scan_iggy(encode_iggy_entry(entry))] == [entry]


def test_an_encrypted_iggy_entry_keeps_the_checksum_of_the_plain_one() -> None:
    sealed = encode_iggy_entry(ORDERS, seal(7))
    assert len(sealed) == len(ORDERS_IGGY) + 28
    assert sealed[:60] == ORDERS_IGGY[:60]
    assert int.from_bytes(sealed[60:64], "little") == 15 + 28
    assert b"orders" not in sealed


def test_an_encrypted_page_entry_says_so_and_is_hashed_as_stored() -> None:
    sealed = encode_page_entry(ORDERS, seal(7))
    assert len(sealed) == len(ORDERS_PAGE) + 28
    assert sealed[28:32] == b"\1\0\0\0"
    assert b"orders" not in sealed
    # A plain entry is read as plain, even with a key.
    first = replace(ORDERS, index=0)
    assert [scanned.entry.command for scanned in scan_page(encode_page_entry(first), unseal(7))] == [first.command]


@both_layouts
@with_and_without_key
def test_a_log_cut_anywhere_is_torn_at_its_last_good_entry(layout: Layout, key: int | None) -> None:
    data, ends = small_log(layout, key)
    for size in range(len(data)):
        entries, trouble = read(layout, data[:size], key)
        whole = max(end for end in ends if end <= size)
        assert [scanned.end for scanned in entries] == ends[1 : ends.index(whole) + 1]
        if size == whole:
            assert trouble is None
        else:
            assert isinstance(trouble, Torn)
            assert trouble.offset == whole


@both_layouts
@with_and_without_key
def test_every_flipped_bit_is_found_and_only_the_last_entry_is_called_torn(
    layout: Layout, key: int | None, full: bool
) -> None:
    data, ends = small_log(layout, key)
    last = ends[-2]
    # Steps of 7 change every byte, each time at another bit.
    for bit in range(0, len(data) * 8, 1 if full else 7):
        position = bit // 8
        entries, trouble = read(layout, flip(data, position, 1 << bit % 8), key)
        damaged = max(end for end in ends if end <= position)
        assert isinstance(trouble, Torn if damaged == last else BadFrame), f"bit {bit}"
        assert trouble.offset == damaged
        assert [scanned.end for scanned in entries] == ends[1 : ends.index(damaged) + 1]


@both_layouts
def test_zeros_behind_the_last_entry_are_a_torn_tail(layout: Layout) -> None:
    data, ends = small_log(layout)
    for good in ends:
        for count in (1, 35, 64, 68, 512, 4096):
            entries, trouble = read(layout, data[:good] + bytes(count))
            assert isinstance(trouble, Torn)
            assert trouble.offset == good
            assert len(entries) == ends.index(good)


@both_layouts
@given(st.binary(min_size=1, max_size=300))
def test_garbage_behind_the_last_entry_is_a_torn_tail(layout: Layout, garbage: bytes) -> None:
    data, ends = small_log(layout)
    entries, trouble = read(layout, data + garbage)
    assert isinstance(trouble, Torn)
    assert trouble.offset == ends[-1]
    assert len(entries) == len(COMMANDS)


@both_layouts
def test_an_index_that_does_not_follow_is_damage_even_at_the_end(layout: Layout) -> None:
    for indexes in ([1], [0, 2], [0, 0], [0, 1, 3]):
        entries = [layout.encode(StateEntry(index, TIMESTAMP, 0, COMMANDS[1]), None) for index in indexes]
        found, trouble = read(layout, b"".join(entries))
        assert isinstance(trouble, BadFrame)
        assert trouble.offset == sum(map(len, entries[:-1]))
        assert trouble.message == f"index {indexes[-1]} where {len(indexes) - 1} should follow"
        assert len(found) == len(entries) - 1


def test_a_command_that_nobody_knows_is_damage_even_at_the_end() -> None:
    """Its checksum is right, so the entry was written like that, for example by a newer version."""
    data, _ends = small_log(PAGE)
    command = bytes.fromhex("92cd03e780")
    body = b"".join(
        (
            len(COMMANDS).to_bytes(8, "little"),
            bytes(8 + 8 + 4 + 4),
            len(command).to_bytes(4, "little"),
            command,
        )
    )
    entries, trouble = read(PAGE, data + body + sha256(body).digest())
    assert isinstance(trouble, BadFrame)
    assert trouble.message == "a command that cannot be read: 999 is no command of the state log"
    assert len(entries) == len(COMMANDS)


def test_unknown_flags_are_damage() -> None:
    _entries, trouble = read(PAGE, encode_page_entry(StateEntry(0, TIMESTAMP, 0, COMMANDS[1], flags=2)))
    assert isinstance(trouble, BadFrame)
    assert trouble.message == "unknown flags 0x2"


@both_layouts
@pytest.mark.parametrize(("written_with", "read_with"), [(7, 8), (7, None), (None, 7)])
@pytest.mark.parametrize("count", [1, len(COMMANDS)])
def test_a_wrong_key_never_makes_a_torn_tail(
    layout: Layout, written_with: int | None, read_with: int | None, count: int
) -> None:
    data, ends = small_log(layout, written_with)
    entries, trouble = read(layout, data[: ends[count]], read_with)
    if layout is PAGE and written_with is None:
        # Entries of this flavour have a flag of encryption.
        assert trouble is None
        assert len(entries) == count
    else:
        assert isinstance(trouble, BadFrame)
        assert entries == []


@both_layouts
@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_a_told_trouble(layout: Layout, data: bytes) -> None:
    entries, trouble = read(layout, data)
    assert entries == []
    assert (trouble is None) == (data == b"")
