# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: nonecheck=False, embedsignature=False, binding=False
"""The compiled form of `plain_record_text`: the same functions, the same results.

Records that need more than copying (labels with escapes, a meta) are cut by the functions that the plain form uses. For
records that are wrong, the functions here give up and the plain form says what is wrong.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

import msgspec

from topics.errors import BadFrame
from topics.formats.envelope import split
from topics.protocol import plain_record_text

cdef enum:
    CORE_HEADER_BYTES = 24
    FLAG_TAG = 1
    FLAG_NODE = 2
    OPEN_BYTES = 5
    META_BYTES = 5
    BLOCK_BYTES = 16
    # Names, punctuation and two numbers.
    FRAME_TEXT_BYTES = 128
    # A byte of a label takes at most six bytes of JSON.
    ESCAPE_BYTES = 6

cdef const uint8_t* OPEN = b'{"d":'
cdef const uint8_t* META = b',"m":'
cdef const uint8_t* DIGIT_PAIRS = (
    b"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657"
    b"585960616263646566676869707172737475767778798081828384858687888990919293949596979899"
)

json_string = msgspec.json.Encoder().encode


cdef class _Writer:
    """Text that grows."""

    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __cinit__(self, Py_ssize_t room):
        self.start = <uint8_t*>malloc(room)
        if self.start == NULL:
            raise MemoryError
        self.size = 0
        self.room = room

    def __dealloc__(self):
        free(self.start)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = self.room
        cdef uint8_t* start
        if self.size + more > room:
            room = 2 * (self.size + more)
            start = <uint8_t*>realloc(self.start, room)
            if start == NULL:
                raise MemoryError
            self.start = start
            self.room = room
        return 0

    cdef inline void add(self, const void* text, Py_ssize_t size) noexcept:
        memcpy(self.start + self.size, text, size)
        self.size += size

    cdef inline void add_number(self, uint64_t number) noexcept:
        cdef uint8_t[20] digits
        cdef int at = 20
        cdef uint64_t rest
        while number >= 100:
            rest = number // 100
            at -= 2
            memcpy(&digits[at], DIGIT_PAIRS + 2 * (number - 100 * rest), 2)
            number = rest
        if number >= 10:
            at -= 2
            memcpy(&digits[at], DIGIT_PAIRS + 2 * number, 2)
        else:
            at -= 1
            digits[at] = 48 + number
        self.add(&digits[at], 20 - at)


cdef inline uint8_t _meta_in_block(const uint8_t* at) noexcept nogil:
    """Whether `,"m":` begins in a block. A loop of a fixed length without a branch: a compiler makes vectors of it."""
    cdef int place
    cdef uint8_t found = 0
    for place in range(BLOCK_BYTES):
        found |= (
            (at[place] == 44)
            & (at[place + 1] == 34)
            & (at[place + 2] == 109)
            & (at[place + 3] == 34)
            & (at[place + 4] == 58)
        )
    return found


cdef inline bint _has_meta(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place = 0, stop = size - META_BYTES + 1
    cdef uint8_t found = 0
    if stop < BLOCK_BYTES:
        for place in range(stop):
            if memcmp(at + place, META, META_BYTES) == 0:
                return True
        return False
    while place < stop - BLOCK_BYTES:
        found |= _meta_in_block(at + place)
        place += BLOCK_BYTES
    # The last block overlaps the one before it.
    return found | _meta_in_block(at + stop - BLOCK_BYTES)


cdef int _add_label(_Writer writer, const uint8_t* label, Py_ssize_t size) except -1:
    """The label as a JSON string."""
    cdef Py_ssize_t place
    cdef bytes text
    for place in range(size):
        if label[place] < 32 or label[place] > 126 or label[place] == 34 or label[place] == 92:
            text = json_string((<const char*>label)[:size].decode("utf-8"))
            writer.add(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
            return 0
    writer.add(b'"', 1)
    writer.add(label, size)
    writer.add(b'"', 1)
    return 0


cdef bint _add_record(
    _Writer writer,
    bytes raw,
    Py_ssize_t flags_at,
    Py_ssize_t core_at,
    bint include_tags,
    bint include_meta,
    bint include_data,
) except -1:
    """Writes one record. False, and nothing of use is written, when the record is wrong."""
    if raw is None:
        return False
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(raw)
    cdef Py_ssize_t raw_bytes = PyBytes_GET_SIZE(raw)
    cdef Py_ssize_t node_at = core_at + CORE_HEADER_BYTES, tag_at, data_at, data_bytes
    cdef uint64_t seq, ts
    cdef uint16_t node_len, tag_len
    cdef bytes data, meta
    if not 0 <= flags_at < core_at or raw_bytes < node_at:
        return False
    memcpy(&seq, at + core_at, 8)
    memcpy(&ts, at + core_at + 8, 8)
    memcpy(&node_len, at + core_at + 16, 2)
    memcpy(&tag_len, at + core_at + 18, 2)
    tag_at = node_at + node_len
    data_at = tag_at + tag_len
    data_bytes = raw_bytes - data_at
    if (
        data_bytes <= OPEN_BYTES + 1
        or memcmp(at + data_at, OPEN, OPEN_BYTES)
        or at[raw_bytes - 1] != 125
        or (node_len and not at[flags_at] & FLAG_NODE)
        or (tag_len and not at[flags_at] & FLAG_TAG)
    ):
        return False
    writer.reserve(FRAME_TEXT_BYTES + raw_bytes + ESCAPE_BYTES * (node_len + tag_len))
    writer.add(b'{"$seq":', 8)
    writer.add_number(seq)
    writer.add(b',"$ts":', 7)
    writer.add_number(ts)
    if at[flags_at] & FLAG_NODE:
        writer.add(b',"$node":', 9)
        _add_label(writer, at + node_at, node_len)
    if include_tags and at[flags_at] & FLAG_TAG:
        writer.add(b',"$tag":', 8)
        _add_label(writer, at + tag_at, tag_len)
    if not _has_meta(at + data_at, data_bytes):
        if include_data:
            writer.add(b',"data":', 8)
            writer.add(at + data_at + OPEN_BYTES, data_bytes - OPEN_BYTES)
        else:
            writer.add(b"}", 1)
        return True
    data, meta = split(raw[data_at:])
    if include_data:
        writer.add(b',"data":', 8)
        writer.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    if meta is not None and include_meta:
        writer.add(b',"meta":', 8)
        writer.add(PyBytes_AS_STRING(meta), PyBytes_GET_SIZE(meta))
    writer.add(b"}", 1)
    return True


def record_texts(
    raws, Py_ssize_t flags_at, Py_ssize_t core_at, bint include_tags, bint include_meta, bint include_data
):
    cdef _Writer writer = _Writer(1024)
    cdef list texts = []
    cdef bytes raw
    try:
        for raw in raws:
            writer.size = 0
            if not _add_record(writer, raw, flags_at, core_at, include_tags, include_meta, include_data):
                break
            texts.append(PyBytes_FromStringAndSize(<char*>writer.start, writer.size))
        else:
            return texts
    except (BadFrame, UnicodeDecodeError):
        pass
    return plain_record_text.record_texts(raws, flags_at, core_at, include_tags, include_meta, include_data)


def joined_texts(
    raws, Py_ssize_t flags_at, Py_ssize_t core_at, bint include_tags, bint include_meta, bint include_data
):
    cdef _Writer writer = _Writer(4096)
    cdef bytes raw
    try:
        for raw in raws:
            if writer.size:
                writer.reserve(1)
                writer.add(b",", 1)
            if not _add_record(writer, raw, flags_at, core_at, include_tags, include_meta, include_data):
                break
        else:
            return PyBytes_FromStringAndSize(<char*>writer.start, writer.size)
    except (BadFrame, UnicodeDecodeError):
        pass
    return plain_record_text.joined_texts(raws, flags_at, core_at, include_tags, include_meta, include_data)
