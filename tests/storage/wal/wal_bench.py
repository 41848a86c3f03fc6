"""Shards on a fake disk, and frames to put into them: what the tests of the WAL share."""

from collections.abc import Callable

from topics.errors import TopicsError
from topics.formats import wal_frame
from topics.formats.records import RecordBatch
from topics.formats.snapshot import WalPosition
from topics.formats.wal_frame import FrameType
from topics.limits import FRAME_BYTES_MAX
from topics.storage.background import Background, InlineBackground
from topics.storage.fs import Fs
from topics.storage.wal.reader import WINDOW_BYTES, ShardReader
from topics.storage.wal.shard import WalShard, create_shard_files
from topics.testing.clock import ManualClock

DIRECTORY = "/data/wal"
FIRST_FILE = f"{DIRECTORY}/wal-0000000000000001.log"
FILE_BYTES = 4096


def frame(seq: int, *, topic_id: int = 1, size: int = 20, flags: int = wal_frame.FLAG_FIRST, ts: int = 1) -> bytes:
    """One append of its own (or, by its flags, a part of one), with a payload of `size` bytes."""
    text = b'"%b"' % (b"%d-" % seq).ljust(size - 2, b"x")
    opens, closes = bool(flags & wal_frame.FLAG_FIRST), not flags & wal_frame.FLAG_MORE
    batch = RecordBatch([b'{"d":%b}' % text], [len(text)])
    return wal_frame.encode_appends(topic_id, seq, ts, batch, durable=False, opens=opens, closes=closes)[0]


def new_shard(
    fs: Fs, background: Background | None = None, *, clock: ManualClock | None = None, file_bytes: int = FILE_BYTES
) -> WalShard:
    file = create_shard_files(fs, DIRECTORY, 1, file_bytes)
    return WalShard(
        fs,
        DIRECTORY,
        0,
        InlineBackground() if background is None else background,
        clock or ManualClock(),
        file,
        WalPosition(1, 1, 0),
        file_bytes=file_bytes,
    )


class Answers:
    """The `done` callbacks of a test: which name was answered, in which order, and with what."""

    def __init__(self) -> None:
        self.given: list[tuple[str, TopicsError | None]] = []

    def __call__(self, name: str) -> Callable[[TopicsError | None], None]:
        return lambda error: self.given.append((name, error))

    @property
    def committed(self) -> list[str]:
        return [name for name, error in self.given if error is None]

    @property
    def refused(self) -> dict[str, str]:
        return {name: error.code for name, error in self.given if error is not None}


def seqs_in(content: bytes) -> list[int]:
    """Seqs of the appends in a WAL file, up to its clean end."""
    return [
        found.seq
        for found in wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX)
        if found.type == FrameType.APPEND
    ]


def kinds_in(content: bytes) -> list[FrameType]:
    return [FrameType(found.type) for found in wal_frame.walk(content, 0, len(content), FRAME_BYTES_MAX)]


def read_shard(
    fs: Fs, start: WalPosition | None = None, *, window_bytes: int = WINDOW_BYTES
) -> tuple[list[int], ShardReader]:
    """Seqs of the appends a start would see, and the reader with the end it found."""
    reader = ShardReader(fs, DIRECTORY, start, window_bytes=window_bytes)
    return [found.seq for _, _, _, found in reader if found.type == FrameType.APPEND], reader
