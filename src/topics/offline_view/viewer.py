"""The process that makes a view: `python -m topics.offline_view.viewer` reads a request on stdin and writes the answer
to stdout.

It runs the ordinary recovery on a file system that keeps all changes in a scratch folder (`storage/overlay.py`).
Recovery cuts torn tails, lets routers copy and raises floors, but no byte of the directory or of its cold tier changes.
Several viewers may read one directory at the same time. A server that starts during a view waits, or is told that the
directory is in use.

Two things are errors here that a start only warns of, because the log of this process is not read: an unreadable newest
snapshot, even if an older one is readable, and a segment file that is shorter than its noted length.
"""

import logging
import sys
from typing import Any, Final

import msgspec

from topics.clock import Clock, SystemClock
from topics.engine.checkpointing.log_capture import capture_log
from topics.engine.engine import Engine
from topics.engine.manifest import FRAMES_RECORDS_MAX, encode_frames, take_manifest
from topics.engine.runtime import InlineRuntime
from topics.engine.settings import EngineSettings
from topics.engine.starting.recovery import open_engine
from topics.engine.starting.shard_count import found_shard_count
from topics.engine.topic.topic import Topic
from topics.errors import Damaged, FutureVersion, StartRefused, TopicsError
from topics.formats import segment, segment_index
from topics.limits import MIB
from topics.offline_view.view import Refusal, TopicView, ViewAnswer, ViewRequest
from topics.storage import layout
from topics.storage.checkpoints.runner import InlineRunner
from topics.storage.fs import Fs, RealFs, write_all
from topics.storage.overlay import OverlayFs, OverlayStore
from topics.storage.segments.frame_walk import walk_entries
from topics.storage.snapshots import load_snapshots
from topics.storage.tiers.addresses import file_address, open_store
from topics.storage.tiers.folder_store import FolderStore
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import ensure_store_id
from topics.storage.wal.reader import list_wal_files

# Size of one segment of tier `tail`: small enough to travel with the task that reads it.
TAIL_SEGMENT_BYTES: Final = MIB
# Size of the log file that the recovery creates. Nothing is written into that file.
_LOG_FILE_BYTES: Final = 64 * 1024


def view_directory(fs: RealFs, request: ViewRequest, clock: Clock) -> ViewAnswer:
    """The view; status `locked` while a server has the directory open. Raises `StartRefused`."""
    lock_path = f"{request.root}/{layout.LOCK}"
    lock = None
    # A directory without a lock file was never served, or is a copy.
    if fs.exists(lock_path):
        lock = fs.lock_shared(lock_path)
        if lock is None:
            return ViewAnswer(status="locked")
    try:
        return recover_view(fs, request, clock)
    finally:
        if lock is not None:
            lock.release()


def recover_view(fs: Fs, request: ViewRequest, clock: Clock) -> ViewAnswer:
    """The view of a directory that no process changes. Raises `StartRefused`."""
    scratch = f"{request.folder}/scratch"
    fs.makedirs(scratch)
    overlay = OverlayFs(fs, scratch)
    opened = open_engine(
        overlay,
        request.root,
        settings=_settings(overlay, request),
        clock=clock,
        runtime=InlineRuntime(),
        runner=InlineRunner(overlay),
        open_tier=_open_tier,
    )
    try:
        engine = opened.engine
        # Numbers that need a look into cold segments become exact.
        engine.flush()
        topics = [
            _view_topic(engine, topic, overlay, fs, request.folder)
            for _, topic in sorted(engine.topics.items())
            if request.topic_id in (None, topic.id)
        ]
        answer = ViewAnswer(status="taken", topics=topics, warnings=opened.report.warnings)
        if request.with_snapshot:
            captured = capture_log(engine, 0)
            state = {"snapshot": captured.snapshot, "ts": captured.ts, "store_id": captured.store_id}
            answer = msgspec.structs.replace(answer, **state)
        return answer
    finally:
        opened.release()


def _open_tier(address: str, fs: Fs) -> SegmentStore:
    return OverlayStore(open_store(address, fs))


def _settings(fs: OverlayFs, request: ViewRequest) -> EngineSettings:
    """Settings with the shard count of the directory: recovery with another count moves all records into segments."""
    root = request.root
    for directory in (layout.meta_directory(root), layout.wal_directory(root)):
        fs.makedirs(directory)
    loaded = load_snapshots(fs, root)
    if loaded.bad:
        raise _unreadable_snapshot(loaded.bad[0])
    shard_count = found_shard_count(fs, root)
    if loaded.newest is None:
        for shard in range(shard_count):
            files = list_wal_files(fs, layout.shard_directory(root, shard, shard_count))
            if not files or files[0].first_frame != 1:
                raise _unreadable_snapshot(layout.meta_directory(root))
    else:
        shard_count = len(loaded.newest.wal)
    return EngineSettings(wal_shards=max(1, shard_count), wal_file_bytes=_LOG_FILE_BYTES, cold_dir=request.cold_dir)


def _unreadable_snapshot(path: str) -> StartRefused:
    return StartRefused(
        f"{path}: no readable snapshot, so it is unknown which records must not be shown; run `topics verify` on the "
        "data directory, or start a server on it, which uses an older snapshot"
    )


