"""A dashboard for Grafana. The description of a panel is the meaning of its metrics, as the server states it."""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from topics.cli.generate.metric_names import families_of
from topics.server.pressure import COALESCE_ABOVE, COMMIT_WINDOW_ABOVE, STRAINED_ABOVE
from topics.version import VERSION

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
# Of the instances that are chosen at the top of the page. Rates are over a span that Grafana chooses.
_OF: Final = '{instance=~"$instance"}'
_SPAN: Final = "[$__rate_interval]"
_COLUMNS: Final = 24

# The routes that give records to clients, as `topics_request_seconds` names them.
READ_ROUTES: Final = ("diff", "claim", "frames", "get_stream_messages")


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    queries: tuple[Query, ...]
    is_stat: bool = False
    # (value, colour) from low to high, for a number that has good and bad values.
    steps: tuple[tuple[float | None, str], ...] = ((None, "green"),)
    maximum: float | None = None
    note: str = ""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


def _rate(series: str, *by: str) -> str:
    return f"sum by ({', '.join(('instance', *by))}) (rate({series}{_SPAN}))"


def _quantile(quantile: float, family: str) -> str:
    return f"histogram_quantile({quantile}, sum by (instance, le) (rate({family}_bucket{_OF}{_SPAN})))"


_RISING: Final = ((None, "green"), (COMMIT_WINDOW_ABOVE, "yellow"), (STRAINED_ABOVE, "red"))

