"""`topics work QUEUE -- COMMAND`: a program for each job of a queue."""

import logging
import os
import signal
import subprocess
import sys
from typing import Annotated, Final

import typer

from topics.cli.output import message
from topics.cli.remote.complete import complete_queues
from topics.cli.remote.records import raw_text
from topics.cli.remote.session import Session, asks_server
from topics.cli.remote.shown import counted, parse_span_ms
from topics.results import Job

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)

# The end of what a failed program wrote to stderr, which becomes the reason of its nack.
REASON_BYTES_MAX: Final = 400


class _Messages(logging.Handler):
    """What the worker logs, as one line on stderr each."""

    def emit(self, record: logging.LogRecord) -> None:
        message(record.getMessage())


class ProgramFailed(Exception):
    """A program did not end with exit code 0."""


@app.command()
@asks_server
def work(
    session: Session,
    queue: Annotated[
        str, typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=complete_queues)
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")],
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, max=1000, help="Programs at a time.")
    ] = 1,
    lease: Annotated[
        str, typer.Option("--lease", metavar="SPAN", help="Lease of a job; extended while its program runs.")
    ] = "30s",
    retry_delay: Annotated[
        str | None,
        typer.Option("--retry-delay", metavar="SPAN", help="A failed job waits so long; by default 1 s, 2 s, … 5 min."),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="The name of the worker.")] = None,
    count: Annotated[
        int | None, typer.Option("--number", "-n", metavar="N", min=1, help="End after about N jobs.")
    ] = None,
    is_raw: Annotated[
        bool, typer.Option("--raw", help="A payload that is a string is given as its text, not as JSON.")
    ] = False,
) -> None:
    """Run a program for each job of a queue: the payload is its stdin.

    Exit code 0 acks the job. With any other exit code the job is given back, with the end of the program's stderr as
    the reason, and comes again after a while; after `max_deliveries` it is a dead letter. The environment has
    TOPICS_QUEUE, TOPICS_SEQ, TOPICS_TAG, TOPICS_DELIVERIES, TOPICS_TS and TOPICS_META. SIGTERM and Ctrl+C let the
    running programs end.

    \b
    Examples:
      topics work jobs -- ./resize.sh
      topics work jobs -c 4 --lease 5m -- python resize.py --size 200
      topics work mails -- sh -c 'jq -r .to | xargs send-mail'
    """
    from topics.client.sync.worker import Worker

    if not session.is_curl:
        # Says what is wrong with the name before the first job comes.
        session.client.depth(queue)
        message(f'waiting for jobs of "{queue}"; Ctrl+C ends')
    logger = logging.getLogger("topics.worker")
    logger.addHandler(_Messages())
    logger.propagate = False
    program = _Program(queue, command, is_raw=is_raw)

    def handle(job: Job) -> None:
        try:
            program.run(job)
        finally:
            if count is not None and worker.done_count + worker.failed_count + 1 >= count:
                worker.stop()

    worker = Worker(
        session.client,
        queue,
        handle,
        concurrency=concurrency,
        lease_ms=parse_span_ms(lease),
        retry_delay_ms=None if retry_delay is None else parse_span_ms(retry_delay),
        node=node,
        # A job that is pushed to a worker at its end is given back, which counts as a delivery.
        push=count is None,
    )
    try:
        worker.run()
    finally:
        message(f"{counted(worker.done_count, 'job')} done, {worker.failed_count} failed")


class _Program:
    """What runs for a job."""

    def __init__(self, queue: str, command: list[str], *, is_raw: bool) -> None:
        self._queue = queue
        self._command = command
        self._is_raw = is_raw

    def run(self, job: Job) -> None:
        """Raises `ProgramFailed` unless the program ends with exit code 0."""
        payload = raw_text(job.data).encode() if self._is_raw else job.data
        try:
            done = subprocess.run(
                self._command,
                input=payload,
                stderr=subprocess.PIPE,
                env=os.environ | self._environment(job),
                check=False,
                # Ctrl+C in the terminal ends this worker after its jobs, not the programs in the middle of theirs.
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramFailed(f"{self._command[0]}: {error.strerror}") from error
        sys.stderr.buffer.write(done.stderr)
        sys.stderr.buffer.flush()
        if done.returncode:
            ended = f"exit code {done.returncode}" if done.returncode > 0 else _signal_name(-done.returncode)
            told = done.stderr.decode(errors="replace").strip()[-REASON_BYTES_MAX:]
            raise ProgramFailed(f"{ended}: {told}" if told else ended)

    def _environment(self, job: Job) -> dict[str, str]:
        return {
            "TOPICS_QUEUE": self._queue,
            "TOPICS_SEQ": str(job.seq),
            "TOPICS_TS": str(job.ts),
            "TOPICS_TAG": job.tag or "",
            "TOPICS_DELIVERIES": str(job.deliveries),
            "TOPICS_META": "" if job.meta is None else job.meta.decode(errors="replace"),
        }


def _signal_name(number: int) -> str:
    try:
        return f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"
