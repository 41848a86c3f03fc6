"""Alert rules for Prometheus, as YAML. Each says what is wrong and what to do next.

The bounds are a start: change them in the file. Durations and bounds that depend on the load (age of a queue, lag of a
group) are generous, so that a healthy server is silent.
"""

import json
from typing import Final, Literal, NamedTuple

from topics.cli.generate.metric_names import families_of
from topics.server.pressure import STRAINED_ABOVE
from topics.version import VERSION

Severity = Literal["critical", "warning"]

# The job of Prometheus that scrapes the servers: see docs/deploy.md.
JOB: Final = "topics"


class Recording(NamedTuple):
    name: str
    expression: str


class Alert(NamedTuple):
    name: str
    severity: Severity
    expression: str
    # How long the expression must hold.
    lasting: str
    summary: str
    action: str


FSYNC_P99: Final = "instance:topics_wal_fsync_seconds:p99_5m"

RECORDINGS: Final = (
    Recording(
        FSYNC_P99,
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(topics_wal_fsync_seconds_bucket[5m])))",
    ),
    Recording("instance:topics_append_records:rate_5m", "rate(topics_append_records_total[5m])"),
    Recording(
        "instance:topics_request_errors:rate_5m",
        'sum by (job, instance) (rate(topics_request_seconds_count{code=~"5.."}[5m]))',
    ),
)

