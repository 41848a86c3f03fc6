"""Data of control frames: the documented shape comes back, everything else is refused."""

import tracemalloc
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.strategies import U64_MAX, flip, flips, json_values, texts, u64
from topics.errors import BadFrame
from topics.formats import control
from topics.formats.control import (
    CheckpointMark,
    ConfigUpdate,
    DeadLetter,
    Delete,
    Evict,
    GroupUpdate,
    Head,
    Lease,
    Note,
    TopicCreate,
    TopicMark,
)

KINDS: Final[tuple[type[msgspec.Struct], ...]] = (
    TopicCreate,
    ConfigUpdate,
    Delete,
    Evict,
    Lease,
    Head,
    Note,
    CheckpointMark,
)


def in_range(value: object) -> bool:
    """MessagePack has no integers beyond 64 bits."""
    if isinstance(value, int):
        return -(2**63) <= value <= U64_MAX
    if isinstance(value, list):
        return all(map(in_range, value))
    if isinstance(value, dict):
        return all(map(in_range, value.values()))
    return True


configs: Final = st.dictionaries(texts, json_values.filter(in_range), max_size=3)
bodies: Final[st.SearchStrategy[msgspec.Struct]] = st.one_of(
    st.builds(TopicCreate, texts, u64, configs),
    st.builds(ConfigUpdate, configs, u64, u64, u64),
    st.builds(
        Delete, u64, st.none() | u64, st.none() | texts, st.none() | texts, st.none() | st.lists(u64, max_size=3)
    ),
    st.builds(Evict, u64),
    st.builds(Head, u64, u64),
    st.builds(
        Lease,
        st.sampled_from(["claimed", "extended", "released", "reserved"]),
        st.lists(u64, max_size=3),
        st.lists(u64, max_size=3),
        st.lists(u64, max_size=3),
        texts,
        u64,
        u64,
    ),
    st.builds(Note, st.none() | texts, st.none() | st.builds(DeadLetter, u64, u64, u64)),
    st.builds(
        Note,
        group=st.builds(
            GroupUpdate, texts, st.sampled_from(["created", "moved", "committed", "rewound", "deleted"]), u64
        ),
    ),
    st.builds(CheckpointMark, u64, st.lists(st.builds(TopicMark, u64, u64, u64, u64, u64), max_size=3)),
)


@given(body=bodies)
def test_every_body_comes_back(body: msgspec.Struct) -> None:
    assert control.decode(type(body), control.encode(body)) == body


@given(body=bodies, added=st.text(min_size=20, max_size=24), value=json_values.filter(in_range))
def test_a_member_that_a_newer_version_added_is_passed_over(body: msgspec.Struct, added: str, value: object) -> None:
    members = msgspec.msgpack.decode(control.encode(body))
    assert control.decode(type(body), control.encode({added: value, **members})) == body


class NoteBeforeGroups(msgspec.Struct, frozen=True):
    """As it was before there were groups."""

    key: str | None = None
    dead_letter: DeadLetter | None = None


@pytest.mark.parametrize("event", ["created", "moved", "committed", "rewound", "deleted"])
def test_a_reader_that_knows_no_groups_finds_nothing_in_a_note_about_one(event: Any) -> None:
    data = control.encode(Note(group=GroupUpdate("g", event, 5)))
    assert msgspec.msgpack.decode(data, type=NoteBeforeGroups) == NoteBeforeGroups()


def test_a_body_is_a_map_with_named_members_and_without_defaults() -> None:
    assert msgspec.msgpack.decode(control.encode(Delete(bound=9, tag="a"))) == {"bound": 9, "tag": "a"}
    assert control.encode(Note()) == b"\x80"
    assert control.decode(Evict, b"\x80") == Evict()


