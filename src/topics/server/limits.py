"""Limits of connections and requests that are not settings."""

from dataclasses import dataclass
from typing import Final

from topics.limits import KIB, MIB

# Requests.
TARGET_BYTES_MAX: Final = 8 * KIB
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 128 * KIB
# Bytes that are read of the body of a refused request, so that the connection can stay open.
DRAINED_BODY_BYTES_MAX: Final = 64 * KIB

# Bodies of all requests but writes and staged records. The setting `max_body_bytes` limits all bodies.
SMALL_BODY_BYTES_MAX: Final = MIB
# A larger body of a write is checked in steps.
WHOLE_BODY_BYTES_MAX: Final = 64 * KIB

# Requests of one connection that may wait for their answers before nothing more is read from it.
PIPELINED_EXCHANGES_MAX: Final = 32
# HTTP/1.1: bytes that are parsed before the number of waiting requests is checked. The smallest request has 18.
PARSED_BYTES_PER_STEP: Final = 8 * KIB
# Requests of one connection that are started in one turn of the loop.
EXCHANGES_PER_TURN: Final = 16

# A client with this many unsent bytes gets no further answers until it takes some.
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB

# Bytes that wait for clients of all connections together. Beyond it large pages wait, and clients that took nothing for
# a while lose their connections, the one that waits longest first.
UNSENT_BYTES_MAX: Final = 64 * MIB
UNSENT_GRACE_S: Final = 1.0

# Bytes of one frame of a watch stream or a WebSocket. A larger record is a frame by itself.
STREAM_FRAME_BYTES_MAX: Final = MIB

# A page with more bytes is rendered in steps of this size.
PAGE_STEP_BYTES: Final = 256 * KIB
# Pages that may have more bytes than this are large. Only a few large pages are rendered at the same time.
LARGE_PAGE_BYTES: Final = MIB
LARGE_PAGES_MAX: Final = 2

# HTTP/2: the announced settings.
H2_STREAMS_MAX: Final = 1024
H2_STREAM_WINDOW_BYTES: Final = MIB
H2_CONNECTION_WINDOW_BYTES: Final = 4 * MIB
H2_HEADER_LIST_BYTES_MAX: Final = 64 * KIB
H2_FRAME_BYTES_MAX: Final = 16 * KIB
# Size of a header block on the wire, before it is decoded.
H2_HEADER_BLOCK_BYTES_MAX: Final = 128 * KIB
# Frames of one connection that are read in one turn of the loop.
H2_FRAMES_PER_TURN: Final = 64
# Streams that a client may open and reset within `H2_RESETS_S`.
H2_RESETS_MAX: Final = 200
H2_RESETS_S: Final = 10.0
# Frames that only cause work: this many at once, and this many a second. Each request and each answer allows more.
H2_IDLE_FRAMES_MAX: Final = 1000
H2_IDLE_FRAMES_PER_S: Final = 200
# Answers that wait for a window. From the first limit on no request is started, beyond the second the connection ends.
# The first is more than two of the largest answers: two streams that the client does not read hold up no others.
H2_UNSENT_BYTES_HIGH: Final = 24 * MIB
H2_UNSENT_BYTES_MAX: Final = 64 * MIB
# Bytes of streams without an end that wait for their windows, over all streams of a connection.
H2_ENDLESS_BYTES_MAX: Final = 4 * MIB

# WebSocket: bytes and fragments of one message.
WS_MESSAGE_BYTES_MAX: Final = 64 * MIB
WS_FRAGMENTS_MAX: Final = 65_536
# Bytes that are parsed before the messages in them are handled.
WS_PARSED_BYTES_PER_STEP: Final = KIB
# Messages that wait for the client.
WS_QUEUED_MESSAGES_MAX: Final = 4
WS_QUEUED_BYTES_MAX: Final = MIB
# Writes of one client that wait for the log.
WS_WRITES_MAX: Final = 32
WS_SUBSCRIPTIONS_MAX: Final = 4096
# Pings and pongs: this many at once, and this many a second.
WS_PINGS_MAX: Final = 100
WS_PINGS_PER_S: Final = 20
# Pings of the server in a row that a client may leave without an answer.
WS_SILENT_PINGS_MAX: Final = 2

# Answers are compressed from this size on: small ones on the loop, large ones in the pool.
GZIP_BYTES_MIN: Final = KIB
GZIP_ON_LOOP_BYTES_MAX: Final = 64 * KIB
INFLATE_ON_LOOP_BYTES_MAX: Final = KIB

# Threads for large bodies, in both directions.
POOL_THREADS: Final = 4
# Threads for work that may wait for a disk. The cold tier has threads of its own, in the engine.
FILE_THREADS: Final = 4

# How often writes that wait for room in a commit queue are tried again, and how many of them one turn takes.
ROOM_RETRY_MS: Final = 5
WRITES_FROM_LINES_PER_TURN: Final = 64
PAGE_SIZE_DEFAULT: Final = 100
# Names that a list with a filter looks at for one page: a page that is not full has a cursor nevertheless.
LISTED_NAMES_MAX: Final = 5000
PAGE_SIZE_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a client may take. Tests shorten these times."""

    head_s: float = 10.0
    # A body may take this long, and longer while it keeps the rate below.
    body_s: float = 10.0
    body_bytes_per_s_min: int = 16 * KIB
    idle_s: float = 75.0
    # How long a client may leave an answer without taking any bytes of it.
    stalled_s: float = 30.0
    # HTTP/2: how often the client gets a ping, and how long it may take to answer.
    ping_s: float = 20.0
    pong_s: float = 20.0
    # How long the connection stays open for the last frame to a client that still sends.
    linger_s: float = 1.0
    drain_s: float = 10.0

    def is_body_late(self, elapsed_s: float, received_bytes: int) -> bool:
        late_s = elapsed_s - self.body_s
        return late_s >= 0 and received_bytes <= late_s * self.body_bytes_per_s_min
