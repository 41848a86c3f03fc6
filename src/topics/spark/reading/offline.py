"""Reading without a server: the option `path`.

What a path can be, and where its manifests come from:

| Path | Manifests |
|---|---|
| a data directory without a running server | the read-only recovery: what a start would find, log included |
| a data directory with a running server | the newest snapshot; option `tail` decides about later records |
| an archive: a tier, or any folder or bucket with `topics/<id>/seg-*` | its snapshot if it has one, else the files |
| the directory of one topic in one of them | the same, for that topic |

Records that are only in the log have no file that a task could open. Up to 8 MiB of them are put into the partitions:
every executor can read them. More are written as segments into a folder of the driver's machine: below the local
directory of Spark, which is removed with the application, or into a folder that is removed when this process ends. An
executor that does not see this folder fails with a message.

Nothing is written into the path itself, not even a lock file.
"""

import atexit
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from topics.clock import SystemClock
from topics.errors import Damaged, FormatError, TopicsError
from topics.formats import snapshot as snapshot_codec
from topics.formats.snapshot import SegmentState, Snapshot, TopicState, decode_topic
from topics.limits import MIB
from topics.offline_view.view import TopicView, ViewRequest, take_view
from topics.spark.errors import BadOption
from topics.spark.manifest import Manifest, Segment
from topics.spark.options import ReadOptions
from topics.spark.reading.file_manifest import (
    DamagedFiles,
    Files,
    facts_of_state,
    found_segments,
    manifest_of_files,
    manifest_of_state,
    topic_files,
)
from topics.spark.reading.tables import TopicFacts
from topics.storage import layout
from topics.storage.fs import Fs, RealFs, read_file
from topics.storage.removal import remove_tree
from topics.storage.snapshots import load_snapshots
from topics.storage.tiers.addresses import open_store, path_of_address
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id
from topics.storage.wal.log_beyond import LogBeyond, log_beyond

logger = logging.getLogger(__name__)

# Records that are put into partitions, over all topics.
CARRIED_BYTES_MAX: Final = 8 * MIB
# The setting of the server that says where cold segments are.
COLD_VARIABLE: Final = "TOPICS_COLD_DIR"
# How many checkpoints may happen while a directory is read.
_TRIES_MAX: Final = 5


class TailMissing(TopicsError):
    """Records are in the log of a running server, and in no segment yet."""

    code = "tail_missing"


@dataclass(frozen=True, slots=True)
class OfflineView:
    """Every topic below a path at one moment. `facts` has what the table `topics` needs, by name."""

    manifests: list[Manifest] = field(default_factory=list)
    facts: dict[str, TopicFacts] = field(default_factory=dict)

    def add(self, manifest: Manifest, facts: TopicFacts) -> None:
        self.manifests.append(manifest)
        self.facts[manifest.topic] = facts


def take_manifests(options: ReadOptions, environment: Mapping[str, str] = os.environ) -> OfflineView:
    """The manifests of `options.path`.

    Raises `BadOption` when the path has no topics, `TailMissing` by option `tail`, and `DamagedFiles` or `StartRefused`
    for files that cannot be read. Manifests are never incomplete.
    """
    assert options.path is not None
    fs = RealFs()
    place = _recognise(fs, options.path)
    if not place.is_data_directory:
        return _archive_view(place)
    cold_dir = environment.get(COLD_VARIABLE) or None
    folder = f"{_scratch_directory(environment)}/topics-offline-{secrets.token_hex(8)}"
    fs.makedirs(folder)
    is_needed = False
    try:
        answer = take_view(ViewRequest(root=place.root, folder=folder, cold_dir=cold_dir, topic_id=place.topic_id))
        remove_tree(fs, f"{folder}/scratch")
        if answer.status == "locked":
            return _served_view(fs, place, options, cold_dir)
        for warning in answer.warnings:
            logger.warning("%s: %s", place.root, warning)
        view, is_needed = _recovered_view(fs, place, folder, answer.topics)
        return view
    finally:
        if not is_needed:
            remove_tree(fs, folder)
        elif not environment.get("SPARK_LOCAL_DIRS"):
            atexit.register(remove_tree, fs, folder)


