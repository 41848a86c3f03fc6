"""Files of staged chunks: records that a writer has handed over and not committed yet.

Each file is written once, whole, and synced before the writer gets an answer. It never changes after that, so reading
needs no lock. For any thread; the caller makes sure that one chunk is not written and removed at the same time.
"""

from collections.abc import Iterable
from typing import NamedTuple

from topics.errors import BadFrame, FormatError, FutureVersion
from topics.formats import staged_chunk
from topics.formats.records import RecordBatch
from topics.formats.staged_chunk import HEAD_BYTES_MAX, LEAD_BYTES, ChunkHead
from topics.storage import layout
from topics.storage.fs import Fs, NotAFile, read_file, write_atomic


class ChunkId(NamedTuple):
    """Which chunk: of which topic and writer, and its place in the writer's work."""

    topic_id: int
    writer: str
    epoch: int
    part: int
    attempt: int
    chunk: int


class FoundChunks(NamedTuple):
    """What a start finds: the chunks with whole heads, and the reason for each file that does not count."""

    heads: list[ChunkHead]
    bad: list[str]


def chunk_path(root: str, chunk: ChunkId) -> str:
    return f"{layout.staging_directory(root)}/{layout.staged_chunk_name(*chunk)}"


def write_chunk(fs: Fs, root: str, chunk: ChunkId, batch: RecordBatch, ts: int) -> None:
    """Durable when it returns."""
    head = ChunkHead(*chunk, ts, len(batch), batch.size_bytes)
    path = chunk_path(root, chunk)
    fs.makedirs(layout.staging_directory(root))
    try:
        write_atomic(fs, path, staged_chunk.encode(head, batch))
    except OSError:
        temporary = path + layout.TEMPORARY
        if fs.exists(temporary):
            fs.unlink(temporary)
        raise


def read_chunk(fs: Fs, root: str, chunk: ChunkId) -> RecordBatch:
    """Raises `FormatError` when the file is not that chunk, `OSError` when it cannot be read."""
    head, batch = staged_chunk.decode(read_file(fs, chunk_path(root, chunk)))
    _check_identity(head, chunk)
    return batch


def remove_chunks(fs: Fs, root: str, chunks: Iterable[ChunkId]) -> None:
    """Not synced: the next start removes a chunk that a crash brings back."""
    for chunk in chunks:
        path = chunk_path(root, chunk)
        if fs.exists(path):
            fs.unlink(path)


def find_chunks(fs: Fs, root: str) -> FoundChunks:
    """All staged chunks, read by their heads only. Removes temporary files; other files stay."""
    directory = layout.staging_directory(root)
    found = FoundChunks([], [])
    if not fs.exists(directory):
        return found
    # A killed process may have left names here that are only in the page cache.
    fs.sync_dir(directory)
    for name in fs.listdir(directory):
        path = f"{directory}/{name}"
        if name.endswith(layout.STAGED + layout.TEMPORARY):
            fs.unlink(path)
            continue
        chunk = layout.staged_chunk_of(name)
        if chunk is None:
            continue
        try:
            found.heads.append(_read_head(fs, path, ChunkId._make(chunk)))
        except (FormatError, FutureVersion) as error:
            found.bad.append(f"{path}: {error.message}")
        except (NotAFile, IsADirectoryError) as error:
            found.bad.append(f"{path}: {error.strerror}")
    return found


def _read_head(fs: Fs, path: str, chunk: ChunkId) -> ChunkHead:
    file = fs.open(path, "read")
    try:
        head, _ = staged_chunk.decode_head(file.pread(LEAD_BYTES + HEAD_BYTES_MAX, 0))
    finally:
        file.close()
    _check_identity(head, chunk)
    return head


def _check_identity(head: ChunkHead, chunk: ChunkId) -> None:
    found = ChunkId(head.topic_id, head.writer, head.epoch, head.part, head.attempt, head.chunk)
    if found != chunk:
        raise BadFrame(f"the file holds another chunk than its name says: {found}")
