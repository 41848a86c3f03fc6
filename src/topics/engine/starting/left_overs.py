"""Files of removed topics that an earlier process did not get to remove."""

from topics.engine.checkpointing.checkpointer import Checkpointer
from topics.engine.engine import Engine
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.removal import remove_deleted_directory, remove_topic_directory


def remove_left_overs(engine: Engine, checkpointer: Checkpointer, removed: dict[int, list[SegmentState]]) -> None:
    """Finishes the removal of topics. `removed`: topic id -> segments, of topics whose removal the WAL holds."""
    fs, root = engine.directory.fs, engine.directory.root
    directory = layout.topics_directory(root)
    for topic_id, segments in removed.items():
        remove_topic_directory(fs, root, topic_id)
        checkpointer.remove_cold(topic_id, segments)
    for name in fs.listdir(directory):
        if name.endswith(layout.DELETED):
            remove_deleted_directory(fs, f"{directory}/{name}")
