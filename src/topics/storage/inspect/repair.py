"""`topics doctor --repair`: the only thing that ever cuts what was durable.

Rules:

1. It works under the lock, so no server runs.
2. Nothing is destroyed: what is cut or replaced is kept beside as `.broken`.
3. No loss is silent. What is lost is said, written to `repair-NNNN.json` before anything is changed, and told to
   readers: seqs that can no longer be read become lost ranges of their topics, and are never given out again.
4. A decision stays: creations, removals, config changes and deletes that are found after damage of the log are
   written again at the cut. Only records are lost.
5. It may be interrupted anywhere and run again.
"""

from collections.abc import Callable

from topics.errors import DirectoryLocked
from topics.storage import layout
from topics.storage.fs import Fs
from topics.storage.inspect.doctor import Doctor
from topics.storage.inspect.repair_plan import RepairPlan
from topics.storage.tiers.store import SegmentStore
from topics.storage.wal.settling import finish_rewrites

Say = Callable[[str], None]


def repair(
    fs: Fs, root: str, *, cold: SegmentStore | None = None, accept_loss: bool = False, say: Say | None = None
) -> RepairPlan:
    """Does what can be done, and says each step before it is taken. Raises `DirectoryLocked` while a server runs."""
    say = say or _silent
    lock = fs.lock(f"{root}/{layout.LOCK}")
    if lock is None:
        raise DirectoryLocked(f"{root} is in use; stop the server first")
    try:
        _finish_rewrites(fs, root, say)
        doctor = Doctor(fs, root, cold=cold, holds_lock=True)
        for _ in doctor.verifier.run():
            pass
        plan = doctor.plan(accept_loss=accept_loss)
        for line in plan.lost_lines:
            say(line)
        for step in plan.steps:
            say(step.text)
            step.act()
        return plan
    finally:
        lock.release()


def _finish_rewrites(fs: Fs, root: str, say: Say) -> None:
    """What an interrupted start left is finished first: the log is looked at as a start would see it."""
    wal = layout.wal_directory(root)
    names = fs.listdir(wal) if fs.exists(wal) else []
    for directory in [wal, *(f"{wal}/{name}" for name in names if layout.shard_of(name) is not None)]:
        if any(layout.rewrite_of(name) is not None for name in fs.listdir(directory)):
            say(f"write back the log's end in {directory.removeprefix(root + '/')}, as an interrupted start left it")
            finish_rewrites(fs, directory)


def _silent(text: str) -> None:
    pass
