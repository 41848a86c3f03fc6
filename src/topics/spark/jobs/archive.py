"""`archive`: writes sealed segments that are not in the lake yet into the lake, as Parquet files.

A task reads some neighbouring segments, verifies all checksums, and writes a file. A wave ends in a commit
to the lake's table. A job that is killed repeats at most one wave, and its uncommitted files do not count.
Two archivers at once do no harm: each gives up what the other has committed first, and plans the rest again.

The active segment of a topic is archived once the server has sealed it; with `seal` the server is asked to do so. The
server is also asked to pin the files of a wave. Records that are evicted all the same are a gap, which the lake's table
of gaps gets.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from re import fullmatch
from typing import TYPE_CHECKING, Any, Final

from topics.clock import SystemClock
from topics.errors import TopicNotFound
from topics.spark.access import open_client
from topics.spark.errors import Conflict
from topics.spark.jobs.archive_plan import ArchiveItem, Bounds, by_topic, plan_topic
from topics.spark.jobs.archive_task import archive_item
from topics.spark.jobs.job import EXIT_DATA_LOSS, EXIT_DONE, Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import ArchiveOptions
from topics.spark.jobs.spread import Executors, SparkExecutors, spread_waves
from topics.spark.lake.files import LAKE_COLUMNS
from topics.spark.lake.lake import open_lake
from topics.spark.lake.state import LakeChange, LakeGap
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.locate import ask_manifest
from topics.spark.reading.source import take_manifests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Larger than the batches of readers: these batches go into a file, not through Spark.
_READ: Final[dict[str, Any]] = {
    "columns": LAKE_COLUMNS,
    "gaps": "rows",
    "on_corrupt": "rows",
    "batch_records": 65_536,
}


def run(spark: "SparkSession", options: ArchiveOptions, *, report: ReportProgress | None = None) -> Report:
    """Archives the segments that are sealed now. Exit code 3 when seqs are missing; `findings` names them."""
    return Archiver(options, SparkExecutors(spark), report).run()


class Archiver:
    """One run."""

    def __init__(self, options: ArchiveOptions, executors: Executors, report: ReportProgress | None = None) -> None:
        self._options = options
        self._executors = executors
        self._report = report
        self._read_options = _read_options(options)
        self._lake = open_lake(options.lake, must_exist=False)
        self._clock = SystemClock()
        self._gaps: dict[LakeGap, None] = {}
        self._topics: set[str] = set()
        self._given_up = 0
        self._committed: list[LakeChange] = []

    def run(self) -> Report:
        started_ms = self._clock.monotonic_ms()
        planned = 0
        if self._options.seal and not self._options.dry_run:
            self._seal()
        while True:
            items = self._plan()
            planned += len(items)
            if self._options.dry_run or not items:
                break
            self._given_up = 0
            version = self._lake.state.version
            spread_waves(
                "archive",
                items,
                partial(archive_item, address=self._lake.address, options=self._read_options),
                executors=self._executors,
                prepare=self._pin,
                collect=self._collect,
                weigh=_weight_bytes,
                report=self._report,
            )
            if not self._given_up:
                break
            if self._lake.state.version == version:
                raise Conflict(
                    f"{self._lake.address}: {self._given_up} changes do not fit, and no other job changed the lake: "
                    "it has files with the same seqs from segments that it does not name"
                )
        seconds = (self._clock.monotonic_ms() - started_ms) / 1000
        return self._summary(planned, seconds)

    def _seal(self) -> None:
        with self._options.client() as client:
            for name in self._options.topics or client.topics():
                if self._options.pattern is None or fullmatch(self._options.pattern, name):
                    client.seal(name)

    def _plan(self) -> list[ArchiveItem]:
        """The items to archive now. Gaps that the manifests tell of are committed at once."""
        bounds = Bounds(file_bytes=self._options.file_bytes, file_records=self._options.file_records)
        state = self._lake.refresh()
        items: list[ArchiveItem] = []
        gaps: list[LakeGap] = []
        for manifest in self._manifests():
            self._topics.add(manifest.topic)
            topic_plan = plan_topic(manifest, state, bounds, apply_deletes=self._options.apply_deletes)
            items += topic_plan.items
            gaps += topic_plan.gaps
        if gaps and not self._options.dry_run:
            self._commit([LakeChange(gaps=tuple(gaps))])
        return items

    def _manifests(self) -> list[Manifest]:
        options = self._options
        # Each wave pins its files. A pin of the plan would end before the last wave.
        manifests = take_manifests(replace(self._read_options, pin_ms=0))
        if options.path is None:
            return manifests
        return [
            manifest
            for manifest in manifests
            if (not options.topics or manifest.topic in options.topics)
            and (options.pattern is None or fullmatch(options.pattern, manifest.topic))
        ]

    def _collect(self, _: Sequence[ArchiveItem], found: Sequence[LakeChange]) -> WaveDone:
        changes = [change for change in found if not change.is_empty]
        kept = self._commit(changes)
        self._given_up += len(changes) - len(kept)
        return WaveDone(sum(change.records for change in kept), sum(change.bytes for change in kept))

    def _pin(self, items: Sequence[ArchiveItem]) -> Sequence[ArchiveItem]:
        """Asks the server to keep the files of the items. A topic that is gone is found by the tasks."""
        if self._read_options.path is None:
            with open_client(self._read_options) as client:
                for topic, (first_seq, last_seq) in by_topic(items):
                    with suppress(TopicNotFound):
                        ask_manifest(client, topic, first_seq, last_seq, pin_ms=self._options.pin_ms)
        return items

    def _commit(self, changes: Sequence[LakeChange]) -> Sequence[LakeChange]:
        kept = self._lake.commit("archive", changes, now_ms=self._clock.now_ms())
        self._committed += kept
        self._gaps.update((gap, None) for change in kept for gap in change.gaps)
        return kept

    def _summary(self, planned: int, seconds: float) -> Report:
        adds = [file for change in self._committed for file in change.adds]
        bad = [
            done
            for (topic, _), each in self._lake.state.segments.items()
            if topic in self._topics
            for done in each
            if done.bad
        ]
        findings = [_finding(gap) for gap in self._gaps]
        return Report(
            job="archive",
            records=sum(file.records for file in adds),
            bytes=sum(file.bytes for file in adds),
            seconds=seconds,
            items_done=len(self._committed),
            items_skipped=planned if self._options.dry_run else 0,
            findings=tuple(findings),
            exit_code=EXIT_DATA_LOSS if findings or bad else EXIT_DONE,
            detail={
                "lake": self._lake.address,
                "version": self._lake.state.version,
                "segments": sum(len(change.segments) for change in self._committed),
                "files": len(adds),
                "damaged_segments": len(bad),
            },
        )


def _weight_bytes(item: ArchiveItem) -> int:
    return item.weight_bytes


def _finding(gap: LakeGap) -> dict[str, Any]:
    return {
        "topic": gap.topic,
        "epoch": gap.epoch,
        "gap_from": gap.first_seq,
        "gap_to": gap.last_seq,
        "reason": gap.reason,
    }


def _read_options(options: ArchiveOptions) -> ReadOptions:
    if options.path is not None:
        return ReadOptions(path=options.path, tail="skip", **_READ)
    return options.read_options(options.topics, pattern=options.pattern, pin_ms=options.pin_ms, **_READ)
