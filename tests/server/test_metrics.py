"""Metrics of a real engine, as text that a Prometheus parser reads and as the JSON of the contract."""

import math
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.cold_log import ColdLog
from tests.engine.small_log import SmallLog
from topics.engine.topic.router import RouterSpec
from topics.errors import WalFailed
from topics.server.auth import KeyRing
from topics.server.disk_gauge import DiskRoom
from topics.server.metrics import (
    FORM,
    Counters,
    Snapshot,
    TopicRow,
    cold_figures,
    collect,
    render_json,
    render_prometheus,
)
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_fs import FaultFs

# Every family of the contract, then the additional ones.
TYPE_BY_FAMILY = {
    **dict.fromkeys(("topics_topics", "topics_routers", "topics_records_live", "topics_bytes_live"), "gauge"),
    "topics_topics_by_class": "gauge",
    **dict.fromkeys(("topics_topic_head_seq", "topics_topic_earliest_seq"), "gauge"),
    **dict.fromkeys(("topics_topic_records_live", "topics_topic_bytes_live"), "gauge"),
    **dict.fromkeys(("topics_topic_queue_ready", "topics_topic_queue_in_flight"), "gauge"),
    **dict.fromkeys(("topics_topic_queue_delayed", "topics_queue_oldest_ready_seconds"), "gauge"),
    **dict.fromkeys(("topics_topic_queue_dead_lettered_total", "topics_queue_redriven_total"), "counter"),
    "topics_topic_metrics_truncated": "gauge",
    "topics_group_lag": "gauge",
    "topics_router_lag": "gauge",
    "topics_router_forwarded_total": "counter",
    "topics_pressure": "gauge",
    **dict.fromkeys(("topics_queue_topics", "topics_queue_leases_in_flight"), "gauge"),
    **dict.fromkeys(("topics_sse_connections", "topics_watch_sessions"), "gauge"),
    **dict.fromkeys(("topics_ready", "topics_recovery_progress"), "gauge"),
    "topics_uptime_ms": "counter",
    **dict.fromkeys(("topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total"), "counter"),
    **dict.fromkeys(("topics_wal_bytes_written_total", "topics_wal_rotations_total"), "counter"),
    "topics_wal_submit_full_total": "counter",
    **dict.fromkeys(("topics_wal_queue_depth", "topics_wal_queue_depth_peak", "topics_wal_read_only"), "gauge"),
    "topics_wal_fsync_latency_us": "histogram",
    "topics_wal_fsync_seconds": "histogram",
    "process_start_time_seconds": "gauge",
    "topics_build_info": "gauge",
    **dict.fromkeys(("topics_wal_unsynced_bytes", "topics_wal_unsynced_seconds", "topics_wal_backlog_bytes"), "gauge"),
    **dict.fromkeys(("topics_disk_free_bytes", "topics_disk_total_bytes"), "gauge"),
    **dict.fromkeys(("topics_appends_total", "topics_append_records_total", "topics_append_bytes_total"), "counter"),
    "topics_request_seconds": "summary",
    "topics_auth_failures_total": "counter",
    "topics_connections_open": "gauge",
    **dict.fromkeys(("topics_connections_total", "topics_received_bytes_total", "topics_sent_bytes_total"), "counter"),
}
BOUNDS_US = [50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000]


class Scrape:
    """A small log, counters, and the values of a scrape."""

    def __init__(self, fs: Any = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.log = SmallLog(fs or FakeDisk(), clock=self.clock, **settings)
        self.counters = Counters(self.clock)

    def snapshot(self, **options: Any) -> Snapshot:
        defaults: dict[str, Any] = {"version": "1.2.3", "may_name": lambda name: True, "disk": DiskRoom(700, 1000)}
        return collect(self.log.engine, self.counters, **defaults | options)

    def families(self, **options: Any) -> dict[str, Metric]:
        return parsed(render_prometheus(self.snapshot(**options)))

    def values(self, **options: Any) -> dict[str, float]:
        """By name and the values of the labels in their order: `topics_topic_head_seq a`."""
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in self.families(**options).values()
            for sample in family.samples
        }

    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(render_json(self.snapshot(rows_max=0, backlog_bytes=500)))
        return answer