def _scratch_directory(environment: Mapping[str, str]) -> str:
    """Spark removes its local directory when the application ends. This process may end before its tasks are done."""
    local = environment.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return os.path.abspath(local or environment.get("TMPDIR") or "/tmp")  # noqa: S108


# What a path is.


class _Place(NamedTuple):
    # The path of a folder, the address of a bucket.
    root: str
    is_data_directory: bool
    topic_id: int | None = None
    # The directory of a topic that is in no tier. Its name does not tell the id.
    is_loose: bool = False


def _recognise(fs: Fs, address: str) -> _Place:
    path = path_of_address(address)
    if path is None:
        root, topic_id = _split_topic(address.rstrip("/"))
        return _Place(root, is_data_directory=False, topic_id=topic_id)
    if not fs.exists(path):
        raise BadOption(f"option `path`: there is no {path} on the driver's machine")
    root, topic_id = _split_topic(path.rstrip("/"))
    is_data_directory = fs.exists(layout.wal_directory(root)) or fs.exists(f"{root}/{layout.LOCK}")
    if topic_id is None and not is_data_directory and not fs.exists(layout.topics_directory(root)):
        if not any(layout.segment_of(name) for name in fs.listdir(path)):
            raise BadOption(
                f"option `path`: {path} is no data directory, no archive (it has no `topics`) and no topic's directory"
            )
        return _Place(path, is_data_directory=False, topic_id=_id_in(path), is_loose=True)
    return _Place(root, is_data_directory, topic_id)


def _split_topic(address: str) -> tuple[str, int | None]:
    """The tier and the id of a topic's directory, or the address itself."""
    parent, _, name = address.rpartition("/")
    topic_id = layout.topic_of(name)
    if topic_id is None or parent.rpartition("/")[2] != "topics":
        return address, None
    return parent.rpartition("/")[0], topic_id


def _id_in(path: str) -> int:
    return layout.topic_of(path.rpartition("/")[2]) or 0


# A data directory without a running server.


def _recovered_view(fs: Fs, place: _Place, folder: str, topics: Sequence[TopicView]) -> tuple[OfflineView, bool]:
    """The view, and whether the folder with segments is needed."""
    view = OfflineView()
    manifests = [msgspec.convert(topic.manifest, Manifest) for topic in topics]
    prefix = f"file://{folder}/".replace("%", "%25")
    made = [segment for manifest in manifests for segment in manifest.segments if segment.uri.startswith(prefix)]
    is_carried = sum(segment.data_len for segment in made) <= CARRIED_BYTES_MAX
    for manifest, topic in zip(manifests, topics, strict=True):
        if is_carried:
            segments = tuple(
                _carry(fs, place.root, segment) if segment.uri.startswith(prefix) else segment
                for segment in manifest.segments
            )
            manifest = msgspec.structs.replace(manifest, segments=segments)
        config = msgspec.json.encode(topic.config).decode()
        view.add(manifest, TopicFacts(topic.type, topic.count, topic.bytes, config))
    return view, bool(made) and not is_carried


def _carry(fs: Fs, root: str, segment: Segment) -> Segment:
    """The segment with its frames inside. Its uri names the log."""
    path = path_of_address(segment.uri)
    assert path is not None
    frames = read_file(fs, path)[: segment.data_len]
    uri = layout.wal_directory(root) if segment.tier == "tail" else f"{root}/{'/'.join(path.split('/')[-3:])}"
    return msgspec.structs.replace(segment, uri=f"file://{uri}", frames=frames)


# A data directory with a running server.


def _served_view(fs: Fs, place: _Place, options: ReadOptions, cold_dir: str | None) -> OfflineView:
    for _ in range(_TRIES_MAX - 1):
        try:
            return _look_at_served(fs, place, options, cold_dir)
        except (FileNotFoundError, Damaged):
            # A checkpoint may have removed files of the older snapshot: then there is a newer one. Or bytes may have
            # changed during the read, which looks like damage only once.
            continue
    return _look_at_served(fs, place, options, cold_dir)


