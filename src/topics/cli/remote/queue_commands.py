"""`topics queue`: jobs of queues, from a terminal or a script."""

import os
import socket
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final

import msgspec
import typer

from topics.cli.late import Late, LateGroup, command_group
from topics.cli.output import fail, message
from topics.cli.remote.complete import complete_queues, complete_topics
from topics.cli.remote.forms import Column, Form, one_line, print_rows
from topics.cli.remote.records import RecordPrinter, raw_text, row_of
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import counted, parse_span_ms, parse_tag, parse_time_ms, show_span, show_time
from topics.clock import SystemClock
from topics.limits import CLAIM_JOBS_MAX
from topics.results import Job, Settled


class _QueueGroup(LateGroup):
    late: ClassVar = {"work": Late("topics.cli.remote.work", "Run a program for each job, as `topics work`.")}


app: Final = command_group(
    """Queues: look at jobs, claim them, settle them, bring dead letters back.

A job that is claimed is leased to a node, the name of the worker. Only that node can ack it, while the lease runs.

\b
Examples:
  topics queue ls
  topics queue claim jobs --wait 30s
  topics queue ack jobs 17
  topics queue redrive jobs --dry-run
""",
    _QueueGroup,
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=complete_queues)]
Seqs = Annotated[list[int], typer.Argument(metavar="SEQ...", help="The seqs of the jobs.")]
Node = Annotated[
    str | None,
    typer.Option("--node", metavar="NODE", help="The name of the worker; user@host by default.", show_default=False),
]


def _node(given: str | None) -> str:
    """The same for all commands of a user on a machine, so that an ack finds the claim."""
    return given or os.environ.get("TOPICS_NODE") or f"{os.environ.get('USER', 'user')}@{socket.gethostname()}"


@app.command("ls")
@asks_server
def list_queues(
    session: Session,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.", autocompletion=complete_queues)
    ] = "",
) -> None:
    """List queues: how many jobs are ready, leased and delayed, and how old the oldest ready one is.

    \b
    Examples:
      topics queue ls
      topics queue ls -o json
    """
    columns = [
        Column("queue", "QUEUE"),
        Column("ready", "READY"),
        Column("in_flight", "IN FLIGHT"),
        Column("delayed", "DELAYED"),
        Column("dead_lettered", "DEAD LETTERED"),
        Column("oldest_ready_age_ms", "OLDEST", show_span),
    ]
    rows = [
        {"queue": entry.topic, **msgspec.to_builtins(entry.queue)}
        for entry in session.client.topic_list(prefix)
        if entry.type == "queue"
    ]
    session.print_rows(columns, rows)
    if not rows and session.form() is Form.TABLE:
        message("there is no queue; `topics topic create NAME --queue` makes one")


@app.command()
@asks_server
def show(session: Session, queue: Queue) -> None:
    """Show the depths of a queue, and its leases: job, node, deadline.

    \b
    Examples:
      topics queue show jobs
      topics queue show jobs -o json | jq .leases
    """
    state = msgspec.to_builtins(session.client.depth(queue))
    leases = [{"seq": lease.pop("$seq"), **lease} for lease in state.pop("leases")]
    if isinstance(state.pop("next_cursor", None), str):
        leases = [msgspec.to_builtins(lease) for lease in session.client.leases(queue)]
        leases = [{"seq": lease.pop("$seq"), **lease} for lease in leases]
    del state["performance"]
    if session.form() is not Form.TABLE:
        session.print_one(state | {"leases": leases})
        return
    session.print_one(state, {"oldest_ready_age_ms": show_span})
    if leases:
        session.output.line("")
        columns = [
            Column("seq", "SEQ"),
            Column("node", "NODE"),
            Column("deadline", "DEADLINE", show_time),
            Column("deliveries", "DELIVERIES"),
        ]
        print_rows(session.output, Form.TABLE, columns, leases)


@app.command()
@asks_server
def claim(
    session: Session,
    queue: Queue,
    node: Node = None,
    count: Annotated[
        int, typer.Option("--number", "-n", metavar="N", min=1, max=CLAIM_JOBS_MAX, help="Jobs at most.")
    ] = 1,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="SPAN", help="Lease them for this long; the queue's default otherwise."),
    ] = None,
    wait: Annotated[str, typer.Option("--wait", metavar="SPAN", help="Wait so long for a job.")] = "0s",
) -> None:
    """Lease jobs and print them. No other worker gets them until the lease ends. Without a job nothing is printed.

    \b
    Examples:
      topics queue claim jobs
      topics queue claim jobs -n 10 --wait 30s --lease 5m -o jsonl
    """
    name = _node(node)
    lease_ms = None if lease is None else parse_span_ms(lease)
    jobs = session.client.claim(queue, name, max_jobs=count, lease_ms=lease_ms, wait_ms=parse_span_ms(wait))
    form = session.record_form()
    columns = [
        Column("seq", "SEQ"),
        Column("deliveries", "DELIVERIES"),
        Column("deadline", "DEADLINE", show_time),
        Column("tag", "TAG"),
        Column("data", "DATA", _data_text),
    ]
    if form is Form.RAW:
        for job in jobs:
            session.output.payload(raw_text(job.data))
    else:
        print_rows(session.output, form, columns, [_row(job) for job in jobs])
    if jobs:
        message(f"leased to {name}: `topics queue ack {queue} {jobs[0].seq}` when it is done")
    else:
        message(f'queue "{queue}" has no ready job')


