"""The two flavours of a data directory: which state log it has, and in which order message bodies are.

A directory with `state.messages` has the flavour `page`, one with `state/log` the flavour `iggy`. A directory with both
is refused, because it is unknown which log is right. A directory with neither is fresh. It gets the flavour of the
settings: an empty state log, which is durable before anything else is written. A flavour never changes afterwards.
"""

from topics.errors import StartRefused
from topics.formats.stream_layout import Flavour
from topics.storage.fs import Fs
from topics.streams.settings import StreamsSettings


def open_flavour(fs: Fs, root: str, settings: StreamsSettings) -> Flavour:
    """The flavour of the directory. Makes the empty state log of a fresh or missing directory."""
    found = [flavour for flavour in Flavour if fs.exists(flavour.state_log_path(root))]
    if len(found) > 1:
        paths = " and ".join(flavour.state_log_path(root) for flavour in found)
        raise StartRefused(
            f"{paths} both exist, and a directory has one state log; move away the one that does not belong to it"
        )
    if found:
        return found[0]
    flavour = Flavour(settings.system.flavour)
    create_state_log(fs, flavour.state_log_path(root))
    return flavour


def create_state_log(fs: Fs, path: str) -> None:
    folder = path.rpartition("/")[0]
    fs.makedirs(folder)
    file = fs.open(path, "create")
    try:
        file.fsync()
    finally:
        file.close()
    fs.sync_dir(folder)