def _look_at_served(fs: Fs, place: _Place, options: ReadOptions, cold_dir: str | None) -> OfflineView:
    root = place.root
    loaded = load_snapshots(fs, root)
    if loaded.bad:
        raise DamagedFiles(loaded.bad[0], "a snapshot", "something else")
    if loaded.newest is None:
        raise TailMissing(
            f"{root} is served and had no checkpoint yet: all of its records are in the log; read them from the server"
        )
    snapshot = loaded.newest
    beyond = log_beyond(fs, root, snapshot)
    hot = open_store(root, fs)
    cold = None if cold_dir is None else open_store(cold_dir, fs)
    store_id = read_store_id(hot) or ""
    states = [state for state in _states(snapshot, root) if place.topic_id in (None, state.id)]
    states = [state for state in states if state.id not in beyond.removed]
    _mind_tail(root, states, snapshot, beyond, options, place.topic_id)
    view = OfflineView()
    now_ms = SystemClock().now_ms()
    for state in states:

        def files_of(segment: SegmentState, state: TopicState = state) -> Files:
            return topic_files(_tier_of(state, segment, hot, cold), state.id)

        manifest = manifest_of_state(state, store_id, files_of, now_ms=now_ms)
        _check_lengths(fs, root, state.id, manifest.segments)
        view.add(manifest, facts_of_state(state, manifest))
    return view


def _states(snapshot: Snapshot, where: str) -> list[TopicState]:
    try:
        return sorted(map(decode_topic, snapshot.topics), key=lambda state: state.name)
    except FormatError as error:
        raise DamagedFiles(layout.snapshot_path(where, snapshot.number), "topics", error.message) from error


def _tier_of(state: TopicState, segment: SegmentState, hot: SegmentStore, cold: SegmentStore | None) -> SegmentStore:
    if segment.tier == "hot":
        return hot
    if cold is None:
        raise BadOption(
            f'topic "{state.name}": seqs {segment.first_seq} to {segment.last_seq} are in the cold tier, '
            f"whose address is not set; set {COLD_VARIABLE} as for the server"
        )
    return cold


def _check_lengths(fs: Fs, root: str, topic_id: int, segments: Sequence[Segment]) -> None:
    """Raises `FileNotFoundError` for a file that is gone."""
    for segment in segments:
        if segment.tier == "hot":
            path = f"{root}/{layout.segment_object(topic_id, segment.first_seq, 'data')}"
            size = fs.size(path)
            if size < segment.data_len:
                raise DamagedFiles(path, f"{segment.data_len} bytes", f"{size}")


def _mind_tail(
    root: str,
    states: Sequence[TopicState],
    snapshot: Snapshot,
    beyond: LogBeyond,
    options: ReadOptions,
    topic_id: int | None,
) -> None:
    """Records that are in no segment fail the read or give a warning, as option `tail` says."""
    missing = _missing_tails(states, snapshot, beyond, topic_id)
    if not missing:
        return
    told = "; ".join(missing)
    if options.tail == "require":
        raise TailMissing(
            f"{root} is served, and records are not in segments yet: {told}. Stop the server, or read them from it "
            "(option `subscribe`); a read may also leave them out with option tail=skip"
        )
    logger.warning("%s: left out, because no segment has them yet: %s", root, told)