ALERTS: Final = (
    Alert(
        "TopicsDown",
        "critical",
        f'up{{job="{JOB}"}} == 0',
        "1m",
        "{{ $labels.instance }} does not answer",
        "Look at its log (journalctl -u topics, docker logs). `topics check` says what a client sees.",
    ),
    Alert(
        "TopicsReadOnly",
        "critical",
        "topics_wal_read_only == 1",
        "0m",
        "{{ $labels.instance }} takes no writes after a failed write or sync",
        "Check the disk and its free space, then restart the server: it takes no writes until then.",
    ),
    Alert(
        "TopicsNotReady",
        "warning",
        "topics_ready == 0",
        "15m",
        "{{ $labels.instance }} is not ready for 15 minutes",
        "topics_recovery_progress says how far the recovery of the log is. Without progress, look at the log.",
    ),
    Alert(
        "TopicsRestarts",
        "warning",
        "changes(process_start_time_seconds[30m]) > 2",
        "0m",
        "{{ $labels.instance }} started {{ $value }} times in 30 minutes",
        "Look at the last lines of its log before each start. Out of memory is in the log of the kernel.",
    ),
    Alert(
        "TopicsDiskAlmostFull",
        "critical",
        "topics_disk_free_bytes / topics_disk_total_bytes < 0.1",
        "5m",
        "The disk of {{ $labels.instance }} is {{ $value | humanizePercentage }} free",
        "Make the disk larger, or let topics keep less: `topics topic set TOPIC --ttl 7d`, or --cap-bytes.",
    ),
    Alert(
        "TopicsDiskFullSoon",
        "warning",
        "topics_disk_free_bytes / topics_disk_total_bytes < 0.5 "
        "and predict_linear(topics_disk_free_bytes[6h], 86400) < 0",
        "30m",
        "The disk of {{ $labels.instance }} will be full within a day",
        "Make the disk larger, or let topics keep less: `topics topic set TOPIC --ttl 7d`, or --cap-bytes.",
    ),
    Alert(
        "TopicsSlowSyncs",
        "warning",
        f"{FSYNC_P99} > 0.1",
        "10m",
        "1 % of the syncs of {{ $labels.instance }} take longer than {{ $value | humanizeDuration }}",
        "Writes of the class fsync wait for them. Look for other load on the disk; a write cache without a battery "
        "or a network disk may be too slow.",
    ),
    Alert(
        "TopicsLossWindow",
        "warning",
        "topics_wal_unsynced_seconds > 5",
        "1m",
        "A power loss of {{ $labels.instance }} would take the writes of the last {{ $value | humanizeDuration }}",
        "The disk does not keep up with its syncs. Writes of the class fsync are not concerned.",
    ),
    Alert(
        "TopicsPressure",
        "warning",
        f"topics_pressure > {STRAINED_ABOVE}",
        "10m",
        "{{ $labels.instance }} is overloaded for 10 minutes",
        "Clients write or read more than the server can serve. `topics top` shows the busiest topics.",
    ),
    Alert(
        "TopicsWritesRefused",
        "warning",
        "rate(topics_wal_submit_full_total[5m]) > 0",
        "5m",
        "{{ $labels.instance }} refuses writes, because too many of them wait",
        "Send more records in each write, and look at the time of syncs.",
    ),
    Alert(
        "TopicsErrors",
        "warning",
        "instance:topics_request_errors:rate_5m > 0.1",
        "10m",
        "{{ $labels.instance }} answers {{ $value | humanize }} requests a second with 5xx",
        "Its log names the cause of each 500. 503 comes with a code: `topics errors CODE` explains it.",
    ),
    Alert(
        "TopicsFilesRunOut",
        "warning",
        "process_open_fds / process_max_fds > 0.8",
        "5m",
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of the open files that it may have",
        "Raise LimitNOFILE of its unit, or ulimits of its container. Each connection is one.",
    ),
    Alert(
        "TopicsUnauthorized",
        "warning",
        "rate(topics_auth_failures_total[10m]) > 1",
        "10m",
        "{{ $labels.instance }} refuses {{ $value | humanize }} requests a second without a valid key",
        "A client has an old key, or a stranger tries keys.",
    ),
    Alert(
        "TopicsQueueOld",
        "warning",
        "topics_queue_oldest_ready_seconds > 3600",
        "10m",
        "A job of queue {{ $labels.topic }} waits for {{ $value | humanizeDuration }}",
        "Are its workers running? `topics queue show {{ $labels.topic }}` has depths and leases.",
    ),
    Alert(
        "TopicsDeadLetters",
        "warning",
        "increase(topics_topic_queue_dead_lettered_total[15m]) > 0",
        "0m",
        "Jobs of queue {{ $labels.topic }} became dead letters",
        "`topics queue redrive {{ $labels.topic }} --dry-run` shows them; without --dry-run they are done again.",
    ),
    Alert(
        "TopicsGroupBehind",
        "warning",
        "topics_group_lag > 1000 and deriv(topics_group_lag[30m]) > 0",
        "30m",
        "Group {{ $labels.group }} of topic {{ $labels.topic }} is {{ $value }} records behind, and the lag grows",
        "Is its reader running? `topics group ls {{ $labels.topic }}` has the time of its last commit.",
    ),
    Alert(
        "TopicsRouterBehind",
        "warning",
        "topics_router_lag > 1000 and deriv(topics_router_lag[30m]) >= 0",
        "30m",
        "Router {{ $labels.router }} is {{ $value }} records behind, and the lag does not shrink",
        "A topic that rejects writes when it is full stops its routers: `topics router show {{ $labels.router }}`.",
    ),
    Alert(
        "TopicsColdTierFails",
        "warning",
        "increase(topics_cold_move_failures_total[15m]) > 3",
        "15m",
        "{{ $labels.instance }} cannot move segments to its cold tier",
        "Is the bucket or folder there, and may the server write to it? The segments stay on the disk meanwhile.",
    ),
    Alert(
        "TopicsStreamsStopped",
        "critical",
        "topics_streams_stopped_partitions > 0",
        "0m",
        "{{ $value }} partitions of streams of {{ $labels.instance }} take no writes after a failed write",
        "Check the disk and its free space, then restart the server.",
    ),
)


def alert_rules() -> str:
    lines = [
        f"# Made by `topics generate alerts`, version {VERSION}. Prometheus scrapes the servers as the job {JOB}.",
        "groups:",
        "  - name: topics-recordings",
        "    rules:",
    ]
    for recording in RECORDINGS:
        families_of(recording.expression)
        lines += [f"      - record: {recording.name}", f"        expr: {_quoted(recording.expression)}"]
    lines += ["  - name: topics-alerts", "    rules:"]
    for alert in ALERTS:
        families_of(alert.expression)
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.lasting}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A string of JSON is one of YAML."""
    return json.dumps(text, ensure_ascii=False)
