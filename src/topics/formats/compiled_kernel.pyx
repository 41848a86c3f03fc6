# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: nonecheck=False, embedsignature=False, binding=False
"""The compiled form of `plain_kernel`: the same functions, the same results, nothing else.

`plain_kernel` says what each function does. Layouts are in `record_layout`, `wal_frame` and `segment_index`. Their
numbers are repeated here as C constants, because C cannot take them from there.

The checksum is XXH3-64 without a seed, written from the published description of the algorithm. A call of the package
`xxhash` takes a Python object for the bytes and gives one for the result, which costs more than the hash.

Numbers of frames are copied as they are in memory, so this module is for little-endian machines only.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

import array as _arrays
from struct import error as StructError

import sys

from xxhash import xxh3_64_intdigest

if sys.byteorder != "little":
    raise ModuleNotFoundError("the compiled kernel is for little-endian machines")

cdef extern from *:
    """
    typedef unsigned __int128 topics_u128;
    """
    ctypedef unsigned long long topics_u128

# The layout of frames.

cdef enum:
    FRAME_LEN_BYTES = 4
    CHECKSUM_BYTES = 8
    CORE_HEADER_BYTES = 24
    WAL_CORE_AT = 10
    WAL_BODY_HEADER_BYTES = 34
    WAL_HEADER_BYTES = 38
    WAL_FRAME_LEN_MIN = 42
    WAL_TYPE_LAST = 14
    WAL_TYPE_APPEND = 1
    WAL_TYPE_SYNC = 13
    WAL_FLAGS_KNOWN = 31
    FLAG_TAG = 1
    FLAG_NODE = 2
    FLAG_MORE = 8
    FLAG_FIRST = 16
    SEGMENT_HEADER_BYTES = 29
    SEGMENT_TRAILER_BYTES = 9
    SEGMENT_OVERHEAD_BYTES = 38
    # How much longer the WAL frame of a record is than its segment frame.
    WAL_TO_SEGMENT_BYTES = 8
    ENTRY_BYTES = 20
    DELETED = 0xD5
    # Longer inputs are given to the package `xxhash`.
    PACKAGE_BYTES_MIN = 4096
    TEXT_BYTES_MIN = 5
    SEARCH_BLOCK_BYTES = 4096
    # Messages of the partitioned engine, and their index entries.
    MESSAGE_HEADER_BYTES = 64
    MESSAGE_ID_AT = 8
    MESSAGE_OFFSET_AT = 24
    MESSAGE_TIMESTAMP_AT = 32
    MESSAGE_USER_HEADERS_LENGTH_AT = 48
    MESSAGE_PAYLOAD_LENGTH_AT = 52
    MESSAGE_RESERVED_AT = 56
    MESSAGE_ENTRY_BYTES = 16
    PAYLOAD_BYTES_MAX = 64000000
    USER_HEADERS_BYTES_MAX = 100000
    SEED_BYTES = 16
    ENVELOPE_OPEN_BYTES = 5
    # Numbers that may overflow a double.
    EXPONENT_DIGITS = 3
    NUMBER_DIGITS = 200

cdef array.array _I64 = _arrays.array("q")
cdef array.array _U64 = _arrays.array("Q")
cdef array.array _U32 = _arrays.array("I")
cdef array.array _U16 = _arrays.array("H")


# XXH3-64.

cdef uint8_t[192] SECRET = [
    0xB8, 0xFE, 0x6C, 0x39, 0x23, 0xA4, 0x4B, 0xBE, 0x7C, 0x01, 0x81, 0x2C, 0xF7, 0x21, 0xAD, 0x1C,
    0xDE, 0xD4, 0x6D, 0xE9, 0x83, 0x90, 0x97, 0xDB, 0x72, 0x40, 0xA4, 0xA4, 0xB7, 0xB3, 0x67, 0x1F,
    0xCB, 0x79, 0xE6, 0x4E, 0xCC, 0xC0, 0xE5, 0x78, 0x82, 0x5A, 0xD0, 0x7D, 0xCC, 0xFF, 0x72, 0x21,
    0xB8, 0x08, 0x46, 0x74, 0xF7, 0x43, 0x24, 0x8E, 0xE0, 0x35, 0x90, 0xE6, 0x81, 0x3A, 0x26, 0x4C,
    0x3C, 0x28, 0x52, 0xBB, 0x91, 0xC3, 0x00, 0xCB, 0x88, 0xD0, 0x65, 0x8B, 0x1B, 0x53, 0x2E, 0xA3,
    0x71, 0x64, 0x48, 0x97, 0xA2, 0x0D, 0xF9, 0x4E, 0x38, 0x19, 0xEF, 0x46, 0xA9, 0xDE, 0xAC, 0xD8,
    0xA8, 0xFA, 0x76, 0x3F, 0xE3, 0x9C, 0x34, 0x3F, 0xF9, 0xDC, 0xBB, 0xC7, 0xC7, 0x0B, 0x4F, 0x1D,
    0x8A, 0x51, 0xE0, 0x4B, 0xCD, 0xB4, 0x59, 0x31, 0xC8, 0x9F, 0x7E, 0xC9, 0xD9, 0x78, 0x73, 0x64,
    0xEA, 0xC5, 0xAC, 0x83, 0x34, 0xD3, 0xEB, 0xC3, 0xC5, 0x81, 0xA0, 0xFF, 0xFA, 0x13, 0x63, 0xEB,
    0x17, 0x0D, 0xDD, 0x51, 0xB7, 0xF0, 0xDA, 0x49, 0xD3, 0x16, 0x55, 0x26, 0x29, 0xD4, 0x68, 0x9E,
    0x2B, 0x16, 0xBE, 0x58, 0x7D, 0x47, 0xA1, 0xFC, 0x8F, 0xF8, 0xB8, 0xD1, 0x7A, 0xD0, 0x31, 0xCE,
    0x45, 0xCB, 0x3A, 0x8F, 0x95, 0x16, 0x04, 0x28, 0xAF, 0xD7, 0xFB, 0xCA, 0xBB, 0x4B, 0x40, 0x7E,
]

cdef enum:
    SECRET_BYTES = 192
    STRIPE_BYTES = 64
    BLOCK_STRIPES = 16
    BLOCK_BYTES = 1024

cdef uint64_t PRIME32_1 = 0x9E3779B1
cdef uint64_t PRIME32_2 = 0x85EBCA77
cdef uint64_t PRIME32_3 = 0xC2B2AE3D
cdef uint64_t PRIME64_1 = 0x9E3779B185EBCA87
cdef uint64_t PRIME64_2 = 0xC2B2AE3D27D4EB4F
cdef uint64_t PRIME64_3 = 0x165667B19E3779F9
cdef uint64_t PRIME64_4 = 0x85EBCA77C2B2AE63
cdef uint64_t PRIME64_5 = 0x27D4EB2F165667C5


cdef inline uint16_t _u16(const uint8_t* at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef inline uint32_t _u32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t _u64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline uint64_t _rotate_left(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline uint64_t _swap_bytes(uint64_t value) noexcept nogil:
    value = ((value & 0x00FF00FF00FF00FFU) << 8) | ((value >> 8) & 0x00FF00FF00FF00FFU)
    value = ((value & 0x0000FFFF0000FFFFU) << 16) | ((value >> 16) & 0x0000FFFF0000FFFFU)
    return (value << 32) | (value >> 32)


cdef inline uint64_t _fold(uint64_t left, uint64_t right) noexcept nogil:
    """Both halves of the 128-bit product, combined."""
    cdef topics_u128 product = <topics_u128>left * right
    return <uint64_t>product ^ <uint64_t>(product >> 64)


cdef inline uint64_t _mix(const uint8_t* at, const uint8_t* secret) noexcept nogil:
    """16 bytes of the input with 16 bytes of the secret."""
    return _fold(_u64(at) ^ _u64(secret), _u64(at + 8) ^ _u64(secret + 8))


cdef inline uint64_t _spread(uint64_t value) noexcept nogil:
    value ^= value >> 37
    value *= 0x165667919E3779F9U
    return value ^ (value >> 32)


cdef inline uint64_t _spread_short(uint64_t value) noexcept nogil:
    value ^= value >> 33
    value *= PRIME64_2
    value ^= value >> 29
    value *= PRIME64_3
    return value ^ (value >> 32)


cdef uint64_t _hash_to_16(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value, low, high
    if size > 8:
        low = _u64(at) ^ _u64(SECRET + 24) ^ _u64(SECRET + 32)
        high = _u64(at + size - 8) ^ _u64(SECRET + 40) ^ _u64(SECRET + 48)
        return _spread(<uint64_t>size + _swap_bytes(low) + high + _fold(low, high))
    if size >= 4:
        value = _u32(at + size - 4) + (<uint64_t>_u32(at) << 32)
        value ^= _u64(SECRET + 8) ^ _u64(SECRET + 16)
        value ^= _rotate_left(value, 49) ^ _rotate_left(value, 24)
        value *= 0x9FB21C651E98DF25U
        value ^= (value >> 35) + <uint64_t>size
        value *= 0x9FB21C651E98DF25U
        return value ^ (value >> 28)
    if size > 0:
        value = (<uint64_t>at[0] << 16) | (<uint64_t>at[size >> 1] << 24) | at[size - 1] | (<uint64_t>size << 8)
        return _spread_short(value ^ _u32(SECRET) ^ _u32(SECRET + 4))
    return _spread_short(_u64(SECRET + 56) ^ _u64(SECRET + 64))


cdef inline uint64_t _hash_to_128(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = <uint64_t>size * PRIME64_1
    cdef const uint8_t* end = at + size
    if size > 32:
        if size > 64:
            if size > 96:
                value += _mix(at + 48, SECRET + 96) + _mix(end - 64, SECRET + 112)
            value += _mix(at + 32, SECRET + 64) + _mix(end - 48, SECRET + 80)
        value += _mix(at + 16, SECRET + 32) + _mix(end - 32, SECRET + 48)
    value += _mix(at, SECRET) + _mix(end - 16, SECRET + 16)
    return _spread(value)


cdef inline uint64_t _hash_to_240(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t value = <uint64_t>size * PRIME64_1
    cdef Py_ssize_t place
    for place in range(8):
        value += _mix(at + 16 * place, SECRET + 16 * place)
    value = _spread(value)
    for place in range(8, size // 16):
        value += _mix(at + 16 * place, SECRET + 16 * (place - 8) + 3)
    value += _mix(at + size - 16, SECRET + 136 - 17)
    return _spread(value)


cdef inline void _take_stripe(uint64_t* lanes, const uint8_t* at, const uint8_t* secret) noexcept nogil:
    cdef int lane
    cdef uint64_t value, keyed
    for lane in range(8):
        value = _u64(at + 8 * lane)
        keyed = value ^ _u64(secret + 8 * lane)
        lanes[lane ^ 1] += value
        lanes[lane] += (keyed & 0xFFFFFFFFU) * (keyed >> 32)


cdef uint64_t _hash_long(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef uint64_t[8] lanes
    cdef uint64_t value
    cdef int lane, stripe
    cdef Py_ssize_t block, block_count = (size - 1) // BLOCK_BYTES
    lanes[0], lanes[1], lanes[2], lanes[3] = PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3
    lanes[4], lanes[5], lanes[6], lanes[7] = PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1
    for block in range(block_count):
        for stripe in range(BLOCK_STRIPES):
            _take_stripe(lanes, at + block * BLOCK_BYTES + stripe * STRIPE_BYTES, SECRET + 8 * stripe)
        for lane in range(8):
            value = lanes[lane]
            value ^= value >> 47
            value ^= _u64(SECRET + SECRET_BYTES - STRIPE_BYTES + 8 * lane)
            lanes[lane] = value * PRIME32_1
    for stripe in range((size - 1 - block_count * BLOCK_BYTES) // STRIPE_BYTES):
        _take_stripe(lanes, at + block_count * BLOCK_BYTES + stripe * STRIPE_BYTES, SECRET + 8 * stripe)
    _take_stripe(lanes, at + size - STRIPE_BYTES, SECRET + SECRET_BYTES - STRIPE_BYTES - 7)
    value = <uint64_t>size * PRIME64_1
    for lane in range(4):
        value += _fold(
            lanes[2 * lane] ^ _u64(SECRET + 11 + 16 * lane), lanes[2 * lane + 1] ^ _u64(SECRET + 19 + 16 * lane)
        )
    return _spread(value)


cdef inline uint64_t _hash(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    if size <= 16:
        return _hash_to_16(at, size)
    if size <= 128:
        return _hash_to_128(at, size)
    if size <= 240:
        return _hash_to_240(at, size)
    return _hash_long(at, size)


cdef inline uint64_t _digest(const uint8_t* at, Py_ssize_t size) except? 0:
    """The package is faster for long inputs: it uses the widest registers of the machine."""
    if size <= PACKAGE_BYTES_MIN:
        return _hash(at, size)
    return xxh3_64_intdigest(PyMemoryView_FromMemory(<char*>at, size, PyBUF_READ))


def checksum(data):
    cdef const uint8_t[::1] view = data
    return _hash(&view[0], view.shape[0]) if view.shape[0] else _hash_to_16(NULL, 0)


# WAL frames.


cdef inline void _write_u32(uint8_t* at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void _write_u64(uint8_t* at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


cdef bytes _body(
    uint64_t topic_id, uint64_t seq, uint64_t ts, int flags, bytes node, bytes tag, bytes envelope
):
    cdef Py_ssize_t node_len = 0, tag_len = 0, data_len = PyBytes_GET_SIZE(envelope)
    cdef uint16_t short_len
    if node is not None:
        flags |= FLAG_NODE
        node_len = PyBytes_GET_SIZE(node)
    if tag is not None:
        flags |= FLAG_TAG
        tag_len = PyBytes_GET_SIZE(tag)
    if node_len > 0xFFFF or tag_len > 0xFFFF or data_len > 0xFFFFFFFF:
        raise OverflowError("a node, a tag or a payload is longer than its length field can say")
    cdef bytes body = PyBytes_FromStringAndSize(NULL, WAL_BODY_HEADER_BYTES + node_len + tag_len + data_len)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(body)
    at[0] = WAL_TYPE_APPEND
    at[1] = flags
    _write_u64(at + 2, topic_id)
    _write_u64(at + WAL_CORE_AT, seq)
    _write_u64(at + WAL_CORE_AT + 8, ts)
    short_len = node_len
    memcpy(at + WAL_CORE_AT + 16, &short_len, 2)
    short_len = tag_len
    memcpy(at + WAL_CORE_AT + 18, &short_len, 2)
    _write_u32(at + WAL_CORE_AT + 20, data_len)
    at += WAL_BODY_HEADER_BYTES
    if node_len:
        memcpy(at, PyBytes_AS_STRING(node), node_len)
        at += node_len
    if tag_len:
        memcpy(at, PyBytes_AS_STRING(tag), tag_len)
        at += tag_len
    memcpy(at, PyBytes_AS_STRING(envelope), data_len)
    return body


def plain_envelopes(list datas not None):
    cdef Py_ssize_t place, count = len(datas)
    cdef list envelopes = [None] * count
    cdef Py_buffer view
    cdef bytes envelope
    cdef uint8_t* at
    for place in range(count):
        PyObject_GetBuffer(datas[place], &view, PyBUF_SIMPLE)
        try:
            envelope = PyBytes_FromStringAndSize(NULL, ENVELOPE_OPEN_BYTES + view.len + 1)
            at = <uint8_t*>PyBytes_AS_STRING(envelope)
            memcpy(at, b'{"d":', ENVELOPE_OPEN_BYTES)
            memcpy(at + ENVELOPE_OPEN_BYTES, view.buf, view.len)
            at[ENVELOPE_OPEN_BYTES + view.len] = 125
        finally:
            PyBuffer_Release(&view)
        envelopes[place] = envelope
    return envelopes


cdef uint64_t _add_bodies(
    list bodies, uint64_t topic_id, uint64_t seq, uint64_t ts, batch, int base, bint opens, bint closes
) except? 0:
    """Adds the bodies of one batch. Returns the seq after its last record."""
    envelopes, tags, nodes = batch.envelopes, batch.tags, batch.nodes
    cdef Py_ssize_t place, count = len(envelopes)
    cdef int flags
    cdef bytes tag, node, envelope
    for place in range(count):
        flags = base
        if place == 0 and opens:
            flags |= FLAG_FIRST
        if place == count - 1 and closes:
            flags &= ~FLAG_MORE
        envelope = envelopes[place]
        if envelope is None:
            raise TypeError("an envelope is bytes")
        tag = None if tags is None else tags[place]
        node = None if nodes is None else nodes[place]
        bodies.append(_body(topic_id, seq, ts, flags, node, tag, envelope))
        seq += 1
    return seq


def append_bodies(uint64_t topic_id, uint64_t first_seq, uint64_t ts, batch, int base, bint opens, bint closes):
    cdef list bodies = []
    _add_bodies(bodies, topic_id, first_seq, ts, batch, base, opens, closes)
    return bodies


def encode_writes(uint64_t topic_id, uint64_t first_seq, uint64_t ts, batches, int base):
    cdef list bodies = []
    cdef uint64_t seq = first_seq
    for batch in batches:
        seq = _add_bodies(bodies, topic_id, seq, ts, batch, base, True, True)
    return seal_bodies(bodies), bodies


def seal_bodies(list bodies not None):
    cdef bytes body
    cdef Py_ssize_t size, total = 0
    for body in bodies:
        if body is None:
            raise TypeError("a body is bytes")
        total += PyBytes_GET_SIZE(body) + FRAME_LEN_BYTES + CHECKSUM_BYTES
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(frames)
    for body in bodies:
        size = PyBytes_GET_SIZE(body)
        _write_u32(at, size + CHECKSUM_BYTES)
        memcpy(at + FRAME_LEN_BYTES, PyBytes_AS_STRING(body), size)
        at += FRAME_LEN_BYTES
        _write_u64(at + size, _digest(at, size))
        at += size + CHECKSUM_BYTES
    return frames


def seal_copies(list raws not None, Py_ssize_t flags_at, Py_ssize_t core_at, uint64_t topic_id, bint closes):
    if not 0 <= flags_at < core_at:
        raise ValueError("the flags are before the core")
    cdef bytes raw
    cdef Py_ssize_t size, total = 0, left = len(raws)
    for raw in raws:
        if raw is None:
            raise TypeError("a raw record is bytes")
        if PyBytes_GET_SIZE(raw) < core_at:
            raise ValueError("a raw record is cut")
        total += PyBytes_GET_SIZE(raw) - core_at + WAL_CORE_AT + FRAME_LEN_BYTES + CHECKSUM_BYTES
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(frames)
    cdef uint8_t flags
    for raw in raws:
        left -= 1
        size = PyBytes_GET_SIZE(raw) - core_at
        flags = PyBytes_AS_STRING(raw)[flags_at] & (FLAG_TAG | FLAG_NODE)
        if left or not closes:
            flags |= FLAG_MORE
        _write_u32(at, WAL_CORE_AT + size + CHECKSUM_BYTES)
        at += FRAME_LEN_BYTES
        at[0] = WAL_TYPE_APPEND
        at[1] = flags
        _write_u64(at + 2, topic_id)
        memcpy(at + WAL_CORE_AT, PyBytes_AS_STRING(raw) + core_at, size)
        size += WAL_CORE_AT
        _write_u64(at + size, _digest(at, size))
        at += size + CHECKSUM_BYTES
    return frames


cdef array.array _new(array.array like, Py_ssize_t count):
    return array.clone(like, count, False)


cdef inline Py_ssize_t _item_bytes(array.array column) noexcept:
    """Its attribute `itemsize` is looked up as in Python, which takes 15 ns."""
    return column.ob_descr.itemsize


def scan_frames(buffer, Py_ssize_t offset, Py_ssize_t end, Py_ssize_t frame_bytes_max):
    cdef const uint8_t[::1] view = buffer
    if offset < 0:
        raise IndexError("a scan begins before its bytes")
    end = min(end, view.shape[0])
    if end - offset < WAL_HEADER_BYTES:
        return _columns(NULL, NULL, 0), [], offset
    cdef const uint8_t* data = &view[0]
    cdef Py_ssize_t count = 0, room = (end - offset) // 128 + 16
    cdef Py_ssize_t* offsets = <Py_ssize_t*>malloc(room * sizeof(Py_ssize_t))
    cdef Py_ssize_t* more
    cdef list marks = []
    if offsets == NULL:
        raise MemoryError
    try:
        while offset <= end - WAL_HEADER_BYTES and _is_valid(data, offset, end, frame_bytes_max):
            if count == room:
                room *= 2
                more = <Py_ssize_t*>realloc(offsets, room * sizeof(Py_ssize_t))
                if more == NULL:
                    raise MemoryError
                offsets = more
            if data[offset + FRAME_LEN_BYTES] == WAL_TYPE_SYNC:
                marks.append(count)
            offsets[count] = offset
            count += 1
            offset += FRAME_LEN_BYTES + <Py_ssize_t>_u32(data + offset)
        return _columns(data, offsets, count), marks, offset
    finally:
        free(offsets)


cdef bint _is_valid(const uint8_t* data, Py_ssize_t offset, Py_ssize_t end, Py_ssize_t frame_bytes_max) except -1:
    cdef const uint8_t* at = data + offset
    cdef Py_ssize_t frame_len = _u32(at)
    cdef Py_ssize_t node_len = _u16(at + 30), tag_len = _u16(at + 32)
    cdef uint8_t kind = at[4], flags = at[5]
    if (
        frame_len != node_len + tag_len + <Py_ssize_t>_u32(at + 34) + WAL_FRAME_LEN_MIN
        or frame_len > frame_bytes_max
        or offset + FRAME_LEN_BYTES + frame_len > end
        or kind == 0
        or kind > WAL_TYPE_LAST
        or flags > WAL_FLAGS_KNOWN
        or (tag_len and not flags & FLAG_TAG)
        or (node_len and not flags & FLAG_NODE)
    ):
        return False
    at += FRAME_LEN_BYTES
    frame_len -= CHECKSUM_BYTES
    return _digest(at, frame_len) == _u64(at + frame_len)


cdef tuple _columns(const uint8_t* data, const Py_ssize_t* offsets, Py_ssize_t count):
    cdef array.array starts = _new(_I64, count), ends = _new(_I64, count)
    cdef array.array topic_ids = _new(_U64, count), seqs = _new(_U64, count), times = _new(_U64, count)
    cdef array.array node_lens = _new(_U16, count), tag_lens = _new(_U16, count), data_lens = _new(_U32, count)
    cdef bytes kinds = PyBytes_FromStringAndSize(NULL, count), flags = PyBytes_FromStringAndSize(NULL, count)
    cdef uint8_t* kind_at = <uint8_t*>PyBytes_AS_STRING(kinds)
    cdef uint8_t* flags_at = <uint8_t*>PyBytes_AS_STRING(flags)
    cdef const uint8_t* at
    cdef Py_ssize_t place
    for place in range(count):
        at = data + offsets[place]
        starts.data.as_longlongs[place] = offsets[place]
        ends.data.as_longlongs[place] = offsets[place] + FRAME_LEN_BYTES + <Py_ssize_t>_u32(at)
        kind_at[place] = at[4]
        flags_at[place] = at[5]
        topic_ids.data.as_ulonglongs[place] = _u64(at + 6)
        seqs.data.as_ulonglongs[place] = _u64(at + 14)
        times.data.as_ulonglongs[place] = _u64(at + 22)
        node_lens.data.as_ushorts[place] = _u16(at + 30)
        tag_lens.data.as_ushorts[place] = _u16(at + 32)
        data_lens.data.as_uints[place] = _u32(at + 34)
    return starts, ends, kinds, flags, topic_ids, seqs, times, node_lens, tag_lens, data_lens


def append_runs(bytes kinds not None, array.array topic_ids not None, array.array seqs not None):
    cdef const uint8_t* kind_at = <const uint8_t*>PyBytes_AS_STRING(kinds)
    cdef const unsigned long long* ids = topic_ids.data.as_ulonglongs
    cdef const unsigned long long* numbers = seqs.data.as_ulonglongs
    cdef Py_ssize_t start = 0, place = 0, count = PyBytes_GET_SIZE(kinds)
    cdef uint64_t owner
    cdef list runs = []
    if not (len(topic_ids) == len(seqs) == count and _item_bytes(topic_ids) == _item_bytes(seqs) == 8):
        raise ValueError("these are no columns of the same frames")
    while start < count:
        owner = ids[start] if kind_at[start] == WAL_TYPE_APPEND else 0
        place = start + 1
        if owner == 0:
            while place < count and (kind_at[place] != WAL_TYPE_APPEND or ids[place] == 0):
                place += 1
        else:
            while (
                place < count
                and kind_at[place] == WAL_TYPE_APPEND
                and ids[place] == owner
                and numbers[place] == numbers[place - 1] + 1
            ):
                place += 1
        runs.append((owner, start, place))
        start = place
    return runs


def frame_places(
    array.array offsets not None,
    array.array ends not None,
    array.array data_lens not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    uint64_t base,
    uint32_t overhead,
):
    if not (
        len(offsets) == len(ends) == len(data_lens)
        and _item_bytes(offsets) == _item_bytes(ends) == 8
        and _item_bytes(data_lens) == 4
    ):
        raise ValueError("these are no columns of the same frames")
    if not 0 <= start <= stop <= len(offsets):
        raise IndexError("the frames are outside of their columns")
    cdef Py_ssize_t place, count = stop - start
    cdef array.array places = _new(_U64, count), lengths = _new(_U32, count), sizes = _new(_U32, count)
    cdef const long long* offset_at = offsets.data.as_longlongs + start
    cdef const long long* end_at = ends.data.as_longlongs + start
    cdef const unsigned int* data_len_at = data_lens.data.as_uints + start
    for place in range(count):
        if data_len_at[place] < overhead:
            raise OverflowError("a payload is shorter than an envelope")
        places.data.as_ulonglongs[place] = base + offset_at[place]
        lengths.data.as_uints[place] = end_at[place] - offset_at[place]
        sizes.data.as_uints[place] = data_len_at[place] - overhead
    return places, lengths, sizes


def add_tags(
    const uint8_t[::1] buffer,
    frames,
    Py_ssize_t start,
    Py_ssize_t stop,
    dict seqs_by_tag not None,
):
    cdef array.array offsets = frames.offsets, seqs = frames.seqs
    cdef array.array node_lens = frames.node_lens, tag_lens = frames.tag_lens
    cdef bytes flags = frames.flags
    cdef bytes tag
    cdef array.array known
    cdef Py_ssize_t place, at, tag_len
    if not (
        PyBytes_GET_SIZE(flags) == len(offsets) == len(seqs) == len(node_lens) == len(tag_lens)
        and _item_bytes(offsets) == _item_bytes(seqs) == 8
        and _item_bytes(node_lens) == _item_bytes(tag_lens) == 2
    ):
        raise ValueError("these are no columns of the same frames")
    if not 0 <= start <= stop <= len(offsets):
        raise IndexError("the frames are outside of their columns")
    for place in range(start, stop):
        if not (<const uint8_t*>PyBytes_AS_STRING(flags))[place] & FLAG_TAG:
            continue
        at = offsets.data.as_longlongs[place] + WAL_HEADER_BYTES + node_lens.data.as_ushorts[place]
        tag_len = tag_lens.data.as_ushorts[place]
        if at < 0 or at + tag_len > buffer.shape[0]:
            raise IndexError("a tag is outside of its bytes")
        tag = PyBytes_FromStringAndSize(<const char*>&buffer[0] + at, tag_len)
        known = seqs_by_tag.get(tag)
        if known is None:
            known = seqs_by_tag[tag] = _new(_U64, 0)
        array.resize_smart(known, len(known) + 1)
        known.data.as_ulonglongs[len(known) - 1] = seqs.data.as_ulonglongs[place]


# Segment frames.


def segment_frames(raws, Py_ssize_t flags_at, Py_ssize_t core_at):
    if not 0 <= flags_at < core_at:
        raise ValueError("the flags are before the core")
    cdef list frames = []
    cdef bytes raw, frame
    cdef uint8_t* at
    cdef Py_ssize_t size
    for raw in raws:
        if raw is None or PyBytes_GET_SIZE(raw) < core_at + CORE_HEADER_BYTES:
            raise ValueError("a raw record is shorter than its header")
        size = PyBytes_GET_SIZE(raw) - core_at + 1
        frame = PyBytes_FromStringAndSize(NULL, FRAME_LEN_BYTES + size + SEGMENT_TRAILER_BYTES)
        at = <uint8_t*>PyBytes_AS_STRING(frame)
        _write_u32(at, size + SEGMENT_TRAILER_BYTES)
        at += FRAME_LEN_BYTES
        at[0] = (<uint8_t*>PyBytes_AS_STRING(raw))[flags_at] & (FLAG_TAG | FLAG_NODE)
        memcpy(at + 1, PyBytes_AS_STRING(raw) + core_at, size - 1)
        _write_u64(at + size, _digest(at, size))
        at[size + CHECKSUM_BYTES] = 0
        frames.append(frame)
    return frames


def scan_segment(bytes buffer not None, Py_ssize_t offset, Py_ssize_t end):
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(buffer)
    if offset < 0:
        raise IndexError("a scan begins before its bytes")
    end = min(end, PyBytes_GET_SIZE(buffer))
    cdef Py_ssize_t at = offset, count = 0, place
    cdef uint64_t seq, seq_before = 0
    while end - at >= SEGMENT_OVERHEAD_BYTES and _is_valid_segment(data + at, end - at):
        seq = _u64(data + at + FRAME_LEN_BYTES + 1)
        if count and seq <= seq_before:
            break
        seq_before = seq
        at += FRAME_LEN_BYTES + <Py_ssize_t>_u32(data + at)
        count += 1
    cdef array.array ends = _new(_I64, count), seqs = _new(_U64, count), times = _new(_U64, count)
    cdef array.array data_lens = _new(_U32, count), stored = _new(_U64, count)
    cdef bytes flags = PyBytes_FromStringAndSize(NULL, count), deleted = PyBytes_FromStringAndSize(NULL, count)
    cdef uint8_t* flags_at = <uint8_t*>PyBytes_AS_STRING(flags)
    cdef uint8_t* deleted_at = <uint8_t*>PyBytes_AS_STRING(deleted)
    cdef const uint8_t* frame
    for place in range(count):
        frame = data + offset
        offset += FRAME_LEN_BYTES + <Py_ssize_t>_u32(frame)
        ends.data.as_longlongs[place] = offset
        flags_at[place] = frame[4]
        seqs.data.as_ulonglongs[place] = _u64(frame + 5)
        times.data.as_ulonglongs[place] = _u64(frame + 13)
        data_lens.data.as_uints[place] = _u32(frame + 25)
        stored.data.as_ulonglongs[place] = _u64(data + offset - SEGMENT_TRAILER_BYTES)
        deleted_at[place] = data[offset - 1] == DELETED
    return ends, flags, deleted, seqs, times, data_lens, stored


cdef bint _is_valid_segment(const uint8_t* at, Py_ssize_t left) except -1:
    cdef Py_ssize_t frame_len = _u32(at)
    cdef Py_ssize_t node_len = _u16(at + 21), tag_len = _u16(at + 23)
    cdef uint8_t flags = at[4]
    if (
        frame_len != node_len + tag_len + <Py_ssize_t>_u32(at + 25) + SEGMENT_OVERHEAD_BYTES - FRAME_LEN_BYTES
        or FRAME_LEN_BYTES + frame_len > left
        or flags > (FLAG_TAG | FLAG_NODE)
        or (tag_len and not flags & FLAG_TAG)
        or (node_len and not flags & FLAG_NODE)
    ):
        return False
    at += FRAME_LEN_BYTES
    frame_len -= SEGMENT_TRAILER_BYTES
    return _digest(at, frame_len) == _u64(at + frame_len)


def filed_frames(bytes buffer not None, array.array offsets not None, array.array ends not None):
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t place, size, total = 0, count = len(offsets), data_bytes = PyBytes_GET_SIZE(buffer)
    if not (len(ends) == count and _item_bytes(offsets) == _item_bytes(ends) == 8):
        raise ValueError("these are no columns of the same frames")
    cdef const long long* offset_at = offsets.data.as_longlongs
    cdef const long long* end_at = ends.data.as_longlongs
    for place in range(count):
        if (
            offset_at[place] < 0
            or end_at[place] - offset_at[place] < WAL_HEADER_BYTES + CHECKSUM_BYTES
            or end_at[place] > data_bytes
        ):
            raise IndexError("a frame is outside of its bytes")
        total += end_at[place] - offset_at[place] - WAL_TO_SEGMENT_BYTES
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, total)
    cdef array.array places = _new(_U32, count), stored = _new(_U64, count)
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(frames)
    cdef uint8_t* at = start
    cdef const uint8_t* body
    for place in range(count):
        body = data + offset_at[place] + FRAME_LEN_BYTES
        # Flags and core.
        size = end_at[place] - offset_at[place] - FRAME_LEN_BYTES - CHECKSUM_BYTES - WAL_CORE_AT + 1
        _write_u32(at, size + SEGMENT_TRAILER_BYTES)
        at += FRAME_LEN_BYTES
        at[0] = body[1] & (FLAG_TAG | FLAG_NODE)
        memcpy(at + 1, body + WAL_CORE_AT, size - 1)
        stored.data.as_ulonglongs[place] = _digest(at, size)
        _write_u64(at + size, stored.data.as_ulonglongs[place])
        at[size + CHECKSUM_BYTES] = 0
        at += size + SEGMENT_TRAILER_BYTES
        places.data.as_uints[place] = at - start
    return frames, places, stored


def index_entries(
    array.array ends not None,
    array.array times not None,
    bytes flags not None,
    Py_ssize_t start,
    Py_ssize_t stop,
    uint64_t data_offset,
):
    if not (len(ends) == len(times) == PyBytes_GET_SIZE(flags) and _item_bytes(ends) == 4 and _item_bytes(times) == 8):
        raise ValueError("these are no columns of the same frames")
    if not 0 <= start <= stop <= len(ends):
        raise IndexError("the frames are outside of their columns")
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, ENTRY_BYTES * (stop - start))
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(entries)
    cdef const uint8_t* flags_at = <const uint8_t*>PyBytes_AS_STRING(flags)
    cdef uint64_t before = ends.data.as_uints[start - 1] if start else 0
    cdef uint64_t length
    cdef Py_ssize_t place
    for place in range(start, stop):
        length = ends.data.as_uints[place] - before
        if data_offset > 0xFFFFFFFF:
            raise OverflowError("an offset does not fit an index entry")
        _write_u32(at, data_offset)
        _write_u32(at + 4, length)
        _write_u64(at + 8, times.data.as_ulonglongs[place])
        _write_u32(at + 16, flags_at[place])
        at += ENTRY_BYTES
        before += length
        data_offset += length
    return entries


cdef int _check_entries(bytes entries) except -1:
    if PyBytes_GET_SIZE(entries) % ENTRY_BYTES:
        raise StructError(f"iterative unpacking requires a buffer of a multiple of {ENTRY_BYTES} bytes")
    return 0


def read_slots(buffer, uint64_t base, bytes entries not None, uint64_t first_seq):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t data_bytes = view.shape[0]
    cdef const uint8_t* data = &view[0] if data_bytes else NULL
    cdef const uint8_t* entry = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef const uint8_t* frame
    cdef Py_ssize_t place, at, length, body_bytes, count = PyBytes_GET_SIZE(entries) // ENTRY_BYTES
    cdef uint64_t offset
    _check_entries(entries)
    cdef list slots = [None] * count
    cdef list wrong = []
    for place in range(count):
        offset, length = _u32(entry), _u32(entry + 4)
        entry += ENTRY_BYTES
        if length == 0:
            continue
        if length < SEGMENT_OVERHEAD_BYTES or offset < base or offset - base + length > <uint64_t>data_bytes:
            wrong.append(place)
            continue
        frame = data + (offset - base)
        body_bytes = length - FRAME_LEN_BYTES - SEGMENT_TRAILER_BYTES
        if (
            <Py_ssize_t>_u32(frame) != length - FRAME_LEN_BYTES
            or _u64(frame + FRAME_LEN_BYTES + 1) != first_seq + <uint64_t>place
            or _digest(frame + FRAME_LEN_BYTES, body_bytes) != _u64(frame + FRAME_LEN_BYTES + body_bytes)
        ):
            wrong.append(place)
        elif frame[length - 1] != DELETED:
            slots[place] = PyBytes_FromStringAndSize(<const char*>frame + FRAME_LEN_BYTES, body_bytes)
    return slots, wrong


def entry_span(bytes entries not None, uint64_t data_bytes, uint64_t bytes_max):
    cdef const uint8_t* entry = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t place, count = PyBytes_GET_SIZE(entries) // ENTRY_BYTES
    cdef uint64_t offset, length, total = 0, base = data_bytes, end = 0
    cdef bint has_frame = False
    _check_entries(entries)
    for place in range(count):
        offset, length = _u32(entry), _u32(entry + 4)
        entry += ENTRY_BYTES
        if length == 0:
            continue
        total += length
        if total > bytes_max and place:
            count = place
            break
        base = min(base, offset)
        end = max(end, offset + length)
        has_frame = True
    if not has_frame:
        return count, 0, 0
    return count, base, min(end, data_bytes)


def checksums(
    buffer, const int64_t[:] starts, const int64_t[:] ends, uint64_t[:] found, Py_ssize_t skip, Py_ssize_t rest
):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t place, count = starts.shape[0], data_bytes = view.shape[0]
    cdef int64_t start, end
    if not ends.shape[0] == found.shape[0] == count:
        raise ValueError("each piece has a start, an end and a result")
    for place in range(count):
        start, end = starts[place] + skip, ends[place] - rest
        if not skip <= start <= end <= data_bytes:
            raise IndexError("a frame is outside of its bytes")
        found[place] = _digest(&view[0] + start, end - start)


# Messages of the partitioned engine.


def check_messages(indexes, messages, int64_t[:] ends):
    cdef const uint8_t[::1] entries = indexes, view = messages
    cdef Py_ssize_t place, count = ends.shape[0], data_bytes = view.shape[0]
    cdef const uint8_t* entry
    cdef const uint8_t* header
    cdef int64_t start = 0, end, payload_bytes, user_headers_bytes
    cdef uint64_t offset, last_offset = 0
    cdef int found = 1
    if not (count > 0 and entries.shape[0] == MESSAGE_ENTRY_BYTES * count):
        raise ValueError("each message has an index entry and an end")
    entry = &entries[0]
    for place in range(count):
        end = _u32(entry + 4)
        if _u32(entry) or _u64(entry + 8) or end - start < MESSAGE_HEADER_BYTES or end > data_bytes:
            return 0
        entry += MESSAGE_ENTRY_BYTES
        header = &view[0] + start
        payload_bytes = _u32(header + MESSAGE_PAYLOAD_LENGTH_AT)
        user_headers_bytes = _u32(header + MESSAGE_USER_HEADERS_LENGTH_AT)
        offset = _u64(header + MESSAGE_OFFSET_AT)
        if (
            payload_bytes > PAYLOAD_BYTES_MAX
            or user_headers_bytes > USER_HEADERS_BYTES_MAX
            or _u64(header + MESSAGE_RESERVED_AT)
            or offset < last_offset
            or MESSAGE_HEADER_BYTES + payload_bytes + user_headers_bytes != end - start
        ):
            return 0
        if user_headers_bytes:
            found = 2
        last_offset = offset
        ends[place] = start = end
    return found if start == data_bytes else 0


cdef inline uint64_t _random(uint64_t state) noexcept nogil:
    """SplitMix64: another state gives another number."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9U
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBU
    return state ^ (state >> 31)


