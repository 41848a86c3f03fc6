"""The pages of `docs/reference/`, made from what they describe: a running server, the command line, the sources.

`python -m docs_build.reference` (or `make reference`) writes them. `tests/docs/test_reference.py` fails when a page is
not what this module makes now, so a new endpoint, command, metric, error, setting or public name cannot stay
undocumented: each has its meaning in the code, and a metric, setting or member without one ends this program.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

from docs_build.commands import commands_page
from docs_build.python_names import python_page
from topics.client.sync.client import Client
from topics.protocol.error_codes import ERROR_CODES
from topics.server.settings_schema import SETTINGS
from topics.stream_errors import StreamStatus
from topics.testing.server_process import ServerProcess

REPOSITORY: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = REPOSITORY / "docs" / "reference"

NOTICE: Final = "<!-- Made by `make reference`. Do not edit: the next run writes over it. -->\n"

# Metrics that a server has no series of before a client of Apache Iggy came: their labels.
LABELS_OF_EMPTY_METRICS: Final = {
    "topics_streams_requests_total": ("command",),
    "topics_streams_errors_total": ("status",),
}

# The sections of the page of metrics, by the beginning of a name. The first that fits counts.
METRIC_SECTIONS: Final = (
    ("Streams", ("topics_streams_", "topics_stream_topic_")),
    ("The write-ahead log", ("topics_wal_",)),
    ("Topics, queues and groups", ("topics_topic_", "topics_queue_", "topics_group_")),
    ("The server", ("",)),
)


class NoMeaning(Exception):
    """Something that users see has no description in the code."""


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


# Markdown.


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").strip()


def table(*columns: str, rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)]) + "\n"


def page(title: str, *parts: str) -> str:
    return "\n".join([NOTICE, f"# {title}\n", *parts]).rstrip() + "\n"


def expect_meaning(what: str, text: str) -> str:
    if not text.strip().endswith((".", ":", "?", ")")):
        raise NoMeaning(f"{what} has no meaning in the code, or one that is not a sentence: {text!r}")
    return text


# Endpoints.


def endpoints_page(document: dict[str, Any]) -> str:
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag[operation["tags"][0]].append((method.upper(), path, operation))
    parts = [
        """\
Every endpoint of the HTTP interface, from the OpenAPI document of the server (`GET /v0/openapi.json`). [The HTTP
API](../http.md) explains them with examples; [Errors](errors.md) has every error code.
"""
    ]
    for tag in document["tags"]:
        parts += [f"## {tag['name'].capitalize()}\n", f"{tag['description']}\n"]
        for method, path, operation in by_tag[tag["name"]]:
            parts += _endpoint(method, path, operation, document)
    return page("Endpoints", *parts)


def _endpoint(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method} {path}`\n"
    scopes = ", ".join(f"`{scope}`" for scope in operation["x-scopes"])
    yield f"{operation['summary'].rstrip('.?')}. {'Scope: ' + scopes + '.' if scopes else 'Needs no scope.'}\n"
    if "description" in operation:
        yield f"{operation['description']}\n"
    rows = [
        (
            f"`{one['name']}`",
            one["in"],
            type_of(one["schema"]),
            expect_meaning(f"{path} {one['name']}", one["description"]),
        )
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield table("Parameter", "In", "Type", "Meaning", rows=rows)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield members(body["$ref"], document, "Member of the body")
        example = operation["requestBody"]["content"]["application/json"].get("example")
        if example is not None:
            yield f"```json\n{json.dumps(example, ensure_ascii=False)}\n```\n"
    answers = []
    for status, response in operation["responses"].items():
        codes = response.get("x-error-codes")
        text = ", ".join(f"[`{code}`](errors.md#{code})" for code in codes) if codes else response["description"]
        answers.append((status, text))
    yield table("Answer", "Meaning", rows=answers)


def members(ref: str, document: dict[str, Any], heading: str) -> str:
    schema = document["components"]["schemas"][ref.rpartition("/")[2]]
    rows = []
    for name, about in schema.get("properties", {}).items():
        default = "" if about.get("default") is None else f"`{json.dumps(about['default'])}`"
        needed = "needed" if name in schema.get("required", ()) else default
        rows.append((f"`{name}`", type_of(about), needed, about.get("description", "")))
    return table(heading, "Type", "Default", "Meaning", rows=rows) if rows else ""


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a few words: enough to fill in a member by hand."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [type_of(one) for one in schema[key] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds)) or "any JSON"
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return {"integer": "whole number", "boolean": "true or false", "object": "object", "string": "text"}.get(
        str(kind), str(kind or "any JSON")
    )


# Errors.


def errors_page() -> str:
    parts = [
        """\
