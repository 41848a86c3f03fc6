"""Files of removed topics that an earlier process did not get to remove."""

import logging

from topics.engine.engine import Engine
from topics.errors import ColdUnavailable
from topics.formats.snapshot import SegmentState
from topics.storage import layout
from topics.storage.removal import remove_deleted_directory, remove_topic_directory

logger = logging.getLogger(__name__)


def remove_left_overs(engine: Engine, removed: dict[int, list[SegmentState]]) -> None:
    """Finishes the removal of topics. `removed`: topic id -> segments, of topics whose removal the WAL holds."""
    fs, root = engine.directory.fs, engine.directory.root
    directory = layout.topics_directory(root)
    for topic_id, segments in removed.items():
        try:
            remove_topic_directory(fs, root, engine.cold, topic_id, segments)
        except ColdUnavailable as error:
            logger.warning("cold files of a removed topic are not removed yet: %s", error.message)
    for name in fs.listdir(directory):
        if name.endswith(layout.DELETED):
            remove_deleted_directory(fs, f"{directory}/{name}")