def stamp_messages(
    messages, const int64_t[:] ends, uint64_t first_offset, uint64_t timestamp, bytes seed not None
):
    cdef uint8_t[::1] view = messages
    cdef Py_ssize_t place, count = ends.shape[0], data_bytes = view.shape[0]
    cdef int64_t start = 0, end
    cdef uint8_t* at
    cdef uint64_t low, high, step = 0
    if PyBytes_GET_SIZE(seed) != SEED_BYTES:
        raise ValueError("a seed is 16 bytes")
    low, high = _u64(<const uint8_t*>PyBytes_AS_STRING(seed)), _u64(<const uint8_t*>PyBytes_AS_STRING(seed) + 8)
    for place in range(count):
        end = ends[place]
        if end - start < MESSAGE_HEADER_BYTES or end > data_bytes:
            raise IndexError("a message is outside of its bytes")
        at = &view[0] + start
        if _u64(at + MESSAGE_ID_AT) == 0 and _u64(at + MESSAGE_ID_AT + 8) == 0:
            step = <uint64_t>(place + 1) * 0x9E3779B97F4A7C15U
            _write_u64(at + MESSAGE_ID_AT, (_random(low + step) & 0xFF0FFFFFFFFFFFFFU) | 0x0040000000000000U)
            _write_u64(at + MESSAGE_ID_AT + 8, (_random(high + step) & 0xFFFFFFFFFFFFFF3FU) | 0x80U)
        _write_u64(at + MESSAGE_OFFSET_AT, first_offset + <uint64_t>place)
        _write_u64(at + MESSAGE_TIMESTAMP_AT, timestamp)
        _write_u64(at, _digest(at + MESSAGE_ID_AT, end - start - MESSAGE_ID_AT))
        start = end


