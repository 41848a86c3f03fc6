"""The page of `stats`: one file without scripts that needs no network, light or dark as the reader's system."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import sqrt
from typing import Any, Final

from topics.spark.jobs.svg_plot import Point, Series, Tick, bars, points, share_bar, stacked_columns

# Topics with a colour each in the plot of the rate. All others share the last colour.
TOPICS_DRAWN: Final = 5
OTHERS_COLOR: Final = 5
POINTS_MAX: Final = 2000
TABLE_ROWS_MAX: Final = 200
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
# Distances between times on an axis.
_STEPS_MS: Final = (
    *(100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(
        _HOUR_MS,
        2 * _HOUR_MS,
        3 * _HOUR_MS,
        6 * _HOUR_MS,
        12 * _HOUR_MS,
        _DAY_MS,
        2 * _DAY_MS,
        5 * _DAY_MS,
        7 * _DAY_MS,
    ),
    *(14 * _DAY_MS, 30 * _DAY_MS, 91 * _DAY_MS, 365 * _DAY_MS, 3650 * _DAY_MS),
)
_TIER_COLORS: Final = {"hot": 0, "cold": 1, "log": 2}
_TIER_NAMES: Final = {"hot": "hot files", "cold": "cold tier", "log": "log, not in files yet"}

Stats = Mapping[str, Any]

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5d6878; --line: #e3e7ed;
  --c0: #2f6fde; --c1: #12977f; --c2: #d8922a; --c3: #8b5fd0; --c4: #cf4f73; --c5: #9aa5b4; --warn: #b4540a; }
@media (prefers-color-scheme: dark) { :root { --page: #10151c; --card: #19202a; --ink: #e6ebf2; --soft: #96a3b4;
  --line: #2a3441; --c0: #6a9df5; --c1: #3cc3a8; --c2: #ecb25a; --c3: #b18df0; --c4: #ec7f9d; --c5: #647183;
  --warn: #f0a35c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 36px 24px 64px; }
header { margin-bottom: 22px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.4px; }
header p, .note { color: var(--soft); margin: 0; }
h2 { font-size: 16px; margin: 0; }
.note { font-size: 13px; margin: 2px 0 12px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); gap: 14px; margin-bottom: 14px; }
.cards { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }
.card, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 18px 20px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 23px; white-space: nowrap; line-height: 1.25; letter-spacing: -0.3px;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.warn b { color: var(--warn); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
svg .name { fill: var(--ink); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); stroke-opacity: .6; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); }
svg g:hover rect { opacity: .72; } svg .dot { fill-opacity: .55; stroke: var(--card); stroke-width: .7; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0 0; padding: 0; list-style: none;
  font-size: 13px; color: var(--soft); }
.legend svg { display: inline-block; width: 11px; height: 11px; margin-right: 7px; vertical-align: -1px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; font-size: 13px; text-align: right; padding: 6px 10px; white-space: nowrap; }
td { border-top: 1px solid var(--line); padding: 7px 10px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-weight: 500; }
th:last-child, td:last-child { padding-right: 0; }
.none { color: var(--soft); }
footer { color: var(--soft); font-size: 13px; margin-top: 22px; }
@media (max-width: 820px) { .cards { grid-template-columns: 1fr; } main { padding: 20px 14px 40px; } }
"""


def render_page(stats: Stats) -> str:
    """The HTML of the document in `stats.json`."""
    title = escape(stats["title"])
    cards = "".join(
        (
            _rate_card(stats),
            _sizes_card(stats),
            _segments_card(stats),
            _labels_card("Tags", "tag", stats["tags"], 0),
            _labels_card("Nodes", "node", stats["nodes"], 1),
            _tiers_card(stats),
            _topics_card(stats),
            _gaps_card(stats),
            _jumps_card(stats),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}: statistics</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{title}</h1><p>A snapshot of {escape(stats['source'])}, taken {_moment(stats['created_ms'])} UTC."
        f"</p></header>{_tiles(stats)}<div class=cards>{cards}</div>"
        "<footer>Payload bytes are those of data and meta. Files also have frames, and records that were deleted."
        "</footer></main></body></html>\n"
    )


