"""Both forms of the kernel give the same results: on every input, on every damaged byte, on every length."""

import inspect
from array import array
from pathlib import Path
from struct import error as struct_error
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.formats.strategies import batches, json_texts, seqs, u64
from topics.errors import FormatError, FutureVersion
from topics.formats import envelope, plain_kernel, segment, wal_frame
from topics.formats.buffers import Buffer
from topics.formats.message import decode_header, encode_message
from topics.formats.message_index import ENTRY as MESSAGE_ENTRY
from topics.formats.record_layout import FRAME_LEN_BYTES, SEGMENT_BODY, SEGMENT_TRAILER_BYTES, WAL_BODY
from topics.formats.records import RecordBatch
from topics.formats.segment_index import ENTRY

compiled: Final[Any] = pytest.importorskip(
    "topics.formats.compiled_kernel", reason="the package was installed without a C compiler"
)
FORMS: Final = (plain_kernel, compiled)
FRAME_BYTES_MAX: Final = 1 << 20
GOLDEN: Final = Path(__file__).parents[1] / "golden"


def same(function: str, *arguments: object) -> Any:
    """The result of a function, which must be the same in both forms; an error is a result, too."""
    plain, fast = (_outcome(form, function, arguments) for form in FORMS)
    assert plain == fast
    return plain


def _outcome(form: ModuleType, function: str, arguments: tuple[object, ...]) -> object:
    try:
        return getattr(form, function)(*arguments)
    except (ValueError, OverflowError, IndexError, struct_error) as error:
        return type(error)


def scanned(data: Buffer, offset: int = 0, end: int | None = None, limit: int = FRAME_BYTES_MAX) -> object:
    """The frames that both forms find, and the reason why they end."""
    columns, marks, stop = same("scan_frames", data, offset, len(data) if end is None else end, limit)
    try:
        with memoryview(data) as view:
            wal_frame.explain_end(view, stop, len(view) if end is None else min(end, len(view)), limit)
    except (FormatError, FutureVersion) as error:
        return columns, marks, stop, type(error), error.message, error.offset
    return columns, marks, stop


def changed(data: bytes) -> list[bytes]:
    """The bytes with one bit, and with all bits of one byte changed, at every place."""
    return [
        data[:place] + bytes((data[place] ^ bits,)) + data[place + 1 :]
        for place in range(len(data))
        for bits in (1 << place % 8, 0xFF)
    ]


def batch_of(*payloads: bytes, tags: list[bytes | None] | None = None, nodes: list[bytes | None] | None = None) -> Any:
    return RecordBatch([envelope.encode(one) for one in payloads], [len(one) for one in payloads], tags, nodes)


LABELLED: Final = batch_of(b"1", b'"two"', b"[3,3,3]", tags=[b"red", None, b""], nodes=[None, "é".encode(), b"n"])
FRAMES: Final = (
    plain_kernel.encode_writes(7, 1, 1_700_000_000_000, [LABELLED, batch_of(b"{}"), batch_of(b"4" * 300)], 8)[0]
    + wal_frame.encode_sync_mark(3, 5)
    + wal_frame.encode_control(wal_frame.FrameType.NOTE, 7, 6, b"{}")
)


def test_both_forms_have_the_same_functions() -> None:
    names = [name for name, value in vars(plain_kernel).items() if inspect.isfunction(value)]
    public = {
        name for name in names if getattr(plain_kernel, name).__module__ == plain_kernel.__name__ and name[0] != "_"
    }
    assert {name for name in dir(compiled) if name in public} == public


