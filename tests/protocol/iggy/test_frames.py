"""Frames: any split of the bytes gives the same events, and no memory is taken for what is not accepted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.limits import MIB
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.frames import (
    CONTROL_BYTES_MAX,
    HEAD,
    LARGE_BYTES_MAX,
    METADATA_BYTES_MAX,
    OK_EMPTY,
    PERMISSIONS_BYTES_MAX,
    SEND_BYTES_MAX,
    SKIPPED_BYTES_MAX,
    SMALL_BYTES_MAX,
    Announced,
    Frame,
    FrameReader,
    Refusal,
    encode_answer,
    encode_error,
    encode_frame,
)
from topics.protocol.iggy.send_request import encode_send_head
from topics.stream_errors import StreamStatus

INVALID = StreamStatus.INVALID_COMMAND
UNAUTHENTICATED = StreamStatus.UNAUTHENTICATED


UNAUTHORIZED = StreamStatus.UNAUTHORIZED
# Metadata for a topic with this name are refused by the owner of the reader.
FORBIDDEN = "forbidden"


def logged_in() -> FrameReader:
    reader = FrameReader()
    reader.is_logged_in = True
    return reader


def decide(reader: FrameReader, announced: Announced) -> None:
    if FORBIDDEN.encode() in announced.start:
        reader.refuse(Refusal(UNAUTHORIZED))
    else:
        reader.accept(memoryview(bytearray(announced.size)))


def events_of(pieces: list[bytes], *, is_logged_in: bool = True) -> list[tuple[int, bytes] | Refusal]:
    """The events of a reader that receives one piece after the other, as a connection does."""
    reader = FrameReader()
    reader.is_logged_in = is_logged_in
    found: list[tuple[int, bytes] | Refusal] = []
    shared = bytearray(64)
    for piece in pieces:
        while piece:
            target = reader.target
            if target is None:
                taken, piece = piece[: len(shared)], piece[len(shared) :]
                shared[: len(taken)] = taken
                reader.feed(memoryview(shared)[: len(taken)])
            else:
                taken, piece = piece[: len(target)], piece[len(target) :]
                target[: len(taken)] = taken
                reader.note_filled(len(taken))
            while (event := reader.next_event()) is not None:
                if isinstance(event, Announced):
                    decide(reader, event)
                    continue
                found.append((event.code, bytes(event.payload)) if isinstance(event, Frame) else event)
                if isinstance(event, Refusal) and event.is_last:
                    return found
            # The memory is used for other connections.
            shared[:] = bytes(len(shared))
    return found


FRAMES = st.lists(
    st.tuples(st.sampled_from(sorted(CODES)) | st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=6
)


@given(FRAMES, st.lists(st.integers(0, 2000)), st.booleans())
def test_any_split_gives_the_same_events(frames: list[tuple[int, bytes]], cuts: list[int], is_logged_in: bool) -> None:
    stream = b"".join(encode_frame(code, payload) for code, payload in frames)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    whole = events_of([stream], is_logged_in=is_logged_in)
    assert events_of(pieces, is_logged_in=is_logged_in) == whole
    assert len(whole) == len(frames)
    if is_logged_in:
        assert whole == [frame if frame[0] in CODES else Refusal(INVALID) for frame in frames]


LARGE = st.lists(
    st.builds(
        lambda topic, size: encode_send_head("s", topic, b"key", 1) + bytes(size),
        st.sampled_from(["t", FORBIDDEN]),
        st.sampled_from([0, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 99]),
    ),
    max_size=3,
)


@given(LARGE, st.lists(st.integers(0, 200)))
def test_any_split_gives_the_same_events_for_large_frames(payloads: list[bytes], cuts: list[int]) -> None:
    """Each frame is cut near its head. What is refused is skipped, and the next frame begins after it."""
    frames = [encode_frame(Code.SEND_MESSAGES, payload) for payload in payloads]
    pieces: list[bytes] = []
    for frame in frames:
        places = sorted({0, len(frame), *(cut for cut in cuts if cut < len(frame))})
        pieces += [frame[start:end] for start, end in pairwise(places)]
    expected = [
        Refusal(UNAUTHORIZED)
        if FORBIDDEN.encode() in payload and len(payload) > SMALL_BYTES_MAX
        else (int(Code.SEND_MESSAGES), payload)
        for payload in payloads
    ]
    assert events_of(pieces) == expected
    assert events_of([b"".join(frames)]) == expected


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_give_events_and_no_error(data: bytes, is_logged_in: bool) -> None:
    one_by_one = events_of([data[at : at + 1] for at in range(len(data))], is_logged_in=is_logged_in)
    assert one_by_one == events_of([data], is_logged_in=is_logged_in)


def test_documented_frames() -> None:
    assert encode_frame(Code.PING).hex() == "0400000001000000"
    assert OK_EMPTY.hex() == "0000000000000000"
    assert encode_error(UNAUTHENTICATED).hex() == "2800000000000000"
    assert encode_answer(b"ab").hex() == "00000000020000006162"
    with pytest.raises(AssertionError):
        encode_answer(b"a")


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("is_logged_in", [False, True])
def test_a_length_without_a_code_ends_the_connection(length: int, is_logged_in: bool) -> None:
    assert events_of([HEAD.pack(length, Code.PING)], is_logged_in=is_logged_in) == [Refusal(INVALID, is_last=True)]


@pytest.mark.parametrize("code", [*sorted(CODES), 0, 2, 999, 2**32 - 1])
def test_a_huge_length_is_refused_before_a_login(code: int) -> None:
    reader = FrameReader()
    reader.feed(HEAD.pack(2**32 - 1, code))
    event = reader.next_event()
    assert event == Refusal(UNAUTHENTICATED if code == Code.SEND_MESSAGES else INVALID, is_last=True)
    assert reader.target is None


@pytest.mark.parametrize("code", sorted(CODES))
def test_before_a_login_only_small_frames_are_kept(code: int) -> None:
    """Everything else is skipped: the connection stays in step, and no memory is taken."""
    is_open = code in (Code.PING, Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN)
    for size in (0, 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 100_000):
        reader = FrameReader()
        reader.feed(encode_frame(code, bytes(size)) + encode_frame(Code.PING))
        event = reader.next_event()
        if is_open and size <= SMALL_BYTES_MAX:
            assert isinstance(event, Frame)
            assert len(event.payload) == size
        else:
            assert event == Refusal(INVALID if is_open else UNAUTHENTICATED)
        ping = reader.next_event()
        assert isinstance(ping, Frame)
        assert (ping.code, bytes(ping.payload)) == (Code.PING, b"")


def test_a_refused_send_is_skipped_up_to_a_limit() -> None:
    for size, is_last in ((SKIPPED_BYTES_MAX, False), (SKIPPED_BYTES_MAX + 1, True)):
        reader = FrameReader()
        reader.feed(HEAD.pack(4 + size, Code.SEND_MESSAGES))
        event = reader.next_event()
        assert event == (Refusal(UNAUTHENTICATED, is_last=True) if is_last else None)
        if not is_last:
            for number in range(1, SKIPPED_BYTES_MAX // MIB):
                reader.feed(bytes(MIB))
                assert reader.next_event() is None
                assert (reader.held_bytes, reader.partial_bytes) == (0, HEAD.size + number * MIB)
            reader.feed(bytes(MIB) + encode_frame(Code.PING))
            assert reader.next_event() == Refusal(UNAUTHENTICATED)
            assert isinstance(reader.next_event(), Frame)
            assert reader.partial_bytes == 0


def test_each_command_has_a_largest_size() -> None:
    largest = {
        Code.SEND_MESSAGES: SEND_BYTES_MAX,
        Code.CREATE_USER: PERMISSIONS_BYTES_MAX,
        Code.UPDATE_PERMISSIONS: PERMISSIONS_BYTES_MAX,
    }
    assert largest == LARGE_BYTES_MAX
    for code in CODES:
        size = largest.get(Code(code), SMALL_BYTES_MAX)
        reader = logged_in()
        reader.feed(HEAD.pack(4 + size, code) + bytes(4))
        event = reader.next_event()
        if code in largest:
            assert event == Announced(code, size, bytes(4) if code == Code.SEND_MESSAGES else b"")
        else:
            assert event is None
            assert reader.target is not None
        reader = logged_in()
        reader.feed(HEAD.pack(4 + size + 1, code))
        if code == Code.SEND_MESSAGES:
            assert reader.next_event() == Refusal(StreamStatus.TOO_BIG_MESSAGE_PAYLOAD, is_last=True)
        else:
            assert reader.next_event() is None
            reader.feed(bytes(size + 1))
            assert reader.next_event() == Refusal(INVALID)


@pytest.mark.parametrize("code", [Code.CREATE_USER, Code.GET_ME, 999])
def test_a_control_frame_that_is_far_too_large_ends_the_connection(code: int) -> None:
    reader = logged_in()
    reader.feed(HEAD.pack(4 + CONTROL_BYTES_MAX + 1, code))
    assert reader.next_event() == Refusal(INVALID, is_last=True)


def test_a_large_send_is_announced_with_all_of_its_metadata_and_nothing_else() -> None:
    """The longest metadata that are possible. One byte more is cut off, so that they cannot be decoded."""
    longest = encode_send_head("s" * 255, "t" * 255, b"k" * 255, 1)
    assert len(longest) == METADATA_BYTES_MAX
    size = MIB
    for start in (longest, (len(longest) - 3).to_bytes(4, "little") + longest[4:] + b"x"):
        reader = logged_in()
        for byte in HEAD.pack(4 + size, Code.SEND_MESSAGES) + start[: METADATA_BYTES_MAX - 1]:
            reader.feed(bytes([byte]))
            assert reader.next_event() is None
        reader.feed(start[METADATA_BYTES_MAX - 1 :] + bytes(100))
        event = reader.next_event()
        assert event == Announced(Code.SEND_MESSAGES, size, start[:METADATA_BYTES_MAX])
        assert reader.target is None


def test_a_login_counts_for_the_next_frame() -> None:
    reader = FrameReader()
    reader.feed(encode_frame(Code.GET_ME) * 3)
    assert reader.next_event() == Refusal(UNAUTHENTICATED)
    reader.is_logged_in = True
    assert isinstance(reader.next_event(), Frame)
    reader.is_logged_in = False
    assert reader.next_event() == Refusal(UNAUTHENTICATED)


@pytest.mark.parametrize("size", [1024, MIB])
def test_the_rest_of_a_frame_is_received_into_its_own_memory(size: int) -> None:
    reader = logged_in()
    payload = encode_send_head("s", "t", None, 1) + bytes(range(256)) * (size // 256)
    frame = encode_frame(Code.SEND_MESSAGES, payload)
    reader.feed(frame[:100])
    event = reader.next_event()
    if isinstance(event, Announced):
        reader.accept(memoryview(bytearray(event.size)))
        event = reader.next_event()
    assert event is None
    assert reader.held_bytes == 100 - HEAD.size
    target = reader.target
    assert target is not None
    assert len(target) == len(frame) - 100
    target[:] = frame[100:]
    reader.note_filled(len(target))
    event = reader.next_event()
    assert isinstance(event, Frame)
    assert bytes(event.payload) == payload
    assert not event.payload.readonly
