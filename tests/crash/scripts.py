"""Workloads for the sweeps. Each covers one kind of change that the engine makes to its files."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.crash.harness import SETTINGS, World
from topics.engine.settings import EngineSettings

Script = Callable[[World], None]


def append(world: World) -> None:
    """Single records, in every class that is stored."""
    world.open()
    for durability in ("fsync", "disk", "memory"):
        world.put(durability, durability=durability)
    for _ in range(3):
        for durability in ("fsync", "disk", "memory"):
            world.append(durability)
    world.tick()
    world.append("memory")
    world.append("disk")
    world.append("fsync", size=700)
    world.append("disk", size=700)


def batch(world: World) -> None:
    """Batches, also several in one group, with and without keys. A batch is there whole or not at all."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.append("a", 5, size=200)
    world.append("b", 7, key="once", size=200)
    world.append("a", 3, flush=False)
    world.append("b", 4, size=300, flush=False)
    world.append("a", 2, key="twice", flush=False)
    world.append("b", 1, flush=False)
    world.flush()
    world.append("b", 6, size=400)
    world.append("a", 6, size=400)


def long_batch(world: World) -> None:
    """Batches that go into the log over several turns, through changes of the WAL file: whole or not at all."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.append("a", 5, size=200)
    world.append("b", 7, key="once", size=200)
    world.append("a", 1)
    world.append("b", 6, size=400)
    world.append("a", 6, key="twice", size=300)
    world.append("b", 2)


def one_turn(world: World) -> None:
    """Turns that write one group of all kinds of frames: synced and unsynced writes, deletes and configs."""
    world.open()
    world.put("a", durability="fsync", cap_records=30)
    world.put("b", durability="disk")
    for place in range(3):
        world.append("b", 2, flush=False)
        world.append("a", 3, size=150, flush=False)
        world.delete("b", tag_prefix="t1", flush=False)
        world.append("b", 2, key=f"k{place}", size=150, flush=False)
        world.delete("a", before_seq=place * 2, flush=False)
        world.put("a", durability="fsync", cap_records=12 - place * 3, flush=False)
        world.append("a", 2, flush=False)
        world.append("b", 1, flush=False)
        world.flush()
        if place == 1:
            world.checkpoint()


def auto_create(world: World) -> None:
    """Writes that create their topic: creation and records are in one group."""
    world.open()
    world.put("seed", durability="fsync")
    world.append("seed", 2)
    world.drop("seed")
    world.put("seed", durability="disk")
    world.append("seed", 2)


def rotate(world: World) -> None:
    """WAL files so small that they rotate every few writes."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    for place in range(9):
        world.append("a", 2, size=300)
        world.append("b", 3, size=300)
        if place % 3 == 2:
            world.tick()


def checkpoint(world: World) -> None:
    """Checkpoints with segments that grow and are sealed, and old files that are removed."""
    world.open()
    for durability in ("fsync", "disk", "memory"):
        world.put(durability, durability=durability)
    for place in range(4):
        for durability in ("fsync", "disk", "memory"):
            world.append(durability, 3, size=60, key=f"{durability}{place}" if place % 2 else None)
        world.checkpoint()
    world.append("disk")
    world.append("fsync")


def checkpoint_and_rotate(world: World) -> None:
    """Several WAL files between two checkpoints. Files that a kept snapshot needs stay."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    for place in range(4):
        for _ in range(3):
            world.append("a", 2, size=500)
            world.append("b", 2, size=500)
        world.delete("a", tag="t1.1")
        if place < 3:
            world.checkpoint()


def seal(world: World) -> None:
    """One checkpoint that fills several segments, then one that continues the last of them."""
    world.open()
    world.put("a", durability="fsync")
    world.append("a", 15)
    world.checkpoint()
    world.append("a", 9, key="in the middle")
    world.append("a", 2)
    world.checkpoint()
    world.append("a", 1)


def delete(world: World) -> None:
    """Deletes of records in the tail, in the active segment and in sealed segments."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    for name in ("a", "b"):
        world.append(name, 9)
        world.delete(name, tag="t1.1")
    world.checkpoint()
    for name in ("a", "b"):
        world.append(name, 5)
        world.delete(name, tag_prefix="t2.")
        world.delete(name, before_seq=3)
    world.checkpoint()
    for name in ("a", "b"):
        world.delete(name, tag="t1.0", before_seq=12)
        world.delete(name, before_seq=8)
        world.append(name, 3)
    world.checkpoint()
    world.checkpoint()


def delete_everything(world: World) -> None:
    """Segments whose records are all deleted. Their files are removed when no snapshot lists them."""
    world.open()
    world.put("a", durability="fsync")
    for _ in range(3):
        world.append("a", 7)
        world.checkpoint()
        world.delete("a", before_seq=1000)
    world.append("a", 2)
    world.checkpoint()
    world.append("a", 2)
    world.checkpoint()