def test_an_empty_tag_is_not_an_absent_one() -> None:
    for tag in ("", None):
        assert control.decode(Delete, control.encode(Delete(bound=1, tag=tag))).tag == tag


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=40))
def test_any_bytes_are_a_body_or_a_bad_frame(kind: type[msgspec.Struct], data: bytes) -> None:
    try:
        body = control.decode(kind, data)
    except BadFrame:
        return
    assert isinstance(body, kind)


@given(body=bodies, data=st.data())
def test_a_cut_or_flipped_body_is_a_body_or_a_bad_frame(body: msgspec.Struct, data: st.DataObject) -> None:
    encoded = control.encode(body)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(BadFrame):
        control.decode(type(body), encoded[:cut])
    with pytest.raises(BadFrame):
        control.decode(type(body), encoded + b"\x00")
    try:
        control.decode(type(body), flip(encoded, *data.draw(flips(len(encoded)))))
    except BadFrame:
        pass


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (TopicCreate, {"name": "a", "epoch": 1}),
        (TopicCreate, {"name": 1, "epoch": 1, "config": {}}),
        (TopicCreate, {"name": "a", "epoch": -1, "config": {}}),
        (TopicCreate, {"name": "a", "epoch": 1.0, "config": {}}),
        (TopicCreate, {"name": "a", "epoch": True, "config": {}}),
        (TopicCreate, {"name": "a", "epoch": 1, "config": []}),
        (ConfigUpdate, {"config": {1: 2}}),
        (Delete, {"bound": -1}),
        (Delete, {"bound": 1, "seqs": [1, -2]}),
        (Delete, {"bound": 1, "seqs": {}}),
        (Head, {}),
        (Note, {"key": 1}),
        (CheckpointMark, {"snapshot": 1, "topics": [{"id": 1}]}),
        (Evict, []),
        (Evict, None),
    ],
)
def test_another_shape_is_refused(kind: type[msgspec.Struct], members: object) -> None:
    with pytest.raises(BadFrame, match=f"not a {kind.__name__}: "):
        control.decode(kind, control.encode(members))


BOMBS: Final[dict[str, bytes]] = {
    "array32 of all there can be": b"\xdd\xff\xff\xff\xff",
    "array32 with a little content": b"\xdd\xff\xff\xff\xff" + b"\x01" * 1000,
    "map32": b"\xdf\xff\xff\xff\xff",
    "str32": b"\xdb\xff\xff\xff\xff",
    "bin32": b"\xc6\xff\xff\xff\xff",
    "ext32": b"\xc9\xff\xff\xff\xff\x05",
    "arrays in arrays": b"\xdd\x7f\xff\xff\xff" * 500,
    "depth": b"\x91" * 100_000 + b"\x00",
    "depth of maps": b"\x81\xa0" * 100_000 + b"\x00",
    "extension type": b"\xd4\x05a",
    "time out of range": b"\xc7\x0c\xff\x00\x00\x00\x00" + b"\x7f" + b"\xff" * 7,
    "not UTF-8": b"\xa1\xff",
    "a byte without meaning": b"\xc1",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("place", [b"", b"\x81\xa6config\x81\xa1a", b"\x81\xa5other", b"\x82\xa6config\x80\xa5other"])
def test_k11_no_bomb_allocates_or_kills(bomb: bytes, place: bytes) -> None:
    """In the place of the map, inside the config, in a member that is not known."""
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            # An extension type in a member that is passed over is not looked at.
            control.decode(ConfigUpdate, place + bomb + (b"\xc1" if place.endswith(b"other") else b""))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000


@pytest.mark.parametrize("kind", [*KINDS, TopicMark, GroupUpdate])
def test_every_member_is_documented(kind: type[msgspec.Struct]) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")
    assert [name for name in kind.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_data_may_stand_inside_a_larger_buffer() -> None:
    encoded = control.encode(Head(ceiling=7))
    larger: Any = b"xx" + encoded + b"xx"
    assert control.decode(Head, memoryview(larger)[2:-2]) == Head(ceiling=7)
    assert control.decode(Head, bytearray(encoded)) == Head(ceiling=7)
