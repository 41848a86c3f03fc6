"""A cold tier whose files can be read only when a test says so."""

import threading
from pathlib import Path

import topics
from topics.storage.fs import File, OpenMode, RealFs
from topics.testing.wrapped_fs import WrappedFs

RECORDS = 40


class GatedFs(WrappedFs):
    """While the gate is closed, a thread that opens a cold segment waits, and `is_waiting` is set."""

    def __init__(self, cold: Path) -> None:
        super().__init__(RealFs())
        self._cold = str(cold)
        self.gate = threading.Event()
        self.gate.set()
        self.is_waiting = threading.Event()

    def open(self, path: str, mode: OpenMode) -> File:
        if mode == "read" and path.startswith(self._cold) and "/seg-" in path and not self.gate.is_set():
            self.is_waiting.set()
            assert self.gate.wait(60), "the thread that should open the gate waits for this file"
        return self.inner.open(path, mode)


def gated_log(tmp_path: Path) -> tuple[Path, topics.EngineSettings, GatedFs]:
    """A directory with a topic `t` whose records are in the cold tier only."""
    path, cold = tmp_path / "log", tmp_path / "cold"
    settings = topics.EngineSettings(
        wal_shards=1,
        wal_file_bytes=1 << 20,
        cold_dir=str(cold),
        hot_retain_segments=0,
        segment_events_max=10,
        tail_cache_bytes=0,
    )
    pause = threading.Event()
    with topics.open(path, settings=settings) as log:
        log.append("t", list(range(RECORDS)))
        log.seal("t")
        while any(state.tier != "cold" for state in log._engine.topic("t").live.segments.segments):
            pause.wait(0.01)
        # The hot copies go when no snapshot that is kept names them.
        hot = path / "topics" / "00000001"
        while list(hot.glob("seg-*")):
            log.append("other", [1])
            log.checkpoint()
            pause.wait(0.01)
    return path, settings, GatedFs(cold)