# Checksums.


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_the_checksum_of_every_length(shift: int) -> None:
    data = bytes((place * 131 + place // 7) & 0xFF for place in range(5000))
    for size in [*range(2001), 4095, 4096, 4097, 4990]:
        piece = memoryview(data)[shift : shift + size]
        assert compiled.checksum(piece) == xxh3_64_intdigest(piece), size


@given(st.binary(max_size=3000))
def test_the_checksum_of_any_bytes(data: bytes) -> None:
    assert compiled.checksum(data) == xxh3_64_intdigest(data)


def test_checksums_of_segment_frames() -> None:
    np = pytest.importorskip("numpy")
    bodies = plain_kernel.append_bodies(7, 1, 5, LABELLED, 8, True, True)
    frames = plain_kernel.segment_frames(bodies * 20, WAL_BODY.flags_at, WAL_BODY.core_at)
    data = b"".join(frames)
    ends = np.cumsum([len(frame) for frame in frames])
    starts = ends - [len(frame) for frame in frames]
    bounds = FRAME_LEN_BYTES, SEGMENT_TRAILER_BYTES
    for chosen in (slice(None), slice(1, None, 3), slice(0, 0)):
        found = [np.zeros(len(starts[chosen]), np.uint64) for _ in FORMS]
        for form, numbers in zip(FORMS, found, strict=True):
            form.checksums(data, starts[chosen], ends[chosen], numbers, *bounds)
        assert found[0].tolist() == found[1].tolist()
    for wrong_starts, wrong_ends in ((starts - 1, ends), (starts, ends + 10), (ends, starts)):
        for form in FORMS:
            with pytest.raises(IndexError):
                form.checksums(data, wrong_starts, wrong_ends, np.zeros(len(starts), np.uint64), *bounds)


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-1, 61), st.integers(-1, 61)), max_size=20))
def test_pieces_of_a_buffer(data: bytes, pieces: list[tuple[int, int]]) -> None:
    np = pytest.importorskip("numpy")
    starts, ends = (np.array([piece[end] for piece in pieces], np.int64) for end in (0, 1))

    def gathered(form: Any) -> object:
        offsets = np.zeros(len(pieces) + 1, np.int32)
        try:
            return form.gather(data, starts, ends, offsets), offsets.tolist()
        except IndexError:
            return "outside"

    def ended(form: Any, first: bytes, last: bytes) -> object:
        found = np.full(len(pieces), 7, np.uint8)
        try:
            form.have_ends(data, starts, ends, first, last, found)
        except IndexError:
            return "outside"
        return found.tolist()

    assert gathered(compiled) == gathered(plain_kernel)
    for first, last in ((data[:1], data[-1:]), (data[3:5], data[7:8]), (b"", b"")):
        assert ended(compiled, first, last) == ended(plain_kernel, first, last)


# WAL frames.


@given(u64, seqs, u64, st.lists(batches(), min_size=1, max_size=4), st.sampled_from((8, 12)))
def test_writes_are_encoded_to_the_same_bytes(
    topic_id: int, first_seq: int, ts: int, writes: list[RecordBatch], base: int
) -> None:
    frames, bodies = same("encode_writes", topic_id, first_seq, ts, writes, base)
    assert same("seal_bodies", bodies) == frames
    for opens in (False, True):
        for closes in (False, True):
            same("append_bodies", topic_id, first_seq, ts, writes[0], base, opens, closes)
    scanned(frames)


@given(u64, st.lists(batches(), max_size=2), st.sampled_from(((1, 10), (0, 5))), st.booleans())
def test_copies_are_framed_to_the_same_bytes(
    topic_id: int, writes: list[RecordBatch], places: tuple[int, int], closes: bool
) -> None:
    raws = [raw for batch in writes for raw in plain_kernel.append_bodies(1, 1, 1, batch, 8, True, False)]
    scanned(same("seal_copies", raws, *places, topic_id, closes))


@pytest.mark.parametrize("form", [plain_kernel, compiled])
def test_a_copy_of_a_record_that_is_cut_is_refused(form: Any) -> None:
    assert form.seal_copies([b"\0" * 10], 1, 10, 1, True)
    with pytest.raises(ValueError, match="cut"):
        form.seal_copies([b"\0" * 9], 1, 10, 1, True)


