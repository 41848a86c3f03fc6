"""Where a backup comes from: a running server, or a data directory that is not open.

A source gives one picture of the log (`capture`), the bytes of sealed segments, and the records that are in no sealed
segment, as frames. A server goes on meanwhile. When it shows that the picture is not true any more (a file was moved,
a topic was removed), the source raises `Outdated`, and the caller takes a new picture.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from topics.backup.format import scan_frames
from topics.backup.ranges import Range, Ranges, clip
from topics.client.sync.client import Client
from topics.errors import BadFrame, ColdUnavailable, CorruptRecord, DirectoryLocked, StartRefused, TopicNotFound
from topics.formats import snapshot as snapshot_codec
from topics.formats.snapshot import SegmentState, Snapshot, TopicState
from topics.limits import MIB
from topics.offline_view.view import TopicView, ViewRequest, take_view
from topics.storage import layout
from topics.storage.fs import Fs, read_file
from topics.storage.tiers.addresses import open_store, path_of_address
from topics.storage.tiers.store import SegmentStore
from topics.storage.tiers.store_id import read_store_id

# The server keeps the files of a picture so long. A backup that takes longer may have to take a new picture.
PIN_MS: Final = 15 * 60 * 1000
TAIL_BYTES: Final = 16 * MIB
# Reasons of gaps that the picture does not know.
NEWS: Final = frozenset({"cap", "ttl", "mixed", "corrupt"})


class Outdated(Exception):
    """The log has changed since the picture was taken. The message says what has changed."""


class Picture(NamedTuple):
    """The whole log at one moment."""

    store_id: str
    ts: int
    snapshot: Snapshot
    topics: list[TopicState]


class Gap(NamedTuple):
    """Seqs whose records are gone: `cap`, `ttl` or `mixed` since the picture was taken, or `corrupt`."""

    first_seq: int
    last_seq: int
    reason: str


class SegmentCopy(NamedTuple):
    # Where it was read, for messages.
    where: str
    data: bytes
    # Whether this is the whole file. Otherwise it has only the records that are live now.
    is_whole: bool
    # Seqs of damaged records that the server does not give out. Only if the file is not whole.
    lost: tuple[Range, ...] = ()
    # The records of the first seqs were evicted, not deleted. Only if the file is not whole.
    evicted: Gap | None = None


class TailPart(NamedTuple):
    """Live records in seq order, as frames, and the gap before them."""

    data: bytes
    gap: Gap | None = None


class Source(Protocol):
    def picture(self) -> Picture: ...

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        """Raises `Outdated`, or `Damaged` when the file cannot be what the picture says."""
        ...

    def tail(self, topic: TopicState, first_seq: int) -> Iterator[TailPart]:
        """Live records from `first_seq` to the topic's `checkpointed_seq`. Raises `Outdated` or `Damaged`."""
        ...

    def close(self) -> None: ...


def picture_of(store_id: str, ts: int, snapshot: bytes) -> Picture:
    decoded = snapshot_codec.decode(snapshot)
    return Picture(store_id, ts, decoded, [snapshot_codec.decode_topic(entry) for entry in decoded.topics])