def verify_messages(messages, const int64_t[:] starts, const int64_t[:] ends, uint64_t first_offset):
    cdef const uint8_t[::1] view = messages
    cdef Py_ssize_t place, count = starts.shape[0], data_bytes = view.shape[0]
    cdef int64_t start, end
    cdef const uint8_t* at
    cdef int found = 1
    if ends.shape[0] != count:
        raise ValueError("each message has a start and an end")
    for place in range(count):
        start, end = starts[place], ends[place]
        if start < 0 or end - start < MESSAGE_HEADER_BYTES or end > data_bytes:
            return 0
        at = &view[0] + start
        if (
            _u64(at + MESSAGE_OFFSET_AT) != first_offset + <uint64_t>place
            or _digest(at + MESSAGE_ID_AT, end - start - MESSAGE_ID_AT) != _u64(at)
        ):
            return 0
        if _u32(at + MESSAGE_USER_HEADERS_LENGTH_AT):
            found = 2
    return found


def gather(buffer, const int64_t[:] starts, const int64_t[:] ends, int32_t[:] offsets):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t place, count = starts.shape[0], data_bytes = view.shape[0]
    cdef int64_t size, total = 0
    if ends.shape[0] != count or offsets.shape[0] != count + 1:
        raise ValueError("each piece has a start, an end and a place")
    offsets[0] = 0
    for place in range(count):
        size = ends[place] - starts[place]
        if size > 0:
            if starts[place] < 0 or ends[place] > data_bytes:
                raise IndexError("a piece is outside of its bytes")
            total += size
            if total > 0x7FFFFFFF:
                raise OverflowError("the pieces are too many bytes")
        offsets[place + 1] = total
    cdef bytes pieces = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(pieces)
    for place in range(count):
        size = offsets[place + 1] - offsets[place]
        if size:
            memcpy(at + offsets[place], &view[0] + starts[place], size)
    return pieces