def test_long_payloads_are_encoded_to_the_same_bytes() -> None:
    for size in (*range(0, 600, 7), 4095, 5000, 100_000):
        frames, _ = same("encode_writes", 1, 1, 1, [batch_of(b"x" * size)], 8)
        scanned(frames)


@pytest.mark.parametrize("damaged", [b"", FRAMES, *changed(FRAMES)[:2]])
def test_any_offset_and_end_of_a_scan(damaged: bytes) -> None:
    for offset in range(0, len(damaged) + 2, 3):
        scanned(damaged, offset)
        scanned(damaged, 0, offset)
    for limit in range(40, 400, 5):
        scanned(damaged, limit=limit)


def test_a_scan_of_every_damaged_byte() -> None:
    for damaged in changed(FRAMES):
        scanned(damaged)
        scanned(memoryview(bytearray(damaged)))


def test_a_scan_of_every_torn_length() -> None:
    for size in range(len(FRAMES)):
        scanned(FRAMES[:size])
        scanned(FRAMES[:size] + bytes(50))


def test_a_scan_of_frames_that_are_wrong_behind_a_right_checksum() -> None:
    body = plain_kernel.append_bodies(7, 1, 5, LABELLED, 8, True, True)[0]
    for place in (0, 1):
        for value in range(256):
            other = body[:place] + bytes((value,)) + body[place + 1 :]
            scanned(FRAMES + plain_kernel.seal_bodies([other]) + FRAMES)


@given(st.binary(max_size=400))
def test_a_scan_of_any_bytes(data: bytes) -> None:
    scanned(data)
    scanned(FRAMES + data)


@given(st.data(), st.integers(0, 30))
def test_runs_of_append_frames(data: st.DataObject, count: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from((1, 1, 1, 6)), min_size=count, max_size=count))
    topic_ids = data.draw(st.lists(st.sampled_from((0, 1, 1, 1, 2)), min_size=count, max_size=count))
    numbers = data.draw(st.lists(st.integers(1, 2) | st.just(2**64 - 1), min_size=count, max_size=count))
    runs = same("append_runs", bytes(kinds), array("Q", topic_ids), array("Q", numbers))
    assert [place for _, start, end in runs for place in range(start, end)] == list(range(count))
    follow = array("Q", range(5, 5 + count))
    same("append_runs", bytes(kinds), array("Q", topic_ids), follow)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(50, 2**20), st.integers(0, 40))), u64)
