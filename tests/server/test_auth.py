"""Keys: the grammar of `TOPICS_API_KEYS`, what a key grants, and that no secret is shown."""

import logging
import sys
import traceback
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import SettingsError
from topics.server.auth import ADMIN, ALL, DELETE, FULL_ACCESS, READ, WRITE, Key, KeyRing, bearer_token

PLANTED = "pLaNtEd-s3cret"


def key_of(entry: str, token: bytes = b"s") -> Key:
    key = KeyRing.parse(entry).find(token)
    assert key is not None
    return key


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("s", ALL, ()),
        ("s:", ALL, ()),
        ("s::", ALL, ()),
        ("s:read", READ, ()),
        ("s:r", READ, ()),
        ("s:write", WRITE, ()),
        ("s:w", WRITE, ()),
        ("s:delete", DELETE, ()),
        ("s:del", DELETE, ()),
        ("s:d", DELETE, ()),
        ("s:admin", ADMIN, ()),
        ("s:a", ADMIN, ()),
        ("s:rw", READ | WRITE, ()),
        ("s:RW+Admin", READ | WRITE | ADMIN, ()),
        ("s:r+w+d+a", ALL, ()),
        ("s:read+read", READ, ()),
        ("s:read++write+", READ | WRITE, ()),
        ("s:read:acme.", READ, ("acme.",)),
        ("s:write:acme.|shared.", WRITE, ("acme.", "shared.")),
        ("s::team7:", ALL, ("team7:",)),
        ("s::a:b:c|d", ALL, ("a:b:c", "d")),
        ("s::acme.|", ALL, ("acme.",)),
        (" s : read + w : acme. | b ", READ | WRITE, ("acme.", "b")),
        ("s: : ", ALL, ()),
        ("\ts\n", ALL, ()),
    ],
)
def test_an_entry_grants_what_the_grammar_says(entry: str, scopes: int, prefixes: tuple[str, ...]) -> None:
    key = key_of(entry)
    assert (key.scopes, key.prefixes) == (scopes, prefixes)


def test_the_example_of_the_contract_gives_four_keys() -> None:
    ring = KeyRing.parse("ops,dash:read:acme.,ingest:write:acme.|shared.,team7::team7:")
    found = {token: ring.find(token) for token in (b"ops", b"dash", b"ingest", b"team7")}
    assert {token: key and (key.scopes, key.prefixes) for token, key in found.items()} == {
        b"ops": (ALL, ()),
        b"dash": (READ, ("acme.",)),
        b"ingest": (WRITE, ("acme.", "shared.")),
        b"team7": (ALL, ("team7:",)),
    }


@pytest.mark.parametrize("text", ["", " ", ",", " , ,,\t"])
def test_no_entry_at_all_leaves_auth_off(text: str) -> None:
    ring = KeyRing.parse(text)
    assert not ring.enabled
    assert ring.find(b"") is None


@pytest.mark.parametrize("text", [":", ":read", "  :read:acme.", "::x,,"])
def test_an_empty_secret_matches_nothing_but_switches_auth_on(text: str) -> None:
    ring = KeyRing.parse(text)
    assert ring.enabled
    assert ring.find(b"") is None
    assert ring.find(b" ") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ok,x:reed",
            'entry 2 has an unknown scope: join read, write, delete, admin or rw by "+"; secrets have no ":"',
        ),
        (
            ",, x:read+root",
            'entry 3 has an unknown scope: join read, write, delete, admin or rw by "+"; secrets have no ":"',
        ),
        ("x:+", "entry 1 has separators for scopes: leave the field empty for all of them"),
        ("x: + + :acme.", "entry 1 has separators for scopes: leave the field empty for all of them"),
        (":+", "entry 1 has separators for scopes: leave the field empty for all of them"),
        ("x::|", "entry 1 has separators for prefixes: leave the field empty for any name"),
        (
            "x:read,y,x:write",
            "entry 3 repeats the secret of an earlier entry with other rights: keep one of them",
        ),
        ("x:r:a.,x:r:b.", "entry 2 repeats the secret of an earlier entry with other rights: keep one of them"),
    ],
)
def test_a_list_that_cannot_be_meant_refuses_the_start(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        KeyRing.parse(text)
    assert caught.value.message == f"TOPICS_API_KEYS: {message}"


def test_the_same_entry_twice_is_one_key() -> None:
    assert key_of("s:read,s:r").scopes == READ


@pytest.mark.parametrize("token", [b"", b"S", b"s ", b" s", b"ss", b"\xff", b"read", b"s:read"])
def test_a_token_that_is_no_secret_finds_nothing(token: bytes) -> None:
    assert KeyRing.parse("s:read").find(token) is None


@given(secret=st.binary(min_size=1, max_size=40))
def test_any_secret_is_found_by_its_own_bytes(secret: bytes) -> None:
    """As with an environment variable, which Python gives as text."""
    text = secret.decode("utf-8", "surrogateescape")
    if b"," in secret or b":" in secret or not secret.strip():
        return
    ring = KeyRing.parse(text)
    assert ring.find(secret.strip()) is not None
    assert ring.find(secret.strip() + b"x") is None


@given(text=st.text(alphabet="sr+w:|, dé\udcff", max_size=30))
def test_any_text_is_a_ring_or_a_refusal(text: str) -> None:
    try:
        ring = KeyRing.parse(text)
    except SettingsError:
        return
    assert ring.enabled == bool(text.replace(",", "").strip(" "))


# What a key grants.


def test_a_mask_needs_all_of_its_scopes() -> None:
    key = key_of("s:read+delete")
    assert key.allows(READ)
    assert key.allows(READ | DELETE)
    assert key.allows(0)
    assert not key.allows(READ | WRITE)
    assert not key.allows(ADMIN)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("acme.orders", True), ("acme.", True), ("acme", False), ("ACME.orders", False), ("", False), ("team7:é", True)],
)
def test_a_key_with_prefixes_may_name_what_starts_with_one(name: str, allowed: bool) -> None:
    assert key_of("s::acme.|team7:").may_name(name) is allowed