Every error of the HTTP interface has a code, which never changes, and a message, which may. `topics errors CODE`
prints the same. Each class is in `topics.errors`, and all are `topics.TopicsError`. *Try again* says whether the same
request can succeed later without a change; the [clients](../client.md#keys-tls-errors-retries) do that by themselves.
""",
        table(
            "Status",
            "Code",
            "Meaning",
            "Try again",
            rows=[
                (str(one.status), f"[`{one.code}`](#{one.code})", one.meaning, "yes" if one.retriable else "no")
                for one in ERROR_CODES
            ],
        ),
    ]
    for one in ERROR_CODES:
        expect_meaning(one.code, one.meaning)
        again = (
            "The same request can succeed later."
            if one.retriable
            else "The same request fails again: change something first."
        )
        parts += [
            f"### {one.code}\n",
            f"Status {one.status}, class `topics.errors.{one.error.__name__}`. {one.meaning} {again}\n",
        ]
    parts += [
        "## Statuses of streams\n",
        "Clients of Apache Iggy get a number instead of a code. These are the numbers that this server sends.\n",
        table(
            "Number",
            "Name",
            rows=[(str(status.value), f"`{status.name.lower()}`") for status in StreamStatus],
        ),
    ]
    return page("Errors", *parts)


# Settings.


def settings_page(document: dict[str, Any]) -> str:
    parts = [
        """\
Settings of the server, of a topic and of a router. [Configuration](../configuration.md) says where the settings of
the server can be given and which of them a running server reads again. The streams have [settings of their
own](../streams.md#settings).
""",
        "## The server\n",
        """\
A setting `max_topics` is `max_topics` in `topics.toml`, `TOPICS_MAX_TOPICS` in the environment, and `--max-topics` as
a flag of `topics serve`. A flag wins over the environment, the environment over the file.
""",
    ]
    for group in dict.fromkeys(setting.group for setting in SETTINGS):
        rows = []
        for one in SETTINGS:
            if one.group == group:
                meaning = expect_meaning(one.name, one.meaning) + (" Read again by SIGHUP." if one.is_reloaded else "")
                rows.append((f"`{one.name}`", one.shown_default, one.accepted(), meaning))
        parts += [f"### {group}\n", table("Setting", "Default", "Takes", "Meaning", rows=rows)]
    parts += [
        "## A topic\n",
        """\
Members of `PUT /v0/topics/{topic}`, of `config` in a write, and of `create` in a program. `topics topic create` and
`topics topic set` have a flag for each.
""",
        members("ConfigBody", document, "Member"),
        "## A router\n",
        "Members of `PUT /v0/routers/{router}`.\n",
        members("RouterBody", document, "Member"),
    ]
    return page("Settings", *parts)


# Metrics.


def metrics_page(metrics: list[Metric]) -> str:
    parts = [
        """\
Every metric of `GET /v0/metrics`, in the text format of Prometheus. [Monitor](../how-to/monitor.md) says which of
them to watch, and when to act. Series with the label `topic` or `group` end at 1000 topics and 1000 groups.
"""
    ]
    left = list(metrics)
    sections = []
    for title, beginnings in METRIC_SECTIONS:
        mine = [metric for metric in left if metric.name.startswith(beginnings)]
        left = [metric for metric in left if metric not in mine]
        rows = [
            (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.meaning) for one in mine
        ]
        sections.append(f"## {title}\n\n{table('Metric', 'Kind', 'Labels', 'Meaning', rows=rows)}")
    return page("Metrics", *parts, *reversed(sections))


def parse_metrics(text: str) -> list[Metric]:
    """The families of a scrape, with the labels of their series."""
    meanings: dict[str, str] = {}
    kinds: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, meaning = line.split(" ", 3)
            meanings[name] = expect_meaning(name, meaning)
        elif line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
        elif line:
            series, _, rest = line.partition("{")
            family = family_of(series.split(" ")[0], kinds)
            names = tuple(part.split("=")[0] for part in rest.rpartition("}")[0].split(",")) if rest else ()
            labels[family] = tuple(name for name in names if name != "le")
    missing = sorted(kinds.keys() - labels.keys() - LABELS_OF_EMPTY_METRICS.keys())
    if missing or kinds.keys() != meanings.keys():
        raise NoMeaning(f"without a series or a meaning: {missing}; make a series of each in `described`")
    return [
        Metric(name, kind, labels.get(name, LABELS_OF_EMPTY_METRICS.get(name, ())), meanings[name])
        for name, kind in kinds.items()
    ]


def family_of(series: str, kinds: dict[str, str]) -> str:
    if series in kinds:
        return series
    return next(series.removesuffix(end) for end in ("_bucket", "_sum", "_count") if series.endswith(end))


# What a server says about itself.


class Described(NamedTuple):
    document: dict[str, Any]
    metrics: list[Metric]


def described() -> Described:
    """The OpenAPI document of a server, and its metrics when it has one of everything."""
    import topics.streams

    with tempfile.TemporaryDirectory(prefix="topics-reference-") as folder:
        with topics.streams.open(f"{folder}/data/streams") as streams:
            streams.create_stream("orders")
            streams.create_topic("orders", "events", partitions=1)
        cold_dir = f"{folder}/cold"
        with ServerProcess(f"{folder}/data", streams_port=0, cold_dir=cold_dir) as server, Client(server.url) as client:
            client.create("jobs", type="queue")
            client.append("jobs", [1])
            client.create_group("jobs", "billing")
            client.create_router("copies", "jobs", "done")
            document = client.openapi()
            with urlopen(f"{server.url}/v0/metrics") as answer:  # noqa: S310 - our own server
                metrics = parse_metrics(answer.read().decode())
    return Described(document, metrics)


def pages() -> dict[str, str]:
    """Every page by its file name in `docs/reference/`."""
    server = described()
    return {
        "endpoints.md": endpoints_page(server.document),
        "commands.md": page("Commands", commands_page()),
        "settings.md": settings_page(server.document),
        "metrics.md": metrics_page(server.metrics),
        "errors.md": errors_page(),
        "python.md": page("Python names", python_page(REPOSITORY / "src")),
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        FOLDER.joinpath(name).write_text(text, "utf-8")
    sys.stdout.write(f"{len(list(FOLDER.glob('*.md')))} pages in {FOLDER.relative_to(REPOSITORY)}\n")


if __name__ == "__main__":
    main()