def test_places_of_frames(frames: list[tuple[int, int, int]], base: int) -> None:
    offsets, lengths, data_lens = zip(*frames, strict=True) if frames else ((), (), ())
    ends = array("q", map(sum, zip(offsets, lengths, strict=True)))
    for start in (0, len(frames) // 2):
        same("frame_places", array("q", offsets), ends, array("I", data_lens), start, len(frames), base % 2**50, 6)


@given(batches(count_max=8), seqs)
def test_tags_are_taken_by_the_column(batch: RecordBatch, first_seq: int) -> None:
    frames, _ = plain_kernel.encode_writes(7, first_seq, 5, [batch], 8)
    columns = wal_frame.FrameColumns(*plain_kernel.scan_frames(frames, 0, len(frames), FRAME_BYTES_MAX)[0])
    for start in (0, len(batch) // 2):
        found: list[dict[bytes, array[int]]] = [{b"a": array("Q", [1])}, {b"a": array("Q", [1])}]
        for form, seqs_by_tag in zip(FORMS, found, strict=True):
            form.add_tags(frames, columns, start, len(batch), seqs_by_tag)
        assert list(found[0].items()) == list(found[1].items())
    if any(batch.tags or ()):
        for form in FORMS:
            with pytest.raises(IndexError):
                form.add_tags(b"", columns, 0, len(batch), {})


@given(st.lists(st.sampled_from((b",", b'"', b"m", b":", b',"m":', b"x" * 100))), st.integers(0, 20))
def test_a_text_is_found(parts: list[bytes], start: int) -> None:
    data = b"".join(parts)
    for end in (len(data), len(data) - 1, start, len(data) + 5):
        same("has_text", data, start, end, envelope.META)
        same("has_text", data, start, end, b',"m":,"m":')
    same("has_text", data, start, len(data), b",")


def test_a_text_is_found_wherever_it_is() -> None:
    for place in [*range(40), *range(4080, 4110), 8190, 9000]:
        data = b"m" * place + envelope.META + b"," * 20
        assert same("has_text", data, 0, len(data), envelope.META) is True
        assert same("has_text", data, place + 1, len(data), envelope.META) is False
        assert same("has_text", data, 0, place + 4, envelope.META) is False


# Segment frames.


@given(batches(), seqs, u64)
def test_segment_frames_are_the_same(batch: RecordBatch, first_seq: int, ts: int) -> None:
    bodies = plain_kernel.append_bodies(7, first_seq, ts, batch, 12, True, True)
    frames = same("segment_frames", bodies, WAL_BODY.flags_at, WAL_BODY.core_at)
    raws = [frame[4 : -segment.TRAILER_BYTES] for frame in frames]
    assert same("segment_frames", raws, SEGMENT_BODY.flags_at, SEGMENT_BODY.core_at) == frames
    same("segment_frames", [bodies[0][:20]], WAL_BODY.flags_at, WAL_BODY.core_at)


@given(st.lists(batches(), min_size=1, max_size=4), u64, seqs, u64, st.integers(0, 2**32), st.data())
def test_frames_are_filed_to_the_same_bytes(
    writes: list[RecordBatch], topic_id: int, first_seq: int, ts: int, data_offset: int, data: st.DataObject
) -> None:
    frames, bodies = plain_kernel.encode_writes(topic_id, first_seq, ts, writes, 8)
    (offsets, ends, _, flags, _, _, times, *_), _, _ = plain_kernel.scan_frames(frames, 0, len(frames), 1 << 20)
    filed, filed_ends, stored = same("filed_frames", frames, offsets, ends)
    wanted = plain_kernel.segment_frames(bodies, WAL_BODY.flags_at, WAL_BODY.core_at)
    assert filed == b"".join(wanted)
    assert list(filed_ends) == [sum(map(len, wanted[:place])) for place in range(1, len(wanted) + 1)]
    assert [number.to_bytes(8, "little") for number in stored] == [segment.frame_checksum(frame) for frame in wanted]
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    same("index_entries", filed_ends, times, flags, start, stop, data_offset)


def test_frames_outside_of_their_bytes_are_not_filed() -> None:
    columns, _, _ = plain_kernel.scan_frames(FRAMES, 0, len(FRAMES), 1 << 20)
    offsets, ends = columns[:2]
    for cut in (1, 50, len(FRAMES)):
        same("filed_frames", FRAMES[:-cut], offsets, ends)
    for shift in (-1, 1):
        same("filed_frames", FRAMES, array("q", [offset + shift for offset in offsets]), ends)
    same("filed_frames", FRAMES, ends, offsets)
    assert same("filed_frames", FRAMES, array("q"), array("q")) == (b"", array("I"), array("Q"))


def stored_segment() -> tuple[bytes, bytes]:
    """Five frames, one of them deleted, with a hole before the last."""
    bodies = plain_kernel.append_bodies(7, 1, 5, LABELLED, 8, True, True)
    bodies += plain_kernel.append_bodies(7, 4, 6, batch_of(b"9" * 200), 8, True, True)
    bodies += plain_kernel.append_bodies(7, 6, 6, batch_of(b"0"), 8, True, True)
    frames = plain_kernel.segment_frames(bodies, WAL_BODY.flags_at, WAL_BODY.core_at)
    frames[1] = frames[1][:-1] + b"\xd5"
    entries, offset = [], 0
    for place, frame in enumerate(frames):
        if place == 4:
            entries.append(ENTRY.pack(offset, 0, 6, 0))
        entries.append(ENTRY.pack(offset, len(frame), 5, 0))
        offset += len(frame)
    return b"".join(frames), b"".join(entries)


def test_slots_of_every_damaged_byte_and_length() -> None:
    data, entries = stored_segment()
    slots, wrong = same("read_slots", data, 0, entries, 1)
    assert [slot is None for slot in slots] == [False, True, False, False, True, False]
    assert wrong == []
    for damaged in changed(data):
        same("read_slots", damaged, 0, entries, 1)
    for damaged in changed(entries):
        same("read_slots", data, 0, damaged, 1)
        same("read_slots", data, 60, damaged, 1)
    for size in range(len(data)):
        same("read_slots", memoryview(data)[:size], 0, entries, 1)
    for size in range(len(entries)):
        same("read_slots", data, 0, entries[:size], 1)


def test_a_scan_of_a_segment_with_every_damaged_byte_and_length() -> None:
    data, _ = stored_segment()
    ends, _, deleted, seqs, *_ = same("scan_segment", data, 0, len(data))
    assert (ends[-1], list(seqs), list(deleted)) == (len(data), [1, 2, 3, 4, 6], [0, 1, 0, 0, 0])
    same("scan_segment", data + data, 0, 2 * len(data))
    for damaged in changed(data):
        same("scan_segment", damaged, 0, len(data))
    for size in range(len(data) + 2):
        same("scan_segment", data, 0, size)
        same("scan_segment", data[:size], 0, len(data))
        same("scan_segment", data, min(size, len(data)), len(data))


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60))), st.integers(0, 500), st.integers(0, 500))
def test_spans_of_entries(places: list[tuple[int, int]], data_bytes: int, bytes_max: int) -> None:
    entries = b"".join([ENTRY.pack(offset, length, 5, 0) for offset, length in places])
    same("entry_span", entries, data_bytes, bytes_max)
    same("entry_span", entries, data_bytes, 2**64 - 1)
    same("entry_span", entries[:-1], data_bytes, bytes_max)


