"""The answer that the caller of a write gets. A module of its own: a compiled module has no Structs."""

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What a write got. `deduped`: an earlier write with the same key did the work, and this call appended nothing.

    `write_ms` is how long the WAL took to write the group, `sync_ms` how long the write then waited for the sync: 0.0
    unless the class is `fsync`. Both are 0.0 when nothing was logged.
    """

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    ts: int
    created: bool
    deduped: bool
    write_ms: float = 0.0
    sync_ms: float = 0.0
