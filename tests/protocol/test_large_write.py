"""Large bodies of writes, checked in steps: they are judged as small bodies are, and no step is long."""

import json
from collections.abc import Generator
from itertools import islice
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.protocol.random_bodies import BodyMaker
from topics.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge, TopicsError
from topics.formats.records import RecordBatch
from topics.protocol.large_write import (
    REST_BYTES_MAX,
    decode_publish_in_steps,
    decode_stage_in_steps,
    decode_write_in_steps,
    may_have_records,
)
from topics.protocol.write_body import WriteLimits, WriteRequest, decode_stage, decode_write

T = TypeVar("T")

LIMITS = WriteLimits()
MIB = 1024 * 1024
BODIES_PER_EXAMPLE = 20
randoms = st.randoms(use_true_random=True)


def ended(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result of the steps, and their number."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def result_of(steps: Generator[None, None, T]) -> T:
    return ended(steps)[0]


def columns(batch: RecordBatch) -> tuple[Any, ...]:
    return batch.envelopes, batch.sizes, batch.tags, batch.nodes


def outcome(text: bytes, piece_bytes: int | None) -> Any:
    """What a body gives: its batch and members, or which error."""
    try:
        write: WriteRequest
        if piece_bytes is None:
            write = decode_write(text)
        else:
            write = result_of(decode_write_in_steps(text, LIMITS, piece_bytes))
        members = write.key, write.create, write.config, write.waits_for_room
        return members, columns(write.batch(LIMITS))
    except TopicsError as error:
        return type(error).status, error.code


def expect_the_same(text: bytes, piece_bytes: int) -> None:
    expected = outcome(text, None)
    given = outcome(text, piece_bytes)
    if given != expected:
        note(f"pieces of {piece_bytes}, body: {text!r}")
    assert given == expected


@given(randoms, st.sampled_from([1, 7, 20, 60]))
def test_a_body_in_pieces_is_judged_as_a_whole_body(random: Random, piece_bytes: int) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        expect_the_same(BodyMaker(random).body().text, piece_bytes)


@given(randoms, st.sampled_from([1, 7, 20, 60]))
def test_a_broken_body_in_pieces_is_judged_as_a_whole_body(random: Random, piece_bytes: int) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        expect_the_same(BodyMaker(random).broken(), piece_bytes)


def body_of(records: list[bytes], rest: bytes = b"") -> bytes:
    return b'{"records":[%b]%b}' % (b",".join(records), rest)


HARD = {
    "nested records": body_of([b'{"data":[{"data":1},{"data":[{"data":2},{"tag":"x"}]}]}'] * 40),
    "borders in strings": body_of([rb'{"data":"},{\"data\":1},{\"data\":"}'] * 40),
    "unknown members": body_of([b'{"$seq":1,"$ts":2,"data":[1,2,{"x":{}}],"more":{"data":1}}'] * 40),
    "blanks": body_of([b' { "tag" : "t" , "data" : 1 } '] * 40, b' , "node" : "n" '),
    "other members first": b'{"node":"n","config":{"ttl_ms":5},' + body_of([b'{"data":1,"node":"m"}'] * 40)[1:],
    "escaped names": body_of([rb'{"d\u0061ta":1}', b'{"data":2}'] * 20),
    "metas": body_of([b'{"data":1,"meta":{"a":[1,2]}}', b'{"data":2,"tag":"x","meta":null}'] * 20),
    "line breaks": body_of([b'{"data":[1,\n2]}'] * 40),
    "a key": body_of([b'{"data":1}'] * 40, b',"idempotency_key":"k","create":false,"disable_backpressure":true'),
    "no records": b'{"records":[' + b" " * 500 + b"]}",
    "a comma too many": body_of([b'{"data":1}'] * 40 + [b" "]),
    "a comma too many in the middle": body_of([b'{"data":1}'] * 20 + [b" "] + [b'{"data":1}'] * 20),
    "a member twice": body_of([b'{"data":1}'] * 39 + [b'{"data":1,"x":2,"data":3}']),
    "a member twice by an escape": body_of([b'{"data":1}'] * 39 + [rb'{"data":1,"d\u0061ta":3}']),
    "records twice, the first empty": b'{"records":[],' + body_of([b'{"data":1}'] * 40)[1:],
    "records in another member": body_of([b'{"data":1}'], b',"more":[%b]' % b",".join([b'{"data":2}'] * 40)),
    "records twice": body_of([b'{"data":1}'] * 40, b',"records":[{"data":1}]'),
    "a repeat in the config": body_of([b'{"data":1}'] * 40, b',"config":{"ttl_ms":1,"ttl_ms":2}'),
    "deep": body_of([b'{"data":1}'] * 20 + [b'{"data":' + b"[" * 124 + b"]" * 124 + b"}"] + [b'{"data":1}'] * 20),
    "too deep": body_of([b'{"data":1}'] * 20 + [b'{"data":' + b"[" * 125 + b"]" * 125 + b"}"] + [b'{"data":1}'] * 20),
    "a number that overflows": body_of([b'{"data":1}'] * 39 + [b'{"data":1e999}']),
    "a long integer": body_of([b'{"data":%b}' % (b"9" * 400)] * 4),
    "a meta that is too large": body_of([b'{"data":1}'] * 20 + [b'{"data":1,"meta":"%b"}' % (b"x" * 16_384)]),
    "a wrong type": body_of([b'{"data":1}'] * 39 + [b'{"data":1,"tag":5}']),
    "no object": b"[" + b"1," * 200 + b"1]",
    "text after the end": body_of([b'{"data":1}'] * 40) + b"x",
    "no end": body_of([b'{"data":1}'] * 40)[:-2],
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
@pytest.mark.parametrize("piece_bytes", [1, 30, 100, 300])
def test_hard_bodies_in_pieces_are_judged_as_whole_bodies(text: bytes, piece_bytes: int) -> None:
    expect_the_same(text, piece_bytes)


def test_the_list_of_hard_bodies_has_both_judgements() -> None:
    refused = [name for name, text in HARD.items() if isinstance(outcome(text, None)[0], int)]
    assert 8 <= len(refused) <= len(HARD) - 8


def test_a_chunk_in_pieces_is_the_chunk() -> None:
    text = body_of([b'{"data":1}'] * 50, b',"writer":"w","epoch":1,"part":2,"attempt":3,"chunk":4,"node":"n"')
    body, request = result_of(decode_stage_in_steps(text, LIMITS, 40))
    whole_body, whole = decode_stage(text)
    assert (body.writer, body.epoch, body.part, body.attempt, body.chunk) == ("w", 1, 2, 3, 4)
    assert columns(request.batch(LIMITS)) == columns(whole.batch(LIMITS))
    assert whole_body.writer == body.writer


def test_a_publish_in_pieces_is_the_publish() -> None:
    text = b'{"op":"publish","request_id":{"records":[1]},"topic":"t",' + body_of([b'{"data":1}'] * 50)[1:]
    command, request = result_of(decode_publish_in_steps(text, LIMITS, 40))
    assert (command.topic, bytes(command.request_id)) == ("t", b'{"records":[1]}')
    assert len(request.batch(LIMITS)) == 50


def test_a_command_without_records_is_no_publish() -> None:
    assert may_have_records(b'{"op":"publish","records":[]}')
    assert not may_have_records(json.dumps({"op": "subscribe", "topics": {"records": {}}}).encode())


def test_too_many_records_are_refused_after_the_first_pieces() -> None:
    text = body_of([b'{"data":1}'] * 1_000_000)
    steps = decode_write_in_steps(text, LIMITS)
    next(steps)
    with pytest.raises(BatchTooLarge):
        all(True for _ in islice(steps, 10))


def test_unknown_members_of_any_number_are_ignored() -> None:
    """The known members among them count, and must not be given twice."""
    many = [b'"k%d":[{"data":0}]' % number for number in range(50_000)]
    known = [b'"node":"n"', *many[:30_000], b'"config":{"ttl_ms":5}', *many[30_000:], b'"create":true']
    write, count = ended(decode_write_in_steps(body_of([b'{"data":1}'] * 3, b"," + b",".join(known)), LIMITS))
    assert (write.node, write.create, write.config.ttl_ms if write.config else 0) == ("n", True, 5)
    assert write.batch(LIMITS).nodes == [b"n"] * 3
    assert count > 10
    for twice in (b'"node":null', b'"records":[]', rb'"nod\u0065":"x"'):
        body = body_of([b'{"data":1}'] * 3, b"," + b",".join([*known, twice]))
        with pytest.raises(InvalidRequest, match="given twice"):
            result_of(decode_write_in_steps(body, LIMITS))
    for broken in (b'"x":tru', b'"x":[1,]', b'"x"', b"", b'"x":"\xff"', b'"x":1e999'):
        body = body_of([b'{"data":1}'] * 3, b"," + b",".join([*known, broken]))
        with pytest.raises(InvalidRequest, match="malformed JSON body"):
            result_of(decode_write_in_steps(body, LIMITS))


def test_known_members_that_are_large_are_refused() -> None:
    config = b",".join(b'"k%d":0' % number for number in range(20_000))
    with pytest.raises(PayloadTooLarge, match="beside its records"):
        result_of(decode_write_in_steps(body_of([b'{"data":1}'], b',"config":{%b}' % config), LIMITS))


def test_blanks_after_the_records_are_no_members() -> None:
    text = body_of([b'{"data":1}'], b" " * MIB)
    assert len(result_of(decode_write_in_steps(text, LIMITS)).batch(LIMITS)) == 1
    assert len(result_of(decode_write_in_steps(b" " * 500_000 + text, LIMITS)).batch(LIMITS)) == 1
    with pytest.raises(InvalidRequest, match="malformed JSON body"):
        result_of(decode_write_in_steps(text + b"x" * MIB, LIMITS))


def test_records_that_begin_late_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed JSON body: the first"):
        result_of(decode_write_in_steps(b'{"x":[%b0],"records":[{"data":1}]}' % (b"0," * REST_BYTES_MAX), LIMITS))


@pytest.mark.parametrize(
    "record",
    [
        b'{"data":[%b0]}' % (b"0," * 4 * MIB),
        b'{"data":"%b"}' % (b"x" * 8 * MIB),
        b'{"data":1,%b"x":0}' % (b'"k":0,' * 2 * MIB),
        b" " * 8 * MIB + b'{"data":1}',
        b'"' * 8 * MIB,
    ],
    ids=["array", "string", "members", "blanks", "quotes"],
)
def test_the_text_of_a_record_has_a_bound(record: bytes) -> None:
    with pytest.raises(RecordTooLarge, match="the text of a record"):
        result_of(decode_write_in_steps(body_of([record, b'{"data":1}']), LIMITS))


@pytest.mark.parametrize(
    "data",
    [
        b"[%b0]" % (b"[]," * 340_000),
        b"[%b0]" % (b'{"data":1},' * 90_000),
        b"[%b0]" % (b"1e200," * 170_000),
        b'"%b"' % (b'\\"' * 500_000),
    ],
    ids=["brackets", "nested data", "exponents", "escapes"],
)
def test_a_large_record_is_checked_in_many_steps(data: bytes) -> None:
    """The steps are bounded by counts, so many steps mean short ones."""
    text = body_of([b'{"x":1,"data":%b,"x":1}' % data, b'{"data":1}'])
    write, count = ended(decode_write_in_steps(text, LIMITS))
    assert write.batch(LIMITS).sizes == [len(data), 1]
    assert count > 5