def test_a_key_without_prefixes_may_name_anything() -> None:
    assert key_of("s:read").may_name("")
    assert key_of("s:read").may_name("anything at all")


@given(prefix=st.text(alphabet="aé€𝄞.", min_size=1, max_size=4), name=st.text(alphabet="aé€𝄞.", max_size=6))
def test_prefixes_match_bytewise(prefix: str, name: str) -> None:
    assert key_of(f"s::{prefix}").may_name(name) == name.encode().startswith(prefix.encode())


def test_a_server_without_keys_lets_its_caller_do_everything() -> None:
    assert FULL_ACCESS.allows(ALL)
    assert FULL_ACCESS.may_name("anything")


def test_counters_belong_to_the_key_and_not_to_the_request() -> None:
    ring = KeyRing.parse("s")
    first, second = ring.find(b"s"), ring.find(b"s")
    assert first is not None
    assert first is second
    first.in_flight += 1
    assert second.in_flight == 1
    assert second.streams == 0


# The header.


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"Bearer   abc \t", b"abc"),
        (b"Bearer ", b""),
        (b"Bearer a b", b"a b"),
        (b"Bearer", None),
        (b"bearer abc", None),
        (b"BEARER abc", None),
        (b"Bearer\tabc", None),
        (b" Bearer abc", None),
        (b"Basic YTpi", None),
        (b"", None),
        (None, None),
    ],
)
def test_only_the_word_bearer_and_a_space_introduce_a_token(header: bytes | None, token: bytes | None) -> None:
    assert bearer_token(header) == token


# A wrong token is handled exactly like a right one.


def calls_to_find(ring: KeyRing, token: bytes) -> list[tuple[str, str]]:
    """Every call made to find a token, of Python and built-in functions, in order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            calls.append((event, function.__name__))
        elif event == "call":
            calls.append((event, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        ring.find(token)
    finally:
        sys.setprofile(before)
    return [call for call in calls if call[1] != "setprofile"]


def test_every_token_costs_the_same_hashes_and_comparisons() -> None:
    ring = KeyRing.parse(",".join([PLANTED, *(f"other-{number}" for number in range(100))]))
    assert ring.find(PLANTED.encode()) is not None
    right = calls_to_find(ring, PLANTED.encode())
    names = [name for _, name in right]
    assert names.count("copy") == names.count("update") == names.count("digest") == 2
    assert names.count("compare_digest") == 1
    for wrong in (b"", PLANTED[:-1].encode(), PLANTED.encode() + b"x", b"x" * len(PLANTED), b"other-100"):
        assert ring.find(wrong) is None
        assert calls_to_find(ring, wrong) == right


# No secret is shown.


def test_a_secret_is_in_no_representation_and_no_attribute() -> None:
    ring = KeyRing.parse(f"{PLANTED}:rw:acme.")
    key = ring.find(PLANTED.encode())
    assert key is not None
    assert repr(ring) == "<KeyRing of 1>"
    assert repr(key) == f"<Key {key.label} read+write acme.>"
    for thing in (ring, key):
        for name in thing.__slots__:
            assert PLANTED not in repr(getattr(thing, name))


def test_a_label_is_eight_hex_digits_that_say_nothing_about_the_secret() -> None:
    """Two processes give one secret two labels, so a log cannot be used to test guesses."""
    labels = {key_of("s").label for _ in range(8)}
    assert len(labels) > 1
    assert all(len(label) == 8 and int(label, 16) >= 0 for label in labels)


@pytest.mark.parametrize(
    "text",
    [f"{PLANTED}:reed", f"x:{PLANTED}", f"x:read+{PLANTED}", f"{PLANTED}:+", f"{PLANTED}::|", f"{PLANTED},{PLANTED}:r"],
)
def test_a_refusal_shows_no_part_of_an_entry(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also no scopes: a secret with a colon is read as a secret and its scopes."""
    with caplog.at_level(logging.DEBUG), pytest.raises(SettingsError) as caught:
        KeyRing.parse(text)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
    assert PLANTED not in shown
    assert PLANTED.lower() not in shown


# New keys for a running server.


def test_a_key_with_the_same_rights_stays_the_same_object() -> None:
    ring = KeyRing.parse("kept:rw:a.,changed:read,gone")
    renewed = ring.renewed("new, kept : write+read : a. ,changed:rw")
    assert renewed.find(b"kept") is ring.find(b"kept")
    assert renewed.find(b"changed") not in (None, ring.find(b"changed"))
    assert renewed.find(b"gone") is None
    assert renewed.find(b"new") is not None
    assert {key.label for key in ring.all_keys() - renewed.all_keys()} == {
        key.label for key in (ring.find(b"changed"), ring.find(b"gone")) if key is not None
    }


def test_without_keys_there_is_the_key_of_all_callers() -> None:
    ring = KeyRing.parse("")
    assert ring.all_keys() == {FULL_ACCESS}
    renewed = ring.renewed("s")
    assert renewed.all_keys() == {renewed.find(b"s")}
    assert KeyRing.parse(":read").all_keys() == set()


def test_new_keys_that_are_wrong_leave_the_old_ones_as_they_are() -> None:
    ring = KeyRing.parse("s")
    with pytest.raises(SettingsError, match="entry 1 has an unknown scope"):
        ring.renewed(f"{PLANTED}:nothing")
    assert ring.find(b"s") is not None
    assert ring.find(PLANTED.encode()) is None
