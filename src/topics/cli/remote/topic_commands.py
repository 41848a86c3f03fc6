"""`topics topic`: the topics of a server."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from topics.cli.late import command_group
from topics.cli.output import fail, message
from topics.cli.remote.complete import complete_topics
from topics.cli.remote.forms import Column, Form, plain
from topics.cli.remote.session import Session, asks_server, confirm_name
from topics.cli.remote.shown import (
    counted,
    parse_bytes,
    parse_span_ms,
    parse_tag,
    show_bytes,
    show_span,
    show_time,
)
from topics.errors import TopicNotFound
from topics.results import Tombstone

if TYPE_CHECKING:
    from topics.protocol.response_body import TopicEntry

app: Final = command_group(
    """Topics: list, show, create, change, remove, and delete records of them.

\b
Examples:
  topics topic ls
  topics topic create orders --durability fsync --ttl 7d
  topics topic show orders
"""
)

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The name of the topic.", autocompletion=complete_topics)
]


def _option(kind: Any, flag: str, metavar: str | None, text: str) -> Any:
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)]


# The flags of a config by member of the contract, and how the text of a flag becomes the value.
_CONFIG: Final[dict[str, tuple[Any, Callable[[Any], object]]]] = {
    "ttl_ms": (_option(str, "--ttl", "SPAN", "Records expire at this age, like 7d; 0s = never."), parse_span_ms),
    "cap_records": (_option(int, "--cap-records", "N", "Records kept; 0 = all."), int),
    "cap_bytes": (_option(str, "--cap-bytes", "SIZE", "Bytes kept, like 10G; 0 = all."), parse_bytes),
    "discard": (_option(str, "--discard", "old|reject", "At a cap: remove the oldest, or refuse the write."), str),
    "durability": (
        _option(str, "--durability", "ephemeral|memory|disk|fsync", "What a write survives; fsync: a power cut."),
        str,
    ),
    "priority": (_option(int, "--priority", "N", "From -1000 to 1000."), int),
    "idempotency_window_ms": (
        _option(str, "--idempotency-window", "SPAN", "How long the key of a write is remembered."),
        parse_span_ms,
    ),
    "lease_ms": (_option(str, "--lease", "SPAN", "Queues: how long a claimed job is leased."), parse_span_ms),
    "claim_jitter_ms": (
        _option(str, "--claim-jitter", "SPAN", "Queues: claims within this time share the jobs evenly."),
        parse_span_ms,
    ),
    "max_deliveries": (
        _option(int, "--max-deliveries", "N", "Queues: deliveries before a job is a dead letter; 0 = no limit."),
        int,
    ),
    "dead_letter": (_option(str, "--dead-letter", "TOPIC", "Queues: where the dead letters go."), str),
    "leases_durable": (
        _option(bool, "--leases-durable/--no-leases-durable", None, "Queues: leases survive a restart."),
        bool,
    ),
}


def _takes_config(function: Callable[..., None]) -> Callable[..., None]:
    """Replaces `**config` in the signature by the flags of a config."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
    flags = [
        inspect.Parameter(member, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for member, (annotation, _) in _CONFIG.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return function


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    return {member: _CONFIG[member][1](value) for member, value in config.items() if value is not None}


@app.command("ls")
@asks_server
def list_topics(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.", autocompletion=complete_topics)
    ] = "",
) -> None:
    """List topics: records, bytes, jobs of queues, the largest lag of consumer groups.

    \b
    Examples:
      topics topic ls
      topics topic ls orders. -o json
      topics topic ls -o raw | xargs -n 1 topics topic show
    """
    columns = [
        Column("topic", "TOPIC"),
        Column("type", "TYPE"),
        Column("count", "RECORDS"),
        Column("bytes", "BYTES", show_bytes),
        Column("head_seq", "HEAD"),
        Column("ready", "READY"),
        Column("in_flight", "IN FLIGHT"),
        Column("lag_max", "LAG"),
    ]
    rows = [_row(entry) for entry in session.client.topic_list(prefix)]
    session.print_rows(columns, rows)
    if not rows and session.form() is Form.TABLE:
        message("there is no topic" + (f' that begins with "{prefix}"' if prefix else "; a write makes one"))


def _row(entry: "TopicEntry") -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(entry)
    queue, groups = row.pop("queue", None), row.pop("groups", None)
    row["ready"] = None if queue is None else queue["ready"]
    row["in_flight"] = None if queue is None else queue["in_flight"]
    row["delayed"] = None if queue is None else queue["delayed"]
    row["oldest_ready_age_ms"] = None if queue is None else queue["oldest_ready_age_ms"]
    row["groups"] = 0 if groups is None else groups["count"]
    row["lag_max"] = None if groups is None else groups["lag_max"]
    return row


@app.command()
@asks_server
def show(session: Session, topic: TopicName) -> None:
    """Show the numbers and the config of a topic.

    \b
    Examples:
      topics topic show orders
      topics topic show orders -o json | jq .config
    """
    state = msgspec.to_builtins(session.client.state(topic))
    del state["performance"]
    if session.form() is Form.TABLE:
        config = state.pop("config")
        state |= state.pop("queue", {})
        state["bytes"] = show_bytes(state["bytes"])
        for member in ("last_write_ts", "last_read_ts"):
            state[member] = show_time(state[member])
        if "oldest_ready_age_ms" in state:
            state["oldest_ready_age_ms"] = show_span(state["oldest_ready_age_ms"])
        state |= {f"config.{member}": _config_text(member, config[member]) for member in config if member != "type"}
    session.print_one(state)


def _config_text(member: str, value: Any) -> str:
    """A span of time is also shown as people write it."""
    return f"{value} ({show_span(value)})" if member.endswith("_ms") and value else plain(value)


@app.command()
@asks_server
@_takes_config
def create(
    session: Session,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")],
    is_queue: Annotated[bool, typer.Option("--queue", help="A queue: its records are jobs.")] = False,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the topic is there.")] = False,
    **config: Any,
) -> None:
    """Create a topic. A topic that is there already stays as it is.

    \b
    Examples:
      topics topic create orders --durability fsync --ttl 7d
      topics topic create jobs --queue --max-deliveries 5 --dead-letter jobs.dead
    """
    members = _given(config)
    if is_queue:
        members["type"] = "queue"
    if not session.is_curl and _exists(session, topic):
        if if_missing:
            message(f'topic "{topic}" is there already')
            return
        fail(f'topic "{topic}" is there already; `topics topic set {topic}` changes its config')
    session.client.create(topic, **members)
    message(f'topic "{topic}" is created')


def _exists(session: Session, topic: str) -> bool:
    try:
        session.reader.state(topic)
    except TopicNotFound:
        return False
    return True


@app.command("set")
@asks_server
@_takes_config
def change(session: Session, topic: TopicName, **config: Any) -> None:
    """Change members of a topic's config. The others stay.

    \b
    Examples:
      topics topic set orders --ttl 30d
      topics topic set jobs --max-deliveries 3 --dead-letter jobs.dead
    """
    changed = _given(config)
    if not changed:
        fail(f"say what to change, as in `topics topic set {topic} --ttl 7d`")
    before = msgspec.to_builtins(session.reader.state(topic).config)
    # `durable` is another word for one of the durabilities.
    del before["durable"]
    session.client.create(topic, **(before | changed))
    for member, value in changed.items():
        message(f"{member}: {plain(before[member])} -> {plain(value)}")


@app.command("delete")
@asks_server
def delete_records(
    session: Session,
    topic: TopicName,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Only records with this tag; acme:* is a prefix.")
    ] = None,
    before_seq: Annotated[
        int | None, typer.Option("--before-seq", metavar="SEQ", min=1, help="Only records with a lower seq.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records; delete none.")] = False,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete records of a topic for good: with a tag, below a seq, or both. No reader sees them again.

    \b
    Examples:
      topics topic delete orders --tag customer-7 --dry-run
      topics topic delete orders --tag 'acme:*' --before-seq 1000 --yes
    """
    if tag is None and before_seq is None:
        fail("say which records: --tag, --before-seq or both; `topics topic rm` removes a whole topic")
    exact, prefix = parse_tag(tag)
    if dry_run:
        found = (one for one in session.client.read_all(topic) if not isinstance(one, Tombstone))
        below = (record for record in found if before_seq is None or record.seq < before_seq)
        message(f'records of "{topic}" that match: {sum(_is_tagged(record.tag, exact, prefix) for record in below)}')
        return
    if not session.is_curl:
        session.reader.state(topic)
        confirm_name("records of topic", topic, is_confirmed=is_confirmed)
    done = session.client.delete(
        topic,
        before_seq=before_seq,
        tag=exact,
        tag_prefix=prefix,
    )
    if session.form() is not Form.TABLE:
        session.print_one({"topic": topic, "deleted": done.deleted})
    message(f'{counted(done.deleted, "record")} of "{topic}" deleted')


def _is_tagged(tag: str | None, exact: str | None, prefix: str | None) -> bool:
    if prefix is not None:
        return tag is not None and tag.startswith(prefix)
    return exact is None or tag == exact


@app.command()
@asks_server
def rm(
    session: Session,
    topic: TopicName,
    is_confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no records.")] = False,
) -> None:
    """Remove a topic with all its records, its groups and its routers, for good.

    \b
    Examples:
      topics topic rm orders.old
      topics topic rm orders.old --yes --if-empty
    """
    if not session.is_curl:
        session.reader.state(topic)
        confirm_name("topic", topic, is_confirmed=is_confirmed)
    session.client.drop(topic, if_empty=if_empty)
    message(f'topic "{topic}" is removed')