def drop_and_recreate(world: World) -> None:
    """A topic is removed and created again with the same name, before and after checkpoints."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.append("a", 8, key="k")
    world.append("b", 8)
    world.drop("a")
    world.put("a", durability="fsync", cap_records=50)
    world.append("a", 2)
    world.checkpoint()
    world.append("a", 3)
    world.append("b", 7)
    world.checkpoint()
    world.delete("b", tag_prefix="t")
    world.drop("b")
    world.drop("a")
    world.put("b", durability="fsync")
    world.append("b", 1, key="k")
    world.checkpoint()
    world.put("a", durability="memory")
    world.append("a", 1)
    world.drop("b")
    world.checkpoint()


def configure(world: World) -> None:
    """Caps and TTLs that become smaller and larger again. Evicted records do not come back."""
    world.open()
    world.put("a", durability="fsync", cap_records=6)
    world.put("b", durability="disk", cap_bytes=200)
    world.put("t", durability="fsync", ttl_ms=1000)
    for name in ("a", "b", "t"):
        world.append(name, 4)
    world.clock.advance(600)
    for name in ("a", "b", "t"):
        world.append(name, 4)
    world.clock.advance(600)
    world.put("a", durability="disk")
    world.put("b", durability="fsync", cap_bytes=100)
    world.put("t", durability="fsync")
    for name in ("a", "b", "t"):
        world.append(name, 3)
    world.checkpoint()
    world.put("a", durability="fsync", cap_records=2)
    world.put("b", durability="memory")
    world.put("t", durability="fsync", ttl_ms=100)
    world.clock.advance(101)
    for name in ("a", "b", "t"):
        world.append(name, 2)
    world.checkpoint()
    world.put("a", durability="fsync", cap_records=20, cap_bytes=90)
    world.append("a", 2)
    world.append("b", 5)
    world.put("b", durability="fsync", cap_bytes=150)
    world.delete("b", tag_prefix="t1")
    world.append("a", 2)


def ephemeral(world: World) -> None:
    """Ephemeral topics: their config survives, their records end with the process."""
    world.open()
    world.put("e", durability="ephemeral", cap_records=100)
    world.append("e", 4, key="gone")
    world.checkpoint()
    world.append("e", 2)
    world.put("f", durability="fsync")
    world.append("f", 2)
    world.checkpoint()
    world.append("e", 1)


def reject(world: World) -> None:
    """A full topic with `discard: reject` takes no record, also after a crash."""
    world.open()
    world.put("a", durability="fsync", cap_records=5, discard="reject")
    for _ in range(4):
        world.append("a", 2)
    world.delete("a", before_seq=3)
    world.append("a", 2)
    world.checkpoint()
    world.delete("a", tag_prefix="t")
    world.append("a", 1)
    world.append("a", 1)


def small_caps(world: World) -> None:
    """Caps that are smaller than a reservation of seqs. A head that jumps over the reservation evicts nothing."""
    world.open()
    world.put("a", durability="disk", cap_records=6)
    world.put("b", durability="disk", cap_records=9, cap_bytes=200)
    for name in ("a", "b"):
        world.append(name, 4)
        world.append(name, 3, key="once")
    world.tick()
    world.append("a", 2)
    world.checkpoint()
    world.append("a", 3)
    world.append("b", 2)
    world.put("a", durability="disk", cap_records=4)
    world.tick()
    world.delete("a", tag="t1.1")
    world.put("a", durability="disk", cap_records=20)
    world.append("a", 2)
    world.append("b", 3)


def close_and_reopen(world: World) -> None:
    """Clean stops, with and without records to checkpoint."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.put("e", durability="ephemeral")
    world.append("a", 3)
    world.append("b", 3)
    world.append("e", 3)
    world.close()
    world.recover()
    world.append("a", 3)
    world.append("b", 3)
    world.append("e", 2)
    world.close()
    world.recover()
    world.close()
    world.recover()
    world.append("b", 1)


def change_shards(world: World) -> None:
    """A different shard count at each start: 1, 3, 2, 1."""
    world.open()
    for number in range(4):
        world.put(f"f{number}", durability="fsync")
        world.put(f"d{number}", durability="disk")
        world.append(f"f{number}", 2)
        world.append(f"d{number}", 2)
    for shards in (3, 2, 1):
        world.close() if shards == 2 else world.kill()
        world.use_shards(shards)
        world.recover()
        for number in range(4):
            world.append(f"f{number}", 1)
            world.append(f"d{number}", 1)
        world.drop(f"f{shards}")
        world.put(f"f{shards}", durability="fsync")
        if shards == 3:
            world.checkpoint()