def _data_text(data: Any) -> str:
    return bytes(data).decode(errors="replace")


def _row(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {"seq": job.seq, "ts": job.ts, "tag": job.tag, "deliveries": job.deliveries}
    row |= {"deadline": job.deadline, "data": msgspec.Raw(one_line(job.data))}
    if job.meta is not None:
        row["meta"] = msgspec.Raw(one_line(job.meta))
    return row


@app.command()
@asks_server
def ack(session: Session, queue: Queue, seqs: Seqs, node: Node = None) -> None:
    """The jobs are done: remove them from the queue. Exit code 1 if one of them is not leased to the node.

    \b
    Examples:
      topics queue ack jobs 17
      topics queue ack jobs 17 18 --node worker-1
    """
    _settle(session, "acked", queue, node, lambda name: session.client.ack(queue, name, seqs))


@app.command()
@asks_server
def nack(
    session: Session,
    queue: Queue,
    seqs: Seqs,
    node: Node = None,
    delay: Annotated[str, typer.Option("--delay", metavar="SPAN", help="Ready again after this time.")] = "0s",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; a dead letter keeps it.")] = "",
) -> None:
    """Give jobs back: another claim gets them. Exit code 1 if one of them is not leased to the node.

    \b
    Example:
      topics queue nack jobs 17 --delay 5m --reason "no such customer"
    """
    delay_ms = parse_span_ms(delay)
    _settle(
        session,
        "given back",
        queue,
        node,
        lambda name: session.client.nack(queue, name, seqs, delay_ms=delay_ms, reason=reason),
    )


@app.command()
@asks_server
def extend(
    session: Session,
    queue: Queue,
    seqs: Seqs,
    lease: Annotated[str, typer.Option("--lease", metavar="SPAN", help="How long from now on.")],
    node: Node = None,
) -> None:
    """Lease jobs for longer, so that no other worker gets them. Exit code 1 if one of them is not leased to the node.

    \b
    Example:
      topics queue extend jobs 17 --lease 5m
    """
    name = _node(node)
    done = session.client.extend(queue, name, seqs, lease_ms=parse_span_ms(lease))
    rows = [{"seq": seq, "deadline": deadline} for seq, deadline in done.deadlines.items()]
    if rows:
        session.print_rows([Column("seq", "SEQ"), Column("deadline", "DEADLINE", show_time)], rows)
    _fail_if_skipped(session, queue, name, done.skipped)


def _settle(session: Session, what: str, queue: str, node: str | None, call: Callable[[str], Settled]) -> None:
    name = _node(node)
    done = call(name)
    if session.form() is not Form.TABLE:
        session.print_one({"queue": queue, "settled": done.settled, "skipped": done.skipped})
    if done.settled:
        message(f"{counted(done.settled, 'job')} {what}")
    _fail_if_skipped(session, queue, name, done.skipped)


def _fail_if_skipped(session: Session, queue: str, node: str, skipped: list[int]) -> None:
    if skipped:
        session.output.flush()
        fail(f"not leased to {node}: {', '.join(map(str, skipped))}; `topics queue show {queue}` lists the leases")


@app.command()
@asks_server
def redrive(
    session: Session,
    queue: Queue,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="QUEUE",
            help="Move the jobs of QUEUE to this queue, not the dead letters back.",
            autocompletion=complete_topics,
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", metavar="TAG", help="Only jobs with this tag; acme:* too.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only jobs that died at this time or later: 1h (ago).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only jobs that died before.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Jobs at most; 0 = all.")] = 0,
    rate: Annotated[int, typer.Option("--rate", metavar="N", min=0, help="Jobs a second at most; 0 = no limit.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the jobs and show the first ones; move none.")
    ] = False,
) -> None:
    """Move the dead letters of a queue back into it. After a crash no job is lost and none is there twice.

    \b
    Examples:
      topics queue redrive jobs --dry-run
      topics queue redrive jobs --tag 'acme:*' --limit 100 --rate 50
      topics queue redrive jobs.dead --to jobs
    """
    from topics.client.answers import record_of

    now_ms = SystemClock().now_ms()
    exact, prefix = parse_tag(tag)
    done = session.client.redrive(
        queue,
        to=to,
        tag=exact,
        tag_prefix=prefix,
        from_ts=0 if since is None else parse_time_ms(since, now_ms),
        to_ts=None if until is None else parse_time_ms(until, now_ms),
        limit=limit,
        rate=rate,
        dry_run=dry_run,
    )
    jobs = [record_of(job) for job in done.jobs]
    if session.form() is not Form.TABLE:
        members = ("source", "dest", "moved", "matched", "skipped", "stopped", "dry_run")
        row: dict[str, Any] = {name: getattr(done, name) for name in members}
        session.print_one(row | {"jobs": [row_of(job) for job in jobs]})
    elif jobs:
        printer = RecordPrinter(session.output, Form.TABLE, done.source, None)
        for job in jobs:
            printer.record(job)
    told = f"jobs that match: {done.matched}" if dry_run else f"{counted(done.moved, 'job')} moved"
    message(f'{told}, from "{done.source}" to "{done.dest}"')
    if done.skipped:
        message(f"{counted(done.skipped, 'job')} left there: leased or delayed")
    if done.stopped == "full":
        fail(f'"{done.dest}" has no room for the next job')
