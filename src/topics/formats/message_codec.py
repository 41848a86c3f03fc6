"""Compression of payloads, one self-contained frame each.

The libraries are imported at the first use: who meets no compression needs none of them.
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

# Those of zstandard serve one thread at a time and take long to make: who needs one takes it off its list, and puts
# it back when done. Both are single steps of a list, which any threads may take at once.
_idle_compressors: list[Any] = []
_idle_decompressors: list[Any] = []


class Codec(Enum):
    """The value is the name that settings and `.codec` files use; `code` stands on the wire and in the state log."""

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
        """The one that a `.codec` file names. No such file is `NONE`."""
        for codec in cls:
            if codec.value.encode("ascii") == content:
                return codec
        known = ", ".join(codec.value for codec in cls)
        raise BadFrame(f"expected one of {known}, found {bytes(content[:40])!r}")

    def load(self) -> None:
        """Imports what this codec needs, so that a missing package is found at the start and not at a send."""
        if self is Codec.LZ4:
            _lz4_frame()
        elif self is Codec.ZSTD:
            _zstandard()

    def compress(self, data: Buffer) -> Buffer:
        """A frame of its own, also when that is longer than the data."""
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
        """What `compress` was given. Never makes more than `bytes_max`, whatever a frame promises or holds."""
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
    # No larger window than the payload needs: at 100 bytes setting up the usual 256 KiB would take most of the time.
    size_bits = len(data).bit_length()
    window_bits = min(max(size_bits, 9), zlib.MAX_WBITS)
    memory_level = min(max(size_bits - 6, 1), zlib.DEF_MEM_LEVEL)
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 16 + window_bits, memory_level)
    return compressor.compress(data) + compressor.flush()


def _expand_gzip(data: Buffer, bytes_max: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WBITS)
    try:
        # One byte more than allowed tells "too long" from "just right".
        expanded = decompressor.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _unreadable("gzip", str(error)) from error
    return _whole_frame("gzip", decompressor, expanded, bytes_max)


def _expand_lz4(data: Buffer, bytes_max: int) -> bytes:
    frame = _lz4_frame()
    decompressor = frame.LZ4FrameDecompressor()
    try:
        # The decompressor allocates all that it may make, 64 MB for each small payload: our frames say how much it is.
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
        raise _unreadable(name, "there are bytes behind its frame")
    return expanded


def _expand_zstd(data: Buffer, bytes_max: int) -> bytes:
    zstandard = _zstandard()
    # The library believes the size in the frame over any limit that it is given, so that size is judged first.
    # Our frames always have one.
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
        raise StartRefused("compression with lz4 needs the package lz4: pip install 'topics[streams]'") from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StartRefused(
            "compression with zstd needs the package zstandard: pip install 'topics[streams]'"
        ) from error
    return zstandard
