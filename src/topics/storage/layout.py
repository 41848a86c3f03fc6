"""Names in the data directory. The only place that spells or parses them.

    .topics.lock   STORE   meta/snapshot.0001.bin   wal/CURRENT   wal/wal-0000000000000001.log
    topics/00000001/topic.json, seg-0000000000000001.data, .idx, .tags, .replaced
    staging/chunk-00000001-7-0-0-2-writer.staged (epoch 7, part 0, attempt 0, chunk 2)
    streams/state.messages and more: a directory of the partitioned engine (`formats/stream_layout.py`)

With more than one WAL shard the files of each shard are in wal/shard-NN/. Names of topics are not used as names of
files: directories are numbered by topic id, 8 or more upper-case hex digits.
"""

import re
from typing import Final

from topics.formats.stream_layout import OFFSETS_FOLDER, SEGMENT_FILE, STATE_LOGS, Flavour, state_flavour

LOCK: Final = ".topics.lock"
STORE: Final = "STORE"
CURRENT: Final = "CURRENT"
TOPIC_JSON: Final = "topic.json"
# In the root of a directory that `topics restore` made.
RESTORE_NOTE: Final = "restore.json"
TEMPORARY: Final = ".tmp"
TORN: Final = ".torn"
REWRITE: Final = ".rewrite"
DELETED: Final = ".deleted"
BROKEN: Final = ".broken"
STAGED: Final = ".staged"
REPLACED: Final = ".replaced"

_WAL_FILE: Final = re.compile(r"wal-([0-9]{16})\.log")
_REWRITE_OF_WAL: Final = re.compile(r"(wal-\d{16}\.log)\.(\d+)\.rewrite")
_SHARD: Final = re.compile(r"shard-([0-9]{2})")
_SNAPSHOT: Final = re.compile(r"snapshot\.([0-9]{4,})\.bin")
_SEGMENT: Final = re.compile(r"seg-([0-9]{16,20})\.(data|idx|tags)")
_REPAIR_REPORT: Final = re.compile(r"repair-([0-9]{4,})\.json")
_STAGED_CHUNK: Final = re.compile(r"chunk-([0-9A-F]{8,16})-(\d+)-(\d+)-(\d+)-(\d+)-([A-Za-z0-9._:-]{1,128})\.staged")
_REPLACED_MARK: Final = re.compile(r"seg-([0-9]{16,20})\.replaced")
# Not hidden, not a path, and not the name of a temporary file or a staged chunk.
_OFFERED: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}(?<!\.tmp)(?<!\.staged)")
_TOPIC_DIR: Final = re.compile(r"([0-9A-F]{8,16})")


def streams_state_logs(root: str) -> list[str]:
    """A directory with one of these files holds streams of the partitioned engine, and no topics."""
    return [f"{root}/{name}" for name in STATE_LOGS.values()]


def is_streams_file(path: str) -> bool:
    """Whether the name of the file is one of a stream directory."""
    folder, _, name = path.rpartition("/")
    return (
        SEGMENT_FILE.fullmatch(name) is not None
        or state_flavour(path) is not None
        or (name.isdigit() and folder.rpartition("/")[0].endswith(f"/{OFFSETS_FOLDER}"))
        or path.endswith(tuple(flavour.info_path("") for flavour in Flavour))
    )


def streams_directory(root: str) -> str:
    """Where a server keeps its streams, unless it is told otherwise."""
    return f"{root}/streams"


def wal_directory(root: str) -> str:
    return f"{root}/wal"


def shard_directory(root: str, shard: int, shard_count: int) -> str:
    return wal_directory(root) if shard_count == 1 else f"{wal_directory(root)}/shard-{shard:02d}"


def shard_of(name: str) -> int | None:
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


def wal_name(first_frame: int) -> str:
    return f"wal-{first_frame:016d}.log"


def wal_first_frame(name: str) -> int | None:
    match = _WAL_FILE.fullmatch(name)
    return int(match[1]) if match else None


def rewrite_of(name: str) -> tuple[str, int] | None:
    """(WAL file, offset) of a `.rewrite` file: the copy of the end of that WAL file while the end is written again."""
    match = _REWRITE_OF_WAL.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def meta_directory(root: str) -> str:
    return f"{root}/meta"


def snapshot_path(root: str, number: int) -> str:
    return f"{root}/meta/snapshot.{number:04d}.bin"


def snapshot_number(name: str) -> int | None:
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else None


def topics_directory(root: str) -> str:
    return f"{root}/topics"


def topic_name(topic_id: int) -> str:
    return f"{topic_id:08X}"


def topic_directory(root: str, topic_id: int) -> str:
    return f"{root}/topics/{topic_name(topic_id)}"


def topic_of(name: str) -> int | None:
    return int(name, 16) if _TOPIC_DIR.fullmatch(name) else None


def segment_stem(first_seq: int) -> str:
    return f"seg-{first_seq:016d}"


def segment_of(name: str) -> tuple[int, str] | None:
    """(first seq, kind) of a segment file's name; kind is `data`, `idx` or `tags`."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def segment_object(topic_id: int, first_seq: int, kind: str) -> str:
    """Name of a segment file inside a tier's root."""
    return f"topics/{topic_name(topic_id)}/{segment_stem(first_seq)}.{kind}"


def replaced_mark_of(name: str) -> int | None:
    """First seq of the segment that a `.replaced` mark belongs to."""
    match = _REPLACED_MARK.fullmatch(name)
    return int(match[1]) if match else None


def is_offered_name(name: str) -> bool:
    """Whether a file of this name in `staging/` can be one of a pair that is to replace a segment."""
    return _OFFERED.fullmatch(name) is not None


def staging_directory(root: str) -> str:
    return f"{root}/staging"


def staged_chunk_name(topic_id: int, writer: str, epoch: int, part: int, attempt: int, chunk: int) -> str:
    return f"chunk-{topic_name(topic_id)}-{epoch}-{part}-{attempt}-{chunk}-{writer}{STAGED}"


def staged_chunk_of(name: str) -> tuple[int, str, int, int, int, int] | None:
    """(topic id, writer, epoch, part, attempt, chunk) of a staged chunk's name."""
    match = _STAGED_CHUNK.fullmatch(name)
    if match is None:
        return None
    return int(match[1], 16), match[6], int(match[2]), int(match[3]), int(match[4]), int(match[5])


def repair_report_name(number: int) -> str:
    """The report of `topics doctor --repair`, in the root of the data directory."""
    return f"repair-{number:04d}.json"


def is_repair_report(name: str) -> bool:
    return _REPAIR_REPORT.fullmatch(name) is not None
