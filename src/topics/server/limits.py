"""Bounds of connections and requests that nobody needs to set."""

from dataclasses import dataclass
from typing import Final

from topics.limits import KIB, MIB

# Requests.
TARGET_BYTES_MAX: Final = 8 * KIB
HEADERS_MAX: Final = 100
HEADER_BYTES_MAX: Final = 128 * KIB
# What is read of a body whose request is refused already, so that the connection can go on.
DRAINED_BODY_BYTES_MAX: Final = 64 * KIB

# A connection may be this many requests ahead of its answers before nothing more is read from it.
PIPELINED_EXCHANGES_MAX: Final = 32
# HTTP/1.1: bytes between two looks at how many that are. A small request has 18.
PARSED_BYTES_PER_STEP: Final = 8 * KIB
# Requests of one connection that are started in one turn of the loop.
EXCHANGES_PER_TURN: Final = 16

# From here on a client that does not take its answers gets no new ones made.
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB

# HTTP/2: what it announces.
H2_STREAMS_MAX: Final = 1024
H2_STREAM_WINDOW_BYTES: Final = MIB
H2_CONNECTION_WINDOW_BYTES: Final = 4 * MIB
H2_HEADER_LIST_BYTES_MAX: Final = 64 * KIB
H2_FRAME_BYTES_MAX: Final = 16 * KIB
# A header block as sent, before it is decoded.
H2_HEADER_BLOCK_BYTES_MAX: Final = 128 * KIB
# Frames of one connection that are looked at in one turn of the loop.
H2_FRAMES_PER_TURN: Final = 64
# Streams that a client may open and reset within the time.
H2_RESETS_MAX: Final = 200
H2_RESETS_S: Final = 10.0
# Frames that ask for nothing: so many at once, so many a second, and more of them with the work that is done.
H2_IDLE_FRAMES_MAX: Final = 1000
H2_IDLE_FRAMES_PER_S: Final = 200
# Answers that wait for a window: from the first bound on no request is started, beyond the second none is kept. The
# first is more than two of the largest answers: two streams that the client does not take hold up none of its others.
H2_UNSENT_BYTES_HIGH: Final = 24 * MIB
H2_UNSENT_BYTES_MAX: Final = 64 * MIB

# WebSocket: one message, in whatever fragments.
WS_MESSAGE_BYTES_MAX: Final = 64 * MIB
WS_FRAGMENTS_MAX: Final = 65_536
# Bytes that are parsed between two looks at what they held, while they hold messages.
WS_PARSED_BYTES_PER_STEP: Final = KIB
# Messages that wait for the client, and writes of it that wait for the log.
WS_QUEUED_MESSAGES_MAX: Final = 4
WS_WRITES_MAX: Final = 32
WS_SUBSCRIPTIONS_MAX: Final = 4096
# Pings and pongs: so many at once, so many a second.
WS_PINGS_MAX: Final = 100
WS_PINGS_PER_S: Final = 20
# Pings of ours in a row that a client may leave without an answer.
WS_SILENT_PINGS_MAX: Final = 2

# Answers are compressed from this size on; small ones on the loop, large ones in the pool.
GZIP_BYTES_MIN: Final = KIB
GZIP_ON_LOOP_BYTES_MAX: Final = 64 * KIB
INFLATE_ON_LOOP_BYTES_MAX: Final = 4 * KIB

# Threads for what may wait: cold reads, compression of large bodies.
POOL_THREADS: Final = 4

# How often a write that waits for room in the commit queue looks for it.
ROOM_RETRY_MS: Final = 10
PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a client may take. Defaults are those of the contract; tests shorten them."""

    head_s: float = 10.0
    # A body may take this long, and more as long as it keeps up the rate below.
    body_s: float = 10.0
    body_bytes_per_s_min: int = 16 * KIB
    idle_s: float = 75.0
    # An answer of which nothing was taken for so long.
    stalled_s: float = 30.0
    # HTTP/2: how often the client is asked whether it is there, and how long it may take to say so.
    ping_s: float = 20.0
    pong_s: float = 20.0
    # How long the last words to a client that goes on sending are given to reach it.
    linger_s: float = 1.0
    drain_s: float = 10.0

    def is_body_late(self, elapsed_s: float, received_bytes: int) -> bool:
        late_s = elapsed_s - self.body_s
        return late_s >= 0 and received_bytes <= late_s * self.body_bytes_per_s_min
