"""What the property tests of the codecs draw: numbers at the edges, labels, JSON text, records."""

import json
from typing import Final

from hypothesis import strategies as st

from topics.formats import envelope
from topics.formats.records import Record, RecordBatch

U64_MAX: Final = 2**64 - 1

u64: Final = st.sampled_from((0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, U64_MAX)) | st.integers(0, U64_MAX)
seqs: Final = st.sampled_from((1, 2**32, 2**63, U64_MAX - 100)) | st.integers(1, U64_MAX - 100)
texts: Final = st.text(max_size=8)
labels: Final = st.none() | texts

_scalars: Final = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
# Names and strings that look like parts of an envelope.
_names: Final = st.sampled_from(("d", "m", "", ',"m":', '{"d":')) | texts


def _nested(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(children, max_size=3) | st.dictionaries(_names, children, max_size=3)


json_values: Final = st.recursive(_scalars | _names, _nested, max_leaves=6)


@st.composite
def json_texts(draw: st.DrawFn) -> bytes:
    """JSON as a writer may send it: compact or spaced, ASCII or not, one line."""
    separators = draw(st.sampled_from(((",", ":"), (", ", ": "), (" , ", " : "))))
    text = json.dumps(draw(json_values), ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode()


@st.composite
def records(draw: st.DrawFn) -> Record:
    return Record(
        seq=draw(u64),
        ts=draw(u64),
        node=draw(labels),
        tag=draw(labels),
        data=draw(json_texts()),
        meta=draw(st.none() | json_texts()),
    )


@st.composite
def batches(draw: st.DrawFn, *, count_max: int = 5) -> RecordBatch:
    """Payloads of any bytes: the log does not look into them."""
    payloads = draw(st.lists(st.binary(max_size=12), min_size=1, max_size=count_max))
    column = st.lists(st.none() | texts.map(str.encode), min_size=len(payloads), max_size=len(payloads))
    return RecordBatch(
        [envelope.encode(payload) for payload in payloads],
        [len(payload) for payload in payloads],
        tags=draw(st.none() | column),
        nodes=draw(st.none() | column),
    )


@st.composite
def flips(draw: st.DrawFn, size: int) -> tuple[int, int]:
    """(position, what to xor there) inside `size` bytes."""
    return draw(st.integers(0, size - 1)), draw(st.integers(1, 255))


def flip(buffer: bytes, position: int, bits: int) -> bytes:
    assert bits
    return buffer[:position] + bytes((buffer[position] ^ bits,)) + buffer[position + 1 :]