# Bounds. C would read and write outside of the bytes, so that the compiled form checks them in every Python.


def columns_of_frames(**changes: Any) -> wal_frame.FrameColumns:
    columns = plain_kernel.scan_frames(FRAMES, 0, len(FRAMES), FRAME_BYTES_MAX)[0]
    names = inspect.signature(wal_frame.FrameColumns).parameters
    return wal_frame.FrameColumns(**dict(zip(names, columns, strict=True)) | changes)


def test_a_scan_that_begins_before_its_bytes_is_refused() -> None:
    data, _ = stored_segment()
    assert same("scan_frames", FRAMES, -1, len(FRAMES), FRAME_BYTES_MAX) is IndexError
    assert same("scan_segment", data, -1, len(data)) is IndexError


@pytest.mark.parametrize("flags_at", [-1, 10, 11])
def test_flags_that_are_not_before_the_core_are_refused(flags_at: int) -> None:
    bodies = plain_kernel.append_bodies(7, 1, 5, LABELLED, 8, True, True)
    assert same("segment_frames", bodies, flags_at, 10) is ValueError
    assert same("seal_copies", bodies, flags_at, 10, 7, True) is ValueError


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 8), (8, 8), (-(2**40), 1)])
def test_frames_outside_of_their_columns_are_refused(start: int, stop: int) -> None:
    columns = columns_of_frames()
    assert len(columns.offsets) == 7
    places = array("I", range(7))
    for function, arguments in (
        ("frame_places", (columns.offsets, columns.ends, columns.data_lens, start, stop, 0, 6)),
        ("add_tags", (FRAMES, columns, start, stop, {})),
        ("index_entries", (places, columns.times, columns.flags, start, stop, 0)),
    ):
        with pytest.raises(IndexError):
            getattr(compiled, function)(*arguments)