def parsed(text: bytes) -> dict[str, Metric]:
    families: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.name not in families, "a family stands in one place"
        families[family.name] = family
    return families


@pytest.fixture
def scrape() -> Scrape:
    return Scrape()


@cache
def empty() -> Snapshot:
    return Scrape().snapshot()


def test_every_family_has_its_type_and_a_meaning(scrape: Scrape) -> None:
    lines = render_prometheus(scrape.snapshot()).decode("ascii").splitlines()
    types = dict(line.split(" ")[2:] for line in lines if line.startswith("# TYPE "))
    assert types == TYPE_BY_FAMILY
    meanings = dict(line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP "))
    assert meanings.keys() == types.keys()
    assert all(meanings.values())


def test_a_parser_reads_the_text_and_the_last_line_is_whole(scrape: Scrape) -> None:
    scrape.log.create("a")
    text = render_prometheus(scrape.snapshot())
    assert text.endswith(b"\n")
    assert b"\n\n" not in text
    families = parsed(text)
    # The parser names counters without their ending.
    assert families.keys() == {name.removesuffix("_total") for name in TYPE_BY_FAMILY}
    assert {name for name, family in families.items() if not family.samples} == {
        "topics_topic_queue_ready",
        "topics_topic_queue_in_flight",
        "topics_topic_queue_delayed",
        "topics_topic_queue_dead_lettered",
        "topics_queue_oldest_ready_seconds",
        "topics_group_lag",
        "topics_router_lag",
        "topics_router_forwarded",
        "topics_request_seconds",
    }


def test_totals_and_topics_say_what_the_engine_holds(scrape: Scrape) -> None:
    log = scrape.log
    log.create("a")
    log.append("a", 5)
    log.delete("a", before_seq=3)
    log.create("b", durability="fsync")
    log.append("b", 2)
    log.create("jobs", type="queue", durability="memory")
    log.append("jobs", 4)
    values = scrape.values()
    assert values["topics_topics"] == 3
    assert values["topics_records_live"] == 3 + 2 + 4
    assert values["topics_bytes_live"] == sum(log.topic(name).size_bytes for name in ("a", "b", "jobs"))
    classes = ("ephemeral", "memory", "disk", "fsync")
    assert [values[f"topics_topics_by_class {durability}"] for durability in classes] == [0, 1, 1, 1]
    assert values["topics_topic_head_seq a"] == 5
    assert values["topics_topic_earliest_seq a"] == 3
    assert values["topics_topic_records_live a"] == 3
    assert values["topics_topic_bytes_live a"] == log.topic("a").size_bytes
    assert values["topics_queue_topics"] == 1
    assert values["topics_topic_queue_ready jobs"] == 4
    assert values["topics_topic_queue_in_flight jobs"] == 0
    assert "topics_topic_queue_ready a" not in values, "queues only"


def test_the_depth_and_the_age_of_queues_follow_their_leases(scrape: Scrape) -> None:
    queues = scrape.log.engine.queues
    for name in ("jobs", "mails"):
        scrape.log.create(name, type="queue")
        scrape.log.append(name, 4)
        queues.claim(name, "w", 2, None, [].append)
        for _ in range(4):
            scrape.log.engine.flush()
    queues.nack("mails", "w", [1], [], 5000, [].append)
    scrape.log.engine.flush()
    scrape.clock.advance(2500)
    values = scrape.values()
    assert values["topics_topic_queue_ready mails"] == 2
    assert values["topics_topic_queue_in_flight mails"] == 1
    assert values["topics_topic_queue_delayed mails"] == 1
    assert values["topics_topic_queue_dead_lettered_total mails"] == 0
    assert values["topics_queue_oldest_ready_seconds mails"] == 2.5
    assert values["topics_queue_leases_in_flight"] == 3
    assert values["topics_queue_redriven_total"] == 0
    queues.claim("mails", "w", 9, None, [].append)
    scrape.log.engine.flush()
    assert scrape.values()["topics_queue_oldest_ready_seconds mails"] == 0


def test_series_of_topics_stop_at_a_thousand_and_say_so(scrape: Scrape) -> None:
    log = scrape.log
    for number in range(1000):
        log.create(f"t{number}")
    values = scrape.values()
    assert sum(name.startswith("topics_topic_head_seq ") for name in values) == 1000
    assert values["topics_topic_metrics_truncated"] == 0
    log.create("one-more")
    values = scrape.values()
    assert sum(name.startswith("topics_topic_head_seq ") for name in values) == 1000
    assert values["topics_topic_metrics_truncated"] == 1
    assert values["topics_topics"] == 1001


def test_consumer_groups_say_how_far_behind_they_are(scrape: Scrape) -> None:
    log = scrape.log
    log.create("a")
    log.append("a", 5)
    log.engine.groups.put("a", "g", 2, [].append)
    log.engine.flush()
    assert scrape.values()["topics_group_lag a g"] == 3
    assert not [name for name in scrape.values(may_name=lambda name: False) if name.startswith("topics_group_lag")]


def test_series_of_consumer_groups_stop_at_a_thousand_over_all_topics(scrape: Scrape) -> None:
    log = scrape.log
    for topic in ("a", "b"):
        log.create(topic)
        for number in range(600):
            log.engine.groups.put(topic, f"g{number}", "start", [].append)
    log.engine.flush()
    assert sum(name.startswith("topics_group_lag ") for name in scrape.values()) == 1000


def test_routers_say_how_far_they_are(scrape: Scrape) -> None:
    log = scrape.log
    for name in ("a", "other"):
        log.create(name)
    log.engine.put_router("r", RouterSpec(source="a", dest="b"), list[object]().append)
    log.engine.put_router("hidden", RouterSpec(source="other", dest="b"), list[object]().append)
    log.engine.flush()
    log.append("a", 3)
    behind = scrape.values(may_name=lambda name: name != "other")
    copied = behind["topics_router_forwarded_total r"]
    assert copied + behind["topics_router_lag r"] == 3
    assert not [name for name in behind if "hidden" in name]
    log.engine.forwarder.tick()
    log.engine.flush()
    values = scrape.values()
    assert (values["topics_router_forwarded_total r"], values["topics_router_lag r"]) == (3, 0)


def test_the_cold_tier_says_what_it_holds_and_what_failed() -> None:
    log = ColdLog(FakeDisk())
    log.make(20)
    assert cold_figures(log.opened) == (3, sum(state.data_bytes for state in log.cold_states()), 3, 0)
    log.tier.fail_after(0)
    for number in range(21, 26):
        log.write(number)
    log.checkpoint()
    log.opened.relocator.tick()
    assert cold_figures(log.opened) == (3, sum(state.data_bytes for state in log.cold_states()), 3, 1)
    assert cold_figures(SmallLog(FakeDisk()).opened) is None


def test_the_pressure_is_what_was_last_measured(scrape: Scrape) -> None:
    assert scrape.values()["topics_pressure"] == 0
    scrape.counters.pressure = 0.25
    assert scrape.values()["topics_pressure"] == 0.25


def test_a_key_with_prefixes_sees_no_other_name(scrape: Scrape) -> None:
    for name in ("acme.orders", "other.orders", "acme.jobs", "other.jobs"):
        scrape.log.create(name, type="queue" if name.endswith("jobs") else "log")
        scrape.log.append(name, 2)
    key = KeyRing.parse("s:read:acme.").find(b"s")
    assert key is not None
    text = render_prometheus(scrape.snapshot(may_name=key.may_name, rows_max=2))
    assert b"other" not in text
    values = scrape.values(may_name=key.may_name, rows_max=2)
    assert values["topics_topic_head_seq acme.orders"] == 2
    assert values["topics_topic_queue_ready acme.jobs"] == 2
    assert values["topics_topic_metrics_truncated"] == 0, "nothing that the key may see is left out"
    assert values["topics_topics"] == 4


@given(name=st.text(alphabet=st.characters(codec="utf-8"), max_size=20))
def test_labels_come_back_as_they_were(name: str) -> None:
    snapshot = empty()._replace(rows=[TopicRow(name, 1, 1, 1, 1, None, 0)], version=name)
    families = parsed(render_prometheus(snapshot))
    assert families["topics_topic_head_seq"].samples[0].labels == {"topic": name}
    assert families["topics_build_info"].samples[0].labels == {"version": name, "form": FORM}


def test_backslash_quote_and_newline_are_escaped() -> None:
    text = render_prometheus(empty()._replace(rows=[TopicRow('a\\b"c\nd', 7, 1, 1, 1, None, 0)]))
    assert rb'topics_topic_head_seq{topic="a\\b\"c\nd"} 7' in text.splitlines()


def test_numbers_beyond_a_double_are_exact() -> None:
    text = render_prometheus(empty()._replace(rows=[TopicRow("a", 2**64 - 1, 2**53 + 1, 1, 1, None, 0)]))
    assert b'topics_topic_head_seq{topic="a"} 18446744073709551615' in text.splitlines()
    assert b'topics_topic_earliest_seq{topic="a"} 9007199254740993' in text.splitlines()


# The log.


def test_the_log_counts_writes_syncs_and_bytes(scrape: Scrape) -> None:
    scrape.log.create("a", durability="fsync")
    before = scrape.values()
    scrape.log.append("a", 3)
    after = scrape.values()
    grown = {name: after[name] - before[name] for name in after if name.startswith("topics_wal_")}
    assert grown["topics_wal_batches_total"] == 1
    # A sync mark, and the records.
    assert grown["topics_wal_frames_total"] == 4
    assert grown["topics_wal_fsyncs_total"] == 1
    assert grown["topics_wal_bytes_written_total"] > 0
    assert grown["topics_wal_queue_depth"] == 0
    assert after["topics_wal_queue_depth_peak"] >= 1
    assert after["topics_wal_read_only"] == 0
    assert after["topics_ready"] == after["topics_recovery_progress"] == 1


def test_shards_are_summed_up() -> None:
    scrape = Scrape(wal_shards=3)
    for number in range(9):
        scrape.log.create(f"t{number}")
    shards = scrape.log.engine.wal.shards
    assert len([shard for shard in shards if shard.stats.frames]) > 1
    values = scrape.values()
    assert values["topics_wal_frames_total"] == sum(shard.stats.frames for shard in shards)
    assert values["topics_wal_fsync_latency_us_count"] == sum(shard.stats.fsyncs for shard in shards)


def test_writes_that_wait_are_the_depth_of_the_queue(scrape: Scrape) -> None:
    scrape.log.create("a")
    scrape.log.start_append("a", 1, [])
    scrape.log.start_append("a", 1, [])
    values = scrape.values()
    assert values["topics_wal_queue_depth"] == 2
    assert values["topics_wal_queue_depth_peak"] >= 2


def test_the_loss_window_opens_with_a_write_and_closes_with_a_sync(scrape: Scrape) -> None:
    log = scrape.log
    log.create("a")
    # The first write also reserves seqs, and that is synced.
    log.append("a")
    log.append("a")
    scrape.clock.advance(30)
    values = scrape.values()
    assert values["topics_wal_unsynced_bytes"] > 0
    assert values["topics_wal_unsynced_seconds"] == 0.03
    log.tick(50)
    values = scrape.values()
    assert values["topics_wal_unsynced_bytes"] == values["topics_wal_unsynced_seconds"] == 0


def test_a_failed_sync_shows_as_read_only_and_not_ready() -> None:
    fs = FaultFs(FakeDisk())
    scrape = Scrape(fs)
    scrape.log.create("a", durability="fsync")
    fs.fail("fdatasync")
    with pytest.raises(WalFailed):
        scrape.log.append("a")
    values = scrape.values()
    assert values["topics_wal_read_only"] == 1
    assert values["topics_ready"] == 0
    answer = scrape.json()
    assert answer["wal"]["read_only"] is True
    assert answer["ready"] is False


def test_a_server_that_stops_is_not_ready(scrape: Scrape) -> None:
    scrape.log.engine.stop_writes()
    assert scrape.values()["topics_ready"] == 0


def test_both_histograms_count_the_same_syncs_in_their_own_unit(scrape: Scrape) -> None:
    stats = scrape.log.engine.wal.shards[0].stats
    before = stats.fsyncs
    us_before = stats.fsync_us_total
    for micros in (1, 50, 51, 250, 4000, 100_000, 100_001, 5_000_000):
        stats.note_fsync(micros)
    families = scrape.families()
    counts: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for name in ("topics_wal_fsync_latency_us", "topics_wal_fsync_seconds"):
        samples = families[name].samples
        counts[name] = {float(s.labels["le"]): s.value for s in samples if s.name.endswith("_bucket")}
        sums[name] = next(s.value for s in samples if s.name.endswith("_sum"))
        total = next(s.value for s in samples if s.name.endswith("_count"))
        assert total == counts[name][math.inf] == before + 8
        assert list(counts[name].values()) == sorted(counts[name].values()), "cumulative"
    in_us, in_seconds = counts.values()
    assert list(in_us) == [*BOUNDS_US, math.inf]
    assert list(in_seconds) == [*(bound / 1e6 for bound in BOUNDS_US), math.inf]
    assert list(in_us.values()) == list(in_seconds.values())
    assert in_us[math.inf] - in_us[100_000] >= 2, "a value on the bound is within it"
    assert sums["topics_wal_fsync_latency_us"] == us_before + 5_204_353
    assert sums["topics_wal_fsync_seconds"] == pytest.approx(sums["topics_wal_fsync_latency_us"] / 1e6)


# Numbers of the server.


def test_requests_are_told_apart_by_route_and_status(scrape: Scrape) -> None:
    for route, status, seconds in (("append", 200, 0.25), ("append", 200, 0.5), ("append", 429, 1.0), ("diff", 200, 2)):
        scrape.counters.note_request(route, status, seconds)
    values = scrape.values()
    assert values["topics_request_seconds_count append 200"] == 2
    assert values["topics_request_seconds_sum append 200"] == 0.75
    assert values["topics_request_seconds_count append 429"] == 1
    assert values["topics_request_seconds_sum diff 200"] == 2


def test_appends_are_counted_by_class(scrape: Scrape) -> None:
    scrape.counters.note_append("disk", 3, 100)
    scrape.counters.note_append("disk", 1, 20)
    scrape.counters.note_append("fsync", 2, 5)
    values = scrape.values()
    assert [values[f"topics_appends_total {name}"] for name in ("ephemeral", "memory", "disk", "fsync")] == [0, 0, 2, 1]
    assert values["topics_append_records_total"] == 6
    assert values["topics_append_bytes_total"] == 125


def test_connections_bytes_and_streams_are_shown_as_counted(scrape: Scrape) -> None:
    counters = scrape.counters
    counters.connections_total, counters.connections_open = 9, 2
    counters.bytes_received, counters.bytes_sent = 1000, 2000
    counters.auth_failures = 4
    counters.sse_connections, counters.watch_sessions = 5, 6
    values = scrape.values()
    assert values["topics_connections_total"] == 9
    assert values["topics_connections_open"] == 2
    assert values["topics_received_bytes_total"] == 1000
    assert values["topics_sent_bytes_total"] == 2000
    assert values["topics_auth_failures_total"] == 4
    assert values["topics_sse_connections"] == 5
    assert values["topics_watch_sessions"] == 6


def test_time_since_the_start_does_not_follow_a_stepped_clock(scrape: Scrape) -> None:
    started_ms = scrape.clock.now_ms()
    scrape.clock.advance(1500)
    scrape.clock.set(0)
    values = scrape.values()
    assert b"topics_uptime_ms 1500" in render_prometheus(scrape.snapshot()).splitlines()
    assert scrape.json()["uptime_ms"] == 1500
    assert values["process_start_time_seconds"] == started_ms / 1000
    assert values[f"topics_build_info 1.2.3 {FORM}"] == 1


def test_a_snapshot_does_not_change_after_it_was_taken(scrape: Scrape) -> None:
    scrape.log.create("a")
    scrape.counters.note_request("append", 200, 1.0)
    snapshot = scrape.snapshot()
    text, json = render_prometheus(snapshot), render_json(snapshot)
    scrape.log.append("a", 3)
    scrape.counters.note_request("append", 200, 1.0)
    scrape.counters.note_append("disk", 3, 9)
    assert render_prometheus(snapshot) == text
    assert render_json(snapshot) == json


# JSON.


def test_the_json_form_has_the_members_of_the_contract(scrape: Scrape) -> None:
    log = scrape.log
    log.create("a")
    log.append("a", 3)
    log.create("b", durability="ephemeral")
    log.create("jobs", type="queue", durability="fsync")
    log.engine.put_router("a->b", RouterSpec(source="a", dest="b"), list[object]().append)
    log.engine.flush()
    scrape.counters.sse_connections, scrape.counters.watch_sessions = 2, 3
    scrape.counters.connections_open, scrape.counters.bytes_received, scrape.counters.bytes_sent = 4, 50, 60
    scrape.counters.pressure = 0.25
    for route, status in (("diff", 200), ("diff", 404), ("append", 201), ("append", 503)):
        scrape.counters.note_request(route, status, 0.1)
    scrape.counters.note_append("disk", 3, 30)
    scrape.counters.note_append("fsync", 1, 10)
    stats = log.engine.wal.total_stats()
    assert scrape.json() == {
        "topics": 3,
        "topics_ephemeral": 1,
        "topics_memory": 0,
        "topics_disk": 1,
        "topics_fsync": 1,
        "routers": 1,
        "records_live": 3,
        "bytes_live": log.topic("a").size_bytes,
        "queue_topics": 1,
        "queue_leases_in_flight": 0,
        "sse_connections": 2,
        "watch_sessions": 3,
        "ready": True,
        "replay_progress": 1.0,
        "uptime_ms": 0,
        "wal": {
            "fsyncs": stats.fsyncs,
            "frames": stats.frames,
            "batches": stats.batches,
            "bytes_written": stats.bytes_written,
            "rotations": 0,
            "queue_depth": 0,
            "queue_depth_peak": stats.queue_depth_peak,
            "submit_full_total": 0,
            "read_only": False,
            "fsync_count": stats.fsyncs,
            "fsync_micros_total": stats.fsync_us_total,
            "fsync_bounds_us": BOUNDS_US,
            "fsync_buckets": list(stats.fsync_buckets),
            "unsynced_bytes": sum(shard.unsynced_bytes for shard in log.engine.wal.shards),
            "unsynced_ms": 0,
            "backlog_bytes": 500,
        },
        "pressure": 0.25,
        "traffic": {
            "appends": 2,
            "append_records": 4,
            "append_bytes": 40,
            "received_bytes": 50,
            "sent_bytes": 60,
            "requests": {"diff": 2, "append": 2},
            "errors": 1,
            "refusals": 1,
            "connections_open": 4,
        },
        "disk": {"free_bytes": 700, "total_bytes": 1000},
    }
    assert stats.fsyncs > 0
