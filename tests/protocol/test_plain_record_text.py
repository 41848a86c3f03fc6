"""Both forms of the record texts give the same bytes, and the same errors."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.strategies import batches, json_texts, seqs, u64
from topics.errors import BadFrame
from topics.formats import envelope, segment, wal_frame
from topics.formats.record_layout import SEGMENT_BODY, WAL_BODY, RecordForm
from topics.formats.records import RecordBatch
from topics.protocol import plain_record_text

compiled: Final[Any] = pytest.importorskip(
    "topics.protocol.compiled_record_text", reason="the package was installed without a C compiler"
)
OPTIONS: Final = [(tags, meta, data) for tags in (False, True) for meta in (False, True) for data in (False, True)]


def outcome(form: Any, function: str, raws: list[bytes], layout: RecordForm, options: tuple[bool, ...]) -> object:
    try:
        return getattr(form, function)(raws, layout.flags_at, layout.core_at, *options)
    except (BadFrame, UnicodeDecodeError) as error:
        return type(error), str(error)


def same(raws: list[bytes], layout: RecordForm) -> None:
    for options in OPTIONS:
        for function in ("record_texts", "joined_texts"):
            expected = outcome(plain_record_text, function, raws, layout, options)
            assert outcome(compiled, function, raws, layout, options) == expected


def bodies_of(batch: RecordBatch, first_seq: int = 1, ts: int = 1_790_000_000_123) -> list[bytes]:
    return wal_frame.append_bodies(1, first_seq, ts, batch, durable=False)


@given(batches(), seqs, u64)
def test_any_payload_and_label(batch: RecordBatch, first_seq: int, ts: int) -> None:
    bodies = bodies_of(batch, first_seq, ts)
    same(bodies, WAL_BODY)
    same([frame[4 : -segment.TRAILER_BYTES] for frame in segment.from_raws(bodies, WAL_BODY)], SEGMENT_BODY)


@given(st.lists(st.tuples(json_texts(), st.none() | json_texts()), min_size=1, max_size=4))
def test_json_with_and_without_a_meta(payloads: list[tuple[bytes, bytes | None]]) -> None:
    envelopes = [envelope.encode(data, meta) for data, meta in payloads]
    same(bodies_of(RecordBatch(envelopes, [1] * len(envelopes))), WAL_BODY)


def test_a_meta_at_every_place() -> None:
    for size in range(70):
        text = b'"%b"' % (b"x" * size)
        for rest in (0, 3, 20):
            nested = b'{"a":%b,"m":%b}' % (text, b"1" * (rest + 1))
            envelopes = [envelope.encode(text), envelope.encode(text, b"2" * (rest + 1)), envelope.encode(nested)]
            same(bodies_of(RecordBatch(envelopes, [1] * 3)), WAL_BODY)


def test_every_byte_in_a_label() -> None:
    tags: list[bytes | None] = [bytes((byte,)) for byte in range(128)]
    tags += [chr(code).encode() for code in (128, 0x7FF, 0x2028, 0xFFFF, 0x1F600)]
    batch = RecordBatch([b'{"d":1}'] * len(tags), [1] * len(tags), tags, list(reversed(tags)))
    same(bodies_of(batch), WAL_BODY)
    same(bodies_of(RecordBatch([b'{"d":1}'] * 2, [1, 1], [b"good", b"\xff"])), WAL_BODY)


def test_numbers_of_every_length() -> None:
    for digits in range(1, 21):
        for number in (10 ** (digits - 1), min(10**digits, 2**64) - 1):
            same(bodies_of(RecordBatch([b'{"d":1}'], [1]), number, number), WAL_BODY)


def test_every_damaged_byte_and_length_of_a_record() -> None:
    envelopes = [b'{"d":{"a":1}}', b'{"d":2,"m":[3]}', b'{"d":4}']
    bodies = bodies_of(RecordBatch(envelopes, [1] * 3, [b"tag", None, None], [None, b"node", None]))
    for place, body in enumerate(bodies):
        for at in range(1, len(body)):
            # A cut or changed length may point anywhere, but never outside of the record.
            if at >= WAL_BODY.node_at:
                same([*bodies[:place], body[:at], *bodies[place + 1 :]], WAL_BODY)
            for bits in (1, 0x20, 0xFF):
                damaged = body[:at] + bytes((body[at] ^ bits,)) + body[at + 1 :]
                same([*bodies[:place], damaged, *bodies[place + 1 :]], WAL_BODY)
                same([damaged], WAL_BODY)


@pytest.mark.parametrize("flags_at", [2**40, -(2**40)])
def test_flags_outside_of_a_record_are_not_read(flags_at: int) -> None:
    bodies = bodies_of(RecordBatch([envelope.encode(b"1")], [1]))
    for function in ("record_texts", "joined_texts"):
        with pytest.raises(IndexError):
            getattr(compiled, function)(bodies, flags_at, WAL_BODY.core_at, True, True, True)


def test_nothing() -> None:
    same([], WAL_BODY)
