"""Compression of payloads: each payload is one frame.

The libraries are imported at the first use, so that a program without compression does not need them.
"""

import zlib
from collections.abc import Callable
from enum import Enum
from typing import Any

from topics.errors import BadFrame, StartRefused
from topics.formats.buffers import Buffer
from topics.stream_errors import StreamsError, StreamStatus

_GZIP_WBITS = 31
_GZIP_LEVEL = 6

# Compressors of zstandard serve one thread at a time and are slow to create. A caller takes one off the list and puts
# it back when done. `pop` and `append` of a list are atomic, so no lock is needed.
_idle_compressors: list[Any] = []
_idle_decompressors: list[Any] = []


class Codec(Enum):
    """The value is the name in settings and `.codec` files; `code` is the number on the wire and in the state log."""

    NONE = "none"
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def code(self) -> int:
        return _CODES[self]

    @classmethod
    def from_code(cls, code: int) -> "Codec":
        for codec, number in _CODES.items():
            if number == code:
                return codec
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"compression is 1, 2, 3 or 4, not {code}")

    @classmethod
    def from_name(cls, name: str) -> "Codec":
        try:
            return cls(name.lower())
        except ValueError:
            raise StreamsError(
                StreamStatus.INVALID_COMMAND, f"compression is none, gzip, lz4 or zstd, not {name!r}"
            ) from None

    @classmethod
    def from_file(cls, content: Buffer) -> "Codec":
        """The codec that a `.codec` file names. A segment without the file has `NONE`."""
        for codec in cls:
            if codec.value.encode("ascii") == content:
                return codec
        known = ", ".join(codec.value for codec in cls)
        raise BadFrame(f"expected one of {known}, found {bytes(content[:40])!r}")

    def load(self) -> None:
        """Imports the package of the codec, so that a missing one is found at a start and not at a send."""
        if self is Codec.LZ4:
            _lz4_frame()
        elif self is Codec.ZSTD:
            _zstandard()

    def compress(self, data: Buffer) -> Buffer:
        """One frame, even if it is longer than the data."""
        if self is Codec.GZIP:
            return _compress_gzip(data)
        if self is Codec.LZ4:
            frame: bytes = _lz4_frame().compress(data)
            return frame
        if self is Codec.ZSTD:
            compressor = _take(_idle_compressors, _zstandard().ZstdCompressor)
            packed: bytes = compressor.compress(data)
            _idle_compressors.append(compressor)
            return packed
        return data

    def expand(self, data: Buffer, bytes_max: int) -> Buffer:
        """The data that `compress` was given. Raises, without expanding further, if it is longer than `bytes_max`."""
        if self is Codec.GZIP:
            return _expand_gzip(data, bytes_max)
        if self is Codec.LZ4:
            return _expand_lz4(data, bytes_max)
        if self is Codec.ZSTD:
            return _expand_zstd(data, bytes_max)
        return data


_CODES = {Codec.NONE: 1, Codec.GZIP: 2, Codec.LZ4: 3, Codec.ZSTD: 4}


def _take(idle: list[Any], make: Callable[[], Any]) -> Any:
    try:
        return idle.pop()
    except IndexError:
        return make()


def _compress_gzip(data: Buffer) -> bytes:
    # The window is no larger than the payload needs: for 100 bytes, setting up the usual 256 KiB takes most of the
    # time.
    size_bits = len(data).bit_length()
    window_bits = min(max(size_bits, 9), zlib.MAX_WBITS)
    memory_level = min(max(size_bits - 6, 1), zlib.DEF_MEM_LEVEL)
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 16 + window_bits, memory_level)
    return compressor.compress(data) + compressor.flush()


def _expand_gzip(data: Buffer, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WBITS)
    try:
        # One byte more than allowed shows that the data is too long.
        expanded = decompressor.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _unreadable("gzip", str(error)) from error
    return _whole_frame("gzip", decompressor, expanded, bytes_max)


def _expand_lz4(data: Buffer, bytes_max: int) -> bytes:
    frame = _lz4_frame()
    decompressor = frame.LZ4FrameDecompressor()
    try:
        # The decompressor allocates `max_length`, 64 MB for a small payload. So the size in the frame limits it.
        size: int = frame.get_frame_info(data)["content_size"]
        expanded: bytes = decompressor.decompress(data, max_length=min(size, bytes_max) + 1)
    except (RuntimeError, EOFError) as error:
        raise _unreadable("lz4", str(error)) from error
    return _whole_frame("lz4", decompressor, expanded, min(size, bytes_max))


def _whole_frame(name: str, decompressor: Any, expanded: bytes, bytes_max: int) -> bytes:
    if len(expanded) > bytes_max:
        raise _unreadable(name, f"it expands to more than {bytes_max} bytes")
    if not decompressor.eof:
        raise _unreadable(name, "it ends inside its frame")
    if decompressor.unused_data:
        raise _unreadable(name, "there are bytes after its frame")
    return expanded


def _expand_zstd(data: Buffer, bytes_max: int) -> bytes:
    zstandard = _zstandard()
    # The library uses the size in the frame and ignores the limit, so the size is checked first. Frames that `compress`
    # made always have a size.
    try:
        size: int = zstandard.frame_content_size(data)
        if not 0 <= size <= bytes_max:
            raise _unreadable("zstd", f"it expands to {'an unknown number of' if size < 0 else size} bytes")
        decompressor = _take(_idle_decompressors, zstandard.ZstdDecompressor)
        expanded: bytes = decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
        _idle_decompressors.append(decompressor)
    except zstandard.ZstdError as error:
        raise _unreadable("zstd", str(error)) from error
    return expanded


def _unreadable(name: str, why: str) -> StreamsError:
    return StreamsError(StreamStatus.CANNOT_READ_MESSAGE, f"a payload is not the {name} frame it should be: {why}")


def _lz4_frame() -> Any:
    try:
        import lz4.frame  # type: ignore[import-untyped]
    except ImportError as error:
        raise StartRefused("compression with lz4 needs the package lz4: pip install 'topics-log[streams]'") from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StartRefused(
            "compression with zstd needs the package zstandard: pip install 'topics-log[streams]'"
        ) from error
    return zstandard
