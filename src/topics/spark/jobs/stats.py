"""`stats`: one snapshot of topics as numbers and pictures, in `stats.json` and in a page that needs nothing else.

The snapshot is one manifest for each topic. Tasks read the records once and send back sums. Numbers about segments and
floors come from the manifest. So the totals equal the numbers of the server at that moment, unless records were evicted
or deleted before a task read them.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.clock import SystemClock
from topics.spark.jobs.job import Report, ReportProgress, WaveDone
from topics.spark.jobs.job_options import StatsOptions
from topics.spark.jobs.spread import SparkExecutors, spread_waves
from topics.spark.jobs.stats_page import render_page
from topics.spark.jobs.stats_summary import COLUMNS, JUMPS_KEPT, Labels, Summary, bucket_for, summarize
from topics.spark.loss import find_gaps
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.reading.plan import Partition, plan_batch
from topics.spark.reading.source import take_manifests
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store
from topics.storage.tiers.store import SharedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATS_JSON: Final = "stats.json"
STATS_HTML: Final = "stats.html"
_PROBE: Final = "stats.probe"
# Tasks count in finer buckets than the page draws, because the time of the last record is not known before.
FINE_BUCKETS: Final = 2000
DRAWN_BUCKETS: Final = 120


def run(spark: "SparkSession", options: StatsOptions, *, report: ReportProgress | None = None) -> Report:
    """`detail` has the totals, and where the page is."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    read_options = _read_options(options)
    store = None if options.out is None else _writable_store(options.out)
    manifests = sorted(take_manifests(read_options), key=lambda manifest: manifest.topic)
    if options.path is not None and options.topics:
        manifests = [manifest for manifest in manifests if manifest.topic in options.topics]
    now_ms = clock.now_ms()
    summaries = _summaries(spark, manifests, read_options, now_ms, report)
    stats = _document(manifests, summaries, options, now_ms)
    detail: dict[str, Any] = {"totals": stats["totals"]}
    if store is not None:
        # Each file is put whole. A later run replaces both.
        store.put(STATS_JSON, msgspec.json.encode(stats))
        store.put(STATS_HTML, render_page(stats).encode())
        detail["page"] = f"{store.address}/{STATS_HTML}"
    return Report(
        job="stats",
        records=stats["totals"]["records"],
        bytes=stats["totals"]["bytes"],
        seconds=(clock.monotonic_ms() - started_ms) / 1000,
        items_done=len(manifests),
        detail=detail,
    )


def _writable_store(address: str) -> SharedStore:
    """Raises the error of a put now, not after all the counting."""
    store = open_shared_store(address, RealFs())
    store.put(_PROBE, b"")
    store.delete(_PROBE)
    return store


def _read_options(options: StatsOptions) -> ReadOptions:
    if options.path is not None:
        return ReadOptions(path=options.path, columns=COLUMNS, gaps="rows", on_corrupt="rows")
    return options.read_options(options.topics, columns=COLUMNS, gaps="rows", on_corrupt="rows")


def _summaries(
    spark: "SparkSession",
    manifests: Sequence[Manifest],
    options: ReadOptions,
    now_ms: int,
    report: ReportProgress | None,
) -> dict[str, Summary]:
    oldest_ms = min((manifest.segments[0].min_ts for manifest in manifests if manifest.segments), default=now_ms)
    bucket_ms = bucket_for(max(0, now_ms - oldest_ms), FINE_BUCKETS)
    partitions = plan_batch(manifests, options)
    summaries = {manifest.topic: Summary(bucket_ms) for manifest in manifests}
    work = partial(summarize, options=options, bucket_ms=bucket_ms)

    def collect(of_wave: Sequence[Partition], found: Sequence[Summary]) -> WaveDone:
        # Partitions are in the order of their seqs.
        for partition, summary in zip(of_wave, found, strict=True):
            summaries[partition.topic].merge(summary)
        return WaveDone(sum(each.records for each in found), sum(each.bytes for each in found))

    spread_waves("stats", partitions, work, executors=SparkExecutors(spark), collect=collect, report=report)
    return summaries


# The document: what is in the JSON, and what the page draws.


def _document(
    manifests: Sequence[Manifest], summaries: dict[str, Summary], options: StatsOptions, now_ms: int
) -> dict[str, Any]:
    whole = Summary(next(iter(summaries.values())).bucket_ms if summaries else 1000)
    for summary in summaries.values():
        # Only numbers that do not depend on order: a jump from one topic to the next means nothing.
        _add_up(whole, summary)
    segments = [_segment(manifest, each, now_ms) for manifest in manifests for each in manifest.segments]
    gaps = [gap for manifest in manifests for gap in _gaps(manifest, summaries[manifest.topic])]
    jumps = [
        {"topic": topic, "seq": jump.seq, "ts": jump.ts, "ms": jump.size_ms}
        for topic, summary in summaries.items()
        for jump in summary.jumps
    ]
    tiers = _tiers(segments, whole)
    return {
        "v": 1,
        "title": options.title,
        "created_ms": now_ms,
        "source": options.path or options.address(),
        "totals": {
            "topics": len(manifests),
            "records": whole.records,
            "bytes": whole.bytes,
            "segments": len(segments),
            "segment_bytes": sum(segment["bytes"] for segment in segments),
            "segment_records": sum(segment["records"] for segment in segments),
            "segment_live": sum(segment["live"] for segment in segments),
            "tail_records": whole.tail_records,
            "gaps": len(gaps),
            "backwards": whole.backwards,
            "size_max": whole.size_max,
        },
        "topics": [_topic(manifest, summaries[manifest.topic]) for manifest in manifests],
        "rate": _rate(summaries),
        "sizes": [{"from": 1 << n, "records": count} for n, count in sorted(whole.records_by_size.items())],
        "tags": _labels(whole.tags, options.top),
        "nodes": _labels(whole.nodes, options.top),
        "segments": segments,
        "tiers": tiers,
        "gaps": gaps,
        "jumps": sorted(jumps, key=lambda jump: -abs(int(str(jump["ms"]))))[:JUMPS_KEPT],
    }