def have_ends(
    buffer, const int64_t[:] starts, const int64_t[:] ends, bytes first not None, bytes last not None, uint8_t[:] found
):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t place, count = starts.shape[0], data_bytes = view.shape[0]
    cdef Py_ssize_t first_bytes = PyBytes_GET_SIZE(first), last_bytes = PyBytes_GET_SIZE(last)
    cdef int64_t start, end
    if not ends.shape[0] == found.shape[0] == count:
        raise ValueError("each piece has a start, an end and a result")
    for place in range(count):
        start, end = starts[place], ends[place]
        if start < 0 or end > data_bytes:
            raise IndexError("a piece is outside of its bytes")
        found[place] = (
            end - start > first_bytes + last_bytes
            and memcmp(&view[0] + start, PyBytes_AS_STRING(first), first_bytes) == 0
            and memcmp(&view[0] + end - last_bytes, PyBytes_AS_STRING(last), last_bytes) == 0
        )


def has_text(buffer, Py_ssize_t start, Py_ssize_t end, bytes text not None):
    cdef const uint8_t[::1] view = buffer
    cdef Py_ssize_t text_bytes = PyBytes_GET_SIZE(text)
    if text_bytes < TEXT_BYTES_MIN:
        raise ValueError("the text is too short")
    start, end = max(0, start), min(end, view.shape[0])
    return end - start >= text_bytes and _has_text(
        &view[0] + start, end - start, <const uint8_t*>PyBytes_AS_STRING(text), text_bytes
    )