_ROWS: Final = (
    Row(
        "Overview",
        (
            Panel(
                "Ready",
                "none",
                (Query(f"topics_ready{_OF}", "{{instance}}"),),
                is_stat=True,
                steps=((None, "red"), (1, "green")),
            ),
            Panel(
                "Pressure",
                "percentunit",
                (Query(f"topics_pressure{_OF}", "{{instance}}"),),
                is_stat=True,
                steps=_RISING,
                maximum=1,
            ),
            Panel(
                "Loss window now",
                "s",
                (Query(f"topics_wal_unsynced_seconds{_OF}", "{{instance}}"),),
                is_stat=True,
                steps=((None, "green"), (0.5, "yellow"), (2, "red")),
                note="Writes of the classes disk and memory that are younger would be lost in a power loss. "
                "A kill of the process loses none of them.",
            ),
            Panel(
                "Disk used",
                "percentunit",
                (Query(f"1 - topics_disk_free_bytes{_OF} / topics_disk_total_bytes{_OF}", "{{instance}}"),),
                is_stat=True,
                steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
                maximum=1,
            ),
            Panel(
                "Disk is full in",
                "s",
                (
                    Query(
                        f"topics_disk_free_bytes{_OF} / (deriv(topics_disk_free_bytes{_OF}[6h]) * -1 > 0)",
                        "{{instance}}",
                    ),
                ),
                is_stat=True,
                steps=((None, "red"), (86400, "yellow"), (604800, "green")),
                note="At the pace of the last six hours. Empty: the free space does not shrink.",
            ),
            Panel("Version", "none", (Query(f"topics_build_info{_OF}", "{{version}}"),), is_stat=True),
        ),
    ),
    Row(
        "Traffic",
        (
            Panel(
                "Writes per second",
                "wps",
                (Query(_rate(f"topics_appends_total{_OF}", "class"), "{{instance}} {{class}}"),),
            ),
            Panel(
                "Records written per second",
                "cps",
                (Query(_rate(f"topics_append_records_total{_OF}"), "{{instance}}"),),
            ),
            Panel(
                "Bytes written per second", "Bps", (Query(_rate(f"topics_append_bytes_total{_OF}"), "{{instance}}"),)
            ),
            Panel(
                "Reads per second",
                "rps",
                (
                    Query(
                        _rate(
                            f'topics_request_seconds_count{{instance=~"$instance",route=~"{"|".join(READ_ROUTES)}"}}',
                            "route",
                        ),
                        "{{instance}} {{route}}",
                    ),
                ),
                note="Pushed records (watch, work, WebSocket) need no request each: see the bytes to clients.",
            ),
            Panel(
                "Bytes to and from clients per second",
                "Bps",
                (
                    Query(_rate(f"topics_sent_bytes_total{_OF}"), "{{instance}} to"),
                    Query(_rate(f"topics_received_bytes_total{_OF}"), "{{instance}} from"),
                ),
            ),
            Panel(
                "Connections",
                "none",
                (
                    Query(f"topics_connections_open{_OF}", "{{instance}} all"),
                    Query(f"topics_sse_connections{_OF}", "{{instance}} streams"),
                ),
            ),
            Panel(
                "Mean time of a request",
                "s",
                (
                    Query(
                        f"{_rate(f'topics_request_seconds_sum{_OF}', 'route')} / "
                        f"{_rate(f'topics_request_seconds_count{_OF}', 'route')}",
                        "{{instance}} {{route}}",
                    ),
                ),
                note="A long poll counts with its wait.",
            ),
            Panel(
                "Refused requests per second",
                "rps",
                (
                    Query(
                        _rate('topics_request_seconds_count{instance=~"$instance",code=~"4..|5.."}', "code"),
                        "{{instance}} {{code}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Write-ahead log",
        (
            Panel(
                "Time of a sync",
                "s",
                (
                    Query(_quantile(0.99, "topics_wal_fsync_seconds"), "{{instance}} p99"),
                    Query(_quantile(0.5, "topics_wal_fsync_seconds"), "{{instance}} median"),
                ),
            ),
            Panel("Loss window", "s", (Query(f"topics_wal_unsynced_seconds{_OF}", "{{instance}}"),)),
            Panel("Bytes in the loss window", "bytes", (Query(f"topics_wal_unsynced_bytes{_OF}", "{{instance}}"),)),
            Panel(
                "Backlog of writes",
                "none",
                (
                    Query(f"topics_wal_queue_depth{_OF}", "{{instance}} now"),
                    Query(f"topics_wal_queue_depth_peak{_OF}", "{{instance}} peak"),
                ),
            ),
            Panel(
                "Syncs and commits per second",
                "cps",
                (
                    Query(_rate(f"topics_wal_fsyncs_total{_OF}"), "{{instance}} syncs"),
                    Query(_rate(f"topics_wal_batches_total{_OF}"), "{{instance}} commits"),
                ),
            ),
            Panel(
                "Pressure",
                "percentunit",
                (Query(f"topics_pressure{_OF}", "{{instance}}"),),
                maximum=1,
                note=f"Above {COALESCE_ABOVE} pushes wait for more records, above {COMMIT_WINDOW_ABOVE} commits wait "
                f"for more writes, above {STRAINED_ABOVE} the least urgent topics wait, near 1 writes may be refused.",
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel("Ready jobs", "none", (Query(f"topk(10, topics_topic_queue_ready{_OF})", "{{topic}}"),)),
            Panel(
                "Age of the oldest ready job",
                "s",
                (Query(f"topk(10, topics_queue_oldest_ready_seconds{_OF})", "{{topic}}"),),
            ),
            Panel(
                "Jobs in flight and delayed",
                "none",
                (
                    Query(f"topk(10, topics_topic_queue_in_flight{_OF})", "{{topic}} in flight"),
                    Query(f"topk(10, topics_topic_queue_delayed{_OF})", "{{topic}} delayed"),
                ),
            ),
            Panel(
                "Dead letters in 5 minutes",
                "none",
                (
                    Query(
                        f"topk(10, increase(topics_topic_queue_dead_lettered_total{_OF}[5m]))",
                        "{{topic}}",
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Readers and routers",
        (
            Panel("Lag of groups", "none", (Query(f"topk(10, topics_group_lag{_OF})", "{{topic}} {{group}}"),)),
            Panel("Lag of routers", "none", (Query(f"topk(10, topics_router_lag{_OF})", "{{router}}"),)),
            Panel(
                "Copies of routers per second",
                "cps",
                (Query(f"topk(10, rate(topics_router_forwarded_total{_OF}{_SPAN}))", "{{router}}"),),
            ),
        ),
    ),
    Row(
        "Data and machine",
        (
            Panel(
                "Disk",
                "bytes",
                (
                    Query(f"topics_disk_free_bytes{_OF}", "{{instance}} free"),
                    Query(f"topics_disk_total_bytes{_OF}", "{{instance}} size"),
                ),
            ),
            Panel("Live bytes", "bytes", (Query(f"topics_bytes_live{_OF}", "{{instance}}"),)),
            Panel("Largest topics", "bytes", (Query(f"topk(10, topics_topic_bytes_live{_OF})", "{{topic}}"),)),
            Panel(
                "Topics and routers",
                "none",
                (
                    Query(f"topics_topics{_OF}", "{{instance}} topics"),
                    Query(f"topics_routers{_OF}", "{{instance}} routers"),
                ),
            ),
            Panel("Memory", "bytes", (Query(f"process_resident_memory_bytes{_OF}", "{{instance}}"),)),
            Panel("CPU", "percentunit", (Query(_rate(f"process_cpu_seconds_total{_OF}"), "{{instance}}"),)),
            Panel(
                "Open files",
                "none",
                (
                    Query(f"process_open_fds{_OF}", "{{instance}} open"),
                    Query(f"process_max_fds{_OF}", "{{instance}} limit"),
                ),
            ),
        ),
    ),
    Row(
        "Cold tier",
        (
            Panel("Bytes in the cold tier", "bytes", (Query(f"topics_cold_bytes{_OF}", "{{instance}}"),)),
            Panel("Segments in the cold tier", "none", (Query(f"topics_cold_segments{_OF}", "{{instance}}"),)),
            Panel(
                "Moves in 5 minutes",
                "none",
                (
                    Query(f"increase(topics_cold_moves_total{_OF}[5m])", "{{instance}} moved"),
                    Query(f"increase(topics_cold_move_failures_total{_OF}[5m])", "{{instance}} failed"),
                ),
            ),
        ),
    ),
    Row(
        "Streams",
        (
            Panel(
                "Messages sent per second",
                "cps",
                (
                    Query(
                        f"topk(10, rate(topics_stream_topic_sent_messages_total{_OF}{_SPAN}))",
                        "{{stream}} {{topic}}",
                    ),
                ),
            ),
            Panel("Bytes of streams", "bytes", (Query(f"topics_streams_bytes{_OF}", "{{instance}}"),)),
            Panel("Unsaved messages", "none", (Query(f"topics_streams_unsaved_messages{_OF}", "{{instance}}"),)),
            Panel(
                "Requests per second",
                "rps",
                (Query(_rate(f"topics_streams_requests_total{_OF}", "command"), "{{instance}} {{command}}"),),
            ),
            Panel(
                "Connections and stopped partitions",
                "none",
                (
                    Query(f"topics_streams_connections_open{_OF}", "{{instance}} connections"),
                    Query(f"topics_streams_stopped_partitions{_OF}", "{{instance}} stopped"),
                ),
            ),
        ),
    ),
)


def dashboard() -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in _ROWS:
        panels.append(_row_panel(row.title, y, len(panels) + 1))
        y += 1
        width, height = (4, 4) if row.panels[0].is_stat else (8, 8)
        for place, panel in enumerate(row.panels):
            x = place * width % _COLUMNS
            y += height if place and not x else 0
            panels.append(_panel(panel, {"h": height, "w": width, "x": x, "y": y}, len(panels) + 1))
        y += height
    return json.dumps(_frame(panels), indent=2) + "\n"


def _frame(panels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "topics",
        "uid": "topics-server",
        "description": f"A server of topics. Made by `topics generate grafana`, version {VERSION}.",
        "tags": ["topics"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource_variable(), _instance_variable()]},
        "annotations": {"list": [_starts()]},
        "panels": panels,
    }


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def _instance_variable() -> dict[str, Any]:
    families_of("topics_build_info")
    query = "label_values(topics_build_info, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "instance"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _starts() -> dict[str, Any]:
    expression = f"changes(process_start_time_seconds{_OF}[1m]) > 0"
    families_of(expression)
    return {
        "name": "Starts",
        "datasource": _DATASOURCE,
        "enable": True,
        "expr": expression,
        "titleFormat": "{{instance}} started",
        "iconColor": "orange",
    }


def _row_panel(title: str, y: int, number: int) -> dict[str, Any]:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.is_stat else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.steps],
        },
    }
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    families = {name: family for query in panel.queries for name, family in families_of(query.expression).items()}
    told = [f"{family.meaning} (`{name}`)" for name, family in families.items()]
    made = {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": "\n\n".join([*([panel.note] if panel.note else []), *told]),
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }
    if panel.is_stat:
        is_name = panel.title == "Version"
        options = {"textMode": "name" if is_name else "auto", "graphMode": "none" if is_name else "area"}
        return made | {"options": options | {"reduceOptions": {"calcs": ["lastNotNull"]}}}
    return made | {"options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}}