def _add_up(whole: Summary, summary: Summary) -> None:
    whole.records += summary.records
    whole.bytes += summary.bytes
    whole.tail_records += summary.tail_records
    whole.tail_bytes += summary.tail_bytes
    whole.records_by_size.update(summary.records_by_size)
    whole.size_max = max(whole.size_max, summary.size_max)
    whole.backwards += summary.backwards
    whole.tags.merge(summary.tags)
    whole.nodes.merge(summary.nodes)


def _topic(manifest: Manifest, summary: Summary) -> dict[str, Any]:
    return {
        "topic": manifest.topic,
        "epoch": manifest.epoch,
        "head_seq": manifest.head_seq,
        "earliest_seq": manifest.earliest_seq,
        "records": summary.records,
        "bytes": summary.bytes,
        "segments": len(manifest.segments),
        "segment_bytes": sum(segment.data_len for segment in manifest.segments),
        "segment_records": sum(segment.records for segment in manifest.segments),
        "segment_live": sum(segment.live for segment in manifest.segments),
        "tail_records": summary.tail_records,
        "tags": len(summary.tags.counts),
        "first_ts": None if summary.first is None else summary.first.ts,
        "last_ts": None if summary.last is None else summary.last.ts,
    }


def _rate(summaries: dict[str, Summary]) -> dict[str, Any]:
    """Records by time, in buckets as wide as the plot needs."""
    fine = {topic: summary.records_by_bucket for topic, summary in summaries.items() if summary.records}
    if not fine:
        return {"bucket_ms": 1000, "from_ms": 0, "topics": {}}
    fine_ms = next(iter(summaries.values())).bucket_ms
    first = min(min(counts) for counts in fine.values()) * fine_ms
    last = max(max(counts) for counts in fine.values()) * fine_ms
    width_ms = max(fine_ms, bucket_for(last - first, DRAWN_BUCKETS))
    from_ms = first // width_ms * width_ms
    bucket_count = (last - from_ms) // width_ms + 1
    topics: dict[str, list[int]] = {}
    for topic, counts in fine.items():
        row = [0] * bucket_count
        for bucket, count in counts.items():
            row[(bucket * fine_ms - from_ms) // width_ms] += count
        topics[topic] = row
    return {"bucket_ms": width_ms, "from_ms": from_ms, "topics": topics}


def _labels(labels: Labels, top: int) -> dict[str, Any]:
    named = sorted(labels.counts.items(), key=lambda item: (-item[1], item[0]))[:top]
    return {
        "top": [{"label": label, "records": count} for label, count in named],
        "distinct": len(labels.counts),
        "is_exact": labels.is_exact,
        "others": labels.others + labels.counts.total() - sum(count for _, count in named),
        "without": labels.without,
    }


def _segment(manifest: Manifest, segment: Any, now_ms: int) -> dict[str, Any]:
    return {
        "topic": manifest.topic,
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "records": segment.records,
        "live": segment.live,
        "deleted_share": round(1 - segment.live / segment.records, 6) if segment.records else 0.0,
        "bytes": segment.data_len,
        "tier": segment.tier,
        "sealed": segment.sealed,
        "age_ms": max(0, now_ms - segment.max_ts),
        "uri": segment.uri,
    }


def _tiers(segments: Sequence[dict[str, Any]], whole: Summary) -> list[dict[str, Any]]:
    tiers = []
    for tier in sorted({segment["tier"] for segment in segments}, reverse=True):
        own = [segment for segment in segments if segment["tier"] == tier]
        live = sum(segment["live"] for segment in own)
        tiers.append({"tier": tier, "bytes": sum(segment["bytes"] for segment in own), "records": live})
    if whole.tail_records:
        tiers.append({"tier": "log", "bytes": whole.tail_bytes, "records": whole.tail_records})
    return tiers


def _gaps(manifest: Manifest, summary: Summary) -> list[dict[str, Any]]:
    planned = [(gap.first_seq, gap.last_seq, str(gap.reason)) for gap in find_gaps(manifest, 0, manifest.head_seq)]
    met = [(gap.first_seq, gap.last_seq, gap.reason) for gap in summary.gaps]
    return [
        {"topic": manifest.topic, "first_seq": first, "last_seq": last, "reason": reason}
        for first, last, reason in sorted(set(planned) | set(met), key=lambda gap: gap[0])
    ]
