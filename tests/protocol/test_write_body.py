"""Bodies of writes: what is accepted, the records they give, and their limits."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.protocol.random_bodies import Body, BodyMaker
from tests.protocol.slow_checker import Refused, check_write, compact
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.formats import envelope
from topics.formats.records import RecordBatch
from topics.protocol.write_body import WriteLimits, WriteRequest, decode_stage, decode_write

LIMITS = WriteLimits()


def accepts(text: bytes) -> bool:
    try:
        decode_write(text)
    except InvalidRequest as error:
        message = error.message
    else:
        return True
    assert message.startswith("malformed JSON body")
    return False


def should_accept(text: bytes) -> bool:
    try:
        check_write(text)
    except Refused:
        return False
    return True


# Many bodies per example, because a body takes a fraction of the time of an example.
BODIES_PER_EXAMPLE = 20
randoms = st.randoms(use_true_random=True)


def expect_the_same_judgement(text: bytes) -> None:
    if accepts(text) != should_accept(text):
        note(f"body: {text!r}")
        assert accepts(text) == should_accept(text)


@given(randoms)
def test_a_body_is_accepted_exactly_when_the_slow_checker_accepts_it(random: Random) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        expect_the_same_judgement(BodyMaker(random).body().text)


@given(randoms)
def test_a_body_with_a_slip_is_judged_alike(random: Random) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        expect_the_same_judgement(BodyMaker(random).broken())


def test_both_judgements_are_common() -> None:
    """Without this the two tests above would prove nothing."""
    random = Random(1)
    verdicts = [should_accept(BodyMaker(random).body().text) for _ in range(500)]
    assert 150 < sum(verdicts) < 450


@given(st.binary(max_size=40))
def test_any_bytes_are_judged_alike(text: bytes) -> None:
    assert accepts(text) == should_accept(text)


def stored(sent: bytes) -> bytes:
    """The stored form of a payload that is under its limit."""
    return compact(sent) if b"\n" in sent or b"\r" in sent else sent


@given(randoms)
def test_the_payloads_of_an_accepted_body_are_kept(random: Random) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        body = BodyMaker(random).body()
        if body.payloads and should_accept(body.text):
            expect_payloads(body)


def expect_payloads(body: Body) -> None:
    batch = decode_write(body.text).batch(LIMITS)
    assert len(batch) == len(body.payloads)
    for text, size, (data, meta) in zip(batch.envelopes, batch.sizes, body.payloads, strict=True):
        assert data is not None
        expected_meta = None if meta is None or meta == b"null" else stored(meta)
        assert envelope.split(text) == (stored(data), expected_meta)
        assert size == len(stored(data)) + len(expected_meta or b"")


# Columns.


def batch_of(body: Any, limits: WriteLimits = LIMITS) -> RecordBatch:
    text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return decode_write(text).batch(limits)


def record(**members: Any) -> dict[str, Any]:
    return {"data": 1} | members


def test_plain_records_have_no_columns_of_labels() -> None:
    batch = batch_of({"records": [record(), record()]})
    assert (batch.tags, batch.nodes) == (None, None)
    assert batch.envelopes == [b'{"d":1}', b'{"d":1}']
    assert (batch.sizes, batch.size_bytes) == ([1, 1], 2)


def test_labels_of_null_are_none() -> None:
    batch = batch_of({"records": [record(tag=None, node=None)], "node": None})
    assert (batch.tags, batch.nodes) == (None, None)


def test_labels_are_columns_with_holes() -> None:
    batch = batch_of({"records": [record(tag="t"), record(), record(tag="", node="é")]})
    assert batch.tags == [b"t", None, b""]
    assert batch.nodes == [None, None, "é".encode()]


def test_the_node_of_the_body_is_for_records_without_one() -> None:
    assert batch_of({"records": [record(), record()], "node": "n"}).nodes == [b"n", b"n"]
    batch = batch_of({"records": [record(node=None), record(node=""), record(node="own")], "node": "n"})
    assert batch.nodes == [b"n", b"", b"own"]


def test_what_is_not_given_is_none() -> None:
    write = decode_write(b'{"records":[{"data":1}]}')
    assert (write.key, write.create, write.config) == (None, None, None)
    write = decode_write(b'{"records":[{"data":1}],"idempotency_key":null,"create":null,"config":null}')
    assert (write.key, write.create, write.config) == (None, None, None)


def test_what_is_given_is_there() -> None:
    write = decode_write(
        b'{"records":[{"data":1}],"idempotency_key":"","create":false,"config":{"ttl_ms":5},"disable_backpressure":true}'
    )
    assert (write.key, write.create) == ("", False)
    assert write.config is not None
    assert write.config.ttl_ms == 5


# Limits.


def refused(write: WriteRequest | bytes | dict[str, Any], limits: WriteLimits = LIMITS) -> type[TopicsError]:
    with pytest.raises(TopicsError) as caught:
        (write if isinstance(write, WriteRequest) else batch_of(write, limits)).batch(limits)  # type: ignore[union-attr]
    return caught.type


def test_the_count_of_records_is_checked_first() -> None:
    limits = WriteLimits(records_max=2, tag_bytes_max=1)
    assert refused({"records": [record(tag="long")] * 3, "idempotency_key": "k" * 257}, limits) is BatchTooLarge
    assert refused({"records": [], "idempotency_key": "k" * 257}) is InvalidRequest


def test_the_key_is_checked_before_the_records() -> None:
    with pytest.raises(InvalidRequest, match="idempotency key"):
        batch_of({"records": [record(data="x" * 50)], "idempotency_key": "k" * 257}, WriteLimits(record_bytes_max=10))


@pytest.mark.parametrize(
    ("record_text", "error"),
    [
        (b'{"data":"12345678"}', None),
        (b'{"data":"123456789"}', RecordTooLarge),
        (b'{"data":["12",%b"5"]}' % (b" " * 50), None),
        (b'{"data":[1,   2],"meta":{"a":1}}', RecordTooLarge),
        (b'{"data":1,"meta":"1234567"}', None),
        (b'{"data":12,"meta":"1234567"}', RecordTooLarge),
        (b'{"data":"12345678","meta":null}', None),
        (b'{"data":[\n\n\n\n1,\n2,\n3]}', None),
    ],
)
def test_a_record_is_measured_compact_only_when_it_is_too_large(
    record_text: bytes, error: type[TopicsError] | None
) -> None:
    limits = WriteLimits(record_bytes_max=10, meta_bytes_max=9)
    body = b'{"records":[%b]}' % record_text
    if error is None:
        batch = batch_of(body, limits)
        assert batch.sizes[0] <= 10
    else:
        assert refused(body, limits) is error


def test_a_payload_under_the_limit_keeps_its_blanks() -> None:
    (text,) = batch_of(b'{"records":[{"data":[ 1 ],"meta":{ }}]}').envelopes
    assert text == b'{"d":[ 1 ],"m":{ }}'


@pytest.mark.parametrize(
    ("meta", "fits"),
    [
        ({str(number): 0 for number in range(64)}, True),
        ({str(number): 0 for number in range(65)}, False),
        ({"inner": {str(number): 0 for number in range(100)}}, True),
        ([0] * 100, True),
        ("m" * 16_382, True),
        ("m" * 16_383, False),
    ],
    ids=["64 members", "65 members", "members inside", "items", "16384 bytes", "16385 bytes"],
)
def test_a_meta_has_limits_of_its_own(meta: Any, fits: bool) -> None:
    body = {"records": [record(meta=meta)]}
    if fits:
        batch_of(body)
    else:
        assert refused(body) is InvalidRequest


def test_a_member_of_a_meta_twice_is_one_member() -> None:
    members = ",".join(['"a":1'] * 100)
    batch_of(b'{"records":[{"data":1,"meta":{%b}}]}' % members.encode())


@pytest.mark.parametrize("name", ["tag", "node"])
def test_labels_are_measured_in_bytes(name: str) -> None:
    limits = WriteLimits(tag_bytes_max=4, node_bytes_max=4)
    batch_of({"records": [record(**{name: "éé"})]}, limits)
    assert refused({"records": [record(**{name: "ééx"})]}, limits) is InvalidRequest


# Chunks to stage.

PLACE = b'"writer":"w:1","epoch":18446744073709551615,"part":0,"attempt":12,"chunk":3,'
NAMES_OF_WRITES = (b"idempotency_key", b"create", b"config", b"disable_backpressure", b"\\u")


def staged(text: bytes) -> bytes | None:
    """The body of a write as the body of a chunk; None if it has members that a chunk does not know."""
    opening = text.find(b"{")
    if opening < 0 or text[opening + 1 :].lstrip()[:1] != b'"' or any(name in text for name in NAMES_OF_WRITES):
        return None
    return text[: opening + 1] + PLACE + text[opening + 1 :]


def same_records(ours: RecordBatch, theirs: RecordBatch) -> bool:
    return (ours.envelopes, ours.sizes, ours.tags, ours.nodes) == (
        theirs.envelopes,
        theirs.sizes,
        theirs.tags,
        theirs.nodes,
    )


@given(randoms)
def test_records_of_a_chunk_are_judged_and_taken_like_those_of_a_write(random: Random) -> None:
    for _ in range(BODIES_PER_EXAMPLE):
        maker = BodyMaker(random)
        text = maker.body().text if random.random() < 0.5 else maker.broken()
        chunk = staged(text)
        if chunk is None:
            continue
        note(f"body: {chunk!r}")
        try:
            body, request = decode_stage(chunk)
        except InvalidRequest:
            assert not should_accept(text)
            continue
        assert should_accept(text)
        assert (body.writer, body.epoch, body.part, body.attempt, body.chunk) == ("w:1", 2**64 - 1, 0, 12, 3)
        assert (request.key, request.create, request.config) == (None, None, None)
        try:
            batch = decode_write(text).batch(LIMITS)
        except TopicsError as error:
            with pytest.raises(type(error)):
                request.batch(LIMITS)
        else:
            assert same_records(request.batch(LIMITS), batch)


@pytest.mark.parametrize("blank", [b"", b" ", b"\n"])
@pytest.mark.parametrize("name", ["writer", "epoch", "part", "attempt", "chunk", "records"])
def test_a_member_of_a_chunk_that_is_there_twice_is_refused(name: str, blank: bytes) -> None:
    values = {"writer": b'"w"', "records": b'[{"data":1}]'}
    members = [
        b'"%b":%b%b' % (each.encode(), blank, values.get(each, b"7"))
        for each in ("writer", "epoch", "part", "attempt", "chunk", "records", name)
    ]
    assert decode_stage(b"{" + b",".join(members[:-1]) + b"}")[0].epoch == 7
    with pytest.raises(InvalidRequest, match="given twice"):
        decode_stage(b"{" + b",".join(members) + b"}")


def test_numbers_of_a_chunk_have_64_bits() -> None:
    text = b'{"writer":"w","epoch":%d,"part":0,"attempt":0,"chunk":0,"records":[{"data":1}]}'
    assert decode_stage(text % (2**64 - 1))[0].epoch == 2**64 - 1
    for number in (2**64, -1):
        with pytest.raises(InvalidRequest, match="malformed JSON body"):
            decode_stage(text % number)