def test_columns_of_other_frames_are_refused() -> None:
    """One column is shorter, or has smaller items."""
    columns = columns_of_frames()
    offsets, ends, times, seqs = columns.offsets, columns.ends, columns.times, columns.seqs
    places, small = array("I", range(7)), array("I", seqs)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("append_runs", (columns.kinds, columns.topic_ids, seqs[:-1])),
        ("append_runs", (columns.kinds, columns.topic_ids[:-1], seqs)),
        ("append_runs", (columns.kinds, columns.topic_ids, small)),
        ("append_runs", (columns.kinds, small, seqs)),
        ("frame_places", (offsets, ends[:-1], columns.data_lens, 0, 1, 0, 6)),
        ("frame_places", (offsets, ends, columns.data_lens[:-1], 0, 1, 0, 6)),
        ("frame_places", (small, ends, columns.data_lens, 0, 1, 0, 6)),
        ("frame_places", (offsets, small, columns.data_lens, 0, 1, 0, 6)),
        ("frame_places", (offsets, ends, columns.tag_lens, 0, 1, 0, 6)),
        ("add_tags", (FRAMES, columns_of_frames(flags=columns.flags[:-1]), 0, 1, {})),
        *[
            ("add_tags", (FRAMES, columns_of_frames(**{name: wrong}), 0, 1, {}))
            for name in ("offsets", "seqs", "node_lens", "tag_lens")
            for wrong in (getattr(columns, name)[:-1], array("B", bytes(7)))
        ],
        ("filed_frames", (FRAMES, offsets, ends[:-1])),
        ("filed_frames", (FRAMES, offsets, small)),
        ("filed_frames", (FRAMES, small, ends)),
        ("index_entries", (places, times[:-1], columns.flags, 0, 1, 0)),
        ("index_entries", (places, times, columns.flags[:-1], 0, 1, 0)),
        ("index_entries", (columns.tag_lens, times, columns.flags, 0, 1, 0)),
        ("index_entries", (places, small, columns.flags, 0, 1, 0)),
    ]
    for function, arguments in calls:
        with pytest.raises(ValueError, match=r"^these are no columns of the same frames$"):
            getattr(compiled, function)(*arguments)


def test_positions_of_other_pieces_are_refused() -> None:
    np = pytest.importorskip("numpy")
    indexes, messages, ends = messages_of(np, MESSAGES)
    starts = ends - np.diff(ends, prepend=0)
    count = len(ends)
    buffer = bytearray(messages)
    u64s, u8s, i32s = np.zeros(count, np.uint64), np.zeros(count, np.uint8), np.zeros(count + 1, np.int32)
    for function, arguments in (
        ("checksums", (messages, starts, ends[:-1], u64s, 0, 0)),
        ("checksums", (messages, starts, ends, u64s[:-1], 0, 0)),
        ("check_messages", (indexes[:-16], messages, ends.copy())),
        ("check_messages", (indexes + bytes(16), messages, ends.copy())),
        ("check_messages", (b"", b"", ends[:0].copy())),
        ("stamp_messages", (memoryview(buffer), ends, 0, 5, SEED[:-1])),
        ("verify_messages", (messages, starts, ends[:-1], 0)),
        ("gather", (messages, starts, ends[:-1], i32s)),
        ("gather", (messages, starts, ends, i32s[:-1])),
        ("have_ends", (messages, starts, ends[:-1], b"", b"", u8s)),
        ("have_ends", (messages, starts, ends, b"", b"", u8s[:-1])),
    ):
        with pytest.raises(ValueError, match=r"^(each|a seed)"):
            getattr(compiled, function)(*arguments)
    assert buffer == messages


# Files.


