"""`reencode`: copies a directory of streams into a new one, with another key, compression or flavour.

Offsets, ids, times, user headers and payloads stay the same. The source is not changed. The job holds the lock of both
directories, so that no engine can use them meanwhile. Each node looks up the keys; no plan and no file has them.

Tasks write the segments. A segment is complete when its `.log` exists, and a job that was killed goes on with the
others. Stored offsets are written next, then the state log. Without its state log the target is no data directory, so
that no engine starts on half of one. `_topics/reencode.json` is written last; a run that finds it does nothing.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import environ
from typing import TYPE_CHECKING, Final

import msgspec

from topics.clock import SystemClock
from topics.errors import BadFrame, InvalidRequest, StartRefused
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.state_entry import FLAG_ENCRYPTED, StateEntry, encode_iggy_entry, encode_page_entry
from topics.formats.stream_catalog import catalog_of
from topics.formats.stream_layout import (
    CODEC,
    INDEX,
    LOCK_FILE,
    LOG,
    OFFSETS_FOLDER,
    STATE_FOLDER,
    TEMPORARY,
    Flavour,
    StreamKeys,
    segment_path,
    segment_starts,
)
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job import Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import ReencodeOptions
from topics.spark.jobs.reencode_segment import Encoding, SegmentItem, SegmentRewritten, reencode_segment
from topics.spark.jobs.spread import Executors, SparkExecutors, spread_waves
from topics.spark.streams.directory import KeyPlace, StreamDirectory, directory_path, find_cipher, folder_names
from topics.storage.fs import Fs, Lock, RealFs, read_file, write_atomic
from topics.stream_errors import StreamsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_FILE: Final = "_topics/reencode-plan.json"
DONE_FILE: Final = "_topics/reencode.json"
VERSION: Final = 1

_OFFSET_FOLDERS: Final = ("consumers", "groups")
# The plan has it encrypted with the new key: a run with another key cannot go on with the job.
_KEY_CHECK: Final = b"topics reencode"


class PlannedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of the source, as it was when the job began."""

    key: str
    start_offset: int
    log_bytes: int
    index_bytes: int
    codec: str


class ReencodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the first run wrote down. A later run must ask for the same."""

    v: int = VERSION
    source: str
    flavour: str
    compression: str
    encrypted: bool
    key_check: str
    state_bytes: int
    segments: tuple[PlannedSegment, ...]


def run(spark: "SparkSession", options: ReencodeOptions, *, report: ReportProgress | None = None) -> Report:
    """Raises `Conflict` when a directory is in use, or the target is not of this job."""
    return Reencoder(options, SparkExecutors(spark), report).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Source and target: how each of them stores bodies."""

    source: StreamDirectory
    source_key: KeyPlace | None
    target_key: KeyPlace | None
    target_cipher: Cipher | None
    flavour: Flavour


def _open_ends(fs: Fs, options: ReencodeOptions, keys: StreamKeys) -> _Ends:
    source = _open_source(fs, options, keys)
    source_key = None if source.cipher is None else KeyPlace(options.source_key_env, options.source_key_file)
    target_key = source_key
    if options.target_key_env is not None or options.target_key_file is not None:
        target_key = KeyPlace(options.target_key_env, options.target_key_file)
    elif options.decrypt:
        target_key = None
    return _Ends(
        source=source,
        source_key=source_key,
        target_key=target_key,
        target_cipher=None if target_key is None else find_cipher(fs, target_key, environ),
        flavour=source.flavour if options.flavour == "keep" else Flavour(options.flavour),
    )


def _open_source(fs: Fs, options: ReencodeOptions, keys: StreamKeys) -> StreamDirectory:
    """With its key, when it is encrypted. A key that is not needed is not looked up."""
    root = directory_path(options.source)
    plain = StreamDirectory(fs, root, keys, None)
    try:
        plain.state_entries()
    except StartRefused:
        place = KeyPlace(options.source_key_env, options.source_key_file)
        keyed = StreamDirectory(fs, root, keys, find_cipher(fs, place, environ))
        keyed.state_entries()
        return keyed
    return plain