def _tiles(stats: Stats) -> str:
    totals = stats["totals"]
    dead = totals["segment_records"] - totals["segment_live"]
    times = [topic["first_ts"] for topic in stats["topics"] if topic["first_ts"] is not None]
    oldest = _duration(stats["created_ms"] - min(times)) if times else "–"
    tiles = [
        (_count(totals["records"]), "live records", False),
        (_bytes(totals["bytes"]), "payload", False),
        (str(totals["topics"]), "topic" if totals["topics"] == 1 else "topics", False),
        (_bytes(totals["segment_bytes"]), f"in {_plural(totals['segments'], 'segment')}", False),
        (_share(dead, totals["segment_records"]), "of their seqs deleted or empty", False),
        (oldest, "since the oldest record", False),
        (str(totals["gaps"]), "gap" if totals["gaps"] == 1 else "gaps", totals["gaps"] > 0),
    ]
    return (
        "<section class=tiles>"
        + "".join(
            f'<div class="tile{" warn" if warns else ""}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name, warns in tiles
        )
        + "</section>"
    )


def _card(title: str, note: str, content: str, *, is_wide: bool = False) -> str:
    kind = "card wide" if is_wide else "card"
    return f'<section class="{kind}"><h2>{escape(title)}</h2><p class=note>{escape(note)}</p>{content}</section>'


def _nothing(text: str) -> str:
    return f"<p class=none>{escape(text)}</p>"


