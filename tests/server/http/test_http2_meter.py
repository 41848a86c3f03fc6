"""The counting of frames without a connection. Its effects are tested over a socket, in `test_http2.py`."""

import pytest
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame
from hypothesis import given
from hypothesis import strategies as st

from topics.server.http.http2_meter import H2_PREFACE, Flood, FrameMeter, OversizedFrame
from topics.server.limits import (
    H2_FRAMES_PER_TURN,
    H2_IDLE_FRAMES_MAX,
    H2_IDLE_FRAMES_PER_S,
    H2_RESETS_MAX,
    H2_RESETS_S,
)

PING = PingFrame(0, opaque_data=b"12345678").serialize()
RESET = RstStreamFrame(1, error_code=8).serialize()


def opened(now_s: float = 0.0) -> FrameMeter:
    meter = FrameMeter(now_s)
    assert meter.measure(H2_PREFACE, now_s) == len(H2_PREFACE)
    return meter


def take(meter: FrameMeter, data: bytes, now_s: float = 0.0) -> None:
    """Measures all of the data, in as many turns as it takes."""
    while data:
        passed = meter.measure(data, now_s)
        assert passed > 0
        data = data[passed:]


def test_pings_are_forgiven_with_time() -> None:
    meter = opened()
    take(meter, PING * H2_IDLE_FRAMES_MAX, 0.0)
    take(meter, PING * H2_IDLE_FRAMES_PER_S, 1.0)
    with pytest.raises(Flood):
        take(meter, PING, 1.0)


def test_requests_and_answers_earn_frames() -> None:
    meter = opened()
    for _ in range(H2_IDLE_FRAMES_MAX):
        take(meter, PING * 10)
        meter.note_request()
        meter.note_data_sent(256)
    take(meter, PING * (H2_IDLE_FRAMES_MAX - 10))


def test_windows_opened_byte_by_byte_earn_nothing() -> None:
    meter = opened()
    for _ in range(H2_IDLE_FRAMES_MAX):
        take(meter, PING)
        meter.note_data_sent(1)
    with pytest.raises(Flood):
        take(meter, PING)


def test_resets_are_counted_for_a_while() -> None:
    meter = opened()
    take(meter, RESET * H2_RESETS_MAX, 0.0)
    take(meter, RESET * H2_RESETS_MAX, H2_RESETS_S + 1)
    with pytest.raises(Flood):
        take(meter, RESET, H2_RESETS_S + 1)


def test_a_long_frame_is_refused_by_its_head() -> None:
    with pytest.raises(OversizedFrame):
        take(opened(), b"\x00\x40\x01\x00\x00\x00\x00\x00\x01")


def test_a_turn_has_few_frames() -> None:
    meter = opened()
    frames = PING * (H2_FRAMES_PER_TURN + 1)
    assert meter.measure(frames, 0.0) == H2_FRAMES_PER_TURN * len(PING)


def test_it_is_known_whether_a_head_is_on_its_way() -> None:
    meter = opened()
    whole = HeadersFrame(1, data=b"abc", flags=["END_HEADERS"]).serialize()
    assert not meter.is_in_head
    take(meter, whole)
    assert not meter.is_in_head
    take(meter, whole[:-1])
    assert meter.is_in_head
    take(meter, whole[-1:])
    assert not meter.is_in_head
    take(meter, HeadersFrame(3, data=b"abc").serialize())
    assert meter.is_in_head
    take(meter, ContinuationFrame(3, data=b"def").serialize())
    assert meter.is_in_head
    take(meter, ContinuationFrame(3, flags=["END_HEADERS"]).serialize())
    assert not meter.is_in_head


FRAMES: list[Frame] = [
    PingFrame(0, opaque_data=b"12345678"),
    DataFrame(1, data=b"x" * 500),
    HeadersFrame(1, data=b"abc", flags=["END_HEADERS"]),
    HeadersFrame(1),
    ContinuationFrame(1, data=b"x" * 20),
    RstStreamFrame(1),
]


@given(st.lists(st.sampled_from(FRAMES), max_size=30), st.lists(st.integers(1, 300), min_size=1))
def test_any_split_of_the_input_counts_the_same(frames: list[Frame], sizes: list[int]) -> None:
    data = H2_PREFACE + b"".join(frame.serialize() for frame in frames)
    whole, split = FrameMeter(0.0), FrameMeter(0.0)
    take(whole, data)
    unfed = b""
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        unfed, data = unfed + data[:size], data[size:]
        turn += 1
        while split.can_measure(unfed):
            unfed = unfed[split.measure(unfed, 0.0) :]
    assert unfed == b""
    assert vars(split) == vars(whole)