class ServerSource:
    """A running server. Files are read directly where this process can see them, otherwise as frames over HTTP."""

    def __init__(self, client: Client, fs: Fs, *, reads_files: bool = True) -> None:
        self._client = client
        self._fs = fs
        self._reads_files = reads_files
        # Tier -> its files; None when this process does not see them.
        self._tiers: dict[str, SegmentStore | None] = {}

    def picture(self) -> Picture:
        if "capture" not in self._client.health().features:
            raise StartRefused(f"{self._client.url} cannot be backed up while it runs: it has no `capture`")
        captured = self._client.capture(pin_ms=PIN_MS)
        if not self._tiers:
            addresses = {"hot": captured.data_uri, "cold": captured.cold_uri}
            self._tiers = {tier: self._visible(address, captured.store_id) for tier, address in addresses.items()}
        return picture_of(captured.store_id, captured.ts, captured.snapshot)

    def _visible(self, address: str | None, store_id: str) -> SegmentStore | None:
        if address is None or not self._reads_files:
            return None
        try:
            # The same path on another machine may be another store, or nothing.
            store = open_store(address, self._fs)
            return store if read_store_id(store) == store_id else None
        except (ColdUnavailable, StartRefused):
            return None

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        store = self._tiers.get(segment.tier)
        if store is None:
            return self._segment_as_frames(topic, segment)
        name = layout.segment_object(topic.id, segment.first_seq, "data")
        try:
            data = store.read_range(name, 0, segment.data_bytes)
        except FileNotFoundError as error:
            raise Outdated(f"{store.address}/{name} was removed or moved") from error
        if len(data) < segment.data_bytes:
            # The segment was written again without deleted records.
            raise Outdated(f"{store.address}/{name} has {len(data)} of {segment.data_bytes} bytes")
        return SegmentCopy(f"{store.address}/{name}", data, is_whole=True)

    def _segment_as_frames(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        where = f'{self._client.url}: topic "{topic.name}", segment {segment.first_seq}'
        evicted: Gap | None = None
        lost: Ranges = []
        pieces: list[bytes] = []
        for part in self._frames(topic, segment.first_seq, segment.last_seq):
            pieces.append(part.data)
            if part.gap is not None and part.gap.reason == "corrupt":
                lost.append((part.gap.first_seq, part.gap.last_seq))
            elif part.gap is not None:
                evicted = part.gap
        return SegmentCopy(where, b"".join(pieces), is_whole=False, lost=tuple(lost), evicted=evicted)

    def tail(self, topic: TopicState, first_seq: int) -> Iterator[TailPart]:
        return self._frames(topic, first_seq, topic.checkpointed_seq)

    def _frames(self, topic: TopicState, first_seq: int, last_seq: int) -> Iterator[TailPart]:
        seq = first_seq
        while seq <= last_seq:
            try:
                frames = self._client.frames(topic.name, seq, last_seq, TAIL_BYTES)
            except TopicNotFound as error:
                raise Outdated(f'topic "{topic.name}" was removed') from error
            except CorruptRecord as error:
                # The server answers so only when the next record is damaged.
                found = (error.detail or {}).get("seq")
                bad_seq = found if isinstance(found, int) else seq
                self._require_progress(topic, seq, bad_seq + 1)
                yield TailPart(b"", Gap(bad_seq, bad_seq, "corrupt"))
                seq = bad_seq + 1
                continue
            if (frames.topic_id, frames.epoch) != (topic.id, topic.epoch):
                raise Outdated(f'topic "{topic.name}" was removed and created again')
            self._require_progress(topic, seq, frames.next_seq)
            # The picture has the lost ranges.
            is_news = frames.gap is not None and frames.gap.reason in NEWS
            yield TailPart(frames.body, Gap(*frames.gap) if frames.gap is not None and is_news else None)
            seq = frames.next_seq

    def _require_progress(self, topic: TopicState, seq: int, next_seq: int) -> None:
        """Raises `BadFrame` for an answer that would be asked for again for ever."""
        if next_seq <= seq:
            raise BadFrame(
                f'{self._client.url}: topic "{topic.name}" from seq {seq} on: the server answers without progress, '
                f"with next seq {next_seq}; look for a proxy or a cache before it"
            )

    def close(self) -> None:
        for store in self._tiers.values():
            if store is not None:
                store.close()
        self._client.close()


class DirectorySource:
    """A data directory that is not open. Its recovery runs in another process and changes no file."""

    def __init__(self, fs: Fs, root: str, scratch: str, *, cold: str | None = None) -> None:
        """`scratch` is an empty folder for what the recovery finds. The caller removes it."""
        self._fs = fs
        self._root = root
        self._scratch = scratch
        self._cold_address = cold
        self._cold = None if cold is None else open_store(cold, fs)
        self._views: dict[int, TopicView] = {}

    def picture(self) -> Picture:
        if not self._fs.exists(f"{self._root}/{layout.STORE}"):
            raise StartRefused(f"{self._root} is no data directory: it has no {layout.STORE}")
        request = ViewRequest(root=self._root, folder=self._scratch, cold_dir=self._cold_address, with_snapshot=True)
        answer = take_view(request)
        if answer.status == "locked":
            raise DirectoryLocked(f"{self._root} is open in a server or a program; back it up with --server URL")
        self._views = {view.manifest["topic_id"]: view for view in answer.topics}
        return picture_of(answer.store_id, answer.ts, answer.snapshot)

    def segment(self, topic: TopicState, segment: SegmentState) -> SegmentCopy:
        entry = next(e for e in self._views[topic.id].manifest["segments"] if e["first_seq"] == segment.first_seq)
        return SegmentCopy(entry["uri"], self._read(topic, entry), is_whole=True)

    def tail(self, topic: TopicState, first_seq: int) -> Iterator[TailPart]:
        for entry in self._views[topic.id].manifest["segments"]:
            if entry["last_seq"] >= first_seq:
                yield TailPart(live_frames(entry["uri"], self._read(topic, entry), first_seq, topic.pending_deletes))

    def _read(self, topic: TopicState, entry: dict[str, Any]) -> bytes:
        path = path_of_address(entry["uri"])
        if path is not None:
            return read_file(self._fs, path)[: entry["data_len"]]
        assert self._cold is not None, "a view with cold segments needs the address of the tier"
        name = layout.segment_object(topic.id, entry["first_seq"], "data")
        return self._cold.read_range(name, 0, entry["data_len"])

    def close(self) -> None:
        if self._cold is not None:
            self._cold.close()


def live_frames(where: str, data: bytes, first_seq: int, removed: Ranges) -> bytes:
    """The frames with seqs from `first_seq` on that are neither deleted nor in `removed`."""
    frames = scan_frames(where, data)
    hidden = {seq for low, high in clip(removed, first_seq, frames.seqs[-1]) for seq in range(low, high + 1)}
    pieces: list[bytes] = []
    start = 0
    for seq, end, is_deleted in zip(frames.seqs, frames.ends, frames.deleted, strict=True):
        if seq >= first_seq and not is_deleted and seq not in hidden:
            pieces.append(data[start:end])
        start = end
    return b"".join(pieces)