def _legend(entries: Iterable[tuple[str, int]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 11 11"><rect width="11" height="11" rx="3" class="c{color}"/></svg>{escape(name)}</li>'
        for name, color in entries
    )
    return f"<ul class=legend>{items}</ul>"


# Cards.


def _rate_card(stats: Stats) -> str:
    rate = stats["rate"]
    width_ms, from_ms = rate["bucket_ms"], rate["from_ms"]
    by_size = sorted(rate["topics"].items(), key=lambda item: (-sum(item[1]), item[0]))
    if not by_size:
        return _card("Records over time", "", _nothing("There are no records."), is_wide=True)
    series = [Series(topic, color, counts) for color, (topic, counts) in enumerate(by_size[:TOPICS_DRAWN])]
    rest = by_size[TOPICS_DRAWN:]
    if rest:
        sums = [sum(column) for column in zip(*(counts for _, counts in rest), strict=True)]
        series.append(Series(f"{len(rest)} other topics", OTHERS_COLOR, sums))
    count = len(series[0].values)

    def text(column: int) -> str:
        parts = [f"{each.name}: {each.values[column]:,}" for each in series if each.values[column]]
        return "\n".join((f"{_moment(from_ms + column * width_ms)} UTC", *parts))

    plot = stacked_columns(series, _time_ticks(from_ms, width_ms, count), column_text=text, y_label=_short)
    legend = _legend((each.name, each.color) for each in series)
    peak = max(sum(each.values[column] for each in series) for column in range(count))
    note = f"Live records, one column for {_duration(width_ms)}. The highest is {_short(peak * 1000 / width_ms)}/s."
    return _card("Records over time", note, plot + legend, is_wide=True)


def _sizes_card(stats: Stats) -> str:
    sizes = {entry["from"]: entry["records"] for entry in stats["sizes"]}
    if not sizes:
        return _card("Record sizes", "", _nothing("There are no records."))
    low, high = min(sizes), max(sizes)
    edges = [low << n for n in range((high // low).bit_length())]
    values = [sizes.get(edge, 0) for edge in edges]
    every = max(1, -(-len(edges) // 8))
    ticks = [Tick(place, _bytes(edge)) for place, edge in enumerate(edges) if place % every == 0]
    total = stats["totals"]["records"]

    def text(column: int) -> str:
        edge = edges[column]
        share = _share(values[column], total)
        return f"{_bytes(edge)} to {_bytes(edge * 2)}: {values[column]:,} records ({share})"

    plot = stacked_columns(
        [Series("records", 3, values)], ticks, column_text=text, y_label=_short, width=500, height=280
    )
    mean = stats["totals"]["bytes"] / total
    note = f"Data and meta together: {_bytes(mean)} on average, {_bytes(stats['totals']['size_max'])} at most."
    return _card("Record sizes", note, plot)


def _segments_card(stats: Stats) -> str:
    segments = stats["segments"]
    title, note = "Segments: deleted share by age", "One dot for a segment; its area is its size."
    if not segments:
        return _card(title, "", _nothing("There are no segments yet."))
    if len(segments) > POINTS_MAX:
        segments = segments[:: -(-len(segments) // POINTS_MAX)]
        note += f" {len(segments):,} of {len(stats['segments']):,} are shown."
    oldest_ms = max(1000, *(segment["age_ms"] for segment in segments))
    step_ms = next((step for step in _STEPS_MS if oldest_ms / step <= 5), _STEPS_MS[-1])
    ages = range(0, oldest_ms + step_ms, step_ms)
    ticks = [Tick(age, _duration(age) if age else "now") for age in ages]
    largest = max(segment["bytes"] for segment in segments) or 1
    dots = [
        Point(
            segment["age_ms"],
            segment["deleted_share"],
            3 + 9 * sqrt(segment["bytes"] / largest),
            _TIER_COLORS.get(segment["tier"], OTHERS_COLOR),
            f"{segment['topic']} seq {segment['first_seq']} to {segment['last_seq']}\n"
            f"{segment['deleted_share']:.1%} deleted, {_bytes(segment['bytes'])}, {segment['tier']}, "
            f"{_duration(segment['age_ms'])} old",
        )
        for segment in segments
    ]
    plot = points(
        dots,
        ticks,
        x_max=ages[-1],
        y_max=1.0,
        y_ticks=(0.0, 0.25, 0.5, 0.75, 1.0),
        y_label=lambda share: f"{share:.0%}",
    )
    tiers = sorted({segment["tier"] for segment in segments}, reverse=True)
    legend = _legend((_TIER_NAMES.get(tier, tier), _TIER_COLORS.get(tier, OTHERS_COLOR)) for tier in tiers)
    return _card(title, note, plot + (legend if len(tiers) > 1 else ""))


def _labels_card(title: str, what: str, labels: Mapping[str, Any], color: int) -> str:
    total = sum(entry["records"] for entry in labels["top"]) + labels["others"] + labels["without"]
    rows = [
        (
            entry["label"] or "(empty)",
            entry["records"],
            f"{_short(entry['records'])} · {_share(entry['records'], total)}",
        )
        for entry in labels["top"]
    ]
    if not rows:
        return _card(title, "", _nothing(f"No record has a {what}."))
    about = "" if labels["is_exact"] else "about "
    note = f"{about}{labels['distinct']:,} different; {_share(labels['without'], total)} of all records have none."
    content = bars(rows, color=color)
    if labels["others"]:
        text = f"{labels['others']:,} records have one of the others."
        content += f'<p class=note style="margin:10px 0 0">{escape(text)}</p>'
    return _card(f"{title}: the {len(rows)} most frequent" if labels["others"] else title, note, content)


def _tiers_card(stats: Stats) -> str:
    tiers = stats["tiers"]
    if not tiers:
        return ""
    total = sum(tier["bytes"] for tier in tiers)
    parts = [
        (
            f"{_TIER_NAMES.get(tier['tier'], tier['tier'])}: {_bytes(tier['bytes'])} ({_share(tier['bytes'], total)}), "
            + _plural(tier["records"], "live record"),
            tier["bytes"],
            _TIER_COLORS.get(tier["tier"], OTHERS_COLOR),
        )
        for tier in tiers
    ]
    legend = _legend((text, color) for text, _, color in parts)
    return _card(
        "Where the bytes are",
        "Files of segments, and payloads that only the log has.",
        share_bar(parts) + legend,
        is_wide=True,
    )


def _topics_card(stats: Stats) -> str:
    topics = sorted(stats["topics"], key=lambda topic: (-topic["bytes"], topic["topic"]))
    rows = [
        (
            topic["topic"],
            f"{topic['records']:,}",
            _bytes(topic["bytes"]),
            f"{topic['head_seq']:,}",
            f"{topic['earliest_seq']:,}",
            f"{topic['segments']:,}",
            _bytes(topic["segment_bytes"]),
            _share(topic["segment_records"] - topic["segment_live"], topic["segment_records"]),
            f"{topic['tail_records']:,}",
            "–" if topic["last_ts"] is None else _moment(topic["last_ts"]),
        )
        for topic in topics[:TABLE_ROWS_MAX]
    ]
    heads = (
        "Topic",
        "Live records",
        "Payload",
        "Head seq",
        "Earliest seq",
        "Segments",
        "In files",
        "Deleted",
        "In the log",
        "Last record (UTC)",
    )
    hidden = len(topics) - len(rows)
    note = f"The largest first{f'; {hidden:,} more are in stats.json' if hidden else ''}."
    return _card("Topics", note, _table(heads, rows), is_wide=True)


def _gaps_card(stats: Stats) -> str:
    rows = [
        (
            gap["topic"],
            f"{gap['first_seq']:,}",
            "–" if gap["last_seq"] is None else f"{gap['last_seq']:,}",
            "–" if gap["last_seq"] is None else f"{gap['last_seq'] - gap['first_seq'] + 1:,}",
            gap["reason"].replace("_", " "),
        )
        for gap in stats["gaps"][:TABLE_ROWS_MAX]
    ]
    content = _table(("Topic", "From seq", "To seq", "Seqs", "Reason"), rows) if rows else _nothing("There are none.")
    return _card("Gaps", "Seqs that were not deleted, and that readers cannot get any more.", content)


def _jumps_card(stats: Stats) -> str:
    rows = [
        (
            jump["topic"],
            f"{jump['seq']:,}",
            _moment(jump["ts"]),
            ("-" if jump["ms"] < 0 else "") + _duration(abs(jump["ms"])),
        )
        for jump in stats["jumps"][:12]
    ]
    backwards = stats["totals"]["backwards"]
    note = "The longest pauses between two records."
    if backwards:
        note += f" The clock went back {'once' if backwards == 1 else f'{backwards:,} times'}."
    content = _table(("Topic", "Before seq", "At (UTC)", "Time"), rows) if rows else _nothing("There are none.")
    return _card("Time jumps", note, content)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


# Texts.


def _time_ticks(from_ms: int, width_ms: int, count: int) -> list[Tick]:
    """About seven ticks at round times; with dates when the plot covers days."""
    span_ms = width_ms * count
    step_ms = next((step for step in _STEPS_MS if span_ms / step <= 8), _STEPS_MS[-1])
    shape = "%d %b" if step_ms >= _DAY_MS else "%d %b %H:%M" if span_ms > _DAY_MS else "%H:%M"
    if step_ms < _MINUTE_MS:
        shape = "%H:%M:%S"
    if step_ms >= 30 * _DAY_MS:
        shape = "%b %Y"
    first = -(-from_ms // step_ms) * step_ms
    return [
        Tick((at - from_ms) / width_ms, datetime.fromtimestamp(at / 1000, UTC).strftime(shape))
        for at in range(first, from_ms + span_ms + 1, step_ms)
    ]


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _count(value: int) -> str:
    return f"{value:,}" if value < 10_000_000 else _short(value)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{_digits(value / size)}{unit}"
    return _digits(value)


def _digits(value: float) -> str:
    """Three digits, or all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{_digits(value / 1024**power)} {unit}"
    return f"{value:.0f} B"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _share(part: float, whole: float) -> str:
    if not whole or not part:
        return "0%"
    share = part / whole
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.001 else "<0.1%"


def _duration(ms: float) -> str:
    for size, unit in ((365 * _DAY_MS, "years"), (_DAY_MS, "days"), (_HOUR_MS, "h"), (_MINUTE_MS, "min"), (1000, "s")):
        if ms >= size:
            number = _digits(ms / size)
            return f"{number} {unit.removesuffix('s') if number == '1' and len(unit) > 3 else unit}"
    return f"{ms:.0f} ms"