@pytest.mark.parametrize("name", ["wal-v2.log", "wal-v2-lost.log"])
def test_golden_logs(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    scanned(data)
    for damaged in changed(data):
        scanned(damaged)


def test_the_golden_segment() -> None:
    data, entries = ((GOLDEN / f"segment-v1.{kind}").read_bytes() for kind in ("data", "idx"))
    first_seq = next(segment.walk(data, 0, len(data))).seq
    slots, wrong = same("read_slots", data, 0, entries, first_seq)
    assert any(slots)
    assert not wrong
    for damaged in changed(data):
        same("read_slots", damaged, 0, entries, first_seq)


@pytest.mark.parametrize("first_seq", [1, 101, 201])
def test_segments_that_another_program_wrote(shared_fixtures: Path, first_seq: int) -> None:
    stem = shared_fixtures / "topics-segments" / "00000001" / f"seg-{first_seq:016d}"
    data, entries = stem.with_suffix(".data").read_bytes(), stem.with_suffix(".idx").read_bytes()
    slots, wrong = same("read_slots", data, 0, entries, first_seq)
    assert len(slots) == 100
    assert not wrong
    for damaged in changed(data)[::7]:
        same("read_slots", damaged, 0, entries, first_seq)
        same("scan_segment", damaged, 0, len(data))


@given(st.lists(json_texts(), min_size=1, max_size=4))
def test_json_payloads(payloads: list[bytes]) -> None:
    frames, _ = same("encode_writes", 1, 1, 1, [batch_of(*payloads)], 8)
    scanned(frames)


# Messages of the partitioned engine.


def messages_of(np: Any, sizes: list[tuple[int, int, int]], *, seed: int = 0) -> tuple[bytes, bytes, Any]:
    """Index entries, messages and their ends. A message is an id, the bytes of its payload and of its user headers."""
    raw = [
        encode_message(
            bytes((place * 7 + seed) & 0xFF for _ in range(payload)),
            bytes(user_headers),
            message_id=message_id,
            origin_timestamp=place,
            checksum=False,
        )
        for place, (message_id, payload, user_headers) in enumerate(sizes)
    ]
    ends = np.cumsum([len(one) for one in raw], dtype=np.int64)
    entries = np.zeros(len(raw), dtype=MESSAGE_ENTRY)
    entries["position"] = ends
    return entries.tobytes(), b"".join(raw), ends


MESSAGES: Final = [(0, 5, 0), (9, 0, 0), (0, 100, 20), (2**128 - 1, 5000, 0), (0, 60, 3)]
SEED: Final = bytes(range(16))


def checked(np: Any, indexes: bytes, messages: bytes) -> tuple[int, list[int] | None]:
    """What both forms say about a send, and where the messages end if it is good."""
    results = []
    for form in FORMS:
        ends = np.zeros(len(indexes) // 16, np.int64)
        found = form.check_messages(indexes, messages, ends)
        results.append((found, ends.tolist() if found else None))
    assert results[0] == results[1]
    return results[0]


def stamped(np: Any, messages: bytes, ends: Any, first_offset: int, timestamp: int, seed: bytes) -> bytes:
    buffers = [bytearray(messages) for _ in FORMS]
    for form, buffer in zip(FORMS, buffers, strict=True):
        form.stamp_messages(memoryview(buffer), ends, first_offset, timestamp, seed)
    assert buffers[0] == buffers[1]
    return bytes(buffers[0])


def test_a_send_with_every_damaged_byte_is_judged_alike() -> None:
    np = pytest.importorskip("numpy")
    indexes, messages, ends = messages_of(np, [*MESSAGES[:3], (1, 0, 0)])
    assert checked(np, indexes, messages) == (2, ends.tolist())
    assert checked(np, *messages_of(np, [(0, 5, 0)])[:2])[0] == 1
    for damaged in changed(indexes):
        checked(np, damaged, messages)
    for damaged in changed(messages):
        checked(np, indexes, damaged)
    for size in range(len(messages) + 2):
        found, _ = checked(np, indexes, (messages + b"x")[:size])
        assert (found == 2) == (size == len(messages))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=40),
    u64,
    u64,
    st.binary(min_size=16, max_size=16),
)
def test_messages_are_stamped_to_the_same_bytes(
    sizes: list[tuple[int, int, int]], first_offset: int, timestamp: int, seed: bytes
) -> None:
    np = pytest.importorskip("numpy")
    indexes, messages, ends = messages_of(np, sizes)
    assert checked(np, indexes, messages)[0] == (2 if any(size[2] for size in sizes) else 1)
    made = stamped(np, messages, ends, first_offset, timestamp, seed)
    starts = ends - np.diff(ends, prepend=0)
    assert same("verify_messages", made, starts, ends, first_offset) == (2 if any(size[2] for size in sizes) else 1)
    for place, (start, (message_id, _, _)) in enumerate(zip(starts.tolist(), sizes, strict=True)):
        header = decode_header(made, start)
        assert (header.offset, header.timestamp) == ((first_offset + place) % 2**64, timestamp)
        assert header.id == message_id or (message_id == 0 and header.id != 0)


