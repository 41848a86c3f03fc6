"""Where a job may write files: not among the files of a log."""

from typing import Final

from topics.backup.format import MARK
from topics.formats.stream_layout import STATE_LOGS
from topics.spark.errors import BadOption
from topics.storage import layout
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import path_of_address

# Each of these files is in a data directory, a cold tier, a directory of streams or a backup.
_OURS: Final = (layout.STORE, layout.LOCK, *STATE_LOGS.values(), MARK)


def require_free_place(address: str) -> None:
    """Raises `BadOption` for a folder that holds a log: Spark would mix its files with those of the log, or remove
    them to overwrite what is there. A bucket is not asked."""
    path = path_of_address(address)
    if path is None:
        return
    found = next((name for name in _OURS if RealFs().exists(f"{path}/{name}")), None)
    if found is not None:
        raise BadOption(f"{path} is no place for files of a job: it holds a log or a backup ({found}); give another")
