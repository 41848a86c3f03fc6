"""A data directory of the partitioned engine, read without the engine.

Nothing is changed and no lock is taken, so that an engine may use the same files. The state log has all streams and
topics. An incomplete entry at its end is left out: an engine is writing it.

Driver and nodes look up keys where they need them: in the environment, or in a file that an option names. No option, no
plan and no error has a key.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from topics.errors import BadFrame, FormatError, StartRefused, Torn
from topics.formats.message_cipher import Cipher
from topics.formats.state_entry import StateEntry, scan_iggy, scan_page
from topics.formats.stream_catalog import Catalog, catalog_of
from topics.formats.stream_layout import Flavour, StreamKeys
from topics.spark.errors import BadOption
from topics.storage.fs import Fs, read_file
from topics.storage.tiers.addresses import path_of_address
from topics.stream_errors import StreamsError

# The variables of the engine for its settings `system.…`.
ENCRYPTION_ENABLED_VARIABLE: Final = "IGGY_SYSTEM_ENCRYPTION_ENABLED"
ENCRYPTION_KEY_VARIABLE: Final = "IGGY_SYSTEM_ENCRYPTION_KEY"
_FOLDER_VARIABLES: Final = {
    "streams": "IGGY_SYSTEM_STREAM_PATH",
    "topics": "IGGY_SYSTEM_TOPIC_PATH",
    "partitions": "IGGY_SYSTEM_PARTITION_PATH",
}


class KeyPlace(NamedTuple):
    """Where a node finds a key: a variable, a file, or, with neither, the settings of the engine."""

    variable: str | None = None
    file: str | None = None


def find_cipher(fs: Fs, place: KeyPlace, environment: Mapping[str, str]) -> Cipher | None:
    """None when no key is configured. Raises `BadOption` when the configured key is not on this machine."""
    if place.file is not None:
        try:
            key, where = read_file(fs, os.path.abspath(place.file)).decode("ascii").strip(), place.file
        except OSError as error:
            raise BadOption(f"the key file {place.file} cannot be read on this machine: {error.strerror}") from error
        except UnicodeDecodeError:
            raise BadOption(f"the key file {place.file} is not base64 of 32 bytes") from None
    elif place.variable is not None:
        key, where = environment.get(place.variable, ""), place.variable
        if not key:
            raise BadOption(f"there is no variable {place.variable} with a key on this machine")
    elif environment.get(ENCRYPTION_ENABLED_VARIABLE) in ("true", "1"):
        key, where = environment.get(ENCRYPTION_KEY_VARIABLE, ""), ENCRYPTION_KEY_VARIABLE
    else:
        return None
    try:
        return Cipher(key)
    except StreamsError as error:
        raise BadOption(f"{where}: {error.message}") from None


def folder_names(environment: Mapping[str, str]) -> StreamKeys:
    """The names of folders, from the settings of the engine."""
    named = {name: environment[variable] for name, variable in _FOLDER_VARIABLES.items() if variable in environment}
    return StreamKeys(**named)


def directory_path(address: str) -> str:
    """The local path of a `path` option. Raises `BadOption` for an address that is no path."""
    path = path_of_address(address)
    if path is None:
        raise BadOption(f"{address}: a directory of streams is read from files; mount it, or copy it")
    return os.path.abspath(path)


class StreamDirectory:
    """`root` must have the state log of one flavour. Thread-safe, because it keeps no state."""

    def __init__(self, fs: Fs, root: str, keys: StreamKeys, cipher: Cipher | None) -> None:
        self.fs = fs
        self.root = root
        self.keys = keys
        self.cipher = cipher
        self.flavour = find_flavour(fs, root)

    @property
    def state_log_bytes(self) -> int:
        """Grows with every command. With the same size nothing was created, emptied or deleted meanwhile."""
        return self.fs.size(self.flavour.state_log_path(self.root))

    def state_entries(self) -> list[StateEntry]:
        """All complete entries."""
        path = self.flavour.state_log_path(self.root)
        scan = scan_page if self.flavour is Flavour.PAGE else scan_iggy
        entries: list[StateEntry] = []
        try:
            for scanned in scan(read_file(self.fs, path), None if self.cipher is None else self.cipher.decrypt):
                entries.append(scanned.entry)  # noqa: PERF401 - what came before a torn end is kept
        except Torn:
            # An engine is writing the last entry, or was killed while it wrote.
            pass
        except (FormatError, StreamsError) as error:
            raise StartRefused(
                f"{path}: {error.message}; an encrypted directory needs its key: {ENCRYPTION_ENABLED_VARIABLE}=true "
                f"and {ENCRYPTION_KEY_VARIABLE}, or option `keyEnv` or `keyFile`"
            ) from error
        return entries

    def catalog(self) -> Catalog:
        try:
            return catalog_of(self.state_entries())
        except BadFrame as error:
            raise StartRefused(f"{self.flavour.state_log_path(self.root)}: {error.message}") from error

    def partition_path(self, stream_id: int, topic_id: int, partition_id: int) -> str:
        return f"{self.root}/{self.keys.partition(stream_id, topic_id, partition_id)}"


def find_flavour(fs: Fs, root: str) -> Flavour:
    found = [flavour for flavour in Flavour if fs.exists(flavour.state_log_path(root))]
    if not found:
        raise StartRefused(f"{root} is no data directory of streams on this machine: it has no state log")
    if len(found) > 1:
        raise StartRefused(f"{root} has two state logs: remove the wrong one")
    return found[0]