cdef bint _has_text(const uint8_t* at, Py_ssize_t size, const uint8_t* text, Py_ssize_t text_bytes) noexcept nogil:
    """Written so that a compiler sees vectors: all places of a block are compared, and the result is looked at once."""
    cdef Py_ssize_t place, block = 0, block_end, stop = size - text_bytes + 1
    cdef uint8_t found
    cdef uint8_t a = text[0], b = text[1], c = text[2], d = text[3], e = text[4]
    while block < stop:
        block_end = min(block + SEARCH_BLOCK_BYTES, stop)
        found = 0
        for place in range(block, block_end):
            found |= (
                (at[place] == a)
                & (at[place + 1] == b)
                & (at[place + 2] == c)
                & (at[place + 3] == d)
                & (at[place + 4] == e)
            )
        if found:
            for place in range(block, block_end):
                if memcmp(at + place, text, text_bytes) == 0:
                    return True
        block = block_end
    return False


cdef inline bint _is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 48) < 10


def may_overflow(bytes text not None):
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(text)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    return _has_long_exponent(at, size) or _has_long_number(at, size)


cdef bint _has_long_exponent(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """An `e` or `E` is looked at more closely where a digit or a plus sign follows. That is rare, and each block is
    searched for it as in `_has_text`."""
    cdef Py_ssize_t place, next_place, block = 0, block_end, stop = size - 1
    cdef int digits
    cdef uint8_t found
    while block < stop:
        block_end = min(block + SEARCH_BLOCK_BYTES, stop)
        found = 0
        for place in range(block, block_end):
            found |= ((at[place] | 32) == 101) & (
                (<uint8_t>(at[place + 1] - 48) < 10) | (at[place + 1] == 43)
            )
        if found:
            for place in range(block, block_end):
                if (at[place] | 32) != 101:
                    continue
                digits = 0
                next_place = place + 1
                while next_place < size and digits < EXPONENT_DIGITS:
                    if _is_digit(at[next_place]):
                        digits += 1
                    elif at[next_place] != 43:
                        break
                    next_place += 1
                if digits == EXPONENT_DIGITS:
                    return True
        block = block_end
    return False


cdef bint _has_long_number(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """So many digits in a row, plus signs not counted, are found by a look at a few places."""
    cdef Py_ssize_t place = NUMBER_DIGITS - 1, start
    cdef int digits
    while place < size:
        if not (_is_digit(at[place]) or at[place] == 43):
            place += NUMBER_DIGITS
            continue
        start, digits = place, 0
        while start > 0 and (_is_digit(at[start - 1]) or at[start - 1] == 43):
            start -= 1
        while start < size and (_is_digit(at[start]) or at[start] == 43):
            digits += at[start] != 43
            if digits == NUMBER_DIGITS:
                return True
            start += 1
        # A row that begins later ends at this place or later.
        place = start + NUMBER_DIGITS
    return False
