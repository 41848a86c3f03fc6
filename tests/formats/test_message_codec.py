"""Compression: round trips, and no frame expands to more than the limit."""

import gzip
import sys
import threading
import zlib
from typing import Final

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BadFrame, StartRefused
from topics.formats.message_codec import Codec
from topics.stream_errors import StreamsError, StreamStatus

COMPRESSING: Final = (Codec.GZIP, Codec.LZ4, Codec.ZSTD)


def test_codes_and_names_are_those_of_the_wire() -> None:
    assert [(codec.code, codec.value) for codec in Codec] == [(1, "none"), (2, "gzip"), (3, "lz4"), (4, "zstd")]
    for codec in Codec:
        assert Codec.from_code(codec.code) is codec
        assert Codec.from_name(codec.value.title()) is codec


@pytest.mark.parametrize("code", [0, 5, 255])
def test_other_codes_are_refused(code: int) -> None:
    with pytest.raises(StreamsError) as refused:
        Codec.from_code(code)
    assert refused.value.number is StreamStatus.INVALID_COMMAND


@pytest.mark.parametrize("name", ["", "snappy", "gzip "])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(StreamsError) as refused:
        Codec.from_name(name)
    assert refused.value.number is StreamStatus.INVALID_COMMAND


@given(data=st.binary(max_size=300) | st.builds(lambda size: bytes(range(256)) * size, st.integers(0, 300)))
@pytest.mark.parametrize("codec", Codec)
def test_payloads_come_back(codec: Codec, data: bytes) -> None:
    compressed = codec.compress(memoryview(data))
    assert bytes(codec.expand(memoryview(compressed), len(data))) == data


@pytest.mark.parametrize("codec", COMPRESSING)
def test_payloads_that_repeat_get_shorter(codec: Codec) -> None:
    assert len(codec.compress(b"payload " * 1000)) < 300


def test_others_can_read_our_frames() -> None:
    data = b"payload " * 100
    assert gzip.decompress(Codec.GZIP.compress(data)) == data
    assert lz4.frame.decompress(Codec.LZ4.compress(data)) == data
    assert zstandard.decompress(Codec.ZSTD.compress(data)) == data


def refusal(codec: Codec, data: bytes, bytes_max: int) -> StreamsError:
    with pytest.raises(StreamsError) as refused:
        codec.expand(data, bytes_max)
    assert refused.value.number is StreamStatus.CANNOT_READ_MESSAGE
    return refused.value


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_frame_that_expands_beyond_the_limit_is_refused(codec: Codec) -> None:
    bomb = codec.compress(bytes(10_000_000))
    assert len(codec.expand(bomb, 10_000_000)) == 10_000_000
    assert "expands to" in str(refusal(codec, bytes(bomb), 9_999_999))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_frame_that_is_cut_is_refused(codec: Codec) -> None:
    frame = bytes(codec.compress(b"payload " * 10))
    for length in range(len(frame)):
        refusal(codec, frame[:length], 1000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_behind_a_frame_are_refused(codec: Codec) -> None:
    frame = bytes(codec.compress(b"payload"))
    refusal(codec, frame + b"x", 1000)
    refusal(codec, frame + frame, 1000)


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=60), flipped=st.integers(0, 10_000))
def test_any_bytes_expand_within_the_limit_or_are_refused(codec: Codec, data: bytes, flipped: int) -> None:
    frame = bytearray(codec.compress(data))
    frame[flipped // 8 % len(frame)] ^= 1 << flipped % 8
    for suspect in (data, bytes(frame)):
        try:
            expanded = codec.expand(suspect, 1000)
        except StreamsError:
            refusal(codec, suspect, 1000)
        else:
            assert len(expanded) <= 1000


def test_a_zstd_frame_that_claims_a_terabyte_is_refused() -> None:
    claim = bytes.fromhex("28b52ffd e0") + (2**40).to_bytes(8, "little") + bytes.fromhex("010000")
    assert zstandard.frame_content_size(claim) == 2**40
    refusal(Codec.ZSTD, claim, 64_000_000)


def test_a_zstd_frame_that_does_not_tell_its_size_is_refused() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    refusal(Codec.ZSTD, compressor.compress(b"payload"), 1000)


def test_an_lz4_frame_that_holds_more_than_it_claims_is_refused() -> None:
    small = bytearray(lz4.frame.compress(bytes(100)))
    large = lz4.frame.compress(bytes(5_000_000), store_size=False)
    # The descriptor of the small frame, which says 100 bytes, before the blocks of the large one.
    assert small[4] & 0x08
    refusal(Codec.LZ4, bytes(small[:15]) + large[7:], 64_000_000)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_threads_compress_and_expand_at_once(codec: Codec) -> None:
    """The libraries release the interpreter's lock for payloads of this size, so the threads really run at once."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        data = zlib.compress(str(seed).encode() * 1000, 0) * 30
        wrong.extend(seed for _ in range(20) if codec.expand(codec.compress(data), len(data)) != data)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(("codec", "package"), [(Codec.LZ4, "lz4"), (Codec.ZSTD, "zstandard")])
def test_a_missing_package_is_named_with_its_extra(codec: Codec, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec.load()
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(StartRefused) as refused:
        codec.load()
    assert str(refused.value) == (
        f"compression with {codec.value} needs the package {package}: pip install 'topics-log[streams]'"
    )


def test_gzip_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for codec in (Codec.NONE, Codec.GZIP):
        codec.load()
        assert codec.expand(codec.compress(b"x"), 1) == b"x"


def test_a_file_names_its_codec_to_the_byte() -> None:
    for codec in Codec:
        assert Codec.from_file(codec.value.encode()) is codec
    for content in (b"", b"zstd\n", b"ZSTD", b"snappy"):
        with pytest.raises(BadFrame, match="expected one of none, gzip, lz4, zstd, found b'"):
            Codec.from_file(content)