def _missing_tails(
    states: Sequence[TopicState], snapshot: Snapshot, beyond: LogBeyond, topic_id: int | None
) -> list[str]:
    missing: list[str] = []
    known = {state.id for state in states}
    fed_by: dict[int, list[int]] = {}
    for router in snapshot.routers:
        fed_by.setdefault(router.dest, []).append(router.source)
    for state in states:
        first_seq, last_seq = beyond.records.get(state.id, (0, 0))
        first_seq = max(first_seq, state.checkpointed_seq + 1)
        if first_seq <= last_seq:
            missing.append(f'topic "{state.name}" seqs {first_seq} to {last_seq}')
        elif state.config.get("durability") == "ephemeral":
            missing.append(f'topic "{state.name}" seqs from {state.checkpointed_seq + 1} on, as it is ephemeral')
        elif any(source in beyond.records for source in fed_by.get(state.id, ())):
            # The server makes copies again at a start. Before a checkpoint they are in no file.
            missing.append(f'topic "{state.name}" seqs from {state.checkpointed_seq + 1} on, which routers copy')
    for new_id, (first_seq, last_seq) in sorted(beyond.records.items()):
        is_new = new_id >= snapshot.next_topic_id and new_id not in known | beyond.removed
        if is_new and topic_id in (None, new_id):
            missing.append(f"a new topic with id {new_id} seqs {first_seq} to {last_seq}")
    return missing


# An archive.


def _archive_view(place: _Place) -> OfflineView:
    store = open_store(place.root, RealFs())
    view = OfflineView()
    if place.is_loose:
        assert place.topic_id is not None
        found = manifest_of_files(Files(store, ""), store.list(""), place.topic_id, "")
        if found is not None:
            view.add(*found)
        return view
    store_id = read_store_id(store) or ""
    names = _names_by_topic(store, place.topic_id)
    states = _archived_states(store)
    now_ms = SystemClock().now_ms()
    for topic_id in sorted(names.keys() | states.keys()):
        if place.topic_id not in (None, topic_id):
            continue
        files = topic_files(store, topic_id)
        state = states.get(topic_id)
        if state is None:
            found = manifest_of_files(files, names[topic_id], topic_id, store_id)
            if found is not None:
                view.add(*found)
        else:
            view.add(*_archived_topic(state, files, names.get(topic_id, []), store_id, now_ms))
    if not view.manifests:
        raise BadOption(f"option `path`: there are no segments below {place.root}/topics")
    return view


def _names_by_topic(store: SegmentStore, topic_id: int | None) -> dict[int, list[str]]:
    """Names of files by the topic whose directory they are in."""
    prefix = "topics/" if topic_id is None else f"topics/{layout.topic_name(topic_id)}/"
    found: dict[int, list[str]] = {}
    for name in store.list(prefix):
        _, _, rest = name.partition("/")
        directory, _, file = rest.partition("/")
        owner = layout.topic_of(directory)
        if owner is not None and "/" not in file:
            found.setdefault(owner, []).append(file)
    return found


def _archived_states(store: SegmentStore) -> dict[int, TopicState]:
    """The topics of the newest snapshot, if the archive has one."""
    numbers = [layout.snapshot_number(name.removeprefix("meta/")) for name in store.list("meta/")]
    newest = max((number for number in numbers if number is not None), default=None)
    if newest is None:
        return {}
    name = layout.snapshot_path("", newest).lstrip("/")
    try:
        snapshot = snapshot_codec.decode(store.read_range(name, 0, store.size(name)))
    except FormatError as error:
        raise DamagedFiles(f"{store.address}/{name}", "a snapshot", error.message) from error
    return {state.id: state for state in _states(snapshot, store.address)}


def _archived_topic(
    state: TopicState, files: Files, names: Sequence[str], store_id: str, now_ms: int
) -> tuple[Manifest, TopicFacts]:
    """The manifest by the snapshot. Later segments are added from their files."""
    manifest = manifest_of_state(state, store_id, lambda _: files, now_ms=now_ms)
    there = set(names)
    for segment in manifest.segments:
        name = f"{layout.segment_stem(segment.first_seq)}.data"
        if name not in there:
            where = f"{files.store.address}/{files.name(segment.first_seq, 'data')}"
            raise DamagedFiles(where, f"seqs {segment.first_seq} to {segment.last_seq}", "no file")
    later = tuple(found_segments(files, names, after_seq=state.checkpointed_seq))
    if later:
        head_seq = later[-1].last_seq
        manifest = msgspec.structs.replace(
            manifest,
            segments=manifest.segments + later,
            head_seq=head_seq,
            durable_seq=head_seq,
            checkpointed_seq=head_seq,
        )
    return manifest, facts_of_state(state, manifest)
