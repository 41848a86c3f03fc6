"""`verify`: every segment in all tiers, the files of lakes, the partitions of streams. Nothing is changed.

With a running server its manifests say where files are and how many bytes of them count. Executors read the files. A
finding is compared with a new manifest before it is reported, because the segment may have been moved, evicted or
written again meanwhile. Without a server the driver checks log and snapshots of the data directory, as `topics verify`
does, and executors check the segments.

The rules are in `storage.inspect`. `segment_check` and `message_check` check the same rules faster.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from topics.clock import SystemClock
from topics.errors import ColdUnavailable, TopicsError
from topics.formats.snapshot import SegmentState, TopicState
from topics.spark.errors import BadOption
from topics.spark.jobs.job import EXIT_DONE, EXIT_FINDINGS, Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import VerifyOptions
from topics.spark.jobs.lake_check import LakeTask, check_lake_files
from topics.spark.jobs.message_check import check_message_segments
from topics.spark.jobs.message_segments import MessageSegment, find_message_segments
from topics.spark.jobs.segment_check import Checked, check_segments
from topics.spark.jobs.spread import Executors, SparkExecutors, spread_waves, units_of
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeDamaged
from topics.spark.manifest import Manifest, Segment
from topics.spark.reading.segment_files import tier_and_name
from topics.spark.reading.source import take_manifests
from topics.storage.fs import RealFs
from topics.storage.inspect.findings import Finding
from topics.storage.inspect.segment_survey import SegmentTask
from topics.storage.inspect.verify import Verifier
from topics.storage.tiers.addresses import open_shared_store, open_store, path_of_address
from topics.storage.tiers.store_id import read_store_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often a segment may change between manifest and check. After that its findings are reported.
CHANGES_MAX: Final = 5
REPORT_JSON: Final = "verify.json"
REPORT_PARQUET: Final = "verify.parquet"


FileTask = SegmentTask | MessageSegment | LakeTask


class Unit(NamedTuple):
    """The files that one task of Spark checks, all of one kind."""

    tasks: tuple[FileTask, ...]
    # Of the tier that the files must be in; empty when any tier will do.
    store_id: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.tasks))


def run(spark: "SparkSession", options: VerifyOptions, *, report: ReportProgress | None = None) -> Report:
    """Exit code 2 when there are findings. Raises `ColdUnavailable` when an executor does not see the files."""
    return _Run(options, SparkExecutors(spark), report).run()


def check_unit(unit: Unit) -> list[Checked]:
    """On an executor."""
    first = unit.tasks[0]
    if isinstance(first, MessageSegment):
        return check_message_segments([task for task in unit.tasks if isinstance(task, MessageSegment)])
    if isinstance(first, LakeTask):
        return check_lake_files([task for task in unit.tasks if isinstance(task, LakeTask)])
    if unit.store_id and read_store_id(open_store(first.address, RealFs())) != unit.store_id:
        raise ColdUnavailable(
            f"{first.address} is not the server's store as an executor sees it: verify reads files, so run it where "
            "they are, or mount them at the same path"
        )
    return check_segments([task for task in unit.tasks if isinstance(task, SegmentTask)])


class _Run:
    def __init__(self, options: VerifyOptions, executors: Executors, report: ReportProgress | None) -> None:
        self._options = options
        self._executors = executors
        self._report = report
        self._findings: list[Finding] = []
        self._notes = 0
        self._missing = 0
        self._message_counts: dict[MessageSegment, int] = {}
        self._clock = SystemClock()

    def run(self) -> Report:
        started_ms = self._clock.monotonic_ms()
        units = self._plan()
        records = size_bytes = 0
        if not self._options.dry_run:
            done = spread_waves(
                "verify",
                units,
                check_unit,
                executors=self._executors,
                collect=self._collect,
                weigh=lambda unit: unit.size_bytes,
                report=self._report,
            )
            records, size_bytes = done.records, done.bytes
        self._findings += _discontinuities(self._message_counts)
        rows = tuple(_row(finding) for finding in sorted(self._findings, key=_place_of))
        files = sum(len(unit.tasks) for unit in units)
        result = Report(
            job="verify",
            records=records,
            bytes=size_bytes,
            seconds=(self._clock.monotonic_ms() - started_ms) / 1000,
            items_done=0 if self._options.dry_run else files,
            items_skipped=files if self._options.dry_run else 0,
            findings=rows,
            exit_code=EXIT_FINDINGS if rows else EXIT_DONE,
            detail={"files": files, "notes": self._notes, "gone_meanwhile": self._missing},
        )
        if self._options.report is not None and not self._options.dry_run:
            _write_report(self._options.report, result, now_ms=self._clock.now_ms())
        return result

    # The work list.

    def _plan(self) -> list[Unit]:
        options = self._options
        units: list[Unit] = []
        if options.path is not None:
            units += self._directory_units(options.path)
        elif options.endpoint is not None or not (options.lakes or options.streams):
            units += self._server_units()
        for address in options.lakes:
            units += self._lake_units(address)
        for path in options.streams:
            units += _stream_units(path)
        return units

    def _take(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.severity == "note":
                self._notes += 1
            else:
                self._findings.append(finding)

    def _server_units(self) -> Iterator[Unit]:
        listed: dict[str, list[SegmentTask]] = {}
        for manifest in self._manifests(self._options.topics):
            tasks = listed.setdefault(manifest.store_id, [])
            tasks += [_task_of(manifest, segment) for segment in manifest.segments]
        for store_id, tasks in listed.items():
            places = {task.address for task in tasks}
            yield from _segment_units(tasks, store_id)
            yield from _segment_units(_copies(tasks, places), store_id)
            yield from _segment_units(_copies(tasks, set(self._options.copies)), "")

    def _manifests(self, topics: tuple[str, ...]) -> list[Manifest]:
        return take_manifests(self._options.read_options(topics, pin_ms=self._options.pin_ms))

    def _directory_units(self, address: str) -> Iterator[Unit]:
        root = path_of_address(address)
        if root is None:
            raise BadOption(f"{address} is no path: mount the data directory, and give its path")
        fs = RealFs()
        cold = None if self._options.cold is None else open_store(self._options.cold, fs)
        left: list[SegmentTask] = []
        verifier = Verifier(fs, root, cold=cold, leave_segment=left.append)
        for finding in verifier.run():
            file = finding.file if "://" in finding.file or finding.file.startswith("/") else f"{root}/{finding.file}"
            self._take([msgspec.structs.replace(finding, file=file)])
        if verifier.totals.in_use:
            # The server goes on deleting records.
            left = [task._replace(numbers="older") for task in left]
        topics = set(self._options.topics)
        tasks = [task for task in left if not topics or task.topic.name in topics]
        yield from _segment_units(tasks, "")
        places = {root, *self._options.copies} | ({cold.address} if cold is not None else set())
        yield from _segment_units(_copies(tasks, places), "")

    def _lake_units(self, address: str) -> list[Unit]:
        try:
            lake = open_lake(address)
        except LakeDamaged as error:
            self._take([Finding(severity="damage", file=address, message=error.message)])
            return []
        return _units([LakeTask(lake.address, file) for file in lake.state.files_of()], "")

    # The work.

    def _collect(self, units: Sequence[Unit], found: Sequence[list[Checked]]) -> WaveDone:
        records = size_bytes = 0
        doubtful: list[tuple[SegmentTask, Checked]] = []
        for unit, results in zip(units, found, strict=True):
            for task, checked in zip(unit.tasks, results, strict=True):
                records += checked.records
                size_bytes += checked.bytes
                if isinstance(task, MessageSegment):
                    self._take_messages(task, checked)
                elif isinstance(task, LakeTask):
                    self._take(_or_missing(task.uri, checked))
                elif checked.findings or checked.is_missing:
                    doubtful.append((task, checked))
        self._settle(doubtful)
        return WaveDone(records, size_bytes)

    def _take_messages(self, task: MessageSegment, checked: Checked) -> None:
        self._take(checked.findings)
        if checked.is_missing:
            # Retention removed it after it was listed.
            self._missing += 1
        else:
            self._message_counts[task] = checked.records

    def _settle(self, doubtful: Sequence[tuple[SegmentTask, Checked]]) -> None:
        """Reports findings that a new manifest confirms. A segment that was written again is checked again."""
        for _ in range(CHANGES_MAX if self._options.path is None else 0):
            if not doubtful:
                return
            now = self._now(sorted({task.topic.name for task, _ in doubtful}))
            changed: list[SegmentTask] = []
            for task, checked in doubtful:
                current = now.get((task.topic.id, task.topic.epoch, task.first_seq))
                if current is None:
                    self._missing += 1
                elif _is_other(task, current):
                    # The address stays, because the task may be about a copy.
                    changed.append(task._replace(state=current.state))
                elif checked.is_missing and task.uri != current.uri:
                    changed.append(current)
                else:
                    self._take(_or_missing(task.uri, checked, task))
            units = list(_segment_units(changed, ""))
            results = chain.from_iterable(self._executors.spread(units, check_unit))
            tasks = [task for unit in units for task in unit.tasks if isinstance(task, SegmentTask)]
            doubtful = [
                (task, checked)
                for task, checked in zip(tasks, results, strict=True)
                if checked.findings or checked.is_missing
            ]
        for task, checked in doubtful:
            if checked.is_missing and self._options.path is not None:
                self._missing += 1
            else:
                self._take(_or_missing(task.uri, checked, task))

    def _now(self, topics: Sequence[str]) -> Mapping[tuple[int, int, int], SegmentTask]:
        found: dict[tuple[int, int, int], SegmentTask] = {}
        for topic in topics:
            try:
                manifests = self._manifests((topic,))
            except TopicsError as error:
                if error.code != "topic_not_found":
                    raise
                continue
            for manifest in manifests:
                for segment in manifest.segments:
                    task = _task_of(manifest, segment)
                    found[manifest.topic_id, manifest.epoch, segment.first_seq] = task
        return found


def _task_of(manifest: Manifest, segment: Segment) -> SegmentTask:
    address, _ = tier_and_name(segment.uri)
    topic = TopicState(name=manifest.topic, id=manifest.topic_id, epoch=manifest.epoch, config={})
    state = SegmentState(
        first_seq=segment.first_seq,
        entry_count=segment.records,
        data_bytes=segment.data_len,
        first_ts=segment.min_ts,
        last_ts=segment.max_ts,
        live_count=segment.live,
        live_bytes=0,
        sealed=segment.sealed,
        tier="cold" if segment.tier == "cold" else "hot",
        digest=bytes.fromhex(segment.digest),
    )
    path = path_of_address(address)
    return SegmentTask.of(path or address, topic, state, is_cold=segment.tier == "cold", numbers="manifest")


def _is_other(task: SegmentTask, current: SegmentTask) -> bool:
    """Whether the files were written again. An active segment only grows, which is no change."""
    old, new = task.state, current.state
    return (old.sealed, old.data_bytes, old.digest) != (new.sealed, new.data_bytes, new.digest) and (
        old.sealed or new.data_bytes < old.data_bytes
    )


def _copies(tasks: Sequence[SegmentTask], places: Iterable[str]) -> list[SegmentTask]:
    """The same sealed segments in other places. A copy must have the digest of the listed segment."""
    found: list[SegmentTask] = []
    listed = {(task.address, task.name) for task in tasks}
    for place in sorted(places):
        store = open_store(place, RealFs())
        names = set(store.list("topics/"))
        found += [
            task._replace(address=store.address, is_cold=True, numbers="manifest")
            for task in tasks
            if task.state.digest and task.name in names and (store.address, task.name) not in listed
        ]
    return found


def _segment_units(tasks: Sequence[SegmentTask], store_id: str) -> list[Unit]:
    by_address: dict[str, list[SegmentTask]] = {}
    for task in tasks:
        by_address.setdefault(task.address, []).append(task)
    return [unit for group in by_address.values() for unit in _units(group, store_id)]


def _stream_units(path: str) -> list[Unit]:
    root = path_of_address(path)
    if root is None:
        raise BadOption(f"{path} is no path: mount the directory of streams, and give its path")
    fs = RealFs()
    segments = list(find_message_segments(fs, root))
    if not segments and not fs.exists(root):
        raise BadOption(f"{root}: there is no such directory")
    return _units(segments, "")


def _units(tasks: Sequence[FileTask], store_id: str) -> list[Unit]:
    return [Unit(unit, store_id) for unit in units_of(tasks, _size_bytes)]


def _size_bytes(task: FileTask) -> int:
    if isinstance(task, MessageSegment):
        return task.size_bytes
    return task.file.bytes if isinstance(task, LakeTask) else task.state.data_bytes


# Findings.


def _or_missing(uri: str, checked: Checked, task: SegmentTask | None = None) -> tuple[Finding, ...]:
    if not checked.is_missing:
        return checked.findings
    if task is None:
        return (Finding(severity="damage", file=uri, message="missing"),)
    return (
        Finding(
            severity="damage",
            file=uri,
            seq=task.first_seq,
            last_seq=task.state.last_seq,
            topic=task.topic.name,
            message="missing",
            advice="restore the file from a copy, or the records with `topics pipeline restore`",
        ),
    )


def _discontinuities(counts: Mapping[MessageSegment, int]) -> Iterator[Finding]:
    before: MessageSegment | None = None
    for task in sorted(counts):
        if before is not None and before.directory == task.directory:
            expected = before.start_offset + counts[before]
            if expected != task.start_offset:
                yield Finding(
                    severity="warning",
                    file=task.log_path,
                    seq=task.start_offset,
                    message="does not begin where the previous segment ends",
                    expected=str(expected),
                    found=str(task.start_offset),
                )
        before = task


def _place_of(finding: Finding) -> tuple[str, int, int]:
    return finding.file, finding.offset or 0, finding.seq or 0


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "uri": finding.file,
        "topic": finding.topic,
        "seq": finding.seq,
        "last_seq": finding.last_seq if finding.last_seq is not None else finding.seq,
        "offset": finding.offset,
        "severity": finding.severity,
        "problem": finding.message,
        "expected": finding.expected,
        "found": finding.found,
        "advice": finding.advice,
    }


def _write_report(address: str, report: Report, *, now_ms: int) -> None:
    """Each file is put whole. A later run replaces both."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    text, number = pa.string(), pa.int64()
    schema = pa.schema(
        [
            *(("uri", text), ("topic", text), ("seq", number), ("last_seq", number), ("offset", number)),
            *(("severity", text), ("problem", text), ("expected", text), ("found", text), ("advice", text)),
        ]
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(report.findings), schema), sink, compression="zstd")
    store = open_shared_store(address, RealFs())
    store.put(REPORT_PARQUET, memoryview(sink.getvalue()))
    store.put(REPORT_JSON, msgspec.json.encode({"created_ms": now_ms, **report.members()}))