def several_shards(world: World) -> None:
    """Topics in three shards. Each shard has its files and marks."""
    world.use_shards(3)
    world.open()
    for number in range(4):
        world.put(f"f{number}", durability="fsync")
        world.put(f"d{number}", durability="disk")
    for _ in range(2):
        for number in range(4):
            world.append(f"f{number}", 2, size=100)
            world.append(f"d{number}", 2, size=100)
        world.tick()
    world.checkpoint()
    world.drop("f1")
    world.append("d0", 1)
    world.append("d1", 1)


def busy_reservations(world: World) -> None:
    """A disk topic that uses up several reservations."""
    world.open()
    world.put("d", durability="disk")
    for place in range(4):
        world.append("d", 100, size=1)
        if place == 1:
            world.tick()
        if place == 2:
            world.checkpoint()


def relocate(world: World) -> None:
    """Sealed segments move to a cold folder: copy, sync, note in a snapshot, and only then remove the hot files."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    world.append("a", 14)
    world.append("b", 8)
    world.checkpoint()
    world.relocate()
    world.delete("a", tag="t1.1")
    world.append("a", 7)
    world.checkpoint()
    world.relocate()
    world.delete("a", before_seq=5)
    world.append("b", 2)
    world.checkpoint()
    world.delete("a", tag_prefix="t2")
    world.append("b", 2)
    world.checkpoint()
    world.drop("b")
    world.append("a", 2)
    world.checkpoint()


def rewrite_segments(world: World) -> None:
    """More than half of sealed segments is deleted, so that checkpoints write them again: by tags and from the front,
    the same segment twice, with deletes before, between and after, and beside segments that a program replaces."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    for name in ("a", "b"):
        world.append(name, 14)
    world.checkpoint()
    for name in ("a", "b"):
        world.delete(name, tag_prefix="t1.")
        world.append(name, 2)
    world.checkpoint()
    world.delete("a", before_seq=7)
    world.delete("b", before_seq=4)
    world.append("a", 9)
    world.checkpoint()
    world.delete("b", tag_prefix="t2.")
    world.purge("b")
    world.checkpoint()
    world.delete("a", tag_prefix="t")
    world.append("a", 3)
    world.checkpoint()
    world.append("b", 1)
    world.checkpoint()
    world.checkpoint()


def replace_segments(world: World) -> None:
    """Segments are replaced by files without deleted records: before and after checkpoints, twice in a row, and when
    only the last checkpoint sealed the segment."""
    world.open()
    world.put("a", durability="fsync")
    world.put("b", durability="disk")
    for name in ("a", "b"):
        world.append(name, 14)
        world.delete(name, tag="t1.1")
    world.checkpoint()
    for name in ("a", "b"):
        world.delete(name, tag_prefix="t2.")
        world.append(name, 2)
    world.checkpoint()
    world.purge("a")
    world.delete("a", before_seq=3)
    world.append("a", 9)
    world.purge("b")
    world.checkpoint()
    world.purge("a")
    world.delete("b", tag="t1.0")
    world.append("b", 1)
    world.checkpoint()
    world.purge("b")
    world.append("a", 1)
    world.checkpoint()
    world.append("b", 1)
    world.checkpoint()
    world.checkpoint()


TINY_WAL: Final = EngineSettings(
    wal_shards=1, wal_file_bytes=4096, segment_events_max=6, tail_cache_bytes=600, segment_bytes_max=4096
)

SCRIPTS: Final[dict[str, tuple[Script, EngineSettings]]] = {
    "append": (append, SETTINGS),
    "batch": (batch, SETTINGS),
    "long_batch": (long_batch, replace(TINY_WAL, long_write_bytes=300, long_write_turn_bytes=400)),
    "one_turn": (one_turn, SETTINGS),
    "auto_create": (auto_create, SETTINGS),
    "rotate": (rotate, TINY_WAL),
    "checkpoint": (checkpoint, SETTINGS),
    "checkpoint_tiny_wal": (checkpoint, TINY_WAL),
    "checkpoint_and_rotate": (checkpoint_and_rotate, TINY_WAL),
    "seal": (seal, SETTINGS),
    "delete": (delete, SETTINGS),
    "delete_everything": (delete_everything, SETTINGS),
    "drop_and_recreate": (drop_and_recreate, SETTINGS),
    "configure": (configure, SETTINGS),
    "ephemeral": (ephemeral, SETTINGS),
    "reject": (reject, SETTINGS),
    "small_caps": (small_caps, SETTINGS),
    "close_and_reopen": (close_and_reopen, SETTINGS),
    "change_shards": (change_shards, SETTINGS),
    "several_shards": (several_shards, SETTINGS),
    "relocate": (relocate, replace(SETTINGS, cold_dir="/cold", hot_retain_segments=1)),
    "replace_segments": (replace_segments, SETTINGS),
    "rewrite_segments": (rewrite_segments, SETTINGS),
    "busy_reservations": (busy_reservations, EngineSettings(wal_shards=1, wal_file_bytes=65536)),
}