class Reencoder:
    """One run."""

    def __init__(self, options: ReencodeOptions, executors: Executors, report: ReportProgress | None = None) -> None:
        self._options = options
        self._executors = executors
        self._report = report
        self._fs: Fs = RealFs()
        self._clock = SystemClock()
        self._keys = folder_names(environ)
        self._source_root = directory_path(options.source)
        self._target_root = directory_path(options.target)
        self._started_ms = self._clock.monotonic_ms()
        self._bytes_after = 0

    def run(self) -> Report:
        _check_apart(self._source_root, self._target_root)
        with _locked(self._fs, self._source_root, may_be_read_only=True):
            ends = _open_ends(self._fs, self._options, self._keys)
            if self._options.dry_run:
                return self._summary(self._plan(ends))
            self._fs.makedirs(self._target_root)
            with _locked(self._fs, self._target_root):
                return self._run_locked(ends)

    def _run_locked(self, ends: _Ends) -> Report:
        plan = self._agree(self._plan(ends), ends)
        pending = [segment for segment in plan.segments if not self._is_done(segment)]
        skipped = len(plan.segments) - len(pending)
        if self._fs.exists(self._target(DONE_FILE)):
            return self._summary(plan, skipped=skipped)
        entries = ends.source.state_entries()
        self._make_folders(entries)
        items = [self._item(ends, segment) for segment in pending]
        waves = spread_waves(
            "reencode",
            items,
            reencode_segment,
            executors=self._executors,
            collect=self._collect,
            weigh=lambda item: item.log_bytes,
            report=self._report,
        )
        self._copy_offsets(entries)
        self._copy_side_files(ends)
        self._write_state_log(ends, entries)
        self._write_done(plan)
        return self._summary(plan, done=len(items), skipped=skipped, messages=waves.records)

    def _collect(self, _: Sequence[SegmentItem], rewritten: Sequence[SegmentRewritten]) -> WaveDone:
        self._bytes_after += sum(segment.bytes_after for segment in rewritten)
        return WaveDone(
            sum(segment.messages for segment in rewritten), sum(segment.bytes_before for segment in rewritten)
        )

    # The plan.

    def _codec(self, segment: PlannedSegment) -> Codec:
        wanted = self._options.compression
        return Codec.from_name(segment.codec if wanted == "keep" else wanted)

    def _plan(self, ends: _Ends) -> ReencodePlan:
        segments = tuple(
            self._planned(key, start)
            for key in self._partition_keys(ends.source.state_entries())
            for start in segment_starts(self._list_partition(key))
        )
        for segment in segments:
            codec = self._codec(segment)
            codec.load()
            if codec is not Codec.NONE and ends.flavour is Flavour.IGGY and not self._options.force:
                raise InvalidRequest(
                    f"{segment.key} would be compressed, which no other server reads in the flavour `iggy`; "
                    "ask for compression none, or force it"
                )
        cipher = ends.target_cipher
        return ReencodePlan(
            source=self._source_root,
            flavour=ends.flavour.value,
            compression=self._options.compression,
            encrypted=cipher is not None,
            key_check="" if cipher is None else cipher.encrypt(_KEY_CHECK).hex(),
            state_bytes=ends.source.state_log_bytes,
            segments=segments,
        )

    def _partition_keys(self, entries: Sequence[StateEntry]) -> Iterator[str]:
        """The partitions of the state log. Other folders are not copied."""
        for stream in catalog_of(entries).streams.values():
            for topic in stream.topics.values():
                for partition in range(len(topic.epochs)):
                    yield self._keys.partition(stream.id, topic.id, partition)

    def _list_partition(self, key: str) -> list[str]:
        path = self._source(key)
        if not self._fs.exists(path):
            raise StartRefused(f"{path} is missing, but the state log has the partition; restore the folder first")
        return self._fs.listdir(path)

    def _planned(self, key: str, start_offset: int) -> PlannedSegment:
        path = self._source(key)
        index_path = segment_path(path, start_offset, INDEX)
        if not self._fs.exists(index_path):
            raise StartRefused(f"{index_path} is missing; the next start of the engine makes it again")
        codec = Codec.NONE
        codec_path = segment_path(path, start_offset, CODEC)
        if self._fs.exists(codec_path):
            try:
                codec = Codec.from_file(read_file(self._fs, codec_path))
            except BadFrame as error:
                raise StartRefused(f"{codec_path}: {error.message}") from error
        return PlannedSegment(
            key=key,
            start_offset=start_offset,
            log_bytes=self._fs.size(segment_path(path, start_offset, LOG)),
            index_bytes=self._fs.size(index_path),
            codec=codec.value,
        )

    def _agree(self, plan: ReencodePlan, ends: _Ends) -> ReencodePlan:
        """The plan that is written down in the target: by an earlier run, or now."""
        path = self._target(PLAN_FILE)
        if not self._fs.exists(path):
            names = [name for name in self._fs.listdir(self._target_root) if name != LOCK_FILE]
            if names:
                raise Conflict(f"{self._target_root} is not empty, and is not of this job: give a new directory")
            self._fs.makedirs(path.rpartition("/")[0])
            write_atomic(self._fs, path, msgspec.json.encode(plan))
            return plan
        try:
            earlier = msgspec.json.decode(read_file(self._fs, path), type=ReencodePlan)
        except ValueError as error:
            raise Conflict(f"{path} is of another version, or damaged: {error}; give a new directory") from error
        if msgspec.structs.replace(earlier, key_check="") != msgspec.structs.replace(plan, key_check=""):
            raise Conflict(
                f"{path}: an earlier run asked for something else, or the source has changed; give a new directory"
            )
        if ends.target_cipher is not None:
            try:
                ends.target_cipher.decrypt(bytes.fromhex(earlier.key_check))
            except StreamsError as error:
                raise Conflict(f"{path}: an earlier run had another key; give that one, or a new directory") from error
        return earlier

    def _is_done(self, segment: PlannedSegment) -> bool:
        return self._fs.exists(segment_path(self._target(segment.key), segment.start_offset, LOG))

    def _item(self, ends: _Ends, segment: PlannedSegment) -> SegmentItem:
        before, after = ends.source.flavour.body_order, ends.flavour.body_order
        return SegmentItem(
            source_directory=self._source(segment.key),
            target_directory=self._target(segment.key),
            start_offset=segment.start_offset,
            log_bytes=segment.log_bytes,
            index_bytes=segment.index_bytes,
            source=Encoding(order=before, codec=Codec.from_name(segment.codec), key=ends.source_key),
            target=Encoding(order=after, codec=self._codec(segment), key=ends.target_key),
            segment_bytes_max=self._options.segment_bytes_max,
        )

    # The other files of a directory.

    def _make_folders(self, entries: Sequence[StateEntry]) -> None:
        """Makes the folders of all partitions. Temporary files of a killed run are removed."""
        for key in self._partition_keys(entries):
            path = self._target(key)
            self._fs.makedirs(path)
            for name in self._fs.listdir(path):
                if name.endswith(TEMPORARY):
                    self._fs.unlink(f"{path}/{name}")

    def _copy_offsets(self, entries: Sequence[StateEntry]) -> None:
        for key in self._partition_keys(entries):
            for folder in _OFFSET_FOLDERS:
                source = self._source(f"{key}/{OFFSETS_FOLDER}/{folder}")
                if not self._fs.exists(source):
                    continue
                target = self._target(f"{key}/{OFFSETS_FOLDER}/{folder}")
                self._fs.makedirs(target)
                for name in self._fs.listdir(source):
                    write_atomic(self._fs, f"{target}/{name}", read_file(self._fs, f"{source}/{name}"))

    def _copy_side_files(self, ends: _Ends) -> None:
        """Only when the flavour stays: an engine makes its version file itself, and `page` keeps no revoked logins."""
        if ends.flavour is not ends.source.flavour:
            return
        for name in (ends.flavour.info_path(""), f"/{STATE_FOLDER}/tokens"):
            if self._fs.exists(self._source_root + name):
                self._fs.makedirs((self._target_root + name).rpartition("/")[0])
                write_atomic(self._fs, self._target_root + name, read_file(self._fs, self._source_root + name))

    def _write_state_log(self, ends: _Ends, entries: Sequence[StateEntry]) -> None:
        encode = encode_page_entry if ends.flavour is Flavour.PAGE else encode_iggy_entry
        encrypt = None if ends.target_cipher is None else ends.target_cipher.encrypt
        # Only one flavour marks an encrypted entry; the encoder sets the mark.
        plain = [replace(entry, flags=entry.flags & ~FLAG_ENCRYPTED) for entry in entries]
        path = ends.flavour.state_log_path(self._target_root)
        self._fs.makedirs(path.rpartition("/")[0])
        write_atomic(self._fs, path, b"".join(encode(entry, encrypt) for entry in plain))

    def _write_done(self, plan: ReencodePlan) -> None:
        written = [
            {"key": key, "start_offset": start, "bytes": self._fs.size(segment_path(self._target(key), start, LOG))}
            for key in dict.fromkeys(segment.key for segment in plan.segments)
            for start in segment_starts(self._fs.listdir(self._target(key)))
        ]
        done = {
            "v": VERSION,
            "job": "reencode",
            "created_ms": self._clock.now_ms(),
            "source": plan.source,
            "flavour": plan.flavour,
            "compression": plan.compression,
            "encrypted": plan.encrypted,
            "segments": written,
        }
        write_atomic(self._fs, self._target(DONE_FILE), msgspec.json.encode(done))

    # Paths and the report.

    def _source(self, key: str) -> str:
        return f"{self._source_root}/{key}"

    def _target(self, key: str) -> str:
        return f"{self._target_root}/{key}"

    def _summary(self, plan: ReencodePlan, *, done: int = 0, skipped: int = 0, messages: int = 0) -> Report:
        return Report(
            job="reencode",
            records=messages,
            bytes=sum(segment.log_bytes for segment in plan.segments),
            seconds=(self._clock.monotonic_ms() - self._started_ms) / 1000,
            items_done=done,
            items_skipped=skipped,
            detail={
                "source": plan.source,
                "target": self._target_root,
                "flavour": plan.flavour,
                "compression": plan.compression,
                "encrypted": plan.encrypted,
                "segments": len(plan.segments),
                "bytes_written": self._bytes_after,
            },
        )


def _check_apart(source: str, target: str) -> None:
    if source == target or target.startswith(f"{source}/") or source.startswith(f"{target}/"):
        raise BadOption(f"{target} and {source} overlap: give a new directory outside of the source")


@contextmanager
def _locked(fs: Fs, root: str, *, may_be_read_only: bool = False) -> Iterator[None]:
    """Holds the lock, so that no engine starts there. A read-only directory needs no lock."""
    lock: Lock | None
    try:
        lock = fs.lock(f"{root}/{LOCK_FILE}")
    except FileNotFoundError as error:
        raise StartRefused(f"{root} is not there") from error
    except OSError as error:
        if not may_be_read_only or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        yield
        return
    if lock is None:
        raise Conflict(f"{root} is in use by another process; stop it, or give a copy of the directory")
    try:
        yield
    finally:
        lock.release()
