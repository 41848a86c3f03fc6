"""Frames: any split of the bytes gives the same events, and a head alone takes no memory."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.limits import MIB
from topics.protocol.iggy.codes import CODES, Code
from topics.protocol.iggy.frames import (
    CONTROL_BYTES_MAX,
    HEAD,
    OK_EMPTY,
    OPEN_BYTES_MAX,
    SKIPPED_BYTES_MAX,
    Frame,
    FrameReader,
    Refusal,
    encode_answer,
    encode_error,
    encode_frame,
)
from topics.stream_errors import StreamStatus

INVALID = StreamStatus.INVALID_COMMAND
UNAUTHENTICATED = StreamStatus.UNAUTHENTICATED


class Memory:
    """Notes the memory that a reader asks for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def allocate(self, size: int) -> memoryview:
        self.sizes.append(size)
        return memoryview(bytearray(size))


def events_of(pieces: list[bytes], *, is_logged_in: bool = True) -> list[tuple[int, bytes] | Refusal]:
    """The events of a reader that receives one piece after the other, as a connection does."""
    reader = FrameReader(Memory().allocate)
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
def test_a_huge_length_before_a_login_takes_no_memory(code: int) -> None:
    memory = Memory()
    reader = FrameReader(memory.allocate)
    reader.feed(HEAD.pack(2**32 - 1, code))
    event = reader.next_event()
    assert isinstance(event, Refusal)
    assert event == Refusal(UNAUTHENTICATED if code == Code.SEND_MESSAGES else INVALID, is_last=True)
    assert memory.sizes == []


@pytest.mark.parametrize("code", sorted(CODES))
def test_before_a_login_only_small_frames_are_kept(code: int) -> None:
    """Everything else is skipped: the connection stays in step, and no memory is taken."""
    is_open = code in (Code.PING, Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN)
    for size in (0, 1, OPEN_BYTES_MAX, OPEN_BYTES_MAX + 1, 100_000):
        memory = Memory()
        reader = FrameReader(memory.allocate)
        reader.feed(encode_frame(code, bytes(size)) + encode_frame(Code.PING))
        event = reader.next_event()
        if is_open and size <= OPEN_BYTES_MAX:
            assert isinstance(event, Frame)
            assert memory.sizes == [size]
        else:
            assert event == Refusal(INVALID if is_open else UNAUTHENTICATED)
            assert memory.sizes == []
        ping = reader.next_event()
        assert isinstance(ping, Frame)
        assert (ping.code, bytes(ping.payload)) == (Code.PING, b"")


def test_a_refused_send_is_skipped_up_to_a_limit() -> None:
    for size, is_last in ((SKIPPED_BYTES_MAX, False), (SKIPPED_BYTES_MAX + 1, True)):
        reader = FrameReader(Memory().allocate)
        reader.feed(HEAD.pack(4 + size, Code.SEND_MESSAGES))
        event = reader.next_event()
        assert event == (Refusal(UNAUTHENTICATED, is_last=True) if is_last else None)
        if not is_last:
            for _ in range(SKIPPED_BYTES_MAX // MIB - 1):
                reader.feed(bytes(MIB))
                assert reader.next_event() is None
            reader.feed(bytes(MIB) + encode_frame(Code.PING))
            assert reader.next_event() == Refusal(UNAUTHENTICATED)
            assert isinstance(reader.next_event(), Frame)


def test_only_a_send_may_be_larger_than_control_frames() -> None:
    for code, size, is_refused in (
        (Code.CREATE_USER, CONTROL_BYTES_MAX, False),
        (Code.CREATE_USER, CONTROL_BYTES_MAX + 1, True),
        (Code.SEND_MESSAGES, CONTROL_BYTES_MAX + 1, False),
        (999, CONTROL_BYTES_MAX + 1, True),
    ):
        reader = FrameReader(Memory().allocate)
        reader.is_logged_in = True
        reader.feed(HEAD.pack(4 + size, code))
        assert reader.next_event() == (Refusal(INVALID, is_last=True) if is_refused else None)
        assert (reader.target is None) == is_refused


def test_a_login_counts_for_the_next_frame() -> None:
    reader = FrameReader(Memory().allocate)
    reader.feed(encode_frame(Code.GET_ME) * 3)
    assert reader.next_event() == Refusal(UNAUTHENTICATED)
    reader.is_logged_in = True
    assert isinstance(reader.next_event(), Frame)
    reader.is_logged_in = False
    assert reader.next_event() == Refusal(UNAUTHENTICATED)


def test_the_rest_of_a_large_frame_is_received_into_its_own_memory() -> None:
    reader = FrameReader(Memory().allocate)
    reader.is_logged_in = True
    frame = encode_frame(Code.SEND_MESSAGES, bytes(range(256)) * 4)
    reader.feed(frame[:100])
    assert reader.next_event() is None
    target = reader.target
    assert target is not None
    assert len(target) == len(frame) - 100
    target[:] = frame[100:]
    reader.note_filled(len(target))
    event = reader.next_event()
    assert isinstance(event, Frame)
    assert bytes(event.payload) == bytes(range(256)) * 4
    assert not event.payload.readonly