def test_messages_with_every_damaged_byte_are_found() -> None:
    np = pytest.importorskip("numpy")
    _, messages, ends = messages_of(np, MESSAGES[:3])
    made = stamped(np, messages, ends, 70, 5, SEED)
    starts = ends - np.diff(ends, prepend=0)
    assert same("verify_messages", made, starts, ends, 70) == 2
    assert same("verify_messages", made, starts[:2], ends[:2], 70) == 1
    assert same("verify_messages", made, starts, ends, 71) == 0
    for damaged in changed(made):
        assert same("verify_messages", damaged, starts, ends, 70) == 0
    for size in range(len(made)):
        assert same("verify_messages", made[:size], starts, ends, 70) == 0
    for wrong_starts, wrong_ends in ((starts - 1, ends), (starts, ends + 1), (ends, starts), (starts + 1, ends)):
        assert same("verify_messages", made, wrong_starts, wrong_ends, 70) == 0


def test_messages_outside_of_their_bytes_are_not_stamped() -> None:
    np = pytest.importorskip("numpy")
    _, messages, ends = messages_of(np, MESSAGES)
    for form in FORMS:
        for wrong in (ends + 1, ends[::-1].copy(), np.array([63], np.int64), np.array([-1], np.int64)):
            with pytest.raises(IndexError):
                form.stamp_messages(memoryview(bytearray(messages)), wrong, 0, 0, SEED)


def test_ids_that_are_made_differ() -> None:
    np = pytest.importorskip("numpy")
    _, messages, ends = messages_of(np, [(0, 0, 0)] * 3000)
    seeds = [SEED, SEED[::-1], bytes(16)]
    batches = [stamped(np, messages, ends, 0, 0, seed) for seed in seeds]
    ids = {made[start + 8 : start + 24] for made in batches for start in range(0, len(made), 64)}
    assert len(ids) == 3 * 3000


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_envelopes_of_payloads(datas: list[bytes]) -> None:
    assert same("plain_envelopes", [memoryview(data) for data in datas]) == [envelope.encode(data) for data in datas]
    assert same("plain_envelopes", datas) == [envelope.encode(data) for data in datas]


# Numbers that may overflow.


@given(
    st.lists(
        st.one_of(
            st.sampled_from((b"e", b"E", b"+", b"++", b"12", b"e+30", b"E9+9+9", b"-", b".", b"x", b'"', b"7" * 199)),
            st.integers(0, 210).map(lambda count: b"5" * count),
            st.binary(max_size=5),
        ),
        max_size=30,
    )
)
def test_numbers_that_may_overflow_are_found(parts: list[bytes]) -> None:
    same("may_overflow", b"".join(parts))


def test_numbers_that_may_overflow_are_found_wherever_they_are() -> None:
    found: list[bool] = []
    for number in (b"1e308", b"1E+999", b"e+1+2+3", b"1e99", b"3" * 200, b"3" * 150 + b"+" + b"4" * 50, b"3" * 199):
        for before in (*range(9), 190, 199, 200, 201, 399, 400, 401, 4090, 4094, 4095, 4096, 4097):
            found += [same("may_overflow", b"-" * before + number + b"," * after) for after in (0, 1, 250)]
    assert found.count(True) == len(found) * 5 // 7
