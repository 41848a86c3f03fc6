"""Small request bodies: their members are checked strictly, unknown members are ignored."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.protocol.random_bodies import BodyMaker
from tests.protocol.slow_checker import CONFIG, Members, Refused, parse
from topics.errors import InvalidRequest
from topics.protocol.body_decoder import (
    CONFIG_DECODER,
    DELETE_DECODER,
    DIFF_DECODER,
    REMEMBERED_BODIES_MAX,
    REMEMBERED_BODY_BYTES_MAX,
    BodyDecoder,
    RememberingDecoder,
)
from topics.protocol.request_body import ConfigBody, DiffBody

U64_MAX = 2**64 - 1


def accepts(decoder: BodyDecoder, text: bytes) -> bool:
    try:
        decoder.decode(text)
    except InvalidRequest as error:
        message = error.message
    else:
        return True
    assert message.startswith("malformed JSON body: ")
    return False


def is_good_config(text: bytes) -> bool:
    try:
        document = parse(text)
    except Refused:
        return False
    if not isinstance(document, Members):
        return False
    known = [name for name, _ in document if name in CONFIG]
    return len(known) == len(set(known)) and all(CONFIG[name](value) for name, value in document if name in CONFIG)


@given(st.randoms(use_true_random=True))
def test_a_config_is_accepted_exactly_when_the_slow_checker_accepts_it(random: Random) -> None:
    for _ in range(20):
        text = BodyMaker(random).config()
        if accepts(CONFIG_DECODER, text) != is_good_config(text):
            note(f"config: {text!r}")
            assert accepts(CONFIG_DECODER, text) == is_good_config(text)


@given(st.binary(max_size=30))
def test_any_bytes_decode_or_are_malformed(text: bytes) -> None:
    for decoder in (CONFIG_DECODER, DIFF_DECODER, DELETE_DECODER):
        accepts(decoder, text)


def test_an_empty_object_is_all_defaults() -> None:
    assert CONFIG_DECODER.decode(b"{}") == ConfigBody()
    diff = DIFF_DECODER.decode(b"{}")
    assert diff == DiffBody()
    assert (diff.from_seq, diff.limit, diff.wait_ms, diff.max_batch_bytes) == (0, 256, 0, 1_048_576)
    assert (diff.node, diff.include_tags, diff.include_meta) == (None, False, True)


def test_the_config_has_all_17_members() -> None:
    assert len(ConfigBody.__struct_fields__) == 17
    assert ConfigBody.__struct_fields__ == tuple(CONFIG)


@pytest.mark.parametrize(
    ("value", "node"), [(None, None), ("n", "n"), ("", ""), ([], []), (["a", ""], ["a", ""])], ids=json.dumps
)
def test_the_node_of_a_diff_is_a_text_or_several(value: Any, node: Any) -> None:
    assert DIFF_DECODER.decode(json.dumps({"node": value}).encode()).node == node


@pytest.mark.parametrize("member", ["from_seq", "max_batch_bytes"])
@pytest.mark.parametrize(("value", "fits"), [(0, True), (U64_MAX, True), (U64_MAX + 1, False), (-1, False)])
def test_wide_integers_have_64_bits(member: str, value: int, fits: bool) -> None:
    text = json.dumps({member: value}).encode()
    assert accepts(DIFF_DECODER, text) == fits
    if fits:
        assert getattr(DIFF_DECODER.decode(text), member) == value


@pytest.mark.parametrize("member", ["limit", "wait_ms"])
@pytest.mark.parametrize(("value", "fits"), [(0, True), (2**32 - 1, True), (2**32, False), (-1, False)])
def test_narrow_integers_have_32_bits(member: str, value: int, fits: bool) -> None:
    assert accepts(DIFF_DECODER, json.dumps({member: value}).encode()) == fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (b'{"before_seq":1}', True),
        (b'{"before_seq":null}', True),
        (b'{"before_seq":18446744073709551616}', False),
        (b'{"before_seq":1,"before_seq":1}', False),
        (b'{"match":"a","m\\u0061tch":"a"}', False),
        (b'{"match":["tag","Eq","a"],"other":1,"other":2}', True),
        (b'{"match":[{"match":1,"match":2}]}', True),
        (b'{"match":{}}', False),
        (b'{"match":["\\ud800"]}', False),
        (b'{"match":[1e400]}', False),
    ],
)
def test_deletes(text: bytes, fits: bool) -> None:
    assert accepts(DELETE_DECODER, text) == fits


def test_a_remembered_body_is_forgotten_when_too_many_are_there() -> None:
    decoder = RememberingDecoder(DiffBody)
    texts = [b'{"from_seq":%d}' % seq for seq in range(2 * REMEMBERED_BODIES_MAX + 1)]
    first = decoder.decode(texts[0])
    assert decoder.decode(texts[0]) is first
    for seq, text in enumerate(texts):
        assert decoder.decode(text) == DiffBody(from_seq=seq)
    assert decoder.decode(texts[0]) is not first


def test_a_refused_body_and_a_large_body_are_not_remembered() -> None:
    decoder = RememberingDecoder(DiffBody)
    for _ in range(2):
        assert not accepts(decoder, b'{"limit":1,"limit":2}')
    large = b'{"from_seq":3%b}' % (b" " * REMEMBERED_BODY_BYTES_MAX)
    assert decoder.decode(large) == DiffBody(from_seq=3)
    assert decoder.decode(large) is not decoder.decode(large)