def _view_topic(engine: Engine, topic: Topic, overlay: OverlayFs, fs: Fs, folder: str) -> TopicView:
    manifest = take_manifest(engine, topic.name)
    _check_tier(topic, engine)
    for entry, state in zip(manifest["segments"], topic.live.segments.segments, strict=True):
        assert entry["first_seq"] == state.first_seq
        if state.tier == "hot":
            stem = engine.core.cache.stem(topic.id, state.first_seq)
            size = overlay.size(f"{stem}.data")
            if size < state.data_bytes:
                raise Damaged(f"{stem}.data", size, f"{state.data_bytes} bytes", f"{size}")
            if overlay.is_changed(f"{stem}.data") or overlay.is_changed(f"{stem}.idx"):
                # Recovery finished a checkpoint, or built the index again. The files in the directory do not have that
                # change.
                data, idx = (_read(overlay, f"{stem}.{kind}", entry[f"{kind}_len"]) for kind in ("data", "idx"))
                entry["uri"] = _write_pair(engine, fs, folder, topic.id, state.first_seq, data, idx)
    manifest["durable_seq"] = topic.head_seq if topic.config.durability == "fsync" else topic.live.checkpointed_seq
    manifest["segments"] += _tail_segments(engine, topic, fs, folder)
    manifest["checkpointed_seq"] = topic.head_seq
    config = msgspec.structs.asdict(topic.config) | {"durable": topic.config.durable}
    return TopicView(
        manifest=manifest, type=topic.config.type, count=topic.count, bytes=topic.size_bytes, config=config
    )


def _check_tier(topic: Topic, engine: Engine) -> None:
    cold = [state for state in topic.live.segments.segments if state.tier == "cold"]
    if cold and engine.cold is None:
        raise StartRefused(
            f'topic "{topic.name}": seqs {cold[0].first_seq} to {cold[-1].last_seq} are in the cold tier, and its '
            "address is not set; set TOPICS_COLD_DIR as for the server"
        )


def _tail_segments(engine: Engine, topic: Topic, fs: Fs, folder: str) -> list[dict[str, Any]]:
    """The records that are in no segment, written as segments."""
    entries: list[dict[str, Any]] = []
    cursor = topic.live.checkpointed_seq
    while cursor < topic.head_seq:
        page = topic.read(cursor, FRAMES_RECORDS_MAX, TAIL_SEGMENT_BYTES, None)
        if page.tombstone is not None and page.tombstone.reason == "corrupt":
            raise Damaged(f"{engine.directory.root}/wal", 0, f"seq {page.tombstone.gap_from}", "a damaged record")
        data, _ = encode_frames(page)
        if data:
            entries.append(_tail_segment(engine, fs, folder, topic, data))
        assert page.next_from_seq > cursor, "a page without progress would be read again for ever"
        cursor = page.next_from_seq
    return entries


def _tail_segment(engine: Engine, fs: Fs, folder: str, topic: Topic, data: bytes) -> dict[str, Any]:
    first = segment.check(data, 0, len(data))
    rows = walk_entries(data, first.seq, None)
    return {
        "first_seq": first.seq,
        "last_seq": first.seq + len(rows) - 1,
        "tier": "tail",
        "uri": _write_pair(engine, fs, folder, topic.id, first.seq, data, segment_index.encode(rows)),
        "data_len": len(data),
        "idx_len": len(rows) * segment_index.ENTRY_BYTES,
        "min_ts": first.ts,
        "max_ts": rows[-1][2],
        "records": len(rows),
        "live": sum(1 for row in rows if row[1]),
        "sealed": True,
        "digest": "",
        "proof": "",
    }


def _write_pair(engine: Engine, fs: Fs, folder: str, topic_id: int, first_seq: int, data: bytes, idx: bytes) -> str:
    """The address of the `.data`. The folder gets a STORE, because readers check that a tier is of the same store."""
    ensure_store_id(FolderStore(fs, folder), engine.directory.store_id)
    fs.makedirs(layout.topic_directory(folder, topic_id))
    for kind, content in (("data", data), ("idx", idx)):
        file = fs.open(f"{folder}/{layout.segment_object(topic_id, first_seq, kind)}", "create")
        try:
            write_all(file, content, 0)
        finally:
            file.close()
    return file_address(f"{folder}/{layout.segment_object(topic_id, first_seq, 'data')}")


def _read(fs: Fs, path: str, size: int) -> bytes:
    file = fs.open(path, "read")
    try:
        return file.pread(size, 0)
    finally:
        file.close()


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ViewRequest)
    try:
        answer = view_directory(RealFs(), request, SystemClock())
    except Damaged as error:
        where = (error.path, error.offset, error.expected, error.found)
        answer = ViewAnswer(status="refused", refusal=Refusal(kind="damaged", message=error.message, damage=where))
    except FutureVersion as error:
        answer = ViewAnswer(status="refused", refusal=Refusal(kind="future_version", message=error.message))
    except TopicsError as error:
        answer = ViewAnswer(status="refused", refusal=Refusal(kind="other", message=error.message))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
