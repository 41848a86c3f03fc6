"""Jobs that write topics in chunks: each chunk is an epoch of the job's own writer, staged and committed as a whole.

rule 1  Chunks are written one after the other. The server's ledger says which epoch it has seen last, so those before
        are in the topic, whole, and a run that was killed goes on behind them.
rule 2  A chunk may go to several topics, which commit one by one. So the last epoch of the ledger is written again
        where there may be several: a topic that has it adds nothing.
rule 3  The ledger is the only memory of what is done. A topic that was deleted has forgotten, and is filled again.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from topics.client import Client
from topics.spark.errors import BadOption
from topics.spark.jobs.connection import Connection
from topics.spark.jobs.job import Report, ReportProgress, WaveDone, run_waves
from topics.spark.jobs.spread import task_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AnyChunk = TypeVar("AnyChunk")


def require_staging(client: Client) -> None:
    """A server without staged writes cannot keep what these jobs promise."""
    if "stage" not in client.health().features:
        raise BadOption(f"{client.endpoint} has no staged writes, without which a rerun would add records twice")


def write_epochs(
    job: str,
    chunks: Sequence[AnyChunk],
    rows_of: "Callable[[AnyChunk], DataFrame]",
    *,
    connection: Connection,
    writer: str,
    topic: str | None,
    options: Mapping[str, str],
    weigh: Callable[[AnyChunk], int] | None = None,
    before: Callable[[AnyChunk], None] | None = None,
    report: ReportProgress | None = None,
) -> Report:
    """Writes what the ledger does not have yet. AnyChunk n is epoch n + 1; `topic` is None when a row says its own.

    `before` is called in front of each chunk, and may wait.
    """
    from pyspark.errors import PySparkException

    started_s = monotonic()
    with connection.client() as client:
        done = _epochs_done(client, writer, topic)

        def write(wave: Sequence[tuple[int, AnyChunk]]) -> WaveDone:
            ((epoch, chunk),) = wave
            if before is not None:
                before(chunk)
            given = {
                **connection.format_options(),
                **options,
                "writeMode": "staged",
                "writerId": writer,
                "epoch": str(epoch),
            }
            if topic is not None:
                given["topic"] = topic
            try:
                rows_of(chunk).write.format("topics").options(**given).mode("append").save()
            except PySparkException as error:
                raise task_failure(error) from error
            return WaveDone(_records_of(client, writer, epoch), weigh(chunk) if weigh else 0)

        left = list(enumerate(chunks, 1))[done:]
        moved = run_waves(
            job,
            left,
            write,
            cores=1,
            # An epoch is a commit, and has all cores by itself.
            wave_items=1,
            weigh=(lambda item: weigh(item[1])) if weigh else None,
            report=report,
        )
    detail: dict[str, Any] = {"writer": writer, "epochs": len(chunks)}
    return Report(
        job=job,
        records=moved.records,
        bytes=moved.bytes,
        seconds=monotonic() - started_s,
        items_done=moved.items,
        items_skipped=done,
        detail=detail,
    )


def _epochs_done(client: Client, writer: str, topic: str | None) -> int:
    last = max((known.epoch for known in client.writer(writer).topics), default=0)
    return last if topic is not None else max(0, last - 1)


def _records_of(client: Client, writer: str, epoch: int) -> int:
    """What the epoch added, as the ledger tells."""
    return sum(known.last_seq - known.first_seq + 1 for known in client.writer(writer).topics if known.epoch == epoch)
