"""From a data directory to its open topics: the lock, the flavour, the state log, and every partition recovered.

Each step hands its result to the next one. If a step fails, everything that was opened is closed again, and nothing has
been deleted that the state log knows.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from topics.clock import Clock
from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.formats.stream_layout import Flavour
from topics.storage.fs import Fs, Lock, write_atomic
from topics.streams.directory.directories import DELETED, Directories, take_lock
from topics.streams.directory.flavour import open_flavour
from topics.streams.directory.info_file import update_info
from topics.streams.metadata.commands import Commands
from topics.streams.metadata.logins import Credentials, create_root_user
from topics.streams.metadata.metadata import Metadata
from topics.streams.metadata.state_log import StateLog
from topics.streams.metadata.streams_metadata import TopicInfo
from topics.streams.metadata.users_metadata import ROOT_USER_ID
from topics.streams.retention.archive import Archiver, open_archiver
from topics.streams.running.partition_opener import PartitionOpener
from topics.streams.running.running_topic import RunningTopic
from topics.streams.running.running_topics import RunningTopics
from topics.streams.settings import StreamsSettings, to_toml
from topics.streams.times import now_us

logger = logging.getLogger(__name__)

CURRENT_CONFIG: Final = "current_config.toml"


@dataclass(frozen=True, slots=True)
class Started:
    """What a start hands to the `System`, which closes it."""

    lock: Lock
    flavour: Flavour
    directories: Directories
    archiver: Archiver | None
    opener: PartitionOpener
    commands: Commands
    topics: RunningTopics


def start(
    fs: Fs,
    root: str,
    settings: StreamsSettings,
    clock: Clock,
    root_user: Credentials,
    progress: Callable[[float], None] | None = None,
) -> Started:
    with ExitStack() as undo:
        lock = take_lock(fs, root)
        undo.callback(lock.release)
        flavour = open_flavour(fs, root, settings)
        directories = Directories(fs, root, settings)
        archiver = open_archiver(fs, root, settings)
        cipher = settings.system.encryption.cipher()
        opener = PartitionOpener(fs, directories, settings, flavour, clock, cipher)
        # Refuses the start at once if the package of the codec is missing.
        opener.effective_codec(Codec.NONE.code).load()
        _write_current_config(fs, directories, settings)
        update_info(fs, root, flavour)
        state_log = StateLog.open(fs, root, flavour, cipher, clock, enforce_fsync=settings.system.state.enforce_fsync)
        undo.callback(state_log.abandon)
        metadata = Metadata(settings)
        metadata.replay(state_log.entries, now_us(clock))
        commands = Commands(metadata, state_log)
        if not metadata.has_root:
            commands.log_and_apply(ROOT_USER_ID, create_root_user(root_user))
        _finish_removals(directories, metadata)
        topics = RunningTopics(metadata)
        undo.callback(topics.drop_all)
        _open_topics(topics, metadata, directories, opener, settings, progress or _ignore)
        undo.pop_all()
    return Started(lock, flavour, directories, archiver, opener, commands, topics)


def _write_current_config(fs: Fs, directories: Directories, settings: StreamsSettings) -> None:
    """Empties the runtime folder and notes the settings of this run in it. Nothing depends on the file, so a full disk
    does not refuse the start."""
    key = settings.system.runtime.path
    path = directories.path(key)
    try:
        directories.remove(key)
        fs.makedirs(path)
        write_atomic(fs, f"{path}/{CURRENT_CONFIG}", to_toml(settings).encode())
    except OSError as error:
        logger.warning("%s: the settings of this run are not noted: %s", path, error)


def _finish_removals(directories: Directories, metadata: Metadata) -> None:
    """Removes folders whose deletion a crash interrupted. Reports folders that are not in the state log."""
    keys = directories.keys
    _finish_removals_in(directories, keys.streams, {str(stream_id) for stream_id in metadata.streams})
    for stream in metadata.streams.values():
        _finish_removals_in(directories, keys.topics_of(stream.id), {str(topic_id) for topic_id in stream.topics})
        for topic in stream.topics.values():
            known = {str(partition.id) for partition in topic.partitions}
            _finish_removals_in(directories, keys.partitions_of(stream.id, topic.id), known)


def _finish_removals_in(directories: Directories, key: str, known: set[str]) -> None:
    directories.finish_removals(key)
    for name in directories.names(key):
        if name not in known and not name.endswith(DELETED):
            logger.warning("%s/%s is not in the state log; left alone", directories.path(key), name)


def _open_topics(
    topics: RunningTopics,
    metadata: Metadata,
    directories: Directories,
    opener: PartitionOpener,
    settings: StreamsSettings,
    progress: Callable[[float], None],
) -> None:
    """Adds each topic as soon as it is open, so that a start that fails later closes it."""
    partitions_count = sum(
        len(info.partitions) for stream in metadata.streams.values() for info in stream.topics.values()
    )
    opened_count = 0
    for stream in metadata.streams.ascending():
        topics.add_stream(stream.id)
        for info in stream.topics.ascending():
            if not settings.system.recovery.recreate_missing_state:
                _check_folders(directories, info)
            codec = opener.effective_codec(info.compression)
            opened = opener.open_all(stream.id, info.id, [partition.id for partition in info.partitions], codec)
            topic = RunningTopic(
                info, codec, opened, rebalancing_timeout_us=settings.consumer_group.rebalancing_timeout_us
            )
            topics.add(topic)
            _recover_consumers(topic)
            opened_count += len(opened)
            progress(opened_count / max(partitions_count, 1))


def _ignore(_fraction: float) -> None:
    """The progress of a start that shows none."""


def _check_folders(directories: Directories, info: TopicInfo) -> None:
    for partition in info.partitions:
        key = directories.keys.partition(info.stream_id, info.id, partition.id)
        if not directories.exists(key):
            raise StartRefused(
                f"{directories.path(key)} is missing, and the state log has the partition; bring the folder back, "
                "or set system.recovery.recreate_missing_state to begin an empty partition"
            )


def _recover_consumers(topic: RunningTopic) -> None:
    for running in topic.partitions:
        running.offsets.keep_groups(set(topic.info.groups))
        running.offsets.clamp(running.partition.current_offset, has_messages=running.partition.has_messages)
    for group_id in topic.info.groups:
        topic.add_group(group_id)
