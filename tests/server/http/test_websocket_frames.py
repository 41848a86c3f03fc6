"""The cutter changes heads only: the library reads the same messages, and refuses the same frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.server.http.websocket_frames import PIECE_BYTES, FrameCutter

MAX_BYTES = 3 * PIECE_BYTES
SIZES = (0, 1, 125, 126, 65_535, 65_536, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 3)

messages = st.lists(st.tuples(st.sampled_from(SIZES), st.booleans(), st.booleans()), max_size=4)


def client_text(sizes: list[tuple[int, bool, bool]]) -> bytes:
    """Frames of a client: (size, whether the message goes on, whether a ping comes before it)."""
    frames: list[bytes] = []
    goes_on = False
    for number, (size, has_more, has_ping) in enumerate(sizes):
        if has_ping:
            frames.append(Frame(Opcode.PING, b"p%d" % number).serialize(mask=True))
        opcode = Opcode.CONT if goes_on else Opcode.BINARY
        data = bytes([number + 1]) * size
        frames.append(Frame(opcode, data, fin=not has_more).serialize(mask=True))
        goes_on = has_more
    return b"".join(frames)


def read(text: bytes, steps: list[int], cutter: FrameCutter | None) -> tuple[list[tuple[bytes, bool]], int | None]:
    """(messages and pings, with whether each is a message; the close code of a refusal)."""
    protocol = ServerProtocol(state=State.OPEN, max_size=MAX_BYTES)
    found: list[tuple[bytes, bool]] = []
    parts: list[bytes] = []
    at = number = 0
    while at < len(text):
        size = steps[number % len(steps)]
        step = text[at : at + size]
        protocol.receive_data(step if cutter is None else cutter.cut(step))
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode in (Opcode.PING, Opcode.CLOSE):
                found.append((bytes(frame.data), False))
                continue
            parts.append(bytes(frame.data))
            assert cutter is None or len(frame.data) <= PIECE_BYTES
            if frame.fin:
                found.append((b"".join(parts), True))
                parts = []
        at += size
        number += 1
    return found, protocol.close_sent.code if protocol.close_sent else None


@given(sizes=messages, steps=st.lists(st.integers(1, 300_000), min_size=1, max_size=4))
def test_any_split_of_the_bytes_gives_the_same_messages(sizes: list[tuple[int, bool, bool]], steps: list[int]) -> None:
    text = client_text(sizes)
    # Single bytes are slow for large frames, and say no more than a few hundred.
    steps = [max(step, len(text) // 1000 + 1) for step in steps]
    assert read(text, steps, FrameCutter(MAX_BYTES)) == read(text, [len(text) + 1], None)


@pytest.mark.parametrize(
    "text",
    [
        bytes([0x82, 0x7F]) + bytes(8),
        bytes([0x83, 0x80]) + bytes(4),
        bytes([0xC2, 0xFF]) + (PIECE_BYTES + 1).to_bytes(8, "big") + bytes(4 + PIECE_BYTES + 1),
        bytes([0x82, 0xFF]) + (MAX_BYTES + 1).to_bytes(8, "big") + bytes(4),
        bytes([0x89, 0xFF]) + (PIECE_BYTES + 1).to_bytes(8, "big") + bytes(4 + PIECE_BYTES + 1),
        bytes([0x80, 0x81]) + bytes(5),
        bytes([0x02, 0x81]) + bytes(5) + bytes([0x80, 0xFF]) + MAX_BYTES.to_bytes(8, "big") + bytes(4),
    ],
    ids=["unmasked", "opcode", "reserved bit", "too large", "large ping", "no first fragment", "too large together"],
)
@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_a_frame_that_the_library_refuses_is_refused_as_before(text: bytes, step: int) -> None:
    step = max(step, len(text) // 1000)
    found, code = read(text, [step], FrameCutter(MAX_BYTES))
    assert (found, code) == read(text, [step], None)
    assert code is not None
